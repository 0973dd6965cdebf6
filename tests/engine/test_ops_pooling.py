"""Pooling against loops over every window: values, derivatives, ties, unknown shapes, errors."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared.examples import examples

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.spec import shape_accepts
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session import Session

FIRST = "channels_first"
LAST = "channels_last"
EXAMPLES = settings(
    deadline=None, max_examples=examples(25, 60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
POOLS: dict[str, Any] = {"max_pool": ops.max_pool, "average_pool": ops.average_pool}
ADAPTIVE: dict[str, Any] = {
    "adaptive_max_pool": ops.adaptive_max_pool,
    "adaptive_average_pool": ops.adaptive_average_pool,
}


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float64") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def placed(value: Any, data_format: str) -> Any:
    return value if data_format == LAST else np.moveaxis(value, -1, 1)


def back(value: Any, data_format: str) -> Any:
    return value if data_format == LAST else np.moveaxis(value, 1, -1)


# --- the reference: loops -------------------------------------------------------------------------------------------


def ranges(size: int, kernel: int, stride: int, padding: str) -> list[range]:
    """The cells of each window along an axis, without those outside."""
    total = 0 if padding == "valid" else max(0, kernel - (size % stride or stride))
    starts = range(-(total // 2), size + total - total // 2 - kernel + 1, stride)
    return [range(max(0, start), min(size, start + kernel)) for start in starts]


def adaptive_ranges(size: int, out: int) -> list[range]:
    return [range(math.floor(i * size / out), math.ceil((i + 1) * size / out)) for i in range(out)]


def naive(x: Any, axes: list[list[range]], greatest: bool) -> Any:
    y = np.zeros((x.shape[0], *map(len, axes), x.shape[-1]))
    for out in np.ndindex(*map(len, axes)):
        window = x[np.ix_(range(x.shape[0]), *[axes[a][o] for a, o in enumerate(out)], range(x.shape[-1]))]
        inner = tuple(range(1, x.ndim - 1))
        y[(slice(None), *out)] = window.max(axis=inner) if greatest else window.mean(axis=inner)
    return y


def naive_gradient(x: Any, dy: Any, axes: list[list[range]], greatest: bool) -> Any:
    dx = np.zeros(x.shape)
    for out in np.ndindex(*map(len, axes)):
        cells = list(product(*[axes[a][o] for a, o in enumerate(out)]))
        for n, c in product(range(x.shape[0]), range(x.shape[-1])):
            values = [x[(n, *cell, c)] for cell in cells]
            if greatest:
                dx[(n, *cells[int(np.argmax(values))], c)] += dy[(n, *out, c)]
                continue
            for cell in cells:
                dx[(n, *cell, c)] += dy[(n, *out, c)] / len(cells)
    return dx


# --- generated cases ------------------------------------------------------------------------------------------------

SMALL = {1: 9, 2: 6, 3: 4}


def check(function: Any, x: Any, axes: list[list[range]], greatest: bool, data_format: str, known: str) -> None:
    """Values and derivatives of `function`, for arrays and where only some of the shape is `known`."""
    expected = naive(x, axes, greatest)
    fed = placed(x, data_format)
    y = function(fed)
    assert y.shape == placed(expected, data_format).shape
    np.testing.assert_allclose(back(run(y), data_format), expected, rtol=1e-12, atol=1e-12)
    rank = (None,) * x.ndim
    shape = {"static": fed.shape, "batch": (None, *fed.shape[1:]), "dims": rank, "nothing": None}[known]
    unknown = symbol(shape)
    y = function(unknown)
    dy = np.random.default_rng(1).uniform(-1, 1, expected.shape)
    (slope,) = gradients(ops.sum(y * ops.convert_to_tensor(placed(dy, data_format))), [unknown])
    value, dx = run([y, slope], {unknown: fed})
    assert shape_accepts(y.shape, value.shape)
    np.testing.assert_allclose(back(value, data_format), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(back(dx, data_format), naive_gradient(x, dy, axes, greatest), rtol=1e-9, atol=1e-12)


def images(draw: Any, sizes: list[int], ties: bool) -> Any:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = (draw(st.sampled_from([2, 1, 0])), *sizes, draw(st.integers(1, 3)))
    return rng.integers(0, 3, shape).astype("float64") if ties else rng.uniform(-1, 1, shape)


@pytest.mark.parametrize("name", POOLS)
@EXAMPLES
@given(st.data())
def test_pool(name: str, data: st.DataObject):
    draw = data.draw
    rank = draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["valid", "same"]))
    pool = [draw(st.integers(1, 4 if rank < 3 else 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 4)) for _ in range(rank)]
    sizes = [draw(st.integers(k if padding == "valid" else 1, max(k, SMALL[rank]))) for k in pool]
    x = images(draw, sizes, draw(st.booleans()))
    data_format = draw(st.sampled_from([LAST, FIRST]))
    given_strides = draw(st.booleans())
    steps = strides if given_strides else pool
    axes = [ranges(*args, padding) for args in zip(sizes, pool, steps, strict=True)]

    def function(x: Any) -> Any:
        return POOLS[name](x, pool, strides if given_strides else None, padding, data_format)

    check(
        function,
        x,
        axes,
        name == "max_pool",
        data_format,
        draw(st.sampled_from(["static", "batch", "dims", "nothing"])),
    )


@pytest.mark.parametrize("name", ADAPTIVE)
@settings(EXAMPLES, max_examples=examples(10, 25))
@given(st.data())
def test_adaptive_pool(name: str, data: st.DataObject):
    draw = data.draw
    rank = draw(st.integers(1, 3))
    sizes = [draw(st.integers(1, SMALL[rank])) for _ in range(rank)]
    outs = [draw(st.integers(1, 5)) for _ in range(rank)]
    x = images(draw, sizes, ties=False)
    data_format = draw(st.sampled_from([LAST, FIRST]))
    axes = [adaptive_ranges(size, out) for size, out in zip(sizes, outs, strict=True)]

    def function(x: Any) -> Any:
        return ADAPTIVE[name](x, outs, data_format)

    known = draw(st.sampled_from(["static", "batch", "dims", "nothing"]))
    check(function, x, axes, name == "adaptive_max_pool", data_format, known)


# --- known values ---------------------------------------------------------------------------------------------------


def line(*values: Any, dtype: str = "float32") -> Any:
    return np.array(values, as_dtype(dtype)).reshape(1, -1, 1)


@pytest.mark.parametrize(
    ("function", "pool_size", "strides", "padding", "expected"),
    [
        ("max_pool", 2, None, "valid", [3, 4]),
        ("max_pool", 2, 1, "valid", [3, 4, 4, 5]),
        ("max_pool", 2, None, "same", [3, 4, 5]),
        ("max_pool", 3, 1, "SAME", [3, 4, 4, 5, 5]),
        ("max_pool", (5,), None, "valid", [5]),
        ("average_pool", 2, None, "valid", [2, 3]),
        ("average_pool", 2, None, "same", [2, 3, 5]),
        ("average_pool", 3, 1, "same", [2, 8 / 3, 7 / 3, 11 / 3, 3.5]),
        ("average_pool", [1], 3, "same", [3, 2]),
    ],
)
def test_known_values(function: str, pool_size: Any, strides: Any, padding: str, expected: list[float]):
    y = run(POOLS[function](line(3, 1, 4, 2, 5), pool_size, strides, padding))
    np.testing.assert_allclose(y[0, :, 0], expected, rtol=1e-6)


def test_adaptive_windows_overlap_where_sizes_do_not_divide():
    x = line(1, 2, 4, 8, 16)
    assert run(ops.adaptive_average_pool(x, 3))[0, :, 0].tolist() == [1.5, np.float32(14 / 3), 12]
    assert run(ops.adaptive_max_pool(x, 3))[0, :, 0].tolist() == [2, 8, 16]
    assert run(ops.adaptive_max_pool(x, 7))[0, :, 0].tolist() == [1, 2, 4, 4, 8, 16, 16]


def test_the_first_maximum_gets_the_derivative():
    x = ops.convert_to_tensor(np.full((1, 4, 4, 1), 7.0))
    (dx,) = gradients(ops.sum(ops.max_pool(x, 2)), [x])
    assert run(dx)[0, :, :, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    (dx,) = gradients(ops.sum(ops.max_pool(x, 3, 1, "same")), [x])
    assert run(dx)[0, :, :, 0].tolist() == [[4, 2, 2, 0], [2, 1, 1, 0], [2, 1, 1, 0], [0, 0, 0, 0]]


def test_padding_is_no_maximum():
    assert run(ops.max_pool(line(-3, -4, -5), 3, 1, "same"))[0, :, 0].tolist() == [-3, -3, -4]
    assert run(ops.max_pool(line(-np.inf), 3, 1, "same")).item() == -np.inf
    assert run(ops.max_pool(line(-128, dtype="int8"), 3, 1, "same")).item() == -128


def test_nan_is_passed_on_and_stays_in_its_windows():
    x = ops.convert_to_tensor(line(1, np.nan, np.nan, 2, np.inf, 3))
    for function in (ops.max_pool, ops.average_pool):
        y = function(x, 2)
        value, dx = run([y, *gradients(ops.sum(y), [x])])
        np.testing.assert_array_equal(value[0, :, 0], [np.nan, np.nan, np.inf])
        expected = [0, 1, 1, 0, 1, 0] if function is ops.max_pool else [0.5] * 6
        assert dx[0, :, 0].tolist() == expected
    for function in (ops.adaptive_max_pool, ops.adaptive_average_pool):
        np.testing.assert_array_equal(run(function(x, 4))[0, :, 0], [np.nan, np.nan, np.inf, np.inf])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype: str):
    x = line(1, 2, 4, 8, 16, dtype=dtype)
    for y in (ops.max_pool(x, 2), ops.average_pool(x, 2), ops.adaptive_max_pool(x, 2), ops.adaptive_average_pool(x, 2)):
        assert y.dtype == as_dtype(dtype)
        assert run(y).dtype == as_dtype(dtype)


def test_averages_of_half_precision_are_summed_in_single():
    x = np.full((1, 4097, 1), 1, "float16")
    assert run(ops.average_pool(x, 4097)).item() == 1
    assert run(ops.adaptive_average_pool(x, 2))[0, :, 0].tolist() == [1, 1]


def test_integers_and_bools():
    assert run(ops.max_pool(line(1, 5, 3, dtype="int32"), 3)).dtype == "int32"
    assert run(ops.max_pool(np.array([[[False], [True]]]), 2)).item() is True
    mean = run(ops.average_pool(line(1, 2, dtype="int32"), 2))
    assert mean.dtype == "float32"
    assert mean.item() == 1.5


@pytest.mark.parametrize("function", [ops.max_pool, ops.average_pool])
def test_third_derivative(function: Any):
    """d³/dx³ of the sum of pool(x)⁴ is found through three sweeps; for disjoint windows it has a closed form."""
    x = ops.convert_to_tensor(np.array([[[0.5], [2], [3], [-1]]]))
    derivative = ops.sum(function(x, 2) ** 4)
    for _ in range(3):
        (slope,) = gradients(derivative, [x])
        derivative = ops.sum(slope)
    expected = [0, 24 * 2, 24 * 3, 0] if function is ops.max_pool else [12 * 1.25, 12 * 1.25, 12, 12]
    np.testing.assert_allclose(run(slope)[0, :, 0], expected)


# --- shapes and errors ----------------------------------------------------------------------------------------------


def test_static_shapes_of_unknown_inputs():
    x = symbol((None, None, 7, 3))
    assert ops.max_pool(x, 2).shape == (None, None, 3, 3)
    assert ops.average_pool(x, (2, 3), 2, "same").shape == (None, None, 4, 3)
    assert ops.max_pool(symbol((None, 3, None, 7)), 2, data_format=FIRST).shape == (None, 3, None, 3)
    assert ops.max_pool(symbol(None), (2, 2)).shape == (None,) * 4
    assert ops.adaptive_average_pool(x, 2).shape == (None, 2, 2, 3)
    assert ops.adaptive_max_pool(symbol((None, 3, None, 7)), (4, 5), FIRST).shape == (None, 3, 4, 5)


def test_empty_axes():
    assert run(ops.max_pool(np.zeros((2, 0, 3)), 2, padding="same")).shape == (2, 0, 3)
    assert run(ops.average_pool(np.zeros((2, 4, 0)), 2)).shape == (2, 2, 0)


X = np.zeros((1, 4, 4, 2))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ops.max_pool(X[0, 0], 2), r"max_pool: expected rank 3, 4 or 5 .* got shape \[4,2\]"),
        (lambda: ops.average_pool(symbol(None), 2), "average_pool: the number of axes must be known"),
        (lambda: ops.max_pool(X, 5), "A window of 5 cells does not fit into an axis of size 4, so the result would be"),
        (lambda: ops.max_pool(X, (2, 2, 2)), r"pool_size must be a positive int, or 2 of them .* got \(2, 2, 2\)"),
        (lambda: ops.average_pool(X, 2, 0), "average_pool: strides must be a positive int"),
        (lambda: ops.average_pool(X, 2, padding="causal"), "padding must be one of 'valid', 'same', got 'causal'"),
        (lambda: ops.max_pool(X, 2, data_format="last"), "max_pool: data_format must be"),
        (lambda: ops.adaptive_max_pool(X, 0), "adaptive_max_pool: output_size must be a positive int"),
        (lambda: ops.adaptive_average_pool(X[:, :0], 2), "nothing to pool .* an empty spatial axis"),
    ],
)
def test_errors(call: Any, match: str):
    with pytest.raises(ValueError, match=match):
        call()


def test_what_is_too_small_is_found_by_the_run_too():
    x = symbol((None, None, 2))
    with pytest.raises(ValueError, match="A window of 3 cells does not fit into an axis of size 2"):
        run(ops.max_pool(x, 3), {x: np.zeros((1, 2, 2))})
