"""Constraints of placement: feasible devices of each operation, and which of them must be together.

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), sections
3.2.1 and 4.3: feasible sets, then union-find over colocation, then the intersection for each component.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from ..common.identity import is_among
from ..control_flow.call import Recursion
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.while_loop import While
from ..graph.device import Colocation, DeviceName, State
from ..graph.graph import Graph, Operation, Parameter, Placeholder
from ..graph.spec import ArraySpec
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.containers.record_value import RecordSpec
from ..ops.math.elementwise import Add
from ..passes.framework.prune import all_blocks, needed_operations
from .devices import KINDS, LOCAL, Device, host_of, list_devices, named
from .kernels import all_operations, is_split, runs_on_host, why_not


class PlacementError(ValueError):
    """An operation fits on no device, or what must be together can't be.

    A request (`ab.device`, `ab.colocate_with`) is kept or refused, never passed over: nothing runs elsewhere than where
    it was asked to. To run one program on different machines, ask for less ("gpu" instead of "gpu:1"), choose by a
    function, or declare simulated devices with ``ab.config.set_devices(sim=1)``.
    """


def declared_for(asking: str, name: str) -> list[Device]:
    """Return the devices that are meant where something runs at once and a device of this process is asked for.

    A name with a job or task is for the variables that are made there: then there are none.

    Args:
        asking: for errors: what runs.
        name: the device's name.

    Raises:
        PlacementError: none is declared of that name.
    """
    asked, devices = DeviceName.parse(name), list_devices()
    if asked.job is not None or asked.task is not None:
        return []
    meant = [device for device in devices if asked.accepts(device.spec)]
    if not meant:
        raise _no_such_device(asking, name, devices)
    return meant


def _no_such_device(asking: str, name: str, devices: Sequence[Device]) -> PlacementError:
    kind = (DeviceName.parse(name).kind or "cpu").lower()
    remedy = f"Declare others with ab.config.set_devices({kind}=...), or ask for one of these."
    if kind not in KINDS:
        remedy = f"There is no kind of device {kind!r}: ask for one of these."
    if any(device.spec.job != LOCAL.job for device in devices):
        more = "Give the task more of them (Server(devices={'cpu': n}), worker --cpus), or ask"
        remedy = f"{more if kind == 'cpu' else 'Tasks have CPUs alone: ask'} for one of these."
    return PlacementError(f"{asking} asks for device {name!r}, but the devices are {named(devices)}. {remedy}")


class Constraints:
    """Feasible sets and colocation groups of a step's operations.

    Args:
        operations: everything that runs, the insides of loops and branches included (`all_operations`).
        devices: where it may run.
        preferences: also bring together what had better be together, where that is possible.

    Raises:
        PlacementError: an operation fits nowhere, or requests contradict each other.
    """

    def __init__(self, operations: Sequence[Operation], devices: Sequence[Device], preferences: bool = True) -> None:
        self.operations = operations
        self.devices = devices
        self._everywhere = (1 << len(devices)) - 1
        self._hosts = _host_masks(devices)
        self._matching: dict[str, int] = {}
        self._parents: dict[Hashable, Hashable] = {}
        self._masks: dict[Hashable, int] = {}
        self._members: dict[Hashable, list[Operation]] = {}
        self._costly: set[Hashable] = set()  # groups of which some operation computes
        self._own = {operation: self._feasible(operation) for operation in operations}
        for operation in operations:
            self._add(operation, self._own[operation], [operation])
            if not _is_free(operation):
                self._costly.add(operation)
        has_records = any(isinstance(operation.op, Recursion) for operation in operations)
        for operation in operations:
            self._bind(operation)
            for one, other in _handed_on(operation) if has_records else ():
                if _is_record(other):
                    self._near(one, other, "what a recursive function records does not leave its task")
        if preferences:
            for operation in operations:
                self._prefer(operation)

    # --- results ----------------------------------------------------------------------------------------------------

    def root(self, operation: Hashable) -> Hashable:
        """Return the representative of an operation's group."""
        parent = self._parents[operation]
        while parent is not self._parents[parent]:
            self._parents[operation] = self._parents[parent]
            operation, parent = parent, self._parents[parent]
        return parent

    def feasible(self, operation: Operation) -> list[int]:
        """Return the positions of the devices on which an operation, with all of its group, may be placed."""
        mask = self._masks[self.root(operation)]
        return [number for number in range(len(self.devices)) if mask >> number & 1]

    def group_of(self, operation: Operation) -> list[Operation]:
        """Return the operations that are placed together with this one."""
        return self._members[self.root(operation)]

    # --- feasible sets ----------------------------------------------------------------------------------------------

    def _feasible(self, operation: Operation) -> int:
        op = operation.op
        if isinstance(op, (Parameter, History, Saved)) or is_split(op):
            return self._everywhere
        asked = self._matching_devices(operation)
        if runs_on_host(operation):
            return _union(self._hosts[number] for number in _positions(asked))
        if isinstance(op, Placeholder) and not operation.device:
            return _union(self._hosts)  # what is fed comes from the host
        refusals = {device.kind: why_not(device.kind, operation) for device in self.devices}
        mask = _union(1 << number for number in _positions(asked) if refusals[self.devices[number].kind] is None)
        if mask:
            return mask
        number = _positions(asked)[0]
        asks = f" asks for {operation.device!r}," if operation.device else ""
        raise PlacementError(
            f"{_described(operation)}{asks} can't run there: {refusals[self.devices[number].kind]}. "
            f'The devices are {named(self.devices)}. Build it inside `with ab.device("cpu:0")`, or ask for nothing.'
        )

    def _matching_devices(self, operation: Operation) -> int:
        name = operation.device
        mask = self._matching.get(name)
        if mask is None:
            asked = DeviceName.parse(name) if name else DeviceName()
            mask = _union(1 << number for number, device in enumerate(self.devices) if asked.accepts(device.spec))
            self._matching[name] = mask
        if mask:
            return mask
        raise _no_such_device(_described(operation), name, self.devices)

    # --- groups -----------------------------------------------------------------------------------------------------

    def _bind(self, operation: Operation) -> None:
        """Bring together what must be: state and what touches it, explicit colocation, what is recorded and its record.

        The inside of a recursion, too.
        """
        if is_split(operation.op):
            return
        if isinstance(operation.op, (History, Saved)):
            recorded = operation.op.inner.operation
            if recorded in self._parents:
                self._unite(operation, recorded, "what a loop or branch saves is recorded where it is made")
            return
        for region in operation.op.regions:
            for block in all_blocks(region.operations):  # those of branches and loops inside are not spread, either
                for inner in block:
                    if inner in self._parents:
                        self._unite(operation, inner, "a recursive function is not spread over devices")
        for effect in operation.effects:
            if not isinstance(effect.resource, str) and not operation.op.regions:
                self._unite_with_resource(operation, effect.resource)
        for held in () if runs_on_host(operation) else operation.colocations:  # the host's memory is near all devices
            if isinstance(held, Colocation) and held.binding:
                self._add(held, self._everywhere, [])
                self._unite(held, operation, f"ab.colocate_with at {held.location}")
            elif isinstance(held, State):
                self._unite_with_resource(operation, held)

    def _unite_with_resource(self, item: Hashable, resource: Any) -> None:
        is_new = resource not in self._parents
        self._add(resource, self._everywhere, [])
        if is_new and isinstance(resource, State):
            for held in resource.colocations:
                self._add(held, self._everywhere, [])
                self._unite(held, resource, f"variable {getattr(resource, 'name', '')!r} was made there")
        self._unite(resource, item, f"what touches {getattr(resource, 'name', 'a resource')!r} runs where it is")

    def _prefer(self, operation: Operation) -> None:
        """Bring together what crosses devices badly, if that is possible."""
        for held in operation.colocations:
            if isinstance(held, Colocation) and not held.binding:
                self._add(held, self._everywhere, [])
                self._unite(held, operation)
        op = operation.op
        if not isinstance(op, (History, Saved, TripCount)) and not is_split(op):
            self._near_arrays(operation)
        if isinstance(op, While):
            self._near(operation, op.condition.results[0])
            for parameter, result in zip(op.body.parameters, op.body.results, strict=True):
                self._near(parameter.operation, result)
                self._near_product(parameter, result)
            for parameter, other in zip(op.condition.parameters, op.body.parameters, strict=True):
                self._near(parameter.operation, other)
        elif is_split(op):
            for results in zip(*[region.results for region in op.regions], strict=True):
                for result in results[1:]:
                    self._near(results[0].operation, result)
        for region in op.regions:
            for outer, parameter in region.captures:
                self._near(parameter.operation, outer)

    def _near_product(self, parameter: Symbol, result: Symbol) -> None:
        """Put a running sum where its terms are made, so that none has to be moved in every iteration."""
        inputs = result.operation.inputs
        if isinstance(result.operation.op, Add) and is_among(parameter, inputs):
            for other in inputs:
                self._near(result.operation, other)

    def _near_arrays(self, operation: Operation) -> None:
        """Put what writes and reads a TensorArray on one device: it is one buffer that its writes hand on."""
        if operation.type == "shape_of":
            self._near(operation, operation.inputs[0])
        for tensor in operation.inputs:
            if isinstance(tensor.spec, ArraySpec):
                self._near(operation, tensor)

    def _near(self, operation: Operation, tensor: Symbol, because: str = "") -> None:
        if operation in self._parents and tensor.operation in self._parents:
            self._unite(operation, tensor.operation, because)

    def _add(self, item: Hashable, mask: int, members: list[Operation]) -> None:
        if item not in self._parents:
            self._parents[item] = item
            self._masks[item] = mask
            self._members[item] = members

    def _unite(self, one: Hashable, other: Hashable, because: str = "") -> None:
        """Make two groups one.

        Without a reason this is a preference. It is given up where it can't be, and where something that computes
        would lose devices by it.
        """
        a, b = self.root(one), self.root(other)
        if a is b:
            return
        common = self._masks[a] & self._masks[b]
        if not because and (not common or self._loses(a, common) or self._loses(b, common)):
            return
        if not common:
            raise self._contradiction(self._members[a], self._members[b], because)
        if len(self._members[a]) < len(self._members[b]):
            a, b = b, a
        self._parents[b] = a
        self._masks[a] = common
        if b in self._costly:
            self._costly.add(a)
        self._members[a].extend(self._members.pop(b))

    def _loses(self, group: Hashable, mask: int) -> bool:
        return group in self._costly and self._masks[group] != mask

    def _contradiction(self, some: list[Operation], others: list[Operation], because: str) -> PlacementError:
        """Return the error that names two operations that can't be together."""
        pairs = [(one, other) for one in some for other in others]
        disjoint = [pair for pair in pairs if not self._own[pair[0]] & self._own[pair[1]]]
        one, other = (disjoint or pairs)[0]
        return PlacementError(
            f"{_described(one)} {self._claim(one)}, and {_described(other)} {self._claim(other)}, "
            f"but both must be on the same device: {because}. Ask for the same device for both, or for none for one."
        )

    def _claim(self, operation: Operation) -> str:
        if operation.device:
            return f"asks for {operation.device!r}"
        return f"can run on {named([self.devices[number] for number in _positions(self._own[operation])])} only"


