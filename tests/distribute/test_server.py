"""Tasks that start, report who they are, accept those with the token, and end; in this process and as processes."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE, TOKEN, TaskProcess, tasks
from shared.waiting import until

import anabranch as ab
from anabranch.__main__ import main
from anabranch.distribute.commands import worker as worker_command
from anabranch.distribute.tasks.channels import Channels
from anabranch.distribute.tasks.client import connect
from anabranch.distribute.tasks.front import Greeter, TaskUnavailableError, ask_task, is_healthy
from anabranch.distribute.tasks.system import System
from anabranch.distribute.transport import channel as channel_module
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.connections import Connection, Handshake, Identity, RefusedError
from anabranch.distribute.transport.loop import Loop
from anabranch.distribute.transport.messages import TASK_SERVICE, HelloReply, HelloRequest
from anabranch.distribute.transport.planes import Limits, Plane
from anabranch.distribute.transport.wire import PROTOCOL, Decoder, Kind, encode_document
from anabranch.engine.queues.errors import TaskFailedError

CLUSTER = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
CLIENT = Identity("a test", 1)


@pytest.fixture
def server() -> Generator[ab.distribute.Server]:
    with ab.distribute.Server(CLUSTER, "ps", 0) as made:
        yield made


def address_of(server: Any) -> str:
    return server.target.removeprefix("grpc://")


def channel(server: Any, token: bytes = TOKEN.encode(), expected: Identity | None = None) -> Channel:
    info = ask_task(address_of(server), None, PATIENCE)
    return Channel(
        lambda: socket.create_connection((info.host, info.port), PATIENCE), CLIENT, token, expected, PATIENCE
    )


def test_a_task_tells_who_it_is_and_that_it_is_well(server: ab.distribute.Server):
    info = ask_task(address_of(server), "/job:ps/task:0", PATIENCE)
    assert (info.name, info.incarnation) == (server.name, server.incarnation)
    assert info.devices == ("/job:ps/task:0/device:CPU:0",)
    assert info.host == "127.0.0.1"
    assert is_healthy(address_of(server))


def test_each_start_is_another_incarnation():
    found: set[int] = set()
    for _ in range(2):
        with ab.distribute.Server(CLUSTER, "ps", 0) as made:
            found.add(made.incarnation)
    assert len(found) == 2


def test_another_task_than_expected_is_named(server: ab.distribute.Server):
    with pytest.raises(
        TaskUnavailableError, match=r"/job:worker/task:0 was expected at .*, and /job:ps/task:0 answers"
    ):
        ask_task(address_of(server), "/job:worker/task:0", PATIENCE)


def test_who_stops_is_gone_and_leaves_ports_and_threads_free():
    before = set(threading.enumerate())
    server = ab.distribute.Server({"ps": addresses(1)}, "ps", 0)  # which nobody else gets meanwhile
    address = address_of(server)
    ask_task(address, server.name, PATIENCE)
    opened = channel(server)
    server.stop()
    server.stop()
    with pytest.raises(ConnectionError, match="closed by the other side"):
        opened.receive()
    opened.close()
    with pytest.raises(TaskUnavailableError, match="/job:ps/task:0 did not answer"):
        ask_task(address, server.name, 0.0)
    assert not is_healthy(address, 1.0)
    with ab.distribute.Server({"ps": [address]}) as again:
        assert address_of(again) == address
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("anabranch"):
            thread.join(PATIENCE)  # gRPC's own end a little later
    until(lambda: len(set(threading.enumerate()) - before) <= 1)


def test_a_port_that_is_in_use_is_named(server: ab.distribute.Server, capfd: pytest.CaptureFixture[str]):
    capfd.readouterr()
    with pytest.raises(OSError, match=f"Can't listen at {address_of(server)}: another process uses the port"):
        ab.distribute.Server({"ps": [address_of(server)]})
    assert capfd.readouterr().err == "", "gRPC's core has said it, too"
    assert is_healthy(address_of(server))


def test_addresses_that_others_reach_need_bind_and_a_token(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"/job:ps/task:0 has the address 0\.0\.0\.0:0, which others"):
        ab.distribute.Server({"ps": ["0.0.0.0:0"]})
    monkeypatch.delenv("ANABRANCH_TOKEN")
    with pytest.raises(ValueError, match="need a token"):
        ab.distribute.Server({"ps": ["0.0.0.0:0"]}, bind="0.0.0.0")


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="give job_name= and task_index=; the cluster has /job:ps/task:0, "):
        ab.distribute.Server(CLUSTER)
    with pytest.raises(ValueError, match="no task /job:ps/task:3"):
        ab.distribute.Server(CLUSTER, "ps", 3)
    with pytest.raises(ValueError, match="connect_timeout=-1"):
        ab.distribute.ServerConfig(connect_timeout=-1)
    given: Any = {"plane": "tcp"}
    with pytest.raises(TypeError, match=r"config must be a ServerConfig, got \{'plane': 'tcp'\}"):
        ab.distribute.Server(CLUSTER, "ps", 0, config=given)
    with pytest.raises(ValueError, match="'sim' devices run in one process"):
        ab.distribute.Server(CLUSTER, "ps", 0, devices={"cpu": 1, "sim": 1})


# --- the handshake --------------------------------------------------------------------------------------------------


def test_who_knows_the_token_is_let_in(server: ab.distribute.Server):
    opened = channel(server, expected=Identity(server.name, server.incarnation))
    opened.close()


def test_who_does_not_know_the_token_is_refused_alone(server: ab.distribute.Server):
    opened = channel(server)
    with pytest.raises(RefusedError, match=r"the tokens of a test and of /job:ps/task:0 differ\. Set ANABRANCH_TOKEN"):
        channel(server, b"another token, as long")
    with pytest.raises(RefusedError, match="/job:ps/task:0 was expected and /job:ps/task:0 answered, or another start"):
        channel(server, expected=Identity(server.name, server.incarnation + 1))
    channel(server).close()
    opened.close()


def test_connecting_waits_for_a_long_operation_of_the_task(
    server: ab.distribute.Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(channel_module, "_SILENCE_SECONDS", 0.01)
    info = ask_task(address_of(server), None, PATIENCE)
    held, asked = threading.Event(), 0

    def answer(state: str) -> Any:
        def ask_now(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 4:
                held.set()
            return replace(info, state=state)

        return ask_now

    server.task.loop.call(held.wait)  # as in the middle of an operation
    given: Any = (info, lambda: CLIENT, TOKEN.encode(), None, 0.0)
    for state, *waits in (("turning", True), ("in an operation", False)):
        monkeypatch.setattr(Greeter, "ask_now", answer(state))
        with contextlib.closing(Channels(*given, *waits)) as ways, pytest.raises(TaskFailedError, match="in time"):
            ways.open()
    assert not held.is_set()
    monkeypatch.setattr(Greeter, "ask_now", answer("in an operation"))
    with contextlib.closing(Channels(*given)) as ways:
        ways.open().close()
    assert held.is_set()


def test_a_loop_waits_for_a_time_that_the_system_does_not_take():
    """A client may give its step 1e12 seconds; what else happens to the task is seen at once."""
    loop = Loop()
    loop.after(1e12, lambda: None)
    loop.wake()
    loop.turn()
    assert loop.turns == 1
    loop.close()


def test_the_reason_of_a_refusal_is_kept_where_the_other_side_has_gone():
    reasons: list[str] = []
    loop = Loop()
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(encode_document(Kind.REFUSED, {"message": "it has another token"})))
    theirs.close()
    Connection(
        loop,
        ours,
        Handshake(CLIENT, TOKEN.encode(), accepts=False),
        lambda connection, frame: None,
        lambda connection: None,
        lambda connection, reason: reasons.append(reason),
        {},
        lambda connection, number: None,
        Plane.UNIX,
        Limits(),
    )
    while not reasons:
        loop.turn()
    loop.close()
    assert reasons == ["it has another token"]


def test_the_token_is_never_sent():
    said: list[bytes] = []
    one = Handshake(Identity("/job:ps/task:0", 1), TOKEN.encode(), accepts=True)
    other = Handshake(CLIENT, TOKEN.encode(), accepts=False)
    waiting = one.begin()
    for speaker in (other, one, other):
        data = b"".join(map(bytes, waiting))
        said.append(data)
        waiting = speaker.take(frame_of(data)) if data else []
    assert other.other == Identity("/job:ps/task:0", 1)
    assert one.other == CLIENT
    assert TOKEN.encode() not in b"".join(said)


def test_a_recorded_handshake_can_not_be_repeated():
    token = TOKEN.encode()
    first = Handshake(Identity("/job:ps/task:0", 1), token, accepts=True)
    answer = Handshake(CLIENT, token, accepts=False).take(frame_of(b"".join(map(bytes, first.begin()))))
    first.take(frame_of(b"".join(map(bytes, answer))))
    second = Handshake(Identity("/job:ps/task:0", 1), token, accepts=True)
    second.begin()
    with pytest.raises(RefusedError, match=r"the tokens of a test and of .* differ"):
        second.take(frame_of(b"".join(map(bytes, answer))))


def test_a_task_that_does_not_know_the_token_is_refused_by_who_connects():
    task = Handshake(Identity("/job:ps/task:0", 1), b"another token, as long", accepts=True)
    client = Handshake(CLIENT, TOKEN.encode(), accepts=False)
    client.take(frame_of(b"".join(map(bytes, task.begin()))))
    with pytest.raises(RefusedError, match="the tokens of /job:ps/task:0 and of a test differ"):
        client.take(frame_of(b"".join(map(bytes, encode_document(Kind.WELCOME, {"proof": "0" * 64})))))


def test_another_version_is_named():
    client = Handshake(CLIENT, TOKEN.encode(), accepts=False)
    hello = {"protocol": 99, "name": "/job:ps/task:0", "incarnation": 1, "challenge": "x"}
    with pytest.raises(RefusedError, match=f"speaks version 99 of the protocol, and this one version {PROTOCOL}"):
        client.take(frame_of(b"".join(map(bytes, encode_document(Kind.HELLO, hello)))))


def frame_of(data: bytes) -> Any:
    decoder = Decoder()
    decoder.buffer()[: len(data)] = data
    (found,) = decoder.advance(len(data))
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(100),
        b"".join(map(bytes, encode_document(Kind.RUN, {"program": 1}, [np.zeros(3)]))),
        b"".join(map(bytes, encode_document(Kind.PROOF, {"proof": 3, "protocol": 2}))),
        b"".join(map(bytes, encode_document(Kind.PROOF, {"pad": "x" * 10_000}))),
    ],
)
def test_whoever_does_not_prove_himself_is_cut_off(server: ab.distribute.Server, data: bytes):
    info = ask_task(address_of(server), None, PATIENCE)
    with contextlib.closing(socket.create_connection((info.host, info.port), PATIENCE)) as sock:
        sock.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(65536):
                pass
    channel(server).close()  # others are served as before


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("tasks")
def test_tasks_as_processes_start_and_end():
    with tasks(ps=2) as running:
        assert list(running) == ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"]
        for name, task in running.items():
            assert ask_task(task.address, name, PATIENCE).name == name
        addresses = [task.address for task in running.values()]
        assert [task.end() for task in running.values()] == [0, 0, 0]
    assert not any(is_healthy(address, 0.5) for address in addresses)


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
def test_a_killed_task_can_be_started_at_its_address():
    with tasks() as running:
        task = running["/job:ps/task:0"]
        before = ask_task(task.address, task.name, PATIENCE)
        task.kill()
        again = TaskProcess({"ps": [task.address]}, "ps")
        try:
            after = ask_task(again.address, task.name, PATIENCE)
        finally:
            again.end()
        assert after.incarnation != before.incarnation


ENDING = """
import atexit
import anabranch as ab
from anabranch.distribute.commands import worker as worker_command
from anabranch.distribute.tasks.front import ask_task

