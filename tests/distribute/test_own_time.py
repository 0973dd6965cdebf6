"""`OwnTime`, by which tests find out that processes stand still: it stops while one of them waits for a processor."""

from __future__ import annotations

import os

import pytest
from shared.faults import OwnTime, seconds_in_queue

Waits = dict[int, dict[str, float]]


class Machine:
    """Processes whose threads wait for a processor, in virtual time."""

    def __init__(self, waits: Waits) -> None:
        self.time, self.waits = 100.0, waits
        self.own = OwnTime(lambda: list(waits), lambda: self.time, lambda pid: {**waits[pid]})

    def pass_by(self, seconds: float, more: Waits | None = None) -> float:
        self.time += seconds
        for pid, threads in (more or {}).items():
            for thread, wait in threads.items():
                self.waits[pid][thread] = self.waits[pid].get(thread, 0.0) + wait
        return self.own.now()


def test_time_in_which_a_process_waits_for_a_processor_does_not_count():
    machine = Machine({1: {"1": 5.0, "7": 0.0}, 2: {"2": 0.0}})
    pass_by = machine.pass_by
    assert pass_by(1.0) == 1.0
    assert pass_by(1.0, {1: {"1": 0.25}, 2: {"2": 0.75}}) == 1.25, "the one that has waited longest"
    assert pass_by(0.25) == 1.25, "it is not looked at so often"
    assert pass_by(0.75) == 2.25
    assert pass_by(60.0) == 4.25, "the test itself did not run"
    machine.waits[3] = {"3": 0.5}  # it was started since
    assert pass_by(1.0) == 4.75


def test_threads_of_a_process_wait_at_the_same_time():
    machine = Machine({1: {"1": 5.0, "7": 0.0}})
    assert machine.pass_by(1.0, {1: {"1": 0.5, "7": 0.75}}) == 0.25
    del machine.waits[1]["1"]
    assert machine.pass_by(1.0, {1: {"8": 0.25}}) == 1.0, "a thread has ended, and another one has begun"


def test_a_limit_is_exceeded_although_threads_always_wait():
    machine = Machine({1: {"1": 0.0}})
    passed = [machine.pass_by(1.0, {1: {"1": 1.0}}) for _ in range(100)]
    assert passed[-1] == pytest.approx(10.0)


def test_the_seconds_of_this_process_grow_and_those_of_others_are_none():
    own = str(os.getpid())
    first = seconds_in_queue(os.getpid())[own]
    assert 0.0 <= first <= seconds_in_queue(os.getpid())[own]
    assert seconds_in_queue(2**30) == {}


def test_a_process_that_ends_while_its_threads_are_listed(monkeypatch: pytest.MonkeyPatch):
    def ended(path: str) -> list[str]:
        raise ProcessLookupError

    monkeypatch.setattr(os, "listdir", ended)
    assert seconds_in_queue(os.getpid()) == {}
