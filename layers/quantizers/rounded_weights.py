"""Weights of any layer as int8: those that are multiplied by rows, and kernels of convolutions.

A layer needs no code for it: its attribute holds a `RoundedWeight` in the place of a weight.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ...engine.common.dtypes import is_floating
from ...engine.graph import DType, Readable, Shape, Tensor
from ..core.input_spec import known_shape
from ..core.quantized_form import hold_rounded, outputs_axis
from ..core.weight import Weight
from .rounding import Array, abs_max_arrays

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from ..core.layer import Layer

Kernels = dict[str, tuple[int, ...]]
"""The attributes of a layer whose weights are rounded, and for each the axes of its outputs."""


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
        self.kept = self.kept or outputs_axis(transposed)

    def numpy(self) -> Array:
        return self._weight.numpy()


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
