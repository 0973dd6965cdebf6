"""Random models: eager, compiled, saved, exported and trained in every way they compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs.models import ROWS, RandomModel

import anabranch as ab
from anabranch.engine.passes.framework.limits import at_most

QUICK = 4  # in `make test`
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(300)]
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* was given an input with a mask:UserWarning")


def listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def assert_close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    pairs = zip(listed(found), listed(wanted), strict=True)
    for one, other in ((np.asarray(one), np.asarray(other)) for one, other in pairs):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(other).max(initial=0)))


def trained_by_hand(drawn: RandomModel, steps: int, rate: float) -> tuple[list[float], list[Any]]:
    """The losses and trainable weights of gradient descent on values; the model's weights are put back."""
    model, losses = drawn.model, []
    before = model.get_weights()
    optimizer = ab.optim.SGD(rate)
    for _ in range(steps):
        with ab.GradientTape() as tape:
            outputs = model(drawn.inputs, training=True)
            loss = model.compute_loss(x=drawn.inputs, y=drawn.targets, y_pred=outputs)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        losses.append(float(loss))
    weights = model.get_weights()
    model.set_weights(before)
    return losses, weights


def some(rows: slice, arrays: Sequence[Any]) -> Any:
    parts = [array[rows] for array in arrays]
    return parts if len(parts) > 1 else parts[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models(seed: int, tmp_path: Path):
    drawn = RandomModel(seed)
    model, inputs = drawn.model, drawn.inputs
    predicted = model.predict(inputs, verbose=0)
    assert_close(model(inputs, training=False), predicted)
    assert_close(model.predict(some(slice(2), drawn.arrays), verbose=0), [each[:2] for each in listed(predicted)])

    copy = ab.Model.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    assert_close(copy.predict(inputs, verbose=0), predicted)
    model.save(tmp_path / "model.keras")
    assert_close(ab.load_model(tmp_path / "model.keras").predict(inputs, verbose=0), predicted)
    model.export(tmp_path / "servable", verbose=False)
    served = ab.serving.load(tmp_path / "servable")({f"input_{n}": x for n, x in enumerate(drawn.arrays)})
    assert_close(list(served.values()) if isinstance(served, dict) else served, predicted)

    model.compile(ab.optim.SGD(0.01), "mse")
    losses, weights = trained_by_hand(drawn, 2, 0.01)
    found = [float(listed(model.train_on_batch(inputs, drawn.targets))[0]) for _ in losses]
    np.testing.assert_allclose(found, losses, rtol=1e-4, atol=1e-4)
    assert_close(model.get_weights(), weights, 1e-3)
    assert model.fit(inputs, drawn.targets, batch_size=2, verbose=0).params["steps"] == -(-ROWS // 2)
    model.evaluate(inputs, drawn.targets, batch_size=2, verbose=0)


# --- training -------------------------------------------------------------------------------------------------------

STEPS = 4
_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"epsilon": 0.01, "centered": True}),
    ("Adam", {"epsilon": 0.01, "amsgrad": True}),
    ("AdamW", {"epsilon": 0.01}),
    ("Adagrad", {"epsilon": 0.01}),
    ("Adamax", {"epsilon": 0.01}),
    ("Ftrl", {"l1_regularization_strength": 0.01}),
]
_CLIPPINGS: list[dict[str, Any]] = [{}, {"clipnorm": 0.3}, {"clipvalue": 0.05}, {"global_clipnorm": 0.5}]
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.02},
    {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    {"gradient_accumulation_steps": 2},
    {"loss_scale_factor": 8.0},
]


class Training:
    """The training of a model that a seed draws: optimizer, losses, weights of rows."""

    def __init__(self, seed: int, drawn: RandomModel) -> None:
        rng = np.random.default_rng(seed + 10_000)
        self.drawn = drawn
        self._optimizer, self._options = _OPTIMIZERS[rng.integers(len(_OPTIMIZERS))]
        for choices in (_CLIPPINGS, _OPTIONS):
            self._options = {**self._options, **choices[rng.integers(len(choices))]}
        targets = listed(drawn.targets)
        self._losses = [str(rng.choice(["mse", "huber", "log_cosh"])) for _ in targets]
        self._loss_weights = [float(rng.uniform(0.5, 1.5)) for _ in targets] if len(targets) > 1 else None
        self.weights = [rng.random(ROWS).astype("float32") for _ in targets] if rng.random() < 0.5 else None

    def compile(self, model: ab.Model, **options: Any) -> ab.Model:
        optimizer = getattr(ab.optimizers, self._optimizer)(0.02, **self._options)
        model.compile(optimizer, self._losses, loss_weights=self._loss_weights, **options)
        return model

    def steps(self, model: ab.Model, count: int = STEPS) -> list[Any]:
        """The model's weights after some steps on all rows."""
        for _ in range(count):
            model.train_on_batch(self.drawn.inputs, self.drawn.targets, sample_weight=self.weights)
        return model.get_weights()

    def by_hand(self, model: ab.Model) -> list[Any]:
        optimizer: Any = model.optimizer
        for _ in range(STEPS):
            with ab.GradientTape() as tape:
                outputs = model(self.drawn.inputs, training=True)
                loss = model.compute_loss(self.drawn.inputs, self.drawn.targets, outputs, self.weights)
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return model.get_weights()

    def fitted(self, model: ab.Model) -> list[Any]:
        """The weights after an epoch that has all rows again and again."""
        x, y, weights = (
            [np.concatenate([array] * STEPS) for array in listed(arrays)]
            for arrays in (self.drawn.arrays, self.drawn.targets, self.weights or [])
        )
        model.fit(x, y, batch_size=ROWS, shuffle=False, sample_weight=weights or None, verbose=0)
        return model.get_weights()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models_learn_the_same_in_every_way(seed: int, tmp_path: Path):
    drawn = RandomModel(seed)
    training, model = Training(seed, drawn), drawn.model
    first = model.get_weights()
    found = training.steps(training.compile(model))

    def anew(**options: Any) -> ab.Model:
        model.set_weights(first)
        return training.compile(model, **options)

    with at_most(0):  # no pass has a part in this: all other ways have the same kernels
        assert_close(training.steps(anew()), found, 2e-3)
    assert_close(training.by_hand(anew()), found, 2e-3)
    assert_close(training.steps(anew(run_eagerly=True)), found, 2e-3)
    copy = ab.models.clone_model(anew())
    copy.set_weights(first)
    assert_close(training.steps(training.compile(copy)), found, 2e-3)

    training.steps(anew(), STEPS // 2)
    model.save(tmp_path / "model.keras")
    assert_close(training.steps(ab.load_model(tmp_path / "model.keras"), STEPS // 2), found, 2e-3)

    anew()
    optimizer: Any = model.optimizer
    training.steps(model)
    optimizer.finalize_variable_values(model.trainable_variables)  # as `fit` does at its end
    averaged = model.get_weights()
    assert_close(training.fitted(anew()), averaged, 2e-3)
    assert_close(training.fitted(anew(steps_per_execution=3)), averaged, 2e-3)
