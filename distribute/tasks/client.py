"""The client's side of ``ab.Session(target="grpc://host:port")``: connections to a master, and no devices."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...engine.common.deadlines import seconds_left
from ...engine.common.dtypes import name_of
from ...engine.graph.graph import Graph, Operation
from ...engine.graph.spec import Spec, TensorSpec
from ...engine.graph.state.container import name_of_container
from ...engine.graph.state.sharded import has_open_shards, spread_shards
from ...engine.graph.state.variable import Variable
from ...engine.graph.tensor import Symbol
from ...engine.passes.framework.switches import turned_off
from ...engine.passes.memory.memory_budget import memory_budget
from ...engine.place.placement import Placement
from ...engine.queues.errors import DeadlineExceededError
from ...engine.runtime.program import Statistics
from ...engine.saving import describe_for_tasks
from ...engine.tracing import Recorder, active, here
from ..cluster import is_loopback, split_address
from ..encryption import TLS, tls_from_environment
from ..token import job_token
from ..transport.channel import Channel
from ..transport.connections import Identity
from ..transport.failures import read_error, task_failed, task_unavailable
from ..transport.values import decode_value, encode_value
from ..transport.wire import Frame, Kind
from .channels import BACK_SECONDS, CONNECT_SECONDS, Channels
from .clocks import ROUNDS, Alignment, Reading, best, read_once
from .front import TaskInfo, TaskUnavailableError, ask_task
from .homes import Homes, State, asks_for_a_task
from .straight import REACH_SECONDS, Plan, Run, Straight
from .traces import merge, read_traces

StateKey = tuple[str, str, str]  # a task, a container and a name in it
_PROCESS = "client"  # as timelines call this one


def connect(target: str, timeout: float | None = None) -> Client:
    """Connect to the task at ``grpc://host:port``, and wait for it for some seconds, by default 30.

    Raises:
        ValueError: the target can't be read.
        TaskFailedError: no task answers there.
        ConnectionError: the task has another token.
    """
    address = target.removeprefix("grpc://").rstrip("/")
    host, _ = split_address(address)
    try:
        tls = tls_from_environment()
        info = ask_task(address, None, CONNECT_SECONDS if timeout is None else timeout, tls)
    except TaskUnavailableError as error:
        raise task_unavailable(target, error) from None
    return Client(info, job_token(is_loopback=is_loopback(host)), tls)


class Client:
    """A session's connections to its master.

    Args:
        info: what the master says of itself.
        token: that of the job.
        tls: with which this process proves who it is.

    Concurrent steps have a connection each; connections are kept for the next ones.

    Attributes:
        end: closes the connections, and does not refer to the client.
        tasks_of_latest: how many tasks take part in the step that was prepared last.
        exact: have steps prepared with rewrites alone that keep the interpreter's bits.
        places: gives what tasks are to use for state in place of its own values: "device", "path", "container"
            and the like.
        acts_for_python: use queues as plain Python has used them, so that one which was lost with its task stays lost.
    """

    def __init__(self, info: TaskInfo, token: bytes, tls: TLS | None = None) -> None:
        self.exact = False
        self.acts_for_python = False
        self.places: Callable[[Any], dict[str, Any]] = lambda resource: {}
        self.tasks_of_latest = 0
        self.identity = _new_identity()
        self._preparing = threading.Lock()
        self._numbers = itertools.count(1)
        # By graph and request, the numbers of programs whose preparing has taken too long.
        self._given_up: WeakKeyDictionary[Graph, dict[str, int]] = WeakKeyDictionary()
        self._sent = ""  # the digest of the graph that was sent last
        self._homes_of_state: tuple[int, Homes] | None = None  # as this start of the master has them
        self._paths: dict[Any, str] = {}  # of variables and generators in tasks
        self._homes: dict[StateKey, int] = {}  # as the master has reported, for one that is started again
        own = self.identity
        self._channels = Channels(info, lambda: own, token, tls)
        self._channels.give(self._channels.open(), True)
        self.straight = Straight(lambda task: Channels(task, _new_identity, token, tls, REACH_SECONDS, False))
        self.end = partial(_close_all, self._channels, self.straight)

    @property
    def master(self) -> TaskInfo:
        """The description of the master that came last."""
        return self._channels.info

    def reached(self) -> TaskInfo:
        """Return what the master says of itself, which may have been started again.

        Raises:
            TaskFailedError: it does not answer within a second.
        """
        return self._channels.reached()

    def look(self) -> TaskInfo:
        """Return what the master reports of itself now, or its last report."""
        return self._channels.look()

    def channel(self) -> AbstractContextManager[Channel]:
        """Return a connection to the master for one request; it is kept for the next one unless it breaks."""
        return self._channels.channel()

    def ask(self, kind: int, document: Any, arrays: Sequence[Any] = (), run: Run | None = None) -> Frame:
        """Send a request, and wait for the answer.

        Args:
            kind, document, arrays: of the frame.
            run: of a step in which something goes straight.

        Raises:
            Exception: what the master answers that has failed.
            TaskFailedError: the master is gone.
        """
        with self.channel() as channel:
            found = _exchanged(channel, kind, document, arrays, run)
        return self._checked(found)

    def ask_traced(
        self, recorder: Recorder, kind: int, document: Any, arrays: Sequence[Any] = (), run: Run | None = None
    ) -> Frame:
        """Have a step run, and record what tasks have done in it, also if it fails.

        Raises:
            Exception: as `ask`.
        """
        began, parts = time.perf_counter(), []
        try:
            with self.channel() as channel:
                before = self._read_clock(channel)
                found = _exchanged(channel, kind, {**document, "trace": True}, arrays, run)
                parts = read_traces(found.document().get("trace", ()), found.arrays, self.master.name)
                if parts:
                    merge(recorder, parts, Alignment(before, self._read_clock(channel)), time.perf_counter())
            return self._checked(found)
        finally:
            details = {"master": self.master.name, "tasks": ", ".join(part.task for part in parts)}
            recorder.span((_PROCESS, here("steps").stream), "step", began, time.perf_counter(), details)

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
        """Return an answer, unless it is an error or a refusal, which is raised."""
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
        document: dict[str, Any] = {
            "targets": [_named(target) for target in targets],
            "feeds": [_named(feed) for feed in feeds],
            "shapes": shapes,
            "budget": memory_budget(),
            "turned_off": sorted(turned_off()),
            "exact": self.exact,
            "lossy": [list(pair) for pair in lossy],
        }
        began = time.perf_counter()
        request = json.dumps(document)
        with self._preparing:
            given_up = self._given_up.setdefault(graph, {})
            document["program"] = given_up.pop(request, None) or next(self._numbers)
        try:
            described = self.prepare(graph, document)
        except DeadlineExceededError:
            # Tasks go on with it: the same request takes it up, and does not begin again.
            given_up[request] = document["program"]
            raise
        if active.recorder is not None:
            details = {"targets": ", ".join([target.name for target in targets]), "tasks": self.tasks_of_latest}
            active.recorder.span((_PROCESS, here("prepare").stream), "prepare", began, time.perf_counter(), details)
        fetched = [target.spec for target in targets if not isinstance(target, Operation)]
        return RemoteProgram(self, graph, document, described, fetched)

    def prepare(self, graph: Graph, document: dict[str, Any]) -> dict[str, Any]:
        """Have a step prepared, or prepared again by a master that does not have it any more.

        Returns:
            The master's description of the step.

        Raises:
            Exception: why it can't be.
        """
        with self._preparing:
            described = describe_for_tasks(graph)
            self._place(described[2])
            held = [resource for resource in described[2] if asks_for_a_task(resource)]
            homes = self._checked_homes(held) if held else None
            self._describe_state(described)
        with self.channel() as channel:
            answer = self._prepared(channel, described, document)
        found = self._checked(answer).document()
        with self._preparing:
            known = set(self._homes)
            self._homes.update({(task, container, path): home for task, container, path, home in found["homes"]})
            if homes is not None:
                self._settle(homes, held, self._homes.keys() - known)
        self.tasks_of_latest = len(found["tasks"])
        return found

    def _checked_homes(self, held: Sequence[State]) -> Homes:
        """Return where the state of the tasks is; state that belongs to another cluster is refused.

        Raises:
            ValueError: some does.
        """
        homes = self._known_homes()
        for resource in held:
            homes.check(resource)
        return homes

    def _known_homes(self) -> Homes:
        """Return the tasks of the cluster, as this start of the master has them."""
        known = self._homes_of_state
        if known is None or known[0] != self.master.incarnation:
            addresses = self.ask(Kind.STATUS, {}).document().get("tasks", {})
            known = self._homes_of_state = self.master.incarnation, Homes(addresses, _connect_back)
        return known[1]

    def place(self, resources: Sequence[Any]) -> None:
        """Choose the places of the state that has none: shards are on the ps tasks in turn.

        Raises:
            TaskFailedError: the master, which has the names of the tasks, is gone.
        """
        with self._preparing:
            self._place(resources)

    def _place(self, resources: Sequence[Any]) -> None:
        spread_shards(resources, self._known_homes().tasks_of("ps") if has_open_shards(resources) else ())

    def _settle(self, homes: Homes, held: Sequence[State], found: set[StateKey]) -> None:
        """Note that tasks hold, from now on, the state that the step has made there.

        Args:
            homes: the tasks.
            held: the state.
            found: the names of what this session has not used before. Of a queue that an earlier session has lost it is
                the new one.
        """
        made = {(container, path): (task, home) for (task, container, path), home in self._homes.items()}
        for resource in held:
            home = resource.home
            if self.places(resource):
                continue
            if home is None:
                container, path = name_of_container(resource), self._path_of(resource)
                if (container, path) in made:
                    homes.settle(resource, container, path, *made[container, path])
            elif not isinstance(resource, Variable) and (home.task, home.container, home.path) in found:
                homes.settle(
                    resource, home.container, home.path, home.task, self._homes[home.task, home.container, home.path]
                )

    def _prepared(self, channel: Channel, described: tuple[Any, list[Any], Any], document: dict[str, Any]) -> Frame:
        """Return the answer of the master, which other threads do not wait for: tasks of the step may be absent."""
        digest = _digest_of(*described[:2])
        asked = {**document, "graph": digest, "timeout": seconds_left()}
        self._send_graph(channel, described, digest)
        channel.send(Kind.PREPARE, asked)
        answer = channel.receive()
        if answer.kind == Kind.UNKNOWN:  # it is another start, has lost this client, or has not read the graph yet
            self._send_graph(channel, described, digest, again=True)
            channel.send(Kind.PREPARE, asked)
            answer = channel.receive()
        return answer

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
                if isinstance(resource, Variable) or self.acts_for_python:
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

    def _send_graph(
        self, channel: Channel, described: tuple[Any, list[Any], Any], digest: str, again: bool = False
    ) -> None:
        """Send a graph's document and arrays, if it is not the one that was sent last."""
        with self._preparing:
            if digest == self._sent and not again:
                return
            found: list[Any] = []
            homes = [[*key, incarnation] for key, incarnation in self._homes.items()]
            written = [encode_value(array, found) for array in described[1]]
            graph = {"graph": described[0], "digest": digest, "arrays": written, "homes": homes}
            channel.send(Kind.GRAPH, graph, found)
            self._sent = digest

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
        self.end()


