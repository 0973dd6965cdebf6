"""Calls `fit` three times; behind the first call a worker, or a ps task, is lost, which the launcher starts again.

    train_between_losses.py FOLDER worker|ps|members|nothing STRATEGY

With "members" worker 2 is lost in the first call, and worker 0 in the second one, for good.

FOLDER holds two named pipes, "begun" and "back". A worker that was started again waits, before its first call of
`fit`, until the others are in the second one, and these wait until it has come there. A ps task is killed when both
workers have ended the first call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim
from anabranch.distribute.tasks.front import start_of

FOLDER = Path(sys.argv[1])
LOST = sys.argv[2]
WAS_HERE = FOLDER / "was here"


class Pause(callbacks.Callback):
    """In the chief: says that the second training has changed weights, and waits for the worker that was lost."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0 and not self.model.history.epoch:
            (FOLDER / "begun").write_text("a step")
            (FOLDER / "back").read_text()


class Gone(callbacks.Callback):
    """Kills the process: a chief that fails by itself would end the training of all."""

    on_all_workers = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def lose_ps(strategy: Any) -> None:
    """Kill a ps task, and wait until another start of it is there."""
    name = strategy.ps[-1]
    address = strategy.cluster.address(name)
    before = start_of(address, name)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if parent == os.getppid() and b"ps" in command and str(len(strategy.ps) - 1).encode() in command:
            os.kill(int(entry.name), signal.SIGKILL)
    while (now := start_of(address, name)) is None or now == before:
        pass


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    strategy = getattr(ab.distribute, sys.argv[3])()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4))
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dropout(0.3), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
    found: list[Any] = []
    for number in range(3):
        is_back = WAS_HERE.exists() and strategy.task_index == 1
        if LOST == "worker" and number == 0 and is_back:
            (FOLDER / "begun").read_text()
        if LOST == "worker" and number == 1 and is_back:
            (FOLDER / "back").write_text("worker 1")
        given: list[Any] = [Pause()] if LOST == "worker" and number == 1 else []
        given += [Gone()] if LOST == "members" and strategy.task_index == {0: 2, 1: 0}.get(number) else []
        history = model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=given)
        weights = [weight.tolist() for weight in model.get_weights()]
        found.append({"weights": weights, "history": history.history, "steps": int(model.optimizer.iterations)})
        if LOST == "worker" and number == 0 and strategy.task_index == 1 and not is_back:
            WAS_HERE.touch()
            os._exit(1)
        if LOST == "ps" and number == 0:
            if strategy.is_chief:
                (FOLDER / "back").read_text()
                lose_ps(strategy)
                (FOLDER / "begun").write_text("ps is back")
            else:
                (FOLDER / "back").write_text("it has read the values")
                (FOLDER / "begun").read_text()
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
