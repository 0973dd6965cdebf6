"""`Rounds`: which hosts take part in a run, without sockets and clocks of its own.

A *round* is one start of all processes by the hosts that are there. When a host joins or leaves, or a process fails,
the round ends everywhere, and the next one begins with the hosts that are there then. So does torchrun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


class Rounds:
    """Decides when rounds begin and end.

    Args:
        counts: how many hosts there have to be.
        restarts: counts the rounds that end because a process has failed.
        clock: gives the time, in seconds.

    Attributes:
        sent: the messages to be sent, for each the host's number and the message.
        status: the exit status, once the run has ended.
    """

    def __init__(self, counts: Counts, restarts: Restarts, clock: Callable[[], float] = time.monotonic) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.status: int | None = None
        self._counts = counts
        self._restarts = restarts
        self._clock = clock
        self._addresses: dict[int, dict[str, list[str]] | None] = {}  # of hosts that wait for a round; None in one
        self._leader = -1
        self._round = 0
        self._running: list[int] = []
        self._ended: set[int] = set()
        self._failed: tuple[float, str, int] | None = None
        self._waits_since = self._enough_since = clock()

    # --- what hosts say ---------------------------------------------------------------------------------------------

    def ready(self, host: int, worker: list[str], ps: list[str], leads: bool = False) -> None:
        """Take note that a host waits for a round, with addresses for its tasks there.

        Args:
            host: its number.
            worker, ps: the addresses.
            leads: whether it is the first host, without which no round begins.
        """
        if leads:
            self._leader = host
        self._addresses[host] = {"ps": ps, "worker": worker}
        if self._running and host not in self._running and len(self._running) < self._counts.most and not self._ended:
            self._end_round("a host joins")
        self.look()

    def left(self, host: int) -> None:
        """Take note that a host is gone."""
        self._addresses.pop(host, None)
        if host in self._running and self.status is None:
            if host in self._ended:
                self._running.remove(host)
            else:
                self._end_round(f"host {host} is gone", host)
        self.look()

    def failed(self, host: int, number: int, name: str, status: int) -> None:
        """Take note that a process has failed, in a round."""
        if host in self._running and number == self._round and self._failed is None:
            self._failed = self._clock(), name, status
        self.look()

    def ended(self, host: int, number: int) -> None:
        """Take note that all workers of a host have ended well, in a round."""
        if host in self._running and number == self._round:
            self._ended.add(host)
        self.look()

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
                self._end(0, "")
            return
        self._begin_if_due(now)

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
        self._running, self._ended, self._failed = hosts, set(), None
        cluster: dict[str, list[str]] = {"ps": [], "worker": []}
        first: list[dict[str, int]] = []
        for host in hosts:
            first.append({job: len(tasks) for job, tasks in cluster.items()})
            for job, tasks in (self._addresses[host] or {}).items():
                cluster[job] += tasks
        for host, place in zip(hosts, first, strict=True):
            self._addresses[host] = None
            self.sent.append((host, {"start": self._round, "cluster": cluster, "first": place}))

    def _end_round(self, why: str, gone: int | None = None) -> None:
        self.sent += [(host, {"stop": why}) for host in self._running if host != gone]
        self._running, self._ended, self._failed = [], set(), None
        self._waits_since = self._enough_since = self._clock()

    def _end(self, status: int, why: str) -> None:
        self.status = status
        self.sent += [(host, {"exit": status, "why": why}) for host in self._addresses]


__all__ = ["Counts", "Message", "Rounds"]
