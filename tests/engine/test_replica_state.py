"""The protocol of replicas as a state machine: who gets which share, which gradients count, and that none counts twice.

The simulator lets workers take, commit, stop, end and come back in an order that a seed draws. It applies sets as
`ReplicaGradients` would, and checks after each event what has to hold.
"""

import random

import pytest

from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.errors import CancelledError, StateLostError
from anabranch.engine.queues.replica_state import NO_TICKET, Receipt, ReplicaStepsState, Ticket


def joined(shares: int, workers: int, **options: object) -> ReplicaStepsState:
    state = ReplicaStepsState(shares, **options)  # type: ignore[arg-type]
    for worker in range(workers):
        state.join(worker, f"/job:worker/task:{worker}", 100 + worker)
    return state


def ticket(state: ReplicaStepsState, worker: int, epoch: int = 1) -> Ticket:
    attempt = state.take(worker, 100 + worker, epoch)
    assert attempt.is_done, f"worker {worker} waits"
    return attempt.outcome()


def test_without_drops_each_worker_has_its_part_of_each_batch_in_turn():
    state = joined(2, 2)
    state.begin_epoch(2)
    found = []
    for _ in range(2):
        second, first = ticket(state, 1), ticket(state, 0)  # whoever asks first
        found.append((first.step, first.share, second.share))
        assert state.commit(1, 101, second.number, 3) is Receipt.TAKEN
        waits = state.take(1, 101, 1)
        assert not waits.is_done, "a worker has one share of a step"
        state.withdraw_take(waits)
        assert state.commit(0, 100, first.number, 5) is Receipt.TAKEN
        chosen = state.choose().outcome()
        assert chosen.tickets == [first.number, second.number], "in the order of shares"
        assert chosen.rows == [5, 3]
        state.applied(chosen.step)
    assert found == [(0, 0, 1), (1, 2, 3)]
    assert ticket(state, 0).number == ticket(state, 1).number == NO_TICKET


def test_a_step_begins_when_the_one_before_is_applied():
    state = joined(1, 1)
    state.begin_epoch(2)
    state.commit(0, 100, ticket(state, 0).number, 1)
    waits = state.take(0, 100, 1)
    chosen = state.choose().outcome()
    assert not waits.is_done
    state.applied(chosen.step)
    assert waits.outcome() == Ticket(1, 1, 1)


def test_with_a_backup_the_first_count_and_the_last_is_handed_out_again():
    state = joined(2, 3)
    state.begin_epoch(2)
    tickets = [ticket(state, worker) for worker in range(3)]
    assert [each.share for each in tickets] == [0, 1, 2]
    assert state.commit(2, 102, tickets[2].number, 1) is Receipt.TAKEN
    assert state.commit(1, 101, tickets[1].number, 1) is Receipt.TAKEN
    assert state.commit(0, 100, tickets[0].number, 1) is Receipt.LATE
    chosen = state.choose().outcome()
    assert chosen.tickets == [tickets[1].number, tickets[2].number]
    state.applied(chosen.step)
    again = [ticket(state, worker) for worker in range(3)]
    assert {each.share for each in again} == {0, 3}, "the dropped share, the last one, and one of them twice"
    first, other = again[0], again[1]
    twin = again[2]
    for worker, each in enumerate((first, other)):
        assert state.commit(worker, 100 + worker, each.number, 1) is Receipt.TAKEN
    assert state.commit(2, 102, twin.number, 1) is Receipt.DUPLICATE
    state.applied(state.choose().outcome().step)
    assert ticket(state, 0).number == NO_TICKET
    assert state.statistics()["receipts"]["0"] == {"taken": 1, "late": 1, "duplicate": 0, "refused": 0}


def test_shares_of_a_worker_that_is_gone_are_done_by_the_others():
    state = joined(2, 2)
    state.begin_epoch(1)
    mine, lost = ticket(state, 0), ticket(state, 1)
    state.commit(0, 100, mine.number, 1)
    waits = state.take(0, 100, 1)
    assert not waits.is_done
    assert state.lost("/job:worker/task:1", 101) == [1]
    again = waits.outcome()
    assert (again.step, again.share) == (0, lost.share), "the step needs two shares, and one worker is left"
    assert state.commit(1, 101, lost.number, 1) is Receipt.REFUSED
    assert state.commit(0, 100, again.number, 1) is Receipt.TAKEN
    assert state.choose().outcome().tickets == [mine.number, again.number]


def test_a_worker_that_is_back_begins_anew():
    state = joined(1, 1)
    state.begin_epoch(1)
    old = ticket(state, 0)
    state.join(0, "/job:worker/task:0", 200)
    assert state.commit(0, 100, old.number, 1) is Receipt.REFUSED
    again = state.take(0, 200, 1).outcome()
    assert again.share == old.share
    assert again.number != old.number
    with pytest.raises(StateLostError, match="does not take part"):
        state.take(0, 100, 1).outcome()


