"""Trains the models of shared/counted_losses.py as one of the workers of a cluster, and saves what came of it.

train_counted_losses.py STRATEGY OUTPUT MODEL ...

"Stages" stands for replicas in two stages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.counted_losses import results


def main(kind: str, output: str, names: list[str]) -> None:
    if kind == "Stages":
        ab.config.set_devices(cpu=2)
        strategy = ab.distribute.DataParallel(of=ab.distribute.Pipeline(2, microbatches=2))
    else:
        strategy = getattr(ab.distribute, kind)()
    found: dict[str, Any] = {}
    for name in names:
        found |= {f"{name}: {key}": value for key, value in results(name, strategy).items()}
    np.savez(f"{output}-{strategy.task_index}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
