"""Rules that change a step by way of the `Rewriter`, and the driver that applies them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from .limits import count_rewrite, may_rewrite
from .log import note_change
from .patterns import Match, Pattern
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


@dataclass(frozen=True, slots=True)
class GroupRule:
    """One rewrite of operations that belong together, such as those that take parts of one tensor.

    Attributes:
        name: what it does, in a few words.
        pattern: the pattern of each of the operations.
        key: the key that those of a group have in common; None for a match that is in no group.
        rewrite: changes the step by way of the `Rewriter` and says what it did; None where it leaves the group alone.
            It gets the matches in program order, two at least, of one graph.
    """

    name: str
    pattern: Pattern
    key: Callable[[Match], Hashable]
    rewrite: Callable[[Sequence[Match], Rewriter], Change | None]


def apply_rules(step: Rewriter, rules: Iterable[Rule], pass_name: str) -> int:
    """Apply rules to each live operation once, those of regions first; the first rule that applies is the last one.

    Returns how many rewrites were done.

    Args:
        step: the step.
        rules: in the order in which they are tried.
        pass_name: the pass that notes name.
    """
    present = step.kinds
    possible = [rule for rule in rules if rule.pattern.can_match(present)]
    if not possible:
        return 0  # before use lists are built for nothing
    count = 0
    by_kind = {kind: [rule for rule in possible if issubclass(kind, rule.pattern.kinds)] for kind in present}
    for operation in list(step.walk()):
        own = by_kind.get(type(operation.op))
        if own and operation not in step.erased and may_rewrite():
            count += _apply_first(step, operation, own, pass_name)
    return count


def apply_group_rules(step: Rewriter, rules: Iterable[GroupRule], pass_name: str) -> None:
    """Apply rules to each group of live operations once; for arguments see `apply_rules`."""
    present = step.kinds
    for rule in rules:
        for matches in _groups(step, rule) if rule.pattern.can_match(present) else ():
            change = rule.rewrite(matches, step) if len(matches) > 1 and may_rewrite() else None
            if change is not None:
                count_rewrite()
                note_change(pass_name, *change)


def _groups(step: Rewriter, rule: GroupRule) -> Iterable[Sequence[Match]]:
    groups: dict[Hashable, list[Match]] = {}
    for operation in step.walk():
        match = rule.pattern.match(operation, step)
        key = None if match is None else rule.key(match)
        if match is not None and key is not None:
            groups.setdefault((operation.graph, key), []).append(match)
    return groups.values()


def _apply_first(step: Rewriter, operation: Operation, rules: Iterable[Rule], pass_name: str) -> bool:
    for rule in rules:
        match = rule.pattern.match(operation, step)
        change = None if match is None else rule.rewrite(match, step)
        if change is not None:
            count_rewrite()
            note_change(pass_name, *change)
            return True
    return False


__all__ = ["Change", "GroupRule", "Rule", "apply_group_rules", "apply_rules"]
