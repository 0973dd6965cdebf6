"""Differences, integrals, correlations, histograms, windows and spacings, against NumPy."""

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


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


NUMBERS = st.floats(-9, 9, width=32)


# --- differences, integrals, ranges ---------------------------------------------------------------------------------


@settings(max_examples=examples(7, 30))
@given(
    x=arrays.arrays("float32", arrays.array_shapes(max_dims=3, max_side=4), elements=NUMBERS),
    n=st.integers(0, 5),
    data=st.data(),
)
def test_diff(x: Any, n: int, data: Any):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    with Graph().as_default():
        value = run(ops.diff(x, n, axis))
    np.testing.assert_allclose(value, np.diff(x, n, axis), atol=1e-4)


def test_diff_of_other_dtypes():
    assert run(ops.diff(np.array([True, False, False]))).tolist() == [True, False]
    assert run(ops.diff(np.ones((2, 3)), n=10**9)).shape == (2, 0)
    assert run(ops.diff(np.array([1, 5, 2], "uint8"))).tolist() == [4, 253]
    x = symbol((None, 2))
    assert run(ops.diff(x, axis=0), {x: [[1, 2], [4, 8]]}).tolist() == [[3, 6]]
    with pytest.raises(ValueError, match="n must not be negative; got n=-1"):
        ops.diff([1, 2], n=-1)
    with pytest.raises(ValueError, match="axis=-1 counts from the end"):
        ops.diff(symbol(None))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_trapezoid(axis: int):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(3, 4)).astype("float32")
    whole, places = rng.normal(size=(3, 4)).astype("float32"), np.sort(rng.normal(size=y.shape[axis])).astype("float32")
    np.testing.assert_allclose(run(ops.trapezoid(y, dx=0.3, axis=axis)), np.trapezoid(y, dx=0.3, axis=axis), rtol=1e-5)
    np.testing.assert_allclose(run(ops.trapezoid(y, places, axis=axis)), np.trapezoid(y, places, axis=axis), rtol=1e-4)
    np.testing.assert_allclose(run(ops.trapezoid(y, whole, axis=axis)), np.trapezoid(y, whole, axis=axis), rtol=1e-4)


def test_trapezoid_of_integers():
    assert run(ops.trapezoid([1, 2, 3])).dtype == "float32"
    assert run(ops.trapezoid([[5.0]])).tolist() == [0]
    with pytest.raises(ValueError, match="known rank"):
        ops.trapezoid(symbol(None), [1.0, 2.0], axis=0)


@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_ptp(axis: Any, keepdims: bool):
    x = np.array([[1, 7, 3], [4, 0, 5]], "int16")
    value = run(ops.ptp(x, axis, keepdims))
    assert value.dtype == "int16"
    assert value.tolist() == np.ptp(x, axis=axis, keepdims=keepdims).tolist()


def test_gradients():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    check_gradients(lambda x: ops.diff(x, 2), [x])
    check_gradients(lambda y, x: ops.trapezoid(y, x), [y, x])
    check_gradients(lambda x: ops.ptp(x, axis=1), [x])
    check_gradients(ops.corrcoef, [x])
    check_gradients(lambda x: ops.vander(x, 4), [np.array([0.5, -1.2, 0.0])])
    check_gradients(lambda a, b: ops.geomspace(a, b, 5), [np.array([1.0, -2.0]), np.array([3.0, -5.0])])
    check_gradients(lambda a, b: ops.logspace(a, b, 4, base=2), [np.float64(0.3), np.float64(1.4)])
    for mode in ("valid", "same", "full"):
        for first, second in ((5, 3), (2, 4), (3, 3)):
            check_gradients(lambda x, y, m=mode: ops.correlate(x, y, m), [x.ravel()[:first], y.ravel()[:second]])


