"""Activation functions by name: those of ``keras.activations``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .. import ops
from ..graph.provenance import layer_being_called
from ..graph.spec import shape_text
from ..graph.tensor import Tensor
from ..ops.base import unchanged
from .identifiers import ActivationLike
from .registry import (
    deserialize_keras_object,
    get_instance,
    register_builtins,
    serialize_keras_object,
)


def linear(x: Any) -> Tensor:
    """Return `x` itself."""
    return unchanged(ops.convert_to_tensor(x))


def relu(x: Any, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Tensor:
    """Compute ``max(x, 0)``, or more generally a line through `threshold`.

    Args:
        x: a tensor.
        negative_slope: the slope below `threshold`.
        max_value: values above are cut off.
        threshold: where the slope changes.
    """
    if negative_slope == 0.0 and max_value is None and threshold == 0.0:
        return ops.relu(x)
    x = ops.convert_to_tensor(x)
    positive = ops.where(x > threshold, x, 0.0) if threshold else ops.relu(x)
    if max_value is not None:
        positive = ops.minimum(positive, max_value)
    if negative_slope == 0.0:
        return positive
    return positive - negative_slope * ops.relu(threshold - x)


def exponential(x: Any) -> Tensor:
    """Compute ``exp(x)``."""
    return ops.exp(x)


def mish(x: Any) -> Tensor:
    """Compute ``x * tanh(softplus(x))`` (Misra, 2019)."""
    return x * ops.tanh(ops.softplus(x))


def sigmoid(x: Any) -> Tensor:
    """Compute ``1 / (1 + exp(-x))``."""
    return ops.sigmoid(x)


def softmax(x: Any, axis: Any = -1) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` over `axis`; warns if that has one element: the result is always 1 then."""
    tensor = ops.convert_to_tensor(x)
    shape = tensor.shape
    if shape and isinstance(axis, int) and -len(shape) <= axis < len(shape) and shape[axis] == 1:
        path = layer_being_called()
        place = f"Layer {path!r}: softmax" if path else "softmax"
        warnings.warn(
            f"{place} over axis {axis} of shape {shape_text(shape)}, of size 1, gives 1 whatever the input. "
            "Use activation='sigmoid' for two classes in one unit, or one unit for each class.",
            stacklevel=2,
        )
    return ops.softmax(tensor, axis=axis)


def gelu(x: Any, approximate: bool = False) -> Tensor:
    """Compute ``x`` times the normal distribution function of x (Hendrycks and Gimpel, 2016); exact by default."""
    return ops.gelu(x, approximate=approximate)


log_softmax = ops.log_softmax
tanh = ops.tanh
softplus = ops.softplus
softsign = ops.softsign
elu = ops.elu
selu = ops.selu
celu = ops.celu
silu = ops.silu
relu6 = ops.relu6
leaky_relu = ops.leaky_relu
hard_sigmoid = ops.hard_sigmoid
hard_silu = ops.hard_silu
hard_tanh = ops.hard_tanh
hard_shrink = ops.hard_shrink
soft_shrink = ops.soft_shrink
tanh_shrink = ops.tanh_shrink
threshold = ops.threshold
squareplus = ops.squareplus
log_sigmoid = ops.log_sigmoid
glu = ops.glu
sparsemax = ops.sparsemax

sparse_plus = ops.sparse_plus
sparse_sigmoid = ops.sparse_sigmoid
swish = silu
hard_swish = hard_silu

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "celu": celu,
    "elu": elu,
    "exponential": exponential,
    "gelu": gelu,
    "glu": glu,
    "hard_shrink": hard_shrink,
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": hard_silu,
    "hard_tanh": hard_tanh,
    "leaky_relu": leaky_relu,
    "linear": linear,
    "log_sigmoid": log_sigmoid,
    "log_softmax": log_softmax,
    "mish": mish,
    "relu": relu,
    "relu6": relu6,
    "selu": selu,
    "sigmoid": sigmoid,
    "silu": silu,
    "soft_shrink": soft_shrink,
    "softmax": softmax,
    "softplus": softplus,
    "softsign": softsign,
    "sparse_plus": sparse_plus,
    "sparse_sigmoid": sparse_sigmoid,
    "sparsemax": sparsemax,
    "squareplus": squareplus,
    "tanh": tanh,
    "tanh_shrink": tanh_shrink,
    "threshold": threshold,
}
_ALIASES = {"swish": silu, "hard_swish": hard_silu}
_NAMES_OF = {function: name for name, function in _FUNCTIONS.items()}
register_builtins("keras.activations", {**_FUNCTIONS, **_ALIASES})


def get(identifier: ActivationLike, argument: str = "activation") -> Callable[..., Any]:
    """Return the activation that a name, a config or a callable stands for; None is `linear`.

    Raises:
        ValueError: it stands for no activation.

    >>> get("relu").__name__, get(None).__name__
    ('relu', 'linear')
    """
    if identifier is None:
        return linear
    return get_instance(argument, identifier, {**_FUNCTIONS, **_ALIASES})


def serialize(activation: Any) -> Any:
    """Return the name of a built-in activation; the config of any other; None for None, which is `linear`."""
    if activation is None:
        return None
    name = _NAMES_OF.get(activation)
    return serialize_keras_object(activation) if name is None else name


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the activation that a name or a config stands for."""
    return get(config) if isinstance(config, str) else deserialize_keras_object(config, custom_objects)


__all__ = [
    "celu",
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "serialize",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
    "threshold",
]
