"""Parts of a step: each task runs its own partitions, and what crosses is handed over; the bits of one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs.generator import programs
from programs.syntax import Program
from shared.machines import MachineCase, assert_same_bits, structure
from shared.parts import Parts, devices_of, tasks_of
from shared.placed_steps import at_random
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.graph.spec import StoreSpec, TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.part import PartStep
from anabranch.engine.place.constraints import PlacementError
from anabranch.engine.place.devices import devices_of_cluster, list_devices
from anabranch.engine.runtime.interpreter import Interpreter

PHASES = [Phase.explicit, Phase.generate]  # what fails is large, and takes minutes to become small
LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def check_chunk(chunk: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, phases=PHASES, suppress_health_check=LARGE)
    @given(programs(), st.integers(2, 3), st.integers(0, 10**6), st.sampled_from([1, 1, 2]))
    def check(program: Program, tasks: int, places: int, order: int) -> None:
        case = MachineCase(program, order)
        expected = case.interpreted()
        devices = devices_of(tasks)
        names = [device.name for device in devices]
        try:
            parts = Parts(
                case.built.graph,
                case.targets,
                list(case.feeds),
                devices,
                exact=True,
                assign=lambda: at_random(places, names),
            )
        except PlacementError as error:
            found["refused" if "do not leave their task" in str(error) else "refused for another reason"] += 1
            return
        assert len({part.digest for part in parts.programs}) == 1
        for run in range(2):
            case.built.reset(program)
            values = parts.run(list(case.feeds.values()), seed=places + run)
            state = {name: variable.numpy() for name, variable in case.built.variables.items()}
            for tensor, value, wanted in zip(case.fetches, values, expected[0], strict=True):
                assert_same_bits(np.asarray(value), np.asarray(wanted), symbol_of(tensor).name)
            for name, wanted in expected[1].items():
                assert_same_bits(state[name], wanted, name)
        found.update(structure(parts.programs[0].machine))
        found["programs"] += 1

    check()
    return found


@pytest.mark.parametrize("chunk", [1, *[pytest.param(chunk, marks=pytest.mark.slow) for chunk in (0, 2)]])
def test_random_programs_over_tasks(chunk: int):
    found = check_chunk(chunk, 20)
    assert found["programs"] >= 10
    assert not found["refused for another reason"]
    assert found["split loop"] > 0
    assert found["value that crosses in a loop"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(3, 13))
def test_many_random_programs_over_tasks(chunk: int):
    assert check_chunk(chunk, 60)["programs"] >= 30


@pytest.fixture
def graph() -> ab.Graph:
    return ab.Graph()


def test_a_loop_over_two_tasks(graph: ab.Graph):
    with graph.as_default():
        x = ab.placeholder((3,), "float32", "x")

        def body(i: Any, h: Any) -> Any:
            with ab.device(PS):
                z = ab.ops.tanh(h)
            with ab.device(WORKER):
                return i + 1, z + 1.0

        last = ab.while_loop(lambda i, h: i < 9, body, (0, x), parallel_iterations=4)[1]
    parts = Parts(graph, [last], [x], devices_of(2))
    assert parts.programs[0].tasks == [PS, WORKER]
    expected = ab.Session(graph_of_one(last)).run(last.name, {"x:0": [0.0, 0.5, 1.0]})
    for number in range(3):
        (value,) = parts.run([np.array([0.0, 0.5, 1.0], "float32")], seed=number)
        assert_same_bits(value, expected, "last")


def graph_of_one(tensor: Any) -> ab.Graph:
    """The same graph without requests, for one process."""
    from anabranch.engine.saving import graph_from_dict, graph_to_dict

    document = graph_to_dict(tensor.graph.root)
    for block in document["blocks"]:
        for operation in block["operations"]:
            operation["device"] = ""
    return graph_from_dict(document)


def test_each_task_prints_its_own_partitions_only(graph: ab.Graph):
    with graph.as_default(), ab.device(PS):
        x = ab.placeholder((3,), "float32", "x")
        with ab.device(WORKER):
            y = ab.ops.exp(x)
        z = y * 2.0
    worker, ps = Parts(graph, [z], [x], devices_of(2)).programs
    assert "deliver_recv_exp" not in worker.source
    assert "deliver_recv_exp" in ps.source
    assert f"post({ps.printing.blueprint.edges[_receive(ps, 'exp')]}, " in worker.source
    assert worker.sends.keys() & ps.sends.keys() == set()
    assert {*worker.sends.values()} == {PS}


def _receive(program: Any, name: str) -> Any:
    return next(node for node in program.machine.nodes if node.kind == "recv" and node.name == name)


@pytest.mark.parametrize(
    ("make", "is_filled"),
    [
        (lambda x: x + 1.0, True),
        (lambda x: ab.ops.exp(x) * x - 2.0, True),
        (lambda x: ab.ops.matmul(x, x), True),
        (lambda x: ab.ops.sum(x, axis=0), False),  # it is small
        (lambda x: ab.ops.transpose(x), False),  # a view
    ],
)
def test_a_large_result_for_another_task_is_computed_in_the_array_that_is_sent(
    graph: ab.Graph, make: Any, is_filled: bool
):
    """Who sends gives the array: memory that the other task can read, so that nothing is copied."""
    with graph.as_default(), ab.device(PS):
        x = ab.placeholder((200, 200), "float32", "x")
        with ab.device(WORKER):
            y = make(x)
        z = y * 2.0
    worker = Parts(graph, [z], [x], devices_of(2)).programs[0]
    given: list[Any] = []
    posted: list[Any] = []

    def empty(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        given.append(np.full(shape, np.nan, dtype))
        return given[-1]

    value = np.random.default_rng(1).normal(size=(200, 200)).astype("float32")
    step = worker.begin([value], lambda *message: posted.append(message), lambda: None, empty=empty)
    for number in worker.printing.blueprint.edges.values():
        if number not in worker.sends:
            step.receive(number, (), value, False)
    while not step.is_over:
        step.turn(10)
    worker.end(step)
    ((_, _, sent, is_dead),) = posted
    assert not is_dead
    assert [array is sent for array in given] == [True] * is_filled
    with ab.Graph().as_default():
        alone = make(ab.constant(value))
        np.testing.assert_allclose(sent, ab.Session().run(alone), rtol=1e-5, atol=1e-5)


def test_a_result_that_its_own_task_takes_too_has_memory_of_its_own(graph: ab.Graph):
    with graph.as_default(), ab.device(PS):
        x = ab.placeholder((200, 200), "float32", "x")
        with ab.device(WORKER):
            y = ab.ops.exp(x)
            rest = ab.ops.cumsum(y, axis=0)
        z = y * 2.0
    worker = Parts(graph, [z, rest], [x], devices_of(2)).programs[0]
    assert "empty(" not in worker.source.replace("np.empty(", "")


def test_a_variable_gets_what_a_thread_has_computed_without_a_copy(graph: ab.Graph):
    """Test two updates of one variable in a step: they are no single instruction, and are computed by threads."""
    with graph.as_default():
        with ab.device(PS):
            w = ab.Variable(np.zeros(4_000_000, "float32"), name="w")
        with ab.device(WORKER):
            given = [w.value * 0.5, w.value + 1.0]
        done = [w.assign_sub(each).operation for each in given]
    parts = Parts(graph, done, [], devices_of(2))
    program = next(program for program in parts.programs if program.task == PS)
    assert "submit(" in program.source
    assert "copied(" not in program.source
    for number in range(3):
        parts.run([], seed=number)
    assert w.numpy()[:2].tolist() == [-0.75, -0.75]


def test_a_variable_gets_a_copy_of_a_received_value_that_others_take(graph: ab.Graph):
    with graph.as_default():
        with ab.device(PS):
            w = ab.Variable(np.zeros(4_000_000, "float32"), name="w")
        with ab.device(WORKER):
            more = w.value + 1.0
        done = w.assign(more).operation
        with ab.device(PS):
            double = more * 2.0
    parts = Parts(graph, [double, done], [], devices_of(2))
    program = next(program for program in parts.programs if program.task == PS)
    assert "take_over(" not in program.source
    assert "copied(" in program.source
    assert parts.run([])[0][:2].tolist() == [2.0, 2.0]
    assert w.numpy()[:2].tolist() == [1.0, 1.0]


def test_tasks_that_differ_have_other_digests(graph: ab.Graph):
    with graph.as_default():
        x = ab.placeholder((3,), "float32", "x")
        with ab.device(PS):
            y = ab.ops.exp(x)
        other = ab.ops.exp(x) * 3.0
    digests = {Parts(graph, [target], [x], devices_of(2)).programs[0].digest for target in (y, other)}
    assert len(digests) == 2


def test_an_operation_that_fails_is_named_with_its_device(graph: ab.Graph):
    with graph.as_default(), ab.device(PS):
        x = ab.placeholder((None,), "int32", "x")
        y = ab.ops.take(ab.constant([1, 2, 3]), x) + 1
    parts = Parts(graph, [y], [x], devices_of(2))
    program = next(program for program in parts.programs if program.task == PS)
    with pytest.raises(IndexError) as caught:
        parts.run([np.array([7], "int32")])
    step: Any = program.statistics.latest
    program.failed(step, caught.value)
    notes = "\n".join(caught.value.__notes__)
    assert "take" in notes
    assert PS in notes


def test_reads_of_stores_go_to_their_task_also_in_loops(graph: ab.Graph):
    with graph.as_default():
        x = ab.placeholder((2,), "float32", "x")

        def body(i: Any, store: Any) -> Any:
            with ab.device(PS):
                doubled = store.read(i) * 2.0
            with ab.device(WORKER):
                return i + 1, store.write(i + 1, doubled + x)

        with ab.device(WORKER):
            first = ab.TensorStore("float32", (2,)).write(0, x)
        last = ab.while_loop(lambda i, _: i < 3, body, (0, first))[1]
        with ab.device(PS):
            found = [last.gather([0, 3]), last.size(), last.contains(9)]
            slope = ab.gradients(ab.ops.sum(found[0]), [x])[0]
    parts = Parts(graph, [*found, slope], [x], devices_of(2))
    crossing = [node.name for node in parts.programs[0].machine.nodes if is_received(node, StoreSpec)]
    assert crossing == ["gradients/array_scatter_add"]  # which the backward loop takes whole
    for number in range(3):
        gathered, size, contains, slopes = parts.run([np.array([1.0, 2.0], "float32")], seed=number)
        assert gathered.tolist() == [[1, 2], [15, 30]]
        assert (size, bool(contains), slopes.tolist()) == (4, False, [16, 16])


def is_received(node: Any, kind: type) -> bool:
    return node.kind == "recv" and isinstance(node.specs[0], kind)


@pytest.mark.parametrize("needs_all", [False, True])
def test_parts_of_variables_are_read_on_their_task(graph: ab.Graph, needs_all: bool):
    table = np.arange(3000, dtype="float32").reshape(1000, 3)
    with graph.as_default():
        ids = ab.placeholder((None,), "int32", "ids")
        with ab.device(PS):
            w = ab.Variable(table, name="w")
        with ab.device(WORKER):
            found = [ab.ops.take(w, ids, axis=0) * 2.0, w[10:12] + 1.0, w[ids[0]] * 0.5]
            slope = ab.ops.convert_to_tensor(ab.gradients(ab.ops.sum(found[0]), [w])[0])
            total = ab.ops.sum(w)
        targets = [*found, slope, total] if needs_all else [*found, slope]
    parts = Parts(graph, targets, [ids], devices_of(2))
    specs = [node.specs[0] for node in parts.programs[0].machine.nodes if node.kind == "recv"]
    shapes = [spec.shape for spec in specs if isinstance(spec, TensorSpec)]
    assert ((1000, 3) in shapes) == needs_all
    for number, chosen in enumerate([[3, 5, 3], [7]]):
        rows, part, one, slopes, *_ = parts.run([np.array(chosen, "int32")], seed=number)
        np.testing.assert_array_equal(rows, table[chosen] * 2)
        np.testing.assert_array_equal(part, table[10:12] + 1)
        np.testing.assert_array_equal(one, table[chosen[0]] / 2)
        expected = np.zeros_like(table)
        np.add.at(expected, chosen, 2.0)
        np.testing.assert_array_equal(slopes, expected)


@pytest.mark.parametrize("inside", ["a loop", "a branch", "neither"])
def test_a_recursion_and_its_gradient_are_on_one_task(graph: ab.Graph, inside: str):
    """It reads much from one task, and its gradient much from the other one; but its records do not leave a task."""
    with graph.as_default():
        x, n = ab.placeholder((), "float64", "x"), ab.placeholder((), "int32", "n")
        with ab.device(PS):
            table = ab.Variable(np.full((300, 300), 0.7), name="table")

        def step(i: Any, v: Any) -> Any:
            with ab.device(PS):
                factor = table * ab.ops.stop_gradient(v)

            @ab.function
            def f(y: Any, k: Any) -> Any:
                def deeper() -> Any:
                    return ab.ops.sin(f(y * 1.1, k - 1) * y * ab.ops.mean(factor))

                return ab.cond(k <= 0, lambda: y * ab.ops.ones((20000,), "float64"), deeper)

            with ab.device(WORKER):
                shifted = ab.ops.tanh(v) + 1.0
            found = f(shifted, n)
            with ab.device(WORKER):
                return i + 1, ab.ops.mean(ab.ops.cos(found)) * v

        if inside == "a loop":
            y = ab.while_loop(lambda i, _: i < n, step, (0, x))[1]
        else:
            y = ab.cond(n > 1, lambda: step(0, x)[1], lambda: x) if inside == "a branch" else step(0, x)[1]
        slope = ab.gradients(y, [x])[0]
    values = [np.float64(0.6), np.int32(3)]
    expected = Interpreter().run(graph, symbols_of([y, slope]), dict(zip(symbols_of([x, n]), values, strict=True)))
    parts = Parts(graph, [y, slope], [x, n], devices_of(2))
    assert parts.programs[0].tasks == [PS, WORKER]
    np.testing.assert_allclose(parts.run(values), expected, rtol=1e-12)


def test_devices_of_a_cluster_hold_inside_the_block_only():
    before = list_devices()
    with devices_of_cluster(devices_of(3)):
        assert tasks_of(list_devices()) == [WORKER, PS, "/job:ps/task:1"]
    assert list_devices() == before


@pytest.mark.parametrize("width", [2, 20_000])
def test_rows_that_two_steps_change_at_the_same_time_count_twice(width: int, graph: ab.Graph):
    """One change was lost where the other step's came between a signal and the rows, which were two messages."""
    with graph.as_default():
        with ab.device(PS):
            table = ab.Variable(np.zeros((4, width), "float32"), name="table")
        with ab.device(WORKER):
            feeds = [ab.placeholder((2, width), "float32"), ab.placeholder((2,), "int32")]
            rows = ab.IndexedSlices(ab.ops.exp(feeds[0]), feeds[1], np.array([4, width]))
            done = table.scatter_sub(rows).operation
    program = next(part for part in Parts(graph, [done], feeds, devices_of(2)).programs if part.task == PS)

    def begun() -> tuple[PartStep, list[int]]:
        step = program.begin([np.zeros((2, width), "float32"), np.zeros(2, "int32")], lambda *sent: None, lambda: None)
        return step, list(step._receives)

    def deliver(step: PartStep, numbers: list[int]) -> None:
        for number in numbers:
            spec = step._receives[number][0].specs[0]
            value = None
            if isinstance(spec, TensorSpec):
                value = np.array([1, 3], "int64") if len(spec.shape or ()) == 1 else np.ones((2, width), "float32")
            step.receive(number, (), value, False)
            step.turn(100)

    first, numbers = begun()
    program.failed(first, RuntimeError())
    for count in range(len(numbers) + 1):
        before = table.numpy().copy()
        (one, _), (other, _) = begun(), begun()
        deliver(one, numbers[:count])
        deliver(other, numbers)
        deliver(one, numbers[count:])
        for step in (one, other):
            assert step.is_over
            program.end(step)
        np.testing.assert_array_equal((table.numpy() - before).T, [[0, -2, 0, -2]] * width)
