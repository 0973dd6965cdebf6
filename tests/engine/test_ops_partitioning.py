"""dynamic_partition and dynamic_stitch: naive references, round trips, dynamic sizes, gradients, loops, errors."""

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


def run(fetches: Any, feeds: dict[Any, Any] | None = None) -> Any:
    return Session().run(fetches, feeds or {})


@st.composite
def partitions(draw: Any) -> tuple[Any, Any, int]:
    lead = draw(st.sampled_from([(0,), (1,), (7,), (2, 3), (2, 0), ()]))
    row = draw(st.sampled_from([(), (2,), (0,), (2, 2)]))
    count = draw(st.sampled_from([1, 2, 5]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from(["int32", "int64", "uint8"]))
    return rng.normal(size=(*lead, *row)).astype("float32"), rng.integers(0, count, lead).astype(dtype), count


# --- partition ------------------------------------------------------------------------------------------------------


@given(case=partitions())
def test_parts_are_what_masks_pick(case: Any):
    x, to, count = case
    with Graph().as_default():
        parts = run(ops.dynamic_partition(x, to, count))

    assert len(parts) == count
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part, x[to == number])


@given(case=partitions())
def test_stitching_the_parts_gives_the_whole(case: Any):
    x, to, count = case
    with Graph().as_default():
        places = ops.dynamic_partition(np.arange(to.size).reshape(to.shape), to, count)
        whole = run(ops.dynamic_stitch(places, ops.dynamic_partition(x, to, count)))

    np.testing.assert_array_equal(whole, x.reshape((to.size, *x.shape[to.ndim :])))


@pytest.mark.parametrize(
    "shapes", [((4, 2), (4,)), ((None, 2), (None,)), ((None, None), (4,)), (None, (None,)), (None, None)]
)
def test_partition_of_what_is_known_at_run_time_only(shapes: Any):
    x, to = np.arange(8, dtype="float32").reshape(4, 2), np.array([2, 0, 2, 0], "int32")
    data, numbers = placeholder(shapes[0], "float32"), placeholder(shapes[1], "int32")
    parts = ops.dynamic_partition(data, numbers, 3)

    values = run(parts, {data: x, numbers: to})

    assert [value.tolist() for value in values] == [x[[1, 3]].tolist(), [], x[[0, 2]].tolist()]
    assert parts[0].shape == (None if None in shapes else (None, shapes[0][1]))


def test_gradient_of_partition_is_a_stitch():
    to = [[1, 0], [3, 1], [0, 0]]
    x = np.random.default_rng(0).normal(size=(3, 2, 2))

    assert check_gradients(lambda x: ops.dynamic_partition(x, to, 4)[:3], [x], order=3) == 9
    assert check_gradients(lambda x: ops.dynamic_partition(ops.sin(x), to, 4)[1], [x], order=3) == 9


def test_experts_in_a_loop():
    """Rows go to the expert that their sign chooses, again and again, and come back to their places."""

    def step(x: Any) -> Any:
        to = ops.cast(x[:, 0] > 0, "int32")
        low, high = ops.dynamic_partition(x, to, 2)
        places = ops.dynamic_partition(ops.arange(3), to, 2)
        return ops.dynamic_stitch(places, [low * low, -2 * high])

    x = placeholder((3, 2), "float32")
    _, y = while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, step(y)), (0, x))
    slope = gradients(y, [x])[0]
    start = np.array([[1, 2], [-3, 0.5], [-1, 1]], "float32")

    values = run([y, slope], {x: start})

    # (-2 x)² for the first row and -2 x² for the others
    np.testing.assert_allclose(values[0], np.where(start[:, :1] > 0, 4 * start**2, -2 * start**2))
    np.testing.assert_allclose(values[1], np.where(start[:, :1] > 0, 8 * start, -4 * start))


def test_parts_of_a_branch():
    x, flag = ops.constant([1.0, 2.0, 3.0]), placeholder((), "bool")
    parts = cond(
        flag,
        lambda: tuple(ops.dynamic_partition(x, [0, 1, 0], 2)),
        lambda: tuple(ops.dynamic_partition(x, [1, 1, 1], 2)),
    )
    slope = gradients(ops.sum(parts[1] * parts[1]), [x])[0]

    assert run(slope, {flag: True}).tolist() == [0, 4, 0]
    assert run(slope, {flag: False}).tolist() == [2, 4, 6]