def test_an_epoch_may_end_early():
    state = joined(1, 2)
    state.begin_epoch(5)
    out = ticket(state, 0)
    state.end_epoch()
    assert ticket(state, 1).number == NO_TICKET
    assert state.commit(0, 100, out.number, 1) is Receipt.REFUSED
    waits = state.take(0, 100, 2)
    assert not waits.is_done, "the next epoch has not begun"
    assert state.begin_epoch(1) == 2
    assert waits.outcome().share == 0


def test_a_ticket_that_is_not_committed_is_void_with_the_next_one():
    state = joined(1, 1)
    state.begin_epoch(1)
    old = ticket(state, 0)
    again = ticket(state, 0)
    assert again.share == old.share
    assert state.commit(0, 100, old.number, 1) is Receipt.REFUSED


def test_closing_tells_why():
    state = joined(1, 1)
    waits, chooses = state.take(0, 100, 1), state.choose()
    state.close("the disk is full")
    for attempt in (waits, chooses, state.take(0, 100, 1), state.choose()):
        with pytest.raises(CancelledError, match="the disk is full"):
            attempt.outcome()


def test_announcements_are_heard_by_number_also_by_those_that_come_later():
    state = joined(1, 2)
    waits, given_up = state.hear(1, 101, 0), state.hear(1, 101, 0)
    assert not waits.is_done
    state.withdraw_hear(given_up)
    state.announce("first")
    assert waits.outcome() == ("first",)
    assert not given_up.is_done
    second = state.hear(1, 101, 1)
    state.announce("second")
    assert second.outcome() == ("second",)
    assert state.hear(1, 101, 0).outcome() == ("first",)
    waits = state.hear(1, 101, 2)
    state.close("the chief is gone")
    assert state.hear(1, 101, 1).outcome() == ("second",), "what was said before counts"
    for attempt in (waits, state.hear(1, 101, 2)):
        with pytest.raises(CancelledError, match="the chief is gone"):
            attempt.outcome()


def test_asynchronous_gradients_count_one_by_one_and_stale_ones_do_not():
    state = joined(1, 3, synchronous=False, max_staleness=1)
    state.begin_epoch(4)
    tickets = [ticket(state, worker) for worker in range(3)]
    assert [each.step for each in tickets] == [0, 0, 0]
    found = [state.commit(worker, 100 + worker, tickets[worker].number, 1) for worker in range(3)]
    assert found == [Receipt.TAKEN, Receipt.TAKEN, Receipt.LATE]
    assert ticket(state, 2) == Ticket(3, 0, 2), "the stale share again, before those that follow"
    assert [state.choose().outcome().tickets for _ in range(2)] == [[0], [1]]
    assert state.statistics()["staleness"] == {"0": 1, "1": 1, "2": 1}


def test_training_that_begins_anew_goes_on_with_the_shares_that_are_left():
    state = ReplicaStepsState(2)
    early = state.enrol(1, "/job:worker/task:1", 101, 0)
    assert not early.is_done, "nobody leads yet"
    assert state.lead(0, "/job:worker/task:0", 100, 7) == 7, "at least so much"
    assert early.outcome() == (7,)
    state.begin_epoch(2)
    before = [ticket(state, worker) for worker in range(2)]
    for worker, each in enumerate(before):
        state.commit(worker, 100 + worker, each.number, 1)
    chosen = state.choose().outcome()
    assert state.account() == [], "it is not applied"
    state.applied(chosen.step)
    assert state.account() == [0, 1]
    ticket(state, 0)
    late, waits, hears = ticket(state, 1), state.choose(), state.hear(1, 101, 0)
    anew = state.enrol(1, "/job:worker/task:1", 101, 7)
    assert not anew.is_done, "it does not want this generation any more"
    assert state.members == [0]
    assert state.lead(0, "/job:worker/task:0", 100, 3) == 8
    assert anew.outcome() == (8,)
    for attempt in (waits, hears):
        with pytest.raises(StateLostError):
            attempt.outcome()
    assert state.commit(1, 101, late.number, 1) is Receipt.REFUSED
    assert state.begin_epoch(2, 2, [0, 1]) == 1
    after = [ticket(state, worker) for worker in range(2)]
    assert [each.share for each in after] == [2, 3]
    assert min(after).number > max(before).number, "what is put late is behind every horizon"
    with pytest.raises(CancelledError, match="token 7 does not lead any more: worker 0 leads with token 8"):
        state.check_leader(7)


def test_state_that_is_lost_fails_all_requests_until_training_begins_anew():
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    waits = [state.take(0, 100, 1), state.hear(0, 100, 0), state.choose()]
    state.abandon("a ps task is gone")
    for attempt in [*waits, state.take(0, 100, 1), state.hear(0, 100, 0)]:
        with pytest.raises(StateLostError, match="a ps task is gone"):
            attempt.outcome()
    with pytest.raises(StateLostError, match="a ps task is gone"):
        state.check_whole()
    assert not state.enrol(1, "task 1", 101, 0).is_done
    assert state.lead(0, "task 0", 100) == token + 1
    state.check_whole()
    assert state.members == [0, 1]


