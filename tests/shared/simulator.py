"""A simulated network for the real code of tasks: one thread, a clock of its own, and all chance drawn from a seed.

Tasks run as they are (`distribute.tasks.task` and what it is made of). Their loop, sockets, questions by gRPC and the
thread that compiles are these here: bytes come in pieces and late, links are cut, clocks differ, answers to questions
come twice, messages are read in the middle of operations, and processes are stopped or killed at any event. Of what is
under way on a connection that is lost a part may arrive, and its ends see the loss at different times.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from anabranch.distribute.cluster import ClusterSpec
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.tasks.task import Task
from anabranch.distribute.transport.connections import Connection, Handshake, Identity
from anabranch.distribute.transport.loop import Loop
from anabranch.distribute.transport.planes import Limits, Plane
from anabranch.distribute.transport.wire import Frame
from anabranch.engine.graph.device import DeviceName
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.devices import make_devices
from anabranch.engine.queues.errors import CancelledError

TOKEN = b"a token for tests, which is no secret"
SMALL = 0.001  # seconds
_ROOM = 20_000  # bytes that a connection holds while they travel
_FACTORS = (1, 1, 1, 1, 20, 400)  # by which what travels is slower


def _note_nothing(program: PartProgram, step: Any) -> bool:
    """Stand for a method, in place of a mock: making one takes longer than what it is made for."""
    return False


class KilledError(BaseException):
    """A process is killed in the middle of what it does."""


class Network:
    """All events of a simulation, in the order of their time.

    Attributes:
        random: all chance.
        now: seconds.
        current: the process in which something happens; None for that of the test.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.current: Node | None = None
        self.nodes: dict[str, Node] = {}
        self.cut: set[frozenset[str]] = set()  # pairs of nodes between which nothing travels
        self.far: dict[frozenset[str], float] = {}  # of pairs of nodes, seconds that all takes in addition
        self._events: list[tuple[float, int, Callable[[], None], Node | None]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, function: Callable[[], None], node: Node | None = None) -> None:
        """Have something happen; in a process, if it lives and runs by then."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), function, node))

    def delay(self) -> float:
        """Return how long something travels: mostly not long."""
        draw = self.random.random
        return -math.log(1.0 - draw()) * SMALL * _FACTORS[int(draw() * len(_FACTORS))]

    def lag(self) -> float:
        """Return for how long an end of a lost connection does not see that: mostly not long, and at times seconds."""
        return self.random.random() * self.random.choice([SMALL, 3.0])

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let things happen until something holds; gives whether it does within some seconds."""
        end, events = self.now + seconds, self._events
        unless_killed = contextlib.suppress(KilledError)
        while not until():
            if not events or events[0][0] > end:
                self.now = end
                return until()
            self.now, _, function, node = heapq.heappop(events)
            if node is None or not (node.is_stopped or node.is_busy or node.is_dead):
                before, self.current = self.current, node
                with unless_killed:
                    function()
                self.current = before
            elif not node.is_dead:
                node.put_off.append(function)
        return True


class Pipe:
    """One end of a connection, as far as `Connection` uses a socket."""

    family = None

    def __init__(self, node: Node) -> None:
        self.node = node
        self.other: Pipe = self
        self.incoming: list[bytes] = []
        self.is_over = False  # the other side has closed it, and all that it has sent is here
        self.is_closed = False
        self.is_lost = False  # what is written goes nowhere
        self.under_way: list[bytes] = []
        self.is_moving = False

    def setblocking(self, blocks: bool) -> None:
        pass

    def fileno(self) -> int:
        return -1 if self.is_closed else id(self)

    def send(self, data: Any) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        if self.is_closed:
            raise BrokenPipeError(32, "the connection was cut")
        data = b"".join(map(bytes, buffers))
        if self.is_lost:
            return len(data)
        waiting = sum(map(len, self.under_way))
        room = _ROOM - waiting
        if room < _ROOM // 4:  # as of a real socket: else all would go in ever smaller pieces, a delay each
            raise BlockingIOError
        taken = data[: self.node.network.random.randint(1, room) if self.node.network.random.random() < 0.3 else room]
        self.under_way.append(taken)
        self._move()
        return len(taken)

    def _move(self) -> None:
        """Carry what was sent to the other end, in order."""
        if not self.is_moving:
            self.is_moving = True
            network = self.node.network
            further = network.far.get(frozenset((self.node.name, self.other.node.name)), 0.0)
            network.after(network.delay() + further, self._arrive)

    def _arrive(self) -> None:
        self.is_moving = False
        network = self.node.network
        if network.is_cut(self.node.name, self.other.node.name):
            self.is_moving = True
            network.after(0.2, self._arrive)
            return
        if self.under_way:
            self.other.incoming.append(self.under_way.pop(0))
        elif self.is_closed:
            self.other.is_over = True
        self.other.node.loop.touch(self.other)
        if self.under_way or (self.is_closed and not self.other.is_over):
            self._move()
        self.node.loop.touch(self)

    def recv_into(self, buffer: memoryview) -> int:
        if not self.incoming:
            if self.is_over:
                return 0
            raise BlockingIOError
        data = self.incoming[0]
        count = min(len(data), len(buffer))
        if self.node.network.random.random() < 0.1:
            count = self.node.network.random.randint(1, count)
        buffer[:count] = data[:count]
        self.incoming[0:1] = [data[count:]] if count < len(data) else []
        return count

    def close(self) -> None:
        self.is_closed = True
        self._move()

    def lose(self) -> None:
        """Lose the connection: a first part of what is under way arrives; each end sees the loss at its own time."""
        for end in (self, self.other):
            end.is_lost = True
            end.node.network.after(end.node.network.lag(), end.other.end_behind(end.torn()))

    def torn(self) -> bytes:
        """Take what is under way, and return a first part of it."""
        data = b"".join(self.under_way)
        self.under_way.clear()
        return data[: self.node.network.random.randint(0, len(data))]

    def end_behind(self, data: bytes) -> Callable[[], None]:
        """Return what has this end see some bytes, and that there are no more."""

        def end() -> None:
            if data and not self.is_over:
                self.incoming.append(data)
            self.is_over = True
            self.node.loop.touch(self)

        return end


