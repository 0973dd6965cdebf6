"""All planes between real processes: the same values, shown by status, and nothing is left behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, TOKEN, WORKER, Running, tasks

import anabranch as ab
from anabranch.distribute.transport import dialing, planes
from anabranch.distribute.transport.planes import Plane

pytestmark = pytest.mark.xdist_group("tasks")
MEGA = 1 << 20


# Sockets of a host and of a network are used alike; test_random_over_tasks.py and test_rows_on_tasks.py use the former.
PLANES = [pytest.param(plane, marks=[pytest.mark.slow] if plane == Plane.UNIX else []) for plane in Plane]


@pytest.fixture(scope="module", params=PLANES)
def plane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(plane: str) -> Generator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_PLANE", plane)
        with tasks() as made:
            yield made


@pytest.fixture
def session(graph: ab.Graph, running: Running, plane: str, monkeypatch: pytest.MonkeyPatch) -> Generator[ab.Session]:
    monkeypatch.setenv("ANABRANCH_PLANE", plane)
    made = ab.Session(graph, target=running[WORKER].target)
    yield made
    made.close()


def between(running: Running) -> list[Any]:
    """The connections by which the two tasks send values."""
    found: list[Any] = []
    for task in (PS, WORKER):
        mine = [each for each in ab.distribute.status(running[task].target).connections if each.task in (PS, WORKER)]
        found += [each for each in mine if each.connected_by == "this task"]
    return found


def test_large_values_cross_in_both_directions(session: ab.Session, running: Running, plane: str):
    x = ab.placeholder((None, 256), "float32", "x")
    with ab.device(PS):
        y = x * 2.0
    with ab.device(WORKER):
        z = ab.ops.transpose(y + 1.0)
    with ab.device(PS):
        back = ab.ops.sum(z * 3.0, 0)
    for rows in (0, 1, 63, 64, 1000, 5000):
        given = np.arange(rows * 256, dtype="float32").reshape(rows, 256)
        found, turned, total = session.run([y, z, back], {x: given})
        np.testing.assert_array_equal(found, given * 2)
        np.testing.assert_array_equal(turned, (given * 2 + 1).T)
        np.testing.assert_allclose(total, ((given * 2 + 1).T * 3).sum(0), rtol=1e-5)
    for connection in between(running):
        assert connection.plane == plane
        assert (connection.bytes_shared > 5 * MEGA) == (plane == Plane.SHARED_MEMORY)
        assert connection.queued == 0


def test_what_is_kept_of_a_received_value_stays_as_it_was(session: ab.Session):
    """A variable and a queue keep values that came by shared memory, while later values come by the same memory."""
    x = ab.placeholder((MEGA,), "float32", "kept x")
    with ab.device(WORKER):
        made = x + 1.0
    with ab.device(PS):
        w = ab.Variable(np.zeros(MEGA, "float32"), name="keeps what came")
        queue = ab.queues.FIFOQueue(10, "float32", (MEGA,), name="keeps what came as well")
        assigned, put = w.assign(made), queue.enqueue(made)
        changed = w.assign_add(ab.ops.ones(MEGA))
        got = queue.dequeue()
    session.run([assigned.operation, put], {x: np.full(MEGA, 5)})
    for number in range(3):
        session.run(put, {x: np.full(MEGA, number)})
    np.testing.assert_array_equal(session.run(w), np.full(MEGA, 6))
    np.testing.assert_array_equal(session.run(changed), np.full(MEGA, 7))
    for expected in (6, 1, 2, 3):
        np.testing.assert_array_equal(session.run(got), np.full(MEGA, expected))


def test_a_loop_whose_large_state_crosses_each_iteration(session: ab.Session):
    x, count = ab.placeholder((200, 200), "float64", "x"), ab.placeholder((), "int32", "count")

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            z = ab.ops.sin(h)
        with ab.device(WORKER):
            return i + 1, z + x

    last = ab.while_loop(lambda i, h: i < count, body, (0, x))[1]
    (slope,) = ab.gradients(ab.ops.sum(last), [x])
    given = np.linspace(0, 1, 40_000).reshape(200, 200)
    for steps in (0, 1, 20):
        value, gradient = session.run([last, slope], {x: given, count: steps})
        h, expected = given, np.ones_like(given)
        for _ in range(steps):
            expected = expected * np.cos(h) + 1
            h = np.sin(h) + given
        np.testing.assert_allclose(value, h, rtol=1e-12)
        np.testing.assert_allclose(gradient, expected, rtol=1e-10)


def test_many_steps_leave_memory_and_descriptors_as_they_were(session: ab.Session, running: Running):
    x = ab.placeholder((None,), "float32", "x")
    with ab.device(PS):
        y = x * 2.0
    with ab.device(WORKER):
        z = y + 1.0
    call = session.make_callable(z, [x])

    def counted() -> list[int]:
        return [len(os.listdir(f"/proc/{task.pid}/fd")) for task in running.values()]

    chosen = np.random.default_rng(1)
    for number in range(60):
        size = int(chosen.integers(0, 3 * MEGA // 4))
        np.testing.assert_array_equal(call(np.full(size, number, "float32")), np.full(size, 2.0 * number + 1))
        if number == 20:
            before = counted()
    assert counted() == before
    for connection in between(running):
        assert connection.slab_bytes <= 256 * MEGA


def test_a_step_whose_values_do_not_fit_any_limit_goes_on(graph: ab.Graph, plane: str, monkeypatch: pytest.MonkeyPatch):
    """Early values by far more than the pool and the bytes in flight: iterations run ahead of who takes them."""
    monkeypatch.setenv("ANABRANCH_PLANE", plane)
    config = ab.distribute.ServerConfig(bytes_in_flight=MEGA, shared_memory_bytes=MEGA)
    with (
        ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0, config=config) as ps,
        ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0, config=config) as worker,
        ab.Session(graph, target=worker.target) as session,
    ):
        x, count = ab.placeholder((MEGA // 8,), "float64", "x"), ab.placeholder((), "int32", "count")

        def body(i: Any, total: Any) -> Any:
            with ab.device(WORKER):
                large = x + ab.ops.cast(i, "float64")
            with ab.device(PS):
                part = ab.ops.sum(ab.ops.sort(large))
            with ab.device(WORKER):
                return i + 1, total + part

        total = ab.while_loop(
            lambda i, total: i < count, body, (0, ab.constant(0.0, "float64")), parallel_iterations=32
        )
        found = session.run(total[1], {x: np.zeros(MEGA // 8), count: 40})
        assert found == MEGA // 8 * 40 * 39 / 2
        (connection,) = [each for each in worker.status().connections if each.connected_by == "this task"]
        assert connection.plane == plane
        assert connection.bytes_sent > MEGA or plane == Plane.SHARED_MEMORY
        assert (connection.queued, connection.slab_bytes <= MEGA) == (0, True)


def test_planes_are_chosen_for_each_task(graph: ab.Graph):
    config = ab.distribute.ServerConfig(plane={PS: "unix"})
    with ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps:
        other = ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0, config=config)
        with other, ab.Session(graph, target=other.target) as session, ab.device(PS):
            y = ab.constant(1.0) + 1.0
            assert session.run(y) == 2
            found = {each.connected_by: each for each in other.status().connections if each.task == PS}
            assert found["this task"].plane == Plane.UNIX


@pytest.mark.parametrize("is_lossy", [False, True])
def test_floats_of_lossy_pairs_travel_as_bfloat16(graph: ab.Graph, running: Running, plane: str, is_lossy: bool):
    x = ab.placeholder((None,), "float32", "x")
    whole = ab.placeholder((None,), "float64", "whole")
    with ab.device(WORKER):
        sent, kept = x * 1.0, whole * 1.0
    with ab.device(PS):
        there, back = sent + 0.0, kept + 0.0
        slope = ab.gradients(ab.ops.sum(there * there), [x])[0]
    with ab.device(WORKER):
        returned = there + 0.0
    values = np.array(
        [0.0, 1.0, 1.00390625, np.nan, np.inf, -np.inf, 1e38, 1e-42, *np.linspace(-3, 3, 200_000)], "float32"
    )
    upper = (values.view("uint32") & 0xFFFF0000).view("float32")
    upper[np.isnan(values)] = np.nan
    pairs = [("/job:worker", "/job:ps")] if is_lossy else []
    with ab.Session(graph, target=running[WORKER].target, lossy=pairs) as session:
        run = session.make_callable([returned, back, slope], [x, whole])
        run(values, values.astype("float64"))
        before = sum(each.bytes_sent + each.bytes_shared for each in between(running) if each.task == PS)
        found, exact, gradient = run(values, values.astype("float64"))
        after = sum(each.bytes_sent + each.bytes_shared for each in between(running) if each.task == PS)
    expected = upper if is_lossy else values
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(exact, values.astype("float64"))
    np.testing.assert_array_equal(gradient, expected * 2)
    size = len(values) * ((2 if is_lossy else 4) + 8)
    assert size <= after - before < 1.1 * size


def test_lossy_pairs_that_can_not_be_are_refused(graph: ab.Graph, running: Running, plane: str):
    with pytest.raises(ValueError, match="set_devices"):
        ab.Session(graph, lossy=[("cpu:0", "cpu:1")])
    for wrong in ("/job:ps", [("/job:ps",)], 3):
        with pytest.raises(TypeError, match="pair"):
            ab.Session(graph, target=running[WORKER].target, lossy=wrong)  # type: ignore[arg-type]
    with (
        ab.Session(graph, target=running[WORKER].target, lossy=[("/job:pss", "/job:worker")]) as session,
        pytest.raises(ValueError, match="lossy names '/job:pss', but the tasks of the cluster are /job:worker/task:0"),
    ):
        session.run(ab.constant(1.0) + 1.0)


@pytest.mark.parametrize("kind", ["array", "store"])
def test_arrays_that_grow_in_a_loop_send_what_is_new(session: ab.Session, running: Running, plane: str, kind: str):
    count, size = 60, 2000

    def body(i: Any, held: Any, total: Any) -> Any:
        with ab.device(WORKER):
            written = held.write(i, ab.ops.cast(ab.ops.full((size,), i), "float32"))
        with ab.device(PS):
            total = total + ab.ops.sum(written.read(i)) + ab.ops.sum(written.read(i // 2))
        return i + 1, written, total

    with ab.device(WORKER):
        made = ab.TensorStore("float32", (size,)) if kind == "store" else ab.TensorArray("float32", 0, True)
    looped = ab.while_loop(lambda i, *_: i < count, body, (0, made, 0.0), parallel_iterations=4)
    run = session.make_callable([looped[2]], [])
    run()
    before = sum(each.bytes_sent + each.bytes_shared for each in between(running) if each.task == PS)
    (total,) = run()
    sent = sum(each.bytes_sent + each.bytes_shared for each in between(running) if each.task == PS) - before
    assert total == size * sum(i + i // 2 for i in range(count))
    # Of an array what was added, of a store the two rows that are read; not all that is there, thirty times as much.
    assert count * size * 4 <= sent < 2.1 * count * size * 4


def test_a_task_of_planes_that_can_not_be_read_is_refused() -> None:
    """It meant no task, so that the plane was chosen as if nothing was asked for."""
    with pytest.raises(ValueError, match=r"Device 'junk!' can.t be read"):
        ab.distribute.ServerConfig(plane={"junk!": "tcp"})


@pytest.mark.parametrize("asked", ["auto", "sockets"])
def test_where_only_grpc_passes_streams_are_used_unless_sockets_are_asked_for(
    graph: ab.Graph, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """A proxy forwards gRPC alone: the sockets that tasks name lead nowhere, for the client and for other tasks."""

    def nowhere(host: str, port: int, timeout: float | None) -> socket.socket:
        del host, port
        with socket.create_server(("localhost", 0)) as closed:
            address: tuple[str, int] = closed.getsockname()[:2]
        return by_tcp(address[0], address[1], timeout)

    by_tcp = dialing._by_tcp
    monkeypatch.setattr(dialing, "_by_tcp", nowhere)
    monkeypatch.setattr(planes, "IS_AVAILABLE", False)  # another host
    monkeypatch.setenv("ANABRANCH_PLANE", asked)
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    with ab.device(PS):
        y = ab.constant(1.0) + 1.0
    with ab.distribute.Server({"ps": ["localhost:0"]}) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
        with ab.distribute.Server(cluster, "worker", 0) as worker:
            if asked == "sockets":
                with pytest.raises(ab.errors.TaskFailedError, match="can't be reached"):
                    ab.Session(graph, target=worker.target)
                return
            with ab.Session(graph, target=worker.target) as session:
                assert session.run(y * 3.0) == 6
            used = {each.plane for task in (ps, worker) for each in task.status().connections}
            assert used == {Plane.GRPC}
