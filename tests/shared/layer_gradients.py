"""Gradients of layers against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops

STEP = 1e-6


def check_layer_gradients(
    layer: Any,
    x: np.ndarray,
    run: Callable[[Any], Any] | None = None,
    *,
    rtol: float,
    atol: float = 0.0,
    known: tuple[int | None, ...] | None = None,
) -> list[np.ndarray]:
    """Check the gradients of a loss, the sum of squared outputs and of the layer's losses, by the input and weights.

    Each is compared with a central difference along a random direction.

    Args:
        layer: of float64, with the weights to look at.
        x: the input, float64.
        run: what makes the outputs of an input, tensor or array; by default the layer.
        rtol, atol: of the comparison.
        known: the shape that is known of the input; by default its last dimension.

    Returns:
        The gradients: by the input, then by each trainable weight.
    """
    outputs = layer if run is None else run

    def total(value: Any) -> float:
        return float((outputs(value) ** 2).sum() + sum(layer.losses))

    def total_at(weight: Any, change: np.ndarray) -> float:
        if weight is None:
            return total(x + change)
        value = weight.numpy()
        weight.assign(value + change)
        found = total(x)
        weight.assign(value)
        return found

    total(x)  # makes the weights
    with ab.Graph().as_default():
        symbol = ab.placeholder(known or (*[None] * (x.ndim - 1), x.shape[-1]), "float64")
        loss = ops.sum(ops.square(outputs(symbol))) + sum(layer.losses)
        symbolic = ab.gradients(loss, [symbol, *layer.trainable_weights])
        gradients = ab.Session().run([ab.convert_to_tensor(each) for each in symbolic], {symbol: x})
    for weight, gradient in zip([None, *layer.trainable_weights], gradients, strict=True):
        direction = np.random.default_rng(3).standard_normal(gradient.shape)
        numeric = (total_at(weight, STEP * direction) - total_at(weight, -STEP * direction)) / (2 * STEP)
        name = "the input" if weight is None else weight.path
        np.testing.assert_allclose(numeric, np.vdot(gradient, direction), rtol, atol, err_msg=name)
    return gradients
