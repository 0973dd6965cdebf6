"""Choose which share of a step a worker computes, and which are given up; exchange sums between those who compute one.

These are the parts of the state of replicas that decide it.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ..common.quick_dataclass import dataclass
from .attempts import Attempt
from .errors import CancelledError
from .replica_accounts import ReplicaAccounts
from .replica_tickets import Out, Receipt

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
        found = self._useful + len(self._workers) - absent
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
        useful = self._useful
        if useful + len(self._out) < wanted:
            return False
        if useful < len(self._counted):  # shares without rows do not make a step
            return True
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


@dataclass
class Exchange:
    """One sum of a step.

    Attributes:
        addends: by the first share of who gave it.
        waiting: the requests of those, which all get the sum.
    """

    addends: dict[int, Any] = field(default_factory=dict[int, Any])
    waiting: list[Attempt] = field(default_factory=list[Attempt])


class ReplicaExchanges(ReplicaShares):
    """The part of `ReplicaStepsState` for steps whose workers exchange sums, such as those of synchronized statistics.

    Such a step is *cut* when its first ticket is asked for: each worker that takes part gets consecutive shares of the
    batch under one ticket. A sum is there when all of them have given their addend, or have committed without rows. So
    all workers of the cut have to come to each sum. When one does not come any more, whose gradients do not count yet,
    the step begins again: all its tickets are void, its gradients do not count, whoever waits for a sum is ended, and
    the next request for a ticket cuts the batch for those that are left. No sum has addends of two cuts.
    """

    _is_together: bool
    _retiring: set[int]
    _receipts: dict[int, collections.Counter[Receipt]]
    _cut: dict[int, tuple[int, int]]  # by worker: the first of its shares of the step, and how many
    _exchanges: dict[int, Exchange]  # by the number of the sum in the step

    def _may_exchange(self, together: bool) -> None:
        """Set whether workers exchange sums; none has been asked for yet."""
        self._is_together = together
        self._cut, self._exchanges = {}, {}
        self._begun_again = 0

    def _part_for(self, worker: int) -> tuple[int, int] | None:
        """Return the first share that a worker is to compute now, and how many; None if it has to wait."""
        if not self._is_together:
            share = self._share_for(worker)
            return None if share is None else (share, 1)
        if not self._cut:
            self._cut_step()
        part = self._cut.get(worker)
        if part is None:  # it came later, or there are more workers than shares
            return None
        first, count = part
        at = bisect.bisect_left(self._pool, first)
        if self._pool[at : at + 1] != [first]:  # it has had its part of the step
            return None
        del self._pool[at : at + count]
        return part

    def _cut_step(self) -> None:
        """Cut the shares of the step for the workers that take part, in their order."""
        workers = [worker for worker in self._places if worker not in self._retiring]
        wanted = self._wanted
        if not workers or len(self._pool) < wanted:  # the leader has to supply them first
            return
        parts = min(len(workers), wanted)
        first = self._pool[0]
        for number, worker in enumerate(workers[:parts]):
            begin, end = number * wanted // parts, (number + 1) * wanted // parts
            self._cut[worker] = first + begin, end - begin

    def check_whole_batches(self, shares: int, done: Sequence[int]) -> None:
        """Check that no batch of an epoch is done in part: workers could not compute the rest of it together.

        Raises:
            ValueError: one is.
        """
        counts = collections.Counter(share // shares for share in done)
        partial = sorted(batch for batch, count in counts.items() if count != shares)
        if self._is_together and partial:
            raise ValueError(
                f"Of the batches {partial} some rows were trained before, as is the case with backup workers, but the "
                "model has synchronized layers, whose statistics are those of whole batches. Begin the epoch again, or "
                "use synchronized=False."
            )

    # --- sums -------------------------------------------------------------------------------------------------------

    def sum(self, ticket: int, number: int, value: Any) -> Attempt:
        """Ask for the sum of all that those who compute a step give; it waits until all have given theirs.

        Args:
            ticket: under which the step is computed.
            number: that of the sum in the step.
            value: what is added here, an array that nobody changes.
        """
        attempt = Attempt(1)
        out = self._out.get(ticket)
        if out is None:
            attempt.fail(CancelledError(f"ticket {ticket} is void: its step has begun again, or is over"))
            return attempt
        exchange = self._exchanges.setdefault(number, Exchange())
        exchange.addends[out.share] = value
        exchange.waiting.append(attempt)
        self._serve_sum(number)
        return attempt

    def _serve_sum(self, number: int) -> None:
        """Give a sum to those who wait for it, if all addends are there."""
        exchange = self._exchanges[number]
        if len(exchange.addends) + len(self._counted) < len(self._cut):
            return
        firsts = sorted(first for first, _ in self._cut.values())
        missing = [first for first in firsts if first not in exchange.addends]
        if any(first not in self._counted for first in missing):
            return
        error: Exception | None = None
        if any(self._counted[first][1] for first in missing):
            error = ValueError(f"a worker has finished the step without its addend of sum {number}")
        found = [exchange.addends[first] for first in firsts if first in exchange.addends]
        if len({(each.shape, each.dtype) for each in found}) > 1:
            texts = ", ".join(f"{each.dtype}{list(each.shape)}" for each in found)
            error = ValueError(f"workers have addends of several kinds for sum {number}: {texts}")
        del self._exchanges[number]
        if error is not None:
            hint = "The workers run different steps; all of them have to compute the same of their rows."
            self._end_sums([exchange], ValueError(f"step {self._chosen}: {error}. {hint}"))
            return
        total = found[0]
        for each in found[1:]:
            total = total + each
        for attempt in exchange.waiting:
            attempt.finish((np.asarray(total),))

    def _serve_sums(self) -> None:
        for number in list(self._exchanges):
            self._serve_sum(number)

    def _end_sums(self, exchanges: Sequence[Exchange], error: Exception) -> None:
        for exchange in exchanges:
            for attempt in exchange.waiting:
                attempt.fail(error)

    def _withdraw_sum(self, attempt: Attempt) -> None:
        """Forget a request for a sum. The addend stays: its worker asks for another ticket now, or is gone."""
        for exchange in self._exchanges.values():
            if attempt in exchange.waiting:
                exchange.waiting.remove(attempt)

    # --- steps that begin again -------------------------------------------------------------------------------------

    def _forget_cut(self, error: Exception) -> None:
        """Forget how the step was cut; whoever waits for a sum gets an error."""
        self._cut.clear()
        exchanges = list(self._exchanges.values())
        self._exchanges.clear()
        self._end_sums(exchanges, error)

    def _is_needed(self, worker: int) -> bool:
        """Test whether the step needs what a worker has not committed yet."""
        return worker in self._cut and self._cut[worker][0] not in self._counted

    def _begin_again(self, worker: int) -> None:
        """Have the step begin again, since a worker does not go on with its part."""
        self._begun_again += 1
        shares = set(self._counted)
        for out in self._out.values():
            shares.update(range(out.share, out.share + out.length))
            out.give_up()
        for worker_of_ticket in {number: other for number, _, other in self._counted.values()}.values():
            self._receipts[worker_of_ticket][Receipt.TAKEN] -= 1
            self._receipt(worker_of_ticket, Receipt.REFUSED)
        self._counted.clear()
        self._contributors.clear()
        self._out.clear()
        self._out_of.clear()
        self._pool = sorted({*self._pool, *shares})
        self._forget_cut(
            CancelledError(
                f"step {self._chosen} begins again, since worker {worker} does not go on with its part of it"
            )
        )


__all__ = ["MEASURED_EACH", "Exchange", "ReplicaExchanges", "ReplicaShares"]
