"""Quantised layers and rounded weights: what layers hold of them, and how files describe those inside of other layers.

Keras learns it from the dtype policy of the outer layer, a map from paths to policies, which it hands on. Here the
shapes for which the outer layer was built come with it, whoever makes the inner layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeGuard

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.graph import DType, Readable, Shape, Tensor, as_dtype, eagerly
from ...engine.objects import policies
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.neural.quantized import quantized_matmul
from .calling import autocast_dtype
from .weight import Weight

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from ..quantizers.base_config import QuantizationConfig
    from .layer_state import LayerState


class RoundedWeight(Readable):
    """A weight of int8, and the scales by which it was multiplied before it was rounded.

    Args:
        integers: int8.
        scale: one for each output, a vector, or a matrix of as many axes as there are in `kept`.
        kept: the axes of the weight along which the outputs are, negative; its other axes are summed over.
        rounds_rows: round the rows that it is multiplied by, each with a scale of its own; else they stay floats.
    """

    def __init__(self, integers: Weight, scale: Weight, kept: Sequence[int], rounds_rows: bool = True) -> None:
        self.integers, self.scale = integers, scale
        self.kept = tuple(kept)
        self.rounds_rows = rounds_rows
        self.name, self.path = integers.name, integers.path

    @property
    def shape(self) -> Shape:
        return self.integers.shape

    @property
    def dtype(self) -> DType:
        return as_dtype(autocast_dtype() or self.scale.spec.dtype)

    @property
    def value(self) -> Tensor:
        sizes = [size if axis - len(self.shape or ()) in self.kept else 1 for axis, size in enumerate(self.shape or ())]
        return ops.cast(self.integers, self.dtype) / ops.cast(ops.reshape(self.scale, sizes), self.dtype)

    def product_of(self, x: TensorLike, transposed: bool = False) -> Tensor | None:
        if not self.rounds_rows or self.ndim != 2 or self.kept != outputs_axis(transposed):
            return None
        rows = ops.convert_to_tensor(x)
        if not is_floating(rows.dtype) or not rows.ndim:
            return None
        matrix = ops.expand_dims(rows, 0) if rows.ndim == 1 else rows
        product = quantized_matmul(matrix, self.integers, self.scale, transpose=transposed)
        return ops.squeeze(product, 0) if rows.ndim == 1 else product

    def numpy(self) -> np.ndarray:
        with eagerly():
            return np.asarray(self.value)


def outputs_axis(transposed: bool) -> tuple[int, ...]:
    """Return the axis of a matrix along which the outputs of a product with it are."""
    return (-2,) if transposed else (-1,)


def hold_rounded(layer: LayerState, name: str, kept: Sequence[int], rounds_rows: bool) -> RoundedWeight:
    """Put a rounded weight of zeros into the place of the weight in an attribute of a layer."""
    weight = getattr(layer, name)
    with eagerly():
        integers = layer.add_weight(
            shape=weight.shape, initializer="zeros", dtype="int8", trainable=False, autocast=False, name=weight.name
        )
        scale = layer.add_weight(
            shape=[weight.shape[axis] for axis in kept],
            initializer="ones",
            dtype=weight.spec.dtype,
            trainable=False,
            autocast=False,
            name=f"{weight.name}_scale",
        )
    held = [one for one in layer._weights if one is not integers]
    layer._weights = [integers if one is weight else one for one in held]
    rounded = RoundedWeight(integers, scale, kept, rounds_rows)
    layer._rounded_weights = {**layer._rounded_weights, name: rounded}
    setattr(layer, name, rounded)
    return rounded


class QuantizedForm(Protocol):
    """The facts that files hold of a quantised layer, beside its weights; see `QuantizableLayer`."""

    name: str
    path: str
    quantization_config: QuantizationConfig | None
    inputs_quantizer: object
    inputs_scale: float | None
    _dtype_policy: policies.DTypePolicy

    @property
    def _own_policy(self) -> policies.DTypePolicy: ...

    @property
    def quantization_mode(self) -> str | None: ...

    def become(self, policy: policies.DTypePolicy, config: QuantizationConfig | None = None) -> None: ...


def has_quantized_form(layer: LayerState) -> TypeGuard[QuantizedForm]:
    """Test whether the class of a layer can be quantised, as those derived from `QuantizableLayer` can."""
    return bool(layer.quantization_modes)


def quantized_inside(layer: LayerState) -> list[QuantizedForm]:
    """Return the quantised layers inside of a layer."""
    inner = layer._flatten_layers(include_self=False)
    return [one for one in inner if has_quantized_form(one) and one.quantization_mode is not None]


def policy_map(layer: LayerState, own: policies.DTypePolicy) -> policies.DTypePolicy:
    """Return the dtype policy of a layer and of those inside of it: a map, if some of these are quantised."""
    found = quantized_inside(layer)
    if not found:
        return own
    return policies.DTypePolicyMap(own.name, {inner.path: inner._own_policy for inner in found})


def describe(layer: LayerState) -> dict[str, dict[str, object]] | None:
    """Return what `follow` needs, by the place of each quantised layer among those inside; None if there is none."""
    inner = layer._flatten_layers(include_self=False)
    return {
        str(place): {
            "name": one.name,
            "dtype_policy": serialize_keras_object(one._own_policy),
            "config": serialize_keras_object(one.quantization_config),
            "inputs_scale": one.inputs_scale,
        }
        for place, one in enumerate(inner)
        if has_quantized_form(one) and one.quantization_mode is not None
    } or None


def follow(layer: LayerState, described: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the layers inside of one that was just built the weights that a file has for them.

    Raises:
        ValueError: there is no such layer at a place.
    """
    inside = dict(enumerate(layer._flatten_layers(include_self=False)))
    for place, entry in described.items():
        inner = inside.get(int(place))
        if inner is None or not has_quantized_form(inner):
            raise ValueError(
                f"Layer {layer.name!r} has quantised weights of a layer {entry['name']!r} inside of it in its file, "
                f"where {'there is no layer' if inner is None else f'{type(inner).__name__} has no quantised form'}."
            )
        policy, config = policies.get(entry["dtype_policy"]), deserialize_keras_object(entry["config"])
        if inner.quantization_mode is None:
            inner.become(policy, config)
        else:  # built by the policy that the map of the layer around it has for its path; maps hold no configs
            inner.quantization_config, inner._dtype_policy = config, policy
            if config is not None:
                inner.inputs_quantizer = config.activation_quantizer
        inner.inputs_scale = entry.get("inputs_scale")


