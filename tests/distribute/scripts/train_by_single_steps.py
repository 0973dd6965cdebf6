"""Trains models by single steps, as one of the workers of a cluster or alone.

    train_by_single_steps.py STRATEGY FOLDER [lose WORKER... | unlike]

After the third step the workers to lose end without a word; "unlike" has worker 1 pass other batches than the chief.
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
from anabranch import layers, optim

KIND, FOLDER, *MORE = sys.argv[1:]
ROWS = (12, 12, 7, 12, 1, 12, 5, 12)  # of the batches, some of which leave workers without rows


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    name, _, option = KIND.partition(":")
    options: dict[str, Any] = {"backup_workers": 1} if option == "backup" else {}
    options |= {"sync": False} if option == "asynchronous" else {}
    options |= {"shard": "optimizer"} if option == "optimizer" else {}
    strategy = getattr(ab.distribute, name)(**options)
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(5, "tanh"), layers.Dropout(0.25), layers.Dense(1)])
        model.compile(optim.Adam(0.02), "mse", metrics=["mae"])
        other = ab.Sequential([layers.Dense(2)])
        other.compile("sgd", "mse")
    logs: list[Any] = []
    own = strategy.task_index
    for step, rows in enumerate(ROWS):
        x = rng.normal(size=(rows, 4))
        y = x.sum(1, keepdims=True)
        if MORE[:1] == ["unlike"] and own:
            x, y = x[:3], y[:3]
        if MORE[:1] == ["lose"] and step == 3 and str(own) in MORE[1:]:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 4:
            model.optimizer.learning_rate = 0.01
        logs.append(model.train_on_batch(x, y))
        logs.append([float(np.sum(weight)) for weight in model.get_weights()])
        logs.append(other.train_on_batch(x, x[:, :2]))
        logs.append(model.test_on_batch(x, y))
        logs.append(float(np.sum(model.predict_on_batch(x))))
    found: dict[str, Any] = {"logs": logs, "weights": [weight.tolist() for weight in model.get_weights()]}
    history = model.fit(np.ones((4, 4)), np.ones((4, 1)), batch_size=4, epochs=2, verbose=0)
    found["history"] = history.history
    logs.append(model.train_on_batch(np.ones((4, 4)), np.ones((4, 1))))
    found["is_chief"] = strategy.is_chief
    (Path(FOLDER) / f"found-{own}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
