"""Trains a model while tasks are killed, stopped and cut off, until there is a file "enough"; or so many epochs, alone.

    train_under_faults.py FOLDER plain|synchronized|backups|parallel [EPOCHS SEED]

With "synchronized" a layer takes the statistics of the rows of all workers, so that these compute each step together.
With "backups" a step waits for all workers but one. With "parallel" there are no ps tasks.
Each worker replaces its file "present-..." in each epoch. The chief replaces the file "progress" after each step by the
number of steps that its callbacks have seen. SIGUSR1 cuts all connections of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, ops, optim

FOLDER = Path(sys.argv[1])
ROWS, BATCH = 96, 12
PAUSE = 0.02  # seconds after each step, so that the processor has time for other tests


class Rows(ab.metrics.Metric):
    """The sum of the numbers and of the squares of the numbers of the rows that were counted."""

    def __init__(self, power: int) -> None:
        super().__init__(name=f"rows_{power}")
        self.power = power
        self.total = self.add_variable(shape=(), name="total", dtype="float64")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sum(ops.cast(y_true[:, 1], "float64") ** self.power))

    def result(self) -> Any:
        return self.total


def error(y_true: Any, y_pred: Any) -> Any:
    """Return the squared error of the first column; the second has numbers of rows."""
    return ops.mean(ops.square(y_true[:, :1] - y_pred), axis=-1)


class Watched(callbacks.Callback):
    """Notes the progress, and ends training with the epoch in which there is enough of it."""

    kept_attributes = ("seen",)

    def __init__(self, is_paced: bool) -> None:
        super().__init__()
        self.is_paced = is_paced
        self.seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.is_paced:
            note(FOLDER / "progress", str(self.seen))
            time.sleep(PAUSE)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.is_paced and (FOLDER / "enough").exists():
            self.model.stop_training = True


class Present(callbacks.Callback):
    """Notes, in each worker, that it takes part."""

    on_all_workers = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        note(FOLDER / f"present-{self.model.distribute_strategy.task_index}", str(epoch))


def note(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(text)
    own.replace(path)


def cut(number: int, frame: Any) -> None:
    """Cut all connections to other processes."""
    found: list[socket.socket] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(socket.socket(fileno=os.dup(int(name))))
    own = {str(sock.getsockname()) for sock in found if sock.family != socket.AF_UNIX}
    for sock in found:
        with sock, contextlib.suppress(OSError):
            if sock.family == socket.AF_UNIX:
                peer = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
                is_own = peer == os.getpid()
            else:
                is_own = str(sock.getpeername()) in own
            if not is_own and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sock.shutdown(socket.SHUT_RDWR)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "plain": ab.distribute.ParameterServer,
    "synchronized": ab.distribute.ParameterServer,
    "backups": partial(ab.distribute.ParameterServer, backup_workers=1),
    "parallel": ab.distribute.DataParallel,
}


def main(kind: str, epochs: int | None, seed: int = 1) -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(seed)
    is_alone = epochs is not None
    if not is_alone:
        signal.signal(signal.SIGUSR1, cut)
    strategy = STRATEGIES[kind]()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6))
    y = np.stack([np.tanh(x).sum(1), np.arange(ROWS) + 1.0], axis=1)
    with strategy.scope():
        parts: list[layers.Layer] = [layers.Dense(8, "tanh"), layers.Dense(5, "tanh"), layers.Dense(1)]
        if kind == "synchronized":
            parts.insert(1, layers.BatchNormalization(synchronized=True))
        model = ab.Sequential(parts)
        model.compile(optim.Adam(0.003), error, metrics=[Rows(1), Rows(2)])
    watched = Watched(not is_alone)
    given: list[Any] = [watched]
    if not is_alone:
        given += [callbacks.BackupAndRestore(FOLDER / "backup", save_freq=5), Present()]
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs or 10**6, verbose=0, callbacks=given)
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "optimizer": [variable.numpy().tolist() for variable in model.optimizer.variables],
        "seen": watched.seen,
        "is chief": strategy.is_chief,
    }
    note(FOLDER / f"found-{f'alone-{seed}' if is_alone else strategy.task_index}.json", json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(sys.argv[2], None)
