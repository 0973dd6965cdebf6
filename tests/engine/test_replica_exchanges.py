"""Steps whose workers exchange sums while they compute: who is waited for, and what becomes of a step when one is lost.

Simulations (`shared.replica_simulation`) check after each event what has to hold.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from shared.replica_simulation import Simulation

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph
from anabranch.engine.queues import DeadlineExceededError
from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.errors import CancelledError, StateLostError
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_steps import ReplicaSteps
from anabranch.engine.queues.replica_tickets import LEAVE, Receipt, Ticket
from anabranch.engine.session import Session

SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000"))


def joined(shares: int, workers: int, **options: Any) -> ReplicaStepsState:
    state = ReplicaStepsState(shares, together=True, **options)
    for worker in range(workers):
        join(state, worker)
    return state


def join(state: ReplicaStepsState, worker: int, incarnation: int = 0) -> None:
    state.join(worker, f"/job:worker/task:{worker}", incarnation)


def ticket(state: ReplicaStepsState, worker: int) -> Ticket:
    attempt = state.take(worker, 0, 1)
    assert attempt.is_done, f"worker {worker} waits"
    return attempt.outcome()


def addend(value: float) -> Any:
    return np.array([value, 1.0])


def value_of(attempt: Attempt) -> list[float]:
    return attempt.outcome()[0].tolist()


def test_a_sum_is_that_of_all_in_the_order_of_shares():
    state = joined(3, 3)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(3)]
    small = [0.1, 0.2, 0.3]
    sums = {worker: state.sum(tickets[worker].number, 0, addend(small[worker])) for worker in (2, 0)}
    assert not sums[0].is_done
    assert not sums[2].is_done
    sums[1] = state.sum(tickets[1].number, 0, addend(small[1]))
    for each in sums.values():
        assert value_of(each) == [0.1 + 0.2 + 0.3, 3.0]
    assert [state.commit(worker, 0, tickets[worker].number, 2) for worker in range(3)] == [Receipt.TAKEN] * 3
    assert state.choose().outcome().tickets == [each.number for each in tickets]


def test_fewer_workers_have_all_shares_of_a_step_at_once():
    state = joined(5, 2)
    state.begin_epoch(2)
    first, second = ticket(state, 0), ticket(state, 1)
    assert (first.share, first.length, second.share, second.length) == (0, 2, 2, 3)
    join(state, 2)  # comes within the step
    late = state.take(2, 0, 1)
    assert not late.is_done, "nothing of this step is left"
    one, other = state.sum(first.number, 0, addend(1)), state.sum(second.number, 0, addend(2))
    assert value_of(one) == value_of(other) == [3.0, 2.0]
    for worker, each in enumerate((first, second)):
        assert state.commit(worker, 0, each.number, 10 + worker) is Receipt.TAKEN
    chosen = state.choose().outcome()
    assert (chosen.tickets, chosen.rows) == ([first.number, second.number], [10, 11])
    state.applied(chosen.step)
    assert [late.outcome().share, late.outcome().length] == [8, 2], "of the next step it has its part"
    assert state.account() == [0, 1, 2, 3, 4]


def test_more_workers_than_shares_wait():
    state = joined(2, 3)
    state.begin_epoch(1)
    waits = state.take(2, 0, 1)
    assert not waits.is_done
    assert [ticket(state, worker).share for worker in range(2)] == [0, 1]


def test_who_has_no_rows_is_not_waited_for():
    state = joined(3, 3)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(3)]
    assert state.commit(1, 0, tickets[1].number, 0) is Receipt.TAKEN
    first = state.sum(tickets[0].number, 0, addend(1))
    second = state.sum(tickets[2].number, 0, addend(2))
    assert value_of(first) == value_of(second) == [3.0, 2.0]
    first = state.sum(tickets[0].number, 1, addend(5))
    assert not first.is_done
    assert value_of(state.sum(tickets[2].number, 1, addend(6))) == value_of(first) == [11.0, 2.0]


def test_one_that_comes_late_without_rows_ends_the_waiting():
    state = joined(2, 2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    waits = state.sum(tickets[0].number, 0, addend(1))
    state.commit(1, 0, tickets[1].number, 0)
    assert value_of(waits) == [1.0, 1.0]


@pytest.mark.parametrize("moment", ["waiting", "computing", "committed"])
def test_a_step_begins_again_when_a_worker_is_lost(moment: str):
    state = joined(3, 3)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(3)]
    sums = [state.sum(each.number, 0, addend(1)) for each in tickets]
    waiting = state.sum(tickets[0].number, 1, addend(1))
    if moment == "waiting":
        state.sum(tickets[2].number, 1, addend(1))
    if moment == "committed":  # it had nothing more to give, and neither has the other
        state = joined(3, 3)
        state.begin_epoch(1)
        tickets = [ticket(state, worker) for worker in range(3)]
        state.commit(0, 0, tickets[0].number, 4)
    state.lost("/job:worker/task:2", 0)
    assert all(each.is_done for each in sums)
    if moment != "committed":
        with pytest.raises(CancelledError, match=r"step 0 begins again, since worker 2 does not go on"):
            waiting.outcome()
        assert state.commit(0, 0, tickets[0].number, 0) is Receipt.REFUSED
    else:
        counts = state.statistics()["receipts"]["0"]
        assert (counts["taken"], counts["refused"]) == (0, 1), "what it has given counts no more"
    late = state.sum(tickets[1].number, 1, addend(1))
    with pytest.raises(CancelledError, match=rf"ticket {tickets[1].number} is void: its step has begun again"):
        late.outcome()
    again = [ticket(state, worker) for worker in range(2)]
    assert [(each.share, each.length) for each in again] == [(0, 1), (1, 2)]
    first, second = (state.sum(each.number, 0, addend(2)) for each in again)
    assert value_of(first) == value_of(second) == [4.0, 2.0], "of those alone that began again"
    for worker, each in enumerate(again):
        assert state.commit(worker, 0, each.number, 1) is Receipt.TAKEN
    assert state.choose().outcome().tickets == [each.number for each in again]
    assert state.statistics()["begun_again"] == 1


def test_who_is_lost_behind_its_commit_changes_nothing():
    state = joined(2, 2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    sums = [state.sum(each.number, 0, addend(1)) for each in tickets]
    assert all(value_of(each) == [2.0, 2.0] for each in sums)
    assert state.commit(1, 0, tickets[1].number, 3) is Receipt.TAKEN
    state.lost("/job:worker/task:1", 0)
    assert state.commit(0, 0, tickets[0].number, 3) is Receipt.TAKEN
    assert state.choose().outcome().tickets == [each.number for each in tickets]
    assert state.statistics()["begun_again"] == 0


def test_a_worker_whose_step_failed_has_all_begin_again():
    """It asks for another ticket, since what it gave was of an attempt that came to no end."""
    state = joined(2, 2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    waiting = state.sum(tickets[0].number, 0, addend(1))
    again = ticket(state, 1)
    with pytest.raises(CancelledError, match="begins again"):
        waiting.outcome()
    other = ticket(state, 0)
    assert [other.share, again.share] == [0, 1]
    first, second = state.sum(other.number, 0, addend(1)), state.sum(again.number, 0, addend(1))
    assert value_of(first) == value_of(second)


def test_who_leaves_before_its_part_is_not_waited_for():
    state = joined(2, 2)
    state.begin_epoch(1)
    first = ticket(state, 0)
    waiting = state.sum(first.number, 0, addend(1))
    state.retire(1, 0)
    with pytest.raises(CancelledError, match="begins again"):
        waiting.outcome()
    assert ticket(state, 1).number == LEAVE
    again = ticket(state, 0)
    assert (again.share, again.length) == (0, 2)
    assert value_of(state.sum(again.number, 0, addend(7))) == [7.0, 1.0]


def test_who_leaves_within_its_part_finishes_it():
    state = joined(2, 2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    state.retire(1, 0)
    sums = [state.sum(each.number, 0, addend(1)) for each in tickets]
    assert all(value_of(each) == [2.0, 2.0] for each in sums)
    assert [state.commit(worker, 0, tickets[worker].number, 1) for worker in range(2)] == [Receipt.TAKEN] * 2


def test_a_step_waits_for_enough_workers_to_begin_again():
    state = joined(2, 2, min_workers=2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    waiting = state.sum(tickets[0].number, 0, addend(1))
    state.lost("/job:worker/task:1", 0)
    assert waiting.error is not None
    take = state.take(0, 0, 1)
    assert not take.is_done
    join(state, 1, 1)
    assert take.outcome().length == 1


def test_a_step_that_some_are_at_goes_on_with_too_few():
    """Whoever leaves within its part waits for the others' addends, so that these get their parts."""
    state = joined(2, 2, min_workers=2)
    state.begin_epoch(1)
    first = ticket(state, 0)
    state.retire(0, 0)
    waiting = state.sum(first.number, 0, addend(1))
    second = ticket(state, 1)
    assert value_of(state.sum(second.number, 0, addend(1))) == value_of(waiting)


