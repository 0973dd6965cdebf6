"""`Links`: a socket between each two processes of a group, over which all of them exchange bytes of known lengths."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from ...engine.queues.errors import TaskFailedError
from ..cluster import joined_address, resolved, split_address
from ..transport.connections import Handshake, Identity, RefusedError
from ..transport.failures import task_failed
from ..transport.wire import Decoder, FrameError, Kind, encode_document

SAYS_SECONDS = 30.0  # after how long a member says for whom it waits
_RETRY_SECONDS = 0.05
_LOOK_MILLISECONDS = 500  # how often a wait looks whether it was interrupted
_MOST_BUFFERS = 64  # that go by one call of the system
_OPEN, _COUNT = b"\x01", b"\x02"  # the first byte of a connection: to join a group, or to say who is left of one
_LEFT = b"left"  # begins the answer to _COUNT; a member that forms a group sends a refusal in its place
_ENDED = getattr(select, "POLLRDHUP", 0)  # the other side has ended the connection, whatever it has sent before
_logger = logging.getLogger(__name__)
_PORT = struct.Struct("<I")


class Links:
    """The connections of one member to all others, once each has proved that it has the token.

    Args:
        names: the members' names, by rank.
        addresses: where they listen, by rank; or only where the first does, and the others take any port.
        rank: which of them this is.
        incarnation: drawn when this process started.
        token: that of the job.
        timeout: for how many seconds to wait for the others.

    Attributes:
        address: where the first member listens while members connect.
        addresses: where all do, by rank, as far as that is known.
        identity: of this member.
        token: as given.

    Raises:
        TimeoutError: members are absent; the message names them.
        RefusedError: a member does not have the token.
        OSError: this process can't listen at its address.
    """

    def __init__(
        self, names: Sequence[str], addresses: Sequence[str], rank: int, incarnation: int, token: bytes, timeout: float
    ) -> None:
        self.names = list(names)
        self.rank = rank
        self.identity = Identity(names[rank], incarnation)
        self.token = token
        self._sockets: dict[int, socket.socket] = {}
        self._error: Exception | None = None
        self.address = addresses[0]
        self.addresses = list(addresses)
        self._refused = ""  # a sentence on who was refused last
        try:
            self._connect(addresses, time.monotonic() + timeout, timeout)
        except BaseException:
            self.close()
            raise

    # --- connecting -------------------------------------------------------------------------------------------------

    def _connect(self, addresses: Sequence[str], until: float, timeout: float) -> None:
        learns = len(addresses) == 1 < len(self.names)
        if learns and self.rank:
            self._sockets[0] = self._called(0, addresses[0], until, timeout)
            own = self._sockets[0].getsockname()[0], 0
        else:
            own = split_address(addresses[self.rank])
        self.host = own[0]  # at which the others reach this process
        with _listening(*own) as listener:
            if learns:
                addresses = self.addresses = self._learned(listener, until, timeout)
            for other in range(self.rank):
                if other not in self._sockets:
                    self._sockets[other] = self._called(other, addresses[other], until, timeout)
            while len(self._sockets) < len(self.names) - 1:
                self._accept(listener, until, timeout)
        for sock in self._sockets.values():
            sock.setblocking(False)

    def _learned(self, listener: socket.socket, until: float, timeout: float) -> list[str]:
        """Return the addresses of all members: the first one collects them, and sends them to all."""
        port = _PORT.pack(listener.getsockname()[1])
        if self.rank:
            self._sockets[0].sendall(port)
            size = _PORT.unpack(_read(self._sockets[0], _PORT.size))[0]
            return [self.address, *_read(self._sockets[0], size).decode().split()[1:]]
        while len(self._sockets) < len(self.names) - 1:
            self._accept(listener, until, timeout)
        found = [self.address]
        for rank in range(1, len(self.names)):
            sock = self._sockets[rank]
            found.append(joined_address(sock.getpeername()[0], _PORT.unpack(_read(sock, _PORT.size))[0]))
        text = " ".join(["-", *found[1:]]).encode()
        for sock in self._sockets.values():
            sock.sendall(_PORT.pack(len(text)) + text)
        return found

    def _called(self, other: int, address: str, until: float, timeout: float) -> socket.socket:
        """Return a connection to a member of lower rank, which listens or will."""
        host, port = split_address(address)
        while True:
            try:
                sock = socket.create_connection((resolved(host), port), max(until - time.monotonic(), _RETRY_SECONDS))
            except OSError:
                if time.monotonic() >= until:
                    raise self._absent([other], timeout) from None
                time.sleep(_RETRY_SECONDS)
                continue
            try:
                handshake = Handshake(self.identity, self.token, accepts=False)
                shake_hands(sock, handshake)
                assert handshake.other is not None
                if handshake.other.name != self.names[other]:
                    raise RefusedError(
                        f"{self.names[other]} was expected at {address}; {handshake.other.name} is there"
                    )
                sock.sendall(_OPEN)
                return sock
            except RefusedError:
                sock.close()
                raise
            except (ConnectionError, TimeoutError):
                sock.close()  # what was there has ended: another start of it may come
                if time.monotonic() >= until:
                    raise self._absent([other], timeout) from None
            except BaseException:
                sock.close()
                raise

    def _accept(self, listener: socket.socket, until: float, timeout: float) -> None:
        """Take a connection of a member of higher rank; whoever can't prove to be one is sent away."""
        listener.settimeout(max(until - time.monotonic(), _RETRY_SECONDS))
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            missing = [k for k in range(self.rank + 1, len(self.names)) if k not in self._sockets]
            raise self._absent(missing, timeout) from None
        handshake = Handshake(self.identity, self.token, accepts=True)
        try:
            sock.settimeout(max(until - time.monotonic(), _RETRY_SECONDS))
            shake_hands(sock, handshake)
            name = "" if handshake.other is None else handshake.other.name
            if name not in self.names[self.rank + 1 :] or sock.recv(1) != _OPEN:
                raise RefusedError(f"{name or 'somebody'} is no member that connects here")
        except (OSError, FrameError) as error:
            if isinstance(error, RefusedError):
                with contextlib.suppress(OSError):
                    sock.sendall(b"".join(encode_document(Kind.REFUSED, {"message": str(error)})))
                self._refused = f" A connection was refused: {error}."
            sock.close()
            return
        before = self._sockets.pop(self.names.index(name), None)
        if before is not None:  # an earlier start of it
            before.close()
        self._sockets[self.names.index(name)] = sock

    def _absent(self, ranks: Sequence[int], timeout: float) -> TimeoutError:
        names = ", ".join(self.names[rank] for rank in ranks)
        return TimeoutError(
            f"{self.names[self.rank]} has waited {timeout:g} s for {names}.{self._refused} Start all members of the "
            "group with the same addresses, and see whether they have failed."
        )

    # --- after a loss -----------------------------------------------------------------------------------------------

    def has_ended(self, rank: int) -> bool:
        """Test whether a member's process has ended, or has closed its connections."""
        poller = select.poll()
        poller.register(self._sockets[rank], _ENDED)
        return bool(poller.poll(0))

    def again(self, names: Sequence[str], rank: int, timeout: float) -> Links:
        """Connect to some of the members once more.

        Args:
            names: theirs.
            rank: the number of this member among them.
            timeout: for how many seconds to wait for the others.
        """
        return Links(names, [self.address], rank, self.identity.incarnation, self.token, timeout)

    def cut(self, rank: int) -> None:
        """End the connection to a member that is lost, as if it had; any thread may call it."""
        with contextlib.suppress(OSError, KeyError):  # it has ended, or is this member's own
            self._sockets[rank].shutdown(socket.SHUT_RDWR)

    def survivors(self, members: Sequence[int]) -> list[int]:
        """Agree with all members that are left on who they are; waits until each of them has called this.

        The first of them counts the others. Sockets of this object show whose process has ended: so they stay open.

        Args:
            members: the ranks among which some were lost, in ascending order.

        Raises:
            TaskFailedError: the first one was lost.
        """
        if self.rank == members[0]:
            return self._counted(members[1:])
        says_at = self.says_at()
        while not self.has_ended(members[0]):
            try:
                with self._called_to_count() as sock:
                    if _read(sock, len(_LEFT)) != _LEFT:
                        raise ConnectionError("The first member does not count now.")
                    size = _PORT.unpack(_read(sock, _PORT.size))[0]
                    return [int(rank) for rank in _read(sock, size).split()]
            except (OSError, FrameError):
                time.sleep(_RETRY_SECONDS)  # it is still at a step, or has begun to count again
            if time.monotonic() >= says_at:
                says_at = float("inf")
                self.say([members[0]])
        raise task_failed(self.names[members[0]], "its connection was closed")

    def _called_to_count(self) -> socket.socket:
        host, port = split_address(self.address)
        sock = socket.create_connection((resolved(host), port), SAYS_SECONDS)
        try:
            handshake = Handshake(self.identity, self.token, accepts=False)
            shake_hands(sock, handshake)
            sock.settimeout(None)  # it waits for others
            sock.sendall(_COUNT)
        except BaseException:
            sock.close()
            raise
        return sock

    def _counted(self, others: Sequence[int]) -> list[int]:
        """Wait until each other member is here, or has ended; send those who are here their ranks."""
        says_at = self.says_at()
        with contextlib.ExitStack() as stack:
            here: dict[int, socket.socket] = {}
            host, port = split_address(self.address)
            listener = stack.enter_context(_listening(host, port))
            listener.settimeout(_RETRY_SECONDS)
            while True:
                absent = [rank for rank in others if rank not in here and not self.has_ended(rank)]
                if not absent:
                    break
                with contextlib.suppress(OSError, FrameError):  # nobody has come, or who was here has given up
                    sock = stack.enter_context(listener.accept()[0])
                    rank = self._rank_of_counted(sock)
                    if rank in others:
                        here[rank] = sock
                if time.monotonic() >= says_at:
                    says_at = float("inf")
                    self.say(absent)
            found = [self.rank, *sorted(rank for rank in here if not self.has_ended(rank))]
            text = " ".join(map(str, found)).encode()
            for sock in here.values():
                with contextlib.suppress(OSError):  # it is lost now: the group of these will notice
                    sock.sendall(_LEFT + _PORT.pack(len(text)) + text)
        return found

    def _rank_of_counted(self, sock: socket.socket) -> int:
        """Return the rank of the member that has called to be counted; -1 for whoever else has connected."""
        sock.settimeout(SAYS_SECONDS)
        handshake = Handshake(self.identity, self.token, accepts=True)
        shake_hands(sock, handshake)
        name = "" if handshake.other is None else handshake.other.name
        return self.names.index(name) if name in self.names and sock.recv(1) == _COUNT else -1

    # --- exchanging -------------------------------------------------------------------------------------------------

    def exchange(
        self,
        sends: Mapping[int, Sequence[Any]],
        receives: Mapping[int, Any],
        arrived: Callable[[int], None] | None = None,
    ) -> None:
        """Send buffers to members, and fill memory with what they send, all at once.

        Args:
            sends: for each rank, buffers of bytes to send in turn.
            receives: for each rank, writable memory, all of which is filled.
            arrived: called with a rank when its memory is filled.

        Raises:
            TaskFailedError: a member is gone. From then on every exchange fails with this error.
        """
        self.check()
        out = {rank: [memoryview(each) for each in buffers if len(each)] for rank, buffers in sends.items()}
        into = {rank: memoryview(target) for rank, target in receives.items()}
        says_at = self.says_at()
        while True:
            moved, lost = False, None
            try:
                for rank in [*out]:
                    moved |= self._send(rank, out)
                for rank in [*into]:
                    moved |= self._receive_from(rank, into, arrived)
            except TaskFailedError as error:
                lost = error
            if lost is not None:
                self._receive_rest(into, arrived)
                raise lost
            if not out and not into:
                return
            if not moved:
                self.wait(out, into)
                if time.monotonic() >= says_at:
                    says_at = float("inf")
                    self.say({*out, *into})

    def _receive_from(self, rank: int, into: dict[int, memoryview], arrived: Callable[[int], None] | None) -> bool:
        moved = self._receive(rank, into)
        if rank not in into and arrived is not None:
            arrived(rank)
        return moved

    def _receive_rest(self, into: dict[int, memoryview], arrived: Callable[[int], None] | None) -> None:
        """Take what members had sent before one was lost: it may be the reason, and `arrived` raises it."""
        lost, self._error = self._error, None
        try:
            for rank in [*into]:
                with contextlib.suppress(TaskFailedError):
                    self._receive_from(rank, into, arrived)
        finally:
            self._error = lost

    def swap_bytes(self, data: bytes, ranks: Sequence[int]) -> dict[int, bytearray]:
        """Exchange as many bytes with each of some members."""
        into = {rank: bytearray(len(data)) for rank in ranks}
        self.exchange({rank: [data] for rank in ranks}, into)
        return into

    def check(self) -> None:
        """Raise the error that ended this group, if one has."""
        if self._error is not None:
            raise self._error

    @property
    def has_lost(self) -> bool:
        """Test whether the loss of a member has ended this group."""
        return isinstance(self._error, TaskFailedError)

    @staticmethod
    def says_at() -> float:
        """Return the time from which on a wait that begins now says for whom it waits."""
        return time.monotonic() + SAYS_SECONDS

    def say(self, ranks: Collection[int]) -> None:
        """Log for whom this member waits."""
        _logger.warning(
            "%s has waited %g s for %s in a collective. They are there, but have not come so far.",
            self.names[self.rank],
            SAYS_SECONDS,
            ", ".join(self.names[rank] for rank in sorted(ranks)),
        )

    def _send(self, rank: int, out: dict[int, list[memoryview]]) -> bool:
        """Send what goes without waiting; return whether anything went."""
        left = out[rank]
        moved = False
        while left:
            count = self.send_some(rank, left[:_MOST_BUFFERS])
            if not count:
                return moved
            moved = True
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if count:
                left[0] = left[0][count:]
        del out[rank]
        return True

    def _receive(self, rank: int, into: dict[int, memoryview]) -> bool:
        """Take what is there; return whether anything was."""
        moved = False
        while len(into[rank]):
            count = self.receive_some(rank, into[rank])
            if not count:
                return moved
            moved = True
            into[rank] = into[rank][count:]
        del into[rank]
        return True

    def send_some(self, rank: int, buffers: Sequence[memoryview]) -> int:
        """Send what goes without waiting, of at least one byte; return how many bytes went.

        Raises:
            TaskFailedError: the member is gone.
        """
        try:
            return self._sockets[rank].sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(rank, error.strerror or "its connection failed")

    def receive_some(self, rank: int, memory: memoryview) -> int:
        """Take what is there, at most what the memory holds; return how many bytes came.

        Raises:
            TaskFailedError: the member is gone.
        """
        try:
            count = self._sockets[rank].recv_into(memory)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(rank, error.strerror or "its connection failed")
        if not count:
            self._lose(rank, "its connection was closed")
        return count

    def wait(
        self,
        out: Collection[int],
        into: Collection[int],
        members: Sequence[int] = (),
        milliseconds: int = _LOOK_MILLISECONDS,
    ) -> bool:
        """Wait for a while; return whether something can be sent or received.

        Args:
            out, into: the ranks to which there is something to send, or from which something is to come.
            members: other ranks that may not end meanwhile.
            milliseconds: for how long.

        Raises:
            TaskFailedError: one of `members` is gone.
        """
        poller = select.poll()
        events = {rank: _ENDED for rank in members if rank != self.rank}
        for rank in {*out, *into}:
            events[rank] = (select.POLLOUT if rank in out else 0) | (select.POLLIN if rank in into else 0)
        ranks = {self._sockets[rank].fileno(): rank for rank in events}
        for rank, wanted in events.items():
            poller.register(self._sockets[rank], wanted)
        found = poller.poll(milliseconds)
        for descriptor, _ in found:
            if ranks[descriptor] not in out and ranks[descriptor] not in into:
                self._lose(ranks[descriptor], "its connection was closed")
        return bool(found)

    def _lose(self, rank: int, reason: str) -> NoReturn:
        # The sockets stay open until this process ends or closes the group: others see who was lost, not who noticed.
        name = self.names[rank]
        text = f"{name} has failed, or its script has ended: {reason}. Collectives need all members of the group."
        self._error = TaskFailedError(text, name, reason, None)
        raise self._error

    def wait_for(self, rank: int) -> None:
        """Wait, for any time, until a member begins a collective, or is gone."""
        while not self.wait((), (rank,)):
            pass

    def close(self, reason: str = "") -> None:
        """End all connections; collectives that come later fail, with the reason if one is given."""
        for sock in self._sockets.values():
            sock.close()
        if self._error is None or (reason and self.has_lost):
            self.refuse(reason)

    def refuse(self, reason: str, kind: type[RuntimeError] = RuntimeError) -> None:
        """Have collectives that come later fail, by an error of a kind, and name what has ended the group."""
        text = "The group of processes is closed. Collectives run while it is open."
        if reason:
            text = f"The group of processes is closed by an earlier error: {reason}"
        self._error = kind(text)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in resolved(host) else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((resolved(host), port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"Can't listen at {joined_address(host, port)} ({error.strerror or error}): another process uses the port, "
            "or this machine has no such address. End that process, or give the task another address.",
        ) from None
    except BaseException:
        listener.close()
        raise
    return listener


def _read(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes from a socket that waits.

    Raises:
        ConnectionError: it ends before.
    """
    found = b""
    while len(found) < count:
        more = sock.recv(count - len(found))
        if not more:
            raise ConnectionResetError("a member was gone before all had found each other")
        found += more
    return found


def shake_hands(sock: socket.socket, handshake: Handshake) -> None:
    """Prove to each other who is there.

    Raises:
        RefusedError: one side can't.
        ConnectionError: the other side is gone.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    decoder = Decoder()
    for buffer in handshake.begin():
        sock.sendall(buffer)
    while handshake.other is None:
        count = sock.recv_into(decoder.buffer())
        if not count:
            raise ConnectionResetError("the connection was closed by the other side")
        for frame in decoder.advance(count):
            for buffer in handshake.take(frame):
                sock.sendall(buffer)


__all__ = ["Links", "shake_hands"]
