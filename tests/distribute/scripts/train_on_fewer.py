"""Trains under `DataParallel` while workers are lost or leave.

    train_on_fewer.py FOLDER [MODEL [WORKER:STEP[:SIGNAL] ...]]

Behind a step, counted from 0 over all epochs, a worker sends itself a signal: KILL where none is given. With BUCKET it
is killed within the next step, when the others have the sum of its first gradients.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.engine.ops.collectives import current_group

FOLDER, MODEL, *LOST = (*sys.argv[1:2], *(sys.argv[2:] or ["dense"]))


class Sends(callbacks.Callback):
    """Sends the process a signal where the arguments say so."""

    on_all_workers = True

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.steps = -1
        self.worker = worker
        self.seen: list[str] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.seen.append(str(batch))
        for each in LOST:
            worker, step, *name = each.split(":")
            if int(worker) == self.worker and int(step) == self.steps:
                if name == ["BUCKET"]:
                    kill_behind_a_sum()
                else:
                    os.kill(os.getpid(), getattr(signal, f"SIG{(name or ['KILL'])[0]}"))


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
    given: list[Any] = [note]
    if MODEL == "generated":
        history = model.fit(batches(x, y), steps_per_epoch=5, epochs=3, verbose=0, callbacks=given)
    else:
        history = model.fit(x, y, batch_size=12, epochs=3, verbose=0, callbacks=given, validation_data=(x, y))
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "optimizer": [variable.numpy().tolist() for variable in model.optimizer.variables],
        "evaluated": model.evaluate(x, y, batch_size=12, verbose=0),
        "members": strategy.statistics()["members"],
        "seen": note.seen,
    }
    (Path(FOLDER) / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
