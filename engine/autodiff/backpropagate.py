"""The reverse sweep: from cotangents of some tensors of a graph to cotangents of others.

It works on one graph (or region) at a time. Loops and branches are single operations here; their own `backward`
sweeps over their regions with the same function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from ..graph.graph import Graph, Operation, ReadVariable, get_default_graph
from ..graph.tensor import Tensor
from ..graph.variable import Variable
from ..ops.cotangent import FrameCotangent, accumulate, resolved


@runtime_checkable
class DifferentiatesItself(Protocol):
    """An op with regions: it is told which of its inputs need a cotangent."""

    def backward(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]: ...


def reachable_operations(graph: Graph, targets: Iterable[Tensor]) -> list[Operation]:
    """The operations of `graph` on which `targets` depend through data, in program order."""
    seen: set[Operation] = set()
    pending = [t.operation for t in targets if t.operation.graph is graph]
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        pending.extend(tensor.operation for tensor in operation.inputs)
    return sorted(seen, key=lambda operation: operation.index)


def dependent_tensors(operations: Iterable[Operation], sources: Iterable[Tensor]) -> set[Tensor]:
    """The tensors through which a gradient can reach `sources`: these, and what is computed from them."""
    dependent = set(sources)
    for operation in operations:
        if any(tensor in dependent for tensor in operation.inputs):
            dependent.update(tensor for tensor in operation.outputs if tensor.spec.differentiable)
    return dependent


def backpropagate(
    graph: Graph,
    seeds: Mapping[Tensor, Any],
    sources: Iterable[Tensor],
    start: Mapping[Tensor, Any] | None = None,
    blocked: Iterable[Tensor] = (),
    sparse: Collection[Tensor] = (),
) -> dict[Tensor, Any]:
    """Cotangents of `sources`, built into the current default graph.

    Args:
        graph: the graph to which all these tensors belong.
        seeds: tensors of `graph` and their cotangents.
        sources: the tensors whose cotangents are wanted; those that no gradient reaches are left out of the result.
        start: cotangents to which those of sources are added, the running sums of an enclosing backward loop.
        blocked: tensors through which nothing flows back.
        sparse: sources whose cotangents may be `IndexedSlices`, where only rows of them were used.
    """
    wanted = list(sources)
    operations = reachable_operations(graph, seeds)
    dependent = dependent_tensors(operations, wanted)
    stopped = set(blocked)
    cotangents: dict[Tensor, Any] = dict(start or {})
    for tensor, seed in seeds.items():
        cotangents[tensor] = accumulate(cotangents.get(tensor), seed)
    for operation in reversed(operations):
        _backpropagate_through(operation, cotangents, dependent, stopped)
    return {t: resolved(cotangents[t], t in sparse) for t in wanted if t in cotangents}


def _backpropagate_through(
    operation: Operation, cotangents: dict[Tensor, Any], dependent: set[Tensor], stopped: set[Tensor]
) -> None:
    needed = [tensor in dependent and tensor.spec.differentiable for tensor in operation.inputs]
    if not any(needed):
        return
    outputs = [None if tensor in stopped else cotangents.get(tensor) for tensor in operation.outputs]
    if all(cotangent is None for cotangent in outputs):
        return
    with get_default_graph().device(operation.device):
        outputs = [resolved(cotangent, operation.op.takes_slices) for cotangent in outputs]
        if isinstance(operation.op, DifferentiatesItself):
            contributions = operation.op.backward(operation, outputs, needed)
        else:
            contributions = list(operation.op.grad(operation, *outputs))
    for tensor, contribution, wanted in zip(operation.inputs, contributions, needed, strict=True):
        if wanted and contribution is not None:
            cotangents[tensor] = accumulate(cotangents.get(tensor), contribution)


def variable_reads(graph: Graph, operations: Iterable[Operation], variable: Variable) -> list[Tensor]:
    """The tensors of `graph` that hold the value of `variable`, among `operations`.

    Raises:
        LookupError: a loop or branch among them both reads and writes it, so that its value there is no single one.
    """
    reads: list[Tensor] = []
    for operation in operations:
        if isinstance(operation.op, ReadVariable):
            if operation.op.variable is variable:
                reads.append(operation.outputs[0])
        elif isinstance(operation.op, DifferentiatesItself) and any(
            effect.resource is variable and effect.writes for effect in operation.effects
        ):
            raise LookupError(
                f"The gradient with respect to {variable!r} is not defined: {operation!r} writes that variable. "
                "Carry its value as a loop variable instead, and assign it after the loop."
            )
    return reads


def frame_cotangents(cotangent: Any) -> dict[Tensor, Any]:
    """The cotangents of inner values that reached a frame."""
    return cotangent.inner if isinstance(cotangent, FrameCotangent) else {}
