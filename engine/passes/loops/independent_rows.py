"""An analysis of graphs that compute each row of a batch for itself: rows of several requests may be computed together.

A dataflow analysis in program order. The state of a tensor says how it depends on the rows that are fed: not at all
(None), row by row along an axis (`Rows`), on their number alone (`Count`, `Sizes`), or in a way that mixes rows
(`Mixed`). Each op says it (`Op.row_state`); by default it mixes rows unless its axis map says otherwise. So the answer
may be too careful, and never too bold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...control_flow.cond import Branch
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.region import Region
from ...graph.row_states import Elements, Mixed, Rows, State, mixed
from ...graph.tensor import Symbol
from ...ops.containers.tensor_arrays import ArrayNew, ArrayUnstack
from ..framework.prune import needed_operations


def why_rows_depend(graph: Graph, inputs: Iterable[Symbol], outputs: Iterable[Symbol]) -> str | None:
    """Say why outputs can't be computed for rows of several batches together; None if they can.

    Args:
        graph: the graph.
        inputs: the tensors that are fed; the first axis of each is that of the rows.
        outputs: the tensors that are fetched.

    Returns:
        None if each row of each output depends on that row of the inputs alone; else a sentence that names the
        operation that is in the way.
    """
    fed, fetched = list(inputs), list(outputs)
    states: dict[Symbol, State] = {}
    for tensor in fed:
        if not tensor.shape or tensor.shape[0] is not None:
            return f"input {tensor.operation.name!r} has no axis for the rows of a batch"
        states[tensor] = Rows(0)
    for operation in needed_operations(graph, fetched, fed):
        if operation.writes:
            return f"{operation.name!r} ({operation.type}) changes state, or draws random numbers"
        if any(tensor not in states for tensor in operation.outputs):
            _settle(operation, states)
    for tensor in fetched:
        state = states[tensor]
        if isinstance(state, Mixed):
            return f"{state.name!r} ({state.type}) is not known to compute each row for itself"
        if state != Rows(0):
            return f"output {tensor.operation.name!r} has no row for each row of the inputs"
    return None


def _settle(operation: Operation, states: dict[Symbol, State]) -> None:
    """Note the states of an operation's outputs."""
    given = [states[tensor] for tensor in operation.inputs]
    found = _apply(operation, given)
    states.update(zip(operation.outputs, found, strict=True))


def _apply(operation: Operation, given: Sequence[State]) -> Sequence[State]:
    count = len(operation.outputs)
    if isinstance(operation.op, While):
        return _loop(operation.op, operation, given)
    if isinstance(operation.op, Branch):
        return _branch(operation.op, operation, given)
    if operation.op.regions:
        return [mixed(operation)] * count
    if all(state is None for state in given):
        return [Elements(None)] if isinstance(operation.op, (ArrayNew, ArrayUnstack)) else [None] * count
    spoilt = next((state for state in given if isinstance(state, Mixed)), None)
    if spoilt is not None:
        return [spoilt] * count
    return [operation.op.row_state(operation, given)] * count


# --- loops, branches --------------------------------------------------------------------------------------------------


def _within(region: Region, parameters: Sequence[State], captures: Sequence[State]) -> dict[Symbol, State]:
    """Return the states of all tensors of a region, given those of its parameters and of what it captures."""
    states: dict[Symbol, State] = dict(zip(region.parameters, parameters, strict=True))
    states.update(zip([parameter for _, parameter in region.captures], captures, strict=True))
    for operation in region.operations:
        if any(tensor not in states for tensor in operation.outputs):
            if operation.writes:
                states.update(dict.fromkeys(operation.outputs, mixed(operation)))
            else:
                _settle(operation, states)
    return states


def _loop(op: While, node: Operation, given: Sequence[State]) -> list[State]:
    count = op.carried
    carried, captured = list(given[:count]), given[count:]
    tested = len(op.condition.captures)
    while True:
        held = _within(op.condition, carried, captured[:tested])[op.condition.results[0]]
        if held is not None:  # rows, or their number, decide how often the loop runs
            return [held if isinstance(held, Mixed) else mixed(node)] * len(node.outputs)
        body = _within(op.body, carried, captured[tested:])
        after = [_joined(node, old, body[result]) for old, result in zip(carried, op.body.results, strict=True)]
        if after == carried:
            return [*carried, None]
        carried = after


def _joined(node: Operation, before: State, after: State) -> State:
    """Return the state of a loop variable that has the one at first and the other later on."""
    if before == after or isinstance(before, Mixed):
        return before
    if before == Elements(None) and isinstance(after, Elements):  # nothing was written at first
        return after
    return after if isinstance(after, Mixed) else mixed(node)


def _branch(op: Branch, node: Operation, given: Sequence[State]) -> list[State]:
    choice, *captured = given
    if choice is not None:
        return [choice if isinstance(choice, Mixed) else mixed(node)] * len(node.outputs)
    columns: list[list[State]] = []
    for region in op.regions:
        own, captured = captured[: len(region.captures)], captured[len(region.captures) :]
        states = _within(region, [], own)
        columns.append([states[result] for result in region.results])
    rows = zip(*columns, strict=True)
    return [*[first if all(state == first for state in others) else mixed(node) for first, *others in rows], None]


__all__ = ["why_rows_depend"]
