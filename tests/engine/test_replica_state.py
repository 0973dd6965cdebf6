"""The protocol of replicas as a state machine: who gets which share, which gradients count, and that none counts twice.

Simulations (`shared.replica_simulation`) check after each event what has to hold.
"""

import os

import pytest
from shared.replica_simulation import Simulation

from anabranch.engine.queues.errors import CancelledError, StateLostError
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import LEAD, LEAVE, LEAVE_TEXT, NO_TICKET, Receipt, Ticket

SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000"))  # of the slow tests; `make sweep` asks for more


def joined(shares: int, workers: int, **options: object) -> ReplicaStepsState:
    options.setdefault("backups", max(workers - shares, 0))
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
        state.withdraw(waits)
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


def test_a_worker_that_is_back_gets_no_rows_of_the_next_batch_while_the_step_has_its_shares():
    """The chief waits in a callback with a share; worker 2 is lost, before or after it has put its own."""
    for has_put in (True, False):
        state = joined(3, 3)
        state.begin_epoch(2)
        paused, mine, lost = (ticket(state, worker) for worker in range(3))
        state.commit(1, 101, mine.number, 1)
        if has_put:
            state.commit(2, 102, lost.number, 1)
        waits = state.take(1, 101, 1)
        state.lost("/job:worker/task:2", 102)
        assert waits.is_done is not has_put, "there is a share to compute only where it was lost"
        state.join(2, "/job:worker/task:2", 202)
        back = state.take(2, 202, 1)
        assert not back.is_done, "each share of the step is with somebody"
        state.lost("/job:worker/task:0", 100)
        again = back.outcome()
        assert (again.step, again.share) == (0, paused.share)
        state.commit(2, 202, again.number, 1)
        if not has_put:
            state.commit(1, 101, waits.outcome().number, 1)
        numbers = [again.number, mine.number, lost.number if has_put else waits.outcome().number]
        assert state.choose().outcome().tickets == numbers, "those of the first batch"


def test_workers_beyond_shares_and_backups_take_turns():
    """An epoch began with two workers, and a third one is back."""
    state = joined(2, 3, backups=0)
    state.begin_epoch(2)
    first, second = ticket(state, 2), ticket(state, 0)
    assert {first.share, second.share} == {0, 1}
    waits = state.take(1, 101, 1)
    assert not waits.is_done, "the step has its shares"
    state.commit(0, 100, second.number, 1)
    state.lost("/job:worker/task:2", 102)
    assert waits.outcome().share == first.share
    state.commit(1, 101, waits.outcome().number, 1)
    assert len(state.choose().outcome().tickets) == 2


def test_a_step_waits_for_a_share_with_rows():
    """Batches of one row, which the last share has; a backup worker is fast with an empty share of the next batch."""
    state = joined(3, 4)
    state.begin_epoch(2)
    tickets = [ticket(state, worker) for worker in range(4)]
    for worker in (0, 1, 3):
        assert state.commit(worker, 100 + worker, tickets[worker].number, 0) is Receipt.TAKEN
    waits = state.choose()
    assert not waits.is_done, "three shares without a row"
    assert state.commit(2, 102, tickets[2].number, 1) is Receipt.TAKEN
    chosen = waits.outcome()
    assert (chosen.tickets, chosen.rows) == ([tickets[number].number for number in (0, 1, 2)], [0, 0, 1])
    state.applied(chosen.step)
    last = [ticket(state, worker) for worker in (0, 1)]
    assert [each.share for each in last] == [4, 5], "share 3 is put already"
    state.commit(1, 101, last[1].number, 1)
    assert not state.choose().is_done
    state.commit(0, 100, last[0].number, 0)
    assert state.step == 1


def test_workers_go_on_where_all_have_put_empty_shares():
    state = joined(2, 3)
    state.begin_epoch(2)
    tickets = [ticket(state, worker) for worker in range(3)]
    state.lost("/job:worker/task:1", 101)
    for worker in (0, 2):
        state.commit(worker, 100 + worker, tickets[worker].number, 0)
    assert ticket(state, 0).share == 1, "that of the worker that was lost"


