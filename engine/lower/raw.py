"""Steps with primitives built by hand: each operation becomes one node, in the frame of its inputs.

`RawFrames` finds the frames and checks what is built; `RawLowering` makes the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..control_flow.cond import Branch
from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..graph.spec import FrameSpec
from ..graph.tensor import Symbol
from ..ops.internal.raw import Enter, Exit, Merge, NextIteration, RawOp, back_edges
from ..passes.framework.prune import frame_users, needed_operations
from .contexts import Context
from .nodes import Frame, Machine, Node, Value, spec_of
from .raw_frames import RawFrames, described

DeviceOf = Callable[[Operation], str]


def contains_raw(operations: Iterable[Operation]) -> bool:
    """Test whether there are primitives built by hand among the operations of a step."""
    return any(isinstance(operation.op, RawOp) for operation in operations)


def with_back_edges(operations: Iterable[Operation], feeds: Sequence[Symbol] = ()) -> list[Operation]:
    """Return `operations`, and what loops among them hand on to their next iterations, in program order.

    A Merge does not have what NextIteration hands it among its inputs, so that pruning leaves that out. Operations
    whose outputs are all fed are left out.
    """
    given = set(feeds)
    found = dict.fromkeys(o for o in operations if not (o.outputs and given.issuperset(o.outputs)))
    pending = [operation for operation in found if isinstance(operation.op, Merge)]
    while pending:
        merge = pending.pop()
        needed = needed_operations(merge.graph, back_edges(merge), feeds)
        new = [operation for operation in needed if operation not in found]
        found.update(dict.fromkeys(new))
        pending.extend(operation for operation in new if isinstance(operation.op, Merge))
    return sorted(found, key=lambda operation: operation.index)


def lower_raw(
    operations: Sequence[Operation],
    feeds: Sequence[Symbol],
    fetches: Sequence[Symbol],
    device_of: DeviceOf,
    host: str = "cpu:0",
) -> Machine:
    """Return the machine form of a step with primitives built by hand.

    Args:
        operations: those of the user's graph that the step needs, in program order.
        feeds: what is fed.
        fetches: what is returned.
        device_of: where each operation runs, by name.
        host: the device at which fed values arrive.

    Raises:
        ValueError: the primitives do not fit together; the message names them and the user's lines.
    """
    return RawLowering(with_back_edges(operations, feeds), device_of, host).run(feeds, fetches)


def dead_fetch(operation: Operation) -> str:
    """Return the message for a value that is fetched and turns out to be dead."""
    return (
        f"{described(operation)} is fetched, but has no value in this run: it is on the side of a raw.switch that "
        "was not taken, or is computed from such a value. Fetch what raw.merge makes of both sides."
    )


class RawLowering:
    """Makes a node of each operation.

    Args:
        operations: those of the step, with what loops hand back, in program order.
        device_of: where each operation runs, by name.
        host: the device at which fed values arrive.
    """

    def __init__(self, operations: Sequence[Operation], device_of: DeviceOf, host: str) -> None:
        self.operations = operations
        self.device_of = _with_their_merges(operations, device_of)
        self.host = host
        self.machine = Machine()
        self._values: dict[Symbol, Value] = {}
        self._contexts: dict[Frame, Context] = {}
        self._sources: dict[Frame, Value] = {}  # of the variables that enter a frame, one value
        self._accesses: dict[tuple[Frame, object], list[tuple[Operation, bool]]] = {}
        self._nodes: dict[Operation, Node] = {}

    def run(self, feeds: Sequence[Symbol], fetches: Sequence[Symbol]) -> Machine:
        machine = self.machine
        self.frames = RawFrames(self.operations, feeds, machine.root)
        for tensor in feeds:
            node = Node("feed", tensor.operation.name, self.host, machine.root, (), [tensor.spec], [tensor.operation])
            machine.feeds.append(machine.add(node))
            self._values[tensor] = node.output
        users = frame_users(self.operations)
        for operation in self.operations:
            takers = users.get(operation.outputs[-1], []) if isinstance(operation.op, (While, Branch)) else []
            self._lower(operation, takers)
        for tensor in fetches:
            machine.fetches.append(machine.add(self._fetch(tensor)))
        self._start_constants()
        self._complete_controls()
        return machine

    # --- operations -------------------------------------------------------------------------------------------------

    def _lower(self, operation: Operation, takers: Sequence[Operation]) -> None:
        if self.frames.is_free(operation) or operation in self._nodes:
            return  # a constant, or taken from a frame
        node = self._primitive(operation) if isinstance(operation.op, RawOp) else self._plain([operation, *takers])
        controls = self._awaited(node.operations)
        if node.kind != "merge":
            self._wait(node, controls)
        if node.frame is self.machine.root and all(_is_constant(value) for value in node.sources):
            node.controls.append(self._context(node.frame).pivot(str(node.device)))
        self.machine.add(node)
        if node.kind == "merge" and controls:
            self._hold(operation, node, controls)
        self._nodes.update(dict.fromkeys(node.operations, node))
        self._note_effects(node)

    def _plain(self, operations: list[Operation]) -> Node:
        """Add a node for one operation; a loop or branch with what takes values from its frame."""
        first = operations[0]
        frame, device = self.frames.of[first], self.device_of(first)
        made = {tensor for operation in operations for tensor in operation.outputs}
        taken = dict.fromkeys(t for operation in operations for t in operation.inputs if t not in made)
        given = [tensor for tensor in made if not _is_inner_frame(tensor)]
        given.sort(key=lambda tensor: (tensor.operation.index, tensor.index))
        node = Node("op", first.name, device, frame, (), [t.spec for t in given], operations)
        node.taken, node.given = list(taken), given
        node.inputs = [self._value(tensor, frame) for tensor in taken]
        self._give(given, node.outputs)
        return node

    def _primitive(self, operation: Operation) -> Node:
        op, frame, device = operation.op, self.frames.of[operation], self.device_of(operation)
        specs = [tensor.spec for tensor in operation.outputs]
        node = Node(op.type_name, operation.name, device, frame, (), specs, [operation])
        if isinstance(op, Enter):
            node.inputs = [self._entering(operation, device)]
            node.is_constant = op.is_constant and self.frames.is_loop(frame)
            if not node.is_constant:  # (one constant of a loop may be dead, and another one alive)
                self._sources.setdefault(frame, node.inputs[0])
        else:
            node.inputs = [self._value(tensor, frame) for tensor in operation.inputs]
        if isinstance(op, Exit) and node.inputs[0].node.kind == "enter":  # an iteration runs something
            node.inputs = [self._held(node, node.inputs[0], [])]
        if isinstance(op, NextIteration) and op.into is not None:
            self._nodes[op.into.operation].inputs.append(node.output)
        self._give(operation.outputs, node.outputs)
        return node

    def _entering(self, operation: Operation, device: str) -> Value:
        """Return the value that enters a frame: a constant is alive there if other things that enter are."""
        outside = self.frames.outside_of(operation)
        value, controls = self._value(operation.inputs[0], outside), self._awaited([operation])
        if not controls and not _is_constant(value):
            return value
        is_certain = outside is self.machine.root and not self.frames.sides_of_entering(self.frames.of[operation])
        if not controls and is_certain:
            return self._context(outside).gated(value, device)
        node = Node("identity", f"{operation.name}/gated", device, outside, [value], [operation.inputs[0].spec])
        node.controls = controls or [self._guide(operation)]
        return self.machine.add(node).output

    def _guide(self, enter: Operation) -> Value:
        """Return another value that enters the loop: a constant that enters is alive there if that one is."""
        other = self.frames.guide_of(enter)
        assert other is not None, f"{enter!r} enters a loop inside a loop, but nothing says which"
        known = self._values.get(other.inputs[0])
        if known is None:
            raise ValueError(
                f"{described(enter)} takes a constant into a loop inside another loop or branch, and is built before "
                f"what {described(other)} takes there, on which it depends whether there is a loop. Build it later."
            )
        return known

    def _wait(self, node: Node, controls: list[Value]) -> None:
        """Let a node wait. Primitives that hand on what comes can't: what they take waits in their place."""
        if node.kind not in ("enter", "exit", "loop_cond", "next_iteration"):
            node.controls = controls
        elif controls and node.kind != "enter":
            node.inputs = [self._held(node, node.inputs[0], controls)]

    def _hold(self, operation: Operation, node: Node, controls: list[Value]) -> None:
        """Let what takes the results of a Merge wait."""
        for tensor, value in zip(operation.outputs, node.outputs, strict=True):
            if self._values[tensor] == value:
                self._values[tensor] = self._held(node, value, controls)

    def _held(self, node: Node, value: Value, controls: list[Value]) -> Value:
        held = Node("identity", f"{node.name}/held", node.device, node.frame, [value], [spec_of(value)])
        held.controls = list(controls)
        return self.machine.add(held).output

    def _fetch(self, tensor: Symbol) -> Node:
        root = self.machine.root
        self.frames.check_fetch(tensor)
        device = self.device_of(tensor.operation)
        value = self._context(root).gated(self._value(tensor, root), device)
        return Node("fetch", tensor.operation.name, value.node.device, root, [value], (), [tensor.operation])

    # --- values and controls ----------------------------------------------------------------------------------------

    def _context(self, frame: Frame) -> Context:
        return self._contexts.setdefault(frame, Context(self.machine, frame))

    def _value(self, tensor: Symbol, frame: Frame) -> Value:
        known = self._values.get(tensor)
        return self._context(frame).constant(tensor) if known is None else known

    def _give(self, tensors: Sequence[Symbol], values: Sequence[Value]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            self._values.setdefault(tensor, value)  # what is fed stays as it is

    def _awaited(self, operations: Sequence[Operation]) -> list[Value]:
        """Return the values to wait for: those the user asked for, and earlier uses of the same resources."""
        earlier = [control for operation in operations for control in operation.control_inputs]
        earlier += [other for operation in operations for other in self._conflicts(operation)]
        found = [self._done(operation) for operation in earlier if operation in self._nodes]
        return list(dict.fromkeys(found))

    def _done(self, operation: Operation) -> Value:
        """Return the control that an operation has run; of one that passes a value on, the value itself."""
        node = self._nodes[operation]
        is_handed_on = node.kind in ("enter", "exit", "loop_cond", "merge")
        return self._values[operation.outputs[0]] if is_handed_on else node.done

    def _conflicts(self, operation: Operation) -> list[Operation]:
        """Return earlier operations with which the order counts, unless waiting for them could mean not to run."""
        found: list[Operation] = []
        for effect in operation.effects:
            known = self._accesses.get((self.frames.of[operation], effect.resource), [])
            found += [other for other, writes in known if effect.writes or writes]
        sides = self.frames.sides_of(operation)
        return [other for other in found if self.frames.sides_of(other) <= sides]

    def _note_effects(self, node: Node) -> None:
        for operation in node.operations:
            for effect in operation.effects:
                known = self._accesses.setdefault((node.frame, effect.resource), [])
                if effect.writes and not self.frames.sides_of(operation):
                    known.clear()
                known.append((operation, effect.writes))

    # --- devices ----------------------------------------------------------------------------------------------------

    def _start_constants(self) -> None:
        """Let operations that take only constants of their loop wait for its head, which is there in each iteration."""
        heads: dict[Frame, Node] = {}
        for node in self.machine.nodes:
            if node.kind == "merge" and any(value.node.kind == "enter" for value in node.inputs):
                heads.setdefault(node.frame, node)
        for node in self.machine.nodes:
            if node.kind not in ("op", "switch", "identity") or node.frame not in heads:
                continue
            if all(_is_constant(value) or value.node.is_constant for value in node.sources):
                node.controls.append(heads[node.frame].output)

    def _complete_controls(self) -> None:
        """Give every device that takes part in a loop something that starts its iterations."""
        nodes = self.machine.nodes
        started = {
            (node.frame, node.device)
            for node in nodes
            if node.kind == ("next_iteration" if self.frames.is_loop(node.frame) else "enter")
        }
        conditions = {node.frame: node for node in nodes if node.kind == "loop_cond"}
        placed = [node for node in nodes if node.device is not None]
        taking_part = dict.fromkeys((frame, node.device) for node in placed for frame in node.frame.around())
        for frame, device in sorted(taking_part, key=lambda pair: -pair[0].depth):
            if frame.parent is None or (frame, device) in started:
                continue
            if not self.frames.is_loop(frame):
                self._control(frame, str(device), None)
                continue
            if frame not in conditions:
                raise self.frames.no_condition(frame, str(device))
            self._control(frame, str(device), conditions[frame].output)

    def _control(self, frame: Frame, device: str, goes_on: Value | None) -> None:
        """Add a loop of its own that carries nothing; of a frame of one iteration its beginning alone."""
        assert frame.parent is not None, "the step itself is no loop"
        name = f"{frame.name}/control"
        gate = Node("no_op", f"{frame.name}/gate", self._sources[frame].node.device, frame.parent)
        gate.controls = [self._sources[frame]]
        start = Node("enter", name, device, frame, [gate.done])
        if goes_on is None:
            for node in (gate, start):
                self.machine.add(node)
            return
        merge = Node("merge", name, device, frame, [start.output])
        switch = Node("switch", name, device, frame, [merge.output, goes_on], [None, None])
        again = Node("next_iteration", name, device, frame, [Value(switch, 1)])
        merge.inputs.append(again.output)
        for node in (gate, start, merge, switch, again):
            self.machine.add(node)


def _with_their_merges(operations: Iterable[Operation], device_of: DeviceOf) -> DeviceOf:
    """Choose devices so that a Merge at the head of a loop has its inputs, Enter and NextIteration, on its own."""
    together: dict[Operation, list[Operation]] = {}
    for merge in operations:
        if not isinstance(merge.op, Merge):
            continue
        taken = [*[tensor.operation for tensor in merge.inputs], *back_edges(merge)]
        if not any(isinstance(operation.op, (Enter, NextIteration)) for operation in taken):
            continue
        group: list[Operation] = []
        for operation in (merge, *taken):
            if operation not in group:
                group.extend(together.get(operation, [operation]))
        together.update(dict.fromkeys(group, group))
    return lambda operation: device_of(together[operation][0] if operation in together else operation)


def _is_constant(value: Value) -> bool:
    return value.node.kind == "const"


def _is_inner_frame(tensor: Symbol) -> bool:
    """Test whether a tensor is the frame of a loop or branch, which is used up in the node of that."""
    return isinstance(tensor.spec, FrameSpec) and isinstance(tensor.operation.op, (While, Branch))


__all__ = ["contains_raw", "dead_fetch", "lower_raw", "with_back_edges"]
