"""Devices that run kernels on streams beside the host: between placement and the executors that feed them."""

from .buffer import Buffer
from .clock import Clock, RealClock, VirtualClock
from .memory import DeviceMemoryError, Memory
from .order import Event, Stream, UnorderedAccessError
from .sim import SimDevice
from .stream import DeviceStatistics, MemoryListener, StreamDevice
from .swap import SwappedRecord, SwapPolicy, SwapStatistics
from .timed import Agenda, TimedDevice

__all__ = [
    "Agenda",
    "Buffer",
    "Clock",
    "DeviceMemoryError",
    "DeviceStatistics",
    "Event",
    "Memory",
    "MemoryListener",
    "RealClock",
    "SimDevice",
    "Stream",
    "StreamDevice",
    "SwapPolicy",
    "SwapStatistics",
    "SwappedRecord",
    "TimedDevice",
    "UnorderedAccessError",
    "VirtualClock",
]
