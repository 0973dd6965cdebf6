"""Rows of variables that steps over several devices write in place, beside whatever else has read these variables."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.machines import as_asked, assert_nothing_left, graph_on, latest_step, run
from shared.parts import Parts, devices_of
from shared.placed_steps import CPUS, at_random
from shared.waiting import PATIENCE, Waiting

import anabranch as ab
from anabranch.engine.graph import IndexedSlices
from anabranch.engine.graph.state import writing_rows
from anabranch.engine.graph.state.initial_values import Given
from anabranch.engine.graph.state.writing_rows import row_writes, write_in_memory
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.ops.containers.indexed_slices import own_memory
from anabranch.engine.runtime.interpreter import Interpreter

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
SHAPE = (6, 3)
START = np.arange(18, dtype="float32").reshape(SHAPE)
graph = graph_on(cpu=4)


def slices(values: Any, indices: Any) -> IndexedSlices:
    return IndexedSlices(values, indices, SHAPE)


def table(value: Any = START, name: str = "table") -> ab.Variable:
    return ab.Variable(value, name=name)


def address(variable: ab.Variable) -> int:
    return variable.stored_value().ctypes.data


class Copies:
    """Counts the copies of variables since it was made."""

    def __init__(self) -> None:
        self._before = row_writes.copies

    @property
    def count(self) -> int:
        return row_writes.copies - self._before


def machine(targets: list[Any], feeds: list[Any] | None = None, **options: Any) -> MachineProgram:
    made = MachineProgram(ab.get_default_graph(), targets, feeds or [], assign=as_asked(), **options)
    assert len(made.machine.devices) > 1
    return made


def test_a_variable_keeps_its_value_where_there_is_no_memory_for_a_copy(monkeypatch: pytest.MonkeyPatch):
    def array(*args: object, **options: object) -> None:
        raise MemoryError

    v = table()
    held = v.stored_value()
    monkeypatch.setattr(writing_rows, "np", SimpleNamespace(array=array, ndarray=np.ndarray))
    with pytest.raises(MemoryError):
        write_in_memory([v], lambda: None)
    assert v.stored_value() is held


# --- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["scatter_update", "scatter_add", "scatter_sub"])
def test_rows_that_come_from_another_device_are_written_in_place(method: str):
    with ab.device("/cpu:0"):
        v = table()
    ids = ab.placeholder((None,), "int32", "ids")
    with ab.device("/cpu:1"):
        rows = ab.ops.exp(ab.ops.take(v, ids, axis=0) / 100)
    with ab.device("/cpu:0"):
        done = getattr(v, method)(slices(rows, ids)).operation
    step, before, copies = machine([done], [ids]), address(v), Copies()
    for positions in ([1, 4], [], [-1], [0, 1, 2, 3, 4, 5]):
        positions = np.array(positions, "int32")
        wanted = v.numpy()
        added = np.exp(wanted[positions] / 100)
        wanted[positions] = {"scatter_update": 0, "scatter_add": 1, "scatter_sub": 1}[method] * wanted[positions] + (
            -added if method == "scatter_sub" else added
        )
        run(step, [positions])
        np.testing.assert_allclose(v.numpy(), wanted, rtol=1e-6)
        assert_nothing_left(latest_step(step))
    assert (address(v), copies.count) == (before, 0)
    assert "write_rows" in step.source


def test_a_value_that_the_step_still_needs_is_kept():
    with ab.device("/cpu:0"):
        v = table()
        before = v.value
        first = v.scatter_update(slices([[7.0, 7.0, 7.0]], [2]))
        between = v.value
        last = v.scatter_add(slices([[1.0, 1.0, 1.0]], [2]))
    with ab.device("/cpu:1"):
        fetched = [before + 0.0, between * 1.0, last * 1.0]
    late = v.value[2:3]  # a view
    step = machine([*fetched, late, before, first.operation])
    found = run(step, [])
    for value, row in zip(found, [[6.0, 7.0, 8.0], [7.0] * 3, [8.0] * 3], strict=False):
        np.testing.assert_array_equal(value[2], row)
    np.testing.assert_array_equal(found[3], [[8.0] * 3])
    np.testing.assert_array_equal(found[4], START)


def test_a_write_over_an_earlier_value_than_the_last_changes_that_one():
    """A program may ask for it by operations that are built by hand; no memory of the variable is of use then."""
    from anabranch.engine.ops.base import apply, convert_to_tensor
    from anabranch.engine.ops.containers.indexed_slices import AssignRows

    with ab.device("/cpu:0"):
        v = table()
        before = v.value
        assigned = v.assign(np.zeros(SHAPE, "float32")).operation
        rows, positions = convert_to_tensor(np.ones((1, 3), "float32")), convert_to_tensor(np.array([1]))
        written = apply(AssignRows(v), before, positions, rows)
    with ab.device("/cpu:1"):
        fetched = written + 0.0
    step = machine([fetched, assigned])
    assert not step.machine.row_writes
    wanted = START.copy()
    wanted[1] = 1
    np.testing.assert_array_equal(run(step, [])[0], wanted)
    np.testing.assert_array_equal(v.numpy(), wanted)


def test_in_a_loop_over_two_devices_one_copy_at_most_is_made():
    with ab.device("/cpu:0"):
        v = table()

        def body(i: Any) -> Any:
            with ab.device("/cpu:1"):
                rows = ab.ops.take(v, ab.ops.reshape(i % 6, (1,)), axis=0) + 1.0
            v.scatter_update(slices(rows, ab.ops.reshape((i + 1) % 6, (1,))))
            return i + 1

        (last,) = ab.while_loop(lambda i: i < 20, body, (0,))
    step, copies = machine([last]), Copies()
    run(step, [])
    wanted = START.copy()
    for i in range(20):
        wanted[(i + 1) % 6] = wanted[i % 6] + 1
    np.testing.assert_array_equal(v.numpy(), wanted)
    assert copies.count == 0


def test_in_a_loop_of_one_device_beside_another():
    """It is one node, in which names hold what is read before."""
    with ab.device("/cpu:0"):
        v = table()

        def body(i: Any) -> Any:
            first = ab.constant([0])
            v.scatter_add(slices(ab.ops.take(v, first, axis=0) + 1.0, first))
            return i + 1

        (last,) = ab.while_loop(lambda i: i < 5, body, (0,))
    with ab.device("/cpu:1"):
        other = ab.ops.exp(ab.ops.zeros((3,)) + ab.ops.cast(last, "float32"))
    step, copies = machine([last, other]), Copies()
    run(step, [])
    wanted = START[0]
    for _ in range(5):
        wanted = 2 * wanted + 1
    np.testing.assert_array_equal(v.numpy()[0], wanted)
    np.testing.assert_array_equal(v.numpy()[1:], START[1:])
    assert copies.count == 0


def test_what_fails_leaves_the_variable_as_it_was():
    with ab.device("/cpu:0"):
        v = table()
    ids = ab.placeholder((None,), "int32", "ids")
    rows = ab.placeholder((None, 3), "float32", "rows")
    with ab.device("/cpu:1"):
        made = rows * 2.0
    with ab.device("/cpu:0"):
        done = v.scatter_update(slices(made, ids)).operation
    step = machine([done], [ids, rows])
    with pytest.raises(IndexError, match=r"index 6 .* size 6"):
        run(step, [np.array([6], "int32"), np.ones((1, 3), "float32")])
    with pytest.raises(ValueError, match=r"its rows must be given as \[1,3\]"):
        run(step, [np.array([1], "int32"), np.ones((2, 3), "float32")])
    np.testing.assert_array_equal(v.numpy(), START)
    run(step, [np.array([1], "int32"), np.ones((1, 3), "float32")])
    np.testing.assert_array_equal(v.numpy()[1], [2, 2, 2])


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
@pytest.mark.parametrize("kernels", [True, False])
def test_optimizers_write_rows_of_tables_in_place(optimizer: str, kernels: bool):
    ids = ab.placeholder((None,), "int32", "ids")
    rng = np.random.default_rng(3)
    start = rng.normal(size=(50, 4)).astype("float32")

    def built(device: str) -> tuple[Any, ab.Variable]:
        with ab.device("/cpu:0"):
            v = ab.Variable(start, name="table")
        with ab.device(device):
            loss = ab.ops.sum(ab.ops.square(ab.ops.take(v, ids, axis=0)))
            found = getattr(ab.optimizers, optimizer)(0.1)
            return found.minimize(loss, var_list=[v]), v

    spread, v = built("/cpu:1")
    alone, other = built("/cpu:0")
    step = machine([spread], [ids], exact=not kernels)
    one = MachineProgram(ab.get_default_graph(), [alone], [ids], assign=as_asked(), exact=not kernels)
    run(step, [np.array([3, 7, 3], "int32")])  # what was lent may be copied once
    run(one, [np.array([3, 7, 3], "int32")])
    before, copies = address(v), Copies()
    for positions in ([3, 7, 3], [49, 0], [], [7]):
        fed = [np.array(positions, "int32")]
        run(step, fed)
        run(one, fed)
        np.testing.assert_array_equal(v.numpy(), other.numpy())
    assert (address(v), copies.count) == (before, 0)


# --- what else has read the variable --------------------------------------------------------------------------------


def test_values_of_users_keep_what_they_are():
    with ab.device("/cpu:0"):
        v = table()
        done = v.scatter_add(slices([[1.0, 1.0, 1.0]], [0])).operation
    with ab.device("/cpu:1"):
        other = ab.ops.exp(ab.constant([1.0]))
    step = machine([other, done])
    with ab.Graph().as_default():
        array = v.stored_value()
        view = array[:2]
        del array
    copies = Copies()
    run(step, [])
    assert copies.count == 1
    np.testing.assert_array_equal(view, START[:2])
    del view
    run(step, [])
    assert copies.count == 1
    np.testing.assert_array_equal(v.numpy()[0], START[0] + 2)


def two_tasks(targets: list[Any], feeds: list[Any]) -> Parts:
    return Parts(ab.get_default_graph(), targets, feeds, devices_of(2))


class OneTask:
    """A step of which one task's part is run, as clients' steps are run side by side: turn by turn."""

    def __init__(self, parts: Parts, task: str, values: list[Any]) -> None:
        self.program = next(program for program in parts.programs if program.task == task)
        self.sent: list[tuple[Any, ...]] = []
        self.step = self.program.begin(values, lambda *message: self.sent.append(message), lambda: None)

    def turn(self) -> None:
        while self.step.has_work:
            self.step.turn(1)

    def number(self, name: str) -> int:
        """The number of the edge by which a value comes here."""
        edges = self.program.printing.blueprint.edges
        return next(n for receive, n in edges.items() if receive.name == name and self._is_here(receive))

    def _is_here(self, receive: Any) -> bool:
        return str(receive.device).startswith(self.program.task)


def write_rows(v: ab.Variable, value: float) -> Any:
    with ab.device(PS):
        return v.scatter_update(slices([[value] * 3], [1])).operation


def test_a_step_that_waits_for_positions_does_not_hold_the_table():
    with ab.device(PS):
        v = table()
    ids = ab.placeholder((None,), "int32", "ids")
    with ab.device(WORKER):
        rows = ab.ops.take(v, ids, axis=0) * 2.0
    reader = OneTask(two_tasks([rows], [ids]), PS, [None])
    writer = OneTask(two_tasks([write_rows(v, 9.0)], []), PS, [])
    copies, before = Copies(), address(v)
    reader.turn()
    writer.turn()
    assert writer.step.is_over
    assert (address(v), copies.count) == (before, 0)
    reader.step.receive(reader.number("ids"), (), np.array([1, 0], "int32"), False)
    reader.turn()
    assert reader.step.is_over
    ((_, _, sent, _),) = reader.sent
    np.testing.assert_array_equal(sent, [[9, 9, 9], [0, 1, 2]])


def test_a_step_that_uses_the_whole_keeps_what_it_has_read():
    with ab.device(PS):
        v = table()
        x = ab.placeholder((), "float32", "x")
        total = v * x
    reader = OneTask(two_tasks([total], [x]), PS, [None])
    writer = OneTask(two_tasks([write_rows(v, 9.0)], []), PS, [])
    copies = Copies()
    reader.turn()
    writer.turn()
    assert copies.count == 1
    reader.step.receive(reader.number("x"), (), np.float32(1), False)
    reader.turn()
    assert reader.step.is_over
    (found,) = reader.program.end(reader.step).values()
    np.testing.assert_array_equal(found, START)
    np.testing.assert_array_equal(v.numpy()[1], [9, 9, 9])


def test_what_is_being_sent_stays_as_it_was_read():
    with ab.device(PS):
        v = table()
        whole = v.value
    with ab.device(WORKER):
        away = whole + 1.0
    reader = OneTask(two_tasks([away], []), PS, [])
    writer = OneTask(two_tasks([write_rows(v, 9.0)], []), PS, [])
    reader.turn()
    writer.turn()
    ((_, _, sent, _),) = reader.sent
    np.testing.assert_array_equal(sent, START)
    np.testing.assert_array_equal(v.numpy()[1], [9, 9, 9])


@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub"])
@pytest.mark.parametrize("exact", [False, True])
def test_of_two_steps_that_add_to_a_row_both_count(method: str, exact: bool):
    with ab.device(PS):
        v = table()
    ids, x = ab.placeholder((2,), "int32", "ids"), ab.placeholder((2, 3), "float32", "x")
    with ab.device(WORKER):
        done = getattr(v, method)(slices(x * 1.0, ids)).operation
    parts = Parts(ab.get_default_graph(), [done], [ids, x], devices_of(2), exact=exact)
    steps = [(OneTask(parts, PS, [None] * 2), OneTask(parts, WORKER, fed(k))) for k in (1.0, 2.0)]
    for _, worker in steps:
        worker.turn()
    for number in range(max(len(worker.sent) for _, worker in steps)):  # what one has sent comes between the other's
        for ps, worker in steps:
            for message in worker.sent[number : number + 1]:
                ps.step.receive(*message)
                ps.turn()
    assert all(ps.step.is_over for ps, _ in steps)
    wanted = START.copy()
    wanted[[1, 4]] += 3 if method == "scatter_add" else -3
    np.testing.assert_array_equal(v.numpy(), wanted)


def test_rows_of_two_places_are_added_and_written_back():
    """Neither may wait for the other."""
    with ab.device(PS):
        v = table()
        one, two = ab.placeholder((1,), "int32", "one"), ab.placeholder((1,), "int32", "two")
        both = ab.ops.take(v, one, axis=0) + ab.ops.take(v, two, axis=0)
        done = v.scatter_update(slices(both, [0])).operation
    with ab.device(WORKER):
        other = ab.ops.cast(one, "float32") + 1.0
    two_tasks([done, other], [one, two]).run([np.array([1], "int32"), np.array([2], "int32")])
    np.testing.assert_array_equal(v.numpy()[0], START[1] + START[2])


def fed(number: float) -> list[Any]:
    return [np.array([4, 1], "int32"), np.full((2, 3), number, "float32")]


# --- threads --------------------------------------------------------------------------------------------------------


def test_rows_are_whole_to_readers_in_other_threads():
    """Each row holds one number, in every write; NumPy releases the lock while it writes and reads them."""
    shape, rows = (64, 4096), 32
    with ab.device("/cpu:0"):
        v = ab.Variable(np.zeros(shape, "float32"), name="table")
        x = ab.placeholder((), "float32", "x")
        made = ab.ops.zeros((rows, shape[1])) + x
        done = v.scatter_update(IndexedSlices(made, np.arange(rows), shape)).operation
        some = ab.ops.take(v, np.arange(rows), axis=0)
        whole = v * 1.5
    with ab.device("/cpu:1"):
        fetched = [some * 1.0, whole + 0.0]
    writer, reader = machine([done, fetched[0]], [x], exact=True), machine(fetched, exact=True)
    is_over = threading.Event()
    torn: list[Any] = []

    def read() -> None:
        while not is_over.is_set():
            for found in reader():
                if not (found == found[:, :1]).all():
                    torn.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(150):
        writer(np.float32(number))
    is_over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not torn


class Slow:
    """A write that ends when it may."""

    def __init__(self, variable: ab.Variable) -> None:
        self.variable = variable
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, value: float) -> None:
        own_memory(self.variable)[0] = value
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE)
        own_memory(self.variable)[1] = value

    def begin(self, value: float) -> Waiting:
        waiting = Waiting(lambda: write_in_memory([self.variable], self, value))
        assert self.has_begun.wait(PATIENCE)
        return waiting


@pytest.mark.parametrize(
    "read", [lambda v: v.numpy(), lambda v: np.array(v.stored_value()), lambda v: copy.deepcopy(v).numpy()]
)
def test_who_reads_while_rows_are_written_waits(read: Callable[[ab.Variable], Any]):
    v = table()
    write = Slow(v)
    writing = write.begin(5.0)
    assert v.first_value is None
    reading = Waiting(lambda: read(v))
    write.may_end.set()
    found = reading.result()
    writing.result()
    np.testing.assert_array_equal(found[:3], [[5] * 3, [5] * 3, START[2]])
    assert "_held" not in vars(v)


def test_two_writers_come_one_after_the_other():
    v = table()
    one, other = Slow(v), Slow(v)
    first = one.begin(1.0)
    second = Waiting(lambda: write_in_memory([v], other, 2.0))
    assert not other.has_begun.is_set()
    other.may_end.set()
    one.may_end.set()
    first.result()
    second.result()
    np.testing.assert_array_equal(v.numpy()[:2], np.full((2, 3), 2.0))


def test_an_assignment_meanwhile_is_kept():
    v = table()
    write = Slow(v)
    writing = write.begin(5.0)
    v.write_value(np.full(SHAPE, 3.0, "float32"))
    write.may_end.set()
    writing.result()
    np.testing.assert_array_equal(v.numpy(), np.full(SHAPE, 3.0))


def test_an_error_while_rows_are_written():
    v = table()

    def fail() -> None:
        own_memory(v)
        raise ZeroDivisionError("while it is written")

    with pytest.raises(ZeroDivisionError):
        write_in_memory([v], fail)
    np.testing.assert_array_equal(v.numpy(), START)


def test_a_first_value_that_nobody_has_needed_yet():
    v = ab.Variable(ab.initializers.Ones(), shape=SHAPE, dtype="float32", name="late")
    v.postpone(Given(np.ones(SHAPE, "float32")))
    write_in_memory([v], lambda: own_memory(v).__setitem__(0, 4.0))
    np.testing.assert_array_equal(v.numpy()[:2], [[4] * 3, [1] * 3])


# --- random programs ------------------------------------------------------------------------------------------------


class RandomRows:
    """A random step that reads and writes rows of two tables, some of it in loops and branches."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.tables = [ab.Variable(START / 8 + k, name=f"t{k}") for k in range(2)]
        self.x = ab.placeholder((), "float32", "x")
        self.fetches: list[Any] = []
        for _ in range(self.chosen.randint(3, 8)):
            self._statement(self.chosen.choice(["write", "write", "write", "read", "loop", "branch", "assign"]))
        self.effects = [operation for operation in ab.get_default_graph().operations if operation.writes]

    def _statement(self, kind: str) -> None:
        if kind in ("loop", "branch"):
            statements = [self.chosen.choice(["write", "read_inside", "assign"]) for _ in range(2)]
            self.fetches.append(self._loop(statements) if kind == "loop" else self._branch(statements))
            return
        self._simple(kind, self.x)

    def _loop(self, statements: list[str]) -> Any:
        def body(i: Any, h: Any) -> Any:
            for kind in statements:
                h = h + self._simple(kind, h * 0.5)
            return i + 1, h * 0.25

        return ab.while_loop(lambda i, h: i < 3, body, (0, self.x), parallel_iterations=self.chosen.choice([1, 4]))[1]

    def _branch(self, statements: list[str]) -> Any:
        def taken() -> Any:
            found = self.x
            for kind in statements:
                found = found + self._simple(kind, found)
            return found * 1.0

        return ab.cond(self.x > self.chosen.choice([0.0, 9.0]), taken, lambda: self.x * 2.0)

    def _simple(self, kind: str, number: Any) -> Any:
        """One statement; gives a number."""
        v, other = self.chosen.sample(self.tables, 2)
        ids = [self.chosen.randint(-6, 5) for _ in range(self.chosen.randint(0, 4))]
        positions = ab.constant(np.array(ids, "int32"))
        if kind == "assign":
            return ab.ops.sum(v.assign(ab.ops.tanh(other.value + number)))
        source = self.chosen.choice([v, other])
        rows = ab.ops.take(source, ab.constant(np.array(ids[::-1], "int32")), axis=0) * 0.5 + number
        if kind == "read":
            self.fetches.append(self.chosen.choice([rows, v.value, v.value[1:4], other * number]))
        if kind != "write":
            return ab.ops.sum(rows)
        kept = self.chosen.choice([None, v.value, v.value[2:]])  # which is used afterwards
        method = self.chosen.choice(["scatter_update", "scatter_add", "scatter_sub"])
        written = getattr(v, method)(slices(rows, positions))
        return ab.ops.sum(self.chosen.choice([written, rows])) + (0.0 if kept is None else ab.ops.sum(kept))

    def reset(self) -> None:
        for k, variable in enumerate(self.tables):
            variable.write_value(START / 8 + np.float32(k))

    @property
    def targets(self) -> list[Any]:
        return [*map(symbol_of, self.fetches), *self.effects]

    def expected(self) -> list[Any]:
        self.reset()
        found = Interpreter().run(ab.get_default_graph(), self.targets, {symbol_of(self.x): np.float32(1.5)})
        return [*map(np.array, found[: len(self.fetches)]), *[variable.numpy() for variable in self.tables]]

    def assert_same(self, values: Any, wanted: list[Any]) -> None:
        for value, one in zip([*values, *[variable.numpy() for variable in self.tables]], wanted, strict=True):
            np.testing.assert_array_equal(value, one)


