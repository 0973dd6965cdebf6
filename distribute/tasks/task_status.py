"""`status`: what a task is doing, what it holds, and how it is connected."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...engine.common.deadlines import deadline
from ...engine.common.quick_dataclass import dataclass
from ..transport.wire import Kind
from .channels import CONNECT_SECONDS
from .client import connect


@dataclass(frozen=True)
class ConnectionStatus:
    """One connection of a task.

    Attributes:
        task: who is on the other side; of a client a text that says which one.
        plane: how values travel: "shared_memory", "unix", "tcp" or "grpc".
        connected_by: "this task", which sends values by it, or "the other side".
        bytes_sent, bytes_received: by the socket or stream.
        bytes_shared: that were sent by shared memory.
        frames_sent, frames_received: messages.
        queued: bytes that wait to be sent.
        stalls: how often a step was held because too much waited.
        slabs, slab_bytes: parts of shared memory that the other side still looks at, and the bytes of all.
        pool_full: how often a value went by the socket because all of them were in use.
        mapped: parts of the other side's shared memory that this task has mapped.
        silent_for: seconds since a heartbeat was answered; None if the other side is not asked.
        latency, bandwidth: seconds and bytes a second of what this task sends, by which steps are placed; None if that
            was not measured.
    """

    task: str
    plane: str
    connected_by: str
    bytes_sent: int
    bytes_received: int
    bytes_shared: int
    frames_sent: int
    frames_received: int
    queued: int
    stalls: int
    slabs: int
    slab_bytes: int
    pool_full: int
    mapped: int
    silent_for: float | None
    latency: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class TaskStatus:
    """Describe a task.

    Attributes:
        task, incarnation, devices: which one it is.
        state: what its loop does: "idle", "waiting" for other tasks, "turning", "in an operation" or "compiling".
        doing, since: the operation, and for how many seconds.
        steps, sessions: under way, of clients that address it.
        held: counts of what it holds: "graphs", "programs", "running", "early" values, "resources", "steps" run, and
            "row_copies": how often a variable was copied since something else had read it when rows were written.
        connections: with other tasks and with clients.
        training: of each model whose steps this ps task counts, as `ParameterServer.statistics` gives it.

    >>> import anabranch as ab
    >>> with ab.distribute.Server({"ps": ["localhost:0"]}, token="an example's token, not a secret") as server:
    ...     found = server.status()
    >>> isinstance(found, ab.distribute.TaskStatus), found.task, found.held["graphs"]
    (True, '/job:ps/task:0', 0)
    """

    task: str
    incarnation: int
    devices: tuple[str, ...]
    state: str
    doing: str
    since: float
    steps: int
    sessions: int
    held: dict[str, int]
    connections: tuple[ConnectionStatus, ...]
    training: tuple[dict[str, Any], ...] = ()


def status(target: str, timeout: float | None = None) -> TaskStatus:
    """Ask a task what it does.

    Args:
        target: "grpc://host:port", as for a session.
        timeout: how many seconds to wait for a task that does not answer, by default 30.

    Raises:
        TaskFailedError: no task answers there.
        DeadlineExceededError: it is in the middle of a long operation, which the error names.
        ConnectionError: it does not have the same token.

    >>> import anabranch as ab
    >>> with ab.distribute.Server({"worker": ["localhost:0"]}, token="an example's token, not a secret") as server:
    ...     found = server.status()
    >>> found.task, found.steps, found.connections
    ('/job:worker/task:0', 0, ())
    """
    with deadline(CONNECT_SECONDS if timeout is None else timeout):
        client = connect(target, timeout)
        try:
            found = client.ask(Kind.STATUS, {}).document()
            return described(client.look(), found)
        finally:
            client.close()


def described(info: Any, found: dict[str, Any]) -> TaskStatus:
    """Make a description of what a task says of itself, and of what it counts."""
    names = [field.name for field in fields(ConnectionStatus)]
    connections = tuple([ConnectionStatus(**{name: each[name] for name in names}) for each in found["connections"]])
    return TaskStatus(
        info.name,
        info.incarnation,
        tuple(info.devices),
        info.state,
        info.doing,
        info.since,
        int(found["steps"]),
        int(found["sessions"]),
        dict(found["worker"]),
        connections,
        tuple(found.get("training", ())),
    )


__all__ = ["ConnectionStatus", "TaskStatus", "described", "status"]
