"""Quantised models and those with adapters: real Keras opens the files, and predicts the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.real_keras import keras_python, results_in_keras

import anabranch as ab
from anabranch import layers

pytestmark = pytest.mark.slow


def dense() -> ab.Model:
    return ab.Sequential([ab.Input((9,)), layers.Dense(16, "relu"), layers.Dense(4, use_bias=False)])


def einsum() -> ab.Model:
    return ab.Sequential([ab.Input((5, 6)), layers.EinsumDense("abc,cde->abde", (None, 2, 8), bias_axes="de")])


def embedded() -> ab.Model:
    return ab.Sequential([ab.Input((7,), dtype="int32"), layers.Embedding(11, 6), layers.Dense(3)])


def attention() -> ab.Model:
    x = ab.Input((5, 8))
    return ab.Model(x, layers.MultiHeadAttention(2, 4)(x, x) + layers.Dense(8)(x))


def convolution() -> ab.Model:
    return ab.Sequential([ab.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(2)])


FAMILIES: tuple[Callable[[], ab.Model], ...] = (dense, einsum, embedded, attention)
QUANTIZERS = ab.quantizers
CONFIGS = {
    "weights_only": lambda: QUANTIZERS.Int8QuantizationConfig(activation_quantizer=None),
    "blocks": lambda: QUANTIZERS.Int4QuantizationConfig(block_size=4),
    "channels": lambda: QUANTIZERS.Int4QuantizationConfig(block_size=None),
}


def with_random_weights(model: ab.Model) -> ab.Model:
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=weight.shape).astype("float32") for weight in model.get_weights()])
    return model


def adapted(make: Callable[[], ab.Model], mode: str | None) -> ab.Model:
    """Return a model with adapters that are not zero."""
    model = with_random_weights(make())
    if mode is not None:
        model.quantize(mode)
    rng = np.random.default_rng(4)
    for layer in model.layers:
        if isinstance(layer, (layers.Dense, layers.EinsumDense, layers.Embedding, layers.Conv2D)):
            layer.enable_lora(2)
            for weight in layer.trainable_weights:
                if "lora" in weight.name:
                    weight.assign(rng.normal(size=weight.shape) * 0.1)
    return model


def models() -> dict[str, ab.Model]:
    found: dict[str, ab.Model] = {}
    for make in FAMILIES:
        for mode in ("int8", "int4"):
            found[f"{make.__name__}_{mode}"] = with_random_weights(make())
            found[f"{make.__name__}_{mode}"].quantize(mode)
    for name, config in CONFIGS.items():
        found[f"dense_{name}"] = with_random_weights(dense())
        found[f"dense_{name}"].quantize(config=config())
    for make in (dense, einsum, embedded, convolution):
        found[f"{make.__name__}_lora"] = adapted(make, None)
    for mode in ("int8", "int4"):
        found[f"dense_lora_{mode}"] = adapted(dense, mode)
    return found


def inputs_of(model: ab.Model) -> Any:
    rng, (given,) = np.random.default_rng(5), model.inputs
    shape = (6, *given.shape[1:])
    return rng.integers(0, 11, shape).astype("int32") if given.dtype == "int32" else rng.normal(size=shape).astype("f")


def test_keras_opens_quantised_models_and_adapters(tmp_path: Path) -> None:
    keras_python()
    expected: dict[str, Any] = {}
    for name, model in models().items():
        model.save(tmp_path / f"{name}.keras")
        x = inputs_of(model)
        np.savez(tmp_path / f"{name}.inputs.npz", x)
        expected[name] = ab.load_model(tmp_path / f"{name}.keras").predict(x, verbose=0)
    found = results_in_keras(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name][0], value, rtol=2e-4, atol=2e-5, err_msg=name)