def test_the_last_step_may_have_no_rows():
    state = joined(2, 2)
    state.begin_epoch(1)
    for worker in (0, 1):
        state.commit(worker, 100 + worker, ticket(state, worker).number, 0)
    assert state.choose().outcome().rows == [0, 0]


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


def test_closing_tells_why():
    state = joined(1, 1)
    waits, chooses = state.take(0, 100, 1), state.choose()
    state.close("the disk is full")
    for attempt in (waits, chooses, state.take(0, 100, 1), state.choose()):
        with pytest.raises(CancelledError, match="the disk is full"):
            attempt.outcome()
    state = joined(1, 1)
    state.begin_epoch(1)
    watch = state.watch(0, 100, ticket(state, 0).number)
    state.close("the disk is full")
    assert isinstance(watch.error, CancelledError), "a worker that computes is to stop"


def test_announcements_are_heard_by_number_also_by_those_that_come_later():
    state = joined(1, 2)
    waits, given_up = state.hear(1, 101, 0), state.hear(1, 101, 0)
    assert not waits.is_done
    state.withdraw(given_up)
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
    with pytest.raises(CancelledError, match="token 7 does not lead any more: worker 0 leads, with token 8"):
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


def test_the_lowest_worker_takes_over_from_a_leader_that_is_lost():
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    for worker in (2, 1):
        state.enrol(worker, f"task {worker}", 100 + worker, 0)
    state.begin_epoch(2)
    state.note("callbacks")
    state.announce("the epoch")
    state.commit(0, 100, ticket(state, 0).number, 1)
    chosen, hears = state.choose().outcome(), state.hear(1, 101, 1)
    waits = state.take(2, 102, 1)
    with pytest.raises(StateLostError, match="worker 1 has not been appointed"):
        state.accept(1, 101)
    state.lost("task 0", 100)
    assert state.hear(1, 101, 0).outcome() == ("the epoch",), "it hears what was said before"
    assert hears.outcome() == ("",)
    assert ticket(state, 1).number == LEAD
    assert not waits.is_done, "the others do not notice"
    with pytest.raises(CancelledError, match=f"token {token} does not lead any more: worker 1 leads"):
        state.check_leader(token)
    assert state.accept(1, 101) == (token + 1, chosen.tickets[0]), "that set may have been applied in part"
    assert state.notes() == "callbacks"
    assert state.choose().outcome() == chosen
    state.applied(chosen.step)
    assert waits.outcome().share == 1
    state.join(0, "task 0", 200)
    assert ticket(state, 1).number != LEAD
    assert state.leader == 1, "who comes back follows"


def test_where_state_and_leader_are_lost_the_lowest_worker_begins_anew():
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    state.abandon("a ps task is gone")
    second, first = (state.enrol(worker, f"task {worker}", 100 + worker, token) for worker in (2, 1))
    assert not first.is_done
    state.lost("task 0", 100)
    assert first.outcome() == (LEAD,)
    assert not second.is_done
    state.lost("task 1", 101)
    assert second.outcome() == (LEAD,), "the one before is lost as well"
    assert state.lead(2, "task 2", 102) > token


def test_a_leader_that_was_taken_for_dead_with_all_others_leads_again():
    """As where ps task 0 is stopped: then it finds that nobody has answered."""
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    state.enrol(1, "task 1", 101, 0)
    for worker in (0, 1):
        state.lost(f"task {worker}", 100 + worker)
    with pytest.raises(StateLostError, match=f"token {token} was given up.* nobody leads since"):
        state.check_leader(token)
    waits = state.enrol(1, "task 1", 101, token)
    assert not waits.is_done
    assert state.lead(0, "task 0", 100, 0, token) > token + 1
    assert waits.outcome() == (state.token,)
    state.leave(0, 100)
    with pytest.raises(CancelledError, match="nobody leads"):
        state.lead(0, "task 0", 100, 0, state.token - 1)


