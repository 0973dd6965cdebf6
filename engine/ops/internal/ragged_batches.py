"""Ops around loops over sorted rows: they give the steps of the rows that are live, and results of all rows again.

Made by the pass `ragged_batches`. A batch of sequences is cut into *segments*: stretches of steps, each with so many
rows of the batch in the order in which they end (or begin). Times are counted in the order in which the loop goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Tensor
from ..base import apply, apply_multi
from ..run_time_shapes import runtime_shape, zeros_of

_NO_SAMPLES = "is made by a pass: test_ragged_batches"
_Array = np.ndarray[Any, Any]
_Part = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class SpansOfMask(Op):
    """Input: a mask (steps, rows...). From which step on, and to which, each row is live: int32, twice (rows).

    Attributes:
        begins: rows are live from some step on to the end; otherwise from the first step to some step.
    """

    no_samples: ClassVar[str] = _NO_SAMPLES
    begins: bool

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        spec = TensorSpec((inputs[0].shape[1],), dtypes.int32)
        return spec, spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        mask: _Array = inputs[0].reshape(inputs[0].shape[:2])
        steps, rows = mask.shape
        starts, ends = np.zeros(rows, "int32"), np.full(rows, steps, "int32")
        if steps and self.begins:
            first: Any = np.where(mask.any(0), mask.argmax(0), steps)
            starts[:] = first
        elif steps:
            ends[:] = np.where(mask.any(0), steps - mask[::-1].argmax(0), 0)
        return starts, ends


@dataclass(frozen=True)
class RowPlan(Op):
    """Inputs: starts, ends (rows), the number of steps. Outputs: order, inverse, bounds, then starts and lengths.

    `order` lists the rows by their ends, the latest first; or by their starts, the earliest first. `bounds` says where
    segments begin and end; the rest are scalars, the start and the length of each segment.

    Attributes:
        sizes: how many rows each segment has: fewer and fewer, or more and more if rows begin one by one.
    """

    no_samples: ClassVar[str] = _NO_SAMPLES
    sizes: tuple[int, ...]

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        count = len(self.sizes)
        rows, scalar = TensorSpec(inputs[0].shape, dtypes.int32), TensorSpec((), dtypes.int32)
        return rows, rows, TensorSpec((count + 1,), dtypes.int32), *[scalar] * (2 * count)

    def run(self, xp: Any, *inputs: Any) -> Any:
        starts, ends, steps = inputs
        sizes = self.sizes
        if sizes[0] < sizes[-1]:
            order = np.argsort(starts, kind="stable")
            by_start = starts[order]
            bounds = [by_start[0], *by_start[list(sizes[:-1])], steps]
        else:
            order = np.argsort(-ends, kind="stable")
            by_end = ends[order]
            bounds = [0, *by_end[list(sizes[1:])], by_end[0]]
        inverse = np.empty(len(order), "int32")
        inverse[order] = np.arange(len(order), dtype="int32")
        cuts = np.array(bounds, "int32")
        return order.astype("int32"), inverse, cuts, *cuts[:-1], *(cuts[1:] - cuts[:-1])


@dataclass(frozen=True)
class SplitSegments(Op):
    """Inputs: values (steps, rows, ...), order, bounds, starts, ends. The values in each segment, in sorted order.

    Attributes:
        sizes: how many rows each segment has.
        flips: the loop goes through the values backward.
        dead: what stands for steps in which a row is not live: "own" values, "zero", or those of the "first" row in
            order, which is live: then what padding holds, such as NaN, takes no part in anything.
    """

    no_samples: ClassVar[str] = _NO_SAMPLES
    sizes: tuple[int, ...]
    flips: bool
    dead: str

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        values = inputs[0]
        return tuple([TensorSpec((None, size, *values.shape[2:]), values.dtype) for size in self.sizes])

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, order, bounds, starts, ends = inputs
        values = values[::-1] if self.flips else values
        lengths = (bounds[1:] - bounds[:-1]).tolist()
        made = [
            np.empty((length, size, *values.shape[2:]), values.dtype)
            for length, size in zip(lengths, self.sizes, strict=True)
        ]
        cuts, rows = bounds.tolist(), order.tolist()
        for number, place, row, begin, end in _parts(self.sizes, order, bounds, starts, ends):
            first, last, target = cuts[number], cuts[number + 1], made[number][:, place]
            if self.dead == "own":
                target[...] = values[first:last, row]
                continue
            target[begin - first : end - first] = values[begin:end, row]
            for low, high in ((first, begin), (end, last)):
                if low < high:
                    target[low - first : high - first] = values[low:high, rows[0]] if self.dead == "first" else 0
        return tuple(made)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        values, order, bounds, starts, ends = node.inputs
        given = [zeros_of(output) if c is None else c for c, output in zip(cotangents, node.outputs, strict=True)]
        steps = (values.shape or (None,))[0]
        joined = apply(
            JoinSegments(self.sizes, self.flips, False, steps),
            order, bounds, starts, ends, runtime_shape(values)[0], *given,
        )  # fmt: skip
        return joined, None, None, None, None


@dataclass(frozen=True)
class JoinSegments(Op):
    """Inputs: order, bounds, starts, ends, the number of steps, values of each segment, rest (rows, ...) if there is.

    The values of all steps and rows, (steps, rows, ...); those of `rest`, or zeros, where rows are not live.

    Attributes:
        sizes: how many rows each segment has.
        flips: the loop goes through the values backward.
        has_rest: the last input is `rest`.
        steps: their number, if it is known.
    """

    no_samples: ClassVar[str] = _NO_SAMPLES
    sizes: tuple[int, ...]
    flips: bool
    has_rest: bool
    steps: int | None

    def infer(self, *inputs: Any) -> TensorSpec:
        values = inputs[5]
        return TensorSpec((self.steps, inputs[0].shape[0], *values.shape[2:]), values.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        order, bounds, starts, ends, steps = inputs[:5]
        segments = inputs[5 : 5 + len(self.sizes)]
        rest = inputs[-1] if self.has_rest else None
        joined = np.empty((int(steps), len(order), *segments[0].shape[2:]), segments[0].dtype)
        made = joined[::-1] if self.flips else joined
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            for low, high in ((0, start), (max(start, end), int(steps))):
                if low < high:
                    made[low:high, row] = 0 if rest is None else rest[row]
        cuts = bounds.tolist()
        for number, place, row, begin, end in _parts(self.sizes, order, bounds, starts, ends):
            first = cuts[number]
            made[begin:end, row] = segments[number][begin - first : end - first, place]
        return joined

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        order, bounds, starts, ends = node.inputs[:4]
        parts = apply_multi(SplitSegments(self.sizes, self.flips, "zero"), dy, order, bounds, starts, ends)
        rest = [apply(SumOfDead(), dy, starts, ends)] if self.has_rest else []
        return None, None, None, None, None, *parts, *rest


@dataclass(frozen=True)
class SumOfDead(Op):
    """Inputs: values (steps, rows, ...), starts, ends. For each row the sum over the steps in which it is not live."""

    no_samples: ClassVar[str] = _NO_SAMPLES

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape[1:], inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, starts, ends = inputs
        total = np.zeros(values.shape[1:], values.dtype)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            for dead in (values[:start, row], values[max(start, end) :, row]):
                if len(dead):
                    total[row] += dead.sum(0)
        return total


def _parts(sizes: Sequence[int], order: _Array, bounds: _Array, starts: _Array, ends: _Array) -> Iterator[_Part]:
    """Yield for each row of each segment: segment, place there, row, and from which step to which it is live in it."""
    cuts, by_start, by_end, rows = bounds.tolist(), starts.tolist(), ends.tolist(), order.tolist()
    for number, size in enumerate(sizes):
        first, last = cuts[number], cuts[number + 1]
        if first == last:
            continue
        for place, row in enumerate(rows[:size]):
            begin = min(max(first, by_start[row]), last)
            yield number, place, row, begin, max(begin, min(last, by_end[row]))


__all__ = ["JoinSegments", "RowPlan", "SpansOfMask", "SplitSegments", "SumOfDead"]
