"""The client's side of ``ab.Session(target="grpc://host:port")``: connections to a master, and no devices."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ...engine.common.deadlines import seconds_left
from ...engine.common.dtypes import name_of
from ...engine.graph.container import name_of_container
from ...engine.graph.graph import Graph, Operation
from ...engine.graph.spec import Spec, TensorSpec
from ...engine.graph.tensor import Symbol
from ...engine.graph.variable import Variable
from ...engine.passes.framework.switches import turned_off
from ...engine.passes.memory.memory_budget import memory_budget
from ...engine.place.placement import Placement
from ...engine.queues.errors import TaskFailedError
from ...engine.runtime.program import Statistics
from ...engine.saving import describe_for_tasks
from ...engine.tracing import Recorder, active, here
from ..cluster import is_loopback, split_address
from ..encryption import TLS, tls_from_environment
from ..token import job_token
from ..transport.connections import Channel, Identity, RefusedError
from ..transport.dialing import dial
from ..transport.failures import read_error, task_failed
from ..transport.planes import asked, ways
from ..transport.streams import open_stream
from ..transport.values import decode_value, encode_value
from ..transport.wire import Frame, Kind
from .clocks import ROUNDS, Alignment, Reading, best, read_once
from .front import Greeter, TaskInfo, TaskUnavailableError, ask_task
from .homes import Homes, State, asks_for_a_task
from .traces import merge, read_traces
from .watch import Patience, Pulse

_CONNECT_SECONDS = 30.0
_BACK_SECONDS = 1.0  # how long a master that was lost is looked for
_PROCESS = "client"  # as timelines call this one


def connect(target: str, timeout: float | None = None) -> Client:
    """Connect to the task at ``grpc://host:port``, and wait for it for so many seconds, by default 30.

    Raises:
        ValueError: the target can't be read.
        TaskFailedError: no task answers there.
        ConnectionError: the task has another token.
    """
    address = target.removeprefix("grpc://").rstrip("/")
    host, _ = split_address(address)
    try:
        tls = tls_from_environment()
        info = ask_task(address, None, _CONNECT_SECONDS if timeout is None else timeout, tls)
    except TaskUnavailableError as error:
        raise task_failed(target, str(error).rstrip(".")) from None
    return Client(info, job_token(is_loopback=is_loopback(host)), tls)


class Client:
    """A session's connections to its master.

    Args:
        info: what the master says of itself.
        token: that of the job.
        tls: with which this process proves who it is.

    Concurrent steps have a connection each; connections are kept for the next ones.

    Attributes:
        tasks_of_latest: how many tasks take part in the step that was prepared last.
        exact: have steps prepared with rewrites alone that keep the interpreter's bits.
        places: gives what tasks are to use for state in place of its own values: "device", "path", "container"
            and the like.
    """

    def __init__(self, info: TaskInfo, token: bytes, tls: TLS | None = None) -> None:
        self._tls = tls
        self.master = info
        self.exact = False
        self.places: Callable[[Any], dict[str, Any]] = lambda resource: {}
        self.tasks_of_latest = 0
        self.identity = Identity(f"client {socket.gethostname()}:{os.getpid()}", secrets.randbits(63))
        self._token = token
        self._idle: list[Channel] = []
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._numbers = itertools.count(1)
        self._sent = b""  # the digest of the graph that was sent
        self._homes_of_state: tuple[int, Homes] | None = None  # as this start of the master has them
        self._paths: dict[Any, str] = {}  # of variables and generators in tasks
        self._homes: dict[tuple[str, str, str], int] = {}  # as the master has reported, for one that is started again
        self._is_closed = False
        self._greeter = Greeter(tls)
        self._asking = threading.Lock()
        self._ways = ways(asked(), info.name, tls is not None)
        self._pulse = Pulse(info.incarnation, Patience(timeout=info.heartbeat_timeout))
        self._finalizer = weakref.finalize(self, _close_all, self._idle, self._greeter)
        self._idle.append(self._open())

    def _open(self) -> Channel:
        """Connect to the master, which may have been started again."""
        try:
            return self._open_to_known()
        except (ConnectionError, TimeoutError):
            before = self.master.incarnation
            try:
                found = self.reached()
            except TaskFailedError:
                found = self.master
            if found.incarnation == before:
                raise
        return self._open_to_known()

    def reached(self) -> TaskInfo:
        """Return what the master says of itself, which may have been started again.

        Raises:
            TaskFailedError: it does not answer within a second.
        """
        try:
            found = ask_task(self.master.front, self.master.name, _BACK_SECONDS, self._tls)
        except (TaskUnavailableError, OSError, ValueError) as error:
            raise task_failed(self.master.name, str(error).rstrip(".")) from None
        with self._asking:
            if found.incarnation != self.master.incarnation:
                self.master = found
                self._pulse = Pulse(found.incarnation, self._pulse.patience)
        return found

    def _open_to_known(self) -> Channel:
        expected = Identity(self.master.name, self.master.incarnation)
        try:
            return Channel(
                self._dial,
                self.identity,
                self._token,
                expected,
                _CONNECT_SECONDS,
                self._check_alive,
            )
        except RefusedError as error:
            raise ConnectionError(f"{self.master.name} can't be used: {error}.") from None
        except TaskFailedError:
            raise
        except OSError as error:
            raise task_failed(self.master.name, f"it can't be reached ({error.strerror or error})") from None

    def _dial(self) -> socket.socket:
        master = self.master
        begin = partial(open_stream, master.front, self._tls)
        return dial(self._ways, master.host, master.port, master.incarnation, begin, _CONNECT_SECONDS)[0]

    def _check_alive(self) -> None:
        """Ask the master how it is, while an answer is awaited.

        Raises:
            TaskFailedError: it has not answered for too long.
        """
        with self._asking:
            reason = self._pulse.tick(time.monotonic())
            if reason is not None:
                raise task_failed(self.master.name, reason)
            info = self._greeter.ask_now(self.master.front, self._pulse.patience.interval)
            if info is not None:
                self._pulse.answered(info)

    def look(self) -> TaskInfo:
        """Return what the master reports of itself now, or its last report."""
        with self._asking:
            return self._greeter.ask_now(self.master.front, self._pulse.patience.timeout) or self.master

    @contextlib.contextmanager
    def channel(self) -> Iterator[Channel]:
        """A connection for one request; it is kept for the next one unless it breaks."""
        with self._lock:
            if self._is_closed:
                raise ConnectionError("The session is closed. Make a new one.")
            channel = self._idle.pop() if self._idle else None
        channel = channel or self._open()
        is_whole = False
        try:
            yield channel
            is_whole = True
        except TaskFailedError:
            raise
        except OSError as error:
            raise task_failed(self.master.name, str(error.strerror or error)) from None
        finally:
            with self._lock:
                if is_whole and not self._is_closed:
                    self._idle.append(channel)
                else:
                    channel.close()

    def ask(self, kind: int, document: Any, arrays: Sequence[Any] = ()) -> Frame:
        """Send a request, and wait for the answer.

        Raises:
            Exception: what the master answers that has failed.
            TaskFailedError: the master is gone.
        """
        with self.channel() as channel:
            channel.send(kind, document, arrays)
            found = channel.receive()
        return self._checked(found)

    def ask_traced(self, recorder: Recorder, kind: int, document: Any, arrays: Sequence[Any] = ()) -> Frame:
        """Have a step run, and record what tasks have done in it, also if it fails.

        Raises:
            Exception: as `ask`.
        """
        began, parts = time.perf_counter(), []
        try:
            with self.channel() as channel:
                before = self._read_clock(channel)
                channel.send(kind, {**document, "trace": True}, arrays)
                found = channel.receive()
                parts = read_traces(found.document().get("trace", ()), found.arrays, self.master.name)
                if parts:
                    merge(recorder, parts, Alignment(before, self._read_clock(channel)), time.perf_counter())
            return self._checked(found)
        finally:
            told = {"master": self.master.name, "tasks": ", ".join(part.task for part in parts)}
            recorder.span((_PROCESS, here("steps").stream), "step", began, time.perf_counter(), told)

    def _read_clock(self, channel: Channel) -> Reading | None:
        """Read the clock of the master."""
        found: list[Reading] = []
        for number in range(ROUNDS):
            sent = time.perf_counter()
            channel.send(Kind.CLOCK, {"number": number})
            answer = self._checked(channel.receive()).document()
            found.append(read_once(sent, float(answer["time"]), time.perf_counter()))
        return best(found)

    def _checked(self, answer: Frame) -> Frame:
        """An answer, if it is one."""
        if answer.kind == Kind.ERROR:
            raise read_error(answer.document()["error"])
        if answer.kind == Kind.REFUSED:
            raise ConnectionError(f"{self.master.name} has refused a request: {answer.document().get('message')}.")
        return answer

    # --- what the engine calls --------------------------------------------------------------------------------------

    def program(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        specs: Sequence[Spec] | None,
        placement: Placement | None,
        lossy: Sequence[tuple[str, str]] = (),
    ) -> RemoteProgram:
        """Have a step prepared by the cluster.

        Raises:
            PlacementError: what was asked for can't be kept.
            SavedGraphError: something in the graph can't leave this process.
        """
        if placement is not None:
            raise ValueError("placement= and target= do not go together by now: ask for devices with ab.device.")
        shapes = None if specs is None else [list(spec.shape or ()) for spec in specs if isinstance(spec, TensorSpec)]
        document = {
            "program": next(self._numbers),
            "targets": [_named(target) for target in targets],
            "feeds": [_named(feed) for feed in feeds],
            "shapes": shapes,
            "budget": memory_budget(),
            "turned_off": sorted(turned_off()),
            "exact": self.exact,
            "lossy": [list(pair) for pair in lossy],
        }
        began = time.perf_counter()
        self.prepare(graph, document)
        if active.recorder is not None:
            told = {"targets": ", ".join([target.name for target in targets]), "tasks": self.tasks_of_latest}
            active.recorder.span((_PROCESS, here("prepare").stream), "prepare", began, time.perf_counter(), told)
        return RemoteProgram(self, graph, document)

    def prepare(self, graph: Graph, document: dict[str, Any]) -> None:
        """Have a step prepared, or prepared again by a master that does not have it any more.

        Raises:
            Exception: why it can't be.
        """
        with self._preparing:
            described = describe_for_tasks(graph)
            held = [resource for resource in described[2] if asks_for_a_task(resource)]
            homes = self._checked_homes(held) if held else None
            self._describe_state(described)
            with self.channel() as channel:
                answer = self._prepared(channel, described, document)
                if answer.kind == Kind.UNKNOWN:  # the graph: the master is another start, or had lost this client
                    self._sent = b""
                    answer = self._prepared(channel, described, document)
            found = self._checked(answer).document()
            self._homes.update({(task, container, path): home for task, container, path, home in found["homes"]})
            if homes is not None:
                self._settle(homes, held)
        self.tasks_of_latest = len(found["tasks"])

    def _checked_homes(self, held: Sequence[State]) -> Homes:
        """Return where the state of the tasks is; state that belongs to another cluster is refused.

        Raises:
            ValueError: some does.
        """
        known = self._homes_of_state
        if known is None or known[0] != self.master.incarnation:
            addresses = self.ask(Kind.STATUS, {}).document().get("tasks", {})
            known = self._homes_of_state = self.master.incarnation, Homes(addresses, _connect_back)
        for resource in held:
            known[1].check(resource)
        return known[1]

    def _settle(self, homes: Homes, held: Sequence[State]) -> None:
        """From now on tasks hold the state that the step has made there."""
        made = {(container, path): (task, home) for (task, container, path), home in self._homes.items()}
        for resource in held:
            if resource.home is None and not self.places(resource):
                container, path = name_of_container(resource), self._path_of(resource)
                if (container, path) in made:
                    homes.settle(resource, container, path, *made[container, path])

    def _prepared(self, channel: Channel, described: tuple[Any, list[Any], Any], document: dict[str, Any]) -> Frame:
        sends = self._graph_to_send(*described[:2])
        if sends is not None:
            channel.send(Kind.GRAPH, *sends)
        channel.send(Kind.PREPARE, document)
        return channel.receive()

    def _describe_state(self, given: tuple[Any, list[Any], list[Any]]) -> None:
        """Add to a graph's document the names of its state in tasks, and where that is."""
        described, _, resources = given
        has_others = any(getattr(resource, "home", None) is None for resource in resources)
        for description, resource in zip(described["resources"], resources, strict=True):
            home = getattr(resource, "home", None)
            if home is not None:
                description |= {"container": home.container, "path": home.path, "device": home.device}
                description["dtype"] = name_of(resource.spec.dtype) if isinstance(resource, Variable) else None
                if has_others:  # which need other names
                    self._paths[resource] = home.path
                self._homes.setdefault((home.task, home.container, home.path), home.incarnation)
        for description, resource in zip(described["resources"], resources, strict=True):
            if "path" in description:
                continue
            description |= {
                "container": name_of_container(resource),
                "path": self._path_of(resource),
                "device": getattr(resource, "device", ""),
            }
            if isinstance(resource, Variable):
                description["dtype"] = name_of(resource.dtype)
            description |= self.places(resource)

    def _graph_to_send(self, described: Any, arrays: list[Any]) -> tuple[Any, list[Any]] | None:
        """The graph's document and arrays; None if the master has them."""
        state = [[each["container"], each["path"], each["device"]] for each in described["resources"]]
        digest = hashlib.sha256(json.dumps([described["blocks"], state]).encode()).digest()
        if self._sent == digest:
            return None
        self._sent = digest
        found: list[Any] = []
        homes = [[*key, incarnation] for key, incarnation in self._homes.items()]
        written = [encode_value(array, found) for array in arrays]
        return {"graph": described, "arrays": written, "homes": homes}, found

    def _path_of(self, resource: Any) -> str:
        """Return the name of a variable or generator in tasks: its own, with a number if the graph has others."""
        known = self._paths.get(resource)
        if known is not None:
            return known
        own = getattr(resource, "path", None) or resource.name
        taken = {path for other, path in self._paths.items() if name_of_container(other) == name_of_container(resource)}
        names = itertools.chain([own], (f"{own}_{number}" for number in itertools.count(1)))
        found = self._paths[resource] = next(name for name in names if name not in taken)
        return found

    def reset(self, containers: Sequence[str] | None) -> None:
        """Have all tasks of the cluster give up what containers hold, or all.

        Raises:
            TaskFailedError: a task does not answer; the others have done it.
        """
        self.ask(Kind.RESET, {"containers": None if containers is None else list(containers)})

    def close(self) -> None:
        """Give the connections up; steps that are under way end."""
        with self._lock:
            self._is_closed = True
            _close_all(self._idle, self._greeter)


