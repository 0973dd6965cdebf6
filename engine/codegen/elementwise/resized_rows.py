"""Row kernels for sizes that are known at run time only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ...passes.fusion.iteration_spaces import Layout
from ...passes.fusion.stand_ins import laid_out_with, unknown_sizes
from ..expression.expression import UnsupportedError
from .bound import BoundKernel
from .open_sizes import Names, Shape, Shapes, read_sizes, shape_of
from .row_builder import row_kernel_of, row_numbers


class ResizedRows:
    """The kernel of a fused op over unknown sizes, for all shapes in which the same axes have one element.

    Args:
        op: what it computes, laid out with stand-ins (see `passes.fusion.stand_ins`).
        dtypes: of the operands.
        results: the dtypes of the results.

    Raises:
        UnsupportedError: kernels can't compute it.
    """

    def __init__(self, op: Fused, dtypes: Sequence[Any], results: Sequence[Any]) -> None:
        layouts = [*op.layouts[: op.input_count], *[op.layouts[k] for k in op.results]]
        specs = [TensorSpec(_shape(layout), dtype) for layout, dtype in zip(layouts, (*dtypes, *results), strict=True)]
        self._specs = tuple(specs[: op.input_count]), tuple(specs[op.input_count :])
        self.spec, extents, strides = row_kernel_of(op, *self._specs)
        unknown = unknown_sizes(op.layouts)
        names: list[Names] = [
            tuple([unknown.index(size) if size in unknown else -size for size in _shape(layout)]) for layout in layouts
        ]
        self._inputs, self._outputs = names[: op.input_count], names[op.input_count :]
        self._count = len(unknown)
        if not set(range(self._count)).issubset([name for own in self._inputs for name in own]):
            raise UnsupportedError("a size that is no operand's")
        self._loops = [_factors(extent, unknown) for extent in extents]
        self._strides = [_factors(stride, unknown) for stride in strides]
        self._kernel: BoundKernel | None = None

    def resized(self, shapes: Shapes) -> tuple[BoundKernel, Shapes, int] | None:
        """Return the kernel for some shapes, its results' shapes and the size of its space; None if they do not fit."""
        sizes = read_sizes(self._inputs, shapes, self._count)
        if sizes is None:
            return None
        extents = [_product(extent, sizes) for extent in self._loops]
        strides = [_product(stride, sizes) for stride in self._strides]
        results = tuple([shape_of(names, sizes) for names in self._outputs])
        numbers = row_numbers(self.spec, extents, strides, [math.prod(shape) for shape in results])
        return self._compiled().resized((*shapes, *results), numbers), results, math.prod(extents)

    def _compiled(self) -> BoundKernel:
        if self._kernel is None:
            self._kernel = BoundKernel(self.spec, *self._specs, [0] * self.spec.number_count).compiled()
        return self._kernel


def _shape(layout: Layout) -> Shape:
    return tuple([1 if axis is None else axis[1] // axis[0] for axis in layout])


def _factors(product: int, unknown: Sequence[int]) -> tuple[int, list[int]]:
    """Return the known part of a product of sizes, and the numbers of the unknown sizes in it."""
    numbers: list[int] = []
    for number, size in enumerate(unknown):
        while product % size == 0:
            product //= size
            numbers.append(number)
    return product, numbers


def _product(factors: tuple[int, list[int]], sizes: Sequence[int]) -> int:
    known, numbers = factors
    return known * math.prod([sizes[number] for number in numbers])


def laid_out_for(op: Fused, shapes: Shapes) -> Fused:
    """Return a fused op that is laid out with stand-ins, for operands that have one element where these shapes do."""
    operands = op.layouts[: op.input_count]
    long = {
        axis[1] // axis[0]
        for layout, shape in zip(operands, shapes, strict=True)
        for axis, size in zip(layout, shape, strict=True)
        if axis is not None and size != 1
    }
    found = laid_out_with(op, {size: 1 for size in unknown_sizes(operands) if size not in long})
    broadcast = [
        tuple([None if size == 1 else axis for axis, size in zip(layout, shape, strict=True)])
        for layout, shape in zip(found.layouts, shapes, strict=False)
    ]
    return replace(found, layouts=(*broadcast, *found.layouts[op.input_count :]))
