"""`Task`: what a task holds, and who gets which frame. All of it happens in the task's loop."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...engine.place.devices import Device
from ..cluster import ClusterSpec, resolved, split_address
from ..config import ServerConfig
from ..transport.connections import Connection, Handshake, Identity
from ..transport.dialing import widen
from ..transport.loop import Loop
from ..transport.planes import Plane, asked, streams_where_sockets_fail, ways
from ..transport.slabs import Budget
from ..transport.wire import Frame, FrameError, Kind
from .doing import Turning
from .front import TaskInfo
from .master import Master
from .peers import Address, Peers
from .running import Running
from .system import System
from .watch import Watch
from .worker import Worker

_FOR_WORKERS = frozenset(
    {
        *(Kind.GRAPH, Kind.PROGRAM, Kind.STEP, Kind.ABORT, Kind.FORGET, Kind.TEXT, Kind.RESET, Kind.CLOCK),
        *(Kind.LINKS, Kind.PROBE),
    }
)


class OwnLink:
    """The way from this task's master to its worker, or back: a frame is handed over in the next turn of the loop.

    Args:
        own: who this task is.
        loop: of the task.
        take: takes the frames.
    """

    def __init__(self, own: Identity, loop: Loop, take: Callable[[Frame], None]) -> None:
        self.other = own
        self._loop = loop
        self._take = take

    def send(self, kind: int, document: Any, arrays: Any = ()) -> None:
        """Hand a frame over."""
        frame = Frame(kind, json.dumps(document, separators=(",", ":")).encode(), list(arrays))
        self._loop.soon(lambda: self._take(frame))


class Task:
    """One task.

    Args:
        identity: who it is.
        cluster: all tasks.
        devices: those of this task.
        token: that of the job.
        config: how it behaves.
        port: of its sockets.
        front: where it answers gRPC.
        system: the process and machine that it is on.

    Attributes:
        ends_in_order: whether the tasks to which this one has connected are notified that it ends for good.
        left: the names of those that have said so, and were not started again.
    """

    def __init__(
        self,
        identity: Identity,
        cluster: ClusterSpec,
        devices: Sequence[Device],
        token: bytes,
        config: ServerConfig,
        port: int,
        front: str,
        system: System,
    ) -> None:
        self.identity = identity
        self.ends_in_order = False
        self.left: set[str] = set()
        self.loop = system.loop
        self.loop.idle = self._idle
        self.connections: dict[Connection, None] = {}  # all that are open or about to be, in order
        self._token = token
        self._plane = asked(config.plane)
        self._limits = config.limits(len(cluster.tasks) - 1)
        self._shared_memory = Budget(self._limits.slabs, self._limits.together)
        self._outbox: dict[Connection, None] = {}
        self._listeners: list[socket.socket] = []
        host = resolved(split_address(cluster.address(identity.name))[0])
        names = tuple(str(device.spec) for device in devices)
        self.info = TaskInfo(
            identity.name,
            identity.incarnation,
            host,
            port,
            names,
            front=front,
            heartbeat_timeout=config.heartbeat_timeout,
        )
        self._system = system
        self._watch = Watch(self.loop, system.greeter, config.patience, self._dead)
        self._heard: dict[Connection, None] = {}  # those of which something was read in the middle of an operation
        self._released: collections.deque[tuple[Connection, int]] = collections.deque()
        self._peers = Peers(
            self._connection, self._dial, self._take_reply, self._lost_task, self._masters, self._watch.add
        )
        self._worker = Worker(identity, self._peers, system)
        self._to_master = OwnLink(identity, self.loop, lambda frame: self._master.take_reply(self._to_master, frame))
        to_worker = OwnLink(identity, self.loop, lambda frame: self._worker.take(self._to_master, frame))
        self._master = Master(
            self.info,
            self.statistics,
            cluster,
            self.loop,
            self._worker,
            to_worker,
            self._peers,
            config.connect_timeout,
            system,
        )

    def information(self) -> TaskInfo:
        """Return what it is, and what it does at this moment; for any thread."""
        doing = self._worker.doing(self.loop.is_waiting)
        return replace(self.info, turns=self.loop.turns, state=doing.state, doing=doing.what, since=doing.since)

    def statistics(self) -> dict[str, Any]:
        """Count what the task holds and what has travelled; in the loop."""
        connections: list[dict[str, Any]] = []
        for connection in [each for each in self.connections if each.is_open]:
            cost = None if connection.accepts else self._worker.links.cost(connection.other)
            pulse = self._watch.pulse_of(connection.other)
            silent_for = None if pulse is None else round(pulse.silent_for, 3)
            connections.append(
                {
                    **connection.statistics(),
                    "silent_for": silent_for,
                    "latency": None if cost is None else cost.latency,
                    "bandwidth": None if cost is None else cost.bandwidth,
                }
            )
        return {
            **self._master.statistics(),
            "worker": self._worker.statistics(),
            "training": self._worker.resources.reports(),
            "connections": connections,
        }

    def hear(self) -> None:
        """Read what has come while an operation takes long, and end that if its step ends; for another thread.

        A loop that is compiled to machine code ends; another operation does not. In later steps it runs apart.
        """
        turning = self._worker.turning
        with turning.lock:
            running = turning.running
            if running is not None and running.part.note_long(running.step):
                self.loop.call(partial(self._worker.print_again, running.part))
            connections = [each for each in list(self.connections) if each.is_open]
        for connection in connections:
            found: Sequence[Frame] | None = ()
            while found is not None:
                with turning.lock:
                    running = turning.running
                    if running is None:
                        return
                    found = connection.read_ahead()
                    if found or connection.is_over:
                        self._heard[connection] = None
                    if self._ends(running, connection, found or ()):
                        turning.ask()

    def _ends(self, running: Running, connection: Connection, frames: Sequence[Frame]) -> bool:
        """Test whether a step ends once what was read of a connection is taken."""
        master, number = running.key
        step = self._master.steps.get(number) if master == self.identity.incarnation else None
        if connection.is_over:
            other = connection.other
            if other in running.program.peers:
                return True
            if connection.accepts:
                return other.incarnation == master or (step is not None and step.connection is connection)
            return step is not None and step.waits_for(other)
        if connection.accepts:
            kind, is_meant = Kind.ABORT, connection.other.incarnation == master
        else:
            kind, is_meant = Kind.FAILED, step is not None
        return is_meant and any(frame.kind == kind and _step_in(frame) == number for frame in frames)

    def hold(self, container: str, path: str, resource: Any) -> None:
        """Hold an object of this process as the state of that name; for any thread."""
        self._worker.resources.hold(container, path, resource)

    @property
    def turning(self) -> Turning:
        """The step that runs at this moment."""
        return self._worker.turning

    # --- connections ------------------------------------------------------------------------------------------------

    def listen(self, listener: socket.socket, plane: Plane) -> None:
        """Accept connections."""
        self._listeners.append(listener)
        self.loop.watch(listener, lambda events: self._accept(listener, plane))

    def _accept(self, listener: socket.socket, plane: Plane) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = listener.accept()
            self.accept(sock, plane)

    def accept(self, sock: socket.socket, plane: Plane) -> None:
        """Take a socket by which somebody has connected."""
        if plane == Plane.UNIX:
            widen(sock)
        self._connection(sock, None, plane, self._take, self._opened, self._closed)

    def _dial(self, address: Address, streams_only: bool) -> tuple[socket.socket, Plane]:
        planes = ways(self._plane, address.name, self._system.is_encrypted)
        if streams_only:
            planes = (Plane.GRPC,) if streams_where_sockets_fail(self._plane, address.name) else ()
        return self._system.dial(planes, address)

    def _connection(
        self,
        sock: socket.socket,
        expected: Identity | None,
        plane: Plane,
        on_frame: Callable[[Connection, Frame], None],
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection, str], None],
    ) -> Connection:
        process = self._system.process_at(sock)

        def closed(connection: Connection, reason: str) -> None:
            self.connections.pop(connection, None)
            if process is not None:
                self.loop.forget(process)
                process.close()
            on_close(connection, reason)
            if connection.wanted is not None and not self._with(connection.wanted):
                self._watch.discard(connection.wanted)

        handshake = Handshake(self.identity, self._token, expected is None, expected)
        made = Connection(
            self.loop,
            sock,
            handshake,
            on_frame,
            on_open,
            closed,
            self._outbox,
            self._release,
            plane,
            self._limits,
            self._worker.small.take if expected is None else None,
            self._shared_memory,
        )
        self.connections[made] = None
        made.process = process
        if process is not None:
            self.loop.watch(process, lambda events: made.end("its process has ended"))
        return made

    def _release(self, connection: Connection, slab: int) -> None:
        """Handle the release of an array in shared memory; any thread calls this, wherever Python frees it."""
        self._released.append((connection, slab))
        self.loop.nudge()

    def _with(self, other: Identity) -> list[Connection]:
        """Return the open connections with somebody."""
        return [each for each in self.connections if each.is_open and each.other == other]

    def _opened(self, connection: Connection) -> None:
        """Handle a new connection. A task connects once: what it has begun by an older connection is over."""
        if not _is_task(connection.other):
            self._worker.clients.opened(connection)
            return
        self.left.discard(connection.other.name)
        for older in self._with(connection.other):
            if older is not connection and older.accepts:
                older.close("the other side has reconnected")

    def _dead(self, other: Identity, reason: str) -> None:
        """Handle a task that does not answer any more, or whose loop has stopped."""
        self._peers.give_up(other, reason)
        for connection in self._with(other):
            connection.close(reason)

    def _take(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame of a task or client that has connected."""
        if frame.kind == Kind.VALUE:
            self._worker.take_value(frame)
        elif frame.kind == Kind.FED:
            self._worker.take_fed(connection, frame)
        elif not _is_task(connection.other):
            self._master.take(connection, frame)
        elif frame.kind == Kind.LEAVES:
            self.left.add(connection.other.name)
        elif frame.kind in _FOR_WORKERS:
            self._worker.take(connection, frame)
        else:
            raise FrameError(f"a frame of kind {frame.kind} came, which nobody takes here")

    def _closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of a connection that a task or client had opened."""
        if not connection.is_open:
            return
        if _is_task(connection.other):
            self._worker.lost_master(connection.other)
            self._worker.lost_peer(connection.other, reason)
        else:
            self._worker.lost_client(connection)
            self._master.lost_client(connection)

    def _take_reply(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame of a task to which this one has connected."""
        if frame.kind == Kind.PROBE:
            self._worker.take_probed(connection.other, frame)
        else:
            self._master.take_reply(connection, frame)

    def _lost_task(self, task: Identity, reason: str) -> None:
        """Handle the loss of a task to which this one had connected."""
        self._worker.lost_peer(task, reason)
        self._master.lost_task(task, reason)

    def _masters(self) -> set[int]:
        """Return the incarnations of the tasks that are connected, this one among them."""
        others = {each.other.incarnation for each in self.connections if each.is_open and _is_task(each.other)}
        return {self.identity.incarnation, *others}

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        is_busy = self._worker.turn()
        if self._heard:
            heard, self._heard = self._heard, {}
            for connection in heard:
                connection.take_ahead()
            is_busy = True  # what steps have waited for may be among it
        if self._released:
            self._acknowledge()
        if self._outbox:
            for connection in list(self._outbox):
                self._outbox.pop(connection, None)
                connection.flush()
        return is_busy

    def _acknowledge(self) -> None:
        """Notify those whose shared memory is free again."""
        found: dict[Connection, list[int]] = {}
        while self._released:
            connection, slab = self._released.popleft()
            found.setdefault(connection, []).append(slab)
        for connection, slabs in found.items():
            connection.acknowledge(slabs)

    def disconnect(self, reason: str) -> None:
        """End all connections."""
        for connection in list(self.connections):
            connection.close(reason)

    def close(self) -> None:
        """Give up everything; the loop has ended."""
        if self.ends_in_order:
            for connection in [each for each in self.connections if each.is_open and not each.accepts]:
                connection.send(Kind.LEAVES, {})
                connection.flush()
        self.disconnect("the task ends")
        self._shared_memory.close()
        self._worker.close()
        self._system.close()
        for listener in self._listeners:
            self.loop.forget(listener)
            listener.close()
        self.loop.close()


def _step_in(frame: Frame) -> Any:
    """Return the number of the step that a frame is about; None if it is damaged, which whoever takes it notices."""
    with contextlib.suppress(FrameError):
        return frame.document().get("step")
    return None


def _is_task(identity: Identity) -> bool:
    """Test whether it is a task, and no client, that speaks."""
    return identity.name.startswith("/job:")
