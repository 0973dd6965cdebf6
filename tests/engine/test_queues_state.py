"""The state machines of queues and accumulators, without threads: who is served, in which order, with what."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.engine.queues.accumulator_state import AccumulatorState, DenseTotal, SparseTotal
from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.errors import CancelledError, OutOfRangeError
from anabranch.engine.queues.state import FirstInFirstOut, LowestFirst, QueueState, Shuffled


def fifo(capacity: int | None = None, min_after_dequeue: int = 0) -> QueueState:
    return QueueState(FirstInFirstOut(), capacity, min_after_dequeue, "q")


def elements(*values: int) -> list[tuple[int]]:
    return [(value,) for value in values]


def values_of(attempt: Attempt) -> list[int]:
    return [value for (value,) in attempt.outcome()]


# --- single cases ---------------------------------------------------------------------------------------------------


def test_what_goes_in_first_comes_out_first():
    queue = fifo()
    queue.enqueue(elements(1, 2, 3))

    assert values_of(queue.dequeue(2)) == [1, 2]
    assert values_of(queue.dequeue(1)) == [3]
    assert queue.size == 0


def test_an_enqueue_waits_for_room_and_hands_in_what_fits():
    queue = fifo(capacity=2)
    waiting = queue.enqueue(elements(1, 2, 3, 4))

    assert (waiting.is_done, queue.size) == (False, 2)
    assert values_of(queue.dequeue(1)) == [1]
    assert (waiting.is_done, queue.size) == (False, 2)
    assert values_of(queue.dequeue(1)) == [2]
    assert waiting.is_done


def test_a_dequeue_waits_and_tells_when_it_is_served():
    queue, told = fifo(), []
    waiting = queue.dequeue(2)
    waiting.on_done = lambda: told.append(waiting.result)
    queue.enqueue(elements(1))
    assert told == []

    queue.enqueue(elements(2))

    assert told == [elements(1, 2)]


def test_requests_are_served_in_their_order():
    queue = fifo()
    large, small = queue.dequeue(3), queue.dequeue(1)
    queue.enqueue(elements(1, 2))
    assert not small.is_done

    queue.enqueue(elements(3, 4))

    assert (values_of(large), values_of(small)) == ([1, 2, 3], [4])


def test_more_than_the_capacity_can_be_asked_for():
    queue = fifo(capacity=2)
    waiting = queue.dequeue(5)
    attempts = [queue.enqueue(elements(value)) for value in range(5)]

    assert values_of(waiting) == [0, 1, 2, 3, 4]
    assert all(attempt.is_done for attempt in attempts)


def test_a_closed_queue_gives_what_it_has():
    queue = fifo()
    queue.enqueue(elements(1, 2))
    queue.close()

    assert values_of(queue.dequeue(1)) == [1]
    with pytest.raises(OutOfRangeError, match=r"'q' is closed and has too few elements: 2 asked for, 1 left\. deq"):
        queue.dequeue(2).outcome()
    assert values_of(queue.dequeue(2, up_to=True)) == [2]
    with pytest.raises(OutOfRangeError, match=r"1 asked for, 0 left\.$"):
        queue.dequeue(1, up_to=True).outcome()


def test_a_closed_queue_takes_nothing():
    queue = fifo()
    queue.close()
    queue.close()

    with pytest.raises(CancelledError, match="Queue 'q' is closed: nothing more can be enqueued"):
        queue.enqueue(elements(1)).outcome()


def test_enqueues_that_wait_are_still_served_after_closing():
    queue = fifo(capacity=1)
    queue.enqueue(elements(1))
    waiting = queue.enqueue(elements(2, 3))
    queue.close()

    assert [values_of(queue.dequeue(1)) for _ in range(3)] == [[1], [2], [3]]
    assert waiting.is_done
    assert isinstance(queue.dequeue(1).error, OutOfRangeError)


def test_enqueues_that_wait_can_be_cancelled():
    queue = fifo(capacity=1)
    waiting = queue.enqueue(elements(1, 2, 3))
    queue.close()
    queue.close(cancel_pending_enqueues=True)

    with pytest.raises(CancelledError, match="2 of its 3 elements were not taken"):
        waiting.outcome()
    assert queue.size == 1


def test_dequeues_that_wait_end_when_the_queue_is_closed():
    queue = fifo()
    one, rest = queue.dequeue(2), queue.dequeue(2, up_to=True)
    queue.enqueue(elements(7))
    queue.close()

    assert isinstance(one.error, OutOfRangeError)
    assert values_of(rest) == [7]


def test_a_large_dequeue_makes_room_for_enqueues_that_wait_after_closing():
    queue = fifo(capacity=1)
    attempts = [queue.enqueue(elements(value)) for value in range(3)]
    queue.close()

    assert values_of(queue.dequeue(3)) == [0, 1, 2]
    assert all(attempt.is_done for attempt in attempts)


def test_withdrawing_lets_the_next_one_in():
    queue = fifo(capacity=2)
    large, small = queue.dequeue(2), queue.dequeue(1)
    queue.enqueue(elements(1))
    queue.withdraw(large)
    assert values_of(small) == [1]

    queue.enqueue(elements(2, 3))
    waiting, behind = queue.enqueue(elements(4)), queue.enqueue(elements(5))
    queue.withdraw(waiting)
    assert [values_of(queue.dequeue(1)) for _ in range(3)] == [[2], [3], [5]]
    assert behind.is_done
    assert queue.statistics().cancelled == 2


def test_nothing_is_asked_for():
    queue = fifo()
    waiting = queue.dequeue(1)

    assert queue.dequeue(0).outcome() == []
    assert queue.enqueue([]).is_done
    assert not waiting.is_done


def test_some_elements_have_to_stay_until_the_end():
    queue = fifo(capacity=10, min_after_dequeue=2)
    queue.enqueue(elements(1, 2))
    waiting = queue.dequeue(1)
    assert not waiting.is_done

    queue.enqueue(elements(3))
    assert values_of(waiting) == [1]
    queue.close()
    assert values_of(queue.dequeue(2)) == [2, 3]


def test_statistics():
    queue = fifo(capacity=2)
    queue.enqueue(elements(1, 2, 3))
    queue.dequeue(1)
    queue.enqueue(elements(4))

    assert queue.statistics()._asdict() == {
        "size": 2,
        "capacity": 2,
        "enqueued": 3,
        "dequeued": 1,
        "pending_enqueues": 1,
        "pending_dequeues": 0,
        "cancelled": 0,
        "is_closed": False,
    }


@given(st.lists(st.integers(-3, 3)))
def test_the_lowest_priority_leaves_first_and_of_equal_ones_the_oldest(priorities: list[int]):
    queue = QueueState(LowestFirst())
    queue.enqueue([(np.int64(priority), serial) for serial, priority in enumerate(priorities)])

    found = queue.dequeue(len(priorities)).outcome()

    assert [serial for _, serial in found] == sorted(range(len(priorities)), key=lambda serial: priorities[serial])


def test_shuffled_elements_leave_in_every_order_equally_often():
    queue = QueueState(Shuffled(np.random.Generator(np.random.Philox(7))))
    orders: Counter[tuple[int, ...]] = Counter()
    for _ in range(1200):
        queue.enqueue(elements(1, 2, 3))
        orders[tuple(values_of(queue.dequeue(3)))] += 1

    assert len(orders) == 6
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 20.5  # chi-squared, 5 degrees, 0.1%


# --- any sequence of requests ---------------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """Requests in any order, compared with what holds for plain lists of what was offered and what was given."""

    @initialize(
        kind=st.sampled_from(["fifo", "shuffled", "lowest"]),
        capacity=st.sampled_from([None, 1, 2, 5]),
        held_back=st.integers(0, 4),
    )
    def start(self, kind: str, capacity: int | None, held_back: int):
        self.kind = kind
        self.capacity = capacity
        self.held_back = min(held_back, (capacity or 5) - 1)
        stores: dict[str, Any] = {
            "fifo": FirstInFirstOut,
            "shuffled": lambda: Shuffled(np.random.Generator(np.random.Philox(1))),
            "lowest": LowestFirst,
        }
        self.queue = QueueState(stores[kind](), capacity, self.held_back)
        self.enqueues: list[tuple[Attempt, list[int]]] = []
        self.dequeues: list[Attempt] = []
        self.withdrawn: list[Attempt] = []
        self.next_value = 0
        self.was_closed = False

    @rule(count=st.integers(0, 6))
    def enqueue(self, count: int):
        values = [self.next_value + offset for offset in range(count)]
        self.next_value += count
        attempt = self.queue.enqueue([(value * 37 % 101, value) for value in values])
        if self.was_closed:
            assert isinstance(attempt.error, CancelledError)
        else:
            self.enqueues.append((attempt, values))

    @rule(count=st.integers(0, 7), up_to=st.booleans())
    def dequeue(self, count: int, up_to: bool):
        self.dequeues.append(self.queue.dequeue(count, up_to))

    @rule(cancel=st.booleans(), really=st.integers(0, 3))
    def close(self, cancel: bool, really: int):
        if really:
            return  # not too often
        self.queue.close(cancel)
        self.was_closed = True
        assert not (cancel and self.pending([attempt for attempt, _ in self.enqueues]))

    @rule(position=st.integers(0, 5))
    def withdraw(self, position: int):
        waiting = [*self.pending(self.dequeues), *self.pending([attempt for attempt, _ in self.enqueues])]
        if position < len(waiting):
            self.queue.withdraw(waiting[position])
            self.withdrawn.append(waiting[position])

    def pending(self, attempts: list[Attempt]) -> list[Attempt]:
        return [attempt for attempt in attempts if not attempt.is_done and attempt not in self.withdrawn]

    @invariant()
    def nothing_is_lost_or_made_up(self):
        accepted = [value for attempt, values in self.enqueues for value in self.accepted(attempt, values)]
        given_out = [element for attempt in self.dequeues for element in attempt.result or ()]
        found = self.queue.statistics()
        assert len(accepted) == found.enqueued
        assert len(given_out) == found.dequeued
        assert found.enqueued - found.dequeued == found.size == self.queue.size
        assert len({value for _, value in given_out}) == len(given_out)
        assert {value for _, value in given_out} <= set(accepted)
        if self.kind == "fifo":
            assert [value for _, value in given_out] == accepted[: len(given_out)]
        if self.kind == "lowest":
            batches = [attempt.result for attempt in self.dequeues if attempt.result]
            assert all(batch == sorted(batch) for batch in batches)

    def accepted(self, attempt: Attempt, values: list[int]) -> list[int]:
        return values[: len(values) - len(attempt.elements)]

    @invariant()
    def each_gets_what_it_asked_for(self):
        for attempt in self.dequeues:
            if attempt.is_done and attempt.error is None:
                assert len(attempt.result) == attempt.count or (attempt.up_to and len(attempt.result) > 0)
                assert len(attempt.result) == attempt.count or self.was_closed
            assert attempt.error is None or self.was_closed

    @invariant()
    def requests_are_served_in_order_and_as_soon_as_they_can_be(self):
        enqueues, dequeues = self.pending([attempt for attempt, _ in self.enqueues]), self.pending(self.dequeues)
        found = self.queue.statistics()
        assert (len(enqueues), len(dequeues)) == (found.pending_enqueues, found.pending_dequeues)
        room = 0 if self.capacity is None else self.capacity
        wanted = dequeues[0].count + self.held_back if dequeues else 0
        if enqueues:
            assert self.capacity is not None
            assert found.size >= max(room, wanted)
        if dequeues:
            assert found.size - self.held_back < dequeues[0].count
            assert not enqueues
            assert not self.was_closed
        for waiting in (enqueues, dequeues):
            row = [attempt for attempt, _ in self.enqueues] if waiting is enqueues else self.dequeues
            later = row[row.index(waiting[0]) :] if waiting else []
            assert not any(attempt.is_done and attempt.error is None and attempt.count for attempt in later)


QueueMachine.TestCase.settings = settings(stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase


# --- accumulators ---------------------------------------------------------------------------------------------------


def test_a_take_waits_for_enough_gradients_and_gets_all_that_there_are():
    state = AccumulatorState(DenseTotal(), is_mean=True)
    state.apply(np.array([1.0, 2.0]), 0)
    waiting = state.take(2)
    assert not waiting.is_done

    state.apply(np.array([3.0, 6.0]), 0)

    np.testing.assert_array_equal(waiting.outcome(), [2.0, 4.0])


def test_gradients_of_earlier_steps_are_dropped_and_counted():
    state = AccumulatorState(DenseTotal(), is_mean=False)
    assert state.apply(np.float32(1), 0)
    assert state.take(1).outcome() == 1

    assert not state.apply(np.float32(2), 0)
    assert state.apply(np.float32(3), 1)
    state.set_global_step(5)
    assert not state.apply(np.float32(4), 4)
    assert state.statistics() == (1, 2, 2, 1, 5, 0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), max_size=5), min_size=1, max_size=5))
def test_rows_add_up_to_what_dense_gradients_do(gradients: list[list[tuple[int, int]]]):
    dense, sparse = AccumulatorState(DenseTotal(), is_mean=True), AccumulatorState(SparseTotal(), is_mean=True)
    for rows in gradients:
        indices = np.array([row for row, _ in rows], "int64")
        values = np.array([[value, 1] for _, value in rows], "float64").reshape(-1, 2)
        whole = np.zeros((4, 2))
        np.add.at(whole, indices, values)
        dense.apply(whole, 0)
        sparse.apply((indices, values, np.array([4, 2])), 0)

    indices, values, shape = sparse.take(1).outcome()

    assert indices.tolist() == sorted({row for rows in gradients for row, _ in rows})
    found = np.zeros(shape)
    found[indices] = values
    np.testing.assert_allclose(found, dense.take(1).outcome(), atol=1e-12)


def test_a_take_can_be_withdrawn():
    state = AccumulatorState(DenseTotal(), is_mean=False)
    large, small = state.take(3), state.take(1)
    state.apply(np.float32(1), 0)
    assert not small.is_done

    state.withdraw(large)

    assert small.outcome() == 1
    assert state.statistics().pending == 0


def test_what_was_added_is_a_copy():
    state, gradient = AccumulatorState(DenseTotal(), is_mean=False), np.ones(2)
    state.apply(gradient, 0)
    gradient[:] = 9

    assert state.take(1).outcome().tolist() == [1, 1]
