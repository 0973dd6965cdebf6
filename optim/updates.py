"""Updates of variables out of gradients: made, left to guards, or judged by their size first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from ..engine import ops
from ..engine.common.dtypes import DTypeLike
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import (
    IndexedSlices,
    ShardedVariable,
    StatelessScope,
    Tensor,
    Variable,
    VariableRows,
    colocate_with,
)
from ..engine.graph.state.sharded import expanded, grouped
from ..engine.ops.shards import join_parts
from .clipping import Clips, Gradient
from .stateless import step_where

# Gives the first function's result where the variable may change in this step, else the second's.
Guard = Callable[[Variable, Callable[[], Any], Callable[[], Any]], Any]
# A variable and its gradient, or a `ShardedVariable` and a list of those of its shards.
Pair = tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class StepValues:
    """The values that all variables share in a step, where these are more than a learning rate.

    Its product with a number has other learning rates: a subclass may give ``learning_rate * 0.1`` on to the
    `update_step` of an optimizer, as in Keras, where that gets a learning rate.
    """

    rates: ClassVar[tuple[str, ...]]
    """The fields that are multiplied."""

    def __mul__(self, factor: Any) -> Self:
        return dataclasses.replace(self, **{name: getattr(self, name) * factor for name in self.rates})

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Self:
        return self * (1.0 / divisor)


class Updates(Clips):
    """The part of `Optimizer` that makes updates; see there."""

    updates_rows: bool
    updates_wholes: bool
    begin_step: Callable[[Tensor], Any]
    update_step: Callable[[Any, Any, Any], None]
    _current_learning_rate: Callable[[], Any]
    _decay: Callable[[Sequence[Variable], Tensor], None]
    _is_decayed: Callable[[Variable], bool]
    _indices: dict[Variable, int]

    def __init__(self) -> None:
        self._guards: list[Guard] = []
        self._least_norm: float | None = None  # of an update of all variables together
        self._least_norm_of_each: float | None = None

    @property
    def shared_dtype(self) -> str:
        """The dtype of numbers that all variables share in a step: float64 if all variables are, else float32."""
        return "float64" if {str(variable.dtype) for variable in self._indices} == {"float64"} else "float32"

    def _judge(self, least_norm: float, per_variable: bool) -> None:
        """Leave updates out that are smaller than this, from the next step that is built on."""
        if per_variable:
            self._least_norm_of_each = max(least_norm, self._least_norm_of_each or 0.0)
        else:
            self._least_norm = max(least_norm, self._least_norm or 0.0)

    @property
    def _is_guarded(self) -> bool:
        """Test whether variables may stand still, so that all that changes them has to wait for that."""
        return bool(self._guards) or self._least_norm is not None or self._least_norm_of_each is not None

    def _update(self, found: Sequence[Gradient], variables: list[Variable]) -> Tensor | None:
        """Add an update to the graph. Returns whether it is made, or None where it always is."""
        wholes = [variable.whole for variable in variables]
        pairs: list[Pair] = list(zip(self.clipping.apply(found, wholes), variables, strict=True))
        if self.updates_wholes:
            pairs = _of_wholes(pairs)
        learning_rate = ops.convert_to_tensor(self._current_learning_rate(), "float32")
        if self._least_norm is None:
            self._make_update(pairs, learning_rate)
            return None
        is_large = ops.sqrt(self._square_of_update(pairs, learning_rate)) >= self._least_norm
        step_where(is_large, lambda: self._make_update(pairs, learning_rate))
        return is_large

    def _make_update(self, pairs: Sequence[Pair], learning_rate: Tensor) -> None:
        self._decay(() if self._is_guarded else expanded([variable for _, variable in pairs]), learning_rate)
        shared = self.begin_step(learning_rate)
        for gradient, variable in pairs:
            if self._is_guarded:
                self._update_guarded(gradient, variable, learning_rate, shared)
            else:
                self._update_one(gradient, variable, shared)

    def _update_one(self, gradient: Any, variable: Any, shared: Any) -> None:
        if isinstance(variable, ShardedVariable):
            self.update_whole([ops.convert_to_tensor(part) for part in gradient], variable, shared)
            return
        by_rows = self.updates_rows and not self._is_decayed(variable)
        with colocate_with(variable):
            if isinstance(gradient, IndexedSlices) and by_rows:
                self.update_step(gradient.values, VariableRows(variable, gradient.indices), shared)
            else:
                self.update_step(ops.convert_to_tensor(gradient), variable, shared)

    def _update_guarded(self, gradient: Any, variable: Any, learning_rate: Tensor, shared: Any) -> None:
        """Make a step's whole update of a variable, decay and constraint too, if it is large enough and not guarded."""
        least = self._least_norm_of_each

        def update() -> None:
            self._decay(expanded([variable]), learning_rate)
            self._update_one(gradient, variable, shared)
            constrain(variable)

        def judged() -> None:
            square = _square_of(self._change(gradient, variable, learning_rate, shared))
            step_where(ops.sqrt(square) >= least, update)

        self._guarded(variable, update if least is None else judged, lambda: None)

    def _guarded(self, variable: Any, act: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        for guard in self._guards:
            act = partial(guard, expanded([variable])[0], act, otherwise)
        return act()

    def update_whole(self, gradients: Sequence[Tensor], variable: ShardedVariable, learning_rate: Any) -> None:
        """Assign to all shards of a variable, if `updates_wholes`. By default `update_step` gets the whole, joined.

        Args:
            gradients: of the shards, in their order.
            variable: whose shards may be on different devices.
            learning_rate: what `begin_step` returned.

        >>> import anabranch as ab
        >>> class Normalised(ab.optim.Optimizer):
        ...     updates_wholes = True
        ...     def update_step(self, gradient, variable, learning_rate):
        ...         variable.assign(variable - learning_rate * gradient / ab.ops.norm(gradient))
        >>> w = ab.distribute.ShardedVariable([0.0, 0.0])
        >>> Normalised(1.0).apply([ab.ops.convert_to_tensor([3.0, 4.0])], [w])
        >>> w.numpy()
        array([-0.6, -0.8], dtype=float32)
        """
        with colocate_with(variable.shards[0]):
            self.update_step(join_parts(variable, gradients), variable, learning_rate)

    # --- what an update would change --------------------------------------------------------------------------------

    def _square_of_update(self, pairs: Sequence[Pair], learning_rate: Tensor) -> Tensor:
        """Return the sum of the squares of what an update would change; nothing changes."""
        with StatelessScope():
            shared = self.begin_step(learning_rate)
            squares = [self._square_of_part(*pair, learning_rate, shared) for pair in pairs]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        return total

    def _square_of_part(self, gradient: Any, variable: Any, learning_rate: Tensor, shared: Any) -> Tensor:
        least = self._least_norm_of_each

        def square() -> Tensor:
            found = _square_of(self._change(gradient, variable, learning_rate, shared))
            return found if least is None else ops.where(ops.sqrt(found) < least, 0.0, found)

        return self._guarded(variable, square, lambda: ops.zeros((), _wide(variable.dtype)))

    def _change(self, gradient: Any, variable: Any, learning_rate: Tensor, shared: Any) -> Tensor:
        """Return what a step would add to a variable, or to the rows of it that it touches."""
        if isinstance(variable, ShardedVariable):
            with StatelessScope():
                before = variable.value
                self._decay(variable.shards, learning_rate)
                self._update_one(gradient, variable, shared)
                return variable.value - before
        is_plain = not self._is_decayed(variable) and getattr(variable, "constraint", None) is None
        with StatelessScope() as scope, colocate_with(variable):
            if isinstance(gradient, IndexedSlices) and self.updates_rows and is_plain:
                rows = _TriedRows(variable, gradient.indices, {})
                before = rows.value
                self.update_step(gradient.values, rows, shared)
                return rows.value - before
            before = variable.value
            self._decay([variable], learning_rate)
            self.update_step(ops.convert_to_tensor(gradient), variable, shared)
            constrain(variable)
            after = scope.get_current_value(variable)
        return ops.zeros_like(before) if after is None else after - before


def of_shards(grads: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Variable]]:
    """Return gradients and variables with those of shards in the place of the whole."""
    if len(grads) == sum(len(v.shards) if isinstance(v, ShardedVariable) else 1 for v in variables) != len(variables):
        return list(grads), expanded(variables)
    found: list[Any] = []
    for gradient, variable in zip(grads, variables, strict=True):
        found += variable.parts(gradient) if isinstance(variable, ShardedVariable) else [gradient]
    return found, expanded(variables)


