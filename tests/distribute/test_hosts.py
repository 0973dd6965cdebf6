"""Launchers of several hosts: their rendezvous, what they do with messages, and runs by processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from shared.tasks import PATIENCE, TOKEN

from anabranch.__main__ import main
from anabranch.distribute.collectives.links import shake_hands
from anabranch.distribute.commands import hosts
from anabranch.distribute.commands.hosts import HostLaunch, Rendezvous, hosts_of
from anabranch.distribute.commands.processes import Launch
from anabranch.distribute.commands.rounds import Counts, Rounds
from anabranch.distribute.environment import chief_of_launcher, note_chief
from anabranch.distribute.ports import ReservedPorts
from anabranch.distribute.restarts import Restarts
from anabranch.distribute.transport.connections import Handshake, Identity


@pytest.mark.parametrize("text", ["0", "3:2", "two", "1:", ""])
def test_numbers_of_hosts_that_can_not_be(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--nnodes"):
        hosts_of(text)
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["launch", "--nnodes", text, "--rdzv", "localhost:1", str(script)]) == 2
    assert main(["launch", "--nnodes", "2", str(script)]) == 2
    assert "--nnodes needs --rdzv" in capsys.readouterr().err
    assert main(["launch", "--rdzv", "localhost:1", str(script)]) == 2, "each host would train by itself"
    assert "--rdzv needs --nnodes" in capsys.readouterr().err
    assert main(["launch", "--k8s", "--rdzv", "localhost:1", str(script)]) == 2
    assert "--k8s and --rdzv do not go together" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["launch", "-n", "2"])
    assert "the following arguments are required: script\n" in capsys.readouterr().err


def test_strangers_are_not_heard() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    rendezvous = Rendezvous(listener, TOKEN.encode(), Rounds(Counts(1, 1), Restarts(0)))
    before = threading.active_count()
    with socket.create_connection(listener.getsockname()) as sock:
        sock.sendall(b'{"ready": {"worker": ["a:1"], "ps": []}, "leads": true}\n')
        sock.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
    rendezvous.close()
    assert threading.active_count() < before + 1


def rendezvous_at(listener: socket.socket) -> Rendezvous:
    return Rendezvous(listener, TOKEN.encode(), Rounds(Counts(1, 1), Restarts(0)))


def client_of(listener: socket.socket) -> socket.socket:
    """Connect as a launcher does, and say that a host is there."""
    sock = socket.create_connection(listener.getsockname(), PATIENCE)
    shake_hands(sock, Handshake(Identity("a launcher", secrets.randbits(63)), TOKEN.encode(), accepts=False))
    sock.sendall(json.dumps({"ready": {"worker": ["a:1"], "ps": []}, "leads": True}).encode() + b"\n")
    return sock


def test_ps_tasks_listen_where_other_hosts_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "_started", lambda self, command, *others, **options: command)
    launch = Launch(1, 2, ["script.py"])
    launch.cluster = {"ps": ["localhost:2201", "192.0.2.7:2201"], "worker": ["192.0.2.7:2203"]}
    commands: list[Any] = [launch._started_ps(0), launch._started_ps(1)]
    assert "--bind" not in commands[0]
    assert commands[1][-2:] == ["--bind", "192.0.2.7"]
    launch._folder.cleanup()


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_late_message_of_a_chief_overwrites_no_newer_note(is_reported: bool) -> None:
    """Worker 2, of this host, has taken over from worker 1, of another one, before a message of that one comes."""
    launch = HostLaunch(1, 0, ["script.py"], "127.0.0.1:1", Counts(2, 2))
    launch._round = 1
    launch._socket, first = socket.socketpair()
    first.settimeout(PATIENCE)
    with first, launch._socket, first.makefile("r") as lines:
        note_chief(str(launch._chief_file), 2)
        if is_reported:
            launch._report_chief()
        launch._do({"chief": 1})
        assert chief_of_launcher(launch._environment) == 2
        assert json.loads(lines.readline()) == {"chief": 2, "round": 1}
        launch._do({"chief": 2})  # it comes back
        assert chief_of_launcher(launch._environment) == 2
        launch._do({"chief": 0})
        assert chief_of_launcher(launch._environment) == 0, "what comes later is newer"
    launch._folder.cleanup()


def test_a_launcher_that_is_gone_when_the_rendezvous_has_ended_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = rendezvous_at(socket.create_server(("127.0.0.1", 0)))
    rendezvous.close()
    monkeypatch.setattr(hosts, "shake_hands", lambda sock, handshake: None)  # it has ended just before
    with socket.socket() as reset:  # has no connection any more
        rendezvous._listen(reset, 0)


def test_a_launcher_that_connects_while_the_rendezvous_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been accepted before the thread that accepts it has returned from its start."""
    accepted = threading.Event()

    class Listener(socket.socket):
        times = 0

        def accept(self) -> Any:
            self.times += 1
            if self.times == 2:
                accepted.set()
            return super().accept()

    class Started(threading.Thread):
        def start(self) -> None:
            super().start()
            if self._target.__name__ == "_accept":  # type: ignore[attr-defined]
                assert accepted.wait(PATIENCE)

    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname(), PATIENCE) as sock:
            monkeypatch.setattr(hosts.threading, "Thread", Started)
            rendezvous = rendezvous_at(listener)
            monkeypatch.undo()
            sock.shutdown(socket.SHUT_RDWR)
            rendezvous.close()


