"""Gradient descent, with or without momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..engine.graph import Tensor, Variable
from ..engine.objects.arguments import check_numbers
from .optimizer import LearningRate, Optimizer
from .options import OptimizerOptions


class SGD(Optimizer):
    """Gradient descent: ``w -= learning_rate * g``, or with momentum ``v = momentum * v - learning_rate * g; w += v``.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        momentum: how much of the last step is kept.
        nesterov: look ahead: ``w += momentum * v - learning_rate * g`` with the new v.
        **options: see `Optimizer`.

    Source: Sutskever et al., "On the Importance of Initialization and Momentum in Deep Learning", 2013.
    """

    hyperparameters = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        check_numbers(type(self).__name__, momentum=momentum)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1]; got {momentum}.")
        super().__init__(learning_rate, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.updates_rows = not momentum  # with it, rows go on moving
        self._velocities: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first and self.momentum:
            self._velocities = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        step = gradient * learning_rate
        if not self.momentum:
            variable.assign(variable - step)
            return
        slot = self._velocities[self._get_variable_index(variable)]
        velocity = slot * self.momentum - step
        slot.assign(velocity)
        variable.assign(variable + (velocity * self.momentum - step if self.nesterov else velocity))


class Momentum(SGD):
    """`SGD` with a momentum of 0.9 by default."""

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov, **options)
