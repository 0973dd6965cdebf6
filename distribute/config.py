"""`ServerConfig`: how a task behaves."""

from __future__ import annotations

from dataclasses import dataclass

from .watch import Patience


@dataclass(frozen=True)
class ServerConfig:
    """How a task behaves.

    Attributes:
        connect_timeout: how many seconds a step waits for tasks that it needs and that are not there.
        heartbeat_interval: seconds between questions to the tasks that this one is connected with.
        heartbeat_timeout: seconds without an answer after which such a task is taken for dead. So is one whose loop
            has work and has not turned for that long, in no operation. A long operation or compilation is no silence.
        kernel_timeout: seconds that one operation of another task may take; None for any time.

    Raises:
        ValueError: a value is out of range.
    """

    connect_timeout: float = 30.0
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 8.0
    kernel_timeout: float | None = None

    def __post_init__(self) -> None:
        _check(self.connect_timeout >= 0, "connect_timeout", self.connect_timeout, "a number of seconds, 0 or more")
        interval, timeout = self.heartbeat_interval, self.heartbeat_timeout
        _check(interval > 0, "heartbeat_interval", interval, "a number of seconds above 0")
        _check(timeout > interval, "heartbeat_timeout", timeout, f"more seconds than heartbeat_interval={interval:g}")
        kernel = self.kernel_timeout
        _check(kernel is None or kernel > 0, "kernel_timeout", kernel, "a number of seconds above 0, or None")

    @property
    def patience(self) -> Patience:
        """How long other tasks may be silent."""
        return Patience(self.heartbeat_interval, self.heartbeat_timeout, self.kernel_timeout)


def _check(is_right: bool, name: str, given: object, expected: str) -> None:
    if not is_right:
        raise ValueError(f"{name}={given!r}: expected {expected}.")
