"""`Ends`: which processes have ended, in the order in which they did."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time

Process = subprocess.Popen[str]
END_SECONDS = 10.0  # how long a process has to end when it is asked to


def described_end(name: str, status: int) -> str:
    """Describe the end of a process; a signal that has ended it is named.

    >>> described_end("worker 1", -9), described_end("worker 1", 3)
    ('worker 1 ended with exit status -9 (SIGKILL)', 'worker 1 ended with exit status 3')
    """
    by = ""
    with contextlib.suppress(ValueError):  # no signal has this number
        by = f" ({signal.Signals(-status).name})" if status < 0 else ""
    return f"{name} ended with exit status {status}{by}"


class Ends:
    """Notes when processes end, in threads, whatever the thread that has started them does meanwhile.

    On Linux one thread waits for all by their descriptors, which the system reports in the order of the ends. Elsewhere
    each process has a thread: of two that end within the time that a thread needs to wake, either may be the first.

    Attributes:
        times: by process, when its end was noted.
    """

    def __init__(self) -> None:
        self.times: dict[Process, float] = {}
        self._threads: list[threading.Thread] = []
        self._common: _CommonThread | None = None

    def watch(self, process: Process) -> None:
        """Note the end of a process."""
        if hasattr(os, "pidfd_open"):
            if self._common is None:
                self._common = _CommonThread(self)
            self._common.watch(process)
        else:
            thread = threading.Thread(target=self._wait_for, args=(process,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def note(self, process: Process) -> None:
        """Note that a process has ended, unless that was noted before."""
        self.times.setdefault(process, time.monotonic())

    def _wait_for(self, process: Process) -> None:
        process.wait()
        self.note(process)

    def clear(self) -> None:
        """Forget all processes, once they have ended."""
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._common is not None:
            self._common.close()
            self._common = None
        self.times.clear()


class _CommonThread:
    """The thread that waits for the descriptors of processes."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._selector = selectors.DefaultSelector()
        self._over = os.eventfd(0)
        self._selector.register(self._over, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, process: Process) -> None:
        self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, process)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data.wait()  # which sets its exit status
                self._ends.note(key.data)
                self._selector.unregister(key.fd)
                os.close(key.fd)

    def close(self) -> None:
        os.eventfd_write(self._over, 1)
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


__all__ = ["END_SECONDS", "Ends", "Process", "described_end"]