def test_the_rendezvous_ends_once_launchers_have_read_what_it_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_LEAVE_SECONDS", PATIENCE)
    listener = socket.create_server(("127.0.0.1", 0))
    rendezvous = rendezvous_at(listener)
    with client_of(listener) as sock, sock.makefile("r", encoding="utf-8") as lines:
        assert "start" in lines.readline()
        sock.sendall(b'{"failed": "worker 0", "round": 1, "status": 3}\n')
        assert json.loads(lines.readline()) == {"exit": 3, "why": "worker 0 ended with exit status 3"}
        closing = threading.Thread(target=rendezvous.close)
        closing.start()
        assert lines.readline() == ""
        for _ in range(3):  # a connection that is closed would be reset
            sock.sendall(b'{"ended": 1}\n')
        assert closing.is_alive()
        sock.shutdown(socket.SHUT_RDWR)
        closing.join(PATIENCE)
        assert not closing.is_alive()


def test_a_rendezvous_that_ends_is_gone_before_it_is_closed() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    rendezvous = rendezvous_at(listener)
    with client_of(listener) as sock, sock.makefile("r", encoding="utf-8") as lines:
        assert "start" in lines.readline()
        rendezvous.end()
        assert lines.readline() == ""
        sock.shutdown(socket.SHUT_RDWR)
    rendezvous.close()


def test_a_launcher_says_that_it_leaves_before_its_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = HostLaunch(1, 0, ["script.py"], "127.0.0.1:1", Counts(2, 2))
    launch._handler = signal.getsignal(signal.SIGTERM)
    launch._socket, first = socket.socketpair()
    first.settimeout(PATIENCE)
    said: list[str] = []
    with first, first.makefile("r", encoding="utf-8") as lines:
        monkeypatch.setattr(launch, "_end_all", lambda: said.append(lines.readline()))
        launch.__exit__()
        assert [json.loads(line) for line in said] == [{"leaves": True}]
        assert lines.readline() == "", "and then the connection ends"


