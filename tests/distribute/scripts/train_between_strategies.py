"""Trains runs that were interrupted within an epoch elsewhere; saves what came of them.

    train_between_strategies.py STRATEGY FOLDER [again]

Runs begin in one process and go on under the strategy; and the other way. "again": the latter goes on under the
strategy.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim
from anabranch.engine.queues.errors import CancelledError

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
STRATEGIES: dict[str, Any] = {
    "ParameterServer": ab.distribute.ParameterServer,
    "DataParallel": ab.distribute.DataParallel,
    "ZeRO": lambda: ab.distribute.DataParallel(shard="optimizer"),
}
rng = np.random.default_rng(0)
X = rng.normal(size=(50, 4))
Y = X.sum(1, keepdims=True)


class Interrupts(callbacks.Callback):
    """Ends a run behind a batch of the second epoch."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.history.epoch == [0] and batch == self.batch:
            raise InterruptedError


def made() -> Any:
    ab.utils.set_random_seed(1)
    model = ab.Sequential([ab.Input((4,)), layers.Dense(5, "tanh"), layers.Dropout(0.3, seed=2), layers.Dense(1)])
    model.compile(optim.Adam(0.02), "mse", metrics=["mae"])
    return model


def fitted(model: Any, given: list[Any], **options: Any) -> Any:
    history = model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=given, **options)
    weights = [weight.tolist() for weight in model.get_weights()]
    return {"history": history.history, "weights": weights, "updates": int(model.optimizer.iterations)}


def backup(name: str, **options: Any) -> Any:
    return callbacks.BackupAndRestore(FOLDER / name, **options)


def interrupted(model: Any, name: str, batch: int, **options: Any) -> None:
    """Make a backup of a run before a batch of its second epoch."""
    try:
        fitted(model, [backup(name, save_freq=1), Interrupts(batch)], **options)
    except (InterruptedError, CancelledError):
        return
    raise AssertionError("it was not interrupted")


def main(goes_on: bool) -> None:
    ab.config.set_floatx("float64")
    found: dict[str, Any] = {}
    if goes_on:
        with strategy.scope():
            model = made()
        found["again"] = fitted(model, [backup("again")])
        if strategy.is_chief:
            (FOLDER / "again.json").write_text(json.dumps(found))
        return
    if strategy.is_chief:
        interrupted(made(), "alone", 3)
        interrupted(made(), "steps", 1, steps_per_epoch=5)
    with strategy.scope():
        model, other = made(), made()
    found["from one process"] = fitted(model, [backup("alone")])
    found["from one process, steps"] = fitted(other, [backup("steps")], steps_per_epoch=5)
    if KIND != "ZeRO":
        with strategy.scope():
            model = made()
        interrupted(model, "cluster", 3)
        if strategy.is_chief:
            shutil.copytree(FOLDER / "cluster", FOLDER / "again")
            found["in one process"] = fitted(made(), [backup("cluster")])
    if strategy.is_chief:
        found["whole"] = fitted(made(), [])
        found["whole, steps"] = fitted(made(), [], steps_per_epoch=5)
        (FOLDER / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    strategy = STRATEGIES[KIND]()
    main(sys.argv[3:] == ["again"])
