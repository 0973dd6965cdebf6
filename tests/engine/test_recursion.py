"""Recursive functions: values, arguments and results, how often they are traced, and what is refused."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared.recursive_functions import (
    ackermann,
    calls_in,
    collatz,
    counted,
    doubled,
    fibonacci,
    greatest_divisor,
    power,
    recursions,
    run_both_ways,
)

import anabranch as ab
from anabranch.engine.control_flow.call import EndlessRecursionError
from anabranch.engine.graph import Graph
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops


# --- values ---------------------------------------------------------------------------------------------------------


def test_a_function_that_calls_itself():
    assert [doubled(3.0, n) for n in (-1, 0, 1, 5)] == [3, 3, 6, 96]
    assert doubled(np.array([1.5, -2.0]), 3).tolist() == [12, -16]
    assert doubled(np.zeros((0, 3), "float32"), 2).shape == (0, 3)
    assert np.isnan(doubled(np.float32("nan"), 4))
    assert doubled(3, 2).dtype == "int32"


def test_calls_on_several_paths():
    assert [int(fibonacci(n)) for n in range(12)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert [[int(ackermann(m, n)) for n in range(4)] for m in range(4)] == [
        [1, 2, 3, 4],
        [2, 3, 4, 5],
        [3, 5, 7, 9],
        [5, 13, 29, 61],
    ]
    pairs = [(0, 0), (12, 18), (35, 64), (7, 0), (0, 9), (1071, 462)]
    assert [int(greatest_divisor(a, b)) for a, b in pairs] == [math.gcd(a, b) for a, b in pairs]
    assert [int(collatz(n)) for n in (1, 2, 6, 27)] == [0, 1, 8, 111]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 13])
def test_powers(n: int):
    x = np.array([0.9, -1.1, 2.0])
    np.testing.assert_allclose(power(x, n), x**n, rtol=1e-12)


def test_one_body_serves_all_calls():
    with Graph().as_default() as graph:
        n = ab.placeholder((), "int32")
        found = run_both_ways(graph, [fibonacci(n)], {n: 9})
    assert found == [34]
    (recursion,) = recursions(graph)
    assert calls_in(recursion) == 2
    source = Program(graph, [graph.operations[-1].outputs[0]], [n]).source
    assert source.count("def fibonacci(") == 1
    assert source.count("fibonacci(") == 4  # its definition, two calls in it, and the first one


def test_equal_calls_are_made_once():
    @ab.function
    def twice(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x, lambda: twice(x + 1, n - 1) + twice(x + 1, n - 1))

    with Graph().as_default() as graph:
        x, n = ab.placeholder(()), ab.placeholder((), "int32")
        y = twice(x, n)
        assert Program(graph, [y], [x, n]).source.count("twice(") == 3
        assert run_both_ways(graph, [y], {x: 1.0, n: 4}) == [16 * 5]


def test_dump():
    with Graph().as_default() as graph:
        doubled(ab.placeholder((), "float32", "x"), ab.placeholder((), "int32", "n"))
    assert (
        graph.dump()
        == """\
x: float32[] = placeholder()
n: int32[] = placeholder()
doubled: float32[] = recursion(x, n)
    doubled(x: float32[], n: int32[]):
        less_equal: bool[] = less_equal(n, 0)
        cond/cond: float32[] = cond(less_equal)
            true_fn(; x):
                return x
            false_fn(; x, n):
                multiply: float32[] = multiply(x, 2.0)
                subtract: int32[] = subtract(n, 1)
                doubled: float32[] = call[function=doubled](multiply, subtract)
                return doubled
        return cond/cond
