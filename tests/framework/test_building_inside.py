"""Models that are made inside the call or build of a layer: their symbols have nothing to do with the call around."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.layers.core.layer import Layer

ROWS = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class Block(Layer):
    """Makes a model of one of three kinds in its build, and calls it."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def build(self, input_shape: Any) -> None:
        parts = [layers.Dense(3, name="dense"), layers.BatchNormalization(momentum=0.5), layers.Dropout(0.5)]
        if self.kind == "sequential":
            self.net = ab.Sequential([ab.Input(input_shape[1:]), *parts])
        elif self.kind == "built":
            self.net = ab.Sequential(parts)
            self.net.build(input_shape)
        else:
            x = y = ab.Input(input_shape[1:])
            for part in parts:
                y = part(y)
            self.net = ab.Model(x, y * 1.0)

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.net(inputs, training=training)


KINDS = ["sequential", "built", "functional"]


def check(block: Any) -> None:
    """The inner model is made of its layers, and by itself it is not in training."""
    names = [type(layer).__name__ for layer in block.net._layer_graph.layers]
    assert names == ["InputLayer", "Dense", "BatchNormalization", "Dropout"]
    assert len(block.weights) == 6
    assert np.array_equal(block.net.predict(ROWS, verbose=0), block.net.predict(ROWS, verbose=0))


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_training_call_on_arrays(kind: str) -> None:
    block = Block(kind)
    outputs = block(ROWS, training=True)
    assert outputs.shape == (16, 3)
    assert np.mean(outputs == 0) > 0.2  # dropout was at work
    kernel = np.asarray(block.net.get_layer("dense").get_weights()[0])
    mean = block.net.layers[-2 if kind != "functional" else 2].get_weights()[2]
    np.testing.assert_allclose(mean, 0.5 * (ROWS @ kernel).mean(0), rtol=1e-4, atol=1e-6)
    check(block)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_training_call_on_symbols(kind: str) -> None:
    block = Block(kind)
    x = ab.Input((4,))
    model = ab.Model(x, block(x, training=True))
    assert [type(layer).__name__ for layer in model.layers] == ["InputLayer", "Block"]
    check(block)
    assert not np.array_equal(model.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0))


@pytest.mark.parametrize("kind", KINDS)
def test_in_fit(kind: str) -> None:
    block = Block(kind)
    model = ab.Sequential([block, layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :1], batch_size=16, verbose=0)
    check(block)
    assert np.all(block.net.layers[-2].get_weights()[2] != 0)


def test_batch_normalization_in_time_distributed() -> None:
    normalization = layers.BatchNormalization(momentum=0.0)
    layer = layers.TimeDistributed(ab.Sequential([layers.Dense(3), normalization]))
    outputs = layer(ROWS.reshape(4, 4, 4), training=True)
    np.testing.assert_allclose(outputs.mean((0, 1)), 0, atol=1e-5)
    assert np.all(normalization.get_weights()[2] != 0)


def test_two_inputs_made_inside_go_together() -> None:
    class Two(Layer):
        def build(self, input_shape: Any) -> None:
            left, right = ab.Input((4,), name="left"), ab.Input((4,), name="right")
            self.net = ab.Model([left, right], layers.Dense(2)(left) + layers.Dense(2)(right))

        def call(self, inputs: Any) -> Any:
            return self.net([inputs, inputs])

    layer = Two()
    outputs = layer(ROWS)
    first, second = [weight for weight in layer.get_weights() if weight.ndim == 2]
    np.testing.assert_allclose(outputs, ROWS @ first + ROWS @ second, rtol=1e-4, atol=1e-5)


def test_paths_go_on_from_the_layer_around() -> None:
    block = Block("sequential", name="block")
    block(ROWS)
    assert any(weight.path.startswith("block/") and weight.path.endswith("dense/kernel") for weight in block.weights)


def test_losses_of_the_call_around_stay() -> None:
    class Penalised(Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(ab.ops.sum(inputs))
            x = ab.Input((4,))
            layers.Dense(1)(x)
            return inputs

    layer = Penalised()
    layer(np.ones((1, 4), "float32"))
    assert [float(loss) for loss in layer.losses] == [4.0]
