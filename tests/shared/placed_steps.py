"""Steps that are placed: devices given by hand, at random or by the placer, and what holds of every such step."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.control_flow.call import Recursion
from anabranch.engine.control_flow.frames import History, Saved
from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.graph.device import State
from anabranch.engine.ops.base import Constant
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.place import place
from anabranch.engine.place.kernels import all_operations as running_operations
from anabranch.engine.place.kernels import why_not
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.printer import Printer
from anabranch.engine.runtime.program import Statistics, copied_value

from .symbols import AnyTensor, feeds_of, symbols_of

A, B, C, D = CPUS = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
SIMS = ("sim:0", "sim:1")

Choose = Callable[[Operation], str]


# --- assigning ------------------------------------------------------------------------------------------------------


class Assigned:
    """Devices as they are given, and what they were given to.

    Attributes:
        places: the device of each operation.
        made: the device of the operation that each tensor came from.
        fed: what was said to be fed.
        calls: how often it was asked.
    """

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.places: dict[Operation, str] = {}
        self.made: dict[Symbol, str] = {}
        self.fed: list[Symbol] = []
        self.calls = 0

    def __call__(self, operations: Sequence[Operation], fed: Sequence[Symbol]) -> Mapping[Operation, str]:
        self.calls += 1
        self.fed = list(fed)
        self.places = self.chosen(operations)
        self.made = {tensor: device for operation, device in self.places.items() for tensor in operation.outputs}
        return self.places

    def chosen(self, operations: Sequence[Operation]) -> dict[Operation, str]:
        places: dict[Operation, str] = {}
        self._choose_in(operations, places, None)
        return places

    def _choose_in(self, operations: Sequence[Operation], places: dict[Operation, str], bound: str | None) -> None:
        for operation in operations:
            places[operation] = device = bound or self.choose(operation)
            if isinstance(operation.op, (History, Saved)):
                places[operation] = places[operation.op.inner.operation]
            for region in operation.op.regions:
                self._choose_in(region.operations, places, device if isinstance(operation.op, Recursion) else bound)


class Legal(Assigned):
    """Devices as they are given, as far as these can run what they are given, and state and its users are together."""

    def chosen(self, operations: Sequence[Operation]) -> dict[Operation, str]:
        places = super().chosen(operations)
        for group in _bound(operations):
            device = places[group[0]]
            if any(why_not(device.partition(":")[0], operation) for operation in group):
                device = A
            places.update(dict.fromkeys(group, device))
        recorded = {o: places[o.op.inner.operation] for o in places if isinstance(o.op, (History, Saved))}
        return places | recorded


def _bound(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations that have to be together: what touches the same state, and recursive functions with their insides."""
    groups: dict[Any, list[Operation]] = {}
    group_of: dict[Any, Any] = {}

    def unite(keys: Iterable[Any], members: list[Operation]) -> None:
        roots = list(dict.fromkeys(group_of[key] for key in keys if key in group_of))
        root = roots[0] if roots else object()
        groups.setdefault(root, []).extend(members)
        for other in roots[1:]:
            groups[root].extend(groups.pop(other))
            group_of.update({key: root for key, found in group_of.items() if found is other})
        group_of.update(dict.fromkeys(keys, root))

    for operation in all_operations(operations):
        touched = [] if operation.op.regions else [effect.resource for effect in operation.effects]
        unite([operation, *(resource for resource in touched if isinstance(resource, State))], [operation])
        if isinstance(operation.op, Recursion):
            for inner in all_operations([o for region in operation.op.regions for o in region.operations]):
                unite([operation, inner], [])
    return list(groups.values())


class Placed(Assigned):
    """Devices as the placer finds them; what it leaves out, as nothing needs it, is left out."""

    def __init__(self) -> None:
        super().__init__(lambda operation: A)

    def chosen(self, operations: Sequence[Operation]) -> dict[Operation, str]:
        return {operation: device.name for operation, device in place(operations, self.fed, effort=2000).items()}


def at_random(seed: int, devices: Sequence[str] = CPUS) -> Assigned:
    generator = random.Random(seed)
    return Assigned(lambda operation: generator.choice(devices))


