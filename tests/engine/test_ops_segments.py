"""Segments, scatters and batched gathers: loops as references, empty and dropped segments, ties, gradients, errors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph
from anabranch.engine.session import Session
from anabranch.engine.session.placeholder import placeholder
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(*fetches: Any, feeds: dict[Any, Any] | None = None) -> Any:
    values = Session().run(list(fetches), feeds or {})
    return values[0] if len(fetches) == 1 else values


def fresh_run(build: Any) -> Any:
    """The value of what `build` makes, in a graph of its own: for examples of hypothesis."""
    with Graph().as_default():
        return Session().run(build())


# --- segments -------------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "segment_sum": (np.sum, 0),
    "segment_mean": (np.mean, 0),
    "segment_prod": (np.prod, 1),
    "segment_max": (np.max, -np.inf),
    "segment_min": (np.min, np.inf),
}


def reference(name: str, x: Any, ids: Any, count: int) -> Any:
    reduce, nothing = REDUCTIONS[name]
    if x.dtype.kind == "i" and name in ("segment_max", "segment_min"):
        nothing = np.iinfo(x.dtype).min if name == "segment_max" else np.iinfo(x.dtype).max
    flat = x.reshape((ids.size, *x.shape[ids.ndim :]))
    rows = [flat[ids.reshape(-1) == k] for k in range(count)]
    values = [reduce(row, axis=0) if len(row) else np.full(flat.shape[1:], nothing) for row in rows]
    dtype = "float32" if name == "segment_mean" and x.dtype.kind == "i" else x.dtype
    return np.array(values).reshape((count, *flat.shape[1:])).astype(dtype)


@st.composite
def segmented(draw: Any) -> tuple[Any, Any, int | None]:
    """Data, ids (with some that name no segment) and the number of segments, or None."""
    lead = draw(st.sampled_from([(0,), (1,), (5,), (9,), (2, 3), ()]))
    row = draw(st.sampled_from([(), (2,), (0,), (2, 1)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    count = draw(st.sampled_from([None, 0, 1, 4]))
    ids = rng.integers(-2 if count is not None else 0, 6, lead).astype(draw(st.sampled_from(["int32", "int64"])))
    return rng.integers(-3, 4, (*lead, *row)).astype(dtype), ids, count


@pytest.mark.parametrize("name", REDUCTIONS)
@given(case=segmented())
def test_segments_equal_a_loop_over_them(name: str, case: Any):
    x, ids, count = case
    expected = reference(name, x, ids, max(ids.max(initial=-1) + 1, 0) if count is None else count)

    value = fresh_run(lambda: getattr(ops, name)(x, ids, count))

    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_segments_of_what_is_known_at_run_time_only(name: str):
    x, ids = np.arange(8, dtype="float32").reshape(4, 2), np.array([1, 0, 1, 5], "int32")
    for shapes in ((None, 2), (None, None), None):
        data = placeholder(shapes, "float32")
        numbers = placeholder(None if shapes is None else (None,), "int32")
        count = placeholder((), "int32")
        result = getattr(ops, name)(data, numbers, count)

        np.testing.assert_array_equal(run(result, feeds={data: x, numbers: ids, count: 3}), reference(name, x, ids, 3))


@pytest.mark.parametrize(("name", "value"), [("segment_sum", 3), ("segment_prod", 0), ("segment_mean", 0.75)])
def test_bools_count_as_numbers(name: str, value: float):
    result = run(getattr(ops, name)([True, True, False, True], [0, 0, 0, 0]))

    assert result.tolist() == [value]
    assert result.dtype == ("float32" if name == "segment_mean" else "int32")


def test_extrema_of_bools_and_unsigned_ids():
    flags = np.array([False, True, False])

    assert run(ops.segment_max(flags, np.array([0, 0, 2], "uint8"))).tolist() == [True, False, False]
    assert run(ops.segment_min(flags, [0, 0, 2])).tolist() == [False, True, False]


def test_known_number_of_segments_is_static():
    x = placeholder((None, 3), "float32")

    assert ops.segment_sum(x, [0, 1], 7).shape == (7, 3)
    assert ops.segment_sum(x, [0, 1], ops.constant(7)).shape == (7, 3)
    assert ops.segment_sum(x, [0, 1]).shape == (None, 3)


def test_half_precision_is_summed_in_single():
    many = np.full(4096, 0.25, "float16")

    total, mean = run(ops.segment_sum(many, [0] * 4096), ops.segment_mean(many * 200, [0] * 4096))

    assert (total.tolist(), mean.tolist(), mean.dtype) == ([1024], [50], np.float16)


def test_long_and_wide_data():
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(3000, 7)), rng.integers(-5, 400, 3000)

    np.testing.assert_allclose(run(ops.segment_sum(x, ids, 390)), reference("segment_sum", x, ids, 390), atol=1e-12)
    np.testing.assert_array_equal(run(ops.segment_max(x, ids, 390)), reference("segment_max", x, ids, 390))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("lead", [(6,), (2, 3)])
def test_gradients(name: str, lead: Any):
    x = np.random.default_rng(1).permutation(12).reshape((*lead, 2)) / 7 + 0.5
    ids = np.array([1, 0, 1, 3, -1, 1], "int32").reshape(lead)
    reduced = getattr(ops, name)

    # Empty segments hold infinities: only what has rows is looked at.
    assert check_gradients(lambda data: ops.gather(reduced(data, ids, 4), [0, 1, 3]), [x], order=3) == 9


def test_gradient_of_products_with_zeros():
    x, ids = np.array([2.0, 0, 0, 3, 0, 5, 7]), [0, 0, 1, 1, 1, 0, 2]

    assert check_gradients(lambda data: ops.segment_prod(data, ids), [x], order=3) == 9


def test_products_of_dropped_rows_do_not_overflow():
    x = ops.constant(np.full(500, 1e30, "float32"))
    ids = np.full(500, -1, "int32")
    ids[0] = 0

    slope = run(gradients(ops.segment_prod(x, ids, 1), [x])[0])

    np.testing.assert_array_equal(slope, [1] + [0] * 499)


def test_ties_share_the_gradient():
    x = ops.constant([[1.0, 5.0], [1.0, 2.0], [0.0, 5.0], [1.0, 9.0]])
    slope = gradients(ops.segment_max(x, [0, 0, 0, 1]) * [[6.0, 6.0], [1.0, 1.0]], [x])[0]

    np.testing.assert_array_equal(run(slope), [[3, 3], [3, 0], [0, 3], [1, 1]])


def test_segments_in_a_loop_and_a_branch():
    x, ids = ops.constant([1.0, 2.0, 3.0]), ops.constant([0, 1, 0])
    _, total = while_loop(
        lambda i, _: i < 3, lambda i, t: (i + 1, t + ops.segment_sum(x * t[0], ids, 2)), (0, ops.constant([1.0, 1.0]))
    )
    branch = cond(total[0] > 0, lambda: ops.segment_prod(x * total[0], ids, 2), lambda: ops.constant([0.0, 0.0]))

    slope = gradients(branch[0], [x])[0]  # x0 x2 t², where t = (1 + x0 + x2)³

    np.testing.assert_allclose(run(total), [125, 63], rtol=1e-6)
    np.testing.assert_allclose(run(branch), [3 * 125**2, 250], rtol=1e-6)
    shared = 3 * 2 * 125 * 3 * 25
    np.testing.assert_allclose(run(slope), [3 * 125**2 + shared, 0, 125**2 + shared], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.segment_sum([1.0, 2.0], [0.0, 1.0]), TypeError, "segment_sum: indices must be integers"),
        (lambda: ops.segment_max([[1.0, 2.0]], [[0], [1]]), ValueError, r"begin with .* got \[1,2\] and \[2,1\]"),
        (lambda: ops.segment_max([1.0, 2.0], [0, 1, 2]), ValueError, "each row of the data"),
        (lambda: ops.segment_sum([1.0], [0], -1), ValueError, "num_segments must not be negative, got -1"),
        (lambda: ops.segment_sum([1.0], [0], 1.5), TypeError, "num_segments must be one integer or None, got 1.5"),
        (lambda: ops.segment_min(np.array([1j]), [0]), TypeError, "complex ones have no order"),
    ],
)
def test_segment_errors(call: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        call()


# --- scatters -------------------------------------------------------------------------------------------------------


def scattered(x: Any, indices: Any, updates: Any, reduction: str | None) -> Any:
    out = x.copy()
    combine: Any = {
        None: lambda _, new: new,
        "add": np.add,
        "max": np.maximum,
        "min": np.minimum,
        "mul": np.multiply,
    }[reduction]
    for place in np.ndindex(*indices.shape[:-1]):
        key = tuple(indices[place])
        out[key] = combine(out[key], updates[place])
    return out


@st.composite
def scatters(draw: Any) -> tuple[Any, Any, Any]:
    shape = draw(st.sampled_from([(4,), (3, 2), (2, 3, 2), (1, 1)]))
    depth = draw(st.integers(1, len(shape)))
    lead = draw(st.sampled_from([(), (0,), (1,), (6,), (2, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from(["float32", "int32"]))
    indices = np.stack([rng.integers(0, size, lead) for size in shape[:depth]], -1).astype("int32")
    updates = rng.integers(-4, 5, (*lead, *shape[depth:])).astype(dtype)
    return rng.integers(-4, 5, shape).astype(dtype), indices, updates


@pytest.mark.parametrize("reduction", [None, "add", "max", "min", "mul"])
@given(case=scatters())
def test_scatters_equal_a_loop_over_updates(reduction: str | None, case: Any):
    x, indices, updates = case

    value = fresh_run(lambda: ops.scatter_update(x, indices, updates, reduction))

    assert value.dtype == x.dtype
    np.testing.assert_array_equal(value, scattered(x, indices, updates, reduction))


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("tensor_scatter_nd_update", None),
        ("tensor_scatter_nd_add", "add"),
        ("tensor_scatter_nd_max", "max"),
        ("tensor_scatter_nd_min", "min"),
    ],
)
@pytest.mark.parametrize("shape", [(3, 2), (None, 2), (None, None), None])
def test_names_of_tensorflow(name: str, reduction: str | None, shape: Any):
    x = np.arange(6, dtype="float32").reshape(3, 2)
    indices, updates = np.array([[2, 0], [0, 1], [2, 0]], "int32"), np.array([9, -1, 2], "float32")
    tensor = placeholder(shape, "float32")

    value = run(getattr(ops, name)(tensor, indices, updates), feeds={tensor: x})

    np.testing.assert_array_equal(value, scattered(x, indices, updates, reduction))


def test_subtraction_and_scatter_nd():
    result = ops.tensor_scatter_nd_sub([5.0, 5.0], [[0], [0], [1]], [1, 2, 3])
    made = ops.scatter_nd([[0], [0], [2]], [1, 2, 3], (4,))

    assert [value.tolist() for value in run(result, made)] == [[2, 2], [3, 0, 3, 0]]


@pytest.mark.parametrize("reduction", [None, "add", "max", "min", "mul"])
def test_scatter_gradients(reduction: str | None):
    rng = np.random.default_rng(2)
    x, updates = rng.normal(size=(3, 2)), rng.normal(size=(2, 2, 2))
    indices = np.array([[[0], [2]], [[2], [2]]], "int32")

    def function(x: Any, updates: Any) -> Any:
        return ops.scatter_update(x, indices, updates, reduction)

    assert check_gradients(function, [x, updates]) == 6


def test_scatter_errors():
    with pytest.raises(ValueError, match="'add', 'max', 'min' or 'mul'; got 'mean'"):
        ops.scatter_update([1.0], [[0]], [1.0], "mean")
    with pytest.raises(ValueError, match=r"updates of shape \[2\]"):
        ops.tensor_scatter_nd_max([1.0, 2.0], [[0], [1]], [1.0])
    with pytest.raises(IndexError, match="index 2 is out of bounds for axis 0 with size 2"):
        run(ops.tensor_scatter_nd_max([1.0, 2.0], [[0], [2]], [1.0, 1.0]))


# --- gathering with batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_dims", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("known", ["static", "dims"])
def test_gather_nd_with_batches(batch_dims: int, depth: int, known: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 5)).astype("float32")
    lead = (*x.shape[:batch_dims], 6)
    sizes = x.shape[batch_dims : batch_dims + depth]
    indices = np.stack([rng.integers(0, size, lead) for size in sizes], -1).astype("int32")
    expected = np.array([x[(*place[:batch_dims], *indices[place])] for place in np.ndindex(*lead)])
    tensor = placeholder(x.shape if known == "static" else (None,) * 4, "float32")
    places = placeholder(indices.shape if known == "static" else (*[None] * len(lead), depth), "int32")

    for count in {batch_dims, batch_dims - len(lead) if batch_dims else 0}:
        value = run(ops.gather_nd(tensor, places, count), feeds={tensor: x, places: indices})
        np.testing.assert_array_equal(value, expected.reshape((*lead, *x.shape[batch_dims + depth :])))


@st.composite
def batches(draw: Any) -> tuple[Any, Any, int, int]:
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    between, behind = draw(st.sampled_from([(), (3,), (1, 2)])), draw(st.sampled_from([(), (2,)]))
    inner = draw(st.sampled_from([(), (4,), (0,), (2, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    x = rng.normal(size=(*batch, *between, 5, *behind)).astype("float32")
    return x, rng.integers(0, 5, (*batch, *inner)), len(batch) + len(between), len(batch)


@given(case=batches())
def test_gather_with_batches(case: Any):
    x, indices, axis, batch_dims = case
    batch = x.shape[:batch_dims]
    rows = [np.take(x[place], indices[place], axis - batch_dims) for place in np.ndindex(*batch)]
    expected = np.array(rows).reshape((*batch, *rows[0].shape))

    np.testing.assert_array_equal(fresh_run(lambda: ops.gather(x, indices, axis=axis, batch_dims=batch_dims)), expected)


def test_gather_takes_the_axis_behind_the_batch():
    x, indices = np.arange(12, dtype="float32").reshape(2, 3, 2), [[2, 0], [1, 1]]
    expected = x[[[0], [1]], indices]

    np.testing.assert_array_equal(run(ops.gather(x, indices, batch_dims=1)), expected)
    np.testing.assert_array_equal(run(ops.gather(x, indices, batch_dims=-1)), expected)
    assert check_gradients(lambda x: ops.gather(x, indices, batch_dims=1), [x]) == 6
    assert check_gradients(lambda x: ops.gather_nd(x, [[[2]], [[0]]], batch_dims=1), [x]) == 6


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.gather(np.ones((2, 3)), [[0]], axis=0, batch_dims=1), ValueError, "at most axis=0"),
        (lambda: ops.gather(np.ones((2, 3)), [0, 1], batch_dims=2), ValueError, "the indices' rank, 1"),
        (
            lambda: ops.gather(np.ones((2, 3)), [[0]], batch_dims=1),
            ValueError,
            r"must agree; got \[2\] and \[1\]",
        ),
        (lambda: ops.gather_nd(np.ones((2, 3)), [[0]], batch_dims=2), ValueError, "batch_dims=2 are too many"),
        (lambda: run(ops.gather(np.ones((1, 3)), [[3]], batch_dims=1)), IndexError, "index 3 .* size 3"),
        (lambda: run(ops.gather(np.ones((1, 3)), [[-1]], batch_dims=1)), IndexError, "index -1"),
    ],
)
def test_gather_errors(call: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        call()
