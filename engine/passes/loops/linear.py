"""Integers of a loop that grow or fall evenly: which element an iteration reads, and how many iterations there are."""

from __future__ import annotations

from typing import Any

from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...control_flow.frames import History, TripCount
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter
from ...graph.operation import op_of
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Cast, Constant
from ...ops.containers.tensor_arrays import ArrayNew, ArrayRead
from ...ops.math.bitwise import BitwiseAnd
from ...ops.math.comparison import Greater, GreaterEqual, Less, LessEqual
from ...ops.math.elementwise import Add, Negative, Subtract
from ..framework.patterns import number_of, outermost


@dataclass(frozen=True)
class Linear:
    """``steps * k + constant + sum(factor * term)`` in iteration k = 0, 1, 2...

    Attributes:
        steps: by how much it grows from one iteration to the next.
        constant: the known part of what it starts at.
        terms: pairs (tensor outside of the loop, factor). A frame stands for the trip count of its loop.
    """

    steps: int = 0
    constant: int = 0
    terms: frozenset[tuple[Symbol, int]] = frozenset()

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        if not self.terms and not other.terms:
            return Linear(self.steps + factor * other.steps, self.constant + factor * other.constant)
        terms = dict(self.terms)
        for tensor, times in other.terms:
            terms[tensor] = terms.get(tensor, 0) + factor * times
        kept = frozenset((tensor, times) for tensor, times in terms.items() if times)
        return Linear(self.steps + factor * other.steps, self.constant + factor * other.constant, kept)

    def minus(self, other: Linear) -> Linear:
        return self.plus(other, -1)

    def moved(self, by: int) -> Linear:
        return Linear(self.steps, self.constant + by, self.terms)

    @property
    def start(self) -> Linear:
        """Its value in the first iteration."""
        return Linear(0, self.constant, self.terms)

    @property
    def known(self) -> int | None:
        """The number that it always is."""
        return self.constant if self.steps == 0 and not self.terms else None


_DEEPEST = 16  # operations that are looked through: what is behind longer chains is not examined


def outside(tensor: Symbol, depth: int = 0) -> Linear | None:
    """Return the form of an integer outside of the loop, found at most `_DEEPEST` operations away."""
    spec, op = tensor.spec, tensor.operation.op
    if not isinstance(spec, TensorSpec) or spec.dtype.kind not in "iu" or spec.shape != ():
        return None
    known = number_of(tensor) if isinstance(op, (Constant, Parameter)) else None
    if known is not None:
        return Linear(0, known)
    if isinstance(op, TripCount):
        return counted(tensor.operation.inputs[0])
    record = recorded(tensor.operation)
    if record is not None and isinstance(record.operation.op, TripCount):
        trips = counted(record.operation.inputs[0])
        if trips.known is not None:
            return trips
    numbers = _numbers(tensor.operation) if depth < _DEEPEST else ()
    combined = _combined(op, [outside(each, depth + 1) for each in numbers])
    return combined or Linear(0, 0, frozenset({(tensor, 1)}))


def inside(node: Operation, tensor: Symbol, depth: int = 0) -> Linear | None:
    """Return the form of an integer in the body, or the condition, of loop `node`; None if it has none."""
    condition, body = node.op.regions
    region = condition if tensor.operation.graph is condition else body
    spec, op = tensor.spec, tensor.operation.op
    if not isinstance(spec, TensorSpec) or spec.dtype.kind not in "iu" or spec.shape != ():
        return None
    if is_among(tensor, region.parameters):
        return _variable(node, place_among(tensor, region.parameters))
    if isinstance(op, Parameter):
        outer = region.outer_of(tensor)
        return None if outer is None else outside(outer)
    if isinstance(op, Constant):
        return Linear(0, int(op.value))
    numbers = _numbers(tensor.operation) if depth < _DEEPEST else ()
    return _combined(op, [inside(node, each, depth + 1) for each in numbers])


def _numbers(operation: Operation) -> tuple[Symbol, ...]:
    return operation.inputs if isinstance(operation.op, (Add, Subtract, Negative, Cast)) else ()


