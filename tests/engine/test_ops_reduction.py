"""Reductions, sorting and running totals: dtypes, empty axes, ties, zeros, half precision, unknown shapes, errors."""

from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.reduced import Sum
from anabranch.engine.ops.math.reduction import Mean
from anabranch.engine.session import Session


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def gradient(function: Any, *values: Any) -> Any:
    xs = [ops.convert_to_tensor(np.asarray(value, "float64")) for value in values]
    found = run(gradients(ops.sum(function(*xs)), xs))
    return found[0] if len(found) == 1 else found


# --- dtypes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bool", "int32"), ("int8", "int32"), ("uint8", "uint32"), ("int64", "int64"), ("float16", "float16")],
)
def test_sum_dtype(dtype: str, expected: str):
    total = run(ops.sum(np.ones((2, 3), dtype), axis=1))
    assert total.dtype == expected
    assert total.tolist() == [3, 3]


def test_small_integers_do_not_overflow():
    assert run(ops.sum(np.full(10, 100, "int8"))) == 1000
    assert run(ops.prod(np.full(4, 10, "uint8"))) == 10000


@pytest.mark.parametrize("function", [ops.mean, ops.var, ops.std, ops.logsumexp])
@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_statistics_of_integers_are_float32(function: Any, dtype: str):
    assert run(function(np.array([[0, 1], [1, 1]], dtype), axis=0)).dtype == "float32"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_wide(dtype: str):
    ones = np.ones(4096, "float32").astype(as_dtype(dtype))
    assert float(run(ops.sum(ones))) == 4096  # in half precision the sum would stop growing at 256 or 2048
    assert float(run(ops.mean(ones * 100))) == 100
    assert run(ops.mean(ones)).dtype == as_dtype(dtype)
    assert float(run(ops.var(ones * 250))) == 0  # the squares alone exceed the range of float16


def test_half_precision_variance_of_large_values():
    x = np.array([200, -200], "float16")  # 40000 fits, the sum of the squares does not
    assert run(ops.var(x)) == np.float16(40000)


# --- nothing to reduce ----------------------------------------------------------------------------------------------


def test_reductions_of_nothing():
    nothing = np.zeros((2, 0), "float32")
    assert run(ops.sum(nothing, axis=1)).tolist() == [0, 0]
    assert run(ops.prod(nothing, axis=1)).tolist() == [1, 1]
    assert np.isnan(run(ops.mean(nothing, axis=1))).all()
    assert run(ops.all(nothing, axis=1)).tolist() == [True, True]
    assert run(ops.any(nothing, axis=1)).tolist() == [False, False]
    assert run(ops.logsumexp(nothing, axis=1)).tolist() == [-np.inf, -np.inf]
    assert run(ops.max(nothing, axis=1, initial=-3)).tolist() == [-3, -3]
    assert run(ops.count_nonzero(nothing)) == 0


def test_maximum_of_nothing_is_refused_when_run():
    x = symbol((2, None))
    with pytest.raises(ValueError, match=r"no elements|zero-size"):
        run(ops.max(x, axis=1), {x: np.zeros((2, 0), "float32")})


def test_gradients_of_reductions_of_nothing_are_empty():
    for function in (ops.sum, ops.mean, ops.prod, ops.logsumexp):
        assert gradient(lambda x, f=function: f(x, axis=1), np.zeros((2, 0))).shape == (2, 0)


def test_axis_of_size_zero_that_is_kept():
    assert run(ops.max(np.zeros((0, 3), "float32"), axis=1)).shape == (0,)
    assert run(ops.argmax(np.zeros((0, 3), "float32"), axis=1)).shape == (0,)


# --- axes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (-1, 0), ()])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "var", "std"])
def test_axes_as_in_numpy(name: str, axis: Any, keepdims: bool):
    x = np.random.default_rng(0).uniform(1, 2, (2, 3, 4)).astype("float32")
    result = run(getattr(ops, name)(x, axis=axis, keepdims=keepdims))
    expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    assert result.shape == expected.shape


