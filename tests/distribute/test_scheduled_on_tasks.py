"""Functions that are scheduled while a step runs, over the devices of several tasks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, TOKEN, WORKER, tasks

import anabranch as ab
from anabranch import ops
from anabranch.engine.place.constraints import PlacementError

pytestmark = pytest.mark.xdist_group("tasks")
Cluster = tuple[ab.distribute.Server, ab.distribute.Server]
BOTH = [PS, WORKER]


@pytest.fixture(scope="module")
def servers() -> Generator[Cluster]:
    """A ps and a worker in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        with (
            ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps,
            ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0) as worker,
        ):
            yield ps, worker


@pytest.fixture
def session(graph: ab.Graph, servers: Cluster) -> Generator[ab.Session]:
    with ab.Session(graph, target=servers[1].target) as made:
        yield made
    for server in servers:
        held = server.status().held
        assert (held["running"], held["early"]) == (0, 0)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def whole_rows(count: int, units: int = 8) -> np.ndarray:
    """Rows of small whole numbers: their sums have the same bits in any order."""
    return np.random.default_rng(count).integers(-8, 9, (count, units)).astype("float32")


def here(graph: ab.Graph, fetches: Any, feeds: Any) -> Any:
    """Return the values that one process computes."""
    with ab.Session(graph) as session:
        return session.run(fetches, feeds)


def rows_by_task(server: ab.distribute.Server) -> dict[str, int]:
    """The rows that the scheduler of a master has handed out, by task."""
    found: dict[str, int] = {}
    for program in server.task._worker._programs.values():
        for step in program.program._idle:
            for device, count in step.scheduler.statistics.rows.items():
                task = device.partition("/device")[0]
                found[task] = found.get(task, 0) + count
    return found


def test_a_function_that_is_not_split_has_the_bits_of_one_process(session: ab.Session, graph: ab.Graph):
    w = ab.Variable(weights(8, 4), name="of one piece")
    x = ab.placeholder((None, 8), "float32", name="x")
    y = ab.dynamic_schedule(lambda rows: ops.tanh(rows @ w) * 2.0, x, split=False, devices=[PS])
    (slope,) = ab.gradients(ops.sum(y * y), [w])
    (second,) = ab.gradients(ops.sum(slope * slope), [x])
    given = weights(37, 8)
    expected = here(graph, [y, slope, second], {x: given})
    for _ in range(2):
        for found, value in zip(session.run([y, slope, second], {x: given}), expected, strict=True):
            np.testing.assert_array_equal(found, value)


def test_rows_are_spread_over_tasks(session: ab.Session, graph: ab.Graph, servers: Cluster):
    w = ab.Variable(np.round(weights(64, 64)), name="spread")
    x = ab.placeholder((None, 64), "float32", name="x")

    def function(rows: Any) -> Any:
        made = rows
        for _ in range(4):
            made = ops.clip(made @ w, -4.0, 4.0)
        return made, rows * 2.0

    y, doubled = ab.dynamic_schedule(function, x, devices=BOTH, least_rows=8)
    (slope,) = ab.gradients(ops.sum(y * y), [w])
    before = rows_by_task(servers[1])
    for count in (3000, 0, 1, 317):
        given = whole_rows(count, 64)
        expected = here(graph, [y, doubled, slope], {x: given})
        found = session.run([y, doubled, slope], {x: given})
        for value, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, right)
    after = rows_by_task(servers[1])
    assert all(after[task] > before.get(task, 0) for task in BOTH)


