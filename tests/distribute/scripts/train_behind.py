"""Trains a model whose chief is behind: its callbacks see the second step when all of the epoch have been applied.

    train_behind.py FOLDER

FOLDER holds two named pipes, "reached" and "go", which are used while there is no file "was here".
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers

FOLDER = Path(sys.argv[1])
STEPS = 6


class Behind(callbacks.Callback):
    kept_attributes = ("seen",)

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.strategy = strategy
        self.seen: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)
        if (FOLDER / "was here").exists():
            return
        while batch == 0 and self.strategy.statistics()["step"] < STEPS:
            threading.Event().wait(0.02)
        if batch == 2:
            (FOLDER / "was here").touch()
            (FOLDER / "reached").write_text("the place")
            (FOLDER / "go").read_text()


def main() -> None:
    strategy = ab.distribute.ParameterServer(backup_workers=1, min_workers=3)
    rows = np.ones((8 * STEPS, 3), "float32")
    with strategy.scope():
        model = ab.Sequential([ab.Input((3,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    behind = Behind(strategy)
    given = [behind, callbacks.BackupAndRestore(FOLDER / "backup", save_freq=2)]
    model.fit(rows, rows[:, :1], batch_size=8, verbose=0, callbacks=given)
    if strategy.is_chief:
        (FOLDER / "found.json").write_text(json.dumps(behind.seen))


if __name__ == "__main__":
    main()
