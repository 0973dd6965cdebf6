"""Losses that are no means over rows: replicas train by that of the whole batch, whatever rows each has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.counted_losses import MODELS, results
from shared.sample import first_of
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute import DataParallel

SCRIPT = Path(__file__).parent / "scripts" / "train_counted_losses.py"


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    yield
    ab.config.set_devices()


def assert_same(found: Any, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, 1e-10, 1e-10, err_msg=key)


def launched(workers: int, folder: Path, *names: str) -> list[Any]:
    """Return what each worker has found."""
    launch = [sys.executable, "-m", "anabranch", "launch", "-n", str(workers), str(SCRIPT), "DataParallel"]
    environment = {**os.environ, "ANABRANCH_KERNELS": "0"}
    done = subprocess.run(
        [*launch, str(folder / "found"), *names],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=12 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return [np.load(folder / f"found-{worker}.npz") for worker in range(workers)]


@pytest.mark.parametrize("name", first_of(["two outputs", *[name for name in MODELS if name != "two outputs"]]))
def test_replicas_on_devices_of_one_process(name: str) -> None:
    """The last batch has 2 rows, so that one of three replicas has none."""
    expected = results(name)
    ab.config.set_devices(cpu=3)
    for count in (1, 2, 3):
        assert_same(results(name, DataParallel(devices=[f"cpu:{number}" for number in range(count)])), expected)


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize("workers", first_of([3, 2, 1]))
def test_workers(workers: int, tmp_path: Path) -> None:
    first, *others = launched(workers, tmp_path)
    for name in MODELS:
        assert_same(first, {f"{name}: {key}": value for key, value in results(name).items()})
    for other in others:
        for key in first.files:
            assert other[key].tobytes() == first[key].tobytes(), f"{key}: workers have other bits"
