"""Clusters: operations of one device and frame that need the same late inputs become one node.

Late is what comes when it comes: a received value, the value of a loop variable, the result of a loop, of a branch, or
of something that runs for long. Operations that need the same late values, by whatever way, can start at the same time,
so that running them as one keeps nothing waiting. (Clusters that were merely convex would hold up iterations: a counter
could not run ahead of what it counts.)
"""

from __future__ import annotations

from collections.abc import Callable

from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from .narrowing import STORE_KINDS
from .nodes import CONTROL, Machine, Node, Value

_PASSING = frozenset({"identity", "no_op", "to_host"})
Late = frozenset[object]


def cluster(machine: Machine, stands_alone: Callable[[Node], bool] = lambda node: False) -> None:
    """Join the operations of `machine` into clusters, in place.

    Args:
        stands_alone: what is not joined, and late to what takes it: what waits, or runs for long.
    """
    if not _join_alike(machine, stands_alone):
        return
    while _cross_once(machine) and _join_alike(machine, stands_alone):
        pass  # what came by two ways comes by one now: so more need the same
    _drop_unused(machine)


def _join_alike(machine: Machine, stands_alone: Callable[[Node], bool]) -> bool:
    """Join what can start together; whether there was anything."""
    late = Lateness(machine, stands_alone)
    groups: dict[object, list[Node]] = {}
    for position, node in enumerate(machine.nodes):
        if node.kind == "op":
            alone = is_alone(node) or stands_alone(node)
            key = position if alone else (node.device, node.frame, late.of_node(node))
            groups.setdefault(key, []).append(node)
    moved: dict[Value, Value] = {}
    joined: dict[Node, Node] = {}
    order = late.order
    for members in groups.values():
        if len(members) > 1:
            members.sort(key=order.__getitem__)
            joined.update(dict.fromkeys(members, _join(members, moved)))
    machine.nodes = list(dict.fromkeys([joined.get(node, node) for node in machine.nodes]))
    take_instead(machine, moved)
    return bool(joined)


def _cross_once(machine: Machine) -> bool:
    """Send only once that several operations, which are one node now, have run; return whether there were such ones."""
    known: dict[tuple[Value, str | None], Node] = {}
    moved: dict[Value, Value] = {}
    dropped: set[Node] = set()
    for node in machine.nodes:
        if node.kind != "recv" or node.peer is None:
            continue
        first = known.setdefault((node.peer.inputs[0], node.device), node)
        if first is not node:
            moved[node.output] = first.output
            dropped.update((node, node.peer))
    machine.nodes = [node for node in machine.nodes if node not in dropped]
    take_instead(machine, moved)
    return bool(dropped)


def take_instead(machine: Machine, moved: dict[Value, Value]) -> None:
    """Have all nodes take other values, which are the same."""
    if not moved:
        return
    for node in machine.nodes:
        node.inputs = [moved.get(value, value) for value in node.inputs]
        controls = dict.fromkeys(moved.get(value, value) for value in node.controls)
        node.controls = [value for value in controls if value.node is not node]


def is_alone(node: Node) -> bool:
    """Test whether a node is a loop or branch that was not lowered: it runs for long."""
    return any(isinstance(operation.op, RegionOp) for operation in node.operations)


def _waits(node: Node) -> bool:
    """Test whether a node waits for more than tokens: it reads a TensorStore, or runs elsewhere."""
    return (node.kind in STORE_KINDS and node.kind != "store_pass") or node.kind == "join"


class Lateness:
    """The late values that each value needs."""

    def __init__(self, machine: Machine, stands_alone: Callable[[Node], bool]) -> None:
        self._stands_alone = stands_alone
        self._found: dict[Node, Late] = {}
        self.order: dict[Node, int] = {}
        for node in machine.nodes:
            self._visit(node)

    def _visit(self, start: Node) -> None:
        """Visit depth first, without recursion; a cycle closes at a Merge, which is late by itself."""
        pending: list[tuple[Node, bool]] = [(start, False)]
        while pending:
            node, is_ready = pending.pop()
            if node in self._found:
                continue
            if is_ready or self._begins(node):
                self._found[node] = self._late(node)
                self.order[node] = len(self.order)
                continue
            pending.append((node, True))
            pending.extend((value.node, False) for value in node.sources if value.node not in self._found)

    def _begins(self, node: Node) -> bool:
        return node.kind in ("recv", "merge", "exit", "collect", "trips", "enter", "const", "feed") or _waits(node)

    def _late(self, node: Node) -> Late:
        if node.kind in ("recv", "merge", "exit", "collect", "trips") or _waits(node):
            return frozenset([node])
        if node.kind in ("const", "feed", "enter"):
            return frozenset()
        found = self._needed(node)
        if node.kind == "op" and (is_alone(node) or self._stands_alone(node)):
            return frozenset([node])
        return found

    def _needed(self, node: Node) -> Late:
        found: Late = frozenset()
        for value in node.sources:
            found |= self.of_value(value)
        return found

    def of_value(self, value: Value) -> Late:
        """Return the late values that a value needs."""
        late = self._found.get(value.node, frozenset())
        if value.node.kind in ("switch", "switch_n"):  # what is in one branch is alive together
            return late | {(value.node.inputs[1], value.port)}
        return late

    def of_node(self, node: Node) -> Late:
        """Return the late values that a node needs."""
        return self._needed(node)


def _join(members: list[Node], moved: dict[Value, Value]) -> Node:
    """Join several nodes to one, and note in `moved` where their outputs are now."""
    first = members[0]
    operations: list[Operation] = [operation for member in members for operation in member.operations]
    joined = Node("op", first.name, first.device, first.frame, (), (), operations)
    made = {output for member in members for output in member.outputs}
    seen: dict[object, None] = {}
    for member in members:
        for tensor, value in zip(member.taken, member.inputs, strict=True):
            if value not in made and tensor not in seen:
                seen[tensor] = None
                joined.taken.append(tensor)
                joined.inputs.append(value)
    own = set(members)
    controls = dict.fromkeys(value for member in members for value in member.controls)
    joined.controls = [value for value in controls if value.node not in own]
    joined.given = [tensor for member in members for tensor in member.given]
    joined.specs = tuple(spec for member in members for spec in member.specs)
    joined.seconds = sum([member.seconds for member in members])
    port = 0
    for member in members:
        for position in range(len(member.specs)):
            moved[Value(member, position)] = Value(joined, port)
            port += 1
        moved[Value(member, CONTROL)] = Value(joined, CONTROL)
    return joined


def _drop_unused(machine: Machine) -> None:
    """Drop outputs of clusters that only the cluster itself needs."""
    used = set(machine.consumers())
    moved: dict[Value, Value] = {}
    for node in machine.nodes:
        if node.kind != "op" or all(output in used for output in node.outputs):
            continue
        kept = [port for port in range(len(node.specs)) if Value(node, port) in used]
        moved.update({Value(node, port): Value(node, new) for new, port in enumerate(kept)})
        node.given = [node.given[port] for port in kept]
        node.specs = tuple(node.specs[port] for port in kept)
    for node in machine.nodes:
        node.inputs = [moved.get(value, value) for value in node.inputs]
