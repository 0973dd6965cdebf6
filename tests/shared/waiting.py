"""Threads in tests: work that may wait, and waiting for it without sleeping."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.engine.queues import Queue
from anabranch.engine.queues.errors import DeadlineExceededError

PATIENCE = 20  # seconds; what takes longer hangs
SCRIPT_SECONDS = 600.0  # the same of scripts that start processes, on a machine that other work loads


class Waiting:
    """A function that runs in a thread; its result or error is asked for later."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except BaseException as error:
            self._error.append(error)

    def result(self, seconds: float = PATIENCE) -> Any:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the thread still waits"
        if self._error:
            raise self._error[0]
        return self._outcome[0]


def in_time(work: Callable[[], Any], seconds: float = SCRIPT_SECONDS) -> Any:
    """Return the result of work that may wait for ever where something fails, such as that of processes.

    A thread of a pool would be waited for before processes are ended, and so for ever, too.
    """
    return Waiting(work).result(seconds)


def reached(folder: Path) -> str:
    """Return what a script writes to the named pipe "reached" of its folder, where it waits."""
    return in_time((folder / "reached").read_text)


def go(folder: Path) -> None:
    """Have the script go on that reads the named pipe "go"."""
    in_time(lambda: (folder / "go").write_text("go"))


def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Ask again and again until something holds, with pauses, in which what is waited for has the processor.

    Raises:
        AssertionError: it does not hold after so many seconds.
    """
    end, pause = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < end, f"it does not hold after {seconds:g} s"
        pause.wait(0.005)


def out_of_time(run: Callable[[float], Any], *wanted: str) -> str:
    """Run a step that does not end, until the time for it is over; gives the error's text.

    On a slow machine that time may be over before all tasks have begun: the step gets more until some texts are there.

    Args:
        run: runs the step, for so many seconds.
        wanted: the texts that the error has to have.
    """
    for seconds in (0.2, 1.0, 5.0, 25.0):
        with pytest.raises(DeadlineExceededError) as caught:
            run(seconds)
        if all(text in str(caught.value) for text in wanted):
            break
    return str(caught.value)


def wait_until(queue: Queue, pending_enqueues: int = 0, pending_dequeues: int = 0) -> None:
    """Wait until so many requests wait in the queue."""
    state, reached = queue._state, threading.Event()  # type: ignore[attr-defined]
    with queue._gate.lock:  # type: ignore[attr-defined]

        class Watched(type(state._enqueues)):
            def append(self, item: Any) -> None:
                super().append(item)
                check()

        def check() -> None:
            found = state.statistics()
            if found.pending_enqueues >= pending_enqueues and found.pending_dequeues >= pending_dequeues:
                reached.set()

        state._enqueues, state._dequeues = Watched(state._enqueues), Watched(state._dequeues)
        check()
    assert reached.wait(PATIENCE), f"only {queue.statistics()}"
