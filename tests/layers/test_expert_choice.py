"""`MixtureOfExperts(routing="expert_choice")` against loops over experts in NumPy, and its gradients."""

import math
from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers

EXPERTS, FEATURES, UNITS = 5, 4, 3


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def mixture(**kwargs: Any) -> Any:
    def dense() -> Any:
        return layers.Dense(UNITS, activation="tanh", dtype="float64")

    layer = layers.MixtureOfExperts(EXPERTS, dense, routing="expert_choice", dtype="float64", **kwargs)
    layer.build((None, FEATURES))
    layer.set_weights([data(*weight.shape, seed=10 + i) for i, weight in enumerate(layer.weights)])
    return layer


def check(layer: Any, x: Any, mask: Any = None) -> Any:
    """Outputs and counts; returns how many experts took each token."""
    gate, *rest = layer.get_weights()
    tokens = x.reshape(-1, FEATURES)
    live = np.ones(len(tokens), bool) if mask is None else mask.reshape(-1)
    powers = np.exp(tokens @ gate)
    scores = powers / powers.sum(1, keepdims=True)
    average = layer.k if layer.capacity_factor is None else layer.capacity_factor
    capacity = min(math.ceil(live.sum() * average / EXPERTS), live.sum())
    expected, times = np.zeros((len(tokens), UNITS)), np.zeros(len(tokens), int)
    for expert in range(EXPERTS):
        kernel, bias = rest[2 * expert : 2 * expert + 2]
        best = sorted(np.flatnonzero(live), key=lambda token, own=expert: -scores[token, own])[:capacity]
        for token in best:
            expected[token] += scores[token, expert] * np.tanh(tokens[token] @ kernel + bias)
            times[token] += 1
    found = layer(x) if mask is None else layer(x, mask=mask)
    np.testing.assert_allclose(found, expected.reshape(*x.shape[:-1], UNITS), rtol=1e-9, atol=1e-12)
    assert layer.losses == []
    assert layer.dropped_tokens.numpy() == (times[live] == 0).sum()
    np.testing.assert_array_equal(layer.expert_tokens.numpy(), [capacity] * EXPERTS)
    return times


@pytest.mark.parametrize("capacity_factor", [None, 0.5, 1.3, 7.0])
@pytest.mark.parametrize("shape", [(6,), (3, 7), (2, 2, 5)])
def test_each_expert_takes_its_best_tokens(shape: Any, capacity_factor: Any) -> None:
    times = check(mixture(capacity_factor=capacity_factor), data(*shape, FEATURES))
    if capacity_factor == 7.0:  # more than there are experts: each takes all
        assert (times == EXPERTS).all()
    else:
        assert times.max() > times.min()


def test_k_is_how_many_experts_a_token_gets_on_average() -> None:
    assert check(mixture(k=3), data(20, FEATURES)).mean() == 3


@pytest.mark.parametrize("capacity_factor", [None, 0.5, 7.0])
def test_masked_tokens_are_never_taken(capacity_factor: Any) -> None:
    """Even where a masked token is the best for an expert, or an expert would take more than there are."""
    x, live = data(3, 7, FEATURES), np.random.default_rng(0).random((3, 7)) < 0.6
    x[~live] *= 10
    times = check(mixture(capacity_factor=capacity_factor), x, live)
    assert not times[~live.reshape(-1)].any()


@pytest.mark.parametrize("live", [None, np.zeros(4, bool)])
def test_no_tokens(live: Any) -> None:
    check(mixture(), data(0 if live is None else 4, FEATURES), live)


def test_the_first_of_equal_tokens_are_taken() -> None:
    times = check(mixture(capacity_factor=1.0), np.ones((10, FEATURES)))
    np.testing.assert_array_equal(times, [EXPERTS] * 2 + [0] * 8)


@pytest.mark.parametrize("capacity_factor", [None, 0.75])
def test_gradients_against_finite_differences(capacity_factor: Any) -> None:
    """By the input and by each weight, and of masked tokens."""
    layer, x = mixture(capacity_factor=capacity_factor), data(8, FEATURES)
    found = check_layer_gradients(layer, x, rtol=1e-5, atol=1e-8)
    assert all(np.abs(gradient).max() > 0 for gradient in found)
    live = np.arange(8) % 3 > 0
    found = check_layer_gradients(layer, x, lambda value: layer(value, mask=live), rtol=1e-5, atol=1e-8)
    assert not found[0][~live].any()


def test_outputs_with_more_axes_and_half_precision() -> None:
    def expert() -> Any:
        parts = [layers.Dense(8, dtype="mixed_float16"), layers.Reshape((2, 4), dtype="mixed_float16")]
        return ab.Sequential(parts)

    layer = layers.MixtureOfExperts(3, expert, routing="expert_choice", dtype="mixed_float16")
    outputs = layer(data(2, 6, FEATURES, dtype="float32"), training=True)
    assert outputs.shape == (2, 6, 2, 4)
    assert outputs.dtype == "float16"
    assert np.isfinite(outputs).all()


def test_it_trains_counts_and_comes_back_from_a_file(tmp_path: Any) -> None:
    """No noise is learnt, no loss is added; each sign of a feature asks for another map."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype("float32")
    y = np.where(x[:, :1] > 0, x, -x)[:, 1:2]
    ab.utils.set_random_seed(0)
    mixed = layers.MixtureOfExperts(2, lambda: layers.Dense(1), capacity_factor=0.9, routing="expert_choice")
    mixed.dropped_metric = ab.metrics.Sum("dropped")
    model = ab.Sequential([ab.Input((4,)), mixed])
    model.compile(ab.optim.Adam(0.05), "mse")
    history = model.fit(x, y, epochs=25, batch_size=64, verbose=0).history
    assert len(mixed.weights) == 5
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert 0 < history["dropped"][-1] < 128
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].routing == "expert_choice"
    assert loaded.layers[-1].get_config() == mixed.get_config()
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
