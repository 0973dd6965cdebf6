"""`ScheduleFreeAdamW`: AdamW that needs no schedule, because it averages what it has gone through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import Tensor, Variable
from ..engine.objects.arguments import check_numbers
from .adam import towards
from .optimizer import LearningRate, Optimizer
from .options import OptimizerOptions
from .updates import StepValues, power_of


@dataclass(frozen=True, eq=False)
class _Shared(StepValues):
    """The values that all variables share in a step."""

    rates = ("learning_rate",)

    learning_rate: Tensor
    correction: Tensor  # of the running means of squares
    weight: Tensor  # of the latest point in the average


class ScheduleFreeAdamW(Optimizer):
    """AdamW without a schedule: gradients are taken between the latest point and the average of all so far.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        beta_1: how near to the average, in place of momentum, gradients are taken.
        beta_2: how much the running means of squared gradients keep.
        epsilon: keeps divisions finite.
        warmup_steps: over this many steps the learning rate rises to its value; 0 for none.
        **options: see `Optimizer`.

    The slot `momentum` is the latest point; the variable itself is the mixture at which gradients are taken.

    Source: Defazio et al., "The Road Less Scheduled", 2024.

    >>> import anabranch as ab
    >>> w = ab.Variable([1.0])
    >>> optimizer = ab.optim.ScheduleFreeAdamW(learning_rate=0.5)
    >>> optimizer.apply([[3.0]], [w])
    >>> w.numpy().round(3)
    array([0.5], dtype=float32)
    """

    hyperparameters = ("beta_1", "beta_2", "epsilon", "warmup_steps")

    def __init__(
        self,
        learning_rate: LearningRate = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, warmup_steps=warmup_steps)
        super().__init__(learning_rate, **options)
        if not 0 < beta_1 <= 1:
            raise ValueError(
                f"ScheduleFreeAdamW: beta_1 must be above 0 and be at most 1, as variables are divided by it; got "
                f"beta_1={beta_1}."
            )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.warmup_steps = warmup_steps
        self._momentums: list[Variable] = []
        self._velocities: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if not first:
            return
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])
        for momentum, variable in zip(self._momentums, variables, strict=True):
            momentum.write_value(variable.numpy())

    def begin_step(self, learning_rate: Tensor) -> _Shared:
        number = ops.cast(self.iterations + 1, self.shared_dtype)
        if self.warmup_steps > 0:
            learning_rate = learning_rate * ops.minimum(number / self.warmup_steps, 1.0)
        return _Shared(learning_rate, 1.0 - power_of(self.beta_2, number), 1.0 / number)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        given = learning_rate.learning_rate, learning_rate.correction, learning_rate.weight
        rate, correction, weight = (ops.cast(value, variable.dtype) for value in given)
        index = self._get_variable_index(variable)
        slot = self._momentums[index]
        before = slot.value
        velocity = towards(self._velocities[index], ops.square(gradient), 1 - self.beta_2)
        latest = before - rate * gradient / (ops.sqrt(velocity / correction) + self.epsilon)
        slot.assign(latest)
        average = (variable - (1 - self.beta_1) * before) / self.beta_1
        average = (1.0 - weight) * average + weight * latest
        variable.assign((1 - self.beta_1) * latest + self.beta_1 * average)