@pytest.mark.parametrize("end", ["close", "abandon", "end_epoch"])
def test_nobody_waits_for_a_sum_when_all_ends(end: str):
    state = joined(2, 2)
    state.begin_epoch(1)
    waiting = state.sum(ticket(state, 0).number, 0, addend(1))
    getattr(state, end)(*["the reason"][: end != "end_epoch"])
    with pytest.raises(StateLostError if end == "abandon" else CancelledError):
        waiting.outcome()


def test_workers_that_run_different_steps_get_an_error():
    state = joined(2, 2)
    state.begin_epoch(1)
    tickets = [ticket(state, worker) for worker in range(2)]
    first = state.sum(tickets[0].number, 0, addend(1))
    second = state.sum(tickets[1].number, 0, np.zeros(3, "float32"))
    for each in (first, second):
        with pytest.raises(ValueError, match=r"several kinds for sum 0: float64\[2\], float32\[3\]\. The workers run"):
            each.outcome()
    waiting = state.sum(tickets[0].number, 1, addend(1))
    state.commit(1, 0, tickets[1].number, 4)
    with pytest.raises(ValueError, match="has finished the step without its addend of sum 1"):
        waiting.outcome()


def test_batches_that_are_done_in_part_are_refused():
    state = joined(2, 2)
    with pytest.raises(ValueError, match=r"Of the batches \[1\] some rows were trained before"):
        state.begin_epoch(3, 2, [0, 1, 2])
    state.begin_epoch(3, 2, [0, 1])
    assert [ticket(state, worker).share for worker in range(2)] == [2, 3]


