"""`Solarization`, `Equalization` and `AutoContrast`: images with other values for the same pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ..core.layer_config import config_from_signature
from .image_layer import ImageLayer, RandomImageLayer, Seed, Transformation, per_image, rescaled, value_pair

if TYPE_CHECKING:
    from ..core.options import ImageOptions


@config_from_signature()
class Solarization(RandomImageLayer):
    """In training, adds to the pixels and then makes the negative of all that are not below a threshold.

    Args:
        addition_factor: what is added at most, or a range, as a part of 255.
        threshold_factor: the threshold at most, or a range, as a part of 255. By default 0: all of an image is turned
            into its negative.
        value_range: the range of the pixels.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: a factor is outside of [0, 1], or the range is not a pair.

    >>> import numpy as np
    >>> Solarization()(np.array([[[0.0], [55.0]]]))[..., 0].tolist()
    [[255.0, 200.0]]
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        addition_factor: float | Sequence[float] = 0.0,
        threshold_factor: float | Sequence[float] = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.addition_factor = self._pair(addition_factor, "addition_factor")
        self.threshold_factor = self._pair(threshold_factor, "threshold_factor")
        self.value_range = value_pair(self, value_range)

    def _pair(self, factor: object, name: str) -> tuple[float, float]:
        pair = [0.0, factor] if isinstance(factor, (int, float)) else factor
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(0 <= part <= 1 for part in pair):
            raise ValueError(
                f"Layer {self.name!r}: {name} must be a number, or a pair of numbers, from 0 to 1; got {name}="
                f"{factor!r}."
            )
        low, high = sorted(pair)
        return low, high

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        drawn = {"additions": self.addition_factor, "thresholds": self.threshold_factor}
        return {name: self._uniform(images, seed, low, high * 255) for name, (low, high) in drawn.items()}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        added, limit = (ops.cast(per_image(transformation[name]), images.dtype) for name in ("additions", "thresholds"))
        pixels = ops.clip(rescaled(images, self.value_range, (0, 255)) + added, 0.0, 255.0)
        pixels = ops.where(pixels < limit, pixels, 255.0 - pixels)
        return rescaled(pixels, (0, 255), self.value_range)


@config_from_signature()
class Equalization(ImageLayer):
    """In training, spreads the values of each channel so that all occur about equally often.

    Args:
        value_range: the range of the pixels.
        bins: how many values are distinguished.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    How often values occur is counted over all images of a batch together, as Keras does.

    Raises:
        ValueError: the range is not a pair, or bins is not an integer from 2 up.

    >>> import numpy as np
    >>> Equalization()(np.array([[[10.0], [11.0], [12.0]]]))[..., 0].tolist()
    [[0.0, 128.0, 255.0]]
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        bins: int = 256,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(data_format, **kwargs)
        if not isinstance(bins, int) or bins < 2:
            raise ValueError(f"Layer {self.name!r}: bins must be an integer from 2 up, got bins={bins!r}.")
        self.bins = bins
        self.value_range = value_pair(self, value_range)

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        axis = -1 if self.data_format == "channels_last" else -3
        channels = ops.unstack(rescaled(images, self.value_range, (0, 255)), axis=axis)
        equalized = ops.stack([self._equalized(channel) for channel in channels], axis=axis)
        return rescaled(equalized, (0, 255), self.value_range)

    def _equalized(self, channel: Tensor) -> Tensor:
        top = self.bins - 1
        counted = ops.clip(ops.cast(channel * top / 255.0, "int32"), 0, top)
        places = ops.cast(ops.clip(channel / 255.0 * top, 0.0, float(top)), "int32")  # rounds in another way
        counts = ops.bincount(ops.reshape(counted, (-1,)), minlength=self.bins)[: self.bins]
        several = ops.sum(ops.cast(counts > 0, "int32")) > 1
        below = ops.cumsum(ops.cast(counts, "int32"))
        first = ops.min(ops.where(below > 0, below, below[-1]))
        total = ops.maximum(below[-1] - first, 1)
        table = ops.cast(below - first, "float32") * 255.0 / ops.cast(total, "float32")
        table = ops.cast(ops.clip(ops.round(table), 0.0, 255.0), channel.dtype)
        return ops.where(several, ops.take(table, places), channel)


@config_from_signature()
class AutoContrast(ImageLayer):
    """Spreads the values of each channel of each image over the whole range, in training and otherwise.

    Args:
        value_range: the range of the pixels.

    Raises:
        ValueError: the range is not a pair.

    >>> import numpy as np
    >>> AutoContrast()(np.array([[[10.0], [15.0], [20.0]]]))[..., 0].tolist()
    [[0.0, 127.5, 255.0]]
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(self, value_range: Sequence[float] = (0, 255), **kwargs: Unpack[ImageOptions]) -> None:
        super().__init__(**kwargs)
        self.value_range = value_pair(self, value_range)

    def is_active(self, training: bool | None) -> bool:
        return True

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        pixels = rescaled(images, self.value_range, (0, 255))
        axes = (self.height_axis, self.width_axis)
        low, high = ops.min(pixels, axis=axes, keepdims=True), ops.max(pixels, axis=axes, keepdims=True)
        varies = high > low
        scale = 255.0 / ops.where(varies, high - low, 1.0)
        spread = ops.clip(pixels * scale - low * scale, 0.0, 255.0)
        return ops.where(varies, rescaled(spread, (0, 255), self.value_range), images)