def test_workers_that_have_waited_long_for_a_leader_begin_anew_without_it():
    """State that was started again has no leader noted, and the one that led may be gone for good."""
    state = ReplicaStepsState(1)
    waits = {worker: state.enrol(worker, f"task {worker}", 100 + worker, 7) for worker in (3, 2)}
    state.withdraw(waits[3])
    late = state.enrol(3, "task 3", 103, 7, is_late=True)
    assert waits[2].outcome() == (LEAD,), "the lowest, also if it has not waited long"
    assert not late.is_done
    with pytest.raises(StateLostError, match="nobody leads yet"):
        state.check_leader(7)
    state.lost("task 2", 102)
    assert late.outcome() == (LEAD,)
    token = state.lead(3, "task 3", 103, 9)
    with pytest.raises(CancelledError, match="token 7 does not lead any more"):
        state.lead(0, "task 0", 100, 8, 7)
    back = state.enrol(2, "task 2", 202, token)
    assert not back.is_done, "the leader is there"
    state.leave(3, 103)
    assert back.is_done
    assert state.enrol(1, "task 1", 101, token, is_late=True).outcome() == (token,), "training has come to its end"


def test_where_all_workers_enrol_the_lowest_begins_anew():
    state = ReplicaStepsState(1, workers=2)
    first = state.enrol(1, "task 1", 101, 7)
    assert not first.is_done
    second = state.enrol(0, "task 0", 100, 0)
    assert second.outcome() == (LEAD,)
    token = state.lead(0, "task 0", 100)
    assert first.outcome() == (token,)


def test_a_worker_that_enrols_again_counts_once():
    """It was started again before the loss of the process before was noticed."""
    state = ReplicaStepsState(1, workers=2)
    before = state.enrol(1, "task 1", 101, 7)
    again = state.enrol(1, "task 1", 201, 0)
    with pytest.raises(StateLostError, match="worker 1 has asked again"):
        before.outcome()
    state.lost("task 1", 101)
    assert not again.is_done, "worker 0 may lead again"
    late = state.enrol(1, "task 1", 201, 0, is_late=True)
    assert late.outcome() == (LEAD,), "not the attempt that it has given up"


def test_a_worker_that_was_cut_off_takes_part_in_the_same_generation():
    state = ReplicaStepsState(1, workers=2)
    token = state.lead(0, "task 0", 100)
    state.enrol(1, "task 1", 101, 0)
    state.lost("task 1", 101)
    lost = state.enrol(1, "task 1", 101, token)
    assert not lost.is_done, "a ps task has lost its state: the leader is to begin again"
    assert state.enrol(1, "task 1", 101, token, is_whole=True).outcome() == (token,)
    assert state.enrol(1, "task 1", 101, token, is_whole=True).outcome() == (token,), "ps task 0 has not noticed"
    assert sorted(state.members) == [0, 1]


def test_who_was_cut_off_waits_until_somebody_leads():
    """As where ps task 0 was stopped: it has dropped the leader, too, which begins again from its backup."""
    state = ReplicaStepsState(1, workers=3)
    token = state.lead(0, "task 0", 100)
    state.enrol(1, "task 1", 101, 0)
    state.lost("task 1", 101)
    state.lost("task 0", 100)
    waits = state.enrol(1, "task 1", 101, token, is_whole=True)
    assert not waits.is_done
    state.enrol(2, "task 2", 102, 0)
    assert state.leader == 2
    assert waits.outcome() == (token,), "a worker that was started meanwhile leads"


def test_a_worker_that_is_back_alone_goes_on_where_state_is_whole():
    state = ReplicaStepsState(1, workers=1)
    token = state.lead(0, "task 0", 100)
    state.lost("task 0", 100)
    assert state.enrol(0, "task 0", 200, 0).outcome() == (token,), "it does not begin anew"
    assert state.accept(0, 200) == (token + 1, -1)


def test_who_enrols_again_when_it_was_chosen_to_begin_is_chosen_again():
    state = ReplicaStepsState(1, workers=2)
    state.enrol(1, "task 1", 101, 7)
    assert state.enrol(0, "task 0", 100, 7).outcome() == (LEAD,)
    assert state.enrol(0, "task 0", 100, 7).outcome() == (LEAD,), "it had waited no longer"


