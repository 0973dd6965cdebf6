"""Launchers of several hosts: which take part in a round, by a machine without clocks, and by processes."""

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
from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from shared.tasks import PATIENCE, TOKEN

from anabranch.__main__ import main
from anabranch.distribute.collectives.links import shake_hands
from anabranch.distribute.commands import hosts
from anabranch.distribute.commands.hosts import HostLaunch, Rendezvous, hosts_of
from anabranch.distribute.commands.processes import Launch
from anabranch.distribute.commands.rounds import GRACE_SECONDS, Counts, Rounds
from anabranch.distribute.ports import free_ports
from anabranch.distribute.restarts import Restarts
from anabranch.distribute.transport.connections import Handshake, Identity


class Goes:
    """A membership service of workers that train together; of none where no training is under way."""

    def __init__(self, *live: int) -> None:
        self.live = [*live]
        self.expected: set[int] = set()

    def goes_on_without(self, ranks: Collection[int]) -> bool:
        return any(rank not in ranks for rank in self.live)

    def expects(self, rank: int) -> bool:
        return rank in self.expected

    def expect(self, rank: int) -> None:
        self.expected.add(rank)

    def leader(self) -> int | None:
        return self.live[0] if self.live else None


class Told:
    """Hosts that say what they do, and the messages that they get, in virtual time."""

    def __init__(self, least: int, most: int, restarts: int = 0, service: Goes | None = None) -> None:
        self.now = 0.0
        clock = self._clock
        self.has_ps = service is None  # only workers without ps tasks have a membership service
        self.rounds = Rounds(Counts(least, most, 5.0, 100.0), Restarts(restarts, clock), clock, lambda: service)

    def _clock(self) -> float:
        return self.now

    def come(self, *hosts: int) -> Told:
        for host in hosts:
            ps = [f"p{host}"] if self.has_ps else []
            self.rounds.ready(host, [f"w{host}a", f"w{host}b"], ps, leads=host == 0)
        return self

    def later(self, seconds: float) -> Told:
        self.now += seconds
        self.rounds.look()
        return self

    @property
    def sent(self) -> list[tuple[int, str]]:
        """The numbers of the hosts that got messages since, each with the first word of its message."""
        found = [(host, next(iter(message))) for host, message in self.rounds.sent]
        self.rounds.sent.clear()
        return found


def test_a_round_begins_when_as_many_hosts_as_may_are_there() -> None:
    told = Told(1, 3)
    assert told.come(2, 1).later(6.0).sent == [], "the first host is not there"
    told.come(0)
    messages = dict(told.rounds.sent)
    assert [*messages] == [0, 2, 1], "the first host has worker 0"
    assert messages[1]["cluster"] == {
        "worker": ["w0a", "w0b", "w2a", "w2b", "w1a", "w1b"],
        "ps": ["p0", "p2", "p1"],
    }
    assert [messages[host]["first"] for host in (0, 2, 1)] == [
        {"ps": 0, "worker": 0},
        {"ps": 1, "worker": 2},
        {"ps": 2, "worker": 4},
    ]


def test_a_round_waits_a_while_for_more_than_the_least() -> None:
    told = Told(2, 3)
    assert told.come(0).later(50.0).come(1).later(4.0).sent == []
    assert told.later(1.0).sent == [(0, "start"), (1, "start")]


def test_too_few_hosts_end_the_run() -> None:
    told = Told(2, 2).come(0).later(99.0)
    assert told.sent == []
    assert told.later(1.0).sent == [(0, "exit")]
    assert told.rounds.status == 1


def test_a_late_host_takes_part_in_a_new_round() -> None:
    told = Told(1, 2).come(0).later(5.0)
    assert told.sent == [(0, "start")]
    told.come(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).sent == [(0, "start"), (1, "start")]
    told.come(2)
    assert told.sent == [], "there are as many as may be: it waits"
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).sent == [(0, "start"), (2, "start")]


def test_a_host_that_leaves_is_no_failure_of_others() -> None:
    """Their processes fail because of it, and that does not count as a restart."""
    told = Told(1, 2, restarts=0).come(0, 1)
    assert told.sent == [(0, "start"), (1, "start")]
    told.rounds.failed(0, 1, "worker 0", 1)
    told.later(GRACE_SECONDS / 2)
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).later(5.0).sent == [(0, "start")]
    told.rounds.failed(0, 1, "worker 0", 1)  # what it says of the round before
    assert told.later(10.0).sent == []


