"""`handing_updates`: a block in which metrics offer what they are updated with to a strategy that trains replicas."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from ...engine.ops.replicas import building_step

if TYPE_CHECKING:
    from .base import Metric


Take = Callable[["Metric", tuple[object, ...], dict[str, object]], bool]  # of a metric and its arguments


class _Active(threading.local):
    def __init__(self) -> None:
        self.take: Take | None = None
        self.updated: Metric | None = None  # the metric whose method runs


_active = _Active()


@contextlib.contextmanager
def handing_updates(take: Take | None) -> Generator[None]:
    """Have `Metric.update_state` ask `take` whether it keeps the arguments, for an update that is made later.

    Args:
        take: is given a metric and the arguments; None for a block in which all metrics update themselves.
    """
    before, _active.take = _active.take, take
    try:
        yield
    finally:
        _active.take = before


@contextlib.contextmanager
def updating(metric: Metric) -> Generator[None]:
    """Have the updates that a metric makes of itself, by ``super().update_state(...)``, be parts of one update.

    Losses in it are those of the replica's rows: what replicas add to a metric is summed as it is.

    Args:
        metric: the metric, whose method the block runs.
    """
    before, _active.updated = _active.updated, metric
    try:
        with building_step(is_loss=False):
            yield
    finally:
        _active.updated = before


def is_taken(metric: Metric, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Offer an update to the block around; return whether that makes it."""
    return _active.take is not None and _active.updated is not metric and _active.take(metric, args, kwargs)


__all__ = ["Take", "handing_updates", "is_taken", "updating"]
