"""`Arrivals`: the number of backup workers that the measured times of gradients favour; shares that are given up."""

from __future__ import annotations

import random

import pytest

from anabranch.engine.queues.errors import CancelledError
from anabranch.engine.queues.replica_shares import MEASURED_EACH
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import Receipt, Ticket


def joined(shares: int, workers: int, synchronous: bool = True) -> ReplicaStepsState:
    state = ReplicaStepsState(shares, synchronous, backups=max(workers - shares, 0))
    for worker in range(workers):
        state.join(worker, f"/job:worker/task:{worker}", 100 + worker)
    return state


def ticket(state: ReplicaStepsState, worker: int) -> Ticket:
    return state.take(worker, 100 + worker, 1).outcome()


def timed(seconds: list[list[float]], backups: int) -> ReplicaStepsState:
    """Make a step for each list of the times that workers take; who is late is waited for before the next step."""
    workers = len(seconds[0])
    state, now = joined(workers - backups, workers), 0.0
    state.clock = lambda: now
    state.begin_epoch(len(seconds))
    for times in seconds:
        began = now
        tickets = [ticket(state, worker) for worker in range(workers)]
        for worker in sorted(range(workers), key=times.__getitem__):
            now = began + times[worker]
            state.commit(worker, 100 + worker, tickets[worker].number, 1)
        state.applied(state.choose().outcome().step)
    return state


@pytest.mark.parametrize("backups", [0, 1, 2])
def test_the_favoured_number_of_backups_is_that_of_the_papers_formula(backups: int):
    """Late gradients are measured, too, so that it does not depend on the number that the run has.

    With backups that is so in some steps alone: in others workers give up what is late.
    """
    rng = random.Random(backups)
    seconds = [[rng.choice([1.0, 1.1, 1.2, 5.0]) for _ in range(5)] for _ in range(20 * MEASURED_EACH)]
    found = timed(seconds, backups).statistics()["backups"]
    measured = seconds[::MEASURED_EACH] if backups else seconds
    expected = [sum(sorted(times)[4 - b] for times in measured) / len(measured) for b in range(5)]
    assert found["steps"] == len(measured)
    assert found["seconds"] == pytest.approx(expected)
    scores = [expected[0] / expected[b] * (5 - b) / 5 for b in range(5)]
    assert found["normalised"] == pytest.approx(scores)
    assert found["favoured"] == scores.index(max(scores))


def test_one_slow_worker_of_five_favours_one_backup_and_none_favours_no_backup():
    assert timed([[1.0, 1.0, 1.0, 1.0, 9.0]] * 3, 0).statistics()["backups"]["favoured"] == 1
    assert timed([[1.0] * 5] * 3, 0).statistics()["backups"]["favoured"] == 0
    assert timed([[0.0] * 2], 0).statistics()["backups"] == {
        "steps": 1,
        "seconds": [0.0, 0.0],
        "normalised": [1.0, 0.5],
        "favoured": 0,
    }


def test_steps_are_measured_when_gradients_of_all_have_come():
    state = joined(1, 2)
    state.begin_epoch(3)
    now = 0.0
    state.clock = lambda: now
    assert state.statistics()["backups"] == {}
    first, late = ticket(state, 0), ticket(state, 1)
    state.commit(0, 100, first.number, 1)
    state.applied(state.choose().outcome().step)
    assert state.statistics()["backups"] == {}
    second = ticket(state, 0)
    now = 4.0
    state.commit(0, 100, second.number, 1)
    state.commit(1, 101, late.number, 1)
    assert state.statistics()["backups"]["seconds"] == [4.0, 0.0]
    asynchronous = joined(1, 2, synchronous=False)
    assert asynchronous.statistics()["backups"] == {}


def test_a_worker_that_comes_too_late_hears_it_and_its_share_is_handed_out_again():
    state = joined(1, 2)
    state.begin_epoch(MEASURED_EACH + 2)
    for step in range(3):
        first, late = ticket(state, 0), ticket(state, 1)
        watches = [state.watch(worker, 100 + worker, each.number) for worker, each in enumerate((first, late))]
        assert not any(watch.is_done for watch in watches)
        state.commit(0, 100, first.number, 1)
        assert watches[0].outcome() == ()
        if step == 0:
            assert not watches[1].is_done, "this step measures how long each worker takes"
            assert state.watch(1, 101, late.number).is_done is False, "whenever it is asked"
        else:
            with pytest.raises(CancelledError, match=rf"share {late.share} come too late for step {step}"):
                watches[1].outcome()
            with pytest.raises(CancelledError, match="too late"):
                state.watch(1, 101, late.number).outcome()
        assert state.commit(1, 101, late.number, 0) is Receipt.LATE
        state.applied(state.choose().outcome().step)
        assert state.watch(1, 101, late.number).outcome() == (), "it is committed"
    assert state.statistics()["receipts"]["1"]["late"] == 3
    assert late.share in (ticket(state, 0).share, ticket(state, 1).share)


def test_nobody_goes_on_with_an_epoch_that_ends_early_or_a_ticket_that_is_void():
    state = joined(2, 2)
    state.begin_epoch(2)
    void = state.watch(0, 100, ticket(state, 0).number)
    held = state.watch(0, 100, ticket(state, 0).number)
    with pytest.raises(CancelledError, match="too late"):
        void.outcome()
    state.withdraw(held)
    watch = state.watch(1, 101, ticket(state, 1).number)
    state.end_epoch()
    with pytest.raises(CancelledError, match="too late"):
        watch.outcome()
    assert not held.is_done


def test_a_ticket_that_is_not_committed_is_void_with_the_next_one():
    state = joined(1, 1)
    state.begin_epoch(1)
    old = ticket(state, 0)
    again = ticket(state, 0)
    assert again.share == old.share
    assert state.commit(0, 100, old.number, 1) is Receipt.REFUSED
