"""The ways in which passes change the structure of a graph: no other file of the passes assigns to it.

`Rewriter` offers them together with use lists, and `LoopView` offers them for one loop. What a region captures and what
the operation that holds it takes are one fact that is stored twice: each function here changes both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...graph.graph import Graph, Operation, Parameter
from ...graph.op import Op
from ...graph.region import Region
from ...graph.spec import ArraySpec, Spec
from ...graph.tensor import Symbol

# --- what an operation takes ------------------------------------------------------------------------------------


def set_inputs(operation: Operation, inputs: Sequence[Symbol]) -> None:
    """Let an operation take other inputs, as many; what its regions capture changes with them."""
    start = len(operation.own_inputs)
    operation.inputs = tuple(inputs)
    for region in operation.op.regions:
        outers = inputs[start : start + len(region.captures)]
        region.captures = [(outer, inner) for outer, (_, inner) in zip(outers, region.captures, strict=True)]
        start += len(region.captures)


def set_own_inputs(operation: Operation, own: Sequence[Symbol]) -> None:
    """Let an operation take `own`, of any number, in front of what its regions capture now."""
    operation.inputs = (*own, *[outer for region in operation.op.regions for outer, _ in region.captures])


def replace_inputs(operation: Operation, new: Mapping[Symbol, Symbol]) -> None:
    """Let an operation, and what its regions capture, take the tensors that stand for others in `new`."""
    if not new.keys().isdisjoint(operation.inputs):
        operation.inputs = tuple([new.get(tensor, tensor) for tensor in operation.inputs])
    for region in operation.op.regions:
        region.captures = [(new.get(outer, outer), parameter) for outer, parameter in region.captures]


def replace_in(graph: Graph, new: Mapping[Symbol, Symbol]) -> None:
    """Let all operations of a graph, and the results of a region, take the tensors that stand for others in `new`."""
    for operation in graph.operations:
        replace_inputs(operation, new)
    if isinstance(graph, Region):
        graph.results = [new.get(result, result) for result in graph.results]


def take_nothing(operation: Operation) -> None:
    """Let an operation that is taken out of its graph use no tensors any more."""
    operation.inputs = ()


def wait_also(operation: Operation, sources: Iterable[Operation]) -> None:
    """Let an operation wait for others, besides those for which it waits already."""
    operation.control_inputs = tuple(dict.fromkeys((*operation.control_inputs, *sources)))


# --- what an operation computes ---------------------------------------------------------------------------------


def set_op(operation: Operation, op: Op, inputs: Sequence[Symbol] | None = None) -> None:
    """Let an operation compute something else, of other inputs if they are given; its outputs stay."""
    operation.op = op
    refresh_effects(operation)
    if inputs is not None:
        operation.inputs = tuple(inputs)


def set_outputs(operation: Operation, outputs: Iterable[Symbol]) -> None:
    """Let an operation compute certain tensors, in order: those that others computed so far, too."""
    operation.outputs = tuple(outputs)
    for index, tensor in enumerate(operation.outputs):
        tensor.operation, tensor.index = operation, index


def set_output(operation: Operation, position: int, tensor: Symbol) -> None:
    """Let an operation compute a tensor in place of its output at a position."""
    set_outputs(operation, (*operation.outputs[:position], tensor, *operation.outputs[position + 1 :]))


def release_output(tensor: Symbol) -> None:
    """Put another tensor, which nothing takes, in place of one among the outputs of the operation that computes it.

    A tensor that is not one of these any more, as the final value of a loop variable that was taken out, stays.
    """
    operation = tensor.operation
    operation.outputs = tuple(
        [Symbol(operation, k, other.spec) if other is tensor else other for k, other in enumerate(operation.outputs)]
    )


def set_spec(tensor: Symbol, spec: Spec) -> None:
    """Give a tensor, a parameter of a region included, another spec."""
    tensor.spec = spec
    if isinstance(tensor.operation.op, Parameter):
        tensor.operation.op = Parameter(spec)


def refresh_effects(operation: Operation) -> None:
    """Look up again what effects an operation has, whose regions were changed."""
    operation.effects = tuple(operation.op.effects())


# --- regions ----------------------------------------------------------------------------------------------------


def capture(region: Region, outer: Symbol) -> Symbol:
    """Return the parameter that stands for `outer` in a region that is built already; a new one is on its device.

    The operation that holds the region gets its inputs by `set_own_inputs`, once for all that is captured.
    """
    known = next((parameter for tensor, parameter in region.captures if tensor is outer), None)
    if known is not None:
        return known
    region.is_built = False
    parameter = region.add_capture(outer)
    region.is_built = True
    parameter.operation.device = outer.operation.device
    return parameter


def set_results(region: Region, results: Iterable[Symbol]) -> None:
    """Let a region return certain tensors."""
    region.results = list(results)


def remove_variable(loop: Operation, position: int) -> None:
    """Take a loop variable out of a loop, its first value and its final one included."""
    condition, body = loop.op.regions
    for region in (condition, body):
        del region.parameters[position]
    del body.results[position]
    loop.inputs = (*loop.inputs[:position], *loop.inputs[position + 1 :])
    set_outputs(loop, (*loop.outputs[:position], *loop.outputs[position + 1 :]))


def insert_variable(loop: Operation, initial: Symbol, result: Symbol) -> Symbol:
    """Let the latest parameters of a loop's regions be a loop variable; return its final value.

    Args:
        loop: both of its regions have one parameter more than the loop has variables.
        initial: the first value, outside.
        result: the next value, in the body.
    """
    condition, body = loop.op.regions
    place = len(body.results)
    body.results.append(result)
    for region in (condition, body):
        if isinstance(result.spec, ArraySpec):  # what an array holds is seen where it is written
            set_spec(region.parameters[-1], result.spec)
    loop.inputs = (*loop.inputs[:place], initial, *loop.inputs[place:])
    final = Symbol(loop, place, result.spec)
    set_outputs(loop, (*loop.outputs[:place], final, *loop.outputs[place:]))
    return final


# --- which operations there are ---------------------------------------------------------------------------------


def leave_out(graph: Graph, gone: Collection[Operation]) -> None:
    """Take operations out of a graph, the others of which keep their order."""
    graph.operations = [operation for operation in graph.operations if operation not in gone]


def move_before(holder: Operation, operation: Operation) -> None:
    """Put the latest operation of a graph just in front of `holder`."""
    operations = holder.graph.operations
    assert operations.pop() is operation
    operations.insert(holder.index, operation)
    number(operations)


def remove(operation: Operation) -> None:
    """Take an operation out of its graph that nothing uses any more."""
    operation.graph.operations.remove(operation)
    number(operation.graph.operations)


def arrange(graph: Graph, operations: Iterable[Operation]) -> None:
    """Let a graph have certain operations, in the order in which they are."""
    graph.operations = list(operations)
    number(graph.operations)


def number(operations: Iterable[Operation]) -> None:
    """Give operations their places in the order in which they are."""
    for index, operation in enumerate(operations):
        operation.index = index


__all__ = [
    "arrange",
    "capture",
    "insert_variable",
    "leave_out",
    "move_before",
    "number",
    "refresh_effects",
    "release_output",
    "remove",
    "remove_variable",
    "replace_in",
    "replace_inputs",
    "set_inputs",
    "set_op",
    "set_output",
    "set_outputs",
    "set_own_inputs",
    "set_results",
    "set_spec",
    "take_nothing",
    "wait_also",
]
