"""A task's end is seen by those who wait for it, wherever a signal's handler has interrupted one of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from shared.waiting import until

from anabranch.distribute.ending import Ending


class Interruption(BaseException):
    """An exception that the handler of a signal raises."""


def interrupted_at(instruction: int, call: Callable[[], object]) -> bool:
    """Run a function, and raise an exception before the given instruction of Python; gives whether there was one.

    It has a thread of its own: an exception in the middle of an `except` clause leaves Python with the one before.
    """
    left, was_interrupted = instruction, False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interruption
        return trace

    def run() -> None:
        nonlocal was_interrupted
        sys.settrace(trace)
        try:
            call()
        except Interruption:
            was_interrupted = True
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return was_interrupted


@pytest.mark.parametrize("is_set", [False, True])
def test_an_interrupt_anywhere_leaves_it_usable(is_set: bool):
    instruction = 0
    while True:
        instruction += 1
        ending = Ending()
        if is_set:
            ending.set()
        was_interrupted = interrupted_at(instruction, lambda ending=ending: ending.wait(0))
        assert ending.is_set() == is_set
        setting = threading.Thread(target=ending.set)
        setting.start()
        assert ending.wait(60)
        setting.join(60)
        assert not setting.is_alive()
        if not was_interrupted:
            break
    assert instruction > 20


def test_all_who_wait_are_woken_up():
    ending = Ending()
    assert not ending.wait(0)
    found: list[bool] = []
    waiting = [threading.Thread(target=lambda: found.append(ending.wait())) for _ in range(4)]
    for thread in waiting:
        thread.start()
    ending.set()
    until(lambda: len(found) == 4)
    for thread in waiting:
        thread.join()
    assert found == [True] * 4
    assert ending.wait()
