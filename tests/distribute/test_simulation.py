"""The protocol of tasks under faults that are drawn from seeds, in a simulated network: what always has to hold.

Each step ends in time; what it writes counts once or never; nothing of it is left on a task; a seed replays exactly.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.prepared_once import placed_once, prepared_once
from shared.simulator import ClientNode, Network, Pipe, SimulatedSystem, TaskNode
from shared.tasks import PS, TOKEN, WORKER

import anabranch as ab
from anabranch.distribute.cluster import ClusterSpec
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.tasks import clocks, traces
from anabranch.distribute.transport import values
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.connections import Connection
from anabranch.distribute.transport.failures import read_error
from anabranch.distribute.transport.wire import Kind
from anabranch.engine.tracing.recorder import Flow, Recorder, Slice

ADDRESSES = {PS: "localhost:2201", WORKER: "localhost:2202"}
CLUSTER = ClusterSpec({"ps": [ADDRESSES[PS]], "worker": [ADDRESSES[WORKER]]})
CONFIG = ServerConfig(connect_timeout=10.0, plane="tcp")
PATIENT = 60.0  # simulated seconds, in which each request is answered or its connection over
FEW, CHUNK = 150, 500
SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000"))  # of the slow tests; `make sweep` asks for more
Request = tuple[int, Any, list[Any]]


@pytest.fixture(scope="module", autouse=True)
def _placed_once() -> Generator[None]:
    with placed_once():
        yield


@pytest.fixture(scope="module")
def requests() -> dict[int, Request]:
    """Return the requests of a session, by kind. Its step counts on a ps what a loop over both tasks has computed.

    Its feeds go to the ps, straight or by the master, and one of its fetches comes from there.
    """
    found: dict[int, Request] = {}
    send = Channel.send

    def taking_down(channel: Channel, kind: int, document: Any, arrays: Any = (), **more: Any) -> bool:
        found[kind] = (kind, document, [np.array(array) for array in arrays])
        return send(channel, kind, document, arrays, **more)

    with pytest.MonkeyPatch.context() as patch, ab.Graph().as_default() as graph:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        patch.setattr(values, "LARGE", 0)
        patch.setattr(Channel, "send", taking_down)

        def body(i: Any, h: Any) -> Any:
            with ab.device(PS):
                twice = h * 2.0
            with ab.device(WORKER):
                return i + 1, twice - h + 0.0

        one = ab.while_loop(lambda i, h: i < 3, body, (0, ab.constant(1.0)))[1]
        with ab.device(PS):
            x = ab.placeholder((2,), "float32", "x")
            counted = ab.Variable(0.0, name="counted").assign_add(one * ab.ops.mean(x))
            echo = x * 2.0
        with (
            ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps,
            ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0) as worker,
            ab.Session(graph, target=worker.target) as session,
        ):
            assert session.run([counted, echo], {x: [0.5, 1.5]})[0] == 1
    assert found[Kind.RUN][1]["straight"]["feeds"] == [0]
    return found


class Simulation:
    """A cluster, a client that runs steps one after the other, and faults."""

    def __init__(self, seed: int, requests: dict[int, Request]) -> None:
        self.network = Network(seed)
        self.requests = dict(requests)
        self.tasks = {name: self.started(name) for name in ADDRESSES}
        self.client = ClientNode(self.network, 0)
        self.client.connect(self.tasks[WORKER])
        self.data = ClientNode(self.network, 1)  # the client's way to the ps
        self.runs = 0
        self.is_prepared = False
        self.outcomes: list[Any] = []  # of each step the number that it read, an error's name, or None if that is open

    def started(self, name: str) -> TaskNode:
        return TaskNode(self.network, ADDRESSES[name], CLUSTER, name, CONFIG)

    def ask(self, *kinds: int) -> Any:
        """Send requests of which the last one is answered; gives the answer, or None if the connection is over."""
        connection, client = self.client.connection, self.client
        assert connection is not None
        if connection.is_closed:
            client.connect(self.tasks[WORKER])
            self.is_prepared = False
        before = len(client.answers)
        connection = client.connection
        assert connection is not None
        is_open = self.network.run(lambda: connection.is_open or len(client.answers) > before, PATIENT)
        if not is_open or not connection.is_open:
            connection.close("the client gives up")
            return None
        for kind in kinds:
            connection.send(*self.requests[kind])
        client.loop.wake()
        assert self.network.run(lambda: len(client.answers) > before, PATIENT), "a request was not answered in time"
        return client.answers[-1]

    def step(self) -> None:
        """Run a step, once it is prepared."""
        way = self.way()
        if self.client.connection is not None and (self.client.connection.is_closed or not self.is_prepared):
            answer = self.ask(Kind.GRAPH, Kind.PREPARE)
            self.is_prepared = answer is not None and answer.kind == Kind.PREPARED
            if not self.is_prepared:
                return
        self.requests[Kind.RUN] = self.run_request(way)
        if way is not None:
            kind, document, arrays = self.requests[Kind.FED]
            fed = (kind, {**document, "run": self.runs}, arrays)
            self.network.after(self.network.delay(), lambda: self.feed(way, fed))
        answer = self.ask(Kind.RUN)
        if answer is None or not self.is_fetched(answer, way):
            self.outcomes.append(None)
        elif answer.kind == Kind.RESULT:
            self.outcomes.append(float(answer.arrays[0]))
        else:
            assert answer.kind == Kind.ERROR, answer
            self.outcomes.append(type(read_error(answer.document()["error"])).__name__)
            if self.outcomes[-1] == "StateLostError":  # another session makes a new one
                assert self.client.connection is not None
                self.client.connection.close("the client begins anew")
        if way is not None and not isinstance(self.outcomes[-1], float):
            way.close("a step has failed")

    def way(self) -> Connection | None:
        """The connection by which the client feeds the ps in the next step; None if the master gets all."""
        known = self.data.connection
        if known is None or known.is_closed:
            self.data.connect(self.tasks[PS])
        known = self.data.connection
        assert known is not None
        self.network.run(lambda: known.is_open, 0.1)
        return known if known.is_open and self.network.random.random() < 0.7 else None

    def feed(self, way: Connection, fed: Request) -> None:
        way.send(*fed)  # nothing if the connection is over
        self.data.loop.wake()

    def run_request(self, way: Connection | None) -> Request:
        """The request for a step; what it feeds goes by the master if there is no way to the ps."""
        kind, document, _ = self.requests[Kind.RUN]
        document = {**document, "trace": self.draws_trace()}
        document.pop("straight", None)
        arrays = self.requests[Kind.FED][2]
        if way is None:
            return (kind, {**document, "feeds": [0]}, arrays)
        self.runs += 1
        straight = {"run": self.runs, "ways": {PS: self.data.identity.incarnation}, "feeds": [0]}
        return (kind, {**document, "feeds": [None], "straight": straight}, [])

    def is_fetched(self, answer: Any, way: Connection | None) -> bool:
        """Take what the ps has sent itself, and check it; gives False if the way there was cut before."""
        echo = answer.arrays[1:] if answer.kind == Kind.RESULT else []
        if answer.kind == Kind.RESULT and way is not None and answer.document()["straight"] == [[1, PS]]:
            found = self.data.answers
            assert self.network.run(lambda: bool(found) and (found[-1] is None or self.is_of_run(found[-1])), PATIENT)
            if found[-1] is None:
                return False
            echo = found[-1].arrays
        assert answer.kind != Kind.RESULT or np.array_equal(echo[0], [1.0, 3.0])
        return True

    def is_of_run(self, frame: Any) -> bool:
        return frame.kind == Kind.FETCHED and frame.document()["run"] == self.runs

    def draws_trace(self) -> bool:
        """Some steps are traced, which must change nothing."""
        return self.network.random.random() < 0.2

    def fault(self) -> None:
        """Let something happen, at a time that is drawn; it is mended later."""
        network = self.network
        name = network.random.choice(list(ADDRESSES))
        task = self.tasks[name]
        when, lasts = network.random.random() * 0.3, network.random.choice([0.5, 5.0, 15.0])
        match network.random.randrange(5):
            case 0:
                network.after(when, task.stop)
                network.after(when + lasts, task.go_on)
            case 1:
                pair = frozenset(network.random.sample([*ADDRESSES.values(), self.client.name, self.data.name], 2))
                network.after(when, lambda: network.cut.add(pair))
                network.after(when + lasts, lambda: network.cut.discard(pair))
            case 2:
                network.after(when, lambda: self.restart(name))
            case 3:
                pipes = [pipe for pipe in task.pipes if not pipe.is_closed]
                if pipes:
                    pipe = network.random.choice(pipes)
                    network.after(when, pipe.lose)
            case 4:
                rate, jump = network.random.choice([0.7, 1.5]), network.random.choice([0.0, 3600.0])
                network.after(when, lambda: task.skew(rate, jump))
                network.after(when + lasts, lambda: task.skew(1.0))

    def restart(self, name: str) -> None:
        self.tasks[name].kill()
        self.tasks[name] = self.started(name)


def check(seed: int, requests: dict[int, Request]) -> list[Any]:
    """Simulate with a seed; gives what became of the steps."""
    made = Simulation(seed, requests)
    network = made.network
    incarnation, last, failed, started_at = made.tasks[PS].task.identity.incarnation, 0.0, 0, network.now
    for _ in range(8):
        if network.random.random() < 0.5:
            made.fault()
        known = len(made.outcomes)
        made.step()
        for outcome in made.outcomes[known:]:
            if isinstance(outcome, float):
                # What failed counts once or never; what succeeded counts once; a new start begins again.
                is_later = last + 1 <= outcome <= last + 1 + failed
                if not is_later:
                    assert made.tasks[PS].task.identity.incarnation != incarnation, made.outcomes
                    assert 1 <= outcome <= 1 + failed, made.outcomes
                    incarnation = made.tasks[PS].task.identity.incarnation
                last, failed = outcome, 0
            else:
                assert outcome in (None, "TaskFailedError", "StateLostError"), made.outcomes
                failed += 1
    network.run(lambda: False, 40.0)  # everything is mended, and heartbeats have found who was gone
    made.step()
    assert network.now - started_at < 8 * 3 * PATIENT + 200
    network.run(lambda: False, 20.0)
    for task in made.tasks.values():
        assert (task.held["running"], task.held["early"], task.held["fed"]) == (0, 0, 0), made.outcomes
        assert task.task.statistics()["steps"] == 0
        assert not len(task.task._master._clocks) + len(task.task._master._pairs) + task.held["measuring"]
        for connection in task.task.connections:
            assert connection.queued == 0
    return made.outcomes


def test_without_faults_all_steps_succeed(requests: dict[int, Request]):
    made = Simulation(1, requests)
    for _ in range(5):
        made.step()
    assert made.outcomes == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_step_is_prepared_again_when_a_task_was_lost_while_it_was_placed(
    requests: dict[int, Request], monkeypatch: pytest.MonkeyPatch
):
    """A client that has given up waiting takes the same program up again, which its master has placed meanwhile."""
    compiles, begun = SimulatedSystem.compile, 0

    def compiling(self: SimulatedSystem, work: Any) -> None:
        nonlocal begun
        begun += self._node is made.tasks[WORKER]
        if begun != 3 or self._node is not made.tasks[WORKER]:
            compiles(self, work)
            return
        for pipe in made.tasks[PS].pipes:  # its graph and what that asks for are there, and the step is placed now
            pipe.lose()
        self._node.later(5.0, lambda: compiles(self, work))

    monkeypatch.setattr(SimulatedSystem, "compile", compiling)
    made = Simulation(1, requests)
    assert made.ask(Kind.GRAPH, Kind.PREPARE).kind == Kind.ERROR
    made.network.run(lambda: False, 20.0)
    assert made.ask(Kind.PREPARE).kind == Kind.PREPARED
    made.is_prepared = True
    made.step()
    assert made.outcomes == [1.0]


def test_a_pipe_that_is_full_is_no_slower_than_its_pieces():
    for seed in range(20):
        network = Network(seed)
        one, other = ClientNode(network, 0), ClientNode(network, 1)
        near, far = one.pipe_to(other)
        left, came = 300_000, 0

        def move(near: Pipe = near, far: Pipe = far) -> bool:
            nonlocal left, came
            came += sum(map(len, far.incoming))
            far.incoming.clear()
            with contextlib.suppress(BlockingIOError):
                while left:
                    left -= near.send(bytes(left))
            return came == 300_000

        assert network.run(move, 20.0), (seed, came)


def test_a_seed_replays_exactly_with_programs_that_are_prepared_once_or_each_time(requests: dict[int, Request]):
    expected = [check(seed, requests) for seed in (3, 4)]
    with prepared_once():
        for _ in range(2):
            assert [check(seed, requests) for seed in (3, 4)] == expected


def check_all(seeds: range, requests: dict[int, Request]) -> None:
    outcomes: list[Any] = []
    with prepared_once():
        for seed in seeds:
            try:
                outcomes += check(seed, requests)
            except BaseException as error:
                error.add_note(f"The simulation with seed {seed} has failed; check({seed}, requests) replays it.")
                raise
    assert any(isinstance(outcome, float) for outcome in outcomes)
    assert any(outcome == "TaskFailedError" for outcome in outcomes)


def test_what_always_holds(requests: dict[int, Request]):
    check_all(range(FEW), requests)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(-(-SIMULATIONS // CHUNK)))
def test_what_always_holds_in_many_simulations(chunk: int, requests: dict[int, Request]):
    check_all(range(CHUNK * chunk, CHUNK * chunk + CHUNK), requests)


def true_time(node: TaskNode, reading: float) -> float:
    """The time of the network at which a clock, which goes as it does now, showed something."""
    then, was = node._read_at
    return then + (reading - was) / node.rate


@pytest.mark.parametrize("rates", [(1.0, 1.0), (1.0001, 0.9999), (1.5, 0.7)])
def test_traces_are_aligned_within_the_error_that_they_tell(requests: dict[int, Request], rates: Any):
    for seed in range(3):
        made = Simulation(seed, requests)
        for task, rate in zip(made.tasks.values(), rates, strict=True):
            task.skew(rate)
        made.step()
        kind, document, arrays = made.run_request(None)
        made.requests[Kind.RUN] = (kind, {**document, "trace": True}, arrays)
        answer = made.ask(Kind.RUN)
        parts = {part.task: part for part in traces.read_traces(answer.document()["trace"], answer.arrays, WORKER)}
        assert parts.keys() == made.tasks.keys()
        worker, ps = (made.tasks[name] for name in (WORKER, PS))
        part = parts[PS]
        assert 0 < part.clocks.error < 1.0
        slices = [event for event in part.trace.events if isinstance(event, Slice)]
        assert {event.name for event in slices} >= {"step", "send", "recv"}
        for time in [time for event in slices for time in (event.start, event.end)]:
            wrong = true_time(worker, part.clocks.own(time)) - true_time(ps, time)
            assert abs(wrong) <= part.clocks.error / worker.rate + 1e-6
        recorder = Recorder()
        traces.merge(recorder, list(parts.values()), clocks.same_clock(), 0.0)
        flows = [event for event in recorder.events if isinstance(event, Flow)]
        assert len(flows) >= 6
        assert all(flow.sent <= flow.received for flow in flows)
