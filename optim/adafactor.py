"""`Adafactor`: mean squares of a matrix's gradients from its rows' and its columns'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import ShardedVariable, Tensor, Variable, colocate_with
from ..engine.graph.state.sharded import expanded, grouped
from ..engine.objects.arguments import check_numbers
from .optimizer import LearningRate, Optimizer
from .options import OptimizerOptions
from .updates import StepValues


@dataclass(frozen=True, eq=False)
class AdafactorStep(StepValues):
    """The values that all variables share in a step."""

    rates = ("relative_size",)

    relative_size: Tensor
    kept: Tensor


class Adafactor(Optimizer):
    """Gradients divided by the root of their running mean squares, which for matrices is made of rows and columns.

    Args:
        learning_rate: a number, a schedule, or a function without arguments; the most that a step may be.
        beta_2_decay: the running means keep ``1 - step ** beta_2_decay`` in a step.
        epsilon_1: added to squares of gradients.
        epsilon_2: steps are as long as for weights of at least this size.
        clip_threshold: a step's elements, as a root mean square, are at most this before the learning rate.
        relative_step: accepted for Keras's sake; the learning rate is at most ``1 / sqrt(step)`` either way, as there.
        **options: see `Optimizer`.

    The steps are relative: learning rate times the root mean square of the variable. Of arrays of more than two axes,
    the last two are rows and columns.

    Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018.
    """

    hyperparameters = ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step")
    updates_wholes = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers("Adafactor", beta_2_decay=beta_2_decay, clip_threshold=clip_threshold)
        check_numbers("Adafactor", epsilon_1=epsilon_1, epsilon_2=epsilon_2)
        super().__init__(learning_rate, **options)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.clip_threshold = clip_threshold
        self.relative_step = relative_step
        self._rows: dict[Any, Variable] = {}  # by the variable, or the whole of shards
        self._columns: dict[Any, Variable] = {}
        self._velocities: dict[Variable, Variable] = {}

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if not first:
            return
        for variable in grouped(expanded(variables)):
            shards = expanded([variable])
            shape, dtype = variable.numpy().shape, variable.dtype
            if len(shape) >= 2:
                with colocate_with(shards[0]):
                    self._rows[variable] = self.add_variable(shape[:-1], dtype=dtype, name=variable.name)
                    columns = (*shape[:-2], shape[-1])
                    self._columns[variable] = self.add_variable(columns, dtype=dtype, name=variable.name)
            else:  # unused, but Keras has them in its files
                for _ in range(2):
                    self.add_variable((), dtype="int32", name=variable.name)
            self._velocities.update({shard: self.add_variable_from_reference(shard, "velocity") for shard in shards})

    def begin_step(self, learning_rate: Tensor) -> AdafactorStep:
        """Return the size of steps relative to the weights, and what running means keep."""
        number = ops.cast(self.iterations + 1, self.shared_dtype)
        size = ops.minimum(learning_rate, ops.rsqrt(number))
        return AdafactorStep(size, 1.0 - ops.power(number, self.beta_2_decay))

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        square = ops.square(gradient) + self.epsilon_1
        slot: Any = self._velocities[expanded([variable])[0]]
        slot = slot.whole if isinstance(variable, ShardedVariable) else slot
        if variable in self._rows:
            rows = _mean_towards(self._rows[variable], ops.mean(square, axis=-1), learning_rate.kept)
            columns = _mean_towards(self._columns[variable], ops.mean(square, axis=-2), learning_rate.kept)
            rows = rows / ops.mean(rows, axis=-1, keepdims=True)
            velocity = ops.expand_dims(rows, -1) * ops.expand_dims(columns, -2)
            slot.assign(velocity)
        else:
            velocity = _mean_towards(slot, square, learning_rate.kept)
        step = gradient / ops.sqrt(velocity)
        step = step / ops.maximum(_size(step) / self.clip_threshold, 1.0)
        length = ops.maximum(_size(variable), self.epsilon_2) * learning_rate.relative_size
        variable.assign(variable - step * length)


def _mean_towards(slot: Variable, value: Tensor, kept: Tensor) -> Tensor:
    mean = slot * kept + value * (1.0 - kept)
    slot.assign(mean)
    return mean


def _size(value: Any) -> Tensor:
    """Return the root mean square."""
    return ops.sqrt(ops.mean(ops.square(value)))
