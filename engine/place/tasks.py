"""A step as what the placer simulates: the runs of operations, their order, and the values between them.

A loop is laid out as a few iterations in a row, each of which stands for its share of all; so a loop whose iterations
overlap on several devices is seen to. A branch counts by how many there are to choose from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field, replace

from ..common.quick_dataclass import dataclass
from ..control_flow.frames import History, Saved
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Parameter
from ..graph.op import OUTSIDE_WORLD
from ..graph.region import Region
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..passes.framework.estimates import bytes_of
from ..passes.framework.prune import frame_users
from .constraints import Constraints
from .costs import ASSUMED_ITERATIONS, CostModel
from .devices import Device
from .kernels import all_operations, inner_operations, is_host_value, is_split

_ITERATIONS_IN_A_ROW = 4
_Sources = tuple[tuple[int, int], ...]  # of a value: the tasks that make it, and its bytes; -1 for values on the host


@dataclass
class Task:
    """One run of an operation, or a share of its runs in a loop.

    Attributes:
        operation: what runs.
        group: the number of its colocation group.
        weight: how many runs it stands for.
        seconds: on each device.
        made: bytes of its results.
        inputs: for each task that makes what this one takes: its number, and the bytes (-1: a value on the host).
    """

    operation: Operation
    group: int
    weight: float
    seconds: list[float]
    made: int
    inputs: list[tuple[int, int]]
    users: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class Layout:
    """All tasks of a step, in program order.

    Args:
        operations: those of the step, in program order.
        fed: tensors whose values are fed.
        devices: where they may run.
        costs: what they take.

    Attributes:
        tasks: what runs.
        choices: for each group, the numbers of the devices on which it may be placed.
        resident: for each group, the bytes of its variables and constants.
        names: the full name of each operation.
        groups: the number of each operation's group.
    """

    def __init__(
        self, operations: Sequence[Operation], fed: Iterable[Symbol], devices: Sequence[Device], costs: CostModel
    ) -> None:
        self.operations = list(all_operations(list(operations)))
        self.devices = devices
        self.costs = costs
        self.constraints = Constraints(self.operations, devices)
        self._models: list[Device] = []  # one device of those that are alike
        self._model_of = [self._model(device) for device in devices]
        self.tasks: list[Task] = []
        self.names: dict[Operation, str] = {}
        self.groups: dict[Operation, int] = {}
        self.choices: list[list[int]] = []
        self.resident: list[int] = []
        self._first_users: dict[Operation, int] = {}  # of constants: the group that takes them first
        self._numbers: dict[Hashable, int] = {}
        self._counted: set[Variable] = set()
        self._sources: dict[Symbol, _Sources] = dict.fromkeys(fed, ())
        self._fed = set(self._sources)
        self._latest: dict[object, int] = {}  # for each resource, the latest task that touched it
        for operation in self.operations:
            self.groups[operation] = self._group(operation)
        self._add_all(list(operations), "", 1.0, (), 0)
        self._settle_constants()
        for number, task in enumerate(self.tasks):
            for producer, size in task.inputs:
                self.tasks[producer].users.append((number, size))

    def _model(self, device: Device) -> int:
        for number, known in enumerate(self._models):
            if known.kind == device.kind and replace(known, spec=device.spec) == device:
                return number
        self._models.append(device)
        return len(self._models) - 1

    def _group(self, operation: Operation) -> int:
        root = self.constraints.root(operation)
        number = self._numbers.get(root)
        if number is None:
            number = self._numbers[root] = len(self.choices)
            self.choices.append(self.constraints.feasible(operation))
            self.resident.append(0)
        return number

    # --- laying out -------------------------------------------------------------------------------------------------

    def _add_all(
        self, operations: list[Operation], path: str, weight: float, guards: Sequence[tuple[int, int]], depth: int
    ) -> None:
        users = frame_users(operations)
        for operation in operations:
            self.names[operation] = path + operation.name
            if isinstance(operation.op, Parameter):
                continue
            if not is_split(operation.op):
                self._add(operation, weight, guards)
                continue
            inner = inner_operations(operation, users)
            if isinstance(operation.op, While):
                self._add_loop(operation, inner, weight, guards, depth)
            else:
                self._add_branches(operation, inner, weight, guards, depth)

    def _add(self, operation: Operation, weight: float, guards: Sequence[tuple[int, int]]) -> None:
        group = self.groups[operation]
        if isinstance(operation.op, Constant):
            self.resident[group] += sum([bytes_of(tensor.spec) for tensor in operation.outputs])
            self._sources.update(dict.fromkeys(operation.outputs, ()))
            return
        inputs = self._taken(operation.inputs) + list(guards)
        if isinstance(operation.op, (History, Saved)):
            inputs += self._sources.get(operation.op.inner, ())
        for control in operation.control_inputs:
            inputs += [(number, -1) for tensor in control.outputs[:1] for number, _ in self._sources.get(tensor, ())]
        for effect in operation.effects:
            if effect.resource is OUTSIDE_WORLD:
                continue
            if effect.resource in self._latest:
                inputs.append((self._latest[effect.resource], -1))
            self._latest[effect.resource] = len(self.tasks)
            self._count(effect.resource, group)
        for tensor in operation.inputs:
            if isinstance(tensor.operation.op, Constant):
                self._first_users.setdefault(tensor.operation, group)
        self._append(operation, weight, inputs)

    def _append(self, operation: Operation, weight: float, inputs: Iterable[tuple[int, int]]) -> None:
        number, name = len(self.tasks), self.names[operation]
        of_kinds = [self._seconds(operation, device, name) * weight for device in self._models]
        seconds = [of_kinds[number] for number in self._model_of]
        most: dict[int, int] = {}
        for producer, size in inputs:
            most[producer] = max(most.get(producer, -1), size)
        made = self.costs.bytes(operation, name)
        task = Task(operation, self.groups[operation], weight, seconds, made, list(most.items()))
        self.tasks.append(task)
        for tensor in operation.outputs:
            if tensor not in self._fed:
                size = -1 if is_host_value(tensor) else self.costs.size(tensor, name)
                self._sources[tensor] = ((number, size),)

    def _seconds(self, operation: Operation, device: Device, name: str) -> float:
        if not operation.op.regions or is_split(operation.op):
            return self.costs.seconds(operation, device, name)
        inside = [each for region in operation.op.regions for each in region.operations]
        return ASSUMED_ITERATIONS * sum([self.costs.seconds(each, device) for each in inside])

    def _taken(self, tensors: Iterable[Symbol]) -> list[tuple[int, int]]:
        return [source for tensor in tensors for source in self._sources[tensor]]

    def _settle_constants(self) -> None:
        """Settle constants, of which each device has a copy, where they are used first."""
        computing = {task.group for task in self.tasks}
        for operation, user in self._first_users.items():
            group = self.groups[operation]
            if group not in computing and set(self.choices[user]) <= set(self.choices[group]):
                self.groups[operation] = user
                self.resident[user] += self.resident[group]
                self.resident[group] = 0

    def _count(self, resource: object, group: int) -> None:
        """Count the memory of variables on their devices, each once."""
        if isinstance(resource, Variable) and resource not in self._counted:
            self._counted.add(resource)
            self.resident[group] += resource.nbytes

    def _enter(self, region: Region, outer: Operation) -> str:
        """Give a region's captured values their sources; return the path of its operations' names."""
        for tensor, parameter in region.captures:
            self._sources[parameter] = self._sources[tensor]
            self.names[parameter.operation] = f"{self.names[outer]}/{region.name}/{parameter.operation.name}"
        return f"{self.names[outer]}/{region.name}/"

    def _add_loop(
        self,
        operation: Operation,
        inner: list[list[Operation]],
        weight: float,
        guards: Sequence[tuple[int, int]],
        depth: int,
    ) -> None:
        op = operation.op
        assert isinstance(op, While)
        iterations = self.costs.iterations(self.names[operation])
        copies = 1 if depth else max(1, min(_ITERATIONS_IN_A_ROW, int(iterations)))
        share = weight * iterations / copies
        carried = [self._sources[tensor] for tensor in operation.inputs[: op.carried]]
        for _ in range(copies):
            self._sources.update(zip(op.condition.parameters, carried, strict=True))
            self._add_all(inner[0], self._enter(op.condition, operation), share, guards, depth + 1)
            goes_on = [(number, -1) for number, _ in self._sources[op.condition.results[0]]]
            path = self._enter(op.body, operation)
            for parameter, sources in zip(op.body.parameters, carried, strict=True):
                self.names[parameter.operation] = path + parameter.operation.name
                if parameter.operation in self.groups:
                    self._append(parameter.operation, share, [*sources, *goes_on])
                else:  # the body does not read it, and hands it on or makes a new one
                    self._sources[parameter] = (*sources, *goes_on)
            self._add_all(inner[1], path, share, guards, depth + 1)
            carried = [self._sources[result] for result in op.body.results]
        self._end(operation, weight, carried)

    def _add_branches(
        self,
        operation: Operation,
        inner: list[list[Operation]],
        weight: float,
        guards: Sequence[tuple[int, int]],
        depth: int,
    ) -> None:
        regions = operation.op.regions
        choice = [*guards, *self._sources[operation.inputs[0]]]
        results: list[_Sources] = [()] * len(regions[0].results)
        for region, operations in zip(regions, inner, strict=True):
            path = self._enter(region, operation)
            self._add_all(operations, path, weight / len(regions), choice, depth + 1)
            results = [(*known, *self._sources[new]) for known, new in zip(results, region.results, strict=True)]
        self._end(operation, weight, results)

    def _end(self, operation: Operation, weight: float, results: list[_Sources]) -> None:
        """Append the loop or branch itself, which takes no time; its results come from inside."""
        self._append(operation, weight, [(number, -1) for sources in results for number, _ in sources])
        last = ((len(self.tasks) - 1, -1),)
        for output, sources in zip(operation.outputs[:-1], results, strict=True):
            if output not in self._fed:
                self._sources[output] = sources or last
