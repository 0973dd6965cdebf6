"""Kernels of softmax and its relatives over rows whose number is known at run time only."""

from __future__ import annotations

import math
from typing import Any

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ...ops.math.reduction import LogSumExp
from ...ops.neural.softmax import LogSoftmax, Softmax
from ...passes.fusion.iteration_spaces import canonical
from ...passes.fusion.stand_ins import stand_in
from ..expression.expression import UnsupportedError
from .bound import BoundKernel
from .open_shapes import OpenRunner
from .open_sizes import Shape, pattern_of
from .resized_rows import ResizedRows

_ELEMENTS = ("float32", "float64")


def bind_open_rows(operation: Operation) -> OpenRunner | None:
    """Return the kernels of a `Softmax`, `LogSoftmax` or `LogSumExp` along the last axis, if sizes are unknown."""
    op, spec = op_of(operation, (Softmax, LogSoftmax, LogSumExp)), operation.inputs[0].spec
    if not isinstance(spec, TensorSpec) or not spec.shape or spec.is_static or spec.dtype.name not in _ELEMENTS:
        return None
    if op.axes not in ((-1,), (len(spec.shape) - 1,)):
        return None

    known: dict[object, ResizedRows | None] = {}  # by which sizes are 1

    def bind(shape: Shape) -> tuple[BoundKernel, Shape] | None:
        pattern = pattern_of([shape])
        if math.prod(shape) < machine_profile().row_kernel_elements:
            return None
        if pattern not in known:
            known[pattern] = _kernel(op, shape, spec.dtype)
        found = known[pattern]
        resized = None if found is None else found.resized((shape,))
        return None if resized is None else (resized[0], resized[1][0])

    return OpenRunner(op, bind, spec.dtype.name)


def _kernel(op: Softmax | LogSoftmax | LogSumExp, shape: Shape, dtype: Any) -> ResizedRows | None:
    """Return the kernel for shapes that have one element where this one does; None if there is none."""
    shape = tuple([1 if size == 1 else stand_in(axis) for axis, size in enumerate(shape)])
    result_shape = op.infer(TensorSpec(shape, dtype)).shape or ()
    if not result_shape:
        return None
    layout = canonical(shape)
    # What is reduced has no axis in the space: it is gone, or of size 1.
    reduced = layout[:-1] + (None,) * (len(result_shape) - len(shape) + 1)
    layouts = layout, layout if result_shape == shape else reduced
    fused = Fused(1, ((op, (0,)),), (1,), layouts, size=math.prod(shape))
    try:
        return ResizedRows(fused, [dtype], [dtype])
    except UnsupportedError:
        return None
