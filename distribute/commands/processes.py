"""The processes of one run on this machine: they are started, watched, started again, and ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from ..cluster import host_to_bind
from ..environment import JOINS, MEMBERSHIP, chief_of_launcher, note_ended_workers, time_of_end
from ..ports import ReservedPorts
from ..restarts import Restarts
from ..token import VARIABLE, job_token
from .ends import END_SECONDS, Ends, described_end

if TYPE_CHECKING:
    from ..collectives.membership_service import MembershipServer

_POLL_SECONDS = 0.2  # how often tasks are looked at
_MESSAGE_SECONDS = 2.0  # in which other workers print why they end, after the chief has failed, or one of them
_OUTPUT_SECONDS = 2.0  # in which what processes have printed last is read, once all have ended
_TRACEBACK = "Traceback (most recent call last):"
_OUTPUT = threading.Lock()  # held while a line is written


class Launch:
    """The processes of one run: ps tasks and workers.

    Args:
        workers, ps: how many there are.
        script: the script and its arguments.
        max_restarts: how often, within an hour, tasks that fail are started again.

    Attributes:
        workers, ps: their processes.
        restarts: how often tasks were started again.

    Raises:
        ValueError: the token in the environment is too short.
    """

    def __init__(self, workers: int, ps: int, script: Sequence[str], max_restarts: int = 0) -> None:
        self._counts = workers, ps
        self.restarts = Restarts(max_restarts)
        self._script = [sys.executable, *script]
        token = job_token().decode() if VARIABLE in os.environ else secrets.token_hex(16)
        self._environment = {**os.environ, VARIABLE: token}
        self._environment["ANABRANCH_MAX_RESTARTS"] = str(max_restarts)
        threads = self._environment.get("OMP_NUM_THREADS") or str(max((os.cpu_count() or 1) // workers, 1))
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # OpenBLAS takes its own before the other
            self._environment.setdefault(name, threads)
        self._folder = tempfile.TemporaryDirectory(prefix="anabranch-launch-")
        self._chief_file = Path(self._folder.name, "chief")
        self._environment["ANABRANCH_CHIEF_FILE"] = str(self._chief_file)
        for name in (MEMBERSHIP, JOINS):  # of a launcher that has started this one
            self._environment.pop(name, None)
        self._membership: MembershipServer | None = None
        self._ports: ReservedPorts | None = None
        self.ps: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self._ends = Ends()
        self._noted: set[int] = set()  # workers of which a note says that they have ended
        self._reported: set[subprocess.Popen[str]] = set()  # workers without which the others go on
        self._readers: list[_Reader] = []

    def __enter__(self) -> Launch:
        self._handler = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        workers, ps = self._counts
        ports = self._reserved_ports("localhost")
        self.cluster = {
            "ps": [f"localhost:{next(ports)}" for _ in range(ps)],
            "worker": [f"localhost:{next(ports)}" for _ in range(workers)],
        }
        if workers > 1 and not ps:
            self._serve_membership()
        for index in range(ps):
            self.ps.append(self._started_ps(index))
        for index in range(workers):
            self.workers.append(self._started_worker(index))

    def _reserved_ports(self, address: str) -> Iterator[int]:
        """Take ports for all tasks of this launcher, which are reserved until these are ended."""
        self._ports = ReservedPorts(address, sum(self._counts))
        return iter(self._ports.numbers)

    def _serve_membership(self) -> None:
        """Decide for the workers, from now on, which of them are left after a loss."""
        from ..collectives.membership_service import MembershipServer  # no other launch needs it

        self._membership = MembershipServer(self._environment[VARIABLE].encode())
        self._environment[MEMBERSHIP] = self._membership.address

    def _started_ps(self, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"{__package__}".partition(".")[0], "worker"]
        command += ["--cluster", json.dumps(self.cluster), "--job-name", "ps", "--task-index", str(index)]
        bind = host_to_bind(self.cluster["ps"][index])
        command += ["--bind", bind] if bind else []
        environment = {name: value for name, value in self._environment.items() if name != "TF_CONFIG"}
        return self._started(command, environment, f"ps {index}", is_quiet=True)

    def _started_worker(self, index: int, joins: bool = False) -> subprocess.Popen[str]:
        """Start a worker; `joins` says whether others have gone on without it, and take it in."""
        config = {"cluster": self.cluster, "task": {"type": "worker", "index": index}}
        environment = {**self._environment, "TF_CONFIG": json.dumps(config)}
        if joins:
            environment[JOINS] = "1"
        if index > 0:
            return self._started(self._script, environment, f"worker {index}", is_quiet=False)
        if sys.stdout.isatty():  # its progress bar needs the terminal itself
            return self._watched(subprocess.Popen(self._script, env=environment, text=True))
        return self._started(self._script, environment, "", is_quiet=False)

    def _started(self, command: Sequence[str], environment: Any, name: str, is_quiet: bool) -> subprocess.Popen[str]:
        """Start a process whose lines are shown with its name before them; without a name, its errors stay apart."""
        process = subprocess.Popen(
            command,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if name else None,
            errors="replace",
        )
        assert isinstance(process.stdout, io.TextIOWrapper)
        process.stdout.reconfigure(newline="")  # a bar is redrawn behind a carriage return
        self._readers.append(_Reader(process.stdout, name, is_quiet))
        return self._watched(process)

    def _watched(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Have a thread note when the process ends: of several that end at about the same time the first is named."""
        self._ends.watch(process)
        return process

    def wait(self) -> int:
        """Wait for the chief's script, then for the other workers'; return the exit status.

        It is 0 if that of the chief is: of worker 0, or of the one that took over from it. Then each task that failed
        is named, unless a report did so before. Else it is that of the first task that failed and was not started
        again, which is named.
        """
        first: tuple[str, int] | None = None
        try:
            while True:
                failed = next(self._failed(), None)
                if failed is None or not self._restart(*failed):
                    first = first or failed
                    self._note_ended()
                    self._report_lost()
                running = [worker for worker in self._awaited() if worker not in self._ends.times]
                if running:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        running[0].wait(_POLL_SECONDS)
                elif not self._may_restart or not any(self._failed()):
                    break
        except KeyboardInterrupt:
            print("anabranch launch: interrupted.", file=sys.stderr)
            return 130
        first = first or next(self._failed(), None)
        if first is None:
            return 0
        status = _status(first[1]) if self._chief.returncode else 0
        named = [first] if status else self._not_reported(first)
        if named:
            self._wait_for_messages()
        for each in named:
            print(f"anabranch launch: {described_end(*each)}.", file=sys.stderr)
        return status

    def _not_reported(self, first: tuple[str, int]) -> list[tuple[str, int]]:
        """Return names and exit statuses of tasks that have failed, and of which no report was printed."""
        reported = {f"worker {number}" for number, worker in enumerate(self.workers) if worker in self._reported}
        return [each for each in dict.fromkeys([first, *self._failed()]) if each[0] not in reported]

    def _report_lost(self) -> None:
        """Report workers that have failed and are not started again, once it is seen that the others go on."""
        ended = self._ends.times.copy()
        if any(process in ended for process in (self._chief, *self.ps)):
            return
        for number, worker in enumerate(self.workers):
            is_late = worker in ended and time.monotonic() >= ended[worker] + _MESSAGE_SECONDS
            if is_late and worker.returncode and worker not in self._reported:
                self._reported.add(worker)
                what = described_end(f"worker {number}", worker.returncode)
                print(f"anabranch launch: {what}; the others go on.", file=sys.stderr, flush=True)

    def _note_ended(self) -> None:
        """Have workers find out who has ended and is not started again, if they wait for it."""
        ended = [number for number, worker in enumerate(self.workers) if worker in self._ends.times]
        final = {number for number in ended if not (self.workers[number].returncode and self._may_restart)}
        if final != self._noted:
            self._noted = final
            note_ended_workers(str(self._chief_file), final)

    def _wait_for_messages(self) -> None:
        """Wait a little for workers that end because the chief has failed: what they print says so."""
        until = time.monotonic() + _MESSAGE_SECONDS
        for process in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))

    @property
    def _chief_index(self) -> int:
        """The number of the worker that is the chief: the one that said last that it has taken over."""
        return chief_of_launcher(self._environment) or 0

    @property
    def _chief(self) -> subprocess.Popen[str]:
        return self.workers[self._chief_index]

    def _awaited(self) -> list[subprocess.Popen[str]]:
        """Return the processes to wait for: the chief, and if it ends well, or another one takes over, all workers.

        Workers that are stopped, and without which the others have gone on, may never end.
        """
        status = self._chief.poll()
        silent: set[int] = set() if self._membership is None else self._membership.silent()
        may_go_on = bool(self.ps) or self._membership is not None
        is_lost = (status is not None and status < 0 and may_go_on) or self._chief_index in silent
        found = self.workers if status == 0 or is_lost else [self._chief]
        return [worker for number, worker in enumerate(self.workers) if worker in found and number not in silent]

    def _failed(self) -> Iterator[tuple[str, int]]:
        """Yield names and exit statuses of failed tasks, in the order of their ends; ps tasks while they are needed."""
        for job, number, process in self._in_order_of_end():
            if process.returncode and (job != "ps" or self._chief.poll() != 0):
                yield f"{job} {number}", process.returncode

    def _in_order_of_end(self) -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
        """Yield job, number on this host and process of each that has ended and was not started again."""
        if any(process.returncode for process in list(self._ends.times)):
            self._wait_for_noted()
        for process in sorted(self._ends.times.copy(), key=self._time_of_end):
            for job, processes in (("ps", self.ps), ("worker", self.workers)):
                if process in processes:
                    yield job, processes.index(process), process

    def _wait_for_noted(self) -> None:
        """Wait for workers that have noted that they end: others may have ended before, because of them."""
        until = time.monotonic() + END_SECONDS  # of all together
        for process in self.workers:
            if process in self._ends.times or time_of_end(process.pid, str(self._chief_file)) is None:
                continue
            try:
                process.wait(max(until - time.monotonic(), 0.0))
                self._ends.note(process)
            except subprocess.TimeoutExpired:  # it goes on
                Path(f"{self._chief_file}.{process.pid}").unlink()

    def _time_of_end(self, process: subprocess.Popen[str]) -> float:
        noted = time_of_end(process.pid, str(self._chief_file))
        return self._ends.times[process] if noted is None else noted

    @property
    def _may_restart(self) -> bool:
        """Test whether what fails may be started again; workers that have no ps tasks while the chief has not ended."""
        return self.restarts.are_left and (bool(self.ps) or self._chief.poll() != 0)

    def _restart(self, name: str, status: int) -> bool:
        """Start again what has failed; return whether it was."""
        if not self._may_restart or not self.restarts.take():
            return False
        job, _, index = name.partition(" ")
        number = int(index)
        is_alone = self._joins(number, status) if not self.ps else self._chief_is_left(name, status)
        again = "it is started again" if is_alone else "all tasks are started again"
        count = f"restart {self.restarts.count} of {self.restarts.limit}"
        print(f"anabranch launch: {described_end(name, status)}; {again} ({count}).", file=sys.stderr, flush=True)
        if is_alone and job == "ps":
            self.ps[number] = self._started_ps(number)
        elif is_alone:
            self.workers[number] = self._started_worker(number, joins=not self.ps)
        else:
            self._end_all()
            self._chief_file.unlink(missing_ok=True)
            self._noted = set()
            note_ended_workers(str(self._chief_file), ())
            self._start_all()
        return True

    def _chief_is_left(self, name: str, status: int) -> bool:
        """Test whether, with ps tasks, one that has failed can be started alone.

        A chief that was killed has a successor; one that has failed has ended the training of all.
        """
        return name != f"worker {self._chief_index}" or status < 0

    def _joins(self, number: int, status: int) -> bool:
        """Test whether, without ps tasks, others go on that can take in a worker which has failed.

        One that has failed by itself after it was started again, and before it had joined, would fail once more.
        """
        service = self._membership
        ended = {each for each, worker in enumerate(self.workers) if worker.poll() is not None}
        if service is None or not service.goes_on_without(ended) or (service.expects(number) and status > 0):
            return False
        service.expect(number)
        return True

    def __exit__(self, *exception: object) -> None:
        """End all processes that are still there, and wait for them; not for others that these have started."""
        try:
            self._end_all()
        finally:  # also if another signal interrupts it
            signal.signal(signal.SIGTERM, self._handler)
            self._folder.cleanup()

    def _end_all(self) -> None:
        processes = [*self.workers, *self.ps]
        try:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            until = time.monotonic() + END_SECONDS  # of all together
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.0))
        finally:  # also if another signal interrupts it
            _kill(processes)
        until = time.monotonic() + _OUTPUT_SECONDS
        for reader in self._readers:
            reader.finish(until)
        if self._membership is not None:
            self._membership.close()
            self._membership = None
        if self._ports is not None:
            self._ports.close()
        for each in (self.workers, self.ps, self._readers, self._ends, self._reported):
            each.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End those of the processes that are still there, whatever signals come, and wait for them."""
    try:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    except KeyboardInterrupt:  # another signal
        _kill(processes)
        raise


def _status(code: int) -> int:
    """Return an exit status as shells give it: of a process that a signal has ended, 128 and the signal's number."""
    return code if code >= 0 else 128 - code


