"""Kernels of fused operations read operands by their strides: with gaps between rows, repeated, or backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.machine_figures import assume

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.host.refits import refits
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2}

# Of x and y [n, h, w, c]: elementwise, sums along rows and across, norms, largest.
COMPUTED: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "elementwise": lambda x, y: (ops.exp(x * 0.1) + y * 2.0,),
    "comparison": lambda x, y: (ops.where(x > y, x, y * 0.5),),
    "sum across rows": lambda x, y: (ops.sum(x * y, axis=(0, 1, 2)),),
    "sum along rows": lambda x, y: (ops.sum(x * y + 1.0, axis=-1),),
    "sum of outer axes": lambda x, y: (ops.sum(ops.relu(x) * y, axis=0),),
    "masked, with its sum": lambda x, y: (z := ops.where(y > 0, x, 0.0), ops.sum(z, axis=(0, 1, 2))),
    "softmax": lambda x, y: (ops.softmax(x) * y,),
    "standardised": lambda x, y: ((x - ops.mean(x, axis=-1, keepdims=True)) * ops.var(y, axis=-1, keepdims=True),),
    "largest": lambda x, y: (ops.max(x + y, axis=-1),),
    "broadcast": lambda x, y: (x * ops.mean(y, axis=(1, 2), keepdims=True),),
}


@st.composite
def contiguous_rows(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Any:
    """Draw a view of an array, along whose last axis elements follow each other in memory."""
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    kind = draw(st.sampled_from(["parts", "repeated", "backward", "turned", "every other", "whole"]))
    if kind == "parts":
        before, after = ([draw(st.integers(0, 2)) for _ in shape] for _ in range(2))
        wide = rng.normal(size=np.add(shape, np.add(before, after))).astype(dtype)
        return wide[tuple(slice(start, start + size) for start, size in zip(before, shape, strict=True))]
    if kind == "repeated":
        narrow = [*[1 if draw(st.booleans()) else size for size in shape[:-1]], shape[-1]]
        return np.broadcast_to(rng.normal(size=narrow).astype(dtype), shape)
    if kind == "turned":
        order = (*draw(st.permutations(range(3))), 3)
        return np.moveaxis(rng.normal(size=[shape[axis] for axis in order]).astype(dtype), range(4), order)
    axis, step = draw(st.integers(0, 2)), {"backward": -1, "every other": 2, "whole": 1}[kind]
    wide = [size * abs(step) if k == axis else size for k, size in enumerate(shape)]
    return rng.normal(size=wide).astype(dtype)[(slice(None),) * axis + (slice(None, None, step),)]


def prepared(name: str, shape: tuple[int, ...], dtype: str) -> tuple[Program, Program]:
    """The program of something computed, and the exact one."""
    with ab.Graph().as_default() as graph:
        x, y = ab.placeholder(shape, dtype), ab.placeholder(shape, dtype)
        targets = [symbol_of(target) for target in COMPUTED[name](x, y)]
        return Program(graph, targets, [x, y]), Program(graph, targets, [x, y], exact=True)


def check(name: str, arrays: list[Any]) -> int:
    """A program gives what the exact one does, with the same bits each time; gives how often operands were copied."""
    dtype = arrays[0].dtype.name
    with pytest.MonkeyPatch.context() as patch:
        assume(patch, kernel_elements=1)
        program, exact = prepared(name, arrays[0].shape, dtype)
        first, before = program(*arrays), refits.count
        again, after = program(*arrays), refits.count
    for found, repeated, wanted in zip(first, again, exact(*arrays), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(repeated).tobytes()
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    return after - before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", COMPUTED)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_operands_with_contiguous_rows_are_read_where_they_are(name: str, dtype: str, data: st.DataObject):
    shape = tuple(data.draw(st.sampled_from(sizes)) for sizes in ([1, 2, 3], [1, 4], [2, 5], [3, 8, 20]))
    arrays = [data.draw(contiguous_rows(shape, dtype)) for _ in range(2)]
    assert check(name, arrays) == 0


@pytest.mark.parametrize("name", [name for name in COMPUTED if name != "broadcast"])  # which NumPy adds up
def test_other_operands_are_copied_and_those_beside_them_are_not(name: str):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 9, 5, 40)).astype("float32")[:, 1:-1, :, 3:23]
    turned = rng.normal(size=(6, 20, 7, 5)).astype("float32").transpose(0, 2, 3, 1)
    assert check(name, [rows, turned]) == 1
    assert check(name, [turned, rows]) == 1


def test_small_operands_are_copied():
    rows = np.random.default_rng(0).normal(size=(6, 9, 5, 40)).astype("float32")[:, 1:-1, :, 3:23]
    program, exact = prepared("masked, with its sum", rows.shape, "float32")
    before = refits.count
    for found, wanted in zip(program(rows, rows), exact(rows, rows), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert refits.count == before + 1


def test_a_wrong_dtype_is_copied():
    rows = np.random.default_rng(0).normal(size=(6, 9, 5, 40)).astype(">f4")[:, 1:-1, :, 3:23]
    assert check("masked, with its sum", [rows, rows]) == 1
