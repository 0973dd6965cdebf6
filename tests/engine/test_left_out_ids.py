"""Indices that are negative or out of range: the rule of docs/ops.md, and the check that makes left out ids errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

X = np.array([10.0, 20.0, 30.0], "float32")
ROWS = np.array([1.0, 2.0], "float32")
Function = Callable[[Any], Any]

LEFT_OUT: dict[str, tuple[Function, Any]] = {
    "segment_sum": (lambda i: ops.segment_sum(ROWS, i, 3), [1, 0, 0]),
    "segment_mean": (lambda i: ops.segment_mean(ROWS, i, 3), [1, 0, 0]),
    "segment_prod": (lambda i: ops.segment_prod(ROWS * 5, i, 3), [5, 1, 1]),
    "segment_max": (lambda i: ops.segment_max(ROWS, i, 3), [1, -np.inf, -np.inf]),
    "segment_min": (lambda i: ops.segment_min(ROWS, i, 3), [1, np.inf, np.inf]),
    "one_hot": (lambda i: ops.one_hot(i, 3), [[1, 0, 0], [0, 0, 0]]),
    "multi_hot": (lambda i: ops.multi_hot(i, 3), [1, 0, 0]),
    "product with one_hot": (lambda i: ops.matmul(ops.one_hot(i, 3), X[:, None]), [[10], [0]]),
    "one_hot in a loop": (lambda i: ab.map_fn(lambda k: ops.one_hot(k, 3), i), [[1, 0, 0], [0, 0, 0]]),
    "one_hot, vectorized": (lambda i: ab.vectorized_map(lambda k: ops.one_hot(k, 3), i), [[1, 0, 0], [0, 0, 0]]),
    "CategoryEncoding": (lambda i: ab.layers.CategoryEncoding(3, "one_hot")(i), [[1, 0, 0], [0, 0, 0]]),
}
TENSORFLOWS: dict[str, Function] = {
    "gather": lambda i: ops.gather(X, i),
    "gather_nd": lambda i: ops.gather_nd(X, ops.expand_dims(i, -1)),
    "scatter": lambda i: ops.scatter(ops.expand_dims(i, -1), ROWS, (3,)),
    "scatter_nd": lambda i: ops.scatter_nd(ops.expand_dims(i, -1), ROWS, (3,)),
    "scatter_add": lambda i: ops.scatter_add(X, ops.expand_dims(i, -1), ROWS),
    "scatter_update": lambda i: ops.scatter_update(X, ops.expand_dims(i, -1), ROWS),
    "tensor_scatter_nd_add": lambda i: ops.tensor_scatter_nd_add(X, ops.expand_dims(i, -1), ROWS),
    "tensor_scatter_nd_sub": lambda i: ops.tensor_scatter_nd_sub(X, ops.expand_dims(i, -1), ROWS),
    "tensor_scatter_nd_update": lambda i: ops.tensor_scatter_nd_update(X, ops.expand_dims(i, -1), ROWS),
    "tensor_scatter_nd_max": lambda i: ops.tensor_scatter_nd_max(X, ops.expand_dims(i, -1), ROWS),
    "tensor_scatter_nd_min": lambda i: ops.tensor_scatter_nd_min(X, ops.expand_dims(i, -1), ROWS),
    "slice": lambda i: ops.slice(X, i[1:], (1,)),
    "slice_update": lambda i: ops.slice_update(X, i[1:], ROWS[:1]),
    "embedding_lookup": lambda i: ops.embedding_lookup(ops.convert_to_tensor(X), i),
    "TensorArray.gather": lambda i: ab.TensorArray("float32", 3).unstack(X).gather(i),
}
NUMPYS: dict[str, Function] = {
    "take": lambda i: ops.take(X, i),
    "take_along_axis": lambda i: ops.take_along_axis(X, i, 0),
    "brackets": lambda i: ops.convert_to_tensor(X)[i],
    "Embedding": lambda i: ab.layers.Embedding(3, 1, embeddings_initializer="ones")(i)[:, 0] * X[2],
}


def run(function: Function, ids: Any, known: bool) -> Any:
    """Return what `function` gives for ids that are known before, or in the run only."""
    array = np.array(ids, "int32")
    with ab.Graph().as_default():
        if known:
            return ab.Session().run(function(ops.constant(array)))
        fed = ab.placeholder(array.shape, "int32", "ids")
        return ab.Session().run(function(fed), {fed: array})


@pytest.mark.parametrize("known", [False, True], ids=["fed", "known"])
@pytest.mark.parametrize("stray", [-1, 3, -4])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_ids_of_no_group_are_left_out_and_refused_on_demand(name: str, stray: int, known: bool):
    function, expected = LEFT_OUT[name]
    np.testing.assert_array_equal(run(function, [0, stray], known), expected)
    with ab.debugging.check_indices():
        run(function, [0, 2], known)
        with pytest.raises(IndexError, match=rf"leaves out 1 of \d ids outside 0 to 2, first {stray}\b") as caught:
            run(function, [0, stray], known)
    assert "test_left_out_ids.py" in "".join(getattr(caught.value, "__notes__", []))
    np.testing.assert_array_equal(run(function, [0, stray], known), expected)  # behind the block as before


@pytest.mark.parametrize("known", [False, True], ids=["fed", "known"])
@pytest.mark.parametrize("stray", [-1, 3, -4])
@pytest.mark.parametrize("name", TENSORFLOWS)
def test_places_of_tensorflows_ops_have_to_be_there(name: str, stray: int, known: bool):
    with pytest.raises(IndexError):
        run(TENSORFLOWS[name], [0, stray], known)


@pytest.mark.parametrize("known", [False, True], ids=["fed", "known"])
@pytest.mark.parametrize("name", NUMPYS)
def test_negative_places_of_numpys_ops_count_from_the_end(name: str, known: bool):
    assert run(NUMPYS[name], [2, -1], known).tolist() == [30, 30]
    for stray in (3, -4):
        with pytest.raises(IndexError):
            run(NUMPYS[name], [0, stray], known)


def test_the_switch_holds_until_it_is_turned_off():
    function, expected = LEFT_OUT["one_hot"]
    ab.debugging.enable_check_indices()
    try:
        with ab.debugging.check_indices():
            pass
        with pytest.raises(IndexError):
            run(function, [0, 7], False)
    finally:
        ab.debugging.disable_check_indices()
    np.testing.assert_array_equal(run(function, [0, 7], False), expected)


def test_checks_of_indices_let_nan_pass_and_checks_of_numbers_let_ids_pass():
    with ab.Graph().as_default():
        x = ab.placeholder((2,), "float32")
        ids = ab.placeholder((2,), "int32")
        y = ops.segment_sum(ops.log(x), ids, 3)
        with ab.debugging.check_indices():
            assert np.isnan(ab.Session().run(y, {x: [np.nan, -1], ids: [0, 1]})[:2]).all()
        with ab.debugging.check_numerics():
            assert ab.Session().run(y, {x: [1, 1], ids: [0, 5]}).tolist() == [0, 0, 0]


def test_ids_of_several_axes_are_named_by_their_place():
    with (
        ab.debugging.check_indices(),
        pytest.raises(IndexError, match=r"2 of 4 ids outside 0 to 2, first 5 at \[0, 1\]"),
    ):
        run(lambda i: ops.one_hot(i, 3), [[0, 5], [1, -1]], False)


def test_left_out_rows_get_no_gradient():
    with ab.Graph().as_default():
        x, ids = ops.constant(ROWS), ab.placeholder((2,), "int32")
        slope = ab.gradients(ops.sum(ops.segment_sum(x, ids, 3)), [x])[0]
        assert ab.Session().run(slope, {ids: [0, -1]}).tolist() == [1, 0]
