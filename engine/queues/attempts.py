"""Attempts: requests that are served now or later; and waiting for them, in a thread or without one.

What may wait is written once, as a generator that yields requests and is sent their results. `wait_through` runs it in
a thread that waits for each of them. An executor that has other things to do runs it too, and goes on with it when a
request has been served.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from ..common.deadlines import requests, waits
from ..common.quick_dataclass import dataclass
from ..graph.op import Op
from ..tracing import active, here
from .errors import DeadlineExceededError
from .stops import check_cancelled
from .writing import others_go_on

if TYPE_CHECKING:
    from ..tracing import Recorder


class Attempt:
    """A request to a state machine: pending, until it is finished with a result or has failed with an error.

    State machines have no threads. Whoever made the request looks at `is_done`, or is notified by `on_done`, which is
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
        """Finish the request, which is served."""
        self.result = result
        self._done()

    def fail(self, error: Exception) -> None:
        """Fail the request, which will not be served."""
        self.error = error
        self._done()

    def _done(self) -> None:
        self.is_done = True
        if self.on_done is not None:
            self.on_done()

    def outcome(self) -> Any:
        """Return the result of an attempt that is done.

        Raises:
            Exception: what it failed with.
        """
        assert self.is_done, "This is a bug in anabranch: the outcome of a pending attempt was asked for."
        if self.error is not None:
            raise self.error
        return self.result


class Gate:
    """The lock around a state machine. Whoever waits for an attempt does not hold it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request to a state machine, and how it is taken back. All functions are called with the gate's lock held.

    Attributes:
        gate: that of the state machine.
        make: makes the attempt.
        retract: takes back an attempt that is still pending.
        describe_attempt: describes what waits and for what, for messages; the lock is held.
    """

    gate: Gate
    make: Callable[[], Attempt]
    retract: Callable[[Attempt], None]
    describe_attempt: Callable[[Attempt], str]

    def begin(self, on_done: Callable[[], None]) -> tuple[Attempt, bool]:
        """Make the attempt; with whether it is pending. Then whoever serves it calls `on_done`, with the lock held."""
        with self.gate.lock:
            attempt = self.make()
            if not attempt.is_done:
                attempt.on_done = on_done
            return attempt, not attempt.is_done

    def withdraw(self, attempt: Attempt) -> None:
        """Take back an attempt, unless it is done."""
        with self.gate.lock:
            if not attempt.is_done:
                self.retract(attempt)

    def describe(self, attempt: Attempt) -> str:
        """Describe what waits and for what."""
        with self.gate.lock:
            return self.describe_attempt(attempt)

    def wait(self) -> Any:
        """Make the request and wait, in this thread, until it is done. That holds neither the lock nor Python's.

        Raises:
            DeadlineExceededError: the thread's deadline has passed. The attempt is withdrawn.
            Exception: what the attempt failed with.
        """
        served = threading.Event()
        attempt, is_pending = self.begin(served.set)
        if not is_pending:
            return attempt.outcome()
        waits_for = self.describe(attempt) if active.recorder is not None else ""
        started = time.perf_counter()
        try:
            with others_go_on():
                _wait(served)
        except BaseException:  # such as KeyboardInterrupt
            self.withdraw(attempt)
            raise
        finally:
            note_wait(here("waits"), waits_for, started, time.perf_counter())
        with self.gate.lock:
            if not attempt.is_done:
                self.retract(attempt)
                waited = time.perf_counter() - started
                raise DeadlineExceededError(
                    f"The timeout was over after waiting {waited:.3g} s: {self.describe_attempt(attempt)}"
                )
        return attempt.outcome()


Course = Generator[Request, Any, Any]  # yields what it waits for, is sent the results, and returns what comes of it


def wait_through(course: Course) -> Any:
    """Run `course` in this thread, which waits for each of its requests; what it returns.

    Raises: as `Request.wait`, and what the course raises.
    """
    try:
        request = next(course)
        while True:
            try:
                result = request.wait()
            except BaseException as error:  # the course may handle it, and cleans up
                request = course.throw(error)
            else:
                request = course.send(result)
    except StopIteration as end:
        return end.value


class WaitingOp(Op):
    """Base of the operations that may wait for what other threads, or other operations of the step, do."""

    no_samples: ClassVar[str] = "is the base of others: test_machine_queues"

    def course(self, *inputs: Any) -> Course:
        """Do what `run` does, as a generator: it yields the requests that it waits for and returns the output(s)."""
        raise NotImplementedError(f"{type(self).__name__} must define course().")

    def run(self, xp: Any, *inputs: Any) -> Any:
        return wait_through(self.course(*inputs))


def _wait(served: threading.Event) -> None:
    """Wait until something is served or this thread's deadline has passed.

    Raises:
        CancelledError: the step has to end.
    """
    for longest in waits():
        if served.wait(longest):
            return
        if requests:
            check_cancelled()


def note_wait(
    lane: tuple[str, str], waits_for: str, started: float, ended: float, recorder: Recorder | None = None
) -> None:
    """Record in a trace how long a wait was, if one was recorded when it began (`waits_for` is not empty then).

    Args:
        recorder: of the trace; by default of those of this process.
    """
    recorder = recorder or active.recorder
    if waits_for and recorder is not None:
        recorder.span(lane, waits_for.partition(", ")[0], started, ended, {"what": waits_for})
