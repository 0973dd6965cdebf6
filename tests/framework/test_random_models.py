"""Random models: eager, compiled, saved, exported and trained they compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs.models import ROWS, RandomModel

import anabranch as ab

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
