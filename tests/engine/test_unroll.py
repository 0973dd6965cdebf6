"""Unrolling: which loops become copies of their bodies, what is left of arrays and histories, and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shared.placed_steps import running_operations

import anabranch as ab
from anabranch.engine.common.machine_profile import machine_profile
from anabranch.engine.control_flow.frames import History
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Graph
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.containers.array_windows import ArrayOf
from anabranch.engine.ops.containers.tensor_arrays import ArrayOp
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.loops.unroll import MOST_ELEMENTS, MOST_IN_ALL, MOST_OPERATIONS, MOST_TRIPS
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def repeated(times: Any, function: Callable[[Any], Any], start: Any) -> Any:
    """`function` applied so many times."""
    return ab.while_loop(lambda k, _: k < times, lambda k, value: (k + 1, function(value)), (0, start))[1]


def ran(fetches: Sequence[Any]) -> list[Operation]:
    """Return the operations that run of a step of which nothing is fused."""
    return list(running_operations(prepare(ab.get_default_graph(), fetches, []).operations))


def count(fetches: Sequence[Any], *kinds: type[Any]) -> int:
    return sum(isinstance(operation.op, kinds) for operation in ran(fetches))


def check(fetches: Sequence[Any], tolerance: float = 1e-5) -> list[Any]:
    """Without what changes bits, unrolled loops have the interpreter's; otherwise its values."""
    graph = ab.get_default_graph()
    expected = Interpreter().run(graph, fetches, {})
    for value, wanted in zip(Program(graph, fetches, [], exact=True)(), expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
        assert np.asarray(value).dtype == np.asarray(wanted).dtype
    found = list(Program(graph, fetches, [])())
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)
    return found


def why_kept(fetches: Sequence[Any]) -> list[str]:
    with recording() as log:
        prepare(ab.get_default_graph(), fetches, [])
    return [note.text for note in log.of("unroll")[1]]


# --- which loops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", range(MOST_TRIPS + 3))
def test_short_loops_become_copies_of_their_bodies(times: int):
    x = ab.Variable(np.float64(1.5))
    y = repeated(times, lambda y: y * y + x, x)

    wanted = 1.5
    for _ in range(times):
        wanted = wanted * wanted + 1.5
    np.testing.assert_allclose(check([y]), [wanted], rtol=1e-12)
    assert count([y], While) == (times > MOST_TRIPS)
    with without("unroll"):
        assert count([y], While) == 1


def test_a_loop_of_no_iterations_is_its_initial_values():
    x = ab.Variable(np.arange(3.0))
    y = ab.while_loop(lambda k, *_: k < 0, lambda k, y, z: (k + 1, y / 0, z + x[0]), (0, x * 2, np.float64(7)))

    np.testing.assert_array_equal(check([y[1]])[0], [0, 2, 4])
    assert check([y[0], y[2]]) == [0, 7]
    assert {operation.type for operation in ran([y[1]])} == {"read_variable", "constant", "multiply"}


def test_one_iteration_may_be_of_any_size():
    x = ab.Variable(np.ones(MOST_ELEMENTS + 1, "float32"))
    once, twice = (repeated(times, lambda y: y * 2, x) for times in (1, 2))

    assert (count([once], While), count([twice], While)) == (0, 1)
    assert why_kept([twice])[0].endswith(f"is float32[{MOST_ELEMENTS + 1}], and only bodies of small values are copied")


@pytest.mark.parametrize("length", [0, 1, 3, 9])
def test_trip_counts_may_come_from_shapes_that_are_fed(length: int):
    x = ab.placeholder((None,), "float64")
    y = ab.foldl(lambda total, row: total * 2 + row, x, np.float64(0))
    program = ab.Session().make_callable(y, [x])

    wanted = 0.0
    for row in range(length):
        wanted = wanted * 2 + row
    assert program(np.arange(float(length))) == wanted
    step = prepare(ab.get_default_graph(), [y], [x], [ab.ops.zeros((length,), "float64").spec])
    assert any(isinstance(operation.op, While) for operation in step.operations) == (length > MOST_TRIPS)


