"""`Coordinator`: threads that work together stop together, and the first error reaches whoever waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import TracebackType

from .errors import OutOfRangeError

_Raised = tuple[type[BaseException], BaseException, TracebackType | None]  # what sys.exc_info() gives
_LOOK_AGAIN = 0.1  # seconds; only how soon a grace period begins depends on it


class Coordinator:
    """Lets several threads stop together.

    Any thread may ask all to stop, with the error that made it stop. `join` waits for the threads and raises the first
    error.

    Args:
        clean_stop_exception_types: errors that mean that the work is done; by default `OutOfRangeError`, the end of a
            queue's data.

    >>> import threading
    >>> import anabranch as ab
    >>> coordinator = ab.queues.Coordinator()
    >>> def work():
    ...     with coordinator.stop_on_exception():
    ...         raise ValueError("no more wood")
    >>> thread = threading.Thread(target=work)
    >>> thread.start()
    >>> coordinator.join([thread])
    Traceback (most recent call last):
    ValueError: no more wood
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        types = (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        self._clean_types = types
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._joined = False
        self._threads: list[threading.Thread] = []

    def should_stop(self) -> bool:
        """Test whether a thread has asked all to stop."""
        return self._stop.is_set()

    def request_stop(self, ex: BaseException | _Raised | None = None) -> None:
        """Ask all threads to stop.

        Args:
            ex: the error that is the reason, or what ``sys.exc_info()`` gives. `join` raises it, if this is the first
                request and the error does not mean a clean stop.

        Raises:
            BaseException: `ex`, if `join` is over already, so that it does not get lost.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        if isinstance(error, self._clean_types):
            error = None
        with self._lock:
            if self._joined and error is not None:
                raise error
            if not self._stop.is_set():
                self._error = error
                self._stop.set()

    def clear_stop(self) -> None:
        """Begin again: no stop is asked for, and no error is kept."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop.clear()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a thread asks to stop, for at most `timeout` seconds; return whether one has."""
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for a thread, too."""
        with self._lock:
            self._threads.append(thread)

    @contextmanager
    def stop_on_exception(self) -> Generator[None]:
        """Stop all threads when an error ends the block."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for threads to end.

        Args:
            threads: to wait for, besides those that are registered.
            stop_grace_period_secs: how long threads may go on once a stop was asked for.
            ignore_live_threads: do not complain about threads that go on longer.

        Raises:
            BaseException: what the first request to stop was made with.
            RuntimeError: threads are still running after the grace period.
        """
        with self._lock:
            waited_for = list(dict.fromkeys([*self._threads, *(threads or ())]))
        end: float | None = None
        for thread in waited_for:
            while thread.is_alive():
                if end is None and self.should_stop():
                    end = time.monotonic() + stop_grace_period_secs
                if end is not None and time.monotonic() >= end:
                    break
                thread.join(_LOOK_AGAIN if end is None else min(_LOOK_AGAIN, max(end - time.monotonic(), 0)))
        alive = [thread.name for thread in waited_for if thread.is_alive()]
        with self._lock:
            self._joined = True
            self._threads = []
            error = self._error
        if error is not None:
            raise error
        if alive and not ignore_live_threads:
            raise RuntimeError(
                f"Coordinator: threads {alive} were still running {stop_grace_period_secs:.3g} s after the request to "
                "stop. They have to look at should_stop(), and queues in which they wait have to be closed."
            )

    @property
    def joined(self) -> bool:
        """Test whether `join` is over."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise what the first request to stop was made with, if that was an error."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error
