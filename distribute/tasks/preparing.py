"""Reading of documents that ask for a step: its operations, devices, settings and placement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...engine.graph.device import DeviceName, task_of
from ...engine.graph.graph import Graph, Operation
from ...engine.machine.program import place_by_cost
from ...engine.ops.text.escape import NumpyFunction
from ...engine.passes.framework.switches import turned_off
from ...engine.place.costs import CostModel, Link
from ...engine.place.devices import Device
from ...engine.place.kernels import all_operations

_CHARACTERS_BEFORE, _CHARACTERS_BEHIND = 40, 120  # of a line, around the place where it differs from another


def named_target(graph: Graph, name: Sequence[int]) -> Any:
    """Return the operation, or with a second number the output of it, that a document names."""
    operation = graph.operations[int(name[0])]
    return operation if len(name) == 1 else operation.outputs[int(name[1])]


def read_devices(described: Sequence[Any]) -> list[Device]:
    """Return devices of several tasks, from their names."""
    return [Device(DeviceName.parse(name), bandwidth=2e9, latency=2e-5) for name in described]


def check_lossy(pairs: Sequence[Sequence[str]], tasks: Sequence[str]) -> None:
    """Refuse pairs that name what the cluster does not have.

    Raises:
        ValueError: one does.
    """
    known = [DeviceName.parse(task) for task in tasks]
    for name in [name for pair in pairs for name in pair]:
        asked = DeviceName.parse(name).of_task()
        if not any(asked.accepts(task) for task in known):
            raise ValueError(
                f"lossy names {name!r}, but the tasks of the cluster are {', '.join(tasks)}. Name one of these, or "
                "a job."
            )


def lossy_pairs(pairs: Sequence[Sequence[str]], devices: Sequence[Device]) -> list[tuple[str, str]]:
    """Return the pairs of devices that pairs of tasks, jobs or devices mean."""
    asked = [(DeviceName.parse(one), DeviceName.parse(other)) for one, other in pairs]
    return [
        (source.name, target.name)
        for source, target in itertools.permutations(devices, 2)
        if any(one.accepts(source.spec) and other.accepts(target.spec) for one, other in asked)
    ]


def check_settings(names: Sequence[str]) -> None:
    """Refuse a client that has other passes turned off than this task.

    Raises:
        ValueError: it has.
    """
    if set(names) != turned_off():
        raise ValueError(
            f"The client has turned off the passes {sorted(names)}, and this task {sorted(turned_off())}. Set "
            "ANABRANCH_PASSES, or call ab.config.set_passes, in the same way everywhere."
        )


def _check_functions(placement: Mapping[Operation, str], task: str) -> None:
    """Check that a task has the Python functions that it is to call.

    Raises:
        LookupError: it lacks one.
    """
    for operation, device in placement.items():
        op = operation.op
        missing = op.missing() if isinstance(op, NumpyFunction) and task_of(device) == task else ""
        if missing:
            raise LookupError(
                f"Operation {operation.name!r}, defined at {operation.location}, is on {task} and {missing}. Have "
                "that process import the module that registers it (python -m anabranch worker --import MODULE), or ask "
                "for another task with ab.device."
            )


def costs_of(devices: Sequence[Device], pairs: Mapping[tuple[str, str], Link]) -> CostModel:
    """Return what transfers between devices take, by what was measured between their tasks."""
    links: dict[tuple[str, str], Link] = {}
    for one, other in itertools.permutations(devices, 2):
        found = pairs.get((task_of(one.name), task_of(other.name)))
        if found is not None:
            links[one.name, other.name] = found
    return CostModel(links)


def assigning(
    task: str, placement: Sequence[str] | None, place: Callable[[list[str]], None], costs: CostModel | None = None
) -> Any:
    """Return a function that places operations: as the master has placed them, or by cost, which `place` then takes."""

    def assign(operations: Any, feeds: Any) -> Any:
        every = list(all_operations(list(operations)))
        if placement is not None:
            known = dict(zip(every, placement, strict=True))
            _check_functions(known, task)
            return known
        found = place_by_cost(operations, feeds, costs=costs)
        _check_functions(found, task)
        place([found[operation] for operation in every])
        return found

    return assign


def differ(own: str, others: Sequence[str], text: str, other_text: str) -> str:
    """Say that tasks have lowered a step differently, and where the first of `others` does so first."""
    pairs = itertools.zip_longest(text.splitlines(), other_text.splitlines(), fillvalue="(nothing: the text is over)")
    number, lines = next((number, lines) for number, lines in enumerate(pairs, 1) if lines[0] != lines[1])
    column = next(place for place, (a, b) in enumerate(itertools.zip_longest(*lines)) if a != b)
    own_line, other_line = (_around(line, column) for line in lines)
    return (
        f"{' and '.join(others)} lowered the step to another program than {own}. Run the same version of anabranch and "
        "NumPy, with the same settings (ab.config, ANABRANCH_KERNELS), on all tasks. As text, the programs differ "
        f"first in line {number}:\n  {own}: {own_line}\n  {others[0]}: {other_line}"
    )


def _around(line: str, column: int) -> str:
    """Return a line, or of a long one what is around a place in it."""
    start, end = max(column - _CHARACTERS_BEFORE, 0), column + _CHARACTERS_BEHIND
    return f"{'...' if start else ''}{line[start:end].strip()}{'...' if end < len(line) else ''}"


__all__ = [
    "assigning",
    "check_lossy",
    "check_settings",
    "costs_of",
    "differ",
    "lossy_pairs",
    "named_target",
    "read_devices",
]
