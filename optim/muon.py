"""`Muon`: momentum made orthogonal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import ShardedVariable, Tensor, Variable, colocate_with
from ..engine.objects.arguments import check_numbers, check_optional_numbers, listed
from .adam import towards
from .optimizer import LearningRate, Optimizer, path_of
from .updates import StepValues, power_of


@dataclass(frozen=True, eq=False)
class MuonStep(StepValues):
    """The values that all variables share in a step."""

    rates = ("learning_rate", "of_adam")

    learning_rate: Tensor
    of_adam: Tensor


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal, for kernels; `AdamW` for everything else.

    Args:
        learning_rate: a number, a schedule, or a function without arguments.
        adam_beta_1: how much Adam's running mean of gradients keeps in a step.
        adam_beta_2: how much its running mean of their squares keeps.
        adam_weight_decay: of the variables that Adam changes; None for none.
        epsilon: keeps Adam's divisions finite.
        weight_decay: of the matrices; None for none.
        exclude_layers: patterns; Adam changes the variables in whose paths one is found. Name the output layer here.
        exclude_embeddings: whether Adam changes variables with "embedding" in their paths.
        muon_a, muon_b, muon_c: of the polynomial by which a matrix becomes orthogonal.
        adam_lr_ratio: Adam's learning rate is the other one times this.
        momentum: how much of the last step is kept.
        ns_steps: how often the polynomial is applied.
        nesterov: look ahead.
        rms_rate: the size of an element of a step; with it the learning rates of Adam serve (Liu et al., "Muon is
            Scalable for LLM Training", 2025). None for steps that are orthogonal matrices times the learning rate.
        **options: see `Optimizer`.

    Source: Jordan et al., "Muon: An Optimizer for Hidden Layers in Neural Networks", 2024.
    """

    hyperparameters = (
        *("adam_beta_1", "adam_beta_2", "adam_weight_decay", "epsilon", "exclude_layers", "exclude_embeddings"),
        *("muon_a", "muon_b", "muon_c", "adam_lr_ratio", "momentum", "ns_steps", "nesterov", "rms_rate"),
    )

    updates_wholes = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1.0,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        check_numbers("Muon", adam_beta_1=adam_beta_1, adam_beta_2=adam_beta_2, epsilon=epsilon, momentum=momentum)
        check_numbers("Muon", muon_a=muon_a, muon_b=muon_b, muon_c=muon_c, ns_steps=ns_steps)
        check_numbers("Muon", adam_lr_ratio=adam_lr_ratio)
        check_optional_numbers("Muon", adam_weight_decay=adam_weight_decay, rms_rate=rms_rate)
        self.adam_beta_1 = adam_beta_1
        self.adam_beta_2 = adam_beta_2
        self.adam_weight_decay = adam_weight_decay
        self.epsilon = epsilon
        self.exclude_layers = listed("Muon", "exclude_layers", exclude_layers or (), "a list of patterns")
        self.exclude_embeddings = exclude_embeddings
        self.muon_a, self.muon_b, self.muon_c = muon_a, muon_b, muon_c
        self.adam_lr_ratio = adam_lr_ratio
        self.momentum = momentum
        self.ns_steps = ns_steps
        self.nesterov = nesterov
        self.rms_rate = rms_rate
        self._momentums: list[Variable] = []
        self._velocities: dict[Variable, Variable] = {}

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if not first:
            return
        for variable in variables:
            self._momentums.append(self.add_variable_from_reference(variable, "momentum"))
            if self.is_left_to_adam(variable):
                self._velocities[variable] = self.add_variable_from_reference(variable, "velocity")

    def is_left_to_adam(self, variable: Variable) -> bool:
        """Test whether Adam changes this variable: all but matrices, embeddings, and what `exclude_layers` names."""
        path = path_of(variable if variable.whole is None else variable.whole)
        if variable.numpy().ndim != 2 or (self.exclude_embeddings and "embedding" in path.lower()):
            return True
        return any(re.search(pattern, path) for pattern in self.exclude_layers)

    def begin_step(self, learning_rate: Tensor) -> MuonStep:
        """Return the learning rate, and Adam's with its bias corrections."""
        number = ops.cast(self.iterations + 1, self.shared_dtype)
        beta_1, beta_2 = (power_of(b, number) for b in (self.adam_beta_1, self.adam_beta_2))
        of_adam = learning_rate * self.adam_lr_ratio * ops.sqrt(1.0 - beta_2) / (1.0 - beta_1)
        return MuonStep(learning_rate, of_adam)

    def update_whole(self, gradients: Sequence[Tensor], variable: ShardedVariable, learning_rate: Any) -> None:
        """Assign to all shards: Adam to each by itself, an orthogonal step to the matrix that they make."""
        if variable.shards[0] not in self._velocities:
            super().update_whole(gradients, variable, learning_rate)
            return
        for gradient, shard in zip(gradients, variable.shards, strict=True):
            with colocate_with(shard):
                self.update_step(gradient, shard, learning_rate)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        slot = self.slot_for(variable, self._momentums)
        if variable in self._velocities:
            momentum = towards(slot, gradient, 1 - self.adam_beta_1)
            velocity = towards(self._velocities[variable], ops.square(gradient), 1 - self.adam_beta_2)
            variable.assign(variable - momentum * learning_rate.of_adam / (ops.sqrt(velocity) + self.epsilon))
            return
        momentum = slot * self.momentum + gradient
        slot.assign(momentum)
        rows, columns = variable.numpy().shape
        direction = gradient + momentum * self.momentum if self.nesterov else momentum
        direction = self._orthogonal(direction, rows > columns)
        size = 1.0 if self.rms_rate is None else math.sqrt(max(rows, columns)) * self.rms_rate
        variable.assign(variable - direction * (learning_rate.learning_rate * size))

    def _orthogonal(self, matrix: Tensor, is_tall: bool) -> Tensor:
        """Return about the nearest matrix with orthonormal rows or columns, by a Newton-Schulz iteration."""
        x = ops.transpose(matrix) if is_tall else matrix  # products of the smaller size
        x = x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7)  # so that no singular value is above 1
        for _ in range(self.ns_steps):
            square = ops.matmul(x, ops.transpose(x))
            mixed = square * self.muon_b + ops.matmul(square * self.muon_c, square)
            x = x * self.muon_a + ops.matmul(mixed, x)
        return ops.transpose(x) if is_tall else x

    def _decay_of(self, variable: Variable) -> float | None:
        return self.adam_weight_decay if self.is_left_to_adam(variable) else self.weight_decay

    def _is_decayed(self, variable: Variable) -> bool:
        return bool(self._decay_of(variable)) and not self._is_excluded(variable)

    def _decay(self, variables: Sequence[Variable], learning_rate: Tensor) -> None:
        for variable in variables:
            share = self._decay_of(variable)
            if share and self._is_decayed(variable):
                variable.assign(variable * (1.0 - share * learning_rate))
