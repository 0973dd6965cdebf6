"""`tf.config`: which devices there are, and how functions are run."""

from __future__ import annotations

from typing import NamedTuple

from ...engine.place import list_devices
from ...engine.session.eager_functions import functions_run_eagerly as functions_run_eagerly
from ...engine.session.eager_functions import run_functions_eagerly as run_functions_eagerly


class PhysicalDevice(NamedTuple):
    """A device by name ("/physical_device:CPU:0") and kind ("CPU", "GPU")."""

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the devices that are declared, by `anabranch.config.set_devices`; all, or those of a kind, such as "GPU"."""
    found = [(device.name.upper(), device.kind.upper()) for device in list_devices(device_type)]
    return [PhysicalDevice(f"/physical_device:{name}", kind) for name, kind in found]


__all__ = ["PhysicalDevice", "functions_run_eagerly", "list_physical_devices", "run_functions_eagerly"]
