"""Loops on the dataflow machine: how many iterations are alive, what runs ahead of what, and what is dead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from shared.machines import (
    Assigned,
    Log,
    as_asked,
    assert_nothing_left,
    by_name,
    chain,
    fed,
    graph_on,
    latest_step,
    of_kind,
    plans,
    run,
    structure,
)
from shared.sample import first_of
from shared.symbols import symbols_of

import anabranch as ab
from anabranch import ops
from anabranch.engine.control_flow.frames import trip_count
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.frames import FramePlan
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import as_fetched
from anabranch.engine.session.inside import fetched_from

WINDOWS = [1, 2, 10, 32]
SEEDS: list[int | None] = [None, 0, 1, 2]


graph = graph_on(cpu=4)


def machine(
    fetches: Sequence[Any], feeds: Sequence[Symbol] = (), assign: Assigned | None = None, **options: Any
) -> MachineProgram:
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, assign=assign or as_asked(), **options)


def frame(program: MachineProgram, name: str, device: str) -> FramePlan:
    """A loop, by the end of its name, on a device, as the latest run left it."""
    found = [p for p in plans(latest_step(program)) if f"/{p.name}".endswith(f"/{name}/while") and p.device == device]
    assert len(found) == 1, [(plan.name, plan.device) for plan in plans(latest_step(program))]
    return found[0]


def check(
    fetches: Sequence[Any], runs: Sequence[dict[Symbol, Any]], assign: Callable[[], Assigned] = as_asked, **options: Any
) -> MachineProgram:
    """Machines give the interpreter's bits, with and without clusters, in several orders; the last one is returned."""
    given = [{tensor: np.asarray(value, tensor.dtype)[()] for tensor, value in feeds.items()} for feeds in runs]
    expected = [Interpreter().run(ab.get_default_graph(), fetches, feeds) for feeds in given]
    program = None
    for clusters, seed in [(True, None), (False, None), (True, 1), (False, 2)]:
        program = machine(fetches, list(given[0]), assign(), clusters=clusters, seed=seed, **options)
        for feeds, wanted in zip(given, expected, strict=True):
            found = run(program, list(feeds.values()))
            np.testing.assert_equal([as_fetched(value) for value in found], [as_fetched(value) for value in wanted])
            assert_nothing_left(latest_step(program))
    assert program is not None
    return program


# --- the window -----------------------------------------------------------------------------------------------------


def counted_and_slow(log: Log, count: int, length: int = 30, **options: Any) -> list[Tensor]:
    """A loop that counts, carries a value through a long chain on the same device, and another on a second one."""

    def body(i: Tensor, slow: Tensor, other: Tensor) -> Any:
        slow = log.note("slow", i, chain(slow, length))
        with ab.device("cpu:1"):
            other = other + 1.0
        return log.note("count", i, i + 1), slow, other

    return ab.while_loop(lambda i, *_: i < count, body, (0, 0.5, 0.5), name="loop", **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_never_more_iterations_alive_than_the_window(window: int, seed: int | None):
    log = Log()
    fetches = counted_and_slow(log, 40, 150)
    program = machine(fetches, clusters=False, seed=seed, parallel_iterations=window)
    run(program, [])
    leads = [len(log_until(log, place, "count")) - len(log_until(log, place, "slow")) for place in range(81)]
    assert max(leads) <= window
    if seed is None:
        assert max(leads) == window  # as it gets ready, the counter is always first
    assert frame(program, "loop", "cpu:0").iterations == frame(program, "loop", "cpu:1").iterations == 41


def log_until(log: Log, place: int, label: str) -> list[int]:
    return [number for name, number in log.entries[:place] if name == label]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "window",
    [1, 2, 10, 32],
)
def test_the_peak_of_iterations_is_told(window: int, seed: int | None):
    program = machine(counted_and_slow(Log(), 40, 150), clusters=False, seed=seed, parallel_iterations=window)
    run(program, [])
    for device in ("cpu:0", "cpu:1"):
        assert 1 <= frame(program, "loop", device).peak <= window
    if seed is None:
        assert frame(program, "loop", "cpu:0").peak == window


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_of_one_is_sequential(seed: int | None):
    log = Log()
    run(machine(counted_and_slow(log, 10), clusters=False, seed=seed, parallel_iterations=1), [])
    assert [number for _, number in log.entries] == [number for number in range(10) for _ in range(2)]


