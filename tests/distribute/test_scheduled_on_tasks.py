"""Functions that are scheduled while a step runs, over the devices of several tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, TOKEN, WORKER, TaskProcess, tasks
from shared.waiting import until

import anabranch as ab
from anabranch import ops
from anabranch.distribute.transport.values import Kept
from anabranch.distribute.transport.wire import FrameError
from anabranch.engine.machine.kept import KeptStates, KeptValue
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
    made.close()
    until(lambda: not any(server.status().held["kept"] for server in servers))
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


def sent_to_ps(servers: Cluster) -> int:
    """Return the bytes that the master has sent to the ps."""
    return sum(each.bytes_sent + each.bytes_shared for each in servers[1].status().connections if each.task == PS)


def kept(server: ab.distribute.Server) -> int:
    """Return the number of values that a task keeps for steps to come."""
    return server.status().held["kept"]


def loops_over(w: ab.Variable, side: int) -> tuple[Any, Any, Any]:
    """Make a loop that schedules rows of `w` on the ps, its input and the number of iterations."""
    x, count = ab.placeholder((None, side), "float32", name="x"), ab.placeholder((), "int32", name="count")

    def body(i: Any, h: Any) -> Any:
        return i + 1, ab.dynamic_schedule(lambda rows: rows @ w, h, devices=[PS])

    return ab.while_loop(lambda i, h: i < count, body, (0, x))[1], x, count


def test_state_stays_on_a_task_from_step_to_step(session: ab.Session, servers: Cluster):
    side = 300
    w = ab.Variable(np.eye(side, dtype="float32"), name="state of replicas")
    renewed = w.assign(w * 2.0)
    last, x, count = loops_over(w, side)
    call = session.make_callable(last, [x, count])
    given = whole_rows(2, side)
    size = side * side * 4
    before = sent_to_ps(servers)
    np.testing.assert_array_equal(call(given, np.int32(20)), given)
    assert size <= sent_to_ps(servers) - before < 1.5 * size
    before = sent_to_ps(servers)
    for _ in range(3):
        np.testing.assert_array_equal(call(given, np.int32(5)), given)
    assert sent_to_ps(servers) - before < 0.5 * size
    assert kept(servers[0]) == 1
    for power in (1, 2):
        session.run(renewed.operation)
        before = sent_to_ps(servers)
        for _ in range(2):
            np.testing.assert_array_equal(call(given, np.int32(3)), given * 8**power)
        assert size <= sent_to_ps(servers) - before < 1.5 * size
        assert kept(servers[0]) == 1


def test_functions_and_their_gradients_share_what_is_kept(session: ab.Session, graph: ab.Graph, servers: Cluster):
    w = ab.Variable(np.round(weights(200, 200)), name="shared by functions")
    x = ab.placeholder((None, 200), "float32", name="x")
    y = ab.dynamic_schedule(lambda rows: ops.clip(rows @ w, -4.0, 4.0), x, devices=[PS])
    z = ab.dynamic_schedule(lambda rows: rows @ w, y, devices=[PS])
    (slope,) = ab.gradients(ops.sum(z), [x])
    given = whole_rows(20, 200)
    expected = here(graph, [z, slope], {x: given})
    for _ in range(2):
        before = sent_to_ps(servers)
        for found, right in zip(session.run([z, slope], {x: given}), expected, strict=True):
            np.testing.assert_array_equal(found, right)
    assert sent_to_ps(servers) - before < w.size * 4
    assert kept(servers[0]) == 1


def test_state_that_a_whole_step_does_not_use_leaves_the_task(session: ab.Session, servers: Cluster):
    w = ab.Variable(np.eye(64, dtype="float32"), name="used at times")
    last, x, count = loops_over(w, 64)
    given = whole_rows(2, 64)
    for times, left in ((3, 1), (0, 0), (2, 1)):
        np.testing.assert_array_equal(session.run(last, {x: given, count: times}), given)
        until(lambda left=left: kept(servers[0]) == left)


def test_what_is_kept_has_the_sign_of_zeros(session: ab.Session):
    w = ab.Variable(np.zeros((4, 4), "float32"), name="signed")
    negative = w.assign(np.full((4, 4), -0.0, "float32"))
    x = ab.placeholder((), "float32", name="x")
    y = ab.dynamic_schedule(lambda one: one / w, x, split=False, devices=[PS])
    assert (session.run(y, {x: 1.0}) == np.inf).all()
    session.run(negative.operation)
    assert (session.run(y, {x: 1.0}) == -np.inf).all()


def test_steps_at_once_and_steps_that_fail_have_their_own_state(session: ab.Session, servers: Cluster):
    w = ab.Variable(np.eye(32, dtype="float32"), name="of steps at once")
    x, index = ab.placeholder((None, 32), "float32", name="x"), ab.placeholder((), "int32", name="index")
    more = w.assign_add(np.eye(32, dtype="float32"))

    def function(rows: Any) -> Any:
        return rows @ w * ops.take(ab.constant([1.0, 0.0]), index)

    call = session.make_callable(ab.dynamic_schedule(function, x, devices=BOTH, least_rows=2), [x, index])
    given = np.ones((16, 32), "float32")

    def steps(number: int) -> list[float]:
        found: list[float] = []
        for turn in range(12):
            if (number + turn) % 4 == 0:
                session.run(more.operation)
            if (number + turn) % 5 == 0:
                with pytest.raises(IndexError):
                    call(given, np.int32(9))
            (value,) = set(call(given, np.int32(0)).ravel().tolist())  # all rows are of one moment
            found.append(value)
        return found

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(steps, range(4)):
            assert found == sorted(found)
    np.testing.assert_array_equal(call(given, np.int32(0)), given * 13)
    held = servers[0].status().held
    assert held["kept"] <= held["programs"]  # threads that run a step for the first time may prepare it each


def test_a_task_that_is_back_has_its_state_sent_again(graph: ab.Graph):
    with tasks() as running, ab.Session(graph, target=running[WORKER].target) as session:
        w = ab.Variable(np.eye(16, dtype="float32") * 3, name="sent again")
        x = ab.placeholder((None, 16), "float32", name="x")
        y = ab.dynamic_schedule(lambda rows: rows @ w, x, devices=[PS])
        for _ in range(2):
            np.testing.assert_array_equal(session.run(y, {x: whole_rows(5, 16)}), whole_rows(5, 16) * 3)
        address = running[PS].address
        running[PS].kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            session.run(y, {x: whole_rows(5, 16)})
        assert caught.value.task == PS
        again = TaskProcess({"ps": [address]}, "ps")
        try:
            for _ in range(2):
                np.testing.assert_array_equal(session.run(y, {x: whole_rows(5, 16)}), whole_rows(5, 16) * 3)
        finally:
            again.end()


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


@pytest.mark.parametrize("seed", range(20))
def test_what_is_said_to_be_kept_is_there_whatever_is_lost(seed: int):
    """Runs at once, over values that change, of which some fail: what they have sent is dropped from then on."""
    rng = np.random.default_rng(seed)
    states, kept = KeptStates(), Kept()
    variables = [object(), object()]
    on_the_way: list[Callable[[], None]] = []  # in order
    failed: list[object] = []
    runs: list[object] = []
    named = 0

    def take(run: object, item: Any, held: Any, right: Any) -> None:
        if run not in failed:
            np.testing.assert_array_equal(kept.taken(1, item), right)
            if rng.random() < 0.8:
                states.arrived(held, item.version)

    for _ in range(400):
        draw = rng.random()
        if draw < 0.04 or not runs:
            runs.append(object())
        elif draw < 0.5:
            run, value = runs[rng.integers(len(runs))], np.full(3, rng.integers(2), "float32")
            item, held = states.sent(PS, variables[rng.integers(2)], value, run)
            named += item.value is None
            on_the_way.append(partial(take, run, item, held, value))
        elif draw < 0.96 and on_the_way:
            on_the_way.pop(0)()
        elif draw < 0.985:
            run = runs.pop(rng.integers(len(runs)))
            states.end(run)
            on_the_way += [partial(kept.give_up, 1, numbers) for numbers in states.given_up().values()]
        else:
            failed.append(runs.pop(rng.integers(len(runs))))
    assert named > 10
    states.forget(PS)
    assert not len(states)


def test_what_is_not_kept_is_refused():
    with pytest.raises(FrameError, match="version 2 of variable 0 is said to be kept here, and is not"):
        Kept().taken(1, KeptValue(0, 2, None))
