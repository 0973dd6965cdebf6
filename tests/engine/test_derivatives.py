"""`vjp`, `jvp`, `jacobian`, `hessian`, `batch_jacobian`: against formulas and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import number, repeat, run
from shared.examples import examples

import anabranch as ab
from anabranch.engine.control_flow.vectorized_map import batched_map

ops = ab.ops

W = np.random.default_rng(1).normal(size=(3, 2))


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


def vector(size: int | None = 3, name: str = "x") -> ab.Tensor:
    return ab.placeholder((size,), "float64", name)


def _dense(x: Any) -> Any:
    return ops.tanh(x @ ab.constant(W))


def _loop(x: Any) -> Any:
    return repeat(3, lambda i, h: ops.sin(h * x) + 0.1 * ops.sum(h), x)


def _data_dependent_loop(x: Any) -> Any:
    return ab.while_loop(lambda h: ops.sum(h) < 4.0, lambda h: h * 1.5 + x * x, x)


def _branch(x: Any) -> Any:
    return ab.cond(x[0] > 0.0, lambda: x * x[::-1], lambda: ops.exp(x))


def _no_iteration(x: Any) -> Any:
    return repeat(0, lambda i, h: h * x, x * x)


def _scan(x: Any) -> Any:
    return ab.scan(lambda c, e: (c * e, c + e), x[0], x)[1]


FUNCTIONS: list[Callable[[Any], Any]] = [_dense, _loop, _data_dependent_loop, _branch, _no_iteration, _scan]
AT = np.array([0.3, -0.2, 0.9])


def _differences(f: Callable[[Any], Any], at: np.ndarray[Any, Any], step: float = 1e-6) -> np.ndarray[Any, Any]:
    """The Jacobian by central differences, [elements of y, elements of x]."""
    with ab.Graph().as_default():
        x = vector(len(at))
        call = ab.Session().make_callable(f(x), [x])
        shifts = np.eye(len(at)) * step
        return np.stack([(call(at + e) - call(at - e)) / (2 * step) for e in shifts], axis=1)


# --- jacobian -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("size", [3, None])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_jacobian(f: Callable[[Any], Any], size: int | None, parallel: bool):
    x = vector(size)
    found = run([ab.jacobian(f(x), x, parallel=parallel)], {x: AT})[0]
    np.testing.assert_allclose(found, _differences(f, AT), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_rows_of_a_jacobian_are_computed_together(f: Callable[[Any], Any]):
    x = vector()
    y = f(x)
    _, looped = batched_map(lambda unit: ab.gradients(ops.sum(y * unit), [x])[0], ops.eye(y.shape[0], dtype="float64"))
    assert looped == []


def test_jacobian_of_structures_and_shapes():
    a, b = ab.placeholder((2, 3), "float64", "a"), number("b")
    found = ab.jacobian({"product": a * b, "sum": ops.sum(a)}, (a, b))
    assert [t.shape for t in (*found["product"], found["sum"][0])] == [(2, 3, 2, 3), (2, 3), (2, 3)]
    assert found["sum"][1] is None

    at = np.arange(6.0).reshape(2, 3)
    by_a, by_b, of_sum = run([*found["product"], found["sum"][0]], {a: at, b: 2.0})
    np.testing.assert_array_equal(by_a.reshape(6, 6), 2 * np.eye(6))
    np.testing.assert_array_equal(by_b, at)
    np.testing.assert_array_equal(of_sum, np.ones((2, 3)))


def test_jacobian_of_unknown_rank():
    x = ab.placeholder(None, "float64", "x")
    found = ab.jacobian(ops.sin(x), x)
    at = np.array([[0.1, 0.2], [0.3, 0.4]])
    np.testing.assert_allclose(run([found], {x: at})[0].reshape(4, 4), np.diag(np.cos(at).ravel()))


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_jacobian_without_elements(shape: tuple[int, ...], parallel: bool):
    x = ab.placeholder((None,) * len(shape), "float64", "x")
    found = run([ab.jacobian(x * x, x, parallel=parallel)], {x: np.zeros(shape)})[0]
    assert found.shape == (*shape, *shape)


def test_jacobian_of_scalars():
    x = number()
    assert run([ab.jacobian(x * x, x)], {x: 3.0}) == [6.0]


def test_jacobian_where_nothing_depends():
    x, other = vector(None), number("other")
    assert ab.jacobian(x * x, other) is None
    assert ab.jacobian(x * x, [x * 1.0, other]) == [None, None]
    zeros = ab.jacobian(x * x, other, unconnected_gradients="zero")
    np.testing.assert_array_equal(run([zeros], {x: AT, other: 1.0})[0], np.zeros(3))


def test_jacobian_by_a_variable_of_which_rows_are_taken():
    v = ab.Variable(np.ones((3, 2)), dtype="float64")
    found = run([ab.jacobian(ops.take(v, [2, 0], axis=0) * 3.0, v)])[0]
    expected = np.zeros((2, 2, 3, 2))
    for row, source in enumerate([2, 0]):
        expected[row, [0, 1], source, [0, 1]] = 3
    np.testing.assert_array_equal(found, expected)


def test_jacobian_inside_a_loop_is_differentiated():
    x = vector(2)

    def step(i: Any, h: Any) -> Any:
        return ab.jacobian(h * h * h, h) @ x  # 3 h ** 2 x

    y = repeat(2, step, x)  # 27 x ** 7
    found = run([y, *ab.gradients(y, [x])], {x: [0.5, 2.0]})
    at = np.array([0.5, 2.0])
    np.testing.assert_allclose(found[0], 27 * at**7)
    np.testing.assert_allclose(found[1], 189 * at**6)


def test_jacobian_of_a_function_with_its_own_gradient():
    @ab.custom_gradient
    def f(x: Any) -> Any:
        return x * 1, lambda upstream: upstream * 5

    x = vector()
    np.testing.assert_array_equal(run([ab.jacobian(f(x), x)], {x: AT})[0], 5 * np.eye(3))


def test_jacobian_of_integers_is_refused():
    x = vector()
    with pytest.raises(TypeError, match="int32, which has no derivative"):
        ab.jacobian(ops.cast(x, "int32"), x)


@pytest.mark.parametrize("function", [ab.jacobian, ab.hessian, ab.batch_jacobian])
def test_unconnected_must_be_one_of_two(function: Any):
    x = vector()
    with pytest.raises(ValueError, match="unconnected_gradients must be 'none' or 'zero', got 'zeros'"):
        function(x, x, unconnected_gradients="zeros")


# --- hessian --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_hessian(f: Callable[[Any], Any], parallel: bool):
    x = vector(None)
    found = run([ab.hessian(ops.sum(f(x)), x, parallel=parallel)], {x: AT})[0]

    def slope(x: Any) -> Any:
        return ab.gradients(ops.sum(f(x)), [x])[0]

    np.testing.assert_allclose(found, found.T, atol=1e-12)
    np.testing.assert_allclose(found, _differences(slope, AT), rtol=1e-6, atol=1e-7)


def test_hessian_of_a_matrix_and_of_several():
    a, b = ab.placeholder((2, 2), "float64", "a"), number("b")
    found = ab.hessian(ops.sum(a * a * a) * b * b, [a, b])
    at = np.array([[1.0, 2.0], [3.0, 4.0]])
    by_a, by_b = run(found, {a: at, b: 2.0})
    np.testing.assert_allclose(by_a.reshape(4, 4), np.diag(24 * at.ravel()))
    assert by_b == 200.0


def test_hessian_of_linear_functions():
    x, other = vector(), number("other")
    assert ab.hessian(ops.sum(x), [x, other], unconnected_gradients="none") == [None, None]
    zeros = run(ab.hessian(ops.sum(x), [x, other]), {x: AT, other: 1.0})
    assert [value.shape for value in zeros] == [(3, 3), ()]
    assert not any(np.any(value) for value in zeros)


# --- batch_jacobian -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize("known", [True, False])
def test_batch_jacobian(known: bool, batch: int, parallel: bool):
    x = ab.placeholder((batch if known else None, 3), "float64", "x")
    y = ops.stack([_dense(x), ops.sum(x, axis=1, keepdims=True) * x[:, :2]], axis=1)
    at = np.random.default_rng(0).normal(size=(batch, 3))
    (found,) = run([ab.batch_jacobian(y, x, parallel=parallel)], {x: at})
    assert found.shape == (batch, 2, 2, 3)
    for row, value in zip(found, at, strict=True):
        np.testing.assert_allclose(row[0], _differences(_dense, value), rtol=1e-7)
        np.testing.assert_allclose(row[1], np.ones(3) * value[:2, None] + value.sum() * np.eye(3)[:2])


def test_batch_jacobian_where_nothing_depends():
    x, other = ab.placeholder((None, 2), "float64", "x"), ab.placeholder((None, 3), "float64", "other")
    assert ab.batch_jacobian(x, other) is None
    zeros = ab.batch_jacobian(x, other, unconnected_gradients="zero")
    assert run([zeros], {x: np.ones((4, 2)), other: np.ones((4, 3))})[0].shape == (4, 2, 3)


def test_batch_jacobian_needs_rows():
    x = ab.placeholder((4, 2), "float64", "x")
    with pytest.raises(ValueError, match="y must have a first axis"):
        ab.batch_jacobian(ops.sum(x), x)
    with pytest.raises(ValueError, match="y and x must have as many rows"):
        ab.batch_jacobian(x[:3], x)


# --- vjp and jvp ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", FUNCTIONS)
def test_products_with_the_jacobian(f: Callable[[Any], Any]):
    x = vector(None)
    direction = np.array([0.7, -1.1, 0.4])
    y, dy = ab.jvp(f, (x,), (direction,))
    _, pullback = ab.vjp(f, x)
    size = 2 if f is _dense else 3
    (dx,) = pullback(direction[:size])
    jacobian = _differences(f, AT)

    value, pushed, pulled, plain = run([y, dy, dx, f(x)], {x: AT})
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_allclose(pushed, jacobian @ direction, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(pulled, direction[:size] @ jacobian, rtol=1e-7, atol=1e-9)


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2**31))
@settings(max_examples=examples(6, 25), deadline=None)
def test_forward_and_backward_agree(rows: int, columns: int, seed: int):
    """<u, J t> = <J^T u, t>, for maps between any sizes."""
    rng = np.random.default_rng(seed)
    matrix, at, t, u = (rng.normal(size=shape) for shape in [(rows, columns), columns, columns, rows])
    with ab.Graph().as_default():
        x = vector(columns)

        def f(x: Any) -> Any:
            return ops.sin(ab.constant(matrix) @ x) * ops.sum(x * x)

        dy = ab.jvp(f, (x,), (t,))[1]
        (dx,) = ab.vjp(f, x)[1](u)
        pushed, pulled = run([dy, dx], {x: at})
    np.testing.assert_allclose(u @ pushed, pulled @ t, rtol=1e-9, atol=1e-12)


def test_derivatives_of_higher_order_by_nested_jvp():
    x = number()

    def derivative(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: ab.jvp(f, (x,), (1.0,))[1]

    f: Callable[[Any], Any] = lambda x: repeat(4, lambda i, h: h * x, x)  # noqa: E731
    found = []
    for _ in range(4):
        found.append(f(x))
        f = derivative(f)
    assert run(found, {x: 2.0}) == pytest.approx([32.0, 80.0, 160.0, 240.0])


def test_hessian_times_vector():
    x = vector()

    def slope(x: Any) -> Any:
        return ab.gradients(ops.sum(_loop(x)), [x])[0]

    direction = np.array([1.0, -2.0, 0.5])
    pushed, whole = run([ab.jvp(slope, (x,), (direction,))[1], ab.hessian(_loop(x), x)], {x: AT})
    np.testing.assert_allclose(pushed, whole @ direction)


def test_jvp_inside_a_loop():
    x = number()
    y = repeat(2, lambda i, h: ab.jvp(lambda a: a * a * x, (h,), (h,))[1], x)  # 2 h ** 2 x
    assert run([y, *ab.gradients(y, [x])], {x: 2.0}) == [8 * 2.0**7, 56 * 2.0**6]


def test_structures_auxiliary_values_and_zeros():
    a, b = number("a"), number("b")

    def f(pair: Any, unused: Any) -> Any:
        return {"y": pair[0] * pair[1], "constant": ab.constant(7.0, "float64")}, "label"

    y, dy, aux = ab.jvp(f, ([a, b], a), ([None, 1.0], 5.0), has_aux=True)
    assert aux == "label"
    assert run([y["y"], dy["y"], dy["constant"]], {a: 2.0, b: 3.0}) == [6.0, 2.0, 0.0]

    _, pullback, aux = ab.vjp(f, [a, b], a, has_aux=True)
    pair, unused = pullback({"y": 10.0, "constant": None})
    assert aux == "label"
    assert run([*pair, unused], {a: 2.0, b: 3.0}) == [30.0, 20.0, 0.0]
    assert run(list(pullback(None)[0]), {a: 2.0, b: 3.0}) == [0.0, 0.0]


def test_integers_among_arguments_and_results():
    x = number()

    def f(x: Any, n: Any) -> Any:
        return x * ops.cast(n, "float64"), n + 1

    (y, m), (dy, dm) = ab.jvp(f, (x, 3), (1.0, None))
    assert run([y, m, dy, dm], {x: 2.0}) == [6.0, 4, 3.0, 0]
    dx, dn = ab.vjp(f, x, 3)[1]((2.0, None))
    assert dn is None
    assert run([dx], {x: 2.0}) == [6.0]


def test_one_value_as_two_arguments():
    x = number()
    _, pullback = ab.vjp(lambda a, b: a * a * b, x, x)
    assert run(list(pullback(1.0)), {x: 3.0}) == [18.0, 9.0]


def test_function_of_nothing():
    assert run([ab.jvp(lambda: ab.constant(2.0), (), ())[1]]) == [0.0]


def test_complex_numbers():
    """Along a direction, a function that is not holomorphic has a derivative too."""
    z = ab.placeholder((2,), "complex128", "z")
    at, direction = np.array([1 + 1j, 2 - 1j]), np.array([0.5 - 1j, 2j])
    square = ab.jvp(lambda z: z * z * (1 + 2j), (z,), (direction,))[1]
    absolute = ab.jvp(lambda z: ops.real(z * ops.conjugate(z)), (z,), (direction,))[1]

    found = run([square, absolute], {z: at})
    np.testing.assert_allclose(found[0], 2 * at * (1 + 2j) * direction)
    np.testing.assert_allclose(found[1], 2 * np.real(at * np.conj(direction)))


def test_functions_with_their_own_gradient():
    @ab.custom_gradient
    def f(x: Any) -> Any:
        return ops.sin(x), lambda upstream: upstream * 5

    x = number()
    assert run([ab.jvp(f, (x,), (2.0,))[1]], {x: 1.0}) == [10.0]


def test_keras_name():
    y, dy = ops.jvp(ops.sin, (0.1,), (0.2,))
    assert run([y, dy]) == pytest.approx([0.09983342, 0.19900084])


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("primals", "tangents", "error", "message"),
    [
        (1.0, (1.0,), TypeError, "jvp: primals must be a tuple or list"),
        ((1.0,), 1.0, TypeError, "jvp: tangents must be a tuple or list"),
        ((1.0,), (1.0, 2.0), ValueError, "structure of the primals; they differ at the top"),
        (([1.0], 2.0), ([1.0, 2.0], 1.0), ValueError, r"structure of the primals; they differ at \[0\]"),
        ((1.0,), (np.ones(2),), ValueError, r"\[0\] has shape \[2\] instead of \[\]"),
    ],
)
def test_tangents_must_be_like_primals(primals: Any, tangents: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        ab.jvp(lambda *args: args, primals, tangents)


def test_cotangents_must_be_like_outputs():
    _, pullback = ab.vjp(lambda x: (x, x), ab.constant([1.0, 2.0]))
    with pytest.raises(ValueError, match="vjp: the cotangents must have the structure of the outputs"):
        pullback(1.0)
    with pytest.raises(ValueError, match=r"\[1\] has shape \[3\] instead of \[2\]"):
        pullback((None, np.ones(3)))


@pytest.mark.parametrize("function", [lambda f: ab.jvp(f, (), (), has_aux=True), lambda f: ab.vjp(f, has_aux=True)])
def test_auxiliary_values_need_a_pair(function: Any):
    with pytest.raises(TypeError, match=r"must return a pair \(outputs, aux\)"):
        function(lambda: ab.constant(1.0))
