"""``launch --nnodes MIN:MAX --rdzv HOST:PORT``: launchers of several hosts that start the tasks of one cluster.

The launcher that can listen at the address is the first host; worker 0, the chief, runs there. All launchers, also that
one, connect, and do what `Rounds` decides. Without ps tasks the first launcher has the membership service, too, which
decides which workers go on after a loss. If the first host is gone, the run ends.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence

from ..cluster import is_loopback, joined_address, resolved, split_address
from ..collectives.links import shake_hands
from ..collectives.membership_service import MembershipServer
from ..environment import MEMBERSHIP, chief_of_launcher, note_chief, note_ended_workers
from ..token import job_token
from ..transport.connections import Handshake, Identity, RefusedError
from ..transport.wire import FrameError
from .ends import Process
from .processes import Launch
from .rounds import Counts, Message, Rounds

_POLL_SECONDS = 0.1
_HANDSHAKE_SECONDS = 10.0
_LEAVE_SECONDS = 5.0  # how long the launchers have to read what was said last
_SAY_SECONDS = 1.0  # how long who ends waits for room for what it still says: a host that is stopped reads nothing
_NAME = "a launcher"


class Rendezvous:
    """Listens for the launchers of all hosts, in threads of its own, until it is closed.

    Args:
        listener: a socket that listens.
        token: that of the job.
        rounds: decides.
    """

    def __init__(self, listener: socket.socket, token: bytes, rounds: Rounds) -> None:
        self._listener = listener
        self._token = token
        self._rounds = rounds
        self._events: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._sockets: dict[int, socket.socket] = {}
        self._is_closed = False
        self._readers: list[threading.Thread] = []  # the accepting thread alone adds to them
        self._deciding = threading.Thread(target=self._decide, daemon=True)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._deciding.start()
        self._accepting.start()

    def end(self) -> None:
        """Decide and say nothing more: the launchers find that the first one is gone.

        A message on its way has a second to go out. Then the connections end, which wakes the thread that sends it.
        """
        self._is_closed = True
        self._deciding.join(_SAY_SECONDS)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listener.close()
        self._accepting.join()
        self._shut(socket.SHUT_WR)

    def close(self) -> None:
        """Listen no more, and end all connections, once all that was decided is said and the launchers have read it."""
        # A connection that is closed while something comes is reset, and what was said last may be lost. So this side
        # ends what it says, and the launchers, which have read to the end, close the connections.
        self.end()
        self._deciding.join()
        until = time.monotonic() + _LEAVE_SECONDS
        for thread in self._readers:
            thread.join(max(until - time.monotonic(), 0.0))
        self._shut(socket.SHUT_RDWR)
        for thread in self._readers:
            thread.join()
        for sock in self._sockets.values():
            sock.close()

    def _shut(self, how: int) -> None:
        for sock in list(self._sockets.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(how)

    def _accept(self) -> None:
        host = 0
        while not self._is_closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._listen, args=(sock, host), daemon=True)
            self._readers.append(thread)
            thread.start()
            host += 1

    def _listen(self, sock: socket.socket, host: int) -> None:
        """Read what one launcher says, once it has proved that it has the token."""
        try:
            sock.settimeout(_HANDSHAKE_SECONDS)
            shake_hands(sock, Handshake(Identity(_NAME, secrets.randbits(63)), self._token, accepts=True))
            sock.settimeout(None)
        except (OSError, FrameError):
            sock.close()
            return
        self._sockets[host] = sock
        if self._is_closed:  # `close` has ended those that were there before
            with contextlib.suppress(OSError):  # it is gone
                sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, ValueError), sock.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._events.put((host, json.loads(line)))
        self._events.put((host, None))

    def _decide(self) -> None:
        rounds = self._rounds
        while not self._is_closed:
            try:
                host, message = self._events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                rounds.look()
            else:
                _take(rounds, host, message)
            while rounds.sent:
                host, message = rounds.sent.pop(0)
                with contextlib.suppress(OSError):  # who is gone is heard of by its reader
                    _say(self._sockets[host], message)


def _take(rounds: Rounds, host: int, message: Message | None) -> None:
    if message is None:
        rounds.left(host)
    elif "leaves" in message:
        rounds.leaves(host)
    elif "ready" in message:
        ready = message["ready"]
        rounds.ready(host, ready["worker"], ready["ps"], message["leads"], message.get("membership", ""))
    elif "failed" in message:
        rounds.failed(host, message["round"], message["failed"], message["status"])
    elif "ended well" in message:
        rounds.ended_well(host, message["round"], message["ended well"])
    elif "chief" in message:
        rounds.leads(host, message["round"], message["chief"])
    elif "ended" in message:
        rounds.ended(host, message["ended"], message.get("failed workers", ()))


def _say(sock: socket.socket, message: Message) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")


def _say_soon(sock: socket.socket, message: Message) -> None:
    """Say something if there is room for it within a while; who reads the same socket goes on to wait."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_WRITE)
        if selector.select(_SAY_SECONDS):
            sock.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)