def test_a_wide_window_lets_iterations_overlap():
    log = Log()
    run(machine(counted_and_slow(log, 10), clusters=False), [])
    assert log.of("count") == log.of("slow") == list(range(10))
    assert log.place("count", 9) < log.place("slow", 3)  # a fast counter runs ahead of what it counts


def test_loops_have_windows_of_their_own():
    log = Log()
    first = counted_and_slow(log, 12, parallel_iterations=3)
    program = machine([*first, *counted_and_slow(log, 12, parallel_iterations=5)], clusters=False)
    run(program, [])
    assert sorted(p.peak for p in plans(latest_step(program)) if p.device == "cpu:0" and p.name != "step") == [3, 5]


def test_devices_are_in_different_iterations():
    log = Log()

    def body(i: Tensor, far: Tensor) -> Any:
        with ab.device("cpu:1"):
            far = log.note("far", i, chain(far + ops.cast(i, "float32"), 30))
        return log.note("near", i, i + 1), far

    fetches = ab.while_loop(lambda i, _: i < 12, body, (0, 0.5), name="loop")
    run(machine(fetches, clusters=False, assign=by_name({"far": "cpu:1"})), [])
    assert log.place("near", 8) < log.place("far", 2)
    assert log.of("far") == log.of("near") == list(range(12))


@pytest.mark.parametrize("window", [1, 32])
def test_loops_inside_run_at_once_as_far_as_the_window_allows(window: int):
    log = Log()

    def inner(k: Tensor) -> Any:
        def body(j: Tensor, y: Tensor) -> Any:
            with ab.device("cpu:1"):
                y = log.note("inner", k, chain(y, 4))
            return j + 1, y

        return ab.while_loop(lambda j, _: j < 5, body, (0, ops.cast(k, "float32")), name="inner")[1]

    array = ab.TensorArray("float32", 4)
    fetches = ab.while_loop(lambda k, _: k < 4, lambda k, a: (k + 1, a.write(k, inner(k))), (0, array), name="outer")
    program = machine([fetches[1].stack()], clusters=False, parallel_iterations=window)
    run(program, [])
    assert sorted(log.of("inner")) == [number for number in range(4) for _ in range(5)]
    interleaved = any(one > other for one, other in pairwise(log.of("inner")))
    assert interleaved == (window > 1)
    assert frame(program, "inner", "cpu:1").frames == 5  # one of them dead, where the outer loop ends


# --- what is there is used ------------------------------------------------------------------------------------------


def late(log: Log, count: int = 10) -> Tensor:
    """A number that takes long: a loop over two devices."""

    def body(i: Tensor, x: Tensor) -> Any:
        with ab.device("cpu:1"):
            x = chain(x, 30)
        return i + 1, log.note("late", i, x)

    return ab.while_loop(lambda i, _: i < count, body, (0, 0.5), name="late_loop")[1]


def test_a_branch_begins_with_the_inputs_that_are_there():
    log, p = Log(), ab.placeholder((), "bool", "p")
    x, y = ab.placeholder((), "float32", "x"), late(log)

    def taken() -> Any:
        with ab.device("cpu:1"):
            fast = log.note("fast", 0, x * 2.0)
        return fast, log.note("slow", 0, y * 3.0)

    fetches = ab.cond(p, taken, lambda: (x, y))
    program = machine(list(fetches), [p, x], clusters=False)
    run(program, [np.True_, np.float32(1)])
    assert log.place("fast", 0) < log.place("late", 0)
    assert log.place("late", 9) < log.place("slow", 0)


def test_a_loop_begins_before_all_that_it_takes_is_there():
    log = Log()
    y = late(log)

    def body(i: Tensor, x: Tensor) -> Any:
        with ab.device("cpu:1"):
            x = log.note("sum", i, x + y)
        return log.note("count", i, i + 1), x

    fetches = ab.while_loop(lambda i, _: i < 6, body, (0, 0.0), name="loop")
    program = machine(fetches, clusters=False)
    found = run(program, [])
    assert log.place("count", 5) < log.place("late", 9) < log.place("sum", 0)
    assert frame(program, "loop", "cpu:1").peak == 7  # all iterations, and that in which the loop ends, waited for it
    expected = Interpreter().run(ab.get_default_graph(), fetches, {})
    np.testing.assert_array_equal(found[1], expected[1])


