"""What the tables of rewrites are written in: rules, and what a rule may ask and build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..graph.graph import Parameter
from ..graph.op import Op
from ..graph.spec import TensorSpec, broadcast_shapes
from ..graph.tensor import Symbol
from ..ops.base import Constant

LARGEST_CONSTANT = 4096  # elements of constants that rules look into

# The op to use instead over the same inputs, a tensor that already has the value (a tuple with one for each output,
# where there may be several), or None to leave it as it is.
Rewrite = Op | Symbol | tuple[Symbol, ...] | None


class Site(Protocol):
    """The place where an operation is rewritten."""

    @property
    def outers(self) -> Mapping[Symbol, Symbol]:
        """For parameters of regions the tensor around that each stands for."""
        ...

    def is_only_user(self, tensor: Symbol) -> bool:
        """Whether nothing needs an input of the operation but the operation itself."""
        ...

    def make(self, op: Op, *inputs: Symbol) -> Symbol:
        """The first output of a further operation in the same graph, rewritten itself where a rule applies."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of operations of some classes.

    Attributes:
        name: what it does, in a few words.
        ops: the classes of the ops that it looks at.
        rewrite: from an op, its inputs and the place to what is used instead.
        over: it applies only where ops of these classes make one of the inputs; none, if it may apply to any. So that
            most operations are passed over at a look.
        is_exact: whether the bits of results stay the same.
    """

    name: str
    ops: tuple[type[Op], ...]
    rewrite: Callable[[Any, Sequence[Symbol], Site], Rewrite]
    over: tuple[type[Op], ...] = ()
    is_exact: bool = True


def constant_of(tensor: Symbol, site: Site) -> Any:
    """The value of a tensor that is a constant, here or captured from around; otherwise None."""
    found: Symbol | None = tensor
    while found is not None:
        op = found.operation.op
        if type(op) is Constant:
            return op.value if op.value.size <= LARGEST_CONSTANT else None
        if type(op) is not Parameter:
            return None
        found = site.outers.get(found)
    return None


def shape_of(tensor: Symbol) -> tuple[int, ...] | None:
    """The shape of a tensor, where all of it is known."""
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or spec.shape is None or None in spec.shape:
        return None
    return spec.shape  # pyright: ignore[reportReturnType]


def keeps_shape(tensor: Symbol, value: Any) -> bool:
    """Whether broadcasting a tensor against a constant leaves its shape as it is."""
    if np.shape(value) == ():
        return True
    if tensor.shape is None:
        return False
    try:
        return broadcast_shapes(tensor.shape, np.shape(value)) == tensor.shape
    except ValueError:
        return False


def produced_by(tensor: Symbol, *kinds: type[Op]) -> Any:
    """The op that makes a tensor as its only output, if it is of one of the classes."""
    op = tensor.operation.op
    return op if isinstance(op, kinds) and len(tensor.operation.outputs) == 1 else None


def every(value: Any, number: int) -> bool:
    """Whether all elements of a constant are `number`."""
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


NO_RULES = RulesOf()


def table_of(*rules: Rule) -> dict[type[Op], RulesOf]:
    """The rules by op class."""
    table: dict[type[Op], list[Rule]] = {}
    for rule in rules:
        for op in rule.ops:
            table.setdefault(op, []).append(rule)
    return {op: RulesOf(tuple(own), _over(own)) for op, own in table.items()}


def _over(rules: Sequence[Rule]) -> frozenset[type[Op]] | None:
    if not all(rule.over for rule in rules):
        return None
    kinds = {kind for rule in rules for kind in rule.over}
    return frozenset(kinds | {Parameter} if Constant in kinds else kinds)  # a constant may be captured
