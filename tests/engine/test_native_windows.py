"""Native code that replaces a window of an array, against NumPy, and what it leaves to that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.gather.windows import window_runner
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def written(whole: Any, start: tuple[int, ...], new: Any) -> Any:
    """The array with its window replaced, by NumPy."""
    found = whole.copy()
    found[tuple(slice(at, at + size) for at, size in zip(start, new.shape, strict=True))] = new
    return found


def program(whole: Any, new: Any, index: str, known: bool = True) -> Program:
    """A step that replaces a window of a computed array."""
    with ab.Graph().as_default() as graph:
        shapes = [value.shape if known else (None,) * value.ndim for value in (whole, new)]
        x, updates = (ab.placeholder(shape, whole.dtype) for shape in shapes)
        start = ab.placeholder((whole.ndim,), index)
        found = ops.slice_update(ops.negative(x), start, updates)
    assert "slice_update" in kernel_types(graph)
    return Program(graph, [symbol_of(found)], [x, start, updates])


@settings(max_examples=examples(15, 200), deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    wide=st.sampled_from([0, 1, 40, 67]),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
    index=st.sampled_from(["int32", "int64"]),
    layout=st.sampled_from(["whole", "part", "turned", "backwards", "repeated"]),
    known=st.booleans(),
)
def test_windows(
    sizes: list[tuple[int, int, int]], wide: int, dtype: str, index: str, layout: str, known: bool
) -> None:
    window = [size + (wide if axis == len(sizes) - 1 else 0) for axis, (size, _, _) in enumerate(sizes)]
    start = tuple([before for _, before, _ in sizes])
    shape = [before + size + after for size, (_, before, after) in zip(window, sizes, strict=True)]
    rng = np.random.default_rng(0)
    whole = rng.integers(-99, 99, shape).astype(dtype)
    new = rng.integers(-99, 99, [size + 3 for size in window]).astype(dtype)
    new = new[tuple(slice(1, 1 + size) for size in window)]
    if layout == "whole":
        new = np.ascontiguousarray(new)
    elif layout == "turned":
        new = np.asfortranarray(new)
    elif layout == "backwards":
        new = np.ascontiguousarray(new[..., ::-1])[..., ::-1]
    elif layout == "repeated":
        new = np.broadcast_to(new[:1], new.shape) if len(new) else new
    (found,) = program(whole, new, index, known)(whole, np.array(start, index), new)
    np.testing.assert_array_equal(found, written(-whole, start, new))


@pytest.mark.parametrize("start", [(-1, 0), (0, -1), (2, 0), (0, 3), (2**31 - 1, 0), (0, -(2**31))])
def test_windows_that_leave_the_array_are_errors(start: tuple[int, int]) -> None:
    whole, new = np.zeros((3, 5), "float32"), np.ones((2, 3), "float32")
    step = program(whole, new, "int32")
    with pytest.raises(IndexError, match=r"A slice from -?\d+ of size \d leaves axis [01], whose size is [35]"):
        step(whole, np.array(start, "int32"), new)


@pytest.mark.parametrize("dtype", ["float16", "bool", "complex64"])
def test_elements_that_are_no_words_are_left_to_numpy(dtype: str) -> None:
    with ab.Graph().as_default():
        x, new = ab.placeholder((3, 5), dtype), ab.placeholder((2, 3), dtype)
        found = ops.slice_update(x, (1, 2), new)
    assert window_runner(symbol_of(found).operation) is None


def test_keys_of_a_token_are_written_into_what_is_kept() -> None:
    """The columns of a wider product, as one of a loop's variables; iterations copy nothing else."""
    heads, size, length = 2, 8, 6
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((length, 3, 5), "float32")
        weight = ab.placeholder((5, 3 * heads * size), "float32")

        def body(i: Any, kept: Any) -> tuple[Any, Any]:
            _, key, _ = [ops.reshape(part, (3, 1, heads, size)) for part in ops.split(x[i] @ weight, 3, axis=-1)]
            return i + 1, ops.slice_update(kept, (0, i, 0, 0), key)

        empty = np.zeros((3, length, heads, size), "float32")
        _, kept = ab.while_loop(lambda i, _: i < length, body, (0, empty))
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, shape).astype("float32") for shape in ((length, 3, 5), (5, 3 * heads * size))]
    (found,) = Program(graph, [symbol_of(kept)], [x, weight])(*values)
    wanted = (values[0] @ values[1])[..., heads * size : 2 * heads * size].reshape(length, 3, heads, size)
    np.testing.assert_allclose(found, wanted.swapaxes(0, 1), atol=1e-6)


@pytest.mark.parametrize("start", [2**32, 2**32 + 1, -(2**32)])
def test_starts_beyond_32_bits_are_outside(start: int) -> None:
    x, new, starts = np.arange(4, dtype="float32"), np.zeros(2, "float32"), np.array([start])
    outside = rf"from {start} of size 2 leaves axis 0, whose size is 4"
    for call in (lambda s: ab.ops.slice_update(x, s, new), lambda s: ab.ops.slice(x, s, (2,))):
        with pytest.raises(IndexError, match=outside):
            call(starts)
        with ab.Graph().as_default():
            fed = ab.placeholder((1,), "int64")
            part = call(fed)
            with pytest.raises(IndexError, match=outside):
                ab.Session().run(part, {fed: starts})


def test_starts_that_are_not_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"slice_update: indices must be integers"):
        ab.ops.slice_update(np.zeros(4), [1.5], np.zeros(2))
    with pytest.raises(TypeError, match=r"slice: indices must be integers"):
        ab.ops.slice(np.zeros(4), np.array([1.0]), (2,))
