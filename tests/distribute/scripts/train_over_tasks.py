"""Trains models that are on several tasks, and the same alone; the first process writes both results."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import distribution, layers
from anabranch.distribute import ModelParallel, Pipeline
from anabranch.engine.graph.state.sharded import grouped

RNG = np.random.default_rng(0)
X, IDS, Y = RNG.normal(size=(8, 3, 8)), RNG.integers(0, 12, size=(8, 3)), RNG.normal(size=(8, 4))


def dense() -> Any:
    names = [layers.Dense(6, "tanh", name="up"), layers.Dense(8, name="down"), layers.Dense(4, name="out")]
    return ab.Sequential([ab.Input((3, 8)), layers.Flatten(), *names])


def table() -> Any:
    rows = layers.Embedding(12, 4, name="table")
    return ab.Sequential([ab.Input((3,), dtype="int32"), rows, layers.Flatten(), layers.Dense(4)])


def mixture() -> Any:
    made = layers.MixtureOfExperts(4, lambda: layers.Dense(8, "tanh"), k=2, noisy=False, importance_loss=0, load_loss=0)
    return ab.Sequential([ab.Input((3, 8)), made, layers.Flatten(), layers.Dense(4)])


def parallel(shape: tuple[int, ...], layouts: dict[str, Any], axes: Any = ("batch", "model"), **options: Any) -> Any:
    found = distribution.LayoutMap(distribution.DeviceMesh(shape, axes, distribution.list_devices()))
    for key, layout in layouts.items():
        found[key] = layout
    return ModelParallel(layout_map=found, **options)


CASES: dict[str, Any] = {
    "dense": (dense, X, lambda: parallel((1, 2), {"up/kernel": (None, "model"), "(down|out)/kernel": ("model", None)})),
    "table": (table, IDS, lambda: parallel((1, 2), {"table": ("model", None)})),
    "rows": (dense, X, lambda: parallel((2, 1), {})),
    "experts": (mixture, X, lambda: parallel((2,), {}, ("batch",), expert_axis="batch")),
    "stages": (dense, X, lambda: Pipeline(2, 4, devices=distribution.list_devices())),
}


def trained(make: Any, x: Any, strategy: Any) -> dict[str, Any]:
    """Predict and evaluate, two epochs, then both again; of 8 rows the batches have 5 and 3."""
    ab.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        model.compile("adam", "mse", metrics=["mae"])
    found = {"first predicted": model.predict(x, verbose=0), "first": np.array(model.evaluate(x, Y, verbose=0))}
    history = model.fit(x, Y, batch_size=5, epochs=2, verbose=0).history
    found |= {f"history {key}": np.array(values) for key, values in history.items()}
    found["evaluated"], found["predicted"] = np.array(model.evaluate(x, Y, verbose=0)), model.predict(x, verbose=0)
    if strategy is not None:
        print("elsewhere:", sum(v.home is not None for v in (*model.variables, *model.optimizer.variables)))
    state = [*model.get_weights(), *[variable.numpy() for variable in grouped(model.optimizer.variables)]]
    return found | {f"state {number}": value for number, value in enumerate(state)}


def check_what_is_refused() -> None:
    """Collectives would wait for processes that run no script."""
    with pytest.raises(ValueError, match="over 2 processes, of which this one alone runs the script"):
        ab.distribute.all_reduce(1.0)
    with pytest.raises(ValueError, match=r"DataParallel: .* runs the script.* or this one in a script of its own"):
        ab.distribute.DataParallel()
    absent = "/job:worker/task:1/device:CPU:7"
    with pytest.raises(ValueError, match=f"Pipeline: there are no devices .*{absent}.*; the processes have .*task:1"):
        Pipeline(1, 2, devices=[absent])


def main(path: str, names: list[str]) -> None:
    ab.config.set_floatx("float64")
    found: dict[str, Any] = {}
    for name in names:
        make, x, strategy = CASES[name]
        over = trained(make, x, strategy())
        check_what_is_refused()
        alone = trained(make, x, None)
        found |= {f"{name}: {key}: over": value for key, value in over.items()}
        found |= {f"{name}: {key}: alone": value for key, value in alone.items()}
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
