"""Elementwise kernels that read operands by their strides: with gaps between rows, or the same row again.

Such are the parts of a concatenation's gradient, columns of a wider matrix, and what is broadcast. A copy of them would
be written, and read once more. Along a row, elements follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ..expression.llvm import KernelSpec
from .kernel_specs import KernelTable, aligned, kernel_spec, loop_numbers, loops_of, static_shape
from .open_sizes import BoundedCache, Shape, Shapes, pattern_of

_COPIED = ("float32", "float64", "int32", "int64")  # dtypes of which kernels keep all bits


class KernelsApart:
    """The kernels of an operation for operands that others refuse, because they are not contiguous.

    Args:
        op: what they compute.
        dtypes: of the operands.
        results: the dtypes of the results, which are of one shape.
    """

    def __init__(self, op: Fused, dtypes: Sequence[Any], results: Sequence[Any]) -> None:
        self._op = op
        self._dtypes = dtypes
        self._results = results
        # By shapes, strides and the shape of the results.
        self._bound = BoundedCache[tuple[Shapes, Shapes, Shape], KernelTable | None](self._bind)
        self._known: dict[Any, KernelSpec] = {}

    def run(self, shapes: Shapes, values: tuple[Any, ...], out: tuple[Any, ...]) -> bool:
        """Compute what `out` is for from operands of these shapes, without copies of them; False if no kernel does."""
        strides: Shapes = tuple([value.strides for value in values])
        found = self._bound[shapes, strides, out[0].shape]
        if found is None:
            return False
        return not found.compiled().call(*values, *out)

    def _bind(self, key: tuple[Shapes, Shapes, Shape]) -> KernelTable | None:
        shapes, strides, shape = key
        inputs = [TensorSpec(each, dtype) for each, dtype in zip(shapes, self._dtypes, strict=True)]
        outputs = [TensorSpec(shape, dtype) for dtype in self._results]
        return loops_apart(self._op, inputs, outputs, strides, self._known)


def loops_apart(
    op: Fused,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    strides: Shapes,
    known: dict[Any, KernelSpec],
) -> KernelTable | None:
    """Return the kernel for operands of these strides, which reads those by their strides that it can (`is_strided`).

    Args:
        op: what it computes: elementwise, without layouts.
        inputs: what it reads.
        outputs: what it writes.
        strides: of what it reads, in bytes.
        known: the kernels of the op that there are, by what they depend on.

    Returns:
        A kernel that is not compiled yet; None if it can read none.
    """
    space = static_shape(outputs[0])
    shapes = [aligned(static_shape(spec), len(space)) for spec in inputs]
    long = [axis for axis, size in enumerate(space) if size != 1]
    steps = {k: aligned(own, len(space)) for k, own in steps_apart(inputs, strides).items()}
    steps = {k: own for k, own in steps.items() if shapes[k][long[-1]] == 1 or own[long[-1]] == 1}
    if not steps:
        return None
    cuts = frozenset(
        inner
        for outer, inner in pairwise(long)
        if any(shapes[k][outer] != 1 and own[outer] != own[inner] * shapes[k][inner] for k, own in steps.items())
    )
    key = tuple(steps), cuts, pattern_of(shapes)
    if key not in known:
        known[key] = kernel_spec(op, inputs, outputs, apart=tuple(steps), cuts=cuts)
    spec, loops = known[key], loops_of(space, shapes, cuts)
    numbers = loop_numbers(spec, inputs, outputs, cuts)
    for position, (k, loop) in enumerate(spec.strided, spec.loops):
        if k in steps:
            numbers[position] = steps[k][loops[loop][-1]]
    return KernelTable(spec, inputs, outputs, numbers, strides)


def steps_apart(inputs: Sequence[TensorSpec], strides: Shapes) -> dict[int, Shape]:
    """Return the steps along the axes of those operands that are not contiguous, in elements.

    Args:
        inputs: the operands.
        strides: theirs, in bytes.
    """
    found: dict[int, Shape] = {}
    for k, (spec, own) in enumerate(zip(inputs, strides, strict=True)):
        size = int(spec.dtype.itemsize)
        if any(step % size for step in own):
            continue
        steps = tuple([step // size for step in own])
        dense = 1
        for dim, step in zip(static_shape(spec)[::-1], steps[::-1], strict=True):
            if dim != 1 and step != dense:
                found[k] = steps
                break
            dense *= dim
    return found


@cache
def _copies(dtype: Any) -> KernelsApart:
    return KernelsApart(Fused(1, (), (0,)), [dtype], [dtype])


def copied_by_rows(value: Any, dtype: Any) -> Any:
    """Return a contiguous copy of an array whose rows are equally far apart, which threads share; None of any other.

    Args:
        value: an array of that very dtype.
        dtype: native; others than `_COPIED` are left to NumPy.
    """
    shape = value.shape
    if len(shape) < 2 or not value.flags.aligned or dtype.name not in _COPIED:
        return None
    try:
        rows = np.reshape(value, (-1, shape[-1]), copy=False)
    except ValueError:  # the rows are not equally far apart
        return None
    made = np.empty(shape, dtype)
    return made if _copies(dtype).run((rows.shape,), (rows,), (made.reshape(rows.shape),)) else None
