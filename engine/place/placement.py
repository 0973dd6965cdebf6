"""`placement`: which device each operation of a step runs on, as a table to read and to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..common.identity import is_among
from ..common.nest import flatten
from ..graph.device import DeviceName, State
from ..graph.graph import Graph, Operation, Parameter, Placeholder, get_default_graph
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..passes.framework.prune import needed_operations
from .constraints import PlacementError
from .costs import CostModel, costs_of_process
from .devices import Device, host_of, list_devices, named
from .kernels import is_split
from .search import on_one_device, search
from .simulate import Simulated, simulate
from .tasks import Layout


class Placement(Mapping[Operation, Device]):
    """The device of each operation of a step, those inside loops and branches included.

    As text it is a table by device. `moved` gives another one.

    Attributes:
        devices: those that were to be had.
        simulated: the step's run, as it is expected to be.
    """

    def __init__(self, layout: Layout, places: Sequence[int], simulated: Simulated) -> None:
        self._layout = layout
        self._places = list(places)
        self.devices = list(layout.devices)
        self.simulated = simulated

    # --- a mapping --------------------------------------------------------------------------------------------------

    def __getitem__(self, item: Any) -> Device:
        """Return the device of an operation (itself, one of its outputs, or its full name), or of a variable.

        Raises:
            KeyError: it is not part of the step.
        """
        return self.devices[self._places[self._group(item)]]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._layout.operations)

    def __len__(self) -> int:
        return len(self._layout.operations)

    def _group(self, item: Any) -> int:
        if isinstance(item, str):
            item = next((operation for operation, name in self._layout.names.items() if name == item), item)
        if isinstance(item, State):
            touching = [each for each in self if any(effect.resource is item for effect in each.effects)]
            item = next((operation for operation in touching if not operation.op.regions), item)
        operation = item.operation if isinstance(item, Symbol) else item
        group = self._layout.groups.get(operation)
        if group is None:
            raise KeyError(f"{item!r} is no part of the step that was placed.")
        return group

    def name_of(self, operation: Operation) -> str:
        """Return the full name of an operation: ``loop/body/name`` for one inside a loop."""
        return self._layout.names[operation]

    # --- changing it ------------------------------------------------------------------------------------------------

    def moved(self, item: Any, device: str) -> Placement:
        """Return another placement, with an operation, and all that must be with it, on another device.

        Args:
            item: an operation, tensor, variable or full name.
            device: a device's name; where it is open, the first that fits.

        Raises:
            PlacementError: it can't run there.
        """
        group = self._group(item)
        asked = DeviceName.parse(device)
        numbers = [number for number in self._layout.choices[group] if asked.accepts(self.devices[number].spec)]
        if not numbers:
            feasible = named([self.devices[number] for number in self._layout.choices[group]])
            raise PlacementError(
                f"{item!r} can't be moved to {device!r}: with what it is bound to it runs on {feasible}."
            )
        places = list(self._places)
        places[group] = numbers[0]
        return Placement(self._layout, places, simulate(self._layout, places))

    def if_it_pays(self, seconds_a_run: float) -> Placement:
        """Return this placement, or everything on the first device, if that is allowed and hardly takes longer.

        Args:
            seconds_a_run: what it costs the host to run an operation by itself, in a step that spans devices.
        """
        places = on_one_device(self._layout, 0)
        if len(set(places)) > 1:
            return self  # something asks to be elsewhere
        alone = simulate(self._layout, places)
        effort = seconds_a_run * sum([task.weight for task in self._layout.tasks])
        if alone.over or alone.seconds > self.seconds + effort:
            return self
        return Placement(self._layout, places, alone)

    def together(self) -> Placement:
        """Return this placement, or, if one GPU is used and nothing asks to be elsewhere, all that may be there on it.

        What may not stays with the host of the GPU. A step that stays on a GPU is launched as a whole, while values
        that cross cost the host some time each.
        """
        used = {self.devices[number] for number in self._places}
        gpus = [device for device in used if device.kind == "gpu"]
        if len(gpus) != 1:
            return self
        near = [self.devices.index(device) for device in (gpus[0], host_of(gpus[0], self.devices))]
        places = [next((number for number in near if number in choices), -1) for choices in self._layout.choices]
        if -1 in places:
            return self
        simulated = simulate(self._layout, places)
        return self if simulated.over else Placement(self._layout, places, simulated)

    # --- figures ----------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """The expected time of a run of the step, in seconds."""
        return self.simulated.seconds

    @property
    def crossings(self) -> list[tuple[Operation, Device, int]]:
        """The values that cross: the operation that makes it, the device it is sent to, its bytes."""
        found = {
            (self._layout.tasks[number].operation, self.devices[to]): size
            for number, to, size in self.simulated.crossings
        }
        return [(operation, device, size) for (operation, device), size in found.items()]

    def __str__(self) -> str:
        counts = Counter(self.values())
        received = Counter(device for _, device, _ in self.crossings)
        rows = [("device", "operations", "busy", "memory", "receives")]
        for number, device in enumerate(self.devices):
            busy, peak = self.simulated.busy[number], self.simulated.peak[number]
            share = "" if device.memory_limit is None else f" of {_bytes(device.memory_limit)}"
            line = (str(counts[device]), _seconds(busy), _bytes(peak) + share, f"{received[device]} values")
            rows.append((device.name, *line))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        sent = sum(size for _, _, size in self.crossings)
        lines.append(f"{_seconds(self.seconds)} a step; {len(self.crossings)} values cross, {_bytes(sent)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Placement of {len(self)} operations on {named(self.devices)}>"


def place(
    operations: Sequence[Operation],
    fed: Sequence[Symbol] = (),
    devices: Sequence[Device] | None = None,
    costs: CostModel | None = None,
    effort: int | None = None,
    like: Placement | None = None,
) -> Placement:
    """Place the operations of a step, as they come from pruning, in program order.

    Args:
        operations: what runs, with the placeholders that are fed.
        fed: other tensors whose values are fed.
        devices: where it may run; by default the devices of this process.
        costs: times and sizes; by default what was measured in this process, and else estimates.
        effort: how many tasks may be simulated to improve on the greedy placement; by default more for longer steps.
        like: a placement that is taken over for what has the same name there.

    Raises:
        PlacementError: an operation fits on no device, requests contradict each other, or the memory of the devices
            does not suffice.
    """
    layout = Layout(operations, fed, list_devices() if devices is None else list(devices), costs or costs_of_process())
    if like is not None:
        _take_over(layout, like)
    places, simulated = search(layout, effort)
    if simulated.over:
        raise _too_large(layout, simulated)
    return Placement(layout, places, simulated)


def _take_over(layout: Layout, like: Placement) -> None:
    """Leave operations no choice that another placement has placed, by their names.

    Raises:
        PlacementError: one can't be where that one says.
    """
    wanted = {like.name_of(operation): device.name for operation, device in like.items()}
    numbers = {device.name: number for number, device in enumerate(layout.devices)}
    for operation in sorted(layout.operations, key=lambda operation: isinstance(operation.op, Parameter)):
        name = wanted.get(layout.names[operation])
        if name is None or is_split(operation.op) or isinstance(operation.op, Constant):
            continue
        group = layout.groups[operation]
        choices = layout.choices[group]
        if isinstance(operation.op, Parameter) and (len(choices) == 1 or numbers.get(name) not in choices):
            continue  # what takes it was more important
        if numbers.get(name) not in choices:
            feasible = named([layout.devices[number] for number in choices])
            raise PlacementError(
                f"The given placement has {layout.names[operation]!r} on {name}, but with what it is bound to it runs "
                f"on {feasible}. Make the placement again, with ab.placement, for the devices and the step as they are."
            )
        layout.choices[group] = [numbers[name]]


def _too_large(layout: Layout, simulated: Simulated) -> PlacementError:
    held = [
        f"{device.name} would hold {_bytes(peak)} of {_bytes(device.memory_limit)}"
        for device, peak in zip(layout.devices, simulated.peak, strict=True)
        if device.memory_limit is not None and peak > device.memory_limit
    ]
    return PlacementError(
        f"The step does not fit into the memory of the devices: in the best placement that was found "
        f"{', '.join(held)}. Declare more devices or higher limits (ab.config.set_devices), make batches smaller, or "
        "ask for devices by hand (ab.device)."
    )


def placement(
    fetches: Any, feeds: Sequence[Any] = (), devices: Sequence[Device] | None = None, costs: CostModel | None = None
) -> Placement:
    """Return the device of each operation that `fetches` need.

    Args:
        fetches: tensors, operations, variables, or nested structures of these.
        feeds: tensors that are fed.
        devices: where it may run; by default the devices of this process (`anabranch.config.set_devices`).
        costs: times and sizes; by default what was measured in this process, and else estimates from types and shapes.

    Raises:
        PlacementError: an operation fits on no device, requests contradict each other, or the devices' memory does not
            suffice.

    Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section 3.2.1.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((512, 512), "float32", "x")
    ...     found = ab.placement(x @ x)
    >>> print(found)
    device  operations  busy    memory    receives
    cpu:0   2           5.4 ms  2.1 MB    0 values
    5.4 ms a step; 0 values cross, 0 bytes
    """
    leaves = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
    graphs: list[Graph] = [leaf.graph for leaf in leaves if isinstance(leaf, (Symbol, Operation))]
    graph = (graphs[0] if graphs else get_default_graph()).root
    targets = [graph.read(leaf) if isinstance(leaf, Variable) else leaf for leaf in leaves]
    given = [graph.read(feed) if isinstance(feed, Variable) else feed for feed in feeds]
    placeholders = [feed for feed in given if isinstance(feed.operation.op, Placeholder)]
    others = [feed for feed in given if not is_among(feed, placeholders)]
    return place(needed_operations(graph, targets, others), others, devices, costs)


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _bytes(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), (1, "bytes"))
    return f"{size} bytes" if unit == 1 else f"{size / unit:.1f} {name}"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
