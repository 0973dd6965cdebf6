"""Rules that change a step by way of the `Rewriter`, and the driver that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..graph.graph import Operation
from .limits import count_rewrite, may_rewrite
from .log import note_change
from .patterns import Match, Pattern
from .prune import all_operations
from .rewriter import Rewriter


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


__all__ = ["Change", "Rule", "apply_rules"]