class _Reader:
    """Shows the lines of a process in a thread, each whole; of a ps task all but the one that says that it serves."""

    def __init__(self, lines: IO[str], name: str, is_quiet: bool) -> None:
        self._lines, self._name, self._is_quiet = lines, name, is_quiet
        self._is_over = False  # whether lines are read and not shown
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _show(self) -> None:
        # When nobody reads what is shown, as behind ``head``, the process finds out at its next line.
        with self._lines as lines, contextlib.suppress(BrokenPipeError):
            for line in _without_interrupts(lines) if self._name else lines:
                if self._is_quiet and " serves at grpc://" in line:
                    continue
                with _OUTPUT:
                    if not self._is_over:
                        _write(self._name, line)

    def finish(self, until: float) -> None:
        """Wait for the last line, once the process has ended.

        Another process that it has started may have the output open for ever: what this one prints from then on is not
        shown. A line that is being written has all the time that its reader takes.
        """
        while self._thread.is_alive() and (time.monotonic() < until or _OUTPUT.locked()):
            self._thread.join(_POLL_SECONDS)
        with _OUTPUT:
            self._is_over = self._thread.is_alive()
        if self._is_over:
            what = f"{self._name or 'worker 0'} has ended, but a process that it has started has its output open"
            print(f"anabranch launch: {what}: what follows is not shown.", file=sys.stderr, flush=True)


def _without_interrupts(lines: Iterable[str]) -> Iterator[str]:
    """Leave out tracebacks of KeyboardInterrupt: a terminal interrupts all processes, and the launcher reports it."""
    held: list[str] = []
    for line in lines:
        if line.startswith(_TRACEBACK):
            yield from held
            held = [line]
        elif held and line.startswith(" "):
            held.append(line)
        else:
            if not (held and line.startswith("KeyboardInterrupt")):
                yield from [*held, line]
            held = []


def show_line(name: str, line: str) -> None:
    """Show a line, with the name of who has written it before it, if there is one."""
    with _OUTPUT:
        _write(name, line)


def _write(name: str, line: str) -> None:
    sys.stdout.write(f"[{name}] {line.rstrip()}\n" if name else line)
    sys.stdout.flush()
