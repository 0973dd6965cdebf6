"""Variables that are created while a loop body or branch is traced: they outlive it, and a second trace finds them.

A body may be traced several times, until the shapes of what it carries have settled. What it creates in the second
trace are the variables of the first, in the same order; so a variable made in a body exists once, with its initial
value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..graph import Graph, Operation, Parameter
from ..tensor import Symbol

if TYPE_CHECKING:
    from .variable import Variable


class Creations:
    """The variables that a function creates, in order, over any number of traces.

    >>> from anabranch import Variable
    >>> creations = Creations()
    >>> with creations.replay():
    ...     first = Variable(1.0)
    >>> with creations.replay():
    ...     Variable(2.0) is first
    True
    """

    def __init__(self) -> None:
        self._made: list[Variable] = []
        self._next = 0

    @contextmanager
    def replay(self) -> Generator[None]:
        """Make the variables of an earlier trace again inside of the block: they are the same ones."""
        self._next = 0
        _tracing.stack.append(self)
        try:
            yield
        finally:
            _tracing.stack.pop()

    def take(self, create: Callable[[], Variable]) -> Variable:
        """Return the next variable; `create` makes it if there was no earlier trace."""
        if self._next == len(self._made):
            self._made.append(create())
        self._next += 1
        return self._made[self._next - 1]


class _Tracing(threading.local):
    def __init__(self) -> None:
        self.stack: list[Creations] = []


_tracing = _Tracing()


def created(create: Callable[[], Variable]) -> Variable:
    """Return a variable that is created now, or was in an earlier trace of the same function."""
    for creations in list(_tracing.stack):  # the outermost is right: inner ones are new in each trace of the outer
        create = _taking(creations, create)
    return create()


def _taking(creations: Creations, create: Callable[[], Variable]) -> Callable[[], Variable]:
    return lambda: creations.take(create)


def outside(tensor: Symbol, name: str) -> Symbol:
    """Return `tensor`, from which a variable takes its first value, in the outermost graph.

    Raises:
        ValueError: it depends on what a loop carries, or is computed by a loop or branch inside another one.
    """
    while tensor.graph.parent is not None:
        tensor = _copied(tensor, tensor.graph, tensor.graph.parent, name)
    return tensor


def _copied(tensor: Symbol, region: Graph, around: Graph, name: str) -> Symbol:
    """Return `tensor` of a region, computed once more in the graph around it."""
    copies: dict[Symbol, Symbol] = {parameter: outer for outer, parameter in region.captures}
    pending = [tensor.operation]
    while pending:
        operation = pending[-1]
        missing = [source.operation for source in operation.inputs if source not in copies]
        pending.extend(missing)
        if missing:
            continue
        pending.pop()
        if operation.outputs[0] not in copies:
            copies.update(zip(operation.outputs, _copy(operation, copies, around, name), strict=True))
    return copies[tensor]


def _copy(operation: Operation, copies: dict[Symbol, Symbol], graph: Graph, name: str) -> tuple[Symbol, ...]:
    if isinstance(operation.op, Parameter) or operation.effects or operation.op.regions or operation.op.called:
        raise ValueError(
            f"Variable {name!r} is made inside a loop or branch, but its initial value depends on {operation!r}, "
            "whose value is known only when that runs. Give an initial value that is known outside: an array, an "
            "initializer, or a tensor computed from values outside of the loop."
        )
    specs = tuple(tensor.spec for tensor in operation.outputs)
    inputs = [copies[tensor] for tensor in operation.inputs]
    return graph.adopt(operation.op, inputs, specs, operation).outputs
