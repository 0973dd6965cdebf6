"""Axis maps: the axes of its inputs that each axis of an operation's result follows.

One declaration serves several analyses: which sizes are equal (`passes.sizes`), which loops compute each row of a batch
for itself (`passes.loops.row_wise`), and which operations work on a batch of examples as they are (`vectorized_map`).
They are what the indexing maps and iterator types of MLIR's Linalg dialect say of its operations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .spec import TensorSpec

if TYPE_CHECKING:
    from .op import Op
    from .tensor import Symbol


class Follows(NamedTuple):
    """An axis of an input that an axis of the result follows: it is as long.

    Attributes:
        input: the position of the input.
        axis: the axis, counted from the front.
        by_index: whether element i along the result's axis is computed of elements i along the input's axis alone.
        may_broadcast: whether the input's axis may have size 1 where the result's is longer.
    """

    input: int
    axis: int
    by_index: bool = True
    may_broadcast: bool = False


# For each axis of the result what it follows; nothing for one that is new, or as long as no axis of an input. Axes
# behind the last one that is listed follow nothing.
AxisMap = tuple[tuple[Follows, ...], ...]


def axis_map_of(op: Op, specs: Sequence[Any]) -> AxisMap | None:
    """Return the axis map of an op over inputs with these specs; None where it has none, or a rank is not known."""
    if not all(isinstance(spec, TensorSpec) and spec.shape is not None for spec in specs):
        return None
    return op.axis_map(*specs)


def broadcast_map(ranks: Sequence[int]) -> AxisMap:
    """Return the map of an elementwise op over inputs of these ranks, which broadcast against each other."""
    rank, may_broadcast = max(ranks, default=0), len(ranks) > 1
    return tuple(
        tuple(Follows(k, axis - rank + own, True, may_broadcast) for k, own in enumerate(ranks) if own >= rank - axis)
        for axis in range(rank)
    )


def leading_map(ranks: Sequence[int], last: Sequence[int]) -> AxisMap | None:
    """Return the map of an op over the last axes of its inputs, which treats all before them index by index.

    Args:
        ranks: the ranks of the inputs.
        last: for each of them the number of axes that the op works on.
    """
    leading = {rank - own for rank, own in zip(ranks, last, strict=True)}
    if len(leading) != 1 or min(leading) < 0:
        return None
    return tuple(tuple(Follows(k, axis) for k in range(len(ranks))) for axis in range(leading.pop()))


def same_axes_map(rank: int, mixed: Collection[int] = ()) -> AxisMap:
    """Return the map of an op whose result has the shape of its first input; it mixes elements along some axes."""
    return tuple((Follows(0, axis, axis not in mixed),) for axis in range(rank))


def axes_from_front(axes: int | Sequence[int] | None, rank: int) -> set[int]:
    """Return axes counted from the front; None stands for all."""
    listed = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    return {axis % rank for axis in listed} if rank else set()


# --- sizes of results that are known at run time only -----------------------------------------------------------------

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


__all__ = [
    "AxisMap",
    "Follows",
    "ResultSizes",
    "Size",
    "SizesOfTensors",
    "axes_from_front",
    "axis_map_of",
    "broadcast_map",
    "leading_map",
    "same_axes_map",
]
