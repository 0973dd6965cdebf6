"""`Rounds`: which hosts take part in a run, without sockets and clocks of its own.

A *round* is one start of all processes by the hosts that are there. When a host joins or leaves, or a process fails,
the round ends everywhere, and the next one begins with the hosts that are there then. So does torchrun.

Where the membership service of the first host says that others go on without a worker, the round goes on, too. The
worker is started again, alone, as long as restarts are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from ..restarts import Restarts

GRACE_SECONDS = 1.0  # in which a host that is lost is found to be why a process has failed
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
        self._lost: dict[int, tuple[str, int]] = {}  # workers that others go on without: names and exit statuses
        self._addresses: dict[int, dict[str, list[str]] | None] = {}  # of hosts that wait for a round; None in one
        self._leader = -1
        self._round = 0
        self._running: list[int] = []
        self._ended: set[int] = set()
        self._failed: tuple[float, str, int] | None = None
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
        if self._running and host not in self._running and len(self._running) < self._counts.most and not self._ended:
            self._end_round("a host joins")
        self.look()

    def left(self, host: int) -> None:
        """Take note that a host is gone."""
        self._addresses.pop(host, None)
        if host in self._running and self.status is None:
            if host in self._ended or self._goes_on_without_host(host):
                self._running.remove(host)
            else:
                self._end_round(f"host {host} is gone", host)
        self.look()

    def failed(self, host: int, number: int, name: str, status: int) -> None:
        """Take note that a process has failed, in a round."""
        is_first = host in self._running and number == self._round and self._failed is None
        if is_first and not self._goes_on(host, name, status):
            self._failed = self._clock(), name, status
        self.look()

    def ended(self, host: int, number: int, failed: Collection[int] = ()) -> None:
        """Take note that all workers of a host have ended, in a round.

        Args:
            host: its number.
            number: of the round.
            failed: those of its workers that have not ended well.
        """
        if host in self._running and number == self._round and self._lost.keys() >= {*failed}:
            self._ended.add(host)
        self.look()

    def _goes_on(self, host: int, name: str, status: int) -> bool:
        """Go on without a worker that has failed, if others do. It is started again as long as restarts are left.

        One that has failed by itself after it was started again, and before it had joined, would fail once more.
        """
        job, _, index = name.partition(" ")
        service = self._survivors()
        if job != "worker" or service is None:
            return False
        rank = int(index)
        if not service.goes_on_without({rank, *self._lost}) or (service.expects(rank) and status > 0):
            return False
        why = f"{name} ended with exit status {status}; "
        if self._restarts.take():
            service.expect(rank)
            why += f"it is started again (restart {self._restarts.count} of {self._restarts.limit})"
            self._ended.discard(host)
        else:
            self._lost[rank] = name, status
            why += "the others go on"
        self.sent.append((host, {"again": rank, "why": why} if rank not in self._lost else {"say": why}))
        return True

    def _goes_on_without_host(self, host: int) -> bool:
        """Go on without a host that is gone, if workers of others do, and enough hosts are left."""
        service, ranks = self._survivors(), self._ranks[host]
        if service is None or len(self._running) - 1 < self._counts.least:
            return False
        if host == self._leader or not service.goes_on_without({*ranks, *self._lost}):
            return False
        self._lost |= {rank: (f"worker {rank}", 1) for rank in ranks}
        self.sent += [
            (each, {"say": f"host {host} is gone; the others go on"}) for each in self._running if each != host
        ]
        return True

    # --- what follows -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Do what the time or what was said makes due."""
        if self.status is not None:
            return
        now = self._clock()
        if self._failed is not None and now >= self._failed[0] + GRACE_SECONDS:
            _, name, status = self._failed
            what = f"{name} ended with exit status {status}"
            if not self._restarts.take():
                self._end(status if status > 0 else 128 - status, what)
                return
            self._end_round(f"{what} (restart {self._restarts.count} of {self._restarts.limit})")
        if self._running:
            if self._ended.issuperset(self._running):
                self._end(*self._status_of_ended())
            return
        self._begin_if_due(now)

    def _status_of_ended(self) -> tuple[int, str]:
        """Return the exit status, and why it is not 0: 0 if the worker that led at the end has ended well."""
        service = self._survivors()
        if not self._lost or (service is not None and service.leader() not in self._lost):
            return 0, ""
        name, status = next(iter(self._lost.values()))
        return status if status > 0 else 128 - status, f"{name} ended with exit status {status}"

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
        self._running, self._ended, self._failed, self._lost = hosts, set(), None, {}
        cluster: dict[str, list[str]] = {"ps": [], "worker": []}
        first: list[dict[str, int]] = []
        for host in hosts:
            first.append({job: len(tasks) for job, tasks in cluster.items()})
            for job, tasks in (self._addresses[host] or {}).items():
                cluster[job] += tasks
        # Parameters on ps tasks need no service, and one worker has nobody to go on without it.
        membership = "" if cluster["ps"] or len(cluster["worker"]) < 2 else self._membership
        for host, place in zip(hosts, first, strict=True):
            own = (self._addresses[host] or {})["worker"]
            self._ranks[host] = range(place["worker"], place["worker"] + len(own))
            self._addresses[host] = None
            message = {"start": self._round, "cluster": cluster, "first": place}
            self.sent.append((host, {**message, "membership": membership}))

    def _end_round(self, why: str, gone: int | None = None) -> None:
        self.sent += [(host, {"stop": why}) for host in self._running if host != gone]
        self._running, self._ended, self._failed = [], set(), None
        self._waits_since = self._enough_since = self._clock()

    def _end(self, status: int, why: str) -> None:
        self.status = status
        self.sent += [(host, {"exit": status, "why": why}) for host in self._addresses]


__all__ = ["Counts", "Message", "Rounds", "Survivors"]
