"""What holds for the whole process: the default float type, epsilon, the backend's name, the devices, the passes."""

from __future__ import annotations

from ..engine.objects.floats import floatx, set_floatx
from ..engine.passes.memory_budget import memory_budget, set_memory_budget
from ..engine.passes.switches import get_passes, set_passes
from ..engine.place.devices import list_devices, set_devices

_epsilon = 1e-7


def epsilon() -> float:
    """The small number that keeps divisions and logarithms of losses and metrics finite; 1e-7 unless it was set."""
    return _epsilon


def set_epsilon(value: float) -> None:
    """Set what `epsilon()` returns."""
    global _epsilon
    _epsilon = float(value)


def backend() -> str:
    """The name of what computes: always ``"anabranch"``."""
    return "anabranch"


__all__ = [
    "backend",
    "epsilon",
    "floatx",
    "get_passes",
    "list_devices",
    "memory_budget",
    "set_devices",
    "set_epsilon",
    "set_floatx",
    "set_memory_budget",
    "set_passes",
]
