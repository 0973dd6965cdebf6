"""Elementwise ops: promotion, known values, special cases, gradients at special points, errors."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import pytest

from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.constants import constant
from anabranch.engine.ops.arrays.creation import full
from anabranch.engine.ops.base import Constant
from anabranch.engine.ops.conversion import convert_to_tensor
from anabranch.engine.ops.math import (
    bitwise,
    comparison,
    complex_numbers,
    elementwise,
    floats,
    mathematics,
    nan_aware,
    sigmoids,
    special,
    trigonometry,
)
from anabranch.engine.ops.math.special import erfinv_values
from anabranch.engine.session import Session
from anabranch.engine.testing.comparing import assert_identical


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


def run(op: Any, *inputs: Any) -> Any:
    return op.run(np, *inputs)


def value_of(tensor: Any) -> Any:
    """The value of a tensor that depends on constants alone."""
    node = tensor.operation
    if isinstance(node.op, Constant):
        return node.op.value
    return node.op.run(np, *[value_of(x) for x in node.inputs])


def symbol(dtype: str, *shape: int | None) -> Any:
    return Graph.add(graph_now(), Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def graph_now() -> Graph:
    return symbol_of(constant(0)).graph


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_unknown_sizes_broadcast():
    assert elementwise.add(symbol("float32", None, 3), symbol("float32", 2, 1)).shape == (2, 3)
    assert elementwise.add(symbol("float32", None, 1), symbol("float32", None)).shape == (None, None)


# --- promotion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "left", "right", "expected"),
    [
        (elementwise.add, "float16", 1.5, "float16"),
        (elementwise.add, "bfloat16", 2, "bfloat16"),
        (elementwise.add, "int8", 1, "int8"),
        (elementwise.add, "int32", 1.5, "float32"),
        (elementwise.add, "int32", "int64", "int64"),
        (elementwise.add, "float16", "float32", "float32"),
        (elementwise.add, "bool", 1, "int32"),
        (elementwise.divide, "int32", 2, "float32"),
        (elementwise.divide, "float64", 2, "float64"),
        (elementwise.true_divide, "bool", True, "float32"),
        (elementwise.floor_divide, "int64", 2, "int64"),
        (elementwise.floor_divide, "bool", True, "int32"),
        (elementwise.mod, "uint8", 3, "uint8"),
        (elementwise.mod, "bool", True, "int32"),
        (mathematics.power, "int32", 3, "int32"),
        (mathematics.power, "int32", 2, "int32"),
        (mathematics.power, "int8", 2, "int8"),
        (mathematics.power, "int32", 2.0, "float32"),
        (mathematics.power, "int32", -1.0, "float32"),
        (mathematics.power, "bool", 2, "int32"),
        (mathematics.power, "float16", 2, "float16"),
        (comparison.maximum, "float16", 0, "float16"),
        (comparison.maximum, "int32", 0.5, "float32"),
        (comparison.less, "int32", 0.5, "bool"),
        (comparison.equal, "float16", "float32", "bool"),
        (comparison.logical_and, "int32", 0.5, "bool"),
        (bitwise.bitwise_and, "bool", True, "bool"),
        (bitwise.bitwise_or, "bool", 2, "int32"),
        (bitwise.left_shift, "bool", True, "int32"),
        (mathematics.hypot, "int32", 2, "float32"),
        (mathematics.logaddexp, "float16", 2, "float16"),
        (trigonometry.arctan2, "int32", "int32", "float32"),
        (comparison.heaviside, "int32", 1, "float32"),
        (comparison.divide_no_nan, "int32", "int32", "float32"),
    ],
)
def test_binary_promotion(function: Any, left: str, right: Any, expected: str):
    right = symbol(right, 2) if isinstance(right, str) else right

    result = function(symbol(left, 2), right)

    assert result.dtype == as_dtype(expected)
    assert result.shape == (2,)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (elementwise.negative, "int32"),
        (complex_numbers.absolute, "int32"),
        (elementwise.sign, "int32"),
        (elementwise.square, "int32"),
        (elementwise.reciprocal, "float32"),
        (mathematics.sqrt, "float32"),
        (mathematics.rsqrt, "float32"),
        (mathematics.exp, "float32"),
        (mathematics.log, "float32"),
        (mathematics.floor, "float32"),
        (mathematics.ceil, "float32"),
        (mathematics.trunc, "int32"),
        (mathematics.round, "int32"),
        (trigonometry.tanh, "float32"),
        (sigmoids.sigmoid, "float32"),
        (special.erf, "float32"),
        (comparison.isnan, "bool"),
        (comparison.logical_not, "bool"),
        (bitwise.bitwise_invert, "int32"),
        (nan_aware.nan_to_num, "int32"),
        (elementwise.stop_gradient, "int32"),
        (elementwise.identity, "int32"),
    ],
)
def test_unary_promotion_of_integers(function: Any, expected: str):
    assert function(symbol("int32", 3)).dtype == as_dtype(expected)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("float16", 1.0, "float16"),
        (0, "float64", "float64"),
        (1, 0, "int32"),
        (1, 0.5, "float32"),
        ("int32", 0.5, "float32"),
        ("bool", False, "bool"),
    ],
)
def test_where_promotion(left: Any, right: Any, expected: str):
    x, y = (symbol(side, 2, 1) if isinstance(side, str) else side for side in (left, right))

    result = comparison.where(symbol("bool", 3), x, y)

    assert result.dtype == as_dtype(expected)
    assert result.shape == ((3,) if left == 1 else (2, 3))


def test_operators_on_bools_are_logical():
    x = symbol("bool", 2)

    assert symbol_of(bitwise.bitwise_not(x)).operation.type == "logical_not"
    assert symbol_of(bitwise.bitwise_not(symbol("int32", 2))).operation.type == "bitwise_not"
    assert bitwise.bitwise_xor(x, True).dtype == bool


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        (elementwise.Add(), np.int8(127), np.int8(1), np.int8(-128)),
        (elementwise.Multiply(), np.int32(2**30), np.int32(4), np.int32(0)),
        (elementwise.Subtract(), np.uint8(0), np.uint8(1), np.uint8(255)),
        (elementwise.Divide(), np.float32(1), np.float32(-0.0), np.float32(-np.inf)),
        (elementwise.Divide(), np.float32(0), np.float32(0), np.float32(np.nan)),
        (elementwise.FloorDivide(), np.int32(7), np.int32(0), np.int32(0)),
        (elementwise.FloorDivide(), np.int32(-7), np.int32(2), np.int32(-4)),
        (elementwise.FloorDivide(), np.float32(-7), np.float32(2), np.float32(-4)),
        (elementwise.FloorDivide(), np.float32(1), np.float32(0), np.float32(np.inf)),
        (elementwise.Mod(), np.int32(-7), np.int32(3), np.int32(2)),
        (elementwise.Mod(), np.int32(7), np.int32(0), np.int32(0)),
        (elementwise.Mod(), np.float32(-5.5), np.float32(2), np.float32(0.5)),
        (elementwise.Mod(), np.float32(5.5), np.float32(-2), np.float32(-0.5)),
        (elementwise.Mod(), np.float32(1), np.float32(0), np.float32(np.nan)),
        (elementwise.Mod(), np.float32(-0.0), np.float32(2), np.float32(0.0)),
        (mathematics.Power(), np.int32(3), np.int32(4), np.int32(81)),
        (mathematics.Power(), np.float32(0), np.float32(0), np.float32(1)),
        (mathematics.Power(), np.float32(-2), np.float32(3), np.float32(-8)),
        (mathematics.Power(), np.float32(-2), np.float32(0.5), np.float32(np.nan)),
        (mathematics.Power(), np.float32(0), np.float32(-1), np.float32(np.inf)),
        (comparison.Maximum(), np.float32(np.nan), np.float32(1), np.float32(np.nan)),
        (comparison.Minimum(), np.float32(1), np.float32(np.nan), np.float32(np.nan)),
        (comparison.Equal(), np.float32(0.0), np.float32(-0.0), np.True_),
        (comparison.Equal(), np.float32(np.nan), np.float32(np.nan), np.False_),
        (comparison.NotEqual(), np.float32(np.nan), np.float32(np.nan), np.True_),
        (bitwise.LeftShift(), np.int32(1), np.int32(33), np.int32(0)),
        (bitwise.RightShift(), np.int32(-8), np.int32(1), np.int32(-4)),
        (trigonometry.Arctan2(), np.float32(-0.0), np.float32(-1), np.float32(-np.pi)),
        (mathematics.Logaddexp(), np.float32(-np.inf), np.float32(-np.inf), np.float32(-np.inf)),
        (mathematics.Hypot(), np.float32(3 * 2.0**100), np.float32(2.0**102), np.float32(5 * 2.0**100)),
    ],
)
def test_special_pairs(op: Any, left: Any, right: Any, expected: Any):
    assert_identical(run(op, left, right), expected)
    assert_identical(run(op, np.array([left]), np.array([right])), np.array([expected]))


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        (elementwise.Negative(), 0.0, -0.0),
        (elementwise.Absolute(), -0.0, 0.0),
        (elementwise.Sign(), -0.0, 0.0),
        (elementwise.Sign(), np.nan, np.nan),
        (mathematics.Sqrt(), -1.0, np.nan),
        (mathematics.Sqrt(), -0.0, -0.0),
        (mathematics.Rsqrt(), 0.0, np.inf),
        (mathematics.Log(), 0.0, -np.inf),
        (mathematics.Log(), -1.0, np.nan),
        (mathematics.Exp(), 1000.0, np.inf),
        (mathematics.Floor(), -0.5, -1.0),
        (mathematics.Round(), 2.5, 2.0),
        (mathematics.Round(), -0.5, -0.0),
        (mathematics.Trunc(), -1.7, -1.0),
        (sigmoids.Sigmoid(), -np.inf, 0.0),
        (sigmoids.Sigmoid(), np.nan, np.nan),
        (sigmoids.Softplus(), np.inf, np.inf),
        (sigmoids.Softplus(), np.nan, np.nan),
        (special.Erf(), np.inf, 1.0),
        (special.Erfinv(), 1.0, np.inf),
        (special.Erfinv(), 2.0, np.nan),
        (trigonometry.Arcsin(), 2.0, np.nan),
        (trigonometry.Arctanh(), 1.0, np.inf),
        (trigonometry.Tanh(), -np.inf, -1.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_special_values(op: Any, x: float, expected: float, dtype: str):
    kind = np.dtype(dtype).type

    assert_identical(run(op, kind(x)), kind(expected))
    assert_identical(run(op, np.array([x], dtype)), np.array([expected], dtype))


def units_in_last_place(actual: Any, expected: Any) -> float:
    exact = np.asarray(expected, "float64")
    return float(np.max(np.abs(actual.astype("float64") - exact) / np.spacing(np.abs(exact).astype(actual.dtype))))


def test_sigmoid_is_accurate():
    x = np.linspace(-87, 87, 20_001, dtype="float32")
    wide = x.astype("float64")
    exact = np.where(wide < 0, np.exp(wide) / (1 + np.exp(wide)), 1 / (1 + np.exp(-wide)))

    assert units_in_last_place(run(sigmoids.Sigmoid(), x), exact) < 4


def test_softplus_is_accurate():
    x = np.linspace(-87, 87, 20_001, dtype="float32")

    assert units_in_last_place(run(sigmoids.Softplus(), x), np.logaddexp(0, x.astype("float64"))) < 4


def test_erf_is_accurate():
    x = np.concatenate([np.linspace(-7, 7, 20_001), np.logspace(-300, 0, 2_000)])
    exact = np.array([math.erf(value) for value in x])

    assert units_in_last_place(run(special.Erf(), x), exact) <= 4
    assert units_in_last_place(run(special.Erf(), x.astype("float32")[:20_001]), erf_of(x.astype("float32"))) <= 1


def erf_of(x: Any) -> Any:
    return np.array([math.erf(value) for value in x[:20_001]])


def test_erfinv_is_accurate():
    p = np.concatenate([np.linspace(0.001, 0.999, 999), [1e-9, 1e-12]])
    exact = np.array([NormalDist().inv_cdf(value) for value in p]) / math.sqrt(2)
    x = 2 * p - 1
    settled = np.abs(x) < 0.9  # beyond, the rounding of 2 p - 1 itself shows

    np.testing.assert_allclose(run(special.Erfinv(), x)[settled], exact[settled], rtol=1e-13, atol=1e-15)
    round_trip = np.array([math.erf(value) for value in run(special.Erfinv(), x)])
    np.testing.assert_allclose(round_trip, x, rtol=2e-15, atol=1e-300)


# --- functions of several ops ---------------------------------------------------------------------------------------


def test_square_is_one_product():
    x = symbol("float32", 2)

    assert symbol_of(elementwise.square(x)).operation.type == "multiply"
    assert symbol_of(mathematics.power(x, 2)).operation.type == "multiply"
    assert symbol_of(mathematics.power(x, 2)).operation.inputs == (x, x)


@pytest.mark.parametrize("exponent", [-1, [2, -3]])
def test_power_of_integers_refuses_negative_exponents(exponent: Any):
    with pytest.raises(ValueError, match=r"integers \(int32\) .* negative exponent -\d .*float"):
        mathematics.power(symbol("int32", 2), exponent)


def test_power_with_a_scalar_base():
    result = mathematics.power(2, symbol("int32", 3))

    assert result.dtype == np.int32
    np.testing.assert_array_equal(value_of(mathematics.power(2, [0, 3, 5])), [1, 8, 32])


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (lambda: comparison.clip([-1.0, 0.5, 2.0], 0, 1), [0.0, 0.5, 1.0]),
        (lambda: comparison.clip([-1.0, 0.5, 2.0], None, 1), [-1.0, 0.5, 1.0]),
        (lambda: comparison.clip([-1.0, 0.5, 2.0], 0, None), [0.0, 0.5, 2.0]),
        (lambda: comparison.clip([-1.0, np.nan], 3, 1), [1.0, np.nan]),
        (lambda: comparison.clip([1, 5], [2, 2], 4), [2, 4]),
        (lambda: comparison.select([[True, True, False], [True, False, False]], [1, [2, 3, 4]], 9), [1, 1, 9]),
        (lambda: comparison.heaviside([-2.0, 0.0, 3.0, np.nan], 0.5), [0.0, 0.5, 1.0, np.nan]),
        (lambda: nan_aware.nan_to_num(np.array([np.nan, 1], "float16"), nan=2), [2, 1]),
        (lambda: nan_aware.nan_to_num([np.inf, -np.inf]), [3.4028235e38, -3.4028235e38]),
        (lambda: nan_aware.nan_to_num([np.inf, -np.inf], posinf=5, neginf=-6), [5, -6]),
        (lambda: comparison.divide_no_nan([1.0, 0.0, 3.0], [0.0, 0.0, 2.0]), [0, 0, 1.5]),
        (lambda: elementwise.squared_difference([1, 2], 4), [9, 4]),
        (lambda: elementwise.reciprocal([2, 4]), [0.5, 0.25]),
        (lambda: complex_numbers.absolute([True, False]), [True, False]),
        (lambda: elementwise.add([True, False], True), [True, True]),
        (lambda: elementwise.multiply([True, False], True), [True, False]),
        (lambda: mathematics.round([1.25, -1.35, 2.5], 1), [1.2, -1.4, 2.5]),
        (lambda: mathematics.round([15.0, 25.0, 149.0], -1), [20, 20, 150]),
        (lambda: mathematics.round([15, 25, 149], -1), [20, 20, 150]),
        (lambda: mathematics.round([15, 25], 2), [15, 25]),
        (lambda: mathematics.power([2.0, 3.0], 2), [4, 9]),
        (lambda: comparison.logical_and([0, 1, 2], True), [False, True, True]),
        (lambda: comparison.logical_or([0, 0.5], False), [False, True]),
        (lambda: comparison.logical_xor([0, 3], [1, 1]), [True, False]),
        (lambda: comparison.logical_not([0, 3]), [True, False]),
        (lambda: bitwise.bitwise_not([True, False]), [False, True]),
        (lambda: bitwise.bitwise_not([0, 5]), [-1, -6]),
        (lambda: bitwise.bitwise_left_shift([1, 3], 2), [4, 12]),
        (lambda: bitwise.bitwise_right_shift([-4, 4], 1), [-2, 2]),
        (lambda: comparison.where([1, 0], [1, 2], [3, 4]), [1, 4]),
    ],
)
def test_composite_values(tensor: Any, expected: Any):
    np.testing.assert_allclose(value_of(tensor()), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "close"),
    [
        (1.0, 1.000001, True),
        (1.0, 1.1, False),
        (np.inf, np.inf, True),
        (1.0, np.inf, False),
        (np.inf, -np.inf, False),
        (np.nan, np.nan, False),
    ],
)
def test_isclose(x: float, y: float, close: bool):
    assert value_of(floats.isclose(x, y)) == close == np.isclose(x, y)


def test_isclose_with_equal_nan():
    assert value_of(floats.isclose(np.nan, np.nan, equal_nan=True))


def test_nan_to_num_replaces_the_parts_of_complex_numbers():
    x = np.array([complex(np.inf, np.nan), complex(-1, -np.inf), 2 - 3j], "complex64")

    found = value_of(nan_aware.nan_to_num(x, nan=0.5, neginf=-6))

    assert_identical(found, np.nan_to_num(x, nan=0.5, neginf=-6))


def test_nan_to_num_knows_bfloat16():
    largest = value_of(nan_aware.nan_to_num(np.array([np.inf], as_dtype("bfloat16"))))

    assert np.isfinite(largest.astype("float32"))
    assert largest.view("uint16") == 0x7F7F


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: elementwise.add(symbol("float32", 2), symbol("float32", 3)),
            ValueError,
            r"add: Shapes \[2\] and \[3\]",
        ),
        (lambda: elementwise.subtract(True, False), TypeError, "Use ops.logical_xor"),
        (lambda: elementwise.sign(symbol("complex64", 2)), TypeError, r"sign takes real numbers; got complex64\[2\]"),
        (lambda: comparison.less(symbol("complex64", 2), 1), TypeError, "less takes real numbers"),
        (lambda: cast(Any, comparison.where)(symbol("bool", 2), 1), ValueError, "both x1 and x2, or none of them"),
        (lambda: comparison.select([], []), ValueError, "got 0 conditions and 0 choices"),
        (lambda: comparison.select([True], [1, 2]), ValueError, "got 1 conditions and 2 choices"),
        (lambda: bitwise.bitwise_or(1.5, 1), TypeError, "bitwise_or takes integers or bools"),
        (lambda: bitwise.left_shift(1.5, 1), TypeError, "left_shift takes integers"),
        (
            lambda: elementwise.Add().infer(TensorSpec((), as_dtype("int32")), TensorSpec((), as_dtype("float32"))),
            TypeError,
            r"add takes inputs of one dtype; got int32\[\] and float32\[\]",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        call()


# --- gradients at special points ------------------------------------------------------------------------------------


def gradients_at(function: Any, *values: Any, weights: Any = None) -> list[Any]:
    """The gradients of the sum of `function` (times `weights`) with respect to each of `values`."""
    inputs = [constant(np.array(value, "float64")) for value in values]
    result = function(*inputs)
    if weights is not None:
        result = result * constant(np.array(weights, "float64"))
    return Session().run(gradients(result, inputs))


nan, inf = np.nan, np.inf


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (complex_numbers.absolute, [0.0, -0.0, -3.0, nan], [0, 0, -1, nan]),
        (mathematics.sqrt, [0.0, 4.0, -1.0], [inf, 0.25, nan]),
        (mathematics.rsqrt, [0.0, 4.0, nan], [-inf, -0.0625, nan]),
        (mathematics.log, [0.0, 2.0, nan], [inf, 0.5, nan]),
        (lambda x: mathematics.power(x, 2), [0.0, -3.0], [0, -6]),
        (lambda x: mathematics.power(x, 3), [0.0, -2.0], [0, 12]),
        (lambda x: mathematics.power(x, 1), [0.0, -2.0], [1, 1]),
        (lambda x: mathematics.power(x, 0), [0.0, -2.0], [0, 0]),
        (lambda x: mathematics.power(x, 0.5), [0.0, 4.0], [inf, 0.25]),
        (lambda x: mathematics.power(x, -1), [2.0, -2.0], [-0.25, -0.25]),
        (lambda x: mathematics.power(x, [0, 1, 2, 3]), [0.0, 0.0, 0.0, -1.0], [0, 1, 0, 3]),
        (lambda x: mathematics.power(2, x), [0.0, 3.0], [math.log(2), 8 * math.log(2)]),
        (lambda x: mathematics.power(0, x), [0.0, 3.0], [0, 0]),
        (lambda x: mathematics.power(-2.0, x), [2.0, 3.0], [0, 0]),
        (lambda x: comparison.clip(x, 0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0], [0, 0.5, 1, 0.5, 0]),
        (nan_aware.nan_to_num, [nan, inf, -inf, 2.0], [0, 0, 0, 1]),
        (sigmoids.sigmoid, [-1000.0, 0.0, 1000.0], [0, 0.25, 0]),
        (sigmoids.softplus, [-1000.0, 0.0, 1000.0], [0, 0.5, 1]),
    ],
)
def test_unary_gradients(function: Any, x: Any, expected: Any):
    (dx,) = gradients_at(function, x)

    np.testing.assert_allclose(dx, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "x", "y", "dx", "dy"),
    [
        (comparison.maximum, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0, 0.5, 1], [1, 0.5, 0]),
        (comparison.minimum, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1, 0.5, 0], [0, 0.5, 1]),
        (comparison.maximum, [1.0, 2.0, 3.0], 2.0, [0, 0.5, 1], 1.5),
        (elementwise.mod, [5.5, -5.5, 5.5], [2.0, 2.0, -2.0], [1, 1, 1], [-2, 3, 3]),
        (elementwise.divide, [3.0, 1.0], [2.0, -1.0], [0.5, -1], [-0.75, -1]),
        (mathematics.hypot, [0.0, 3.0], [0.0, 4.0], [0, 0.6], [0, 0.8]),
        (mathematics.logaddexp, [-inf, inf, -inf, 0.0], [-inf, inf, 1.0, 0.0], [0.5, 0.5, 0, 0.5], [0.5, 0.5, 1, 0.5]),
        (comparison.divide_no_nan, [1.0, 3.0], [0.0, 2.0], [0, 0.5], [0, -0.75]),
    ],
)
def test_binary_gradients(function: Any, x: Any, y: Any, dx: Any, dy: Any):
    results = gradients_at(function, x, y)

    np.testing.assert_allclose(results[0], dx, rtol=1e-12)
    np.testing.assert_allclose(results[1], dy, rtol=1e-12)


def test_where_keeps_nan_on_the_side_taken():
    condition = constant([True, False, True])

    dx, dy = gradients_at(lambda x, y: comparison.where(condition, x, y), [1.0, 2.0, 3.0], 4.0, weights=[inf, nan, 1.0])

    np.testing.assert_array_equal(dx, [inf, 0, 1])
    np.testing.assert_array_equal(dy, nan)


def test_where_gradient_of_the_side_not_taken_is_zero():
    condition = constant([True, True])

    dx, dy = gradients_at(lambda x, y: comparison.where(condition, x, y), [1.0, 2.0], [3.0, 4.0], weights=[nan, inf])

    np.testing.assert_array_equal(dx, [nan, inf])
    np.testing.assert_array_equal(dy, [0, 0])


def test_second_gradient_of_power_at_zero():
    x = constant(np.array([0.0, 0.0, 0.0, -1.0]))
    (first,) = gradients(mathematics.power(x, constant(np.array([0.0, 1.0, 2.0, 3.0]))), [x])

    np.testing.assert_array_equal(Session().run(gradients(first, [x])[0]), [0, 0, 2, -6])


def test_stop_gradient_is_a_constant():
    (dx,) = gradients_at(lambda x: x * elementwise.stop_gradient(x), [2.0, 3.0])

    np.testing.assert_array_equal(dx, [2, 3])


def test_where_without_values_gives_indices():
    with Graph().as_default():
        rows, columns = Session().run(comparison.where(convert_to_tensor([[True, False], [True, True]])))
    np.testing.assert_array_equal(rows, [0, 1, 1])
    np.testing.assert_array_equal(columns, [0, 0, 1])


@pytest.mark.parametrize("make", [convert_to_tensor, lambda number: full((), number)])
def test_gradients_with_respect_to_one_of_several_equal_numbers(make: Callable[[float], Any]) -> None:
    with Graph().as_default():
        first, second = make(2.0), make(2.0)
        y = first * first + second * 3.0 + 2.0
        assert Session().run(gradients(y, [first, second])) == [4, 3]


def test_erfinv_of_many_elements_has_the_bits_of_each_alone():
    x = np.concatenate([np.random.default_rng(0).uniform(-1.01, 1.01, 40_000), [1, -1, 0, -0.0, np.nan, 0.85, 5e-324]])
    with np.errstate(all="ignore"):
        found = erfinv_values(np, x)
        assert found[::997].tobytes() == np.array([erfinv_values(np, each) for each in x[::997]]).tobytes()
        assert found[-7:].tobytes() == np.array([erfinv_values(np, each) for each in x[-7:]]).tobytes()
        turned = erfinv_values(np, x[:40_000].reshape(100, 400).T)
    assert turned.T.reshape(-1).tobytes() == found[:40_000].tobytes()
