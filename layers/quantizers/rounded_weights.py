"""Weights of any layer as int8: those that are multiplied by rows, and kernels of convolutions.

A layer needs no code for it: its attribute holds a `RoundedWeight` in the place of a weight, which reads as floats, and
which `ops.matmul` multiplies as integers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.graph import DType, Readable, Shape, Tensor, as_dtype, eagerly
from ...engine.ops.neural.quantized import quantized_matmul
from ..core.calling import autocast_dtype
from ..core.input_spec import known_shape
from ..core.weight import Weight
from .rounding import Array, abs_max_arrays

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from ..core.layer import Layer
    from ..core.layer_state import LayerState

Kernels = dict[str, tuple[int, ...]]
"""The attributes of a layer whose weights are rounded, and for each the axes of its outputs."""


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
        if not self.rounds_rows or self.ndim != 2 or self.kept != _outputs_axis(transposed):
            return None
        rows = ops.convert_to_tensor(x)
        if not is_floating(rows.dtype) or not rows.ndim:
            return None
        matrix = ops.expand_dims(rows, 0) if rows.ndim == 1 else rows
        product = quantized_matmul(matrix, self.integers, self.scale, transpose=transposed)
        return ops.squeeze(product, 0) if rows.ndim == 1 else product

    def numpy(self) -> Array:
        with eagerly():
            return np.asarray(self.value)


class _Observed(Readable):
    """A weight as it is, which notes that it was multiplied by rows."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self.kept: tuple[int, ...] = ()  # the axes of its outputs, once it was multiplied

    @property
    def shape(self) -> Shape:
        return self._weight.shape

    @property
    def dtype(self) -> DType:
        return self._weight.dtype

    @property
    def value(self) -> Tensor:
        return self._weight.value

    def product_of(self, x: TensorLike, transposed: bool = False) -> Tensor | None:
        self.kept = self.kept or _outputs_axis(transposed)

    def numpy(self) -> Array:
        return self._weight.numpy()


def _outputs_axis(transposed: bool) -> tuple[int, ...]:
    """Return the axis of a matrix along which the outputs of a product with it are."""
    return (-2,) if transposed else (-1,)


@contextmanager
def _observed(layers: Sequence[Layer]) -> Generator[dict[int, dict[str, _Observed]]]:
    """Replace matrices, inside the block, by what notes how they are used; by the layer's id and the attribute."""
    found: dict[int, dict[str, _Observed]] = {}
    with ExitStack() as stack:
        for layer in layers:
            found[id(layer)] = {}
            for name, value in list(vars(layer).items()):
                if isinstance(value, Weight) and value.ndim == 2 and is_floating(value.spec.dtype):
                    found[id(layer)][name] = vars(layer)[name] = _Observed(value)
                    stack.callback(vars(layer).__setitem__, name, value)
        yield found


def roundable_weights(model: Layer, layers: Sequence[Layer]) -> dict[Layer, Kernels]:
    """Find the weights that can be rounded, of layers that have no quantised form of their own.

    Args:
        model: holds the layers, and is called on symbols of its inputs to find the weights that are multiplied by rows.
        layers: kernels of convolutions among them can be rounded, and matrices that are multiplied by rows.

    Returns:
        For each layer the attributes that hold such weights, and the axes of their outputs.

    Raises:
        ValueError: the model's input shapes are not known.
    """
    with _observed(layers) as seen:
        if any(seen.values()):
            model.trace_again()
    found: dict[Layer, Kernels] = {}
    for layer in layers:
        multiplied = {name: weight.kept for name, weight in seen[id(layer)].items() if weight.kept}
        named: Kernels = {**multiplied, **layer.rounded_kernels}
        found[layer] = {name: kept for name, kept in named.items() if _is_float_weight(getattr(layer, name))}
    return found


def _is_float_weight(value: object) -> bool:
    return isinstance(value, Weight) and is_floating(value.spec.dtype)


def round_weights(layer: Layer, kernels: Kernels, *, rounds_rows: bool) -> None:
    """Round weights of a layer.

    Args:
        layer: holds them.
        kernels: the attributes that hold the weights, as `roundable_weights` finds them.
        rounds_rows: round the rows that they are multiplied by, too.
    """
    for name, kept in kernels.items():
        weight = getattr(layer, name)
        rank = len(known_shape(weight.shape))
        summed = tuple(axis for axis in range(rank) if axis - rank not in kept)
        integers, scale = abs_max_arrays(weight.numpy(), summed)
        rounded = hold_rounded(layer, name, kept, rounds_rows)
        rounded.integers.assign(integers)
        rounded.scale.assign(scale.reshape(rounded.scale.shape))
    layer._weights_changed()


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
