"""Patterns of operations, for rules that rewrite what matches.

A pattern is written as the expression that it matches: ``op(MatMul, of=[op(Take, name="take"), outer(ANY)])`` is a
product of what a `take` gives by a tensor from outside the region. One name stands for one tensor: ``op(Maximum,
of=[tensor("x"), tensor("x")])`` takes a tensor twice, and an operation with a name may be written twice where its
outputs are used in two places. The habit is tinygrad's (`UPat`) and MLIR's (DRR).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation, Parameter
from ...graph.op import Op
from ...graph.region import Region
from ...graph.tensor import Symbol
from ...ops.base import Constant

LARGEST_CONSTANT = 4096  # elements of constants that rules look into

# By the names in the pattern: operations, tensors of patterns that name no op, values of constants.
Match = dict[str, Any]


class Place(Protocol):
    """The place where a pattern is matched: a step under rewrite, or an operation that is copied."""

    def outer(self, tensor: Symbol) -> Symbol | None:
        """Return the tensor around the region that a parameter stands for; None for any other tensor."""
        ...

    def is_only_use(self, tensor: Symbol) -> bool:
        """Test whether a tensor is used once."""
        ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of a tensor, and of the operation that computes it.

    Attributes:
        kinds: the classes of ops that match, or their traits (base classes); any tensor matches where there are none.
        inputs: the patterns of the operation's first inputs.
        name: the key under which a match holds the operation; without `kinds`, the tensor.
        where: a test of the operation, of the tensor if `kinds` is empty, or of the value of a constant.
        is_outer: whether the tensor comes from outside the region: captures are followed until one matches.
        is_only_use: whether nothing else may use the tensor.
        is_constant: whether the tensor is a constant, here or captured; a match holds its value.
        alternatives: patterns of which the first that matches counts; a match holds the tensor by `name`.
        output: which output of the operation the tensor is; None for any.
        may_wait: whether the operation may wait for others by control dependencies.
        any_order: whether the two inputs may be the other way round.
    """

    kinds: tuple[type[Op], ...] = ()
    inputs: tuple[Pattern, ...] = ()
    name: str = ""
    where: Callable[[Any], bool] | None = None
    is_outer: bool = False
    is_only_use: bool = False
    is_constant: bool = False
    alternatives: tuple[Pattern, ...] = ()
    output: int | None = None
    may_wait: bool = False
    any_order: bool = False

    def can_match(self, present: Collection[type[Op]]) -> bool:
        """Test that a step with ops of these classes has all that the pattern names."""
        if self.alternatives:
            return any(pattern.can_match(present) for pattern in self.alternatives)
        has_kind = not self.kinds or any(issubclass(kind, self.kinds) for kind in present)
        return has_kind and all(pattern.can_match(present) for pattern in self.inputs)

    def match(self, operation: Operation, place: Place | None = None) -> Match | None:
        """Return what a match holds by name; None if `operation` does not match.

        Args:
            operation: the root.
            place: where it is; a pattern that looks at uses needs it.
        """
        for pattern in self.alternatives or (self,):
            found: Match = {}
            if pattern._matches_operation(operation, place, found):
                return found
        return None

    def _matches(self, tensor: Symbol, place: Place | None, found: Match) -> bool:
        if self.is_constant:
            value = constant_of(tensor, place)
            return value is not None and (self.where is None or self.where(value)) and self._holds(value, found)
        if not self.is_outer:
            return self._matches_here(tensor, place, found)
        around = outer_of(tensor, place)
        while around is not None:
            if self._matches_here(around, place, found):
                return True
            around = outer_of(around, place)
        return False

    def _matches_here(self, tensor: Symbol, place: Place | None, found: Match) -> bool:
        if self.is_only_use:
            assert place is not None, "a pattern that asks for the only use is matched in a step"
            if not place.is_only_use(tensor):
                return False
        if self.alternatives:
            return self._matches_any(tensor, place, found) and self._holds(tensor, found)
        if self.kinds:
            is_output = self.output is None or self.output == tensor.index
            return is_output and self._matches_operation(tensor.operation, place, found)
        return (self.where is None or self.where(tensor)) and self._holds(tensor, found)

    def _matches_any(self, tensor: Symbol, place: Place | None, found: Match) -> bool:
        before = dict(found)
        for pattern in self.alternatives:
            if pattern._matches(tensor, place, found):
                return True
            found.clear()
            found.update(before)
        return False

    def _holds(self, value: Any, found: Match) -> bool:
        """Hold what matches by the pattern's name, which stands for one thing alone."""
        return not self.name or found.setdefault(self.name, value) is value

    def _matches_operation(self, operation: Operation, place: Place | None, found: Match) -> bool:
        if not isinstance(operation.op, self.kinds) or len(operation.inputs) < len(self.inputs):
            return False
        if operation.control_inputs and not self.may_wait:
            return False
        if self.where is not None and not self.where(operation):
            return False
        if not self._holds(operation, found):
            return False
        before = dict(found) if self.any_order else found
        if self._matches_inputs(operation.inputs, place, found):
            return True
        if not self.any_order:
            return False
        found.clear()
        found.update(before)
        return self._matches_inputs(operation.inputs[::-1], place, found)

    def _matches_inputs(self, inputs: Sequence[Symbol], place: Place | None, found: Match) -> bool:
        for own, tensor in zip(self.inputs, inputs, strict=False):
            if own.kinds and not own.is_outer and not isinstance(tensor.operation.op, own.kinds):
                return False  # at a look: so end most matches
            if not own._matches(tensor, place, found):
                return False
        return True


