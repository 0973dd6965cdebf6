"""`StreamDevice`: what an executor asks of a device that runs kernels on streams, beside the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..common.quick_dataclass import dataclass
from ..place.devices import Device
from .buffer import DROPPED, Buffer
from .clock import Clock
from .memory import Memory


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """Counts and times of what a device has done.

    Attributes:
        bytes_in_use, peak_bytes: memory that is held, and the most that was.
        kernels: how many kernels have run.
        kernel_seconds: how long they took together.
        bytes_to_host, bytes_to_device: what was copied.
        busy_seconds: for each stream by name, how long it has run.
    """

    bytes_in_use: int
    peak_bytes: int
    kernels: int
    kernel_seconds: float
    bytes_to_host: int
    bytes_to_device: int
    busy_seconds: Mapping[str, float]


class MemoryListener(Protocol):
    """Listens to what happens to a device's memory, and may release some. See `SwapPolicy`."""

    def pressure(self, wanted: int) -> None:
        """Handle that more memory is in use than before, or that `wanted` more bytes are waited for."""
        ...

    def aborted(self) -> None:
        """Handle that all that was enqueued has been dropped; no copy that was asked for will end."""
        ...


class DeviceObserver(Protocol):
    """Observes what a device does, for traces. Times are those of the device's clock."""

    def ran(self, stream: str, label: str, start: float, end: float) -> None:
        """Handle a kernel or copy that has started, and whose end is known."""
        ...

    def ended(self, time: float) -> None:
        """Handle a kernel or copy that has ended, and whose memory was released."""
        ...


class StreamDevice(ABC):
    """A device with memory of its own and three streams: for kernels, for copies from the host, and for copies to it.

    Everything is enqueued and returns at once. Kernels run in the order in which they were launched; launches and
    copies order themselves after what writes their inputs. The device acts only when it is called: who uses it calls
    `poll` when something is due. All calls come from one thread.

    Attributes:
        device: its name and figures.
        clock: decides what is due.
        memory: accounts for its memory.
        observer: is notified of what it does.
    """

    device: Device
    clock: Clock
    memory: Memory
    observer: DeviceObserver | None = None
    _listeners: list[MemoryListener]

    def adapted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a printed function as this device runs it: the kernel to be launched."""
        return function

    @abstractmethod
    def launch(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: int,
        seconds: float,
        label: str,
        fresh: Sequence[bool] | None = None,
        updates: Sequence[Buffer] = (),
    ) -> tuple[Buffer, ...]:
        """Enqueue a kernel.

        Args:
            function: called with the values of `inputs`; gives the output, a tuple of them if there are several, or
                None or () if there are none.
            inputs: buffers of this device, and host values that travel with the kernel, such as scalars.
            outputs: how many values it gives.
            seconds: how long it takes on a simulated device.
            label: what messages call it.
            fresh: for each output, whether it is new memory to which nothing else refers; None for unknown.
            updates: those buffers that it overwrites in place.

        Returns: a buffer for each output. It is ready once the kernel has run.

        Raises:
            ValueError: an input is a buffer of another device.
            Exception: what the function raises, if it runs at once; otherwise `poll` raises that.
        """

    @abstractmethod
    def to_host(self, buffer: Buffer, done: Callable[[Any], None]) -> None:
        """Enqueue a copy to the host.

        Args:
            buffer: what to copy, once it has been computed.
            done: called from `poll` with the copy, when it has ended.
        """

    @abstractmethod
    def to_device(self, value: Any, done: Callable[[Buffer], None], label: str = "copy from host") -> None:
        """Enqueue a copy from the host.

        Args:
            value: what to copy. It must not be written before the copy has ended.
            done: called from `poll` with its buffer, when it has ended.
            label: what messages call it.
        """

    @abstractmethod
    def upload(self, value: Any, label: str = "constant") -> Buffer:
        """Enqueue a copy from the host, and give its buffer at once. `value` may be written as soon as this returns."""

    @abstractmethod
    def poll(self) -> float | None:
        """Do all that is due by the clock, and call what waits for it.

        Returns: the time at which something is due next; None if the device is idle.

        Raises:
            Exception: what a kernel raised, with a note that names it; until `abort` is called.
            DeviceMemoryError: something does not fit, and nothing that is enqueued will release enough.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop all that has not ended. Buffers that it would have filled hold no memory; their values are gone."""

    def listen(self, listener: MemoryListener) -> None:
        """Notify `listener` of changes to this device's memory from now on."""
        self._listeners.append(listener)

    def _press(self, wanted: int) -> None:
        for listener in self._listeners:
            listener.pressure(wanted)

    def _check_usable(self, buffer: Buffer, work: object) -> None:
        """Check that a value can be given to a kernel or copy that is to be enqueued."""
        if buffer.device is not self:
            raise ValueError(
                f"{work} is given {buffer.label!r}, which is on {buffer.device.device.name}; expected a value on "
                f"{self.device.name}. Copy it with to_host and to_device."
            )
        if buffer.contents is DROPPED:
            raise RuntimeError(
                f"{work} is given {buffer.label!r}, whose value is gone: the step was aborted. Run it again."
            )

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Test whether all that was enqueued has ended, as far as the host has seen."""

    @property
    def ahead(self) -> int:
        """The number of enqueued kernels that have not ended, as far as the host has seen; 0 if that is not known."""
        return 0

    @abstractmethod
    def statistics(self) -> DeviceStatistics:
        """Return what it has done until now."""

    def synchronize(self) -> None:
        """Wait until all that was enqueued has ended.

        Raises: as `poll`.
        """
        while (time := self.poll()) is not None:
            self.clock.wait_until(time)