SEEDS = st.integers(0, 10**6)
PHASES = [Phase.explicit, Phase.generate]  # a smaller number is no smaller program


@given(SEEDS, st.sampled_from([2, 3]), st.one_of(st.none(), SEEDS), st.booleans())
@example(1023, 2, 1023, True)  # rows wait for a result of which a cluster hands on nothing else
@settings(max_examples=examples(25, 300), phases=PHASES)
def test_random_rows_on_several_devices(seed: int, count: int, order: int | None, clusters: bool):
    with ab.Graph().as_default():
        case = RandomRows(seed)
        wanted = case.expected()
        assign, graph = at_random(seed, CPUS[:count]), ab.get_default_graph()
        step = MachineProgram(
            graph, case.targets, [symbol_of(case.x)], exact=True, assign=assign, seed=order, clusters=clusters
        )
        for _ in range(2):
            case.reset()
            case.assert_same(run(step, [np.float32(1.5)])[: len(case.fetches)], wanted)
            assert_nothing_left(latest_step(step))


@given(SEEDS, st.sampled_from([2, 3]))
@settings(max_examples=examples(15, 200), phases=PHASES)
def test_random_rows_over_tasks(seed: int, count: int):
    with ab.Graph().as_default():
        case = RandomRows(seed)
        wanted = case.expected()
        devices = devices_of(count)
        names = [device.name for device in devices]
        parts = Parts(
            ab.get_default_graph(), case.targets, [case.x], devices, exact=True, assign=lambda: at_random(seed, names)
        )
        for number in range(2):
            case.reset()
            case.assert_same(parts.run([np.float32(1.5)], seed=seed + number), wanted)
