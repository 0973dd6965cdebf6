"""Native code for elements along the last axis and for rows that are replaced, and what it leaves to NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
DTYPES = ["float32", "float64", "int32", "uint32", "int64"]


def values_of(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
    if dtype[0] == "f":
        x.flat[::7] = np.nan
    return x


# --- take_along_axis ------------------------------------------------------------------------------------------------


def along(rank: int, dtype: str, index: str, axis: int = -1, *, exact: bool = False) -> tuple[Program, set[str]]:
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None,) * rank, dtype), ab.placeholder((None,) * rank, index)]
        taken = ab.ops.take_along_axis(*feeds, axis=axis)
        return Program(graph, [symbol_of(taken)], feeds, exact=exact), kernel_types(graph)


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from(["int32", "int64"]),
    leading=st.sampled_from([(1,), (5,), (0,), (3, 4), (2, 0, 3), (2, 1, 3)]),
    size=st.integers(1, 30),
    count=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_elements_along_the_last_axis(
    dtype: str, index: str, leading: tuple[int, ...], size: int, count: int, seed: int
) -> None:
    x = values_of((*leading, size), dtype, seed)
    places = np.random.default_rng(seed).integers(-size, size, (*leading, count)).astype(index)
    program, types = along(x.ndim, dtype, index)
    assert "take_along_axis" in types
    (found,) = program(x, places)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.take_along_axis(x, places, axis=-1))


@needs_kernels
def test_known_sizes_along_the_last_axis() -> None:
    x, places = values_of((3, 9), "float32", 0), np.array([[0, 8], [-9, 1], [4, 4]])
    with ab.Graph().as_default() as graph:
        given = ab.placeholder((3, 9), "float32")
        taken = ab.ops.take_along_axis(given, places, axis=1)
        assert "take_along_axis" in kernel_types(graph)
        (found,) = Program(graph, [symbol_of(taken)], [given])(x)
    np.testing.assert_array_equal(found, np.take_along_axis(x, places, axis=1))


@pytest.mark.parametrize("far", [5, -6])
@pytest.mark.parametrize("shape", [(2, 1), (1, 4)])
def test_elements_out_of_bounds(far: int, shape: tuple[int, int]) -> None:
    program, _ = along(2, "float32", "int32")
    with pytest.raises(IndexError, match=f"index {far} is out of bounds for axis 1 with size 5"):
        program(np.zeros((shape[0], 5), "float32"), np.full(shape, far, "int32"))


def test_rows_that_are_broadcast_and_other_layouts() -> None:
    program, _ = along(2, "float32", "int32")
    x, places = values_of((4, 6), "float32", 0), np.array([[1, -1, 0]], "int32")
    np.testing.assert_array_equal(program(x, places)[0], x[:, [1, -1, 0]])
    every = np.repeat(places, 6, axis=0)
    np.testing.assert_array_equal(program(x.T, every % 4)[0], np.take_along_axis(x.T, every % 4, 1))
    np.testing.assert_array_equal(program(x, every[:4, ::-1])[0], np.take_along_axis(x, every[:4, ::-1], 1))


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "rank", "axis"), [("bool", 2, 1), ("float16", 2, 1), ("float32", 1, 0), ("int32", 2, 0)]
)
def test_elements_that_are_left_to_numpy(dtype: str, rank: int, axis: int) -> None:
    program, types = along(rank, dtype, "int32", axis)
    assert "take_along_axis" not in types
    x, places = values_of((6,) * rank, dtype, 0), np.random.default_rng(0).integers(-6, 6, (6,) * rank).astype("int32")
    np.testing.assert_array_equal(program(x, places)[0], np.take_along_axis(x, places, axis=axis))


def test_exact_programs_take_the_same_elements() -> None:
    x, places = values_of((4, 6), "float32", 0), np.full((4, 2), -1, "int32")
    np.testing.assert_array_equal(along(2, "float32", "int32", exact=True)[0](x, places)[0], x[:, [5, 5]])


# --- scatter_update -------------------------------------------------------------------------------------------------


def written(rank: int, depth: int, dtype: str, index: str) -> tuple[Program, set[str]]:
    """Rows of a whole of `rank` axes replaced, at indices of `depth` axes."""
    with ab.Graph().as_default() as graph:
        feeds = [
            ab.placeholder((None,) * rank, dtype),
            ab.placeholder((*(None,) * (depth - 1), 1), index),
            ab.placeholder((None,) * (depth - 1 + rank - 1), dtype),
        ]
        changed = ab.ops.scatter_update(feeds[0], feeds[1], feeds[2])
        return Program(graph, [symbol_of(changed)], feeds), kernel_types(graph)


def one_after_the_other(x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    expected = x.copy()
    for place in np.ndindex(indices.shape[:-1]):
        expected[indices[place][0]] = updates[place]
    return expected


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from(["int32", "int64"]),
    row=st.sampled_from([(), (1,), (5,), (3, 7), (0,)]),
    places=st.sampled_from([(0,), (1,), (40,), (4, 3)]),
    size=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_the_last_row_at_a_place_counts(
    dtype: str, index: str, row: tuple[int, ...], places: tuple[int, ...], size: int, seed: int
) -> None:
    x, updates = values_of((size, *row), dtype, seed), values_of((*places, *row), dtype, seed + 1)
    indices = np.random.default_rng(seed).integers(0, size, (*places, 1)).astype(index)
    program, types = written(x.ndim, indices.ndim, dtype, index)
    assert "scatter_update" in types
    before = x.copy()
    (found,) = program(x, indices, updates)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, one_after_the_other(x, indices, updates))
    np.testing.assert_array_equal(x, before)  # what was given is as it was


@pytest.mark.parametrize("far", [3, -1])
def test_rows_out_of_bounds(far: int) -> None:
    program, _ = written(2, 2, "float32", "int32")
    x = np.zeros((3, 2), "float32")
    with pytest.raises(IndexError, match=f"index {far} is out of bounds for axis 0 with size 3"):
        program(x, np.array([[0], [far]], "int32"), np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(x, np.zeros((3, 2)))


def test_updates_that_do_not_fit() -> None:
    program, _ = written(2, 2, "float32", "int32")
    with pytest.raises(ValueError, match=r"indices ask for updates of shape \[2,2\]; got float32\[3,2\]"):
        program(np.zeros((3, 2), "float32"), np.array([[0], [1]], "int32"), np.ones((3, 2), "float32"))


def test_rows_in_other_layouts() -> None:
    program, _ = written(2, 2, "float32", "int32")
    x, updates = values_of((6, 4), "float32", 0), values_of((4, 2), "float32", 1)
    indices = np.array([[5, 9], [0, 9]], "int32")[:, :1]  # whose elements are not contiguous
    expected = one_after_the_other(x, indices, updates.T)
    np.testing.assert_array_equal(program(x, indices, updates.T)[0], expected)
    np.testing.assert_array_equal(program(np.asfortranarray(x), indices, updates.T)[0], expected)


@needs_kernels
def test_indices_of_several_axes_are_left_to_numpy() -> None:
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, None), "float32"), ab.placeholder((None, 2), "int32")]
        feeds.append(ab.placeholder((None,), "float32"))
        changed = ab.ops.scatter_update(feeds[0], feeds[1], feeds[2])
        assert "scatter_update" not in kernel_types(graph)
        (found,) = Program(graph, [symbol_of(changed)], feeds)(
            np.zeros((2, 2), "float32"), np.array([[1, 0], [1, 0]], "int32"), np.array([3, 4], "float32")
        )
    np.testing.assert_array_equal(found, [[0, 0], [4, 0]])


def test_gradients_of_rows_that_are_replaced() -> None:
    """By finite differences: rows that are replaced have none, of updates the last one at a place."""
    x, updates = np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(3, 2) / 7
    indices = np.array([[1], [3], [1]], "int32")
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, 2), "float64") for _ in range(2)]
        loss = ab.ops.sum(ab.ops.square(ab.ops.scatter_update(feeds[0], indices, feeds[1])))
        program = Program(graph, [symbol_of(loss), *ab.gradients(loss, feeds)], feeds)
    _, *found = program(x, updates)
    for position, gradient in enumerate(found):
        for place in np.ndindex(gradient.shape):
            ends: list[float] = []
            for step in (1e-6, -1e-6):
                moved = [x.copy(), updates.copy()]
                moved[position][place] += step
                ends.append(float(program(*moved)[0]))
            np.testing.assert_allclose(gradient[place], (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6)
