"""Lowers a placed step: loops and branches that span devices become primitives, anything else stays as it is.

A loop variable is Enter, Merge, Switch, NextIteration and Exit on its own device; a branch is a Switch for each value
that it takes and a Merge for each result. What touches a resource in a loop is kept in order by one more loop variable,
which carries nothing. Histories are recorded where their value is made, and collected when the loop is done.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, sections 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..common.identity import is_same
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Parameter
from ..graph.operation import op_of
from ..graph.region import Region
from ..graph.spec import FrameSpec
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..passes.framework.prune import all_blocks, frame_users, needed_in_region
from ..place.devices import Device
from .contexts import BranchContext, Context, LoopContext, LoopParts, Switches
from .narrowing import holds_store_access
from .nodes import Machine, Node, Value, spec_of
from .row_writes import wholes_of, writes_of_current_values
from .scheduling import lower_scheduled
from .starting import late_starters

DeviceOf = Callable[[Operation], str]


class Lowering:
    """Builds the machine form of a step.

    Args:
        device_of: where each operation runs, by name; the parameters of regions included.
        is_split: whether a loop or branch, given with the operations that it needs inside, has to be lowered; others
            stay one operation.
        host: the device at which fed values arrive.
        targets_of: for a scheduled function the devices among which it is scheduled; for what else there is none.
        has_own_memory: whether a device, by name, keeps values where the host can't write them.
    """

    def __init__(
        self,
        device_of: DeviceOf,
        is_split: Callable[[Operation], bool],
        host: str,
        targets_of: Callable[[Operation], Sequence[Device]] = lambda operation: [],
        has_own_memory: Callable[[str], bool] = lambda device: False,
    ) -> None:
        self.device_of = device_of
        self.is_split = is_split
        self.host = host
        self.targets_of = targets_of
        self.has_own_memory = has_own_memory
        self.machine = Machine()
        self._loops: list[tuple[LoopParts, LoopContext]] = []

    def run(self, operations: Sequence[Operation], feeds: Sequence[Symbol], fetches: Sequence[Symbol]) -> Machine:
        """Lower the operations of a step, as `passes.prepare` gives them."""
        machine = self.machine
        context = Context(machine, machine.root)
        for tensor in feeds:
            node = Node("feed", tensor.operation.name, self.host, machine.root, (), [tensor.spec], [tensor.operation])
            machine.feeds.append(machine.add(node))
            context.values[tensor] = node.output
        self._lower_block(context, operations)
        for tensor in fetches:
            device = self.device_of(tensor.operation)
            value = context.gated(context.value(tensor, device), device)
            node = Node("fetch", tensor.operation.name, value.node.device, machine.root, [value], ())
            node.operations = [tensor.operation]
            machine.fetches.append(machine.add(node))
        self._complete_controls()
        return machine

    # --- operations -------------------------------------------------------------------------------------------------

    def _lower_block(self, context: Context, operations: Sequence[Operation]) -> None:
        users = frame_users(operations)
        self._note_row_writes(operations)
        for operation in operations:
            if isinstance(operation.op, (Parameter, Constant)):
                continue
            if operation.outputs and all(tensor in context.values for tensor in operation.outputs):
                continue  # fed, or taken from a frame
            takers = [user for tensor in operation.outputs for user in users.get(tensor, ())]
            targets = self.targets_of(operation)
            if targets and not takers:  # what is taken from inside is recorded in one place
                lower_scheduled(context, operation, targets, self.host)
            elif isinstance(operation.op, While) and self._is_split(context, operation):
                self._lower_loop(context, operation, takers)
            elif isinstance(operation.op, Branch) and operation.op.is_choice and self._is_split(context, operation):
                self._lower_branches(context, operation, takers)
            elif _has_frame(operation):
                self._add(context, [operation, *takers])
            else:
                self._add(context, [operation])

    def _is_split(self, context: Context, operation: Operation) -> bool:
        """Test whether an operation is split: in a lowered loop also one that reads TensorStores.

        As one node it would wait for all writes.
        """
        return self.is_split(operation) or (context.frame.parent is not None and holds_store_access(operation))

    def _add(self, context: Context, operations: Sequence[Operation]) -> None:
        """Add one node; a loop or branch that is not lowered, with what takes values from its frame."""
        first = operations[0]
        device = self.device_of(first)
        made = {tensor for operation in operations for tensor in operation.outputs}
        if first.op.regions and first.writes:
            for block in all_blocks(operations):
                self._note_row_writes(block)
        taken = dict.fromkeys(t for o in operations for t in self._taken_by(o) if t not in made)
        given = [t for operation in operations for t in operation.outputs if type(t.spec) is not FrameSpec]
        node = Node("op", context.label(first), device, context.frame, (), [t.spec for t in given], operations)
        node.taken, node.given = list(taken), given
        node.inputs = [context.value(tensor, device) for tensor in taken]
        node.controls = list(dict.fromkeys(value for operation in operations for value in context.wait_for(operation)))
        if not any(context.is_gated(value) for value in node.sources):
            node.controls.append(context.pivot(device))
        self.machine.add(node)
        context.values.update(zip(given, node.outputs, strict=True))
        for operation in operations:
            context.note_run(operation, [node.done])

    def _note_row_writes(self, block: Sequence[Operation]) -> None:
        """Note the writes of rows in a block, and in blocks that are not lowered, which need no earlier value."""
        found = writes_of_current_values(block)
        self.machine.row_writes |= {o for o in found if not self.has_own_memory(self.device_of(o))}

    def _taken_by(self, operation: Operation) -> Sequence[Symbol]:
        """Return what an operation takes: a write of rows takes the memory of its variable by itself."""
        if operation not in self.machine.row_writes:
            return operation.inputs
        return operation.inputs[len(wholes_of(operation)) :]

    # --- loops ------------------------------------------------------------------------------------------------------

    def _lower_loop(self, context: Context, operation: Operation, takers: Sequence[Operation]) -> None:
        op = operation.op
        assert isinstance(op, While)
        loop = LoopParts(context, operation)
        condition = LoopContext(context, op.condition, loop.name, loop, is_body=False)
        body = LoopContext(context, op.body, loop.name, loop, is_body=True)
        recorded = _recorded(takers)
        merges = [self._enter(context, loop, operation, position) for position in range(op.carried)]
        orders = {effect.resource: self._enter_order(context, loop, operation, effect) for effect in operation.effects}
        for merge, parameter in zip(merges, op.condition.parameters, strict=True):
            condition.values[parameter] = merge.output
        for resource, merge in orders.items():
            condition.latest[resource] = ([merge.output], [])
        self._lower_block(condition, needed_in_region(op.condition, recorded))
        loop.set_predicate(self._predicate(condition, op, loop))
        switches = [self._switch(loop, merge.output, merge.device) for merge in merges]
        passed = {
            resource: self._switch(loop, self._token(condition, resource, merge.device), merge.device)
            for resource, merge in orders.items()
        }
        for switch, parameter in zip(switches, op.body.parameters, strict=True):
            body.values[parameter] = Value(switch, 1)
        for resource, switch in passed.items():
            body.latest[resource] = ([Value(switch, 1)], [])
        self._lower_block(body, needed_in_region(op.body, recorded))
        for merge, result in zip(merges, op.body.results, strict=True):
            self._hand_back(body, loop, merge, body.value(result, str(merge.device)))
        for resource, merge in orders.items():
            self._hand_back(body, loop, merge, self._token(body, resource, merge.device))
        self._loops.append((loop, body))
        exits = [self._exit(loop, switch) for switch in switches]
        tokens = {resource: self._exit(loop, switch) for resource, switch in passed.items()}
        context.values.update(zip(operation.outputs, [node.output for node in exits], strict=False))
        self._end(context, operation, exits, tokens)
        self._take_from_loop(context, loop, (condition, body), takers)

    def _enter(self, context: Context, loop: LoopParts, operation: Operation, position: int) -> Node:
        parameter = operation.op.regions[1].parameters[position]
        device = self.device_of(parameter.operation)
        value = context.gated(context.value(operation.inputs[position], device), device)
        return self._merge_of(loop, value, device, f"{loop.name}/{parameter.operation.name}", parameter.spec)

    def _enter_order(self, context: Context, loop: LoopParts, operation: Operation, effect: Any) -> Node:
        """Return a loop variable that carries nothing, for the order of what touches a resource."""
        device = self._device_touching(operation, effect.resource)
        value = self._token(context, effect.resource, device)
        return self._merge_of(loop, value, device, f"{loop.name}/order", None)

    def _merge_of(self, loop: LoopParts, value: Value, device: str, name: str, spec: Any) -> Node:
        enter = self.machine.add(Node("enter", name, device, loop.frame, [value], [spec]))
        return self.machine.add(Node("merge", name, device, loop.frame, [enter.output], [spec]))

    def _switch(self, loop: LoopParts, value: Value, device: str | None) -> Node:
        assert loop.goes_on is not None, "the condition comes first"
        specs = [spec_of(value)] * 2
        return self.machine.add(Node("switch", value.node.name, device, loop.frame, [value, loop.goes_on], specs))

    def _predicate(self, condition: LoopContext, op: While, loop: LoopParts) -> Value:
        result = op.condition.results[0]
        device = self.device_of(result.operation)
        value = condition.value(result, device)
        if value.node.kind == "const":
            value = condition.gated(value, device)
        node = Node("loop_cond", f"{loop.name}/cond", value.node.device, loop.frame, [value], [result.spec])
        return self.machine.add(node).output

    def _hand_back(self, body: LoopContext, loop: LoopParts, merge: Node, value: Value) -> None:
        device = str(merge.device)
        value = body.gated(value, device)
        node = Node("next_iteration", merge.name, device, loop.frame, [value], merge.specs)
        merge.inputs.append(self.machine.add(node).output)

    def _exit(self, loop: LoopParts, switch: Node) -> Node:
        node = Node("exit", switch.name, switch.device, loop.frame, [Value(switch, 0)], switch.specs[:1])
        return self.machine.add(node)

    def _token(self, context: Context, resource: Any, device: str | None) -> Value:
        """Return one control for all that has touched a resource so far."""
        return context.joined(context.order_of(resource), str(device), "order")

    def _end(self, context: Context, operation: Operation, results: Sequence[Node], tokens: dict[Any, Node]) -> None:
        """End a lowered loop or branch: it has run when its results, and what orders its effects, are there."""
        context.done[operation] = [node.output for node in (*results, *tokens.values())]
        for resource, node in tokens.items():
            context.latest[resource] = ([node.output], [])

    def _take_from_loop(
        self, context: Context, loop: LoopParts, inside: Sequence[LoopContext], takers: Sequence[Operation]
    ) -> None:
        for number, taker in enumerate(takers):
            if isinstance(taker.op, TripCount):
                device = self.device_of(taker)
                loop.control(device)
                spec = taker.outputs[0].spec
                node = Node("trips", context.label(taker), device, loop.frame, (), [spec], [taker])
            else:
                inner = op_of(taker, History).inner
                where = next(part for part in inside if part.region is inner.graph)
                device = self.device_of(inner.operation)
                value = where.gated(where.value(inner, device), device)
                record = Node("record", where.label(inner.operation), value.node.device, loop.frame, [value], ())
                record.history = number
                self.machine.add(record)
                spec = taker.outputs[0].spec
                node = Node("collect", context.label(taker), record.device, loop.frame, (), [spec], [taker])
                node.history = number
            self.machine.add(node)
            context.values[taker.outputs[0]] = node.output
            context.note_run(taker, [node.output])

    # --- branches ---------------------------------------------------------------------------------------------------

    def _lower_branches(self, context: Context, operation: Operation, takers: Sequence[Operation]) -> None:
        op = operation.op
        assert isinstance(op, Branch)
        choice_of = operation.inputs[0]
        device = self.device_of(choice_of.operation)
        choice = context.gated(context.value(choice_of, device), device)
        count = len(op.regions)
        switches = Switches(context, operation, choice, count)
        is_bool = switches.kind == "switch"
        recorded = _recorded(takers)
        branches = [
            BranchContext(context, region, context.label(operation), switches, 1 - number if is_bool else number)
            for number, region in enumerate(op.regions)
        ]
        tokens = {effect.resource: self._order_device(context, operation, effect) for effect in operation.effects}
        for resource, (token, where) in tokens.items():
            for branch in branches:
                branch.latest[resource] = ([switches.of(token, where, branch.port)], [])
        for branch, region in zip(branches, op.regions, strict=True):
            self._lower_block(branch, needed_in_region(region, [t for t in recorded if t.graph is region]))
        results = [self._merged(context, branches, operation, k) for k in range(len(operation.outputs) - 1)]
        context.values.update(zip(operation.outputs, [node.output for node in results], strict=False))
        ends = {
            resource: self._merge(
                context, f"{context.label(operation)}/order", where, [self._token(b, resource, where) for b in branches]
            )
            for resource, (_, where) in tokens.items()
        }
        self._end(context, operation, results, ends)
        for taker in takers:
            self._save(context, branches, op.regions, taker)

    def _order_device(self, context: Context, operation: Operation, effect: Any) -> tuple[Value, str]:
        device = self._device_touching(operation, effect.resource)
        token = self._token(context, effect.resource, device)
        return context.gated(token, device), device

    def _merged(self, context: Context, branches: Sequence[BranchContext], operation: Operation, position: int) -> Node:
        results = [region.results[position] for region in operation.op.regions]
        device = self._device_of_results(branches, operation, results)
        values = [branch.gated(branch.value(r, device), device) for branch, r in zip(branches, results, strict=True)]
        return self._merge(context, context.label(operation), device, values, operation.outputs[position].spec)

    def _device_of_results(
        self, branches: Sequence[BranchContext], operation: Operation, results: Sequence[Symbol]
    ) -> str:
        """Return the device where a result is made, by the first branch that makes it and does not just pass it on."""
        for branch, result in zip(branches, results, strict=True):
            if result not in branch.outers and not isinstance(result.operation.op, Constant):
                return self.device_of(result.operation)
        return self.device_of(operation)

    def _merge(self, context: Context, name: str, device: str, values: Sequence[Value], spec: Any = None) -> Node:
        return self.machine.add(Node("merge", name, device, context.frame, values, [spec]))

    def _save(
        self, context: Context, branches: Sequence[BranchContext], regions: Sequence[Region], taker: Operation
    ) -> None:
        """Save the value of a tensor in the branch that was taken; nothing (None) from other branches."""
        inner = op_of(taker, Saved).inner
        device = self.device_of(inner.operation)
        values: list[Value] = []
        for branch, region in zip(branches, regions, strict=True):
            if inner.graph is region:
                values.append(branch.gated(branch.value(inner, device), device))
            else:
                values.append(branch.nothing(device))
        node = self._merge(context, context.label(taker), device, values, taker.outputs[0].spec)
        context.values[taker.outputs[0]] = node.output
        context.note_run(taker, [node.output])

    # --- devices ----------------------------------------------------------------------------------------------------

    def _device_touching(self, operation: Operation, resource: Any) -> str:
        """Return the device on which the first operation inside a loop or branch uses a resource."""
        for region in operation.op.regions:
            for inner in region.operations:
                if not any(is_same(effect.resource, resource) for effect in inner.effects):
                    continue
                return self._device_touching(inner, resource) if inner.op.regions else self.device_of(inner)
        return self.device_of(operation)

    def _complete_controls(self) -> None:
        """Give every device that takes part in a loop something that starts its iterations."""
        by_frame = {loop.frame: loop for loop, _ in self._loops}
        taking_part: dict[tuple[Any, str], None] = {}
        started = {(node.frame, node.device) for node in self.machine.nodes if node.kind == "next_iteration"}
        for node in self.machine.nodes:
            if node.device is not None:
                taking_part.update({(frame, node.device): None for frame in node.frame.around()})
        for frame, device in sorted(taking_part, key=lambda pair: -pair[0].depth):
            if frame in by_frame and (frame, device) not in started:
                by_frame[frame].control(device)
        for frame, loop in by_frame.items():
            devices = [device for where, device in started if where is frame and device is not None]
            if devices:
                for device in late_starters(self.machine.nodes, frame, sorted(set(devices))):
                    loop.control(device)


def _has_frame(operation: Operation) -> bool:
    """Test whether an operation has a record that is not a value: operations that take from it are printed with it."""
    return bool(operation.outputs) and type(operation.outputs[-1].spec) is FrameSpec


def _recorded(takers: Iterable[Operation]) -> list[Symbol]:
    return [taker.op.inner for taker in takers if isinstance(taker.op, (History, Saved))]
