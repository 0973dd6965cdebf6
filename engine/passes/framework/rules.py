"""The parts of tables of rewrites: rules, and what a rule may query and build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation, Parameter
from ...graph.op import Op
from ...graph.spec import TensorSpec, broadcast_shapes
from ...graph.tensor import Symbol
from ...ops.base import Constant
from .patterns import Match, Pattern, Place

# The op to use instead over the same inputs, a tensor that already has the value (a tuple with one for each output,
# where there may be several), or None to leave it as it is.
Rewrite = Op | Symbol | tuple[Symbol, ...] | None


class Site(Place, Protocol):
    """The place where an operation is rewritten while it is copied."""

    def make(self, op: Op, *inputs: Symbol) -> Symbol:
        """Return the first output of a further operation in the same graph, rewritten itself where a rule applies."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of what a pattern matches.

    Attributes:
        name: what it does, in a few words.
        pattern: the pattern of the operation, which names the classes of ops at its root.
        rewrite: from what matched, and the place, to what is used instead.
        is_exact: whether the bits of results stay the same.
    """

    name: str
    pattern: Pattern
    rewrite: Callable[[Match, Site], Rewrite]
    is_exact: bool = True


def making(op: Op, *names: str) -> Callable[[Match, Site], Rewrite]:
    """Return the rewrite that makes an operation of what a match holds by these names."""
    return lambda match, site: site.make(op, *[match[name] for name in names])


def shape_of(tensor: Symbol) -> tuple[int, ...] | None:
    """Return the shape of a tensor, where all of it is known."""
    spec = tensor.spec
    return spec.static_shape if isinstance(spec, TensorSpec) else None


def keeps_shape(tensor: Symbol, value: Any) -> bool:
    """Test whether broadcasting a tensor against a constant leaves its shape as it is."""
    if np.shape(value) == ():
        return True
    if tensor.shape is None:
        return False
    try:
        return broadcast_shapes(tensor.shape, np.shape(value)) == tensor.shape
    except ValueError:
        return False


def every(value: Any, number: int) -> bool:
    """Test whether all elements of a constant are `number`."""
    return bool(value == number) if value.shape == () else bool(np.all(value == number))


@dataclass(frozen=True, slots=True)
class RulesOf:
    """The rules for one class of ops.

    Attributes:
        rules: in order.
        over: the classes of ops over which one of them may apply; None where one may over any.
    """

    rules: tuple[Rule, ...] = ()
    over: frozenset[type[Op]] | None = frozenset()

    def may_apply(self, inputs: Sequence[Symbol]) -> bool:
        """Test at a look that one of the rules may apply, so that most operations are passed over."""
        over = self.over
        return over is None or any(type(tensor.operation.op) in over for tensor in inputs)


NO_RULES = RulesOf()


def table_of(*rules: Rule) -> dict[type[Op], RulesOf]:
    """Return the rules by op class."""
    table: dict[type[Op], list[Rule]] = {}
    for rule in rules:
        for kind in rule.pattern.kinds:
            table.setdefault(kind, []).append(rule)
    return {kind: RulesOf(tuple(own), _over(own)) for kind, own in table.items()}


def _over(rules: Sequence[Rule]) -> frozenset[type[Op]] | None:
    demanded = [_demanded(rule.pattern) for rule in rules]
    return frozenset(kind for own in demanded for kind in own) if all(demanded) else None


def _demanded(pattern: Pattern) -> frozenset[type[Op]]:
    """Return the classes of ops of which one must make an input; none if that may be any."""
    for part in pattern.inputs:
        if part.is_constant or part.kinds:
            return frozenset((Constant, Parameter) if part.is_constant else part.kinds)
    return frozenset()


def first_rewrite(rules: Sequence[Rule], operation: Operation, site: Site) -> tuple[Rewrite, str]:
    """Return the rewrite by the first of `rules` that applies, and its name.

    What can't work for these shapes fails when it runs, and is left alone here.
    """
    for rule in rules:
        try:
            match = rule.pattern.match(operation, site)
            found = None if match is None else rule.rewrite(match, site)
        except (TypeError, ValueError, IndexError):
            continue
        if found is not None:
            return found, rule.name
    return None, ""
