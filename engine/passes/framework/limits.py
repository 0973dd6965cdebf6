"""A limit on how many rewrites a step gets, for finding the one that is to blame: LLVM's `opt-bisect-limit`.

A rewrite is one application of a rule; of a pass that is not written as rules, all that it does to a step. They are
counted in the order in which they happen, which is the same each time a step is prepared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

VARIABLE = "ANABRANCH_REWRITES"
REASON = "the step has had as many rewrites as it may get"


class _Rewrites(threading.local):
    """The rewrites of the step that this thread prepares.

    Attributes:
        most: how many a step may get; None for what the environment says.
        left: how many more the step may get; None for any number.
        done: how many it has got.
    """

    most: int | None = None
    left: int | None = None
    done = 0


_rewrites = _Rewrites()


def may_rewrite() -> bool:
    """Test whether the step may get another rewrite."""
    return _rewrites.left is None or _rewrites.left > 0


def count_rewrite() -> None:
    """Count a rewrite."""
    _rewrites.done += 1
    if _rewrites.left is not None:
        _rewrites.left -= 1


def are_counted() -> bool:
    """Test whether anything limits rewrites, so that those of passes that are not written as rules count, too."""
    return _rewrites.left is not None or _rewrites.most is not None


def rewrites_done() -> int:
    """Return how many rewrites the step has got that this thread prepares, or prepared last."""
    return _rewrites.done


@contextmanager
def counted() -> Generator[None]:
    """Count the rewrites of a step from 0, under the limit that holds.

    Raises:
        ValueError: ANABRANCH_REWRITES is not a number.
    """
    before, _rewrites.left, _rewrites.done = _rewrites.left, _limit(), 0
    try:
        yield
    finally:
        _rewrites.left = before


@contextmanager
def at_most(rewrites: int) -> Generator[None]:
    """Limit each step that this thread prepares inside of the block to so many rewrites.

    Args:
        rewrites: how many; a negative number for any number.
    """
    before, _rewrites.most = _rewrites.most, rewrites
    try:
        yield
    finally:
        _rewrites.most = before


def _limit() -> int | None:
    if _rewrites.most is not None:
        return _rewrites.most if _rewrites.most >= 0 else None
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        limit = int(text)
    except ValueError:
        raise ValueError(f"{VARIABLE}={text!r}: expected how many rewrites a step may get, as a number.") from None
    return limit if limit >= 0 else None


__all__ = ["are_counted", "at_most", "count_rewrite", "counted", "may_rewrite", "rewrites_done"]
