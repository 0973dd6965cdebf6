"""GPUs for tests: one that is there, or a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from shared.fake_cupy import FakeCupy

import anabranch as ab
from anabranch.engine.devices import dispatcher as dispatchers
from anabranch.engine.devices.cuda import GpuUnavailableError, check_gpu
from anabranch.engine.ops.arrays import gathering


def why_there_is_no_gpu() -> str:
    try:
        check_gpu(0)
    except GpuUnavailableError as error:
        return str(error)
    return ""


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
