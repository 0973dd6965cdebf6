"""Trains a model whose run is backed up within epochs; its chief waits once to be interrupted.

    train_elastic.py FOLDER [EPOCH BATCH]

EPOCH and BATCH say behind which batch, counted from 0: by default the third one of the second epoch. Batch -1 is where
an epoch begins.
FOLDER holds two named pipes, "reached" and "go", which are used while there is no file "was here".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim

FOLDER = Path(sys.argv[1])
PLACE = [int(argument) for argument in sys.argv[2:]] or [1, 2]


class Pause(callbacks.Callback):
    kept_attributes = ("batches",)

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.pause_at(epoch, -1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.pause_at(len(self.model.history.epoch), batch)

    def pause_at(self, epoch: int, batch: int) -> None:
        if [epoch, batch] == PLACE and not (FOLDER / "was here").exists():
            (FOLDER / "was here").touch()
            (FOLDER / "reached").write_text("the place")
            (FOLDER / "go").read_text()


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    strategy = ab.distribute.ParameterServer()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 4))
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dense(3, "relu"), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
    pause = Pause()
    given = [callbacks.BackupAndRestore(FOLDER / "backup", save_freq=2), pause, callbacks.EarlyStopping("loss")]
    history = model.fit(x, y, batch_size=10, epochs=3, verbose=0, callbacks=given)
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "optimizer": [variable.numpy().tolist() for variable in model.optimizer.variables],
        "batches": pause.batches,
        "statistics": strategy.statistics(),
    }
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
