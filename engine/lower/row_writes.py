"""Writes of rows of variables, and reads of parts of them: neither takes a whole variable from another node.

A write of rows takes the memory of its variable when it runs, instead of the value that was read before it: nothing
holds that value, so nothing has to be copied, unless something else still uses it (see `graph.state.writing_rows`). A
read of which only parts are used happens where each part is taken, instead of at the start of the step: what is read is
not held while positions are on their way from another device, and other steps may write rows meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..common.identity import is_among, place_among
from ..graph.graph import Operation
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import Assign, ReadVariable
from ..graph.tensor import Symbol
from ..ops.containers.indexed_slices import AssignRows
from ..ops.internal.fused import Fused
from .cluster import take_instead
from .nodes import Machine, Node, Value


def writes_of_current_values(block: Sequence[Operation]) -> set[Operation]:
    """Return the writes of rows in a block that begin with their variables' values when they run."""
    found: set[Operation] = set()
    if not any(isinstance(operation.op, AssignRows) for operation in block):
        return found
    written: dict[Variable, int] = {}  # where each was written last
    positions = {operation: position for position, operation in enumerate(block)}
    for position, operation in enumerate(block):
        op = operation.op
        if isinstance(op, AssignRows):
            pairs = zip(op.variables, operation.inputs, strict=False)
            if all(_is_current(variable, whole, positions, written) for variable, whole in pairs):
                found.add(operation)
        for effect in operation.effects:
            if effect.writes and isinstance(effect.resource, Variable):
                written[effect.resource] = position
    return found


def _is_current(
    variable: Variable, whole: Symbol, positions: dict[Operation, int], written: dict[Variable, int]
) -> bool:
    source = whole.operation
    if source not in positions or not isinstance(source.op, (ReadVariable, Assign, AssignRows)):
        return False
    of = (
        source.op.variables[place_among(whole, source.outputs)]
        if isinstance(source.op, AssignRows)
        else source.op.variable
    )
    return of is variable and positions[source] >= written.get(variable, 0)


def wholes_of(operation: Operation) -> Sequence[Symbol]:
    """Return the values of variables that a write of rows changes."""
    return operation.inputs[: len(operation.op.variables)] if isinstance(operation.op, AssignRows) else ()


def read_with_parts(machine: Machine, has_own_memory: Callable[[str], bool]) -> None:
    """Have each variable of which nothing but parts is used be read where each of them is taken; before the cut.

    Args:
        has_own_memory: whether a device, by name, keeps values where the host can't read them.
    """
    reads = [node for node in machine.nodes if _is_read(node) and not has_own_memory(str(node.device))]
    if not reads:
        return
    consumers = machine.consumers()
    positions = {node: position for position, node in enumerate(machine.nodes)}
    instead: dict[Node, Node] = {}
    dropped: set[Node] = set()
    moved: dict[Value, Value] = {}
    for read in reads:
        takers = list(dict.fromkeys(consumers.get(read.output, ())))
        waiting = consumers.get(read.done, ())
        if not takers or not all(_takes_part(taker, read) for taker in takers):
            continue
        if any(positions[node] < max(positions[taker] for taker in takers) for node in waiting):
            continue  # something runs between the read and some of the parts
        if len(takers) > 1 and any(read.done in node.inputs for node in waiting):
            continue
        dropped.add(read)
        found = [_with_read(read, taker) for taker in takers]
        for taker, node in zip(takers, found, strict=True):
            changing = _change_and_write(machine, consumers, read, taker)
            if not changing:
                continue
            change = changing[0].operations[0].op
            if change.elementwise or isinstance(change, Fused):
                machine.row_updates += [node, *changing]
            awaited = _awaited_by_change(consumers, read, taker, changing[0], positions)
            if not any(value.node in found or value.node in takers for value in awaited):  # which may wait for this one
                node.controls += awaited
        instead.update(zip(takers, found, strict=True))
        for taker, node in zip(takers, found, strict=True):
            moved.update(zip([*taker.outputs, taker.done], [*node.outputs, node.done], strict=True))
        moved[read.done] = found[0].done
        for node in waiting:
            instead.get(node, node).controls += [other.done for other in found[1:]]
    machine.nodes = [instead.get(node, node) for node in machine.nodes if node not in dropped]
    machine.row_updates = [instead.get(node, node) for node in machine.row_updates]
    take_instead(machine, moved)


def _is_read(node: Node) -> bool:
    return node.kind == "op" and len(node.operations) == 1 and isinstance(node.operations[0].op, ReadVariable)


def _takes_part(node: Node, read: Node) -> bool:
    """Test whether a node takes some rows of what a node has read, beside it, and nothing else of that."""
    if node.kind != "op" or len(node.operations) != 1 or not node.operations[0].op.reads_rows:
        return False
    whole, *others = node.operations[0].inputs
    given = dict(zip(node.taken, node.inputs, strict=True))
    is_beside = node.device == read.device and node.frame is read.frame
    is_only = given.get(whole) == read.output and not is_among(whole, others) and read.output not in node.controls
    return is_beside and is_only and whole is read.operations[0].outputs[0]


def _with_read(read: Node, taker: Node) -> Node:
    """Return one node that reads a variable and takes rows of it."""
    node = Node("op", taker.name, taker.device, taker.frame, (), taker.specs, [*read.operations, *taker.operations])
    pairs = [pair for pair in zip(taker.taken, taker.inputs, strict=True) if pair[1] != read.output]
    node.taken, node.inputs = [tensor for tensor, _ in pairs], [value for _, value in pairs]
    node.given = list(taker.given)
    node.controls = list(dict.fromkeys([*taker.controls, *read.controls]))
    return node


def _change_and_write(
    machine: Machine, consumers: Mapping[Value, Sequence[Node]], read: Node, taker: Node
) -> list[Node]:
    """Return the nodes that change the rows that are taken, and write them back; none where nothing does so."""
    changes = consumers.get(taker.output, ()) if len(taker.specs) == 1 else ()
    if len(changes) != 1 or not _is_beside(changes[0], taker) or len(changes[0].specs) != 1:
        return []
    writes = consumers.get(changes[0].output, ())
    if len(writes) != 1 or not _is_beside(writes[0], taker) or writes[0].operations[0] not in machine.row_writes:
        return []
    write, own = writes[0].operations[0].op, read.operations[0].op
    if not isinstance(write, AssignRows) or not isinstance(own, ReadVariable) or write.variables != (own.variable,):
        return []
    return [changes[0], writes[0]]


def _awaited_by_change(
    consumers: Mapping[Value, Sequence[Node]], read: Node, taker: Node, change: Node, positions: Mapping[Node, int]
) -> list[Value]:
    """Return what rows that are taken, changed and written back have to wait for, so that all that can be one node.

    Two steps that add to the same row both count then, whenever what they add comes.
    """
    others = [value for value in change.inputs if value.node is not taker and value.node.kind != "const"]
    first = min([positions[node] for node in consumers.get(read.done, ())], default=0)
    is_before = all(positions[value.node] < first for value in others)  # nothing of it can wait for this read
    return others if is_before else []


def _is_beside(node: Node, other: Node) -> bool:
    return node.kind == "op" and len(node.operations) == 1 and node.device == other.device and node.frame is other.frame


__all__ = ["read_with_parts", "wholes_of", "writes_of_current_values"]
