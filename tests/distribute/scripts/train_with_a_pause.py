"""Trains one model; the chief says after two steps that it has come so far, and goes on when it is told to.

    train_with_a_pause.py FOLDER [BACKUP_WORKERS [fail]]

FOLDER holds two named pipes, "reached" and "go".
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
FAILS = sys.argv[3:] == ["fail"]


class Pause(callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and self.model.history.epoch == []:
            (FOLDER / "reached").write_text("two steps")
            (FOLDER / "go").read_text()
            if FAILS:
                raise ValueError("this callback fails")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            (FOLDER / "reached").write_text("the end")


def main() -> None:
    ab.utils.set_random_seed(1)
    strategy = ab.distribute.ParameterServer(backup_workers=int((*sys.argv[2:], "0")[0]))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 4))
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse")
    history = model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=[Pause()] if FOLDER.exists() else [])
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations),
        "statistics": strategy.statistics(),
    }
    print(json.dumps(found))
    if FOLDER.exists():
        (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