# --- operations -----------------------------------------------------------------------------------------------------


def with_tickets(workers: int) -> tuple[ReplicaSteps, list[int]]:
    """Return steps that workers are at, with their tickets."""
    steps = ReplicaSteps(workers, together=True)
    with Graph().as_default() as graph:
        session = Session(graph)
        for worker in range(workers):
            session.run(steps.join(worker, 7, f"/job:worker/task:{worker}"))
        session.run(steps.begin_epoch(0, 1, workers, np.zeros(0, "int64")))
        return steps, [int(session.run(steps.take(worker, 7, 1)[0])) for worker in range(workers)]


def test_the_gradient_of_a_sum_is_that_of_all_workers_losses():
    """The loss of each is the sum of y**3 times its weight, where y sums x**2 over workers; twice over the sum."""
    steps, tickets = with_tickets(3)
    x = np.random.default_rng(0).normal(size=(3, 4))
    weights = np.array([0.5, 2.0, -1.0])

    def run(worker: int) -> list[Any]:
        with Graph().as_default() as graph:
            given = ab.placeholder((4,), "float64")
            ticket = ab.placeholder((), "int64")
            y = steps.sum(ticket, given * given)
            loss = ops.sum(y**3) * weights[worker]
            (gradient,) = ab.gradients(loss, [given])
            fed = {given: x[worker], ticket: np.int64(tickets[worker])}
            return Session(graph).run([y, gradient], fed, timeout=60)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, range(3)))
    y = (x**2).sum(0)

    def total_loss(values: Any) -> Any:
        return ((values**2).sum(0) ** 3).sum() * weights.sum()

    for worker, (whole, gradient) in enumerate(found):
        np.testing.assert_allclose(whole, y, 1e-14)
        for place in range(4):
            step = np.zeros_like(x)
            step[worker, place] = 1e-6
            expected = (total_loss(x + step) - total_loss(x - step)) / 2e-6
            np.testing.assert_allclose(gradient[place], expected, 1e-6, 1e-6)


def test_waiting_for_a_sum_tells_for_whom():
    steps, tickets = with_tickets(2)
    with Graph().as_default() as graph:
        total = steps.sum(tickets[0], ops.convert_to_tensor(1.0))
        with pytest.raises(DeadlineExceededError, match=r"addends of the other workers, in step 0, .* 0, worker 1"):
            Session(graph).run(total, timeout=0.05)
        steps.task_lost("/job:worker/task:1", 7)
        with pytest.raises(CancelledError, match="is void: its step has begun again"):
            Session(graph).run(total, timeout=60)


# --- simulations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("is_supplied", [False, True])
def test_whatever_happens_no_sum_is_of_two_cuts_and_no_step_waits_for_ever(seed: int, is_supplied: bool):
    simulation = Simulation(seed, is_supplied, is_together=True)
    for batches in (3, 1, 2):
        simulation.epoch(batches)
    assert simulation.sums_made


@pytest.mark.slow
def test_whatever_happens_in_many_simulations():
    for seed in range(60, 60 + SIMULATIONS):
        simulation = Simulation(seed, seed % 2 == 1, is_together=True)
        for batches in (3, 1, 2):
            simulation.epoch(batches)
