"""The accounts that the state of replicas gives of itself: counts for users, and what a step has and waits for."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

from .arrivals import Arrivals
from .replica_tickets import Member, Out, Receipt


class ReplicaAccounts:
    """The describing half of `ReplicaStepsState`, which has these attributes; see there."""

    clock: Callable[[], float] = time.monotonic
    step: int
    epoch: int
    min_workers: int
    _shares: int
    _backups: int
    _chosen: int
    _workers: dict[int, Member]
    _seen: set[int]
    _retiring: set[int]
    _undone: set[int]
    _counted: dict[int, tuple[int, int, int]]
    _out: dict[int, Out]
    _contributors: set[int]
    _receipts: dict[int, collections.Counter[Receipt]]
    _staleness: collections.Counter[int]
    _arrivals: Arrivals
    _synchronous: bool
    _total: int
    _is_open: bool
    _is_together: bool
    _has_ended: bool
    _unapplied: dict[int, list[tuple[int, int, int]]]
    _begun_again: int

    @property
    def members(self) -> list[int]:
        """The numbers of the workers that take part."""
        return sorted(self._workers)

    def _is_member(self, worker: int, incarnation: int) -> bool:
        return worker in self._workers and self._workers[worker].incarnation == incarnation

    @property
    def are_too_few(self) -> bool:
        """Test whether fewer workers take part than steps are made with."""
        return len(self._workers) - len(self._retiring) < self.min_workers

    def shortage(self, who: Callable[[int], str] = str) -> str:
        """Say for whom steps wait, because too few workers take part; nothing if there are enough, or at the end."""
        is_idle = not self._workers and not self._undone and not self._is_open  # nobody is there, and no step is begun
        if self._has_ended or is_idle or not self.are_too_few:
            return ""
        absent = ", ".join(map(who, sorted(self._seen - self._workers.keys()))) or "workers that have not come yet"
        present = ", ".join(map(who, self.members)) or "nobody"
        return f"steps need {self.min_workers} workers (min_workers), and wait for {absent}; taking part: {present}"

    @property
    def _wanted(self) -> int:
        """The number of shares that make the step: at the end of an epoch those that are left."""
        return self._shares if self._is_open else min(self._shares, len(self._undone))

    @property
    def _useful(self) -> int:
        """The number of shares that are put for the step. If none of them has rows, one more is needed.

        Those of a step that workers compute together are all of one batch, which has rows.
        """
        count, wanted = len(self._counted), self._wanted
        is_enough = count < wanted or self._is_together or self._is_all_put
        return count if is_enough or any(rows for _, rows, _ in self._counted.values()) else wanted - 1

    @property
    def _is_all_put(self) -> bool:
        """Test whether all shares are put that are left of the epoch."""
        return len(self._counted) == len(self._undone) and not self._is_open

    def account(self) -> list[int]:
        """Return the shares of the epoch that are done: their rows are in the parameters, or were skipped."""
        waiting = {share for chosen in self._unapplied.values() for _, share, _ in chosen}
        return [share for share in range(self._total) if share not in self._undone and share not in waiting]

    def _receipt(self, worker: int, receipt: Receipt) -> Receipt:
        self._receipts.setdefault(worker, collections.Counter())[receipt] += 1
        return receipt

    def statistics(self) -> dict[str, Any]:
        """Count what was done, as values of JSON."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "members": self.members,
            "receipts": {
                str(number): {receipt.name.lower(): count[receipt] for receipt in Receipt}
                for number, count in sorted(self._receipts.items())
            },
            "staleness": {str(steps): count for steps, count in sorted(self._staleness.items())},
            "undone": len(self._undone),
            "begun_again": self._begun_again,
            "backups": self._arrivals.statistics() if self._synchronous else {},
        }

    def describe(self, who: Callable[[int], str] = str) -> str:
        """Say what a step waits for, for messages."""
        shortage = self.shortage(who)
        if shortage:
            return f"step {self._chosen}: {shortage}"
        outstanding = ", ".join(who(out.worker) for out in self._out.values()) or "nobody"
        return (
            f"step {self._chosen}, which has {len(self._counted)} of {self._wanted} gradients; "
            f"at work on it: {outstanding}; taking part: {', '.join(map(who, self.members)) or 'nobody'}"
        )


__all__ = ["ReplicaAccounts"]