def legally(seed: int, devices: Sequence[str]) -> Assigned:
    """By chance, on devices not all of which are CPUs."""
    generator = random.Random(seed)
    return Legal(lambda operation: generator.choice(devices))


def everywhere(device: str) -> Assigned:
    return Assigned(lambda operation: device)


# --- what holds of every placed step --------------------------------------------------------------------------------


def everything(step: Step) -> Iterator[Operation]:
    yield from (tensor.operation for tensor in step.feeds)
    yield from all_operations(step.operations)


def verify(step: Step, assigned: Assigned, devices: Sequence[str] = CPUS) -> None:
    """Every operation has a device: its own, or that of what it came from."""
    assert step.is_placed
    assert assigned.calls == 1
    named: dict[tuple[str, str], set[str]] = defaultdict(set)  # an operation that moves keeps its name
    of_ops: dict[int, set[str]] = defaultdict(set)
    for operation, device in assigned.places.items():
        named[operation.name, operation.type].add(device)
        of_ops[id(operation.op)].add(device)
    found = list(everything(step))
    for operation in running_operations(step.operations):
        assert operation.graph.operations[operation.index] is operation, "what runs is in no graph"
    assert set(step.devices) == {operation.device for operation in found} <= set(devices)
    for operation in found:
        op = operation.op
        if isinstance(op, (History, Saved)):
            assert operation.device == op.inner.operation.device, operation
        elif isinstance(op, Fused):
            verify_fused(operation, assigned, of_ops)
        elif operation in assigned.places and id(op) in of_ops:  # (fission makes a read of a product)
            assert operation.device == assigned.places[operation], operation
        elif id(op) in of_ops:
            places = named[operation.name, operation.type]
            if isinstance(op, Constant):  # what is moved takes a copy along
                places = places | {other.device for other in found if operation in {t.operation for t in other.inputs}}
            assert operation.device in places, operation
        for tensor in operation.outputs:
            assert (
                assigned.made.get(tensor, operation.device) == operation.device or operation not in assigned.places
            ), tensor


def verify_fused(operation: Operation, assigned: Assigned, of_ops: Mapping[int, set[str]]) -> None:
    assert isinstance(operation.op, Fused)
    for op, _ in operation.op.steps:
        assert operation.device in of_ops.get(id(op), {operation.device}), operation


def run(step: Step, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a step gives when it is printed; where it runs does not matter to a printed program."""
    printer = Printer()
    source = printer.print_step(step.operations, step.feeds, step.fetches, set())
    namespace = {**printer.bindings, "stats": Statistics(), "copied": copied_value}
    exec(source, namespace)
    with np.errstate(all="ignore"):
        return namespace["step"](*values)


def text(step: Step) -> str:
    return Printer().print_step(step.operations, step.feeds, step.fetches, set())


class Case:
    """Fetches with feeds: prepared in several ways, and compared with the interpreter."""

    def __init__(self, fetches: Sequence[Tensor], feeds: Mapping[AnyTensor, Any] | None = None) -> None:
        self.fetches = symbols_of(fetches)
        self.feeds = feeds_of(feeds or {})

    def prepared(self, assign: Assigned | None = None, exact: bool = False, fuses: bool = True) -> Step:
        rule = None if exact or not fuses else fusion_rule()
        step = prepare(self.fetches[0].graph, self.fetches, list(self.feeds), None, rule, not exact, assign)
        if assign is not None:
            verify(step, assign)
        return step

    def check(self, assign: Callable[[], Assigned], tolerance: float = 1e-5) -> None:
        """Exact passes keep the interpreter's bits, others its values, and every operation its device."""
        expected = Interpreter().run(self.fetches[0].graph, self.fetches, self.feeds)
        values = list(self.feeds.values())
        for value, wanted in zip(run(self.prepared(assign(), exact=True), values), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
        for value, wanted in zip(run(self.prepared(assign()), values), expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)


def inside(step: Step, kind: type[Any]) -> list[Operation]:
    """The operations of a kind that run in loops and branches."""
    return [o for o in running_operations(step.operations) if isinstance(o.op, kind) and o.graph.parent is not None]


def outside(step: Step, kind: type[Any]) -> list[Operation]:
    return [o for o in step.operations if isinstance(o.op, kind)]
