"""Trains on batches of few rows under `ParameterServer(backup_workers=1)`, and writes the receipts of the workers.

train_few_rows.py ParameterServer OUTPUT ROWS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import anabranch as ab
from anabranch import layers

STEPS = 30


def main(output: str, rows: int) -> None:
    strategy = ab.distribute.ParameterServer(backup_workers=1)
    with strategy.scope():
        model = ab.Sequential([layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(STEPS * rows, 4))
    model.fit(x, x.sum(1, keepdims=True), batch_size=rows, verbose=0)
    if strategy.is_chief:
        Path(output).write_text(json.dumps(strategy.statistics()["receipts"]))


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]))
