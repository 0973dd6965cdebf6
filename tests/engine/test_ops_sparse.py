"""Sparse tensors: every function against the same on the dense whole, gradients, loops and branches, errors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Variable
from anabranch.engine.ops import SparseTensor
from anabranch.engine.ops.containers import sparse
from anabranch.engine.session import Session
from anabranch.engine.session.placeholder import placeholder
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: dict[Any, Any] | None = None) -> Any:
    return Session().run(fetches, feeds or {})


def dense_of(x: Any) -> Any:
    """A sparse value as a whole, by NumPy."""
    whole = np.zeros(tuple(int(size) for size in x.dense_shape), x.values.dtype)
    np.add.at(whole, tuple(np.asarray(x.indices).T), x.values)
    return whole


def is_sorted(x: Any) -> bool:
    rows = [tuple(int(place) for place in row) for row in x.indices]
    return rows == sorted(rows)


@st.composite
def sparse_values(draw: Any, shape: Any = None, dtype: str = "float32") -> Any:
    """A sparse tensor in any order, some of whose places may be named twice; its shape is known or symbolic."""
    shape = draw(st.sampled_from([(4,), (3, 2), (2, 3, 2), (1, 1), (5, 4)])) if shape is None else shape
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    count = draw(st.integers(0, 6))
    indices = np.stack([rng.integers(0, size, count) for size in shape], -1).astype(
        draw(st.sampled_from(["int32", "int64"]))
    )
    return SparseTensor(indices, rng.integers(-5, 6, count).astype(dtype), np.array(shape, indices.dtype))


def symbolic(x: Any, known: bool) -> tuple[Any, dict[Any, Any]]:
    """A sparse tensor of the graph and its feeds; of an unknown size, and perhaps of a shape known at run time only."""
    rank = len(x.dense_shape)
    parts = (placeholder((None, rank), x.indices.dtype), placeholder((None,), x.values.dtype))
    shape = ops.constant(x.dense_shape) if known else placeholder((rank,), x.dense_shape.dtype)
    feeds = {parts[0]: x.indices, parts[1]: x.values, **({} if known else {shape: x.dense_shape})}
    return SparseTensor(*parts, shape), feeds


def evaluate(function: Any, x: Any, known: bool) -> Any:
    with Graph().as_default():
        inputs, feeds = symbolic(x, known)
        return run(function(inputs), feeds)


KNOWN = pytest.mark.parametrize("known", [True, False])


# --- one sparse tensor ----------------------------------------------------------------------------------------------


@KNOWN
@given(x=sparse_values())
def test_to_dense(known: bool, x: Any):
    whole = evaluate(sparse.to_dense, x, known)

    np.testing.assert_array_equal(whole, dense_of(x))
    assert whole.dtype == x.values.dtype


@KNOWN
@given(x=sparse_values())
def test_to_dense_with_a_default(known: bool, x: Any):
    expected = np.full(tuple(x.dense_shape), 7, "float32")
    expected[tuple(x.indices.T)] = dense_of(x)[tuple(x.indices.T)]

    np.testing.assert_array_equal(evaluate(lambda x: sparse.to_dense(x, 7), x, known), expected)


@given(x=sparse_values())
def test_from_dense_and_back(x: Any):
    whole = dense_of(x)
    for shape in (whole.shape, (None,) * whole.ndim):
        with Graph().as_default():
            tensor = placeholder(shape, "float32")
            made = sparse.from_dense(tensor)
            value, again = run([made, sparse.to_dense(made)], {tensor: whole})
        assert value.values.tolist() == whole[whole != 0].tolist()
        assert value.dense_shape.tolist() == list(whole.shape)
        np.testing.assert_array_equal(again, whole)


def test_from_dense_of_bools_and_nan():
    value = run(sparse.from_dense([[True, False], [False, True]]))
    other = run(sparse.from_dense([0.0, np.nan, 2.0]))

    assert (value.indices.tolist(), value.values.tolist()) == ([[0, 0], [1, 1]], [True, True])
    assert other.indices.tolist() == [[1], [2]]


@KNOWN
@given(x=sparse_values())
def test_reorder_and_coalesce(known: bool, x: Any):
    ordered, single = evaluate(lambda x: (sparse.reorder(x), sparse.coalesce(x)), x, known)

    assert is_sorted(ordered)
    assert is_sorted(single)
    assert sorted(ordered.values.tolist()) == sorted(x.values.tolist())
    assert len({tuple(row) for row in single.indices.tolist()}) == len(single.indices)
    np.testing.assert_array_equal(dense_of(ordered), dense_of(x))
    np.testing.assert_array_equal(dense_of(single), dense_of(x))


def test_reorder_keeps_the_order_of_equal_places():
    value = run(sparse.reorder(SparseTensor([[1], [0], [1]], [1.0, 2.0, 3.0], [2])))

    assert value.values.tolist() == [2, 1, 3]


@KNOWN
@given(x=sparse_values(), seed=st.integers(0, 10))
def test_transpose(known: bool, x: Any, seed: int):
    perm = np.random.default_rng(seed).permutation(len(x.dense_shape)).tolist()
    turned, reverse = evaluate(lambda x: (sparse.transpose(x, perm), sparse.transpose(x)), x, known)

    assert is_sorted(turned)
    np.testing.assert_array_equal(dense_of(turned), dense_of(x).transpose(perm))
    np.testing.assert_array_equal(dense_of(reverse), dense_of(x).T)


@KNOWN
@given(x=sparse_values(), seed=st.integers(0, 100))
def test_slice(known: bool, x: Any, seed: int):
    rng = np.random.default_rng(seed)
    start = [int(rng.integers(0, size + 2)) for size in x.dense_shape]
    size = [int(rng.integers(0, 4)) for _ in start]

    part = evaluate(lambda x: sparse.slice(x, start, size), x, known)

    expected = dense_of(x)[tuple(slice(begin, begin + count) for begin, count in zip(start, size, strict=True))]
    np.testing.assert_array_equal(dense_of(part), expected)


@KNOWN
@given(x=sparse_values(), seed=st.integers(0, 100))
def test_retain(known: bool, x: Any, seed: int):
    mask = np.random.default_rng(seed).random(len(x.values)) < 0.5

    part = evaluate(lambda x: sparse.retain(x, mask), x, known)

    np.testing.assert_array_equal(part.indices, x.indices[mask])
    np.testing.assert_array_equal(part.values, x.values[mask])


@KNOWN
@pytest.mark.parametrize("keepdims", [True, False])
@given(x=sparse_values(), axis=st.sampled_from([None, 0, -1, (0, -1)]))
def test_reduce_sum(known: bool, keepdims: bool, x: Any, axis: Any):
    whole = dense_of(x)
    if axis == (0, -1):
        axis = 0 if whole.ndim == 1 else axis

    value = evaluate(lambda x: sparse.reduce_sum(x, axis, keepdims), x, known)

    np.testing.assert_array_equal(value, whole.sum(axis, keepdims=keepdims))


@KNOWN
@given(x=sparse_values())
def test_softmax(known: bool, x: Any):
    single = run_coalesced(x)
    expected = np.full(tuple(x.dense_shape), -np.inf)
    expected[tuple(single.indices.T)] = single.values
    with np.errstate(invalid="ignore"):
        powers = np.exp(expected - expected.max(-1, keepdims=True))
        expected = np.nan_to_num(powers / powers.sum(-1, keepdims=True))

    value = evaluate(sparse.softmax, single, known)

    np.testing.assert_allclose(dense_of(value), expected, rtol=1e-5)


def run_coalesced(x: Any) -> Any:
    with Graph().as_default():
        return run(sparse.coalesce(SparseTensor(*x)))


# --- several --------------------------------------------------------------------------------------------------------


@KNOWN
@given(x=sparse_values((3, 2)), y=sparse_values((3, 2)))
def test_add(known: bool, x: Any, y: Any):
    both, left, right = evaluate(
        lambda x: (sparse.add(x, y), sparse.add(x, dense_of(y)), sparse.add(dense_of(y), x)), x, known
    )

    assert is_sorted(both)
    np.testing.assert_array_equal(dense_of(both), dense_of(x) + dense_of(y))
    np.testing.assert_array_equal(left, dense_of(x) + dense_of(y))
    np.testing.assert_array_equal(right, left)


@KNOWN
@given(x=sparse_values((3, 2)), y=sparse_values((3, 2)), z=sparse_values((3, 4)), axis=st.sampled_from([0, 1, -1]))
def test_concat(known: bool, x: Any, y: Any, z: Any, axis: int):
    others = [y] if axis == 0 else [y, z]

    joined = evaluate(lambda x: sparse.concat(axis, [x, *others]), x, known)

    assert is_sorted(joined)
    np.testing.assert_array_equal(dense_of(joined), np.concatenate([dense_of(part) for part in (x, *others)], axis))


@KNOWN
@pytest.mark.parametrize("adjoint_a", [False, True])
@pytest.mark.parametrize("adjoint_b", [False, True])
@given(x=sparse_values((3, 2)), columns=st.integers(0, 3), seed=st.integers(0, 100))
def test_matmul(known: bool, adjoint_a: bool, adjoint_b: bool, x: Any, columns: int, seed: int):
    rows = 3 if adjoint_a else 2
    b = np.random.default_rng(seed).integers(-3, 4, (columns, rows) if adjoint_b else (rows, columns)).astype("float32")

    value = evaluate(lambda x: sparse.matmul(x, b, adjoint_a, adjoint_b), x, known)

    whole = dense_of(x)
    np.testing.assert_array_equal(value, (whole.T if adjoint_a else whole) @ (b.T if adjoint_b else b))


def test_matmul_of_complex_numbers():
    x = SparseTensor([[0, 1]], np.array([2 + 1j], "complex64"), [2, 2])
    b = np.array([[1j, 2], [3, 4 - 1j]], "complex64")
    whole = np.array([[0, 2 + 1j], [0, 0]], "complex64")

    value = run(sparse.matmul(x, b, adjoint_a=True, adjoint_b=True))

    np.testing.assert_array_equal(value, whole.conj().T @ b.conj().T)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [True, False])
@KNOWN
def test_embedding_lookup(combiner: str, weighted: bool, known: bool):
    table = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    ids = SparseTensor(np.array([[0, 0], [0, 2], [2, 1]]), np.array([4, 1, 1]), np.array([4, 3]))
    weights = np.array([2, 0.5, 3], "float32")
    used = weights if weighted else np.ones(3, "float32")
    rows = table[[4, 1, 1]] * used[:, None]
    norms = {"sum": [1, 1], "mean": [used[:2].sum(), used[2]], "sqrtn": [np.sqrt((used[:2] ** 2).sum()), used[2]]}[
        combiner
    ]
    expected = np.stack([rows[:2].sum(0) / norms[0], rows[0] * 0, rows[2] / norms[1], rows[0] * 0])

    value = evaluate(
        lambda ids: ops.embedding_lookup_sparse(
            table, ids, ids._replace(values=weights) if weighted else None, combiner
        ),
        ids,
        known,
    )

    np.testing.assert_allclose(value, expected, rtol=1e-6)


# --- gradients ------------------------------------------------------------------------------------------------------

PLACES, SHAPE = np.array([[1, 0], [0, 1], [2, 1], [1, 1], [1, 0]]), (3, 2)
VALUES = np.random.default_rng(3).normal(size=5)
GRADIENTS: dict[str, Any] = {
    "to_dense": sparse.to_dense,
    "to_dense with default": lambda x: sparse.to_dense(x, 3.0),
    "coalesce": lambda x: sparse.coalesce(x).values,
    "transpose": lambda x: sparse.transpose(x).values,
    "slice": lambda x: sparse.slice(x, [1, 0], [2, 1]).values,
    "concat": lambda x: sparse.concat(1, [x, x]).values,
    "add": lambda x: sparse.add(x, SparseTensor([[2, 0]], [1.0], [3, 2])).values,
    "add dense": lambda x: sparse.add(x, np.ones((3, 2))),
    "reduce_sum": lambda x: sparse.reduce_sum(x, 1),
    "softmax": lambda x: sparse.softmax(x).values,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str):
    assert check_gradients(lambda values: GRADIENTS[name](SparseTensor(PLACES, values, SHAPE)), [VALUES]) == 6


def test_gradient_of_from_dense():
    whole = np.array([[0, 1.5], [2.5, 0]])

    def function(x: Any) -> Any:
        return sparse.from_dense(x).values

    x = ops.constant(whole)
    slope = run(gradients(ops.sum(ops.square(function(x))), [x])[0])

    np.testing.assert_array_equal(slope, 2 * whole)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("factor", [1, 1 - 0.5j])
def test_gradients_of_matmul(adjoint: bool, factor: complex):
    b = np.random.default_rng(4).normal(size=(3 if adjoint else 2, 4)) * factor

    def function(values: Any, b: Any) -> Any:
        return sparse.matmul(SparseTensor(PLACES, values, SHAPE), b, adjoint)

    assert check_gradients(function, [VALUES * factor, b], order=2) == 6


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_embedding_lookup_in_shards_is_that_in_the_whole_table(strategy: str):
    table = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    pieces = [table[0::2], table[1::2]] if strategy == "mod" else [table[:3], table[3:]]
    ids = SparseTensor(np.array([[0, 0], [0, 2], [2, 1]]), np.array([4, 1, 3]), np.array([4, 3]))
    for combiner in ("sum", "mean"):
        for max_norm in (None, 1.0):
            found = run(ops.embedding_lookup_sparse(pieces, ids, None, combiner, max_norm, strategy))
            kept = np.minimum(1, 1 / np.linalg.norm(table, axis=1, keepdims=True)) * table if max_norm else table
            rows = np.stack([kept[4] + kept[1], np.zeros(3), kept[3], np.zeros(3)])
            rows[0] /= 2 if combiner == "mean" else 1
            np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)

    variables = [Variable(piece) for piece in pieces]
    loss = ops.sum(ops.embedding_lookup_sparse(variables, ids, combiner="sum", partition_strategy=strategy))
    slopes = [run(ops.convert_to_tensor(slope)) for slope in gradients(loss, variables)]
    whole = np.zeros((5, 3), "float32")
    whole[[4, 1, 3]] = 1
    expected = [whole[0::2], whole[1::2]] if strategy == "mod" else [whole[:3], whole[3:]]
    for slope, wanted in zip(slopes, expected, strict=True):
        np.testing.assert_array_equal(slope, wanted)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_embedding_lookup(combiner: str):
    ids = SparseTensor(PLACES, [1, 0, 1, 3, 3], SHAPE)

    def function(table: Any, weights: Any) -> Any:
        return ops.embedding_lookup_sparse(table, ids, ids._replace(values=weights), combiner)

    assert check_gradients(function, [np.random.default_rng(5).normal(size=(4, 2)), np.abs(VALUES) + 0.5]) == 6


def test_gradient_of_a_table_of_embeddings():
    table = Variable(np.ones((3, 2), "float32"), name="table")
    ids = SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 2, 0], [2, 2])
    loss = ops.sum(ops.embedding_lookup_sparse(table, ids, combiner="sum") * [[1.0, 2.0], [3.0, 4.0]])

    np.testing.assert_array_equal(run(gradients(loss, [table])[0]), [[3, 4], [0, 0], [2, 4]])


# --- loops and branches ---------------------------------------------------------------------------------------------


def test_sparse_tensor_as_a_loop_variable():
    """Its number of elements doubles, and so does the length of its last axis."""
    values = ops.constant([1.0, 2.0])
    start = SparseTensor([[0, 0], [1, 1]], values, [2, 2])
    _, grown = while_loop(
        lambda i, _: i < 2,
        lambda i, x: (i + 1, sparse.concat(1, [x, x._replace(values=x.values * x.values)])),
        (0, start),
    )
    slope = gradients(ops.sum(sparse.to_dense(grown)), [values])[0]

    value, slopes = run([grown, slope])

    assert isinstance(grown, SparseTensor)
    indices: Any = grown.indices
    assert indices.shape == (None, 2)
    np.testing.assert_array_equal(dense_of(value), [[1, 0, 1, 0, 1, 0, 1, 0], [0, 2, 0, 4, 0, 4, 0, 16]])
    np.testing.assert_array_equal(slopes, [1 + 2 + 2 + 4, 1 + 4 + 4 + 32])


def test_power_iteration():
    x = SparseTensor([[0, 1], [1, 0], [1, 1]], [1.0, 2.0, 1.0], [2, 2])
    _, y = while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, sparse.matmul(x, y)), (0, ops.constant([[1.0], [1.0]])))

    np.testing.assert_array_equal(run(y), np.linalg.matrix_power([[0, 1], [2, 1]], 3) @ [[1], [1]])


@pytest.mark.parametrize("flag", [True, False])
def test_sparse_tensors_out_of_branches(flag: bool):
    taken = placeholder((), "bool")
    values = ops.constant([1.0, 2.0, 3.0])
    x = SparseTensor([[0], [2], [2]], values, [4])
    branch = cond(taken, lambda: sparse.coalesce(x), lambda: sparse.retain(x, [True, False, True]))
    loss = ops.sum(ops.square(branch.values))

    value, slope = run([branch, gradients(loss, [values])[0]], {taken: flag})

    np.testing.assert_array_equal(dense_of(value), [1, 0, 5, 0] if flag else [1, 0, 3, 0])
    np.testing.assert_array_equal(slope, [2, 10, 10] if flag else [2, 0, 6])


# --- errors ---------------------------------------------------------------------------------------------------------

X = SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], [3, 2])
wrong: Any = np.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sparse.to_dense(wrong), TypeError, "to_dense takes a SparseTensor, got ndarray"),
        (lambda: sparse.reorder(X._replace(values=[1.0])), ValueError, r"got \[2,2\], \[1\], \[2\]"),
        (lambda: sparse.reorder(X._replace(dense_shape=[3])), ValueError, r"got \[2,2\], \[2\], \[1\]"),
        (lambda: sparse.softmax(X._replace(indices=[0, 1])), ValueError, r"indices \[n, rank\]"),
        (lambda: sparse.softmax(X._replace(indices=[[0.0, 1.0]])), TypeError, "must be integers"),
        (
            lambda: sparse.coalesce(SparseTensor(placeholder(None, "int32"), [1.0], placeholder(None, "int32"))),
            ValueError,
            "number of axes",
        ),
        (lambda: sparse.from_dense(placeholder(None, "float32")), ValueError, "known number of axes"),
        (lambda: sparse.from_dense(1.0), ValueError, "at least one"),
        (lambda: sparse.transpose(X, [0, 0]), ValueError, "no permutation of 2 axes"),
        (lambda: sparse.concat(0, []), ValueError, r"got ranks \[\]"),
        (lambda: sparse.concat(0, [X, X._replace(dense_shape=[3, 3])]), ValueError, r"axis 1 differ: \[2, 3\]"),
        (lambda: sparse.add(X, X._replace(dense_shape=[3, 3])), ValueError, r"got \[3,2\] and \[3,3\]"),
        (lambda: sparse.add(X, np.ones((2, 2))), ValueError, r"got \[3,2\] and \[2,2\]"),
        (lambda: sparse.add([1.0], [2.0]), TypeError, "add takes a SparseTensor"),
        (lambda: sparse.matmul(X, np.ones((3, 2))), ValueError, "2 columns does not fit"),
        (lambda: sparse.matmul(X, np.ones(2)), ValueError, "multiplies matrices"),
        (lambda: sparse.reduce_sum(X, 2), ValueError, "axis=2 is out of range"),
        (lambda: ops.embedding_lookup_sparse(np.ones((3, 2)), X, combiner="max"), ValueError, "got 'max'"),
        (lambda: run(sparse.to_dense(X._replace(dense_shape=[2, 2]))), IndexError, "index 2 .* axis 0 with size 2"),
        (lambda: run(sparse.reorder(X._replace(dense_shape=[3, 1])).indices), IndexError, "index 1 .* axis 1"),
    ],
)
def test_errors(call: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        call()


def test_empty_lists_are_sparse_tensors_without_elements():
    x = SparseTensor([], ops.constant([], "float32"), [2, 3])

    np.testing.assert_array_equal(run(sparse.to_dense(x)), np.zeros((2, 3)))
    np.testing.assert_array_equal(run(sparse.matmul(x, np.ones((3, 1), "float32"))), np.zeros((2, 1)))
    assert sparse.is_sparse(x)
    assert not sparse.is_sparse(tuple(x))
