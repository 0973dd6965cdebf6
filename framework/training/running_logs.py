"""`RunningLog`: what a training step logs of the results of metrics, computed of the metrics' states in all replicas.

In a replica a metric has seen the rows of one step. So what `train_step` computes of its result is not a running value,
and the mean over replicas would not be one either. The operations between the states of metrics and such a log are
kept, and run on the states that have the rows of all replicas and steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Operation, Symbol, Tensor, Variable
from ...engine.graph.graph import get_default_graph
from ...engine.graph.state.variable_ops import ReadVariable
from ...engine.ops.base import Constant, ConstantArray
from ...engine.passes.framework.again import copied
from ...engine.passes.framework.prune import needed_operations

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike

_CONSTANTS = (Constant, ConstantArray)
LogKey = tuple[str, int]  # the name of a log; and -1, or the number of a value that it is computed of


@dataclass(frozen=True, eq=False)
class RunningLog:
    """A log that depends on the states of metrics.

    Attributes:
        value: what the step logs, in the graph of one trace.
        operations: those that depend on the states, in program order.
        state: the metrics' variables, by the tensors that hold their values.
        given: what else they take: values of a step, such as its loss, and other variables. Replicas give their means,
            or of whole numbers and truth values the chief's.
    """

    value: Symbol
    operations: list[Operation]
    state: dict[Symbol, Variable]
    given: list[Symbol]

    def build(self, values: Mapping[Variable, TensorLike], variables: Iterable[Variable]) -> Tensor:
        """Build the log in the current graph.

        Args:
            values: of variables that are not to be read.
            variables: for each of `given` the one with its mean.
        """
        graph = get_default_graph()

        def value_of(variable: Variable) -> Symbol:
            return graph.capture(ops.convert_to_tensor(values.get(variable, variable)))

        found = {tensor: value_of(variable) for tensor, variable in self.state.items()}
        for tensor, variable in zip(self.given, variables, strict=True):
            found[tensor] = graph.capture(ops.cast(value_of(variable), tensor.dtype))
        build_again(self.operations, found)
        return found[self.value]


def build_again(operations: Iterable[Operation], found: dict[Symbol, Symbol]) -> None:
    """Build copies of operations in the current graph.

    Args:
        operations: of another graph, in program order.
        found: what stands for tensors of that graph, which gets the results. Those that it lacks are constants.
    """
    graph = get_default_graph()
    for operation in operations:
        for tensor in operation.inputs:
            if tensor not in found:
                found[tensor] = graph.add(tensor.operation.op, ()).outputs[0]
        inputs = [found[tensor] for tensor in operation.inputs]
        made = copied(operation, inputs, graph) if operation.op.regions else graph.add(operation.op, inputs)
        found.update(zip(operation.outputs, made.outputs, strict=True))


def find_running(
    value: object, metrics: Mapping[Variable, object], first: Mapping[Variable, object]
) -> RunningLog | None:
    """Return how a log is computed of the states of metrics; None for one that does not depend on them.

    Args:
        value: what a step logs.
        metrics: the variables of metrics, with the tensors that hold their values behind the step; None for one that
            the step reads as it is.
        first: the tensors that hold their values before the step. What is computed of them is computed of those behind
            it: nothing keeps the others until all replicas have added theirs.
    """
    if not isinstance(value, Symbol):
        return None
    graph = value.operation.graph
    tensors = [(tensor, variable) for variable, tensor in (*metrics.items(), *first.items())]
    known = {tensor: variable for tensor, variable in tensors if isinstance(tensor, Symbol) and variable in metrics}
    for operation in graph.operations:
        op = operation.op
        if isinstance(op, ReadVariable) and op.variable in metrics and metrics[op.variable] is None:
            known[operation.outputs[0]] = op.variable
    if value in known:
        return RunningLog(value, [], {value: known[value]}, [])
    found: list[Operation] = []
    dependent: set[Symbol] = set()
    for operation in needed_operations(graph, [value], known):
        if any(tensor in known or tensor in dependent for tensor in operation.inputs):
            found.append(operation)
            dependent.update(operation.outputs)
    if value not in dependent:
        return None
    inputs = dict.fromkeys(tensor for operation in found for tensor in operation.inputs if tensor not in dependent)
    given = [t for t in inputs if t not in known and not isinstance(t.operation.op, _CONSTANTS)]
    return RunningLog(value, found, {t: known[t] for t in inputs if t in known}, given)


__all__ = ["LogKey", "RunningLog", "build_again", "find_running"]
