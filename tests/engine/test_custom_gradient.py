"""`custom_gradient`: values, derivatives of any order, variables, structures, and what the user may get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from programs.loops import assert_same, derivatives, number, repeat, run, unrolled

import anabranch as ab
from anabranch.engine.graph import eagerly
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.prepare import prepare

ops = ab.ops


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


@ab.custom_gradient
def log1pexp(x: Any) -> Any:
    e = ops.exp(x)
    return ops.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


@ab.custom_gradient
def tripled(x: Any) -> Any:
    """The identity, whose derivative claims to be 3."""
    return x + 0.0, lambda upstream: 3 * upstream


# --- derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [-3.0, 0.0, 0.4, 5.0])
def test_orders_one_to_three(at: float):
    x = number()
    plain = derivatives(ops.log(1 + ops.exp(x)), [x], order=3)

    assert_same(derivatives(log1pexp(x), [x], order=3), plain, {x: at})


def test_value_where_the_plain_derivative_is_not_a_number():
    x = number(dtype="float32")
    (dx,) = ab.gradients(log1pexp(x), [x])

    assert run([dx], {x: 100.0}) == [1.0]


def test_gradient_goes_by_the_function_and_not_by_its_operations():
    x = number()
    y = tripled(x * x)
    first, second = derivatives(y, [x], order=2)[1:]

    assert run([y, first], {x: 2.0}) == [4.0, 12.0]
    assert run([second], {x: 2.0}) == [6.0]


def test_second_derivative_goes_through_the_values_that_the_function_keeps():
    @ab.custom_gradient
    def cube(x: Any) -> Any:
        square = x * x
        return square * x, lambda upstream: 3 * square * upstream

    x = number()
    assert run(derivatives(cube(x), [x], order=3), {x: 2.0})[:3] == [8.0, 12.0, 12.0]


def test_second_derivative_is_that_of_the_gradient_function():
    @ab.custom_gradient
    def odd(x: Any) -> Any:
        return ops.sin(x), lambda upstream: upstream * tripled(x)

    x = number()
    (first,) = ab.gradients(odd(x), [x])
    (second,) = ab.gradients(first, [x])
    assert run([first, second], {x: 0.5}) == [0.5, 3.0]


def test_nested():
    @ab.custom_gradient
    def outer(x: Any) -> Any:
        return tripled(x) * 2, lambda upstream: 5 * upstream

    x = number()
    assert run(ab.gradients(outer(x) + tripled(x), [x]), {x: 1.0}) == [8.0]


# --- where it stands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", range(4))
def test_in_a_loop(trips: int):
    x, n = number(), ab.placeholder((), "int32", "n")
    loop = derivatives(repeat(n, lambda i, h: log1pexp(h * x) * x, x), [x], order=2)
    plain = derivatives(unrolled(trips, lambda i, h: ops.log(1 + ops.exp(h * x)) * x, x), [x], order=2)

    assert_same(loop, plain, {x: 0.7, n: trips})


@pytest.mark.parametrize("taken", [True, False])
def test_in_a_branch(taken: bool):
    x, p = number(), ab.placeholder((), "bool", "p")
    y = ab.cond(p, lambda: log1pexp(x * x), lambda: tripled(x))
    plain = ops.log(1 + ops.exp(x * x))

    if taken:
        assert_same(derivatives(y, [x], 2), derivatives(plain, [x], 2), {x: 0.7, p: True})
    else:
        assert run(derivatives(y, [x], 2), {x: 0.7, p: False}) == [0.7, 3.0, 0.0]


def test_with_a_loop_and_a_branch_inside():
    @ab.custom_gradient
    def power(x: Any) -> Any:
        y = repeat(3, lambda i, h: ab.cond(h > 0.0, lambda: h * x, lambda: h), x)
        return y, lambda upstream: 4 * upstream * y / x

    x = number()
    assert run(derivatives(power(x), [x], 2), {x: 2.0}) == [16.0, 32.0, 48.0]


def test_gradient_inside_a_loop_body():
    x = number()
    y = repeat(2, lambda i, h: ab.gradients(tripled(h * h), [h])[0], x)  # 6 (6 x)
    assert run(derivatives(y, [x], 2), {x: 0.5}) == [18.0, 36.0, 0.0]


def test_in_a_function():
    @ab.function
    def slope(x: Any) -> Any:
        return ab.gradients(tripled(x) * x, [x])[0]

    with eagerly():
        assert float(slope(np.float32(2.0))) == 8.0


def test_in_a_layer():
    class Reversal(ab.layers.Layer):
        def call(self, x: Any) -> Any:
            return _reversed(x)

    inputs = ab.Input((3,))
    model = ab.Model(inputs, Reversal()(inputs))
    x = ab.placeholder((2, 3), "float32")
    (dx,) = ab.gradients(model(x), [x])
    np.testing.assert_array_equal(run([dx], {x: np.ones((2, 3))})[0], -np.ones((2, 3)))


@ab.ops.custom_gradient
def _reversed(x: Any) -> Any:
    return x * 1, lambda upstream: -upstream


# --- arguments and results ------------------------------------------------------------------------------------------


def test_structures_of_arguments_and_results():
    @ab.custom_gradient
    def f(pair: Any, third: Any) -> Any:
        a, b = pair["a"], pair["b"]

        def grad_fn(d_product: Any, d_sum: Any) -> Any:
            return {"a": d_product * b + d_sum, "b": d_product * a}, 7 * d_sum

        return {"product": a * b, "sum": a + third}, grad_fn

    a, b, c = number("a"), number("b"), number("c")
    found = f({"b": b, "a": a}, c)
    assert list(found) == ["product", "sum"]
    slopes = ab.gradients([found["product"], found["sum"]], [a, b, c])
    assert run(slopes, {a: 2.0, b: 5.0, c: 1.0}) == [6.0, 2.0, 7.0]


def test_cotangent_of_an_unused_result_is_zero():
    @ab.custom_gradient
    def f(x: Any) -> Any:
        return (x * 2, x * 3), lambda da, db: da * 10 + db * 100

    x = ab.placeholder((None,), "float64", "x")
    a, b = f(x)
    np.testing.assert_array_equal(run(ab.gradients(a, [x]), {x: [1.0, 2.0]})[0], [10.0, 10.0])
    np.testing.assert_array_equal(run(ab.gradients(b, [x]), {x: [1.0, 2.0]})[0], [100.0, 100.0])


def test_none_and_arguments_without_derivatives():
    @ab.custom_gradient
    def f(x: Any, count: Any, other: Any, flag: bool, label: str) -> Any:
        assert flag is True
        assert label == "plain"
        assert count.dtype == "int32"
        return x * other * ops.cast(count, x.dtype), lambda upstream: (upstream, None, None, None)

    x, other = number("x"), number("other")
    y = f(x, 3, other, True, label="plain")
    assert ab.gradients(y, [other]) == [None]
    assert run([y, *ab.gradients(y, [x])], {x: 2.0, other: 5.0}) == [30.0, 1.0]


def test_integer_results_have_no_cotangent():
    seen: list[Any] = []

    @ab.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any, d_count: Any) -> Any:
            seen.append(d_count)
            return dy

        return (x * 1, ops.cast(x, "int32")), grad_fn

    x = number()
    y, count = f(x)
    assert run([*ab.gradients(y, [x]), count], {x: 2.5}) == [1.0, 2]
    assert seen == [None]


def test_one_list_argument():
    @ab.custom_gradient
    def f(parts: Any) -> Any:
        return parts[0] * parts[1], lambda upstream: [upstream * 2, upstream * 3]

    a, b = number("a"), number("b")
    assert run(ab.gradients(f([a, b]), [a, b]), {a: 1.0, b: 1.0}) == [2.0, 3.0]


def test_python_numbers_and_arrays_are_arguments():
    @ab.custom_gradient
    def f(x: Any, factor: Any) -> Any:
        return x * factor, lambda upstream: (upstream * factor, None)

    x = number(dtype="float32")
    assert run([f(x, 3), *ab.gradients(f(x, np.float32(4)), [x])], {x: 2.0}) == [6.0, 4.0]


def test_one_value_as_two_arguments():
    @ab.custom_gradient
    def f(a: Any, b: Any) -> Any:
        return a * b, lambda upstream: (upstream, upstream * 10)

    x = number()
    assert run(ab.gradients(f(x, x), [x]), {x: 2.0}) == [11.0]


def test_captured_tensors_are_constants():
    outside = number("outside")

    @ab.custom_gradient
    def f(x: Any) -> Any:
        return x * outside, lambda upstream: upstream * outside

    x = number()
    assert ab.gradients(f(x), [outside]) == [None]
    assert run(ab.gradients(f(x), [x]), {x: 2.0, outside: 3.0}) == [3.0]


def test_methods_are_functions_too():
    class Scaled:
        @ab.custom_gradient
        def __call__(self, x: Any) -> Any:
            """Doubles."""
            return x * 2, lambda upstream: upstream * 20

    x = number()
    assert run(ab.gradients(Scaled()(x), [x]), {x: 1.0}) == [20.0]
    assert Scaled.__call__.__doc__ == "Doubles."


def test_step_keeps_nothing_but_the_values(graph: ab.Graph):
    @ab.custom_gradient
    def f(x: Any, unused: Any) -> Any:
        return (x * 2, x * 3), lambda da, db: (da, db)

    x, other = number("x"), number("other")
    first, second = f(x, ops.exp(other))
    step = prepare(graph, [first, second], [symbol_of(x), symbol_of(other)])
    assert {operation.type for operation in step.operations} <= {"constant", "identity", "multiply"}
    assert ab.Session().run([first, second], {x: 1.0}) == [2.0, 3.0]


# --- variables ------------------------------------------------------------------------------------------------------


def _scaled_by(*variables: ab.Variable) -> Any:
    @ab.custom_gradient
    def scaled(x: Any) -> Any:
        y = x
        for variable in variables:
            y = y * variable

        def grad_fn(upstream: Any, variables: Any) -> Any:
            return upstream * 10, [upstream * (100 + k) for k, _ in enumerate(variables)]

        return y, grad_fn

    return scaled


def test_variables_that_the_function_reads():
    v, w = ab.Variable(2.0, dtype="float64", name="v"), ab.Variable(3.0, dtype="float64", name="w")
    x = number()
    y = _scaled_by(v, w)(x)
    assert run([y, *ab.gradients(y, [x, v, w])], {x: 1.0}) == [6.0, 10.0, 100.0, 101.0]


def test_variable_that_was_read_before_and_is_an_argument_too():
    v = ab.Variable(2.0, dtype="float64", name="v")
    before = v * 1.0
    y = _scaled_by(v)(v)
    assert run(ab.gradients(y + before, [v])) == [111.0]


def test_variables_in_a_loop_and_inside_the_functions_own_loop():
    v, x = ab.Variable(2.0, dtype="float64", name="v"), number()
    y = repeat(2, lambda i, h: _scaled_by(v)(h), x)
    assert run(ab.gradients(y, [x, v]), {x: 1.0}) == [100.0, 1100.0]

    @ab.custom_gradient
    def own_loop(x: Any) -> Any:
        y = repeat(2, lambda i, h: h * v, x)
        return y, lambda upstream, variables: (upstream, [upstream * 5])

    assert run([own_loop(x), *ab.gradients(own_loop(x), [x, v])], {x: 1.0}) == [4.0, 1.0, 5.0]


def test_variables_that_are_not_trained_are_constants():
    v = ab.Variable(2.0, dtype="float64", trainable=False)

    @ab.custom_gradient
    def f(x: Any) -> Any:
        return x * v, lambda upstream: upstream

    x = number()
    assert run(ab.gradients(f(x), [x]), {x: 1.0}) == [1.0]


def test_recomputation_in_the_gradient():
    """The gradient function runs the function again and differentiates that."""
    w = ab.Variable(0.7, dtype="float64", name="w")

    def body(x: Any) -> Any:
        return ops.sin(x * w) * x

    @ab.custom_gradient
    def recomputed(x: Any) -> Any:
        def grad_fn(upstream: Any, variables: Any) -> Any:
            again = ops.stop_gradient(x)
            found = ab.gradients(body(again), [again, *variables], upstream)
            return found[0], found[1:]

        return body(x), grad_fn

    x = number()
    assert_same(ab.gradients(recomputed(x), [x, w]), ab.gradients(body(x), [x, w]), {x: 0.3})


def test_cotangent_of_rows():
    """The gradient of a table of which rows are taken may be passed on."""
    table = ab.Variable(np.ones((3, 2)), dtype="float64", name="table")

    @ab.custom_gradient
    def looked_up(indices: Any) -> Any:
        def grad_fn(upstream: Any, variables: Any) -> Any:
            return None, ab.gradients(ops.take(table, indices, axis=0), variables, 2 * upstream)

        return ops.take(table, indices, axis=0), grad_fn

    found = run(ab.gradients(looked_up(np.array([2, 0, 2])), [table]))
    np.testing.assert_array_equal(found[0], [[2, 2], [0, 0], [4, 4]])


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [1.0, (1.0, 2.0), (1.0, abs, abs)])
def test_function_must_return_a_pair(returned: Any):
    def f(x: Any) -> Any:
        return returned

    with pytest.raises(TypeError, match=r"f must return a pair \(outputs, grad_fn\)"):
        ab.custom_gradient(f)(1.0)


def test_function_must_return_a_tensor():
    def f(x: Any) -> Any:
        return None, abs

    with pytest.raises(TypeError, match="f returned no output tensors"):
        ab.custom_gradient(f)(1.0)


def _with_cotangents(returned: Any) -> Any:
    def f(x: Any, scale: Any) -> Any:
        return x * scale, lambda upstream: returned

    return ab.custom_gradient(f)


@pytest.mark.parametrize("returned", [1.0, (1.0, 2.0, 3.0), None])
def test_number_of_cotangents(returned: Any):
    x = number()
    with pytest.raises(ValueError, match=r"one cotangent for each of the 2 arguments \(x, scale\); got [13]\. Return"):
        ab.gradients(_with_cotangents(returned)(x, 2.0), [x])


def test_shape_of_a_cotangent():
    x = ab.placeholder((2, 3), "float32")
    with pytest.raises(ValueError, match=r"a cotangent of shape \[3\] for x, whose shape is \[2,3\]"):
        ab.gradients(_with_cotangents((np.ones(3), None))(x, 2.0), [x])


def test_variables_need_a_place_in_the_gradient_function():
    v = ab.Variable(1.0, name="gain")

    def f(x: Any) -> Any:
        return x * v, lambda upstream: upstream

    with pytest.raises(TypeError, match=r"f reads the variables gain, so its grad_fn must take them"):
        ab.custom_gradient(f)(1.0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (1.0, r"must return a pair \(cotangents of the arguments, cotangents of the variables\); got one float"),
        ((1.0, []), r"one cotangent for each of the 1 variables that it reads \(gain\); got 0"),
        ((1.0, [np.ones(2)]), r"a cotangent of shape \[2\] for gain, whose shape is \[\]"),
    ],
)
def test_cotangents_of_variables(returned: Any, message: str):
    v = ab.Variable(1.0, name="gain")

    @ab.custom_gradient
    def f(x: Any) -> Any:
        return x * v, lambda upstream, variables: returned

    with pytest.raises(ValueError, match=message):
        ab.gradients(f(ab.constant(1.0)), [v])
