"""Elementwise kernels for matrices with gaps between rows, such as columns of a wider one (the gates of a cell)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ..expression.llvm import KernelSpec
from ..llvm.library import library
from .kernel_specs import KernelTable, kernel_spec, loop_numbers
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
        # By which operands have gaps between rows, and which axes have more than one element.
        self._compiled: dict[Any, tuple[KernelSpec, Any]] = {}

    def run(self, shapes: Shapes, values: tuple[Any, ...], out: tuple[Any, ...]) -> bool:
        """Compute what `out` is for from operands of these shapes, without copies of them; False if no kernel does."""
        strides: Shapes = tuple([value.strides for value in values])
        found = self._bound[shapes, strides, out[0].shape]
        return found is not None and not found.entry(found.table, *map(id, values), *map(id, out))

    def _bind(self, key: tuple[Shapes, Shapes, Shape]) -> KernelTable | None:
        shapes, strides, shape = key
        inputs = [TensorSpec(each, dtype) for each, dtype in zip(shapes, self._dtypes, strict=True)]
        outputs = [TensorSpec(shape, dtype) for dtype in self._results]
        apart = tuple(
            k for k, (spec, steps) in enumerate(zip(inputs, strides, strict=True)) if _is_strided(spec, steps, shape)
        )
        if not apart or 1 in shape:
            return None
        pattern = apart, pattern_of(shapes)
        if pattern not in self._compiled:
            spec = kernel_spec(self._op, inputs, outputs, has_loop_for_each_axis=True, apart=apart)
            self._compiled[pattern] = spec, library.get([spec])[0]
        spec, entry = self._compiled[pattern]
        numbers = loop_numbers(spec, inputs, outputs, has_loop_for_each_axis=True)
        for position, (k, _) in enumerate(spec.strided, spec.loops):
            if k in apart:
                numbers[position] = strides[k][0] // int(self._dtypes[k].itemsize)
        kernel = KernelTable(spec, inputs, outputs, numbers, strides)
        kernel.entry = entry
        return kernel


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


def _is_strided(spec: TensorSpec, strides: Shape, shape: Shape) -> bool:
    """Test whether an operand is a matrix of the shape of the result, with gaps between its rows."""
    size = int(spec.dtype.itemsize)
    if spec.shape != shape or len(shape) != 2:
        return False
    return strides[1] == size and strides[0] > shape[1] * size and not strides[0] % size
