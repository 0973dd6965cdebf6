"""The state of replicas as operations: what is put and reduced, and what is refused."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.common import dtypes
from anabranch.engine.graph import Graph, control_dependencies
from anabranch.engine.queues import DeadlineExceededError
from anabranch.engine.queues.errors import CancelledError, StateLostError
from anabranch.engine.queues.replica_gradients import FORGET, Part, ReplicaGradients, reduced
from anabranch.engine.queues.replica_requests import in_training
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_steps import ReplicaSteps
from anabranch.engine.queues.replica_tickets import LEAVE, Receipt
from anabranch.engine.session import Session

NONE = np.zeros(0, "int64")


def kept(*parts: Part) -> ReplicaGradients:
    return ReplicaGradients(parts, "kept")


def test_means_are_weighted_by_rows_and_do_not_depend_on_who_came_first():
    rng = np.random.default_rng(0)
    values = {ticket: [rng.normal(size=3).astype("float32"), np.int64(ticket), np.int32(ticket)] for ticket in range(4)}
    results = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        gradients = kept(Part("float32", (3,)), Part("int64", (), "sum"), Part("int32", (), "first"))
        for ticket in order:
            gradients.put_now(ticket, values[ticket])
        results.append(gradients.take_now([1, 2, 3], [1, 2, 3], 1))
        assert len(gradients) == 0, "ticket 0 is older than the horizon"
    mean = (values[1][0] + 2 * values[2][0] + 3 * values[3][0]) / 6
    np.testing.assert_allclose(results[0][0], mean, rtol=1e-6)
    assert [int(part) for part in results[0][1:]] == [6, 1]
    for first, second in zip(*results, strict=True):
        assert np.array_equal(first, second)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_set_is_reduced_in_the_memory_of_few_gradients(reduction: str):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=50_000).astype("float32") for _ in range(20)]
    part, copies = Part("float32", (50_000,), reduction), [value.copy() for value in values]
    tracemalloc.start()
    try:
        (found,) = reduced(part, [[value] for value in values], [1] * 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * values[0].nbytes, "not of all that are reduced"
    share = np.float32(0.05 if reduction == "mean" else 1)
    expected = values[0] * share
    for value in values[1:]:
        expected = expected + value * share
    assert np.array_equal(found, expected), "the same bits"
    assert all(map(np.array_equal, values, copies)), "what workers have put stays as it is"


@pytest.mark.parametrize("added", [(), (1,), (3, 1), (2, 3, 1)])
def test_gradients_are_added_as_they_arrive(added: tuple[int, ...]):
    """Whichever were added before the set is taken; ticket 0 was late, and 4 is of a worker that was lost."""
    parts = [Part("float64", (3,)), Part("float16", ()), Part("int64", (), "sum"), Part("int32", (), "first")]
    parts += [Part("float64", (9, 2), "mean", True), Part("bool", (), "first")]
    rng = np.random.default_rng(0)
    values = {
        ticket: [
            rng.normal(size=3),
            np.float16(ticket),
            np.int64(ticket),
            np.int32(ticket),
            np.array([ticket, ticket + 1]),
            rng.normal(size=(2, 2)),
            np.bool_(ticket % 2),
        ]
        for ticket in range(5)
    }
    in_order, as_they_come = kept(*parts), ReplicaGradients(parts, "sums", deterministic=False)
    for gradients in (in_order, as_they_come):
        for ticket in values:
            gradients.put_now(ticket, values[ticket])
    as_they_come.add_now(0, Receipt.LATE, 2)
    for ticket in added:
        as_they_come.add_now(ticket, Receipt.TAKEN, ticket)
    assert len(as_they_come) == 4 - len(added), "what is in the sum is not held"
    results = [gradients.take_now([2, 1, 3], [2, 1, 3], 0) for gradients in (in_order, as_they_come)]
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, 1e-12)
    as_they_come.add_now(2, Receipt.TAKEN, 2)  # of a worker that asks behind the set
    assert len(as_they_come) == 1
    as_they_come.put_now(7, values[1])
    as_they_come.add_now(7, Receipt.TAKEN, 1)
    np.testing.assert_array_equal(as_they_come.take_now([7], [1], 7)[0], values[1][0])


def test_sums_of_what_no_set_will_name_are_forgotten():
    gradients = ReplicaGradients([Part("float32", ())], "sums", deterministic=False)
    for ticket in (1, 2):
        gradients.put_now(ticket, [np.float32(ticket)])
    gradients.add_now(1, Receipt.TAKEN, 1)
    with pytest.raises(ValueError, match=r"The sum is of tickets \[1, 2\], and asked for those of \[2\]"):
        gradients.take_now([2], [1], 0)
    gradients.fence_now(5, FORGET)
    gradients.add_now(1, Receipt.TAKEN, 1)
    gradients.put_now(3, [np.float32(3.0)])
    assert gradients.take_now([3], [1], 0) == [3.0]
    assert gradients.begun == -1
    made = ReplicaGradients.from_definition("sums", gradients.definition())
    assert (made.deterministic, made.parts) == (False, gradients.parts)


def test_short_floats_are_added_up_in_float32():
    gradients = kept(Part("float16", (1,)))
    for ticket in range(3):
        gradients.put_now(ticket, [np.array([40000.0], "float16")])  # two of them are beyond float16
    (found,) = gradients.take_now([0, 1, 2], [1, 1, 1], 0)
    assert (found.dtype, found.tolist()) == (np.float16, [40000.0])


def test_what_comes_behind_the_horizon_is_not_kept():
    gradients = kept(Part("float32", ()))
    gradients.put_now(5, [np.float32(1.0)])
    gradients.take_now([5], [1], 5)
    gradients.put_now(4, [np.float32(1.0)])
    gradients.put_now(6, [np.float32(1.0)])
    assert len(gradients) == 1


def test_values_that_are_missing_are_named():
    gradients = kept(Part("float32", ()))
    gradients.put_now(1, [np.float32(1.0)])
    with pytest.raises(ValueError, match=r"'kept' has no values of tickets \[2\]"):
        gradients.take_now([1, 2], [1, 1], 0)
    assert len(gradients.take_now([1, 2], [1, 0], 0)) == 1, "a share without rows has none"


def test_values_that_do_not_fit_are_refused_while_the_graph_is_built():
    with Graph().as_default(), pytest.raises(TypeError, match=r"'kept' takes .*float32\[3\].*; got"):
        kept(Part("float32", (3,))).put(0, [np.zeros(4, "float32")])
    with Graph().as_default(), pytest.raises(TypeError, match=r"ReplicaSteps.applied takes \(an integer, an integer\)"):
        ReplicaSteps(1).applied(0, 1.5)


def test_a_whole_step_in_one_graph():
    with Graph().as_default() as graph:
        steps, gradients = ReplicaSteps(1), kept(Part("float32", (2,)))
        begun = [steps.join(0, 7, "/job:worker/task:0"), steps.begin_epoch(0, 1, 1, NONE)]
        ticket, *_ = steps.take(0, 7, 1)
        with control_dependencies([gradients.put(ticket, [np.array([1.0, 2.0], "float32")])]):
            receipt = steps.commit(0, 7, ticket, 4)
        step, tickets, rows, horizon = steps.choose(0)
        (found,) = gradients.take(tickets, rows, horizon)
        done = steps.applied(0, step)
        value, got, *_ = Session(graph).run([found, receipt, done, *begun], timeout=30)
    assert (value.tolist(), int(got)) == ([1.0, 2.0], 0)


def test_a_watch_waits_for_the_commit_of_its_own_step_or_ends_the_step():
    with Graph().as_default() as graph:
        steps = ReplicaSteps(1, backups=1)
        session = Session(graph)
        session.run([steps.join(0, 7, "a task"), steps.join(1, 8, "a task"), steps.begin_epoch(0, 2, 1, NONE)])
        tickets = [int(session.run(steps.take(worker, 7 + worker, 1)[0])) for worker in (0, 1)]
        receipt = steps.commit(0, 7, tickets[0], 4)
        with control_dependencies([receipt]):
            watch = steps.watch(0, 7, tickets[0])
        assert int(session.run([receipt, watch], timeout=30)[0]) == Receipt.TAKEN
        step, *_ = session.run(steps.choose(0))
        session.run(steps.applied(0, step))
        with pytest.raises(DeadlineExceededError, match="the gradients of its own step, or the set that does without"):
            session.run(steps.watch(1, 8, tickets[1]), timeout=0.05)  # the first step is measured
        session.run(steps.commit(1, 8, tickets[1], 0))
        tickets = [int(session.run(steps.take(worker, 7 + worker, 1)[0])) for worker in (0, 1)]
        session.run(steps.commit(0, 7, tickets[0], 4))
        with pytest.raises(CancelledError, match="come too late for step 1"):
            session.run(steps.watch(1, 8, tickets[1]), timeout=30)


def test_waiting_in_vain_tells_for_whom():
    with Graph().as_default() as graph:
        steps = ReplicaSteps(2, name="ours")
        Session(graph).run([steps.join(0, 7, "a task"), steps.begin_epoch(0, 1, 2, NONE)])
    with Graph().as_default() as graph:
        ticket = steps.take(0, 7, 1)
        Session(graph).run(ticket)
        chosen = steps.choose(0)
        with pytest.raises(
            DeadlineExceededError,
            match="the set of step 0, which has 0 of 2 gradients; at work on it: worker 0; taking part: worker 0",
        ):
            Session(graph).run(chosen, timeout=0.05)


def test_a_worker_takes_over_from_a_task_that_is_lost():
    steps, gradients = ReplicaSteps(1), kept(Part("float32", ()))
    with Graph().as_default() as graph:
        session = Session(graph)
        token = int(session.run(steps.lead(0, 7, 5, 0, "/job:worker/task:0")))
        assert (token, int(session.run(steps.current()))) == (5, 5)
        assert int(session.run(steps.enrol(1, 8, 0, 0, "/job:worker/task:1"))) == token
        session.run([steps.note(token, "a note"), gradients.fence(token, 3)])
        assert [int(mark) for mark in session.run(gradients.marks())] == [3, -1], "begun, not written"
        session.run(gradients.end_writing(3))
        steps.task_lost("/job:worker/task:0", 8)  # another incarnation
        session.run(steps.announce(token, "still led"))
        steps.task_lost("/job:worker/task:0", 7)
        heard = [str(session.run(steps.hear(1, 8, number))) for number in range(2)]
        assert heard == ["still led", ""], "it is to lead"
        newer, mark = map(int, session.run(steps.accept(1, 8)))
        assert (newer, mark) == (token + 1, -1)
        assert str(session.run(steps.notes())) == "a note"
        session.run(gradients.fence(newer))
        for stale in (gradients.fence(token), steps.announce(token, "late"), steps.lead(0, 7, 9, token, "a task")):
            with pytest.raises(CancelledError, match=f"token {token} does not lead any more"):
                session.run(stale)
        assert [int(mark) for mark in session.run(gradients.marks())] == [3, 3]


def test_a_training_that_is_over_is_there_for_whoever_comes_later():
    """Trainings have tokens that grow, also of leaders that began within one second."""
    steps = ReplicaSteps(1)
    with Graph().as_default() as graph:
        session = Session(graph)
        tokens: list[int] = []
        for training in (1, 2):
            with in_training(training):
                tokens.append(int(session.run(steps.lead(0, 7, 5, 0, "/job:worker/task:0"))))
                session.run(steps.announce(tokens[-1], f"training {training}"))
        assert tokens == [5, 6]
        with in_training(1):
            session.run(steps.leave(0, 7))
            assert int(session.run(steps.enrol(1, 8, 0, 0, "/job:worker/task:1"))) == 5
            assert str(session.run(steps.hear(1, 8, 0))) == "training 1"
        with in_training(2):
            assert str(session.run(steps.hear(0, 7, 0))) == "training 2"
            with pytest.raises(CancelledError, match="token 5 does not lead any more"):
                session.run(steps.announce(tokens[0], "late"))
        with in_training(3):
            assert int(session.run(steps.current())) == 0
    assert steps.report() is not None
    assert steps.state_of(2).members == [0]


def test_the_values_of_a_training_that_is_over_are_kept_when_another_one_begins():
    gradients = kept(Part("float32", ()))
    values = np.zeros(3)
    with Graph().as_default() as graph:
        session = Session(graph)
        given, names = ab.placeholder((3,), "float64"), np.array(["a"], dtypes.string)

        def run(what: Any) -> Any:
            return session.run(what, {given: values})

        for training, token in ((1, 5), (2, 9)):
            with in_training(training):
                values[...] = training
                run(gradients.begin(token, [given, names]))
                gradients.put_now((token << 31) + 1, [np.float32(1.0)])
                values += 10
                run(gradients.begin(token + 1, [given, names]))  # it begins again: nothing is over
        assert len(gradients) == 1, "what was put in a training that is over counts no more"
        gradients.put_now((6 << 31) + 1, [np.float32(1.0)])
        assert len(gradients) == 1, "nor what is put for it later"
        for training, is_known, value in ((1, 1, 2), (2, 1, 12), (3, 0, 12)):  # by the second one's begin
            with in_training(training):
                found = run(gradients.final([given, names]))
            assert [int(found[0]), found[1].tolist(), found[2].tolist()] == [is_known, [value] * 3, ["a"]]
        with pytest.raises(CancelledError, match="token 6 does not lead any more"):
            run(gradients.fence(6))
        with in_training(1):  # all workers were started again, and make it again
            run(gradients.begin(20, [given, names]))
            values[...] = 7
            assert run(gradients.final([given, names]))[1].tolist() == [7] * 3


def test_steps_are_not_reported_to_wait_when_all_workers_are_gone(caplog: pytest.LogCaptureFixture):
    """Ctrl-C ends all workers: a ps task, which ended behind them, reported that steps waited for them."""
    steps = ReplicaSteps(2, min_workers=2)
    for worker in (0, 1):
        steps.answer("join", f"/job:worker/task:{worker}", [np.int64(0), np.int64(worker), np.int64(100 + worker)])
    steps.state_of(0).begin_epoch(2)
    steps.task_lost("/job:worker/task:1", 101)
    assert "wait for worker 1; taking part: worker 0" in caplog.text
    caplog.clear()
    steps.task_lost("/job:worker/task:0", 100)
    assert caplog.text == ""


def test_lost_state_says_so():
    steps, gradients = ReplicaSteps(1), kept(Part("float32", ()))
    steps.lost = gradients.lost = "What it held is gone."
    with Graph().as_default() as graph, pytest.raises(StateLostError, match="gone"):
        Session(graph).run(steps.choose(0))
    with pytest.raises(StateLostError, match="gone"):
        gradients.put_now(0, [np.float32(1.0)])


def test_a_worker_that_waits_for_training_to_begin_leaves_at_once():
    state = ReplicaStepsState(1)
    waits, other = state.enrol(1, "task 1", 101, 0), state.enrol(2, "task 2", 102, 0)
    state.retire(1, 100)
    assert not waits.is_done, "that was an earlier start of it"
    state.retire(1, 101)
    assert waits.outcome() == (LEAVE,)
    token = state.lead(0, "task 0", 100)
    assert other.outcome() == (token,)
    assert state.members == [0, 2]
