"""`StreamEnd`: used as a socket by a loop or a client's thread, with threads behind it that take and give bytes.

The bytes stay in memory: they are copied once on their way out, into a message of gRPC, and once on their way in, to
where the reader wants them. No system call moves them, as with a socket pair; a pair of sockets carries signals alone.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

# Bytes of a piece at most. gRPC, and proxies, refuse messages of more than 4 MiB unless they are configured otherwise.
PIECE = (4 << 20) - (64 << 10)
_MOST = 4 * PIECE  # bytes that wait in each direction before who brings more has to wait
_FEW = 1 << 16  # bytes that are sooner copied than other threads are let run
_FILLING = bytes(256)


class StreamEnd:
    """The end of a stream of bytes, with the methods of a socket that connections and channels use.

    Its descriptor can be waited for: it can be read when something has come or the stream is over, and written when
    there is room. One thread sends, one receives, one takes `pieces`, and one calls `put`.

    Calls that may wait, as those of a client do, copy what they send: the caller may write to its arrays afterwards.
    The others hold the buffers until they have left, as a connection of a loop holds those that wait. Nothing writes to
    an array that is held.

    Attributes:
        family: that of no network.
    """

    family = socket.AF_UNSPEC

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in, self._out = threading.Condition(self._lock), threading.Condition(self._lock)
        self._incoming: collections.deque[memoryview] = collections.deque()
        self._outgoing: collections.deque[bytes | memoryview] = collections.deque()
        self._waiting_in = 0  # bytes of each
        self._waiting_out = 0
        self._timeout: float | None = None
        self._is_full = False  # so that nothing can be sent until half of what waits has gone
        self._is_over = False
        self._is_closed = False
        self._own, self._other = socket.socketpair()
        for each in (self._own, self._other):
            each.setblocking(False)
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as few as possible fill it

    # --- as a socket ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is closed."""
        return self._own.fileno()

    def setblocking(self, blocks: bool) -> None:
        """Have calls wait, or raise BlockingIOError where they would have to."""
        self._timeout = None if blocks else 0.0

    def settimeout(self, seconds: float | None) -> None:
        """Have calls wait for some time at most, and raise TimeoutError then; 0 as `setblocking(False)`."""
        self._timeout = seconds

    def send(self, buffer: Any) -> int:
        """Send the first bytes of a buffer; return how many."""
        return self.sendmsg([buffer])

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """Send bytes of some buffers, in order; return how many.

        Raises:
            BlockingIOError: nothing can be sent now.
            TimeoutError: nor within the timeout.
            BrokenPipeError: the stream is over.
        """
        with self._lock:
            self._wait_for(self._out, lambda: self._is_over or not self._is_full)
            if self._is_over:
                raise BrokenPipeError(errno.EPIPE, "the stream is over")
            room, copies = _MOST - self._waiting_out, self._timeout != 0.0  # no other thread sends: it stays room
        # Copies are made without the lock: gRPC's thread takes pieces meanwhile.
        sent, size = 0, 0
        pieces: list[bytes | memoryview] = []
        for buffer in buffers:
            for piece in _parted(memoryview(buffer)[: room - sent], copies):
                pieces.append(piece)
                size, sent = size + len(piece), sent + len(piece)
                if size >= PIECE:  # small ones leave together
                    self._append(pieces, size)
                    pieces, size = [], 0
        self._append(pieces, size)
        return sent

    def _append(self, pieces: list[bytes | memoryview], size: int) -> None:
        """Let pieces leave, which have so many bytes together."""
        with self._lock:
            if self._is_over:
                raise BrokenPipeError(errno.EPIPE, "the stream is over")
            self._outgoing.extend(pieces)
            self._waiting_out += size
            if self._waiting_out == _MOST:
                self._fill()
            self._out.notify_all()

    def _fill(self) -> None:
        """Have the descriptor not be written until half of what waits has gone."""
        if not self._is_closed:
            self._is_full = True
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._own.send(_FILLING)

    def recv_into(self, buffer: Any) -> int:
        """Read what has come, as far as a buffer holds it; return the number of bytes, 0 if the stream is over.

        Raises:
            BlockingIOError: nothing has come.
            TimeoutError: nor within the timeout.
        """
        incoming, count, most = self._incoming, 0, len(buffer)
        pieces: list[memoryview] = []
        with self._lock:
            self._wait_for(self._in, lambda: bool(incoming) or self._is_over)
            while incoming and count < most:
                piece = incoming.popleft()
                if len(piece) > most - count:
                    incoming.appendleft(piece[most - count :])
                    piece = piece[: most - count]
                pieces.append(piece)
                count += len(piece)
            if not (incoming or self._is_over):
                self._own.recv(1)
        position = 0
        for piece in pieces:  # without the lock: gRPC's thread brings more meanwhile
            _copy(buffer[position : position + len(piece)], piece)
            position += len(piece)
        with self._lock:
            if self._waiting_in > _MOST:
                self._in.notify_all()
            self._waiting_in -= count
        return count

    def shutdown(self, how: int) -> None:
        """End the stream: nothing can be sent any more, and what has come can still be received."""
        self.end()

    def close(self) -> None:
        """End the stream; what was sent still leaves."""
        with self._lock:
            self._is_over = self._is_closed = True
            self._incoming.clear()
            self._own.close()
            self._other.close()
            self._in.notify_all()
            self._out.notify_all()

    def _wait_for(self, changes: threading.Condition, is_ready: Callable[[], bool]) -> None:
        if self._timeout == 0.0:
            if not is_ready():
                raise BlockingIOError(errno.EAGAIN, "it would have to wait")
        elif not changes.wait_for(is_ready, self._timeout):
            raise TimeoutError("timed out")

    # --- for the threads behind it ----------------------------------------------------------------------------------

    def pieces(self) -> Iterator[bytes]:
        """Return an iterator over what is sent, until the stream is over and nothing is left."""
        return iter(self._next_piece, b"")

    def _next_piece(self) -> bytes:
        """Take what is sent next; nothing if the stream is over."""
        with self._lock:
            outgoing = self._outgoing
            self._out.wait_for(lambda: outgoing or self._is_over)
            some: list[bytes | memoryview] = []
            size = 0
            while outgoing and size + len(outgoing[0]) <= PIECE:  # small ones leave together
                some.append(outgoing.popleft())
                size += len(some[-1])
            if outgoing and not some:
                some.append(outgoing[0][:PIECE])
                outgoing[0] = outgoing[0][PIECE:]
                size = PIECE
            self._waiting_out -= size
            if self._is_full and self._waiting_out <= _MOST // 2 and not self._is_closed:
                self._is_full = False
                with contextlib.suppress(BlockingIOError):
                    while self._other.recv(1 << 16):
                        pass
                self._out.notify_all()
        return b"".join(some)

    def put(self, piece: bytes) -> bool:
        """Have bytes received, once there is room for them; return False if the stream is over."""
        with self._lock:
            self._in.wait_for(lambda: self._waiting_in <= _MOST or self._is_over)
            if self._is_over:
                return False
            if piece:
                if not self._incoming:
                    self._other.send(b"\0")
                self._incoming.append(memoryview(piece))
                self._waiting_in += len(piece)
                self._in.notify_all()
        return True

    def end(self) -> None:
        """End the stream: what was put can still be received, and `pieces` yields what was sent."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                if not self._incoming:
                    self._other.send(b"\0")
                self._in.notify_all()
                self._out.notify_all()


def _parted(buffer: memoryview, copies: bool) -> Iterator[bytes | memoryview]:
    """Yield copies of the pieces of a buffer, or the buffer itself if it may be held."""
    if copies:
        for begin in range(0, len(buffer), PIECE):
            yield _copied(buffer[begin : begin + PIECE])
    elif len(buffer):
        yield buffer


def _copied(piece: memoryview) -> bytes:
    return bytes(piece)


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes. NumPy lets other threads run meanwhile, which takes longer where there are few bytes."""
    if len(source) < _FEW:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


__all__ = ["PIECE", "StreamEnd"]