def test_results_of_a_loop_leave_it_one_by_one():
    log = Log()
    count, _, _ = fetches = counted_and_slow(log, 10)
    with ab.device("cpu:2"):
        early = log.note("after", 0, count)
    run(machine([early, *fetches], clusters=False), [])
    assert log.place("after", 0) < log.place("slow", 9)


@pytest.mark.parametrize("window", [1, 2, 32])
@pytest.mark.parametrize("clusters", [False, True])
def test_constants_of_a_loop_come_when_they_come(window: int, clusters: bool):
    """Before the first iteration, between two, or when all of them wait."""
    results: list[Tensor] = []
    for length in (0, 1, 2, 5, 9, 20):
        with ab.device("cpu:2"):
            k = chain(ab.convert_to_tensor(np.float32(0.9)) + results[-1] if results else ops.exp(0.1), length)

        def body(i: Tensor, x: Tensor, y: Tensor, k: Tensor = k) -> Any:
            with ab.device("cpu:1"):
                x = x * k + ops.cast(i, "float32")
            return i + 1, x, y + k

        results.extend(ab.while_loop(lambda i, *_: i < 5, body, (0, 0.5, 0.25))[1:])
    expected = Interpreter().run(ab.get_default_graph(), symbols_of(results), {})
    for seed in SEEDS:
        found = run(machine(results, clusters=clusters, parallel_iterations=window, seed=seed), [])
        np.testing.assert_array_equal(found, expected)


# --- what is dead ---------------------------------------------------------------------------------------------------


def looped(x: Any, count: Any, name: str = "loop", step: Any = None) -> Tensor:
    """A loop over two devices."""

    def body(i: Tensor, a: Tensor, b: Tensor) -> Any:
        with ab.device("cpu:1"):
            b = b + a * 0.5
        a = a * 1.5 if step is None else step(i, a)
        return i + 1, a, b

    _, a, b = ab.while_loop(lambda i, *_: i < count, body, (0, x, x), name=name)
    return a + b


def chosen(p: Any, yes: Any, no: Any) -> Tensor:
    """A branch over three devices."""

    def on(device: str, function: Any) -> Any:
        with ab.device(device):
            return function()

    return ab.cond(p, lambda: on("cpu:3", yes), lambda: on("cpu:2", no))


def with_slope(y: Tensor, x: Tensor) -> list[Tensor]:
    """A value with its first and second derivative."""
    first = ab.convert_to_tensor(ab.gradients(y, [x], unconnected_gradients="zero")[0])
    second = ab.convert_to_tensor(ab.gradients(first, [x], unconnected_gradients="zero")[0])
    return [y, first, second]


x = fed("float32", "x")
n = fed("int32", "n")
p = fed("bool", "p")


@pytest.mark.parametrize("window", WINDOWS)
def test_numbers_of_iterations(x: Symbol, n: Symbol, window: int):
    fetches = with_slope(looped(x, n, step=lambda i, a: a * a * 0.5), x)
    runs = [{x: 1.25, n: count} for count in (5, 0, 1, 40)]
    program = check(fetches, runs, parallel_iterations=window)
    assert frame(program, "loop", "cpu:1").iterations == 41
    assert "number of iterations taken" in structure(program.machine)


@pytest.mark.parametrize("window", first_of([32, 1]))
def test_a_loop_in_a_branch(x: Symbol, n: Symbol, p: Symbol, window: int):
    y = chosen(p, lambda: looped(ops.sin(x), n, step=lambda i, a: a * a * 0.5), lambda: x * x)
    runs = [{x: 0.75, n: count, p: taken} for count, taken in [(0, True), (2, False), (2, True), (0, False)]]
    program = check(with_slope(y * y, x), runs, parallel_iterations=window)
    assert {"split loop in a split branch", "history"} <= structure(program.machine)


@pytest.mark.parametrize("window", first_of([32, 1]))
def test_a_branch_in_a_loop(x: Symbol, n: Symbol, window: int):
    y = looped(x, n, step=lambda i, a: chosen(i % 2 > 0, lambda: ops.sin(a), lambda: a * a))
    program = check(with_slope(y, x), [{x: 0.75, n: count} for count in (0, 1, 5)], parallel_iterations=window)
    assert "split branch in a split loop" in structure(program.machine)


