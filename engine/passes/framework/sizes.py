"""An analysis of equal dimensions, for sizes that are known at run time only.

A size is an integer, or a name for what is not known: the value and the axis where it comes first. The axis maps of ops
(`Op.axis_map`) carry names on: the rows of ``take(x, i)`` and of ``take(y, i)`` are as many as `i` has, so that both
have the same name, and so has what is computed of either. Dimensions with the same name are equal in every
run; of those with different names nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...graph.axis_maps import axis_map_of
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.creation import Fill
from ...ops.arrays.joining import Split
from ...ops.arrays.partitioning import DynamicPartition
from ...ops.arrays.segments import SegmentSum
from ...ops.arrays.shaping import BroadcastTo, DimOf, Reshape, SizeOf
from ...ops.run_time_shapes import ShapeOf
from .patterns import captured
from .prune import all_blocks

# Of a size that is not known: the value and the axis where it comes first, or the names of those that are broadcast.
Name = tuple[Any, ...]
_BROADCAST = "broadcast"
Size = int | Name
Sizes = tuple[Size, ...]
_Inferred = Sequence[Size | None] | None  # None: nothing is known


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

    def part_of(self, numbers: Symbol, count: int, part: int, first: Symbol) -> Name:
        """The name for how many of `numbers` name a part; `first` is what has so many rows, if nothing had before."""
        return self._parts.setdefault((numbers, count, part), (first, 0))

    def _note(self, tensor: Symbol) -> None:
        """Infer the sizes of a tensor, of which those of its sources are known."""
        operation, outer = tensor.operation, captured(tensor) if _is_open(tensor) else None
        if outer is not None:
            self._sizes[tensor] = _filled(tensor, self._sizes[outer])
        elif not _is_open(tensor):
            self._sizes[tensor] = _filled(tensor, None)
        else:
            inferred = _TABLE.get(type(operation.op), _followed)(operation.op, operation, self)
            for output, sizes in zip(operation.outputs, inferred, strict=True):
                self._sizes[output] = _filled(output, sizes)


def _is_open(tensor: Symbol) -> bool:
    """Test whether some size of a tensor is known at run time only."""
    return not (isinstance(tensor.spec, TensorSpec) and tensor.spec.is_static)


def is_of_open_sizes(operations: Iterable[Operation]) -> bool:
    """Test whether some result of operations, or of what is in their regions, has a size that is not known."""
    return any(
        _is_open(tensor) for block in all_blocks(operations) for operation in block for tensor in operation.outputs
    )


def _sources(tensor: Symbol) -> list[Symbol]:
    """Return the tensors from whose sizes those of a tensor are inferred."""
    if not _is_open(tensor):
        return []
    outer = captured(tensor)
    if outer is not None:
        return [outer]
    inputs = tensor.operation.inputs
    sized = [taken.operation.inputs[0] for taken in inputs if isinstance(taken.operation.op, (DimOf, ShapeOf, SizeOf))]
    return [*inputs, *sized]


def _filled(tensor: Symbol, inferred: _Inferred) -> Sizes | None:
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


def _followed(op: Op, operation: Operation, known: KnownSizes) -> list[_Inferred]:
    """Return the sizes of the axes of inputs that results follow, or of the value that gives them their shape."""
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
    names = [name[1] if name[0] is _BROADCAST else [name] for name in others if isinstance(name, tuple)]
    return (_BROADCAST, frozenset([each for own in names for each in own]))


def _filled_in(op: Any, operation: Operation, known: KnownSizes) -> list[_Inferred]:
    """Return the sizes of a shape of which further inputs fill the Nones; -1 stands for the rest."""
    given = iter(operation.inputs[1:])
    filled = [_dimension(next(given), known) if size is None else size for size in op.shape]
    is_exact = not isinstance(op, Reshape)  # there a number may turn out to be -1, too
    return [[size if size != -1 and (is_exact or _is_met(size)) else None for size in filled]]


def _is_met(size: Size) -> bool:
    """Test whether a size is a number, or that of an axis of an array."""
    return isinstance(size, int) or len(size) == 2


def shaped_like(shape: Symbol) -> Symbol | None:
    """The value whose shape a shape vector is."""
    return shape.operation.inputs[0] if type(shape.operation.op) is ShapeOf else None


def _parted(op: Any, operation: Operation, known: KnownSizes) -> list[_Inferred]:
    sizes, given = known.of(operation.inputs[0]), iter(operation.inputs[1:])
    if sizes is None or op.equal:
        return [None] * len(operation.outputs)
    axis = op.axis % len(sizes)
    parts = [_dimension(next(given), known) if size is None else size for size in op.sizes]
    return [(*sizes[:axis], part, *sizes[axis + 1 :]) for part in parts]


def _dimension(size: Symbol, known: KnownSizes) -> Size:
    """The size that a number is; its name says where it came from."""
    op = size.operation.op
    sizes = known.of(size.operation.inputs[0]) if isinstance(op, (DimOf, SizeOf)) else None
    if sizes is None or (isinstance(op, SizeOf) and len(sizes) != 1):
        return (size,)
    return sizes[op.axis if isinstance(op, DimOf) else 0]


def _partitioned(op: Any, operation: Operation, known: KnownSizes) -> list[_Inferred]:
    """By the same numbers all is parted alike."""
    data, numbers = operation.inputs[0].shape, operation.inputs[1].shape
    if data is None or numbers is None:
        return [None] * len(operation.outputs)
    rest = (known.of(operation.inputs[0]) or ())[len(numbers) :]
    numbered = enumerate(operation.outputs)
    return [(known.part_of(operation.inputs[1], op.count, k, output), *rest) for k, output in numbered]


def _counted(op: Any, operation: Operation, known: KnownSizes) -> list[_Inferred]:
    """Return the sizes of the sums of segments, of which an input says how many there are."""
    data, _, count = operation.inputs
    sizes = known.of(data)
    return [None if sizes is None else (_dimension(count, known), *sizes[1:])]


_TABLE: dict[type[Op], Callable[[Any, Operation, KnownSizes], list[_Inferred]]] = {  # sizes that are numbers
    BroadcastTo: _filled_in,
    DynamicPartition: _partitioned,
    Fill: _filled_in,
    Reshape: _filled_in,
    SegmentSum: _counted,
    Split: _parted,
}
