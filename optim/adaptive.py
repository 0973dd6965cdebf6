"""Optimizers that scale each element of a step by the gradients it has seen: RMSprop, Adagrad, Adadelta, Ftrl; Lion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..engine import ops
from ..engine.graph import Tensor, Variable
from ..engine.objects.arguments import check_numbers
from ..engine.objects.initializers import Constant
from .adam import towards
from .optimizer import LearningRate, Optimizer
from .options import OptimizerOptions


class RMSprop(Optimizer):
    """Gradients divided by the root of the running mean of their squares.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        rho: how much the running mean keeps in a step.
        momentum: how much of the last step is kept.
        epsilon: keeps divisions finite.
        centered: divide by the standard deviation: subtract the square of the running mean of gradients.
        **options: see `Optimizer`.

    Source: Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012.
    """

    hyperparameters = ("rho", "momentum", "epsilon", "centered")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, rho=rho, momentum=momentum, epsilon=epsilon)
        super().__init__(learning_rate, **options)
        self.rho = rho
        self.momentum = momentum
        self.epsilon = epsilon
        self.centered = centered
        self._velocities: list[Variable] = []
        self._momentums: list[Variable] = []
        self._means: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if not first:
            return
        self._velocities = self.add_optimizer_variables(variables, "velocity")
        if self.momentum > 0:
            self._momentums = self.add_optimizer_variables(variables, "momentum")
        if self.centered:
            self._means = self.add_optimizer_variables(variables, "average_gradient")

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        square = towards(self._velocities[index], ops.square(gradient), 1 - self.rho)
        if self.centered:
            square = square - ops.square(towards(self._means[index], gradient, 1 - self.rho))
        step = gradient * learning_rate / ops.sqrt(square + self.epsilon)
        if self.momentum > 0:
            step = self._momentums[index] * self.momentum + step
            self._momentums[index].assign(step)
        variable.assign(variable - step)


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all their squares.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        initial_accumulator_value: where the sums begin.
        epsilon: keeps divisions finite.
        **options: see `Optimizer`.

    Source: Duchi et al., "Adaptive Subgradient Methods for Online Learning", 2011.
    """

    hyperparameters = ("initial_accumulator_value", "epsilon")
    updates_rows = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, initial_accumulator_value=initial_accumulator_value, epsilon=epsilon)
        super().__init__(learning_rate, **options)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon
        self._accumulators: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            start = Constant(self.initial_accumulator_value)
            self._accumulators = self.add_optimizer_variables(variables, "accumulator", start)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        slot = self.slot_for(variable, self._accumulators)
        squares = slot + ops.square(gradient)
        slot.assign(squares)
        variable.assign(variable - gradient * learning_rate / ops.sqrt(squares + self.epsilon))


class Adadelta(Optimizer):
    """Steps in the ratio of the running means of past steps' and of gradients' squares.

    Args:
        learning_rate: a number, a schedule, or a function without arguments; 1 is that of the paper.
        rho: how much the running means keep in a step.
        epsilon: keeps divisions finite.
        **options: see `Optimizer`.

    Source: Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    hyperparameters = ("rho", "epsilon")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, rho=rho, epsilon=epsilon)
        super().__init__(learning_rate, **options)
        self.rho = rho
        self.epsilon = epsilon
        self._gradients: list[Variable] = []
        self._steps: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            names = ["accumulated_grad", "accumulated_delta_var"]
            self._gradients, self._steps = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        squares = towards(self._gradients[index], ops.square(gradient), 1 - self.rho)
        step = gradient * ops.sqrt((self._steps[index] + self.epsilon) / (squares + self.epsilon))
        towards(self._steps[index], ops.square(step), 1 - self.rho)
        variable.assign(variable - step * learning_rate)


class Ftrl(Optimizer):
    """Follow the regularised leader, for sparse linear models.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        learning_rate_power: how the rate falls with the sum of squares; not positive, 0 for a fixed rate.
        initial_accumulator_value: where the sums of squares begin.
        l1_regularization_strength: the larger, the more weights are exactly 0.
        l2_regularization_strength: draws weights towards 0.
        l2_shrinkage_regularization_strength: the same, but as a part of the gradient.
        beta: added to the roots of the sums of squares.
        **options: see `Optimizer`.

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013.
    """

    hyperparameters = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        check_numbers("Ftrl", learning_rate_power=learning_rate_power, beta=beta)
        if learning_rate_power > 0:
            raise ValueError(f"learning_rate_power must not be positive; got {learning_rate_power}.")
        not_negative = {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        check_numbers("Ftrl", **not_negative)
        for name, value in not_negative.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative; got {value}.")
        self.learning_rate_power = learning_rate_power
        self.initial_accumulator_value = initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta
        self._accumulators: list[Variable] = []
        self._linears: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            starts = [Constant(self.initial_accumulator_value), "zeros"]
            names = ["accumulator", "linear"]
            self._accumulators, self._linears = self.add_optimizer_variables(variables, names, starts)

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        accumulator, slot = self._accumulators[index], self._linears[index]
        squares = accumulator + ops.square(gradient)
        before, after = (ops.power(x, -self.learning_rate_power) for x in (accumulator, squares))
        if self.l2_shrinkage_regularization_strength:
            gradient = gradient + 2.0 * self.l2_shrinkage_regularization_strength * variable
        linear = slot + gradient - (after - before) / learning_rate * variable
        quadratic = after / learning_rate + 2.0 * (self.l2_regularization_strength + self.beta / (2.0 * learning_rate))
        l1 = self.l1_regularization_strength
        variable.assign((ops.clip(linear, -l1, l1) - linear) / quadratic)
        slot.assign(linear)
        accumulator.assign(squares)


class Lion(Optimizer):
    """Steps of one size: only the signs of a mixture of gradient and running mean count.

    Args:
        learning_rate: a number, a schedule, or a function without arguments; about a tenth of Adam's.
        beta_1: the share of the running mean in the mixture.
        beta_2: how much the running mean keeps in a step.
        **options: see `Optimizer`.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    """

    hyperparameters = ("beta_1", "beta_2")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, beta_1=beta_1, beta_2=beta_2)
        super().__init__(learning_rate, **options)
        if not 0 < beta_1 <= 1:
            raise ValueError(
                f"beta_1 must be in (0, 1]; got {beta_1}. Otherwise, the optimizer degenerates into SignSGD."
            )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self._momentums: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Any) -> None:
        slot = self._momentums[self._get_variable_index(variable)]
        mixture = slot * self.beta_1 + gradient * (1.0 - self.beta_1)
        towards(slot, gradient, 1.0 - self.beta_2)
        variable.assign(variable - ops.sign(mixture) * learning_rate)
