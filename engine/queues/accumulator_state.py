"""The state machine of accumulators, without threads: gradients are added up until there are enough."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..common.dtypes import accumulator_of
from ..graph.op import as_scalar_or_array
from .attempts import Attempt


class AccumulatorStatistics(NamedTuple):
    """The statistics of an accumulator: what it holds and what it has done.

    Attributes:
        accumulated: gradients that were added since the last one was taken.
        applied: gradients that were added so far.
        dropped: gradients that came too late and were not added.
        taken: how often a result was taken.
        global_step: gradients of earlier steps are dropped.
        pending: takes that wait.

    >>> import anabranch as ab
    >>> accumulator = ab.queues.ConditionalAccumulator("float32", (2,))
    >>> accumulator.apply_grad([1.0, 2.0])
    >>> accumulator.statistics().accumulated
    1
    """

    accumulated: int
    applied: int
    dropped: int
    taken: int
    global_step: int
    pending: int


class Total(Protocol):
    """A sum under way."""

    def add(self, gradient: Any) -> None: ...

    def take(self, divisor: int) -> Any:
        """Return the sum divided by `divisor`; the next one begins with nothing."""
        ...


class DenseTotal:
    """A sum of arrays of one shape."""

    def __init__(self) -> None:
        self._sum: Any = None

    def add(self, gradient: Any) -> None:
        if self._sum is None:
            self._sum = np.array(gradient)
        elif self._sum.shape != gradient.shape:
            raise ValueError(
                f"this gradient has shape {list(gradient.shape)}, but those before it have {list(self._sum.shape)}"
            )
        else:
            self._sum += gradient

    def take(self, divisor: int) -> Any:
        found, self._sum = self._sum, None
        return as_scalar_or_array(found if divisor == 1 else (found / divisor).astype(found.dtype))


class SparseTotal:
    """A sum of rows: triples (indices, values, dense shape). The result names each row once, in ascending order.

    A dense shape begins with -1 where the number of rows is not known; any that is known counts for all.
    """

    def __init__(self) -> None:
        self._gradients: list[tuple[Any, Any]] = []
        self._whole: Any = None

    def add(self, gradient: Any) -> None:
        indices, values, shape = gradient
        before = shape if self._whole is None else self._whole
        if not np.array_equal(shape[1:], before[1:]) or (shape[0] != before[0] and min(shape[0], before[0]) >= 0):
            raise ValueError(
                f"this gradient has rows of shape {list(values.shape[1:])} of a whole of {list(shape)}, but those "
                f"before it have {list(before[1:])} of {list(before)}"
            )
        self._whole = np.maximum(shape, before)
        self._gradients.append((np.array(indices), np.array(values)))

    def take(self, divisor: int) -> Any:
        found, self._gradients = self._gradients, []
        whole, self._whole = self._whole, None
        rows = np.concatenate([indices for indices, _ in found])
        values = np.concatenate([values for _, values in found])
        unique, position = np.unique(rows, return_inverse=True)
        wide = accumulator_of(values.dtype) or values.dtype
        total = np.zeros((len(unique), *values.shape[1:]), wide)
        np.add.at(total, position, values.astype(wide, copy=False))
        return unique, (total if divisor == 1 else total / divisor).astype(values.dtype, copy=False), whole


class AccumulatorState:
    """Adds gradients up; a take waits for enough of them.

    Args:
        total: adds up.
        is_mean: a take gives the mean of what was added, not the sum.
    """

    def __init__(self, total: Total, is_mean: bool) -> None:
        self._total = total
        self._is_mean = is_mean
        self._takes: collections.deque[Attempt] = collections.deque()
        self._accumulated = self._applied = self._dropped = self._taken = 0
        self._global_step = 0

    def statistics(self) -> AccumulatorStatistics:
        """Return what the accumulator holds and what it has done."""
        return AccumulatorStatistics(
            self._accumulated, self._applied, self._dropped, self._taken, self._global_step, len(self._takes)
        )

    def apply(self, gradient: Any, local_step: int) -> bool:
        """Add a gradient that was computed at `local_step`; whether it was not too late.

        Raises:
            ValueError: its shape is not that of the others.
        """
        if local_step < self._global_step:
            self._dropped += 1
            return False
        self._total.add(gradient)
        self._accumulated += 1
        self._applied += 1
        self._settle()
        return True

    def take(self, required: int) -> Attempt:
        """Ask for the result of at least `required` gradients. It ends the step."""
        attempt = Attempt(required)
        self._takes.append(attempt)
        self._settle()
        return attempt

    def set_global_step(self, step: int) -> None:
        """Drop gradients of steps before `step` from now on."""
        self._global_step = step

    def withdraw(self, attempt: Attempt) -> None:
        """Forget a take that waits."""
        self._takes.remove(attempt)
        self._settle()

    def _settle(self) -> None:
        if not self._takes or self._accumulated < self._takes[0].count:
            return
        result = self._total.take(self._accumulated if self._is_mean else 1)
        self._accumulated = 0
        self._taken += 1
        self._global_step += 1
        self._takes.popleft().finish(result)
