"""Traced steps: every kernel, iteration, wait and failure is in the timeline, and values are the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.timelines import Timeline, read_timeline
from shared.waiting import Waiting, wait_until

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Symbol, Tensor, eagerly
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x() -> Symbol:
    return ab.placeholder((None, 4), "float32", "x")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


VALUE = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


def traced(path: Path, fetches: Any, feeds: Any = None) -> Timeline:
    ab.Session().run(fetches, feeds, trace=path)
    return read_timeline(path)


def test_a_kernel_tells_its_operation_shapes_and_line(x: Symbol, path: Path):
    y = ops.matmul(x, np.ones((4, 3), np.float32))
    [kernel] = [each for each in traced(path, y, {x: VALUE}).slices if each.is_kernel]
    assert (kernel.device, kernel.stream, kernel.name) == ("cpu:0", "compute", "matmul")
    assert kernel.args["operation"] == symbol_of(y).operation.name
    assert kernel.args["inputs"] == "float32[2,4], float32[4,3]"
    assert kernel.args["outputs"] == "float32[2,3]"
    assert kernel.args["line"] == str(symbol_of(y).operation.location)
    assert "test_tracing_steps.py:" in kernel.args["line"]
    assert kernel.parent is not None
    assert kernel.parent.name == "step"
    assert kernel.parent.args["targets"] == symbol_of(y).name


def loop(x: Tensor, count: Any = 3) -> Tensor:
    weight = ab.Variable(np.eye(4, dtype=np.float32) * 0.5, name="weight")

    def outer(i: Tensor, value: Tensor) -> Any:
        inner = lambda j, v: (j + 1, ops.tanh(ops.matmul(v, weight)) * 2 + 1)  # noqa: E731
        _, value = ab.while_loop(lambda j, _: j < 2, inner, (0, value), name="inner")
        return i + 1, value

    return ab.while_loop(lambda i, _: i < count, outer, (0, x), name="outer")[1]


@pytest.mark.usefixtures("loops_stay")
def test_iterations_nest_and_fused_kernels_stay_fused(x: Symbol, path: Path):
    y = loop(x)
    session = ab.Session()
    session.run(y, {x: VALUE}, trace=path)
    found = read_timeline(path)
    products = [each for each in found.slices if each.name == "matmul"]
    assert len(products) == 6
    places: list[list[str]] = []
    for each in products:
        names: list[str] = []
        parent = each.parent
        while parent is not None:
            names.append(parent.name)
            parent = parent.parent
        places.append(names)
    assert places == [
        [f"iteration {j}", "inner/while", f"iteration {i}", "outer/while", "step"] for i in range(3) for j in range(2)
    ]
    if "kernel(" in session.program(y, [x]).source:
        assert found.kernels().count("fused (tanh, multiply, add)") == 6
        assert "tanh" not in found.kernels()


def kernels_of(source: str) -> list[str]:
    """The lines of a program that compute, without clocks and what they name."""
    return [line.strip() for line in source.splitlines() if "began" not in line and "while " not in line]


def test_without_a_trace_a_program_has_no_clocks_and_the_traced_one_has_the_same_kernels(x: Symbol):
    y = loop(x)
    gradient = ab.gradients(ops.sum(y), [x])[0]
    plain = Program(x.graph, [symbol_of(y), gradient], [x])
    timed = Program(x.graph, [symbol_of(y), gradient], [x], timed=True)
    assert "now()" not in plain.source
    assert "timed" not in plain.source
    assert plain.source.count("kernel") == timed.source.count("kernel")
    with ab.trace():
        plain(VALUE)
    assert "now()" not in plain.source


def test_every_computing_operation_of_the_program_is_a_kernel(x: Symbol, path: Path):
    total = ab.Variable(np.zeros(4, np.float32), name="total")
    y = ops.cumsum(ops.sort(x, axis=1), axis=0)
    update = total.assign_add(ops.sum(y, axis=0))
    chosen = ab.cond(ops.sum(x) > 1, lambda: ops.flip(y), lambda: ops.sort(y, axis=0))
    found = traced(path, [chosen, update], {x: VALUE})
    assert {"sort", symbol_of(y).operation.type, "flip", "assign"} <= set(found.kernels())
    flip = found.named("flip")[0]
    assert flip.parent is not None
    assert flip.parent.args["type"] in {"cond", "branch"}


@pytest.mark.parametrize("exact", [False, True])
def test_values_are_the_same_bits(x: Symbol, exact: bool):
    y = loop(x) + ab.random.normal((2, 4), seed=7)
    gradient = ab.gradients(ops.sum(ops.exp(y)), [x])[0]
    second = ab.gradients(ops.sum(gradient * gradient), [x])[0]
    program = Program(x.graph, [symbol_of(y), gradient, second], [x], exact=exact)
    expected = program(VALUE)
    with ab.trace():
        found = program(VALUE)
    for one, other in zip(expected, found, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.usefixtures("loops_stay")
def test_saved_bytes_are_counted(x: Symbol, path: Path):
    gradient = ab.gradients(ops.sum(loop(x)), [x])[0]
    session = ab.Session()
    session.run(gradient, {x: VALUE})
    expected = session.statistics().saved_bytes
    session.run(gradient, {x: VALUE}, trace=path)
    statistics = session.statistics()
    assert (statistics.runs, statistics.saved_bytes, statistics.total_saved_bytes) == (2, expected, 2 * expected)
    values = [
        value for device, name, value in read_timeline(path).counters if (device, name) == ("cpu:0", "saved bytes")
    ]
    assert expected > 0
    assert max(values) == expected
    assert values[-1] == 0


@pytest.mark.usefixtures("loops_stay")
def test_statistics_count_guarded_runs_too(x: Symbol):
    gradient = ab.gradients(ops.sum(loop(x)), [x])[0]
    session = ab.Session()
    with ab.debugging.check_numerics():
        session.run(gradient, {x: VALUE})
    assert session.statistics().saved_bytes > 0


def test_a_failing_step_leaves_a_timeline_with_the_failure(path: Path):
    table, n = ab.placeholder((None,), "float32", "table"), ab.placeholder((), "int32", "n")
    body = lambda i, total: (i + 1, total + ops.take(table, i))  # noqa: E731
    _, total = ab.while_loop(lambda i, _: i < n, body, (0, 0.0), name="reading")
    session = ab.Session()
    with pytest.raises(IndexError):
        session.run(total, {table: np.ones(2), n: 5}, trace=path)
    found = read_timeline(path)
    [failed] = [each for each in found.slices if each.name == "take (failed)"]
    names = []
    parent = failed.parent
    while parent is not None:
        names.append(parent.name)
        parent = parent.parent
    assert names == ["reading/while: iteration (failed)", "reading/while (failed)", "step"]
    assert len(found.named("take")) == 2
    assert any("iteration 2 of 'reading/while'" in instant["error"] for instant in found.instants)
    assert [instant["name"] for instant in found.instants] == ["failed", "the traced block failed"]
    assert all("IndexError" in instant["error"] for instant in found.instants)
    with ab.trace():  # nothing of the failure is left over
        assert session.run(total, {table: np.ones(7), n: 5}) == 5


def test_the_nan_guard_works_in_a_traced_step(x: Symbol, path: Path):
    y = ops.log(x) + 1
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match="gives an infinity"):
        ab.Session().run(y, {x: np.zeros((1, 4))}, trace=path)
    found = read_timeline(path)
    assert found.kernels() == ["log"]
    assert any("FloatingPointError" in instant["error"] for instant in found.instants)


def test_a_dequeue_that_waits_shows_as_a_wait(path: Path):
    queue = ab.queues.FIFOQueue(2, "int32", ())
    number = ab.placeholder((), "int32")
    put, taken = queue.enqueue(number), queue.dequeue()
    session = ab.Session(number.graph)
    with ab.trace(path):
        session.run(put, {number: 1})
        assert session.run(taken) == 1
        waiting = Waiting(lambda: session.run(taken))
        wait_until(queue, pending_dequeues=1)
        session.run(put, {number: 2})
        assert waiting.result() == 2
    found = read_timeline(path)
    [wait] = [each for each in found.slices if each.stream.startswith("waits")]
    assert wait.name == "dequeue of 1 element from queue 'fifo_queue'"
    assert "which is open and holds 0 (capacity 2)" in wait.args["what"]
    assert wait.stream == f"waits ({waiting.thread.name})"
    blocked = found.named("queue_dequeue")[1]
    assert blocked.stream == f"compute ({waiting.thread.name})"
    assert blocked.start <= wait.start <= wait.end <= blocked.end


def test_a_wait_that_ends_by_its_deadline_shows(path: Path):
    taken = ab.queues.FIFOQueue(2, "int32", ()).dequeue()
    with pytest.raises(ab.errors.DeadlineExceededError):
        ab.Session().run(taken, timeout=0.001, trace=path)
    found = read_timeline(path)
    [wait] = [each for each in found.slices if each.stream == "waits"]
    [failed] = found.named("fifo_queue/dequeue (failed)")
    assert failed.start <= wait.start < wait.end <= failed.end


def test_each_thread_has_a_lane_of_its_own(x: Symbol, path: Path):
    y = loop(x)
    session = ab.Session(symbol_of(x).graph)
    session.run(y, {x: VALUE})
    with ab.trace(path):
        workers = [Waiting(lambda: [session.run(y, {x: VALUE}) for _ in range(5)]) for _ in range(3)]
        session.run(y, {x: VALUE})
        for worker in workers:
            worker.result()
    found = read_timeline(path)
    expected = {"compute", *[f"compute ({worker.thread.name})" for worker in workers]}
    assert {each.stream for each in found.named("matmul")} == expected
    assert len(found.named("step")) == 16
    assert all(each.parent is None for each in found.named("step"))


def test_functions_recursion_and_partial_runs(path: Path):
    @ab.function
    def factorial(n: Tensor) -> Tensor:
        return ab.cond(n < 1, lambda: 1, lambda: n * factorial(n - 1))

    with ab.trace(path):
        with eagerly():
            assert int(factorial(np.int32(4))) == 24
        a = ab.placeholder((), "float32", "a")
        session = ab.Session()
        step = session.partial_run_setup([a * 2], [a])
        assert session.partial_run(step, [ab.get_default_graph().operations[-1].outputs[0]], {a: 3.0}) == [6]
    found = read_timeline(path)
    assert found.kernels().count("less") == 5
    assert len(found.named("step")) == 2
