"""Trains under `DataParallel` in workers with a GPU each, or one on its CPU; stand-ins for cupy are the GPUs.

    train_on_gpus.py FOLDER [cpu | shared | host | one | parts]

With "shared" all workers have the same GPU. With "host" cupy has no NCCL, with "one" only that of worker 1. With
"parts" each has a part of the optimizer. Saves the weights and the losses.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from shared.gpus import stand_in_of_worker

import anabranch as ab
from anabranch import layers, optim

FOLDER, KIND = Path(sys.argv[1]), (*sys.argv[2:], "gpu")[0]


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4))
    y = x.sum(1, keepdims=True) / 4.0
    strategy = ab.distribute.DataParallel(bucket_bytes=100, shard="optimizer" if KIND == "parts" else None)
    with strategy.scope(), ab.device("cpu:0" if KIND == "cpu" else "gpu:0"):
        model = ab.Sequential([layers.Dense(6, "tanh"), layers.BatchNormalization(synchronized=True), layers.Dense(1)])
        model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=12, epochs=3, verbose=0)
    losses = np.array(history.history["loss"])
    np.savez(FOLDER / f"{strategy.task_index}.npz", losses, *model.get_weights())
    (FOLDER / f"{strategy.task_index}.json").write_text(json.dumps(strategy.statistics()))


def of_kind(rank: int) -> Any:
    return nullcontext() if KIND == "cpu" else stand_in_of_worker(0 if KIND == "shared" else rank)


if __name__ == "__main__":
    with of_kind(ab.distribute.rank()) as cupy:
        if KIND == "host" or (KIND == "one" and ab.distribute.rank() == 1):
            cupy.cuda.nccl.available = False
        main()
