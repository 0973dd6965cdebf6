"""Synchronous strategies train models of many kinds as one device does, whatever rows each replica has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of
from shared.small_models import (
    MODELS,
    PRECISIONS,
    RANDOM,
    RANDOM_IN_LOOPS,
    SYNCHRONIZED,
    assert_same,
    trained,
)
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute import DataParallel, Pipeline

SCRIPT = Path(__file__).parent / "scripts" / "train_small_models.py"


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    yield
    ab.config.set_devices()


def on_devices(count: int) -> DataParallel:
    return DataParallel(devices=[f"cpu:{number}" for number in range(count)])


@pytest.mark.parametrize("name", first_of(["table", "clipped by global norm"]))
def test_three_replicas_on_devices_of_one_process(name: str) -> None:
    expected = trained(name, "float64")
    ab.config.set_devices(cpu=3)
    assert_same(trained(name, "float64", on_devices(3)), expected, PRECISIONS["float64"])


@pytest.mark.slow
@pytest.mark.parametrize("floatx", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_replicas_on_devices_of_one_process(name: str, floatx: str) -> None:
    expected = trained(name, floatx)
    ab.config.set_devices(cpu=4)
    found: dict[str, Any] = {}
    for count in (1, 2, 3, 4):
        found = trained(name, floatx, on_devices(count))
        assert_same(found, expected, PRECISIONS[floatx])
    again = trained(name, floatx, on_devices(4))
    for key, value in found.items():
        assert again[key].tobytes() == value.tobytes(), f"{key}: the same run has other bits"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "own step"])  # its layers are in no order
def test_stages(name: str) -> None:
    """Microbatches of uneven parts: of 7 rows 3, 2 and 2."""
    expected = trained(name, "float64")
    ab.config.set_devices(cpu=2)
    assert_same(trained(name, "float64", Pipeline(2, microbatches=3)), expected, PRECISIONS["float64"])


@pytest.mark.parametrize("name", first_of([*RANDOM, *RANDOM_IN_LOOPS]))
def test_replicas_on_devices_draw_the_numbers_of_one_device(name: str) -> None:
    expected = trained(name, "float64")
    ab.config.set_devices(cpu=4)  # of batches of 3 rows one replica has none
    assert_same(trained(name, "float64", on_devices(4)), expected, PRECISIONS["float64"])


def test_counts_are_those_of_all_rows() -> None:
    """Values with ``aggregation="sum"``, as of mixtures of experts, are summed over replicas and stages."""
    rows = np.random.default_rng(0).normal(size=(7, 4))

    def counts(strategy: Any) -> Any:
        ab.utils.set_random_seed(3)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            mixture = ab.layers.MixtureOfExperts(
                3, lambda: ab.layers.Dense(2), k=1, noisy=False, importance_loss=0.0, load_loss=0.0
            )
            model = ab.Sequential([ab.Input((4,)), mixture, ab.layers.Dense(2)])
            model.compile("sgd", "mse")
        model.train_on_batch(rows, rows[:, :2])
        return mixture.expert_tokens.numpy().tolist(), model.get_weights()

    (expected, weights) = counts(None)
    assert sum(expected) == 7
    ab.config.set_devices(cpu=2)
    for strategy in (on_devices(2), Pipeline(2, microbatches=3)):
        found, trained_weights = counts(strategy)
        assert found == expected
        for one, other in zip(trained_weights, weights, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_aggregation_is_one_of_four() -> None:
    with pytest.raises(ValueError, match=r"Variable 'v': aggregation must be one of \('none', 'sum'"):
        ab.Variable(0.0, name="v", aggregation="product")


# --- processes ------------------------------------------------------------------------------------------------------


def run(*command: str) -> None:
    """Run a script without kernels, of which these results do not depend."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "ANABRANCH_KERNELS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=12 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize(
    ("kind", "workers", "ps", "floatx"),
    [
        ("DataParallel", 3, 0, "float64"),
        ("DataParallel", 2, 0, "float32"),
        ("DataParallel", 4, 0, "random"),  # of batches of 3 rows one worker has none
        ("ParameterServer", 2, 1, "float64"),
    ],
)
def test_workers(kind: str, workers: int, ps: int, floatx: str, tmp_path: Path) -> None:
    names = [*RANDOM, *RANDOM_IN_LOOPS, *SYNCHRONIZED] if floatx == "random" else []
    floatx = "float64" if floatx == "random" else floatx
    run(str(SCRIPT), kind, str(tmp_path / "alone"), floatx, *names)
    launch = ["-m", "anabranch", "launch", "-n", str(workers), "--ps", str(ps)]
    run(*launch, str(SCRIPT), kind, str(tmp_path / "found"), floatx, *names)
    alone, first, other = (np.load(tmp_path / f"{name}.npz") for name in ("alone-0", "found-0", "found-1"))
    precision = PRECISIONS[floatx]
    for name in alone.files:
        np.testing.assert_allclose(first[name], alone[name], precision, precision, err_msg=name)
        if ": optimizer " not in name:
            assert first[name].tobytes() == other[name].tobytes(), f"{name}: workers have other bits"
