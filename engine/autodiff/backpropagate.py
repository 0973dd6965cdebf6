"""The reverse sweep: from cotangents of some tensors of a graph to cotangents of others.

It works on one graph (or region) at a time. Loops and branches are single operations here; their own `backward`
sweeps over their regions with the same function.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.provenance import building_gradient_of
from ..graph.search import reached
from ..graph.spec import FrameSpec
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.containers.cotangent import FrameCotangent, accumulate, resolved


class DifferentiatesItself:
    """Base of ops with regions: instead of `grad`, `backward` is called."""

    def backward(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]:
        """Return cotangents of the inputs, from those of the outputs; those of inputs not `needed` are not used."""
        raise NotImplementedError(f"{type(self).__name__} must define backward().")

    def backward_within(self, node: Operation, cotangents: list[Any], needed: list[bool], sweep: Sweep) -> list[Any]:
        """Return what `backward` returns, for ops that may go on with the sweep in their regions (`Sweep.owned_by`)."""
        return self.backward(node, cotangents, needed)


def reachable_operations(graph: Graph, targets: Iterable[Symbol]) -> list[Operation]:
    """Return the operations of `graph` on which `targets` depend through data, in program order."""
    starts = [t.operation for t in targets if t.operation.graph is graph]
    found = reached(starts, lambda operation: [tensor.operation for tensor in operation.inputs])
    return sorted(found, key=lambda operation: operation.index)


def dependent_tensors(operations: Iterable[Operation], sources: Iterable[Symbol]) -> set[Symbol]:
    """Return the tensors through which a gradient can reach `sources`: these, and what is computed from them."""
    dependent = set(sources)
    for operation in operations:
        if any(tensor in dependent for tensor in operation.inputs):
            dependent.update(tensor for tensor in operation.outputs if tensor.spec.differentiable)
    return dependent


def backpropagate(
    graph: Graph,
    seeds: Mapping[Symbol, Any],
    sources: Iterable[Symbol],
    start: Mapping[Symbol, Any] | None = None,
    blocked: Iterable[Symbol] = (),
    sparse: Collection[Symbol] = (),
    among: Sequence[Operation] | None = None,
) -> dict[Symbol, Any]:
    """Return cotangents of `sources`, built into the current default graph.

    Args:
        graph: the graph to which all these tensors belong.
        seeds: tensors of `graph` and their cotangents.
        sources: the tensors whose cotangents are wanted; those that no gradient reaches are left out of the result.
        start: cotangents to which those of sources are added, the running sums of an enclosing backward loop.
        blocked: tensors through which nothing flows back.
        sparse: sources whose cotangents may be `IndexedSlices`, where only rows of them were used.
        among: sweep over these operations only, given in program order.
    """
    wanted = list(sources)
    operations = reachable_operations(graph, seeds) if among is None else among
    sweep = Sweep(graph, dependent_tensors(operations, wanted), set(blocked), {*wanted, *seeds})
    sweep.cotangents.update(start or {})
    for tensor, seed in seeds.items():
        sweep.add(tensor, seed)
    for operation in reversed(operations):
        sweep.go_through(operation)
    by_rows = set(sparse)
    return {t: resolved(sweep.cotangents[t], t in by_rows) for t in wanted if t in sweep.cotangents}


class Sweep:
    """A reverse sweep over one graph, under way.

    Attributes:
        cotangents: those accumulated so far.
        dependent: the tensors through which a gradient can reach the sources.
        stopped: tensors through which nothing flows back.
        ends: where the sweep begins and ends: seeds and sources.
    """

    def __init__(self, graph: Graph, dependent: set[Symbol], stopped: set[Symbol], ends: set[Symbol]) -> None:
        self.graph = graph
        self.cotangents: dict[Symbol, Any] = {}
        self.dependent = dependent
        self.stopped = stopped
        self.ends = ends
        self._size = len(graph.operations)  # what is built by the sweep itself does not count as a user
        self._users: dict[Operation, list[tuple[Operation, int]]] | None = None

    def add(self, tensor: Symbol, contribution: Any) -> None:
        """Add to the cotangent of `tensor`."""
        self.cotangents[tensor] = accumulate(self.cotangents.get(tensor), contribution)

    def flows_to(self, tensor: Symbol) -> bool:
        """Test whether the cotangent of `tensor` is needed."""
        return tensor in self.dependent and tensor.spec.differentiable

    def go_through(self, operation: Operation) -> None:
        """Add what the cotangents of an operation's outputs contribute to those of its inputs."""
        needed = [self.flows_to(tensor) for tensor in operation.inputs]
        if not any(needed):
            return
        outputs = [None if tensor in self.stopped else self.cotangents.get(tensor) for tensor in operation.outputs]
        if all(cotangent is None for cotangent in outputs):
            return
        with get_default_graph().near(operation), building_gradient_of(operation.location):
            outputs = [resolved(cotangent, operation.op.takes_slices) for cotangent in outputs]
            if isinstance(operation.op, DifferentiatesItself):
                contributions = operation.op.backward_within(operation, outputs, needed, self)
            else:
                contributions = list(operation.op.grad(operation, *outputs))
        with building_gradient_of(operation.location):
            for tensor, contribution, wanted in zip(operation.inputs, contributions, needed, strict=True):
                if wanted and contribution is not None:
                    self.add(tensor, contribution)

    def owned_by(self, node: Operation, number: int) -> list[Operation]:
        """Return the pure operations before a branching one that only its branch `number` needs, in program order.

        (The same branch of others with the same choice may need them, too.) Where a branch is not taken, they have no
        cotangent: their part of the sweep belongs into the branch's own.
        """
        choice, owned = node.inputs[0], set[Operation]()
        latest_first = [-tensor.operation.index for tensor in node.op.regions[number].outer_tensors()]
        heapq.heapify(latest_first)
        while latest_first:
            operation = self.graph.operations[-heapq.heappop(latest_first)]
            if operation not in owned and self._is_owned(operation, owned, choice, number):
                owned.add(operation)
                for tensor in operation.inputs:
                    heapq.heappush(latest_first, -tensor.operation.index)
        return sorted(owned, key=lambda operation: operation.index)

    def _is_owned(self, operation: Operation, owned: set[Operation], choice: Symbol, number: int) -> bool:
        if not operation.inputs or operation.effects:
            return False
        if any(isinstance(tensor.spec, FrameSpec) for tensor in operation.inputs):
            return False  # the cotangents of records are no values that a branch could hand on
        if not self.ends.isdisjoint(operation.outputs) or not self.stopped.isdisjoint(operation.outputs):
            return False
        return all(user in owned or _enters(user, position, choice, number) for user, position in self._uses(operation))

    def _uses(self, operation: Operation) -> list[tuple[Operation, int]]:
        if self._users is None:
            self._users = {}
            for user in self.graph.operations[: self._size]:
                for position, tensor in enumerate(user.inputs):
                    self._users.setdefault(tensor.operation, []).append((user, position))
        return self._users.get(operation, [])