def _close_all(channels: Channels, straight: Straight) -> None:
    channels.close()
    straight.close()


def _connect_back(address: str) -> Client:
    """Connect to a task that was there before, for what plain Python does with the state that it holds."""
    client = connect(f"grpc://{address}", BACK_SECONDS)
    client.acts_for_python = True
    return client


def _digest_of(described: dict[str, Any], arrays: Sequence[Any]) -> str:
    """Return the digest of a graph's document, of its constants, and of where its state is."""
    state = [[each["container"], each["path"], each["device"]] for each in described["resources"]]
    found = hashlib.sha256(json.dumps([described["blocks"], state]).encode())
    values = {each.get("value") for each in described["resources"]}  # of variables: first values, no constants
    for number, array in enumerate(arrays):
        if number not in values:
            value = np.ascontiguousarray(array)
            found.update(repr(value.tolist()).encode() if value.dtype.kind in "OT" else value.view("uint8").data)
    return found.hexdigest()


def _new_identity() -> Identity:
    return Identity(f"client {socket.gethostname()}:{os.getpid()}", secrets.randbits(63))


def _exchanged(channel: Channel, kind: int, document: Any, arrays: Sequence[Any], run: Run | None) -> Frame:
    """Send a request to the master, and to tasks what is fed straight; return the answer of the master."""
    channel.send(kind, document, arrays)
    if run is not None:
        run.feed(channel)
    return channel.receive()


