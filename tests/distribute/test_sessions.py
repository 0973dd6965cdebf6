"""Sessions whose steps run on tasks: real processes, real sockets."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, TOKEN, WORKER, Running, TaskProcess, tasks
from shared.waiting import out_of_time, until

import anabranch as ab
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.wire import Kind
from anabranch.engine.place.constraints import PlacementError

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture
def session(graph: ab.Graph, running: Running) -> Generator[ab.Session]:
    made = ab.Session(graph, target=running[WORKER].target)
    yield made
    until(lambda: (found := left_over(made))["running"] == found["early"] == 0)
    made.close()


def remote(session: ab.Session) -> Any:
    return session._schedule.remote


def left_over(session: ab.Session) -> dict[str, int]:
    return remote(session).ask(Kind.STATUS, {}).document()["worker"]


def loop_over_both(x: Any, count: Any, parallel_iterations: int = 4) -> Any:
    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            z = ab.ops.tanh(h)
        with ab.device(WORKER):
            return i + 1, z + 1.0

    return ab.while_loop(lambda i, h: i < count, body, (0, x), parallel_iterations=parallel_iterations)[1]


# --- steps ----------------------------------------------------------------------------------------------------------


def test_state_lies_on_one_task_and_steps_run_on_another(session: ab.Session):
    with ab.device(PS):
        w = ab.Variable([1.0, 2.0], name="state")
        increased = w.assign_add([1.0, 1.0])
    with ab.device(WORKER):
        x = ab.placeholder((2,), "float32", "x")
        y = w * x + 1.0
    np.testing.assert_array_equal(session.run(y, {x: [1, 2]}), [2, 5])
    np.testing.assert_array_equal(session.run(increased), [2, 3])
    call = session.make_callable([y, w], [x])
    for number in range(3):
        found, state = call(np.full(2, number, "float32"))
        np.testing.assert_array_equal(found, np.array([2, 3]) * number + 1)
        np.testing.assert_array_equal(state, [2, 3])
    np.testing.assert_array_equal(w.numpy(), [2, 3])  # the task's: see test_state_at_home


def test_what_is_fetched_has_the_types_of_one_process(session: ab.Session):
    with ab.device(PS):
        number, vector, text = ab.constant(2.5), ab.constant([1, 2]), ab.constant(["a", "ö"])
        operation = ab.Variable(0.0, name="touched").assign(3.0).operation
    found = session.run({"n": number * 2, "v": [vector + 1], "t": text, "o": operation})
    assert type(found["n"]) is np.float32
    assert found["n"] == 5
    assert found["v"][0].dtype == np.int32
    assert found["t"].tolist() == ["a", "ö"]
    assert found["o"] is None


def test_a_loop_over_two_tasks_and_its_gradient(session: ab.Session, graph: ab.Graph):
    x, count = ab.placeholder((3,), "float32", "x"), ab.placeholder((), "int32", "count")
    last = loop_over_both(x, count)
    (slope,) = ab.gradients(ab.ops.sum(last), [x])
    for steps in (0, 1, 9):
        value, gradient = session.run([last, slope], {x: [0.0, 0.5, 1.0], count: steps})
        h, expected = np.array([0.0, 0.5, 1.0], "float32"), np.ones(3, "float32")
        for _ in range(steps):
            expected = expected * (1 - np.tanh(h) ** 2)
            h = np.tanh(h) + 1
        np.testing.assert_allclose(value, h, rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_values_larger_than_a_buffer_cross(session: ab.Session):
    x = ab.placeholder((None,), "float64", "large")
    with ab.device(PS):
        y = x * 2.0
    with ab.device(WORKER):
        z = y + 1.0
    for size in (0, 1, 1 << 20):
        given = np.arange(size, dtype="float64")
        np.testing.assert_array_equal(session.run(z, {x: given}), given * 2 + 1)


def test_a_graph_that_has_grown_is_sent_again(session: ab.Session):
    with ab.device(PS):
        w = ab.Variable(1.0, name="growing")
        y = w + 1.0
    assert session.run(y) == 2
    with ab.device(PS):
        more = w.assign(y * 10.0)
    assert session.run(more) == 20
    assert session.run(y) == 21


def test_random_numbers_have_the_state_of_their_task(session: ab.Session, running: Running):
    dice = ab.random.SeedGenerator(5, name="dice of a test")
    drawn = ab.random.uniform((3,), seed=dice)
    first, second = session.run(drawn), session.run(drawn)
    assert not np.array_equal(first, second)
    with ab.Graph().as_default() as graph:
        again = ab.random.uniform((3,), seed=ab.random.SeedGenerator(5, name="dice of a test"))
    other = ab.Session(graph, target=running[WORKER].target)
    third = other.run(again)  # another client finds the state
    other.close()
    with ab.Graph().as_default() as local:
        dice = ab.random.SeedGenerator(5)
        expected = ab.random.uniform((3,), seed=dice)
    here = ab.Session(local)
    for value in (first, second, third):
        np.testing.assert_array_equal(value, here.run(expected))


def test_partial_runs_keep_their_order(session: ab.Session):
    a, b = ab.placeholder((), "float32", "a"), ab.placeholder((), "float32", "b")
    with ab.device(PS):
        first = a * 2
        second = first + b
    step = session.partial_run_setup([first, second], [a, b])
    y = session.partial_run(step, first, {a: 3.0})
    assert (y, session.partial_run(step, second, {b: y + 1})) == (6, 13)


def test_steps_of_several_threads_run_at_once(session: ab.Session):
    x, count = ab.placeholder((3,), "float32", "x"), ab.placeholder((), "int32", "count")
    last = loop_over_both(x, count, 8)
    call = session.make_callable(last, [x, count])
    expected = {steps: call(np.zeros(3, "float32"), np.int32(steps)) for steps in range(8)}
    found: dict[int, list[Any]] = {steps: [] for steps in range(8)}

    def run(steps: int) -> None:
        found[steps].extend(call(np.zeros(3, "float32"), np.int32(steps)) for _ in range(10))

    threads = [threading.Thread(target=run, args=(steps,)) for steps in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for steps, values in found.items():
        assert len(values) == 10
        for value in values:
            np.testing.assert_array_equal(value, expected[steps])


def descriptors(task: TaskProcess) -> int:
    return len(list(Path(f"/proc/{task.pid}/fd").iterdir()))


def test_nothing_is_left_of_steps_that_ran_or_failed(session: ab.Session, running: Running):
    x, count = ab.placeholder((3,), "float32", "x"), ab.placeholder((), "int32", "count")
    last = loop_over_both(x, count, 8)
    with ab.device(PS):
        picked = ab.ops.take(last, count)
    call, given = session.make_callable([last, picked], [x, count]), np.zeros(3, "float32")
    session.run(last, {x: given, count: 3})
    before: dict[str, int] = {}

    def held() -> dict[str, int]:
        found = {name: value for name, value in left_over(session).items() if name != "steps"}
        return {**found, **{name: descriptors(task) for name, task in running.items()}}

    for number in range(60):
        call(given, np.int32(2))
        with pytest.raises(IndexError):
            call(given, np.int32(7 + number % 5))
        before = before or held()
    assert held() == before


# --- several clients ------------------------------------------------------------------------------------------------


def of_client(value: list[float], name: str) -> tuple[ab.Graph, Any, Any]:
    with ab.Graph().as_default() as graph, ab.device(PS):
        first = ab.Variable(value, name=name)
        second = ab.Variable(value, name=name)
        return graph, [first, second], second.assign_add(first)


def test_a_second_client_finds_the_state_by_its_name(running: Running):
    graph, variables, added = of_client([1.0], "shared")
    one = ab.Session(graph, target=running[WORKER].target)
    one.run(added)
    one.close()
    graph, variables, added = of_client([50.0], "shared")
    other = ab.Session(graph, target=running[WORKER].target)
    np.testing.assert_array_equal(other.run(variables), [[1], [2]])
    np.testing.assert_array_equal(other.run(added), [3])
    other.close()


def test_state_of_another_shape_is_refused(running: Running):
    graph, _, added = of_client([1.0], "shaped")
    one = ab.Session(graph, target=running[WORKER].target)
    one.run(added)
    graph, _, others = of_client([1.0, 2.0], "shaped")
    other = ab.Session(graph, target=running[WORKER].target)
    with pytest.raises(
        ValueError, match=r"Variable 'shaped' on /job:ps/task:0 is float32\[1\], made by another client"
    ):
        other.run(others)
    one.run(added)
    one.close()
    other.close()


def test_containers_keep_state_apart(running: Running):
    found: list[Any] = []
    for name in ("one", "other"):
        with ab.container(f"a test's {name}"), ab.Graph().as_default() as graph, ab.device(PS):
            w = ab.Variable(float(len(found)), name="contained")
        session = ab.Session(graph, target=running[WORKER].target)
        found.append(float(session.run(w)))
        session.close()
        ab.container(f"a test's {name}").clear()
    assert found == [0.0, 1.0]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_an_operation_that_fails_keeps_its_error_and_its_place(session: ab.Session):
    x = ab.placeholder((None,), "int32", "x")
    with ab.device(PS):
        y = ab.ops.take(ab.constant([1, 2, 3]), x)
    with ab.device(WORKER):
        z = y + 1
    with pytest.raises(IndexError) as caught:
        session.run(z, {x: [7]})
    notes = "\n".join(caught.value.__notes__)
    assert PS in notes
    assert "test_sessions.py" in notes
    np.testing.assert_array_equal(session.run(z, {x: [2]}), [4])


def test_a_task_that_the_cluster_does_not_have_is_named(session: ab.Session):
    with ab.device("/job:ps/task:7"):
        y = ab.constant(1.0) + 1.0
    with pytest.raises(
        PlacementError, match=r"asks for '/job:ps/task:7', but the tasks of the cluster are /job:ps/task:0"
    ):
        session.run(y)


def test_a_timeout_names_what_waits_by_task(session: ab.Session):
    x = ab.placeholder((3,), "float32", "x")
    forever = loop_over_both(x, ab.constant(2**31 - 1))
    finite = loop_over_both(x, ab.constant(3))
    session.run(finite, {x: np.zeros(3)})
    program = session.program(forever, [x])
    before = program.statistics.runs
    given: list[float] = []

    def run(seconds: float) -> None:
        given.append(seconds)
        session.run(forever, {x: np.zeros(3)}, timeout=seconds)

    wanted = [f"{task}: The step was not done after" for task in (PS, WORKER)]
    found = out_of_time(run, *wanted)
    assert [text for text in wanted if text not in found] == [], found
    assert program.statistics.runs == before + len(given)
    session.run(finite, {x: np.zeros(3)})


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Kind.RUN, {"program": "x"}),
        (Kind.GRAPH, {"graph": {}, "arrays": []}),
        (Kind.STEP, {"step": 1, "program": 1, "feeds": []}),
        (Kind.VALUE, {}),
        (Kind.HELLO, {}),
        (77, {}),
    ],
)
def test_damaged_frames_end_the_connection_they_came_by_alone(
    session: ab.Session, running: Running, kind: int, document: dict[str, Any]
):
    with ab.device(PS):
        y = ab.constant(1.0) + 1.0
    assert session.run(y) == 2
    other: Any = ab.Session(ab.Graph(), target=running[WORKER].target)
    with remote(other).channel() as channel:
        channel.send(kind, document)
        assert channel.receive().kind == Kind.REFUSED
        with pytest.raises(ConnectionError):
            channel.receive()
    other.close()
    assert session.run(y) == 2


def test_a_session_that_is_closed_says_so(graph: ab.Graph, running: Running):
    y = ab.constant(1.0) + 1.0
    session = ab.Session(graph, target=running[WORKER].target)
    assert session.run(y) == 2
    session.close()
    with pytest.raises(ConnectionError, match="The session is closed"):
        session.run(y)


def test_targets_that_can_not_be_used_are_named(graph: ab.Graph, running: Running, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"expected the address of a task, 'grpc://host:port'"):
        ab.Session(graph, target="localhost:2203")
    with pytest.raises(ValueError, match="is no address"):
        ab.Session(graph, target="grpc://localhost")
    with pytest.raises(TypeError, match="expected a string such as"):
        ab.Session(graph, target=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="schedule_seed=1 and target="):
        ab.Session(graph, target=running[WORKER].target, schedule_seed=1)
    monkeypatch.setenv("ANABRANCH_TOKEN", "another token for a job")
    with pytest.raises(ConnectionError, match=r"the tokens of client .* and of /job:worker/task:0 differ"):
        ab.Session(graph, target=running[WORKER].target)


def test_sessions_without_a_target_do_not_load_grpc():
    code = """
