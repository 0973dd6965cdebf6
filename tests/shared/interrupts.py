"""Interrupts (Ctrl-C) at each line of a function."""

import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from types import CodeType, FrameType
from typing import Any


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Let an interrupt raise KeyboardInterrupt, also in a background process, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted_at(line: int, is_own: Callable[[CodeType], bool], call: Callable[[], object]) -> bool:
    """Call, and interrupt before a line of the code that `is_own` says; whether so many lines of it are run."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_own(frame.f_code):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            call()
            assert left[0] > 0, "the interrupt was lost"
    finally:
        sys.settrace(before)
    return left[0] <= 0