# --- correlation ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(10, 40))
@given(
    x=arrays.arrays("float32", st.integers(1, 6), elements=NUMBERS),
    y=arrays.arrays("float32", st.integers(1, 6), elements=NUMBERS),
    mode=st.sampled_from(["valid", "same", "full"]),
)
def test_correlate(x: Any, y: Any, mode: Any):
    with Graph().as_default():
        a, b = symbol((None,)), symbol((None,))
        values = [run(ops.correlate(x, y, mode)), run(ops.correlate(a, b, mode), {a: x, b: y})]
    for value in values:
        np.testing.assert_allclose(value, np.correlate(x, y, mode), rtol=1e-4, atol=1e-4)


def test_correlate_in_the_middle_of_odd_and_even_lengths():
    for m in range(1, 6):
        for n in range(1, 6):
            x, y = np.arange(1, m + 1, dtype="float32"), np.arange(1, n + 1, dtype="float32") ** 2
            assert run(ops.correlate(x, y, "same")).tolist() == np.correlate(x, y, "same").tolist()


@pytest.mark.parametrize(
    ("dtype", "expected"), [("int32", "float32"), ("int64", "float64"), ("bfloat16", "bfloat16"), ("bool", "float32")]
)
def test_dtypes_of_correlations(dtype: str, expected: str):
    x = np.array([1, 0, 1]).astype(as_dtype(dtype))
    assert run(ops.correlate(x, x)).dtype == expected
    assert run(ops.corrcoef(np.stack([x, x]))).dtype == expected


def test_corrcoef():
    x = np.random.default_rng(0).normal(size=(3, 7))
    x[2] = -x[0]
    value = run(ops.corrcoef(x))
    np.testing.assert_allclose(value, np.corrcoef(x), rtol=1e-12, atol=1e-12)
    assert np.abs(value).max() <= 1
    for one in (x[0], x[:1]):
        result = run(ops.corrcoef(one))
        np.testing.assert_allclose(result, np.corrcoef(one))
        assert np.shape(result) == ()
    with pytest.raises(ValueError, match=r"\[variables, observations\]; got shape \[2,2,2\]"):
        ops.corrcoef(np.zeros((2, 2, 2)))


# --- histograms -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(7, 30))
@given(
    x=arrays.arrays("float64", st.integers(0, 12), elements=st.integers(-8, 8).map(lambda n: n / 2)),
    bins=st.integers(1, 6),
    limits=st.sampled_from([None, (-1.0, 2.0), (0.0, 0.0), (3, 9)]),
)
def test_histogram(x: Any, bins: int, limits: Any):
    with Graph().as_default():
        counts, edges = run(ops.histogram(x, bins, limits))
    wanted, wanted_edges = np.histogram(x, bins, limits)
    np.testing.assert_allclose(edges, wanted_edges, rtol=1e-12, atol=1e-12)
    # An element on an inner edge, which is rounded in either way, may be counted on either side of it.
    on_edge = np.isclose(x[:, None], wanted_edges[1:-1]).any() and not np.array_equal(edges, wanted_edges)
    if not on_edge:
        assert counts.tolist() == wanted.tolist()
    assert counts.sum() == wanted.sum()
    assert counts.dtype == "int32"


def test_histogram_leaves_nans_out():
    counts, _ = run(ops.histogram([NAN, 0.0, 1.0], 2, (0, 1)))
    assert counts.tolist() == [1, 1]


def test_histogram_of_an_unknown_shape():
    x = symbol((None,), "int32")
    counts, edges = run(ops.histogram(x, 2), {x: [1, 2, 2]})
    assert counts.tolist() == [1, 2]
    assert edges.tolist() == [1, 1.5, 2]
    assert run(ops.histogram(x, 2)[0], {x: np.zeros(0, "int32")}).tolist() == [0, 0]


def test_histogram_refuses():
    with pytest.raises(ValueError, match="bins must be positive; got bins=0"):
        ops.histogram([1.0], 0)
    with pytest.raises(TypeError, match=r"bins must be an int; got 1\.5"):
        ops.histogram([1.0], 1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="range must be a pair of ascending numbers"):
        ops.histogram([1.0], range=(2, 1))