class SimulatedLoop(Loop):
    """A loop that turns when the network says so."""

    def __init__(self, node: Node) -> None:
        self.turns = 0
        self.is_waiting = True
        self.idle = lambda: False
        self._node = node
        self._waiting_calls: list[Callable[[], Any]] = []
        self._watched: dict[Any, tuple[Callable[[int], None], bool]] = {}
        self._is_due = False

    def _due(self) -> None:
        if not self._is_due and not self._node.is_dead:
            self._is_due = True
            self._node.later(self._node.network.random.random() * SMALL / 10, self.turn)

    def call(self, function: Callable[[], Any]) -> None:
        self._waiting_calls.append(function)
        self._due()

    soon = call

    def wake(self) -> None:
        self._due()

    nudge = wake

    def stop(self) -> None:
        pass

    def now(self) -> float:
        self._node.interrupt()  # steps look at the clock when they are turned
        return self._node.clock()

    def after(self, seconds: float, function: Callable[[], Any]) -> None:
        self._node.later(seconds / self._node.rate, lambda: self.call(function))

    def watch(self, sock: Any, ready: Callable[[int], None], writes: bool = False) -> None:
        self._watched[sock] = (ready, writes)
        self._due()

    def forget(self, sock: Any) -> None:
        self._watched.pop(sock, None)

    def touch(self, sock: Any) -> None:
        if sock in self._watched:
            self._due()

    def turn(self) -> None:
        self._is_due = False
        self.turns += 1
        watched = self._watched
        for sock, (ready, writes) in list(watched.items()):
            if (writes or sock.incoming or sock.is_over) and sock in watched:
                ready((1 if sock.incoming or sock.is_over else 0) | (2 if writes else 0))  # an error ends the test
        if self._waiting_calls:
            waiting, self._waiting_calls = self._waiting_calls, []
            for function in waiting:
                function()
        if self.idle() or self._waiting_calls:
            self._due()
            return
        for sock in watched:
            if sock.incoming or sock.is_over:
                self._due()
                return

    def close(self) -> None:
        self._watched.clear()


class Node:
    """A process: it can be stopped and killed."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        self.is_busy = False  # with an operation that takes long
        self.rate = 1.0  # of its clock
        self._read_at = (network.now, network.random.random() * 1e6)  # and what the clock was then
        self.loop = SimulatedLoop(self)
        self.pipes: list[Pipe] = []
        self.put_off: list[Callable[[], None]] = []  # as long as it is stopped

    def clock(self) -> float:
        """Seconds of its own clock, which goes forward only."""
        then, was = self._read_at
        return was + (self.network.now - then) * self.rate

    def interrupt(self) -> None:
        """Have something happen in the middle of what the process does."""

    def skew(self, rate: float, jump: float = 0.0) -> None:
        """Let its clock go at another rate from now on, and forward by some seconds at once."""
        self._read_at = (self.network.now, self.clock() + jump)
        self.rate = rate

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Have something happen in this process, if it lives and runs by then."""
        self.network.after(seconds, function, self)

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        waiting, self.put_off = self.put_off, []
        for function in waiting:
            self.later(0.0, function)

    def kill(self) -> None:
        self.is_dead = True
        for pipe in self.pipes:
            if self.network.random.random() < 0.5:  # as a system does that has not handed over all that has come
                pipe.under_way = [data for data in [pipe.torn()] if data]
            pipe.close()

    def pipe_to(self, other: Node) -> tuple[Pipe, Pipe]:
        one, two = Pipe(self), Pipe(other)
        one.other, two.other = two, one
        self.pipes.append(one)
        other.pipes.append(two)
        return one, two