def test_trip_counts_that_are_not_known_stay_loops():
    limit = ab.Variable(np.int32(3))
    x = ab.Variable(np.float64(1))
    known = ab.while_loop(lambda y: y < 5, lambda y: y + 1, x)

    assert count([repeated(limit, lambda y: y + 1, x), known], While) == 2


def test_what_is_too_much_stays_a_loop():
    x = ab.Variable(np.ones(3))

    def long(y: Any) -> Any:
        for number in range(MOST_OPERATIONS // 3):
            y = ops.sin(y) + number
        return y

    assert count([repeated(1, long, x)], While) == 0
    assert why_kept([repeated(2, long, x)]) == [
        f"stays a loop of 2 iterations: all copies of its body would be {4 * (MOST_OPERATIONS // 3) + 2} operations, "
        f"and {MOST_OPERATIONS} are the most"
    ]
    some = [repeated(1, lambda y, k=k: long(y) * k, x) for k in range(2, 9)]
    assert 0 < count(some, While) < len(some)
    assert (
        sum(not operation.op.regions for operation in prepare(ab.get_default_graph(), some, []).operations)
        < 2 * MOST_IN_ALL
    )


def test_budgets_and_conditions_with_effects_keep_loops():
    x = ab.Variable(np.ones(3))

    def condition(k: Any, _: Any) -> Any:
        ops.print("looking")
        return k < 2

    swapped = ab.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, y * 2), (0, x), swap_memory=True)[1]
    told = ab.while_loop(condition, lambda k, y: (k + 1, y * 2), (0, x))[1]
    assert why_kept([swapped]) == ["stays a loop of 2 iterations: it keeps to a memory budget"]
    assert why_kept([told]) == ["stays a loop of 2 iterations: its condition has effects"]
    plain = repeated(2, lambda y: y * 2, x)
    step = prepare(ab.get_default_graph(), [plain], [], memory_budget=100)
    assert sum(isinstance(operation.op, While) for operation in step.operations) == 1


def test_explain_tells_of_it():
    x = ab.Variable(np.ones(3))
    y = repeated(1, lambda y: y * 2, repeated(3, lambda y: y * 2, x))

    with recording() as log:
        prepare(ab.get_default_graph(), [y], [])
    assert [note.text for note in log.of("unroll")[0]] == ["is 3 copies of its body", "is 1 copy of its body"]


# --- what becomes of the copies -------------------------------------------------------------------------------------


