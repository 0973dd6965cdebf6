"""GPUs for tests: one that is there, or a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from shared.fake_cupy import FakeCupy
from shared.fake_nccl import FakeNccl

import anabranch as ab
from anabranch.engine.codegen.expression.expression import UnsupportedError
from anabranch.engine.devices import dispatcher as dispatchers
from anabranch.engine.devices.cuda import GpuUnavailableError, check_gpu
from anabranch.engine.ops.arrays import gathering


def why_there_is_no_gpu(number: int = 0) -> str:
    try:
        check_gpu(number)
    except GpuUnavailableError as error:
        return str(error)
    return ""


def _no_kernels(**options: object) -> NoReturn:
    raise UnsupportedError


@contextmanager
def stand_in_of_worker(rank: int) -> Iterator[FakeCupy]:
    """A CPU and a GPU that is none, in a process that ends with this; GPUs of all ranks reach each other by NCCL.

    Fused operations run step by step, as those do that have no kernel: to compile kernels would take most of the time.

    Args:
        rank: that of the process, which has the GPU of this number.
    """
    cupy = FakeCupy()
    cupy.buses = [f"0000:{rank + 1:02x}:00.0"]
    FakeNccl(cupy)
    cupy.RawModule = _no_kernels  # type: ignore[method-assign]
    sys.modules["cupy"] = cupy  # type: ignore[assignment]
    ab.config.set_devices(cpu=1, gpu=1)
    with cupy.installed():
        yield cupy
        for dispatcher in dispatchers._dispatchers.values():
            dispatcher.close()


@contextmanager
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    """A machine with two CPUs and one GPU that is none."""
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(dispatchers, "_dispatchers", {})
    monkeypatch.setattr(gathering, "_combiners", {})  # kernels register themselves for the stand-in's arrays
    ab.config.set_devices(cpu=2, gpu=1)
    with cupy.installed():
        yield cupy
        for dispatcher in dispatchers._dispatchers.values():
            dispatcher.close()
    ab.config.set_devices()