class RemoteProgram:
    """A step that the cluster runs: called with the values of its feeds, it gives what is fetched.

    Args:
        client: the connection to the cluster.
        graph: of the step.
        document: which asks for it.
        described: what the master says of it.
        specs: of what is fetched.

    Attributes:
        statistics: how often it was run.
    """

    def __init__(
        self, client: Client, graph: Graph, document: dict[str, Any], described: dict[str, Any], specs: Sequence[Spec]
    ) -> None:
        self.statistics = Statistics()
        self._client = client
        self._graph = graph
        self._document = document
        self._specs = specs
        self._plan = Plan(described["straight"], specs)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step.

        Raises:
            Exception: what an operation raised, with the place where.
            TaskFailedError: a task that the step needs is gone.
            DeadlineExceededError: the thread's deadline has passed.
        """
        self.statistics.start()
        found = self._run(values)
        if found is None:  # nothing has begun
            described = self._client.prepare(self._graph, self._document)
            self._plan = Plan(described["straight"], self._specs)
            found = self._run(values)
        if found is None:
            raise task_failed(self._client.master.name, "it has lost a step that was just prepared")
        self._plan.note(found)
        return tuple(found)

    def _run(self, values: Sequence[Any]) -> list[Any] | None:
        """Run the step; return None if the master has lost it."""
        run = self._client.straight.run(self._plan, values)
        is_whole = False
        try:
            arrays: list[Any] = []
            straight = () if run is None else run.feeds
            feeds = [None if k in straight else encode_value(value, arrays) for k, value in enumerate(values)]
            document = {"program": self._document["program"], "feeds": feeds, "timeout": seconds_left()}
            if run is not None:
                document["straight"] = run.document
            recorder = active.recorder
            ask = self._client.ask if recorder is None else partial(self._client.ask_traced, recorder)
            answer = ask(Kind.RUN, document, arrays, run)
            if answer.kind == Kind.UNKNOWN:
                return None
            if run is None:
                return [decode_value(description, answer.arrays) for description in answer.document()["values"]]
            found = run.take(answer)
            is_whole = True
            return found
        finally:
            if run is not None:
                run.end(is_whole)


def _named(target: Symbol | Operation) -> list[int]:
    """Return an operation of the graph by its place, with the number of its output."""
    if isinstance(target, Operation):
        return [target.index]
    return [target.operation.index, target.index]
