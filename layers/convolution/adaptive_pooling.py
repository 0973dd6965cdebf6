"""Adaptive pooling: windows as equal as may be, so that the result has a given size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .spatial import axis_sizes

if TYPE_CHECKING:
    from ..core.options import LayerOptions


@config_from_signature()
class _AdaptivePooling(Layer):
    """The base of the adaptive pooling layers; see `AdaptiveAveragePooling2D`."""

    rank: ClassVar[int]

    def __init__(
        self, output_size: int | tuple[int, ...], data_format: str | None = None, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.output_size = axis_sizes(type(self).__name__, "output_size", output_size, self.rank)
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)


class _AdaptiveAveragePooling(_AdaptivePooling):
    """The base of the layers that take the mean of each window."""

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.adaptive_average_pool(inputs, self.output_size, self.data_format)


class _AdaptiveMaxPooling(_AdaptivePooling):
    """The base of the layers that take the largest value of each window."""

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.adaptive_max_pool(inputs, self.output_size, self.data_format)


class AdaptiveAveragePooling1D(_AdaptiveAveragePooling):
    """The mean of each feature in each of `output_size` windows.

    Args:
        output_size: the number of windows.
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        **kwargs: see `Layer`.

    Shapes: ``(batch, steps, features)`` to ``(batch, output_size, features)``.

    Raises:
        ValueError: an argument is not one of those above; or at the call, there are no steps.

    >>> import anabranch as ab
    >>> ab.layers.AdaptiveAveragePooling1D(2)([[[1.0], [3.0], [5.0]]])[0, :, 0]
    Tensor([2., 4.], dtype=float32)
    """

    rank = 1


class AdaptiveAveragePooling2D(_AdaptiveAveragePooling):
    """The mean of each channel in each of as many windows as the output has cells.

    Args:
        output_size: the height and width of the output: an int for both, or a pair. Window number i of n along an axis
            of size s reaches from ``floor(i * s / n)`` to before ``ceil((i + 1) * s / n)``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, *output_size, channels)``, or both with the channels in
    front of the sizes.

    Raises:
        ValueError: an argument is not one of those above; or at the call, an axis is empty.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AdaptiveAveragePooling2D((2, 3))(np.ones((2, 7, 5, 4), "float32")).shape
    (2, 2, 3, 4)
    """

    rank = 2


class AdaptiveAveragePooling3D(_AdaptiveAveragePooling):
    """The mean of each channel in each of as many windows as the output has cells.

    Args:
        output_size, data_format: see `AdaptiveAveragePooling2D`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *output_size, channels)``.

    Raises:
        ValueError: see `AdaptiveAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AdaptiveAveragePooling3D(2)(np.ones((2, 7, 5, 3, 4), "float32")).shape
    (2, 2, 2, 2, 4)
    """

    rank = 3


class AdaptiveMaxPooling1D(_AdaptiveMaxPooling):
    """The largest value of each feature in each of `output_size` windows.

    Args:
        output_size, data_format: see `AdaptiveAveragePooling1D`.
        **kwargs: see `Layer`.

    Raises:
        ValueError: see `AdaptiveAveragePooling1D`.

    >>> import anabranch as ab
    >>> ab.layers.AdaptiveMaxPooling1D(2)([[[1.0], [3.0], [2.0]]])[0, :, 0]
    Tensor([3., 3.], dtype=float32)
    """

    rank = 1


class AdaptiveMaxPooling2D(_AdaptiveMaxPooling):
    """The largest value of each channel in each of as many windows as the output has cells.

    Args:
        output_size, data_format: see `AdaptiveAveragePooling2D`.
        **kwargs: see `Layer`.

    Raises:
        ValueError: see `AdaptiveAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AdaptiveMaxPooling2D((2, 3))(np.ones((2, 7, 5, 4), "float32")).shape
    (2, 2, 3, 4)
    """

    rank = 2


class AdaptiveMaxPooling3D(_AdaptiveMaxPooling):
    """The largest value of each channel in each of as many windows as the output has cells.

    Args:
        output_size, data_format: see `AdaptiveAveragePooling2D`.
        **kwargs: see `Layer`.

    Raises:
        ValueError: see `AdaptiveAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AdaptiveMaxPooling3D(2)(np.ones((2, 7, 5, 3, 4), "float32")).shape
    (2, 2, 2, 2, 4)
    """

    rank = 3