def test_loops_and_branches_schedule_on_other_tasks(session: ab.Session, graph: ab.Graph):
    w = ab.Variable(np.round(weights(8, 8)), name="of a loop")
    x, count = ab.placeholder((None, 8), "float32", name="x"), ab.placeholder((), "int32", name="count")

    def body(i: Any, h: Any) -> Any:
        more = ab.dynamic_schedule(lambda rows: ops.clip(rows @ w, -8.0, 8.0), h, devices=[PS], least_rows=4)
        return i + 1, ab.cond(i % 2 < 1, lambda: more, lambda: h + 1.0)

    last = ab.while_loop(lambda i, h: i < count, body, (0, x), parallel_iterations=4)[1]
    chosen = ab.cond(count > 2, lambda: ab.dynamic_schedule(lambda rows: rows * 3.0, x, devices=[PS]), lambda: x)
    (slope,) = ab.gradients(ops.sum(last), [w])
    for times in (0, 1, 5):
        given = whole_rows(9)
        expected = here(graph, [last, chosen, slope], {x: given, count: times})
        for found, right in zip(session.run([last, chosen, slope], {x: given, count: times}), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_state_crosses_once_in_a_step_and_is_that_of_the_step(session: ab.Session, servers: Cluster):
    side = 300
    w = ab.Variable(np.eye(side, dtype="float32"), name="state of replicas")
    renewed = w.assign(w * 2.0)
    x, count = ab.placeholder((None, side), "float32", name="x"), ab.placeholder((), "int32", name="count")

    def body(i: Any, h: Any) -> Any:
        return i + 1, ab.dynamic_schedule(lambda rows: rows @ w, h, devices=[PS])

    last = ab.while_loop(lambda i, h: i < count, body, (0, x))[1]
    call = session.make_callable(last, [x, count])
    given = whole_rows(2, side)
    call(given, np.int32(1))

    def sent() -> int:
        return sum(each.bytes_sent + each.bytes_shared for each in servers[1].status().connections if each.task == PS)

    before = sent()
    np.testing.assert_array_equal(call(given, np.int32(20)), given)
    assert side * side * 4 <= sent() - before < 1.5 * side * side * 4
    session.run(renewed.operation)
    np.testing.assert_array_equal(call(given, np.int32(3)), given * 8)


def test_a_variable_may_lie_on_another_task(session: ab.Session):
    with ab.device(PS):
        w = ab.Variable(np.ones((8, 2), "float32"), name="of the ps")
        more = w.assign_add(np.ones((8, 2), "float32"))
    x = ab.placeholder((None, 8), "float32", name="x")
    y = ab.dynamic_schedule(lambda rows: rows @ w, x, devices=BOTH, least_rows=4)
    for turn in range(3):
        given = whole_rows(40)
        np.testing.assert_array_equal(session.run(y, {x: given}), given @ np.full((8, 2), turn + 1.0, "float32"))
        session.run(more.operation)


def test_errors_of_replicas_are_named_and_leave_nothing(session: ab.Session):
    x, index = ab.placeholder((None, 8), "float32", name="x"), ab.placeholder((), "int32", name="index")
    y = ab.dynamic_schedule(lambda rows: rows + ops.take(ab.constant([1.0, 2.0]), index), x, devices=[PS])
    given = whole_rows(3)
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            session.run(y, {x: given, index: 7})
        assert any(PS in note for note in caught.value.__notes__)
        np.testing.assert_array_equal(session.run(y, {x: given, index: 1}), given + 2)


def test_devices_that_no_task_has_are_refused(session: ab.Session):
    x = ab.placeholder((None, 8), "float32", name="x")
    y = ab.dynamic_schedule(lambda rows: rows * 2.0, x, devices=["/job:ps/task:5"])
    with pytest.raises(PlacementError, match="asks for '/job:ps/task:5', but the tasks of the cluster are"):
        session.run(y, {x: whole_rows(3)})


def test_traced_steps(session: ab.Session, tmp_path: Any):
    x = ab.placeholder((None, 8), "float32", name="x")
    y = ab.dynamic_schedule(lambda rows: rows * 2.0, x, devices=[PS])
    given = whole_rows(50)
    np.testing.assert_array_equal(session.run(y, {x: given}, trace=tmp_path / "step.json"), given * 2)
    assert '"send"' in (tmp_path / "step.json").read_text()


def test_a_task_that_is_lost_is_named(graph: ab.Graph):
    with tasks() as running, ab.Session(graph, target=running[WORKER].target) as session:
        x = ab.placeholder((None, 8), "float32", name="x")
        y = ab.dynamic_schedule(lambda rows: rows * 2.0, x, devices=[PS])
        np.testing.assert_array_equal(session.run(y, {x: whole_rows(5)}), whole_rows(5) * 2)
        running[PS].kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            session.run(y, {x: whole_rows(5)})
        assert caught.value.task == PS
