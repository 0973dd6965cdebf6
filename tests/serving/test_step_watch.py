"""`StepWatch` distinguishes a step that does not end from one that only takes longer than a client waits."""

from __future__ import annotations

import pytest

from anabranch.framework.serving.times.step_watch import StepWatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_step_is_stuck_after_the_time_that_any_request_has(clock: Clock) -> None:
    watch = StepWatch(2.0, clock)
    assert not watch.is_stuck
    watch.begin()
    clock.now += 2.0
    assert not watch.is_stuck
    clock.now += 0.1
    assert watch.is_stuck
    assert watch.seconds == pytest.approx(2.1)
    watch.end()
    assert not watch.is_stuck
    assert watch.seconds == 0


def test_a_step_is_stuck_after_the_deadline_of_a_request_in_it(clock: Clock) -> None:
    watch = StepWatch(None, clock)
    watch.begin()
    clock.now += 50
    assert not watch.is_stuck  # nobody has said how long it may take
    watch.note_unanswered(None)  # a client that has gone
    assert not watch.is_stuck
    watch.note_unanswered(clock.now + 5)  # one that has gone before its time
    watch.note_unanswered(clock.now + 7)
    assert not watch.is_stuck
    clock.now += 5.1
    assert watch.is_stuck
    watch.begin()  # the next one
    assert not watch.is_stuck


def test_a_client_in_a_hurry_does_not_make_a_slow_model_stuck(clock: Clock) -> None:
    watch = StepWatch(None, clock)
    watch.begin()
    watch.note_unanswered(clock.now + 0.01)
    clock.now += 0.9
    assert not watch.is_stuck
    clock.now += 2.1
    assert watch.is_stuck  # the first one, of which nothing is known
    watch.begin()
    watch.note_unanswered(clock.now + 0.01)
    clock.now += 5.9
    assert not watch.is_stuck  # three seconds are usual
    clock.now += 0.2
    assert watch.is_stuck


def test_a_deadline_counts_for_the_step_in_whose_time_it_was(clock: Clock) -> None:
    watch = StepWatch(None, clock)
    watch.note_unanswered(clock.now)
    watch.begin()
    clock.now += 10
    assert not watch.is_stuck
    watch.note_unanswered(clock.now - 1)
    assert watch.is_stuck
    watch.end()
    watch.begin()
    clock.now += 100
    assert not watch.is_stuck
