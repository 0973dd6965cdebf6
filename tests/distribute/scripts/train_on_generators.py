"""Trains on data that the chief alone reads, as one of the workers of a cluster or alone; saves what came of it.

    train_on_generators.py STRATEGY FOLDER [lost | read]

"lost": the chief waits in the second epoch, until it is killed. "read": its data raise an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim

KIND, FOLDER, HOW = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
OPTIONS: dict[str, dict[str, Any]] = {
    "ParameterServer": {},
    "backups": {"backup_workers": 1},
    "asynchronous": {"sync": False},
}
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4))
Y = rng.normal(size=(60, 1))
SIZES = [8, 1, 7, 3, 8, 2, 8, 8, 8, 7]  # of batches: some have fewer rows than there are workers


class Groups(callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(f"begin {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(f"end {batch}")


class Waits(callbacks.Callback):
    """Has the test kill the chief within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.history.epoch == [0] and batch == 1 and "lost" in HOW and strategy.task_index == 0:
            (FOLDER / "reached").write_text("the place")
            (FOLDER / "go").read_text()


def generated(count: int) -> Iterator[Any]:
    """Yield batches; only the chief reads further than the first one."""
    first = 0
    for number, size in enumerate(SIZES[:count]):
        assert number == 0 or strategy.is_chief, "nobody else reads on"
        if number == 2 and "read" in HOW:
            raise OSError("the data can't be read")
        rows = slice(first, first + size)
        yield {"x": X[rows]}, Y[rows], np.arange(size) + 1.0
        first += size


class Rows(ab.utils.PyDataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return {"x": X[8 * index : 8 * index + 8]}, Y[8 * index : 8 * index + 8]


def fits(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each run, and what `fit` returns."""
    groups = Groups()
    yield "whole", model.fit(generated(5), verbose=0, callbacks=[groups])
    yield "steps", model.fit(generated(7), epochs=2, steps_per_epoch=3, verbose=0)
    arrays = {"x": X}, Y
    yield "arrays", model.fit(*arrays, batch_size=16, epochs=3, steps_per_epoch=3, shuffle=False, verbose=0)
    yield "rows", model.fit(Rows(), epochs=2, verbose=0, shuffle=False)
    seed = 5 + strategy.task_index  # as without a seed each process draws an order of its own
    shuffled = ab.tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).shuffle(60, seed).batch(8)
    of_validation = {"validation_data": generated(9), "validation_steps": 2}
    yield "shuffled", model.fit(shuffled, epochs=2, verbose=0, callbacks=[groups], **of_validation)
    yield "seen", groups


def main() -> None:
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(3)
    with strategy.scope():
        inputs = ab.Input((4,), name="x")
        hidden = layers.Dropout(0.25, seed=1)(layers.Dense(3, "tanh")(inputs))
        model = ab.Model({"x": inputs}, layers.Dense(1)(hidden))
        model.compile(optim.Adam(0.05), "mse", weighted_metrics=["mae"], steps_per_execution=2)
    found: dict[str, Any] = {}
    if HOW:
        history = model.fit(generated(10), epochs=3, steps_per_epoch=3, verbose=0, callbacks=[Waits()])
        found["interrupted"] = history.history
    else:
        for name, result in fits(model):
            found[name] = result.seen if name == "seen" else result.history
    found["weights"] = [weight.tolist() for weight in model.get_weights()]
    found["updates"] = int(model.optimizer.iterations)
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    strategy = ab.distribute.ParameterServer(**OPTIONS[KIND])
    main()