@pytest.mark.parametrize("axis", [None, 1, -1, (-1, -2)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "logsumexp", "std", "prod"])
def test_unknown_rank(name: str, axis: Any):
    x = symbol(None)
    y = getattr(ops, name)(x, axis=axis)
    assert y.shape == (() if axis is None else None)
    (dx,) = gradients(ops.sum(y), [x])
    value = np.random.default_rng(0).uniform(1, 2, (2, 3, 4)).astype("float32")
    static = ops.convert_to_tensor(value)
    z = getattr(ops, name)(static, axis=axis)
    expected = run([z, *gradients(ops.sum(z), [static])])
    for actual, wanted in zip(run([y, dx], {x: value}), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_partly_known_shapes():
    x = symbol((None, 3))
    assert ops.sum(x, axis=0).shape == (3,)
    assert ops.sum(x, axis=1).shape == (None,)
    assert ops.mean(x, axis=1, keepdims=True).shape == (None, 1)
    assert ops.argmax(x, axis=-1).shape == (None,)
    assert ops.sort(x, axis=0).shape == (None, 3)
    assert [t.shape for t in ops.top_k(x, 2)] == [(None, 2), (None, 2)]


@pytest.mark.parametrize("axis", [2, -3, (0, 5)])
def test_axis_out_of_range(axis: Any):
    with pytest.raises(ValueError, match="out of range for an input of rank 2"):
        ops.sum(np.ones((2, 2)), axis=axis)


def test_axis_twice():
    with pytest.raises(ValueError, match="twice"):
        ops.sum(np.ones((2, 2)), axis=(0, -2))
    with pytest.raises(ValueError, match="twice"):
        ops.sum(symbol(None), axis=(1, 1))


# --- gradients that need care ---------------------------------------------------------------------------------------


def test_gradient_of_extrema_is_split_among_ties():
    x = [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]
    np.testing.assert_allclose(gradient(lambda x: ops.max(x, axis=1), x), [[0, 0.5, 0.5], [1 / 3] * 3])
    np.testing.assert_allclose(gradient(lambda x: ops.min(x), x), [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(gradient(lambda x: ops.max(x, initial=3.0), x), [[0, 1 / 3, 1 / 3], [0, 0, 0]])
    np.testing.assert_allclose(gradient(lambda x: ops.max(x, initial=9.0), x), np.zeros((2, 3)))


@pytest.mark.parametrize("x", [[2.0, 0.0, 3.0, 4.0], [0.0, 5.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
def test_product_with_zeros_to_second_order(x: list[float]):
    value = ops.convert_to_tensor(np.array(x))
    (first,) = gradients(ops.prod(value), [value])
    hessian = np.stack([run(gradients(first[i], [value])[0]) for i in range(4)])
    others = [[np.prod([v for k, v in enumerate(x) if k not in (i, j)]) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(run(first), np.diag(others))
    np.testing.assert_allclose(hessian, np.where(np.eye(4), 0, others))


def test_gradient_of_cumprod_with_zeros():
    x = np.array([2.0, 0.0, 3.0])
    # y = (a, ab, abc), so the sum of y has the derivatives 1 + b + bc, a + ac, ab
    np.testing.assert_allclose(gradient(lambda x: ops.cumprod(x), x), [1.0, 8.0, 0.0])


def test_gradient_of_sort_and_top_k_goes_where_the_values_came_from():
    x = np.array([3.0, 1.0, 2.0])
    weights = np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(gradient(lambda x: ops.sort(x) * weights, x), [30, 10, 20])
    np.testing.assert_allclose(gradient(lambda x: ops.top_k(x, 2)[0] * weights[:2], x), [10, 0, 20])


def test_gradient_of_logsumexp_is_softmax_even_of_large_values():
    np.testing.assert_allclose(gradient(ops.logsumexp, [1000.0, 1000.0, -1000.0]), [0.5, 0.5, 0])


def test_mean_is_one_operation():
    x = symbol((None, 3))
    assert isinstance(symbol_of(ops.mean(x, axis=0)).operation.op, Mean)
    assert isinstance(symbol_of(ops.sum(x, axis=0)).operation.op, Sum)


# --- NaN ------------------------------------------------------------------------------------------------------------


def test_nan():
    x = np.array([[1, np.nan, 3], [4, 5, 6]], "float32")
    for name in ("sum", "mean", "prod", "max", "min", "logsumexp", "var"):
        result = run(getattr(ops, name)(x, axis=1))
        assert np.isnan(result).tolist() == [True, False], name
    assert run(ops.argmax(x, axis=1)).tolist() == [1, 2]
    assert run(ops.sort(x, axis=1))[0, :2].tolist() == [1, 3]
    assert run(ops.argsort(x, axis=1)).tolist() == [[0, 2, 1], [0, 1, 2]]


# --- average --------------------------------------------------------------------------------------------------------


def test_average():
    x = np.array([[1.0, 2.0], [3.0, 6.0]], "float32")
    assert run(ops.average(x)) == 3
    np.testing.assert_allclose(run(ops.average(x, axis=0, weights=[1, 3])), [2.5, 5])
    np.testing.assert_allclose(run(ops.average(x, weights=[[1, 0], [0, 1]])), 3.5)
    with pytest.raises(ValueError, match="one axis"):
        ops.average(x, weights=[1, 3])


# --- sorting and searching ------------------------------------------------------------------------------------------


def test_sort_flattened():
    x = np.array([[3, 1], [2, 0]])
    assert run(ops.sort(x, axis=None)).tolist() == [0, 1, 2, 3]
    assert run(ops.argsort(x, axis=None)).tolist() == [3, 1, 2, 0]


def test_argsort_is_stable():
    x = np.tile([1, 0], 50)
    assert run(ops.argsort(x)).tolist() == [*range(1, 100, 2), *range(0, 100, 2)]


def test_top_k_of_equal_elements_takes_the_first():
    values, indices = run(ops.top_k(np.array([5, 7, 7, 5, 7]), 4))
    assert values.tolist() == [7, 7, 7, 5]
    assert indices.tolist() == [1, 2, 4, 0]


def test_sorting_bfloat16_puts_nans_last():
    x = np.array([[2, np.nan, 3, 1, np.nan, 5, 4], [7, 6, 5, 4, 3, 2, 1]], as_dtype("bfloat16"))
    found = run(ops.sort(x))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype("float32"), np.sort(x.astype("float32")))
    np.testing.assert_array_equal(run(ops.argsort(x)), np.argsort(x.astype("float32"), kind="stable"))
    assert run(ops.top_k(x, 4)[1]).tolist() == [[1, 4, 5, 6], [0, 1, 2, 3]]
    assert run(ops.top_k(np.tile(x, 10), 3)[1]).tolist() == [[1, 4, 8], [0, 7, 14]]


def test_top_k_too_large_at_run_time():
    x = symbol((None,))
    values, _ = ops.top_k(x, 3)
    with pytest.raises(ValueError, match="k=3 is more than"):
        run(values, {x: np.ones(2, "float32")})


def test_unique():
    x = np.array([4, 2, 4, 7, 2], "int32")
    values, indices = run(ops.unique(x, sorted=False, return_inverse=True))
    assert values.tolist() == [4, 2, 7]
    assert values[indices].tolist() == x.tolist()
    slope = gradient(lambda x: ops.unique(x, sorted=False) * [1.0, 10.0], [3.0, 5.0, 3.0])
    np.testing.assert_allclose(slope, [1, 10, 0])


def test_bincount():
    assert run(ops.bincount([0, 2, 2], minlength=4)).tolist() == [1, 0, 2, 0]
    assert run(ops.bincount([0, 2, 2], weights=[0.5, 1.0, 2.0])).tolist() == [0.5, 0, 3]
    assert run(ops.bincount([[0, 1], [1, 1]])).tolist() == [[1, 1], [0, 2]]
    with pytest.raises(ValueError, match="negative; the smallest is -1"):
        run(ops.bincount([1, -1]))


def test_searchsorted_and_digitize():
    edges = [1.0, 2.0, 2.0, 4.0]
    assert run(ops.searchsorted(edges, [0, 2, 9])).tolist() == [0, 1, 4]
    assert run(ops.searchsorted(edges, 2.0, side="right")) == 3
    assert run(ops.digitize([0.5, 1.0, 3.0], [1.0, 2.0])).tolist() == [0, 1, 2]


def test_in_top_k():
    scores = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.2]], "float32")
    assert run(ops.in_top_k([0, 2], scores, k=1)).tolist() == [False, False]
    assert run(ops.in_top_k([0, 2], scores, k=2)).tolist() == [True, True]


def test_cumsum_axes_and_dtypes():
    x = np.array([[True, False], [True, True]])
    assert run(ops.cumsum(x)).tolist() == [1, 1, 2, 3]
    assert run(ops.cumsum(x, axis=0)).tolist() == [[1, 0], [2, 1]]
    assert run(ops.cumsum(x, axis=1, dtype="float32")).dtype == "float32"
    assert run(ops.cumsum(2.0)).tolist() == [2]
    with pytest.raises(ValueError, match="out of range"):
        ops.cumsum(x, axis=2)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("shape", [None, (None, 3, None), (2, 3, 4)])
def test_count_nonzero_of_shapes_that_the_run_knows(axis: Any, shape: Any):
    values = np.arange(24).reshape(2, 3, 4) % 3
    x = symbol(shape, "int32")
    count = ops.count_nonzero(x, axis)
    found = run(count, {x: values})
    assert count.dtype == found.dtype == "int32"
    np.testing.assert_array_equal(found, np.count_nonzero(values, axis))


def test_a_size_beyond_int32_is_an_error():
    many = np.broadcast_to(np.True_, (2**16, 2**16))
    x = symbol((None, None), "bool")
    with pytest.raises(OverflowError, match=r"size: a tensor of shape \[65536,65536\] has 4294967296 elements"):
        run(ops.size(x), {x: many})
    dims = ops.cast(ops.stack(ops.shape(x)), "int64")
    assert run(ops.prod(dims), {x: many}) == 2**32  # what the message says
    assert ops.size(symbol((2**16, 2**16), "bool")) == 2**32