def _enters(user: Operation, position: int, choice: Symbol, number: int) -> bool:
    """Test whether input `position` of `user` is captured by branch `number` of a construct with that choice."""
    if not user.op.is_choice or user.inputs[0] is not choice:
        return False
    captured = user.captured_at(position)
    return captured is not None and captured[0] == number


def variable_reads(operations: Iterable[Operation], variables: Iterable[Variable]) -> dict[Variable, list[Symbol]]:
    """Map each of `variables` to the results of those `operations` that read it.

    Raises:
        LookupError: a loop or branch among them both reads and writes one, so that its value there is no single one.
    """
    reads: dict[Variable, list[Symbol]] = {variable: [] for variable in variables}
    for operation in operations:
        op = operation.op
        if isinstance(op, ReadVariable):
            if op.variable in reads:
                reads[op.variable].append(operation.outputs[0])
        elif isinstance(op, DifferentiatesItself):
            _check_writes_none(operation, reads)
    return reads


def _check_writes_none(operation: Operation, variables: Collection[Variable]) -> None:
    for effect in operation.effects:
        if effect.writes and effect.resource in variables:
            raise LookupError(
                f"The gradient with respect to {effect.resource!r} is not defined: {operation!r} writes that variable. "
                "Carry its value as a loop variable instead, and assign it after the loop."
            )


def frame_cotangents(cotangent: Any) -> dict[Symbol, Any]:
    """Return the cotangents of inner values that reached a frame."""
    return cotangent.inner if isinstance(cotangent, FrameCotangent) else {}