server = ab.distribute.Server({"worker": ["localhost:0"]}, job_name="worker", task_index=0)
atexit.register(server.stop)

def ask():
    print(ask_task(server.target.removeprefix("grpc://"), None, 5.0).name, flush=True)

atexit.register(ask)  # before the server stops, and after the interpreter has begun to end
"""


def test_a_call_that_arrives_while_the_process_ends_does_not_hold_it():
    command = [sys.executable, "-c", ENDING]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "/job:worker/task:0\n")


def test_modules_that_fail_as_they_are_imported_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "with_functions.py").write_text("import math\nimport no_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"--import with_functions: .*'no_module'\. It is raised by .*\.py, line 2\."):
        worker_command.import_module("with_functions")
    for absent in ("no_module", "no_module.functions"):
        with pytest.raises(ImportError, match=rf"--import {absent}: .*Modules are looked for in the folder"):
            worker_command.import_module(absent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "--cluster", "{"], "is not JSON"),
        (["worker", "--cluster", '{"ps": ["localhost:0"]}', "--job-name", "x", "--task-index", "0"], "no task /job:x"),
        (
            ["worker", "--cluster", '{"ps": ["localhost:0"]}', "--import", "no_module"],
            "--import no_module: No module named",
        ),
        (["worker", "--cluster", '{"ps": ["localhost:0"]}', "--plane", "udp"], "'auto', 'sockets', 'shared_memory'"),
        (["wrker"], "invalid choice: 'wrker'"),
        (["serve", "--port", "1"], "unrecognized arguments: --port 1. Did you mean --rest-port or --grpc-port?"),
        (["status", "--nothing-like-it"], "unrecognized arguments: --nothing-like-it\n"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_process_without_a_command_ends_with_status_2():
    done = subprocess.run([sys.executable, "-m", "anabranch"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "required: COMMAND" in done.stderr


@pytest.mark.parametrize("first", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGTERM]])
def test_a_task_that_is_terminated_twice_ends_in_order(first: list[int], monkeypatch: pytest.MonkeyPatch):
    """A second SIGTERM interrupted the end that the first one had begun, or was reported, with a traceback."""
    done: list[str] = []

    class Terminated:
        """A server that gets signals while it serves, and SIGTERM while it stops."""

        name, target = "/job:ps/task:0", "grpc://localhost:1"

        def __init__(self, *given: Any, **options: Any) -> None:
            pass

        def join(self) -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, first)
            for number in first:
                signal.raise_signal(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, first)  # they come all at once
            done.append("served on")

        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("stopped")

    monkeypatch.setattr(worker_command, "Server", Terminated)
    monkeypatch.setattr(worker_command.gc, "set_threshold", lambda count: None)
    parser = argparse.ArgumentParser()
    worker_command.add_arguments(parser)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert worker_command.run(parser.parse_args(["--cluster", '{"ps": ["localhost:0"]}'])) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert done == ["stopped"]


def test_a_task_that_ends_waits_for_no_other_that_never_came():
    """A worker whose ps was absent lasted for 30 s after SIGTERM."""
    system, answers = System(), queue.Queue[Any]()
    system.ask("localhost:1", "/job:ps/task:0", 10 * PATIENCE, answers.put)
    system.close()
    assert "when this task ended" in answers.get(timeout=PATIENCE)
    system.loop.close()


def test_a_task_that_has_ended_answers_at_once_that_it_asks_nobody():
    """The loop printed "RuntimeError: cannot schedule new futures after shutdown", and the step had no answer."""
    system, answers = System(), queue.Queue[Any]()
    system.close()
    system.ask("localhost:1", "/job:ps/task:0", 10 * PATIENCE, answers.put)
    assert answers.get_nowait() == "/job:ps/task:0 at localhost:1 was not asked, since this process ends"
    system.loop.close()


STEP_AT_THE_END = """
import atexit
import anabranch as ab

