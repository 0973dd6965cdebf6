"""Devices, what may run on them, and which operation runs on which: between the passes and the runtime."""

from .constraints import Constraints, PlacementError, check_step
from .costs import CostModel, Link, Measurement, costs_of_process
from .devices import Device, devices_version, has_one_device, list_devices, make_devices, set_devices
from .kernels import why_not
from .placement import Placement, place, placement
from .search import on_one_device, search
from .simulate import Simulated, simulate
from .tasks import Layout

__all__ = [
    "Constraints",
    "CostModel",
    "Device",
    "Layout",
    "Link",
    "Measurement",
    "Placement",
    "PlacementError",
    "Simulated",
    "check_step",
    "costs_of_process",
    "devices_version",
    "has_one_device",
    "list_devices",
    "make_devices",
    "on_one_device",
    "place",
    "placement",
    "search",
    "set_devices",
    "simulate",
    "why_not",
]
