"""An analysis of equal dimensions, for sizes that are known at run time only.

A size is an integer, or a name for what is not known: the value and the axis where it comes first. The axis maps of ops
(`Op.axis_map`) carry names on: the rows of ``take(x, i)`` and of ``take(y, i)`` are as many as `i` has, so that both
have the same name, and so has what is computed of either. Dimensions with the same name are equal in every
run; of those with different names nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...graph.axis_maps import ResultSizes, Size, axis_map_of
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import DimOf, SizeOf
from ...ops.run_time_shapes import ShapeOf
from .estimates import is_static
from .patterns import captured
from .prune import all_blocks

# Of a size that is not known: the value and the axis where it comes first, or the names of those that are broadcast.
Name = tuple[Any, ...]
_BROADCAST = "broadcast"
Sizes = tuple[Size, ...]


class KnownSizes:
    """The sizes of tensors, which are inferred when they are first asked for.

    They stay valid while a step is rewritten: what computes a tensor may change, its value and sizes do not.
    """

    def __init__(self) -> None:
        self._sizes: dict[Symbol, Sizes | None] = {}
        self._parts: dict[Any, Name] = {}
        self._numbers: dict[Name, int] = {}

    def number_of(self, name: Name) -> int:
        """Return a number for a name, the same for the same one: they are counted as they are asked for."""
        return self._numbers.setdefault(name, len(self._numbers))

    def of(self, tensor: Symbol) -> Sizes | None:
        """Return the sizes of a tensor; None if not even its rank is known."""
        pending = [tensor]
        while tensor not in self._sizes:  # programs are deeper than Python's stack
            unknown = [source for source in _sources(pending[-1]) if source not in self._sizes]
            if unknown:
                pending += unknown
            else:
                self._note(pending.pop())
        return self._sizes[tensor]

    # --- what ops ask for: see `SizesOfTensors` ----------------------------------------------------------

    def part_of(self, numbers: Symbol, count: int, part: int, first: Symbol) -> Name:
        return self._parts.setdefault((numbers, count, part), (first, 0))

    def named(self, number: Symbol) -> Size:
        op = number.operation.op
        sizes = self.of(number.operation.inputs[0]) if isinstance(op, (DimOf, SizeOf)) else None
        if sizes is None or (isinstance(op, SizeOf) and len(sizes) != 1):
            return (number,)
        return sizes[op.axis if isinstance(op, DimOf) else 0]

    def filled_in(self, entries: Sequence[int | None], given: Sequence[Symbol]) -> list[Size | None]:
        numbers = iter(given)
        filled = [self.named(next(numbers)) if entry is None else entry for entry in entries]
        return [None if size == -1 else size for size in filled]

    def _note(self, tensor: Symbol) -> None:
        """Infer the sizes of a tensor, of which those of its sources are known."""
        if is_static(tensor):
            self._sizes[tensor] = _filled(tensor, None)
            return
        operation, outer = tensor.operation, captured(tensor)
        if outer is not None:
            self._sizes[tensor] = _filled(tensor, self._sizes[outer])
        else:
            inferred = operation.op.result_sizes(operation, self)
            inferred = _followed(operation, self) if inferred is None else inferred
            for output, sizes in zip(operation.outputs, inferred, strict=True):
                self._sizes[output] = _filled(output, sizes)


def is_of_open_sizes(operations: Iterable[Operation]) -> bool:
    """Test whether some result of operations, or of what is in their regions, has a size that is not known."""
    return not all(is_static(*operation.outputs) for block in all_blocks(operations) for operation in block)


def _sources(tensor: Symbol) -> list[Symbol]:
    """Return the tensors from whose sizes those of a tensor are inferred."""
    if is_static(tensor):
        return []
    outer = captured(tensor)
    if outer is not None:
        return [outer]
    inputs = tensor.operation.inputs
    sized = [taken.operation.inputs[0] for taken in inputs if isinstance(taken.operation.op, (DimOf, ShapeOf, SizeOf))]
    return [*inputs, *sized]


def _filled(tensor: Symbol, inferred: ResultSizes) -> Sizes | None:
    """Return the sizes of a tensor: integers of its spec, then those that were inferred, and names for the rest."""
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return None
    if inferred is None or len(inferred) != len(spec.shape):
        inferred = (None,) * len(spec.shape)
    sizes: list[Size] = []
    for axis, (dim, size) in enumerate(zip(spec.shape, inferred, strict=True)):
        sizes.append(dim if dim is not None else (tensor, axis) if size is None else size)
    return tuple(sizes)


# --- the sizes of results -------------------------------------------------------------------------------------------


def _followed(operation: Operation, known: KnownSizes) -> list[ResultSizes]:
    """Return the sizes of the axes of inputs that results follow, or of the value that gives them their shape."""
    op = operation.op
    if op.shape_input is not None:
        like = shaped_like(operation.inputs[op.shape_input])
        return [None if like is None else known.of(like)] * len(operation.outputs)
    axes = axis_map_of(op, [tensor.spec for tensor in operation.inputs])
    if axes is None:
        return [None] * len(operation.outputs)
    operands = [known.of(tensor) or () for tensor in operation.inputs]
    found = [_size_of([(operands[each.input][each.axis], each.may_broadcast) for each in own]) for own in axes]
    ranks = [len(tensor.shape or ()) for tensor in operation.outputs]
    return [[*found, *[None] * (rank - len(found))] for rank in ranks]


def _size_of(sizes: Sequence[tuple[Size, bool]]) -> Size | None:
    """Return the size of an axis that follows others, each with whether it may be broadcast."""
    fixed = [size for size, may_broadcast in sizes if not may_broadcast]
    if fixed:
        return next((size for size in fixed if isinstance(size, int)), fixed[0])
    return _common([size for size, _ in sizes]) if sizes else None


def _common(sizes: Sequence[Size]) -> Size | None:
    others = dict.fromkeys(size for size in sizes if size != 1)
    whole = [size for size in others if isinstance(size, int)]
    if whole:
        return whole[0]
    if len(others) < 2:
        return next(iter(others), 1)
    names: list[Any] = [name[1] if name[0] is _BROADCAST else [name] for name in others if isinstance(name, tuple)]
    return (_BROADCAST, frozenset([each for own in names for each in own]))


def shaped_like(shape: Symbol) -> Symbol | None:
    """Return the value whose shape a shape vector is."""
    return shape.operation.inputs[0] if type(shape.operation.op) is ShapeOf else None
