"""`tf.config`: which devices there are."""

from __future__ import annotations

from typing import NamedTuple

from ...engine.place import list_devices


class PhysicalDevice(NamedTuple):
    """A device by name ("/physical_device:CPU:0") and kind ("CPU", "GPU")."""

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the devices that are declared, by `anabranch.config.set_devices`; all, or those of a kind, such as "GPU"."""
    found = [(device.name.upper(), device.kind.upper()) for device in list_devices(device_type)]
    return [PhysicalDevice(f"/physical_device:{name}", kind) for name, kind in found]


__all__ = ["PhysicalDevice", "list_physical_devices"]
