"""multi_hot and saturate_cast: values, ranges of all dtypes, errors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)


def evaluate(function: Any, *arrays: Any, unknown: Any = ()) -> Any:
    """`function` of tensors with the values of `arrays`, with the axes `unknown` of unknown size."""
    with Graph().as_default() as graph:
        shapes = [tuple(None if axis in unknown else d for axis, d in enumerate(a.shape)) for a in arrays]
        inputs = [
            graph.add(Placeholder(TensorSpec(shape, a.dtype)), (), "x").outputs[0]
            for shape, a in zip(shapes, arrays, strict=True)
        ]
        return Session().run(function(*inputs), dict(zip(inputs, arrays, strict=True)))


@given(st.lists(st.lists(st.integers(-1, 6), min_size=3, max_size=3), min_size=1, max_size=4), st.booleans())
def test_multi_hot(labels: Any, known: bool):
    x = np.array(labels)
    expected = np.array([[float(c in row) for c in range(5)] for row in labels])
    result = evaluate(lambda t: ops.multi_hot(t, 5), x, unknown=() if known else (0, 1))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(evaluate(lambda t: ops.multi_hot(t, num_tokens=5, dtype="int32"), x[0]), expected[0])


def test_multi_hot_of_more_axes():
    x = rng.integers(0, 4, (2, 3, 5))
    result = evaluate(lambda t: ops.multi_hot(t, 4), x)
    np.testing.assert_array_equal(result, np.eye(4)[x].max(axis=1))


def test_multi_hot_refuses():
    with Graph().as_default():
        with pytest.raises(ValueError, match="multi_hot needs num_classes"):
            ops.multi_hot([1, 2])
        with pytest.raises(TypeError, match="multi_hot takes no argument classes"):
            ops.multi_hot([1, 2], 3, classes=3)
        with pytest.raises(ValueError, match=r"got a scalar. Use one_hot"):
            ops.multi_hot(1, 3)
        with pytest.raises(ValueError, match="at least one label a sample"):
            ops.multi_hot(np.zeros((2, 0), "int32"), 3)
        with pytest.raises(ValueError, match="sparse"):
            ops.multi_hot([1, 2], 3, sparse=True)


NUMBERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("target", [*NUMBERS, "float64"])
@pytest.mark.parametrize("source", [*NUMBERS, "float64"])
def test_saturate_cast_keeps_values_in_range(source: str, target: str):
    wanted = as_dtype(target)
    values = [-3e38, -1e10, -70000, -300, -129, -1, 0, 1, 2, 127, 255, 300, 70000, 5e9, 3e38]
    x = evaluate(lambda t: ops.saturate_cast(t, source), np.array(values))
    assert x.dtype == as_dtype(source)
    result = evaluate(lambda t: ops.saturate_cast(t, target), x)
    assert result.dtype == wanted
    lowest, highest = (evaluate(lambda t: ops.saturate_cast(t, target), np.array([v]))[0] for v in (-1e300, 1e300))
    expected = np.clip(x.astype("float64"), float(lowest), float(highest))
    np.testing.assert_allclose(
        result.astype("float64"), np.trunc(expected) if wanted.kind in "iu" else expected, rtol=1e-2
    )


def test_saturate_cast_of_extremes():
    x = np.array([np.inf, -np.inf, 2147483648.0, -5.5], "float32")
    ints = evaluate(lambda t: ops.saturate_cast(t, "int32"), x)
    assert ints.tolist() == [2147483520, -2147483648, 2147483520, -5]
    assert evaluate(lambda t: ops.saturate_cast(t, "uint8"), x).tolist() == [255, 0, 255, 0]
    small = evaluate(lambda t: ops.saturate_cast(t, "float16"), x)
    assert small.tolist() == [65504, -65504, 65504, -5.5]
    largest = np.array([2**63 - 1, -(2**63)])
    assert evaluate(lambda t: ops.saturate_cast(t, "int8"), largest).tolist() == [127, -128]
    assert evaluate(lambda t: ops.saturate_cast(t, "bool"), np.array([0.0, 7.0])).tolist() == [False, True]
    assert check_gradients(lambda t: ops.saturate_cast(t, "float64"), [np.array([0.5, 2.0])])


def test_saturate_cast_refuses_complex_numbers():
    with Graph().as_default(), pytest.raises(TypeError, match=r"no range for complex numbers.*Use cast"):
        ops.saturate_cast(np.array([1j]), "float32")
