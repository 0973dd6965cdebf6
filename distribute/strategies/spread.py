"""`SpreadTasks`: the processes of a strategy whose model is on several of them; the first one runs the steps.

All processes run the script up to the strategy. From there on the others serve as tasks: they hold the variables that
are with them, and compute what is placed there. The first process builds the steps, and is the client and the master.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...engine.graph import Variable
from ...engine.graph.device import DeviceName
from ...engine.ops import collectives
from ...engine.ops.random.keys import SeedGenerator
from ...engine.place.devices import list_devices
from ..cluster import ClusterSpec, host_to_bind, joined_address, resolved
from ..collectives.group import ProcessGroup
from ..collectives.headers import SPREAD
from ..ports import ReservedPorts

if TYPE_CHECKING:
    from ..tasks.client import Client


class SpreadTasks:
    """The tasks of the group of this process. In the first process it is made; the others serve, and end here.

    Args:
        group: of all processes.
        strategy: as messages call it.
        names: the devices that it asks for.

    Raises:
        ValueError: a process has no such device.
        SystemExit: in the others, with status 0 when the first one has ended.
        TaskFailedError: in the others, when the first one is lost.

    Attributes:
        client: runs steps on all tasks.
    """

    def __init__(self, group: ProcessGroup, strategy: str, names: Iterable[DeviceName]) -> None:
        from ..tasks.client import connect
        from ..tasks.server import Server

        self._group = group
        here = " ".join(device.name.upper() for device in list_devices("cpu")).encode()
        found = [each.decode().split() for each in group.gather_bytes(here, SPREAD)]
        tasks = zip(group.links.names, found, strict=True)
        self._devices = [f"{task}/device:{name}" for task, devices in tasks for name in devices]
        self.check_devices(names, strategy)
        host = group.links.host
        with ReservedPorts(resolved(host), 1) as ports:
            own = joined_address(host, ports.numbers[0]).encode()
            addresses = [each.decode() for each in group.gather_bytes(own, SPREAD)]
            cluster = ClusterSpec({"worker": addresses})
            devices = {"cpu": len(list_devices("cpu"))}
            self._server = Server(cluster, "worker", group.rank, devices, bind=host_to_bind(addresses[group.rank]))
        group.gather_bytes(b"", SPREAD)  # all serve
        if group.rank:
            self._serve()
        self.own = self._server.name
        self.client: Client = connect(self._server.target)
        self.client.places = self._places
        self._containers: dict[Any, str] = {}  # of what this process shares with its task
        group.refuses = (
            f"{strategy} is over {group.size} processes, of which this one alone runs the script. The others serve "
            "their devices, and take no part."
        )
        atexit.register(self.close)

    def _serve(self) -> None:
        """Serve as a task until the first process ends."""
        try:
            self._group.links.wait_for(0)
            self._group.gather_bytes(b"", SPREAD)
        finally:
            self._server.stop()
        self._group.gather_bytes(b"", SPREAD)
        raise SystemExit(0)

    def check_devices(self, names: Iterable[DeviceName], strategy: str) -> None:
        """Check that the processes have the devices that a strategy asks for.

        Raises:
            ValueError: they have not.
        """
        known = [DeviceName.parse(each) for each in self._devices]
        absent = [str(name) for name in names if not any(name.accepts(each) for each in known)]
        if absent:
            raise ValueError(
                f"{strategy}: there are no devices {absent}; the processes have {self._devices}. Declare others with "
                "ab.config.set_devices(cpu=...) before the strategy is made, or name some of these."
            )

    def is_elsewhere(self, place: str) -> bool:
        """Test whether a device is one of another task."""
        return str(DeviceName.parse(place).of_task()) != self.own

    def settle(self, places: Iterable[tuple[Variable, str]]) -> None:
        """Place variables on the devices of other tasks for good: values are there from the first step on."""
        for variable, place in places:
            if not variable.device and self.is_elsewhere(place):
                variable.device = place

    def _places(self, resource: Any) -> dict[str, Any]:
        """Describe state for tasks: what is in this process is the same object for its task."""
        is_here = isinstance(resource, SeedGenerator) or (
            isinstance(resource, Variable) and not (resource.device and self.is_elsewhere(resource.device))
        )
        if not is_here:
            return {}
        if resource not in self._containers:
            # Its name stands in programs, which all tasks print alike, so that it is the container that differs.
            self._containers[resource] = f"process: {len(self._containers)}"
            self._server.task.hold(self._containers[resource], resource.name, resource)
        return {"container": self._containers[resource], "path": resource.name, "device": self.own}

    def close(self) -> None:
        """Let the other processes end. It happens at the end of this one, too."""
        atexit.unregister(self.close)
        self.client.close()
        with contextlib.suppress(Exception):  # one that is lost has been reported by a step
            self._group.gather_bytes(b"", SPREAD)  # they may end,
            self._group.gather_bytes(b"", SPREAD)  # and ask this task no more
        self._server.stop()


_made: dict[ProcessGroup, SpreadTasks] = {}


def tasks_of(devices: Iterable[Any], strategy: str) -> SpreadTasks | None:
    """Return the tasks that devices of several processes are on; None if all are of this process.

    Args:
        devices: their names.
        strategy: as messages call it.

    Raises:
        ValueError: there are no other processes, or one has no such device.
        SystemExit: see `SpreadTasks`.
    """
    given = [DeviceName.parse(str(name)) for name in devices]
    named = [str(name) for name in given if name.job is not None]
    group = collectives.current_group()
    if not isinstance(group, ProcessGroup):
        if named:
            raise ValueError(
                f"{strategy}: {named} are devices of tasks, but this process is alone. Start the script with "
                "`python -m anabranch launch -n 2 --ps 0 script.py`, or name devices of this process."
            )
        return None
    if len(named) != len(given):
        here = [str(name) for name in given if name.job is None]
        raise ValueError(
            f"{strategy}: this is process {group.rank} of {group.size}, and {here} do not say of which they are "
            "devices. Take their names from ab.distribution.list_devices(), or use DataParallel on several processes."
        )
    known = set(group.links.names)
    strange = sorted({str(name.of_task()) for name in given} - known)
    if strange:
        raise ValueError(f"{strategy}: there are no tasks {strange}; the processes are {sorted(known)}.")
    if group not in _made:
        _made[group] = SpreadTasks(group, strategy, given)
    _made[group].check_devices(given, strategy)
    return _made[group]


__all__ = ["SpreadTasks", "tasks_of"]