def test_a_host_that_is_shut_down_uses_up_no_restarts() -> None:
    """Its processes end before it is gone, and workers of other hosts fail because of its ps task."""
    told = Told(1, 2, restarts=2).come(0, 1).later(5.0)
    assert len(told.sent) == 2
    for host, name, status in ((1, "ps 1", -15), (1, "worker 2", -15), (0, "worker 1", 1), (1, "worker 3", -15)):
        told.rounds.failed(host, 1, name, status)
    assert told.later(GRACE_SECONDS / 2).sent == []
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).later(5.0).sent == [(0, "start")]
    for again in (1, 2):
        told.rounds.failed(0, 2, "worker 1", 1)
        told.later(GRACE_SECONDS)
        assert told.rounds.sent[0][1]["why"].endswith(f"(restart {again} of 2)"), "both restarts were left"
        told.rounds.sent.clear()
    told = Told(1, 2, restarts=2, service=Goes(0, 1, 2, 3)).come(0, 1).later(5.0)
    told.rounds.failed(1, 1, "worker 3", -15)
    told.rounds.left(1)
    told.rounds.sent.clear()
    told.rounds.failed(0, 1, "worker 1", -9)
    told.later(GRACE_SECONDS)
    assert [message["again"] for _, message in told.rounds.sent] == ["worker 1"], "without ps tasks it is the same"
    assert "(restart 1 of 2)" in told.rounds.sent[0][1]["why"]


def test_the_end_of_a_host_counts_once_it_is_decided_that_nothing_is_started_again() -> None:
    """What it says of its end comes while its failures wait for the end of the grace."""
    told = Told(2, 2, restarts=1).come(0, 1)
    told.rounds.failed(1, 1, "worker 2", -9)
    told.rounds.failed(1, 1, "worker 3", -9)
    told.rounds.ended(1, 1, [2, 3])
    told.later(GRACE_SECONDS)
    assert [host for host, message in told.rounds.sent if "again" in message] == [1]
    told.rounds.ended(1, 1, [3])
    told.rounds.ended(0, 1)
    assert told.rounds.status == 0


def test_a_host_that_has_ended_goes_with_ps_tasks_that_others_need() -> None:
    told = Told(1, 2, restarts=1).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.ended(1, 1)
    told.rounds.left(1)
    assert told.sent == [(0, "stop")], "the workers that are left would fail, again and again"
    for has_ended in (True, False):  # if not, its workers are lost
        told = Told(1, 2, restarts=1).come(0, 1)
        told.rounds.ended_well(0, 1, 0)
        if has_ended:
            told.rounds.ended(1, 1)
        told.rounds.sent.clear()
        told.rounds.left(1)
        assert "stop" not in dict(told.sent).values(), "the chief has ended well: nobody needs ps tasks any more"
        told.rounds.ended(0, 1)
        assert told.rounds.status == 0


def test_failures_of_the_chief_have_all_start_again() -> None:
    told = Told(2, 2, restarts=1).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "stop"), (1, "stop")]
    assert told.come(1, 0).sent == [(0, "start"), (1, "start")]
    told.rounds.failed(0, 2, "worker 0", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 3


def test_with_ps_tasks_what_fails_is_started_again_alone() -> None:
    """As on one host: also a chief that was killed, for which another worker takes over."""
    told = Told(2, 2, restarts=3).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", -9)
    told.rounds.failed(1, 1, "ps 1", -9)
    told.later(GRACE_SECONDS)
    assert [(host, message["again"]) for host, message in told.rounds.sent] == [(0, "worker 0"), (1, "ps 1")]
    told.rounds.sent.clear()
    told.rounds.leads(1, 1, 2)
    assert told.rounds.sent == [(0, {"chief": 2})], "a worker of the other host may need to know"
    told.rounds.failed(0, 1, "worker 0", 3)
    told.later(GRACE_SECONDS)
    assert told.rounds.sent[1:] == [
        (0, {"again": "worker 0", "why": "worker 0 ended with exit status 3; it is started again (restart 3 of 3)"})
    ], "it is not the chief any more"
    told.rounds.sent.clear()
    told.rounds.failed(1, 1, "worker 2", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "exit"), (1, "exit")], "the chief has failed, and no restart is left"
    assert told.rounds.status == 3


def test_without_restarts_a_worker_that_fails_ends_nobody() -> None:
    """It ended the run on all hosts, also outside of training, where on one host the others go on."""
    for service in (None, Goes()):
        told = Told(2, 2, service=service).come(0, 1)
        assert len(told.sent) == 2
        told.rounds.failed(1, 1, "worker 3", 3)
        assert told.rounds.sent == [
            *[(host, {"workers ended": [3]}) for host in (0, 1)],
            (1, {"say": "worker 3 ended with exit status 3; the others go on"}),
        ]
        assert told.later(10 * GRACE_SECONDS).rounds.status is None
        told.rounds.ended_well(1, 1, 2)
        assert told.rounds.sent[3:] == [(host, {"workers ended": [2, 3]}) for host in (0, 1)]
        told.rounds.ended(1, 1, [3])
        told.rounds.ended(0, 1)
        assert told.rounds.status == 0, "that of the chief"