ANY = Pattern()


def op(
    *kinds: type[Op],
    of: Sequence[Pattern] = (),
    name: str = "",
    where: Callable[[Operation], bool] | None = None,
    may_wait: bool = False,
    any_order: bool = False,
    output: int | None = None,
) -> Pattern:
    """Return the pattern of an operation by its op, its first inputs and a test. For arguments see `Pattern`."""
    return Pattern(kinds, tuple(of), name, where, may_wait=may_wait, any_order=any_order, output=output)


def any_of(*patterns: Pattern, name: str = "") -> Pattern:
    """Return the pattern of a tensor that matches one of some patterns, of which the first counts.

    Args:
        patterns: patterns of operations, or of tensors.
        name: the key under which a match holds the tensor.
    """
    are_operations = all(pattern.kinds and not pattern.is_outer for pattern in patterns)
    kinds = tuple(dict.fromkeys(kind for pattern in patterns for kind in pattern.kinds)) if are_operations else ()
    return Pattern(kinds, name=name, alternatives=patterns)


def tensor(name: str, where: Callable[[Symbol], bool] | None = None) -> Pattern:
    """Return the pattern of any tensor that passes a test, which a match holds by `name`."""
    return Pattern(name=name, where=where)


def constant(name: str, where: Callable[[Any], bool] | None = None) -> Pattern:
    """Return the pattern of a constant, here or captured from around: a match holds its value, an array."""
    return Pattern(name=name, where=where, is_constant=True)


def outer(pattern: Pattern) -> Pattern:
    """Return a pattern of what a region captures, however many regions are between."""
    return replace(pattern, is_outer=True)


def only_use(pattern: Pattern) -> Pattern:
    """Return a pattern of a tensor that nothing else uses."""
    return replace(pattern, is_only_use=True)


def outer_of(tensor: Symbol, place: Place | None) -> Symbol | None:
    """Return the tensor around the region that a parameter stands for; None for any other tensor."""
    return captured(tensor) if place is None else place.outer(tensor)


def constant_of(tensor: Symbol, place: Place | None) -> Any:
    """Return the value of a tensor that is a constant, here or captured from around; otherwise None."""
    found: Symbol | None = tensor
    while found is not None:
        op = found.operation.op
        if type(op) is Constant:
            return op.value if op.value.size <= LARGEST_CONSTANT else None
        found = outer_of(found, place) if type(op) is Parameter else None
    return None


def captured(inner: Symbol) -> Symbol | None:
    """Return the tensor around the region that a parameter stands for; None for any other tensor."""
    graph = inner.operation.graph
    return graph.outer_of(inner) if isinstance(graph, Region) else None


def outermost(tensor: Symbol) -> Symbol:
    """Return the tensor that a captured one stands for, through any number of regions."""
    outer = captured(tensor)
    while outer is not None:
        tensor, outer = outer, captured(outer)
    return tensor


def number_of(tensor: Symbol) -> int | None:
    """Return the integer that a tensor always is, wherever it was captured from; None for any other tensor."""
    op = outermost(tensor).operation.op
    if not isinstance(op, Constant) or op.value.ndim or op.value.dtype.kind not in "iu":
        return None
    return int(op.value)


__all__ = [
    "ANY",
    "Match",
    "Pattern",
    "Place",
    "any_of",
    "captured",
    "constant",
    "constant_of",
    "number_of",
    "only_use",
    "op",
    "outer",
    "outermost",
    "tensor",
]
