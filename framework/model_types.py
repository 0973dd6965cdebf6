"""Types that name losses, metrics or datasets. Only annotations use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from ..engine.common.nest import Nest
from .structures import Batches, Rows

if TYPE_CHECKING:
    from .data.prefetch import Prefetch
    from .data.py_dataset import PyDataset
    from .losses.api import LossLike
    from .metrics.api import MetricLike

Losses: TypeAlias = "Nest[LossLike | None] | None"
"""Losses that `compile` takes: one for all outputs, or a list or dict with one for each."""

Metrics: TypeAlias = "Nest[MetricLike | None] | None"
"""Metrics that `compile` takes: a list of them; for several outputs a list or dict of such lists."""

ModelData: TypeAlias = "Rows | Iterable[Rows] | Batches | PyDataset | Prefetch"
"""Data that `fit`, `evaluate` and `predict` take: arrays, batches one by one, or a dataset."""
