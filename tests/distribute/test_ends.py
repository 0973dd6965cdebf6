"""Ends of processes are noted in their order, however late the thread is that notes them."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.distribute.commands import processes as launched
from anabranch.distribute.commands.ends import END_SECONDS, Ends, Process
from anabranch.distribute.commands.processes import Launch


class Slow(Ends):
    """Notes nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_note, self.is_reached = threading.Event(), threading.Event()
        self.noted: queue.SimpleQueue[Process] = queue.SimpleQueue()

    def note(self, process: Process) -> None:
        self.is_reached.set()
        self.may_note.wait()
        super().note(process)
        self.noted.put(process)

    def next(self) -> Process:
        """The process that is noted next."""
        return self.noted.get(timeout=60)


@pytest.fixture
def processes() -> Generator[list[Process]]:
    """Four processes, each of which ends when its input is closed."""
    made = [subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True) for _ in range(4)]
    yield made
    for process in made:
        end(process)
        process.wait()


def end(process: Process) -> None:
    """End a process, and wait until it has ended."""
    assert process.stdin is not None
    if not process.stdin.closed:
        process.stdin.close()
        with contextlib.suppress(ChildProcessError):  # that was noticed already
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone reports ends in their order")
def test_ends_are_noted_in_their_order(processes: list[Process]):
    """Each process had a thread of its own: under load the one of a later end was sometimes first."""
    ends = Slow()
    for process in processes:
        ends.watch(process)
    order = [processes[number] for number in (2, 3, 1, 0)]
    end(order[0])
    assert ends.is_reached.wait(60)
    for process in order[1:]:
        end(process)
    ends.may_note.set()
    assert [ends.next() for _ in order] == order
    assert sorted(ends.times, key=lambda process: ends.times[process]) == order
    assert [process.returncode for process in processes] == [0] * 4
    ends.clear()
    assert not ends.times


