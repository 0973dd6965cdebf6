"""Adam and its kin: steps out of running means of gradients and of their squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import ShardedVariable, Tensor, Variable, colocate_with
from ..engine.objects.arguments import check_numbers
from .optimizer import LearningRate, Optimizer
from .options import OptimizerOptions
from .updates import StepValues, power_of


class Moments(Optimizer):
    """Base: running means of gradients (momentum) and of their squares (velocity)."""

    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
        super().__init__(learning_rate, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self._momentums: list[Variable] = []
        self._velocities: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])
            self.build_further(variables)

    def build_further(self, variables: Sequence[Variable]) -> None:
        """Make what else a subclass needs."""

    def step_number(self) -> Tensor:
        """Return the number of this step, counted from 1."""
        return ops.cast(self.iterations + 1, self.shared_dtype)

    def update_moments(self, gradient: Tensor, variable: Variable) -> tuple[Tensor, Tensor]:
        """Assign the new running means, and return them."""
        index = self._get_variable_index(variable)
        momentum = towards(self._momentums[index], gradient, 1 - self.beta_1)
        velocity = towards(self._velocities[index], ops.square(gradient), 1 - self.beta_2)
        return momentum, velocity


def towards(slot: Variable, value: Tensor, share: float) -> Tensor:
    """Move the variable `slot` by `share` of the way to `value`; the new value."""
    moved = slot + (value - slot) * share
    slot.assign(moved)
    return moved


class Adam(Moments):
    """Adam: steps by running means of the gradients and of their squares.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        beta_1: how much the running mean of gradients keeps in a step.
        beta_2: how much the running mean of their squares keeps.
        epsilon: keeps divisions finite (the "epsilon hat" of the paper, section 2).
        amsgrad: divide by the largest running mean so far (Reddi et al., "On the Convergence of Adam and Beyond").
        **options: see `Optimizer`.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014.
    """

    hyperparameters = ("beta_1", "beta_2", "epsilon", "amsgrad")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **options)
        self.amsgrad = amsgrad
        self._largest: list[Variable] = []

    def build_further(self, variables: Sequence[Variable]) -> None:
        if self.amsgrad:
            self._largest = self.add_optimizer_variables(variables, "velocity_hat")

    def begin_step(self, learning_rate: Tensor) -> Tensor:
        """Return the learning rate times the bias corrections of both means."""
        number = self.step_number()
        beta_1, beta_2 = (power_of(beta, number) for beta in (self.beta_1, self.beta_2))
        return learning_rate * ops.sqrt(1.0 - beta_2) / (1.0 - beta_1)

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        momentum, velocity = self.update_moments(gradient, variable)
        if self.amsgrad:
            slot = self._largest[self._get_variable_index(variable)]
            velocity = ops.maximum(slot, velocity)
            slot.assign(velocity)
        variable.assign(variable - momentum * learning_rate / (ops.sqrt(velocity) + self.epsilon))


class AdamW(Adam):
    """`Adam` with weight decay that does not pass through the running means.

    Args:
        weight_decay: the share of each variable, times the learning rate, by which it shrinks in a step.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        if weight_decay is None:
            raise ValueError("AdamW needs a weight_decay; got None. Without one, use Adam.")
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **options)


@dataclass(frozen=True, eq=False)
class NadamStep(StepValues):
    """The values that all variables share in a step of `Nadam`."""

    rates = ("of_momentum", "of_gradient")

    of_momentum: Tensor
    of_gradient: Tensor
    of_root: Tensor


class Nadam(Moments):
    """Adam with Nesterov's momentum; for the arguments see `Adam`.

    Source: Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
    """

    def build_further(self, variables: Sequence[Variable]) -> None:
        self._u_product = self.add_variable((), "ones", variables[0].dtype if variables else None, "u_product")

    def begin_step(self, learning_rate: Tensor) -> NadamStep:
        """Return a step's weights of momentum and gradient, with the learning rate, and that of the square root."""
        number = self.step_number()
        this, following = self._schedule(number), self._schedule(number + 1.0)
        product = ops.cast(self._u_product, number.dtype) * this
        self._u_product.assign(product)
        beta_2 = power_of(self.beta_2, number)
        return NadamStep(
            learning_rate * following / (1.0 - product * following),
            learning_rate * (1.0 - this) / (1.0 - product),
            ops.rsqrt(1.0 - beta_2),
        )

    def _schedule(self, number: Tensor) -> Tensor:
        return self.beta_1 * (1.0 - 0.5 * power_of(0.96, number))

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        momentum, velocity = self.update_moments(gradient, variable)
        step = momentum * learning_rate.of_momentum + gradient * learning_rate.of_gradient
        variable.assign(variable - step / (ops.sqrt(velocity) * learning_rate.of_root + self.epsilon))


class Adamax(Moments):
    """Adam with the largest gradient (faded) in place of the mean square; for the arguments see `Adam`.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014, section 7.
    """

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        Optimizer.build(self, variables)
        if first:
            self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "norm"])

    def begin_step(self, learning_rate: Tensor) -> Tensor:
        """Return the learning rate with the bias correction of the mean."""
        number = self.step_number()
        return learning_rate / (1.0 - power_of(self.beta_1, number))

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        momentum = towards(self._momentums[index], gradient, 1 - self.beta_1)
        largest = ops.maximum(self._velocities[index] * self.beta_2, ops.abs(gradient))
        self._velocities[index].assign(largest)
        variable.assign(variable - momentum * learning_rate / (largest + self.epsilon))


@dataclass(frozen=True, eq=False)
class LambStep(StepValues):
    """The values that all variables share in a step of `Lamb`."""

    rates = ("learning_rate",)

    learning_rate: Tensor
    of_momentum: Tensor
    of_root: Tensor


class Lamb(Moments):
    """Adam whose steps have the length of the weights they change; for the arguments see `Adam`.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020.
    """

    updates_wholes = True

    def begin_step(self, learning_rate: Tensor) -> LambStep:
        """Return the learning rate and the bias corrections."""
        number = self.step_number()
        beta_1, beta_2 = (power_of(beta, number) for beta in (self.beta_1, self.beta_2))
        return LambStep(learning_rate, 1.0 / (1.0 - beta_1), ops.rsqrt(1.0 - beta_2))

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        self._update_parts([gradient], [variable], learning_rate)

    def update_whole(self, gradients: Sequence[Tensor], variable: ShardedVariable, learning_rate: Any) -> None:
        """Assign to all shards, each where it is: norms alone are of the whole."""
        self._update_parts(gradients, variable.shards, learning_rate)

    def _update_parts(self, gradients: Sequence[Tensor], parts: Sequence[Variable], learning_rate: Any) -> None:
        steps: list[Tensor] = []
        for gradient, part in zip(gradients, parts, strict=True):
            with colocate_with(part):
                momentum, velocity = self.update_moments(gradient, part)
                step = momentum * learning_rate.of_momentum
                steps.append(step / (ops.sqrt(velocity) * learning_rate.of_root + self.epsilon))
        of_weights, of_step = _norm_of_parts(parts), _norm_of_parts(steps)
        ratio = ops.where(ops.logical_and(of_weights > 0, of_step > 0), of_weights / of_step, 1.0)
        for step, part in zip(steps, parts, strict=True):
            with colocate_with(part):
                part.assign(part - step * (ratio * learning_rate.learning_rate))


def _norm_of_parts(parts: Sequence[Any]) -> Tensor:
    squares = [ops.sum(ops.square(part)) for part in parts]
    return ops.sqrt(squares[0] if len(squares) == 1 else ops.sum(ops.stack(squares)))
