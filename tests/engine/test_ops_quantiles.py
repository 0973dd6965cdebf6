"""Quantiles, percentiles and medians against NumPy: methods, axes, NaNs, infinities, gradients, errors."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from shared.examples import examples

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.quantiles import METHODS
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


def reference(function: Any, *arguments: Any, **options: Any) -> Any:
    """NumPy's result, without its warnings about rows of NaNs."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


NUMBERS = st.floats(-100, 100, width=32)
SHARES = st.floats(0, 1) | st.lists(st.floats(0, 1), min_size=1, max_size=3)
AXES = st.sampled_from([None, 0, -1, (0, 2), (2, 0, 1), (-1, 1)])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=examples(5, 12))
@given(data=st.data(), q=SHARES, axis=AXES, keepdims=st.booleans())
def test_quantiles(method: str, skip: bool, data: Any, q: Any, axis: Any, keepdims: bool):
    elements = NUMBERS | st.just(float("nan")) if skip else NUMBERS
    x = data.draw(arrays.arrays("float64", arrays.array_shapes(min_dims=3, max_dims=3, max_side=4), elements=elements))
    names = ("nanquantile", "nanpercentile") if skip else ("quantile", "percentile")
    with Graph().as_default():
        values = [
            run(getattr(ops, names[0])(x, q, axis, method, keepdims)),
            run(getattr(ops, names[1])(x, np.multiply(q, 100.0), axis, method, keepdims)),
        ]
    expected = [
        reference(getattr(np, names[0]), x, q, axis=axis, method=method, keepdims=keepdims),
        reference(getattr(np, names[1]), x, np.multiply(q, 100.0), axis=axis, method=method, keepdims=keepdims),
    ]
    for value, wanted in zip(values, expected, strict=True):
        assert value.shape == np.shape(wanted)
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_medians(axis: Any, keepdims: bool):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    np.testing.assert_allclose(
        run(ops.median(x, axis, keepdims)), np.median(x, axis=axis, keepdims=keepdims), rtol=1e-6
    )
    x[1] = np.nan
    expected = reference(np.nanmedian, x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(run(ops.nanmedian(x, axis, keepdims)), expected, rtol=1e-6)
    assert np.isnan(run(ops.median(x, axis, keepdims))).all()


def test_a_nan_spoils_only_its_own_row():
    x = np.array([[1, np.nan, 2], [4, 6, 5]], "float32")
    np.testing.assert_array_equal(run(ops.quantile(x, [0.0, 1.0], axis=1)), [[np.nan, 4], [np.nan, 6]])


def test_rows_of_nans():
    x = np.full((2, 3), np.nan, "float32")
    x[1, 2] = 7
    np.testing.assert_array_equal(run(ops.nanquantile(x, 0.3, axis=1)), [np.nan, 7])


@pytest.mark.parametrize("method", ["linear", "midpoint"])
def test_between_an_infinity_and_a_number_it_is_the_infinity(method):
    low, high = np.array([-np.inf, -3, 1, 2], "float32"), np.array([1, 2, 3, np.inf], "float32")
    assert run(ops.quantile(low, [0.1, 0.3], method=method)).tolist() == [-np.inf, -np.inf]
    assert run(ops.nanquantile(low, [0.1, 0.3], method=method)).tolist() == [-np.inf, -np.inf]
    assert run(ops.quantile(high, [0.7, 0.9], method=method)).tolist() == [np.inf, np.inf]
    assert run(ops.median(low[:2])) == -np.inf
    assert np.isnan(run(ops.quantile(np.array([-np.inf, np.inf], "float32"), 0.5, method=method)))


def test_infinities():
    x = np.array([-np.inf, 1, np.inf, np.inf], "float32")
    assert run(ops.quantile(x, [0.0, 0.4, 0.9, 1.0])).tolist() == [-np.inf, np.inf, np.inf, np.inf]
    assert run(ops.quantile(x, 1 / 3)) == 1


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bool", "float32"), ("int64", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16")]
)
def test_dtypes(dtype: str, expected: str):
    x = np.array([0, 1, 1, 0, 1]).astype(as_dtype(dtype))
    for function in (ops.median, ops.nanmedian, lambda x: ops.quantile(x, 0.5), lambda x: ops.percentile(x, 50)):
        value = run(function(x))
        assert value.dtype == expected
        assert value == 1


def test_positions_in_long_half_precision_rows_are_exact():
    x = np.arange(4097).astype("float16") / np.float16(4096)
    assert run(ops.quantile(x, 0.75, method="nearest")) == np.float16(0.75)


