"""Trains replicas in stages, `DataParallel(of=Pipeline(...))`, and saves what came of it.

train_in_stages.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import anabranch as ab
from anabranch import layers, optim


def main() -> None:
    ab.config.set_devices(cpu=2)
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(3)
    strategy = ab.distribute.DataParallel(of=ab.distribute.Pipeline(2, microbatches=3))
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 7, size=(21, 4)), rng.normal(size=(21, 3))
    with strategy.scope():
        model = ab.Sequential(
            [ab.Input((4,), dtype="int32"), layers.Embedding(7, 3), layers.Flatten(), layers.Dense(5), layers.Dense(3)]
        )
        model.compile(optim.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    history = model.fit(ids, y, batch_size=10, epochs=2, verbose=0)
    found = {
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "devices": strategy.of.places if strategy.of else None,
    }
    (Path(sys.argv[1]) / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


main()
