"""Room for recursion: calls of a recursive function are calls of Python functions, of which Python allows 1000.

Such calls need no room on the C stack, so the limit is no more than a number. It is raised while a step with
recursion runs: a compiled step comes down to 100,000 calls, where one call is one Python function (deeply nested loops
and branches inside take further ones); the reference interpreter, which takes about ten, to more than 10,000.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from ..common.forks import fork_safe_lock

FRAMES_OF_PROGRAM = 100_000
FRAMES_OF_INTERPRETER = 200_000

_lock = fork_safe_lock()
_users: list[int] = []  # the limits asked for now, by all threads
_before = 0


@contextmanager
def deep_calls(frames: int) -> Generator[None]:
    """Let Python functions call each other `frames` deep inside of the block."""
    global _before
    with _lock:
        if not _users:
            _before = sys.getrecursionlimit()
        _users.append(frames)
        sys.setrecursionlimit(max(_before, *_users))
    try:
        yield
    finally:
        with _lock:
            _users.remove(frames)
            sys.setrecursionlimit(max([_before, *_users]))


class CallsTooDeepError(RecursionError):
    """A recursive function called itself so often that there is no room for more."""


def calls_under_way(error: BaseException, filename: str, labels: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return how many calls of each recursive function were under way when `error` was raised.

    Args:
        error: what a program raised.
        filename: of the program.
        labels: for the name of each Python function in it that is a recursion, the name of the user's.
    """
    calls: collections.Counter[str] = collections.Counter()
    traceback = error.__traceback__ if labels else None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            calls[traceback.tb_frame.f_code.co_name] += 1
        traceback = traceback.tb_next
    return [(label, calls[name]) for name, label in labels.items() if calls[name]]


def too_deep_of(error: RecursionError, depths: Sequence[tuple[str, int]]) -> RecursionError:
    """Return the error of the function that called itself most, by its name and how deep it was."""
    if not depths:
        return error
    name, depth = max(depths, key=lambda pair: pair[1])
    return too_deep(error, name, depth)


def too_deep(error: RecursionError, name: str, depth: int) -> CallsTooDeepError:
    """Return the error that is raised instead of Python's own, which does not name the function."""
    if isinstance(error, CallsTooDeepError):
        return error
    return CallsTooDeepError(
        f"Function {name!r} called itself {depth} calls deep, which is deeper than there is room for. "
        "Does every path come to an end for these arguments? If it does, write it as a loop, with ab.while_loop."
    )
