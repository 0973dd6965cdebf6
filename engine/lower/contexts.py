"""Contexts in which operations are lowered: the step itself, the condition and the body of a loop, a branch.

A context gives operations their values. What it takes from outside comes in by a Switch (into a branch) or by a
constant Enter (into a loop), once for all that want it there. What would run too often, because nothing that it takes
says whether the branch is taken or the iteration happens, waits for the context's *pivot*: a control that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..graph.region import Region
from ..graph.tensor import Symbol
from ..ops.base import Constant
from .nodes import Frame, Machine, Node, Value, spec_of


class Context:
    """Base, and the context of the step itself.

    Attributes:
        machine: what is being built.
        frame: the frame of what is here.
        values: the tensors that are known.
        latest: for each resource the latest write, and the reads since.
        done: for operations that are here, the node that says that they have run.
    """

    def __init__(self, machine: Machine, frame: Frame, name: str = "") -> None:
        self.machine = machine
        self.frame = frame
        self.name = name
        self.values: dict[Symbol, Value] = {}
        self.latest: dict[Any, tuple[list[Value], list[Value]]] = {}
        self.done: dict[Operation, list[Value]] = {}
        self._constants: dict[Any, Value] = {}
        self._gated: dict[tuple[Value, str], Value] = {}
        self._pivots: dict[str, Value] = {}

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, tensor: Symbol, device: str) -> Value:
        """Return a tensor of this graph, for use on `device`. (It may be on another one.)"""
        known = self.values.get(tensor)
        if known is not None:
            return known
        if isinstance(tensor.operation.op, Constant):
            return self.constant(tensor)
        return self.take(tensor, device)

    def constant(self, tensor: Symbol) -> Value:
        """Return a constant, of which every device has its own copy: it needs no token."""
        known = self._constants.get(tensor)
        if known is None:
            node = Node("const", self.label(tensor.operation), None, self.frame, (), [tensor.spec])
            node.operations = [tensor.operation]
            known = self._constants[tensor] = self.machine.add(node).output
        return known

    def take(self, tensor: Symbol, device: str) -> Value:
        """Return the value of a parameter that stands for a captured tensor."""
        raise AssertionError(f"This is a bug in anabranch: {tensor!r} is not known where it is used.")

    def label(self, operation: Operation) -> str:
        return self.name + operation.name

    # --- whether something runs ---------------------------------------------------------------------------------

    def is_gated(self, value: Value) -> bool:
        """Test whether a value is there once, and alive just if the operations of this context run."""
        return value.node.kind != "const"

    def gated(self, value: Value, device: str) -> Value:
        """Return `value`, if it is gated, or else a copy that is."""
        if self.is_gated(value):
            return value
        where = value.node.device or device
        known = self._gated.get((value, where))
        if known is None:
            node = Node("identity", f"{value.node.name}/gated", where, self.frame, [value], [spec_of(value)])
            node.controls = [self.pivot(where)]
            known = self._gated[value, where] = self.machine.add(node).output
        return known

    def pivot(self, device: str) -> Value:
        """Return a control on `device` that is there once, and alive just if what is here runs."""
        known = self._pivots.get(device)
        if known is None:
            known = self._pivots[device] = self.make_pivot(device)
        return known

    def make_pivot(self, device: str) -> Value:
        """Make the pivot of the step itself: its start."""
        return self.machine.add(Node("no_op", "start", device, self.frame)).done

    # --- order ------------------------------------------------------------------------------------------------------

    def wait_for(self, operation: Operation) -> list[Value]:
        """Return the values to wait for before `operation` runs: by its effects, and by what the user asked for."""
        found: dict[Value, None] = {}
        for effect in operation.effects:
            writes, reads = self.latest.get(effect.resource, ((), ()))
            found.update(dict.fromkeys([*writes, *(reads if effect.writes else ())]))
        for control in operation.control_inputs:
            found.update(dict.fromkeys(self.done.get(control, ())))
        return list(found)

    def note_run(self, operation: Operation, done: Sequence[Value]) -> None:
        """Record `done` as the sign that `operation` has run, with its effects."""
        self.done[operation] = list(done)
        for effect in operation.effects:
            if effect.writes:
                self.latest[effect.resource] = (list(done), [])
            else:
                self.latest.setdefault(effect.resource, ([], []))[1].extend(done)

    def joined(self, controls: Sequence[Value], device: str, name: str) -> Value:
        """Return one control for several."""
        if len(controls) == 1:
            return controls[0]
        node = self.machine.add(Node("no_op", name, device, self.frame))
        node.controls = list(controls) or [self.pivot(device)]
        return node.done

    def order_of(self, resource: Any) -> list[Value]:
        """Return the values that the next write of `resource` has to wait for."""
        writes, reads = self.latest.get(resource, ([], []))
        return [*writes, *reads]


class _Inside(Context):
    """The context of a region."""

    def __init__(self, outer: Context, frame: Frame, region: Region, name: str) -> None:
        super().__init__(outer.machine, frame, f"{name}/{region.name}/")
        self.outer = outer
        self.region = region
        self.outers = {parameter: tensor for tensor, parameter in region.captures}


class BranchContext(_Inside):
    """One branch. What it takes comes through Switches, which stand where the value is.

    Args:
        switches: the Switches that all branches of one choice share.
        port: that of this branch.
    """

    def __init__(self, outer: Context, region: Region, name: str, switches: Switches, port: int) -> None:
        super().__init__(outer, outer.frame, region, name)
        self.switches = switches
        self.port = port
        self._nothing: dict[str, Value] = {}

    def take(self, tensor: Symbol, device: str) -> Value:
        value = self.outer.value(self.outers[tensor], device)
        return value if value.node.kind == "const" else self.switches.of(value, device, self.port)

    def make_pivot(self, device: str) -> Value:
        return self.switches.of(self.switches.choice, device, self.port, at=device)

    def nothing(self, device: str) -> Value:
        """Return None on `device`, alive just if this branch is taken. (The pivot has the value of the choice.)"""
        known = self._nothing.get(device)
        if known is None:
            node = self.machine.add(Node("no_op", f"{self.name}nothing", device, self.frame))
            node.controls = [self.pivot(device)]
            known = self._nothing[device] = node.done
        return known


class Switches:
    """The Switches of one choice."""

    def __init__(self, context: Context, operation: Operation, choice: Value, ports: int) -> None:
        self.context = context
        self.operation = operation
        self.choice = choice
        self.ports = ports
        self._known: dict[tuple[Value, str], Node] = {}
        self.kind = "switch" if operation.inputs[0].dtype.kind == "b" else "switch_n"

    def of(self, value: Value, device: str, port: int, at: str | None = None) -> Value:
        """Return `value`, alive at `port` only if that is chosen."""
        where = at or value.node.device or device
        node = self._known.get((value, where))
        if node is None:
            name = f"{self.context.label(self.operation)}/switch"
            specs = [spec_of(value)] * self.ports
            node = Node(self.kind, name, where, self.context.frame, [value, self.choice], specs, [self.operation])
            self._known[value, where] = self.context.machine.add(node)
        return Value(node, port)


class LoopContext(_Inside):
    """The condition or the body of a loop.

    Args:
        loop: what they share.
        is_body: which of the two it is.
    """

    def __init__(self, outer: Context, region: Region, name: str, loop: LoopParts, is_body: bool) -> None:
        super().__init__(outer, loop.frame, region, name)
        self.loop = loop
        self.is_body = is_body

    def take(self, tensor: Symbol, device: str) -> Value:
        value = self.outer.value(self.outers[tensor], device)
        return value if value.node.kind == "const" else self.loop.constant_enter(value, device)

    def is_gated(self, value: Value) -> bool:
        """Test whether a value needs a gate: a constant of the loop is there also when the body has ended."""
        return value.node.kind != "const" and not value.node.is_constant

    def make_pivot(self, device: str) -> Value:
        return self.loop.control(device)[int(self.is_body)]


class LoopParts:
    """The common part of the condition and body of a lowered loop: its frame, and the control loop on each device."""

    def __init__(self, outer: Context, operation: Operation) -> None:
        op = operation.op
        assert isinstance(op, While)
        self.outer = outer
        self.machine = outer.machine
        self.name = outer.label(operation)
        self.frame = Frame(self.name, outer.frame, op.parallel_iterations, operation)
        self.goes_on: Value | None = None
        self._entered: dict[tuple[Value, str], Value] = {}
        self._controls: dict[str, tuple[Value, Value]] = {}
        self._waiting: list[Node] = []

    def constant_enter(self, value: Value, device: str) -> Value:
        """Return `value`, of outside, the same in every iteration."""
        known = self._entered.get((value, device))
        if known is None:
            node = Node("enter", f"{self.name}/enter", device, self.frame, [value], [spec_of(value)])
            node.is_constant = True
            known = self._entered[value, device] = self.machine.add(node).output
        return known

    def control(self, device: str) -> tuple[Value, Value]:
        """Return the control loop of a device: that there is an iteration, and that its body runs."""
        known = self._controls.get(device)
        if known is None:
            start = Node("enter", f"{self.name}/control", device, self.frame, [self.outer.pivot(device)])
            merge = Node("merge", f"{self.name}/control", device, self.frame, [start.output])
            switch = Node("switch", f"{self.name}/control", device, self.frame, [merge.output], [None, None])
            again = Node("next_iteration", f"{self.name}/control", device, self.frame, [Value(switch, 1)])
            merge.inputs.append(again.output)
            for node in (start, merge, switch, again):
                self.machine.add(node)
            self._switch(switch)
            known = self._controls[device] = (merge.output, Value(switch, 1))
        return known

    def _switch(self, switch: Node) -> None:
        if self.goes_on is None:
            self._waiting.append(switch)
        else:
            switch.inputs.append(self.goes_on)

    def set_predicate(self, goes_on: Value) -> None:
        """Set the predicate once the condition has been lowered."""
        self.goes_on = goes_on
        for switch in self._waiting:
            switch.inputs.append(goes_on)
