"""Epochs whose leader supplies one batch after the other: who gets which rows, and when such an epoch ends."""

import os

import numpy as np
import pytest
from shared.replica_simulation import Simulation

from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import LEAD, NO_TICKET, SUPPLY, Receipt, Ticket

SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000"))  # of the slow test


def led(shares: int, workers: int, **options: object) -> ReplicaStepsState:
    """Make a state in which worker 0 leads an open epoch."""
    state = ReplicaStepsState(shares, **options)  # type: ignore[arg-type]
    state.lead(0, "task 0", 100)
    for worker in range(1, workers):
        state.join(worker, f"task {worker}", 100 + worker)
    state.begin_epoch(-1)
    return state


def ticket(state: ReplicaStepsState, worker: int) -> Ticket:
    attempt = state.take(worker, 100 + worker, 1)
    assert attempt.is_done, f"worker {worker} waits"
    return attempt.outcome()


def supply(state: ReplicaStepsState, number: int) -> None:
    """Supply a batch for two workers: one byte for the first, two for the second."""
    state.supply(number, [1, 2], np.array([3 * number, 3 * number + 1, 3 * number + 2], "uint8"), str(number + 1))


def apply(state: ReplicaStepsState) -> list[int]:
    chosen = state.choose().outcome()
    state.applied(chosen.step)
    return chosen.tickets


def test_the_leader_reads_ahead_and_others_wait_for_rows():
    state = led(2, 2)
    waits = state.take(1, 101, 1)
    assert not waits.is_done, "there are no rows yet, and the epoch is not over"
    assert ticket(state, 0).number == SUPPLY
    supply(state, 0)
    theirs = waits.outcome()
    assert list(state.rows(theirs.share)) == [1, 2]
    for number in (1, 2):
        assert ticket(state, 0).number == SUPPLY, "it reads ahead"
        supply(state, number)
    mine = ticket(state, 0)
    assert list(state.rows(mine.share)) == [0]
    for worker, each in ((0, mine), (1, theirs)):
        assert state.commit(worker, 100 + worker, each.number, 1) is Receipt.TAKEN
    assert len(apply(state)) == 2
    assert not len(state.rows(mine.share)), "what is done is forgotten"
    state.seal("3")
    for _ in range(2):
        for worker in (0, 1):
            each = ticket(state, worker)
            assert state.commit(worker, 100 + worker, each.number, 1) is Receipt.TAKEN
        apply(state)
    assert ticket(state, 0).number == ticket(state, 1).number == NO_TICKET
    assert state.statistics()["step"] == 3


def test_a_step_is_not_made_of_fewer_shares_while_more_may_come():
    state = led(2, 3, backups=1)
    supply(state, 0)
    first, second = ticket(state, 1), ticket(state, 2)
    assert state.commit(2, 102, second.number, 1) is Receipt.TAKEN
    assert state.commit(1, 101, first.number, 1) is Receipt.TAKEN
    apply(state)
    supply(state, 1)
    late = ticket(state, 1)
    state.commit(1, 101, late.number, 1)
    assert state.lost("task 2", 102) == [2]
    assert not state._sets
    assert not state.take(1, 101, 1).is_done, "worker 0 is to have the other share"


def test_an_epoch_ends_when_the_leader_seals_it_without_rows_too():
    state = led(2, 2)
    waits = state.take(1, 101, 1)
    assert ticket(state, 0).number == SUPPLY
    state.seal("0")
    assert waits.outcome().number == ticket(state, 0).number == NO_TICKET


def test_the_last_gradients_count_when_the_end_is_found_after_them():
    state = led(2, 2)
    state.supply(0, [1], np.array([7], "uint8"), "1")  # fewer shares than a step has, as at the end of skipped ones
    mine = ticket(state, 1)
    assert state.commit(1, 101, mine.number, 1) is Receipt.TAKEN
    assert not state._sets, "another share may come"
    state.seal("1")
    assert apply(state) == [mine.number]
    assert ticket(state, 1).number == NO_TICKET


def test_rows_of_a_worker_that_is_lost_are_there_for_the_next_and_a_new_leader_reads_on():
    state = led(2, 2)
    supply(state, 0)
    supply(state, 1)
    theirs, mine = ticket(state, 1), ticket(state, 0)
    assert state.commit(1, 101, theirs.number, 1) is Receipt.TAKEN
    waits = state.take(1, 101, 1)
    assert state.lost("task 0", 100) == [0]
    assert waits.outcome().number == LEAD
    state.accept(1, 101)
    assert state.supplied() == "2", "so many were supplied"
    supply(state, 1)  # a request that is repeated
    assert state.supplied() == "2"
    again = ticket(state, 1)
    assert again.number == SUPPLY
    supply(state, 2)
    supply(state, 3)
    again = ticket(state, 1)
    assert (again.share, list(state.rows(again.share))) == (mine.share, [0])


def test_an_epoch_that_ends_early_wants_no_rows():
    state = led(1, 1)
    supply(state, 0)
    state.end_epoch()
    supply(state, 1)
    assert ticket(state, 0).number == NO_TICKET


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_each_supplied_share_counts_once(seed: int):
    simulation = Simulation(seed, is_supplied=True)
    for _ in range(2):
        simulation.epoch(simulation.rng.randint(0, 6))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SIMULATIONS // 1000))
def test_whatever_happens_each_supplied_share_counts_once_at_length(chunk: int):
    for seed in range(1000 * (chunk + 1), 1000 * (chunk + 2)):
        test_whatever_happens_each_supplied_share_counts_once(seed)
