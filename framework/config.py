"""What holds for the whole process: the default float type, epsilon, the backend's name, the devices."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.graph.device import canonical_device
from ..engine.objects.floats import floatx, set_floatx

_epsilon = 1e-7
_DEVICES = ("cpu:0",)


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


def list_devices(device_type: str | None = None) -> list[str]:
    """The devices of this process.

    Args:
        device_type: "cpu" or "gpu", to list only these.

    >>> list_devices("cpu")
    ['cpu:0']
    """
    return [name for name in _DEVICES if device_type is None or name.startswith(device_type.lower() + ":")]


def set_devices(devices: Sequence[str]) -> None:
    """Choose the devices that programs may use.

    Raises:
        ValueError: one of them does not exist here, or none is given.
    """
    wanted = [canonical_device(name) for name in devices]
    unknown = [name for name in wanted if name not in {canonical_device(known) for known in _DEVICES}]
    if unknown or not wanted:
        raise ValueError(
            f"set_devices({list(devices)}): expected some of {list(_DEVICES)}, the devices of this process."
        )


__all__ = ["backend", "epsilon", "floatx", "list_devices", "set_devices", "set_epsilon", "set_floatx"]