"""
    )


# --- arguments and results ------------------------------------------------------------------------------------------


class State(NamedTuple):
    total: Any
    left: Any


def test_structures():
    @ab.function
    def descend(state: State, options: dict[str, Any], *, offset: Any) -> Any:
        def further() -> Any:
            return descend(State(state.total + offset, state.left - 1), options, offset=offset * options["by"])

        return ab.cond(state.left <= 0, lambda: {"total": state.total, "pair": (offset, [state.left, None])}, further)

    found = descend(State(1.0, 3), {"by": 2.0}, offset=10.0)
    assert found == {"total": 71, "pair": (80, [0, None])}


@pytest.mark.parametrize(
    "further",
    [
        lambda f, x, n: f(x + 1, n - 1),
        lambda f, x, n: f(x + 1, n=n - 1),
        lambda f, x, n: f(n=n - 1, x=x + 1),
        lambda f, x, n: f(x=x + 1, n=n - 1),
    ],
)
def test_arguments_by_position_and_by_name(further: Any):
    @ab.function
    def climb(x: Any, n: Any = 3) -> Any:
        return ab.cond(n <= 0, lambda: x, lambda: further(climb, x, n))

    with Graph().as_default() as graph:
        y = climb(ab.constant(1.5), n=ab.constant(4))
        assert run_both_ways(graph, [y], {}) == [5.5]
    assert len(recursions(graph)) == 1
    assert climb(1.5) == 4.5


def test_a_number_that_becomes_a_tensor():
    @ab.function
    def factorial(n: Any, product: Any = 1) -> Any:
        return ab.cond(n <= 1, lambda: product, lambda: factorial(n - 1, product * n))

    with Graph().as_default() as graph:
        n = ab.placeholder((), "int32")
        assert run_both_ways(graph, [factorial(n)], {n: 6}) == [720]
    (recursion,) = recursions(graph)
    assert calls_in(recursion) == 1
    assert factorial(5) == 120


def test_a_tensor_that_becomes_a_number():
    @ab.function
    def reset(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x, lambda: reset(7, n - 1) + reset(1.5, 0))

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        assert run_both_ways(graph, [reset(x, ab.constant(2))], {x: 3.0}) == [10]


def test_a_call_with_nothing_but_numbers():
    @ab.function
    def down(n: Any) -> Any:
        return ab.cond(n <= 0, lambda: 1, lambda: down(0) + down(n - 1))

    assert down(3) == 4


def test_python_numbers_unroll():
    @ab.function
    def unrolled(x: Any, depth: int) -> Any:
        return x if depth == 0 else unrolled(x * 2, depth - 1)

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        assert run_both_ways(graph, [unrolled(x, 5)], {x: 1.5}) == [48]
    assert not recursions(graph)


def test_other_python_values_are_other_functions():
    @ab.function
    def mixed(x: Any, n: Any, kind: str) -> Any:
        if kind == "plain":
            return x + n
        return ab.cond(n <= 0, lambda: mixed(x, n, "plain"), lambda: mixed(x * 2, n - 1, kind))

    assert mixed(1.5, 3, "doubling") == 12
    assert mixed(1.5, 3, "plain") == 4.5


def test_numbers_as_results_take_the_dtype_of_the_others():
    @ab.function
    def total(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: 0, lambda: x + total(x, n - 1))

    assert total(1.5, 4) == 6
    assert total(np.float64(1.5), 2).dtype == "float64"


def test_shapes_that_grow():
    @ab.function
    def grow(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x, lambda: grow(ops.concatenate([x, x * 2]), n - 1))

    with Graph().as_default() as graph:
        x, n = ab.placeholder((2,), "float64"), ab.placeholder((), "int32")
        y = grow(x, n)
        (dx,) = ab.gradients(y, [x])
        assert y.shape == (None,)
        for count in (0, 3):
            found = run_both_ways(graph, [y, dx], {x: np.array([1.0, 2.0]), n: count})
            expected = np.array([1.0, 2.0])
            for _ in range(count):
                expected = np.concatenate([expected, expected * 2])
            assert found[0].tolist() == expected.tolist()
            assert found[1].tolist() == [3.0**count] * 2


@pytest.mark.parametrize("shape", [(None, 2), (3, None), None])
def test_unknown_shapes(shape: Any):
    value = np.arange(6.0).reshape(3, 2)
    with Graph().as_default() as graph:
        x = ab.placeholder(shape, "float64")
        y = power(x, ab.constant(3))
        (dx,) = ab.gradients(y, [x])
        found = run_both_ways(graph, [y, dx], {x: value})
    np.testing.assert_allclose(found[0], value**3)
    np.testing.assert_allclose(found[1], 3 * value**2)


def test_empty_arrays_have_emptygradients_or_zeros():
    with Graph().as_default() as graph:
        x = ab.placeholder((0, 2), "float64")
        (dx,) = ab.gradients(power(x, ab.constant(3)), [x])
        assert run_both_ways(graph, [dx], {x: np.zeros((0, 2))})[0].shape == (0, 2)


def test_tensor_arrays_as_arguments():
    @ab.function
    def fill(array: Any, n: Any, x: Any) -> Any:
        return ab.cond(n <= 0, lambda: array, lambda: fill(array.write(n - 1, x * x), n - 1, x * 0.5))

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        y = fill(ab.TensorArray("float64", 4), ab.constant(4), x).stack()
        (slope,) = ab.gradients(ops.sum(y * y), [x])
        (curvature,) = ab.gradients(slope, [x])
        found = run_both_ways(graph, [y, slope, curvature], {x: 1.5})
    scales = np.array([0.125, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(found[0], (scales * 1.5) ** 2)
    np.testing.assert_allclose(found[1], (4 * scales**4 * 1.5**3).sum())
    np.testing.assert_allclose(found[2], (12 * scales**4 * 1.5**2).sum())


def test_methods():
    class Scaler:
        def __init__(self, by: float) -> None:
            self.by = ab.Variable(by)

        @ab.function
        def apply(self, x: Any, n: Any) -> Any:
            return ab.cond(n <= 0, lambda: x, lambda: self.apply(x * self.by, n - 1))

    two, three = Scaler(2.0), Scaler(3.0)
    assert [two.apply(1.0, 3), three.apply(1.0, 2), two.apply(1.0, 1)] == [8, 9, 2]


def test_functions_that_call_each_other():
    @ab.function
    def is_even(n: Any) -> Any:
        return ab.cond(ops.equal(n, 0), lambda: ab.constant(True), lambda: is_odd(n - 1))

    @ab.function
    def is_odd(n: Any) -> Any:
        return ab.cond(ops.equal(n, 0), lambda: ab.constant(False), lambda: is_even(n - 1))

    assert [bool(is_even(n)) for n in range(5)] == [True, False, True, False, True]
    assert [bool(is_odd(n)) for n in range(5)] == [False, True, False, True, False]
    with Graph().as_default() as graph:
        assert run_both_ways(graph, [is_odd(ab.constant(7))], {}) == [True]
    assert len(recursions(graph)) == 1


def test_a_function_known_by_no_name():
    table: dict[str, Any] = {}
    table["f"] = ab.function(lambda x, n: ab.cond(n <= 0, lambda: x, lambda: table["f"](x * 2, n - 1)))

    assert table["f"](1.5, 4) == 24


# --- how often a function is traced -----------------------------------------------------------------------------------


def test_functions_that_do_not_recurse_are_traced_once():
    class Counter:
        def __init__(self) -> None:
            self.traces = 0
            self.inner: Any = None

        @ab.function
        def step(self, x: Any) -> Any:
            self.traces += 1
            return x if self.inner is None else self.inner.step(x)

    outer = Counter()
    outer.inner = Counter()
    with Graph().as_default():
        outer.step(ab.constant(1.0))
    outer.step(1.0)
    assert (outer.traces, outer.inner.traces) == (2, 2)


def test_python_objects_reach_the_function_itself():
    notes: list[Any] = []

    @ab.function
    def noted(x: Any, n: Any, into: list[Any]) -> Any:
        into.append(n)
        return ab.cond(n <= 0, lambda: x, lambda: doubled(x, n))

    with Graph().as_default():
        n = ab.constant(2)
        noted(ab.constant(1.0), n, notes)
    assert notes == [n]


def test_traces_of_a_recursion():
    """Once for what it returns without calls, once for what it captures, and once with all that known."""
    traces: list[Any] = []

    @ab.function
    def f(x: Any, n: Any) -> Any:
        traces.append(x.shape)
        return ab.cond(n <= 0, lambda: x, lambda: f(x * 2, n - 1))

    assert f(1.0, 2) == 4
    assert len(traces) <= 3
    assert f(2.0, 1) == 4
    assert len(traces) <= 3
    assert f.trace_count() == 1


# --- errors ---------------------------------------------------------------------------------------------------------


def test_other_dtypes_in_the_call_inside():
    @ab.function
    def halved(x: Any, step: Any) -> Any:
        return ab.cond(x < 0, lambda: x, lambda: halved(x - 1, step * 0.5))

    with pytest.raises(TypeError) as caught:
        halved(1.0, 3)
    assert str(caught.value) == (
        "Function 'halved' must call itself with arguments of the same dtypes.\n"
        "  step: went in as int32, is float32 in the call inside; cast it with ops.cast(..., 'int32')."
    )


def test_an_array_in_the_place_of_a_tensor():
    @ab.function
    def odd(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: n, lambda: odd(ab.TensorArray("float32", 2), n - 1))

    with pytest.raises(TypeError, match=r"x: went in as float32, is array<float32> in the call inside\."):
        odd(1.0, 3)


def test_results_whose_dtype_does_not_settle():
    @ab.function
    def swapping(n: Any) -> Any:
        result = ab.cond(n <= 0, lambda: 0, lambda: swapping(n - 1))
        return ops.cast(result, "int32" if result.dtype == "float32" else "float32")

    with pytest.raises(TypeError, match=r"'swapping' calls itself, but .* not settle: .* int32\[\] and float32\[\]"):
        swapping(3)


def test_another_structure_with_calls_inside():
    shown: list[Any] = []

    @ab.function
    def f(x: Any, n: Any) -> Any:
        shown.append(None)
        result = ab.cond(n <= 0, lambda: x, lambda: f(x, n - 1)[0] if len(shown) > 1 else f(x, n - 1))
        return (result, result) if len(shown) == 1 else result

    with pytest.raises(
        TypeError, match=r"one structure on every path.*it returns \[0\], \[1\], with calls .* one value"
    ):
        f(1.0, 3)


def test_gradients_through_a_call_of_itself_inside():
    @ab.function
    def f(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x, lambda: ab.gradients(f(x * x, n - 1), [x])[0])

    with pytest.raises(LookupError, match="gradient is taken inside function 'f' through its call of itself"):
        f(1.0, 3)


def test_errors_of_a_run_name_operation_line_and_depth():
    @ab.function
    def pick(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x[5], lambda: pick(x, n - 1))

    with Graph().as_default() as graph:
        x = ab.placeholder((None,), "float64")
        y = pick(x, ab.constant(7))
        for run in (
            lambda: ab.Session().run(y, {x: np.ones(3)}),
            lambda: Interpreter().run(graph, [y], {x: np.ones(3)}),
        ):
            with pytest.raises(IndexError, match="index 5") as caught:
                run()
            (note,) = caught.value.__notes__
            assert "get_item), 8 calls deep in 'pick'; inputs: float64[3]" in note
            assert f"defined at {__file__}" in note


def test_errors_in_loops_inside_name_the_iterations_of_the_last_call():
    @ab.function
    def f(x: Any, n: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            return i + 1, total + ab.cond(n <= 0, lambda: x[i + 2], lambda: f(x, n - 1))

        return ab.while_loop(lambda i, total: i < 4, body, (0, 0.0))[1]

    with Graph().as_default() as graph:
        x = ab.placeholder((None,), "float32")
        with ab.name_scope("outer"):
            y = ab.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + f(x, ab.constant(2))), (0, 0.0))[1]
        feeds = {x: np.ones(4, "float32")}
        notes: list[str] = []
        for run in (lambda: ab.Session().run(y, feeds), lambda: Interpreter().run(graph, [y], feeds)):
            with pytest.raises(IndexError) as caught:
                run()
            notes += caught.value.__notes__
    assert notes[0] == notes[1]
    assert "iteration 2 of 'while/while', iteration 0 of 'outer/while/while', 3 calls deep in 'f'" in notes[0]


def test_a_variable_written_inside_has_no_gradient():
    v = ab.Variable(1.0)

    @ab.function
    def f(x: Any, n: Any) -> Any:
        def further() -> Any:
            v.assign_add(1.0)
            return f(x * v, n - 1)

        return ab.cond(n <= 0, lambda: x, further)

    with Graph().as_default():
        y = f(ab.constant(2.0), ab.constant(3))
        with pytest.raises(LookupError, match="writes that variable"):
            ab.gradients(y, [v])


def test_missing_arguments():
    with Graph().as_default(), pytest.raises(TypeError, match=r"counted\(\) missing 1 required .* argument: 'n'"):
        counted(ab.constant(1.0))


@pytest.mark.parametrize(
    "body",
    [
        lambda f, x: f(x + 1),
        lambda f, x: ab.cond(x < 0, lambda: f(x + 1), lambda: f(x - 1) * 2),
        lambda f, x: f(x) if x is None else f(f(x + 1)),
    ],
)
def test_a_function_that_never_returns(body: Any):
    f = ab.function(lambda x: body(f, x))
    with pytest.raises(
        EndlessRecursionError, match=r"never returns: every path through it calls .* Choose with ab.cond"
    ):
        f(1.0)


def test_functions_that_never_return_together():
    @ab.function
    def ping(x: Any) -> Any:
        return pong(x + 1)

    @ab.function
    def pong(x: Any) -> Any:
        return ab.cond(x > 0, lambda: ping(x), lambda: pong(x))

    with pytest.raises(EndlessRecursionError, match="'ping' never returns"):
        ping(1.0)


def test_calls_without_end_in_python():
    @ab.function
    def f(x: Any, depth: int) -> Any:
        return f(x * 2, depth + 1)

    with (
        Graph().as_default(),
        pytest.raises(EndlessRecursionError, match=r"each time with other Python values .*Give it tensors"),
    ):
        f(ab.constant(1.0), 0)
