"""The incomplete gamma function against SciPy's and Keras's numbers: ranges, derivatives, dtypes, edges."""

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.math.gamma_functions import LogGamma
from anabranch.engine.testing import check_gradients

# a, x, what SciPy 1.17 gives.
VALUES = [
    (0.05, 1e-3, 0.7271792290529225),
    (0.5, 0.2, 0.47291074313446196),
    (0.5, 40.0, 1.0),
    (1.0, 1.0, 0.6321205588285577),
    (2.5, 7.0, 0.9843905838997331),
    (3.0, 0.01, 1.6542165280748778e-07),
    (9.5, 9.0, 0.47756172601373725),
    (10.0, 11.0, 0.6594893575343392),
    (30.0, 12.0, 8.870138799144754e-06),
    (30.0, 55.0, 0.9999114521695294),
    (250.0, 250.0, 0.508410626968991),
    (250.0, 180.0, 4.7189442980547454e-07),
    (1000.0, 1080.0, 0.9933533953588841),
]
# Derivatives of the first nine by a, which Keras 3.16 on JAX gives in float32.
SLOPES = [
    -4.6618123, -0.8201614, 0.0, -0.43172967, -0.02172306, -9.6968676e-07, -0.13232103, -0.11569368, -8.442389e-06,
]  # fmt: skip


def test_values_of_all_ranges():
    a, x, expected = np.array(VALUES).T
    np.testing.assert_allclose(ops.gammainc(a, x), expected, rtol=2e-13)


def test_derivatives_by_the_shape_parameter_are_those_of_keras():
    a, x, _ = np.array(VALUES[: len(SLOPES)]).T
    with ab.GradientTape() as tape:
        shape = ab.convert_to_tensor(a)
        tape.watch(shape)
        total = ops.sum(ops.gammainc(shape, x))
    np.testing.assert_allclose(tape.gradient(total, shape), SLOPES, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("a", [0.3, 1.0, 4.0, 9.9, 10.1, 60.0])
def test_gradients_of_both_arguments(a: float):
    x = a * np.array([0.5, 0.9, 1.2, 1.6])
    assert check_gradients(ops.gammainc, [np.array([a]), x], order=2)


def test_gradients_where_it_is_nearly_constant():
    assert check_gradients(ops.gammainc, [np.array([0.4, 2.0]), np.array([30.0, 25.0])], order=1)


def test_a_density_of_one_argument_at_zero():
    with ab.GradientTape() as tape:
        x = ab.convert_to_tensor(np.zeros(3))
        tape.watch(x)
        total = ops.sum(ops.gammainc(np.array([0.5, 1.0, 2.0]), x))
    np.testing.assert_array_equal(tape.gradient(total, x), [np.inf, 1, 0])


def test_large_arguments_follow_the_normal_distribution():
    a = 1e7
    deviations = np.array([-3.0, -1.0, 0.0, 2.0])
    third = 1 / 3 / np.sqrt(a)  # the skew moves the distribution by this, to first order
    density = np.exp(-(deviations**2) / 2) / np.sqrt(2 * np.pi)
    normal = np.array([0.0013498980316301, 0.158655253931457, 0.5, 0.97724986805182])
    expected = normal + third * (1 - deviations**2) * density
    np.testing.assert_allclose(ops.gammainc(a, a + deviations * np.sqrt(a)), expected, rtol=3e-5)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("float16", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", "float32"),
        ("int32", "float16", "float16"),
        ("int64", "uint8", "float32"),
        ("bool", "float64", "float64"),
    ],
)
def test_dtypes_are_those_of_keras(first: str, second: str, expected: str):
    result = ops.gammainc(ops.ones(2, first), ops.ones(2, second))
    assert result.dtype == expected
    np.testing.assert_allclose(ops.cast(result, "float64"), 0.632120558, rtol=1e-2 if "16" in expected else 1e-7)


def test_open_shapes():
    x = ab.Input((None, 3))
    model = ab.Model(x, ops.gammainc(2.0, x))
    value = np.array([[[0.5, 1.0, 4.0]]], "float32")
    np.testing.assert_allclose(model.predict(value, verbose=0), 1 - np.exp(-value) * (1 + value), rtol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_gradients_of_the_logarithm_of_the_gamma_function(order: int):
    assert check_gradients(lambda x: ops.apply(LogGamma(order), x), [np.array([0.2, 1.0, 3.5, 20.0])], order=2)
