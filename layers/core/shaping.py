"""Layers that only rearrange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import listed
from ...engine.ops.data_format import check_data_format
from .dense import positive_int
from .input_spec import InputSpec, known_shape
from .layer import Layer
from .layer_config import config_from_signature

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from .options import LayerOptions


def _product(sizes: Sequence[DimLike]) -> DimLike:
    """Return the product of sizes: an int where all are known, otherwise an int32 tensor."""
    result = 1
    for size in sizes:
        result = result * size
    return result


@config_from_signature()
class Flatten(Layer):
    """All axes but the first made one: ``(batch, ...)`` to ``(batch, features)``.

    Args:
        data_format: ``"channels_last"``, or ``"channels_first"``, whose channels are moved last first; by default
            `config.image_data_format()`.
    """

    def __init__(self, data_format: str | None = None, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format("Flatten", data_format)
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: Tensor) -> Tensor:
        rank = len(known_shape(inputs.shape))
        if self.data_format == "channels_first" and rank > 2:
            inputs = ops.transpose(inputs, [0, *range(2, rank), 1])
        sizes = ops.shape(inputs)
        return ops.reshape(inputs, (sizes[0], _product(sizes[1:])))


@config_from_signature()
class Reshape(Layer):
    """The features in another shape.

    Args:
        target_shape: the new shape without the batch; one size may be -1, which is then found.

    Raises:
        ValueError: at the call, the shape holds another number of elements.
    """

    def __init__(self, target_shape: Sequence[int], **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        self.target_shape = tuple(listed("Reshape", "target_shape", target_shape, "a tuple of sizes"))
        if not all(isinstance(size, (int, np.integer)) and size >= -1 for size in self.target_shape):
            raise ValueError(f"Reshape: sizes must be integers from 0 up, or -1, got target_shape={self.target_shape}.")
        if self.target_shape.count(-1) > 1:
            raise ValueError(f"Reshape: only one size may be -1, got target_shape={self.target_shape}.")

    def call(self, inputs: Tensor) -> Tensor:
        sizes = ops.shape(inputs)
        given = [size for size in self.target_shape if size != -1]
        features = _product(sizes[1:])
        if isinstance(features, int):
            known = math.prod(given)
            fits = known and features % known == 0 if -1 in self.target_shape else features == known
            if not fits:
                raise ValueError(
                    f"Layer {self.name!r} can't reshape {features} elements a sample (input shape {inputs.shape}) to "
                    f"target_shape={self.target_shape}."
                )
            target = [features // known if size == -1 else size for size in self.target_shape]
            return ops.reshape(inputs, (sizes[0], *target))
        target = [features // math.prod(given) if size == -1 else size for size in self.target_shape]
        return ops.reshape(inputs, (sizes[0], *target))


@config_from_signature()
class Permute(Layer):
    """The axes in another order.

    Args:
        dims: the order of the axes behind the batch, counted from 1: ``(2, 1)`` exchanges the first two.
    """

    def __init__(self, dims: Sequence[int], **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.dims = tuple(listed("Permute", "dims", dims, "a tuple of axes"))
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(
                f"Permute: dims must hold each of 1 to {len(self.dims)} once, got dims={self.dims}. The batch, axis 0, "
                "stays where it is and is left out."
            )
        self.input_spec = InputSpec(ndim=len(self.dims) + 1)

    def call(self, inputs: Tensor) -> Tensor:
        return ops.transpose(inputs, (0, *self.dims))


@config_from_signature()
class RepeatVector(Layer):
    """``(batch, features)`` repeated to ``(batch, n, features)``."""

    def __init__(self, n: int, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.n = positive_int("RepeatVector", "n", n)
        self.input_spec = InputSpec(ndim=2)

    def call(self, inputs: Tensor) -> Tensor:
        batch, features = ops.shape(inputs)
        return ops.broadcast_to(ops.expand_dims(inputs, 1), (batch, self.n, features))
