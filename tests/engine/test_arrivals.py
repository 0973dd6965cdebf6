"""`Arrivals`: the number of backup workers that the measured times of gradients favour."""

from __future__ import annotations

import random

import pytest

from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import Ticket


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
    """Late gradients are measured, too, so that it does not depend on the number that the run has."""
    rng = random.Random(backups)
    seconds = [[rng.choice([1.0, 1.1, 1.2, 5.0]) for _ in range(5)] for _ in range(20)]
    found = timed(seconds, backups).statistics()["backups"]
    expected = [sum(sorted(times)[4 - b] for times in seconds) / 20 for b in range(5)]
    assert found["steps"] == 20
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
