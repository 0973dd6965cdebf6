"""`ServerConfig`: how a task behaves."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

from ..engine.common.memory import machine_bytes
from ..engine.common.quick_dataclass import dataclass
from .tasks.watch import Patience
from .transport.planes import Limits, asked

_SECONDS, _BYTES = "a number of seconds", "a number of bytes"
_NUMBERS = {
    "connect_timeout": _SECONDS,
    "heartbeat_interval": _SECONDS,
    "heartbeat_timeout": _SECONDS,
    "kernel_timeout": f"{_SECONDS}, or None",
    "bytes_in_flight": _BYTES,
    "shared_memory_bytes": f"{_BYTES}, or None",
    "inline_bytes": _BYTES,
}


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a task.

    Attributes:
        connect_timeout: how many seconds a step waits for tasks that it needs and that are not there.
        heartbeat_interval: seconds between questions to the tasks that this one is connected with.
        heartbeat_timeout: seconds without an answer after which such a task is taken for dead. So is one whose loop
            has work and has not turned for that long, in no operation. A long operation or compilation does not count.
        kernel_timeout: seconds that one operation of another task may take; None for any time.
        plane: how values travel to other tasks: "shared_memory" and "unix" on one host, "tcp", "grpc", "sockets" (Unix
            on one host, else TCP), or "auto": the first of these that leads there. A dict has planes by task:
            ``{"/job:ps": "sockets"}``. None takes the one in ``ANABRANCH_PLANE``, or "auto".
        bytes_in_flight: for one other task: when more waits to be sent, steps are held until it has gone.
        shared_memory_bytes: for the values of one other task; when all of it is in use, values go by the socket. None
            for an eighth of the machine's memory by the number of other tasks, and 256 MB at least; then one task may
            have what others leave of the eighth. Variables that others read may have half as much besides.
        inline_bytes: values of at most this many bytes go by the socket where there is shared memory.

    Raises:
        ValueError: a value is out of range.
        TypeError: it is no number.

    >>> import anabranch as ab
    >>> ab.distribute.ServerConfig(heartbeat_timeout=30.0).heartbeat_timeout
    30.0
    """

    connect_timeout: float = 30.0
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 8.0
    kernel_timeout: float | None = None
    plane: str | Mapping[str, str] | None = None
    bytes_in_flight: int = Limits.in_flight
    shared_memory_bytes: int | None = None
    inline_bytes: int = Limits.inline

    def __post_init__(self) -> None:
        for name, expected in _NUMBERS.items():
            given = getattr(self, name)
            is_none = given is None and expected.endswith("None")
            if not is_none and (not isinstance(given, Real) or isinstance(given, bool)):
                raise TypeError(f"{name}={given!r}: expected {expected}, got a {type(given).__name__}.")
        _check(self.connect_timeout >= 0, "connect_timeout", self.connect_timeout, "a number of seconds, 0 or more")
        interval, timeout = self.heartbeat_interval, self.heartbeat_timeout
        _check(interval > 0, "heartbeat_interval", interval, "a number of seconds above 0")
        _check(timeout > interval, "heartbeat_timeout", timeout, f"more seconds than heartbeat_interval={interval:g}")
        kernel = self.kernel_timeout
        _check(kernel is None or kernel > 0, "kernel_timeout", kernel, "a number of seconds above 0, or None")
        asked(self.plane)
        _check(self.bytes_in_flight > 0, "bytes_in_flight", self.bytes_in_flight, "a number above 0")
        _check(self.inline_bytes >= 0, "inline_bytes", self.inline_bytes, "a number, 0 or more")
        slabs = self.shared_memory_bytes
        _check(slabs is None or slabs >= 0, "shared_memory_bytes", slabs, "a number, 0 or more, or None")

    def limits(self, others: int) -> Limits:
        """Return how much a connection holds, with each of `others` other tasks."""
        slabs, together = self.shared_memory_bytes, None
        if slabs is None:
            slabs = max(Limits.slabs, machine_bytes() // 8 // max(others, 1))
            together = max(slabs, machine_bytes() // 8)
        return Limits(self.bytes_in_flight, slabs, self.inline_bytes, together)

    @property
    def patience(self) -> Patience:
        """The bounds of how long other tasks may be silent."""
        return Patience(self.heartbeat_interval, self.heartbeat_timeout, self.kernel_timeout)


def _check(is_right: bool, name: str, given: object, expected: str) -> None:
    if not is_right:
        raise ValueError(f"{name}={given!r}: expected {expected}.")
