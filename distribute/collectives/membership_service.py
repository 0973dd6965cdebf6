"""`MembershipServer` and `Seat`: the service that a launcher runs for its workers, and a worker's connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Collection
from typing import Protocol

from ...engine.queues.errors import CancelledError
from ..cluster import joined_address, resolved, split_address
from ..environment import MEMBERSHIP
from ..transport.connections import Handshake, Identity
from ..transport.wire import FrameError
from .links import Links, shake_hands
from .membership import SILENT_TICKS, TICK_SECONDS, Membership, Message

BEAT_SECONDS = 1.0  # between two messages of a worker that has nothing to say
_HANDSHAKE_SECONDS = 10.0
_NAME = "a launcher"


class OverError(Exception):
    """The training is over: the members of the group have all results. Whoever joins late gets what they have left."""


class MembershipServer:
    """Decides for the workers of a launcher which of them form a group, in threads of its own, until it is closed.

    Args:
        token: that of the job.
        host: the name or address at which it listens.
        silent_ticks: see `Membership`.

    Attributes:
        address: where workers connect.
        silent_ticks: as given, for groups that begin from now on.
    """

    def __init__(self, token: bytes, host: str = "localhost", silent_ticks: int = SILENT_TICKS) -> None:
        address = resolved(host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.address = joined_address(host, self._listener.getsockname()[1])
        self._token = token
        self.silent_ticks = silent_ticks
        self._groups: dict[str, Membership] = {}  # by the names of all workers
        # By these and the rank, until all is done that a worker has said.
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._events: queue.SimpleQueue[tuple[str, int, Message | None] | None] = queue.SimpleQueue()
        self._accepted: list[socket.socket] = []
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()  # of the decisions
        self._has_decided = threading.Condition(self._lock)
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, name="anabranch membership", daemon=True)
        self._deciding = threading.Thread(target=self._decide, name="anabranch membership", daemon=True)
        self._accepting.start()
        self._deciding.start()

    def silent(self) -> set[int]:
        """Return the ranks of workers that were declared lost while their connections were open."""
        with self._lock:
            return {
                rank
                for key, group in self._groups.items()
                for rank in group.lost
                if (key, rank) in self._sockets  # the reader has not seen its end
            }

    def expect(self, rank: int) -> None:
        """Take note that a worker is started again."""
        with self._lock:
            for group in self._groups.values():
                group.expected.add(rank)

    def expects(self, rank: int) -> bool:
        """Test whether a worker that was started again has not joined the others so far."""
        with self._lock:
            return any(rank in group.expected for group in self._groups.values())

    def leader(self) -> int | None:
        """Return the rank of the worker that leads the latest group, or has led it at last; None for none."""
        with self._lock:
            return next((group.members[0] for group in self._groups.values() if group.members), None)

    def goes_on_without(self, ranks: Collection[int]) -> bool:
        """Test whether a training is under way that others go on with, now that processes of workers have ended."""
        with self._has_decided:
            ended = [key for key in self._sockets if key[1] in ranks]
            for key in ended:  # a process that it has started may hold its connection open
                with contextlib.suppress(OSError):
                    self._sockets[key].shutdown(socket.SHUT_RD)
            self._has_decided.wait_for(
                lambda: self._is_closed or not any(key in self._sockets for key in ended), _HANDSHAKE_SECONDS
            )
            return not self._is_closed and any(group.goes_on_without(ranks) for group in self._groups.values())

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._is_closed = True
        self._events.put(None)
        self._deciding.join()
        with self._has_decided:
            self._has_decided.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listener.close()
        self._accepting.join()
        for sock in self._accepted:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._readers:
            thread.join()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._accepted.append(sock)
            thread = threading.Thread(target=self._listen, args=(sock,), name="anabranch membership", daemon=True)
            self._readers.append(thread)
            thread.start()

    def _listen(self, sock: socket.socket) -> None:
        """Read what one worker says, once it has proved that it has the token."""
        with sock:
            try:
                sock.settimeout(_HANDSHAKE_SECONDS)
                shake_hands(sock, Handshake(Identity(_NAME, secrets.randbits(63)), self._token, accepts=True))
                sock.settimeout(None)
            except (OSError, FrameError):
                return
            with contextlib.suppress(OSError, ValueError), sock.makefile("r", encoding="utf-8") as lines:
                first = json.loads(next(lines, "null"))
                if first is None:
                    return
                key, rank = str(first["names"]), int(first["rank"])
                with self._lock:
                    is_first = self._sockets.setdefault((key, rank), sock) is sock
                if not is_first:
                    _say(sock, {"refused": "another start of it is in the group", "latest": 0})
                    return
                try:
                    for line in lines:
                        self._events.put((key, rank, json.loads(line)))
                finally:
                    self._events.put((key, rank, None))

    def _decide(self) -> None:
        due = time.monotonic() + TICK_SECONDS
        while not self._is_closed:
            event = None
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=max(due - time.monotonic(), 0.0))
            with self._lock:
                if event is not None:
                    key, rank, message = event
                    _take(self._groups.setdefault(key, Membership(self.silent_ticks)), rank, message)
                    if message is None:  # another start of the worker may come from here on
                        del self._sockets[key, rank]
                        self._has_decided.notify_all()
                if time.monotonic() >= due:  # once, however late: while this process was stopped, workers were, too
                    due = time.monotonic() + TICK_SECONDS
                    for group in self._groups.values():
                        group.tick()
                sent = [(key, *group.sent.pop(0)) for key, group in self._groups.items() for _ in [*group.sent]]
                found = [(self._sockets.get((key, rank)), message) for key, rank, message in sent]
            for sock, message in found:
                if sock is not None:
                    with contextlib.suppress(OSError):  # who is gone is heard of by its reader
                        _say(sock, message)


def _take(group: Membership, rank: int, message: Message | None) -> None:
    if message is None:
        group.gone(rank)
        return
    if "begin" in message:
        group.begin(rank, message["begin"])
    elif "join" in message:
        group.join(rank, message["join"])
        return  # it may be in no group
    group.heard(rank)
    if "count" in message:
        group.count(rank, message["count"], message["admits"])
    elif "end" in message:
        group.end(rank, message["end"], message["note"])
    elif "fail" in message:
        group.fail(rank, message["fail"], message["why"])
    elif "check" in message:
        group.check(rank, message["check"])
    elif "takes part" in message:
        group.take_part(rank, message["takes part"])


def _say(sock: socket.socket, message: Message) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")


class Contacts(Protocol):
    """The names and addresses by which a worker forms groups with others, such as `Links` that it had before."""

    names: list[str]
    addresses: list[str]
    rank: int
    identity: Identity
    token: bytes


class Seat:
    """The place of a worker in its group, as a `MembershipServer` has it.

    Args:
        address: of the server.
        contacts: all workers, of which later groups are formed.
        question: what this worker asks first, before it says that it is there.

    Attributes:
        names: those of all workers, by rank.
        rank: of this one.
        number: of the group in which it is.
        admits: whether this worker leads, and gives all state to those who join the next group.
        has_joiners: set while workers wait to join a group that this one leads.

    Raises:
        OSError: the server can't be reached.
    """

    def __init__(self, address: str, contacts: Contacts, question: Message | None = None) -> None:
        self.names = contacts.names
        self.rank = contacts.rank
        self.number = 0
        self.admits = False
        self.has_joiners = threading.Event()
        self._contacts = contacts
        self._links = contacts if isinstance(contacts, Links) else None
        self._lost: set[str] = set()
        self._refused = ""
        self._is_closed = False
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        host, port = split_address(address)
        self._socket = socket.create_connection((resolved(host), port), _HANDSHAKE_SECONDS)
        try:
            shake_hands(self._socket, Handshake(contacts.identity, contacts.token, accepts=False))
            self._socket.settimeout(None)
            self._say({"names": " ".join(self.names), "rank": self.rank})
            if question is not None:
                self._say(question)
        except BaseException:
            self._socket.close()
            raise
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name="anabranch membership", daemon=True)
            for target in (self._read, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_refused(self) -> bool:
        """Test whether this worker is in no group any more, or the launcher is gone."""
        return bool(self._refused)

    # --- what this worker asks --------------------------------------------------------------------------------------

    def begin(self, training: int) -> None:
        """Begin a training in the group; all its members call it before one may be lost.

        Args:
            training: its number, which all members have in common.

        Raises:
            CancelledError: this worker is refused, or the launcher is gone.
        """
        self.number = self._asked({"begin": training}, "begun")["begun"]

    def survivors(self, members: object) -> list[int]:
        """Wait until all workers that are left have called this; return the ranks of the group, the leader's first.

        Args:
            members: the ranks of the group before; the server has them, too.

        Raises:
            OverError: the training is over.
            CancelledError: this worker was declared lost, or the launcher is gone, or a worker ends the training.
        """
        return self._group_of(self._asked({"count": self.number, "admits": self.admits}, "group", "over"))

    def joined(self, question: Message | None) -> list[int]:
        """Wait until the others take this worker in; return the ranks of the group, the leader's first.

        Args:
            question: by which it asks; None if it has asked.

        Raises:
            OverError: the training is over.
            CancelledError: no worker has the state, or the launcher is gone, or a worker has ended the training.
        """
        return self._group_of(self._asked(question, "group", "over"))

    def _group_of(self, answer: Message) -> list[int]:
        if "over" in answer:
            raise OverError(answer.get("note", ""))
        self.number = answer["group"]
        return list(answer["members"])

    def takes_part(self) -> bool:
        """Have this worker count from now on, since it has all state; return whether the others are still there."""
        return "takes part" in self._asked({"takes part": self.number}, "takes part", "asks again")

    def check(self) -> None:
        """Check that this worker leads the group.

        Raises:
            CancelledError: it does not, or the launcher is gone.
        """
        self._asked({"check": self.number}, "leads")

    def end(self, note: str = "") -> None:
        """End a training, of which all other members have all results.

        Args:
            note: what workers get that come to this training later.
        """
        with contextlib.suppress(OSError):  # the launcher is gone
            self._say({"end": self.number, "note": note})

    def fail(self, why: str) -> None:
        """End the training of all; nothing happens if it is over."""
        if not self._refused:
            with contextlib.suppress(OSError):
                self._say({"fail": self.number, "why": f"{self.names[self.rank]} has ended the training: {why}"})

    def again(self, names: list[str], rank: int, timeout: float) -> Links:
        """Connect to some of the workers once more.

        Args:
            names: theirs, the leader's first.
            rank: the number of this member among them.
            timeout: for how many seconds to wait for the others.
        """
        of = self._contacts
        address = of.addresses[self.names.index(names[0])]
        links = Links(names, [address], rank, of.identity.incarnation, of.token, timeout)
        with self._lock:
            self._links = links
            for name in self._lost.intersection(names):
                links.cut(names.index(name))
        return links

    def close(self) -> None:
        """Give up the place."""
        self._is_closed = True
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _asked(self, question: Message | None, *names: str) -> Message:
        """Ask the server; return the answer that has one of these names.

        Args:
            question: what is asked; None if it was.
            names: those of answers.

        Raises:
            CancelledError: this worker is refused, or the launcher is gone, or a worker has ended the training.
        """
        if not self._refused and question is not None:
            with contextlib.suppress(OSError):  # the reader sees the end, and says so
                self._say(question)
        while not self._refused:
            answer = self._answers.get()
            if any(name in answer for name in names):
                return answer
        raise CancelledError(self._refused)

    # --- threads ----------------------------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        with self._lock:
            _say(self._socket, message)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._say({})

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._hear(json.loads(line))
        if not self._refused:
            self._refused = (
                "The launcher is gone, whose membership service decides who goes on after a loss. Start the training "
                "again: with BackupAndRestore it goes on from the last backup."
            )
        self._answers.put({})

    def _hear(self, message: Message) -> None:
        if "refused" in message:
            self._refused = (
                f"{self.names[self.rank]} no longer takes part in the training: {message['refused']}. The other "
                f"workers of group {self.number} go on without it, and what it does from here on does not count. Start "
                "all workers again for the next training."
            )
            self._cut_all()
            self._answers.put({})
        elif "failed" in message:
            self._refused = message["failed"]
            self._answers.put({})
        elif "lost" in message:
            with self._lock:
                name = self.names[message["lost"]]
                self._lost.add(name)
                if self._links is not None and name in self._links.names:
                    self._links.cut(self._links.names.index(name))
        elif "joins" in message:
            self.has_joiners.set()
        else:
            if "group" in message:  # of those who were lost before some may have joined it
                self.has_joiners.clear()
                self._lost.difference_update(self.names[rank] for rank in message["members"])
            self._answers.put(message)

    def _cut_all(self) -> None:
        with self._lock:
            if self._links is not None:
                for rank in range(len(self._links.names)):
                    self._links.cut(rank)


def address_of_service() -> str:
    """Return the address that the launcher has named; "" for none."""
    return os.environ.get(MEMBERSHIP, "")


__all__ = ["Contacts", "MembershipServer", "OverError", "Seat", "address_of_service"]
