"""Splitting, stacking and flipping under NumPy's names; conversions; isin, allclose, unique, argpartition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from shared.examples import examples

import anabranch as ab
from anabranch import layers
from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype, eagerly
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


def lists(parts: Any) -> Any:
    return [part.tolist() for part in parts]


# --- splitting and stacking -----------------------------------------------------------------------------------------


@settings(max_examples=examples(7, 30))
@given(size=st.integers(0, 9), sections=st.integers(1, 6), axis=st.sampled_from([0, 1, -1]))
def test_array_split(size: int, sections: int, axis: int):
    shape = (2, size) if axis else (size, 2)
    x = np.arange(2 * size, dtype="float32").reshape(shape)
    expected = np.array_split(x, sections, axis)
    with Graph().as_default():
        parts = ops.array_split(x, sections, axis)
        assert [part.shape for part in parts] == [part.shape for part in expected]
        assert lists(run(parts)) == lists(expected)
        unknown = symbol((None, None))
        assert lists(run(ops.array_split(unknown, sections, axis), {unknown: x})) == lists(expected)


def test_column_stack():
    vectors = np.arange(3), np.array([0.5, 1, 2], "float32")
    np.testing.assert_array_equal(run(ops.column_stack(vectors)), np.column_stack(vectors))
    matrix = np.ones((3, 2), "float32")
    found = ops.column_stack([vectors[1], matrix, vectors[1]])
    np.testing.assert_array_equal(run(found), np.column_stack([vectors[1], matrix, vectors[1]]))
    assert ops.column_stack([np.zeros((2, 1, 4)), np.zeros((2, 3, 4))]).shape == (2, 4, 4)
    open_rows = symbol((None,))
    assert ops.column_stack([open_rows, open_rows]).shape == (None, 2)
    np.testing.assert_array_equal(run(ops.column_stack([open_rows, open_rows]), {open_rows: [1, 2]}), [[1, 1], [2, 2]])
    assert ops.column_stack([np.zeros(2, "float16"), np.zeros(2, "int8")]).dtype == "float16"
    assert ops.numpy.column_stack is ops.column_stack
    assert check_gradients(lambda x, y: ops.column_stack([x, y]), [np.array([1.0, 2.0]), np.array([[3.0], [4.0]])])


def test_column_stack_refuses():
    with pytest.raises(ValueError, match=r"column_stack: expected tensors of at least one axis; got a scalar"):
        ops.column_stack([1.0, 2.0])
    with pytest.raises(ValueError, match=r"column_stack needs at least one tensor"):
        ops.column_stack([])
    with pytest.raises(ValueError, match=r"may differ on axis 1 only"):
        ops.column_stack([[1, 2], [1, 2, 3]])


def test_array_split_at_places():
    x = np.arange(6).reshape(3, 2)
    assert lists(run(ops.array_split(x, [1]))) == lists(np.array_split(x, [1]))
    with pytest.raises(ValueError, match="number of parts must be positive, got 0"):
        ops.array_split(x, 0)


@pytest.mark.parametrize(("name", "least"), [("vsplit", 2), ("hsplit", 2), ("dsplit", 3)])
@pytest.mark.parametrize("sections", [2, [1, 3]])
def test_named_splits(name: str, least: int, sections: Any):
    for rank in (least, 3):
        x = np.arange(4**rank, dtype="float32").reshape((4,) * rank)
        assert lists(run(getattr(ops, name)(x, sections))) == lists(getattr(np, name)(x, sections))


def test_hsplit_of_vectors_and_refusals():
    assert lists(run(ops.hsplit([1, 2, 3, 4], 2))) == [[1, 2], [3, 4]]
    for function, x, message in (
        (ops.vsplit, [1, 2], "vsplit needs at least 2 axes"),
        (ops.dsplit, [[1, 2]], "dsplit needs at least 3 axes"),
        (ops.hsplit, 1, "hsplit needs at least 2 axes"),
        (ops.hsplit, symbol(None), "known rank"),
    ):
        with pytest.raises(ValueError, match=message):
            function(x, 1)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_dstack(rank: int):
    x = np.arange(2**rank, dtype="float32").reshape((2,) * rank)
    assert run(ops.dstack([x, -x, x])).tolist() == np.dstack([x, -x, x]).tolist()
    assert run(ops.dstack([np.array([1], "int32"), [0.5]])).dtype == "float32"


def test_stacks_of_nothing_are_refused():
    for name in ("dstack", "hstack", "vstack"):
        with pytest.raises(ValueError, match=f"{name} needs at least one tensor; got none."):
            getattr(ops, name)([])


def test_flips():
    x = np.arange(6).reshape(2, 3)
    assert run(ops.fliplr(x)).tolist() == np.fliplr(x).tolist()
    assert run(ops.flipud(x)).tolist() == np.flipud(x).tolist()
    assert run(ops.flipud([1, 2])).tolist() == [2, 1]
    with pytest.raises(ValueError, match="fliplr needs at least 2 axes"):
        ops.fliplr([1, 2])
    with pytest.raises(ValueError, match="flipud needs at least 1 axes"):
        ops.flipud(1)


@pytest.mark.parametrize("k", [0, 2, -1])
def test_diagflat(k: int):
    for x in (np.arange(4).reshape(2, 2), np.array(3), np.zeros(0, "int32")):
        assert run(ops.diagflat(x, k)).tolist() == np.diagflat(x, k).tolist()


# --- tensors themselves ---------------------------------------------------------------------------------------------


def test_get_item():
    x = np.arange(6).reshape(2, 3)
    for key in (1, (slice(None), 0), (..., None), (0, [2, 0]), x > 2):
        assert run(ops.get_item(x, key)).tolist() == x[key].tolist()


def test_copy_and_empty():
    x = symbol((None, 2))
    assert run(ops.copy(x), {x: [[1, 2]]}).tolist() == [[1, 2]]
    assert ops.copy(x) is not x
    assert run(gradients(ops.sum(ops.copy(x) * 3.0), [x]), {x: [[1, 2]]})[0].tolist() == [[3, 3]]
    empty = run(ops.empty((2, 3), "int32"))
    assert (empty.shape, empty.dtype) == ((2, 3), "int32")
    assert run(ops.empty((2,))).dtype == "float32"
    like = run(ops.empty_like(x, dtype="bool"), {x: [[1, 2]]})
    assert (like.shape, like.dtype) == ((1, 2), "bool")


def test_what_a_tensor_is():
    variable = ab.Variable([1.0])
    assert ops.is_tensor(symbol((2,)))
    for other in (1, [1.0], np.ones(2), variable, None):
        assert not ops.is_tensor(other)
    for value, name in ((1, "int32"), (1.5, "float32"), (True, "bool"), (np.ones(1), "float64"), (variable, "float32")):
        assert ops.dtype(value) == name
    assert ops.dtype([[1.5]]) == "float32"
    assert ops.dtype(symbol(None, "bfloat16")) == "bfloat16"


def test_convert_to_numpy():
    for value in (2.5, [1, 2], np.arange(3), ops.convert_to_tensor([1.0, 2.0]), ab.Variable([3.0])):
        array = ops.convert_to_numpy(value)
        assert type(array) is np.ndarray
        assert array.tolist() == (value.numpy() if isinstance(value, ab.Variable) else run(ops.array(value))).tolist()
    array = np.arange(3)
    ops.convert_to_numpy(array)[0] = 7
    assert array[0] == 0
    with pytest.raises(TypeError, match=r"is symbolic.*Run it with Session\.run"):
        ops.convert_to_numpy(symbol((2,)))


# --- isin, allclose, unique, argpartition ---------------------------------------------------------------------------

SMALL = st.integers(-2, 3)


@settings(max_examples=examples(7, 30))
@given(
    x=arrays.arrays("int32", arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4), elements=SMALL),
    among=arrays.arrays("float32", arrays.array_shapes(max_dims=2, min_side=0, max_side=3), elements=SMALL),
    invert=st.booleans(),
)
def test_isin(x: Any, among: Any, invert: bool):
    with Graph().as_default():
        found = run(ops.isin(x, among, invert=invert))
    assert found.dtype == "bool"
    assert found.tolist() == np.isin(x, among, invert=invert).tolist()


def test_isin_of_nans_and_bools():
    assert run(ops.isin([1.0, NAN], [NAN, 1.0])).tolist() == [True, False]
    assert run(ops.isin(np.array([True, False]), np.array([True]), assume_unique=True)).tolist() == [True, False]
    x = symbol(None)
    assert run(ops.isin(x, x), {x: [[1, 2]]}).tolist() == [[True, True]]


def test_allclose():
    assert run(ops.allclose([1.0, 2.0], [1.0, 2.00001]))
    assert not run(ops.allclose([1.0, 2.0], [1.0, 2.1]))
    assert run(ops.allclose([1.0, 2.0], [1.0, 2.1], atol=0.2))
    assert not run(ops.allclose([NAN], [NAN]))
    assert run(ops.allclose([NAN], [NAN], equal_nan=True))
    assert run(ops.allclose(np.zeros(0), np.zeros(0)))


@settings(max_examples=examples(10, 40))
@given(
    x=arrays.arrays("int16", arrays.array_shapes(max_dims=3, min_side=1, max_side=3), elements=SMALL),
    data=st.data(),
    in_order=st.booleans(),
)
def test_unique(x: Any, data: Any, in_order: bool):
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    with Graph().as_default():
        values, index, inverse, counts = run(ops.unique(x, in_order, True, True, True, axis))
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    if in_order:
        for found, expected in zip((values, index, inverse, counts), wanted, strict=True):
            assert found.tolist() == expected.tolist()
    else:
        assert index.tolist() == sorted(wanted[1].tolist())
        assert counts.sum() == (x.size if axis is None else x.shape[axis])
    rebuilt = values[inverse] if axis is None else np.take(values, inverse, axis=axis)
    assert rebuilt.tolist() == x.tolist()
    assert {part.dtype.name for part in (index, inverse, counts)} == {"int32"}


def test_unique_of_a_given_size():
    x = [3, 1, 2, 1]
    values, index, counts = ops.unique(x, return_index=True, return_counts=True, size=5, fill_value=9)
    assert values.shape == index.shape == counts.shape == (5,)
    assert lists(run([values, index, counts])) == [[1, 2, 3, 9, 9], [1, 2, 0, 1, 1], [2, 1, 1, 0, 0]]
    assert run(ops.unique(x, size=2)).tolist() == [1, 2]
    assert run(ops.unique(x, size=0)).tolist() == []
    assert run(ops.unique(np.zeros(0), size=2)).tolist() == [0, 0]
    rows = ops.unique([[1, 0], [1, 0], [0, 1]], axis=0, size=3, fill_value=-1)
    assert rows.shape == (3, 2)
    assert run(rows).tolist() == [[0, 1], [1, 0], [-1, -1]]
    columns = ops.unique([[1, 1, 0]], axis=1, size=1)
    assert run(columns).tolist() == [[0]]


def test_unique_of_nans_and_unknown_shapes():
    assert run(ops.unique([NAN, 1.0, NAN])).tolist()[0] == 1
    assert run(ops.unique([NAN, 1.0, NAN])).shape == (3,)
    x = symbol((None, 2))
    values, inverse = ops.unique(x, return_inverse=True)
    assert values.shape == (None,)
    assert inverse.shape == (None, 2)
    assert lists(run([values, inverse], {x: [[2, 1], [1, 2]]})) == [[1, 2], [[1, 0], [0, 1]]]


def test_gradient_of_unique_flows_to_the_first_of_equals():
    x = symbol((3,))
    slope = gradients(ops.sum(ops.unique(x) * [1.0, 10.0]), [x])
    assert run(slope, {x: [3, 5, 3]})[0].tolist() == [1, 10, 0]


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("kth", [0, 1, -1, (0, 2)])
def test_argpartition(axis: Any, kth: Any):
    x = np.random.default_rng(0).permutation(12).reshape(3, 4)
    places = run(ops.argpartition(x, kth, axis))
    assert places.dtype == "int32"
    flat = x.ravel() if axis is None else x
    ordered = np.take_along_axis(flat, places, 0 if axis is None else axis)
    for place in np.atleast_1d(kth):
        found = np.take(ordered, place, axis=axis or 0)
        assert found.tolist() == np.take(np.sort(flat, axis=axis or 0), place, axis=axis or 0).tolist()


def test_argpartition_refuses():
    with pytest.raises(ValueError, match="kth=2 is outside of axis -1, which has 2 elements"):
        ops.argpartition([1, 2], 2)


@pytest.mark.parametrize(
    "leave",
    [
        lambda x: ops.reshape(x, (2, 3)),
        lambda x: ops.transpose(x, (0, 1)),
        lambda x: ops.transpose(x[0]),
        lambda x: ops.squeeze(x),
        lambda x: ops.expand_dims(x, ()),
        lambda x: ops.broadcast_to(x, (2, 3)),
        lambda x: ops.tile(x, (1, 1)),
        lambda x: x[:],
        lambda x: x[...],
        lambda x: ops.ravel(x[0]),
        lambda x: ops.clip(x, None, None),
        lambda x: ab.activations.linear(x),
        lambda x: layers.Activation("linear")(x),
        lambda x: layers.Identity()(x),
        lambda x: layers.Dropout(0.5)(x, training=False),
        lambda x: layers.GaussianNoise(0.5)(x, training=False),
        lambda x: layers.Lambda(lambda y: y)(x),
        lambda x: ab.Sequential([layers.Dropout(0.5), layers.Activation(None)])(x),
        lambda x: layers.Dropout(0.5)(layers.Dropout(0.5)(x)),
    ],
)
def test_what_has_nothing_to_do_waits_for_control_dependencies(leave: Any):
    graph = ab.Graph()
    with graph.as_default():
        x, counter = ab.placeholder((2, 3)), ab.Variable(0.0)
        with ab.control_dependencies([counter.assign_add(1.0)]):
            waiting = leave(x)
    ab.Session(graph).run(waiting, {x: np.zeros((2, 3), "float32")})
    assert counter.numpy() == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("shift", "axis"),
    [([1, -2], [0, 2]), ([1, 5, -1], [0, 2, 2]), ([4], [1]), ([1, 2], 1), ([3], [0, 2]), ([], [])],
    ids=str,
)
def test_rolls_by_shifts_of_the_run(compiled: bool, shift: list[int], axis: Any) -> None:
    """A vector of shifts, and a list of tensors and numbers, do what the same numbers do."""
    x = np.arange(24.0).reshape(2, 3, 4)
    expected = np.roll(x, shift, axis) if len(shift) else x

    def by_list(x: Any, shift: Any) -> Any:
        return ops.roll(x, [shift[k] if k % 2 else int(known) for k, known in enumerate(found)], axis)

    found, vector = shift, np.array(shift, "int32")
    for function in (by_list, lambda x, shift: ops.roll(x, shift, axis)):
        with eagerly():
            rolled = (ab.function(function) if compiled else function)(ops.convert_to_tensor(x), vector)
            np.testing.assert_array_equal(rolled, expected)
    check_gradients(lambda x: ops.roll(x, [ops.convert_to_tensor(each) for each in shift], axis), [x])


def test_a_roll_needs_a_shift_for_each_axis() -> None:
    with pytest.raises(ValueError, match="must have as many entries"):
        ops.roll(np.ones((2, 2)), ab.placeholder((3,), "int32"), [0, 1])
