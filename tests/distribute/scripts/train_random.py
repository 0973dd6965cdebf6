"""Trains random models one after the other, as one of the workers of a cluster or alone, and saves what came of it.

    train_random.py STRATEGY FOLDER FIRST LAST

For each seed from FIRST to before LAST a file "STRATEGY-SEED-WORKER.npz" is written; with the key "refused" where the
strategy can't train the model.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from programs.trainings import made

import anabranch as ab
from anabranch import distribute

STRATEGIES: dict[str, Callable[[], Any]] = {
    "DataParallel": distribute.DataParallel,
    "buckets": lambda: distribute.DataParallel(bucket_bytes=100),
    "ZeRO": lambda: distribute.DataParallel(shard="optimizer"),
    "ParameterServer": distribute.ParameterServer,
    "asynchronous": lambda: distribute.ParameterServer(sync=False),
}


def main(kind: str, folder: Path, first: int, last: int) -> None:
    strategy = STRATEGIES[kind]()
    ab.config.set_floatx("float64")
    warnings.simplefilter("ignore")  # of masks that layers do not take
    for seed in range(first, last):
        name = f"{kind}-{seed}-{strategy.task_index}"
        (folder / f"{name}-files").mkdir()
        found: dict[str, Any] = {}
        try:
            drawn = made(seed, strategy, draws=seed % 2 == 0)
        except ValueError as error:
            found["refused"] = np.array(str(error))
        else:
            found = drawn.results(folder / f"{name}-files")
        np.savez(folder / f"{name}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
