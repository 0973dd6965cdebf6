"""Wrappers that leave updates out: `Selective`, where they are small, and `Frozen`, in some steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine import ops
from ..engine.graph import Tensor, Variable
from ..engine.objects.arguments import check_numbers, refused
from .optimizer import Optimizer, path_of
from .stateless import step_where
from .wrapper import Wrapper

Range = tuple[int, int | None]


class Selective(Wrapper):
    """A wrapper that makes an update only if it is large enough.

    Args:
        optimizer: what makes the updates.
        least_norm: the least Euclidean norm of an update that is worth making: of what the optimizer would change the
            variables by, with its learning rate, momentum, weight decay and the variables' constraints.
        per_variable: judge each variable's part of an update by itself. By default there is one norm, of all variables
            together, and the update is made or left out as a whole.
        name: for its variables; by default from the class.

    An update that is left out is a branch that is not taken. Left out as a whole, it changes nothing of the optimizer
    either, slots, moving averages and `iterations` included: it is as if its batch had not come, or with accumulated
    gradients its batches. With `per_variable`, `iterations` counts on, and what is left out is a variable's update with
    its slots: the optimizer's running means of it do not fade. An update that holds NaN is never large enough.

    What is judged is what the optimizer in the middle of all wrappers does, whatever their order; where that is a
    `MultiOptimizer`, each of its optimizers is judged by itself. The norm costs a second computation of the update, of
    which nothing is kept; of tables it looks at no rows but those that change.

    Raises:
        ValueError: `least_norm` is negative, or `optimizer` is not an optimizer.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.Selective(ab.optim.SGD(0.5), least_norm=0.5)
    >>> w = ab.Variable([0.0])
    >>> for gradient in (1.0, 0.75, 2.0):
    ...     optimizer.apply([[gradient]], [w])
    >>> w.numpy(), int(optimizer.iterations)
    (array([-1.5], dtype=float32), 2)
    """

    hyperparameters = ("least_norm", "per_variable")

    def __init__(
        self,
        optimizer: Optimizer,
        least_norm: float,
        per_variable: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(optimizer, name, **options)
        check_numbers("Selective", least_norm=least_norm)
        if not least_norm >= 0:
            raise ValueError(f"Selective: least_norm must not be negative; got {least_norm}.")
        self.least_norm = least_norm
        self.per_variable = per_variable

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        for maker in self.makers if first else ():
            maker._judge(self.least_norm, self.per_variable)


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
        ValueError: a range is not one, a pattern is found in no variable, or `optimizer` is not an optimizer.

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

    def __init__(self, optimizer: Optimizer, when: Mapping[str, Any], name: str | None = None, **options: Any) -> None:
        super().__init__(optimizer, name, **options)
        if not isinstance(when, Mapping):
            raise refused("Frozen", "when", when, "a dict of steps by pattern")
        self._ranges = {pattern: _ranges(pattern, ranges) for pattern, ranges in when.items()}
        self.when = {pattern: [list(pair) for pair in ranges] for pattern, ranges in self._ranges.items()}

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        if first:
            paths = [path_of(variable) for variable in variables]
            lost = [pattern for pattern in self._ranges if not any(re.search(pattern, path) for path in paths)]
            if lost:
                raise ValueError(f"{self.name}: no variable's path has {lost[0]!r} in it; there are {paths}.")
        super().build(variables)
        for maker in self.makers if first else ():
            maker._guards.append(self._guard)

    def _guard(self, variable: Variable, act: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        path, number = path_of(variable), self.innermost.iterations
        frozen: Any = None
        for pattern, ranges in self._ranges.items():
            for pair in ranges if re.search(pattern, path) else ():
                within = _is_within(number, pair)
                frozen = within if frozen is None else ops.logical_or(frozen, within)
        return act() if frozen is None else step_where(frozen, otherwise, act)


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