@pytest.mark.parametrize("window", first_of([32, 1]))
def test_a_loop_in_branches_in_a_loop_in_a_branch(x: Symbol, n: Symbol, p: Symbol, window: int):
    m = ab.placeholder((), "int32", "m")

    def step(i: Tensor, a: Tensor) -> Tensor:
        return chosen(i % 2 < m, lambda: looped(a, n, "inner") * 0.25, lambda: ops.cos(a))

    y = chosen(p, lambda: looped(x, n, "outer", step), lambda: x * 3.0)
    runs = [{x: 0.75, n: 3, m: often, p: taken} for taken in (True, False) for often in (0, 1, 2)]
    check(with_slope(y, x), runs, parallel_iterations=window)


@pytest.mark.parametrize("window", first_of([32, 1, 2], 2))
def test_a_loop_in_a_loop(x: Symbol, n: Symbol, window: int):
    m = ab.placeholder((), "int32", "m")

    def step(j: Tensor, b: Tensor) -> Tensor:
        with ab.device("cpu:1"):
            squared = b * b
        return ops.sin(squared) + x

    y = looped(x, n, "outer", lambda i, a: looped(a, m - i, "inner", step))
    runs = [{x: 0.75, n: outer, m: inner} for outer, inner in [(0, 3), (3, 0), (3, 4)]]
    program = check(with_slope(y, x), runs, parallel_iterations=window)
    assert {"split loop in a split loop", "history", "number of iterations taken"} <= structure(program.machine)


def test_nothing_runs_in_a_loop_of_a_branch_that_is_not_taken(x: Symbol, p: Symbol):
    log = Log()
    y = chosen(p, lambda: looped(x, 5, step=lambda i, a: log.note("inside", i, a)), lambda: x)
    program = machine([y], [x, p], clusters=False)
    assert run(program, [np.float32(2), np.False_]) == (2,)
    assert log.entries == []
    assert frame(program, "loop", "cpu:1").iterations == frame(program, "loop", "cpu:1").frames == 1  # a dead one
    assert_nothing_left(latest_step(program))
    run(program, [np.float32(2), np.True_])
    assert log.of("inside") == list(range(5))


def test_constants_that_enter_a_dead_loop_late(p: Symbol):
    late_value = late(Log(), 8)
    y = chosen(p, lambda: looped(late_value, 5, step=lambda i, a: a * late_value), lambda: ops.exp(0.5))
    check([y], [{p: False}, {p: True}])


@pytest.mark.parametrize("has_loops", [False, True])
def test_a_choice_among_several_over_devices(x: Symbol, n: Symbol, has_loops: bool):
    def branch(device: str, scale: float) -> Any:
        def made() -> Tensor:
            with ab.device(device):
                return looped(x * scale, n) if has_loops else ops.sin(x * scale)

        return made

    y = ab.switch(n, [branch(f"cpu:{k}", k + 0.5) for k in range(3)])
    program = check(with_slope(y, x), [{x: 0.75, n: index} for index in (-2, 0, 1, 2, 7)])
    assert "split branch by number" in structure(program.machine)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_a_branch_saves_is_none_if_another_is_taken(x: Symbol, p: Symbol):
    inside: list[Tensor] = []

    def yes() -> Tensor:
        inside.append(ops.sin(x))
        return inside[0] * 2.0

    y = chosen(p, yes, lambda: x * 3.0)
    saved = fetched_from(ab.get_default_graph(), symbol_of(inside[0]))
    for clusters in (False, True):
        program = machine([y, saved], [x, p], clusters=clusters)
        assert run(program, [np.float32(0.5), np.True_]) == (2 * np.sin(np.float32(0.5)), np.sin(np.float32(0.5)))
        assert run(program, [np.float32(0.5), np.False_]) == (1.5, None)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_histories_are_in_order_however_iterations_ran(n: Symbol, window: int, seed: int | None):
    inside: list[Tensor] = []

    def body(i: Tensor, a: Tensor) -> Any:
        with ab.device("cpu:1"):
            swapped = chosen(ops.equal(i % 3, 0), lambda: chain(i * 1.5, 9), lambda: i * 2.5)
        inside[:] = [swapped, i]
        with ab.device("cpu:2"):
            a = a + swapped
        return i + 1, a

    _, total = ab.while_loop(lambda i, _: i < n, body, (0, 0.0), name="loop")
    graph = ab.get_default_graph()
    histories = [fetched_from(graph, tensor) for tensor in symbols_of(inside)]
    fetches = [symbol_of(total), *histories, trip_count(histories[0].operation.inputs[0])]
    program = machine(fetches, [n], clusters=False, seed=seed, parallel_iterations=window)
    for count in (0, 1, 12):
        expected = Interpreter().run(graph, fetches, {n: np.int32(count)})
        found = run(program, [np.int32(count)])
        np.testing.assert_equal([as_fetched(value) for value in found], [as_fetched(value) for value in expected])
        assert as_fetched(found[2]) == list(range(count))
        assert found[3] == count


