"""Runs the operations of a device that has streams and memory of its own.

A kernel's results are handed on as soon as it is enqueued: buffers, which are filled later. So the host runs ahead of
the device, as far as the windows of loops and the memory allow. Copies are handed on when they have ended, or at once
if that is soon (see `TimedDevice.pass_soon`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..common.nest import is_sequence
from ..devices import (
    Agenda,
    Buffer,
    Clock,
    RealClock,
    SimDevice,
    StreamDevice,
    SwapPolicy,
    TimedDevice,
    VirtualClock,
)
from ..devices.memory import Allocation
from ..devices.order import Pending
from ..graph.op import is_array
from ..graph.state.variable import Variable
from ..lower.nodes import Machine
from ..ops.containers.array_value import ArrayValue
from ..ops.containers.tensor_arrays import ArrayRead
from ..passes.framework.prune import all_operations
from ..passes.memory.storage import is_fresh
from ..place.devices import Device
from .engines import Done, Engine, FromThread
from .stores import DeferredStore

# Kernels, and reads of histories, that are under way where histories may move. What they take can't.
_MOST_AHEAD = 32


class DeviceRecord:
    """The history of a value on a device: what a TensorArray is to an operation that reads one element."""

    __slots__ = ("record",)

    def __init__(self, policy: SwapPolicy) -> None:
        self.record = policy.record()

    def __setitem__(self, iteration: int, value: Any) -> None:
        self.record.append(iteration, value)

    @property
    def size(self) -> int:
        return self.record.size


class _Releasing:
    """Releases memory where something waits for more than there is."""

    def __init__(self, device: StreamDevice, release: Callable[[], None]) -> None:
        self.device = device
        self.release = release

    def pressure(self, wanted: int) -> None:
        if wanted and not self.device.memory.fits(wanted):
            self.release()

    def aborted(self) -> None:
        """Accept that enqueued work was dropped; values stay until they are released."""


class StreamEngine(Engine):
    """Enqueues the operations of one device.

    Args:
        device: runs them.
        clock: that of all devices of a step.
        swaps: whether histories may move to the host.
    """

    has_own_memory = True
    is_quick = True  # whether it may leave out steps that say nothing new

    def __init__(self, device: StreamDevice, clock: Clock, swaps: bool) -> None:
        super().__init__()
        self.device = device
        self.clock = clock
        self.policy = SwapPolicy(device, device.device.swap_threshold, device.device.swap_smallest)
        if not swaps:
            self.policy.threshold = None
        self._fresh: dict[Any, tuple[bool, ...]] = {}
        self._held: deque[tuple[Any, Callable[..., Any], tuple[Any, ...], Done]] = deque()
        self.variables: Sequence[Variable] = ()  # those that are there: they take memory while a step runs
        self._resident: list[tuple[Allocation, ...]] = []
        self._copies: list[tuple[Buffer, Done]] = []  # to the host, of what is not computed yet
        self._arriving: list[tuple[Pending, Any, Done]] = []  # from the host, once a kernel has ended
        self._reading = 0  # values of histories that are waited for
        self._timed = device if self.is_quick and isinstance(device, TimedDevice) else None
        self.asked_engine: Engine = self

    def on_pressure(self, release: Callable[[], None]) -> bool:
        if self.device.memory.limit is None:
            return False
        self.device.listen(_Releasing(self.device, release))
        return True

    def now(self) -> float:
        return self.clock.now()

    @property
    def is_busy(self) -> bool:
        return bool(self._held or self._copies or self._arriving) or not self.device.is_idle

    @property
    def kernel_seconds(self) -> float:
        return self.device.statistics().kernel_seconds

    @property
    def swapped_bytes(self) -> tuple[int, int]:
        moved = self.policy.statistics()
        return moved.bytes_out, moved.bytes_in

    @property
    def peak_bytes(self) -> int | None:
        return self.device.statistics().peak_bytes

    def record(self) -> DeviceRecord:
        """Return a new history."""
        return DeviceRecord(self.policy)

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        if self.policy.threshold is not None and (self._held or self._is_far_ahead):
            self._held.append((node, kernel, values, done))
        else:
            self._begin(node, kernel, values, done)

    @property
    def _is_far_ahead(self) -> bool:
        return self.device.ahead + self._reading >= _MOST_AHEAD

    def _begin(self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done) -> None:
        records = [value for value in values if type(value) is DeviceRecord]
        if not records:
            self._launch(node, kernel, values, done)
        elif len(node.operations) == 1 and isinstance(node.operations[0].op, ArrayRead) and _is_host(values[1]):
            self._read(values[0], int(values[1]), done)
        else:
            self._with_records(node, kernel, values, done)

    def adapted(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        return self.device.adapted(kernel)

    @property
    def asked(self) -> Engine:
        return self.asked_engine

    def at_once(self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._timed is None or DeviceRecord in map(type, values):
            return None
        return self._timed.launch(kernel, values, len(node.given), node.seconds, node.name)

    def _launch(self, node: Any, kernel: Callable[..., Any], values: Sequence[Any], done: Done) -> None:
        fresh = self._fresh.get(node)
        if fresh is None:
            fresh = self._fresh[node] = tuple([is_fresh(tensor) for tensor in node.given])
        outputs = len(fresh)
        done(self.device.launch(kernel, values, outputs, node.seconds, node.name, fresh))

    def _read(self, record: DeviceRecord, index: int, done: Done) -> None:
        """Read one element of a history: no kernel, but maybe a copy back from the host."""
        if not 0 <= index < record.size:
            raise IndexError(f"Element {index} of a history of {record.size} iterations was read.")

        def have(found: Any) -> None:
            self._reading -= 1
            done((found,))

        self._reading += 1
        record.record.get(index, have)

    def _with_records(self, node: Any, kernel: Callable[..., Any], values: Sequence[Any], done: Done) -> None:
        """Run a kernel that takes whole histories: their elements are its inputs, one by one."""
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
        """Gather all elements on the device; those that are histories themselves as lists."""
        record.record.as_list(lambda items: _fill_in(items, self._gather, done))

    def to_host(self, value: Any, done: Done) -> None:
        if type(value) is Buffer and self.policy.threshold is not None and not value.is_ready:
            self._copies.append((value, done))  # on its stream it would keep back what makes room for it
        elif type(value) is Buffer:
            self.device.to_host(value, done)
        elif type(value) is DeviceRecord:
            self._record_to_host(value, done)
        else:
            done(value)

    def send(self, value: Any, done: Done) -> None:
        if self._timed is not None and type(value) is Buffer:
            self._timed.send(value, done)
        else:
            self.to_host(value, done)

    def pass_on(self, value: Any, target: Engine, done: Done) -> bool:
        if self._timed is None or type(value) is not Buffer or not isinstance(target, StreamEngine):
            return False
        if target._timed is None or _is_host(value.contents):  # small values stay on the host, where Switches look
            return False
        self._timed.pass_on(value, target._timed, done)
        return True

    def soon_to(self, target: Engine) -> Callable[[Any], Any] | None:
        if self._timed is None or not isinstance(target, StreamEngine) or target._timed is None:
            return None
        return partial(self._timed.pass_soon, target._timed)

    def _record_to_host(self, record: DeviceRecord, done: Done) -> None:
        def have(items: list[Any]) -> None:
            done(ArrayValue.from_list(items))

        record.record.as_host_list(lambda items: _fill_in([*items], self._record_to_host, have))

    def to_device(self, value: Any, done: Done) -> None:
        if value is None or _is_host(value) or type(value) is DeferredStore:
            done(value)
        else:
            self.device.to_device(value, done)

    def to_device_after(self, value: Any, after: Any, done: Done) -> None:
        def begin(_: Any = None) -> None:
            self.to_device(value, done)

        if isinstance(self.device, TimedDevice):
            if float(after) > self.clock.now():
                self.device.agenda.add(float(after), begin, None)
                return
        elif isinstance(after, Pending) and not after.ended:
            self._arriving.append((after, value, done))
            return
        begin()

    def gathered(self, items: Any) -> Any:
        return items

    def size_of_record(self, items: Any, bytes_each: int) -> int:
        return items.size * bytes_each  # what is not computed yet has no other size

    def start(self) -> None:
        if isinstance(self.device, SimDevice):
            for variable in self.variables:
                self._resident.append(self.device.memory.reside(variable.stored_value(), variable.name))

    def end(self) -> None:
        for allocations in self._resident:
            self.device.memory.release(allocations)
        self._resident.clear()

    def poll(self) -> float | None:
        when = self.device.poll()
        while self._held and not self._is_far_ahead:
            self._begin(*self._held.popleft())
            when = self.device.poll()
        if any(value.is_ready for value, _ in self._copies):
            copies, self._copies = self._copies, []
            for value, done in copies:
                self.to_host(value, done)
            when = self.device.poll()
        if any(after.ended for after, _, _ in self._arriving):
            arriving, self._arriving = self._arriving, []
            for after, value, done in arriving:
                self.to_device_after(value, after, done)
            when = self.device.poll()
        return when

    def wait_until(self, when: float) -> None:
        self.clock.wait_until(when)

    def abort(self) -> None:
        self._held.clear()
        self._copies.clear()
        self._arriving.clear()
        self._reading = 0
        self.device.abort()
        self.end()


def make_engines(
    devices: Sequence[Device],
    swaps: bool,
    engine_type: type[StreamEngine] = StreamEngine,
    budget: int | None = None,
) -> dict[str, StreamEngine]:
    """Return engines for the devices of one step, which share a clock.

    Args:
        swaps: whether histories may move to the host.
        engine_type: that of the engines.
        budget: bytes in use on a device above which they do, if that is less than what the device says.
    """
    is_virtual = all(device.virtual_time and device.kind != "gpu" for device in devices)
    clock = VirtualClock() if is_virtual else RealClock()
    agenda = Agenda(clock)

    def opened(device: Device) -> StreamDevice:
        if device.kind == "gpu":
            from .gpu.device import MachineGpu  # cupy loads here, on first use

            return MachineGpu(device)
        is_plain = device.seed is None and device.memory_limit is None and not device.virtual_time
        is_plain = is_plain and device.swap_threshold is None
        is_timed = is_plain and engine_type is StreamEngine  # traces are recorded by the other kind
        return TimedDevice(device, agenda) if is_timed else SimDevice(device, clock, device.seed)

    found = {device.name: opened(device) for device in devices}
    engines = {name: engine_type(device, device.clock, swaps) for name, device in found.items()}
    for engine in engines.values():
        if swaps and budget is not None:
            engine.policy.threshold = min(budget, engine.policy.threshold or budget)
    ask_together([engine for engine in engines.values() if isinstance(engine.device, TimedDevice)])
    return engines


def variables_on(machine: Machine, device: str) -> list[Variable]:
    """Return the variables that operations of a device touch."""
    nodes = [node for node in machine.nodes if node.kind == "op" and node.device == device]
    operations = [operation for node in nodes for operation in all_operations(node.operations)]
    touched = dict.fromkeys(effect.resource for operation in operations for effect in operation.effects)
    return [resource for resource in touched if isinstance(resource, Variable)]


def ask_together(engines: Sequence[StreamEngine]) -> None:
    """Let one of the engines whose devices share an agenda be polled for all."""
    for engine in engines:
        engine.asked_engine = engines[0]


def _fill_in(items: list[Any], gather: Callable[[DeviceRecord, Done], None], done: Callable[[list[Any]], None]) -> None:
    """Put what is gathered of each history among `items` in its place, then call `done` with them."""
    inner = [position for position, item in enumerate(items) if type(item) is DeviceRecord]
    missing = len(inner)
    if not missing:
        done(items)

    def fill(position: int, found: Any) -> None:
        nonlocal missing
        items[position] = found
        missing -= 1
        if not missing:
            done(items)

    for position in inner:
        gather(items[position], partial(fill, position))


def _is_host(value: Any) -> bool:
    """Return numbers of rank 0, which travel with a kernel."""
    return isinstance(value, (np.generic, int, float, bool)) or (is_array(value) and not value.ndim)


def _flattened(values: Sequence[Any], gathered: dict[int, list[Any]]) -> tuple[list[Any], list[Any]]:
    """Flatten values, histories laid out one after the other; return their shape, too: None for one value."""
    flat: list[Any] = []
    shape: list[Any] = []
    for position, value in enumerate(values):
        if position in gathered:
            shape.append(_lay_out(gathered[position], flat))
        else:
            flat.append(value)
            shape.append(None)
    return flat, shape


def _lay_out(items: Sequence[Any], flat: list[Any]) -> list[Any]:
    shape: list[Any] = []
    for item in items:
        if is_sequence(item):
            shape.append(_lay_out(item, flat))
        else:
            flat.append(item)
            shape.append(None)
    return shape


def _rebuilt(shape: Sequence[Any], given: Any) -> list[Any]:
    return [next(given) if part is None else ArrayValue.from_list(_rebuilt(part, given)) for part in shape]
