"""`LocalSteps`: training steps under `DataParallel` in one process with several devices: a replica on each.

Each device computes the gradients of its rows of a batch, and the sums of all go into one update. Layers may need sums
over the replicas, too, such as those of synchronized statistics. Replicas are traced one after the other, but such a
sum comes before what each makes of it. So a trace gets a stand-in for it. Behind the last trace the sums are built, and
the operations are put into an order in which all replicas come to a sum before one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.strategies.data_parallel import DataParallel
from ...engine import ops
from ...engine.common.dtypes import as_dtype
from ...engine.graph import IndexedSlices, Operation, Tensor, eagerly
from ...engine.graph.graph import get_default_graph
from ...engine.graph.scopes import device
from ...engine.ops.math.elementwise import Identity
from ...engine.ops.random.keys import like, standing_in
from ...engine.ops.random.rows import Axes, Window, drawing_rows
from ...engine.ops.replicas import PendingSum, replicated
from ...engine.passes.framework import changes
from ...engine.passes.framework.order import reorder
from ..data.adapters import Layout
from .cut_steps import CutSteps, like_batch, totals_of_batch, wide
from .traced import Entry, StepTracer

if TYPE_CHECKING:
    from ...optim.clipping import Gradient
    from ..training.base_model import BaseModel


class LocalSteps(CutSteps):
    """Builds the steps of one model that was compiled under `DataParallel` in a process with several devices."""

    strategy: DataParallel
    may_synchronize = True

    def __init__(self, model: BaseModel, strategy: object) -> None:
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
        sums = LocalSums(self.model.name)
        for number, replica in enumerate(replicas):
            first, last = _bounds(count, number, len(replicas))
            window = Window(*[ops.cast(each, "int64") for each in (first, last - first, count)])
            weight = _share(last - first, count)
            with (
                sums.replica(),
                replica(),
                standing_in(generators[number]),
                drawing_rows(axes, window),
                replicated(weight, totals, sums.add),
            ):
                found = tracer.traced_entries(layout, [tensor[first:last] for tensor in tensors], weight)
                parts.append([_weighted(entry, given, weight) for entry, given in found])
        sums.join()
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


class LocalSums:
    """Builds sums over the replicas of the current graph.

    Args:
        model: the name of the model, for messages.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._graph = get_default_graph()
        self._begin = len(self._graph.operations)
        self._ends: list[int] = []  # of each replica: how many operations the graph has behind it
        self._pending: list[list[Operation]] = []  # of each replica, in the order in which it needs them

    @contextmanager
    def replica(self) -> Generator[None]:
        """Make a block that builds the next replica."""
        self._pending.append([])
        yield
        self._ends.append(len(self._graph.operations))

    def add(self, x: Tensor) -> Tensor:
        """Return a stand-in for the sum of a tensor over all replicas."""
        assert get_default_graph() is self._graph, (
            "This is a bug in anabranch: a layer sums over replicas in a loop or branch, where it can't assign, either."
        )
        operation = self._graph.add(PendingSum(self.add), [x])
        self._pending[-1].append(operation)
        return operation.outputs[0]

    def join(self) -> None:
        """Build the sums, behind the last replica.

        Raises:
            ValueError: replicas need different sums.
        """
        first, *others = self._pending
        specs = [operation.outputs[0].spec for operation in first]
        if any([operation.outputs[0].spec for operation in each] != specs for each in others):
            raise ValueError(
                f"The replicas of model {self._model!r} exchange different values: the layers that are synchronized "
                "have to be called in the same way for all rows."
            )
        if not others or not first:
            for operation in first:
                changes.set_op(operation, Identity())
            return
        graph, built = self._graph, len(self._graph.operations)
        behind = graph.operations[self._ends[-1] : built]
        parts = self._parts()
        order = graph.operations[: self._begin]
        for slot, operations in enumerate(zip(*self._pending, strict=True)):
            for part in parts:
                order += part[slot]
            order += self._built_sum(operations)
        for part in parts:
            order += part[-1]
        changes.arrange(graph, [*order, *behind])
        reorder(graph, {})  # constants, and values of variables, are shared by replicas

    def _parts(self) -> list[list[list[Operation]]]:
        """Return for each replica its operations up to the first sum, then from each sum to the next."""
        found: list[list[list[Operation]]] = []
        begin = self._begin
        for end, pending in zip(self._ends, self._pending, strict=True):
            cuts = [begin, *(operation.index for operation in pending), end]
            found.append([self._graph.operations[a:b] for a, b in pairwise(cuts)])
            begin = end
        return found

    def _built_sum(self, pending: tuple[Operation, ...]) -> list[Operation]:
        """Build a sum, on the device of the first replica, and give it to all of them; return its operations."""
        begin = len(self._graph.operations)
        with device(pending[0].device or None):
            total: Tensor = pending[0].inputs[0]
            for each in pending[1:]:
                total = total + each.inputs[0]
        for each in pending:
            changes.set_op(each, Identity(), (self._graph.capture(total),))
        return self._graph.operations[begin:]


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
