"""`Sizes`: axes of one size, though it is open, found from the operations that made the tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.graph import Symbol
from ....engine.graph.graph import Operation
from ....engine.ops.linear_algebra.einsum import Contraction
from ....engine.ops.linear_algebra.products import BatchMatMul
from .registry import attribute, axes_of

_Axis = tuple[Symbol, int]
_ELEMENTWISE = {"add", "subtract", "multiply", "divide", "tanh", "softmax", "cos", "sin", "cast", "identity", "where"}


class Sizes:
    """Finds from which axes of other tensors the sizes of a graph's tensors come."""

    def __init__(self) -> None:
        self._found: dict[_Axis, set[_Axis]] = {}

    def are_same(self, a: Symbol, axis: int, b: Symbol, other: int) -> bool:
        """Test whether an axis of one tensor is known to have the size of an axis of another."""
        first, second = _known(a, axis), _known(b, other)
        if first is not None or second is not None:
            return first == second
        return bool(self.origins(a, axis) & self.origins(b, other))

    def origins(self, symbol: Symbol, axis: int) -> set[_Axis]:
        """Return the axes that have the size of this one in any run, its own included."""
        place = (symbol, axis)
        found = self._found.get(place)
        if found is None:
            self._found[place] = {place}  # for what is asked on the way
            groups = [set().union(*[self.origins(*each) for each in group]) for group in _sources(*place)]
            found = self._found[place] = {place} | (set.intersection(*groups) if groups else set())
        return found


def _rank(symbol: Symbol) -> int:
    return len(symbol.shape or ())


def _known(symbol: Symbol, axis: int) -> int | None:
    return None if symbol.shape is None else symbol.shape[axis]


def _sources(symbol: Symbol, axis: int) -> list[list[_Axis]]:
    """Return the axes from which an open size comes.

    Those of one list have the same size in any run; of several lists, which may broadcast, what they have in common is
    the origin.
    """
    operation = symbol.operation
    op = operation.op
    shape = symbol.shape
    if shape is None or shape[axis] is not None:
        return []
    rank = len(shape)
    if operation.type in _ELEMENTWISE:
        places = [(each, axis - rank + _rank(each)) for each in operation.inputs]
        return [[place] for place in places if place[1] >= 0 and _known(*place) != 1]
    if isinstance(op, Contraction):
        label = op.out[axis]
        places = [(x, own.index(label)) for x, own in zip(operation.inputs, (op.a, op.b), strict=True) if label in own]
        return [[place for place in places if _known(*place) != 1]]
    if isinstance(op, BatchMatMul):
        left, right = operation.inputs
        if axis == rank - 2:
            return [[(left, _rank(left) - (1 if op.transpose_a else 2))]]
        if axis == rank - 1:
            return [[(right, _rank(right) - (2 if op.transpose_b else 1))]]
        return [[(each, axis)] for each in (left, right) if _rank(each) == rank and _known(each, axis) != 1]
    return [[place] for place in _source(operation, axis, rank)]


def _source(operation: Operation, axis: int, rank: int) -> list[_Axis]:
    """Return the axis from which an open size comes, where it is that of one tensor."""
    if operation.type == "reshape":
        given: Sequence[int | None] = attribute(operation, "shape", tuple)
        return _of_size(operation.inputs[1 + given[:axis].count(None)]) if given[axis] is None else []
    if operation.type in ("concatenate", "split"):
        return [(operation.inputs[0], axis)] if attribute(operation, "axis", int) % rank != axis else []
    if operation.type == "transpose" and (order := axes_of(operation)) is not None:
        return [(operation.inputs[0], order[axis])]
    if operation.type == "expand_dims":
        added = attribute(operation, "axes", tuple)
        return [(operation.inputs[0], axis - sum(each % rank < axis for each in added))]
    if operation.type == "range":
        start, stop, step = operation.inputs
        numbers = [getattr(each.operation.op, "value", None) for each in (start, step)]
        return _of_size(stop) if numbers == [0, 1] else []
    return []


def _of_size(size: Symbol) -> list[_Axis]:
    if size.operation.type != "dim_of":
        return []
    source = size.operation.inputs[0]
    return [(source, attribute(size.operation, "axis", int) % _rank(source))] if _rank(source) else []
