"""`ZeroPadding1D` to `3D` and `Cropping1D` to `3D`: cells added at the ends of the spatial axes, or taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec, known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .spatial import axis_pairs, axis_sizes, spatial_axes

if TYPE_CHECKING:
    from ..core.options import LayerOptions


Pair = tuple[int, int]
Cells = tuple[int, ...] | tuple[tuple[int, ...], ...]  # before and behind the one axis, or each


@config_from_signature()
class _ZeroPadding(Layer):
    """The base of the padding layers; see `ZeroPadding2D`."""

    rank: ClassVar[int]

    def __init__(
        self,
        padding: tuple[int, ...] | tuple[tuple[int, ...], ...],
        data_format: str | None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.padding: Any = padding  # of one axis a pair, of several a pair for each
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _padded(self, inputs: TensorLike, pairs: tuple[tuple[int, ...], ...]) -> Tensor:
        last = self.data_format == "channels_last"
        return ops.pad(inputs, ((0, 0), *pairs, (0, 0)) if last else ((0, 0), (0, 0), *pairs))

    def call(self, inputs: TensorLike) -> Tensor:
        return self._padded(inputs, self.padding)


class ZeroPadding1D(_ZeroPadding):
    """Zeros before and behind the steps of ``(batch, steps, features)``.

    Args:
        padding: how many steps of zeros at either end: an int, or a pair (before, behind).
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        **kwargs: see `Layer`.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import anabranch as ab
    >>> ab.layers.ZeroPadding1D((1, 2))([[[5.0]]])[0, :, 0]
    Tensor([0., 5., 0., 0.], dtype=float32)
    """

    rank = 1

    def __init__(self, padding: int | Pair = 1, data_format: str | None = None, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(axis_sizes("ZeroPadding1D", "padding", padding, 2, 0), data_format, **kwargs)

    def call(self, inputs: TensorLike) -> Tensor:
        return self._padded(inputs, (self.padding,))


class ZeroPadding2D(_ZeroPadding):
    """Zeros around images.

    Args:
        padding: how many rows and columns of zeros: an int for all four sides; a pair (above and below, left and
            right); or a pair of pairs, ``((above, below), (left, right))``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, channels)``.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.ZeroPadding2D(((0, 1), (2, 2)))(np.ones((2, 4, 4, 3), "float32")).shape
    (2, 5, 8, 3)
    """

    rank = 2

    def __init__(
        self,
        padding: int | Pair | tuple[Pair, Pair] = (1, 1),
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(axis_pairs("ZeroPadding2D", "padding", padding, 2), data_format, **kwargs)


class ZeroPadding3D(_ZeroPadding):
    """Zeros around volumes.

    Args:
        padding: how many cells of zeros: an int for all sides; or for each of the three axes an int for both its ends,
            or a pair (before, behind).
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, channels)``.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.ZeroPadding3D((0, 1, 2))(np.ones((2, 4, 4, 4, 3), "float32")).shape
    (2, 4, 6, 8, 3)
    """

    rank = 3

    def __init__(
        self,
        padding: int | tuple[int | Pair, int | Pair, int | Pair] = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(axis_pairs("ZeroPadding3D", "padding", padding, 3), data_format, **kwargs)


# --- cropping -------------------------------------------------------------------------------------------------------


@config_from_signature()
class _Cropping(Layer):
    """The base of the cropping layers; see `Cropping2D`."""

    rank: ClassVar[int]

    def __init__(
        self,
        cropping: tuple[int, ...] | tuple[tuple[int, ...], ...],
        data_format: str | None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.cropping: Any = cropping  # as the `padding` above
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _cropped(self, inputs: Tensor, pairs: tuple[tuple[int, ...], ...]) -> Tensor:
        axes = spatial_axes(self.rank, self.data_format)
        sizes = ops.shape(inputs)
        window: list[slice] = [slice(None)] * (self.rank + 2)
        for axis, (before, behind) in zip(axes, pairs, strict=True):
            if isinstance(sizes[axis], int) and before + behind >= sizes[axis]:
                raise ValueError(
                    f"Layer {self.name!r} ({type(self).__name__}): cropping must be less than the input's size along "
                    f"each axis, got cropping={self.cropping} and input shape {known_shape(inputs.shape)}."
                )
            window[axis] = slice(before, -behind if behind else None)
        return inputs[tuple(window)]

    def call(self, inputs: Tensor) -> Tensor:
        return self._cropped(inputs, self.cropping)


class Cropping1D(_Cropping):
    """``(batch, steps, features)`` without some steps at either end.

    Args:
        cropping: how many steps to take away: an int for both ends, or a pair (first, last).
        **kwargs: see `Layer`.

    Raises:
        ValueError: `cropping` is not one of these; or at the call, there is no step left.

    >>> import anabranch as ab
    >>> ab.layers.Cropping1D((1, 0))([[[1.0], [2.0], [3.0]]])[0, :, 0]
    Tensor([2., 3.], dtype=float32)
    """

    rank = 1

    def __init__(self, cropping: int | Pair = (1, 1), **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(axis_sizes("Cropping1D", "cropping", cropping, 2, 0), "channels_last", **kwargs)

    def call(self, inputs: Tensor) -> Tensor:
        return self._cropped(inputs, (self.cropping,))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("data_format")
        return config


class Cropping2D(_Cropping):
    """Images without some rows and columns at their sides.

    Args:
        cropping: how many rows and columns to take away: an int for all four sides; a pair (above and below, left and
            right); or a pair of pairs, ``((above, below), (left, right))``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, channels)``.

    Raises:
        ValueError: an argument is not one of those above; or at the call, nothing is left.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Cropping2D(((0, 1), (2, 2)))(np.ones((2, 6, 6, 3), "float32")).shape
    (2, 5, 2, 3)
    """

    rank = 2

    def __init__(
        self,
        cropping: int | Pair | tuple[Pair, Pair] = ((0, 0), (0, 0)),
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(axis_pairs("Cropping2D", "cropping", cropping, 2), data_format, **kwargs)


class Cropping3D(_Cropping):
    """Volumes without some cells at their sides.

    Args:
        cropping: how many cells to take away: an int for all sides; or for each of the three axes an int for both its
            ends, or a pair (before, behind).
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, channels)``.

    Raises:
        ValueError: an argument is not one of those above; or at the call, nothing is left.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Cropping3D((0, 1, 2))(np.ones((2, 6, 6, 6, 3), "float32")).shape
    (2, 6, 4, 2, 3)
    """

    rank = 3

    def __init__(
        self,
        cropping: int | tuple[int | Pair, int | Pair, int | Pair] = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(axis_pairs("Cropping3D", "cropping", cropping, 3), data_format, **kwargs)
