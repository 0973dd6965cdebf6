"""Patterns of operations, rules that rewrite what they match, and the driver that applies rules to a step.

A pattern is written as the expression that it matches: ``op(MatMul, of=[op(Take, name="take"), outer(ANY)])`` is a
product of what a `take` gives by a tensor from outside the region. The habit is tinygrad's (`UPat`) and MLIR's (DRR).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..graph.graph import Operation, Parameter
from ..graph.op import Op
from ..graph.region import Region
from ..graph.tensor import Symbol
from .limits import count_rewrite, may_rewrite
from .log import note_change
from .prune import all_operations
from .rewriter import Rewriter

Match = dict[str, Any]  # operations, and tensors of patterns that name no op, by the names in the pattern


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of a tensor, and of the operation that computes it.

    Attributes:
        kinds: the classes of ops that match, or their traits (base classes); any tensor matches where there are none.
        inputs: the patterns of the operation's first inputs.
        name: the key under which a match holds the operation; without `kinds`, the tensor.
        where: a test of the operation.
        is_outer: whether the tensor comes from outside the region: captures are followed until one matches.
        is_only_use: whether nothing else may use the tensor.
        may_wait: whether the operation may wait for others by control dependencies.
    """

    kinds: tuple[type[Op], ...] = ()
    inputs: tuple[Pattern, ...] = ()
    name: str = ""
    where: Callable[[Operation], bool] | None = None
    is_outer: bool = False
    is_only_use: bool = False
    may_wait: bool = False

    def can_match(self, present: Collection[type[Op]]) -> bool:
        """Test that a step with ops of these classes has all that the pattern names."""
        has_kind = not self.kinds or any(issubclass(kind, self.kinds) for kind in present)
        return has_kind and all(pattern.can_match(present) for pattern in self.inputs)

    def match(self, operation: Operation, step: Rewriter | None = None) -> Match | None:
        """Return what a match holds by name; None if `operation` does not match.

        Args:
            operation: the root.
            step: the step that it is of; a pattern that asks for the only use needs it.
        """
        found: Match = {}
        return found if self._matches_operation(operation, step, found) else None

    def _matches(self, tensor: Symbol, step: Rewriter | None, found: Match) -> bool:
        if self.is_outer:
            around = captured(tensor)
            while around is not None:
                if self._matches_here(around, step, found):
                    return True
                around = captured(around)
            return False
        return self._matches_here(tensor, step, found)

    def _matches_here(self, tensor: Symbol, step: Rewriter | None, found: Match) -> bool:
        if self.is_only_use:
            assert step is not None, "a pattern that asks for the only use is matched in a step"
            if step.count_uses(tensor) != 1:
                return False
        if self.kinds:
            return self._matches_operation(tensor.operation, step, found)
        if self.name:
            found[self.name] = tensor
        return True

    def _matches_operation(self, operation: Operation, step: Rewriter | None, found: Match) -> bool:
        if not isinstance(operation.op, self.kinds) or len(operation.inputs) < len(self.inputs):
            return False
        if operation.control_inputs and not self.may_wait:
            return False
        if self.where is not None and not self.where(operation):
            return False
        if self.name:
            found[self.name] = operation
        pairs = zip(self.inputs, operation.inputs, strict=False)
        return all(pattern._matches(tensor, step, found) for pattern, tensor in pairs)


ANY = Pattern()


def op(
    *kinds: type[Op],
    of: Sequence[Pattern] = (),
    name: str = "",
    where: Callable[[Operation], bool] | None = None,
    may_wait: bool = False,
) -> Pattern:
    """Return the pattern of an operation by its op, its first inputs and a test. For arguments see `Pattern`."""
    return Pattern(kinds, tuple(of), name, where, may_wait=may_wait)


def tensor(name: str) -> Pattern:
    """Return the pattern of any tensor, which a match holds by `name`."""
    return Pattern(name=name)


def outer(pattern: Pattern) -> Pattern:
    """Return a pattern of what a region captures, however many regions are between."""
    return replace(pattern, is_outer=True)


def only_use(pattern: Pattern) -> Pattern:
    """Return a pattern of a tensor that nothing else uses."""
    return replace(pattern, is_only_use=True)


def captured(inner: Symbol) -> Symbol | None:
    """Return the tensor around the region that a parameter stands for; None for any other tensor."""
    graph = inner.operation.graph
    if not isinstance(graph, Region) or not isinstance(inner.operation.op, Parameter):
        return None
    return next((around for around, parameter in graph.captures if parameter is inner), None)


class Change(NamedTuple):
    """One rewrite that was done.

    Attributes:
        operation: the operation that notes name.
        text: what became of it.
    """

    operation: Operation
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite.

    Attributes:
        name: what it does, in a few words.
        pattern: the pattern of the operation at its root.
        rewrite: changes the step by way of the `Rewriter` and says what it did; None where it leaves the match alone.
    """

    name: str
    pattern: Pattern
    rewrite: Callable[[Match, Rewriter], Change | None]


def apply_rules(step: Rewriter, rules: Iterable[Rule], pass_name: str) -> None:
    """Apply rules to each live operation once, those of regions first; the first rule that applies is the last one.

    Args:
        step: the step.
        rules: in the order in which they are tried.
        pass_name: the pass that notes name.
    """
    present = {type(operation.op) for operation in all_operations(step.operations)}
    possible = [rule for rule in rules if rule.pattern.can_match(present)]
    if not possible:
        return  # before use lists are built for nothing
    by_kind = {kind: [rule for rule in possible if issubclass(kind, rule.pattern.kinds)] for kind in present}
    for operation in list(step.walk()):
        own = by_kind.get(type(operation.op))
        if own and operation not in step.erased and may_rewrite():
            _apply_first(step, operation, own, pass_name)


def _apply_first(step: Rewriter, operation: Operation, rules: Iterable[Rule], pass_name: str) -> None:
    for rule in rules:
        match = rule.pattern.match(operation, step)
        change = None if match is None else rule.rewrite(match, step)
        if change is not None:
            count_rewrite()
            note_change(pass_name, *change)
            return


__all__ = ["ANY", "Change", "Match", "Pattern", "Rule", "apply_rules", "captured", "only_use", "op", "outer", "tensor"]
