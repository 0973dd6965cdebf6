"""Pooling: one value for each window, or for all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .spatial import axis_sizes, one_of, spatial_axes

if TYPE_CHECKING:
    from ..core.options import LayerOptions, UnnamedOptions


@config_from_signature()
class _Pooling(Layer):
    """The base of the layers that pool windows; see `MaxPooling2D`."""

    rank: ClassVar[int]
    pool_mode: ClassVar[str]  # Keras's name of how a window becomes one value

    def __init__(
        self,
        pool_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Unpack[UnnamedOptions],
    ) -> None:
        super().__init__(name=name, **kwargs)
        self._build_at_init()
        layer = type(self).__name__
        self.pool_size = axis_sizes(layer, "pool_size", pool_size, self.rank)
        self.strides = self.pool_size if strides is None else axis_sizes(layer, "strides", strides, self.rank)
        self.padding = one_of(layer, "padding", padding, ("valid", "same"))
        self.data_format = check_data_format(layer, data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _windows(self) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
        """The arguments of the op behind its input."""
        return self.pool_size, self.strides, self.padding, self.data_format


class _MaxPooling(_Pooling):
    """The base of the layers that take the largest value of each window; see `MaxPooling2D`."""

    pool_mode = "max"

    def __init__(
        self,
        pool_size: int | tuple[int, ...] = 2,
        strides: int | tuple[int, ...] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Unpack[UnnamedOptions],
    ) -> None:
        super().__init__(pool_size, strides, padding, data_format, name, **kwargs)

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.max_pool(inputs, *self._windows)


class MaxPooling1D(_MaxPooling):
    """The largest value of each feature in each window of steps.

    Args:
        pool_size: the number of steps in a window.
        strides: steps from one window to the next; by default `pool_size`.
        padding, data_format: see `MaxPooling2D`.

    Shapes: ``(batch, steps, features)`` to ``(batch, new_steps, features)``.

    Raises:
        ValueError: see `MaxPooling2D`.

    >>> import anabranch as ab
    >>> ab.layers.MaxPooling1D(2)([[[1.0], [3.0], [2.0], [0.0]]])[0, :, 0]
    Tensor([3., 2.], dtype=float32)
    """

    rank = 1


class MaxPooling2D(_MaxPooling):
    """The largest value of each channel in each window of two axes.

    Args:
        pool_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells from one window to the next: likewise; by default `pool_size`.
        padding: ``"valid"`` (none) or ``"same"``, where cells outside the input do not count.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        name: see `Layer`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, channels)``, or both with the
    channels in front of the sizes.

    Raises:
        ValueError: an argument is not one of those above; or a window is larger than the input.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.MaxPooling2D()(np.ones((2, 8, 6, 3), "float32")).shape
    (2, 4, 3, 3)
    """

    rank = 2


class MaxPooling3D(_MaxPooling):
    """The largest value of each channel in each window of three axes.

    Args:
        pool_size, strides, padding, data_format, ...: see `MaxPooling2D`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, channels)``.

    Raises:
        ValueError: see `MaxPooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.MaxPooling3D((1, 2, 2))(np.ones((2, 3, 8, 6, 3), "float32")).shape
    (2, 3, 4, 3, 3)
    """

    rank = 3


class _AveragePooling(_Pooling):
    """The base of the layers that take the mean of each window; see `AveragePooling2D`."""

    pool_mode = "average"

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.average_pool(inputs, *self._windows)


class AveragePooling1D(_AveragePooling):
    """The mean of each feature in each window of steps.

    Args:
        pool_size: the number of steps in a window.
        strides: steps from one window to the next; by default `pool_size`.
        padding, data_format: see `AveragePooling2D`.

    Shapes: ``(batch, steps, features)`` to ``(batch, new_steps, features)``.

    Raises:
        ValueError: see `AveragePooling2D`.

    >>> import anabranch as ab
    >>> ab.layers.AveragePooling1D(2)([[[1.0], [3.0], [2.0], [0.0]]])[0, :, 0]
    Tensor([2., 1.], dtype=float32)
    """

    rank = 1


class AveragePooling2D(_AveragePooling):
    """The mean of each channel in each window of two axes.

    Args:
        pool_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells from one window to the next: likewise; by default `pool_size`.
        padding: ``"valid"`` (none) or ``"same"``, where cells outside the input do not count.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        name: see `Layer`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, channels)``, or both with the
    channels in front of the sizes.

    Raises:
        ValueError: an argument is not one of those above; or a window is larger than the input.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AveragePooling2D(3, strides=1, padding="same")(np.ones((2, 8, 6, 3), "float32")).shape
    (2, 8, 6, 3)
    """

    rank = 2


class AveragePooling3D(_AveragePooling):
    """The mean of each channel in each window of three axes.

    Args:
        pool_size, strides, padding, data_format, ...: see `AveragePooling2D`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, channels)``.

    Raises:
        ValueError: see `AveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AveragePooling3D(2)(np.ones((2, 4, 8, 6, 3), "float32")).shape
    (2, 2, 4, 3, 3)
    """

    rank = 3


# --- all cells ------------------------------------------------------------------------------------------------------


@config_from_signature()
class _GlobalPooling(Layer):
    """The base of the layers that pool all cells; see `GlobalAveragePooling2D`."""

    rank: ClassVar[int]

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.keepdims = keepdims
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _axes(self) -> tuple[int, ...]:
        return spatial_axes(self.rank, self.data_format)


class _GlobalAveragePooling(_GlobalPooling):
    """The base of the layers that take the mean of all cells."""

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.mean(inputs, axis=self._axes, keepdims=self.keepdims)


class _GlobalMaxPooling(_GlobalPooling):
    """The base of the layers that take the largest value of all cells."""

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.max(inputs, axis=self._axes, keepdims=self.keepdims)


class GlobalAveragePooling1D(_GlobalPooling):
    """The mean over the steps of ``(batch, steps, features)``; with a mask, over the steps where it is True.

    Args:
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        keepdims: keep an axis of size 1 in the steps' place.
        **kwargs: see `Layer`.

    Shapes: ``(batch, steps, features)`` to ``(batch, features)``, the mask ``(batch, steps)``. Masked steps do not
    count, whatever their values. A sample without any step left gives NaN, as in Keras.

    Raises:
        ValueError: `data_format` is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> steps = np.array([[[1.0], [3.0], [100.0]]], "float32")
    >>> ab.layers.GlobalAveragePooling1D()(steps, mask=np.array([[True, True, False]]))
    Tensor([[2.]], dtype=float32)
    """

    rank = 1

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(data_format, keepdims, **kwargs)
        self.supports_masking = True

    def call(self, inputs: Tensor, mask: TensorLike | None = None) -> Tensor:
        (axis,) = self._axes
        if mask is None:
            return ops.mean(inputs, axis=axis, keepdims=self.keepdims)
        kept = ops.expand_dims(ops.cast(mask, "bool"), 2 if axis == 1 else 1)
        total = ops.sum(ops.where(kept, inputs, 0), axis=axis, keepdims=self.keepdims)
        return total / ops.sum(ops.cast(kept, inputs.dtype), axis=axis, keepdims=self.keepdims)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> None:
        """Return None: there are no steps left to mask."""
        return


class GlobalAveragePooling2D(_GlobalAveragePooling):
    """The mean of each channel over all cells (Lin et al., 2013).

    Args:
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        keepdims: keep axes of size 1 in the cells' place.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, channels)``.

    Raises:
        ValueError: `data_format` is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.GlobalAveragePooling2D()(np.ones((2, 8, 6, 3), "float32")).shape
    (2, 3)
    """

    rank = 2


class GlobalAveragePooling3D(_GlobalAveragePooling):
    """The mean of each channel over all cells of three axes.

    Args:
        data_format, keepdims: see `GlobalAveragePooling2D`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, channels)``.

    Raises:
        ValueError: see `GlobalAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.GlobalAveragePooling3D(keepdims=True)(np.ones((2, 4, 8, 6, 3), "float32")).shape
    (2, 1, 1, 1, 3)
    """

    rank = 3


class GlobalMaxPooling1D(_GlobalMaxPooling):
    """The largest value of each feature over the steps of ``(batch, steps, features)``.

    Args:
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        keepdims: keep an axis of size 1 in the steps' place.
        **kwargs: see `Layer`.

    Raises:
        ValueError: `data_format` is not one of those above.

    >>> import anabranch as ab
    >>> ab.layers.GlobalMaxPooling1D()([[[1.0, 5.0], [3.0, 2.0]]])
    Tensor([[3., 5.]], dtype=float32)
    """

    rank = 1


class GlobalMaxPooling2D(_GlobalMaxPooling):
    """The largest value of each channel over all cells.

    Args:
        data_format, keepdims: see `GlobalAveragePooling2D`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, channels)``.

    Raises:
        ValueError: see `GlobalAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.GlobalMaxPooling2D()(np.ones((2, 8, 6, 3), "float32")).shape
    (2, 3)
    """

    rank = 2


class GlobalMaxPooling3D(_GlobalMaxPooling):
    """The largest value of each channel over all cells of three axes.

    Args:
        data_format, keepdims: see `GlobalAveragePooling2D`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, channels)``.

    Raises:
        ValueError: see `GlobalAveragePooling2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.GlobalMaxPooling3D()(np.ones((2, 4, 8, 6, 3), "float32")).shape
    (2, 3)
    """

    rank = 3


MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalAvgPool1D, GlobalAvgPool2D, GlobalAvgPool3D = (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
)
GlobalMaxPool1D, GlobalMaxPool2D, GlobalMaxPool3D = GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D
