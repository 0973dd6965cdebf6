"""`Buffer`: a value in the memory of a device, handed out before it has been computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .memory import Allocation
from .order import Pending, UnorderedAccessError

if TYPE_CHECKING:
    from .stream import StreamDevice


class Buffer:
    """A value in the memory of a device. Kernels give it when they are enqueued; it is there once they have run.

    Its memory is released with the last reference to it: those of its users, and of what is enqueued and reads it. What
    is released is overwritten if a kernel said that it was fresh.

    Attributes:
        device: where it is.
        label: the kernel or copy that makes it.
        contents: the value on the device; for kernels, which are ordered after its writer. Others read `value`.
        writer: what is enqueued and writes it; None once it is there.
        ready_at: when it is there, if that was known before; see `TimedDevice`.
        readers: by number of the stream, what was last enqueued there and reads it.
        allocations: the memory that it holds.
    """

    __slots__ = ("__weakref__", "allocations", "contents", "device", "label", "readers", "ready_at", "writer")

    def __init__(self, device: StreamDevice, label: str, writer: Pending | None = None) -> None:
        self.device = device
        self.label = label
        self.writer = writer
        self.contents: Any = NOT_COMPUTED
        self.ready_at = 0.0
        self.readers: dict[int, Pending] | None = None
        self.allocations: tuple[Allocation, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Test whether the host may read it: it was computed, and the clock has reached the end of that."""
        if self.writer is not None or isinstance(self.contents, _Nothing):
            return False
        return self.ready_at <= self.device.clock.now()

    @property
    def nbytes(self) -> int | None:
        """The size of its value in bytes; None as long as it has not been computed."""
        return None if isinstance(self.contents, _Nothing) else self.device.memory.size_of(self.contents)

    @property
    def value(self) -> Any:
        """The value in the memory of the device, for tests and devices that compute on the host.

        Raises:
            UnorderedAccessError: what writes it has not been seen to end.
            RuntimeError: the work that would have written it was dropped.
        """
        if self.contents is DROPPED:
            raise RuntimeError(
                f"The value of {self.label!r} on {self.device.device.name} is gone: the step was aborted. Run it again."
            )
        if self.writer is not None:
            raise UnorderedAccessError(
                f"The host reads what {self.writer} writes, which has not ended. "
                "Fetch it with to_host, or call synchronize first."
            )
        return self.contents

    def drop(self) -> None:
        """Release the memory, whoever still refers to the buffer. With its writer dropped too, it is never ready."""
        self.contents = DROPPED
        allocations, self.allocations = self.allocations, ()
        self.device.memory.release(allocations)

    def __del__(self) -> None:
        if self.allocations:
            self.device.memory.release(self.allocations)

    def __repr__(self) -> str:
        state = repr(self.contents) if isinstance(self.contents, _Nothing) else f"{self.nbytes} bytes"
        return f"<Buffer of {self.label!r} on {self.device.device.name}: {state}>"


class _Nothing:
    """Stands for a value that is not there."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __repr__(self) -> str:
        return self._why


NOT_COMPUTED = _Nothing("not computed")
DROPPED = _Nothing("dropped")
