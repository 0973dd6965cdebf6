"""Layers that add to the loss, trained and evaluated in groups of steps: the bits of single steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

ROWS, STEPS, FEATURES = 14, 5, 3  # 4 batches of 4 rows, the last of 2
_random = np.random.default_rng(0)
X = _random.normal(size=(ROWS, STEPS, FEATURES)).astype("float32")
Y = _random.normal(size=(ROWS, 1)).astype("float32")


class Sampling(layers.Layer):
    """The middle of a variational autoencoder: draws by mean and variance, and adds the divergence to the loss."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.means, self.logs = layers.Dense(units), layers.Dense(units)
        self.seed = ab.random.SeedGenerator(5)
        self.divergence = ab.metrics.Mean("divergence")

    def call(self, inputs: Any) -> Any:
        mean, log = self.means(inputs), self.logs(inputs)
        divergence = -0.5 * ops.mean(1 + log - ops.square(mean) - ops.exp(log))
        self.add_loss(divergence)
        self.divergence.update_state(divergence)
        return mean + ops.exp(0.5 * log) * ab.random.normal(ops.shape(mean), seed=self.seed)


def adaptive() -> Any:
    act = layers.AdaptiveComputationTime(layers.GRUCell(4), ponder_cost=0.1, max_steps=4)
    act.ponder_metric = ab.metrics.Mean("ponder_steps")
    return layers.RNN(act)


def mixture() -> Any:
    mixed = layers.MixtureOfExperts(3, lambda: layers.Dense(4, activity_regularizer="l2"), k=1, capacity_factor=1.0)
    mixed.dropped_metric = ab.metrics.Sum("dropped")
    return mixed


KINDS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "adaptive": (adaptive, "ponder_steps"),
    "mixture": (mixture, "dropped"),
    "activity": (lambda: layers.ActivityRegularization(l1=0.1, l2=0.2), None),
    "dense": (lambda: layers.Dense(4, activity_regularizer="l1", kernel_regularizer="l2"), None),
    "autoencoder": (lambda: Sampling(2), "divergence"),
    "cell": (lambda: layers.RNN(layers.GRUCell(3, activity_regularizer="l2")), None),
}


def made(kind: str, together: int) -> ab.Sequential:
    ab.utils.set_random_seed(11)
    model = ab.Sequential([ab.Input((STEPS, FEATURES)), KINDS[kind][0](), layers.Flatten(), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=together)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_groups_give_the_bits_of_single_steps(kind: str) -> None:
    models, histories = [], []
    for together in (3, 1):
        models.append(made(kind, together))
        options: dict[str, Any] = {"batch_size": 4, "epochs": 2, "validation_data": (X, Y), "verbose": 0}
        histories.append(models[-1].fit(X, Y, **options).history)
    many, one = models
    assert histories[0] == histories[1]
    for found, wanted in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    evaluated = [model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True) for model in (many, one)]
    assert evaluated[0] == evaluated[1]
    np.testing.assert_array_equal(many.predict(X, verbose=0), one.predict(X, verbose=0))
    metric = KINDS[kind][1]
    assert metric is None or {metric, f"val_{metric}"} <= histories[0].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_part_of_the_loss(kind: str) -> None:
    model = made(kind, 2)
    logs = model.evaluate(X[:8], Y[:8], batch_size=4, verbose=0, return_dict=True)
    if kind == "autoencoder":  # which draws again each time
        return
    added = []
    for begin in (0, 4):
        error = np.mean((model(X[begin : begin + 4]) - Y[begin : begin + 4]) ** 2)
        added.append(error + sum(float(loss) for loss in model.losses))
    assert logs["loss"] == pytest.approx(np.mean(added), rel=1e-5)


def test_small_models_in_a_loop_that_carries_their_variables() -> None:
    """Enough steps for a loop that is one native function; its sums may run in another order."""

    def fitted(together: int) -> Any:
        ab.utils.set_random_seed(2)
        hidden = layers.Dense(4, "tanh", activity_regularizer="l2")
        model = ab.Sequential([ab.Input((FEATURES,)), hidden, layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=together)
        x = np.tile(X[:, 0], (15, 1))
        return model.fit(x, x[:, :1], batch_size=2, verbose=0).history["loss"], model

    (found, grouped), (wanted, _) = fitted(105), fitted(1)
    ((_, program),) = grouped._steps["train"]._loops.values()
    assert ".assign" not in program.source
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


class Branching(ab.Model):
    """Thinks, or not, by a flag that comes with the data, in a loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.thinker, self.head = adaptive(), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        thought = ab.cond(
            ops.mean(inputs) > 0, lambda: self.thinker(inputs), lambda: ops.zeros((ops.shape(inputs)[0], 4))
        )
        return self.head(thought)


def test_losses_of_a_branch_are_trained_on() -> None:
    def fitted(together: int) -> Any:
        ab.utils.set_random_seed(4)
        model = Branching()
        model.compile("sgd", "mse", steps_per_execution=together)
        history = model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0).history
        return history, model

    (found, grouped), (wanted, single) = fitted(7), fitted(1)
    assert found == wanted
    for one, other in zip(grouped.get_weights(), single.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    taken = next(k for k in range(0, ROWS, 2) if X[k : k + 2].mean() > 0)
    left = next(k for k in range(0, ROWS, 2) if X[k : k + 2].mean() < 0)
    for begin, pays in ((taken, True), (left, False)):
        single(X[begin : begin + 2])
        assert (float(sum(single.losses)) > 0) == pays
