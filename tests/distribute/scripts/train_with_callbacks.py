"""Trains under `DataParallel` with callbacks of the chief's that change what all workers do; saves what came of it.

train_with_callbacks.py FOLDER [fail]
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
FAILS = sys.argv[2:] == ["fail"]
SEEN: list[str] = []


class Changes(callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        SEEN.append(f"batch {batch}: {sorted(logs)}")
        if batch == 2:
            self.model.optimizer.learning_rate = 0.5
            bias = self.model.layers[-1].bias
            bias.assign(bias + 1)
            if FAILS:
                raise ValueError("this callback fails")
        if batch == 3 and self.model.history.epoch:
            self.model.stop_training = True


class Everywhere(callbacks.Callback):
    on_all_workers = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(f"end of {epoch}: {sorted(logs)}")


def main() -> None:
    ab.utils.set_random_seed(3)
    strategy = ab.distribute.DataParallel()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)).astype("float32")
    with strategy.scope():
        model = ab.Sequential([layers.Dense(3, "tanh"), layers.Dropout(0.0), layers.Dense(1)])
        model.compile(optim.SGD(0.1), "mse")
    history = model.fit(x, x[:, :1], batch_size=10, epochs=5, verbose=0, callbacks=[Changes(), Everywhere()])
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "rate": float(model.optimizer.learning_rate),
        "steps": int(model.optimizer.iterations),
        "seen": SEEN,
        "sum": float(ab.distribute.all_reduce(ab.distribute.rank() + 1.0)),
    }
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
