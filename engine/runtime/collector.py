"""Python's garbage collector, while much is made of which nothing is garbage."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def without_collector(function: Callable[P, R]) -> Callable[P, R]:
    """Let the collector wait while `function` runs, which makes many objects that stay: it would look at all of them
    again and again, a tenth of the time.

    >>> gc.isenabled(), without_collector(gc.isenabled)(), gc.isenabled()
    (True, False, True)
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # It is one for the whole process: another thread would turn on what the main one turns off meanwhile.
        if not gc.isenabled() or threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run


def make_old() -> None:
    """Move all objects to the collector's oldest generation, without looking at them.

    After an import hundreds of thousands of objects are young, and all of them stay: the next collection would look at
    each for nothing.
    """
    if not gc.get_freeze_count():  # what a program has frozen stays so
        gc.freeze()
        gc.unfreeze()


def leave_out_modules() -> None:
    """Leave what has been made so far, such as modules, out of all collections from now on.

    Each object that a collection visits holds Python's lock for longer, and the last one, at the end of a process,
    takes modules apart. This is for the processes of commands: in others it would keep garbage of the user's.
    """
    gc.freeze()