server = ab.distribute.Server({"worker": ["localhost:0"]})
with ab.Graph().as_default() as graph:
    value = ab.Variable(1.0).value
session = ab.Session(graph, target=server.target)

@atexit.register
def run():
    try:
        session.run(value)
    except ab.errors.TaskFailedError as error:
        print(error)
"""


def test_a_step_that_a_process_prepares_at_its_end_fails_at_once():
    """It waited for ever: the thread that compiles takes no work any more."""
    done = subprocess.run([sys.executable, "-c", STEP_AT_THE_END], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "/job:worker/task:0 has failed: its process ends." in done.stdout


@pytest.mark.parametrize(
    "values",
    [(-1, -2), (1.5, 2.5), ([True, False], [False, True]), (["ö"], ["o"]), ([], [])],
    ids=["integers", "floats", "bools", "texts", "empty"],
)
def test_graphs_that_differ_in_a_constant_alone_are_both_sent(server: ab.distribute.Server, values: Any):
    """The second one was taken for the first, and its steps computed with the constant of that."""
    client = connect(server.target)
    found = []
    for value in values:
        with ab.Graph().as_default() as graph:
            fetched: Any = ab.constant(value)
        found.append(client.program(graph, [fetched], [], [], None)()[0])
    client.close()
    assert [each.tolist() for each in found] == [np.array(value).tolist() for value in values]


@pytest.mark.slow
def test_calls_that_wait_for_a_busy_task_are_answered():
    """gRPC's core would cancel those that the process has not come to within 30 s."""
    with (
        ab.distribute.Server({"ps": ["localhost:0"]}) as server,
        grpc.insecure_channel(address_of(server)) as channel,
    ):
        hello = channel.unary_unary(
            f"/{TASK_SERVICE}/Hello",
            request_serializer=HelloRequest.SerializeToString,
            response_deserializer=HelloReply.FromString,
        )
        hello(HelloRequest(protocol=PROTOCOL), timeout=PATIENCE)
        calls = [hello.future(HelloRequest(protocol=PROTOCOL), timeout=120) for _ in range(20)]
        ctypes.PyDLL(None).sleep(32)  # foreign code that holds the interpreter's lock
        assert [call.result().task for call in calls] == [server.name] * 20
