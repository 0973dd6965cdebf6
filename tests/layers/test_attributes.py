"""Attributes that layers have as soon as they are made, as in Keras 3.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import constraints, initializers, layers, ops, regularizers

OPTIONS: dict[str, Any] = {
    "activation": "relu",
    "use_bias": True,
    "kernel_initializer": "ones",
    "recurrent_initializer": "zeros",
    "bias_initializer": "ones",
    "kernel_regularizer": "l1",
    "recurrent_regularizer": "l2",
    "bias_regularizer": "l1_l2",
    "kernel_constraint": "non_neg",
    "recurrent_constraint": "unit_norm",
    "bias_constraint": "max_norm",
    "dropout": 0.1,
    "recurrent_dropout": 0.2,
}
CLASSES: dict[str, type] = {
    "kernel_initializer": initializers.Ones,
    "recurrent_initializer": initializers.Zeros,
    "kernel_regularizer": regularizers.L1,
    "recurrent_regularizer": regularizers.L2,
    "bias_regularizer": regularizers.L1L2,
    "kernel_constraint": constraints.NonNeg,
    "recurrent_constraint": constraints.UnitNorm,
    "bias_constraint": constraints.MaxNorm,
}
GATES = {"recurrent_activation": "tanh"}
WINDOWS: dict[str, Any] = {"padding": "same", "dilation_rate": 2, "data_format": "channels_first"}
RECURRENT: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "SimpleRNN": (layers.SimpleRNN, {"units": 3}, {}),
    "LSTM": (layers.LSTM, {"units": 3}, {**GATES, "unit_forget_bias": False}),
    "GRU": (layers.GRU, {"units": 3}, {**GATES, "reset_after": False}),
    "ConvLSTM1D": (layers.ConvLSTM1D, {"filters": 3, "kernel_size": 2}, {**GATES, **WINDOWS}),
    "ConvLSTM2D": (layers.ConvLSTM2D, {"filters": 3, "kernel_size": 2}, {"unit_forget_bias": False}),
    "ConvLSTM3D": (layers.ConvLSTM3D, {"filters": 3, "kernel_size": 2, "strides": 1}, {**GATES, **WINDOWS}),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_have_the_attributes_of_their_cell(name: str) -> None:
    layer_class, sizes, more = RECURRENT[name]
    given = {**OPTIONS, **more, **sizes}
    layer = layer_class(**given)
    for key, value in given.items():
        attribute = getattr(layer, key)
        assert attribute is getattr(layer.cell, key)
        if key in CLASSES:
            assert type(attribute) is CLASSES[key]
        elif key.endswith("activation"):
            assert attribute.__name__ == value
        elif not key.endswith("initializer"):
            rank = layer.cell.rank if key in ("kernel_size", "strides", "dilation_rate") else None
            assert attribute == (value if rank is None else (value,) * rank)
    again = layer_class.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert type(again.recurrent_constraint) is constraints.UnitNorm
    with pytest.raises(AttributeError, match=rf"dropout of layer '{layer.name}' can't be set.*new {name}"):
        layer.dropout = 0.5
    assert layer.dropout == 0.1


def test_weights_of_batch_normalization_are_none_until_it_is_built() -> None:
    layer = layers.BatchNormalization(scale=False)
    assert [layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance] == [None] * 4
    assert layer.weights == []
    layer.build((None, 2))
    assert layer.gamma is None
    assert layer.beta is layer.weights[0]
    assert [layer.moving_mean, layer.moving_variance] == layer.weights[1:]


POOLING = [(layers.MaxPooling1D, "max"), (layers.MaxPooling2D, "max"), (layers.MaxPooling3D, "max")]
POOLING += [(layers.AveragePooling1D, "average"), (layers.AveragePooling3D, "average")]


@pytest.mark.parametrize(("layer_class", "mode"), POOLING)
def test_pooling_layers_say_how_they_pool(layer_class: Callable[..., Any], mode: str) -> None:
    assert layer_class(2).pool_mode == mode


@pytest.mark.parametrize("layer_class", [layers.Resizing, layers.RandomCrop, layers.CenterCrop])
def test_layers_of_images_have_the_axes_of_their_data_format(layer_class: Callable[..., Any]) -> None:
    last, first = (layer_class(2, 2, data_format=name) for name in ("channels_last", "channels_first"))
    assert (last.height_axis, last.width_axis, last.channel_axis) == (-3, -2, -1)
    assert (first.height_axis, first.width_axis, first.channel_axis) == (-2, -1, -3)


def test_ranges_of_random_translations_and_zooms() -> None:
    moves = layers.RandomTranslation(0.25, (-0.5, 0.75))
    assert (moves.height_lower, moves.height_upper) == (-0.25, 0.25)
    assert (moves.width_lower, moves.width_upper) == (-0.5, 0.75)
    zooms = layers.RandomZoom((0.2, 0.4))
    assert (zooms.height_lower, zooms.height_upper) == (0.2, 0.4)
    assert zooms.width_factor is None
    assert layers.RandomZoom(0.5, (-0.25, 0.5)).width_lower == -0.25


class Scaled(layers.Layer):
    """A layer with arguments of its own."""

    def call(self, inputs: ab.Tensor, factor: float = 2.0, *, training: bool = False) -> ab.Tensor:
        return inputs * factor


def test_the_arguments_of_call() -> None:
    assert Scaled().call_signature_parameters == ["inputs", "factor", "training"]
    assert layers.BatchNormalization().call_signature_parameters == ["inputs", "training", "mask"]


def test_code_may_ask_whether_a_layer_supports_jit() -> None:
    layer = Scaled()
    assert layer.supports_jit
    layer.supports_jit = False
    assert not layer.supports_jit
    assert Scaled().supports_jit
    np.testing.assert_array_equal(layer(ops.ones((2,))), [2.0, 2.0])
