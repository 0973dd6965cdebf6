"""Traces of machine steps: rows of devices, transfers with arrows, iterations, waits; the values are the same bits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.machines import as_asked, by_name, chain, fed, graph_on, idle_step, run
from shared.placed_steps import Assigned
from shared.timelines import ReadSlice, Timeline, read_text, read_timeline
from shared.waiting import Waiting, wait_until

import anabranch as ab
from anabranch import ops
from anabranch.engine.common.deadlines import deadline
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.tracing import TracedStep, TracedStreamEngine
from anabranch.engine.queues import DeadlineExceededError, FIFOQueue
from anabranch.engine.tracing.timeline import timeline

LATENCY = 1e-3  # of a copy from or to a device in virtual time
VALUE = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


graph = graph_on(cpu=2)
x = fed("float32", "x", (4, 4))


def machine(fetches: Any, feeds: Sequence[Symbol] = (), assign: Any = None, **options: Any) -> MachineProgram:
    targets = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
    return MachineProgram(
        ab.get_default_graph(), targets, feeds, exact=True, assign=assign or by_name({"dequeue": "cpu:1"}), **options
    )


def traced(program: MachineProgram, values: Sequence[Any]) -> Timeline:
    """The timeline of one run, whose values are those of a run that is not traced."""
    expected = run(program, values)
    with ab.trace() as recorded:
        found = program(*values)
    for value, wanted in zip(found, expected, strict=True):
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
    return read_text(timeline(recorded.events))


def split_loop(x: Tensor, count: Any = 3, device: str = "cpu:1") -> Any:
    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device(device):
            y = ops.tanh(y @ y) * 0.5
        return i + 1, ops.cumsum(y, axis=0)

    return ab.while_loop(lambda i, _: i < count, body, (0, x), name="loop")


def names_around(each: ReadSlice) -> list[str]:
    found: list[str] = []
    while each.parent is not None:
        each = each.parent
        found.append(each.name)
    return found


def test_a_kernel_lies_on_its_device_and_tells_its_operations_shapes_and_line(x: Symbol):
    n = ab.placeholder((None,), "float32", "n")
    with ab.device("cpu:1"):
        y = ops.matmul(x, x)
    z = ops.cumsum(n)
    found = traced(machine([y, z], [x, n]), [VALUE, np.ones(3, np.float32)])
    (product,) = found.named("matmul")
    assert (product.device, product.stream, product.is_kernel) == ("cpu:1", "compute", True)
    assert product.args["operation"] == symbol_of(y).operation.name
    assert product.args["inputs"] == "float32[4,4]"
    assert product.args["outputs"] == "float32[4,4]"
    assert product.args["line"] == str(symbol_of(y).operation.location)
    assert "test_machine_tracing.py:" in product.args["line"]
    (total,) = found.named(symbol_of(z).operation.type)
    assert total.device == "cpu:0"
    assert total.args["outputs"] == "float32[3]"  # which the graph does not say
    (step,) = found.named("step")
    assert (step.device, step.stream, step.args["devices"]) == ("cpu:0", "scheduler", "cpu:0, cpu:1")
    assert step.start <= min(each.start for each in found.slices if each.is_kernel)
    assert step.end >= max(each.end for each in found.slices)


def test_a_cluster_is_one_slice_that_names_its_operations(x: Symbol):
    with ab.device("cpu:1"):
        y = ops.sort(ops.tanh(x @ x) + 1.0, axis=0)
    found = traced(machine(y, [x]), [VALUE])
    (cluster,) = [each for each in found.slices if each.name.startswith("cluster")]
    assert cluster.name == "cluster (matmul, tanh, add, sort)"
    assert cluster.args["operations"].split(", ")[0] == "matmul"
    assert len(cluster.args["operations"].split(", ")) == 4


def test_fused_kernels_stay_fused(x: Symbol):
    with ab.device("cpu:1"):
        y = ops.tanh(x * 2.0 + 1.0)
    program = MachineProgram(ab.get_default_graph(), [symbol_of(y)], [x], assign=as_asked())
    found = traced(program, [VALUE])
    if "kernel(" in program.source:
        assert "fused (multiply, add, tanh)" in found.kernels()
        assert "tanh" not in found.kernels()


@pytest.mark.parametrize("clusters", [False, True])
def test_every_transfer_is_a_send_and_a_receive_with_an_arrow(x: Symbol, clusters: bool):
    program = machine(split_loop(x), [x], clusters=clusters)
    found = traced(program, [VALUE])
    sends, receives = found.named("send"), found.named("recv")
    assert len(sends) == len(receives) == len(found.arrows) > 6
    assert not found.arrows_left_out
    assert {(a.device, a.stream, b.device, b.stream) for a, b in found.arrows} == {
        ("cpu:0", "send", "cpu:1", "recv"),
        ("cpu:1", "send", "cpu:0", "recv"),
    }
    for source, target in found.arrows:
        assert source.start <= target.start
        assert source.args["operation"] == target.args["operation"]
        assert (source.args["to"], target.args["from"]) == (target.device, source.device)
    sent = [each for each in sends if each.args["operation"].endswith("body/multiply")]
    assert len(sent) == 3


def test_iterations_are_spans_within_their_loops_on_each_device(x: Symbol):
    def outer(i: Tensor, y: Tensor) -> Any:
        inner = lambda j, v: (j + 1, on_other(v) + 1.0)  # noqa: E731
        return i + 1, ab.while_loop(lambda j, _: j < 2, inner, (0, y), name="inner")[1]

    def on_other(value: Tensor) -> Tensor:
        with ab.device("cpu:1"):
            return ops.tanh(value)

    y = ab.while_loop(lambda i, _: i < 2, outer, (0, x), name="outer")[1]
    found = traced(machine(y, [x], parallel_iterations=1), [VALUE])
    for device in ("cpu:0", "cpu:1"):
        spans = [each for each in found.slices if each.device == device and each.stream.startswith("iterations")]
        assert {each.stream for each in spans} == {"iterations"}  # one after the other
        names = [each.name for each in sorted(spans, key=lambda each: (each.start, -each.end))]
        inner = ["outer/while/body/inner/while", "iteration 0", "iteration 1", "iteration 2"]
        whole = ["outer/while", "iteration 0", *inner, "iteration 1", *inner, "iteration 2"]
        assert [name.rpartition("body/")[2] for name in names] == [name.rpartition("body/")[2] for name in whole]
        innermost = next(each for each in spans if len(names_around(each)) == 3)
        assert [name.rpartition("body/")[2] for name in names_around(innermost)] == [
            "inner/while",
            "iteration 0",
            "outer/while",
        ]
        assert innermost.args["loop"].endswith("inner/while")


def test_iterations_that_are_alive_at_once_lie_side_by_side(x: Symbol):
    queue = FIFOQueue(4, "float32", (4, 4))

    def body(i: Tensor, total: Tensor) -> Any:
        return i + 1, total + queue.dequeue()

    program = machine(ab.while_loop(lambda i, _: i < 3, body, (0, x)), [x])
    queue.put([np.stack([VALUE] * 3)], many=True)
    expected = program(VALUE)
    with ab.trace() as recorded:
        running = Waiting(lambda: program(VALUE))
        wait_until(queue, pending_dequeues=1)
        queue.put([np.stack([VALUE] * 3)], many=True)
        np.testing.assert_array_equal(running.result()[1], expected[1])
    found = read_text(timeline(recorded.events))
    rows = {each.stream.partition(" (")[0] for each in found.slices if each.stream.startswith("iterations")}
    assert len({each.stream for each in found.slices if each.stream.startswith("iterations")}) > 1, rows


def test_a_wait_for_a_queue_is_a_slice_beside_the_kernels(x: Symbol):
    queue = FIFOQueue(4, "float32", (4, 4), name="letters")
    program = machine([queue.dequeue(), ops.tanh(x)], [x])
    with ab.trace() as recorded:
        running = Waiting(lambda: program(VALUE))
        wait_until(queue, pending_dequeues=1)
        queue.put([VALUE], many=False)
        running.result()
    found = read_text(timeline(recorded.events))
    (wait,) = [each for each in found.slices if each.stream.startswith("waits")]
    assert wait.name == "dequeue of 1 element from queue 'letters'"
    assert wait.device == "cpu:1"
    assert wait.args["what"].startswith("dequeue of 1 element from queue 'letters', which is open and holds 0")
    assert not wait.is_kernel
    (dequeue,) = found.named("queue_dequeue")  # what was done when it came, and not the wait
    assert dequeue.start >= wait.end
    (other,) = found.named("tanh")
    assert other.end <= wait.end


def test_long_kernels_lie_in_rows_of_the_threads_that_ran_them(x: Symbol, monkeypatch: pytest.MonkeyPatch):
    assume(monkeypatch, long_seconds=-1.0)
    with ab.device("cpu:1"):
        y = chain(x, 3)
    program = machine(y, [x], clusters=False)
    assert "submit(" in program.source
    found = traced(program, [VALUE])
    rows = {(each.device, each.stream) for each in found.named("tanh")}
    assert all(device == "cpu:1" and stream.startswith("compute (anabranch-kernel") for device, stream in rows)
    assert len(found.named("tanh")) == 3


# --- devices with streams -------------------------------------------------------------------------------------------


@pytest.fixture
def sim() -> Iterator[None]:
    ab.config.set_devices(sim={"count": 2, "virtual_time": True, "latency": LATENCY, "kernel_latency": 2 * LATENCY})
    yield
    ab.config.set_devices()


def to_sim(device: str = "sim:0") -> Assigned:
    return Assigned(lambda operation: device if operation.device else "cpu:0")


def duration(each: ReadSlice) -> float:
    return (each.end - each.start) / 1e9


@pytest.mark.usefixtures("sim")
def test_kernels_and_copies_lie_on_the_streams_with_their_simulated_times(x: Symbol):
    program = machine(split_loop(x, device="sim:0"), [x], to_sim())
    found = traced(program, [VALUE])
    kernels = [each for each in found.slices if (each.device, each.stream) == ("sim:0", "compute")]
    assert {each.name for each in kernels} == {"cluster (matmul, tanh, multiply)"}
    assert len(kernels) == 3
    assert all(duration(each) == pytest.approx(2 * LATENCY, rel=0.01) for each in kernels)
    assert kernels[0].args["line"].endswith(str(kernels[0].args["line"]).rpartition("/")[2])
    copies = {stream: [e for e in found.slices if e.stream == stream] for stream in ("h2d", "d2h")}
    for stream, name in (("h2d", "copy from host"), ("d2h", "copy to host")):
        assert {each.name for each in copies[stream]} == {name}
        assert len(copies[stream]) == 3
        assert all(duration(each) == pytest.approx(LATENCY, rel=0.05) for each in copies[stream])
    for come, kernel, gone in zip(copies["h2d"], kernels, copies["d2h"], strict=True):
        assert come.end <= kernel.start <= kernel.end <= gone.start
    arrows = {(a.device, a.stream, b.device, b.stream) for a, b in found.arrows}
    assert ("cpu:0", "send", "sim:0", "h2d") in arrows
    assert ("sim:0", "d2h", "cpu:0", "recv") in arrows
    assert not found.arrows_left_out
    assert {name for device, name, _ in found.counters if device == "sim:0"} == {"bytes in use"}
    assert max(value for _, _, value in found.counters) >= 2 * VALUE.nbytes


@pytest.mark.usefixtures("sim")
def test_a_value_that_goes_from_device_to_device_has_one_arrow(x: Symbol):
    with ab.device("sim:0"):
        y = ops.tanh(x @ x)
    with ab.device("sim:1"):
        z = ops.sort(y, axis=0)
    program = machine(z, [x], Assigned(lambda operation: _asked(operation.device)))
    found = traced(program, [VALUE])
    between = [(a, b) for a, b in found.arrows if a.device == "sim:0" and b.device == "sim:1"]
    assert [(a.stream, b.stream) for a, b in between] == [("d2h", "h2d")]
    ((source, target),) = between
    assert source.end <= target.start


def _asked(device: str) -> str:
    return (device or "cpu:0").rpartition("device:")[2].lower()


@pytest.mark.usefixtures("sim")
def test_steps_of_one_trace_follow_each_other_in_virtual_time_too(x: Symbol):
    program = machine(split_loop(x, device="sim:0"), [x], to_sim())
    other = machine(split_loop(x, 2, device="sim:0"), [x], to_sim())
    with ab.trace() as recorded:
        for each in (program, other, program):
            each(VALUE)
    found = read_text(timeline(recorded.events))
    steps = found.named("step")
    assert len(steps) == 3
    assert all(before.end <= after.start for before, after in itertools.pairwise(steps))
    assert {each.stream for each in found.slices if each.device == "sim:0"} >= {"compute", "h2d", "d2h"}
    assert not any(each.stream.startswith(("compute [", "h2d [")) for each in found.slices)


def test_what_moves_to_the_host_is_counted(x: Symbol):
    size = 8192
    ab.config.set_devices(sim={"count": 1, "virtual_time": True, "memory_limit": 8 * size})
    with ab.device("sim:0"):
        y = ops.tanh(x)
    step = idle_step(machine(y, [x], to_sim(), swaps=True).with_clocks())
    assert isinstance(step, TracedStep)
    engine = step.engines["sim:0"]
    assert isinstance(engine, TracedStreamEngine)
    record, device = engine.record(), engine.device
    for number in range(16):
        (value,) = device.launch(lambda: np.ones(size, np.uint8), [], 1, LATENCY, "ones", [True])
        record[number] = value
        del value
        device.synchronize()
    came: list[Any] = []
    record.record.get(0, came.append)
    device.synchronize()
    counters = read_text(timeline(step.recorder.events)).counters
    found = {name: [value for _, other, value in counters if other == name] for _, name, _ in counters}
    assert max(found["bytes in use"]) <= 8 * size
    assert found["bytes swapped out"] == sorted(set(found["bytes swapped out"]))
    assert found["bytes swapped out"][-1] == engine.policy.statistics().bytes_out >= 10 * size
    assert found["bytes swapped in"][-1] == engine.policy.statistics().bytes_in >= size


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_failure_ends_what_was_under_way(x: Symbol):
    def fail(i: Any, y: Any) -> Any:
        if i == 1:
            raise ZeroDivisionError("by hand")
        return y

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = ops.numpy_function(fail, [i, y], "float32", stateful=False, shape=(4, 4), name="fragile")
        return i + 1, y

    program = machine(ab.while_loop(lambda i, _: i < 3, body, (0, x), name="loop"), [x], parallel_iterations=1)
    with ab.trace() as recorded, pytest.raises(ZeroDivisionError) as caught:
        program(VALUE)
    assert "on cpu:1, iteration 1 of 'loop/while'" in caught.value.__notes__[0]
    found = read_text(timeline(recorded.events))
    failed = {(each.device, each.name) for each in found.slices if each.name.endswith("(failed)")}
    loops = {(device, f"{name} (failed)") for device in ("cpu:0", "cpu:1") for name in ("loop/while", "iteration 1")}
    assert failed == {("cpu:1", "numpy_function (failed)"), *loops}
    assert [mark["name"] for mark in found.instants] == ["failed"]
    assert found.instants[0]["error"].startswith("ZeroDivisionError: by hand")
    assert len(found.named("numpy_function")) == 1  # that of iteration 0


def test_a_wait_up_to_the_deadline_is_told(x: Symbol):
    queue = FIFOQueue(4, "float32", (), name="letters")
    program = machine([queue.dequeue(), as_on_other(x)], [x])
    queue.put([np.float32(0)], many=False)
    assert traced_once(program)  # compiled, so that the wait has all the time
    with ab.trace() as recorded, pytest.raises(DeadlineExceededError), deadline(0.2):
        program(VALUE)
    found = read_text(timeline(recorded.events))
    (wait,) = [each for each in found.slices if each.stream == "waits"]
    assert duration(wait) >= 0.01
    assert "The timeout was over" in found.instants[0]["error"]
    program._idle.clear()
    queue.put([np.float32(1)], many=False)
    assert traced_once(program)


def as_on_other(x: Tensor) -> Tensor:
    with ab.device("cpu:1"):
        return ops.tanh(x)


def traced_once(program: MachineProgram) -> bool:
    with ab.trace() as recorded:
        program(VALUE)
    return bool(read_text(timeline(recorded.events)).named("queue_dequeue"))


# --- what it costs --------------------------------------------------------------------------------------------------


def test_without_a_trace_there_are_no_clocks(x: Symbol, tmp_path: Path):
    program = machine(split_loop(x), [x])
    before = program.source
    for word in ("now()", "ran(", "began", "sending(", "received("):
        assert word not in before
    with ab.trace(tmp_path / "trace.json"):
        program(VALUE)
        program(VALUE)
    assert len(read_timeline(tmp_path / "trace.json").named("step")) == 2
    assert program.source == before
    assert type(idle_step(program)).__name__ == "Step"
    assert program.statistics.runs == 2
    clocked = program.with_clocks()
    assert clocked is program.with_clocks()
    assert "ran(" in clocked.source
    assert [line for line in clocked.source.splitlines() if not _is_of_clocks(line)] == before.splitlines()


def _is_of_clocks(line: str) -> bool:
    return any(word in line for word in ("began", "ran(", "sending(", "sent(", "received("))


def test_two_threads_are_traced_at_once(x: Symbol):
    met = threading.Barrier(2)

    def meet(value: Any) -> Any:
        met.wait(20)
        return value

    with ab.device("cpu:1"):
        y = ops.numpy_function(meet, [x], "float32", stateful=False, shape=(4, 4))
    program = machine(split_loop(y), [x])
    with ab.trace() as recorded:
        threads = [Waiting(lambda: program(VALUE)) for _ in range(2)]
        results = [thread.result() for thread in threads]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    found = read_text(timeline(recorded.events))
    assert len({each.stream for each in found.named("step")}) == 2
    assert not found.arrows_left_out
