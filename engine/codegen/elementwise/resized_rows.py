"""Row kernels for sizes that are known at run time only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ...passes.fusion.iteration_spaces import Layout
from ..llvm.library import library
from .bound import BoundKernel
from .open_sizes import Names, Shapes, read_sizes, shape_of
from .row_builder import bind_rows, loops_of, row_numbers
from .row_kernel import RowKernel


class ResizedRows:
    """The kernel of a fused op that has layouts, for all shapes of which the same sizes are 1.

    Args:
        op: what it computes, laid out for the shapes that were seen first.
        inputs, outputs: of these shapes.
        space: the layout of what is as large as the space.

    Raises:
        UnsupportedError: kernels can't compute it.
    """

    def __init__(self, op: Fused, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], space: Layout) -> None:
        self._kernel = bind_rows(op, inputs, outputs)
        (self._kernel.entry,) = library.get([self._kernel.spec])
        numbers = {axis: number for number, axis in enumerate(space) if axis is not None}
        names = [tuple([-1 if axis is None else numbers[axis] for axis in layout]) for layout in op.layouts]
        self._inputs: list[Names] = names[: op.input_count]
        self._outputs: list[Names] = [names[k] for k in op.results]
        self._count = len(space)
        self._loops = [
            [number for axis, number in numbers.items() if low <= axis[0] < high] for low, high in loops_of(op)
        ]

    def resized(self, shapes: Shapes) -> tuple[BoundKernel, Shapes, int] | None:
        """The kernel for some shapes, the shapes of its results and the size of its space; None if they do not fit."""
        sizes = read_sizes(self._inputs, shapes, self._count)
        if sizes is None:
            return None
        extents = [math.prod([sizes[number] for number in loop]) for loop in self._loops]
        results = tuple([shape_of(names, sizes) for names in self._outputs])
        spec = self._kernel.spec
        assert isinstance(spec, RowKernel)
        numbers = row_numbers(spec, extents, spec.strides_of(extents), [math.prod(shape) for shape in results])
        return self._kernel.resized((*shapes, *results), numbers), results, math.prod(extents)
