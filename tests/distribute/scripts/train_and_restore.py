"""Trains a model whose run is backed up after each epoch, and waits once, in the second epoch, to be killed.

    train_and_restore.py FOLDER STRATEGY

FOLDER holds two named pipes, "reached" and "go", which are used while there is no file "was here". By a third one,
"back", worker 0 says once that it takes part in the training of another chief.
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


class Pause(callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and len(self.model.history.epoch) == 1 and not (FOLDER / "was here").exists():
            (FOLDER / "was here").touch()
            (FOLDER / "reached").write_text("two steps")
            (FOLDER / "go").read_text()


class Back(callbacks.Callback):
    on_all_workers = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        if strategy.task_index == 0 and not strategy.is_chief and (FOLDER / "back").exists():
            with (FOLDER / "back").open("w") as stream:
                (FOLDER / "back").unlink()
                stream.write("worker 0")


def main() -> None:
    ab.utils.set_random_seed(1)
    spread = {"shard": "optimizer"} if sys.argv[2] == "ZeRO" else {}
    strategy = getattr(ab.distribute, "DataParallel" if spread else sys.argv[2])(**spread)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 4))
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dropout(0.3), layers.Dropout(0.2), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
    given = [
        callbacks.BackupAndRestore(FOLDER / "backup"),
        Pause(),
        callbacks.EarlyStopping("loss", patience=3),
        Back(),
    ]
    history = model.fit(x, y, batch_size=10, epochs=4, verbose=0, validation_data=(x[:9], y[:9]), callbacks=given)
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations),
        "statistics": strategy.statistics(),
    }
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
