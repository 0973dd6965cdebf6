"""Trains one model; the chief says after two steps that it has come so far, and goes on at a signal.

    train_with_a_pause.py FOLDER [BACKUP_WORKERS [fail|both]]

FOLDER holds two named pipes, "reached" and "go". If there is a file "was lost", another worker says that it is back.
With "both" no step is made by fewer than two workers.
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


class Back(callbacks.Callback):
    on_all_workers = True
    kept_attributes = ("worker", "seen")

    def __init__(self) -> None:
        super().__init__()
        self.worker = STRATEGY.task_index
        self.seen: list[list[int]] = []  # epochs and batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append([len(self.model.history.epoch), batch])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0 and not STRATEGY.is_chief and (FOLDER / "was lost").exists():
            (FOLDER / "reached").write_text(f"worker {STRATEGY.task_index} is back")


STRATEGY = ab.distribute.ParameterServer(
    backup_workers=int((*sys.argv[2:], "0")[0]), min_workers=2 if sys.argv[3:] == ["both"] else 1
)


def main() -> None:
    ab.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 4))
    y = x.sum(1, keepdims=True)
    with STRATEGY.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse")
    back = Back()
    given = [Pause(), back] if FOLDER.exists() else []
    history = model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=given)
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations),
        "statistics": STRATEGY.statistics(),
        "everywhere": [back.worker, back.seen],
    }
    print(json.dumps(found))
    if FOLDER.exists():
        (FOLDER / f"found-{STRATEGY.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