def test_who_takes_over_has_seen_all_epochs_before():
    """A worker that was started again, and finds that it leads, while it hears what has happened so far."""
    state = ReplicaStepsState(1)
    state.lead(0, "task 0", 100)
    for epoch in (1, 2):
        state.announce(f"epoch {epoch}")
        state.begin_epoch(1)
        state.commit(0, 100, ticket(state, 0, epoch).number, 1)
        state.applied(state.choose().outcome().step)
    state.lost("task 0", 100)
    state.enrol(0, "task 0", 200, 0)
    assert state.leader == 0
    assert state.hear(0, 200, 0).outcome() == ("epoch 1",)
    assert state.take(0, 200, 1).outcome().number == NO_TICKET, "this epoch is over"
    assert state.hear(0, 200, 1).outcome() == ("epoch 2",)
    assert state.take(0, 200, 2).outcome().number == LEAD


def test_a_leader_that_leaves_has_no_successor():
    state = joined(1, 2)
    state.lead(0, "task 0", 100)
    state.enrol(1, "task 1", 101, 0)
    state.leave(0, 100)
    assert state.leader is None
    assert not state.hear(1, 101, 0).is_done


def test_a_worker_that_is_to_leave_finishes_its_share():
    state = joined(2, 3)
    state.begin_epoch(2)
    mine, out = ticket(state, 0), ticket(state, 1)
    hears = state.hear(1, 101, 0)
    state.retire(1, 101)
    assert hears.outcome() == (LEAVE_TEXT,)
    assert state.commit(1, 101, out.number, 1) is Receipt.TAKEN
    assert ticket(state, 1).number == LEAVE
    state.leave(1, 101)
    assert state.commit(0, 100, mine.number, 1) is Receipt.TAKEN
    state.applied(state.choose().outcome().step)
    assert {ticket(state, worker).share for worker in (0, 2)} == {2, 3}


def test_who_waits_for_others_gets_the_share_of_one_that_is_to_leave():
    state = joined(2, 2)
    state.begin_epoch(1)
    state.commit(0, 100, ticket(state, 0).number, 1)
    waits = state.take(0, 100, 1)
    assert not waits.is_done
    state.retire(1, 101)
    assert waits.outcome().share == 1


def test_a_leader_that_is_to_leave_hands_over():
    state = ReplicaStepsState(1)
    token = state.lead(0, "task 0", 100)
    assert not state.hand_over(0, 100), "there is nobody else"
    state.enrol(1, "task 1", 101, 0)
    state.begin_epoch(1)
    waits = state.take(1, 101, 1)
    state.retire(0, 100)
    assert ticket(state, 0).number == LEAVE
    assert waits.outcome().share == 0
    assert state.hand_over(0, 100)
    assert ticket(state, 1).number == LEAD
    assert state.accept(1, 101) == (token + 1, -1)


def test_who_asks_for_a_set_after_choosing_has_ended_does_not_wait():
    state = ReplicaStepsState(2)
    state.lead(0, "/job:worker/task:0", 100)
    state.enrol(1, "/job:worker/task:1", 101, 0)
    first = state.choose()
    state.end_choosing()
    late = state.choose()  # from a thread that applied a set meanwhile
    for attempt in (first, late):
        with pytest.raises(CancelledError, match="no further set"):
            attempt.outcome()
    assert state.hand_over(0, 100)
    state.accept(1, 101)
    assert not state.choose().is_done, "the next leader wants sets"
    state.end_choosing()
    state.lead(1, "/job:worker/task:1", 101)
    assert not state.choose().is_done, "so does one that begins anew"


def test_below_the_least_number_of_workers_nothing_is_handed_out():
    state = joined(2, 3, min_workers=2)
    state.begin_epoch(2)
    first, second = ticket(state, 0), ticket(state, 1)
    for worker in (1, 2):
        assert state.shortage() == ""
        state.lost(f"/job:worker/task:{worker}", 100 + worker)
    assert "need 2 workers (min_workers), and wait for 1, 2; taking part: 0" in state.describe()
    assert state.commit(0, 100, first.number, 1) is Receipt.TAKEN, "what was under way counts"
    waits = state.take(0, 100, 1)
    assert not waits.is_done
    state.join(1, "/job:worker/task:1", 201)
    assert not waits.is_done, "it has its share of the step"
    assert state.take(1, 201, 1).outcome().share == second.share
    assert state.shortage() == ""
    state.retire(1, 201)
    assert "taking part: 0, 1" in state.shortage(), "who is to leave is there, and does not count"


