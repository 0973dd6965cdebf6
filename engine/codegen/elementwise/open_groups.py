"""Kernels for groups of elementwise operations and sums over arrays whose sizes are known at run time only.

A kernel is compiled for each choice of sizes that are 1. Where the arrays are small, or not contiguous, NumPy computes
step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused, FusedOpen
from ...ops.math.reduced import Sum
from ...passes.fusion.iteration_spaces import Layout, canonical, operand_layout, reduced_layout
from ..expression.expression import UnsupportedError
from ..llvm.library import library
from .bound import MANY, BoundKernel
from .on_numpy import on_numpy
from .open_sizes import BoundedCache, Shapes, pattern_of
from .resized_rows import ResizedRows
from .row_builder import bind_rows

_Bound = tuple[BoundKernel | None, Shapes]


def bind_open_group(operation: Operation) -> OpenGroup | None:
    """Runs a `FusedOpen` on arrays of known rank."""
    op = operation.op
    assert isinstance(op, FusedOpen)
    specs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    made = [tensor.spec.dtype for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec)]
    group = OpenGroup(op.op, specs, made)
    group.expect()
    return group


class OpenGroup:
    """The kernels of a group, for the shapes that were seen.

    Args:
        op: what they compute, without layouts.
        inputs: what is known of the operands.
        made: the dtypes of the results.
    """

    def __init__(self, op: Fused, inputs: Sequence[TensorSpec], made: Sequence[Any]) -> None:
        self._op = op
        self._inputs = inputs
        self._least = machine_profile().kernel_elements // len(op.steps)
        self._dtypes = [np.dtype(name_of(dtype)) for dtype in made]
        self._on_arrays = on_numpy(op)
        self._bound = BoundedCache[Shapes, _Bound](self._bind)
        self._known: dict[Any, ResizedRows | None] = {}  # by which sizes are 1

    def expect(self) -> None:
        """Have the kernel compiled meanwhile that fits if unknown dimensions are long ones."""
        shapes = tuple([tuple([MANY if dim is None else dim for dim in spec.shape or ()]) for spec in self._inputs])
        try:
            found = _laid_out(self._op, self._specs(shapes))
            if found is not None and found[0].size >= self._least:
                library.expect(bind_rows(*found[:3]).spec)
        except (UnsupportedError, ValueError):  # sizes that can't be these
            return

    def __call__(self, *values: Any) -> Any:
        kernel, result_shapes = self._bound[tuple([value.shape for value in values])]
        if kernel is not None:
            results = tuple([np.empty(s, dtype) for s, dtype in zip(result_shapes, self._dtypes, strict=True)])
            if kernel.entry(kernel.table, *map(id, values), *map(id, results)):
                kernel.refit(values, results)
        else:
            results = self._on_arrays(*values)
        return results[0] if len(results) == 1 else results

    def _specs(self, shapes: Shapes) -> list[TensorSpec]:
        return [TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, self._inputs, strict=True)]

    def _bind(self, shapes: Shapes) -> _Bound:
        pattern = pattern_of(shapes)
        if pattern in self._known:
            known = self._known[pattern]
            found = None if known is None else known.resized(shapes)
        else:
            found = self._first(pattern, shapes)
        return (None, ()) if found is None or found[2] < self._least else found[:2]

    def _first(self, pattern: Any, shapes: Shapes) -> tuple[BoundKernel, Shapes, int] | None:
        """Return the kernel for shapes of a new pattern; None if it is to be computed otherwise."""
        try:
            laid_out = _laid_out(self._op, self._specs(shapes))
        except ValueError:
            return None  # the errors of ops say what does not fit
        if laid_out is None or laid_out[0].size < self._least:
            return None
        try:
            known = self._known[pattern] = ResizedRows(*laid_out)
        except UnsupportedError:
            self._known[pattern] = None
            return None
        return known.resized(shapes)


def _laid_out(
    op: Fused, inputs: Sequence[TensorSpec]
) -> tuple[Fused, list[TensorSpec], list[TensorSpec], Layout] | None:
    """A group for these operands, with the layouts of its values, its results, and its space; None if it is empty.

    Raises:
        ValueError: the operands do not fit.
    """
    specs = list(inputs)
    for step, taken in op.steps:
        specs.append(step.infer(*[specs[k] for k in taken]))  # pyright: ignore[reportArgumentType]
    shapes: Shapes = tuple([tuple([int(dim or 0) for dim in spec.shape or ()]) for spec in specs])
    whole = max([shapes[taken[0]] if isinstance(s, Sum) else shapes[op.input_count + k]
                 for k, (s, taken) in enumerate(op.steps)], key=math.prod)  # fmt: skip
    if 0 in whole:
        return None
    space = canonical(whole)
    layouts: list[Layout] = [operand_layout(shape, space) for shape in shapes[: op.input_count]]
    for k, (step, taken) in enumerate(op.steps):
        if isinstance(step, Sum):
            shape, layout = shapes[taken[0]], layouts[taken[0]]
            axes = range(len(shape)) if step.axes is None else [axis % len(shape) for axis in step.axes]
            layouts.append(reduced_layout(layout, axes, step.keepdims))
        else:
            layouts.append(operand_layout(shapes[op.input_count + k], space))
    laid_out = replace(op, layouts=tuple(layouts), size=math.prod(whole))
    return laid_out, specs[: op.input_count], [specs[k] for k in op.results], space
