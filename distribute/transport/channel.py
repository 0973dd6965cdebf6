"""`Channel`: a connection with a socket that blocks, for a thread of a client."""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from .connections import MOST_BUFFERS, Handshake, Identity
from .wire import Decoder, Frame, Kind, encode_document

_SILENCE_SECONDS = 1.0
_Brief = getattr(selectors, "PollSelector", selectors.SelectSelector)  # which the system need not make before a look


class Channel:
    """A connection for a thread that waits for its answers.

    Args:
        connect: gives a socket that leads to the task.
        own: who connects.
        token: that of the job.
        expected: who is to answer.
        timeout: how many seconds connecting and the handshake may take.
        check: called every second in which the task has neither said nor taken anything; raises if it is dead, and
            gives whether it is in a long operation, which the handshake waits for.

    Attributes:
        own: who has connected.
        is_refused: whether the task has refused something, and closed the connection with that.

    Raises:
        RefusedError: the handshake has failed.
        OSError: the task can't be reached.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        own: Identity,
        token: bytes,
        expected: Identity | None,
        timeout: float,
        check: Callable[[], bool] = lambda: False,
    ) -> None:
        self.own = own
        self.is_refused = False
        self._check = check
        self._until: float | None = time.monotonic() + timeout
        self._decoder = Decoder()
        self._frames: collections.deque[Frame] = collections.deque()
        self._sock = connect()
        try:
            if self._sock.family in (socket.AF_INET, socket.AF_INET6):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.settimeout(_SILENCE_SECONDS)
            handshake = Handshake(own, token, accepts=False, expected=expected)
            while handshake.other is None:
                self._send(handshake.take(self.receive()))
            self._until = None
        except BaseException:
            self._sock.close()
            raise

    def send(self, kind: int, document: Any, arrays: Any = (), unless: Channel | None = None) -> bool:
        """Send a frame with a head of JSON.

        Args:
            unless: sending ends when something comes by this one; what has gone by then is not a whole frame.

        Returns:
            True if all has gone.
        """
        return self._send(encode_document(kind, document, arrays), unless)

    def _send(self, buffers: list[Any], unless: Channel | None = None) -> bool:
        left = list(map(memoryview, buffers))
        while left:
            if unless is not None and not self._waits_for_room(unless):
                return False
            try:
                count = self._sock.sendmsg(left[:MOST_BUFFERS])
            except TimeoutError:
                self._silence()
                continue
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = left[0][count:]
        return True

    def _waits_for_room(self, unless: Channel) -> bool:
        """Wait until something can be sent; return False if something comes by another one before."""
        with selectors.DefaultSelector() as selector:
            selector.register(unless._sock, selectors.EVENT_READ)
            selector.register(self._sock, selectors.EVENT_WRITE)
            while True:
                found = {key.fileobj for key, _ in selector.select(_SILENCE_SECONDS)}
                if unless._sock in found:
                    return False
                if found:
                    return True
                self._silence()

    @property
    def is_quiet(self) -> bool:
        """Test whether nothing has come, nor the end of the connection."""
        with _Brief() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            return not selector.select(0)

    def _silence(self) -> None:
        is_late = self._until is not None and time.monotonic() > self._until
        if not self._check() and is_late:
            raise TimeoutError("it did not prove itself in time")

    def receive(self) -> Frame:
        """Wait for the next frame.

        Raises:
            ConnectionError: the connection is over.
            FrameError: what came is not a frame.
        """
        while not self._frames:
            try:
                count = self._sock.recv_into(self._decoder.buffer())
            except TimeoutError:
                self._silence()
                continue
            if not count:
                raise ConnectionResetError("the connection was closed by the other side")
            self._frames.extend(self._decoder.advance(count))
        found = self._frames.popleft()
        self.is_refused |= found.kind == Kind.REFUSED
        return found

    def interrupt(self) -> None:
        """End the connection under another thread, which gets a ConnectionError."""
        with contextlib.suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._sock.close()
