"""`PipelineSteps`: the training step of a model in stages: a loop over the microbatches of a batch.

Its body is forward and backward of one microbatch. What each gives is summed, weighted by rows, in loop variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.strategies.pipeline import Pipeline
from ...engine import ops
from ...engine.common.dtypes import as_dtype
from ...engine.control_flow.tensor_array import TensorArray
from ...engine.control_flow.while_loop import while_loop
from ...engine.graph import IndexedSlices, Tensor
from ...engine.graph.scopes import device
from ...engine.ops.collectives import all_reduce
from ...engine.ops.replicas import is_replicated, replicated
from ...engine.place.devices import devices_version
from ..data.adapters import Layout
from ..replicas.cut_steps import CutSteps, totals_of_batch, wide
from ..replicas.traced import Entry, StepTracer
from .stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..training.base_model import BaseModel


class PipelineSteps(CutSteps):
    """Builds the steps of one model that was compiled under `Pipeline`."""

    part = "microbatch"
    strategy: Pipeline

    def __init__(self, model: BaseModel, strategy: Pipeline) -> None:
        super().__init__(model, strategy)
        self._stages: tuple[int, Stages] | None = None

    def placed(self) -> AbstractContextManager[None]:
        return self._found_stages().placed()

    def build_sums(
        self, tracer: StepTracer, layout: Layout, tensors: list[Tensor], share: float | Tensor = 1.0
    ) -> list[IndexedSlices | Tensor]:
        return _Loop(self.strategy, self._found_stages(), tracer, layout, tensors, share).build()

    def _found_stages(self) -> Stages:
        """Return the stages, on the devices that are declared now."""
        version = devices_version()
        if self._stages is None or self._stages[0] != version:
            self._stages = version, Stages(self.model, self.strategy)
        return self._stages[1]


class _Loop:
    """The loop over the microbatches of one batch.

    Args:
        strategy: how many there are.
        stages: where what is computed.
        tracer: of the training step.
        layout, tensors: the batch.
        share: which part of the rows of all workers' batches it has.
    """

    def __init__(
        self,
        strategy: Pipeline,
        stages: Stages,
        tracer: StepTracer,
        layout: Layout,
        tensors: list[Tensor],
        share: float | Tensor,
    ) -> None:
        self._strategy = strategy
        self._stages = stages
        self._tracer = tracer
        self._layout = layout
        self._tensors = tensors
        self._share = share
        rows = tensors[0].shape[0] if tensors[0].shape else None
        self._rows: int | Tensor = ops.shape(tensors[0])[0] if rows is None else rows
        count = None if rows is None else max(min(strategy.microbatches, rows), 1)
        self._count: Any = ops.minimum(strategy.microbatches, self._rows) if count is None else count
        self._is_even = rows is not None and count is not None and rows % count == 0
        if count is not None and self._is_even:
            with device(None):
                self._stacked = [_stacked(tensor, count) for tensor in tensors]

    def build(self) -> list[IndexedSlices | Tensor]:
        """Build it; return what each of the tracer's entries has come to: a tensor, or rows of a table."""
        entries = self._tracer.entries
        starts = [start for entry in entries for start in self._starts(entry)]
        with device(None):
            totals = totals_of_batch(self._tracer, self._layout, self._tensors)
            if is_replicated():
                totals = [total if total is None else all_reduce(total) for total in totals]

        def body(number: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
            feeds, weight = self._microbatch(number)
            share = self._share * (1.0 / self._count if weight is None else weight)
            with replicated(share, totals):
                found = self._tracer.traced_entries(self._layout, feeds, share)
            rest = iter(sums)
            given: list[Tensor] = []
            for entry, tensors in found:
                with self._at(entry):
                    given += self._added(entry, tensors, [next(rest) for _ in tensors], number, weight)
            return (number + 1, *given)

        count = self._count
        in_flight = self._strategy.parallel_iterations
        results = while_loop(lambda number, *_: number < count, body, (0, *starts), parallel_iterations=in_flight)
        rest = iter(results[1:])
        return [self._ended(entry, rest) for entry in entries]

    def _at(self, entry: Entry) -> AbstractContextManager[None]:
        """Return the scope of the device that holds what an entry is a gradient or value of."""
        if entry.is_gradient:
            variables = self._tracer.variables_of(entry.application)
            place = self._stages.place_of(variables[entry.position])
        else:
            place = self._stages.place_of(entry.variable)
        return nullcontext() if place is None else device(place)

    # --- microbatches -----------------------------------------------------------------------------------------------

    def _microbatch(self, number: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return the tensors of a microbatch, and its share of the rows: None where all have the same."""
        if self._is_even:
            return [stacked[number] for stacked in self._stacked], None
        size, more = self._rows // self._count, self._rows % self._count
        first = number * size + ops.minimum(number, more)
        last = first + size + ops.cast(number < more, "int32")
        weight = ops.cast(last - first, "float64") / ops.cast(self._rows, "float64")
        return [tensor[first:last] for tensor in self._tensors], weight

    # --- sums -------------------------------------------------------------------------------------------------------

    def _starts(self, entry: Entry) -> Sequence[TensorArray | Tensor]:
        """Return the initial values of an entry's loop variables."""
        with self._at(entry):
            dtype, shape = as_dtype(entry.part.dtype), entry.part.shape or ()
            if entry.part.has_rows:
                return [
                    TensorArray("int64", self._count, element_shape=(None,)),
                    TensorArray(dtype, self._count, element_shape=(None, *shape[1:])),
                ]
            return [ops.zeros(shape, wide(dtype))]

    def _added(
        self,
        entry: Entry,
        given: Sequence[Tensor],
        sums: Sequence[Any],
        number: Tensor,
        weight: Tensor | float | None,
    ) -> list[Tensor]:
        """Return the sums with what one microbatch gives."""
        *indices, value = given
        if entry.part.reduction == "first":
            return [ops.where(ops.equal(number, 0), ops.cast(value, sums[-1].dtype), sums[-1])]
        if not entry.part.has_rows:
            value = ops.cast(value, sums[-1].dtype)
        if entry.part.reduction == "mean" and weight is not None:
            value = value * ops.cast(weight, value.dtype)
        if entry.part.has_rows:
            return [sums[0].write(number, indices[0]), sums[1].write(number, value)]
        return [sums[0] + value]

    def _ended(self, entry: Entry, results: Iterator[Any]) -> IndexedSlices | Tensor:
        """Return the value of an entry when the loop is over."""
        with self._at(entry):
            scale = None if entry.part.reduction != "mean" or not self._is_even else 1.0 / self._count
            if entry.part.has_rows:
                indices, values = next(results).concat(), next(results).concat()
                values = values if scale is None else values * scale
                whole = ops.convert_to_tensor(np.array(entry.part.shape, "int64"))
                return IndexedSlices(values, indices, whole)
            value = next(results)
            value = value if scale is None else value * scale
            return ops.cast(value, entry.part.dtype)


def _stacked(tensor: Tensor, count: int) -> Tensor:
    """Return the rows of a batch as an array of microbatches."""
    rows, *rest = tensor.shape or (None,)
    assert rows is not None
    return ops.reshape(tensor, (count, rows // count, *rest))


__all__ = ["PipelineSteps"]
