"""Complex numbers: values against NumPy, the meaning of their gradients, and these through every op that takes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.autodiff.custom_gradient import custom_gradient
from anabranch.engine.autodiff.derivatives import jvp
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.complex_numbers import Conjugate, complex_type, conjugated, part_type
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "complex64") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def draw(*shape: int, seed: int = 0) -> Any:
    """Complex numbers in all quadrants."""
    rng = np.random.default_rng(seed + 3)
    return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape))[()]


# --- values ---------------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(["complex64", "complex128", "float32", "float64"])


def in_dtype(value: Any, dtype: str) -> Any:
    return np.asarray(value if dtype[0] == "c" else np.real(value)).astype(dtype)[()]


@pytest.mark.parametrize("name", ["real", "imag", "conj", "conjugate", "angle", "abs", "absolute", "square", "isreal"])
@given(shape=shapes, dtype=dtypes)
def test_function_equals_numpy(name: str, shape: Any, dtype: str):
    x = in_dtype(draw(*shape), dtype)
    with Graph().as_default():
        value = run(getattr(ops, name)(x))
    expected = getattr(np, name)(x)
    assert value.dtype == expected.dtype
    assert value.shape == expected.shape
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@given(shape=shapes, dtype=st.sampled_from(["float32", "float64"]))
def test_parts_and_back(shape: Any, dtype: str):
    z = draw(*shape)
    x, y = np.real(z).astype(dtype), np.imag(z).astype(dtype)
    with Graph().as_default():
        whole = ops.complex(x, y)
        pairs = ops.view_as_real(whole)
        values = run([whole, pairs, ops.view_as_complex(pairs), ops.polar(ops.abs(whole), ops.angle(whole))])
    assert values[0].dtype == complex_type(np.dtype(dtype))
    assert values[1].dtype == dtype
    np.testing.assert_array_equal(values[0], x + 1j * y)
    np.testing.assert_array_equal(values[1], np.stack([x, y], axis=-1))
    np.testing.assert_array_equal(values[2], values[0])
    np.testing.assert_allclose(values[3], values[0], rtol=1e-5, atol=1e-5)


def test_parts_keep_infinities_and_signs_of_zeros():
    value = run(ops.complex([np.inf, -0.0], [1, -0.0]))

    assert value[0] == complex(np.inf, 1)
    assert np.signbit(value[1].real)
    assert np.signbit(value[1].imag)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (([1, 2], 3), "complex64"),
        ((np.float16(1), np.float16(2)), "complex64"),
        ((np.float32(1), np.float64(2)), "complex128"),
        (([True], [1]), "complex64"),
    ],
)
def test_dtype_of_parts(parts: Any, expected: str):
    whole = ops.complex(*parts)
    assert whole.dtype == expected
    np.testing.assert_array_equal(run(whole), np.asarray(parts[0]) + 1j * np.asarray(parts[1]))


@pytest.mark.parametrize("dtype", ["int32", "bool", "float16"])
def test_parts_of_real_numbers(dtype: str):
    x = np.array([1, 0], dtype)

    real, imag, conj, flags = run([ops.real(x), ops.imag(x), ops.conj(x), ops.isreal(x)])

    assert real.dtype == imag.dtype == conj.dtype == dtype
    np.testing.assert_array_equal(real, x)
    np.testing.assert_array_equal(imag, [0, 0])
    np.testing.assert_array_equal(conj, x)
    np.testing.assert_array_equal(flags, [True, True])


def test_angle_of_real_numbers():
    x = ops.convert_to_tensor([-2, 0, 3])

    np.testing.assert_allclose(run(ops.angle(x)), [np.pi, 0, 0], rtol=1e-6)
    assert np.isnan(run(ops.angle(np.nan)))


def test_abs_does_not_overflow_on_the_way():
    assert run(ops.abs(np.complex64(3e30 + 4e30j))) == np.float32(5e30)


def test_cast_drops_the_imaginary_part():
    z = np.array([1.5 + 2j, -3j])
    tensor = ops.convert_to_tensor(z)

    for dtype, expected in (("float32", [1.5, 0]), ("int32", [1, 0]), ("bool", [True, True]), ("complex64", z)):
        value = run(ops.cast(tensor, dtype))
        assert value.dtype == dtype
        np.testing.assert_array_equal(value, expected)


def test_reductions_and_products_of_complex_numbers_equal_numpy():
    x, y = draw(3, 4), draw(3, 4, seed=1)
    weights = np.abs(y) > 1
    cases = [
        (ops.sum(x, axis=0), np.sum(x, axis=0)),
        (ops.mean(x), np.mean(x)),
        (ops.prod(x, axis=1), np.prod(x, axis=1)),
        (ops.cumsum(x, axis=1), np.cumsum(x, axis=1)),
        (ops.var(x, axis=1), np.var(x, axis=1)),
        (ops.std(x), np.std(x)),
        (ops.vdot(x, y), np.vdot(x, y)),
        (ops.dot(x, y.T), np.dot(x, y.T)),
        (ops.kron(x, y), np.kron(x, y)),
        (ops.norm(x), np.linalg.norm(x)),
        (ops.norm(x[0], ord=1), np.linalg.norm(x[0], ord=1)),
        (ops.norm(x[0], ord=0), np.linalg.norm(x[0], ord=0)),
        (ops.norm(x, ord="nuc"), np.linalg.norm(x, ord="nuc")),
        (ops.equal(x, np.where(weights, x, y)), np.equal(x, np.where(weights, x, y))),
        (ops.where(weights, x, y), np.where(weights, x, y)),
        (ops.power(x, 2 + 1j), x ** (2 + 1j)),
        (ops.concatenate([x, y]), np.concatenate([x, y])),
        (ops.count_nonzero(x), np.asarray(np.count_nonzero(x))),  # an int of Python before NumPy 2.3
    ]
    for tensor, expected in cases:
        value = run(tensor)
        assert tensor.dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [None, (None,), (None, 2)])
def test_unknown_shapes(shape: Any):
    value: Any = np.array([[1 + 2j, 3], [0, -1j]], "complex64")
    value = value[0] if shape == (None,) else value
    x = symbol(shape)

    real, angle, pairs, size = run([ops.real(x), ops.angle(x), ops.view_as_real(x), ops.abs(x)], {x: value})

    np.testing.assert_array_equal(real, value.real)
    np.testing.assert_allclose(angle, np.angle(value), rtol=1e-6)
    np.testing.assert_array_equal(pairs, np.stack([value.real, value.imag], axis=-1))
    np.testing.assert_allclose(size, np.abs(value), rtol=1e-6)


def test_dtypes_of_parts():
    assert part_type(np.dtype("complex128")) == np.float64
    assert part_type(np.dtype("bool")) == np.bool_
    assert complex_type(np.dtype("float16")) == np.complex64
    assert complex_type(np.dtype("complex128")) == np.complex128


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.complex(1j, 2.0), TypeError, "complex takes real numbers as parts; got complex64"),
        (lambda: ops.view_as_complex([1.0, 2.0, 3.0]), ValueError, r"a last axis of size 2; got shape \[3\]"),
        (lambda: ops.view_as_complex(1.0), ValueError, r"a last axis of size 2; got shape \[\]"),
        (lambda: ops.view_as_complex([1j, 2j]), TypeError, "complex takes real numbers"),
        (lambda: ops.polar(1j, 1.0), TypeError, "complex takes real numbers"),
        (lambda: ops.less(1j, 2j), TypeError, "Complex numbers have no order"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


# --- gradients ------------------------------------------------------------------------------------------------------


def test_gradient_of_a_real_loss_points_uphill():
    z = ops.convert_to_tensor(np.array([1 + 2j, 3 - 1j]))

    (slope,) = gradients(ops.sum(ops.real(z * ops.conj(z))), [z])

    np.testing.assert_allclose(run(slope), 2 * np.array([1 + 2j, 3 - 1j]))  # d(x^2 + y^2) = 2x dx + 2y dy


def test_gradient_of_a_holomorphic_function_is_the_conjugate_of_its_derivative():
    z = ops.convert_to_tensor(np.array([1 + 2j, 3 - 1j]))

    slope, scaled = gradients(ops.exp(z), [z])[0], gradients(ops.exp(z), [z], grad_ys=[np.array([1j, 2])])[0]

    np.testing.assert_allclose(run(slope), np.conj(np.exp([1 + 2j, 3 - 1j])))
    np.testing.assert_allclose(run(scaled), np.array([1j, 2]) * np.conj(np.exp([1 + 2j, 3 - 1j])))


def test_second_gradient():
    z = ops.convert_to_tensor(1 + 2j, "complex128")
    (first,) = gradients(ops.square(ops.abs(z)), [z])  # 2z

    (second,) = gradients(ops.real(first) * ops.imag(first), [z])  # of 4xy

    np.testing.assert_allclose(run(second), 8 + 4j)


def test_gradient_with_respect_to_real_numbers_stays_real():
    x = ops.convert_to_tensor(2.0)

    (slope,) = gradients(ops.real(x * (3 + 4j)) + ops.imag(x * (3 + 4j)), [x])

    assert slope.dtype == "float32"
    assert run(slope) == 7


def test_gradients_at_zero_and_of_angles():
    zero, x = ops.convert_to_tensor(0j), ops.convert_to_tensor(-2.0)

    np.testing.assert_array_equal(run(gradients(ops.abs(zero), [zero])[0]), 0)
    assert gradients(ops.angle(x), [x]) == [None]


def test_nothing_is_conjugated_for_real_numbers():
    x = symbol((2, 2), "float32")
    y = ops.inv(ops.exp(x) @ x)

    found = gradients(y, [x])

    assert conjugated(x) is x
    assert not any(isinstance(operation.op, Conjugate) for operation in found[0].graph.operations)


def test_descent_along_the_gradient():
    matrix, right = draw(4, 3), draw(4, seed=1)
    z = symbol((3,), "complex128")
    loss = ops.sum(ops.square(ops.abs(ops.matmul(matrix, z) - right)))
    (slope,) = gradients(loss, [z])
    session, value = Session(), np.zeros(3, complex)
    rate = 0.5 / np.linalg.norm(matrix, 2) ** 2

    for _ in range(400):
        value = value - rate * session.run(slope, {z: value})

    np.testing.assert_allclose(value, np.linalg.lstsq(matrix, right, rcond=None)[0], rtol=1e-5)


def test_gradients_inside_loops_and_branches():
    start, turn = draw(3), draw(3, seed=1)

    def looped(x: Any, y: Any) -> Any:
        return while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * y + ops.conj(x)), (0, x))[1]

    def branched(x: Any, y: Any) -> Any:
        return cond(ops.sum(ops.real(x)) > -100, lambda: ops.exp(x) * y, lambda: x)

    assert check_gradients(looped, [start, turn], order=2) == 6
    assert check_gradients(branched, [start, turn], order=2) == 6


def test_custom_gradients_are_written_as_they_are_returned():
    @custom_gradient
    def squared(z: Any) -> Any:
        return z * z, lambda upstream: upstream * ops.conj(2 * z)

    assert check_gradients(squared, [draw(3)], order=2) == 6


def test_derivative_along_a_direction():
    z, direction = draw(3), draw(3, seed=1)

    pushed = run(jvp(lambda z: [ops.exp(z), ops.abs(z), ops.conj(z)], [z], [direction])[1])

    np.testing.assert_allclose(pushed[0], np.exp(z) * direction)
    np.testing.assert_allclose(pushed[1], np.real(z.conj() * direction) / np.abs(z))
    np.testing.assert_allclose(pushed[2], direction.conj())


X, Y, SQUARE = draw(2, 3), draw(2, 3, seed=1) + 0.5, draw(3, 3, seed=2)
HOLOMORPHIC = [
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cos", "cosh", "exp", "exp2", "expm1", "log"),
    *("log10", "log1p", "log2", "negative", "reciprocal", "rsqrt", "sigmoid", "silu", "sin", "sinh", "sqrt", "square"),
    *("tan", "tanh"),
]
OF_ONE = {
    **{name: getattr(ops, name) for name in HOLOMORPHIC},
    **{name: getattr(ops, name) for name in ("abs", "angle", "conj", "imag", "real", "view_as_real")},
    **{name: getattr(ops, name) for name in ("cumprod", "cumsum", "mean", "prod", "std", "sum", "transpose", "var")},
    "cast": lambda x: ops.cast(x, "float64"),
    "flip": ops.flip,
    "getitem": lambda x: x[:, 1],
    "norm": ops.norm,
    "norm 1": lambda x: ops.norm(x, 1, axis=1),
    "nuclear norm": lambda x: ops.norm(x, "nuc"),
    "pad": lambda x: ops.pad(x, 1),
    "power 3": lambda x: x**3,
    "power -2": lambda x: x**-2.0,
    "power of complex": lambda x: x ** (1 + 2j),
    "power of real": lambda x: 2.0**x,
    "slice_update": lambda x: ops.slice_update(x, [0, 1], x[:1, :1] * 2),
    "take": lambda x: ops.take(x, [0, 2, 2], axis=1),
}
OF_TWO: dict[str, Callable[..., Any]] = {
    **{name: getattr(ops, name) for name in ("add", "divide", "multiply", "outer", "power", "subtract", "vdot")},
    "cdist": ops.cdist,
    "concatenate": lambda x, y: ops.concatenate([x, y * x]),
    "einsum": lambda x, y: ops.einsum("ij,kj->ik", x, y),
    "kron": ops.kron,
    "matmul": lambda x, y: ops.matmul(x, ops.transpose(y)),
    "batch matmul": lambda x, y: ops.matmul(ops.stack([x, y]), ops.stack([ops.transpose(y)] * 2)),
    "tensordot": lambda x, y: ops.tensordot(x, y, axes=((1,), (1,))),
    "where": lambda x, y: ops.where(np.real(X) > 0, x * y, y),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_gradients_of_functions_of_one_value(name: str):
    assert check_gradients(OF_ONE[name], [X], order=2) == 6


@pytest.mark.parametrize("name", OF_TWO)
def test_gradients_of_functions_of_two_values(name: str):
    assert check_gradients(OF_TWO[name], [X, Y], order=2) == 6


@pytest.mark.parametrize("name", ["det", "inv", "trace"])
def test_gradients_of_functions_of_square_matrices(name: str):
    assert check_gradients(getattr(ops, name), [SQUARE], order=2) == 6


def test_gradients_of_solutions():
    assert check_gradients(ops.solve, [SQUARE, Y.T], order=2) == 6
    assert check_gradients(lambda a, b: ops.solve_triangular(a, b, lower=True), [SQUARE, Y[0]], order=2) == 6


@pytest.mark.parametrize("mixed", [ops.multiply, ops.divide, ops.power, ops.matmul])
def test_gradients_of_real_beside_complex_numbers(mixed: Callable[..., Any]):
    assert check_gradients(mixed, [np.abs(X[:, :2]) + 0.5, Y[:, :2]], order=2) == 6


@pytest.mark.parametrize("function", [ops.complex, ops.polar])
def test_gradients_of_what_makes_complex_numbers(function: Callable[..., Any]):
    assert check_gradients(function, [np.real(X), np.imag(X)], order=2) == 6
    assert check_gradients(ops.view_as_complex, [np.real(X).reshape(3, 2)], order=2) == 6
