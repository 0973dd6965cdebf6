"""Heartbeats: who is silent or stuck is dead, who is busy is not, and who was stopped himself accuses nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.distribute.config import ServerConfig
from anabranch.distribute.tasks.doing import COMPILING, IDLE, IN_OPERATION, TURNING, WAITING
from anabranch.distribute.tasks.front import TaskInfo
from anabranch.distribute.tasks.peers import Address
from anabranch.distribute.tasks.watch import Patience, Pulse, Watch

INFO = TaskInfo("/job:ps/task:0", 7, "127.0.0.1", 1, ())


def beat(pulse: Pulse, times: int, answer: TaskInfo | None, start: float = 0.0, step: float = 1.0) -> list[str]:
    """So many heartbeats with one answer each; gives what they found."""
    found: list[str] = []
    for number in range(times):
        reason = pulse.tick(start + number * step)
        if reason is not None:
            found.append(reason)
        if answer is not None:
            pulse.answered(answer)
    return found


def test_a_silent_task_is_dead_after_the_timeout():
    pulse = Pulse(7, Patience())
    pulse.answered(INFO)
    assert beat(pulse, 9, None) == []
    assert pulse.silent_for == 8
    assert beat(pulse, 1, None, 9.0) == ["it has not answered for 9 s (heartbeat_timeout=8)"]


def test_one_answer_is_enough():
    pulse = Pulse(7, Patience())
    for start in range(0, 100, 5):
        assert beat(pulse, 5, None, float(start)) == []
        pulse.answered(INFO)


def test_a_task_that_never_answers_is_dead_as_well():
    assert beat(Pulse(7, Patience()), 10, None)


@pytest.mark.parametrize("state", [IDLE, WAITING, IN_OPERATION, COMPILING])
def test_who_is_idle_or_busy_is_not_dead(state: str):
    pulse = Pulse(7, Patience())
    assert beat(pulse, 1000, replace(INFO, state=state, doing="operation 'matmul'", since=500.0)) == []


def test_a_loop_that_has_work_and_does_not_turn_is_dead():
    pulse = Pulse(7, Patience())
    found = beat(pulse, 10, replace(INFO, state=TURNING, turns=5))
    assert found == ["its loop has work and has not turned for 9 s, in no operation (heartbeat_timeout=8)"]
    pulse = Pulse(7, Patience())
    for turns in range(100):
        assert beat(pulse, 1, replace(INFO, state=TURNING, turns=turns), float(turns)) == []


def test_kernel_timeout_bounds_an_operation():
    pulse = Pulse(7, Patience(kernel=60))
    assert beat(pulse, 3, replace(INFO, state=IN_OPERATION, doing="operation 'matmul'", since=59.0)) == []
    found = beat(pulse, 2, replace(INFO, state=IN_OPERATION, doing="operation 'matmul'", since=61.0), 3.0)
    assert found == ["it has been in operation 'matmul' for 61 s (kernel_timeout=60)"]


def test_another_incarnation_is_another_task():
    pulse = Pulse(8, Patience())
    assert beat(pulse, 2, INFO) == ["it has been restarted"]


@given(st.lists(st.floats(0, 10_000), max_size=6))
def test_who_was_stopped_accuses_nobody(gaps: list[float]):
    """Each gap is one in which this process did not run; the answer is there afterwards."""
    pulse, now = Pulse(7, Patience()), 0.0
    for gap in gaps:
        now += gap
        assert pulse.tick(now) is None
        pulse.answered(INFO)
    assert pulse.tick(now + 1) is None


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_dead_is_who_has_not_answered_for_longer_than_the_timeout(answers: list[bool]):
    pulse = Pulse(7, Patience())
    last = None
    for now, is_answered in enumerate(answers):
        silent = now - (0 if last is None else last)
        assert (pulse.tick(float(now)) is not None) == (silent > 8)
        if is_answered:
            pulse.answered(INFO)
            last = now


class OneTurn:
    """A loop whose timers are called by hand, and a greeter that asks nobody."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: Any = None

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, function: Any) -> None:
        self.due = function

    def ask(self, front: str, timeout: float, answered: Any) -> None:
        pass

    def forget(self, front: str) -> None:
        pass

    def pass_until(self, dead: list[str]) -> str:
        """Let time pass until one more task is dead; gives why."""
        count = len(dead)
        while len(dead) == count:
            self.time += 1.0
            self.due()
        return dead[-1]


def test_a_task_that_was_taken_for_dead_and_was_not_has_twice_as_long():
    """On a busy machine it was lost again and again. A new start of it has the usual time."""
    system: Any = OneTurn()
    dead: list[str] = []
    watch = Watch(system, system, Patience(), lambda identity, reason: dead.append(reason))
    address = Address("/job:ps/task:0", "127.0.0.1", 1, 7, "127.0.0.1:2")
    usual = "it has not answered for 9 s (heartbeat_timeout=8)"
    for seconds in (8, 16, 32, 64, 64):
        watch.add(address)
        again = f", and {seconds} s for a task that was taken for dead before" if seconds > 8 else ""
        found = system.pass_until(dead)
        assert found == f"it has not answered for {seconds + 1} s (heartbeat_timeout=8{again})"
    for incarnation in (8, 7):
        watch.add(address._replace(incarnation=incarnation))
        assert system.pass_until(dead) == usual


def test_a_long_operation_gives_no_more_time_to_be_silent():
    """Each time that an operation took longer than `kernel_timeout` doubled the silence that is allowed."""
    system: Any = OneTurn()
    dead: list[str] = []
    watch = Watch(system, system, Patience(kernel=60), lambda identity, reason: dead.append(reason))
    address = Address("/job:ps/task:0", "127.0.0.1", 1, 7, "127.0.0.1:2")
    system.ask = lambda front, timeout, answered: answered(
        replace(INFO, state=IN_OPERATION, doing="operation 'matmul'", since=61.0)
    )
    system.call = lambda function: function()
    watch.add(address)
    assert system.pass_until(dead) == "it has been in operation 'matmul' for 61 s (kernel_timeout=60)"
    del system.ask
    watch.add(address)
    assert system.pass_until(dead) == "it has not answered for 9 s (heartbeat_timeout=8)"


def test_what_does_not_fit_is_named():
    for arguments, message in [
        ({"heartbeat_interval": 0}, r"heartbeat_interval=0: expected a number of seconds above 0"),
        ({"heartbeat_timeout": 0.5}, r"heartbeat_timeout=0\.5: expected more seconds than heartbeat_interval=1"),
        ({"kernel_timeout": -1}, r"kernel_timeout=-1: expected a number of seconds above 0, or None"),
    ]:
        with pytest.raises(ValueError, match=message):
            ServerConfig(**arguments)
