"""Steps on the dataflow machine: where and how they run, what holds of every run, and what a machine is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from programs.building import build
from programs.syntax import Program

import anabranch as ab
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.common.identity import is_among
from anabranch.engine.common.machine_profile import machine_profile
from anabranch.engine.control_flow.call import Recursion
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.devices import SimDevice, VirtualClock
from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.graph.spec import ArraySpec
from anabranch.engine.lower.nodes import CONTROL, Frame, Machine, Node, Value, frame_of
from anabranch.engine.machine.engines import Engine, WorkerEngine
from anabranch.engine.machine.frames import FramePlan
from anabranch.engine.machine.printing import MachinePrinter
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.report import waiting_report
from anabranch.engine.machine.step import Step
from anabranch.engine.machine.stream_engine import StreamEngine
from anabranch.engine.ops.containers.tensor_arrays import ArrayRead
from anabranch.engine.passes.framework.prepare import Step as PreparedStep
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.place.devices import list_devices
from anabranch.engine.runtime.analyses import kernels_of
from anabranch.engine.runtime.code import compiled
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.printer import Printer
from anabranch.engine.runtime.program import Statistics, copied_value

from .placed_steps import CPUS, SIMS, Assigned, at_random, legally
from .symbols import feeds_of, symbols_of
from .waiting import PATIENCE, Waiting

Observed = tuple[list[Any], dict[str, Any]]  # what was fetched, and what variables are afterwards


# --- fixtures -------------------------------------------------------------------------------------------------------


def graph_on(**devices: Any) -> Any:
    """A fixture for all tests of a module, to be called `graph`: the graph that they build in, and these devices."""

    @pytest.fixture(autouse=True)
    def graph() -> Iterator[ab.Graph]:
        ab.config.set_devices(**devices)
        with ab.Graph().as_default() as made:
            yield made
        ab.config.set_devices()

    return graph


def fed(dtype: str, name: str, shape: tuple[int, ...] = ()) -> Any:
    """A fixture: a placeholder."""

    @pytest.fixture
    def placeholder() -> Symbol:
        return ab.placeholder(shape, dtype, name)

    return placeholder


# --- where and how --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The devices on which a step runs, and its order. One more kind of device, or a budget of memory, is one more
    field.

    Attributes:
        devices: those among which operations are spread.
        places: the seed by which they are spread.
        order: the seed by which what is ready is run; None: as it gets ready.
        parallel_iterations: of all loops.
        clusters: whether operations are joined.
        streams: of simulated devices, the seed of the order in which they run what is enqueued; None: as it is due.
        virtual_time: whether the time of simulated devices only counts.
        memory_limit: of simulated devices.
        swaps: whether histories move to the host; then each does that may, at once.
    """

    devices: tuple[str, ...]
    places: int
    order: int | None
    parallel_iterations: int
    clusters: bool
    streams: int | None = None
    virtual_time: bool = True
    memory_limit: int | None = None
    swaps: bool = False

    @property
    def has_streams(self) -> bool:
        """Test whether devices with memory of their own take part."""
        return not set(self.devices) <= set(CPUS)

    def declare(self) -> None:
        """Make these the devices of the process."""
        ab.config.set_devices(
            cpu=4,
            sim={
                "count": 2,
                "seed": self.streams,
                "virtual_time": self.virtual_time,
                "memory_limit": self.memory_limit,
                "swap_threshold": 0 if self.swaps else None,
                "swap_smallest": 0,
            },
        )

    def assign(self) -> Assigned:
        return (legally if self.has_streams else at_random)(self.places, self.devices)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `MachineProgram`."""
        return {
            "assign": self.assign(),
            "seed": self.order,
            "clusters": self.clusters,
            "parallel_iterations": self.parallel_iterations,
            "swaps": self.swaps,
        }


def settings_of_machines() -> st.SearchStrategy[Setting]:
    return st.builds(
        Setting,
        devices=st.sampled_from([2, 3, 4, 4, 2, 1]).map(lambda count: CPUS[:count]),
        places=st.integers(0, 10**6),
        order=st.one_of(st.none(), st.integers(0, 10**6)),
        parallel_iterations=st.sampled_from([1, 2, 10, 32]),
        clusters=st.booleans(),
    )


def settings_of_streams() -> st.SearchStrategy[Setting]:
    """One simulated device or two, beside CPUs or alone."""
    spread = [(*SIMS, *CPUS[:2]), (SIMS[0], CPUS[0]), (*SIMS, CPUS[0]), SIMS, (SIMS[0], *CPUS[:2]), SIMS[:1]]
    seeds = st.integers(0, 10**6)
    return st.builds(
        Setting,
        devices=st.sampled_from(spread),
        places=seeds,
        order=st.one_of(st.none(), seeds),
        parallel_iterations=st.sampled_from([1, 2, 10, 32]),
        clusters=st.booleans(),
        streams=st.one_of(seeds, st.none(), seeds),
        virtual_time=st.sampled_from([True, True, True, False]),
        memory_limit=st.sampled_from([None, None, 10**9]),
        swaps=st.booleans(),
    )


def as_asked() -> Assigned:
    """Each operation where `ab.device` says; on the first device where nothing does."""
    return Assigned(lambda operation: f"cpu:{operation.device.rpartition(':')[2]}" if operation.device else CPUS[0])


def by_name(places: Mapping[str, str]) -> Assigned:
    """Each operation where the last part of its name is looked up; else where `ab.device` says."""
    asked = as_asked()
    return Assigned(lambda operation: places.get(operation.name.rpartition("/")[2]) or asked.choose(operation))


# --- running --------------------------------------------------------------------------------------------------------


def run(program: MachineProgram, values: Sequence[Any]) -> tuple[Any, ...]:
    """One run; if it hangs, this fails with what it waits for."""
    step = idle_step(program)
    try:
        return Waiting(lambda: program(*values)).result()
    except AssertionError:
        if is_idle(program, step):
            raise
        raise AssertionError(f"the step hangs after {PATIENCE} s: {waiting_report(step)}") from None


def idle_step(program: MachineProgram) -> Step:
    """The state which the next run takes, and gives back."""
    if not program._idle:  # type: ignore[attr-defined]
        program._idle.append(program._make_step())  # type: ignore[attr-defined]
    return program._idle[-1]  # type: ignore[attr-defined]


def latest_step(program: MachineProgram) -> Step:
    """The state as the latest run left it.

    A program that was printed again after a run, since its Python functions took long, has no idle state of that run.
    """
    step = program.statistics.latest  # type: ignore[attr-defined]
    assert step is not None, "the program has not run"
    return step


def is_idle(program: MachineProgram, step: Step) -> bool:
    return step in program._idle  # type: ignore[attr-defined]


def stream_engines(step: Step) -> list[StreamEngine]:
    """Return what runs operations on devices with memory of their own."""
    return [engine for engine in step.engines.values() if isinstance(engine, StreamEngine)]


def plans(step: Step) -> list[FramePlan]:
    """Frames on devices, as the latest run of a step has left them."""
    return list(step.plans.values())


def assert_nothing_left(step: Step) -> None:
    """Nothing waits, nothing is under way, no iteration is alive, no device holds memory."""
    assert not step.ready
    assert not step.mail
    assert not step.outstanding
    assert step.events.empty()
    assert all(not plan.live for plan in plans(step))
    for engine in stream_engines(step):
        assert not engine.is_busy
        if isinstance(engine.device, SimDevice):  # (others may keep the value that was copied last)
            assert engine.device.memory.in_use == 0, engine.device.memory.holders()


# --- random programs ------------------------------------------------------------------------------------------------


class MachineCase:
    """A random program with its derivatives, for all roads.

    Args:
        program: the program.
        order: of the highest derivatives.
    """

    def __init__(self, program: Program, order: int) -> None:
        self.program = program
        self.built = build(program)
        self.feeds = feeds_of(self.built.feeds(program))
        free = [v for name, v in self.built.variables.items() if name not in program.written_inside()]
        free = [v for v in free if not is_among(v, self._made())]
        sources: list[Any] = [x for x in self.built.inputs.values() if x.dtype.kind == "f"] + free
        self.fetches = symbols_of(self.built.outputs.values())
        with self.built.graph.as_default():
            target = self.built.loss
            for _ in range(order if sources else 0):
                parts = ab.gradients(target, sources, unconnected_gradients="zero")
                found = symbols_of(ab.convert_to_tensor(part) for part in parts)
                self.fetches.extend(found)
                target = sum([ab.ops.sum(part * part) for part in found], ab.constant(0.0, program.precision))
        self.targets: list[Symbol | Operation] = [*self.fetches, *self.built.effects]

    def _made(self) -> list[ab.Variable]:
        return [self.built.variables[name] for name in self.program.made]

    def interpreted(self) -> Observed:
        self.built.reset(self.program)
        values = Interpreter().run(self.built.graph, self.targets, self.feeds)
        return self._observed(values)

    def printed(self, setting: Setting, exact: bool) -> Observed:
        """The same prepared step on the compiled road."""
        rule = None if exact else fusion_rule()
        prepared = prepare(
            self.built.graph, self.targets, list(self.feeds), None, rule, reassociate=not exact, assign=setting.assign()
        )
        run_printed = printed(prepared, exact)
        self.built.reset(self.program)
        with np.errstate(all="ignore"):
            return self._observed(run_printed(*self.feeds.values()))

    def machine(self, setting: Setting, exact: bool) -> MachineProgram:
        return MachineProgram(self.built.graph, self.targets, list(self.feeds), exact=exact, **setting.options())

    def ran(self, program: MachineProgram) -> Observed:
        self.built.reset(self.program)
        return self._observed(run(program, list(self.feeds.values())))

    def _observed(self, values: Sequence[Any]) -> Observed:
        state = {name: variable.numpy() for name, variable in self.built.variables.items()}
        return list(values[: len(self.fetches)]), state

    def assert_same(self, found: Observed, expected: Observed, setting: Setting) -> None:
        """The same bits.

        Where devices have memory of their own, but for roundings of sums: NumPy and BLAS add in an order that depends
        on how an array is laid out in memory, and a view of rows with gaps is a copy in one piece once it has
        crossed.
        """
        agree = assert_same_but_for_order if setting.has_streams else assert_same_bits
        for tensor, value, wanted in zip(self.fetches, found[0], expected[0], strict=True):
            agree(value, wanted, tensor.name)
        for name, wanted in expected[1].items():
            agree(found[1][name], wanted, name)


def assert_same_but_for_order(value: Any, expected: Any, name: str) -> None:
    if expected.dtype.kind != "f" or not expected.size or not np.isfinite(expected).all():
        assert_same_bits(value, expected, name)
        return
    assert value.dtype == expected.dtype, name
    assert value.shape == expected.shape, name
    largest = float(np.abs(expected).max())
    np.testing.assert_allclose(value, expected, rtol=0, atol=64 * np.finfo(expected.dtype).eps * largest, err_msg=name)


def assert_same_bits(value: Any, expected: Any, name: str) -> None:
    assert value.dtype == expected.dtype, name
    assert value.shape == expected.shape, name
    if value.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(value, expected, err_msg=name)


def printed(step: PreparedStep, exact: bool) -> Callable[..., tuple[Any, ...]]:
    """A prepared step as the compiled road prints it, with its kernels."""
    printer = Printer(kernels_of(step.operations, exact))
    source = printer.print_step(step.operations, step.feeds, step.fetches, set())
    namespace = {**printer.bindings, "stats": Statistics(), "copied": copied_value}
    exec(source, namespace)
    return namespace["step"]


# --- what a machine is made of --------------------------------------------------------------------------------------


def of_kind(machine: Machine, *kinds: str) -> list[Node]:
    return [node for node in machine.nodes if node.kind in kinds]


def is_of_branch(node: Node) -> bool:
    """Test whether a Merge ends a branch, and does not begin a loop."""
    return node.kind == "merge" and not any(value.node.kind in ("enter", "next_iteration") for value in node.inputs)


def lowered_branches(machine: Machine) -> list[Operation]:
    return list(dict.fromkeys(o for node in of_kind(machine, "switch", "switch_n") for o in node.operations))


def _is_inside(operation: Operation, branches: Sequence[Operation]) -> bool:
    regions = [region for branch in branches for region in branch.op.regions]
    graph: Any = operation.graph
    while graph is not None:
        if any(graph is region for region in regions):
            return True
        graph = graph.parent
    return False


def structure(machine: Machine) -> set[str]:
    """Return what was lowered, for the coverage table."""
    return {name for name, occurs in _structure(machine) if occurs}


def _structure(machine: Machine) -> Iterator[tuple[str, bool]]:
    nodes, frames = machine.nodes, machine.frames
    devices: dict[Frame, set[str]] = {frame: set() for frame in frames}
    for node in nodes:
        if node.device is not None:
            devices[node.frame].add(node.device)
    loops = [frame for frame in frames if frame.parent is not None]
    branches = lowered_branches(machine)
    inner = [operation for node in nodes if node.kind == "op" for operation in all_operations(node.operations)]
    received = {node.peer.inputs[0].node.kind for node in of_kind(machine, "recv") if node.peer is not None}
    yield "split loop", any(len(devices[frame]) > 1 for frame in loops)
    yield "split loop on three devices", any(len(devices[frame]) > 2 for frame in loops)
    yield "split loop in a split loop", any(frame.depth > 1 and len(devices[frame]) > 1 for frame in loops)
    yield "split branch", any(is_of_branch(node) for node in nodes)
    yield "split branch in a split loop", any(is_of_branch(node) and node.frame.depth > 0 for node in nodes)
    yield "split branch by number", any(node.kind == "switch_n" for node in nodes)
    yield "split loop in a split branch", any(f.operation and _is_inside(f.operation, branches) for f in loops)
    yield "loop of one device beside", any(isinstance(operation.op, While) for operation in inner)
    yield "recursion beside", any(isinstance(operation.op, Recursion) for operation in inner)
    yield (
        "effect in a split loop",
        any(node.frame.depth > 0 and any(operation.writes for operation in node.operations) for node in nodes),
    )
    yield "history", any(node.kind == "collect" for node in nodes)
    yield "history that crosses", "collect" in received
    yield "result of a loop that crosses", "exit" in received
    yield "number of iterations taken", any(node.kind == "trips" for node in nodes)
    yield "TensorArray that crosses", any(isinstance(node.specs[0], ArraySpec) for node in of_kind(machine, "recv"))
    yield "value that crosses in a loop", any(node.frame.depth > 0 for node in of_kind(machine, "recv"))
    yield "control that crosses", any(send.inputs[0].port == CONTROL for send in of_kind(machine, "send"))
    yield "cluster", any(node.kind == "op" and len(node.operations) > 1 for node in nodes)
    yield "one device only", len(machine.devices) == 1


def behaviour(step: Step) -> set[str]:
    """Return what the latest run did, for the coverage table."""
    loops = [plan for plan in plans(step) if plan.name != "step"]
    names = {
        "loop that ran": any(plan.iterations > plan.frames > 0 for plan in loops),
        "loop without iterations": any(plan.iterations == plan.frames > 0 for plan in loops),
        "loop that ran several times": any(plan.frames > 1 for plan in loops),
        "several iterations alive": any(plan.peak > 1 for plan in loops),
    }
    if engines := stream_engines(step):
        devices = [engine.device for engine in engines]
        moved = [engine.policy.statistics() for engine in engines]
        names |= {
            "value copied to a device": any(device.statistics().bytes_to_device for device in devices),
            "value copied to the host": any(device.statistics().bytes_to_host for device in devices),
            "kernel on a stream": any(device.statistics().kernels for device in devices),
            "history moved to the host": any(each.bytes_out for each in moved),
            "history moved to the host and back": any(each.bytes_out and each.bytes_in for each in moved),
            "several iterations alive on a stream": any(plan.peak > 1 and plan.device in SIMS for plan in loops),
            "two devices with streams": len(engines) > 1,
            "stream in real time": any(not isinstance(device.clock, VirtualClock) for device in devices),
        }
    return {name for name, occurs in names.items() if occurs}


# --- what holds of every machine ------------------------------------------------------------------------------------


def assert_crosses_once(machine: Machine) -> None:
    """Every value has one Send for each device that takes it, and every Send its Recv."""
    crossing: Counter[tuple[Value, str]] = Counter()
    for send in of_kind(machine, "send"):
        receive = send.peer
        assert receive is not None
        assert receive.peer is send
        assert receive in machine.nodes
        assert receive.device is not None
        assert receive.frame is send.frame is frame_of(send.inputs[0])
        assert receive.device != send.device == send.inputs[0].node.device
        crossing[send.inputs[0], receive.device] += 1
    assert not [value for value, count in crossing.items() if count > 1]
    assert len(of_kind(machine, "send")) == len(of_kind(machine, "recv"))


def assert_local(machine: Machine) -> None:
    """Once it is cut, everything takes what is on its own device (constants are everywhere)."""
    for node in machine.nodes:
        for value in node.sources:
            assert value.node.device in (None, node.device), f"{node!r} takes {value}"


def assert_acyclic(machine: Machine) -> None:
    """Within an iteration nothing waits for itself, on whatever devices."""
    waits: dict[Node, set[Node]] = {node: set() for node in machine.nodes}
    for node in machine.nodes:
        waits[node].update(value.node for value in node.sources if value.node.kind != "next_iteration")
        if node.kind == "recv":
            assert node.peer is not None
            waits[node].add(node.peer)
    free = [node for node, others in waits.items() if not others]
    users: dict[Node, list[Node]] = {}
    for node, others in waits.items():
        for other in others:
            users.setdefault(other, []).append(node)
    left = {node: len(others) for node, others in waits.items()}
    done = 0
    while free:
        node = free.pop()
        done += 1
        for user in users.get(node, ()):
            left[user] -= 1
            if not left[user]:
                free.append(user)
    assert done == len(machine.nodes), [node for node, count in left.items() if count]


def late_values(machine: Machine) -> dict[Node, frozenset[Any]]:
    """For each node the values which come when they come, and without which it can't start, by whatever way.

    These are what is received, what loops carry, what comes out of loops and branches, what a choice lets through, and
    what an operation gives that contains a loop or branch of its own, or takes long.
    """
    found: dict[Node, frozenset[Any]] = {}

    def of_value(value: Value) -> frozenset[Any]:
        node = value.node
        if node.kind in ("const", "feed", "enter"):
            return frozenset()
        if node.kind in ("recv", "merge", "exit", "collect", "trips") or is_alone(node):
            return frozenset([node])
        if node.kind in ("switch", "switch_n"):
            return of_node(node) | {(node.inputs[1], value.port)}
        return of_node(node)

    def of_node(node: Node) -> frozenset[Any]:
        known = found.get(node)
        if known is None:
            known = found[node] = frozenset[Any]().union(*[of_value(value) for value in node.sources])
        return known

    for node in machine.nodes:
        if node.kind not in ("merge", "next_iteration"):
            of_node(node)
    return found


def is_alone(node: Node) -> bool:
    """Test whether a node is an operation that contains a loop or branch, or takes long."""
    if node.kind != "op":
        return False
    if node.operations[0].op.regions:
        return True
    (device,) = (device for device in list_devices() if device.name == node.device)
    if device.kind != "cpu":
        return isinstance(node.operations[0].op, ArrayRead)
    return len(node.operations) == 1 and node.seconds - device.kernel_latency > machine_profile().long_seconds


def assert_joined(machine: Machine) -> None:
    """Operations of one device and frame that need the same late values are one node."""
    late = late_values(machine)
    alike = Counter((node.device, node.frame, late[node]) for node in of_kind(machine, "op") if not is_alone(node))
    assert [key for key, count in alike.items() if count > 1] == []


# --- what ran when --------------------------------------------------------------------------------------------------


class Log:
    """A log of what ran, in the order in which it did."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []

    def note(self, label: str, iteration: Any, value: Any, ordered: bool = False) -> Tensor:
        """`value`, and a note that it was there; `ordered`: as an effect, which keeps its place among others."""

        def noted(number: Any, x: Any) -> Any:
            self.entries.append((label, int(number)))
            return x

        tensor = ab.convert_to_tensor(value)
        inputs = [ab.convert_to_tensor(iteration), tensor]
        return ab.ops.numpy_function(noted, inputs, tensor.dtype, stateful=ordered, shape=tensor.shape, name=label)

    def of(self, label: str) -> list[int]:
        return [number for name, number in self.entries if name == label]

    def place(self, label: str, iteration: int) -> int:
        """When it ran."""
        return self.entries.index((label, iteration))


def chain(x: Any, length: int) -> Any:
    """`x` after so many operations, one after the other."""
    for _ in range(length):
        x = ab.ops.tanh(x)
    return x


# --- machines without a program -------------------------------------------------------------------------------------


def step_of(machine: Machine, seed: int | None = None) -> Step:
    """Return what runs a machine that was built, or changed, by hand."""
    printer = Printer()
    printer.bindings["copied"] = copied_value
    printer.bindings["stats"] = Statistics()
    printing = MachinePrinter(machine, printer)
    code = compiled(printing.print(), "machine", printing, printer.rare)
    engines: dict[str, Engine] = {device: WorkerEngine() for device in machine.devices}
    return Step(printing.blueprint, printing.names, code, printer.bindings, engines, seed)
