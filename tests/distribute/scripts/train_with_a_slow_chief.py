"""Trains a model with one backup worker; an operation of the chief's third share takes until the test has seen enough.

    train_with_a_slow_chief.py FOLDER

FOLDER holds two named pipes, "reached" and "go".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab

FOLDER = Path(sys.argv[1])
STRATEGY = ab.distribute.ParameterServer(backup_workers=1, min_workers=3)
shares = 0


@ab.distribute.register_function("slow, of a test")
def slow(value: Any) -> Any:
    """Give a value; the third time, in worker 0, when the test says so."""
    global shares
    shares += 1
    if shares == 3 and STRATEGY.task_index == 0:
        (FOLDER / "reached").write_text("slow")
        (FOLDER / "go").read_text()
    return value


class Slow(ab.Sequential):
    """A model of whose step an operation may take long."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((ab.ops.numpy_function(slow, [x], "float32", shape=x.shape), y))


def main() -> None:
    rows = np.ones((40, 3), "float32")
    with STRATEGY.scope():
        model = Slow([ab.Input((3,)), ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(rows, rows[:, :1], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 10


if __name__ == "__main__":
    main()
