"""Updates of variables on tasks, where steps of other clients may write the same variable while a step is under way.

An update computes a new value of a variable's value, and assigns it. It has to begin with the value that the variable
has then: the addition of another client counts, too. So the operations of an update read the variable again once all
else is there that they take, beside other readers of it, and run with the assignment as one node, between which nothing
comes. A step that is alone finds the same values, for nothing else of it writes the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..graph.state.variable import Variable
from ..graph.state.variable_ops import Assign, ReadVariable
from ..ops.containers.indexed_slices import AssignRows
from ..ops.internal.fused import Fused
from .cluster import Lateness, is_alone
from .nodes import Machine, Node, Value


def keep_updates_together(machine: Machine, stands_alone: Callable[[Node], bool]) -> set[Node]:
    """Have the updates of `machine` read their variables late, in place; behind the cut, and before clusters.

    Args:
        machine: a step that shares its variables with others.
        stands_alone: what would not be joined into clusters.

    Returns:
        The operations of updates, which are to be joined however long they run.
    """
    found = [(assign, _update(assign)) for assign in _only_writers(machine)]
    updates = [(assign, nodes) for assign, nodes in found if nodes]
    joined = {node for _, nodes in updates for node in nodes}
    if not updates:
        return joined
    lateness = Lateness(machine, lambda node: node not in joined and stands_alone(node))
    consumers, order = machine.consumers(), _order(machine.nodes)
    before = [(node, node.inputs, node.controls) for node in machine.nodes]
    for assign, nodes in updates if order else ():
        _read_late(machine, assign, nodes, lateness, consumers, order)
    if not _order(machine.nodes):  # some updates wait for each other, by way of what another task computes of them
        machine.nodes = [node for node, _, _ in before]
        for node, inputs, controls in before:
            node.inputs, node.controls = inputs, controls
    return joined


def updates_a_variable(node: Node) -> bool:
    """Test whether a node reads a variable and then assigns to it, or to some of its rows."""
    ops = [operation.op for operation in node.operations]
    read = {op.variable for op in ops if isinstance(op, ReadVariable)}
    written = [op.variable for op in ops if isinstance(op, Assign)]
    written += [variable for op in ops if isinstance(op, AssignRows) for variable in op.variables]
    return not read.isdisjoint(written)


def _only_writers(machine: Machine) -> list[Node]:
    """Return the assignments to variables that nothing else in the step writes."""
    writers: dict[Variable, list[Node]] = {}
    for node in machine.nodes:
        if node.kind != "op":
            continue
        for effect in [effect for operation in node.operations for effect in operation.effects]:
            if effect.writes and isinstance(effect.resource, Variable):
                writers.setdefault(effect.resource, []).append(node)
    alone = [nodes[0] for nodes in writers.values() if len(nodes) == 1]
    return [node for node in alone if len(node.operations) == 1 and isinstance(node.operations[0].op, Assign)]


def _update(assign: Node) -> list[Node]:
    """Return the operations by which what is assigned is computed of the variable's value; none where it is not."""
    found: dict[Node, bool] = {}
    pending = [(assign.inputs[0].node, False)]
    while pending:
        node, is_ready = pending.pop()
        if node in found:
            continue
        if not _may_be_part(node, assign):
            found[node] = False
        elif is_ready:
            found[node] = any(_reads(value.node, assign) or found[value.node] for value in node.inputs)
        else:
            pending.append((node, True))
            pending.extend((value.node, False) for value in node.inputs if value.node not in found)
    return [node for node, is_part in found.items() if is_part]


def _may_be_part(node: Node, assign: Node) -> bool:
    """Test whether a node may run with an assignment: it is elementwise, or takes the variable and gives its value."""
    if node.kind != "op" or len(node.operations) != 1 or (node.device, node.frame) != (assign.device, assign.frame):
        return False
    (operation,) = node.operations
    if operation.op.elementwise or isinstance(operation.op, Fused):
        return True
    is_whole = node is assign.inputs[0].node and any(_reads(value.node, assign) for value in node.inputs)
    return is_whole and not operation.effects and not is_alone(node)


def _reads(node: Node, assign: Node) -> bool:
    """Test whether a node reads the variable of an assignment, beside it."""
    if not _is_read(node) or (node.device, node.frame) != (assign.device, assign.frame):
        return False
    op, writes = node.operations[0].op, assign.operations[0].op
    return isinstance(op, ReadVariable) and isinstance(writes, Assign) and op.variable is writes.variable


def _is_read(node: Node) -> bool:
    return node.kind == "op" and len(node.operations) == 1 and isinstance(node.operations[0].op, ReadVariable)


def _read_late(
    machine: Machine,
    assign: Node,
    nodes: list[Node],
    lateness: Lateness,
    consumers: dict[Value, list[Node]],
    order: dict[Node, int],
) -> None:
    """Have the operations of an update read the variable once all is there that they take besides."""
    own = set(nodes)
    taken = dict.fromkeys(value for node in nodes for value in node.inputs if value.node not in own)
    reads = [value.node for value in taken if _reads(value.node, assign)]
    awaited = [value for value in taken if value.node.kind != "const" and not _is_read(value.node)]
    late = frozenset[object]().union(*map(lateness.of_value, awaited))
    if _needs(awaited, own, order):
        return  # some of it is computed of the update, as where that goes to another task and back
    controls = [value.node.done if value.node.kind == "op" else value for value in awaited]
    for read in [read for read in reads if not late <= lateness.of_node(read)]:
        if all(node in own for node in consumers[read.output]) and set(consumers.get(read.done, ())) <= {assign}:
            read.controls = list(dict.fromkeys([*read.controls, *controls]))
            continue
        again = machine.add(Node("op", read.name, read.device, read.frame, (), read.specs, read.operations))
        again.given, again.seconds = list(read.given), read.seconds
        again.controls = list(dict.fromkeys([*read.controls, *controls]))
        for node in nodes:
            node.inputs = [again.output if value == read.output else value for value in node.inputs]


def _needs(values: Iterable[Value], nodes: set[Node], order: dict[Node, int]) -> bool:
    """Test whether one of some values comes from some nodes, in the same iteration, by whatever way."""
    seen: set[Node] = set()
    first = min(order[node] for node in nodes)
    pending = [value.node for value in values]
    while pending:
        node = pending.pop()
        if node in nodes:
            return True
        if node in seen or order.get(node, first) < first:  # a read that was added comes from nothing of an update
            continue
        seen.add(node)
        pending += _before(node)
    return False


def _order(nodes: Iterable[Node]) -> dict[Node, int]:
    """Number nodes so that each has a larger number than what it waits for in its iteration; empty if impossible."""
    found: dict[Node, int] = {}
    begun: set[Node] = set()
    for start in nodes:
        pending = [(start, False)]
        while pending:
            node, is_ready = pending.pop()
            if is_ready:
                found[node] = len(found)
            elif node not in begun:
                begun.add(node)
                before = _before(node)
                if any(each in begun and each not in found for each in before):
                    return {}
                pending.append((node, True))
                pending.extend((each, False) for each in before if each not in found)
    return found


def _before(node: Node) -> list[Node]:
    """Return what a node waits for in its own iteration."""
    if node.kind == "next_iteration":
        return []
    before = [value.node for value in node.sources]
    return [*before, node.peer] if node.kind == "recv" and node.peer is not None else before


__all__ = ["keep_updates_together", "updates_a_variable"]
