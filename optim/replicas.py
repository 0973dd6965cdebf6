"""`handing_over`: a block in which optimizers hand their gradients to a strategy that reduces them over replicas."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from ..engine import ops

HandOver = Callable[[Any, Sequence[Any], Sequence[Any]], Any]  # of an optimizer, gradients and variables


class _Active(threading.local):
    def __init__(self) -> None:
        self.hand_over: HandOver | None = None
        self.share: Any = 1.0
        self.scaled: list[Any] = []  # optimizers


_active = _Active()


@contextlib.contextmanager
def handing_over(take: HandOver, share: Any = 1.0) -> Generator[None]:
    """Have `Optimizer.apply` call `take` in place of adding updates to the graph that is being built.

    Args:
        take: is given the optimizer, its gradients and its variables, and returns what `apply` is to return.
        share: the part of the batch's rows that the replica has. Losses that optimizers scale are multiplied by it.
    """
    before = _active.hand_over, _active.share, _active.scaled
    _active.hand_over, _active.share, _active.scaled = take, share, []
    try:
        yield
    finally:
        _active.hand_over, _active.share, _active.scaled = before


def who_takes() -> HandOver | None:
    """Return the function of the block around; None where optimizers make their updates themselves."""
    return _active.hand_over


# --- losses that are scaled -----------------------------------------------------------------------------------------


def share_of_loss(optimizer: Any, loss: Any) -> Any:
    """Return a replica's part of the batch's loss, for an optimizer that scales it.

    The mean over the rows of a part has larger gradients for each row than the mean over the batch. Scaled, they would
    be beyond float16 where those of one device are not.
    """
    if _active.hand_over is None:
        return loss
    note_scaled(optimizer)
    loss = ops.convert_to_tensor(loss)
    return loss * ops.cast(_active.share, loss.dtype)


def note_scaled(optimizer: Any) -> None:
    """Note that an optimizer has scaled a loss in the block around."""
    _active.scaled.append(optimizer)


def has_scaled(optimizer: Any) -> bool:
    """Test whether an optimizer has scaled a loss in the block around, so that its gradients are of a share."""
    return any(each is optimizer for each in _active.scaled)
