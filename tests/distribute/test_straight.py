"""Large feeds and fetches between a client and a task that is not its master: they do not pass through the master."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.lab import shows
from shared.tasks import PATIENCE, PS, TOKEN, WORKER, Running, restarted, tasks
from shared.waiting import out_of_time, until

import anabranch as ab
from anabranch.distribute.tasks import channels, straight
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.connections import Identity
from anabranch.distribute.transport.values import LARGE
from anabranch.distribute.transport.wire import Kind, encode_document

pytestmark = pytest.mark.xdist_group("tasks")
SIZE = 1 << 18  # numbers of 4 bytes
Cluster = tuple[ab.distribute.Server, ab.distribute.Server]


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
    made = ab.Session(graph, target=servers[1].target)
    yield made
    made.close()
    until(lambda: left_over(servers) == {"fed": 0, "early": 0, "running": 0})


def left_over(servers: Cluster) -> dict[str, int]:
    found = [server.status().held for server in servers]
    return {name: sum(held[name] for held in found) for name in ("fed", "early", "running")}


def of_clients(server: ab.distribute.Server) -> list[Any]:
    return [each for each in server.status().connections if each.task.startswith("client")]


def received(server: ab.distribute.Server) -> int:
    """Bytes that have come to a task, from whomever."""
    return sum(each.bytes_received for each in server.status().connections)


def doubled(name: str = "x", dtype: str = "float32") -> tuple[Any, Any]:
    with ab.device(PS):
        x = ab.placeholder((None,), dtype, name)
        return x, x * 2


def given(seed: int = 0, size: int = SIZE) -> Any:
    return np.random.default_rng(seed).standard_normal(size).astype("float32")


def test_large_values_do_not_pass_through_the_master(session: ab.Session, servers: Cluster):
    ps, worker = servers
    x, y = doubled()
    call = session.make_callable(y, [x])
    values = given()
    values[:3] = np.nan, np.inf, -0.0
    np.testing.assert_array_equal(call(values), values * 2)  # what it fetches was not known to be large
    before = received(worker)
    for _ in range(3):
        np.testing.assert_array_equal(call(values), values * 2)
    assert received(worker) - before < LARGE
    (connection,) = of_clients(ps)
    assert connection.bytes_received > 4 * values.nbytes
    assert connection.bytes_sent > 3 * values.nbytes
    assert connection.queued == 0


def test_what_is_large_by_its_shape_goes_straight_from_the_first_step_on(session: ab.Session, servers: Cluster):
    with ab.device(PS):
        w = ab.Variable(given(), name="a large variable")
    before = received(servers[1])
    np.testing.assert_array_equal(session.run(w), given())
    assert received(servers[1]) - before < LARGE + given().nbytes  # its first value, in the graph
    before = received(servers[1])
    np.testing.assert_array_equal(session.run(w), given())
    assert received(servers[1]) - before < LARGE


def test_small_values_travel_in_the_messages_of_the_step(session: ab.Session, servers: Cluster):
    x, y = doubled()
    before = len(of_clients(servers[0]))
    for size in (0, 1, LARGE // 4):
        np.testing.assert_array_equal(session.run(y, {x: given(1, size)}), given(1, size) * 2)
    assert len(of_clients(servers[0])) == before


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64"])
def test_all_dtypes_of_numbers(session: ab.Session, dtype: str):
    with ab.device(PS):
        x = ab.placeholder((None, 3), dtype, "x")
        y = ab.ops.flip(x, [0])
    values = (given(2, 3 * (LARGE + 7)) * 3).astype("int8").astype(x.dtype).reshape(-1, 3)
    for _ in range(2):
        found = session.run(y, {x: values})
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values[::-1])


def test_feeds_that_several_tasks_take_go_by_the_master(session: ab.Session, servers: Cluster):
    x, y = doubled()
    with ab.device(WORKER):
        own = ab.ops.sum(x)
    before = received(servers[1])
    found, total = session.run([y, own], {x: given()})
    np.testing.assert_array_equal(found, given() * 2)
    np.testing.assert_allclose(total, given().sum(), rtol=1e-3)
    assert received(servers[1]) - before > given().nbytes


def test_several_feeds_fetches_and_loops_in_one_step(session: ab.Session):
    x, y = doubled("x")
    z, count = ab.placeholder((None,), "float32", "z"), ab.placeholder((), "int32", "count")

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            return i + 1, h + z

    total = ab.while_loop(lambda i, h: i < count, body, (0, y))[1]
    (slope,) = ab.gradients(ab.ops.sum(total * total), [z])
    small = ab.ops.sum(ab.ops.cast(x, "float64"))
    for number in range(3):
        one, other = given(number), given(number + 10)
        found = session.run([total, y, small, slope], {x: one, z: other, count: number})
        expected = one * 2
        for _ in range(number):
            expected = expected + other
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], one * 2)
        np.testing.assert_allclose(found[2], one.astype("float64").sum())
        np.testing.assert_allclose(found[3], 2 * number * expected, rtol=1e-5)


def test_steps_of_several_threads_have_connections_of_their_own(session: ab.Session):
    x, y = doubled()
    call = session.make_callable(y, [x])
    call(given())
    wrong: list[int] = []

    def run(number: int) -> None:
        for turn in range(5):
            values = given(10 * number + turn)
            if not np.array_equal(call(values), values * 2):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong


def test_traced_steps(session: ab.Session, tmp_path: Any):
    x, y = doubled()
    for _ in range(2):
        np.testing.assert_array_equal(session.run(y, {x: given()}, trace=tmp_path / "step.json"), given() * 2)
    text = (tmp_path / "step.json").read_text()
    assert '"recv"' in text
    assert '"send"' not in text  # the master has sent nothing


def test_a_client_that_reaches_its_master_alone(session: ab.Session, servers: Cluster, monkeypatch: pytest.MonkeyPatch):
    tried: list[int] = []

    def dial(planes: Any, host: str, port: int, incarnation: int, *more: Any) -> Any:
        tried.append(incarnation)
        raise OSError(113, "No route to host")

    x, y = doubled()
    with monkeypatch.context() as patch:
        patch.setattr(channels, "dial", dial)
        patch.setattr(channels, "streams_where_sockets_fail", lambda *_: False)  # gRPC does not reach it either
        for number in range(3):
            np.testing.assert_array_equal(session.run(y, {x: given(number)}), given(number) * 2)
        assert tried == [servers[0].incarnation]  # it is not tried again with each step
        assert of_clients(servers[0]) == []
    monkeypatch.setattr(straight, "_AGAIN_SECONDS", 0.0)
    np.testing.assert_array_equal(session.run(y, {x: given()}), given() * 2)
    assert len(of_clients(servers[0])) == 1


# --- failures -------------------------------------------------------------------------------------------------------


def test_steps_that_fail_leave_nothing(session: ab.Session, servers: Cluster):
    x, y = doubled()
    index = ab.placeholder((), "int32", "index")
    with ab.device(WORKER):
        picked = ab.ops.take(ab.constant([1, 2, 3]), index)
    with ab.device(PS):
        late = ab.ops.take(y, index)
    for _ in range(3):
        with pytest.raises(IndexError):
            session.run([y, picked], {x: given(), index: 7})
        with pytest.raises(IndexError):
            session.run([y, late], {x: given(), index: 2 * SIZE})
        found = session.run([y, picked], {x: given(), index: 1})
        np.testing.assert_array_equal(found[0], given() * 2)
        assert found[1] == 2
    until(lambda: [each.queued for each in of_clients(servers[0])] == [0])  # those of steps that have failed are closed


def test_a_task_that_takes_nothing_or_is_killed_meanwhile(graph: ab.Graph):
    with tasks() as running, ab.Session(graph, target=running[WORKER].target) as session:
        x, y = doubled()
        values = given(3, 4 << 20)
        np.testing.assert_array_equal(session.run(y, {x: values}), values * 2)
        running[PS].stop()
        wanted = "did not report what it waits for"
        assert wanted in out_of_time(lambda seconds: session.run(y, {x: values}, timeout=seconds), wanted)
        running[PS].go_on()
        np.testing.assert_array_equal(session.run(y, {x: values}), values * 2)
        held = ab.distribute.status(running[PS].target).held
        assert (held["fed"], held["running"], held["early"]) == (0, 0, 0)

        running[PS].stop()
        found: list[Any] = []

        def run() -> None:
            try:
                session.run(y, {x: values})
            except ab.errors.TaskFailedError as error:
                found.append(error.task)

        thread = threading.Thread(target=run)
        thread.start()
        while not ab.distribute.status(running[WORKER].target).steps:
            assert thread.is_alive()
        running[PS].kill()
        thread.join(PATIENCE)
        assert found == [PS]
        again = restarted(running[PS], worker=[running[WORKER].address])
        try:
            for _ in range(2):
                np.testing.assert_array_equal(session.run(y, {x: values}), values * 2)
            assert len([c for c in ab.distribute.status(again.target).connections if "client" in c.task]) == 2
        finally:
            again.end()


def test_a_task_that_is_started_again_between_two_steps(graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    unknown = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
    ps = ab.distribute.Server(unknown, "ps", 0)
    known = {"ps": [ps.target[7:]], "worker": ["localhost:0"]}
    with ab.distribute.Server(known, "worker", 0) as worker, ab.Session(graph, target=worker.target) as session:
        x, y = doubled()
        session.run(y, {x: given()})
        ps.stop()
        with ab.distribute.Server(known, "ps", 0) as again:
            np.testing.assert_array_equal(session.run(y, {x: given()}), given() * 2)
            assert of_clients(again)[-1].bytes_received > given().nbytes


@shows(
    "cut in mid-tensor",
    "client",
    "The step for which the client sends the value ends on all tasks. No part of the value arrives, and no operation"
    " that waits for it runs.",
    "`TaskFailedError` that names the task to which the client was sending, at once",
    "All state; the next step connects again, or goes through the master",
)
def test_a_client_that_loses_its_connection_in_mid_tensor(session: ab.Session, monkeypatch: pytest.MonkeyPatch):
    x, twice = doubled()
    with ab.device(PS):
        counted = ab.Variable(0.0, name="counted in mid-tensor")
        with ab.control_dependencies([counted.assign_add(x[0] * 0.0 + 1.0)]):
            y = twice + 0.0
    session.run(y, {x: given()})
    send = Channel.send

    def cut(channel: Channel, kind: int, document: Any, arrays: Any = (), **more: Any) -> Any:
        if kind != Kind.FED:
            return send(channel, kind, document, arrays, **more)
        whole = b"".join(encode_document(kind, document, arrays))
        assert len(whole) > given().nbytes
        channel._sock.sendall(whole[: len(whole) // 2])
        channel._sock.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError(104, "Connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "send", cut)
        with pytest.raises(ab.errors.TaskFailedError, match="the client's connection to it was lost") as caught:
            session.run(y, {x: given()})
    assert caught.value.task == PS
    assert counted.numpy() == 1
    np.testing.assert_array_equal(session.run(y, {x: given()}), given() * 2)
    assert counted.numpy() == 2


def answer(server: ab.distribute.Server, *sends: tuple[int, Any, list[Any]]) -> Any:
    """The last answer of a task to frames of a client."""
    info = server.task.information()
    identity = Identity("a client of a test", secrets.randbits(60))
    where = (info.host, info.port)
    channel = Channel(lambda: socket.create_connection(where, PATIENCE), identity, TOKEN.encode(), None, PATIENCE)
    try:
        for send in sends:
            channel.send(*send)
        return channel.receive()
    finally:
        channel.close()


def test_damaged_feeds_are_refused(session: ab.Session, servers: Cluster):
    x, y = doubled()
    for document in ({}, {"run": 1}, {"run": 1, "values": [[0, 3]]}, {"run": 1, "values": [["x", 0]]}, {"values": 3}):
        assert answer(servers[0], (Kind.FED, document, [given()])).kind == Kind.REFUSED
    np.testing.assert_array_equal(session.run(y, {x: given()}), given() * 2)


def test_feeds_that_a_task_does_not_take_straight_are_refused(
    session: ab.Session, servers: Cluster, monkeypatch: pytest.MonkeyPatch
):
    x, y = doubled()
    with ab.device(WORKER):
        z = ab.ops.sum(x)
    session.run([y, z], {x: given()})
    run = straight.Run

    def lies(number: int, ways: Any, feeds: dict[int, str], values: Any) -> Any:
        return run(number, ways, {0: PS}, values)

    with monkeypatch.context() as patch:
        patch.setattr(straight, "Run", lies)
        with pytest.raises(ConnectionError, match=r"feeds \[0\] are sent to tasks that do not take them"):
            session.run([y, z], {x: given()})
    found = session.run([y, z], {x: given()})
    np.testing.assert_array_equal(found[0], given() * 2)


def test_each_plane_carries_them(running: Running, graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    x, y = doubled()
    for plane in ("unix", "tcp", "grpc"):
        monkeypatch.setenv("ANABRANCH_PLANE", plane)
        with ab.Session(graph, target=running[WORKER].target) as session:
            for number in range(2):
                np.testing.assert_array_equal(session.run(y, {x: given(number)}), given(number) * 2)
            found = [c for c in ab.distribute.status(running[PS].target).connections if "client" in c.task]
            used = [each for each in found if each.bytes_received > 2 * given().nbytes]
            assert used[-1].plane == plane
