"""Wrappers that leave updates out: `Selective`, where gradients are small, and `Frozen`, in some steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine import ops
from ..engine.control_flow import cond
from ..engine.graph import IndexedSlices, Tensor, Variable
from ..engine.ops.indexed_slices import deduplicated
from .clipping import Gradient
from .optimizer import NO_GRADIENTS, Optimizer, path_of
from .wrapper import Wrapper

Range = tuple[int, int | None]


class Selective(Wrapper):
    """A wrapper that makes a step only if gradients are large enough.

    Args:
        optimizer: what makes the steps.
        least_norm: the least Euclidean norm of the gradient that is worth a step.
        per_variable: judge each variable by its own gradient. By default there is one norm, of all gradients together,
            and the step is made or left out as a whole.
        name: for its variables; by default from the class.

    What is left out is a branch that is not taken, and costs nothing but the norm. A step that is left out as a whole
    changes nothing of the inner optimizer, its `iterations` included: it is as if the batch had not been. With
    `per_variable`, `iterations` counts on, and what is left out is a variable's update with its weight decay and its
    slots: the optimizer's running means of it do not fade. A gradient that holds NaN is never large enough.

    The norm is that of gradients as they are given, divided by the loss scale; with `per_variable`, as the optimizer
    would use them: after clipping, and of accumulated gradients the mean.

    Raises:
        ValueError: `least_norm` is negative, or `optimizer` is no optimizer.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.Selective(ab.optim.SGD(1.0), least_norm=0.5)
    >>> w = ab.Variable([0.0])
    >>> for gradient in (1.0, 0.25, 2.0):
    ...     optimizer.apply([[gradient]], [w])
    >>> w.numpy(), int(optimizer.iterations)
    (array([-3.], dtype=float32), 2)
    """

    hyperparameters = ("least_norm", "per_variable")

    def __init__(
        self, optimizer: Optimizer, least_norm: float, per_variable: bool = False, name: str | None = None
    ) -> None:
        super().__init__(optimizer, name)
        if not least_norm >= 0:
            raise ValueError(f"Selective: least_norm must not be negative; got {least_norm}.")
        self.least_norm = least_norm
        self.per_variable = per_variable
        if per_variable:
            self.innermost._guards.append(self._guard)

    def around_step(self, step: Callable[[], Any], given: Sequence[Any], variables: Sequence[Variable]) -> None:
        if self.per_variable:
            step()
            return
        squares = [_square_of(gradient) for gradient in given if gradient is not None]
        if not squares:
            raise ValueError(NO_GRADIENTS)
        total: Any = squares[0]
        for square in squares[1:]:
            total = total + square
        norm = ops.sqrt(total) / (self.innermost.loss_scale_factor or 1.0)

        def act() -> None:
            step()

        cond(norm >= self.least_norm, act, lambda: None)

    def _guard(self, gradient: Gradient, variable: Variable, update: Callable[[], None]) -> None:
        cond(ops.sqrt(_square_of(gradient)) >= self.least_norm, update, lambda: None)


def _square_of(gradient: Any) -> Tensor:
    if isinstance(gradient, IndexedSlices):
        values, indices = ops.convert_to_tensor(gradient.values), ops.convert_to_tensor(gradient.indices)
        gradient = deduplicated(IndexedSlices(values, indices, gradient.dense_shape)).values  # a row may be named twice
    return ops.sum(ops.square(ops.convert_to_tensor(gradient)))


class Frozen(Wrapper):
    """A wrapper that leaves variables as they are in some steps: freezing by a schedule.

    Args:
        optimizer: what makes the steps.
        when: for patterns of variables' paths (a regular expression that is found somewhere in the path), the steps in
            which these variables are frozen: a pair ``(first, end)`` or a list of pairs. Steps count from 0, `end` does
            not belong to them, and None is no end.
        name: for its variables; by default from the class.

    In a step in which a variable is frozen its update is a branch that is not taken: it, its slots and its weight decay
    stand still, and what nothing else needs of its gradient is not computed (clipping by a global norm, a loss scale
    and accumulation need it). `iterations` counts on. For variables that are frozen for good, set ``trainable = False``
    on their layer.

    Raises:
        ValueError: a range is none, a pattern is found in no variable, or `optimizer` is no optimizer.

    Source of the schedule: Brock et al., "FreezeOut: Accelerate Training by Progressively Freezing Layers", 2017.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.Frozen(ab.optim.SGD(1.0), {"bias": (0, 2)})
    >>> w, b = ab.Variable(0.0, name="kernel"), ab.Variable(0.0, name="bias")
    >>> for _ in range(3):
    ...     optimizer.apply([-1.0, -1.0], [w, b])
    >>> float(w), float(b)
    (3.0, 1.0)
    """

    hyperparameters = ("when",)

    def __init__(self, optimizer: Optimizer, when: Mapping[str, Any], name: str | None = None) -> None:
        super().__init__(optimizer, name)
        self._ranges = {pattern: _ranges(pattern, ranges) for pattern, ranges in dict(when).items()}
        self.when = {pattern: [list(pair) for pair in ranges] for pattern, ranges in self._ranges.items()}
        self.innermost._guards.append(self._guard)

    def build(self, variables: Sequence[Variable]) -> None:
        if not self.built:
            paths = [path_of(variable) for variable in variables]
            lost = [pattern for pattern in self._ranges if not any(re.search(pattern, path) for path in paths)]
            if lost:
                raise ValueError(f"{self.name}: no variable's path has {lost[0]!r} in it; there are {paths}.")
        super().build(variables)

    def around_step(self, step: Callable[[], Any], given: Sequence[Any], variables: Sequence[Variable]) -> None:
        step()

    def _guard(self, gradient: Gradient, variable: Variable, update: Callable[[], None]) -> None:
        path, number = path_of(variable), self.innermost.iterations
        frozen: Any = None
        for pattern, ranges in self._ranges.items():
            for pair in ranges if re.search(pattern, path) else ():
                within = _is_within(number, pair)
                frozen = within if frozen is None else ops.logical_or(frozen, within)
        if frozen is None:
            update()
        else:
            cond(frozen, lambda: None, update)


def _is_within(number: Any, pair: Range) -> Tensor:
    first, end = pair
    return number >= first if end is None else ops.logical_and(number >= first, number < end)


def _ranges(pattern: str, given: Any) -> list[Range]:
    pairs = [given] if isinstance(given, (list, tuple)) and given and not isinstance(given[0], (list, tuple)) else given
    if not isinstance(pairs, (list, tuple)) or not all(_is_range(pair) for pair in pairs):
        raise ValueError(
            f"Frozen: the steps for {pattern!r} must be a pair (first, end) or a list of pairs, of integers with "
            f"0 <= first < end, or None as the end; got {given!r}."
        )
    return [(pair[0], pair[1]) for pair in pairs]


def _is_range(pair: Any) -> bool:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return False
    first, end = pair
    return isinstance(first, int) and first >= 0 and (end is None or (isinstance(end, int) and end > first))
