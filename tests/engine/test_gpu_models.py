"""Models trained on a GPU that is there, beside the same on the CPU. Skipped without one; `make gpu` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.gpus import why_there_is_no_gpu

import anabranch as ab
from anabranch import layers

_ROWS = 64


pytestmark = pytest.mark.skipif(bool(why_there_is_no_gpu()), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    yield
    ab.config.set_devices()


class Iterated(layers.Layer):
    """Apply one layer until its result is small."""

    def build(self, input_shape: Any) -> None:
        self.dense = layers.Dense(8)
        self.dense.build(input_shape)

    def call(self, x: Any) -> Any:
        def test(i: Any, y: Any) -> Any:
            return ab.ops.logical_and(i < 10, ab.ops.max(ab.ops.abs(y)) > 0.01)

        return ab.while_loop(test, lambda i, y: (i + 1, ab.ops.tanh(self.dense(y)) * 0.5), (0, x))[1]


class Chosen(layers.Layer):
    """Apply one of two functions, by the sign of the sum."""

    def call(self, x: Any) -> Any:
        return ab.cond(ab.ops.sum(x) > 0, lambda: x * 2.0, lambda: ab.ops.sin(x))


def attention() -> Any:
    tokens = ab.Input((16,), dtype="int32")
    x = layers.Embedding(100, 32)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, "gelu")(x)))
    return ab.Model(tokens, layers.Dense(100)(x))


def stack(shape: tuple[int | None, ...], *parts: Any, dtype: str = "float32") -> Any:
    return ab.Sequential([ab.Input(shape, dtype=dtype), *parts])


MODELS: dict[
    str, tuple[Callable[[], Any], Any, Any, Any]
] = {  # what makes it, shapes of a row and of a target, the optimizer
    "dense": (lambda: stack((20,), layers.Dense(64, "relu"), layers.Dense(10)), (20,), 10, "adam"),
    "dropout": (
        lambda: stack((20,), layers.Dense(64, "gelu"), layers.Dropout(0.3), layers.Dense(10)),
        (20,),
        10,
        "adam",
    ),
    "normalised": (
        lambda: stack(
            (20,), layers.Dense(64), layers.BatchNormalization(), layers.LayerNormalization(), layers.Dense(1)
        ),
        (20,),
        (1,),
        "rmsprop",
    ),
    "regularised": (
        lambda: stack((20,), layers.Dense(64, "elu", kernel_regularizer="l2"), layers.PReLU(), layers.Dense(1)),
        (20,),
        (1,),
        "adamw",
    ),
    "bfloat16": (
        lambda: stack((20,), layers.Dense(64, "relu", dtype="mixed_bfloat16"), layers.Dense(1, dtype="float32")),
        (20,),
        (1,),
        "sgd",
    ),
    "float16": (
        lambda: stack((20,), layers.Dense(64, "relu", dtype="mixed_float16"), layers.Dense(1, dtype="float32")),
        (20,),
        (1,),
        "sgd",
    ),
    "convolutions": (
        lambda: stack(
            (16, 16, 3),
            layers.Conv2D(8, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(8, 3),
            layers.Conv2DTranspose(4, 3, strides=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ),
        (16, 16, 3),
        10,
        "adam",
    ),
    "sequences": (
        lambda: stack(
            (32, 4), layers.Conv1D(8, 5, activation="swish", dilation_rate=2), layers.LSTM(8), layers.Dense(1)
        ),
        (32, 4),
        (1,),
        "adam",
    ),
    "stacked cells": (
        lambda: stack((None, 8), layers.RNN([layers.LSTMCell(16), layers.GRUCell(8)]), layers.Dense(1)),
        (12, 8),
        (1,),
        "adam",
    ),
    "masks": (
        lambda: stack(
            (12,),
            layers.Embedding(50, 8, mask_zero=True),
            layers.Bidirectional(layers.GRU(8)),
            layers.Dense(1),
            dtype="int32",
        ),
        (12, 50),
        (1,),
        "adam",
    ),
    "attention": (attention, (16, 100), (16, 100), "adam"),
    "experts": (
        lambda: stack((20,), layers.MixtureOfExperts(4, lambda: layers.Dense(16)), layers.Dense(1)),
        (20,),
        (1,),
        "adam",
    ),
    "a loop": (lambda: stack((8,), Iterated(), layers.Dense(1)), (8,), (1,), "nadam"),
    "a branch": (lambda: stack((8,), layers.Dense(8), Chosen(), layers.Dense(1)), (8,), (1,), "sgd"),
}
_TOKENS = {"masks", "attention"}  # of which the last size says how many there are
_CLASSES = {"dense", "dropout", "convolutions", "attention"}


def data_of(name: str) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    _, shape, target, _ = MODELS[name]
    if name in _TOKENS:
        x: Any = draw.integers(0, shape[-1], (_ROWS, *shape[:-1])).astype("int32")
    else:
        x = draw.normal(size=(_ROWS, *shape)).astype("float32")
    if name in _CLASSES:
        *sizes, count = target if isinstance(target, tuple) else (target,)
        return x, draw.integers(0, count, (_ROWS, *sizes)).astype("int32")
    return x, draw.normal(size=(_ROWS, *target)).astype("float32")


def trained(name: str, device: str) -> tuple[list[float], Any]:
    """Return the losses of three epochs, and predictions."""
    ab.utils.set_random_seed(1)
    x, y = data_of(name)
    loss: Any = ab.losses.SparseCategoricalCrossentropy(from_logits=True) if name in _CLASSES else "mse"
    with ab.device(device):
        model = MODELS[name][0]()
        model.compile(MODELS[name][3], loss)
        losses = model.fit(x, y, epochs=3, batch_size=32, shuffle=False, verbose=0).history["loss"]
        return losses, model.predict(x, verbose=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_the_cpu(name: str) -> None:
    losses, outputs = trained(name, "cpu:0")
    ab.config.set_devices(cpu=1, gpu=1)
    found, given = trained(name, "gpu:0")
    np.testing.assert_allclose(found, losses, rtol=3e-3)
    np.testing.assert_allclose(given, outputs, atol=2e-2 * np.abs(outputs).max())
