"""`LocalSteps`: training steps under `DataParallel` in one process with several devices: a replica on each.

Each device computes the gradients of its rows of a batch, and the sums of all go into one update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.strategies.data_parallel import DataParallel
from ...engine import ops
from ...engine.common.dtypes import as_dtype
from ...engine.graph import IndexedSlices, Tensor, eagerly
from ...engine.graph.scopes import device
from ...engine.ops.random.keys import like, standing_in
from ...engine.ops.random.rows import Axes, Window, drawing_rows
from ...engine.ops.replicas import replicated
from ..data.adapters import Layout
from .cut_steps import CutSteps, like_batch, totals_of_batch, wide
from .traced import Entry, StepTracer

if TYPE_CHECKING:
    from ...optim.clipping import Gradient


class LocalSteps(CutSteps):
    """Builds the steps of one model that was compiled under `DataParallel` in a process with several devices."""

    strategy: DataParallel

    def __init__(self, model: object, strategy: object) -> None:
        self._axes: dict[StepTracer, Axes] = {}
        super().__init__(model, strategy)

    def check(self) -> None:
        super().check()
        asked = {name: getattr(self.strategy, name, None) for name in ("shard", "gradient_dtype")}
        for name, value in asked.items():
            if value is not None:
                raise ValueError(
                    f"DataParallel({name}={value!r}) is for the workers of a cluster; here are replicas on "
                    f"{len(self.strategy.devices)} devices of one process, which share one copy of the optimizer's "
                    f"variables and send no gradients to other processes. Leave {name} out, or start workers with "
                    "`python -m anabranch launch -n 2 --ps 0 script.py`."
                )

    def placed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def replicas(self) -> Sequence[Callable[[], AbstractContextManager[object]]]:
        """Return a function for each replica that makes the scope in which it is built."""
        return [partial(device, name) for name in self.strategy.devices]

    def build_sums(
        self, tracer: StepTracer, layout: Layout, tensors: list[Tensor], share: float | Tensor = 1.0
    ) -> list[Gradient]:
        replicas = self.replicas()
        rows = tensors[0].shape[0] if tensors[0].shape else None
        if rows is not None:
            replicas = replicas[: max(rows, 1)]  # where there are fewer rows than replicas some have none
        count: int | Tensor = ops.shape(tensors[0])[0] if rows is None else rows
        axes = self._axes_of(tracer, layout, tensors)
        totals = totals_of_batch(tracer, layout, tensors)
        generators: list[Any] = [{}]  # the first replica takes the step's own
        for replica in replicas[1:]:
            with replica():
                generators.append(like(tracer.generators) if axes else {})
        parts: list[list[list[Tensor]]] = []
        for number, replica in enumerate(replicas):
            first, last = _bounds(count, number, len(replicas))
            window = Window(*[ops.cast(each, "int64") for each in (first, last - first, count)])
            weight = _share(last - first, count)
            with replica(), standing_in(generators[number]), drawing_rows(axes, window), replicated(weight, totals):
                found = tracer.traced_entries(layout, [tensor[first:last] for tensor in tensors], weight)
                parts.append([_weighted(entry, given, weight) for entry, given in found])
        return [_sum(entry, [part[number] for part in parts]) for number, entry in enumerate(tracer.entries)]

    def _axes_of(self, tracer: StepTracer, layout: Layout, tensors: list[Tensor]) -> Axes:
        """Return the axes of the step's random numbers that have rows: replicas draw what one device draws for these.

        Over devices of other tasks each replica draws by itself.
        """
        if self.remote is not None:
            return []
        if tracer not in self._axes:
            with eagerly():
                self._axes[tracer] = tracer.find_axes(like_batch(layout, tensors))
        return self._axes[tracer]


def _bounds(rows: int | Tensor, part: int, parts: int) -> tuple[int | Tensor, int | Tensor]:
    """Return the first row of a part, and the one behind the last; of a number that may be a tensor."""
    return rows * part // parts, rows * (part + 1) // parts


def _share(rows: int | Tensor, whole: int | Tensor) -> float | Tensor:
    if isinstance(rows, int):
        return rows / max(whole, 1)
    return ops.cast(rows, "float64") / ops.cast(whole, "float64")


def _weighted(entry: Entry, given: Sequence[Tensor], weight: float | Tensor) -> list[Tensor]:
    """Return what a replica adds to the sum; for rows of a table, the indices before."""
    *indices, value = given
    if not entry.part.has_rows:
        value = ops.cast(value, wide(as_dtype(entry.part.dtype)))
    if entry.part.reduction == "mean":
        value = value * (weight if isinstance(weight, float) else ops.cast(weight, value.dtype))
    if not isinstance(weight, float) and entry.part.reduction != "first":
        # A replica without rows adds nothing: the mean of nothing is NaN, also where it is multiplied by 0 rows.
        value = ops.where(ops.greater(weight, 0), value, ops.zeros_like(value))
    return [*indices, value]


def _sum(entry: Entry, given: Sequence[list[Tensor]]) -> Gradient:
    """Return the sum of the replicas' values."""
    if entry.part.has_rows:
        whole = ops.convert_to_tensor(np.array(entry.part.shape, "int64"))
        indices, values = ([part[number] for part in given] for number in range(2))
        return IndexedSlices(ops.concatenate(values), ops.concatenate(indices), whole)
    total = given[0][0]
    for (value,) in given[1:] if entry.part.reduction != "first" else ():
        total = total + value
    return ops.cast(total, entry.part.dtype)


__all__ = ["LocalSteps"]
