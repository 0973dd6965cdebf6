"""Variables that an optimizer of the user's holds as attributes: they are part of its state, in Keras's order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

GRADIENT = np.array([1.0, 2.0], dtype="float32")


class Counting(ab.optim.Optimizer):
    """Steps that grow: by the first variable, which counts them."""

    def __init__(self, learning_rate: Any = 0.5, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.first: Any = ab.Variable(1.0, name="first")
        self.later: list[ab.Variable] = []

    def build(self, variables: Sequence[ab.Variable]) -> None:
        if self.built:
            return
        self.targets = list(variables)
        self.before: dict[str, ab.Variable] | None = {"a": ab.Variable(2.0, name="before")}
        super().build(variables)
        self.m = self.add_optimizer_variables(variables, "m")
        self.pair = (ab.Variable(3.0, name="pair"), ab.Variable(4.0, name="other"))
        self.n = [self.add_variable_from_reference(variable, "n") for variable in variables]
        self.later.append(ab.Variable(5.0, name="later"))
        self.o = self.add_optimizer_variables(variables, "o")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign(variable - gradient * learning_rate * self.first)
        self.first.assign(self.first + 1.0)


def names(optimizer: ab.optim.Optimizer) -> list[str]:
    return [variable.name.rsplit("/", 1)[-1] for variable in optimizer.variables]


def built(**options: Any) -> tuple[Counting, ab.Variable]:
    weight = ab.Variable(np.ones(2, "float32"), name="w")
    optimizer = Counting(**options)
    optimizer.build([weight])
    return optimizer, weight


def test_they_are_listed_in_the_order_in_which_they_came():
    optimizer, _ = built()  # as Keras 3.15 lists them
    own = ["first", "before", "w_m", "pair", "other", "w_n", "later", "w_o"]
    assert names(optimizer) == ["iteration", "learning_rate", *own]
    optimizer.learning_rate = ab.optim.schedules.ExponentialDecay(0.1, 2, 0.5)
    assert names(optimizer) == ["iteration", *own]
    assert names(built(learning_rate=lambda: 0.5)[0]) == ["iteration", *own]


def test_a_variable_is_listed_once_and_no_more_when_it_is_let_go():
    optimizer, _ = built()
    optimizer.again = [optimizer.first, optimizer.m[0]]
    assert len(names(optimizer)) == 10
    optimizer.first = optimizer.before = None
    optimizer.again = []
    assert names(optimizer) == ["iteration", "learning_rate", "w_m", "pair", "other", "w_n", "later", "w_o"]


def test_the_variables_of_the_model_are_not_among_them():
    optimizer, weight = built()
    assert optimizer.targets == [weight]
    assert not any(variable is weight for variable in optimizer.variables)


def test_files_and_copies_have_them(tmp_path: Path):
    with ab.saving.custom_object_scope({"Counting": Counting}):
        model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)])
        model.compile(Counting(), "mse")
        model.fit(np.ones((4, 2)), np.zeros((4, 1)), epochs=3, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = ab.saving.load_model(tmp_path / "model.keras")
    first = float(model.optimizer.first)
    assert first > 3
    assert float(loaded.optimizer.first) == first
    copied = copy.deepcopy(model.optimizer)
    assert names(copied) == names(model.optimizer)
    weights = [variable.numpy() for variable in model.optimizer.variables]
    fresh = Counting()
    fresh.build(model.trainable_variables)
    fresh.set_weights(weights)
    assert float(fresh.first) == first


def test_steps_without_state_hand_them_on():
    optimizer, weight = built()
    state = [variable.value for variable in optimizer.variables]
    after, changed = optimizer.stateless_apply(state, [GRADIENT], [weight])
    np.testing.assert_allclose(after[0], [0.5, 0.0])
    assert [float(changed[2]), float(optimizer.first)] == [2.0, 1.0]


@pytest.mark.parametrize("wrap", [ab.optim.LossScaleOptimizer, ab.optim.SWA])
def test_wrappers_list_them(wrap: Any):
    weight = ab.Variable(np.ones(2, "float32"), name="w")
    wrapper = wrap(Counting())
    before = len(wrapper.variables)
    wrapper.build([weight])
    wrapper.mine = ab.Variable(0.0, name="mine")
    assert "first" in names(wrapper)
    assert names(wrapper).count("mine") == 1
    assert names(wrapper).index("mine") < names(wrapper).index("first")
    assert len(wrapper.variables) > before


def test_optimizers_for_groups_list_no_variables_of_the_model():
    weights = [ab.Variable(np.ones(2, "float32"), name=name) for name in "ab"]
    plain = ab.optim.SGD(momentum=0.9)
    optimizer = ab.optim.MultiOptimizer(lambda variable: plain)
    optimizer.build(weights)
    assert names(optimizer) == ["iteration", "learning_rate", *names(plain)]
    assert names(plain) == ["iteration", "learning_rate", "a_momentum", "b_momentum"]