import sys, anabranch as ab
x = ab.placeholder((), "float32", "x")
ab.Session().run(x + 1, {x: 1.0})
print([name for name in ("grpc", "google.protobuf", "anabranch.distribute.tasks.client") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.strip() == "[]", done.stderr


# --- failures -------------------------------------------------------------------------------------------------------


def trained(graph: ab.Graph) -> tuple[Any, Any, Any]:
    """A variable on each of two ps tasks, a step that needs both and one that needs the first alone."""
    with ab.device(PS):
        kept = ab.Variable(1.0, name="kept")
        own = kept.assign_add(1.0)
    with ab.device("/job:ps/task:1"):
        lost = ab.Variable(10.0, name="lost")
        both = lost.assign_add(kept)
        renewed = lost.assign(5.0)
    return own, both, renewed


def test_a_killed_task_is_named_and_what_does_not_need_it_runs(graph: ab.Graph):
    with tasks(ps=2) as running:
        session = ab.Session(graph, target=running[WORKER].target)
        own, both, renewed = trained(graph)
        assert (session.run(own), session.run(both)) == (2, 12)
        killed = running["/job:ps/task:1"]
        killed.kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            session.run(both)
        assert caught.value.task == "/job:ps/task:1"
        assert "/job:ps/task:1 has failed" in str(caught.value)
        assert session.run(own) == 3
        again = TaskProcess({"ps": ["localhost:1", killed.address]}, "ps", 1)
        try:
            with pytest.raises(ab.errors.StateLostError, match="'lost' has no value: /job:ps/task:1, which held it"):
                session.run(both)
            assert session.run(renewed) == 5
            assert session.run(both) == 8
            assert session.run(own) == 4
        finally:
            again.end()
        session.close()


def test_a_task_that_is_killed_in_the_middle_of_a_step_is_named(graph: ab.Graph):
    with tasks(all_with=("--heartbeat-interval", "60", "--heartbeat-timeout", "600")) as running:
        session = ab.Session(graph, target=running[WORKER].target)
        x = ab.placeholder((3,), "float32", "x")
        with ab.device(WORKER):
            waits = ab.queues.FIFOQueue(10, "float32", shapes=(), name="never filled").dequeue()
        forever = [loop_over_both(x, ab.constant(2**31 - 1)), waits]
        own = ab.constant(1.0) + 1.0
        session.program(forever, [x])
        found: list[Any] = []

        def run() -> None:
            try:
                session.run(forever, {x: np.zeros(3)})
            except ab.errors.TaskFailedError as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        other = ab.Session(graph, target=running[WORKER].target)
        until(lambda: left_over(other)["running"])
        running[PS].kill()
        thread.join(PATIENCE)  # long before heartbeats show it
        (error,) = found
        assert error.task == PS
        assert "and has ended on all tasks" in str(error)
        assert error.step is not None
        assert list(error.waiting) == [WORKER]
        assert "dequeue of 1 element from queue 'never filled', which is open and holds 0" in error.waiting[WORKER]
        assert any(note.startswith(f"{WORKER}: The step was not done") for note in error.__notes__)
        until(lambda: left_over(other)["running"] == 0)
        assert other.run(own) == 2
        other.close()
        session.close()


def test_a_killed_master_is_named(graph: ab.Graph):
    with tasks() as running:
        session = ab.Session(graph, target=running[WORKER].target)
        with ab.device(PS):
            y = ab.constant(1.0) + 1.0
        assert session.run(y) == 2
        running[WORKER].kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            session.run(y)
        assert caught.value.task == WORKER
        session.close()


def test_a_master_that_is_started_anew_is_used_again(graph: ab.Graph):
    with tasks() as running:
        session = ab.Session(graph, target=running[WORKER].target)
        with ab.device(PS):
            kept = ab.Variable(1.0, name="kept over a master")
            more = kept.assign_add(1.0)
        lost = ab.Variable(5.0, name="lost with a master")
        assert session.run([more, lost]) == [2, 5]
        running[WORKER].kill()
        with pytest.raises(ab.errors.TaskFailedError):
            session.run(more)
        cluster = {"ps": [running[PS].address], "worker": [running[WORKER].address]}
        again = TaskProcess(cluster, "worker")
        try:
            assert session.run(more) == 3
            with pytest.raises(ab.errors.StateLostError, match="'lost with a master' has no value: /job:worker/task:0"):
                session.run(lost)
            session.close()
        finally:
            again.end()


def test_an_interrupted_client_goes_on(graph: ab.Graph, running: Running, monkeypatch: pytest.MonkeyPatch):
    """The connection in which it waited for an answer is closed; what the master knew of it was lost with that."""
    session = ab.Session(graph, target=running[WORKER].target)
    y = ab.constant(1.0) + 1.0
    assert session.run(y) == 2

    def interrupted(channel: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(y)
    until(lambda: not remote(session)._channels.count)
    assert session.run(y) == 2
    session.close()


def test_a_task_that_never_came_is_named_after_the_time_for_it(graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    config = ab.distribute.ServerConfig(connect_timeout=0.2)
    cluster = {"ps": ["localhost:1"], "worker": ["localhost:0"]}
    with ab.distribute.Server(cluster, "worker", 0, config=config) as server:
        session = ab.Session(graph, target=server.target)
        with ab.device(PS):
            y = ab.constant(1.0) + 1.0
        with pytest.raises(
            ab.errors.TaskFailedError, match=r"/job:ps/task:0 did not answer at localhost:1 within 0\.2 s"
        ):
            session.run(y)
        session.close()


def test_a_timeout_ends_the_wait_for_a_task_that_never_came(graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    config = ab.distribute.ServerConfig(connect_timeout=10 * PATIENCE)
    cluster = {"ps": ["localhost:1"], "worker": ["localhost:0"]}
    with ab.distribute.Server(cluster, "worker", 0, config=config) as server:
        session = ab.Session(graph, target=server.target)
        with ab.device(PS):
            y = ab.constant(1.0) + 1.0
        with pytest.raises(ab.errors.DeadlineExceededError, match=r"being prepared.\n/job:ps/task:0 has not answered"):
            session.run(y, timeout=0.2)
        assert session.run(ab.constant(1.0)) == 1.0
        session.close()


def test_a_step_does_not_wait_for_another_thread_s_that_needs_an_absent_task(
    graph: ab.Graph, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    config = ab.distribute.ServerConfig(connect_timeout=10 * PATIENCE)
    cluster = {"ps": ["localhost:1"], "worker": ["localhost:0"]}
    asked, receive = threading.Event(), Channel.receive

    def receiving(channel: Channel) -> Any:
        asked.set()
        return receive(channel)

    with ab.distribute.Server(cluster, "worker", 0, config=config) as server:
        session = ab.Session(graph, target=server.target)
        with ab.device(PS):
            y = ab.constant(1.0) + 1.0
        z = ab.constant(1.0) + 1.0
        errors: list[type] = []

        def waiting() -> None:
            with pytest.raises((ab.errors.DeadlineExceededError, ab.errors.TaskFailedError)) as caught:
                session.run(y, timeout=PATIENCE / 2)
            errors.append(caught.type)

        monkeypatch.setattr(Channel, "receive", receiving)
        thread = threading.Thread(target=waiting)
        thread.start()
        assert asked.wait(PATIENCE)
        assert session.run(z) == 2.0
        assert errors == []
        server.stop()
        thread.join(PATIENCE)
        assert errors == [ab.errors.TaskFailedError]
        session.close()


def test_nothing_is_kept_until_its_deadline_of_steps_that_are_over(graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    """Values that were fetched stayed in the master's memory for as long as `timeout=` says."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    with ab.distribute.Server({"worker": ["localhost:0"]}) as server:
        session = ab.Session(graph, target=server.target)
        y = ab.constant(1.0) + 1.0
        session.run(y, timeout=3600.0)
        before = len(server.task.loop._timers)  # the only thing that could keep them
        for number in range(20):
            session.run(y, timeout=3600.0 + number)
        assert len(server.task.loop._timers) <= before
        session.close()


def test_no_program_is_kept_until_its_deadline(monkeypatch: pytest.MonkeyPatch):
    """A program that was prepared within a timeout was kept, with its graph, by a client that was gone."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    with ab.distribute.Server({"worker": ["localhost:0"]}) as server:
        with ab.Graph().as_default() as graph:
            y = ab.constant(1.0) + 1.0
        session = ab.Session(graph, target=server.target)
        session.run(y, timeout=3600.0)
        (program,) = server.task._master._programs.values()
        kept = weakref.ref(program)
        del program
        session.close()
        until(lambda: gc.collect() >= 0 and kept() is None)


def test_a_client_that_is_gone_ends_its_steps_only(running: Running, graph: ab.Graph):
    x = ab.placeholder((3,), "float32", "x")
    forever = loop_over_both(x, ab.constant(2**31 - 1))
    code = f"""
import sys
import numpy as np
import anabranch as ab
graph = ab.load_graph(sys.argv[1])
session = ab.Session(graph, target={running[WORKER].target!r})
session.run({forever.name!r}, {{"x:0": np.zeros(3)}})
"""
    with ab.Session(graph, target=running[WORKER].target) as other:
        with tempfile.TemporaryDirectory() as folder:
            graph.save(f"{folder}/graph.npz")
            client = subprocess.Popen([sys.executable, "-c", code, f"{folder}/graph.npz"])
            try:
                until(lambda: left_over(other)["running"] == 1 or client.poll() is not None)
                assert client.poll() is None
            finally:
                client.kill()
                client.wait(PATIENCE)
        until(lambda: left_over(other)["running"] == 0)
        finite = loop_over_both(x, ab.constant(2))
        assert other.run(finite, {x: np.zeros(3)}).shape == (3,)
        other.close()


def test_a_task_that_only_a_fed_placeholder_asks_for_is_in_the_step(session: ab.Session):
    with ab.device(PS):
        x = ab.placeholder((2,), "float32", "x")
    with ab.device(WORKER):
        y = x + 1.0
    assert session.run(y, {x: [1.0, 2.0]}).tolist() == [2.0, 3.0]


def test_a_branch_that_only_touches_state_of_another_task_runs_there(session: ab.Session):
    with ab.device(PS):
        total = ab.Variable([0.0, 0.0], name="branch/total")
        count = ab.Variable(0, name="branch/count")
        x = ab.placeholder((2,), "float32", "x")
        is_even = ab.ops.equal(count % 2, 0)
        done = ab.cond(is_even, lambda: total.assign(total + x), lambda: total.assign(total * x))
        with ab.control_dependencies([done.operation]):
            counted = count.assign_add(1)
    for _ in range(3):
        session.run(counted, {x: [2.0, 3.0]})
    assert session.run(total).tolist() == [6.0, 12.0]


# --- tasks that are stopped -----------------------------------------------------------------------------------------


def test_a_stopped_task_is_dead_and_is_used_again_when_it_goes_on(graph: ab.Graph):
    with tasks("--heartbeat-timeout", "2", ps=1) as running:
        session = ab.Session(graph, target=running[WORKER].target)
        with ab.device(PS):
            w = ab.Variable(1.0, name="survivor")
            more = w.assign_add(1.0)
        own = ab.constant(1.0) + 1.0
        assert session.run(more) == 2
        running[PS].stop()
        with pytest.raises(
            ab.errors.TaskFailedError, match=r"it has not answered for \d+ s \(heartbeat_timeout=2\)"
        ) as e:
            session.run(more)
        assert e.value.task == PS
        assert session.run(own) == 2
        with pytest.raises(ab.errors.TaskFailedError, match="did not answer"):
            session.run(more)
        running[PS].go_on()
        assert session.run(w) in (2, 3)  # of the step that was given up nothing or all is done
        before = session.run(w)
        assert session.run(more) == before + 1
        session.close()


@pytest.mark.slow
def test_a_stopped_master_is_dead_for_its_clients(graph: ab.Graph):
    with tasks("--heartbeat-timeout", "2") as running:
        session = ab.Session(graph, target=running[WORKER].target)
        with ab.device(PS):
            y = ab.constant(1.0) + 1.0
        assert session.run(y) == 2
        running[WORKER].stop()
        with pytest.raises(ab.errors.TaskFailedError, match="it has not answered for") as caught:
            session.run(y)
        assert caught.value.task == WORKER
        running[WORKER].go_on()
        assert session.run(y) == 2
        session.close()


def test_who_asks_for_what_the_master_does_not_have_is_answered(running: Running):
    other: Any = ab.Session(ab.Graph(), target=running[WORKER].target)
    with remote(other).channel() as channel:
        for kind, document in [(Kind.RUN, {"program": 99, "feeds": [], "timeout": None}), (Kind.PREPARE, {})]:
            channel.send(kind, document)
            assert channel.receive().kind == Kind.UNKNOWN
    other.close()