def test_histogram_counts_the_elements_of_an_array_of_any_shape():
    x = np.arange(12.0).reshape(2, 3, 2) ** 2
    counts, edges = run(ops.histogram(x, 5))
    wanted, wanted_edges = np.histogram(x, 5)
    assert counts.tolist() == wanted.tolist()
    np.testing.assert_allclose(edges, wanted_edges)
    assert run(ops.histogram(3.0, 2, (0, 4))[0]).tolist() == [0, 1]


# --- windows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hanning", "kaiser"])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
def test_windows(name: str, count: int):
    further = (6.5,) if name == "kaiser" else ()
    expected = getattr(np, name)(count, *further)
    x = symbol((), "int32")
    window = getattr(ops, name)(count, *further)
    assert window.shape == (count,)
    for value in (run(window), run(getattr(ops, name)(x, *further), {x: count})):
        assert value.dtype == "float32"
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


def test_gradient_of_the_shape_of_a_window():
    beta = symbol((), "float64")
    (slope,) = run(gradients(ops.sum(ops.kaiser(6, beta)), [beta]), {beta: 3.0})
    step = 1e-5
    expected = (np.kaiser(6, 3 + step).sum() - np.kaiser(6, 3 - step).sum()) / (2 * step)
    assert slope == pytest.approx(expected, rel=1e-6)


def test_windows_refuse():
    with pytest.raises(ValueError, match="bartlett: the number of points must be a scalar"):
        ops.bartlett([2, 3])


# --- spacing --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(7, 30))
@given(
    ends=st.tuples(*[arrays.arrays("float64", (2,), elements=st.floats(0.1, 9))] * 2),
    num=st.integers(0, 5),
    endpoint=st.booleans(),
    axis=st.sampled_from([0, 1, -1]),
    sign=st.sampled_from([1, -1]),
)
def test_spacing(ends: Any, num: int, endpoint: bool, axis: int, sign: int):
    start, stop = ends
    with Graph().as_default():
        powers = run(ops.logspace(start, stop, num, endpoint, 3.0, axis=axis))
        multiples = run(ops.geomspace(sign * start, sign * stop, num, endpoint, axis=axis))
    np.testing.assert_allclose(powers, np.logspace(start, stop, num, endpoint, 3.0, axis=axis), rtol=1e-9)
    expected = np.geomspace(sign * start, sign * stop, num, endpoint, axis=axis)
    np.testing.assert_allclose(multiples, expected, rtol=1e-9)


def test_both_ends_of_geomspace_are_exact():
    values = run(ops.geomspace(0.1, 0.7, 9, dtype="float64"))
    assert (values[0], values[-1]) == (0.1, 0.7)


def test_geomspace_of_two_signs():
    x = symbol((), "float64")
    assert np.isnan(run(ops.geomspace(x, 3.0, 3), {x: -1.0})).all()
    with pytest.raises(ValueError, match="start=0 and stop=3 must not be zero"):
        ops.geomspace(0, 3)


def test_dtypes_of_spacings():
    assert run(ops.logspace(0, 3, 4)).dtype == "float32"
    assert run(ops.logspace(0, 3, 4, dtype="int32")).tolist() == [1, 10, 100, 1000]
    assert run(ops.geomspace(1, 8, 4)).dtype == "float32"
    assert run(ops.geomspace(np.float16(1), np.float16(8), 4)).dtype == "float16"


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("columns", [None, 0, 1, 4])
def test_vander(dtype: str, increasing: bool, columns: Any):
    x = np.array([0, 1, 3]).astype(as_dtype(dtype))
    value = run(ops.vander(x, columns, increasing))
    assert value.dtype == as_dtype(dtype)
    assert value.astype("int32").tolist() == np.vander(x.astype("int32"), columns, increasing).tolist()


def test_vander_of_an_unknown_length():
    x = symbol((None,), "int32")
    assert run(ops.vander(x), {x: [2, 3]}).tolist() == [[2, 1], [3, 1]]


def test_vander_refuses():
    with pytest.raises(ValueError, match="N must not be negative; got N=-1"):
        ops.vander([1], -1)
    with pytest.raises(TypeError, match=r"N must be an int; got 1\.5"):
        ops.vander([1], 1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"takes a vector; got shape \[1,1\]"):
        ops.vander([[1]])
