"""Trains the small models one after the other, as one of the workers of a cluster or alone, and saves what came of it.

train_small_models.py STRATEGY OUTPUT FLOATX [MODEL ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.small_models import MODELS, RANDOM, RANDOM_IN_LOOPS, SYNCHRONIZED, results_of


def main(kind: str, output: str, floatx: str, names: list[str]) -> None:
    strategy = getattr(ab.distribute, kind)()
    ab.config.set_floatx(floatx)
    anywhere = MODELS | RANDOM | SYNCHRONIZED
    known = anywhere | RANDOM_IN_LOOPS
    found: dict[str, Any] = {}
    for name in names or (known if kind == "DataParallel" else anywhere):
        ab.utils.set_random_seed(5)
        with strategy.scope():
            case = known[name]()
        history = case.model.fit(case.x, case.y, batch_size=7, epochs=2, verbose=0, **case.options)
        results = results_of(case, history)
        found |= {f"{name}: {key}": value for key, value in results.items()}
    np.savez(f"{output}-{strategy.task_index}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
