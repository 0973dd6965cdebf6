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
from anabranch.engine.codegen.elementwise.kernel_specs import native_dtype
from anabranch.engine.codegen.host.refits import refits
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
RUNS = 70  # more than those after which operands are read by their strides
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
    """A program gives what the exact one does, with the bits of contiguous operands, however often it runs.

    It returns how often operands are copied in a run, when it has run often.
    """
    dtype = arrays[0].dtype.name
    with pytest.MonkeyPatch.context() as patch:
        assume(patch, kernel_elements=1)
        program, exact = prepared(name, arrays[0].shape, dtype)
        plain = program(*[np.array(array, native_dtype(np.dtype(dtype)), order="C") for array in arrays])
        runs = [program(*arrays) for _ in range(RUNS)]
        before = refits.count
        runs.append(program(*arrays))
        after = refits.count
    for run in runs:
        assert [np.asarray(found).tobytes() for found in run] == [np.asarray(wanted).tobytes() for wanted in plain]
    for found, wanted in zip(plain, exact(*arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    return after - before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", COMPUTED)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_operands_with_contiguous_rows(name: str, dtype: str, data: st.DataObject):
    """Elementwise kernels read them where they are; what adds up copies them if it would add in another order."""
    shape = tuple(data.draw(st.sampled_from(sizes)) for sizes in ([1, 2, 3], [1, 4], [2, 5], [3, 8, 20]))
    arrays = [data.draw(contiguous_rows(shape, dtype)) for _ in range(2)]
    copies = check(name, arrays)
    assert copies == 0 or name not in ("elementwise", "comparison")


def middle() -> Any:
    """Columns of the rows of a picture's middle."""
    return np.random.default_rng(0).normal(size=(6, 9, 5, 40)).astype("float32")[:, 1:-1, :, 3:23]


@pytest.mark.parametrize("name", ["elementwise", "comparison"])
def test_other_operands_are_copied_and_those_beside_them_are_not(name: str):
    turned = np.random.default_rng(0).normal(size=(6, 20, 7, 5)).astype("float32").transpose(0, 2, 3, 1)
    assert check(name, [middle(), turned]) == 1
    assert check(name, [turned, middle()]) == 1


@pytest.mark.parametrize("name", ["sum across rows", "masked, with its sum", "sum along rows", "largest"])
def test_sums_over_columns_of_wider_rows_read_them_where_they_are(name: str):
    wide = np.random.default_rng(0).normal(size=(6, 7, 5, 40)).astype("float32")
    copies = check(name, [wide[..., 3:23], wide[..., 20:]])
    assert copies == 0 or name == "sum along rows"


def test_small_operands_are_copied():
    program, _ = prepared("elementwise", middle().shape, "float32")
    before = refits.count
    for _ in range(RUNS):
        program(middle(), middle())
    assert refits.count == before + RUNS


def test_a_wrong_dtype_is_copied():
    rows = np.random.default_rng(0).normal(size=(6, 9, 5, 40)).astype(">f4")[:, 1:-1, :, 3:23]
    assert check("masked, with its sum", [rows, rows]) == 1