def describe_rounded(layer: LayerState) -> dict[str, dict[str, _Rounding]] | None:
    """Return what `hold_as_described` needs, by the place of each layer with rounded weights; None if there is none."""
    return {
        str(place): {
            name: {"kept": list(weight.kept), "rounds_rows": weight.rounds_rows}
            for name, weight in one._rounded_weights.items()
        }
        for place, one in enumerate(layer._flatten_layers())
        if one._rounded_weights
    } or None


def hold_as_described(layer: LayerState, described: Mapping[str, Mapping[str, _Rounding]]) -> None:
    """Put rounded weights in the place of those of a layer that was just built, and of layers inside of it.

    Raises:
        ValueError: there is no such layer or weight.
    """
    inside = dict(enumerate(layer._flatten_layers()))
    for place, weights in described.items():
        inner = inside.get(int(place))
        for name, entry in weights.items():
            if inner is not None and name in inner._rounded_weights:
                continue
            if inner is None or not isinstance(getattr(inner, name, None), Weight):
                raise ValueError(
                    f"Layer {layer.name!r} has a rounded weight {name!r} of layer number {place} inside of it in its "
                    f"file, where there is {'no layer' if inner is None else 'no such weight'}."
                )
            hold_rounded(inner, name, entry["kept"], entry["rounds_rows"])


class _Rounding(TypedDict):
    kept: Sequence[int]
    rounds_rows: bool
