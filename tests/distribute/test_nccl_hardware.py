"""Collectives of two workers with a GPU each, by NCCL. Skipped without two GPUs; `make gpu` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared.gpus import why_there_is_no_gpu

from anabranch.distribute.commands.processes import Launch
from anabranch.engine.devices.cuda import load_cupy

pytestmark = [
    pytest.mark.skipif(bool(why_there_is_no_gpu(1)), reason="needs two GPUs"),
    pytest.mark.xdist_group("tasks"),
]
SCRIPTS = Path(__file__).parent / "scripts"


def test_results_and_gradients_are_those_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker compares what its GPU gives with what its CPU gives; results repeat."""
    assert load_cupy().cuda.nccl.available, "install NCCL as docs/gpu.md says"
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parents[1]))
    with Launch(2, 0, [str(SCRIPTS / "sum_on_gpus.py"), str(tmp_path), "real"]) as launch:
        assert launch.wait() == 0
