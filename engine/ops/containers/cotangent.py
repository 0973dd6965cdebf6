"""Sums of the contributions to a cotangent: dense, of rows, of TensorArrays, of frames and of records."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ...common.quick_dataclass import dataclass
from ...graph.slices import IndexedSlices
from ...graph.spec import ArraySpec, FrameSpec
from ...graph.tensor import Symbol, Tensor
from ...graph.value import Value
from ..base import apply
from .contributions import Contribution, PartialSum
from .indexed_slices import SlicesSum
from .records import record_sum
from .tensor_arrays import ArraySum


@dataclass
class FrameCotangent(Contribution):
    """Cotangents of values inside a loop or branch: inner tensor -> cotangent (for loops, one per iteration)."""

    inner: dict[Symbol, Any] = field(default_factory=dict[Symbol, Any])

    def add_to(self, current: FrameCotangent | None) -> FrameCotangent:
        merged = dict(current.inner) if current is not None else {}
        for tensor, cotangent in self.inner.items():
            merged[tensor] = accumulate(merged.get(tensor), cotangent)
        return FrameCotangent(merged)


def resolved(cotangent: Any, sparse: bool = False) -> Any:
    """Return an accumulated cotangent as a tensor; as `IndexedSlices` if it consists of rows and these are welcome."""
    if type(cotangent) is Value:  # the common case, and the quickest
        return cotangent
    return cotangent.put_together(sparse) if isinstance(cotangent, PartialSum) else cotangent


def accumulate(current: Any, contribution: Any) -> Any:
    """Return the sum of a cotangent (None: zero) and one more contribution."""
    if type(contribution) is Value:  # the common case, and the quickest
        if current is None:
            return contribution
        if type(current) is Value:
            return current + contribution
    if isinstance(contribution, IndexedSlices):
        contribution = SlicesSum((contribution,))
    if isinstance(current, PartialSum):
        return _added_to_parts(current, contribution)
    if isinstance(contribution, Contribution):
        return contribution.add_to(current)
    if current is None:
        return contribution
    if isinstance(contribution.spec, FrameSpec):
        return record_sum(current, contribution)
    if isinstance(contribution.spec, ArraySpec):
        return apply(ArraySum(), current, contribution)
    return current + contribution


def _added_to_parts(current: PartialSum, contribution: Any) -> Any:
    if isinstance(contribution, Tensor):
        return current.add_to(contribution)
    if isinstance(current, SlicesSum) and not isinstance(contribution, SlicesSum):
        return accumulate(resolved(current), contribution)
    return contribution.add_to(current)