def test_iterations_share_and_fold_what_is_equal():
    x = ab.Variable(np.ones((2, 2)))

    def body(k: Any, y: Any) -> Any:
        return k + 1, y + ops.sin(x) * ops.cast(k * 2 + 1, "float64")

    y = ab.while_loop(lambda k, _: k < 3, body, (0, x))[1]
    found = [operation.type for operation in ran([y]) if operation.type != "constant"]

    assert sorted(found) == ["add"] * 3 + ["multiply"] * 2 + ["read_variable", "sin"]
    np.testing.assert_allclose(check([y])[0], np.full((2, 2), 1 + 9 * np.sin(1)), rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_arrays_are_plain_values(steps: int):
    x = ab.Variable(RNG.normal(size=(steps, 2)))

    def cell(state: Any, row: Any) -> Any:
        state = ops.tanh(state + row)
        return state, state * 2

    last, outputs = ab.scan(cell, np.zeros(2), x)
    loss = ops.sum(outputs * outputs) + ops.sum(last)
    (gradient,) = ab.gradients(loss, [x])

    assert count([loss, gradient], While, History, ArrayOp) == 0
    check([last, outputs, loss, gradient], 1e-10)
    state, wanted = np.zeros(2), []
    for row in np.asarray(x):
        state = np.tanh(state + row)
        wanted.append(2 * state)
    np.testing.assert_allclose(Program(symbol_of(loss).graph, [outputs], [])()[0], wanted, rtol=1e-12)


def test_array_elements_are_cleared_overwritten_and_left_out():
    x = ab.Variable(np.arange(3.0))

    def body(k: Any, array: ab.TensorArray) -> Any:
        return k + 1, array.write(k, x * ops.cast(k, "float64")).write(k, x + 1.0)

    array = ab.while_loop(lambda k, _: k < 2, body, (0, ab.TensorArray("float64", 3)))[1]
    first = array.read(0)
    (gradient,) = ab.gradients(ops.sum(first), [x])

    np.testing.assert_array_equal(check([first])[0], [1, 2, 3])
    np.testing.assert_array_equal(check([gradient])[0], [1, 1, 1])
    assert check([array.size()]) == [3]
    assert count([first, gradient], While, ArrayOp) == 0
    graph = ab.get_default_graph()
    with pytest.raises(IndexError, match="element 2 is read but was never written"):
        Program(graph, [array.read(2)], [])()
    with pytest.raises(IndexError, match="element 2 "):
        Program(graph, [array.stack()], [])()


# --- gradients ------------------------------------------------------------------------------------------------------


def recurrence(x: Any, w: Any, steps: int) -> Any:
    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.tanh(x[t] + h @ w)

    return ops.sum(ops.square(ab.while_loop(lambda t, _: t < steps, body, (0, ops.zeros((2, 3), "float64")))[1]))


def test_gradients_of_first_and_second_order():
    x, w = ab.Variable(RNG.normal(size=(3, 2, 3))), ab.Variable(RNG.normal(size=(3, 3)))
    loss = recurrence(x, w, 3)
    first = [symbol_of(ab.convert_to_tensor(gradient)) for gradient in ab.gradients(loss, [x, w])]
    second = ab.gradients(sum(ops.sum(ops.sin(each)) for each in first), [x, w])
    second = [symbol_of(ab.convert_to_tensor(gradient)) for gradient in second]

    assert count([loss, *first, *second], While, History, ArrayOf) == 0
    found = check([loss, *first, *second], 1e-8)
    with without("unroll"):
        assert count([loss, *first, *second], While) > 1
        for value, wanted in zip(found, Program(loss.graph, [loss, *first, *second], [])(), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-8, atol=1e-8)


def test_a_loop_and_its_backward_loop_stay_together():
    x = ab.Variable(RNG.normal(size=(4,)))

    def body(y: Any) -> Any:  # forward it is short enough, backward not
        for _ in range(MOST_OPERATIONS // 6):
            y = ops.tanh(y)
        return y

    y = ops.sum(repeated(4, body, x))
    (gradient,) = ab.gradients(y, [x])

    assert count([y], While) == 0
    assert count([y, gradient], While) == 2
    assert why_kept([y, gradient])[-1] == "stays a loop: one that shares its record does"
    check([y, gradient], 1e-10)


def test_records_that_are_fetched_are_arrays(graph: Graph):
    x = ab.Variable(np.float64(2))
    kept = []

    def body(y: Any) -> Any:
        kept.append(y * y)
        return kept[-1]

    y = repeated(3, body, x)
    assert [float(value) for value in ab.Session(graph).run(kept[-1])] == [4, 16, 256]
    assert ab.Session(graph).run(y) == 256


# --- loops and branches inside --------------------------------------------------------------------------------------


def nested(outer: int, inner: int, x: Any) -> Any:
    return repeated(outer, lambda y: repeated(inner, lambda z: ops.sin(z) + x, y) * 0.5, x)


@pytest.mark.parametrize(("outer", "inner", "loops"), [(2, 3, 0), (3, 0, 0), (2, 9, 2), (20, 3, 2), (20, 1, 1)])
def test_nested_loops(outer: int, inner: int, loops: int):
    x = ab.Variable(RNG.normal(size=(2,)))
    y = nested(outer, inner, x)
    (first,) = ab.gradients(ops.sum(y), [x])
    (second,) = ab.gradients(ops.sum(ops.square(first)), [x])

    assert count([y], While) == loops
    check([y, first, second], 1e-9)


def test_what_is_recorded_of_loops_inside_long_loops_are_values():
    x = ab.Variable(RNG.normal(size=(2,)))
    y = nested(machine_profile().unrolled_around_trips, 2, x)
    (first,) = ab.gradients(ops.sum(y), [x])
    (second,) = ab.gradients(ops.sum(ops.square(first)), [x])

    for fetches, loops in (([y], 1), ([y, first], 2)):
        assert count(fetches, While) == loops
        assert count(fetches, ArrayOf) == 0
    check([y, first, second], 1e-9)


def test_three_levels():
    x = ab.Variable(RNG.normal(size=(2,)))
    y = repeated(
        machine_profile().unrolled_around_trips // 100,
        lambda z: ops.tanh(nested(machine_profile().unrolled_around_trips, 2, x) + z),
        x,
    )
    (first,) = ab.gradients(ops.sum(y), [x])

    assert count([first], ArrayOf) == 0
    check([y, first], 1e-9)


def test_inner_trip_counts_that_the_outer_loop_counts():
    x = ab.Variable(np.float64(1.25))

    def body(k: Any, y: Any) -> Any:
        return k + 1, repeated(k, lambda z: z * x, y)

    y = ab.while_loop(lambda k, _: k < 4, body, (0, x))[1]
    (gradient,) = ab.gradients(y, [x])

    assert count([y, gradient], While) == 0
    np.testing.assert_allclose(check([y, gradient], 1e-12), [1.25**7, 7 * 1.25**6], rtol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_inside(sign: float):
    x = ab.Variable(np.float64(sign))
    y = repeated(3, lambda y: ab.cond(y > 0, lambda: ops.sin(y) * x, lambda: ops.exp(y) - x), x)
    (first,) = ab.gradients(y, [x])
    (second,) = ab.gradients(first, [x])

    assert count([y, first, second], While) == 0
    check([y, first, second], 1e-10)


def test_loops_inside_branches():
    x = ab.Variable(np.float64(0.5))
    y = ab.cond(x > 0, lambda: repeated(2, lambda y: y * y, x), lambda: repeated(3, ops.exp, x))
    (gradient,) = ab.gradients(y, [x])

    assert count([y, gradient], While) == 0
    assert check([y, gradient], 1e-10) == [0.5**4, 4 * 0.5**3]


# --- effects, errors ------------------------------------------------------------------------------------------------


def test_effects_keep_their_order(graph: Graph, capsys: pytest.CaptureFixture[str]):
    total = ab.Variable(np.int32(1))

    def body(k: Any) -> Any:
        ops.print("before", k, total)
        total.assign(total * 3)
        ops.print("after", k, total)
        return k + 1

    k = ab.while_loop(lambda k: k < 2, body, 0)
    assert count([k], While) == 0
    assert ab.Session(graph).run(k) == 2
    assert capsys.readouterr().err.split("\n")[:-1] == ["before 0 1", "after 0 3", "before 1 3", "after 1 9"]
    assert int(total) == 9


def test_errors_name_the_iteration(graph: Graph):
    x = ab.placeholder((None,), "float64", "x")
    y = repeated(2, lambda y: repeated(3, lambda z: z[1:] * x[ops.size(z)], y), x)

    for names in ((), ("unroll",)):
        with without(*names), pytest.raises(IndexError) as caught:
            Program(graph, [y], [x])(np.ones(4))
        (note,) = caught.value.__notes__
        assert "iteration 0 of 'while/while', iteration 0 of 'while/while'; inputs: float64[4], int32[]" in note


def test_iterations_that_can_not_work_fail_when_they_run(graph: Graph):
    x = ab.Variable(np.ones((4, 2)))
    y = repeated(3, lambda y: ops.reshape(y, (-1, 2))[1:] if y.shape is None else y[1:] + x[1:], x)

    assert count([y], While) == 1
    with pytest.raises(ValueError, match=r"Shapes|shapes|broadcast"):
        Program(graph, [y], [])()
