"""Traces of steps over tasks: one timeline with a process a task, arrows, waits with names, and clocks."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER, Running
from shared.timelines import Timeline, read_text, read_timeline

import anabranch as ab
from anabranch.distribute.tasks import clocks, traces
from anabranch.distribute.transport.wire import FrameError
from anabranch.engine.machine.part import Crossing
from anabranch.engine.tracing.recorder import Counter, Flow, Instant, Lane, Recorder, Slice
from anabranch.engine.tracing.timeline import timeline

pytestmark = pytest.mark.xdist_group("tasks")
COUNT = 3


def loop(x: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            z = ab.ops.tanh(h)
        with ab.device(WORKER):
            return i + 1, z + 1.0

    return ab.while_loop(lambda i, _: i < COUNT, body, (0, x), name="loop")[1]


def around(found: Timeline, device: str, name: str) -> list[Any]:
    return [each for each in found.slices if (each.device, each.name) == (device, name)]


def test_a_trace_has_all_tasks_with_arrows_waits_and_clocks(running: Running, graph: ab.Graph, tmp_path: Path):
    x = ab.placeholder((3,), "float32", "x")
    last, file = loop(x), tmp_path / "step.json"
    with ab.Session(graph, target=running[WORKER].target) as session:
        expected = session.run(last, {x: [1.0, 2.0, 3.0]})
        for _ in range(2):
            value = session.run(last, {x: [1.0, 2.0, 3.0]}, trace=file)
            np.testing.assert_array_equal(value, expected)
            found = read_timeline(file)
            assert {each.device for each in found.slices} == {"client", PS, WORKER}
            assert len(around(found, PS, "tanh")) == COUNT
            assert "test_traces_over_tasks.py:" in around(found, PS, "tanh")[0].args["line"]
            assert len(around(found, WORKER, "send")) == len(around(found, PS, "recv")) > COUNT
            assert not found.arrows_left_out
            assert len(found.arrows) == len(found.named("send"))
            assert {(source.device, target.device) for source, target in found.arrows} == {(PS, WORKER), (WORKER, PS)}
            for source, target in found.arrows:
                assert source.start <= target.start
                assert (source.args["to"], source.args["operation"]) == (target.device, target.args["operation"])
            waits = [each for each in found.slices if each.stream == "waits" and each.device == WORKER]
            assert "wait for loop/while/body/tanh" in {each.name for each in waits}
            assert {each.args["from"] for each in waits} == {PS}
            (step,) = around(found, "client", "step")
            assert step.args["master"] == WORKER
            for task in (PS, WORKER):
                (part,) = around(found, task, "step")
                error, ahead = (found.clocks[task][what] for what in ("error", "ahead"))
                assert error is not None
                assert 0 < error < 1e6
                assert step.start - 1000 * error <= part.start < part.end <= step.end + 1000 * error
                if sys.platform == "linux":  # whose processes have one clock
                    assert abs(ahead or 0.0) <= error
    assert "compile" not in {each.name for each in found.slices}, "the second trace runs what the first one has printed"


def stalled(session: ab.Session, fetch: Any) -> tuple[Timeline, str]:
    """Return the trace and error of a step whose time is over when all tasks wait: on a slow machine not the first."""
    for seconds in (0.2, 1.0, 5.0, 25.0):
        with ab.trace() as recorded, pytest.raises(ab.errors.DeadlineExceededError) as error:
            session.run(fetch, timeout=seconds)
        found = read_text(timeline(recorded.events))
        if {each.device for each in found.slices if each.stream == "waits"} >= {PS, WORKER}:
            break
    return found, str(error.value)


def test_what_waits_for_a_queue_and_what_fails_is_in_the_trace(running: Running, graph: ab.Graph):
    with ab.device(PS):
        queue = ab.queues.FIFOQueue(3, "float32", shapes=(), name="never filled")
        y = queue.dequeue() + 1.0
        position = ab.placeholder((), "int32", "position")
        wrong = ab.ops.take(ab.constant([1.0, 2.0]), position)
    with ab.device(WORKER):
        z, needs = y * 2.0, wrong + 1.0
    with ab.Session(graph, target=running[WORKER].target) as session:
        found, message = stalled(session, z)
        assert "'never filled'" in message
        (wait,) = [each for each in found.slices if each.stream == "waits" and each.device == PS]
        assert wait.name == "dequeue of 1 element from queue 'never filled'"
        (other,) = [each for each in found.slices if each.stream == "waits" and each.device == WORKER]
        assert other.name == "wait for other tasks"
        assert "never filled" not in other.args["what"]
        assert PS in other.args["what"]
        assert [each["name"] for each in found.instants] == ["aborted", "aborted"]
        with ab.trace() as recorded, pytest.raises(IndexError):
            session.run(needs, {position: 7})
        found = read_text(timeline(recorded.events))
        assert sorted((each["device"], each["name"]) for each in found.instants) == [
            (PS, "failed"),
            (WORKER, "aborted"),
        ]
        assert "index 7 is out of bounds" in next(each["error"] for each in found.instants if each["name"] == "failed")
        assert session.run(needs, {position: 1}) == 3


# --- without tasks --------------------------------------------------------------------------------------------------

LANE = Lane(PS, "compute")
EVENTS: list[Any] = [
    Slice(LANE, "matmul", 1.0, 2.0, {"line": "x.py:3", "count": 3}, True),
    Slice(Lane(PS, "waits"), "wait for ä", 1.0, 2.5, None, False),
    Flow("edge", LANE, 1.0, Lane(PS, "recv"), 2.0),
    Counter(PS, "bytes", 1.5, 12.0),
    Instant(LANE, "failed", 2.0, {"error": "E: text"}),
]
CROSSINGS = [Crossing("a [1] 0", True, (PS, "send", 1.5)), Crossing("b [2]", False, (PS, "recv", 1.75))]


def test_what_a_task_has_recorded_travels_whole():
    arrays: list[Any] = [np.zeros(3)]
    described = traces.encode_trace(EVENTS, CROSSINGS, arrays)
    found = traces.decode_trace(described, arrays)
    assert found == (EVENTS, CROSSINGS)
    assert traces.decode_trace(traces.encode_trace([], [], arrays), arrays) == ([], [])


def test_damaged_traces_are_read_or_refused():
    chosen, refused = random.Random(1), 0
    for _ in range(300):
        arrays: list[Any] = []
        described = traces.encode_trace(EVENTS, CROSSINGS, arrays)
        place = chosen.choice(list(described))
        odd = chosen.choice([None, -1, 7, 10**9, [], [[1]], [None], {}, "x"])
        if chosen.random() < 0.5:
            described[place] = odd
        else:
            array = chosen.choice(arrays)
            array.flat[chosen.randrange(array.size)] = chosen.choice([-5, 9, 1_000_000])
        if chosen.random() < 0.2:
            arrays[1][chosen.randrange(len(arrays[1]))] = math.nan
        try:
            traces.decode_trace(described, arrays)
        except FrameError:
            refused += 1
    assert 50 < refused < 300


def part_of(task: str, error: float, crossings: list[Crossing]) -> traces.Part:
    events: list[Any] = [
        Slice(Lane(task, stream), key, time, time + 0.01, None, True) for key, _, (_, stream, time) in crossings
    ]
    return traces.Part(task, clocks.Alignment(clocks.Reading(0.0, 0.0, error)), traces.TaskTrace(events, crossings))


@pytest.mark.parametrize("error", [0.2, 0.01])
def test_what_arrives_before_it_was_sent_moves_clocks_within_their_errors(error: float):
    there = [Crossing("a", True, (PS, "send", 1.0)), Crossing("b", False, (PS, "recv", 1.5))]
    here = [Crossing("a", False, (WORKER, "recv", 0.9)), Crossing("b", True, (WORKER, "send", 1.2))]
    recorder = Recorder()
    parts = [part_of(PS, error, there), part_of(WORKER, 0.0, here)]
    traces.merge(recorder, parts, clocks.same_clock(), 0.0)
    found = read_text(timeline(recorder.events))
    is_enough = error > 0.1
    assert (len(found.arrows), found.arrows_left_out) == ((2, 0) if is_enough else (1, 1))
    sent = next(event.start for event in recorder.events if isinstance(event, Slice) and event.name == "a")
    assert sent == pytest.approx(0.9 if is_enough else 0.99, abs=1e-6)
    assert found.clocks[PS]["error"] == pytest.approx(error * 1e6)