def test_what_a_condition_computes_is_kept_once_more(n: Symbol):
    inside: list[Tensor] = []

    def condition(i: Tensor, a: Tensor) -> Tensor:
        with ab.device("cpu:1"):
            inside.append(i * 10)
        return inside[-1] < n

    ab.while_loop(condition, lambda i, a: (i + 1, a * 0.5), (0, 1.0))
    history = fetched_from(ab.get_default_graph(), symbol_of(inside[-1]))
    check([history], [{n: count} for count in (0, 5, 25)])


def test_a_history_of_histories(n: Symbol, x: Symbol):
    inside: list[Tensor] = []

    def step(j: Tensor, b: Tensor) -> Tensor:
        with ab.device("cpu:2"):
            inside[:] = [b * 3.0]
        return inside[0]

    y = looped(x, n, "outer", lambda i, a: looped(a, i, "inner", step))
    history = fetched_from(ab.get_default_graph(), symbol_of(inside[0]))
    check([y, history], [{x: 1.0, n: count} for count in (0, 1, 4)], parallel_iterations=2)


def test_arrays_that_loops_on_two_devices_fill_and_read(n: Symbol):
    source = ab.TensorArray("float32", 5).unstack(ab.convert_to_tensor(np.arange(10, dtype=np.float32).reshape(5, 2)))

    def body(i: Tensor, made: Any) -> Any:
        with ab.device("cpu:1"):
            row = source.read(i) * 2.0
        with ab.device("cpu:2"):
            return i + 1, made.write(i, row + 1.0)

    _, made = ab.while_loop(lambda i, _: i < n, body, (0, ab.TensorArray("float32", 0, dynamic_size=True)))
    program = check([made.stack()], [{n: 5}], parallel_iterations=2)
    assert "TensorArray that crosses" in structure(program.machine)


# --- effects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_effects_keep_their_order_over_devices_and_iterations(window: int, seed: int | None, clusters: bool):
    log = Log()

    def body(i: Tensor, a: Tensor) -> Any:
        log.note("first", i, a, ordered=True)
        with ab.device("cpu:1"):
            a = log.note("second", i, a * 0.5, ordered=True)
        ab.cond(i > 2, lambda: log.note("third", i, a, ordered=True), lambda: a)
        return i + 1, a

    before = log.note("before", 0, 0.5, ordered=True)
    _, a = ab.while_loop(lambda i, _: i < 5, body, (0, before))
    with ab.device("cpu:2"):
        after = log.note("after", 0, 0.5, ordered=True)
    run(machine([a, after], seed=seed, parallel_iterations=window, clusters=clusters), [])
    inside = [(name, i) for i in range(5) for name in ("first", "second", "third") if name != "third" or i > 2]
    assert log.entries == [("before", 0), *inside, ("after", 0)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_variable_is_read_and_written_in_order_in_a_split_loop(seed: int | None):
    v = ab.Variable(1.0, dtype="float32", name="v")

    def body(i: Tensor, seen: Tensor) -> Any:
        with ab.device("cpu:1"):
            seen = seen * 10.0 + v.value
            v.assign_add(1.0)
        return i + 1, seen

    _, seen = ab.while_loop(lambda i, _: i < 4, body, (0, 0.0))
    after = v.value
    program = machine([seen, after], seed=seed, assign=by_name({"i": "cpu:2"}))
    assert "effect in a split loop" in structure(program.machine)
    for start in (1.0, 5.0):
        found = run(program, [])
        assert found[0] == sum((start + k) * 10 ** (3 - k) for k in range(4))
        assert found[1] == v.numpy() == start + 4


def test_sends_of_a_dead_branch_are_dead_too(x: Symbol, p: Symbol):
    y = chosen(p, lambda: chain(x, 2), lambda: x - 1.0)
    with ab.device("cpu:3"):
        y = chosen(p, lambda: y * 2.0, lambda: chosen(x > 0, lambda: y * 3.0, lambda: y * 5.0))
    program = machine([y], [x, p], clusters=False)
    assert len(of_kind(program.machine, "recv")) > 6
    check([y], [{x: value, p: taken} for taken in (True, False) for value in (0.5, -0.5)])
