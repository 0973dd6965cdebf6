"""Materialise transposes that loops read slice by slice and multiply.

A transpose is a view: the rows of its slices are far apart. Where a loop reads one slice after the other and multiplies
it (steps of a batch-major sequence), each product would gather those rows again, by way of BLAS, as kernels want rows
that follow each other. So the whole is copied in front of the loop, at the speed of memory. Large ones stay views: the
products of so many steps gather their rows in the same time, and the copy would be there until the gradient is done.
"""

from __future__ import annotations

from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.spec import TensorSpec
from ...ops.arrays.axes import Transpose, TransposedCopy
from ...ops.containers.tensor_arrays import ArrayRead, ArrayUnstack
from ...ops.linear_algebra.products import MatMul
from ..framework.driver import Change, Rule
from ..framework.estimates import bytes_of
from ..framework.patterns import Match, op, outer
from ..framework.rewriter import Rewriter

_LARGE = 1 << 26  # bytes of which there is no second copy


def _is_copied(operation: Operation) -> bool:
    """Test that a transpose is one of rows, and small enough, as far as sizes are known."""
    spec = operation.outputs[0].spec
    is_known = isinstance(spec, TensorSpec) and spec.shape is not None and None not in spec.shape
    return _keeps_rows(operation) and not (is_known and bytes_of(spec) >= _LARGE)


def _keeps_rows(operation: Operation) -> bool:
    """Test that the last axis stays where it is, so that slices have rows in one piece, and that others move."""
    axes = operation.op.axes if type(operation.op) is Transpose else None
    return axes is not None and len(axes) > 2 and axes[-1] == len(axes) - 1 and axes != tuple(range(len(axes)))


def _is_of_step(operation: Operation) -> bool:
    """Test that an operation runs once in a step: in a loop the copy would be made in each iteration."""
    return not isinstance(operation.graph, Region)


def _materialise(match: Match, step: Rewriter) -> Change:
    transpose = match["transpose"]
    step.update(transpose, TransposedCopy(transpose.op.axes))
    return Change(transpose, "is copied once, for the products in a loop that read its slices")


_transposed = op(Transpose, name="transpose", where=_is_copied, may_wait=True)
_unstacked = op(ArrayUnstack, of=[_transposed], where=_is_of_step, may_wait=True)
_rows = op(ArrayRead, of=[outer(_unstacked)], may_wait=True)
RULES = (Rule("materialise transposes", op(MatMul, of=[_rows], may_wait=True), _materialise),)

__all__ = ["RULES"]
