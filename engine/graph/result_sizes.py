"""Sizes of results that are known at run time only, as `Op.result_sizes` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .tensor import Symbol

# A number, or a name: what has the same name has the same size in every run.
Size = int | tuple[Any, ...]
ResultSizes = Sequence[Size | None] | None  # of the axes of a result; None: nothing is known


class SizesOfTensors(Protocol):
    """The sizes of the tensors of a step; see `passes/framework/sizes.py`."""

    def of(self, tensor: Symbol) -> Sequence[Size] | None:
        """Return the sizes of a tensor; None if not even its rank is known."""
        ...

    def named(self, number: Symbol) -> Size:
        """Return the size that a number is, as one entry of a shape."""
        ...

    def part_of(self, numbers: Symbol, count: int, part: int, first: Symbol) -> Size:
        """Return the size of a part of what is divided by `numbers`; `first` is the part, if nothing was before."""
        ...

    def filled_in(self, entries: Sequence[int | None], given: Sequence[Symbol]) -> list[Size | None]:
        """Return the sizes of a shape of whose entries numbers fill the Nones; -1 stands for the rest."""
        ...


__all__ = ["ResultSizes", "Size", "SizesOfTensors"]
