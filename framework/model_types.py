"""Types that name models, losses, metrics or datasets. Only annotations use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.common.nest import Nest
from .structures import Batches, Rows

if TYPE_CHECKING:
    from .callbacks.base import History
    from .data.prefetch import Prefetch
    from .data.py_dataset import PyDataset
    from .losses.api import LossLike
    from .metrics.api import MetricLike
    from .models.model import Model

    class ModelOfSomeClass(Model):
        """A model of a class that type checkers can't find: it may have any attribute beside those of every model."""

        history: History  # there is one while callbacks are called
        distribute_strategy: Any

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


Losses: TypeAlias = "Nest[LossLike | None] | None"
"""Losses that `compile` takes: one for all outputs, or a list or dict with one for each."""

Metrics: TypeAlias = "Nest[MetricLike | None] | None"
"""Metrics that `compile` takes: a list of them; for several outputs a list or dict of such lists."""

ModelData: TypeAlias = "Rows | Iterable[Rows] | Batches | PyDataset | Prefetch"
"""Data that `fit`, `evaluate` and `predict` take: arrays, batches one by one, or a dataset."""
