"""Roots, remainders, parts and bits of numbers, special functions, and functions of integers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.special import bessel_i_values, erfc_values
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


FLOATS = st.floats(-50, 50, width=32, allow_subnormal=False)


# --- against NumPy --------------------------------------------------------------------------------------------------

UNARY = {
    "cbrt": np.cbrt,
    "deg2rad": np.deg2rad,
    "fabs": np.fabs,
    "i0": np.i0,
    "isneginf": np.isneginf,
    "isposinf": np.isposinf,
    "rad2deg": np.rad2deg,
    "signbit": np.signbit,
    "sinc": np.sinc,
}
BINARY = {
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "logaddexp2": np.logaddexp2,
    "nextafter": np.nextafter,
}


@pytest.mark.parametrize("name", UNARY)
@given(x=arrays.arrays("float32", arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), elements=FLOATS))
def test_functions_of_one_value(name: str, x: Any):
    with Graph().as_default():
        result = run(getattr(ops, name)(x))
        expected = np.asarray(UNARY[name](x.astype("float64") if name in ("i0", "sinc") else x)).reshape(x.shape)
    assert result.dtype == ("bool" if expected.dtype == "bool" else "float32")
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", BINARY)
@given(
    x=arrays.arrays("float32", (2, 3), elements=FLOATS | st.just(math.nan)),
    y=arrays.arrays("float32", (3,), elements=st.floats(0.5, 50, width=32) | st.just(math.nan)),
)
def test_functions_of_two_values(name: str, x: Any, y: Any):
    with Graph().as_default():
        result = run(getattr(ops, name)(x, y))
    assert result.dtype == "float32"
    with np.errstate(invalid="ignore"):
        expected = BINARY[name](x, y)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["cbrt", "deg2rad", "i0", "rad2deg"])
def test_int64_counts_as_float64(name: str):
    assert run(getattr(ops, name)(np.array([1, 2]))).dtype == "float64"
    assert run(getattr(ops, name)(np.array([1, 2], "int32"))).dtype == "float32"
    assert run(getattr(ops, name)(np.array([1, 2], "float16"))).dtype == "float16"


@pytest.mark.parametrize("name", ["erfc", "fabs", "sinc"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
def test_integers_count_as_float32(name: str, dtype: str):
    assert run(getattr(ops, name)(np.array([1, 0], dtype))).dtype == "float32"


def test_fmax_and_fmin_of_integers_and_nans():
    assert run(ops.fmax([1, 5], 3)).tolist() == [3, 5]
    assert run(ops.fmin(np.array([True, False]), np.array([False, False]))).tolist() == [False, False]
    assert np.isnan(run(ops.fmax(math.nan, math.nan)))


def test_gradients_pass_the_nans_of_fmax_by():
    x, y = symbol((3,)), symbol((3,))
    slopes = ops.sum(ops.fmax(x, y))
    feeds = {x: np.array([1, np.nan, 4], "float32"), y: np.array([2, 3, np.nan], "float32")}
    dx, dy = run(gradients(slopes, [x, y]), feeds)
    assert dx.tolist() == [0, 0, 1]
    assert dy.tolist() == [1, 1, 0]


def test_infinities_of_integers_and_complex_numbers():
    assert run(ops.isposinf([1, 2])).tolist() == [False, False]
    with pytest.raises(TypeError, match=r"have no sign; got dtype complex64\. Use ops\.isinf"):
        ops.isneginf(np.array([1j], "complex64"))


def test_signbit_of_unsigned_numbers_and_bools():
    assert run(ops.signbit(np.array([0, 255], "uint8"))).tolist() == [False, False]
    assert run(ops.signbit(np.array([True]))).tolist() == [False]


# --- ldexp, view ----------------------------------------------------------------------------------------------------


@given(
    x=arrays.arrays("float32", (4,), elements=FLOATS),
    exponents=arrays.arrays("int8", (4,), elements=st.integers(-100, 100)),
)
def test_ldexp(x: Any, exponents: Any):
    with Graph().as_default():
        assert run(ops.ldexp(x, exponents)).tolist() == np.ldexp(x, exponents).tolist()


def test_ldexp_of_integers():
    result = run(ops.ldexp(np.array([3, 5], "int32"), np.array([1, 2], "int64")))
    assert result.dtype == "float32"
    assert result.tolist() == [6, 20]


@given(
    x=arrays.arrays("int32", arrays.array_shapes(max_dims=3, max_side=4)),
    dtype=st.sampled_from(["float32", "uint32", "int8", "float16", "bfloat16", "uint8"]),
)
def test_view_and_back(x: Any, dtype: str):
    with Graph().as_default():
        viewed = ops.view(x, dtype)
        assert run(viewed).tobytes() == x.tobytes()
        assert viewed.shape == (*x.shape[:-1], x.shape[-1] * 4 // as_dtype(dtype).itemsize)
        assert run(ops.view(viewed, "int32")).tolist() == x.tolist()


def test_view_without_a_dtype_changes_nothing():
    x = symbol((2,))
    assert ops.view(x) is x


def test_view_of_unknown_shapes():
    assert ops.view(symbol((None, 3)), "int8").shape == (None, 12)
    assert ops.view(symbol((3, None)), "int8").shape == (3, None)
    x = symbol(None)
    with pytest.raises(ValueError, match=r"itemsize|last axis"):
        run(ops.view(x, "int64"), {x: np.ones(3, "float32")})


# --- special functions ----------------------------------------------------------------------------------------------


@given(st.floats(-27, 27))
def test_erfc_in_double_precision(x: float):
    np.testing.assert_allclose(erfc_values(np, np.float64(x)), math.erfc(x), rtol=1e-14, atol=1e-320)


def test_erfc_of_what_erf_can_not_tell_from_one():
    assert float(run(ops.erfc(8.0))) == pytest.approx(math.erfc(8.0), rel=1e-6)


@given(st.floats(0, 700), st.integers(1, 4))
def test_bessel_functions_obey_their_recurrence(x: float, order: int):
    before, this, after = (bessel_i_values(np, n, np.float64(x)) for n in (order - 1, order, order + 1))
    assert x * (before - after) == pytest.approx(2 * order * this, rel=1e-9, abs=1e-14 * max(before, 1))


def test_derivatives():
    x = np.array([-1.5, -0.4, 0.3, 2.1])
    for function in (ops.erfc, ops.i0, ops.sinc):
        check_gradients(function, [x], order=3)
    check_gradients(ops.cbrt, [np.abs(x)])
    check_gradients(lambda a, b: ops.fmod(a, b) ** 2, [x, np.array([0.7, 0.9, -1.1, 0.8])])


def test_sinc_is_smooth_at_zero():
    check_gradients(ops.sinc, [np.array([0.0, 1e-3, 0.0318, 0.0319])], order=2)
    x = symbol((), "float64")
    (first,) = gradients(ops.sinc(x), [x])
    (second,) = gradients(first, [x])
    assert run([first, second], {x: 0.0}) == [0, pytest.approx(-(math.pi**2) / 3)]


# --- integers -------------------------------------------------------------------------------------------------------


@given(
    x=arrays.arrays("int32", (2, 3), elements=st.integers(-40, 40)),
    y=arrays.arrays("int16", (3,), elements=st.integers(-40, 40)),
)
def test_divisors_and_multiples(x: Any, y: Any):
    with Graph().as_default():
        divisors, multiples = run([ops.gcd(x, y), ops.lcm(x, y)])
    assert divisors.dtype == "int32"
    assert divisors.tolist() == np.gcd(x, y).tolist()
    assert multiples.tolist() == np.lcm(x, y).tolist()


@given(shape=arrays.array_shapes(max_dims=4, max_side=4), data=st.data())
def test_unravel_index(shape: tuple[int, ...], data: Any):
    size = math.prod(shape)
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=5)), "int64")
    with Graph().as_default():
        found = run(ops.unravel_index(indices, shape))
        expected = np.unravel_index(indices, shape)
        assert [part.tolist() for part in found] == [part.tolist() for part in expected]
        assert {part.dtype.name for part in found} == {"int64"}
        behind = run(ops.unravel_index(indices - size, shape))
        assert [part.tolist() for part in behind] == [part.tolist() for part in expected]


def test_unravel_index_in_an_unknown_shape():
    x, indices = symbol((None, None)), symbol((None,), "int32")
    found = run(ops.unravel_index(indices, ops.shape(x)), {x: np.zeros((3, 4), "float32"), indices: [0, 7, 11]})
    assert [part.tolist() for part in found] == [[0, 1, 2], [0, 3, 3]]


def test_unravel_index_refuses():
    with pytest.raises(ValueError, match=r"index 6 is outside an array of shape \(2, 3\), which has 6"):
        ops.unravel_index([1, 6], (2, 3))
    with pytest.raises(ValueError, match="index -7 is outside"):
        ops.unravel_index(-7, (2, 3))
    with pytest.raises(TypeError, match="takes integers"):
        ops.unravel_index(1.5, (2, 3))


@pytest.mark.parametrize("name", ["isfinite", "isinf", "isnan", "signbit"])
def test_classes_of_numbers_refuse_strings(name: str):
    with pytest.raises(TypeError, match=f"{name} takes numbers; got string"):
        getattr(ops, name)(["a"])