def test_who_enrols_when_training_has_ended_hears_all_of_it():
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    state.begin_epoch(0)
    state.announce("the end")
    state.leave(0, 100)
    assert state.enrol(1, "task 1", 101, token).outcome() == (token,)
    assert state.hear(1, 101, 0).outcome() == ("the end",)
    assert ticket(state, 1).number == NO_TICKET


class Simulation:
    """Workers that take, commit, end and come back in any order; sets are applied in between.

    Now and then all state is lost. Then training begins anew from a backup, which is taken at any time.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.workers = self.rng.randint(1, 5)
        self.synchronous = self.rng.random() < 0.7
        self.shares = self.rng.randint(1, self.workers) if self.synchronous else 1
        self.requeue = self.rng.random() < 0.7
        stale = None if self.synchronous else self.rng.choice([None, 0, 2])
        self.state = ReplicaStepsState(self.shares, self.synchronous, self.requeue, stale)
        self.incarnations = dict.fromkeys(range(self.workers), 0)
        self.tickets: dict[int, Ticket] = {}
        self.takes: dict[int, Attempt] = {}
        self.held: dict[int, int] = {}  # what stores keep: by ticket the share
        self.horizon = 0
        self.done: list[int] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have worker 0 lead a generation, and all enrol."""
        self.tickets.clear()
        self.takes.clear()
        self.token = self.state.lead(0, "task 0", self.incarnations[0])
        self.choosing = self.state.choose()
        for worker in self.incarnations:
            self.join(worker)

    def lose_state(self) -> None:
        """Go back to the backup."""
        self.begin_anew()
        self.done = [share for share in self.done if share in self.backup]
        self.state.begin_epoch(self.batches, self.shares, sorted(self.backup))

    def join(self, worker: int) -> None:
        self.incarnations[worker] += 1
        self.tickets.pop(worker, None)
        self.takes.pop(worker, None)
        self.state.join(worker, f"task {worker}", self.incarnations[worker])

    def event(self, may_fail: bool) -> None:
        worker = self.rng.choice(list(self.incarnations))
        alive = worker in self.state.members
        draw = self.rng.random()
        if may_fail and draw < 0.01:
            self.lose_state()
        elif may_fail and draw < 0.02:
            self.backup = set(self.state.account())
            assert set(self.done) <= self.backup, "what is applied is in the account"
            assert not self.requeue or set(self.done) == self.backup, "and nothing else is"
        elif may_fail and draw < 0.05 and alive:
            self.state.lost(f"task {worker}", self.incarnations[worker])
        elif draw < 0.1 and not alive:
            self.join(worker)
        elif draw < 0.3:
            self.apply()
        elif alive and worker in self.tickets:
            number, _, share = self.tickets.pop(worker)
            if number >= self.horizon:
                self.held[number] = share
            self.state.commit(worker, self.incarnations[worker], number, share + 1)
        elif alive:
            take = self.takes.pop(worker, None) or self.state.take(worker, self.incarnations[worker], self.state.epoch)
            if not take.is_done:
                self.takes[worker] = take
            elif take.outcome().number != NO_TICKET:
                self.tickets[worker] = take.outcome()

    def apply(self) -> None:
        if not self.choosing.is_done:
            return
        chosen = self.choosing.outcome()
        shares = [self.held.pop(number) for number in chosen.tickets]  # a KeyError: values were forgotten too early
        assert shares == sorted(set(shares)), "different shares, in order"
        assert chosen.rows == [share + 1 for share in shares]
        assert 1 <= len(shares) <= self.shares
        self.horizon = max(self.horizon, chosen.horizon)
        self.held = {number: share for number, share in self.held.items() if number >= self.horizon}
        self.done += shares
        assert len(self.done) == len(set(self.done)), "a share counts once"
        self.state.applied(chosen.step)
        self.choosing = self.state.choose()

    def epoch(self, batches: int) -> None:
        self.done, self.backup, self.batches = [], set(), batches
        self.state.begin_epoch(batches)
        for count in range(20_000):
            self.event(may_fail=count < 200)
            if not self.state._undone and not self.state._unapplied:
                break
        else:
            raise AssertionError(f"no progress: {self.state.describe()}")
        total = batches * self.shares
        assert set(self.done) <= set(range(total))
        if self.requeue:
            assert len(self.done) == total, "each share counts"


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_each_share_counts_once(seed: int):
    simulation = Simulation(seed)
    for _ in range(2):
        simulation.epoch(simulation.rng.randint(1, 6))
    assert len(simulation.held) <= 3 * simulation.workers, "values of dropped gradients are forgotten"


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_whatever_happens_each_share_counts_once_at_length(chunk: int):
    for seed in range(1000 * (chunk + 1), 1000 * (chunk + 2)):
        test_whatever_happens_each_share_counts_once(seed)
