"""The state machine of synchronous and asynchronous replicas, without threads: tickets, receipts, sets and rows.

A step needs the gradients of so many *shares*, which are parts of global batches. A worker takes a *ticket*: a share,
and the step whose parameters it reads. It puts its gradients under the number of the ticket, and then commits it. The
first shares that are committed in a step are its *set*; what comes later is dropped, and its share is handed out again.

Source: Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016); Abadi et al.,
"TensorFlow: A System for Large-Scale Machine Learning" (OSDI 2016), section 4.4.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Sequence
from typing import Any

from .arrivals import Arrivals
from .attempts import Attempt
from .errors import CancelledError, StateLostError
from .replica_leader import ReplicaLeader
from .replica_tickets import LEAD, LEAVE, NO_TICKET, SUPPLY, TICKET_BITS, Chosen, Member, Out, Receipt, Ticket

_NO_FURTHER_SET = "no further set is wanted"


class ReplicaStepsState(ReplicaLeader):
    """Hands out shares, counts what comes back, and chooses the sets of steps.

    Args:
        shares: how many shares make a step.
        synchronous: whether tickets of a step are handed out only when the step before has been applied.
        requeue: whether shares of dropped gradients are handed out again. Otherwise their rows are skipped.
        max_staleness: how many steps the parameters of an asynchronous gradient may be behind; None for any number.
        min_workers: with fewer workers nothing is handed out.
        backups: how many shares more than a step needs workers may compute at a time, of the batches that follow.
        workers: how many workers there are; 0 where that is not known.
        together: whether workers exchange sums while they compute a step; see `ReplicaExchanges`.

    Attributes:
        step: the step that is under way: so many have been applied.
        epoch: the number of the epoch that is under way or was last, counted from 1.
        leader: the worker that leads: it begins epochs and has sets applied. None before one does.
        token: the fencing token of the leader, a number that grows: requests with a smaller one are refused.
        clock: gives the time in seconds; a simulator sets its own.
        generation: the token with which training began, or was started again from a backup; 0 before that.
    """

    def __init__(
        self,
        shares: int,
        synchronous: bool = True,
        requeue: bool = True,
        max_staleness: int | None = None,
        min_workers: int = 1,
        backups: int = 0,
        workers: int = 0,
        together: bool = False,
    ) -> None:
        self.min_workers = min_workers
        self._may_exchange(together)
        self._all = workers
        self._backups = backups
        self.step = self.epoch = 0
        self.leader: int | None = None
        self.token = self.generation = 0
        self._retiring: set[int] = set()  # workers that are to leave when they have finished what they are at
        self._is_appointed = False  # the leader has been chosen, and was not notified yet
        self._beginner: tuple[str, int] | None = None  # who is to begin again, since the leader is gone, too
        self._is_awaited = True  # a leader may come that has led in a state that is lost
        self._notes = ""
        self._handed: Chosen | None = None  # a set that was given to the leader, and is not applied
        self._abandoned: str | None = None  # why what the generation knew is lost
        self._enrolments: list[tuple[Attempt, int, str, int, int, bool]] = []  # and what was given to `enrol`
        self._total = 0  # how many shares the epoch has
        self._is_open = False  # whether its leader supplies further ones
        self._rows: dict[int, Any] = {}  # the bytes of those that were supplied and are not done
        self._supplied = ""  # a note on these
        self._shares = shares
        self._synchronous = synchronous
        self._requeue = requeue
        self._max_staleness = max_staleness
        self._workers: dict[int, Member] = {}
        self._seen: set[int] = set()  # workers that have taken part
        self._pool: list[int] = []  # shares to hand out, in order
        self._undone: set[int] = set()  # shares of the epoch that no applied or chosen set has
        self._counted: dict[int, tuple[int, int, int]] = {}  # by share: ticket, rows and worker
        self._out: dict[int, Out] = {}
        self._out_of: dict[int, set[int]] = {}  # by worker: the numbers of its tickets that are out
        self._contributors: set[int] = set()  # workers that have contributed to the step that is chosen next
        self._places: list[int] = []  # the members, in order
        self._sets: collections.deque[Chosen] = collections.deque()
        self._unapplied: dict[int, list[tuple[int, int, int]]] = {}  # by step: ticket, share, worker of chosen sets
        self._takes: list[tuple[Attempt, int, int, int]] = []  # with worker, incarnation and epoch
        self._chooses: collections.deque[Attempt] = collections.deque()
        self._has_ended_choosing = False  # the leader wants no further set
        self._announcements: list[str] = []
        self._hears: list[tuple[Attempt, int, int]] = []  # with number and worker
        self._assemblies: list[tuple[Attempt, int]] = []  # with the least number of workers
        self._is_running = False
        self._closed: str | None = None
        self._has_ended = False
        self._is_served: bool | None = None  # whether workers that have a share of the step are to have no other one
        self._next_ticket = 0
        self._chosen = 0  # how many sets were chosen
        self._receipts: dict[int, collections.Counter[Receipt]] = {}
        self._staleness: collections.Counter[int] = collections.Counter()
        self._arrivals = Arrivals()

    # --- members ----------------------------------------------------------------------------------------------------

    def join(self, worker: int, task: str, incarnation: int) -> None:
        """Take in a worker; an earlier incarnation of it is out."""
        self._take_in(worker, task, incarnation)
        self._settle()

    def _take_in(self, worker: int, task: str, incarnation: int) -> None:
        known = self._workers.get(worker)
        if known is not None and known.incarnation != incarnation:
            self._drop(worker)
        if known is None or known.incarnation != incarnation:
            self._workers[worker] = Member(task, incarnation)
            bisect.insort(self._places, worker)
            self._seen.add(worker)

    def leave(self, worker: int, incarnation: int) -> None:
        """Let a worker go; what it has out is handed out again. With the leader training has come to its end."""
        if self._is_member(worker, incarnation):
            self._has_ended = self._has_ended or (worker == self.leader and not self._is_appointed)
            self._drop(worker)
            self._settle()

    def retire(self, worker: int, incarnation: int) -> None:
        """Have a worker leave between steps: what it has out counts, and it gets nothing more."""
        if self._is_member(worker, incarnation):
            self._retiring.add(worker)
            if worker not in self._out_of and self._is_needed(worker):  # it does not begin its part any more
                self._begin_again(worker)
            self._serve_all()
            self._settle()
        for each in [each for each in self._enrolments if (each[1], each[3]) == (worker, incarnation)]:
            self._enrolments.remove(each)
            each[0].finish((LEAVE,))

    def hand_over(self, worker: int, incarnation: int) -> bool:
        """Let the leader go, for whom another worker takes over; return whether there is one."""
        if not self._is_member(worker, incarnation) or len(self._workers) == 1:
            return False
        self._drop(worker)
        self._settle()
        return True

    # --- generations ------------------------------------------------------------------------------------------------

    def lead(self, worker: int, task: str, incarnation: int, least: int = 0, known: int | None = None) -> int:
        """Begin training, or start it again: what was known of steps is forgotten, and all workers have to enrol again.

        Args:
            worker, task, incarnation: who leads from now on.
            least: what the token has to be at least, as a state that was lost may have given larger ones.
            known: the worker's own token. If there are larger ones it is refused, unless nobody leads, as all workers
                were taken for dead at once. None for whoever may begin.

        Returns:
            The leader's token, which also is the number of the generation.

        Raises:
            CancelledError: everything has ended, or another worker leads.
        """
        if self._closed is not None:
            raise CancelledError(self._closed)
        is_free = self._is_free and not self._has_ended
        if known is not None and known < self.token and not is_free and self._beginner != (task, incarnation):
            self.check_leader(known)
        self._forget("training starts again from a backup")
        self._workers.clear()
        self._places.clear()
        self._contributors.clear()
        self._retiring.clear()
        self._receipts.clear()
        self._arrivals.clear()
        self._staleness.clear()
        self._announcements.clear()
        self._sets.clear()
        self._unapplied.clear()
        self.end_epoch()
        self.step = self.epoch = self._chosen = 0
        self._abandoned, self._has_ended, self._has_ended_choosing = None, False, False
        self.leader, self.token = worker, max(self.token + 1, least)
        self._is_appointed, self._notes, self._handed, self._beginner = False, "", None, None
        self._is_awaited = True
        self.generation = self.token
        self._next_ticket = self.generation << TICKET_BITS
        self.join(worker, task, incarnation)
        return self.token

    def enrol(
        self, worker: int, task: str, incarnation: int, after: int, is_late: bool = False, is_whole: bool = False
    ) -> Attempt:
        """Ask to take part; it waits for a generation that is led, and is another one than `after`.

        If the worker takes part, it does not any more until then. The outcome is the number of the generation; LEAD if
        state is lost, the leader too, and this worker is to begin again; LEAVE if it was to leave meanwhile.

        Args:
            worker, task, incarnation: who asks.
            after: the number of the generation that the worker does not want.
            is_late: whether it has waited so long that a leader that nobody has seen here is taken for lost.
            is_whole: whether the state of `after` is known to be there: then the worker takes part in that generation
                again as soon as somebody leads it. Where nobody does, its leader may begin again, and is waited for.
        """
        attempt = Attempt(1)
        if self._closed is not None:
            attempt.fail(CancelledError(self._closed))
        else:
            if worker in self._workers:
                self._drop(worker)
            if self._beginner == (task, incarnation):  # it had given up when it was chosen
                self._beginner = None
            for each in [each for each in self._enrolments if each[1] == worker]:  # it has given up, or is gone
                self._enrolments.remove(each)
                each[0].fail(StateLostError(f"worker {worker} has asked again to take part"))
            self._enrolments.append((attempt, worker, task, incarnation, after, bool(is_whole)))
            self._is_awaited = self._is_awaited and not (is_late and self._is_free)
            self._settle()
        return attempt

    def abandon(self, reason: str) -> None:
        """Note that state is lost: all who ask or wait get a `StateLostError`, until training begins again."""
        if self._closed is None:
            self._abandoned = self._abandoned or reason
            self._forget(self._abandoned)
            self._settle()

    def _forget(self, reason: str) -> None:
        takes, self._takes = self._takes, []
        self._forget_cut(StateLostError(reason))
        self._fail_all([each[0] for each in takes], StateLostError(reason))

    def _depose(self) -> None:
        """Have the leader lead no more; what it was given and has not applied is to be given to the next one."""
        self.leader, self.token = None, self.token + 1
        self._fail_leader(StateLostError("the leader was taken for dead"))
        if self._handed is not None and self._handed not in self._sets:
            self._sets.appendleft(self._handed)

    def _appoint(self) -> None:
        """Have the lowest worker lead, where nobody does: it learns of it by whatever it asks next."""
        is_over = self._has_ended or self._abandoned is not None
        if self.leader is not None or not self._workers or not self.generation or is_over:
            return
        self.leader, self._is_appointed = min(self._workers), True
        self._serve_all()

    def accept(self, worker: int, incarnation: int) -> tuple[int, int]:
        """Take over, as the worker that was appointed.

        Returns:
            The leader's token; and the first ticket of a set that the leader before may have applied, wholly or in
            part, -1 if there is none. `choose` gives that set again.

        Raises:
            StateLostError: the worker has not been appointed, or does not take part any more.
        """
        refusal = self._refusal(worker, incarnation)
        if refusal is not None:
            raise refusal
        if worker != self.leader or not self._is_appointed:
            raise StateLostError(f"worker {worker} has not been appointed to lead")
        self._is_appointed = self._has_ended_choosing = False
        return self.token, -1 if self._handed is None else self._handed.tickets[0]

    def _refusal(self, worker: int, incarnation: int) -> Exception | None:
        """Return the reason to refuse a worker's request; None if there is none."""
        if self._closed is not None:
            return CancelledError(self._closed)
        if self._abandoned is not None:
            return StateLostError(self._abandoned)
        if not self._is_member(worker, incarnation):
            return StateLostError(f"worker {worker} does not take part any more")
        return None

    def lost(self, task: str, incarnation: int) -> list[int]:
        """Let the workers of a task go that is gone; return their numbers."""
        gone = [n for n, each in self._workers.items() if (each.task, each.incarnation) == (task, incarnation)]
        for worker in gone:
            self._drop(worker)
        self._enrolments = [each for each in self._enrolments if (each[2], each[3]) != (task, incarnation)]
        if self._beginner == (task, incarnation):
            self._beginner = None
        self._settle()
        return gone

    def _drop(self, worker: int) -> None:
        del self._workers[worker]
        self._places.remove(worker)
        self._contributors.discard(worker)
        self._retiring.discard(worker)
        self._void(worker)
        waiting = [take[0] for take in self._takes if take[1] == worker]
        waiting += [hear[0] for hear in self._hears if hear[2] == worker]
        self._takes = [take for take in self._takes if take[1] != worker]
        self._hears = [hear for hear in self._hears if hear[2] != worker]
        for attempt in waiting:
            attempt.fail(StateLostError(f"worker {worker} does not take part any more"))
        if worker == self.leader:
            self._depose()

    def _void(self, worker: int) -> None:
        """Hand out again what a worker has out; where others compute it together, all begin again."""
        if self._is_needed(worker):
            self._begin_again(worker)
        for number in sorted(self._out_of.pop(worker, ())):
            out = self._out.pop(number)
            out.give_up()
            self._hand_back(out.share, is_dropped=False)

    # --- epochs -----------------------------------------------------------------------------------------------------

    def begin_epoch(self, batches: int, shares: int | None = None, done: Sequence[int] = ()) -> int:
        """Begin an epoch, or go on with one that was interrupted.

        Args:
            batches: how many global batches it has; -1 where the leader supplies them.
            shares: how many shares make a step of it, if that has changed.
            done: the shares that are done.

        Returns:
            Its number.
        """
        self.check_whole_batches(self._shares if shares is None else shares, done)
        self.epoch += 1
        self._shares = self._shares if shares is None else shares
        self._total = self._open(batches) * self._shares
        before = set(done)
        self._pool = [share for share in range(self._total) if share not in before]
        self._undone = set(self._pool)
        self._void_all()
        self._is_running = True
        self._contributors.clear()
        self._settle()
        return self.epoch

    def end_epoch(self) -> None:
        """End the epoch now: shares that are not done are not handed out any more."""
        self._is_running = self._is_open = False
        self._rows.clear()
        self._pool.clear()
        self._undone.clear()
        self._void_all()
        self._settle()

    def _void_all(self) -> None:
        """Forget all that is out or counted."""
        self._forget_cut(CancelledError("the epoch is over"))
        for out in self._out.values():
            out.give_up()
        self._counted.clear()
        self._out.clear()
        self._out_of.clear()

    def close(self, reason: str) -> None:
        """End everything: whoever asks or waits gets a `CancelledError` with the reason."""
        self._closed = self._closed or reason
        self._is_running = False
        self._fail_all([each[0] for each in [*self._takes, *self._enrolments]], CancelledError(self._closed))
        for out in self._out.values():
            out.give_up()
        self._forget_cut(CancelledError(self._closed))
        self._takes.clear()
        self._enrolments.clear()

    # --- requests that wait -----------------------------------------------------------------------------------------

    def withdraw(self, attempt: Attempt) -> None:
        """Forget a request that waits."""
        self._takes = [each for each in self._takes if each[0] is not attempt]
        self._hears = [each for each in self._hears if each[0] is not attempt]
        self._enrolments = [each for each in self._enrolments if each[0] is not attempt]
        self._assemblies = [each for each in self._assemblies if each[0] is not attempt]
        self._withdraw_sum(attempt)
        if attempt in self._chooses:
            self._chooses.remove(attempt)
        for out in self._out.values():
            out.watch = None if out.watch is attempt else out.watch

    # --- what workers ask -------------------------------------------------------------------------------------------

    def take(self, worker: int, incarnation: int, epoch: int) -> Attempt:
        """Ask for a ticket of an epoch; it waits for the epoch to begin, and for the step before to be applied.

        A ticket that the worker still has out is void.
        """
        attempt = Attempt(1)
        refusal = self._refusal(worker, incarnation)
        if refusal is not None:
            attempt.fail(refusal)
        else:
            is_void = worker in self._out_of
            if is_void:
                self._void(worker)
            ticket = None if is_void else self._ticket_alone(worker, epoch)
            if ticket is not None:
                attempt.finish(ticket)
            else:
                self._takes.append((attempt, worker, incarnation, epoch))
            if is_void or (ticket is not None and not self._pool):
                self._settle()
        return attempt

    def _ticket_alone(self, worker: int, epoch: int) -> Ticket | None:
        """Return the ticket of a worker that asks now; those that wait do so still.

        There may be thousands that wait, whose turn a request of another worker changes only by handing shares back, or
        by taking the last one.
        """
        self._is_served = None
        return self._ticket_for(worker, epoch)

    def commit(self, worker: int, incarnation: int, number: int, rows: int) -> Receipt:
        """Count the gradients that a worker has put under a ticket, of so many rows."""
        out = self._out.get(number)
        if out is None or out.worker != worker or not self._is_member(worker, incarnation):
            return self._receipt(worker, Receipt.REFUSED)
        self._take_back(number)
        if self._is_measured(out.step):
            self._arrivals.add(out.step, worker, self.clock() - out.since, len(self._workers))
        if out.share not in self._undone or out.share in self._counted:
            self._settle()
            return self._receipt(worker, Receipt.DUPLICATE)
        staleness = self._chosen - out.step
        self._staleness[staleness] += 1
        allowed = 0 if self._synchronous else self._max_staleness
        if allowed is not None and staleness > allowed:
            self._hand_back(out.share, is_dropped=True)
            self._settle()
            return self._receipt(worker, Receipt.LATE)
        for share in range(out.share, out.share + out.length):
            self._counted[share] = (number, rows, worker)
        self._serve_sums()
        if out.step == self._chosen:
            self._contributors.add(worker)
        is_whole = self._choose_whole()
        lacks_rows = self._useful < len(self._counted)
        if is_whole or lacks_rows or not self._synchronous or self._retiring:
            self._settle()  # else nobody's turn has come: there may be thousands
        return self._receipt(worker, Receipt.TAKEN)

    def _hand_back(self, share: int, is_dropped: bool) -> None:
        if share not in self._undone or share in self._counted or share in self._pool:
            return
        if any(out.share == share for out in self._out.values()):
            return  # another worker is at it
        if is_dropped and not self._requeue:
            self._undone.discard(share)
            self._rows.pop(share, None)
            self._choose_whole()
        else:
            bisect.insort(self._pool, share)

    # --- what applies steps -----------------------------------------------------------------------------------------

    def _choose(self) -> None:
        # More than are wanted are there only if the step has waited for one with rows: the others are of the next step.
        first = sorted(self._counted, key=lambda share: (not self._counted[share][1], share))
        shares = sorted(first[: self._wanted])
        chosen = [self._counted.pop(share) for share in shares]
        self._undone.difference_update(shares)
        for share in shares:
            self._rows.pop(share, None)
        step, self._chosen = self._chosen, self._chosen + 1
        self._give_up_late()
        self._forget_cut(ValueError(f"step {step} is over, and all its sums are"))
        self._contributors.clear()
        self._unapplied[step] = [
            (number, share, worker) for share, (number, _, worker) in zip(shares, chosen, strict=True)
        ]
        in_use = [*self._out, *(number for number, *_ in self._counted.values())]
        in_use += [number for each in self._unapplied.values() for number, *_ in each]
        rows_of = {number: rows for number, rows, _ in chosen}  # a ticket may be for several shares
        tickets, rows = list(rows_of), list(rows_of.values())
        self._sets.append(Chosen(step, tickets, rows, min(in_use, default=self._next_ticket)))

    def choose(self) -> Attempt:
        """Ask for the set of the next step; it waits until there is one."""
        attempt = Attempt(1)
        if self._closed is not None:
            attempt.fail(CancelledError(self._closed))
        elif self._has_ended_choosing:
            attempt.fail(CancelledError(_NO_FURTHER_SET))
        else:
            self._chooses.append(attempt)
            self._settle()
        return attempt

    def end_choosing(self) -> None:
        """Have whoever waits for a set fail with `CancelledError`, and who asks before another leader begins.

        A thread that applies a set when this is called asks for the next one afterwards.
        """
        self._has_ended_choosing = True
        while self._chooses:
            self._chooses.popleft().fail(CancelledError(_NO_FURTHER_SET))

    def applied(self, step: int) -> None:
        """Take note that a step's set has been applied everywhere."""
        if self._unapplied.pop(step, None) is not None:
            self.step += 1
            if self._handed is not None and self._handed.step == step:
                self._handed = None
            self._settle()

    # --- who is served ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        while self._chooses and self._sets:
            self._handed = self._sets.popleft()
            self._chooses.popleft().finish(self._handed)
        if self._closed is not None:
            return
        self._let_in()
        self._appoint()
        if self._enrolments:  # some wait for whoever leads by now
            self._let_in()
        self._serve_assemblies()
        again = True
        while again:
            again, self._is_served = False, None
            for take in list(self._takes):
                attempt, worker, _, epoch = take
                ticket = self._ticket_for(worker, epoch)
                if ticket is not None:
                    self._takes.remove(take)
                    self._is_served = None
                    attempt.finish(ticket)
                    again = True

    def _let_in(self) -> None:
        """Let workers take part that wait for it."""
        if self.generation and self._abandoned is None:
            waiting, self._enrolments = self._enrolments, []
            for each in waiting:
                attempt, worker, task, incarnation, after, is_whole = each
                is_unwanted = after == self.generation and not (is_whole and self.leader is not None)
                if is_unwanted and not self._has_ended:
                    self._enrolments.append(each)
                else:
                    self._take_in(worker, task, incarnation)
                    attempt.finish((self.generation,))
        # Who has led in a state that is lost leads again, and does not enrol: so of all nobody has.
        is_gone = not self._is_awaited or len(self._enrolments) == self._all
        is_lost = self._abandoned is not None or (is_gone and not self._workers and not self._has_ended)
        if self._enrolments and self._is_free and is_lost:
            lowest = min(self._enrolments, key=lambda each: each[1])
            self._enrolments.remove(lowest)
            self._beginner = lowest[2], lowest[3]
            lowest[0].finish((LEAD,))

    def _ticket_for(self, worker: int, epoch: int) -> Ticket | None:
        """Return a ticket; None if the worker has to wait."""
        if worker in self._retiring:
            return Ticket(LEAVE, self.step, 0)
        if epoch < self.epoch:
            return Ticket(NO_TICKET, self.step, 0)
        if worker == self.leader and self._is_appointed:  # and has seen all epochs before
            return Ticket(LEAD, self.step, 0)
        if epoch > self.epoch:
            return None
        if worker == self.leader and self._wants_supply:
            return Ticket(SUPPLY, self.step, 0)
        if not self._is_running or not (self._undone or self._is_open):
            return None if self._unapplied else Ticket(NO_TICKET, self.step, 0)
        if self.are_too_few and not self._is_needed(worker):  # others are at the step that it is needed for
            return None
        if self._has_to_wait(worker):
            return None
        part = self._part_for(worker)
        if part is None:
            return None
        number, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._out[number] = Out(worker, self.step, part[0], self.clock(), length=part[1])
        self._out_of.setdefault(worker, set()).add(number)
        return Ticket(number, self.step, *part)
