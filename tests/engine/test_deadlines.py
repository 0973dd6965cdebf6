"""Waits up to a thread's deadline are cut into short ones."""

from __future__ import annotations

import itertools

import pytest

from anabranch.engine.common import deadlines
from anabranch.engine.common.deadlines import deadline, waits


class Clock:
    """A time that passes as tests set it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(deadlines, "time", made)
    return made


def all_waits(clock: Clock) -> list[float]:
    """Waits in which nothing comes."""
    found: list[float] = []
    for seconds in waits():
        found.append(seconds)
        clock.now += seconds
    return found


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, [0.0]), (0.05, [0.05]), (0.1, [0.1]), (0.25, [0.1, 0.1, 0.05])],
)
def test_waits_add_up_to_the_deadline(clock: Clock, seconds: float, expected: list[float]):
    with deadline(seconds):
        assert all_waits(clock) == pytest.approx(expected)
    assert clock.now == pytest.approx(100.0 + seconds)


def test_a_deadline_that_has_passed_is_looked_at_once(clock: Clock):
    with deadline(1.0):
        clock.now += 5.0
        assert list(waits()) == [0.0]


def test_without_a_deadline_waits_do_not_end():
    assert list(itertools.islice(waits(), 1000)) == [0.1] * 1000


def test_a_deadline_that_ends_while_it_waits_is_that_of_the_thread(clock: Clock):
    going = waits()
    with deadline(0.3):
        assert next(going) == 0.1
        clock.now += 0.25
        assert next(going) == pytest.approx(0.05)
        assert list(going) == []
