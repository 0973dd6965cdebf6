"""`Channels`: connections of a client to one task, kept from one request to the next."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator
from functools import partial

from ...engine.common.deadlines import seconds_late, seconds_left
from ...engine.queues.errors import CancelledError, DeadlineExceededError, TaskFailedError
from ..encryption import TLS
from ..transport.channel import Channel
from ..transport.connections import Identity, RefusedError
from ..transport.dialing import dial
from ..transport.failures import task_failed, task_unavailable
from ..transport.planes import Plane, asked, streams_where_sockets_fail, ways
from ..transport.streams import open_stream
from .doing import IN_OPERATION
from .front import Greeter, TaskInfo, TaskUnavailableError, ask_task
from .watch import Patience, Pulse

CONNECT_SECONDS = 30.0
BACK_SECONDS = 1.0  # how long a task that was lost is looked for
_LATE_SECONDS = 2.0  # how long an answer is waited for once a step's time is over: it says what waits for what


class Channels:
    """The connections of a client to one task. Concurrent requests have one each; they are kept for the next ones.

    Args:
        info: what the task says of itself.
        identity: gives who connects.
        token: of the job.
        tls: with which this process proves who it is.
        timeout: how many seconds connecting may take.
        waits_for_operations: whether connecting takes longer where the task is in the middle of a long operation.

    Attributes:
        info: that of the start of the task that was reached last.
    """

    def __init__(
        self,
        info: TaskInfo,
        identity: Callable[[], Identity],
        token: bytes,
        tls: TLS | None,
        timeout: float = CONNECT_SECONDS,
        waits_for_operations: bool = True,
    ) -> None:
        self.info = info
        self._identity = identity
        self._token = token
        self._tls = tls
        self._timeout = timeout
        self._waits_for_operations = waits_for_operations
        self._idle: list[Channel] = []
        self._used: set[Channel] = set()  # by requests that are under way
        self._lock = threading.Lock()
        self._is_closed = False
        self._greeter = Greeter(tls)
        self._asking = threading.Lock()
        wanted = asked()
        self._ways = ways(wanted, info.name, tls is not None)
        self._may_stream = streams_where_sockets_fail(wanted, info.name)
        self._pulse = Pulse(info.incarnation, Patience(timeout=info.heartbeat_timeout))
        self._finalizer = weakref.finalize(self, _close_all, self._idle, self._greeter)

    @property
    def count(self) -> int:
        """The number of connections that wait for a request."""
        return len(self._idle)

    def open(self) -> Channel:
        """Connect to the task, which may have been started again.

        Raises:
            TaskFailedError: it can't be reached.
            ConnectionError: it refuses.
        """
        try:
            return self._open_to_known()
        except DeadlineExceededError:
            raise
        except (ConnectionError, TimeoutError):
            before = self.info.incarnation
            try:
                found = self.reached()
            except TaskFailedError:
                found = self.info
            if found.incarnation == before:
                raise
        return self._open_to_known()

    def reached(self) -> TaskInfo:
        """Return what the task says of itself, which may have been started again.

        Raises:
            TaskFailedError: it does not answer within a second, or what is left of the thread's time.
        """
        left = seconds_left()
        seconds = BACK_SECONDS if left is None else min(left, BACK_SECONDS)
        try:
            found = ask_task(self.info.front, self.info.name, seconds, self._tls)
        except (TaskUnavailableError, OSError, ValueError) as error:
            raise task_unavailable(self.info.name, error) from None
        with self._asking:
            if found.incarnation != self.info.incarnation:
                self.info = found
                self._pulse = Pulse(found.incarnation, self._pulse.patience)
        return found

    def _open_to_known(self) -> Channel:
        info = self.info
        expected = Identity(info.name, info.incarnation)
        try:
            return Channel(self._dial, self._identity(), self._token, expected, self._timeout, self._check_alive)
        except RefusedError as error:
            raise ConnectionError(f"{info.name} can't be used: {error}.") from None
        except (DeadlineExceededError, TaskFailedError):
            raise
        except OSError as error:
            raise task_failed(info.name, f"it can't be reached ({error.strerror or error})") from None

    def _dial(self) -> socket.socket:
        info = self.info
        begin = partial(open_stream, info.front, self._tls)
        try:
            return dial(self._ways, info.host, info.port, info.incarnation, begin, self._timeout)[0]
        except OSError:
            if not self._may_stream or self._ways == (Plane.GRPC,):
                raise
            with self._asking:
                found = self._greeter.ask_now(info.front, BACK_SECONDS)
            if found is None or found.incarnation != info.incarnation:
                raise
            self._ways = (Plane.GRPC,)
            return begin()

    def _check_alive(self) -> bool:
        """Ask the task how it is, while an answer is awaited; return whether connecting waits for its operation.

        Raises:
            TaskFailedError: it has not answered for too long.
            DeadlineExceededError: it does not answer, and the thread's deadline has passed.
        """
        with self._asking:
            reason = self._pulse.tick(time.monotonic())
            if reason is not None:
                raise task_failed(self.info.name, reason)
            info = self._greeter.ask_now(self.info.front, self._pulse.patience.interval)
            if info is not None:
                self._pulse.answered(info)
        if seconds_late() > _LATE_SECONDS:
            silent = f"{self.info.name} does not answer, heartbeats neither." if info is None else unanswered(info)
            raise DeadlineExceededError(f"The timeout was over. {silent}")
        return self._waits_for_operations and info is not None and info.state == IN_OPERATION

    def look(self) -> TaskInfo:
        """Return what the task reports of itself now, or its last report."""
        with self._asking:
            return self._greeter.ask_now(self.info.front, self._pulse.patience.timeout) or self.info

    def take(self) -> Channel | None:
        """Take a connection that waits, if there is one; it is given back by `give`.

        Raises:
            ConnectionError: they are closed.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionError("The session is closed. Make a new one.")
            while self._idle:
                channel = self._idle.pop()
                if channel.is_quiet:
                    return channel
                channel.close()  # the task has closed it, and may have been started again
        return None

    def give(self, channel: Channel, is_whole: bool) -> None:
        """Give a connection back; it is kept if nothing is under way on it."""
        with self._lock:
            self._used.discard(channel)
            if is_whole and not (self._is_closed or channel.is_refused):
                self._idle.append(channel)
            else:
                channel.close()

    @contextlib.contextmanager
    def channel(self) -> Generator[Channel]:
        """Yield a connection for one request; it is kept for the next one unless it breaks."""
        channel = self.take() or self.open()
        is_whole = False
        try:
            self._use(channel)
            yield channel
            is_whole = True
        except (DeadlineExceededError, TaskFailedError):
            raise
        except OSError as error:
            if self._is_closed:
                raise CancelledError("The session was closed while the step ran.") from None
            raise task_failed(self.info.name, str(error.strerror or error)) from None
        finally:
            self.give(channel, is_whole)

    def _use(self, channel: Channel) -> None:
        """Note that a request is under way by a connection.

        Raises:
            ConnectionError: the connections were closed meanwhile.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionError("they were closed")
            self._used.add(channel)

    def close(self) -> None:
        """Give the connections up; requests that are under way end."""
        with self._lock:
            self._is_closed = True
            for channel in self._used:
                channel.interrupt()
            _close_all(self._idle, self._greeter)


def unanswered(info: TaskInfo) -> str:
    """Say of a task that answers heartbeats alone what it does meanwhile."""
    does = f"{info.state}: {info.doing}, for {info.since:.0f} s" if info.doing else info.state
    return f"{info.name} does not answer, and is {does}."


def _close_all(channels: list[Channel], greeter: Greeter) -> None:
    greeter.close()
    while channels:
        channels.pop().close()


__all__ = ["BACK_SECONDS", "CONNECT_SECONDS", "Channels", "unanswered"]
