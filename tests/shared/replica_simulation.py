"""`Simulation`: the protocol of replicas with workers that do anything at any time, in an order that a seed draws.

It lets workers take, commit, stop, end and come back, and applies sets as `ReplicaGradients` would.
"""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest

from anabranch.distribute.enrolment import Enrolment, Wish
from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.errors import CancelledError, StateLostError
from anabranch.engine.queues.replica_shares import MEASURED_EACH
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import LEAD, LEAVE, NO_TICKET, SUPPLY, Chosen, Receipt, Ticket


class Simulation:
    """Workers that take, commit, end and come back in any order; sets are applied in between.

    Now and then all state is lost. Then training begins again from a backup, which is taken at any time. Leaders are
    lost, too, also while they apply a set: nothing of it is written then, all or a part. Workers that were taken for
    dead commit what they are at nevertheless. With cuts, workers lose their connections to ps tasks that go on, and
    enrol again.

    Args:
        seed: of all that happens.
        is_supplied: whether the leader supplies the batches. Then state can't be lost: there would be no rows.
        is_together: whether workers exchange sums while they compute. Some shares have no rows then.
        has_few_rows: whether batches have one row, of the last share.
        has_cuts: whether connections of workers are cut.
    """

    def __init__(
        self,
        seed: int,
        is_supplied: bool = False,
        is_together: bool = False,
        has_few_rows: bool = False,
        has_cuts: bool = False,
    ) -> None:
        self.is_supplied, self.is_together, self.has_few_rows = is_supplied, is_together, has_few_rows
        self.has_cuts = has_cuts
        self.ps: dict[str, int | None] = {"ps 0": 0, "ps 1": 0}  # their starts; None for one that does not answer
        self.enrolments: dict[int, Enrolment] = {}  # of workers
        self.waiting: dict[int, Attempt] = {}  # by worker that has no connection: to take part again
        self.cuts = self.returns = 0
        self.beginnings: collections.Counter[int] = collections.Counter()  # by worker: how often it came to take part
        self.rng = random.Random(seed)
        self.workers = self.rng.randint(1, 5)
        self.synchronous = self.rng.random() < 0.7 or is_together
        self.shares = self.rng.randint(1, self.workers) if self.synchronous else 1
        self.requeue = self.rng.random() < 0.7 or is_together
        stale = None if self.synchronous else self.rng.choice([None, 0, 2])
        self.least = least = self.rng.randint(1, self.workers)
        self.backups = self.rng.randint(0, self.workers - 1) if self.synchronous and not is_together else 0
        self.state = ReplicaStepsState(
            self.shares, self.synchronous, self.requeue, stale, least, self.backups, together=is_together
        )
        self.sums: dict[int, list[tuple[Attempt, int]]] = {}  # by worker, with the bits that they are to have
        self.tags: dict[int, int] = {}  # by ticket: how many steps had begun again when it was taken
        self.sums_made = self.begun_again = 0
        self.may_return = self.rng.random() < 0.5  # whether lost workers come back while those that are left suffice
        self.ghosts: list[
            tuple[int, int, Ticket]
        ] = []  # with worker and incarnation: tickets of who was taken for dead
        self.taken: dict[int, tuple[tuple[int, int], Ticket]] = {}  # by number, with the giver: what no set has yet
        self.skipped: set[int] = set()  # shares that are not to be handed out again
        self.incarnations = dict.fromkeys(range(self.workers), 0)
        self.tickets: dict[int, Ticket] = {}
        self.takes: dict[int, Attempt] = {}
        self.watches: dict[int, Attempt] = {}  # by worker: of the ticket that it has
        self.held: dict[int, range] = {}  # what stores keep: by ticket the shares
        self.horizon = 0
        self.done: list[int] = []
        self.tokens: list[int] = [0]
        self.takeovers = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have a worker lead a generation, and all enrol."""
        for worker in list(self.tickets):
            self.haunt(worker)
        self.taken.clear()
        self.skipped.clear()
        self.takes.clear()
        self.sums.clear()
        self.ps[self.rng.choice(list(self.ps)) if self.has_cuts else "ps 1"] = len(self.tokens)
        self.leader = self.rng.choice(list(self.incarnations))
        self.tokens.append(self.state.lead(self.leader, f"task {self.leader}", self.incarnations[self.leader]))
        self.written = self.half_written = -1
        self.choosing = self.state.choose()
        self.waiting.pop(self.leader, None)
        for worker in self.incarnations:
            if worker != self.leader and worker in self.waiting:
                self.come_back(worker)
                assert worker not in self.waiting, "state that was lost is not waited for, when it is there again"
            elif worker != self.leader:
                self.join(worker)

    def cut(self, worker: int) -> None:
        """Cut the connections of a worker, which enrols again; ps task 0 may notice before."""
        self.cuts += 1
        self.beginnings[worker] += 1  # where it is dropped, it counts as another one
        if self.rng.random() < 0.5:
            self.lose(worker)
        self.haunt(worker)
        self.takes.pop(worker, None)
        self.enrolments[worker].note_error(True, may_restore=self.rng.random() < 0.9)
        self.enrol(worker)

    def enrol(self, worker: int) -> None:
        """Have a worker ask to take part, while a ps task may not answer; it may have asked before."""
        absent = self.rng.choice([None, None, *self.ps])
        self.is_silent = absent is not None
        wish = self.enrolments[worker].wish() if absent is None else self.wish_without(worker, absent)
        self.waiting[worker] = self.state.enrol(
            worker, f"task {worker}", self.incarnations[worker], wish.after, is_whole=wish.is_whole
        )

    def wish_without(self, worker: int, absent: str) -> Wish:
        start, self.ps[absent] = self.ps[absent], None
        wish = self.enrolments[worker].wish()
        self.ps[absent] = start
        return wish

    def come_back(self, worker: int) -> None:
        """Have a worker take part that was let in; if it has to wait, it asks once more some time."""
        attempt = self.waiting[worker]
        if attempt.is_done and attempt.outcome() != (self.state.generation,):  # state was lost when it had just come
            self.enrolments[worker].note_error(False, may_restore=True)
        if not attempt.is_done or attempt.outcome() != (self.state.generation,):
            self.enrol(worker)
        if self.waiting[worker].is_done:
            assert self.waiting.pop(worker).outcome() == (self.state.generation,)
            self.enrolments[worker].enter(self.state.generation)
            self.returns += 1
            return
        is_led = self.state.leader is not None and self.state._abandoned is None
        assert self.is_silent or not is_led, "who was cut off takes part again, as long as anybody leads"

    def take_over(self, worker: int) -> None:
        token, mark = self.state.accept(worker, self.incarnations[worker])
        assert token > self.tokens[-1], "tokens grow"
        self.tokens.append(token)
        self.leader = worker
        self.takeovers += 1
        self.choosing = self.state.choose()
        if mark == self.half_written != -1:
            self.lose_state()
        elif mark == self.written != -1:
            chosen = self.choosing.outcome()
            assert chosen.tickets[0] == mark
            self.state.applied(chosen.step)
            self.choosing = self.state.choose()

    def lose_state(self) -> None:
        """Go back to the backup."""
        self.begin_anew()
        self.done = [share for share in self.done if share in self.backup]
        self.state.begin_epoch(self.batches, self.shares, sorted(self.backup))

    def lose(self, worker: int) -> None:
        """Take a worker for dead."""
        self.waiting.pop(worker, None)
        self.state.lost(f"task {worker}", self.incarnations[worker])
        self.haunt(worker)

    def haunt(self, worker: int) -> None:
        """Note what a worker is at that is taken for dead."""
        if worker in self.tickets:
            self.ghosts.append((worker, self.incarnations[worker], self.tickets.pop(worker)))

    def join(self, worker: int) -> None:
        self.haunt(worker)
        self.incarnations[worker] += 1
        self.beginnings[worker] += 1
        self.takes.pop(worker, None)
        self.state.join(worker, f"task {worker}", self.incarnations[worker])
        self.enrolments[worker] = Enrolment(list(self.ps), self.ps.__getitem__)
        self.enrolments[worker].enter(self.state.generation)

    def event(self, may_fail: bool) -> None:
        assert self.tokens == sorted(set(self.tokens))
        for old in self.tokens[:-1]:
            with pytest.raises((CancelledError, StateLostError), match=r"does not lead any more|was given up"):
                self.state.check_leader(old)
        self.check_shares()
        if self.ghosts and self.rng.random() < 0.05:
            dead, incarnation, ticket = self.ghosts.pop(self.rng.randrange(len(self.ghosts)))
            receipt = self.state.commit(dead, incarnation, ticket.number, self.rows_of(ticket))
            assert receipt is Receipt.REFUSED, "gradients of a dead incarnation do not count"
        worker = self.rng.choice(list(self.incarnations))
        alive = worker in self.state.members
        draw = self.rng.random()
        if self.has_cuts and worker in self.waiting:
            self.come_back(worker)
        elif self.has_cuts and may_fail and alive and worker != self.leader and self.rng.random() < 0.04:
            self.cut(worker)
        elif may_fail and draw < 0.01 and not self.is_supplied:
            self.lose_state()
        elif may_fail and draw < 0.02 and self.state.token == self.tokens[-1]:
            self.backup = set(self.state.account())
            assert set(self.done) <= self.backup, "what is applied is in the account"
            assert not self.requeue or set(self.done) == self.backup, "and nothing else is"
        elif may_fail and draw < 0.03 and alive:
            self.state.retire(worker, self.incarnations[worker])
        elif may_fail and draw < 0.05 and alive:
            self.lose(worker)
        elif draw < 0.1 and not alive:
            if self.may_return or may_fail or len(self.state.members) <= self.least:
                self.join(worker)
        elif draw < 0.3 and self.state.token == self.tokens[-1]:
            self.apply(may_fail)
        elif may_fail and draw < 0.32 and alive and worker in self.tickets and self.is_together:
            self.tickets.pop(worker)  # its step has failed; it asks for another ticket
            self.sums.pop(worker)
        elif alive and worker in self.tickets and self.is_together and not self.may_commit(worker):
            pass
        elif alive and worker in self.tickets:
            self.commit(worker, self.tickets.pop(worker))
        elif alive:
            take = self.takes.pop(worker, None) or self.asked(worker)
            if not take.is_done:
                self.takes[worker] = take
            elif take.outcome().number == LEAVE:
                is_leader = worker == self.leader and self.state.token == self.tokens[-1]
                if not is_leader:
                    self.state.leave(worker, self.incarnations[worker])
                elif not self.state.hand_over(worker, self.incarnations[worker]):
                    self.lose(worker)
            elif take.outcome().number == LEAD:
                self.take_over(worker)
            elif take.outcome().number == SUPPLY:
                assert worker == self.leader
                self.supply()
            elif take.outcome().number != NO_TICKET:
                share = take.outcome().share
                is_done = share not in self.state._undone  # by another worker
                assert not self.is_supplied or [*self.state.rows(share)] == ([] if is_done else [share]), "its rows"
                self.tickets[worker] = take.outcome()
                self.sums[worker] = []
                self.tags[take.outcome().number] = self.state._begun_again
                self.watches[worker] = self.state.watch(worker, self.incarnations[worker], take.outcome().number)

    def asked(self, worker: int) -> Attempt:
        """Have a worker ask for a ticket; check that it gets one when that is due, whenever that is."""
        take = self.state.take(worker, self.incarnations[worker], self.state.epoch)
        if take.is_done:
            self.check_due(worker, take)
        else:
            take.on_done = lambda: self.check_due(worker, take)
        return take

    def check_due(self, worker: int, take: Attempt) -> None:
        """Check that a worker may have what it is given."""
        if take.error is not None or take.outcome().number < 0:
            return
        ticket: Ticket = take.outcome()
        present = [each for each in self.state.members if each not in self.state._retiring]
        is_needed = self.is_together and self.state._is_needed(worker)
        assert len(present) >= self.least or is_needed, "steps are made with so many workers"
        assert ticket.share not in self.skipped, "dropped rows are not handed out again"
        assert ticket.step == self.state.step, "it names the step whose parameters it reads"
        if not self.synchronous or self.is_together:
            return
        assert ticket.step == self.state._chosen, "it reads what all steps before have made"
        those = [(each, other.share) for each, other in self.taken.values() if other.step == ticket.step]
        assert ticket.share not in [share for _, share in those], "these rows count already"
        givers = {each for each, _ in those}
        if self.has_few_rows:  # shares without rows may count for a later step than that of their tickets
            return
        if (worker, self.beginnings[worker]) in givers:
            others = len([each for each in present if (each, self.beginnings[each]) not in givers])
            assert len(those) + others < self.state._wanted, "a set is of different workers, if there are enough"

    def check_shares(self) -> None:
        """Check that each share that is not done is in one place: to be handed out, at a worker, or put."""
        state = self.state
        pool, put = set(state._pool), set(state._counted)
        out = {share for each in state._out.values() for share in range(each.share, each.share + each.length)}
        assert state._pool == sorted(pool), "each share once, in order"
        assert not pool & put, "what counts is not handed out again"
        assert not pool & out, "nor is what a worker is at"
        if state._is_running:
            assert pool | put <= state._undone <= pool | put | out, "no share is forgotten, none comes back"
        for each in state._out.values():
            assert each.worker in state.members, "the tickets of an incarnation end with it"
        self.check_idle()
        if state._begun_again != self.begun_again:
            self.begun_again = state._begun_again
            self.taken = {number: each for number, each in self.taken.items() if number not in self.voided()}

    def check_idle(self) -> None:
        """Check that nobody waits who has had no share of the step, as long as one more may be computed."""
        state = self.state
        is_led = state.leader is not None and not state._is_appointed and state._abandoned is None
        if not self.synchronous or self.is_together or state._unapplied or not is_led or state.are_too_few:
            return
        idle = {worker for _, worker, _, epoch in state._takes if epoch == state.epoch} - state._contributors
        if idle - state._retiring and state._pool:
            at_work = state._useful + len(state._out)
            assert at_work >= state._wanted + self.backups, "backup workers compute shares of the next batch"

    def voided(self) -> set[int]:
        """Return the tickets that counted, until their step began again."""
        kept = {number for each in self.state._unapplied.values() for number, *_ in each}
        return set(self.taken) - kept - {number for number, *_ in self.state._counted.values()}

    def supply(self) -> None:
        """Have the leader read the next batch, or find that there is none."""
        number = int(self.state.supplied() or "0")
        if number == self.batches:
            self.state.seal(str(number))
        else:
            first = number * self.shares
            rows = np.arange(first, first + self.shares, dtype="uint8")
            self.state.supply(number, [1] * self.shares, rows, str(number + 1))

    def rows_of(self, ticket: Ticket) -> int:
        if self.has_few_rows:
            return int((ticket.share + 1) % self.shares == 0)
        return 0 if self.is_together and ticket.share % 5 == 1 else ticket.share + 1

    def may_commit(self, worker: int) -> bool:
        """Have a worker ask for the next sum, if it has the one before; test whether it has all of them, or no rows."""
        ticket, sums = self.tickets[worker], self.sums[worker]
        tag = self.tags[ticket.number]
        if sums and not sums[-1][0].is_done:
            return False
        if sums and sums[-1][0].error is not None:
            assert isinstance(sums[-1][0].error, CancelledError)
            assert ticket.number not in self.state._out, "only what is void is ended"
            return True
        if sums:
            attempt, expected = sums[-1]
            (total,) = attempt.outcome()
            assert total[1] * tag == total[2], "no sum has addends of two cuts"
            assert total[0] == expected, "nor of a part of the batch"
            self.sums_made += 1
        if len(sums) == 2 or not self.rows_of(ticket):
            return True
        value = np.array([self.bits(ticket.share, ticket.length), 1, tag])
        parts = [part for part in self.state._cut.values() if self.rows_of(Ticket(-1, -1, *part))]
        attempt = self.state.sum(ticket.number, len(sums), value)
        sums.append((attempt, sum(self.bits(*part) for part in parts)))
        return False

    def bits(self, first: int, length: int) -> int:
        """Return a number that has a bit for each share."""
        return sum(1 << share % self.shares for share in range(first, first + length))

    def commit(self, worker: int, ticket: Ticket) -> None:
        """Have a worker put and commit its share, or give it up if it comes too late."""
        number, step, share, length = ticket
        watch, sums = self.watches.pop(worker), self.sums.pop(worker)
        given_up = watch.error is not None
        if number >= self.horizon and not given_up:
            self.held[number] = range(share, share + length)
        self.check_of_one_start(worker, number)
        receipt = self.state.commit(worker, self.incarnations[worker], number, self.rows_of(ticket))
        assert receipt is Receipt.REFUSED or not any(each.error for each, _ in sums), "its step has begun again"
        if receipt is Receipt.TAKEN:
            self.taken[number] = (worker, self.beginnings[worker]), ticket
        if receipt is Receipt.LATE and not self.requeue and share not in self.state._undone:
            self.skipped.add(share)
        if receipt is Receipt.LATE and not self.requeue:
            is_elsewhere = any(out.share == share for out in self.state._out.values()) or share in self.state._counted
            assert is_elsewhere or share not in self.state._undone, "dropped rows are skipped"
        assert watch.is_done, "nobody waits for what is committed"
        assert not (given_up and receipt is Receipt.TAKEN), "it was of no use"
        assert given_up or receipt is not Receipt.LATE or not self.backups or step % MEASURED_EACH == 0

    def check_of_one_start(self, worker: int, number: int) -> None:
        """Check that nobody but the start of a worker that has taken a ticket can commit it."""
        others = [(other, start) for other, start in self.incarnations.items() if other != worker]
        for other, start in [(worker, self.incarnations[worker] - 1), *others[:1]]:
            receipt = self.state.commit(other, start, number, 1)
            assert receipt is Receipt.REFUSED, "a ticket is of one start of one worker"

    def apply(self, may_fail: bool) -> None:
        if not self.choosing.is_done:
            return
        chosen = self.choosing.outcome()
        kinds = ["before", "behind"] if self.is_supplied else ["before", "half", "behind"]
        crash = self.rng.choice(kinds) if may_fail and self.rng.random() < 0.1 else ""
        if crash != "before":
            self.write(chosen, is_whole=crash != "half")
        if crash:
            self.lose(self.leader)
        else:
            self.state.applied(chosen.step)
            self.choosing = self.state.choose()

    def write(self, chosen: Chosen, is_whole: bool) -> None:
        if not is_whole:
            self.half_written = chosen.tickets[0]
            return
        self.written = chosen.tickets[0]
        for number in chosen.tickets:
            assert number in self.taken, "a set has what was receipted as taken"
            del self.taken[number]
        held = [self.held.pop(number) for number in chosen.tickets]  # a KeyError: values were forgotten too early
        shares = [share for each in held for share in each]
        assert shares == sorted(set(shares)), "different shares, in order"
        assert chosen.rows == [self.rows_of(Ticket(-1, -1, each[0])) for each in held]
        assert 1 <= len(shares) <= self.shares
        left = any(self.rows_of(Ticket(-1, -1, share)) for share in self.state._undone)
        assert any(chosen.rows) or not left or self.is_together, "a step has rows, as long as there are any"
        is_last = not (self.state._undone or self.state._is_open)
        assert len(shares) == self.shares or is_last, "a set has all that the step needs"
        if self.synchronous and not self.backups:
            assert len({share // self.shares for share in shares}) == 1, "a step is one batch, whoever is lost or back"
            assert len(shares) == self.shares
        self.horizon = max(self.horizon, chosen.horizon)
        self.held = {number: share for number, share in self.held.items() if number >= self.horizon}
        self.done += shares
        assert len(self.done) == len(set(self.done)), "a share counts once"

    def epoch(self, batches: int) -> None:
        self.done, self.backup, self.batches = [], set(), batches
        self.taken.clear()
        self.skipped.clear()
        if self.synchronous and self.state.epoch:  # as many as take part by now
            self.shares = self.rng.randint(1, self.workers)
        self.state.begin_epoch(-1 if self.is_supplied else batches, self.shares)
        for count in range(20_000):
            self.event(may_fail=count < 200)
            is_led = self.state.token == self.tokens[-1]
            if is_led and not (self.state._undone or self.state._unapplied or self.state._is_open):
                break
        else:
            raise AssertionError(f"no progress: {self.state.describe()}")
        total = batches * self.shares
        assert not self.taken, "what was receipted as taken is in a set"
        assert set(self.done) <= set(range(total))
        if self.requeue:
            assert len(self.done) == total, "each share counts"


__all__ = ["Simulation"]
