"""`Rounds`: which hosts take part in a run, without sockets and clocks of its own.

A *round* is one start of all processes by the hosts that are there. When a host joins or leaves, or a process fails,
the round ends everywhere, and the next one begins with the hosts that are there then. So does torchrun.

The loss of a process has the same effects as on one host:

- With ps tasks it is started again, alone; if the chief has failed by itself all are. Without them a worker is, if the
  membership service of the first host says that others go on without it; if not all are.
- If no restarts are left the others go on, as long as there is a chief.

Processes of a host that is shut down end before it is gone, and those of other hosts may fail because of it. So what
is to be started again waits a while: if a host is gone by then, no restarts are used up for that. A launcher that ends
in order says so before its processes end: then it is waited for, as long as these have to end. Failures of ps tasks
do not wait for it: no worker causes them.

So that worker processes find what they find on one host, all launchers are notified of who is the chief, and which
workers have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from ...engine.common.quick_dataclass import dataclass
from ..restarts import Restarts
from .ends import END_SECONDS, described_end

GRACE_SECONDS = 1.0  # in which a host that is lost is found to be why a process has failed
LEAVE_SECONDS = END_SECONDS + GRACE_SECONDS  # in which a host that has said that it leaves is gone
Message = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """The hosts that a run wants.

    Attributes:
        least, most: how many.
        last_call: for how many seconds a round waits for more than the least.
        patience: for how many it waits for these.
    """

    least: int
    most: int
    last_call: float = 5.0
    patience: float = 600.0


@dataclass(frozen=True)
class Failure:
    """A process that has failed, about which nothing is decided so far.

    Attributes:
        time: when.
        host: the number of its host.
        name, status: of the process.
        is_chief: whether it was the chief.
        is_alone: whether it can be started again alone.
    """

    time: float
    host: int
    name: str
    status: int
    is_chief: bool
    is_alone: bool

    @property
    def job(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def index(self) -> int:
        return int(self.name.partition(" ")[2])

    @property
    def what(self) -> str:
        return described_end(self.name, self.status)


class Survivors(Protocol):
    """Says which workers go on after a loss; see `MembershipServer`."""

    def goes_on_without(self, ranks: Collection[int]) -> bool: ...

    def expects(self, rank: int) -> bool: ...

    def expect(self, rank: int) -> None: ...

    def leader(self) -> int | None: ...


class Rounds:
    """Decides when rounds begin and end.

    Args:
        counts: how many hosts there have to be.
        restarts: counts the rounds that end because a process has failed.
        clock: gives the time, in seconds.
        survivors: gives the membership service of the round; None where there is none.

    Attributes:
        sent: the messages to be sent, for each the host's number and the message.
        status: the exit status, once the run has ended.
    """

    def __init__(
        self,
        counts: Counts,
        restarts: Restarts,
        clock: Callable[[], float] = time.monotonic,
        survivors: Callable[[], Survivors | None] = lambda: None,
    ) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.status: int | None = None
        self._counts = counts
        self._restarts = restarts
        self._clock = clock
        self._survivors = survivors
        self._membership = ""  # the address of the service
        self._ranks: dict[int, range] = {}  # of the workers of each host in the round
        self._with_ps: set[int] = set()  # the hosts in the round that have ps tasks
        self._noted_chief = 0  # the worker that has taken over last
        self._lost: set[int] = set()  # workers that have failed, and are not started again
        self._well: set[int] = set()  # those that have ended well
        self._first: tuple[str, int] | None = None  # what has failed first and was not started again, and its status
        self._addresses: dict[int, dict[str, list[str]] | None] = {}  # of hosts that wait for a round; None in one
        self._leader = -1
        self._round = 0
        self._running: list[int] = []
        self._ended: dict[int, set[int]] = {}  # hosts all of whose workers have ended, with those that have failed
        self._failures: list[Failure] = []  # in their order
        self._leaving: dict[int, float] = {}  # hosts that end their processes, and are gone then; since when
        self._waits_since = self._enough_since = clock()

    # --- what hosts say ---------------------------------------------------------------------------------------------

    def ready(self, host: int, worker: list[str], ps: list[str], leads: bool = False, membership: str = "") -> None:
        """Take note that a host waits for a round, with addresses for its tasks there.

        Args:
            host: its number.
            worker, ps: the addresses.
            leads: whether it is the first host, without which no round begins.
            membership: the address of that one's membership service.
        """
        if leads:
            self._leader, self._membership = host, membership
        self._addresses[host] = {"ps": ps, "worker": worker}
        if self._running and host not in self._running and len(self._running) < self._counts.most and not self._over:
            self._end_round("a host joins")
        self.look()

    def left(self, host: int) -> None:
        """Take note that a host is gone."""
        self._go_on_without(host)
        self.look()

    def _go_on_without(self, host: int) -> None:
        self._addresses.pop(host, None)
        self._leaving.pop(host, None)
        if host in self._running and self.status is None:
            if self._goes_on_without_host(host):
                self._failures = [failure for failure in self._failures if failure.host != host]
            else:
                self._end_round(f"host {host} is gone", host)

    def leaves(self, host: int) -> None:
        """Take note that a host ends its processes. It is gone at once, unless its workers may leave in order."""
        if host not in self._running or (host in self._with_ps and self._chief not in self._well):
            self.left(host)
        else:
            self._leaving[host] = self._clock()

    def failed(self, host: int, number: int, name: str, status: int) -> None:
        """Take note that a process has failed, in a round."""
        if self._is_of_round(host, number):
            failure = self._failure(host, name, status)
            waits = bool(self._failures) or self._may_restart
            if waits or not self._goes_on(failure):
                self._failures.append(failure)
        self.look()

    def ended_well(self, host: int, number: int, rank: int) -> None:
        """Take note that a worker has ended well, in a round."""
        if self._is_of_round(host, number):
            self._well.add(rank)
            self._note_ended()

    def ended(self, host: int, number: int, failed: Collection[int] = ()) -> None:
        """Take note that all workers of a host have ended, in a round.

        Args:
            host: its number.
            number: of the round.
            failed: those of its workers that have not ended well.
        """
        if self._is_of_round(host, number):
            self._ended[host] = {*failed}
        self.look()

    def leads(self, host: int, number: int, rank: int) -> None:
        """Take note that a worker has taken over as the chief, in a round.

        Its host gets the message, too: what comes there before it is older than what the host has reported.
        """
        if self._is_of_round(host, number):
            receivers = self._running if rank != self._noted_chief else [host]
            self._noted_chief = rank
            self.sent += [(each, {"chief": rank}) for each in receivers]

    def _is_of_round(self, host: int, number: int) -> bool:
        return host in self._running and number == self._round

    @property
    def _chief(self) -> int:
        service = self._survivors()
        leader = None if service is None else service.leader()
        return self._noted_chief if leader is None else leader

    @property
    def _over(self) -> set[int]:
        """Return the hosts all of whose workers have ended, and are not started again."""
        return {host for host, failed in self._ended.items() if failed <= self._lost}

    @property
    def _may_restart(self) -> bool:
        """Test whether what fails may be started again; without ps tasks while the chief has not ended well."""
        return self._restarts.are_left and (bool(self._with_ps) or self._chief not in self._well)

    def _failure(self, host: int, name: str, status: int) -> Failure:
        job, _, index = name.partition(" ")
        is_chief = job == "worker" and int(index) == self._chief
        is_alone = self._may_restart and self._starts_alone(int(index), is_chief, status)
        return Failure(self._clock(), host, name, status, is_chief, is_alone)

    def _goes_on(self, failure: Failure) -> bool:
        """Go on after a process has failed, if others do; return False if all are to start again, or the run ends."""
        host, rank, service = failure.host, failure.index, self._survivors()
        if failure.job == "ps" and self._chief in self._well:
            return True
        if self._may_restart:
            if not failure.is_alone:
                return False
            self._restarts.take()
            if failure.job == "worker" and service is not None and not self._with_ps:
                service.expect(rank)
            again = f"it is started again (restart {self._restarts.count} of {self._restarts.limit})"
            self._ended.pop(host, None)
            self.sent.append((host, {"again": failure.name, "why": f"{failure.what}; {again}"}))
            return True
        if failure.is_chief and (failure.status > 0 or not (self._with_ps or service is not None)):
            return False
        self._first = self._first or (failure.name, failure.status)
        if failure.job == "worker":
            self._lost.add(rank)
            self._note_ended()
        if {rank for ranks in self._ranks.values() for rank in ranks} > self._lost | self._well:
            self.sent.append((host, {"say": f"{failure.what}; the others go on"}))
        elif self._first != (failure.name, failure.status):  # else the end of the run says it
            self.sent.append((host, {"say": failure.what}))
        return True

    def _starts_alone(self, rank: int, is_chief: bool, status: int) -> bool:
        """Test whether a process that has failed can be started again alone.

        A chief that has failed by itself has ended the training of all. So has, without ps tasks, a worker that has
        failed by itself after it was started again, and before it had joined: it would fail once more.
        """
        if self._with_ps:
            return not is_chief or status < 0
        service = self._survivors()
        if service is None or not service.goes_on_without({rank, *self._lost, *self._well}):
            return False
        return not (service.expects(rank) and status > 0)

    def _note_ended(self) -> None:
        ended = sorted(self._lost | self._well)
        self.sent += [(host, {"workers ended": ended}) for host in self._running]

    def _goes_on_without_host(self, host: int) -> bool:
        """Go on without a host that is gone, if nobody needs it: its workers have ended, or others go on without them.

        Its ps tasks are needed as long as the chief has not ended well.
        """
        has_ended = host in self._over
        if not has_ended or host in self._with_ps:
            others_go_on = self._chief in self._well if self._with_ps else self._has_survivors(host)
            if not others_go_on:
                return False
        self._running.remove(host)
        if not has_ended:
            self._first = self._first or (f"host {host}", 1)
            self._lost |= {*self._ranks[host]} - self._well
            self._note_ended()
            self.sent += [(each, {"say": f"host {host} is gone; the others go on"}) for each in self._running]
        return True

    def _has_survivors(self, host: int) -> bool:
        """Test whether, without ps tasks, workers of other hosts go on without one, and enough hosts are left."""
        service, ranks = self._survivors(), self._ranks[host]
        if service is None or len(self._running) - 1 < self._counts.least or host == self._leader:
            return False
        return service.goes_on_without({*ranks, *self._lost, *self._well})

    # --- what follows -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Do what the time or what was said makes due."""
        if self.status is not None:
            return
        now = self._clock()
        for host in [host for host, since in self._leaving.items() if now >= since + LEAVE_SECONDS]:
            self._go_on_without(host)
        while (failure := self._due_failure(now)) is not None:
            self._failures.remove(failure)
            if self._goes_on(failure):
                continue
            if not self._restarts.take():
                self._end(*_described(*(self._first or (failure.name, failure.status))))
                return
            self._end_round(f"{failure.what} (restart {self._restarts.count} of {self._restarts.limit})")
        if self._running:
            if self._over.issuperset(self._running):
                self._end(*self._status_of_ended())
            return
        self._begin_if_due(now)

    def _due_failure(self, now: float) -> Failure | None:
        """Return the first failure that is to be decided now; workers may have failed because of a host that leaves."""
        for failure in self._failures:
            if now >= failure.time + GRACE_SECONDS and not (self._leaving and failure.job == "worker"):
                return failure
        return None

    def _status_of_ended(self) -> tuple[int, str]:
        """Return the exit status, and why it is not 0: 0 if the worker that led at the end has ended well."""
        if self._first is None or self._chief not in self._lost:
            return 0, ""
        return _described(*self._first)

    def _begin_if_due(self, now: float) -> None:
        waiting = [host for host, addresses in self._addresses.items() if addresses is not None]
        least, most = self._counts.least, self._counts.most
        waiting.sort(key=lambda host: host != self._leader)
        if len(waiting) < least or waiting[0] != self._leader:
            self._enough_since = now
            if now >= self._waits_since + self._counts.patience:
                self._end(1, f"{len(waiting)} hosts are there after {self._counts.patience:g} s, of at least {least}")
            return
        all_wait = len(waiting) == len(self._addresses)
        if len(waiting) >= most or (all_wait and now >= self._enough_since + self._counts.last_call):
            self._begin(waiting[:most])

    def _begin(self, hosts: list[int]) -> None:
        self._round += 1
        self._running, self._ended, self._failures, self._first = hosts, {}, [], None
        self._lost, self._well, self._noted_chief, self._ranks = set(), set(), 0, {}
        cluster: dict[str, list[str]] = {"ps": [], "worker": []}
        first: list[dict[str, int]] = []
        for host in hosts:
            first.append({job: len(tasks) for job, tasks in cluster.items()})
            for job, tasks in (self._addresses[host] or {}).items():
                cluster[job] += tasks
        # Parameters on ps tasks need no service, and one worker has nobody to go on without it.
        self._with_ps = {host for host in hosts if (self._addresses[host] or {})["ps"]}
        membership = "" if self._with_ps or len(cluster["worker"]) < 2 else self._membership
        for host, place in zip(hosts, first, strict=True):
            own = (self._addresses[host] or {})["worker"]
            self._ranks[host] = range(place["worker"], place["worker"] + len(own))
            self._addresses[host] = None
            message = {"start": self._round, "cluster": cluster, "first": place}
            self.sent.append((host, {**message, "membership": membership}))

    def _end_round(self, why: str, gone: int | None = None) -> None:
        self.sent += [(host, {"stop": why}) for host in self._running if host != gone]
        for host in self._leaving:  # the next round does not wait for them
            self._addresses.pop(host, None)
        self._running, self._ended, self._failures, self._leaving = [], {}, [], {}
        self._waits_since = self._enough_since = self._clock()

    def _end(self, status: int, why: str) -> None:
        self.status = status
        self.sent += [(host, {"exit": status, "why": why}) for host in self._addresses]


def _described(name: str, status: int) -> tuple[int, str]:
    """Return the exit status of a run that ends because of a failure, and its reason."""
    return status if status > 0 else 128 - status, described_end(name, status)


__all__ = ["Counts", "Message", "Rounds", "Survivors"]
