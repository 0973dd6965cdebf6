"""`Coordinator`, `QueueRunner` and `bucket_by_sequence_length`: threads that fill queues, and how they end."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.waiting import PATIENCE, Waiting, wait_until

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Variable
from anabranch.engine.queues import (
    Coordinator,
    FIFOQueue,
    OutOfRangeError,
    QueueRunner,
    add_queue_runner,
    bucket_by_sequence_length,
    start_queue_runners,
)
from anabranch.engine.session import Session


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


# --- Coordinator ----------------------------------------------------------------------------------------------------


def test_threads_stop_together():
    coordinator, together = Coordinator(), threading.Barrier(3, timeout=PATIENCE)

    def work(number: int) -> str:
        together.wait()
        if number == 1:
            coordinator.request_stop()
        return "stopped" if coordinator.wait_for_stop(PATIENCE) else "went on"

    workers = [Waiting(lambda number=number: work(number)) for number in range(3)]
    coordinator.join([worker.thread for worker in workers], stop_grace_period_secs=PATIENCE)

    assert [worker.result() for worker in workers] == ["stopped"] * 3
    assert coordinator.should_stop()
    assert coordinator.joined


def test_the_first_error_is_raised():
    coordinator, first, second = Coordinator(), ValueError("first"), TypeError("second")
    coordinator.request_stop(first)
    coordinator.request_stop(second)

    with pytest.raises(ValueError, match="first") as raised:
        coordinator.join()
    assert raised.value is first
    with pytest.raises(ValueError, match="first"):
        coordinator.raise_requested_exception()


def test_an_error_after_join_is_not_lost():
    coordinator = Coordinator()
    coordinator.request_stop()
    coordinator.join()

    with pytest.raises(ValueError, match="late"):
        coordinator.request_stop(ValueError("late"))
    coordinator.request_stop()
    coordinator.clear_stop()
    assert not coordinator.should_stop()
    assert not coordinator.joined


def test_the_end_of_the_data_is_a_clean_stop():
    coordinator = Coordinator()
    with coordinator.stop_on_exception():
        raise OutOfRangeError("all read")
    assert coordinator.should_stop()
    coordinator.join()

    strict = Coordinator(clean_stop_exception_types=(KeyError,))
    strict.request_stop((OutOfRangeError, OutOfRangeError("all read"), None))
    with pytest.raises(OutOfRangeError, match="all read"):
        strict.join()


def test_registered_threads_are_waited_for():
    coordinator, go, done = Coordinator(), threading.Event(), []
    thread = threading.Thread(target=lambda: (go.wait(PATIENCE), done.append(1)))
    coordinator.register_thread(thread)
    thread.start()
    joining = Waiting(coordinator.join)
    go.set()
    joining.result()

    assert done == [1]


def test_threads_that_do_not_stop_are_named():
    coordinator, go = Coordinator(), threading.Event()
    thread = threading.Thread(target=lambda: go.wait(PATIENCE), name="stubborn")
    thread.start()
    coordinator.request_stop()
    coordinator.join([thread], stop_grace_period_secs=0, ignore_live_threads=True)

    with pytest.raises(RuntimeError, match=r"threads \['stubborn'\] were still running 0 s after the request to stop"):
        coordinator.join([thread], stop_grace_period_secs=0)
    go.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


# --- QueueRunner ----------------------------------------------------------------------------------------------------


def counted(queue: FIFOQueue, end: int) -> Any:
    """An operation that enqueues 1, 2, ... and fails behind `end`."""
    source = FIFOQueue(-1, "int32", ())
    source.put([np.arange(1, end + 1, dtype="int32")], many=True)
    source.shut(False)
    return queue.enqueue(source.dequeue())


def test_a_runner_fills_its_queue_and_closes_it_at_the_end(graph: Graph):
    queue = FIFOQueue(2, "int32", ())
    runner = QueueRunner(queue, [counted(queue, 6)] * 2)
    session, rest, found = Session(), queue.dequeue_up_to(4), []
    threads = runner.create_threads(session, start=True)

    with pytest.raises(OutOfRangeError):  # noqa: PT012
        while True:
            found += session.run(rest, timeout=PATIENCE).tolist()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    assert not any(thread.is_alive() for thread in threads)
    assert (len(threads), runner.exceptions_raised, runner.name) == (2, [], "fifo_queue")


def test_a_stop_reaches_threads_that_wait_for_room(graph: Graph):
    queue, coordinator = FIFOQueue(1, "int32", ()), Coordinator()
    runner = QueueRunner(queue, [queue.enqueue(1)])
    threads = runner.create_threads(Session(), coordinator, start=True)
    wait_until(queue, pending_enqueues=1)
    assert runner.create_threads(runner_session(runner)) == []

    coordinator.request_stop()
    coordinator.join(threads, stop_grace_period_secs=PATIENCE)

    assert queue.statistics().is_closed


def runner_session(runner: QueueRunner) -> Any:
    (session,) = runner._running  # type: ignore[attr-defined]
    return session


def test_an_error_stops_all_and_reaches_join(graph: Graph):
    queue, coordinator = FIFOQueue(5, "int32", ()), Coordinator()
    broken = queue.enqueue(ops.numpy_function(lambda: 1 // 0, [], "int32", shape=()))
    runner = QueueRunner(queue, [broken, queue.enqueue(1)])
    threads = runner.create_threads(Session(), coordinator, start=True)

    with pytest.raises(ZeroDivisionError):
        coordinator.join(threads, stop_grace_period_secs=PATIENCE)
    assert queue.statistics().is_closed


def test_without_a_coordinator_an_error_is_kept_and_ends_the_queue(graph: Graph, monkeypatch: pytest.MonkeyPatch):
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: shown.append(arguments.exc_type))
    queue = FIFOQueue(5, "int32", ())
    runner = QueueRunner(queue, [queue.enqueue(ops.numpy_function(lambda: 1 // 0, [], "int32", shape=()))])
    (thread,) = runner.create_threads(Session(), start=True)
    thread.join(PATIENCE)

    assert [type(error) for error in runner.exceptions_raised] == shown == [ZeroDivisionError]
    assert queue.statistics().is_closed


def test_runners_of_a_graph_are_started_together(graph: Graph):
    queues, coordinator = [FIFOQueue(5, "int32", (), name=name) for name in "ab"], Coordinator()
    for queue in queues:
        add_queue_runner(QueueRunner(queue, [counted(queue, 2)]))
    session, taken = Session(), [queue.dequeue_many(2) for queue in queues]
    threads = start_queue_runners(session, coordinator)

    assert [pair.tolist() for pair in session.run(taken, timeout=PATIENCE)] == [[1, 2], [1, 2]]
    coordinator.request_stop()
    coordinator.join(threads, stop_grace_period_secs=PATIENCE)
    assert len(threads) == 4


def test_runners_take_operations_only():
    queue = FIFOQueue(5, "int32", ())
    with pytest.raises(
        TypeError, match=r"takes operations; got None\. Build them with queue\.enqueue\(\.\.\.\) inside"
    ):
        QueueRunner(queue, [queue.enqueue(1)])
    with pytest.raises(ValueError, match="QueueRunner of queue 'fifo_queue': enqueue_ops is empty"):
        QueueRunner(queue, [])


# --- bucketing ------------------------------------------------------------------------------------------------------


def bucketed(lengths: list[int], **options: Any) -> list[tuple[list[int], Any]]:
    """All batches of sequences ``[n, n, ...]`` of these lengths."""
    with Graph().as_default() as graph:
        source = FIFOQueue(-1, "int32", ())
        source.put([np.array(lengths, "int32")], many=True)
        source.shut(False)
        length = source.dequeue()
        keep: dict[str, Any] = {"keep_input": ops.not_equal(length, options.pop("drop"))} if "drop" in options else {}
        element = {"row": ops.broadcast_to(length, (length,)), "double": length * 2}
        given, batch = bucket_by_sequence_length(length, element, dynamic_pad=True, **options, **keep)
        session, coordinator, found = Session(graph), Coordinator(), []
        threads = start_queue_runners(session, coordinator)
        try:
            while True:
                found.append(session.run((given, batch), timeout=PATIENCE))
        except OutOfRangeError:
            pass
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=PATIENCE)
    for counts, values in found:
        expected = [[n] * n + [0] * (max(counts) - n) for n in counts]
        assert (values["row"].tolist(), values["double"].tolist()) == (expected, [2 * n for n in counts])
    return [(counts.tolist(), values) for counts, values in found]


def test_sequences_of_like_length_go_together():
    found = bucketed([1, 5, 3, 2, 9, 4, 7, 2], batch_size=2, bucket_boundaries=[3, 6], allow_smaller_final_batch=True)

    assert sorted(counts for counts, _ in found) == [[1, 2], [2], [4], [5, 3], [9, 7]]


def test_what_does_not_fill_a_batch_is_dropped():
    found = bucketed([1, 5, 3, 2, 9, 4], batch_size=[2, 3, 1], bucket_boundaries=[3, 6])

    assert sorted(counts for counts, _ in found) == [[1, 2], [5, 3, 4], [9]]


def test_elements_can_be_left_out():
    found = bucketed([1, 5, 1, 6], batch_size=2, bucket_boundaries=[3], drop=1, allow_smaller_final_batch=True)

    assert [counts for counts, _ in found] == [[5, 6]]


@settings(max_examples=8)
@given(st.lists(st.integers(0, 9), max_size=25), st.integers(1, 3), st.integers(1, 3))
def test_every_element_comes_once_in_its_bucket(lengths: list[int], batch_size: int, capacity: int):
    boundaries = [2, 3, 7]
    found = bucketed(
        lengths,
        batch_size=batch_size,
        bucket_boundaries=boundaries,
        capacity=capacity,
        bucket_capacities=[1, 2, 1, 3],
        allow_smaller_final_batch=True,
        num_threads=2,
    )

    assert sorted(n for counts, _ in found for n in counts) == sorted(lengths)
    for counts, _ in found:
        assert len({sum(n >= boundary for boundary in boundaries) for n in counts}) == 1
        assert len(counts) <= batch_size


def test_a_stop_ends_all_threads_of_the_buckets(graph: Graph):
    steps = Variable(0)
    length = steps.assign_add(1) % 4 + 1
    lengths, _ = bucket_by_sequence_length(length, [length], 2, [3], dynamic_pad=True, capacity=2)
    session, coordinator = Session(), Coordinator()
    threads = start_queue_runners(session, coordinator)
    assert session.run(lengths, timeout=PATIENCE).shape == (2,)

    coordinator.request_stop()
    coordinator.join(threads, stop_grace_period_secs=PATIENCE)

    assert not any(thread.is_alive() for thread in threads)


def test_static_shapes_of_batches(graph: Graph):
    source = FIFOQueue(1, ["int32", "float32"], [(), (3,)])
    length, row = source.dequeue()
    for smaller, expected in ((False, "float32[4,3]"), (True, "float32[?,3]")):
        _, batch = bucket_by_sequence_length(length, row, 4, [3], allow_smaller_final_batch=smaller)
        assert str(batch.spec) == expected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bucket_boundaries": []}, r"bucket_boundaries must hold ascending lengths, at least one; got \[\]"),
        ({"bucket_boundaries": [3, 3]}, r"must hold ascending lengths.*\[3, 3\]"),
        ({"batch_size": 0}, "batch_size must be positive, one number for all or one for each of the 2 buckets; got 0"),
        ({"batch_size": [1, 2, 3]}, r"one for each of the 2 buckets; got \[1, 2, 3\]"),
        ({"bucket_capacities": [4]}, r"bucket_capacities must be positive.*got \[4\]"),
        ({"dynamic_pad": False}, r"shape \[\?\] is not fully known; use PaddingFIFOQueue"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], match: str, graph: Graph):
    length = FIFOQueue(1, "int32", ()).dequeue()
    arguments = {"batch_size": 2, "bucket_boundaries": [3], "dynamic_pad": True, **options}
    with pytest.raises(ValueError, match=match):
        bucket_by_sequence_length(length, ops.arange(length), **arguments)


def test_a_length_is_an_integer_scalar(graph: Graph):
    row = FIFOQueue(1, "float32", (2,)).dequeue()
    with pytest.raises(TypeError, match=r"input_length must be an integer scalar; got float32\[2\]"):
        bucket_by_sequence_length(row, row, 2, [3])
    with pytest.raises(TypeError, match=r"keep_input must be a bool scalar; got float32\[2\]"):
        bucket_by_sequence_length(ops.shape(row)[0], row, 2, [3], keep_input=row)