def test_at_the_end_nobody_is_waited_for():
    state = ReplicaStepsState(2, min_workers=2)
    state.lead(0, "task 0", 100)
    state.join(1, "task 1", 101)
    state.leave(0, 100)
    assert state.shortage() == ""


def test_between_epochs_steps_wait_for_nobody_if_all_are_gone():
    state = joined(1, 1)
    state.lost("/job:worker/task:0", 100)
    assert state.shortage() == ""
    state.begin_epoch(1)
    assert "wait for 0" in state.shortage()


def test_an_epoch_may_have_another_number_of_shares():
    state = joined(3, 3)
    state.begin_epoch(1)
    state.lost("/job:worker/task:0", 100)
    state.begin_epoch(1, 2)
    tickets = {worker: state.take(worker, 100 + worker, 2).outcome() for worker in (2, 1)}
    assert {worker: each.share for worker, each in tickets.items()} == {2: 1, 1: 0}, "by their places among those left"
    for worker, each in tickets.items():
        assert state.commit(worker, 100 + worker, each.number, 1) is Receipt.TAKEN
    assert len(state.choose().outcome().tickets) == 2


def test_the_leader_waits_until_all_others_wait_for_what_it_announces():
    state = ReplicaStepsState(2)
    state.lead(0, "task 0", 100)
    first = state.assemble(3)
    state.enrol(1, "task 1", 101, 0)
    state.hear(1, 101, 0)
    assert not first.is_done, "a third one has not come yet"
    state.enrol(2, "task 2", 102, 0)
    assert not first.is_done, "it has come, and is still on its way to the step"
    state.hear(2, 102, 0)
    assert first.outcome() == (3,)
    state.announce("a step")
    second = state.assemble(3)
    state.hear(1, 101, 1)
    assert not second.is_done
    assert state.absent() == [2], "it has not yet asked for what comes after the step"
    state.lost("task 2", 102)
    assert second.outcome() == (2,), "nobody waits for who is lost"
    assert state.assemble(3).outcome() == (2,), "three have taken part"


def test_who_does_not_lead_any_more_waits_for_nobody():
    state = ReplicaStepsState(2)
    state.lead(0, "task 0", 100)
    state.enrol(1, "task 1", 101, 0)
    given_up, waits = state.assemble(1), state.assemble(1)
    state.withdraw(given_up)
    state.lost("task 0", 100)
    assert not given_up.is_done
    with pytest.raises(StateLostError, match="the leader was taken for dead"):
        waits.outcome()
    state.close("all has ended")
    with pytest.raises(CancelledError, match="all has ended"):
        state.assemble(1).outcome()


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_each_share_counts_once(seed: int):
    simulation = Simulation(seed)
    for _ in range(2):
        simulation.epoch(simulation.rng.randint(1, 6))
    assert len(simulation.held) <= 3 * simulation.workers, "values of dropped gradients are forgotten"


@pytest.mark.parametrize("seed", [*range(60), 1088, 2870, 3157, 3519])
def test_whatever_happens_a_step_has_rows(seed: int):
    simulation = Simulation(seed, has_few_rows=True)
    for _ in range(2):
        simulation.epoch(simulation.rng.randint(1, 6))


@pytest.mark.parametrize("seed", range(60))
def test_workers_whose_connections_are_cut_take_part_again(seed: int):
    simulation = Simulation(seed, has_cuts=True)
    for _ in range(2):
        simulation.epoch(simulation.rng.randint(1, 6))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SIMULATIONS // 1000))
def test_whatever_happens_each_share_counts_once_at_length(chunk: int):
    for seed in range(1000 * (chunk + 1), 1000 * (chunk + 2)):
        test_whatever_happens_each_share_counts_once(seed)
        test_whatever_happens_a_step_has_rows(seed)
        test_workers_whose_connections_are_cut_take_part_again(seed)
