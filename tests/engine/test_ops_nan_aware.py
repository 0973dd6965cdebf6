"""Reductions that pass over NaNs, against NumPy: axes, rows of NaNs, dtypes, half precision, gradients."""

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
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients

NAN = float("nan")
REDUCTIONS = ["nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar"]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def reference(name: str, x: Any, **options: Any) -> Any:
    """NumPy's result, without its warnings about rows of NaNs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(np, name)(x, **options)


ELEMENTS = st.floats(-9, 9, width=32) | st.just(NAN)
CUBES = arrays.arrays("float64", arrays.array_shapes(min_dims=3, max_dims=3, max_side=3), elements=ELEMENTS)


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=examples(5, 20))
@given(x=CUBES, axis=st.sampled_from([None, 0, -1, (0, 2), (-1, 1)]), keepdims=st.booleans())
def test_reductions(name: str, x: Any, axis: Any, keepdims: bool):
    with Graph().as_default():
        value = run(getattr(ops, name)(x, axis, keepdims))
    np.testing.assert_allclose(value, reference(name, x, axis=axis, keepdims=keepdims), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["nancumsum", "nancumprod"])
@settings(max_examples=examples(5, 20))
@given(x=CUBES, axis=st.sampled_from([None, 0, -1]))
def test_running_totals(name: str, x: Any, axis: Any):
    with Graph().as_default():
        value = run(getattr(ops, name)(x, axis))
    np.testing.assert_allclose(value, reference(name, x, axis=axis), rtol=1e-9)


@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
def test_positions(name: str):
    x = np.array([[NAN, 2, 5], [NAN, NAN, NAN], [3, NAN, 3]], "float32")
    best = {"nanargmax": [2, -1, 0], "nanargmin": [1, -1, 0]}[name]
    found = run(getattr(ops, name)(x, axis=1))
    assert found.dtype == "int32"
    assert found.tolist() == best
    assert run(getattr(ops, name)(x, axis=1, keepdims=True)).tolist() == [[place] for place in best]
    assert run(getattr(ops, name)(x)) == getattr(np, name)(x)
    assert run(getattr(ops, name)([3, 1, 2])) == getattr(np, name)([3, 1, 2])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_of_nans(name: str):
    x = np.array([[NAN, NAN], [1, NAN]], "float32")
    neutral = {"nansum": 0.0, "nanprod": 1.0}.get(name, NAN)
    alone = 0.0 if name in ("nanstd", "nanvar") else 1.0
    np.testing.assert_array_equal(run(getattr(ops, name)(x, axis=1)), [neutral, alone])


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        *[(name, "int32", "float32") for name in ("nanmean", "nanstd", "nanvar")],
        *[(name, "bool", "int32") for name in ("nansum", "nanprod", "nancumsum", "nancumprod")],
        *[(name, "uint8", "uint32") for name in ("nansum", "nanprod")],
        *[(name, "int8", "int8") for name in ("nanmax", "nanmin")],
        *[(name, "bfloat16", "bfloat16") for name in REDUCTIONS],
    ],
)
def test_dtypes(name: str, dtype: str, expected: str):
    x = np.array([1, 1, 0, 1]).astype(as_dtype(dtype))
    value = run(getattr(ops, name)(x))
    assert value.dtype == expected
    np.testing.assert_allclose(np.float64(value), getattr(np, name)(x.astype("float64")), rtol=0.01)


def test_running_totals_in_another_dtype():
    assert run(ops.nancumsum([1.0, NAN], dtype="float64")).dtype == "float64"


def test_half_precision_is_counted_wide():
    ones = np.ones(4096, "float16")
    ones[1] = NAN
    assert run(ops.nanmean(ones * np.float16(100))) == 100
    assert run(ops.nanvar(ones * np.float16(250))) == 0


def test_nothing_to_reduce():
    nothing = np.zeros((2, 0), "float32")
    assert run(ops.nansum(nothing, axis=1)).tolist() == [0, 0]
    assert np.isnan(run(ops.nanmean(nothing, axis=1))).all()
    with pytest.raises(ValueError, match="no elements"):
        ops.nanmax(nothing, axis=1)


@pytest.mark.parametrize("name", ["nancumsum", *REDUCTIONS])
def test_unknown_rank(name: str):
    value = np.array([[1, NAN], [4, 2]], "float32")
    x = symbol(None)
    result = run(getattr(ops, name)(x, axis=1), {x: value})
    np.testing.assert_allclose(result, reference(name, value, axis=1), rtol=1e-6)


@pytest.mark.parametrize("name", ["nancumprod", "nancumsum", *REDUCTIONS])
def test_gradients(name: str):
    x = np.random.default_rng(0).permutation(12).reshape(3, 4) / 3 + 0.1
    check_gradients(lambda x: getattr(ops, name)(x, axis=1), [x])
    x[1, 2] = NAN
    tensor = ops.convert_to_tensor(x)
    (slope,) = run(gradients(ops.sum(getattr(ops, name)(tensor, axis=1)), [tensor]))
    assert np.isfinite(slope).all()
    assert slope[1, 2] == 0
    assert slope[1].any()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_spread_of_complex_numbers_is_real(dtype: Any):
    x = np.array([[1j, 1.0, complex(NAN, 1)], [2.0 - 1j, 0.5j, 3.0]], dtype)
    for name in ("nanvar", "nanstd"):
        found = run(getattr(ops, name)(x, axis=1))

        assert found.dtype == np.zeros((), dtype).real.dtype
        np.testing.assert_allclose(found, getattr(np, name)(x, axis=1), rtol=1e-6)