def test_every_end_is_noted_without_descriptors_of_processes(processes: list[Process], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    ends = Slow()
    ends.may_note.set()
    for process in processes:
        ends.watch(process)
    end(processes[1])
    assert ends.next() is processes[1]
    for process in processes:
        end(process)
    assert {ends.next() for _ in range(3)} == set(processes) - {processes[1]}
    ends.clear()


def test_processes_are_watched_when_others_have_ended(processes: list[Process]):
    ends = Slow()
    ends.may_note.set()
    ends.watch(processes[0])
    ends.note(processes[0])
    noted = ends.times[processes[0]]
    end(processes[0])
    assert [ends.next(), ends.next()] == [processes[0]] * 2
    assert ends.times == {processes[0]: noted}, "the first note counts"
    ends.clear()
    ends.watch(processes[1])
    end(processes[1])
    assert ends.next() is processes[1]
    assert list(ends.times) == [processes[1]]
    ends.clear()


def test_a_process_that_is_started_again_is_no_failure_of_the_run(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It ends just when the launcher has found that nothing has failed, and looks who has ended."""
    launch = Launch(1, 1, ["script.py"], max_restarts=1)
    end(processes[0])
    processes[0].wait()
    launch.workers, launch.ps = processes[:1], processes[1:2]
    launch._ends.note(processes[0])
    failures = iter([[], [("worker 0", -9)]])
    monkeypatch.setattr(launch, "_failed", lambda: iter(next(failures, [])))
    assert launch.wait() == 0
    assert capsys.readouterr().err == ""
    launch._folder.cleanup()


class Hanging:
    """A process that does not end when it is asked to.

    Args:
        clock: moves on while it is waited for.
    """

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock = clock
        self.is_killed = False

    def poll(self) -> None:
        return None

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, timeout: float | None = None) -> int:
        if self.is_killed:
            return -9
        assert timeout is not None
        self.clock.now += timeout
        raise subprocess.TimeoutExpired("a process", timeout)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Make the clock of the launcher, which stands at 100 s until a test sets it."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(launched, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def without_worker_1(processes: list[Process], clock: SimpleNamespace) -> Launch:
    """Return a launcher of three workers and a ps task, the second of which was lost just now."""
    launch = Launch(3, 1, ["script.py"])
    launch.workers, launch.ps = processes[:3], processes[3:]
    processes[1].kill()
    processes[1].wait()
    launch._ends.times[processes[1]] = clock.now
    return launch


def test_all_processes_that_hang_have_the_same_time_to_end(clock: SimpleNamespace):
    hanging: Any = [Hanging(clock) for _ in range(5)]
    launch = Launch(3, 2, ["script.py"])
    launch.workers, launch.ps = hanging[:3], hanging[3:]
    launch._end_all()
    assert all(process.is_killed for process in hanging)
    assert clock.now == pytest.approx(100.0 + END_SECONDS)
    launch._folder.cleanup()


def test_a_lost_worker_is_reported_once_it_is_seen_that_the_others_go_on(
    processes: list[Process], clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
):
    """The launcher named it at the end of the training alone."""
    launch = without_worker_1(processes, clock)
    launch._report_lost()
    assert capsys.readouterr().err == "", "all may end for the same reason"
    clock.now += 2.0
    for _ in range(2):
        launch._report_lost()
    text = "anabranch launch: worker 1 ended with exit status -9 (SIGKILL); the others go on.\n"
    assert capsys.readouterr().err == text
    processes[2].kill()
    processes[2].wait()
    launch._ends.times[processes[2]] = launch._ends.times[processes[3]] = clock.now
    clock.now += 2.0
    launch._report_lost()
    assert capsys.readouterr().err == "", "a ps task has ended"
    launch._folder.cleanup()


def test_a_worker_that_fails_just_before_the_end_is_named_though_another_was_reported(
    processes: list[Process], clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
):
    launch = without_worker_1(processes, clock)
    clock.now += 2.0
    launch._report_lost()
    assert "worker 1 ended" in capsys.readouterr().err
    processes[2].kill()
    end(processes[0])
    for process in (processes[2], processes[0]):
        process.wait()
        launch._ends.times[process] = clock.now
    assert launch.wait() == 0
    assert capsys.readouterr().err == "anabranch launch: worker 2 ended with exit status -9 (SIGKILL).\n"
    launch._folder.cleanup()


class Interrupting(Hanging):
    """Signals come when it is first waited for, and when it is first killed."""

    kills = 0

    def kill(self) -> None:
        self.kills += 1
        if self.kills == 1:
            raise KeyboardInterrupt
        super().kill()

    def wait(self, timeout: float | None = None) -> int:
        if not self.is_killed:
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_no_process_is_left_when_signals_interrupt_the_end():
    clock = SimpleNamespace(now=100.0)
    made: Any = [Hanging(clock), Interrupting(clock), Hanging(clock)]
    launch = Launch(2, 1, ["script.py"])
    launch.workers, launch.ps = made[:2], made[2:]
    with pytest.raises(KeyboardInterrupt):
        launch._end_all()
    assert [process.is_killed for process in made] == [True] * 3
    launch._folder.cleanup()


def shown_by(command: str, name: str) -> Process:
    """Run a command of the shell whose output a launch shows; return its process, once all is read."""
    launch = Launch(1, 0, ["script.py"])
    process = launch._started(["sh", "-c", command], os.environ, name, is_quiet=False)
    launch._readers[0]._thread.join(60)
    process.wait(60)
    launch._ends.clear()
    launch._folder.cleanup()
    return process


def test_a_bar_of_the_chief_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    """Its carriage returns were line feeds, so that each redrawn bar was a line of its own in ``launch ... | tee``."""
    shown_by(r"printf '1/2\r2/2\ndone\r\n'", "")
    assert capsys.readouterr().out == "1/2\r2/2\ndone\r\n"
    shown_by(r"printf '1/2\r2/2\ndone\r\n'", "worker 1")
    assert capsys.readouterr().out == "[worker 1] 1/2\n[worker 1] 2/2\n[worker 1] done\n"


def test_nothing_is_shown_once_nobody_reads(monkeypatch: pytest.MonkeyPatch):
    """As in ``launch ... | head``: a process finds that out itself, and the launcher has no traceback of its own."""

    class Unread(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(sys, "stdout", Unread())
    assert shown_by("while echo line; do :; done", "worker 1").returncode
    assert not raised


def test_the_end_does_not_wait_for_others_that_keep_the_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(launched, "_OUTPUT_SECONDS", 0.0)
    held = tmp_path / "held"
    os.mkfifo(held)
    launch = Launch(1, 0, ["script.py"])
    command = ["sh", "-c", 'cat "$0" &', str(held)]  # cat waits for who writes
    launch.workers = [launch._started(command, os.environ, "worker 1", is_quiet=False)]
    [reader] = launch._readers
    assert launch.workers[0].wait() == 0
    ending = threading.Thread(target=launch._end_all, daemon=True)
    ending.start()
    ending.join(30)
    has_ended = not ending.is_alive()
    with held.open("w") as stream:
        stream.write("late\n")
    reader._thread.join()
    shown = capsys.readouterr()
    assert has_ended
    assert "late" not in shown.out
    what = "worker 1 has ended, but a process that it has started has its output open: what follows is not shown."
    assert shown.err == f"anabranch launch: {what}\n"
    launch._folder.cleanup()
