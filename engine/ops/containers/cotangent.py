"""Contributions to a cotangent that are more than a tensor to be added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import Any

from ...common.quick_dataclass import dataclass
from ...graph.slices import IndexedSlices
from ...graph.spec import ArraySpec, FrameSpec
from ...graph.tensor import Symbol, Tensor
from ...graph.value import Value


class Contribution(ABC):
    """A cotangent that an op's `grad` may return for an input instead of a tensor."""

    @abstractmethod
    def add_to(self, current: Any) -> Any:
        """Return the accumulated cotangent with this contribution added; `current` is None if this is the first."""


@dataclass
class FrameCotangent(Contribution):
    """Cotangents of values inside a loop or branch: inner tensor -> cotangent (for loops, one per iteration)."""

    inner: dict[Symbol, Any] = field(default_factory=dict[Symbol, Any])

    def add_to(self, current: FrameCotangent | None) -> FrameCotangent:
        merged = dict(current.inner) if current is not None else {}
        for tensor, cotangent in self.inner.items():
            merged[tensor] = accumulate(merged.get(tensor), cotangent)
        return FrameCotangent(merged)


class PartialSum(Contribution):
    """A cotangent that consists of parts so far, put together when it is looked at."""

    @abstractmethod
    def put_together(self, sparse: bool) -> Any:
        """Return the cotangent as a tensor; as `IndexedSlices` if it consists of rows and `sparse` holds."""


@dataclass(frozen=True)
class SlicesSum(PartialSum):
    """A cotangent that consists of rows so far: a sum of `IndexedSlices`, joined when it is looked at."""

    parts: tuple[IndexedSlices, ...]

    def add_to(self, current: Any) -> Any:
        if current is None:
            return self
        if isinstance(current, SlicesSum):
            return SlicesSum(current.parts + self.parts)
        return self.added_to(current)

    def added_to(self, dense: Tensor) -> Tensor:
        """Return a dense cotangent with these rows added."""
        from ..arrays.gathering import AddRows
        from ..base import apply

        joined = self.joined()
        return apply(AddRows(0, True), dense, joined.values, joined.indices)

    def put_together(self, sparse: bool) -> Any:
        joined = self.joined()
        return joined if sparse else joined.to_dense()

    def joined(self) -> IndexedSlices:
        """Return all parts as one."""
        if len(self.parts) == 1:
            return self.parts[0]
        from ..arrays.joining import concatenate
        from ..base import cast

        dtype = "int64" if any(part.indices.dtype.itemsize > 4 for part in self.parts) else "int32"
        indices = [cast(part.indices, dtype) for part in self.parts]
        values = concatenate([part.values for part in self.parts], axis=0)
        return IndexedSlices(values, concatenate(indices, axis=0), self.parts[0].dense_shape)


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
        from .records import record_sum

        return record_sum(current, contribution)
    if isinstance(contribution.spec, ArraySpec):
        from ..base import apply
        from .tensor_arrays import ArraySum

        return apply(ArraySum(), current, contribution)
    return current + contribution


def _added_to_parts(current: PartialSum, contribution: Any) -> Any:
    if isinstance(contribution, Tensor):
        return current.add_to(contribution)
    if isinstance(current, SlicesSum) and not isinstance(contribution, SlicesSum):
        return accumulate(resolved(current), contribution)
    return contribution.add_to(current)