# --- stitch ---------------------------------------------------------------------------------------------------------


@st.composite
def stitches(draw: Any) -> tuple[list[Any], list[Any]]:
    row = draw(st.sampled_from([(), (2,), (0,)]))
    leads = draw(st.lists(st.sampled_from([(), (0,), (3,), (2, 2)]), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    indices = [rng.integers(0, 6, lead).astype("int32") for lead in leads]
    return indices, [rng.normal(size=(*lead, *row)).astype("float32") for lead in leads]


def stitched(indices: list[Any], data: list[Any]) -> Any:
    row = data[0].shape[indices[0].ndim :]
    out = np.zeros((max((int(each.max(initial=-1)) for each in indices)) + 1, *row), "float32")
    for places, values in zip(indices, data, strict=True):
        for at in np.ndindex(*places.shape):
            out[places[at]] = values[at]
    return out


@pytest.mark.parametrize("constant", [True, False])
@given(case=stitches())
def test_stitch_equals_a_loop_over_rows(constant: bool, case: Any):
    indices, data = case
    expected = stitched(indices, data)
    with Graph().as_default():
        places = indices if constant else [placeholder((None,) * each.ndim, "int32") for each in indices]
        result = ops.dynamic_stitch(places, data)
        value = run(result, {} if constant else dict(zip(places, indices, strict=True)))

    assert result.shape == (expected.shape if constant else (None, *expected.shape[1:]))
    np.testing.assert_array_equal(value, expected)


def test_later_rows_count_and_missing_ones_are_zero():
    result = ops.dynamic_stitch([[4, 1], [[1, 1]]], [[1, 2], [[3, 4]]])

    assert run(result).tolist() == [0, 4, 0, 0, 1]


def test_stitch_promotes_and_takes_unknown_ranks():
    data = placeholder(None, "float32")
    indices = placeholder((2,), "int64")
    result = ops.dynamic_stitch([indices, np.array([0], "uint8")], [data, [[7, 8]]])

    value = run(result, {data: [[1, 2], [3, 4]], indices: [2, 1]})

    np.testing.assert_array_equal(value, np.array([[7, 8], [3, 4], [1, 2]], "float32"))


def test_gradient_of_stitch_flows_to_the_rows_that_count():
    a, b = ops.constant([1.0, 2.0, 3.0]), ops.constant([[4.0, 5.0]])
    whole = ops.dynamic_stitch([[0, 1, 1], [[3, 0]]], [a, b])

    slopes = run(gradients(whole * [1.0, 10.0, 100.0, 1000.0], [a, b]))

    assert [slope.tolist() for slope in slopes] == [[0, 0, 10], [[1000, 1]]]
    assert check_gradients(lambda a, b: ops.dynamic_stitch([[0, 1, 1], [3, 0]], [a, b]), [[1.0, 2, 3], [4.0, 5]]) == 6


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.dynamic_partition([1.0], [0], 0), ValueError, "at least 1, got 0"),
        (lambda: ops.dynamic_partition([1.0], [0.0], 2), TypeError, "dynamic_partition: indices must be integers"),
        (lambda: ops.dynamic_partition([[1.0]], [0, 1], 2), ValueError, r"\[1,1\] and \[2\]"),
        (lambda: run(ops.dynamic_partition([1.0], [3], 2)), ValueError, "must be in 0 to 1; got 3"),
        (lambda: ops.dynamic_stitch([], []), ValueError, "at least one; got 0 and 0"),
        (lambda: ops.dynamic_stitch([[0]], [[1], [2]]), ValueError, "got 1 and 2"),
        (lambda: ops.dynamic_stitch([[0, 1]], [[1.0]]), ValueError, r"got \[1\] and \[2\]"),
        (lambda: ops.dynamic_stitch([[0.0]], [[1.0]]), TypeError, "dynamic_stitch: indices must be integers"),
        (lambda: ops.dynamic_stitch([[0], [1]], [[1.0], [[1.0]]]), ValueError, "as many axes"),
        (lambda: run(ops.dynamic_stitch([[-1, 2]], [[1.0, 2.0]])), IndexError, "index -1"),
    ],
)
def test_errors(call: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        call()
