"""Who takes what of the needed operations of a graph, kept up to date while its loops are rewritten.

A step may have hundreds of loops. What each rewriting changes is near its loop; so the graph is looked through once,
and then what was built, and what nobody needs any more, is noted.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from ...common.identity import is_same
from ...graph.graph import Graph, Operation
from ...graph.tensor import Symbol


class Users:
    """The users of the tensors of a graph.

    Args:
        graph: to the end of its list of operations others may be added, but their order stays while this is used.
        operations: those that are needed.
        wanted: the tensors and operations for which they are needed.

    Attributes:
        kept: those tensors.
        is_out_of_order: whether anything was built, so that the operations are to be put in order again.
    """

    def __init__(self, graph: Graph, operations: Iterable[Operation], wanted: Iterable[Symbol | Operation]) -> None:
        self.graph = graph
        self.kept: set[Symbol] = set()
        self._inputs: dict[Operation, tuple[Symbol, ...]] = {}  # of needed operations, as they were noted
        self._takers: dict[Symbol, dict[Operation, None]] = {}
        self._awaited: set[Operation] = set()  # for which others wait, or which are wanted themselves
        self._touched: dict[Operation, None] = {}
        self._known = len(graph.operations)
        self.is_out_of_order = False
        for each in wanted:
            if isinstance(each, Symbol):
                self.kept.add(each)
            else:
                self._awaited.add(each)
        for operation in operations:
            self._note(operation)
            self._awaited.update(operation.control_inputs)

    def takers(self, tensor: Symbol) -> list[Operation]:
        """Return the needed operations that take a tensor, in order."""
        self._update()
        return sorted(self._takers.get(tensor, ()), key=attrgetter("index"))

    def touch(self, operation: Operation) -> None:
        """Note that an operation has other inputs now, or that others compute what were its outputs."""
        self._touched[operation] = None

    def _update(self) -> None:
        built = self.graph.operations[self._known :]
        self._known += len(built)
        touched, self._touched = list(self._touched), {}
        for operation in touched:
            if operation in self._inputs and not is_same(self._inputs[operation], operation.inputs):
                before = self._inputs[operation]
                self._note(operation)
                touched += [tensor.operation for tensor in before]
        for operation in reversed(built):
            if self._is_needed(operation):
                self._note(operation)
        for operation in touched:
            self._forget_unneeded(operation)

    def _is_needed(self, operation: Operation) -> bool:
        if operation.writes or operation in self._awaited:
            return True
        return any(self._takers.get(tensor) or tensor in self.kept for tensor in operation.outputs)

    def _note(self, operation: Operation) -> None:
        """Note the inputs of an operation, and that what computes them is needed."""
        pending = [operation]
        while pending:
            user = pending.pop()
            for tensor in self._inputs.get(user, ()):
                self._takers[tensor].pop(user, None)
            self._inputs[user] = user.inputs
            for tensor in user.inputs:
                self._takers.setdefault(tensor, {})[user] = None
                source = tensor.operation
                if source not in self._inputs and source.graph is self.graph:
                    pending.append(source)

    def _forget_unneeded(self, operation: Operation) -> None:
        """Leave out an operation if nothing needs it any more, and what only that needed."""
        pending = [operation]
        while pending:
            user = pending.pop()
            if user not in self._inputs or self._is_needed(user):
                continue
            for tensor in self._inputs.pop(user):
                self._takers[tensor].pop(user, None)
                pending.append(tensor.operation)


__all__ = ["Users"]
