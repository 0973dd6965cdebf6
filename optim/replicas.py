"""`handing_over`: a block in which optimizers hand their gradients to a strategy that reduces them over replicas."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

HandOver = Callable[[Any, Sequence[Any], Sequence[Any]], Any]  # of an optimizer, gradients and variables


class _Active(threading.local):
    def __init__(self) -> None:
        self.hand_over: HandOver | None = None


_active = _Active()


@contextlib.contextmanager
def handing_over(take: HandOver) -> Generator[None]:
    """Have `Optimizer.apply` call `take` in place of adding updates to the graph that is being built.

    Args:
        take: is given the optimizer, its gradients and its variables, and returns what `apply` is to return.
    """
    before, _active.hand_over = _active.hand_over, take
    try:
        yield
    finally:
        _active.hand_over = before


def who_takes() -> HandOver | None:
    """Give the function of the block around; None where optimizers make their updates themselves."""
    return _active.hand_over
