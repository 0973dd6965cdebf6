"""Faults of processes and links, for tests: slow processes, and a proxy that cuts."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

PIECE = 1 << 16
_LOOK_SECONDS, _LONGEST_LOOK = 0.5, 2.0
_LEAST_PART = 0.1  # of the time, that counts whatever waits


def seconds_in_queue(pid: int) -> dict[str, float]:
    """Return for how many seconds each thread of a process has waited for a processor; none if it has ended."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # the thread has
                found[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    return found


class OwnTime:
    """The seconds in which processes could have gone on: while a thread of them waits for a processor, few count.

    So a limit in these seconds is one for what stands still, and not for what is slow because the machine is busy. As
    a tenth of the time counts in any case, what stands still beside threads that always wait gets to the limit, too.

    Args:
        pids: gives the numbers of the processes.
        clock: gives the time in seconds.
        queued: gives for how many seconds each thread of a process has waited for a processor.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        queued: Callable[[int], Mapping[str, float]] = seconds_in_queue,
    ) -> None:
        self._pids, self._clock, self._queued = pids, clock, queued
        self._passed = 0.0
        self._time = clock()
        self._before = self._waits()

    def _waits(self) -> dict[tuple[int, str], float]:
        return {(pid, thread): wait for pid in self._pids() for thread, wait in self._queued(pid).items()}

    def now(self) -> float:
        """Return the seconds that count since the beginning. To be asked often: long pauses between count little."""
        time = self._clock()
        if time < self._time + _LOOK_SECONDS:
            return self._passed
        waits = self._waits()
        # Threads wait at the same time: together they would have waited for longer than the time that has passed.
        waited = max([wait - self._before.get(thread, 0.0) for thread, wait in waits.items()], default=0.0)
        passed = min(time - self._time, _LONGEST_LOOK)
        self._passed += max(passed - waited, passed * _LEAST_PART)
        self._time, self._before = time, waits
        return self._passed


@contextlib.contextmanager
def slowed(pid: int, runs: float = 0.02, stops: float = 0.18) -> Generator[None]:
    """A process runs a tenth of the time."""
    is_over = threading.Event()

    def drag() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(stops)
            os.kill(pid, signal.SIGCONT)
            is_over.wait(runs)

    thread = threading.Thread(target=drag)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def no_space(pid: int, most: int = 1024) -> Generator[None]:
    """Let no file of a process grow beyond some bytes: its writes fail, as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


class Proxy:
    """A TCP proxy on loopback, which cuts all its connections when `left` bytes have passed.

    Attributes:
        address: where it listens.
        left: bytes that may still pass; None for any number.
        cuts: how often it has cut.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.left: int | None = None
        self.cuts = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._made: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, function: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=function, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                try:
                    other = socket.create_connection(self._target)
                except OSError:
                    one.close()
                    continue
                with self._lock:
                    self._open |= {one, other}
                    self._made += [one, other]
                self._start(self._pump, one, other)
                self._start(self._pump, other, one)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                with self._lock:
                    if self.left is not None:
                        self.left -= len(piece)
                    is_cut = self.left is not None and self.left < 0
                if is_cut:
                    self.cut()
                    break
                target.sendall(piece)
        self._shut(source, target)

    def cut(self) -> None:
        """Cut all connections; new ones pass again."""
        with self._lock:
            known, self._open = self._open, set()
            self.left = None
            self.cuts += 1
        self._shut(*known)

    @staticmethod
    def _shut(*socks: socket.socket) -> None:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait for its threads."""
        self._shut(self._listener)
        self._listener.close()
        self._shut(*self._open)
        for thread in self._threads:
            thread.join()
        for sock in self._made:
            sock.close()
