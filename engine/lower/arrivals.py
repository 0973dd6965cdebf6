"""Values arrive on a device as late as is useful: what comes early only takes memory until it is used.

In the step's own frame, the operations of a device run one after the other, as long as they are expected to. So it is
known when the first of those that take a received value can start, and when the copy of that value has to begin. A
copy waits for the operation that ends just before then; until then the value stays on the host.

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section
5.2: as-soon-as-possible and as-late-as-possible times of Receive nodes, and control edges that delay them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from ..graph.spec import TensorSpec
from ..passes.framework.estimates import bytes_of
from ..place.devices import Device
from .nodes import Machine, Node, Value

LARGE = 1 << 16  # bytes; what is smaller comes when it comes
_KINDS = ("sim",)  # of devices that report when a kernel has ended


class _Arrival(NamedTuple):
    """A received value, the position of the first operation that takes it, and how long its copy takes."""

    receive: Node
    first: int
    seconds: float


def delay_arrivals(machine: Machine, devices: Mapping[str, Device]) -> None:
    """Let large values wait on the host until shortly before they are used: in place, once `machine` is cut.

    Args:
        devices: by name.
    """
    consumers = machine.consumers()
    ordered = _Order(machine)
    for name in machine.devices:
        device = devices[name]
        if device.kind not in _KINDS:
            continue
        running = ordered.operations(name)
        positions = {node: position for position, node in enumerate(running)}
        arrivals = [
            _Arrival(node, min(positions[user] for user in consumers[node.output]), _seconds(node, device))
            for node in machine.nodes
            if node.kind == "recv" and node.device == name and _is_large(node)
            if consumers.get(node.output) and all(user in positions for user in consumers[node.output])
        ]
        gates = _gates(arrivals, running, ordered)
        for arrival in arrivals:
            if arrival.receive in gates:
                _delay(machine, arrival.receive, gates[arrival.receive], consumers[arrival.receive.output])


def _is_large(receive: Node) -> bool:
    spec = receive.specs[0]
    if not isinstance(spec, TensorSpec) or spec.shape is None or None in spec.shape:
        return False
    return bytes_of(spec) >= LARGE


def _seconds(receive: Node, device: Device) -> float:
    spec = receive.specs[0]
    assert spec is not None, f"{receive!r} receives nothing"
    return device.latency + bytes_of(spec) / device.bandwidth


def _gates(arrivals: list[_Arrival], running: list[Node], ordered: _Order) -> dict[Node, Value]:
    """Return, for arrivals that should wait, a value of the operation at whose end the copy begins."""
    ends: list[float] = []
    for node in running:
        ends.append((ends[-1] if ends else 0.0) + node.seconds)
    found: dict[Node, Value] = {}
    latest = inf  # when the copy after this one begins: they follow one another
    for receive, first, seconds in sorted(arrivals, key=lambda arrival: -arrival.first):
        latest = min(latest, ends[first] - running[first].seconds) - seconds
        begins = latest - seconds  # one copy earlier, as nothing takes just as long as expected
        position = first - 1
        while position >= 0 and not (ends[position] <= begins and _ends_for_certain(running[position], ordered)):
            position -= 1
        if position >= 0:
            found[receive] = running[position].output
    return found


def _ends_for_certain(node: Node, ordered: _Order) -> bool:
    """Test whether an operation always runs, and has a result that is there when it has ended."""
    return ordered.is_certain[node] and bool(node.specs) and isinstance(node.specs[0], TensorSpec)


def _delay(machine: Machine, receive: Node, gate: Value, users: list[Node]) -> None:
    spec = receive.specs[0]
    node = Node("to_device", receive.name, receive.device, receive.frame, [receive.output, gate], [spec])
    receive.stays = True
    for user in users:
        user.inputs = [node.output if value == receive.output else value for value in user.inputs]
        user.controls = [node.output if value == receive.output else value for value in user.controls]
    machine.add(node)


class _Order:
    """The nodes of a step's own frame in an order in which they can run, and which of them always do.

    Attributes:
        is_certain: for each node whether it runs whatever is chosen, and needs no loop.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_certain: dict[Node, bool] = {}
        for node in machine.nodes:
            self._visit(node)

    def operations(self, device: str) -> list[Node]:
        """Return the operations of a device that run in any case."""
        root = self._machine.root
        return [node for node in self.is_certain if node.kind == "op" and node.device == device and node.frame is root]

    def _visit(self, start: Node) -> None:
        """Visit depth first, without recursion; a cycle closes at the head of a loop, whose sources are not visited."""
        pending: list[tuple[Node, bool]] = [(start, False)]
        while pending:
            node, is_ready = pending.pop()
            if node in self.is_certain:
                continue
            before = _before(node)
            if is_ready:
                self.is_certain[node] = self._is_certain(node, before)
                continue
            pending.append((node, True))
            pending.extend((other, False) for other in before if other not in self.is_certain)

    def _is_certain(self, node: Node, before: list[Node]) -> bool:
        is_plain = node.kind in ("const", "feed", "op", "identity", "no_op", "to_host", "send", "recv")
        return is_plain and node.frame is self._machine.root and all(self.is_certain[other] for other in before)


def _before(node: Node) -> list[Node]:
    if node.kind == "recv":
        assert node.peer is not None, f"{node!r} has no Send"
        return [node.peer]
    return [value.node for value in reversed(node.sources) if value.node.kind != "next_iteration"]