def _of_wholes(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs in which a `ShardedVariable` stands in the place of its shards, if all of them are there."""
    gradients = {id(variable): gradient for gradient, variable in pairs}
    return [
        (
            [gradients[id(shard)] for shard in each.shards]
            if isinstance(each, ShardedVariable)
            else gradients[id(each)],
            each,
        )
        for each in grouped([variable for _, variable in pairs])
    ]


class _TriedRows(VariableRows):
    """Some rows of a variable, and of its slots, that keep what is assigned to them: the whole is never touched."""

    __slots__ = ("_kept",)

    def __init__(self, variable: Variable, indices: Tensor, kept: dict[Variable, Tensor]) -> None:
        super().__init__(variable, indices)
        self._kept = kept

    @property
    def value(self) -> Tensor:
        return self._kept[self.variable] if self.variable in self._kept else super().value

    def assign(self, value: Any) -> Tensor:
        self._kept[self.variable] = ops.convert_to_tensor(value, self.dtype)
        return self._kept[self.variable]

    def rows_of(self, other: Variable) -> VariableRows:
        return _TriedRows(other, self.indices, self._kept)


def power_of(base: float, number: Tensor) -> Tensor:
    """Return ``base ** number`` with the accuracy of the number's dtype."""
    return ops.power(ops.convert_to_tensor(base, number.dtype), number)


def _wide(dtype: DTypeLike) -> str:
    """Return the dtype of sums of squares: those of float16 are soon infinite."""
    return "float64" if dtype == "float64" else "float32"


def _square_of(change: Tensor) -> Tensor:
    return ops.sum(ops.square(ops.cast(change, _wide(change.dtype))))


def constrain(variable: Variable) -> None:
    """Apply the constraint of a variable, if it has one, as weights of layers may."""
    constraint = getattr(variable, "constraint", None)
    if constraint is not None:
        variable.assign(constraint(variable))
