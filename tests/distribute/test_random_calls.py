"""Random calls of models: on several devices, in stages and with weights in parts they find what one device finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs.training_calls import RandomCalls
from programs.trainings import assert_same

import anabranch as ab
from anabranch import layers
from anabranch.distribute import DataParallel, ModelParallel, Pipeline
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap

QUICK = 1  # in `make test`
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(40)]
MESHES = ((1, 2), (2, 2), (1, 3), (1, 4))
pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* was given an input with a mask:UserWarning"),
    # Files of an optimizer before its first step, which has no slots yet: what is read is compared.
    pytest.mark.filterwarnings("ignore:.* does not fit model:UserWarning"),
]


@pytest.fixture(autouse=True)
def doubles(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()


def random_layouts(model: Any, rng: np.random.Generator) -> LayoutMap:
    """Return layouts that cut kernels and tables of a model along axes that a mesh divides."""
    shape = MESHES[rng.integers(len(MESHES))]
    names = [f"cpu:{number}" for number in range(int(np.prod(shape)))]
    layouts = LayoutMap(DeviceMesh(shape, ("batch", "model"), names))
    for layer in model._flatten_layers():
        if type(layer) not in (layers.Dense, layers.EinsumDense, layers.Embedding):
            continue
        weight = layer.weights[0]
        axes = [axis for axis, size in enumerate(weight.shape) if size % shape[1] == 0]
        if axes and rng.random() < 0.7:
            cut = axes[rng.integers(len(axes))]
            layouts[weight.path] = tuple("model" if axis == cut else None for axis in range(len(weight.shape)))
    return layouts


@pytest.mark.parametrize("seed", SEEDS)
def test_devices_make_calls_as_one_does(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    alone = RandomCalls(seed)
    stages = min(2, sum(layer.count_params() > 0 for layer in alone.model.layers))
    layouts = random_layouts(alone.model, rng)
    expected = alone.results(tmp_path / "alone")
    ab.config.set_devices(cpu=4)
    count, parts = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    strategies: dict[str, Any] = {
        f"{count} replicas": DataParallel(devices=[f"cpu:{number}" for number in range(count)]),
        f"{parts} microbatches": Pipeline(stages, microbatches=parts),
    }
    # These compute over whole variables, of which they see parts.
    if not any(isinstance(maker, ab.optim.Lamb | ab.optim.Adafactor) for maker in alone.model.optimizer.makers):
        strategies[f"{layouts}"] = ModelParallel(layout_map=layouts)
    for name, strategy in strategies.items():
        calls = RandomCalls(seed, strategy)
        assert_same(calls.results(tmp_path / f"{id(strategy)}"), expected, f"{name} of {calls.text}")
