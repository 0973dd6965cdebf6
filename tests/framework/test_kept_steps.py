"""Steps that a model keeps for its next call of `fit` on a cluster: how many, and when they are given up."""

from __future__ import annotations

import numpy as np

import anabranch as ab
from anabranch.framework.data.adapters import Batch, layout_of
from anabranch.framework.training.kept_steps import KeptSteps, key_of


class Steps:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_steps_are_kept_for_three_kinds_of_batches():
    kept, made = KeptSteps(), [Steps() for _ in range(4)]
    for number, steps in enumerate(made):
        found, version = kept.take(Steps, number)
        assert found is None
        kept.give_back(number, steps, version)
    assert [steps.is_closed for steps in made] == [True, False, False, False]
    assert kept.take(Steps, 0)[0] is None
    assert kept.take(Steps, 3)[0] is made[3]
    assert len(kept) == 2, "what a call uses is not kept at the same time"


def test_steps_that_are_out_of_date_are_closed():
    kept, held, out = KeptSteps(), Steps(), Steps()
    kept.give_back("held", held, kept.take(Steps, "held")[1])
    _, version = kept.take(Steps, "out")
    kept.clear()
    kept.give_back("out", out, version)
    assert held.is_closed
    assert out.is_closed
    assert len(kept) == 0


def test_steps_depend_on_the_batch_the_variables_and_what_is_around():
    x = np.ones((4, 3), "float32")
    model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2), ab.layers.Dense(1)])
    model.compile("sgd", "mse")
    strategy = object()

    def key(rows: int = 4, more: object = None) -> object:
        return key_of(model, strategy, Batch(layout_of(x, x), [x[:rows], x[:rows]], rows), more)

    known = key()
    assert key() == known
    assert key(3) != known
    assert key(more=1) != known
    assert key_of(model, object(), Batch(layout_of(x, x), [x, x], 4), None) != known
    assert key_of(model, strategy, Batch(layout_of(x), [x], 4), None) != known
    model.optimizer.learning_rate = ab.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert key() != known
    known = key()
    model.layers[0].enable_lora(1)
    assert key() != known
