"""reverse_sequence, sequence_mask, permutations and sets: naive references, unknown shapes, gradients, errors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import while_loop
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


def small_vectors(low: int = -3, high: int = 3) -> Any:
    return st.lists(st.integers(low, high), max_size=8).map(lambda values: np.array(values, "int32"))


# --- sequences ------------------------------------------------------------------------------------------------------


@st.composite
def sequences(draw: Any) -> tuple[Any, Any, int, int]:
    rank = draw(st.integers(2, 4))
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank)))
    seq, batch = draw(st.permutations(range(rank)))[:2]
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    lengths = rng.integers(0, shape[seq] + 1, shape[batch]).astype(draw(st.sampled_from(["int32", "uint8", "int64"])))
    return rng.normal(size=shape).astype("float32"), lengths, seq, batch


@given(case=sequences())
def test_reverse_sequence_equals_a_loop(case: Any):
    x, lengths, seq, batch = case
    expected = x.copy()
    moved, source = np.moveaxis(expected, (batch, seq), (0, 1)), np.moveaxis(x, (batch, seq), (0, 1))
    for row, length in enumerate(lengths):
        moved[row, :length] = source[row, :length][::-1]

    for known in (True, False):
        with Graph().as_default():
            tensor = placeholder(x.shape if known else None, "float32")
            value = run(ops.reverse_sequence(tensor, lengths, seq - known * x.ndim, batch), {tensor: x})
        np.testing.assert_array_equal(value, expected)


def test_reverse_sequence_gradients_and_loops():
    x = np.random.default_rng(0).normal(size=(3, 2, 2))
    assert check_gradients(lambda x: ops.reverse_sequence(x, [3, 1], 0, 1), [x], order=3) == 9

    start = ops.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    _, y = while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, ops.reverse_sequence(y, ops.stack([i, 3]), 1) * y), (0, start)
    )
    assert run(y)[1].tolist() == [(4 * 6) ** 4, 5**8, (4 * 6) ** 4]
    assert run(gradients(y[1], [start])[0])[0].tolist() == [0, 0, 0]


@given(lengths=small_vectors(-1, 6), maxlen=st.sampled_from([None, 0, 4, 9]))
def test_sequence_mask(lengths: Any, maxlen: int | None):
    size = max(lengths.max(initial=0), 0) if maxlen is None else maxlen
    rows = [[step < length for step in range(size)] for length in lengths]
    expected = np.array(rows, bool).reshape(len(lengths), size)

    with Graph().as_default():
        value, numbers = run([ops.sequence_mask(lengths, maxlen), ops.sequence_mask(lengths, maxlen, "float32")])

    np.testing.assert_array_equal(value, expected)
    assert (value.dtype, numbers.dtype) == (np.bool_, np.float32)


def test_sequence_mask_of_matrices_scalars_and_tensors():
    lengths, longest = placeholder((None, 2), "uint8"), placeholder((), "int32")
    mask = ops.sequence_mask(lengths, longest, "int32")

    assert run(mask, {lengths: [[1, 3]], longest: 2}).tolist() == [[[1, 0], [1, 1]]]
    assert ops.sequence_mask(lengths, 5).shape == (None, 2, 5)
    assert run(ops.sequence_mask(2, 3)).tolist() == [True, True, False]


# --- permutations and sets ------------------------------------------------------------------------------------------


@given(permutation=st.integers(0, 9).flatmap(lambda n: st.permutations(range(n))))
def test_invert_permutation(permutation: list[int]):
    x = np.array(permutation, "int32")
    with Graph().as_default():
        inverse = run(ops.invert_permutation(x))

    np.testing.assert_array_equal(inverse[x], np.arange(len(x)))
    assert inverse.dtype == np.int32


@given(x=small_vectors(), y=small_vectors())
def test_setdiff(x: Any, y: Any):
    with Graph().as_default():
        values, positions = run(ops.setdiff1d(x, y))

    np.testing.assert_array_equal(positions, [i for i, value in enumerate(x) if value not in y])
    np.testing.assert_array_equal(values, x[positions])


def test_setdiff_of_floats_and_numbers_of_two_kinds():
    values, positions = run(ops.setdiff1d([0.5, 1.0, 2.0], [1, 3]))

    assert (values.tolist(), positions.tolist()) == ([0.5, 2.0], [0, 2])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("axis", "covered"), [(None, 1), (0, 2), (1, 1), (1, 2), (-1, 1), (0, 3)])
def test_boolean_mask_along_axes(axis: int | None, covered: int, known: bool):
    rng = np.random.default_rng(covered)
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    first = (axis or 0) % 3
    mask = rng.random(x.shape[first : first + covered]) < 0.5
    tensor, flags = placeholder(x.shape if known else (None,) * 3, "float32"), placeholder((None,) * covered, "bool")

    value = run(ops.boolean_mask(tensor, flags, axis), {tensor: x, flags: mask})

    merged = x.reshape((*x.shape[:first], -1, *x.shape[first + covered :]))
    np.testing.assert_array_equal(value, np.compress(mask.reshape(-1), merged, first))


@given(x=small_vectors())
def test_unique_with_counts(x: Any):
    with Graph().as_default():
        values, indices, counts = run(ops.unique_with_counts(x))

    assert values.tolist() == list(dict.fromkeys(x.tolist()))
    np.testing.assert_array_equal(values[indices], x)
    assert counts.tolist() == [x.tolist().count(value) for value in values.tolist()]
    assert {indices.dtype, counts.dtype} == {np.dtype("int32")}


def test_unique_in_a_loop():
    """A loop variable whose size changes from iteration to iteration."""

    def body(i: Any, values: Any, most: Any) -> Any:
        distinct, _, counts = ops.unique_with_counts(values)
        return i + 1, distinct // 2, ops.maximum(most, ops.max(counts))

    _, values, most = while_loop(lambda i, *_: i < 3, body, (0, ops.constant([6, 7, 5, 1, 6]), 0))

    # 6 twice gives 3 3 2 0, 3 twice gives 1 1 0
    assert [value.tolist() for value in run([values, most])] == [[0, 0], 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.reverse_sequence(np.ones((2, 2)), [1, 1], 1, -1), ValueError, "are both 1"),
        (lambda: ops.reverse_sequence(np.ones((2, 2)), [1, 1], 2), ValueError, "seq_axis=2 is out of range"),
        (lambda: ops.reverse_sequence(np.ones((2, 2)), [1.0, 1.0], 1), TypeError, "must be integers"),
        (lambda: run(ops.reverse_sequence(np.ones((2, 2)), [1, 3], 1)), ValueError, "must be in 0 to 2"),
        (lambda: ops.sequence_mask([1.5]), TypeError, "sequence_mask: indices must be integers"),
        (lambda: run(ops.invert_permutation([0, 2])), ValueError, "each number from 0 to 1 once"),
        (lambda: ops.unique_with_counts([[1]]), ValueError, "expects a vector"),
    ],
)
def test_errors(call: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        call()
