"""The state of a client's variables and queues that tasks hold: read and written there from plain Python.

Each action is a small step of the task that holds the state, which is its own master then. So it has all that steps
have: names of state, waiting, failures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.nest import flatten
from ...engine.graph import Graph, Placeholder, TensorSpec, Variable
from ...engine.graph.device import DeviceName
from ...engine.graph.graph import Operation
from ...engine.graph.state.home import Home
from ...engine.graph.state.resource import NamedResource
from ...engine.queues.errors import StateLostError, TaskFailedError
from ..cluster import joined_address, resolved, split_address

if TYPE_CHECKING:
    from .client import Client

State = Variable | NamedResource


class Holder:
    """A task, as one who holds state: the connection to it is made when something is first read or written.

    Args:
        task: its name.
        address: where it answers gRPC.
        incarnation: which start of it that is.
        connect: connects to the task at an address.
    """

    def __init__(self, task: str, address: str, incarnation: int, connect: Callable[[str], Client]) -> None:
        self.task = task
        self.address = address
        self.incarnation = incarnation
        self._connect = connect
        self._client: Client | None = None
        self._lock = threading.Lock()

    def client(self) -> Client:
        """Return the connection.

        Raises:
            TaskFailedError: the task does not answer.
        """
        with self._lock:
            if self._client is None:
                self._client = self._connect(self.address)
            return self._client

    @property
    def connected_to(self) -> int:
        """The incarnation with which it is connected, or is to be."""
        return self.incarnation if self._client is None else self._client.master.incarnation


class TaskHome(Home):
    """The place of one variable or queue in a task.

    Args:
        holder: the task.
        container, path: its names in the task.
        device: its device in the task.
    """

    def __init__(self, holder: Holder, container: str, path: str, device: str) -> None:
        self.task = holder.task
        self.container = container
        self.path = path
        self.device = device
        self.incarnation = holder.incarnation
        self.holder = holder
        self._programs: dict[Any, Callable[..., Any]] = {}

    def run(
        self, action: str, build: Callable[..., Any], arrays: Sequence[Any] = (), *, is_repeatable: bool = True
    ) -> list[Any]:
        before = self.holder.connected_to
        try:
            return self._run(action, build, arrays)
        except TaskFailedError as error:
            failure = error
        # A connection that was idle may have been cut long ago: the task may be back. What it has done may be lost
        # with the answer, so that it is done again only by another start of the task, or if that changes nothing.
        try:
            client = self.holder.client()
            if is_repeatable or client.reached().incarnation != before:
                return self._run(action, build, arrays)
        except TaskFailedError as error:
            failure = error
        raise StateLostError(
            f"{self.path!r} has no value that can be read or written: {self.task}, which holds it, does not answer "
            f"({failure.reason}). Start the task again; then assign a value, or restore one."
        ) from None

    def _run(self, action: str, build: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
        given = [np.asarray(array) for array in arrays]
        key = (action, *[(array.dtype, array.ndim) for array in given])
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._prepared(build, given)
        return list(program(*given))

    def _prepared(self, build: Callable[..., Any], arrays: Sequence[Any]) -> Callable[..., Any]:
        with Graph().as_default() as graph:
            specs = [TensorSpec((None,) * array.ndim, array.dtype) for array in arrays]
            feeds = [
                graph.add(Placeholder(spec), (), f"given_{number}").outputs[0] for number, spec in enumerate(specs)
            ]
            built = build(*feeds)
        targets = [built] if isinstance(built, Operation) else flatten(built)
        return self.holder.client().program(graph, targets, feeds, None, None)


class Homes:
    """The addresses of the tasks of a session's cluster, and the state of the client that they hold.

    Args:
        addresses: of the tasks, by name, as the master has them.
        connect: connects to the task at an address.
    """

    def __init__(self, addresses: dict[str, str], connect: Callable[[str], Client]) -> None:
        self.addresses = addresses
        self._connect = connect
        self._holders: dict[tuple[str, int], Holder] = {}

    def tasks_of(self, job: str) -> list[str]:
        """Return the names of the tasks of a job, in the order of their numbers."""
        names = [DeviceName.parse(task) for task in self.addresses]
        return [str(name) for name in sorted((n for n in names if n.job == job), key=lambda name: name.task or 0)]

    def check(self, resource: State) -> None:
        """Check that a variable or a queue which a task holds is of this cluster.

        Raises:
            ValueError: it is of another one.
        """
        home = resource.home
        if not isinstance(home, TaskHome):
            return
        here = self.addresses.get(home.task)
        if here is not None and _comparable(here) == _comparable(home.holder.address):
            return
        found = f"has {home.task} at {here}" if here is not None else f"has no {home.task}"
        raise ValueError(
            f"{resource!r} belongs to the cluster of the session that first ran it, where {home.task} is at "
            f"{home.holder.address}; the cluster of this session {found}. Make another one in a graph for this "
            "cluster, with its value if need be."
        )

    def settle(self, resource: State, container: str, path: str, task: str, incarnation: int) -> None:
        """Have a task hold a variable or a queue that a step has made there."""
        address = self.addresses.get(task)
        if address is None:
            return
        holder = self._holders.get((task, incarnation))
        if holder is None:
            holder = self._holders[task, incarnation] = Holder(task, address, incarnation, self._connect)
        device = resource.device if DeviceName.parse(resource.device).task is not None else task
        resource.settle(TaskHome(holder, container, path, device))


def asks_for_a_task(resource: Any) -> bool:
    """Test whether it is a variable, a queue or the like for which a task or a job was asked."""
    return isinstance(resource, (Variable, NamedResource)) and bool(
        resource.device and DeviceName.parse(resource.device).job is not None
    )


def _comparable(address: str) -> str:
    host, port = split_address(address)
    return joined_address(resolved(host), port)


__all__ = ["Holder", "Homes", "State", "TaskHome", "asks_for_a_task"]
