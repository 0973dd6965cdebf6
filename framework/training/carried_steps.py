"""Steps in a loop that carries the model's variables: they are read before the loop and assigned behind it.

A step that assigns to variables in each iteration has to run operation by operation. If what it assigns are values of
the loop instead, the loop is a pure function of numbers, and for a small model the engine makes all of it one native
function: several times as fast as single steps, whose time is spent between the operations. Its sums may run in another
order, so that results agree within rounding. A step that fails leaves the variables as they were before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...engine import ops
from ...engine.control_flow.while_loop import while_loop
from ...engine.graph import Graph, Operation, Placeholder, Symbol, Tensor, TensorSpec, Variable
from ...engine.graph.graph import get_default_graph
from ...engine.graph.state.variable_ops import Assign, ReadVariable
from ...engine.session.inside import fetched_from

# Larger models spend their time inside the operations; single steps update their variables in place, which is better.
_MOST_NUMBERS = 100_000
_LEAST_OPERATIONS = 2000


class StepGraph:
    """A step, traced by itself.

    Args:
        build: builds the step in the current graph from the tensors of a batch, and returns what to fetch.
        specs: of the batch's arrays.
    """

    def __init__(self, build: Callable[[list[Tensor]], list[Tensor]], specs: Sequence[TensorSpec]) -> None:
        self.graph = Graph()
        with self.graph.as_default():
            self.feeds = [self.graph.add(Placeholder(spec), ()).outputs[0] for spec in specs]
            self.fetches = [self.graph.capture(fetch) for fetch in build([*self.feeds])]
        written = [operation.op.variable for operation in self.graph.operations if isinstance(operation.op, Assign)]
        self.variables: list[Variable] = list({id(variable): variable for variable in written}.values())

    def can_be_carried(self, count: int) -> bool:
        """Test whether all that the step does besides computing is to read and assign few, small variables.

        Args:
            count: how many steps the loop makes: a short one is not worth a native function.
        """
        numbers = sum([_size(variable) for variable in self.variables])
        if not 0 < numbers <= _MOST_NUMBERS or count * len(self.graph.operations) < _LEAST_OPERATIONS:
            return False
        return all(map(_is_plain, self.graph.operations))

    def copy(self, batch: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[list[Symbol], list[Symbol]]:
        """Return the step again, in the current graph.

        Args:
            batch: in place of what is fed.
            values: of `variables`, as the step finds them.

        Returns:
            What it fetches, and the values of `variables` as it leaves them.
        """
        graph = get_default_graph()
        held: dict[int, Symbol] = {id(v): graph.capture(value) for v, value in zip(self.variables, values, strict=True)}
        found: dict[Symbol, Symbol] = dict(zip(self.feeds, map(graph.capture, batch), strict=True))
        for operation in self.graph.operations:
            op = operation.op
            if isinstance(op, Placeholder):
                continue
            if isinstance(op, ReadVariable):
                known = held.get(id(op.variable))
                found[operation.outputs[0]] = graph.capture(op.variable.value) if known is None else known
            elif isinstance(op, Assign):
                found[operation.outputs[0]] = held[id(op.variable)] = found[operation.inputs[0]]
            else:
                made = graph.add(op, [found[tensor] for tensor in operation.inputs], operation.name)
                found.update(zip(operation.outputs, made.outputs, strict=True))
        return [found[tensor] for tensor in self.fetches], [held[id(variable)] for variable in self.variables]


def _is_plain(operation: Operation) -> bool:
    if isinstance(operation.op, Assign) and operation.inputs[0].shape != operation.op.variable.shape:
        return False
    has_effects = bool(operation.effects) and not isinstance(operation.op, (ReadVariable, Assign))
    return not (has_effects or operation.op.regions or operation.device)  # program order keeps control inputs


def _size(variable: Variable) -> int:
    sizes = [size for size in variable.shape or () if isinstance(size, int)]
    is_known = variable.shape is not None and len(sizes) == len(variable.shape)
    return math.prod(sizes) if is_known else _MOST_NUMBERS + 1


def carried_loop(step: StepGraph, stacked: Sequence[Tensor]) -> list[Symbol]:
    """Build a loop that makes a step for each batch, and assigns to the step's variables when it is over.

    Args:
        step: what to do, for which `can_be_carried` holds.
        stacked: the batches' arrays, joined along a new axis 0.

    Returns:
        What the steps fetch, as arrays with an element for each step.
    """
    fetches: list[Symbol] = []

    def body(number: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        fetches[:], results = step.copy([each[number] for each in stacked], values)
        return (number + 1, *results)

    count = ops.shape(stacked[0])[0]
    _, *results = while_loop(lambda number, *_: number < count, body, (0, *[v.value for v in step.variables]))
    for variable, value in zip(step.variables, results, strict=True):
        variable.assign(value)
    return [fetched_from(get_default_graph(), tensor) for tensor in fetches]
