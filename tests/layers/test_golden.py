"""Layers give Keras's numbers, from the same weights: outputs, masks, gradients, weights that a call changes."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import flatten
from anabranch.engine.graph.graph import get_default_graph
from golden.loader import LayerCase, load_cases

CASES = [*load_cases("layers"), *load_cases("attention_layers"), *load_cases("convolution_layers")]


def rounding(case: LayerCase) -> float:
    """Return the absolute error beside the relative one: decibels near 0 are logarithms of rounded numbers."""
    return 5e-5 if case.target == "MelSpectrogram" else 2e-6


def built(case: LayerCase) -> Any:
    layer = case.build(ab.layers)
    args, kwargs = case.arguments()
    layer(*args, **kwargs)
    return layer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_are_those_of_keras(case: LayerCase) -> None:
    layer = built(case)
    assert [tuple(weight.shape) for weight in layer.weights] == [weight.shape for weight in case.weights]
    assert [weight.name for weight in layer.weights] == [name.rpartition("/")[2] for name in case.weight_names]
    for position, value in case.initial_weights.items():
        np.testing.assert_allclose(layer.weights[position].numpy(), value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_those_of_keras(case: LayerCase) -> None:
    layer = built(case)
    layer.set_weights(case.weights)
    args, kwargs = case.arguments()
    outputs = flatten(layer(*args, **kwargs))
    assert len(outputs) == len(case.outputs)
    for output, expected in zip(outputs, case.outputs, strict=True):
        assert output.dtype == expected.dtype
        np.testing.assert_allclose(output, expected, rtol=2e-5, atol=rounding(case))
    for weight, expected in zip(layer.weights, case.weights_after or case.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unknown_batch_and_steps(case: LayerCase) -> None:
    """The same, with no size known but that of the last axis."""
    layer = built(case)
    layer.set_weights(case.weights)
    with ab.Graph().as_default():
        feeds = {}

        def symbol(name: str, array: Any) -> Any:
            shape = (None,) * (array.ndim - 1) + array.shape[-1:] if array.ndim > 1 else array.shape
            tensor = ab.placeholder(shape, array.dtype, name)
            feeds[tensor] = array
            return tensor

        args, kwargs = case.arguments(symbol)
        outputs = flatten(layer(*args, **kwargs))
        values = ab.Session(get_default_graph()).run(outputs, feeds)
    for value, expected in zip(values, case.outputs, strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=rounding(case))


@pytest.mark.parametrize("case", [case for case in CASES if case.cotangents], ids=str)
def test_gradients_are_those_of_keras(case: LayerCase) -> None:
    layer = built(case)
    layer.set_weights(case.weights)
    with ab.Graph().as_default():
        symbols = {}

        def symbol(name: str, array: Any) -> Any:
            symbols[name] = ab.placeholder(array.shape, array.dtype, name)
            return symbols[name]

        args, kwargs = case.arguments(symbol)
        outputs = flatten(layer(*args, **kwargs))
        total = sum(ab.ops.sum(out * seed) for out, seed in zip(outputs, case.cotangents, strict=True))
        targets = [symbols[name] for name in case.gradients]
        found = ab.gradients(total, [*targets, *layer.trainable_weights], unconnected_gradients="zero")
        feeds = {tensor: case.inputs[name] for name, tensor in symbols.items()}
        values = ab.Session(get_default_graph()).run(found, feeds)
    expected = [*case.gradients.values(), *case.weight_gradients]
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.output_mask is not None], ids=str)
def test_output_masks_are_those_of_keras(case: LayerCase) -> None:
    layer = built(case)
    args, kwargs = case.arguments(lambda name, array: ab.constant(array))
    mask = layer(*args, **kwargs).annotations["mask"]
    np.testing.assert_array_equal(ab.Session().run(mask), case.output_mask)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_config_round_trip(case: LayerCase) -> None:
    layer = built(case)
    layer.set_weights(case.weights)
    config = ab.layers.serialize(layer)
    assert config["module"] == "keras.layers"
    again = ab.layers.deserialize(config)
    assert type(again) is type(layer)
    assert again.built
    assert again.get_config() == layer.get_config()
    again.set_weights(case.weights)
    args, kwargs = case.arguments()
    for output, expected in zip(flatten(again(*args, **kwargs)), case.outputs, strict=True):
        np.testing.assert_allclose(output, expected, rtol=2e-5, atol=rounding(case))
