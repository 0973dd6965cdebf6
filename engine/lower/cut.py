"""Cuts a machine by device: every value that crosses has one Send, and one Recv for each device that takes it.

Whatever waits for an operation of another device, of which a value comes from there anyway, waits for that.

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section
3.2.2: one pair for a value and a destination, however many take it there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..graph.spec import TensorSpec
from ..passes.framework.estimates import bytes_of
from .nodes import CONTROL, Machine, Node, Value, frame_of, spec_of

_LARGE = 1 << 16  # bytes


def cut(
    machine: Machine,
    has_own_memory: Callable[[str], bool] = lambda device: False,
    lossy: Collection[tuple[str, str]] = (),
) -> None:
    """Put a Send and a Recv wherever a value is taken on another device than it is made on.

    Args:
        has_own_memory: whether a device, by name, keeps values where the host can't read them: there what decides a
            Switch is copied to the host.
        lossy: pairs of devices (from, to) between which 32-bit floats travel as bfloat16, cut off rather than rounded.
    """
    cutter = _Cutter(machine, set(lossy))
    for node in list(machine.nodes):
        if node.device is None:
            continue
        node.inputs = [cutter.brought_to(str(node.device), value) for value in node.inputs]
    for node in list(machine.nodes):
        if node.device is None:
            continue
        node.controls = list(dict.fromkeys(cutter.awaited_on(str(node.device), value) for value in node.controls))
        if has_own_memory(node.device) and node.kind in ("switch", "switch_n"):
            node.inputs[1] = cutter.on_host(node.inputs[1])


class _Cutter:
    def __init__(self, machine: Machine, lossy: set[tuple[str, str]]) -> None:
        self.machine = machine
        self.lossy = lossy
        self._received: dict[tuple[Value, str], Value] = {}
        self._copied: dict[Value, Value] = {}

    def brought_to(self, device: str, value: Value) -> Value:
        source = value.node.device
        if source is None or source == device:
            return value
        known = self._received.get((value, device))
        if known is None:
            known = self._received[value, device] = self._cross(value, source, device)
        return known

    def awaited_on(self, device: str, value: Value) -> Value:
        """Return what a node of a device is to wait for; all inputs have been brought before."""
        node = value.node
        if node.kind == "op" and node.device == device:
            return node.done
        if node.kind == "op" and value.port == CONTROL and (value, device) not in self._received:
            for output in node.outputs:
                known = self._received.get((output, device))
                if known is not None and not _takes_long(output):
                    return known
        return self.brought_to(device, value)

    def _cross(self, value: Value, source: str, device: str) -> Value:
        name, frame, spec = value.node.name, frame_of(value), spec_of(value)
        send = self.machine.add(Node("send", name, source, frame, [value], ()))
        receive = self.machine.add(Node("recv", name, device, frame, (), [spec]))
        send.peer, receive.peer = receive, send
        send.lossy = (source, device) in self.lossy and isinstance(spec, TensorSpec) and spec.dtype.name == "float32"
        return receive.output

    def on_host(self, value: Value) -> Value:
        """Return `value` where a Switch can look at it."""
        if value.node.kind == "recv":
            return value  # stays on the host if it is small
        known = self._copied.get(value)
        if known is None:
            node = Node("to_host", value.node.name, value.node.device, frame_of(value), [value], [spec_of(value)])
            known = self._copied[value] = self.machine.add(node).output
        return known


def _takes_long(value: Value) -> bool:
    """Test whether a signal of its own comes well before a value."""
    spec = spec_of(value)
    return isinstance(spec, TensorSpec) and spec.is_static and bytes_of(spec) > _LARGE
