"""Batching of functions with gradients of their own: the user's gradient function is run for all examples, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.custom_gradient import CustomGradient
from ..graph.graph import Graph, Operation, Parameter, get_default_graph
from ..graph.region import Region
from ..graph.tensor import Symbol, Tensor
from .batching import Batch, Value


def custom_gradient(batch: Batch, node: Operation, _: list[Value]) -> Sequence[Value]:
    """Build the values for all examples, with a rule that traces the gradient for one example and batches it."""
    values = [batch.get(tensor) for tensor in node.inputs]
    flag = any(value.batched for value in values)
    tensors = [batch.batched(value) if flag else value.tensor for value in values]
    built = get_default_graph().add(CustomGradient(_BatchedRule(batch, node, flag)), tensors, node.name)
    return [Value(tensor, flag) for tensor in built.outputs]


class _BatchedRule:
    """The gradient of a `CustomGradient` of the function, for the examples of a batch."""

    def __init__(self, batch: Batch, node: Operation, flag: bool) -> None:
        assert isinstance(node.op, CustomGradient)
        self._batch = batch
        self._node = node
        self._rule = node.op.rule
        self._flag = flag

    @property
    def results(self) -> int:
        return self._rule.results

    def cotangents(self, upstream: list[Any], targets: Sequence[Tensor]) -> list[Any]:
        node, later = self._node, _Later(self._batch)
        region = _GradientRegion(get_default_graph(), node.graph)
        with region.as_default():
            parameters: list[Any] = []
            for dy, result in zip(upstream, node.outputs, strict=True):
                parameters.append(None if dy is None else region.add_parameter(result.spec, "upstream"))
                if dy is not None:
                    later.values[parameters[-1]] = Value(dy, self._flag)
            found = self._rule.cotangents(parameters, node.inputs[self.results :])
            region.results = [region.capture(dx) for dx in found if dx is not None]
        values = iter(later.run(region))
        return [None if dx is None else self._tensor(later, next(values)) for dx in found]

    def _tensor(self, batch: Batch, value: Value) -> Tensor:
        return batch.batched(value) if self._flag else value.tensor


class _GradientRegion(Region):
    """The region of the user's gradient function for one example; it may use any value of the traced function."""

    def __init__(self, parent: Graph, traced: Graph) -> None:
        super().__init__(parent, "custom_gradient")
        self._traced = traced

    def capture(self, tensor: Tensor) -> Symbol:
        if not isinstance(tensor, Symbol) or not self._traced.is_inside(tensor.graph):
            return super().capture(tensor)
        known = self._local.get(tensor)
        if known is None:
            known = self._local[tensor] = self.add_capture(tensor)
        return known

    def sees(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, Symbol):
            return super().sees(tensor)
        return self._traced.is_inside(tensor.graph) or super().sees(tensor)


class _Later(Batch):
    """The values of a function that was run before; what was not needed then is built now."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch.size, batch.rules, batch)

    def looked_up(self, tensor: Symbol) -> Value:
        batch = self.around
        while batch is not None and tensor not in batch.values and batch.rows is None:
            batch = batch.around
        if batch is not None and tensor in batch.values:
            return batch.values[tensor]
        if isinstance(tensor.operation.op, Parameter) or not self._is_of_function(tensor):
            return super().looked_up(tensor)
        self.run_operation(tensor.operation)
        return self.values[tensor]

    def _is_of_function(self, tensor: Symbol) -> bool:
        batch = self.around
        while batch is not None:
            if batch.region is tensor.graph:
                return True
            batch = batch.around
        return False


__all__ = ["custom_gradient"]
