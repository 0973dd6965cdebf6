"""Runs the operations of a device that has streams and memory of its own.

A kernel's results are handed on as soon as it is enqueued: buffers, which are filled later. So the host runs ahead of
the device, as far as the windows of loops and the memory allow. Copies are handed on when they have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..devices import Buffer, Clock, RealClock, SimDevice, StreamDevice, SwappedRecord, SwapPolicy, VirtualClock
from ..graph.op import is_array
from ..ops.array_value import ArrayValue
from ..ops.tensor_arrays import ArrayRead
from ..place.devices import Device
from ..runtime.storage import is_fresh
from .engines import Done, Engine, FromThread
from .stores import DeferredStore


class DeviceRecord:
    """The history of a value on a device: what a TensorArray is to an operation that reads one element."""

    __slots__ = ("record",)

    def __init__(self, policy: SwapPolicy) -> None:
        self.record = SwappedRecord(policy)

    def __setitem__(self, iteration: int, value: Any) -> None:
        self.record.append(iteration, value)

    @property
    def size(self) -> int:
        return self.record.size


class StreamEngine(Engine):
    """Enqueues the operations of one device.

    Args:
        device: runs them.
        clock: that of all devices of a step.
        swaps: whether histories may move to the host.
    """

    has_own_memory = True

    def __init__(self, device: StreamDevice, clock: Clock, swaps: bool) -> None:
        super().__init__()
        self.device = device
        self.clock = clock
        self.policy = SwapPolicy(device)
        if not swaps:
            self.policy.threshold = None
        self._fresh: dict[Any, tuple[bool, ...]] = {}

    @property
    def is_busy(self) -> bool:
        return not self.device.is_idle

    @property
    def kernel_seconds(self) -> float:
        return self.device.statistics().kernel_seconds

    @property
    def peak_bytes(self) -> int | None:
        return self.device.statistics().peak_bytes

    def record(self) -> DeviceRecord:
        """A new history."""
        return DeviceRecord(self.policy)

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        records = [value for value in values if type(value) is DeviceRecord]
        if not records:
            self._launch(node, kernel, values, done)
        elif len(node.operations) == 1 and isinstance(node.operations[0].op, ArrayRead) and _is_host(values[1]):
            self._read(values[0], int(values[1]), done)
        else:
            self._with_records(node, kernel, values, done)

    def _launch(self, node: Any, kernel: Callable[..., Any], values: Sequence[Any], done: Done) -> None:
        fresh = self._fresh.get(node)
        if fresh is None:
            fresh = self._fresh[node] = tuple([is_fresh(tensor) for tensor in node.given])
        outputs = len(fresh)
        done(self.device.launch(kernel, values, outputs, node.seconds, node.name, fresh))

    def _read(self, record: DeviceRecord, index: int, done: Done) -> None:
        """One element of a history: no kernel, but maybe a copy back from the host."""
        if not 0 <= index < record.size:
            raise IndexError(f"Element {index} of a history of {record.size} iterations was read.")
        record.record.get(index, lambda found: done((found,)))

    def _with_records(self, node: Any, kernel: Callable[..., Any], values: Sequence[Any], done: Done) -> None:
        """A kernel that takes whole histories: their elements are its inputs, one by one."""
        gathered: dict[int, list[Any]] = {}
        positions = [position for position, value in enumerate(values) if type(value) is DeviceRecord]

        def have(position: int, items: list[Any]) -> None:
            gathered[position] = items
            if len(gathered) == len(positions):
                flat, shape = _flattened(values, gathered)
                self._launch(node, lambda *given: kernel(*_rebuilt(shape, iter(given))), flat, done)

        for position in positions:
            self._gather(values[position], partial(have, position))

    def _gather(self, record: DeviceRecord, done: Callable[[list[Any]], None]) -> None:
        """All elements on the device; those that are histories themselves as lists."""

        def have(items: list[Any]) -> None:
            inner = [position for position, item in enumerate(items) if type(item) is DeviceRecord]
            missing = len(inner)
            if not missing:
                done(items)

            def fill(position: int, found: list[Any]) -> None:
                nonlocal missing
                items[position] = found
                missing -= 1
                if not missing:
                    done(items)

            for position in inner:
                self._gather(items[position], partial(fill, position))

        record.record.as_list(have)

    def to_host(self, value: Any, done: Done) -> None:
        if type(value) is Buffer:
            self.device.to_host(value, done)
        elif type(value) is DeviceRecord:
            self._record_to_host(value, done)
        else:
            done(value)

    def _record_to_host(self, record: DeviceRecord, done: Done) -> None:
        def have(items: list[Any]) -> None:
            items = list(items)
            inner = [position for position, item in enumerate(items) if type(item) is DeviceRecord]
            missing = len(inner)
            if not missing:
                done(ArrayValue.from_list(items))

            def fill(position: int, found: Any) -> None:
                nonlocal missing
                items[position] = found
                missing -= 1
                if not missing:
                    done(ArrayValue.from_list(items))

            for position in inner:
                self._record_to_host(items[position], partial(fill, position))

        record.record.as_host_list(have)

    def to_device(self, value: Any, done: Done) -> None:
        if value is None or _is_host(value) or type(value) is DeferredStore:
            done(value)
        else:
            self.device.to_device(value, done)

    def gathered(self, items: Any) -> Any:
        return items

    def poll(self) -> float | None:
        return self.device.poll()

    def wait_until(self, when: float) -> None:
        self.clock.wait_until(when)

    def abort(self) -> None:
        self.device.abort()


def make_engines(devices: Sequence[Device], swaps: bool) -> dict[str, Engine]:
    """Engines for the devices of one step, which share a clock."""
    clock = VirtualClock() if all(device.virtual_time for device in devices) else RealClock()
    return {device.name: StreamEngine(SimDevice(device, clock, device.seed), clock, swaps) for device in devices}


def _is_host(value: Any) -> bool:
    """Numbers of rank 0, which travel with a kernel."""
    return isinstance(value, (np.generic, int, float, bool)) or (is_array(value) and not value.ndim)


def _flattened(values: Sequence[Any], gathered: dict[int, list[Any]]) -> tuple[list[Any], list[Any]]:
    """The values with histories laid out one after the other, and the shape in which they were: None for one value."""
    flat: list[Any] = []
    shape: list[Any] = []
    for position, value in enumerate(values):
        if position in gathered:
            shape.append(_lay_out(gathered[position], flat))
        else:
            flat.append(value)
            shape.append(None)
    return flat, shape


def _lay_out(items: list[Any], flat: list[Any]) -> list[Any]:
    shape: list[Any] = []
    for item in items:
        if isinstance(item, list):
            shape.append(_lay_out(item, flat))  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat.append(item)
            shape.append(None)
    return shape


def _rebuilt(shape: Sequence[Any], given: Any) -> list[Any]:
    return [next(given) if part is None else ArrayValue.from_list(_rebuilt(part, given)) for part in shape]
