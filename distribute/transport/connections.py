"""Connections: sockets that carry frames, once both sides have proved that they have the job's token.

The one who accepts says who it is and gives a challenge; the one who connects answers with a proof and a challenge of
its own; the one who accepts proves itself, too. Before that a connection takes small frames without arrays only.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import secrets
import socket
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import numpy as np

from ...engine.common.quick_dataclass import dataclass
from ..token import is_proof, proof
from .loop import Loop
from .planes import Limits, Plane
from .processes import PeerProcess
from .slabs import IS_AVAILABLE, Budget, Mapped, Pool, close_descriptors
from .wire import (
    DAMAGE,
    FEW,
    MOST_ARRAYS,
    MOST_HEAD,
    PROTOCOL,
    Decoder,
    Frame,
    FrameError,
    Kind,
    Small,
    encode,
    encode_document,
)

_HANDSHAKE_SECONDS = 10.0
_ROOM = socket.CMSG_SPACE(64 * 4) if hasattr(socket, "CMSG_SPACE") else 0  # for descriptors that come with bytes
_OF_SLABS = frozenset({Kind.SLAB, Kind.DROPPED, Kind.TAKEN})
_MOST_HANDSHAKE = 4096  # bytes of a head, before the other side is known
_MOST_READS = 1000  # of what an ended process has sent: more than a socket holds
MOST_BUFFERS = 64  # that are written by one call


class RefusedError(ConnectionError):
    """A connection that the other side, or this one, does not want; the message says why."""


@dataclass(frozen=True)
class Identity:
    """Who speaks.

    Attributes:
        name: of a task; of a client some text that says which one.
        incarnation: drawn when it started.
    """

    name: str
    incarnation: int


# --- the handshake, without sockets ---------------------------------------------------------------------------------


class Handshake:
    """One side of the handshake: takes frames, and gives what to answer.

    Args:
        own: who speaks here.
        token: the secret that both sides share.
        accepts: whether the other side has connected.
        expected: of the one who connects: who is to answer.

    Attributes:
        other: who is on the other side; None as long as that is not proved.
    """

    def __init__(self, own: Identity, token: bytes, accepts: bool, expected: Identity | None = None) -> None:
        self.own = own
        self.other: Identity | None = None
        self._token = token
        self.accepts = accepts
        self.expected = expected
        self._challenge = secrets.token_hex(16)
        self._said: tuple[str, ...] = ()
        self._claimed: Identity | None = None

    def begin(self) -> list[Any]:
        """Return the first bytes to send."""
        if not self.accepts:
            return []
        return encode_document(Kind.HELLO, self._introduction())

    def _introduction(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "name": self.own.name,
            "incarnation": self.own.incarnation,
            "challenge": self._challenge,
        }

    def take(self, frame: Frame) -> list[Any]:
        """Take a frame; return what to answer.

        Raises:
            RefusedError: the other side does not have the token, speaks another version, or is somebody else.
        """
        document = frame.document()
        if frame.kind == Kind.REFUSED:
            raise RefusedError(str(document.get("message", "")))
        if self.accepts:
            return self._take_proof(frame.kind, document)
        if frame.kind == Kind.HELLO and not self._said:
            return self._take_hello(document)
        if frame.kind != Kind.WELCOME or not self._said:
            raise RefusedError(f"a frame of kind {frame.kind} came before the other side had proved itself")
        if not is_proof(document.get("proof"), proof(self._token, "accepts", *self._said)):
            raise RefusedError(_unproved(self._claimed, self.own))
        self.other = self._claimed
        return []

    def _take_hello(self, document: dict[str, Any]) -> list[Any]:
        self._claimed = _introduced(document)
        if self.expected is not None and self._claimed != self.expected:
            raise RefusedError(
                f"{self.expected.name} was expected and {self._claimed.name} answered, or another start of it. The "
                "task has been restarted, or another one has taken its port"
            )
        self._said = self._talk(document["challenge"], self._challenge, self._claimed, self.own)
        answer = {**self._introduction(), "proof": proof(self._token, "connects", *self._said)}
        return encode_document(Kind.PROOF, answer)

    def _take_proof(self, kind: int, document: dict[str, Any]) -> list[Any]:
        if kind != Kind.PROOF:
            raise RefusedError(f"a frame of kind {kind} came before the other side had proved itself")
        claimed = _introduced(document)
        said = self._talk(self._challenge, document["challenge"], self.own, claimed)
        if not is_proof(document.get("proof"), proof(self._token, "connects", *said)):
            raise RefusedError(_unproved(claimed, self.own))
        self.other = claimed
        return encode_document(Kind.WELCOME, {"proof": proof(self._token, "accepts", *said)})

    @staticmethod
    def _talk(challenge: str, answer: str, accepting: Identity, connecting: Identity) -> tuple[str, ...]:
        """Return all that both sides have said."""
        names = (accepting.name, str(accepting.incarnation), connecting.name, str(connecting.incarnation))
        return (str(PROTOCOL), challenge, answer, *names)


def _introduced(document: dict[str, Any]) -> Identity:
    version = document.get("protocol")
    name, incarnation, challenge = (document.get(key) for key in ("name", "incarnation", "challenge"))
    if version != PROTOCOL:
        raise RefusedError(
            f"the other side speaks version {version!r} of the protocol, and this one version {PROTOCOL}. Run the same "
            "version of anabranch everywhere"
        )
    if not isinstance(name, str) or not isinstance(incarnation, int) or not isinstance(challenge, str):
        raise RefusedError("the other side does not say who it is")
    return Identity(name, incarnation)


def _unproved(claimed: Identity | None, own: Identity) -> str:
    """Say, in words that hold on both sides, that the tokens differ."""
    name = "the other side" if claimed is None else claimed.name
    return (
        f"the tokens of {name} and of {own.name} differ. Set ANABRANCH_TOKEN to the same text for all tasks and "
        "clients of a job, or start them as the same user"
    )


# --- with sockets, in a loop ----------------------------------------------------------------------------------------


class Connection:
    """A socket in a loop that carries frames.

    Args:
        loop: in whose thread everything happens.
        sock: the socket, which is connected, or is about to be.
        handshake: by which both sides prove themselves.
        on_frame: takes a connection and a frame, once they have.
        on_open: takes the connection when they have.
        on_close: takes the connection and the reason when it is over, whoever ends it; once.
        outbox: notes connections that have something to send (see `flush`).
        released: takes this connection and the number of a slab, when an array in it is gone, in whatever thread.
        plane: how values travel.
        limits: the bytes that may wait here to be sent, and those of slabs.
        on_small: takes values that have come whole (see `Decoder.small_values`).
        budget: the shared memory of all connections of the task; None if there is no other one.

    Attributes:
        queued: bytes that wait for the socket to take them.
        most_queued: if there are more, steps must not add to them.
        most_joined: the bytes of the largest array that is copied into its frame: others are shared, or listed.
        stalls: how often a step was held because too many did.
        pool: slabs for values that are sent; None unless the plane is shared memory.
        mapped: slabs of the other side.
        is_over: whether that was found out ahead.
        process: the one on the other side, where that can be watched.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        handshake: Handshake,
        on_frame: Callable[[Connection, Frame], None],
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection, str], None],
        outbox: dict[Connection, None],
        released: Callable[[Connection, int], None],
        plane: Plane,
        limits: Limits,
        on_small: Small | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.loop = loop
        self.plane = plane
        self.queued = 0
        self.stalls = 0
        self.pool = Pool(limits.slabs, budget) if plane == Plane.SHARED_MEMORY else None
        if self.pool is not None:
            self.pool.on_dropped = lambda: loop.call(self._notify_of_dropped)
        self.mapped = Mapped(lambda number: released(self, number), limits.slabs // 2)
        self.most_queued, self._inline = limits.in_flight, limits.inline
        self.most_joined = FEW if self.pool is None else min(FEW, limits.inline)
        self._descriptors: collections.deque[tuple[int, int]] = collections.deque()  # and the bytes sent before each
        self._received: collections.deque[int] = collections.deque()  # descriptors that slabs are to come for
        self.is_open = self.is_closed = self.is_over = False
        self.process: PeerProcess | None = None
        self.bytes_sent = self.bytes_received = 0
        self.frames_sent = self.frames_received = 0
        self._sock = sock
        self._handshake = handshake
        self._on_frame, self._on_open, self._on_close = on_frame, on_open, on_close
        self._on_small: Small = on_small or (lambda buffer, count: (0, 0))
        self._outbox = outbox
        self._decoder = Decoder(_MOST_HANDSHAKE, 0)
        self._buffers: collections.deque[Any] = collections.deque()  # bytes, or memory of which each item is one
        self._writes = False
        self._ahead: list[Frame] = []
        self._ahead_until = 0  # the number of bytes behind which no more is read ahead
        self._end: Callable[[], None] = lambda: None  # what is to be done behind them
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read: Callable[[memoryview], int] = sock.recv_into
        loop.watch(sock, self._receive)
        if handshake.accepts:  # who connects is patient: a task in a long operation accepts nobody
            loop.after(_HANDSHAKE_SECONDS, self._check_open)
        self._put(handshake.begin())

    @property
    def accepts(self) -> bool:
        """Say whether the other side has connected."""
        return self._handshake.accepts

    @property
    def wanted(self) -> Identity | None:
        """Who is on the other side, or is to be; None if that is not known yet."""
        return self._handshake.other or self._handshake.expected

    @property
    def other(self) -> Identity:
        """Who is on the other side."""
        assert self._handshake.other is not None, "the connection is not open yet"
        return self._handshake.other

    def statistics(self) -> dict[str, Any]:
        """Count what has travelled, and what waits."""
        pool = self.pool
        return {
            "task": self.other.name if self.is_open else "",
            "plane": str(self.plane),
            "connected_by": "the other side" if self.accepts else "this task",
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "bytes_shared": 0 if pool is None else pool.bytes_shared,
            "frames_sent": self.frames_sent,
            "frames_received": self.frames_received,
            "queued": self.queued,
            "stalls": self.stalls,
            "slabs": 0 if pool is None else pool.in_use,
            "slab_bytes": 0 if pool is None else pool.size,
            "pool_full": 0 if pool is None else pool.full,
            "mapped": len(self.mapped),
        }

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, kind: int, document: Any, arrays: Any = ()) -> None:
        """Send a frame with a head of JSON; nothing if the connection is over."""
        self._put_frame(encode_document(kind, document, arrays))

    def put(self, kind: int, head: bytes, arrays: Any = ()) -> None:
        """Send a frame of a value. It leaves with what else is sent in this turn of the loop."""
        if not self.is_closed:
            self._put_frame(encode(kind, head, arrays, None if self.pool is None else self._share))

    @property
    def is_full(self) -> bool:
        """Say whether so much waits to be sent that steps must not add to it."""
        return self.queued > self.most_queued

    def _put_frame(self, buffers: list[Any]) -> None:
        if not self.is_closed:
            self.frames_sent += 1
            self._put(buffers)

    def put_bytes(self, data: bytes) -> None:
        """Send a frame that is written already, as `put` does."""
        if not self.is_closed:
            self.frames_sent += 1
            self.queued += len(data)
            self._buffers.append(data)
            self._outbox[self] = None

    def _put(self, buffers: Sequence[Any]) -> None:
        self.queued += sum(map(len, buffers))
        self._buffers.extend(buffers)
        if self._buffers:
            self._outbox[self] = None

    def _share(self, array: Any) -> tuple[int, int] | None:
        """Lay an array into a slab, of which the other side is notified before."""
        assert self.pool is not None, "the plane is shared memory"
        if array.nbytes <= self._inline or array.dtype.byteorder == ">":
            return None
        found = self.pool.put(array)
        if found is None:
            return None
        if found.dropped:
            self._put(encode_document(Kind.DROPPED, {"slabs": found.dropped}))
        if found.is_new:
            self._descriptors.append((self.bytes_sent + self.queued, found.slab.descriptor))
            self._put(encode_document(Kind.SLAB, {"slab": found.slab.number}))
        return found.slab.number, found.offset

    def _notify_of_dropped(self) -> None:
        """Notify the other side of slabs that were given up for another task."""
        dropped = [] if self.pool is None else self.pool.take_dropped()
        if dropped:
            self.send(Kind.DROPPED, {"slabs": dropped})

    def empty(self, shape: tuple[int, ...], dtype: Any, is_for_all: bool = False) -> Any:
        """Return an array to be filled and then sent; in shared memory, where there is room for it. For any thread.

        Args:
            shape, dtype: of the array.
            is_for_all: whether other tasks may read it, too, and it may be kept for long.
        """
        pool = self.pool
        found = None if pool is None else (pool.budget if is_for_all else pool).empty(shape, dtype)
        return np.empty(shape, dtype) if found is None else found

    def acknowledge(self, slabs: Sequence[int]) -> None:
        """Notify the other side that arrays in these slabs are gone."""
        if not self.is_closed:
            self._put(encode_document(Kind.TAKEN, {"slabs": list(slabs)}))

    def flush(self) -> None:
        """Write what the socket takes."""
        buffers = self._buffers
        try:
            while buffers and not self.is_closed:
                count = self._write()
                if count == self.queued:
                    self.bytes_sent += count
                    self.queued = 0
                    buffers.clear()
                else:
                    self._sent(count)
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(f"nothing can be sent: {error.strerror or error}")
            return
        if (buffers or self._writes) and not self.is_closed and bool(buffers) != self._writes:
            self._writes = bool(buffers)
            self.loop.watch(self._sock, self._ready if self._writes else self._receive, self._writes)

    def _write(self) -> int:
        """Write some buffers; a descriptor goes with the first byte of the frame that announces it."""
        count = len(self._buffers)
        if not self._descriptors:
            if count == 1:
                return self._sock.send(self._buffers[0])
            if self.queued <= FEW:
                return self._sock.send(b"".join(self._buffers))
            few = self._buffers if count <= MOST_BUFFERS else itertools.islice(self._buffers, MOST_BUFFERS)
            return self._sock.sendmsg(few)
        before, descriptor = self._descriptors[0]
        left = before - self.bytes_sent
        if not left:
            count = socket.send_fds(self._sock, [self._buffers[0]], [descriptor])
            self._descriptors.popleft()
            os.close(descriptor)
            return count
        some: list[Any] = []
        for k in range(min(count, MOST_BUFFERS)):
            if left <= 0:
                break
            some.append(self._buffers[k])
            left -= len(some[-1])
        return self._sock.sendmsg(some)

    def _sent(self, count: int) -> None:
        self.bytes_sent += count
        self.queued -= count
        while count:
            first = self._buffers[0]
            if count < len(first):
                self._buffers[0] = memoryview(first)[count:]
                return
            count -= len(first)
            self._buffers.popleft()

    # --- receiving --------------------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events & EVENT_WRITE:
            self.flush()
        if events & EVENT_READ and not self.is_closed:
            self._receive()

    def _receive(self, events: int = EVENT_READ) -> None:
        try:
            count = self._read(self._decoder.buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection was lost: {error.strerror or error}")
            return
        if not count:
            self.close("the connection was closed by the other side")
            return
        self.bytes_received += count
        try:
            first = 0
            if self.is_open:
                first, small = self._decoder.small_values(count, self._on_small)
                self.frames_received += small
                if first == count or self.is_closed:
                    return
            for frame in self._decoder.advance(count, first):
                if self.is_closed:
                    return
                self._take(frame)
        except Exception as error:
            self._refuse_for(error)

    def _refuse_for(self, error: Exception) -> None:
        """End the connection for an error that a frame has caused."""
        if isinstance(error, FrameError | RefusedError):
            self._refuse(str(error))
            return
        traceback.print_exc()  # of ours: it must not end the loop, which serves others
        self._refuse(f"an error inside anabranch, {type(error).__name__}: {error}")

    def read_ahead(self) -> list[Frame] | None:
        """Read what has come, for `take_ahead`. For another thread, while that of the loop neither reads nor takes.

        Returns:
            The frames; None if there is nothing more to read: nothing has come, the connection is over, or as much was
            read as may be in flight.
        """
        if self.is_closed or self.is_over or not self.is_open:
            return None
        if not self._ahead:
            self._ahead_until = self.bytes_received + self.most_queued
        if self.bytes_received > self._ahead_until:
            return None
        try:
            count = self._read(self._decoder.buffer())
        except (BlockingIOError, InterruptedError):
            if self.process is not None and self.process.has_ended:
                self._end_ahead(partial(self.close, "its process has ended"))
            return None
        except OSError as error:
            return self._end_ahead(partial(self.close, f"the connection was lost: {error.strerror or error}"))
        if not count:
            return self._end_ahead(partial(self.close, "the connection was closed by the other side"))
        self.bytes_received += count
        found: list[Frame] = []
        try:
            for frame in self._decoder.advance(count):
                if frame.kind in (Kind.SLAB, Kind.DROPPED):  # frames behind it may be in that memory
                    self._take_slabs(frame)
                else:
                    found.append(frame)
        except FrameError as error:
            self._end_ahead(partial(self._refuse_for, error))
        self._ahead += found
        return found

    def _end_ahead(self, end: Callable[[], None]) -> None:
        self.is_over, self._end = True, end

    def take_ahead(self) -> None:
        """Take what was read ahead; for the loop's thread."""
        ahead, self._ahead = self._ahead, []
        try:
            for frame in ahead:
                if not self.is_closed:
                    self._take(frame)
        except Exception as error:
            self._refuse_for(error)
        if not self.is_closed:
            self._end()

    def end(self, reason: str) -> None:
        """Close it, once what has come is taken: the other side has ended, and may have said something before."""
        for _ in range(_MOST_READS):
            before = self.bytes_received
            self._receive()
            if self.is_closed or self.bytes_received == before:
                break
        self.close(reason)

    def _read_with_descriptors(self, buffer: memoryview) -> int:
        count, others, _, _ = self._sock.recvmsg_into([buffer], _ROOM, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in others:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._received.extend(memoryview(data[: len(data) - len(data) % 4]).cast("i"))
        return count

    def _take(self, frame: Frame) -> None:
        self.frames_received += 1
        if self.is_open:
            if frame.kind in _OF_SLABS:
                self._take_slabs(frame)
            else:
                self._on_frame(self, frame)
            return
        self._put(self._handshake.take(frame))
        if self._handshake.other is not None:
            self.is_open = True
            self._decoder.most_head, self._decoder.most_arrays = MOST_HEAD, MOST_ARRAYS
            if IS_AVAILABLE and self._sock.family == socket.AF_UNIX:
                self._read = self._read_with_descriptors
                self._decoder.shared = self.mapped.array
            self._on_open(self)

    def _take_slabs(self, frame: Frame) -> None:
        """Take what the other side says of slabs, its own or those of this side."""
        document = frame.document()
        try:
            if frame.kind == Kind.SLAB:
                self.mapped.add(int(document["slab"]), self._received.popleft())
            elif frame.kind == Kind.DROPPED:
                for number in document["slabs"]:
                    self.mapped.drop(int(number))
            elif self.pool is None:
                raise FrameError("slabs were acknowledged, and there are none here")
            else:
                for number in document["slabs"]:
                    self.pool.taken(int(number))
        except DAMAGE as error:
            raise FrameError(f"what was said of slabs is damaged: {type(error).__name__}: {error}") from None

    def _refuse(self, reason: str) -> None:
        """Send the other side the reason why this is over."""
        self._put(encode_document(Kind.REFUSED, {"message": reason}))
        with contextlib.suppress(OSError):  # the other side may have ended it before, for this reason
            self._write()
        self.close(reason)

    def _check_open(self) -> None:
        if not self.is_open and not self.is_closed:
            self.close(f"the other side did not prove itself within {_HANDSHAKE_SECONDS:g} s")

    def close(self, reason: str) -> None:
        """End the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        self._outbox.pop(self, None)
        self._buffers.clear()
        self.mapped.close()
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        close_descriptors([descriptor for _, descriptor in self._descriptors])
        close_descriptors(self._received)
        self._descriptors.clear()
        self._received.clear()
        self.loop.forget(self._sock)
        self._sock.close()
        self._on_close(self, reason)
