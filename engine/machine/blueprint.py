"""Numbers the nodes of a machine: what is scheduled, what is done in passing, and where each value is laid.

Most primitives are not nodes at run time. What takes one value and only hands it on (Enter, Exit, NextIteration, Send,
a loop's Merge) is done by whoever makes that value, in passing. Scheduled are operations, Switches, and what waits for
several things.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..graph.spec import TensorSpec
from ..lower.nodes import CONTROL, Frame, Machine, Node, Value, spec_of
from ..passes.framework.estimates import bytes_of
from .frames import Constant, FramePlan

_IN_PASSING = frozenset({"enter", "exit", "next_iteration", "loop_cond", "merge", "send", "record", "fetch"})
_ARRIVING = frozenset({"recv", "collect", "trips", "feed", "const"})


def is_scheduled(node: Node) -> bool:
    """Test whether a node has a turn of its own."""
    return node.kind not in _IN_PASSING and node.kind not in _ARRIVING


def is_loop_merge(node: Node) -> bool:
    """Test whether a Merge is the head of a loop: one value comes in each iteration."""
    return node.kind == "merge" and any(value.node.kind in ("enter", "next_iteration") for value in node.inputs)


class Place:
    """A frame on one device: which of its nodes has which number, and which value is in which slot.

    Attributes:
        nodes: what is scheduled, by number; Merges of branches count here, too.
        pending: for each of these how many tokens have to come.
        slots: where the value is that a node takes.
    """

    def __init__(self, frame: Frame, device: str, number: int) -> None:
        self.frame = frame
        self.device = device
        self.number = number
        self.nodes: list[Node] = []
        self.pending: list[int] = []
        self.slots: dict[tuple[Node, Value], int] = {}
        self.children: list[Place] = []
        self.receives: list[Node] = []
        self.constants: list[Node] = []
        self.exits: list[Node] = []
        self.collected: list[Node] = []
        self.records = 0
        self.record_bytes: dict[int, int] = {}

    @property
    def count(self) -> int:
        """The number of events of an iteration before it is over."""
        scheduled = sum([is_scheduled(node) for node in self.nodes])
        return scheduled + len(self.receives) + len(self.children)

    @property
    def label(self) -> str:
        return self.frame.name or "step"


class Blueprint:
    """The places of everything in a machine.

    Attributes:
        places: for each frame and device.
        consumers: who takes a value, each once.
        edges: the number of each value that crosses, by its Recv.
        numbers: of scheduled nodes and Merges of branches, in their place.

    Args:
        machine: what runs.
        devices: those that are stepped here; by default all of them. (Edges have the same numbers everywhere.)
    """

    def __init__(self, machine: Machine, devices: Collection[str] | None = None) -> None:
        self.machine = machine
        self.devices = [name for name in machine.devices if devices is None or name in devices]
        self.consumers: dict[Value, list[Node]] = {}
        receives = [node for node in machine.nodes if node.kind == "recv"]
        self.edges = {node: number for number, node in enumerate(receives)}
        self.numbers: dict[Node, int] = {}
        self.places: dict[tuple[Frame, str], Place] = {}
        for frame in machine.frames:
            for device in self.devices:
                if any(node.device == device and frame in node.frame.around() for node in machine.nodes):
                    self._add_place(frame, device)
        for node in machine.nodes:
            for value in dict.fromkeys(node.sources):
                if value.node.kind != "const":
                    self.consumers.setdefault(value, []).append(node)
            if node.device is not None and self.is_here(node):
                self._add(node, self.places[node.frame, node.device])

    def _add_place(self, frame: Frame, device: str) -> None:
        place = self.places[frame, device] = Place(frame, device, len(self.places))
        if frame.parent is not None:
            self.places[frame.parent, device].children.append(place)

    def _add(self, node: Node, place: Place) -> None:
        if is_scheduled(node) or (node.kind == "merge" and not is_loop_merge(node)):
            self.numbers[node] = len(place.nodes)
            place.nodes.append(node)
            sources = [value for value in dict.fromkeys(node.sources) if value.node.kind != "const"]
            place.pending.append(len(sources))
            for value in dict.fromkeys(node.inputs):
                if value.node.kind != "const" and value.port != CONTROL:
                    place.slots[node, value] = len(place.slots)
        elif node.kind == "recv":
            place.receives.append(node)
        elif node.kind == "enter" and node.is_constant:
            place.constants.append(node)
        elif node.kind == "exit":
            place.exits.append(node)
        elif node.kind in ("collect", "trips"):
            place.collected.append(node)
        elif node.kind == "record":
            place.records = max(place.records, node.history + 1)
            place.record_bytes[node.history] = _saved_bytes(node)

    def is_here(self, node: Node) -> bool:
        """Test whether a node is stepped here; constants are everywhere."""
        return node.device is None or node.device in self.devices

    def place_of(self, node: Node) -> Place:
        assert node.device is not None, f"{node!r} is everywhere"
        return self.places[node.frame, node.device]

    def child_number(self, place: Place) -> int:
        """Return the number of a place among the frames inside its parent."""
        assert place.frame.parent is not None, "the step's own frame has no parent"
        return self.places[place.frame.parent, place.device].children.index(place)

    # --- making the plans of one run --------------------------------------------------------------------------------

    def plans(self) -> dict[Place, FramePlan]:
        """Return plans that have their numbers, and no functions yet."""
        made: dict[Place, FramePlan] = {}
        for place in self.places.values():
            plan = made[place] = FramePlan(
                place.label, place.device, place.frame.parallel_iterations, place.frame.operation
            )
            plan.pending = list(place.pending)
            plan.slots = len(place.slots)
            plan.count = place.count
            plan.arrivals = sum(place.pending) + len(place.receives)
            plan.records = place.records
            plan.record_bytes = place.record_bytes
        for place, plan in made.items():
            plan.children = [made[child] for child in place.children]
        return made

    def bind(self, plans: Mapping[Place, FramePlan], names: Mapping[Any, str], namespace: Mapping[str, Any]) -> None:
        """Give the plans of a run its functions.

        Args:
            names: of the functions, by what they are for (see `printing`).
            namespace: where they are.
        """

        def function(key: Any) -> Any:
            name = names.get(key)
            return None if name is None else namespace[name]

        for place, plan in plans.items():
            plan.receives = [
                (self.edges[node], function(("deliver", node)), function(("kill", node))) for node in place.receives
            ]
            plan.exits = [function(("kill", node)) for node in place.exits]
            plan.collected = [
                (node.history if node.kind == "collect" else -1, function(("deliver", node)), function(("kill", node)))
                for node in place.collected
            ]
            plan.sources = [
                function(("run", node))
                for node, pending in zip(place.nodes, place.pending, strict=True)
                if not pending and node.kind != "merge"
            ]
            plan.constants = [self._constant(place, node, function) for node in place.constants]
            plan.is_special = bool(plan.sources) or any(constant.inline is not None for constant in plan.constants)

    def _constant(self, place: Place, node: Node, function: Any) -> Constant:
        constant = Constant()
        constant.deliver, constant.kill = function(("deliver", node)), function(("kill", node))
        constant.inline, constant.inline_dead = function(("inline", node)), function(("inline dead", node))
        for consumer in self.consumers.get(node.output, ()):
            if is_scheduled(consumer):
                if (consumer, node.output) in place.slots:
                    constant.slots.append(place.slots[consumer, node.output])
                constant.counts.append((self.numbers[consumer], 1))
        return constant


def _saved_bytes(record: Node) -> int:
    """Return bytes that an iteration saves, by the shape; 0 where that depends on values, as in branches."""
    spec = spec_of(record.inputs[0])
    is_certain = record.inputs[0].node.kind not in ("collect", "merge")
    return bytes_of(spec) if is_certain and isinstance(spec, TensorSpec) and spec.is_static else 0
