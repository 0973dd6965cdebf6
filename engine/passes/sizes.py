"""An analysis of equal dimensions, for sizes that are known at run time only.

A size is an integer, or a name for what is not known: the value and the axis where it was met first. What an operation
says of its result's shape carries names on: the rows of ``take(x, i)`` and of ``take(y, i)`` are as many as `i` has, so
that both have the same name, and so has what is computed of either. Dimensions with the same name are equal in every
run; of those with different names nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from ..graph.op import Op
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.axes import Transpose
from ..ops.creation import Fill
from ..ops.gathering import Take
from ..ops.joining import Concatenate, Split
from ..ops.linalg import BatchMatMul, MatMul
from ..ops.partitioning import DynamicPartition
from ..ops.reduced import BroadcastReduced, Sum
from ..ops.reduction import LogSumExp, Max, Mean, Min
from ..ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ShapeOf, SumToShape, ZerosOfShape
from ..ops.segments import GatherSegments
from ..ops.shaping import BroadcastTo, DimOf, ExpandDims, Reshape, Squeeze
from ..ops.softmax import LogSoftmax, Softmax

Name = tuple[Any, ...]  # of a size that is not known: what it was met at first
Size = int | Name
Sizes = tuple[Size, ...]
_Told = Sequence[Size | None] | None  # None: nothing is told


class KnownSizes:
    """The sizes of tensors."""

    def __init__(self) -> None:
        self._sizes: dict[Symbol, Sizes | None] = {}
        self._parts: dict[Any, Name] = {}
        self.is_open = False  # whether any size is not known

    def note_all(self, operations: Iterable[Operation]) -> None:
        """Find out about the results of `operations`, in program order, and of what lies in regions inside."""
        for operation in operations:
            self._note(operation)
            for region in operation.op.regions if isinstance(operation.op, RegionOp) else ():
                for outer, parameter in region.captures:
                    found = self._sizes.get(outer)
                    if found is not None:
                        self._sizes[parameter] = _filled(parameter, found)
                self.note_all([inner for inner in region.operations if inner.outputs])

    def of(self, tensor: Symbol) -> Sizes | None:
        """The sizes of a tensor; None if not even its rank is known."""
        found = self._sizes.get(tensor)
        if found is None:
            found = self._sizes[tensor] = _filled(tensor, None)
        return found

    def part_of(self, numbers: Symbol, count: int, part: int, first: Symbol) -> Name:
        """The name for how many of `numbers` name a part; `first` is what has so many rows, if nothing had before."""
        return self._parts.setdefault((numbers, count, part), (first, 0))

    def _note(self, operation: Operation) -> None:
        if all(isinstance(tensor.spec, TensorSpec) and tensor.spec.is_static for tensor in operation.outputs):
            return
        self.is_open = True
        tell = _TABLE.get(type(operation.op))
        if tell is None and operation.op.elementwise:
            tell = _broadcast
        told = [None] * len(operation.outputs) if tell is None else tell(operation.op, operation, self)
        for tensor, sizes in zip(operation.outputs, told, strict=True):
            if tensor not in self._sizes:
                self._sizes[tensor] = _filled(tensor, sizes)


def _filled(tensor: Symbol, told: _Told) -> Sizes | None:
    """Return the sizes of a tensor: integers where its spec has them, then those of `told`, and names for the rest."""
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return None
    if told is None or len(told) != len(spec.shape):
        told = (None,) * len(spec.shape)
    sizes: list[Size] = []
    for axis, (dim, size) in enumerate(zip(spec.shape, told, strict=True)):
        sizes.append(dim if dim is not None else (tensor, axis) if size is None else size)
    return tuple(sizes)


# --- what operations tell -------------------------------------------------------------------------------------------


def _broadcast(op: Op, operation: Operation, known: KnownSizes) -> list[_Told]:
    """Elementwise operations."""
    operands = [known.of(tensor) for tensor in operation.inputs]
    found = broadcast_sizes([sizes for sizes in operands if sizes is not None]) if None not in operands else None
    return [found] * len(operation.outputs)


def broadcast_sizes(operands: Sequence[Sizes]) -> list[Size | None]:
    """The sizes of what operands are broadcast to; None for an axis of which they do not tell."""
    rank = max(map(len, operands), default=0)
    return [_common([sizes[axis] for sizes in operands if len(sizes) >= -axis]) for axis in range(-rank, 0)]


def _common(sizes: Sequence[Size]) -> Size | None:
    others = dict.fromkeys(size for size in sizes if size != 1)
    whole = [size for size in others if isinstance(size, int)]
    if whole:
        return whole[0]
    return next(iter(others), 1) if len(others) < 2 else None


def _take(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    x, indices = (known.of(tensor) for tensor in operation.inputs)
    if x is None or indices is None:
        return [None]
    axis = op.axis % len(x)
    return [(*x[:axis], *indices, *x[axis + 1 :])]


def _gather(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    rows, ids = (known.of(tensor) for tensor in operation.inputs)
    return [None if rows is None or ids is None else (*ids, *rows[1:])]


def _product(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    a, b = (known.of(tensor) for tensor in operation.inputs)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [None]
    rows, columns = a[-1 if op.transpose_a else -2], b[-2 if op.transpose_b else -1]
    return [(*broadcast_sizes([a[:-2], b[:-2]]), rows, columns)]


def _same(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    return [known.of(operation.inputs[0])]


def _expanded(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    sizes = known.of(operation.inputs[0])
    if sizes is None:
        return [None]
    rank = len(sizes) + len(op.axes)
    new = {axis % rank for axis in op.axes}
    remaining = iter(sizes)
    return [[1 if axis in new else next(remaining) for axis in range(rank)]]


def _squeezed(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    sizes = known.of(operation.inputs[0])
    if sizes is None or op.axes is None:
        return [None]
    gone = {axis % len(sizes) for axis in op.axes}
    return [[size for axis, size in enumerate(sizes) if axis not in gone]]


def _transposed(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    sizes = known.of(operation.inputs[0])
    if sizes is None:
        return [None]
    return [sizes[::-1] if op.axes is None else [sizes[axis] for axis in op.axes]]


def _reduced(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    sizes = known.of(operation.inputs[0])
    if sizes is None:
        return [None]
    gone = set(range(len(sizes)) if op.axes is None else [axis % len(sizes) for axis in op.axes])
    if op.keepdims:
        return [[1 if axis in gone else size for axis, size in enumerate(sizes)]]
    return [[size for axis, size in enumerate(sizes) if axis not in gone]]


def _to_shape(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    """Return the sizes of the value that gives a result its shape."""
    like = shaped_like(operation.inputs[1])
    return [None if like is None else known.of(like)]


def _zeros(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    like = shaped_like(operation.inputs[0])
    return [None if like is None else known.of(like)]


def _filled_in(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    """Return the sizes of a shape of which further inputs fill the Nones; -1 stands for the rest."""
    given = iter(operation.inputs[1:])
    told = [_dimension(next(given), known) if size is None else size for size in op.shape]
    is_exact = not isinstance(op, Reshape)  # there a number may turn out to be -1, too
    return [[size if size != -1 and (is_exact or _is_met(size)) else None for size in told]]


def _is_met(size: Size) -> bool:
    """Test whether a size is a number, or that of an axis of an array."""
    return isinstance(size, int) or len(size) == 2


def shaped_like(shape: Symbol) -> Symbol | None:
    """The value whose shape a shape vector is."""
    return shape.operation.inputs[0] if type(shape.operation.op) is ShapeOf else None


def _joined(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    """Parts joined along an axis agree on the others."""
    parts = [known.of(tensor) for tensor in operation.inputs]
    first = parts[0]
    if first is None or None in parts:
        return [None]
    if len(parts) == 1:
        return [first]
    axis = op.axis % len(first)
    return [[None if k == axis else size for k, size in enumerate(first)]]


def _parted(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    sizes, given = known.of(operation.inputs[0]), iter(operation.inputs[1:])
    if sizes is None or op.equal:
        return [None] * len(operation.outputs)
    axis = op.axis % len(sizes)
    parts = [_dimension(next(given), known) if size is None else size for size in op.sizes]
    return [(*sizes[:axis], part, *sizes[axis + 1 :]) for part in parts]


def _dimension(size: Symbol, known: KnownSizes) -> Size:
    """The size that a number is; its name says where it came from."""
    op = size.operation.op
    sizes = known.of(size.operation.inputs[0]) if isinstance(op, DimOf) else None
    return (size,) if sizes is None or not isinstance(op, DimOf) else sizes[op.axis]


def _partitioned(op: Any, operation: Operation, known: KnownSizes) -> list[_Told]:
    """By the same numbers all is parted alike."""
    data, numbers = operation.inputs[0].shape, operation.inputs[1].shape
    if data is None or numbers is None:
        return [None] * len(operation.outputs)
    rest = (known.of(operation.inputs[0]) or ())[len(numbers) :]
    numbered = enumerate(operation.outputs)
    return [(known.part_of(operation.inputs[1], op.count, k, output), *rest) for k, output in numbered]


_REDUCTIONS: tuple[type[Op], ...] = (Sum, Mean, Max, Min, LogSumExp)
_TABLE: dict[type[Op], Callable[[Any, Operation, KnownSizes], list[_Told]]] = {
    BatchMatMul: _product,
    BroadcastReduced: _to_shape,
    BroadcastTo: _filled_in,
    BroadcastToShape: _to_shape,
    Concatenate: _joined,
    DynamicPartition: _partitioned,
    ExpandDims: _expanded,
    Fill: _filled_in,
    GatherSegments: _gather,
    LogSoftmax: _same,
    MatMul: _product,
    Reshape: _filled_in,
    ReshapeToShape: _to_shape,
    Softmax: _same,
    Split: _parted,
    Squeeze: _squeezed,
    SumToShape: _to_shape,
    Take: _take,
    Transpose: _transposed,
    ZerosOfShape: _zeros,
    **dict.fromkeys(_REDUCTIONS, _reduced),
}