@pytest.mark.parametrize("is_killed", [False, True])
def test_without_restarts_the_first_failure_gives_the_status_if_the_chief_fails(is_killed: bool) -> None:
    told = Told(2, 2, service=Goes()).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", 3)
    if is_killed:  # another worker might take over
        told.rounds.failed(0, 1, "worker 0", -9)
        told.rounds.ended(0, 1, [0])
        told.rounds.ended(1, 1, [3])
        assert told.rounds.status == 3
    else:
        told.rounds.failed(0, 1, "worker 0", 1)
        assert told.later(GRACE_SECONDS).rounds.status == 3


def test_nobody_goes_on_after_the_last_worker() -> None:
    """One worker in all has a membership service, too, but no others: the end of the run says what has failed."""
    told = Told(1, 1, service=Goes())
    told.rounds.ready(0, ["w0"], [], leads=True)
    told.rounds.sent.clear()
    told.rounds.failed(0, 1, "worker 0", -9)
    told.rounds.ended(0, 1, [0])
    told.later(GRACE_SECONDS)
    assert not any("say" in message for _, message in told.rounds.sent)
    assert told.rounds.sent[-1] == (0, {"exit": 137, "why": "worker 0 ended with exit status -9"})
    told = Told(1, 1, service=Goes()).come(0)
    told.rounds.failed(0, 1, "worker 1", -9)
    told.rounds.failed(0, 1, "worker 0", -15)
    said = [message["say"] for _, message in told.rounds.sent if "say" in message]
    assert said == ["worker 1 ended with exit status -9; the others go on", "worker 0 ended with exit status -15"]


def test_once_the_chief_has_ended_well_no_worker_is_started_again() -> None:
    told = Told(2, 2, restarts=3, service=Goes()).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.ended_well(0, 1, 0)
    told.rounds.failed(1, 1, "worker 3", 3)
    told.rounds.ended(1, 1, [3])
    told.rounds.ended(0, 1)
    assert told.rounds.status == 0
    told = Told(2, 2, restarts=3).come(0, 1)
    told.rounds.ended_well(0, 1, 0)
    told.rounds.sent.clear()
    told.rounds.failed(1, 1, "ps 1", 1)
    assert told.sent == [], "nobody needs a ps task any more"
    told.rounds.failed(1, 1, "worker 3", -9)
    assert told.later(GRACE_SECONDS).sent == [(1, "again")], "as on one host"


def test_a_run_ends_when_all_workers_have() -> None:
    told = Told(2, 3, service=Goes()).come(0, 1).later(5.0)
    assert len(told.sent) == 2
    told.rounds.ended(1, 1)
    told.come(2)
    assert told.sent == [], "a host that comes when some have ended changes nothing"
    told.rounds.left(1)
    assert told.sent == [], "nor does one that has ended and goes"
    told.rounds.ended(0, 1)
    assert told.sent == [(0, "exit"), (2, "exit")]
    assert told.rounds.status == 0


def test_a_worker_that_others_go_on_without_is_started_alone() -> None:
    told = Told(2, 2, restarts=1, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", -9)
    told.rounds.ended(1, 1, [3])
    told.later(GRACE_SECONDS)
    again = "worker 3 ended with exit status -9; it is started again (restart 1 of 1)"
    assert told.rounds.sent == [(1, {"again": "worker 3", "why": again})]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1)
    assert told.later(10.0).sent == [], "what host 1 has said of its end was before"
    told.rounds.ended(1, 1)
    assert told.sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 0


def test_without_restarts_the_others_go_on_and_the_last_leader_gives_the_status() -> None:
    service = Goes(0, 1, 2, 3)
    told = Told(2, 2, service=service).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", -9)
    assert told.rounds.sent[2:] == [(0, {"say": "worker 0 ended with exit status -9; the others go on"})]
    service.live = [1, 2, 3]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1, [0])
    told.rounds.ended(1, 1)
    assert told.sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 0


def test_who_fails_by_itself_before_it_has_joined_has_all_start_again() -> None:
    told = Told(2, 2, restarts=2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", -9)
    assert told.later(GRACE_SECONDS).sent == [(1, "again")]
    told.rounds.failed(1, 1, "worker 3", 1)
    assert told.later(GRACE_SECONDS).sent == [(0, "stop"), (1, "stop")]


def test_workers_go_on_without_another_host_as_long_as_enough_are_left() -> None:
    told = Told(1, 2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.left(1)
    assert told.rounds.sent == [(0, {"workers ended": [2, 3]}), (0, {"say": "host 1 is gone; the others go on"})]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1)
    assert told.sent == [(0, "exit")]
    assert told.rounds.status == 0
    told = Told(2, 2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]


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
    (port,) = free_ports("localhost", 1)
    made: list[subprocess.Popen[str]] = []

    def start(hosts: str, wanted: int, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "anabranch", "launch", "--nnodes", hosts, "--rdzv", f"localhost:{port}"]
        command += [*options, str(tmp_path / "script.py"), str(tmp_path), str(wanted)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE)


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
    assert any(f"worker {rank} ended with exit status -9; " in errors for _, errors in found)
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