class HostLaunch(Launch):
    """The processes of this host, in a run of several hosts.

    Args:
        workers, ps: how many processes this host has of each.
        script: the script and its arguments.
        address: where the first launcher listens.
        counts: how many hosts there have to be.
        max_restarts: how often, within an hour, all processes are started again because one has failed.
    """

    def __init__(
        self, workers: int, ps: int, script: Sequence[str], address: str, counts: Counts, max_restarts: int = 0
    ) -> None:
        self._host, self._port = split_address(address)
        self._counts_of_hosts = counts
        self._token = job_token(None, is_loopback(self._host))
        super().__init__(workers, ps, script, max_restarts)
        self._environment["ANABRANCH_TOKEN"] = self._token.decode()
        self._rendezvous: Rendezvous | None = None
        self._socket: socket.socket | None = None
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._first = {"worker": 0, "ps": 0}
        self._round = 0
        self._reported: set[Process] = set()  # that have ended
        self._noted_chief: int | None = None  # the worker that took over last, as this launcher has it
        self._reported_chiefs: list[int] = []  # those that this launcher has reported, and that have not come back
        self._said: Message = {}  # of the end of all workers

    def _start_all(self) -> None:
        """Connect to the first launcher; processes are started when all hosts are there."""
        until = time.monotonic() + self._counts_of_hosts.patience
        while self._socket is None:
            if self._rendezvous is None:
                self._listen_if_first()
            self._socket = self._connected(until)
        threading.Thread(target=_read, args=(self._socket, self._messages), daemon=True).start()
        self._say_ready()

    def _listen_if_first(self) -> None:
        try:
            is_wide = ":" in resolved(self._host)
            listener = socket.create_server(
                (resolved(self._host), self._port),
                family=socket.AF_INET6 if is_wide else socket.AF_INET,
            )
        except OSError:  # it is an address of another host, or another launcher of this one was first
            return
        rounds = Rounds(self._counts_of_hosts, self.restarts, survivors=lambda: self._membership)
        self._rendezvous = Rendezvous(listener, self._token, rounds)

    def _connected(self, until: float) -> socket.socket | None:
        """Connect to the address; None if no launcher answers there yet.

        Raises:
            TimeoutError: none does, for too long.
            RefusedError: one of the launchers does not have the token, or who answers is not a launcher.
        """
        try:
            return self._shaken()
        except RefusedError:
            raise
        except FrameError as error:
            raise RefusedError(f"who answers at {self._address} is no launcher: {error}") from None
        except OSError:  # nobody is there yet, or who was there has ended: another one may come
            if time.monotonic() >= until:
                raise TimeoutError(f"no launcher answers at {self._address}") from None
        time.sleep(_POLL_SECONDS)
        return None

    def _shaken(self) -> socket.socket:
        """Connect to the address; both sides have proved that they have the token."""
        sock = socket.create_connection((resolved(self._host), self._port), _HANDSHAKE_SECONDS)
        try:
            shake_hands(sock, Handshake(Identity(_NAME, secrets.randbits(63)), self._token, accepts=False))
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        return sock

    @property
    def _address(self) -> str:
        return joined_address(self._host, self._port)

    def _say_ready(self) -> None:
        assert self._socket is not None
        workers, ps = self._counts
        own = self._socket.getsockname()[0]
        ports = self._reserved_ports(own)
        found = {
            job: [joined_address(own, next(ports)) for _ in range(count)]
            for job, count in (("ps", ps), ("worker", workers))
        }
        ready: Message = {"ready": found, "leads": self._rendezvous is not None}
        if self._rendezvous is not None and not ps:  # where the other hosts reach this one
            self._membership = MembershipServer(self._token, own)
            ready["membership"] = self._membership.address
        self._say(ready)

    def wait(self) -> int:
        """Do what is decided until the run ends; return the exit status."""
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    message = self._messages.get(timeout=_POLL_SECONDS)
                    if message is None:
                        print(f"anabranch launch: {self._first_is_gone}", file=sys.stderr)
                        return 1
                    if "exit" in message:
                        if message["why"]:
                            print(f"anabranch launch: {message['why']}.", file=sys.stderr)
                        return int(message["exit"])
                    self._do(message)
                self._report()
        except KeyboardInterrupt:
            print("anabranch launch: interrupted.", file=sys.stderr)
            return 130

    @property
    def _first_is_gone(self) -> str:
        return (
            f"the first host, {self._address}, is gone, whose launcher starts and ends all others: the run ends here. "
            "Start it again on all hosts: with BackupAndRestore training goes on from the last backup."
        )

    def _do(self, message: Message) -> None:
        if "stop" in message:
            print(f"anabranch launch: {message['stop']}; all tasks are started again.", file=sys.stderr, flush=True)
            self._end_all()
            self._round = 0
            self._say_ready()
            return
        if "start" in message:
            self._start_round(message)
            return
        if "chief" in message:
            self._take_chief(message["chief"])
        elif "workers ended" in message:
            note_ended_workers(str(self._chief_file), message["workers ended"])
        else:
            print(f"anabranch launch: {message['why' if 'again' in message else 'say']}.", file=sys.stderr, flush=True)
        if "again" in message and self._round:
            self._start_again(message["again"])

    def _take_chief(self, chief: int) -> None:
        """Note who has taken over, unless a worker of this host has done so since.

        All launchers get reports in the order in which the first one gets them. So what comes before a report of this
        launcher comes back is older than that report.
        """
        self._report_chief()
        if not self._reported_chiefs:
            self._noted_chief = chief
            note_chief(str(self._chief_file), chief)
        elif chief == self._reported_chiefs[0]:
            del self._reported_chiefs[0]

    def _report_chief(self) -> None:
        """Report a worker of this host that has taken over."""
        chief = chief_of_launcher(self._environment)
        if chief is not None and chief != self._noted_chief:
            self._noted_chief = chief
            self._reported_chiefs.append(chief)
            self._say({"chief": chief, "round": self._round})

    def _start_round(self, message: Message) -> None:
        self.cluster = message["cluster"]
        self._first, self._round = message["first"], message["start"]
        self._reported, self._said, self._noted_chief, self._reported_chiefs = set(), {}, None, []
        self._environment.pop(MEMBERSHIP, None)
        if message["membership"]:
            self._environment[MEMBERSHIP] = message["membership"]
        workers, ps = self._counts
        self._chief_file.unlink(missing_ok=True)
        note_ended_workers(str(self._chief_file), ())
        self.ps += [self._started_ps(self._first["ps"] + number) for number in range(ps)]
        self.workers += [self._started_worker(self._first["worker"] + number) for number in range(workers)]

    def _start_again(self, name: str) -> None:
        """Start a process again; without ps tasks a worker joins those that go on."""
        self._said = {}
        job, _, index = name.partition(" ")
        number = int(index)
        if job == "ps":
            self.ps[number - self._first["ps"]] = self._started_ps(number)
        else:
            again = self._started_worker(number, joins=not self.cluster["ps"])
            self.workers[number - self._first["worker"]] = again

    def _report(self) -> None:
        """Report who leads, each process that has ended, in the order of their ends, and that all workers have."""
        if not self._round:
            return
        self._report_chief()
        for job, number, process in self._in_order_of_end():
            if process in self._reported:
                continue
            self._reported.add(process)
            place = self._first[job] + number
            if process.returncode:
                self._say({"failed": f"{job} {place}", "status": process.returncode, "round": self._round})
            elif job == "worker":
                self._say({"ended well": place, "round": self._round})
        if any(worker not in self._ends.times for worker in self.workers):
            return
        first = self._first["worker"]
        failed = [first + number for number, worker in enumerate(self.workers) if worker.returncode]
        said: Message = {"ended": self._round, "failed workers": failed}
        if said != self._said:
            self._said = said
            self._say(said)

    def _say(self, message: Message) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # the reader finds that the first host is gone
            _say(self._socket, message)

    def __exit__(self, *exception: object) -> None:
        """Say that this host leaves, end its processes, and then the connection.

        A second signal may interrupt each of these; the others are done all the same.
        """
        try:
            self._say_that_it_leaves()
        finally:
            try:
                super().__exit__(*exception)
            finally:
                self._close_connections()

    def _say_that_it_leaves(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.end()
        elif self._socket is not None:
            with contextlib.suppress(OSError):  # the first host is gone
                _say_soon(self._socket, {"leaves": True})

    def _close_connections(self) -> None:
        try:
            if self._rendezvous is not None:
                self._rendezvous.close()
        finally:
            if self._socket is not None:
                self._socket.close()


def _read(sock: socket.socket, messages: queue.SimpleQueue[Message | None]) -> None:
    """Read all that the first launcher says, then None; the connection ends with it."""
    with contextlib.suppress(OSError, ValueError), sock.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            messages.put(json.loads(line))
    messages.put(None)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def hosts_of(text: str) -> Counts:
    """Read how many hosts a run has: ``4``, or ``1:4`` for at least 1 and at most 4.

    Raises:
        ValueError: it can't be read.

    >>> hosts_of("1:4").most
    4
    """
    least, colon, most = text.partition(":")
    try:
        found = Counts(int(least), int(most if colon else least))
    except ValueError:
        raise ValueError(f"--nnodes {text!r}: expected a number, or MIN:MAX.") from None
    if not 1 <= found.least <= found.most:
        raise ValueError(f"--nnodes {text!r}: at least 1, and MIN at most MAX.")
    return found


def run_on_hosts(workers: int, ps: int, script: Sequence[str], hosts: str, address: str, max_restarts: int) -> int:
    """Run a script on several hosts; return the exit status."""
    try:
        launch = HostLaunch(workers, ps, script, address, hosts_of(hosts), max_restarts)
    except ValueError as error:
        print(f"anabranch launch: {error}", file=sys.stderr)
        return 2
    try:
        with launch:
            return launch.wait()
    except (TimeoutError, RefusedError) as error:
        print(f"anabranch launch: {error}.", file=sys.stderr)
        return 1


__all__ = ["HostLaunch", "Rendezvous", "hosts_of", "run_on_hosts"]
