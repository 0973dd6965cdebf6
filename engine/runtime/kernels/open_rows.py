"""Kernels of softmax and its relatives over rows whose number is known at run time only."""

from __future__ import annotations

import math

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...ops.fused import Fused
from ...ops.reduction import LogSumExp
from ...ops.softmax import LogSoftmax, Softmax
from ...passes.spaces import canonical
from .bound import BoundKernel
from .expression import UnsupportedError
from .open_shapes import OpenRunner, Shape
from .row_builder import bind_rows

_LEAST = 1 << 8  # elements: below that NumPy is done sooner than a kernel is called
_ELEMENTS = ("float32", "float64")


def bind_open_rows(operation: Operation) -> OpenRunner | None:
    """The kernels of a `Softmax`, `LogSoftmax` or `LogSumExp` along the last axis, where not all sizes are known."""
    op, spec = operation.op, operation.inputs[0].spec
    assert isinstance(op, (Softmax, LogSoftmax, LogSumExp))
    if not isinstance(spec, TensorSpec) or not spec.shape or spec.is_static or spec.dtype.name not in _ELEMENTS:
        return None
    if op.axes not in ((-1,), (len(spec.shape) - 1,)):
        return None

    def bind(shape: Shape) -> tuple[BoundKernel, Shape] | None:
        return _bound(op, TensorSpec(shape, spec.dtype))

    return OpenRunner(op, bind, spec.dtype.name)


def _bound(op: Softmax | LogSoftmax | LogSumExp, spec: TensorSpec) -> tuple[BoundKernel, Shape] | None:
    shape = tuple(int(dim or 0) for dim in spec.shape or ())
    result = op.infer(spec)
    result_shape = tuple(int(dim or 0) for dim in result.shape or ())
    if math.prod(shape) < _LEAST or not result_shape:
        return None
    layout = canonical(shape)
    # What is reduced lies nowhere: its axis is gone, or of size 1.
    reduced = layout[:-1] + (None,) * (len(result_shape) - len(shape) + 1)
    layouts = layout, layout if result_shape == shape else reduced
    fused = Fused(1, ((op, (0,)),), (1,), layouts, size=math.prod(shape))
    try:
        return bind_rows(fused, [spec], [result]), result_shape
    except UnsupportedError:
        return None
