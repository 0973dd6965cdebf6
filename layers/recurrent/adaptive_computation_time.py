"""`AdaptiveComputationTime`: a cell that thinks about each step for as long as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.control_flow import while_loop
from ...engine.graph import Tensor, Variable, flatten, pack_as
from ...engine.objects.tracking import optional_metric
from ..core.dense import Dense, positive_int
from ..core.input_spec import known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .cell import build_cell, call_cell, dropout_scope, initial_states, output_size_of, state_form
from .stacked_rnn_cells import StackedRNNCells, check_cell
from .step_rows import rows_live
from .step_sums import collect_step_sums, sum_over_steps

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.objects.tracking import TrackedMetric
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import LayerOptions
    from .cell import CellLike, StateSizes


@config_from_signature()
class AdaptiveComputationTime(Layer):
    """A cell for `RNN` that calls another cell several times a step, as often as each row of the batch needs.

    Args:
        cell: the cell, see `RNN`. Its inputs are vectors; it sees one feature more, which is 1 the first time that it
            is called in a step and 0 after that.
        ponder_cost: the weight of the ponder cost, the number of calls and the remainder, summed over the steps of a
            sequence and averaged over the batch, in the model's loss.
        max_steps: the largest number of calls in a step.
        epsilon: a row halts when its halting probabilities sum to ``1 - epsilon``; so that one call can be enough.
        ponder_metric: a metric such as ``ab.metrics.Mean("ponder_steps")`` to keep up to date, which `fit` then logs:
            the mean number of calls a step. It may also be set later.

    After each call a halting unit, ``sigmoid(Dense(1))`` of the cell's states, gives each row a probability. A row
    halts at the call at which they sum to ``1 - epsilon``; this one gets what is left to 1, the remainder. Output and
    states of the step are the means over the calls, weighted by the probabilities. The calls of a step are a
    `while_loop` that ends when all rows have halted. Gradients are exact; the number of calls is taken as a constant.

    Attributes:
        mean_ponder_steps: a variable, the mean number of calls a step in the latest batch; masked steps don't count.

    Raises:
        ValueError: `cell` is not a cell, a number is out of range, or the input is not a vector a row.
        TypeError: a state of the cell is not made of floats: what counts places or steps has no mean; or
            `ponder_metric` is not a metric.

    Graves, "Adaptive Computation Time for Recurrent Neural Networks", 2016, arXiv:1603.08983.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> cell = ab.layers.AdaptiveComputationTime(ab.layers.SimpleRNNCell(4), max_steps=5)
    >>> ab.layers.RNN(cell)(np.ones((2, 3, 1), "float32")).shape
    (2, 4)
    >>> 1 <= float(cell.mean_ponder_steps.numpy()) <= 5
    True
    """

    has_loops = True

    untracked: ClassVar[frozenset[str]] = Layer.untracked | {"mean_ponder_steps"}

    def __init__(
        self,
        cell: CellLike,
        ponder_cost: float = 0.01,
        max_steps: int = 10,
        epsilon: float = 0.01,
        ponder_metric: TrackedMetric | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        check_cell(cell)
        super().__init__(**kwargs)
        self.cell: Any = cell  # of the user's class
        self.ponder_cost = _number(
            "ponder_cost", ponder_cost, lambda cost: 0 <= cost < math.inf, "a number of at least 0"
        )
        self.max_steps = positive_int("AdaptiveComputationTime", "max_steps", max_steps)
        self.epsilon = _number("epsilon", epsilon, lambda share: 0 < share < 1, "within (0, 1)")
        self.halting = Dense(1, activation="sigmoid", bias_initializer="ones", name="halting", dtype=self.dtype_policy)
        self.mean_ponder_steps = Variable(np.zeros((), "float32"), trainable=False, name="mean_ponder_steps")
        self.ponder_metric = optional_metric("AdaptiveComputationTime", "ponder_metric", ponder_metric)
        self._has_masks = False

    @property
    def state_size(self) -> StateSizes:
        """The state size of the cell."""
        return self.cell.state_size

    @property
    def cells(self) -> list[Any] | None:
        """The cells of a stack, each of which has a list of states; None for one cell."""
        return self.cell.cells if isinstance(self.cell, StackedRNNCells) else None

    @property
    def output_size(self) -> int:
        """The length of the cell's output."""
        return output_size_of(self.cell)

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Nest[Tensor]]:
        """Return the cell's first states."""
        return initial_states(self.cell, batch_size, self.compute_dtype)

    def build(self, input_shape: Sequence[int | None]) -> None:
        features = input_shape[-1] if len(input_shape) == 2 else None
        if features is None:
            raise ValueError(
                f"Layer {self.name!r} (AdaptiveComputationTime) takes inputs of shape (batch, features) at each step, "
                f"whose number of features is known, got {input_shape}."
            )
        build_cell(self.cell, (input_shape[0], features + 1))
        self.halting.build((None, sum(math.prod(size.dims) for size in flatten(state_form(self.cell)))))

    def call(
        self, inputs: Tensor, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        self._check_states(flatten(states))
        batch = ops.shape(inputs)[0]
        with nullcontext() if self._has_masks else dropout_scope(self.cell, batch, training):
            pondering = _Pondering(self, inputs, pack_as(state_form(self.cell), flatten(states)), training)
            output, new_states, cost, count = pondering.run()
        sum_over_steps([cost, count, ops.ones_like(count)], self._finish, by_row=True)
        return output, pack_as(states, flatten(new_states))

    def _check_states(self, states: list[Tensor]) -> None:
        for position, state in enumerate(states):
            dtype = ops.convert_to_tensor(state).dtype
            if not is_floating(dtype):
                kind = type(self.cell).__name__
                cell = f"{self.cell.name!r} ({kind})" if isinstance(self.cell, Layer) else kind
                raise TypeError(
                    f"Layer {self.name!r} (AdaptiveComputationTime): a step's states are means over the calls of the "
                    f"cell, so that they have to be floats, but states[{position}] of {cell} is {dtype.name}. Wrap a "
                    "cell that keeps no counts."
                )

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the dropout masks of the cell once, for all steps inside the block."""
        with dropout_scope(self.cell, batch_size, training):
            self._has_masks = True
            try:
                yield
            finally:
                self._has_masks = False

    def _finish(self, cost: Tensor, count: Tensor, steps: Tensor) -> None:
        """Take in, for each row, the sums over the steps of a sequence: cost, calls, and steps that count."""
        self.add_loss(self.ponder_cost * ops.mean(cost))
        calls, total = ops.cast(ops.sum(count), "float32"), ops.cast(ops.sum(steps), "float32")
        mean = ops.divide_no_nan(calls, total)
        self.mean_ponder_steps.assign(mean)
        if self.ponder_metric is not None:
            self.ponder_metric.update_state(mean, sample_weight=total)


class _Pondering:
    """The calls of one step.

    The first call stands before the loop: each row makes it, and it shows what the cell's output is like.
    """

    def __init__(
        self, layer: AdaptiveComputationTime, inputs: Tensor, states: Sequence[Tensor], training: bool | None
    ) -> None:
        self.layer = layer
        self.states = states
        self.training = training
        self.nobody = ops.zeros((ops.shape(inputs)[0], 1), inputs.dtype)  # (batch, 1), as all that is said of rows
        self.first_inputs = ops.concatenate([inputs, ops.ones_like(self.nobody)], axis=-1)
        self.later_inputs = ops.concatenate([inputs, self.nobody], axis=-1)  # the same for all calls in the loop

    def run(self) -> tuple[Tensor, Nest[Tensor], Tensor, Tensor]:
        """Return the mean output and states, and for each row the ponder cost and the number of calls, ``(batch,)``."""
        with collect_step_sums() as sums:
            first = self._advance(1, self.states, self.nobody, None)
            added = sums.values()
        _, _, _, means, remainder, count, totals = while_loop(self._unfinished, self._body, (2, *first, added))
        sums.finish(totals)
        output, *states = means
        row_cost, row_count = ops.reshape(remainder + count, (-1,)), ops.reshape(count, (-1,))
        return output, pack_as(self.states, states), row_cost, row_count

    def _unfinished(self, call: DimLike, states: Sequence[Tensor], halted: Tensor, *_: object) -> Tensor:
        return ops.logical_and(call <= self.layer.max_steps, ops.any(halted < 1 - self.layer.epsilon))

    def _body(self, call: DimLike, states: Sequence[Tensor], halted: Tensor, *carried: Any) -> tuple[object, ...]:
        *so_far, totals = carried
        runs = halted < 1 - self.layer.epsilon
        with collect_step_sums() as sums, rows_live(runs):
            advanced = self._advance(call, states, halted, so_far)
            added = sums.values(live=runs)
        return call + 1, *advanced, [total + value for total, value in zip(totals, added, strict=True)]

    def _advance(
        self, call: DimLike, states: Sequence[Tensor], halted: Tensor, so_far: Sequence[Any] | None
    ) -> tuple[object, ...]:
        """Make one call; return the states after it, what is halted, and the means, remainders and counts so far."""
        inputs = self.first_inputs if so_far is None else self.later_inputs
        output, new = call_cell(self.layer.cell, inputs, states, self.training)
        leaves = flatten([new])
        chance = self.layer.halting(_joined(leaves))
        enough = 1 - self.layer.epsilon
        runs = halted < enough
        last = ops.logical_and(runs, ops.logical_or(halted + chance >= enough, call >= self.layer.max_steps))
        ends = ops.where(last, 1 - halted, self.nobody)
        weight = ends + ops.where(ops.logical_and(runs, ops.logical_not(last)), chance, self.nobody)
        parts = [_like(weight, value) * value for value in (output, *leaves)]
        counted = ops.cast(runs, halted.dtype)
        if so_far is None:
            return pack_as(states, leaves), weight, parts, ends, counted
        means, remainder, count = so_far
        kept = [ops.where(_like(runs, n), n, o) for n, o in zip(leaves, flatten(states), strict=True)]
        means = [mean + part for mean, part in zip(means, parts, strict=True)]
        return pack_as(states, kept), halted + weight, means, remainder + ends, count + counted


def _number(name: str, value: object, is_right: Callable[[float], bool], wanted: str) -> float:
    """Return an argument as a float.

    Raises:
        ValueError: it is not a number, or not a right one.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not is_right(float(value)):
        raise ValueError(f"AdaptiveComputationTime: {name} must be {wanted}, got {name}={value!r}.")
    return float(value)


def _joined(states: list[Any]) -> Tensor:
    """Return all states as one matrix, ``(batch, length)``."""
    flat = [ops.reshape(state, (-1, math.prod(state.shape[1:]))) for state in states]
    return flat[0] if len(flat) == 1 else ops.concatenate(flat, axis=-1)


def _like(rows: Tensor, value: Tensor) -> Tensor:
    """Compute ``(batch, 1)``, with as many axes as `value`."""
    return ops.reshape(rows, (-1, *[1] * (len(known_shape(value.shape)) - 1)))
