"""Choose which share of a step a worker computes, and which are given up: the part of the state that decides it."""

from __future__ import annotations

import bisect

from .attempts import Attempt
from .replica_accounts import ReplicaAccounts
from .replica_tickets import Out

MEASURED_EACH = 32  # steps: with backup workers, late gradients of one of so many are waited for, to measure their time


class ReplicaShares(ReplicaAccounts):
    """The part of `ReplicaStepsState` that chooses shares, and has these attributes; see there."""

    _pool: list[int]
    _places: list[int]
    _out_of: dict[int, set[int]]
    _is_served: bool | None

    def _has_to_wait(self, worker: int) -> bool:
        """Test whether a worker has to see changes of parameters first: by any step, or by a gradient of its own."""
        if self._synchronous:
            return bool(self._unapplied)
        return any(other == worker for chosen in self._unapplied.values() for *_, other in chosen)

    def _share_for(self, worker: int) -> int | None:
        """Return the share that a worker is to compute now.

        Each worker has one share of a step. It gets another one if the step needs more than there are workers. Of the
        next batch it gets the part that has its place among the members, so that without drops a worker always has the
        same part. Nobody gets more of the batches that follow than backup workers would, so that without backups a step
        is one batch, also where a worker is started again that has had its share of the step.
        """
        has_done = self._synchronous and self._has_contributed(worker)
        if has_done:
            if self._is_served is None:  # the same for all who ask, until one has got something
                self._is_served = self._has_enough()
            if self._is_served:
                return None
        if self._pool:
            if self._synchronous and self._has_all_shares():
                return None
            batch = self._pool[0] // self._shares
            place = bisect.bisect_left(self._places, worker)
            mine = batch * self._shares + place
            at = bisect.bisect_left(self._pool, mine, 0, min(self._shares, len(self._pool)))
            has_own = place < self._shares + self._backups and at < self._shares and self._pool[at : at + 1] == [mine]
            return self._pool.pop(at if has_own else 0)
        has = {self._out[number].share for number in self._out_of.get(worker, ())}
        rest = sorted(self._undone - self._counted.keys() - has)
        return rest[0] if rest and self._synchronous and not has_done else None

    def _has_enough(self) -> bool:
        """Test whether the step gets its gradients from workers that have not had a share of it, or are at one."""
        wanted = self._wanted
        absent = len(self._contributors | self._retiring) if self._retiring else len(self._contributors)
        found = len(self._counted) + len(self._workers) - absent
        if found >= wanted:
            return True
        found += sum(out.worker in self._retiring and out.step == self.step for out in self._out.values())
        found += sum(out.worker in self._contributors for out in self._out.values())
        return found >= wanted

    def _has_contributed(self, worker: int) -> bool:
        return worker in self._contributors

    def _has_all_shares(self) -> bool:
        """Test whether the step's shares are put or with workers, and those of the backup workers, too."""
        wanted = self._wanted + self._backups
        if len(self._counted) + len(self._out) < wanted:
            return False
        at_work = {out.share for out in self._out.values() if out.step == self._chosen}
        return len(self._counted.keys() | at_work) >= wanted

    def _take_back(self, number: int) -> None:
        """Forget a ticket that is out."""
        out = self._out.pop(number)
        out.end_watch()
        worker = out.worker
        self._out_of[worker].discard(number)
        if not self._out_of[worker]:
            del self._out_of[worker]

    # --- shares that are late ---------------------------------------------------------------------------------------

    def watch(self, worker: int, incarnation: int, number: int) -> Attempt:
        """Ask to hear when the gradients of a ticket come too late for its step, so that computing them is of no use.

        It is served when the ticket is committed, and fails with `CancelledError` when the step has its set without it.
        The ticket stays out until the worker commits it, or takes the next one.
        """
        attempt = Attempt(1)
        out = self._out.get(number)
        if out is None or not self._is_member(worker, incarnation):  # it was committed before, or is void
            attempt.finish(())
        else:
            out.watch = attempt
            if self._is_late(out):
                out.give_up()
        return attempt

    def _give_up_late(self) -> None:
        """Have workers stop whose gradients come too late for a step that has its set now."""
        for out in self._out.values():
            if self._is_late(out):
                out.give_up()

    def _is_late(self, out: Out) -> bool:
        """Test whether a share is of no use to its step any more, nor to the measurement of backup workers."""
        return self._synchronous and out.step < self._chosen and not self._is_measured(out.step)

    def _is_measured(self, step: int) -> bool:
        """Test whether the times of a step's gradients count. With backups late ones of other steps are given up."""
        return not self._backups or step % MEASURED_EACH == 0


__all__ = ["MEASURED_EACH", "ReplicaShares"]
