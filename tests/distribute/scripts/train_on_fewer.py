"""Trains under `DataParallel` while workers are lost or leave.

    train_on_fewer.py FOLDER [MODEL [WORKER:NUMBER[:SIGNAL] ...]]

With ``launch --max-restarts`` a worker is started again, and joins the others. With WAIT the chief waits behind a step
until it is there. A worker that was started again sends no signals.

Behind a step, counted from 0 over all epochs, a worker sends itself a signal: KILL where none is given. With BUCKET it
is killed within the next step, when the others have the sum of its first gradients. With BEGIN, TEST and END it is
killed in the callbacks of the epoch of that number, with PASS before it gives its part of the validation. CONT sends a
signal to worker 0, and waits for its end.

The chief's own callback writes a line for each moment to ``chief.txt``. It changes the learning rate, and ends
training.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.distribute.collectives.membership_service import Seat
from anabranch.distribute.environment import JOINS
from anabranch.engine.ops.collectives import current_group

FOLDER, MODEL, *LOST = (*sys.argv[1:2], *(sys.argv[2:] or ["dense"]))
WAITS = [each for each in LOST if each.endswith("WAIT")]
LOST = [each for each in LOST if each not in WAITS and JOINS not in os.environ]
PATIENCE = 60.0  # seconds
PLACES = [["BEGIN"], ["TEST"], ["PASS"], ["END"]]


class Sends(callbacks.Callback):
    """Sends the process a signal where the arguments say so."""

    on_all_workers = True

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.steps = -1
        self.worker = worker
        self.epoch = -1
        self.seen: list[str] = []

    def _kill_at(self, epoch: int, name: str) -> None:
        if f"{self.worker}:{epoch}:{name}" in LOST:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self._kill_at(epoch, "BEGIN")

    def on_test_begin(self, logs: Any = None) -> None:
        self._kill_at(self.epoch, "TEST")
        if f"{self.worker}:{self.epoch}:PASS" in LOST:
            kill_in_validation()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._kill_at(epoch, "END")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.seen.append(str(batch))
        if f"{self.worker}:{self.steps}:WAIT" in WAITS:
            wait_for_joiners()
        for each in LOST:
            worker, step, *name = each.split(":")
            if int(worker) == self.worker and int(step) == self.steps and name not in PLACES:
                if name == ["BUCKET"]:
                    kill_behind_a_sum()
                elif name == ["CONT"]:
                    go_on(int((Path(FOLDER) / "process-0").read_text()))
                else:
                    os.kill(os.getpid(), getattr(signal, f"SIG{(name or ['KILL'])[0]}"))


class Leads(callbacks.Callback):
    """Has a state that goes from chief to chief."""

    kept_attributes = ("count",)
    count = 0

    def _write(self, moment: str) -> None:
        self.count += 1
        with (Path(FOLDER) / "chief.txt").open("a") as stream:
            stream.write(f"{self.count} {moment}\n")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._write(f"epoch {epoch} begins")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._write(f"batch {batch} ends")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write(f"epoch {epoch} ends")
        self.model.optimizer.learning_rate = 0.9 * float(self.model.optimizer.learning_rate)
        self.model.stop_training = epoch == 2

    def on_train_end(self, logs: Any = None) -> None:
        self._write("training ends")


def wait_for_joiners() -> None:
    group = current_group()
    assert isinstance(group, ProcessGroup)
    assert isinstance(group.watches, Seat)
    if group.size < group.started:  # else it has joined already
        assert group.watches.has_joiners.wait(PATIENCE)


def go_on(process: int) -> None:
    descriptor = os.pidfd_open(process)
    os.kill(process, signal.SIGCONT)
    select.select([descriptor], [], [])
    os.close(descriptor)


def kill_in_validation() -> None:
    group = current_group()
    assert isinstance(group, ProcessGroup)
    gather, calls = group.gather_bytes, []

    def gather_bytes(data: bytes) -> list[bytes]:
        calls.append(data)
        if len(calls) == 2:  # the first one says that validation is shared
            os.kill(os.getpid(), signal.SIGKILL)
        return gather(data)

    group.gather_bytes = gather_bytes  # type: ignore[method-assign]


def kill_behind_a_sum() -> None:
    group = current_group()
    assert isinstance(group, ProcessGroup)
    begin, begun = group.begin_all_reduce, []

    def begin_all_reduce(array: Any, reduce_op: str) -> int:
        if begun:
            group.end_all_reduce(begun[0], array)
            os.kill(os.getpid(), signal.SIGKILL)
        begun.append(begin(array, reduce_op))
        return begun[0]

    group.begin_all_reduce = begin_all_reduce  # type: ignore[method-assign]


def made(kind: str) -> tuple[ab.Model, Any, Any]:
    rng = np.random.default_rng(0)
    if kind == "table":
        x = rng.integers(0, 30, size=(50, 4))
        parts = [layers.Embedding(30, 3), layers.Flatten(), layers.Dense(1)]
    else:
        x = rng.normal(size=(50, 4))
        parts = [layers.Dense(6, "tanh"), layers.Dropout(0.25), layers.Dense(3, "relu"), layers.Dense(1)]
        if kind == "synchronized":
            parts.insert(1, layers.BatchNormalization(synchronized=True))
    return ab.Sequential(parts), x, x.sum(1, keepdims=True) / 4.0


def batches(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield from ((x[first : first + 12], y[first : first + 12]) for first in range(0, len(x), 12))


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    strategy = ab.distribute.DataParallel(bucket_bytes=100)
    with strategy.scope():
        model, x, y = made(MODEL)
        model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
    note = Sends(strategy.task_index)
    (Path(FOLDER) / f"process-{strategy.task_index}").write_text(str(os.getpid()))
    given: list[Any] = [note, Leads()]
    if MODEL == "saved":
        given.append(callbacks.BackupAndRestore(str(Path(FOLDER) / "backup"), save_freq=2))
    if MODEL == "generated":
        history = model.fit(batches(x, y), steps_per_epoch=5, epochs=4, verbose=0, callbacks=given)
    else:
        history = model.fit(x, y, batch_size=12, epochs=4, verbose=0, callbacks=given, validation_data=(x, y))
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "optimizer": [variable.numpy().tolist() for variable in model.optimizer.variables],
        "evaluated": model.evaluate(x, y, batch_size=12, verbose=0),
        "members": strategy.statistics()["members"],
        "leads": strategy.is_chief,
        "has ended": [model.stop_training, history.epoch],
        "seen": note.seen,
    }
    (Path(FOLDER) / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