def _combined(op: Any, values: list[Linear | None]) -> Linear | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    if isinstance(op, Add):
        return known[0].plus(known[1])
    if isinstance(op, Subtract):
        return known[0].minus(known[1])
    return Linear().minus(known[0]) if isinstance(op, Negative) else known[0]


def _variable(node: Operation, position: int) -> Linear | None:
    """Return the form of a loop variable to which each iteration adds the same number."""
    body = op_of(node, While).body
    parameter, update = body.parameters[position], body.results[position].operation
    start = outside(node.inputs[position])
    if start is None:
        return None
    if body.results[position] is parameter:
        return start
    if not isinstance(update.op, (Add, Subtract)):
        return None
    a, b = update.inputs
    if a is not parameter and isinstance(update.op, Add):
        a, b = b, a
    change = number_of(b)
    if a is not parameter or change is None:
        return None
    return Linear(change if isinstance(update.op, Add) else -change, start.constant, start.terms)


def trip_count(node: Operation) -> Linear | None:
    """Return the number of iterations of `node`, if it is known before it starts; below zero means none at all.

    A number that is known stays, however the loop is rewritten, and is kept on its op: many ask for it.
    """
    op = node.op
    if not isinstance(op, While):
        return None
    if op.known_trips is None:
        found = _find_trip_count(node, op)
        if found is None or found.known is None:
            return found
        op.known_trips = found.known
    return Linear(0, op.known_trips)


def known_trips(node: Operation) -> int | None:
    """Return the number of iterations of `node`, if that is a known number."""
    trips = trip_count(node)
    return None if trips is None or trips.known is None else max(0, trips.known)


def most_trips(node: Operation) -> int | None:
    """Return the most iterations that a loop makes, by the counters in its condition; None if it has none."""
    assert isinstance(node.op, While)
    found: list[int] = []
    pending = [node.op.condition.results[0].operation]
    while pending:
        test = pending.pop()
        if isinstance(test.op, BitwiseAnd):
            pending += [tensor.operation for tensor in test.inputs]
        left = _left(node, test)
        if left is not None and left.start.known is not None and left.steps < 0:
            found.append(max(0, -(left.start.known // left.steps)))
    return min(found, default=None)


def _find_trip_count(node: Operation, op: While) -> Linear | None:
    left = _left(node, op.condition.results[0].operation)
    return left.start if left is not None and left.steps == -1 else None


def _left(node: Operation, test: Operation) -> Linear | None:
    """Return the form of the number that is above zero as long as a comparison in a loop's condition holds."""
    if test.graph is not node.op.regions[0] or not isinstance(test.op, (Less, LessEqual, Greater, GreaterEqual)):
        return None
    low, high = [inside(node, tensor) for tensor in test.inputs]
    if low is None or high is None:
        return None
    if isinstance(test.op, (Greater, GreaterEqual)):
        low, high = high, low
    return high.minus(low).moved(1 if isinstance(test.op, (LessEqual, GreaterEqual)) else 0)


def array_size(array: Symbol) -> Linear | None:
    """Return the number of elements of an array outside of the loop; None if it is not known."""
    spec, op = array.spec, array.operation.op
    if isinstance(spec, ArraySpec) and spec.size is not None:
        return Linear(0, spec.size)
    if isinstance(op, History):
        return counted(array.operation.inputs[0])
    record = recorded(array.operation)
    if record is not None and isinstance(record.operation.op, History):
        trips = counted(record.operation.inputs[0])
        return trips if trips.known is not None else None  # otherwise each iteration had a number of its own
    return outside(array.operation.inputs[0]) if isinstance(op, ArrayNew) else None


def recorded(read: Operation) -> Symbol | None:
    """Return what, of another loop's body, an operation reads from the record of an iteration."""
    if not isinstance(read.op, ArrayRead):
        return None
    op = outermost(read.inputs[0]).operation.op
    return op.inner if isinstance(op, History) else None


def counted(frame: Symbol) -> Linear:
    """Return the trip count of the loop to which `frame` belongs."""
    trips = known_trips(frame.operation)
    return Linear(0, 0, frozenset({(frame, 1)})) if trips is None else Linear(0, trips)
