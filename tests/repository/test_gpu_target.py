"""`make gpu`: what it says without a GPU, and what it measures, on a simulated device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import anabranch as ab

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, whose workloads are imported by their folders."""
    for folder in ("tests/benchmarks", "tests/benchmarks/workloads", "tests/benchmarks/peers"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    before = set(sys.modules)
    import gpu  # pyright: ignore[reportMissingImports]

    yield gpu
    ab.config.set_devices()
    for name in set(sys.modules) - before:
        if not name.startswith("anabranch"):
            monkeypatch.delitem(sys.modules, name)


def test_without_a_gpu_it_says_so_and_writes_nothing(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it fails, also where it is installed
    assert gpu.main(["--output", str(tmp_path / "results.md")]) == 2
    assert "make gpu needs a GPU, and none can be used here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ours_compute_loss_and_gradients(gpu: Any) -> None:
    ab.config.set_devices(cpu=1, sim=1)
    x, *weights = gpu.mlp_data(6, 5)
    h = [x]
    for each in weights:
        h.append(np.tanh(h[-1] @ each))
    down, squares = 2 * h[-1] / h[-1].size, 0.0
    for each, before, after in zip(reversed(weights), reversed(h[:-1]), reversed(h[1:]), strict=True):
        down = down * (1 - after * after)
        squares += float(np.sum((before.T @ down) ** 2))
        down = down @ each.T
    wanted = float(np.mean(h[-1] ** 2)) + squares
    assert gpu.our_mlp([x, *weights], "sim", 0)() == pytest.approx(wanted, rel=1e-4)
    table, wrong = gpu.compared("sim", 8, 4, 3, 1)
    assert [row[0] for row in table] == ["mlp, 4 x 8", "lstm, 4 x 8, 3 steps"]
    assert not wrong
    assert all(float(row[1]) > 0 and row[2:] == ["-", "-"] for row in table)


@pytest.mark.slow
def test_what_does_not_fit_runs_when_it_may_swap(gpu: Any) -> None:
    short, long = gpu.swapping("sim", 64, (20, 60), 40)
    assert short[0] == "20"
    assert all(float(each) > 0 for each in short[1:])
    assert long[:2] == ["60", "OOM"]
    assert float(long[2]) > 0


def test_the_page_has_what_was_measured(gpu: Any) -> None:
    page = gpu.report(
        ["- Device, driver, memory: X"], [["mlp", "1.00", "2.00", "-"]], [["100", "1.000", "OOM"]], [["launch", "4.8"]]
    )
    wanted = ("- Device, driver, memory: X", "| mlp | 1.00 | 2.00 | - |", "| 100 | 1.000 | OOM |", "| launch | 4.8 |")
    for line in wanted:
        assert line in page.splitlines()


@pytest.mark.parametrize("name", ["a loop", pytest.param("attention", marks=pytest.mark.slow)])
def test_fused_operations_of_trainings_get_kernels(gpu: Any, name: str) -> None:
    """docs/gpu.md has the counts of all trainings; `gpu_kernels.py` prints them."""
    import gpu_kernels  # pyright: ignore[reportMissingImports]

    found = gpu_kernels.groups([name])
    assert len(found) > 3
    assert {group.result for group in found} == {gpu_kernels.PRINTED}
    assert f"1 trainings, {len(found)} fused operations of " in gpu_kernels.table(found)
