"""Trains in stages on two tasks, of which one is killed once; and the same alone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import distribution, layers
from anabranch.distribute import Pipeline

X = np.random.default_rng(0).normal(size=(16, 8))
EPOCHS = 3


class Kill(ab.callbacks.Callback):
    """Kills the other task once, in the middle of training."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and not (self.folder / "was killed").exists():
            (self.folder / "was killed").touch()
            os.kill(int((self.folder / "other").read_text()), signal.SIGKILL)


def trained(strategy: Any, callbacks: Any) -> list[Any]:
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        ab.utils.set_random_seed(1)
        model = ab.Sequential([ab.Input((8,)), layers.Dense(8, "tanh"), layers.Dense(4)])
        model.compile("adam", "mse")
    model.fit(X, X[:, :4], batch_size=8, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return model.get_weights()


def main(folder: Path) -> None:
    ab.config.set_floatx("float64")
    if ab.distribute.rank() == 1:
        (folder / "other").write_text(str(os.getpid()))
    strategy = Pipeline(2, 4, devices=distribution.list_devices())
    over = trained(strategy, [ab.callbacks.BackupAndRestore(folder / "backup"), Kill(folder)])
    alone = trained(None, [])
    found = {f"{n}: over": value for n, value in enumerate(over)} | {f"{n}: alone": v for n, v in enumerate(alone)}
    np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
