"""Work whose parts any worker may compute: each part is done, whoever comes, goes or is lost, and nobody waits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from anabranch.engine.graph import Graph
from anabranch.engine.queues.errors import StateLostError
from anabranch.engine.queues.shared_work import ALONE, DONE, HAND_IN, NONE, SharedWork, SharedWorkState
from anabranch.engine.session import Session

A, B, C = ("/job:worker/task:0", 1), ("/job:worker/task:1", 1), ("/job:worker/task:2", 1)


def test_a_worker_alone_keeps_what_it_computes():
    state = SharedWorkState()
    number = state.join(A, "key", 3, True)
    assert [state.take(number, A) for _ in range(4)] == [(0, 1), (1, 1), (2, 1), (ALONE, 1)]
    assert state.join(B, "key", 3, True) != number, "it is too late to join"
    state.leave(number, A)
    assert len(state) == 1


def test_workers_share_parts_and_repeat_what_others_are_at():
    state = SharedWorkState()
    number = state.join(A, "key", 3, True)
    assert state.take(number, A) == (0, 1)
    assert state.join(B, "key", 3, False) == number
    assert state.take(number, B) == (1, 2)
    assert state.take(number, A) == (2, 2)
    assert state.put(number, B, 1, "b1")
    assert state.take(number, B) == (0, 2), "another worker has begun it"
    assert state.take(number, A) == (HAND_IN, 2)
    assert state.put(number, B, 0, "b0")
    assert not state.put(number, A, 0, "a0"), "the first counts"
    assert state.put(number, A, 2, "a2")
    assert state.take(number, A) == state.take(number, B) == (DONE, 2)
    assert [state.fetch(number, A, part) for part in range(3)] == ["b0", "b1", "a2"]
    state.leave(number, A)
    assert state.join(C, "key", 3, True) == number, "results are there until the last one leaves"
    assert state.take(number, C) == (DONE, 2)
    assert state.join(A, "key", 3, True) != number, "the same call again is another one"
    for worker in (B, C):
        state.leave(number, worker)
    with pytest.raises(StateLostError, match=f"task:2 does not take part in the shared work {number}"):
        state.take(number, C)


def test_other_keys_are_other_work():
    state = SharedWorkState()
    assert state.join(B, "key", 3, False) == NONE
    number = state.join(A, "key", 3, True)
    assert state.join(B, "other", 3, True) != number
    assert state.join(B, "key", 4, True) != number


@pytest.mark.parametrize("seed", range(100))
def test_all_parts_are_done_whoever_is_lost(seed: int):
    """Workers take, hand in, are lost and come back in an order that a seed draws; one of them stays."""
    rng, state = random.Random(seed), SharedWorkState()
    parts = rng.randrange(6)
    workers = [(f"task {number}", 1) for number in range(rng.randint(1, 4))]
    numbers: dict[object, int] = {}
    kept: dict[object, dict[int, object]] = {worker: {} for worker in workers}
    finished: set[object] = set()
    for _ in range(400):
        if len(finished) == len(workers):
            break
        worker = rng.choice([each for each in workers if each not in finished])
        if worker not in numbers:
            numbers[worker] = state.join(worker, "key", parts, True)
            continue
        if worker is not workers[0] and rng.random() < 0.1:
            state.lost(worker)
            finished.add(worker)
            continue
        part, count = state.take(numbers[worker], worker)
        if part >= 0:
            kept[worker][part] = part
        if count > 1 or part == DONE:
            for each in kept[worker]:
                state.put(numbers[worker], worker, each, each)
        if part in (DONE, ALONE):
            own = kept[worker] if part == ALONE else {}
            found = [own[n] if n in own else state.fetch(numbers[worker], worker, n) for n in range(parts)]
            assert found == list(range(parts))
            state.leave(numbers[worker], worker)
            finished.add(worker)
    assert len(finished) == len(workers)
    assert len(state) == 0, "nothing is kept"


def test_requests_are_operations():
    with Graph().as_default() as graph:
        work = SharedWork("work")
        with Session(graph) as session:

            def asked(method, *inputs):
                found: Any = work.ask(method, "task", 1, *inputs)
                return [np.asarray(each).tolist() for each in session.run(list(found))]

            (number,) = asked("join", "key", 2, True)
            assert asked("take", number) == [0, 1]
            assert asked("put", number, 0, np.array([7, 8], "uint8")) == [1]
            assert asked("take", number) == [1, 1]
            assert asked("put", number, 1, np.zeros(0, "uint8")) == [1]
            assert asked("take", number) == [DONE, 1]
            assert [asked("fetch", number, part) for part in range(2)] == [[[7, 8]], [[]]]
            work.task_lost("task", 1)
            with pytest.raises(StateLostError):
                asked("take", number)
        with pytest.raises(TypeError, match=r"SharedWork.take takes \['int64.*got"):
            work.ask("take", "task", 1)
