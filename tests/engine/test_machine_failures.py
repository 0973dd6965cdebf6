"""The dataflow machine when an operation fails or nothing can go on, and what is left of a step then."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from shared.machines import (
    Log,
    as_asked,
    assert_nothing_left,
    graph_on,
    idle_step,
    is_idle,
    latest_step,
    of_kind,
    run,
    step_of,
)
from shared.waiting import PATIENCE, Waiting, out_of_time

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower.cut import cut
from anabranch.engine.lower.nodes import Frame, Machine, Node
from anabranch.engine.lower.raw import lower_raw
from anabranch.engine.machine.frames import FrameRun, Iteration
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.report import StalledError
from anabranch.engine.machine.step import DeadValueError
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.runtime.interpreter import Interpreter

SEEDS: list[int | None] = [None, 0, 1]


graph = graph_on(cpu=4)


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, assign=as_asked(), **options)


class Failing:
    """Nested loops over three devices, in which an operation fails for a pair of iterations.

    Attributes:
        at: that pair; it may change from run to run.
    """

    def __init__(self, outer: int = 4, inner: int = 3) -> None:
        self.at: tuple[int, int] | None = None
        self.x = ab.placeholder((3,), "float32", "x")
        self.outer, self.inner = outer, inner
        _, self.y = ab.while_loop(lambda i, _: i < outer, self._outer, (0, self.x), name="outer")

    def _outer(self, i: Tensor, x: Tensor) -> Any:
        with ab.device("cpu:1"):
            x = x * 0.5 + 1.0
        _, x = ab.while_loop(lambda j, _: j < self.inner, lambda j, y: self._inner(i, j, y), (0, x), name="inner")
        return i + 1, x

    def _inner(self, i: Tensor, j: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:2"):
            y = ops.numpy_function(
                self._maybe, [i, j, y], "float32", stateful=False, shape=(3,), name="fragile", grad=_passed_on
            )
        return j + 1, ops.tanh(y)

    def _maybe(self, i: Any, j: Any, y: Any) -> Any:
        if (int(i), int(j)) == self.at:
            raise ZeroDivisionError("by hand")
        return y * np.float32(1.5)


def _passed_on(inputs: Any, outputs: Any, cotangents: Any) -> Any:
    return None, None, cotangents[0] * 1.5


# --- one error ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [1, 32])
@pytest.mark.parametrize("at", [(0, 0), (2, 1), (3, 2)])
def test_an_error_tells_operation_device_and_iterations(
    at: tuple[int, int], window: int, seed: int | None, clusters: bool
):
    nest = Failing()
    program = machine([nest.y], [nest.x], seed=seed, parallel_iterations=window, clusters=clusters)
    value = np.ones(3, np.float32)
    (expected,) = run(program, [value])

    nest.at = at
    step = idle_step(program)
    with pytest.raises(ZeroDivisionError, match="by hand") as caught:
        run(program, [value])
    (note,) = caught.value.__notes__
    told = (
        rf"In operation 'fragile' \(\w+\) on cpu:2, iteration {at[1]} of '(outer/while/body/)?inner/while', "
        rf"iteration {at[0]} of 'outer/while'; inputs: .*float32\[3\]; defined at {re.escape(__file__)}:\d+"
    )
    assert re.fullmatch(told, note), note
    line = int(note.rpartition(":")[2])
    with open(__file__, encoding="utf-8") as file:
        assert "ops.numpy_function(" in file.read().splitlines()[line - 1]
    assert_nothing_left(step)

    nest.at = None
    np.testing.assert_array_equal(run(program, [value])[0], expected)
    assert_nothing_left(latest_step(program))


def test_an_error_outside_of_loops_tells_its_device():
    x = ab.placeholder((2,), "float32", "x")
    with ab.device("cpu:1"):
        y = ops.numpy_function(lambda x: x[5], [x * 2.0], "float32", stateful=False, shape=(), name="fragile")
    with pytest.raises(IndexError) as caught:
        run(machine([y + 1.0], [x]), [np.ones(2, np.float32)])
    (note,) = caught.value.__notes__
    assert re.match(r"In operation 'fragile' \(\w+\) on cpu:1; inputs: float32\[2\]; defined at ", note), note


def test_an_error_in_a_loop_that_stays_on_one_device():
    nest = Failing()
    with ab.device("cpu:1"):
        y = nest.y + 1.0
    nest.at = (1, 2)
    assign = as_asked()
    assign.choose = lambda operation: "cpu:1" if operation is y.operation else "cpu:3"
    program = MachineProgram(ab.get_default_graph(), [y], [nest.x], exact=True, assign=assign)
    with pytest.raises(ZeroDivisionError) as caught:
        run(program, [np.ones(3, np.float32)])
    (note,) = caught.value.__notes__
    assert "In operation 'fragile'" in note
    assert "on cpu:3, iteration 2 of " in note
    assert ", iteration 1 of 'outer/while'; " in note


def test_effects_before_an_error_stay():
    v, x = ab.Variable(0.0, dtype="float32", name="v"), ab.placeholder((), "float32", "x")

    def fragile(i: Any, y: Any) -> Any:
        if i == 3:
            raise ZeroDivisionError
        return y

    def body(i: Tensor, y: Tensor) -> Any:
        added = v.assign_add(1.0)
        with ab.device("cpu:1"):
            y = ops.numpy_function(fragile, [i, y + added], "float32", shape=())
        return i + 1, y

    program = machine(ab.while_loop(lambda i, _: i < 6, body, (0, x)), [x], parallel_iterations=1)
    with pytest.raises(ZeroDivisionError):
        run(program, [np.float32(1)])
    assert v.numpy() == 4


# --- nothing is left ------------------------------------------------------------------------------------------------


def alive(*kinds: type) -> int:
    gc.collect()
    return sum(isinstance(value, kinds) for value in gc.get_objects())


@pytest.mark.slow
def test_many_steps_with_failing_ones_between_take_no_memory(monkeypatch: pytest.MonkeyPatch):
    nest = Failing(outer=3, inner=2)
    (slope,) = ab.gradients(ops.sum(nest.y * nest.y), [nest.x])
    program = machine([nest.y, slope], [nest.x])
    value = np.ones(3, np.float32)
    expected = program(value)

    def steps(count: int) -> None:
        for number in range(count):
            nest.at = (number % 3, number % 2) if number % 5 == 0 else None
            if nest.at is None:
                found = program(value)
                np.testing.assert_array_equal(found, expected)
                continue
            with pytest.raises(ZeroDivisionError):
                program(value)

    steps(100)
    monkeypatch.setattr(program, "_note_long", lambda _: None)  # where others load the machine it prints the step again
    objects = alive(object)
    iterations = alive(Iteration, FrameRun)
    tracemalloc.start()
    steps(50)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    steps(200)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    steps(300)
    assert grown < 20_000
    assert alive(object) < objects + 200
    assert alive(Iteration, FrameRun) <= iterations


def test_iterations_that_are_over_are_let_go():
    x, n = ab.placeholder((), "float32", "x"), ab.placeholder((), "int32", "n")
    counted: dict[int, int] = {}

    def count(i: Any, y: Any) -> Any:
        if i in (100, 1000):
            counted[int(i)] = alive(Iteration)
        return y

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = y * 0.5
        return i + 1, ops.numpy_function(count, [i, y], "float32", stateful=False, shape=())

    run(machine(ab.while_loop(lambda i, _: i < n, body, (0, x)), [x, n]), [np.float32(1), np.int32(1001)])
    assert counted[1000] <= counted[100]


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_is_over_holds_no_values(fails: bool):
    """Neither what was fed nor what was fetched or computed on the way."""
    nest = Failing()
    seen: list[weakref.ref[Any]] = []

    def see(x: Any) -> Any:
        seen.append(weakref.ref(x))
        return x

    with ab.device("cpu:1"):
        seen_on_its_way = ops.numpy_function(see, [nest.y * 2.0], "float32", stateful=False, shape=(3,))
        before = ops.numpy_function(see, [nest.x * 2.0], "float32", stateful=False, shape=(3,))
    program = machine([seen_on_its_way + 1.0, before + 1.0], [nest.x])
    nest.at = (3, 2) if fails else None
    fed = np.ones(3, np.float32)
    seen.append(weakref.ref(fed))
    try:
        fetched = program(fed)
        seen.extend(weakref.ref(value) for value in fetched)
        del fetched
    except ZeroDivisionError:
        assert fails
    del fed
    gc.collect()
    assert len(seen) == (2 if fails else 5)
    assert [reference() for reference in seen if reference() is not None] == []


# --- at once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_two_threads_run_one_program_at_once(seed: int | None):
    met = threading.Barrier(2)
    x, n = ab.placeholder((), "float32", "x"), ab.placeholder((), "int32", "n")

    def meet(value: Any) -> Any:
        met.wait(PATIENCE)  # both are in the middle of a step
        return value

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = ops.numpy_function(meet, [y], "float32", stateful=False, shape=())
        return i + 1, y * 0.5 + x

    _, y = ab.while_loop(lambda i, _: i < n, body, (0, x))
    (slope,) = ab.gradients(ops.sin(looped_like(x, n)), [x])
    program = machine([y, slope], [x, n], seed=seed)

    def work(value: float) -> list[Any]:
        return [program(np.float32(value), np.int32(5)) for _ in range(20)]

    threads = [Waiting(lambda value=value: work(value)) for value in (0.25, 0.75)]
    found = [thread.result() for thread in threads]
    met.reset()
    for value, results in zip((0.25, 0.75), found, strict=True):
        again = Waiting(lambda: Interpreter().run(x.graph, [slope], {x: np.float32(value), n: np.int32(5)})).result()  # noqa: B023
        expected = value
        for _ in range(5):
            expected = expected * 0.5 + value
        for result in results:
            assert result == (np.float32(expected), again[0])
    assert len(program._idle) == 2  # type: ignore[attr-defined]


def looped_like(x: Tensor, n: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:2"):
            y = y * x
        return i + 1, ops.cos(y)

    return ab.while_loop(lambda i, _: i < n, body, (0, x))[1]


def test_steps_are_made_while_another_thread_prints_the_program_anew():
    x, n = ab.placeholder((), "float32", "x"), ab.placeholder((), "int32", "n")
    program: Any = machine([looped_like(x, n)], [x, n])
    printing = Waiting(lambda: [program._print(program._prepared) for _ in range(40)])
    while printing.thread.is_alive():
        step = program._make_step()
        assert step.run([np.float32(0.5), np.int32(2)]) is not None
    printing.result()


def test_one_thread_fails_while_another_runs():
    nest, met = Failing(), threading.Barrier(2)
    with ab.device("cpu:3"):
        x = ops.numpy_function(lambda x: (met.wait(PATIENCE), x)[1], [nest.x], "float32", stateful=False, shape=(3,))
        bad = ops.numpy_function(_refuse_negative, [nest.y * x], "float32", stateful=False, shape=(3,))
    program = machine([bad], [nest.x])

    def work(value: float) -> list[Any]:
        found: list[Any] = []
        for _ in range(10):
            try:
                found.append(program(np.full(3, value, np.float32))[0])
            except ValueError:
                found.append("negative")
        return found

    threads = [Waiting(lambda value=value: work(value)) for value in (1.0, -1.0)]
    good, failing = (thread.result() for thread in threads)
    assert failing == ["negative"] * 10
    assert all(np.array_equal(value, good[0]) for value in good)


def _refuse_negative(x: Any) -> Any:
    if x[0] < 0:
        raise ValueError("negative")
    return x


# --- nothing can go on ----------------------------------------------------------------------------------------------


def test_a_receive_without_a_send():
    built = Machine()
    lonely = Node("send", "never", "cpu:0", built.root)
    feed = built.add(Node("feed", "x", "cpu:1", built.root))
    receive = built.add(Node("recv", "never", "cpu:1", built.root))
    receive.peer, lonely.peer = lonely, receive
    both = built.add(Node("identity", "both", "cpu:1", built.root, [feed.output]))
    both.controls = [receive.output]
    built.feeds = [feed]
    built.fetches = [built.add(Node("fetch", "both", "cpu:1", built.root, [both.output], ()))]
    step = step_of(built)
    with pytest.raises(StalledError) as caught:
        step.run([np.float32(1)])
    first, *lines = str(caught.value).splitlines()
    assert re.fullmatch(r"The step made no progress after \S+ s\. It waits for:", first)
    assert "  cpu:1: identity 'both': 1 of 2 of ('x', 'never')" in lines
    assert "  cpu:1: recv 'never' (key 0) from cpu:0" in lines
    assert_nothing_left(step)


def split_loop() -> MachineProgram:
    """A loop on two devices; each iteration hands a value over."""
    log = Log()

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = log.note("far", i, y + 1.0)
        return i + 1, log.note("near", i, y)

    return machine(ab.while_loop(lambda i, _: i < 4, body, (0, 0.5), name="loop"), clusters=False)


def test_iterations_that_wait_for_the_same_are_one_line():
    with ab.device("cpu:1"):
        never = ab.queues.FIFOQueue(1, "float32", shapes=(), name="never").dequeue()

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            far = never * ops.cast(i, "float32")
        return i + 1, y + far

    last = ab.while_loop(lambda i, _: i < 20, body, (0, 0.5), name="loop", parallel_iterations=8)[1]
    lines = out_of_time(lambda seconds: ab.Session().run(last, timeout=seconds), " more)").splitlines()
    merged = [line for line in lines if re.search(r", iteration \d+ \(and \d+ more\)", line)]
    assert merged, lines
    assert len({re.sub(r", iteration .*", "", line) for line in lines}) == len(lines)


def test_a_lost_send_in_a_loop():
    built = split_loop().machine
    send = next(
        node for node in of_kind(built, "send") if node.frame.depth and node.inputs[0].node.name.endswith("far")
    )
    built.nodes.remove(send)
    receive = send.peer
    assert receive is not None
    step = step_of(built)
    with pytest.raises(StalledError) as caught:
        step.run([])
    lines = str(caught.value).splitlines()
    number = step.blueprint.edges[receive]
    expected = f"  cpu:0: recv {send.name!r} (key {number}) from cpu:1 in frame 'loop/while', iteration 0"
    assert [line for line in lines if line.partition(" (and ")[0] == expected]
    waiting = [line for line in lines if line.startswith("  cpu:0: op ") and "near" in line]
    assert waiting
    assert all("in frame 'loop/while', iteration " in line for line in waiting)
    assert_nothing_left(step)


def test_what_has_run_is_not_told():
    built = Machine()
    never = Node("no_op", "never", "cpu:0", Frame("nowhere", built.root))
    feed = built.add(Node("feed", "x", "cpu:0", built.root))
    done = built.add(Node("identity", "done", "cpu:0", built.root, [feed.output]))
    waiting = built.add(Node("identity", "waiting", "cpu:0", built.root, [done.output]))
    waiting.controls = [never.done]
    built.feeds = [feed]
    with pytest.raises(StalledError) as caught:
        step_of(built).run([np.float32(1)])
    assert str(caught.value).splitlines()[1:] == ["  cpu:0: identity 'waiting': 1 of 2 of ('done', 'never')"]


def test_what_was_sent_to_an_iteration_that_never_began():
    built = split_loop().machine
    for node in [node for node in of_kind(built, "enter") if node.device == "cpu:1"]:
        built.nodes.remove(node)
    step = step_of(built)
    with pytest.raises(StalledError) as caught:
        step.run([])
    report = str(caught.value)
    assert re.search(r"  cpu:1: '\S+' was sent by cpu:0, but its iteration 0 never began", report), report
    assert_nothing_left(step)


def test_a_long_report_is_cut():
    built = Machine()
    feed = built.add(Node("feed", "x", "cpu:0", built.root))
    built.feeds = [feed]
    frame = Frame("nowhere", built.root)
    for number in range(60):
        never = Node("no_op", f"never{number}", "cpu:0", frame)
        node = built.add(Node("identity", f"waits{number}", "cpu:0", built.root, [feed.output]))
        node.controls = [never.done]
    with pytest.raises(StalledError) as caught:
        step_of(built).run([np.float32(1)])
    lines = str(caught.value).splitlines()
    assert len(lines) == 41
    assert lines[-1] == "  ... and 21 more"


def test_a_step_that_stalled_can_be_given_up_and_run_again():
    built = split_loop().machine
    whole = step_of(built)
    expected = whole.run([])
    lost = next(node for node in of_kind(built, "send") if node.frame.depth)
    built.nodes.remove(lost)
    broken = step_of(built)
    for _ in range(3):
        with pytest.raises(StalledError):
            broken.run([])
        assert_nothing_left(broken)
    assert whole.run([]) == expected


# --- values that are dead -------------------------------------------------------------------------------------------


def test_a_dead_value_that_is_fetched_is_an_error():
    p, x = ab.placeholder((), "bool", "p"), ab.placeholder((), "float32", "x")
    sides = raw.switch(x, p)
    with ab.device("cpu:1"):
        doubled = sides.output_true * 2.0
    fetches = [symbol_of(doubled)]
    operations = needed_operations(x.graph, fetches, [p, x])
    built = lower_raw(operations, [p, x], fetches, as_asked().choose)
    cut(built)
    step = step_of(built)
    assert step.run([np.True_, np.float32(1.5)]) == [3.0]
    with pytest.raises(DeadValueError, match="was fetched, but it is dead"):
        step.run([np.False_, np.float32(1.5)])
    assert_nothing_left(step)
    assert step.run([np.True_, np.float32(2.5)]) == [5.0]


def test_a_failed_step_is_not_used_again():
    nest = Failing()
    program = machine([nest.y], [nest.x])
    step = idle_step(program)
    nest.at = (0, 1)
    with pytest.raises(ZeroDivisionError):
        program(np.ones(3, np.float32))
    nest.at = None
    assert not is_idle(program, step)
    program(np.ones(3, np.float32))
    assert len(program._idle) == 1  # type: ignore[attr-defined]
