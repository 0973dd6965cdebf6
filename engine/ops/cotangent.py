"""Contributions to a cotangent that are more than a tensor to be added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import graph_for
from ..graph.spec import ArraySpec
from ..graph.tensor import Tensor


class Contribution(ABC):
    """What an op's `grad` may return for an input instead of a tensor."""

    @abstractmethod
    def add_to(self, current: Any) -> Any:
        """The accumulated cotangent with this contribution added; `current` is None if this is the first."""


@dataclass
class FrameCotangent(Contribution):
    """Cotangents of values inside a loop or branch: inner tensor -> cotangent (for loops, one per iteration)."""

    inner: dict[Tensor, Any] = field(default_factory=dict[Tensor, Any])

    def add_to(self, current: FrameCotangent | None) -> FrameCotangent:
        merged = dict(current.inner) if current is not None else {}
        for tensor, cotangent in self.inner.items():
            merged[tensor] = accumulate(merged.get(tensor), cotangent)
        return FrameCotangent(merged)


def accumulate(current: Any, contribution: Any) -> Any:
    """The sum of a cotangent (None: zero) and one more contribution."""
    if isinstance(contribution, Contribution):
        return contribution.add_to(current)
    if current is None:
        return contribution
    if isinstance(contribution.spec, ArraySpec):
        from .tensor_arrays import ArraySum

        return graph_for([current, contribution]).add(ArraySum(), [current, contribution]).outputs[0]
    return current + contribution
