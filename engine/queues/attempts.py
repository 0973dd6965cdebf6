"""Attempts: requests that are served now or later; and waiting for them in a thread."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..graph.deadlines import seconds_left
from .errors import DeadlineExceededError


class Attempt:
    """A request to a state machine: pending, until it is finished with a result or has failed with an error.

    State machines know no threads. Whoever made the request looks at `is_done`, or is told by `on_done`, which is
    called by whatever request of somebody else has served this one: it must be quick and must not raise.

    Args:
        count: how many elements are asked for or offered.
        elements: those that are offered and not yet taken.
        up_to: fewer elements will do, if no more can come.
    """

    __slots__ = ("count", "elements", "error", "is_done", "on_done", "result", "up_to")

    def __init__(self, count: int, elements: Iterable[Any] = (), up_to: bool = False) -> None:
        self.count = count
        self.elements: collections.deque[Any] = collections.deque(elements)
        self.up_to = up_to
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None

    def finish(self, result: Any = None) -> None:
        """The request is served."""
        self.result = result
        self._done()

    def fail(self, error: Exception) -> None:
        """The request will not be served."""
        self.error = error
        self._done()

    def _done(self) -> None:
        self.is_done = True
        if self.on_done is not None:
            self.on_done()

    def outcome(self) -> Any:
        """The result of an attempt that is done.

        Raises:
            Exception: what it failed with.
        """
        assert self.is_done, "This is a bug in anabranch: the outcome of a pending attempt was asked for."
        if self.error is not None:
            raise self.error
        return self.result


class Gate:
    """The lock around a state machine, and the waiting of threads for attempts that can't be served at once.

    A thread that waits holds neither this lock nor Python's.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def wait(
        self, request: Callable[[], Attempt], withdraw: Callable[[Attempt], None], describe: Callable[[Attempt], str]
    ) -> Any:
        """Make a request and wait until it is done.

        Args:
            request: makes the attempt; called with the lock held, as the others.
            withdraw: takes back an attempt that is still pending.
            describe: what waits and for what, for the error.

        Raises:
            DeadlineExceededError: the thread's deadline has passed. The attempt is withdrawn.
            Exception: what the attempt failed with.
        """
        with self.lock:
            attempt = request()
            if attempt.is_done:
                return attempt.outcome()
            served = threading.Event()
            attempt.on_done = served.set
        started = time.monotonic()
        try:
            served.wait(seconds_left())
        except BaseException:  # such as KeyboardInterrupt
            self._withdraw(attempt, withdraw)
            raise
        with self.lock:
            if not attempt.is_done:
                withdraw(attempt)
                waited = time.monotonic() - started
                raise DeadlineExceededError(f"The timeout was over after waiting {waited:.3g} s: {describe(attempt)}")
        return attempt.outcome()

    def _withdraw(self, attempt: Attempt, withdraw: Callable[[Attempt], None]) -> None:
        with self.lock:
            if not attempt.is_done:
                withdraw(attempt)