def check_step(graph: Graph, targets: Iterable[Symbol | Operation], feeds: Iterable[Symbol] = ()) -> None:
    """Refuse a step of which something fits on no declared device.

    Raises:
        PlacementError: it names the operation, its line, what was asked for and the devices.
    """
    needed = needed_operations(graph, targets, feeds)
    if {operation.device for block in all_blocks(needed) for operation in block} <= {""}:
        return  # everything fits on the CPU
    operations = list(all_operations(needed))
    if any(operation.device for operation in operations):
        Constraints(operations, list_devices(), preferences=False)


def _handed_on(operation: Operation) -> Iterator[tuple[Operation, Symbol]]:
    """Yield the values that an operation takes, or hands into and out of loops and branches: to whom, and which."""
    op = operation.op
    if not is_split(op):
        for tensor in operation.inputs:
            yield operation, tensor
    for region in op.regions:
        for outer, parameter in region.captures:
            yield parameter.operation, outer
        for result in region.results if isinstance(op, Branch) else ():
            yield operation, result
    if isinstance(op, While):
        for k, result in enumerate(op.body.results):
            yield op.condition.parameters[k].operation, op.body.parameters[k]
            yield op.body.parameters[k].operation, operation.inputs[k]
            yield op.body.parameters[k].operation, result
            yield op.body.parameters[k].operation, operation.outputs[k]


def _is_record(tensor: Symbol) -> bool:
    spec = tensor.spec
    while isinstance(spec, ArraySpec):
        spec = spec.element
    return isinstance(spec, RecordSpec)


def _is_free(operation: Operation) -> bool:
    return isinstance(operation.op, (Parameter, ReadVariable, History, Saved, TripCount)) or is_split(operation.op)


def _described(operation: Operation) -> str:
    states = [effect.resource for effect in operation.effects if isinstance(effect.resource, State)]
    if states and not operation.op.regions:
        name = getattr(states[0], "name", "")
        kind = type(states[0]).__name__ if states[0].on_host else "Variable"
        return f"{kind} {name!r} (made at {states[0].location})"
    return f"Operation {operation.name!r} ({operation.type}, defined at {operation.location})"


def _host_masks(devices: Sequence[Device]) -> list[int]:
    places = {device: number for number, device in enumerate(devices)}
    return [1 << places[host_of(device, devices)] for device in devices]


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _positions(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]
