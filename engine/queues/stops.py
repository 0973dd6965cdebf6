"""`Stop`: ends the steps of a session from outside, whatever they wait for or however long they loop."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from ..common.deadlines import add_request, drop_request, seconds_left
from .errors import CancelledError, DeadlineExceededError

_stops: ContextVar[tuple[Stop, ...]] = ContextVar("stops", default=())


class Stop:
    """Asks the steps that run inside of it, as a context, to end. Any number of threads may be inside.

    >>> stop = Stop()
    >>> stop.ask()
    >>> with stop:
    ...     check_stop()
    Traceback (most recent call last):
    ...
    anabranch.engine.queues.errors.CancelledError: The session was closed while the step ran.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._lock = threading.Lock()
        self._runs: list[None] = []  # one for each step inside: a list, as threads add to it without a lock
        self._alone = (self,)
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_asked(self) -> bool:
        return self._is_asked

    @property
    def runs(self) -> int:
        """The number of steps that run inside."""
        return len(self._runs)

    def ask(self) -> None:
        """Ask what runs inside from now on to end with CancelledError."""
        with self._lock:
            self._is_asked = True
            if self._runs:
                add_request(self)
            for listener in self._listeners:
                listener()

    def withdraw(self) -> None:
        """Let what runs inside go on: what was to end has ended."""
        with self._lock:
            self._is_asked = False
            drop_request(self)

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, by the thread that asks; at once if that was so."""
        with self._lock:
            self._listeners.append(listener)
            if self._is_asked:
                listener()

    def forget(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.remove(listener)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        _stops.set(_stops.get()[:-1])
        self._leave()

    def begin(self) -> Token[tuple[Stop, ...]]:
        """Begin what runs inside; return what `end` takes. They do the same as a `with` in less time."""
        self._runs.append(None)
        if self._is_asked:
            add_request(self)
        around = _stops.get()
        return _stops.set(around + self._alone if around else self._alone)

    def end(self, began: Token[tuple[Stop, ...]]) -> None:
        """End what runs inside."""
        _stops.reset(began)
        self._leave()

    def _leave(self) -> None:
        self._runs.pop()
        if self._is_asked:
            with self._lock:
                if not self._runs:
                    drop_request(self)


@contextmanager
def ending_by(stop: Stop) -> Generator[None]:
    """End what runs inside of the block by `stop` alone, whatever the block is in."""
    token = _stops.set(())
    try:
        with stop:
            yield
    finally:
        _stops.reset(token)


def is_cancelled() -> bool:
    """Test whether the step of this thread was asked to end."""
    return any(stop.is_asked for stop in _stops.get())


def check_cancelled() -> None:
    """End the step of this thread if that was asked for.

    Raises:
        CancelledError: it was.
    """
    if is_cancelled():
        raise CancelledError("The session was closed while the step ran.")


def check_stop(is_loop: bool = True) -> None:
    """Check whether a step that computes was asked to end; it also ends at its deadline.

    Args:
        is_loop: whether the step ran a loop meanwhile, or else one operation; for the error.

    Raises:
        CancelledError: the session was closed.
        DeadlineExceededError: the deadline has passed.
    """
    check_cancelled()
    if seconds_left() == 0:
        did = "ran a loop" if is_loop else "computed an operation"
        of_loops = ", or see whether the loop's condition ever becomes false" if is_loop else ""
        raise DeadlineExceededError(f"The timeout was over while the step {did}. Give a longer timeout{of_loops}.")


@contextmanager
def listening(listener: Callable[[], None]) -> Generator[None]:
    """Call `listener`, by another thread, when the step of this thread is asked to end inside of the block."""
    stops = _stops.get()
    for stop in stops:
        stop.listen(listener)
    try:
        yield
    finally:
        for stop in stops:
            stop.forget(listener)


@ctypes.PYFUNCTYPE(ctypes.c_int)
def _is_stopped() -> int:
    try:
        check_stop()
    except BaseException:  # nothing can be raised through machine code: who called that looks again
        return 1
    return 0


def stopped_address() -> int:
    """Return the address of a function for machine code that says whether the step of this thread has to end."""
    return ctypes.cast(_is_stopped, ctypes.c_void_p).value or 0