def test_scalars_and_single_elements():
    assert run(ops.quantile(3.0, 0.2)) == 3
    assert run(ops.median(5)) == 5
    assert run(ops.median(3.0, axis=())) == 3
    assert run(ops.median([3.0, 4.0], axis=())).tolist() == [3, 4]


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_unknown_shapes(name: str):
    function, value = getattr(ops, name), np.arange(12, dtype="float32").reshape(3, 4)
    for shape in ((None, None), (None, 4), None):
        x = symbol(shape)
        fetches = [function(x), function(x, axis=0), function(x, axis=-1), function(x, axis=-1, keepdims=True)]
        results = run(fetches, {x: value})
        assert results[0] == 5.5
        assert [result.tolist() for result in results[1:3]] == [[4, 5, 6, 7], [1.5, 5.5, 9.5]]
        assert results[3].shape == (3, 1)
    x, q = symbol(None), [0.5, 1.0]
    assert run(ops.quantile(x, q, axis=0, keepdims=True), {x: value}).shape == (2, 1, 4)


def test_static_shapes_are_known():
    x = symbol((2, None, 3))
    assert ops.quantile(x, [0.5, 1.0], axis=1).shape == (2, 2, 3)
    assert ops.quantile(x, 0.5, axis=(0, 1), keepdims=True).shape == (1, 1, 3)


def test_gradients():
    x = np.random.default_rng(1).permutation(12).reshape(3, 4) / 3.0
    for method in METHODS:
        check_gradients(lambda x, m=method: ops.quantile(x, [0.2, 0.55], axis=1, method=m), [x])
    check_gradients(ops.median, [x])
    check_gradients(lambda x, q: ops.quantile(x, q, axis=0), [x, np.array([0.2, 0.7])], order=1)
    x[1, 2] = np.nan
    tensor = ops.convert_to_tensor(x)
    (slope,) = run(gradients(ops.sum(ops.nanquantile(tensor, 0.25, axis=1)), [tensor]))
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope.sum(axis=1), 1)
    assert slope[1, 2] == 0


def test_q_that_only_a_run_knows():
    q = symbol((None,), "float64")
    values = run(ops.quantile([1.0, 2.0, 3.0], q), {q: np.array([0.5, -0.1, 1.1, 1.0])})
    np.testing.assert_array_equal(values, [2, np.nan, np.nan, 3])


def test_refusals():
    with pytest.raises(ValueError, match=r"quantile: q must be between 0 and 1; got 1\.5"):
        ops.quantile([1.0], 1.5)
    with pytest.raises(ValueError, match=r"percentile: q must be between 0 and 100; got \[50\.0, 101\.0\]"):
        ops.percentile([1.0], [50.0, 101.0])
    with pytest.raises(ValueError, match=r"method must be one of 'linear'.*got 'hazen'"):
        ops.quantile([1.0], 0.5, method="hazen")
    with pytest.raises(ValueError, match=r"q must be a number or a vector; got shape \[1,1\]"):
        ops.quantile([1.0], [[0.5]])
    with pytest.raises(ValueError, match=r"median of an input of shape \[2,0\] over axis 1: there are no elements"):
        ops.median(np.zeros((2, 0)), axis=1)
    with pytest.raises(ValueError, match="needs an input of known rank"):
        ops.median(symbol(None), keepdims=True)
    with pytest.raises(ValueError, match="several axes needs an input of known rank"):
        ops.median(symbol(None), axis=(0, 1))


@pytest.mark.parametrize("axis", [0, None, (0, 1), -2])
def test_open_axes_that_turn_out_to_be_empty(axis: Any):
    x = symbol((None, 3))
    for name in ("median", "nanmedian"):
        with pytest.raises(ValueError, match=rf"{name} of an input.*: there are no elements.*ops\.cond"):
            run(getattr(ops, name)(x, axis=axis), {x: np.zeros((0, 3), "float32")})
    with pytest.raises(ValueError, match=r"quantile of an input.*: there are no elements"):
        run(ops.quantile(x, 0.3, axis=axis, method="nearest"), {x: np.zeros((0, 3), "float32")})


def test_open_axes_among_others():
    x = symbol((None, None))
    np.testing.assert_array_equal(run(ops.median(x, axis=1), {x: np.zeros((0, 3), "float32")}), [])
    np.testing.assert_array_equal(run(ops.median(x, axis=1), {x: np.array([[1, 5, 3]], "float32")}), [3])
    assert check_gradients(lambda y: ops.median(y, axis=0), [np.array([[1.0, 4.0], [2.0, 7.0], [5.0, 3.0]])])