@pytest.mark.parametrize("is_first", [False, True])
def test_a_second_signal_while_a_launcher_says_that_it_leaves_leaves_nothing_behind(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = HostLaunch(1, 0, ["script.py"], "127.0.0.1:1", Counts(2, 2))
    launch._handler = signal.getsignal(signal.SIGTERM)
    launch._socket, first = socket.socketpair()
    if is_first:
        launch._rendezvous = rendezvous_at(socket.create_server(("127.0.0.1", 0)))
    ended: list[str] = []
    monkeypatch.setattr(launch, "_end_all", lambda: ended.append("all"))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with first, monkeypatch.context() as interrupted:
            interrupted.setattr(hosts.threading.Thread, "join", interrupt)
            interrupted.setattr(hosts.json, "dumps", interrupt)
            with pytest.raises(KeyboardInterrupt):
                launch.__exit__()
        assert ended == ["all"]
        assert signal.getsignal(signal.SIGTERM) is launch._handler
    finally:
        signal.signal(signal.SIGTERM, before)
        if launch._rendezvous is not None:
            launch._rendezvous.close()
    assert not Path(launch._folder.name).exists()
    assert launch._socket.fileno() == -1


def interrupt(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def test_a_host_that_is_stopped_does_not_keep_the_first_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing, and so the thread that says something to it waits."""
    monkeypatch.setattr(hosts, "_SAY_SECONDS", 0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    rendezvous = rendezvous_at(listener)
    with client_of(listener) as sock:
        while sock.recv(1) != b"\n":  # the start
            pass
        rendezvous._rounds.sent.append((0, {"say": "x" * (32 << 20)}))
        assert sock.recv(1) == b"{"
        ending = threading.Thread(target=rendezvous.end)
        ending.start()
        ending.join(PATIENCE)
        has_ended = not ending.is_alive()
    ending.join()
    rendezvous.close()
    assert has_ended


def test_a_first_host_that_is_stopped_does_not_keep_a_launcher_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_SAY_SECONDS", 0.01)
    ended = threading.Event()
    monkeypatch.setattr(Launch, "__exit__", lambda self, *exception: ended.set())
    launch = HostLaunch(1, 0, ["script.py"], "127.0.0.1:1", Counts(2, 2))
    launch._socket, first = socket.socketpair()
    with first:
        launch._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                launch._socket.send(bytes(1 << 16))
        launch._socket.setblocking(True)
        leaving = threading.Thread(target=launch.__exit__)
        leaving.start()
        has_ended = ended.wait(PATIENCE)
    leaving.join()
    launch._folder.cleanup()
    assert has_ended


def answering(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Take one connection, in a thread: nobody listens any more, and the connection gets an answer and ends."""

    def answer_one() -> None:
        sock, _ = listener.accept()
        listener.close()
        with sock:
            sock.sendall(answer)

    thread = threading.Thread(target=answer_one)
    thread.start()
    return thread


def test_a_launcher_whose_first_host_ends_at_once_waits_for_another_one(tmp_path: Path) -> None:
    """Nobody listens any more, so it is the first one itself."""
    (tmp_path / "script.py").write_text("import sys; sys.exit(5)")
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    thread = answering(listener, b"")
    with HostLaunch(1, 0, [str(tmp_path / "script.py")], address, Counts(1, 1)) as launch:
        thread.join(PATIENCE)
        assert launch.wait() == 5


def test_a_server_that_is_no_launcher(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    thread = answering(listener, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert main(["launch", "--nnodes", "1", "--rdzv", address, str(tmp_path / "script.py")]) == 1
    thread.join(PATIENCE)
    assert capsys.readouterr().err.startswith(f"anabranch launch: who answers at {address} is no launcher: ")


# --- processes ------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
count, index = len(config["cluster"]["worker"]), config["task"]["index"]
folder, wanted = sys.argv[1], int(sys.argv[2])
with open(f"{folder}/written by {os.getpid()}", "w") as file:
    file.write(os.environ["ANABRANCH_TOKEN"])
os.replace(file.name, f"{folder}/{count}-{index}")  # whole: a process may be ended at any time
until = time.monotonic() + 120
while count != wanted and time.monotonic() < until:  # until another round begins
    time.sleep(0.02)
"""


@pytest.fixture
def launchers(tmp_path: Path) -> Generator[Any]:
    """Starts launchers as hosts; ends those that are left."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ports = ReservedPorts("localhost", 1)
    made: list[subprocess.Popen[str]] = []

    def start(hosts: str, wanted: int, *options: str) -> subprocess.Popen[str]:
        at = f"localhost:{ports.numbers[0]}"
        command = [sys.executable, "-m", "anabranch", "launch", "--nnodes", hosts, "--rdzv", at]
        command += [*options, str(tmp_path / "script.py"), str(tmp_path), str(wanted)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE)
    ports.close()


def statuses(processes: Sequence[Any]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for process in processes:
        _, errors = process.communicate(timeout=4 * PATIENCE)
        found.append((process.returncode, errors))
    return found


def seen(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "-" in path.name)


def wait_for(folder: Path, *names: str) -> None:
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if {*names} <= {*seen(folder)}:
            return
        waited.wait(0.05)
    raise TimeoutError(f"{names} are not all in {seen(folder)}")


@pytest.mark.xdist_group("tasks")
def test_hosts_join_and_leave(launchers: Any, tmp_path: Path) -> None:
    """One host with two workers begins; another one joins, and is lost; one more joins, and the run ends."""
    first = launchers("1:2", 5, "-n", "2", "--ps", "0")
    wait_for(tmp_path, "2-0", "2-1")
    second = launchers("1:2", 5, "-n", "1", "--ps", "0")
    wait_for(tmp_path, "3-0", "3-1", "3-2")
    second.send_signal(signal.SIGTERM)
    (left,) = statuses([second])
    assert left == (130, "anabranch launch: interrupted.\n")
    third = launchers("1:2", 5, "-n", "3", "--ps", "0")
    found = statuses([first, third])
    assert [status for status, _ in found] == [0, 0], found
    assert "a host joins; all tasks are started again" in found[0][1]
    assert "is gone; all tasks are started again" in found[0][1]
    assert {"2-0", "2-1", "3-0", "3-1", "3-2", "5-0", "5-4"} <= {*seen(tmp_path)}
    assert len({path.read_text() for path in tmp_path.glob("[0-9]-*")}) == 1, "all have one token"


@pytest.mark.xdist_group("tasks")
def test_a_failure_of_the_chief_ends_the_run_on_all_hosts(launchers: Any, tmp_path: Path) -> None:
    """It fails twice: the first time all are started again."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("until =", "sys.exit(3) if not index else None\nuntil ="))
    pair = [launchers("2", 9, "-n", "1", "--ps", "0", "--max-restarts", "1") for _ in range(2)]
    found = statuses(pair)
    assert [status for status, _ in found] == [3, 3], found
    for _, errors in found:
        assert "worker 0 ended with exit status 3 (restart 1 of 1); all tasks are started again.\n" in errors
        assert errors.endswith("anabranch launch: worker 0 ended with exit status 3.\n")


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize("ps", ["0", "1"])
def test_a_failure_of_another_worker_ends_no_host(ps: str, launchers: Any, tmp_path: Path) -> None:
    """The chief goes on, and hears that the worker of the other host has ended."""
    (tmp_path / "script.py").write_text(
        "import json, os, sys, time\n"
        "from anabranch.distribute.environment import ended_workers\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index']:\n    sys.exit(3)\n"
        "until = time.monotonic() + 60\n"
        "while ended_workers() != {1} and time.monotonic() < until:\n    time.sleep(0.02)\n"
        "print('it has ended:', *ended_workers())\n"
    )
    pair = [launchers("2", 0, "-n", "1", "--ps", ps) for _ in range(2)]
    found = [(process.communicate(timeout=4 * PATIENCE), process.returncode) for process in pair]
    assert [status for _, status in found] == [0, 0], found
    assert any("it has ended: 1" in output for (output, _), _ in found)
    assert any("worker 1 ended with exit status 3; the others go on" in errors for (_, errors), _ in found)


RESTORING = Path(__file__).parent / "scripts" / "train_and_restore.py"
FEWER = Path(__file__).parent / "scripts" / "train_on_fewer.py"


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize("lost", ["0:3 1:6:WAIT", "2:3 0:6:WAIT", "0:3", "2:3"])
def test_workers_of_two_hosts_go_on_after_a_loss(lost: str, launchers: Any, tmp_path: Path) -> None:
    """The chief, or the worker of the second host, is killed; with WAIT it is started again, and joins the others."""
    kill = f"import runpy, sys\nsys.argv[2:] = ['dense', *{lost.split()!r}]\n"
    (tmp_path / "script.py").write_text(f"{kill}runpy.run_path({str(FEWER)!r}, run_name='__main__')\n")
    options = ["--ps", "0", *(["--max-restarts", "1"] if "WAIT" in lost else [])]
    pair = [launchers("2", 0, "-n", str(count), *options) for count in (2, 1)]
    found = statuses(pair)
    assert [status for status, _ in found] == [0, 0], found
    rank = int(lost[0])
    rest = [each for each in range(3) if each != rank or "WAIT" in lost]
    results = {each: json.loads((tmp_path / f"found-{each}.json").read_text()) for each in rest}
    for each in rest:
        assert results[each]["members"] == rest
        assert results[each]["weights"] == results[rest[0]]["weights"]
        assert results[each]["history"] == results[rest[0]]["history"]
        assert results[each]["leads"] == (each == (1 if rank == 0 else 0))
    assert any(f"worker {rank} ended with exit status -9 (SIGKILL); " in errors for _, errors in found)
    assert not any("all tasks are started again" in errors for _, errors in found)


def task_of(launchers: Sequence[subprocess.Popen[str]], text: str) -> int:
    """The process that a launcher has started with a text among its arguments or in its environment."""
    for launcher in launchers:
        for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            given = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            if text.encode() in given:
                return int(pid)
    raise AssertionError(f"no process has {text!r}")


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
def test_the_run_ends_with_its_first_host(launchers: Any, tmp_path: Path) -> None:
    pair = [launchers("2", 9, "-n", "1", "--ps", "0") for _ in range(2)]
    wait_for(tmp_path, "2-0", "2-1")
    first = next(each for each in pair if is_first(each))
    (other,) = (each for each in pair if each is not first)
    first.send_signal(signal.SIGTERM)
    (status, errors), (of_first, _) = statuses([other, first])
    assert (status, of_first) == (1, 130)
    assert "is gone, whose launcher starts and ends all others: the run ends here." in errors


def is_first(launcher: subprocess.Popen[str]) -> bool:
    """Test whether a launcher has started worker 0."""
    try:
        return task_of([launcher], '"type": "worker", "index": 0') > 0
    except AssertionError:
        return False


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes of processes are Linux's")
def test_the_chief_and_ps_task_0_are_lost_together_on_one_of_two_hosts(launchers: Any, tmp_path: Path) -> None:
    """Both are started again, and training goes on from the last backup."""
    (tmp_path / "script.py").write_text(
        f"import runpy, sys\nsys.argv[2] = 'ParameterServer'\nrunpy.run_path({str(RESTORING)!r}, run_name='__main__')\n"
    )
    for name in ("reached", "go"):
        os.mkfifo(tmp_path / name)
    pair = [launchers("2", 0, "-n", "1", "--ps", "1", "--max-restarts", "2") for _ in range(2)]
    assert (tmp_path / "reached").read_text() == "two steps"
    lost = [task_of(pair, '"type": "worker", "index": 0'), task_of(pair, "--job-name\0ps\0--task-index\0" + "0")]
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    found = statuses(pair)
    assert [status for status, _ in found] == [0, 0], found
    said = "".join(errors for _, errors in found)
    assert said.count("; it is started again (restart ") == 2, said
    mine, other = (json.loads((tmp_path / f"found-{worker}.json").read_text()) for worker in range(2))
    assert mine["epochs"] == other["epochs"] == [0, 1, 2, 3]
    assert mine["history"] == other["history"]
    assert mine["weights"] == other["weights"]
    assert not (tmp_path / "backup").exists(), "the run has come to its end"