class SimulatedSystem:
    """The functions of process and machine that a task uses."""

    is_encrypted = False

    def __init__(self, node: TaskNode) -> None:
        self.loop = node.loop
        self.greeter = self
        self._node = node

    def compile(self, work: Callable[[], None]) -> None:
        self._node.compiling.append(work)
        self._node.later(self._node.network.delay(), lambda: self._node.compiling.pop(0)())

    def ask(self, address: str, *arguments: Any) -> None:
        """Ask as a heartbeat does (timeout, answered), or as a master (name, timeout, answered)."""
        *name, timeout, answered = arguments
        network, node = self._node.network, self._node
        end = network.now + timeout

        def look() -> None:
            other = network.nodes.get(address)
            lives = other is not None and not other.is_dead and not other.is_stopped
            if lives and not network.is_cut(node.name, address):
                assert isinstance(other, TaskNode)
                info = other.task.information()
                answered(info)
                if network.random.random() < 0.1:  # a network may bring an answer twice, and late
                    node.later(network.delay(), lambda: answered(info))
            elif network.now < end:
                node.later(0.2, look)
            elif name:
                answered(f"{name[0]} did not answer at {address} within {timeout:g} s")

        node.later(network.delay(), look)

    def dial(self, planes: Any, address: Any) -> tuple[Any, Plane]:
        other = self._node.network.nodes.get(address.front)
        if not isinstance(other, TaskNode) or other.is_dead or other.task.identity.incarnation != address.incarnation:
            raise OSError(111, "connection refused")
        return other.reached_by(self._node), Plane.TCP

    def process_at(self, sock: Any) -> None:
        """Return None: sockets alone report an end here."""

    def forget(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


class TaskNode(Node):
    """A task, at its address in the network."""

    def __init__(self, network: Network, address: str, cluster: ClusterSpec, name: str, config: ServerConfig) -> None:
        super().__init__(network, address)
        self.compiling: list[Callable[[], None]] = []
        self._turned: Any = None  # the turn of a step in which an operation may have taken long
        devices = make_devices(DeviceName.parse(name), cpu=1)
        incarnation = network.random.randrange(2**62, 2**63)
        system: Any = SimulatedSystem(self)
        self.task = Task(Identity(name, incarnation), cluster, devices, TOKEN, config, 1, address, system)
        network.nodes[address] = self

    def reached_by(self, node: Node) -> Pipe:
        """Accept a connection; gives its other end. At times one comes twice: by the second nobody says anything."""
        random = self.network.random
        for is_second in [True, False] if random.random() < 0.05 else [False]:
            one, two = node.pipe_to(self)
            self.later(self.network.delay(), lambda two=two: self.task.accept(two, Plane.TCP))  # type: ignore[arg-type]
            if is_second:
                self.network.after(self.network.lag(), one.lose)
        return one

    def interrupt(self) -> None:
        """Let an operation take long at times, read meanwhile, and end it if its step ends: it is a compiled loop."""
        turning, network = self.task.turning, self.network
        turn = None if turning.running is None else (self.loop.turns, turning.running.key)
        if turn is None or turn == self._turned:
            return
        self._turned = turn  # nothing of the turn has run: an operation that is ended leaves nothing half done
        if network.random.random() > 0.15:
            return
        self.is_busy = True
        for _ in range(network.random.choice([1, 2, 15])):
            network.run(lambda: False, network.random.random() * 0.3)
            network.run(lambda: self.is_dead or not self.is_stopped, math.inf)
            if self.is_dead:
                raise KilledError
            with patch.object(PartProgram, "note_long", _note_nothing):  # it would run on a thread, which is real
                self.task.hear()
            if turning.is_stopped:
                break
        self.is_busy = False
        self.go_on()
        if turning.is_stopped:
            raise CancelledError("The loop was ended.")

    @property
    def held(self) -> dict[str, int]:
        return self.task.statistics()["worker"]


class ClientNode(Node):
    """A client: it sends a request and takes the answer, and notes what became of each.

    Attributes:
        identity: with which it has connected last.
        answers: frames, and None where the connection ended.
    """

    def __init__(self, network: Network, number: int) -> None:
        super().__init__(network, f"client {number}")
        self.identity = Identity(self.name, 0)
        self.answers: list[Frame | None] = []
        self.connection: Connection | None = None
        self._outbox: dict[Connection, None] = {}
        self.loop.idle = self._flush
        network.nodes[self.name] = self

    def _flush(self) -> bool:
        for connection in list(self._outbox):
            self._outbox.pop(connection, None)
            connection.flush()
        return False

    def connect(self, master: TaskNode) -> None:
        """Connect to a task, again."""
        identity = self.identity = Identity(self.name, self.network.random.randrange(2**62))
        self.connection = Connection(
            self.loop,
            master.reached_by(self),  # type: ignore[arg-type]
            Handshake(identity, TOKEN, False, master.task.identity),
            lambda connection, frame: self.answers.append(frame),
            lambda connection: None,
            lambda connection, reason: self.answers.append(None),
            self._outbox,
            lambda connection, slab: None,
            Plane.TCP,
            Limits(),
        )


__all__ = ["ClientNode", "Network", "Node", "SimulatedSystem", "TaskNode"]