def _connect_back(address: str) -> Client:
    """Connect to a task that was there before."""
    return connect(f"grpc://{address}", _BACK_SECONDS)


def _close_all(channels: list[Channel], greeter: Greeter) -> None:
    greeter.close()
    while channels:
        channels.pop().close()


class RemoteProgram:
    """A step that the cluster runs: called with the values of its feeds, it gives what is fetched.

    Attributes:
        statistics: how often it was run.
    """

    def __init__(self, client: Client, graph: Graph, document: dict[str, Any]) -> None:
        self.statistics = Statistics()
        self._client = client
        self._graph = graph
        self._document = document

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step.

        Raises:
            Exception: what an operation raised, with the place where.
            TaskFailedError: a task that the step needs is gone.
            DeadlineExceededError: the thread's deadline has passed.
        """
        self.statistics.start()
        arrays: list[Any] = []
        feeds = [encode_value(value, arrays) for value in values]
        document = {"program": self._document["program"], "feeds": feeds, "timeout": seconds_left()}
        recorder = active.recorder
        ask = self._client.ask if recorder is None else partial(self._client.ask_traced, recorder)
        answer = ask(Kind.RUN, document, arrays)
        if answer.kind == Kind.UNKNOWN:  # nothing has begun
            self._client.prepare(self._graph, self._document)
            answer = ask(Kind.RUN, document, arrays)
        return tuple([decode_value(description, answer.arrays) for description in answer.document()["values"]])


def _named(target: Symbol | Operation) -> list[int]:
    """An operation of the graph by its place, with the number of its output."""
    if isinstance(target, Operation):
        return [target.index]
    return [target.operation.index, target.index]
