"""Layers that move, turn, scale, colour and erase parts of training images at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers, check_optional_numbers, floats
from ...engine.ops.random import samplers as random
from ..core.layer_config import config_from_signature
from .box_formats import Size, warped_sides
from .image_layer import (
    RandomImageLayer,
    Seed,
    Transformation,
    as_given,
    check_choice,
    factor_pair,
    per_image,
    value_pair,
)

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import ImageOptions


_FILL_MODES = ("reflect", "wrap", "constant", "nearest")
_INTERPOLATIONS = ("nearest", "bilinear")


@config_from_signature()
class RandomWarp(RandomImageLayer):
    """The base of layers that move pixels: a matrix for each image, by which `ops.image.affine_transform` warps it."""

    moves_boxes: ClassVar[bool] = True

    def __init__(
        self,
        fill_mode: str,
        interpolation: str,
        seed: int | None,
        fill_value: float,
        data_format: str | None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        check_choice(self, "fill_mode", fill_mode, _FILL_MODES)
        check_choice(self, "interpolation", interpolation, _INTERPOLATIONS)
        self.fill_mode = fill_mode
        self.interpolation = interpolation
        check_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        return ops.image.affine_transform(
            images,
            self.matrix(transformation, self._size(images)),
            interpolation="nearest" if is_mask else self.interpolation,
            fill_mode=self.fill_mode,
            fill_value=self.fill_value,
            data_format=self.data_format,
        )

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        return warped_sides(sides, self.matrix(transformation, size))

    def matrix(self, transformation: Transformation, size: Size) -> Tensor:
        """Return the matrices ``[batch, 8]`` of what was drawn, for images of a size."""
        raise NotImplementedError(f"{type(self).__name__} does not define matrix().")


def _float_size(size: Size) -> tuple[Tensor, Tensor]:
    height, width = size
    return ops.cast(height, "float32"), ops.cast(width, "float32")


def columns(pairs: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the two columns of ``[batch, 2]`` as float32."""
    both = ops.cast(ops.convert_to_tensor(pairs), "float32")
    return both[:, 0], both[:, 1]


def _matrix(a0: Tensor, a1: Tensor, a2: Tensor, b0: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    """Return the matrices ``[batch, 8]`` that `affine_transform` takes, from six vectors."""
    zeros = ops.zeros_like(a0)
    return ops.stack([a0, a1, a2, b0, b1, b2, zeros, zeros], axis=1)


@config_from_signature()
class RandomRotation(RandomWarp):
    """In training, turns each image by a random angle.

    Args:
        factor: the largest angle, or the range of angles, as a part of a full turn: 0.1 is 36 degrees.
        fill_mode: the values outside: "reflect", "wrap", "constant" or "nearest".
        interpolation: "bilinear" or "nearest".
        seed: an integer, so that a new process draws the same.
        fill_value: the value outside with "constant".
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`. Boxes around boxes that were turned are larger than what was inside.

    Raises:
        ValueError: the factor is outside of [-1, 1], or a mode is unknown.

    >>> import numpy as np
    >>> RandomRotation((0.25, 0.25))(np.arange(4.0).reshape(2, 2, 1))[..., 0].round(3)
    Tensor([[1., 3.],
            [0., 2.]], dtype=float32)
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (-1, 1))

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        low, high = self.factor
        angle = self._uniform(images, seed, 360.0 * low, 360.0 * high, ones=0)
        return {"angle": angle, "rotation_matrix": _turning(angle, self._size(images))}

    def matrix(self, transformation: Transformation, size: Size) -> Tensor:
        return transformation["rotation_matrix"]


def _turning(degrees: Tensor, size: Size) -> Tensor:
    """Return the matrices that turn images of a size around their middle."""
    angle = degrees * (math.pi / 180.0)
    cosine, sine = ops.cos(angle), ops.sin(angle)
    height, width = _float_size(size)
    x, y = (width - 1) / 2, (height - 1) / 2
    shift_x, shift_y = x - x * cosine + y * sine, y - x * sine - y * cosine
    return _matrix(cosine, -sine, shift_x, sine, cosine, shift_y)


@config_from_signature()
class RandomZoom(RandomWarp):
    """In training, zooms into or out of each image.

    Args:
        height_factor: how much the height shrinks (negative: grows) at most, or a range; 0.2 shows 20 % more.
        width_factor: as `height_factor`; None keeps the aspect ratio.
        fill_mode, interpolation, seed, fill_value, data_format, bounding_box_format: see `RandomRotation`.

    Raises:
        ValueError: a factor is outside of (-1, 1], or a mode is unknown.
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float] | None = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.height_factor = as_given(height_factor)
        self.width_factor = as_given(width_factor)
        self.height_lower, self.height_upper = self._range(height_factor, "height_factor")
        if width_factor is not None:
            self.width_lower, self.width_upper = self._range(width_factor, "width_factor")

    def _range(self, factor: object, name: str) -> tuple[float, float]:
        low, high = factor_pair(self, factor, name, (-1, 1))
        if low <= -1 and factor != 1:
            raise ValueError(f"Layer {self.name!r}: {name} must be greater than -1, got {name}={factor!r}.")
        return low, high

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        down = across = 1.0 + self._uniform(images, seed, self.height_lower, self.height_upper, ones=1)
        if self.width_factor is not None:
            across = 1.0 + self._uniform(images, seed, self.width_lower, self.width_upper, ones=1)
        return {"height_zoom": down, "width_zoom": across}

    def matrix(self, transformation: Transformation, size: Size) -> Tensor:
        parts = [ops.convert_to_tensor(transformation[name]) for name in ("height_zoom", "width_zoom")]
        down, across = (ops.reshape(ops.cast(part, "float32"), (-1,)) for part in parts)
        height, width = _float_size(size)
        zeros = ops.zeros_like(down)
        left, top = (width - 1) / 2 * (1 - across), (height - 1) / 2 * (1 - down)
        return _matrix(across, zeros, left, zeros, down, top)


@config_from_signature()
class RandomTranslation(RandomWarp):
    """In training, moves each image.

    Args:
        height_factor: how far down at most, or a range, as a part of the height; negative ones move up.
        width_factor: how far to the right, as a part of the width.
        fill_mode, interpolation, seed, fill_value, data_format, bounding_box_format: see `RandomRotation`.

    Raises:
        ValueError: a factor is outside of [-1, 1], or a mode is unknown.

    >>> import numpy as np
    >>> RandomTranslation((0.5, 0.5), 0.0, fill_mode="constant")(np.ones((2, 2, 1)))[..., 0]
    Tensor([[0., 0.],
            [1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.height_factor = as_given(height_factor)
        self.width_factor = as_given(width_factor)
        self.height_lower, self.height_upper = factor_pair(self, height_factor, "height_factor", (-1, 1))
        self.width_lower, self.width_upper = factor_pair(self, width_factor, "width_factor", (-1, 1))

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        height, width = _float_size(self._size(images))
        down = self._uniform(images, seed, self.height_lower, self.height_upper, ones=0) * height
        right = self._uniform(images, seed, self.width_lower, self.width_upper, ones=0) * width
        return {"translations": ops.stack([right, down], axis=1)}

    def matrix(self, transformation: Transformation, size: Size) -> Tensor:
        right, down = columns(transformation["translations"])
        zeros, ones = ops.zeros_like(down), ops.ones_like(down)
        return _matrix(ones, zeros, -right, zeros, ones, -down)


@config_from_signature()
class RandomContrast(RandomImageLayer):
    """In training, moves the pixels of each image away from its mean or toward it, channel by channel.

    Args:
        factor: the contrast is multiplied by a number from ``1 - factor`` to ``1 + factor``; of a pair the first counts
            below and the second above.
        value_range: the range of the pixels, which they are clipped to.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: the factor is outside of [0, 1].
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        self.value_range = value_pair(self, value_range)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"contrast_factor": self._uniform(images, seed, 1.0 - self.factor[0], 1.0 + self.factor[1])}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        mean = ops.mean(images, axis=(self.height_axis, self.width_axis), keepdims=True)
        factor = ops.cast(per_image(transformation["contrast_factor"]), images.dtype)
        return ops.clip((images - mean) * factor + mean, *self.value_range)


@config_from_signature()
class RandomBrightness(RandomImageLayer):
    """In training, makes each image brighter or darker.

    Args:
        factor: how much at most, or a range, as a part of the value range.
        value_range: the range of the pixels, which they are clipped to.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: the factor is outside of [-1, 1], or the range is not a pair.

    >>> import numpy as np
    >>> RandomBrightness((0.2, 0.2), value_range=(0, 1))(np.array([[[0.5], [0.9]]]))[..., 0]
    Tensor([[0.7, 1. ]], dtype=float32)
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (-1, 1))
        if not isinstance(value_range, (tuple, list)) or len(value_range) != 2:
            raise ValueError(f"Layer {self.name!r}: value_range must be a pair of numbers, got {value_range!r}.")
        self.value_range = tuple(sorted(value_range))

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        low, high = self.value_range
        return {"rgb_delta": self._uniform(images, seed, *self.factor) * (high - low)}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        return ops.clip(images + ops.cast(per_image(transformation["rgb_delta"]), images.dtype), *self.value_range)


@config_from_signature()
class RandomErasing(RandomImageLayer):
    """In training, replaces a random rectangle of each image (Zhong et al., "Random Erasing", AAAI 2020).

    Args:
        factor: the largest probability, or the range that it is drawn from.
        scale: the largest part of the area that is erased, or the range that it is drawn from.
        fill_value: a number or one for each channel; None for normal noise.
        value_range: the range of the pixels.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Raises:
        ValueError: a range is outside of [0, 1].
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float | Sequence[float] = (0.02, 0.33),
        fill_value: float | Sequence[float] | None = None,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        self.scale = factor_pair(self, scale, "scale", (0, 1))
        if isinstance(fill_value, (list, tuple)):
            floats(f"Layer {self.name!r}", "fill_value", fill_value)
        else:
            check_optional_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value
        self.value_range = value_pair(self, value_range)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        height, width = self._size(images)
        share = ops.sqrt(random.uniform((ops.shape(images)[0], 2), *self.scale, seed=seed))
        across, down = self._span(images, seed, width, share[:, 0]), self._span(images, seed, height, share[:, 1])
        return {
            "apply_erasing": self._chosen(images, seed, *self.factor),
            "batch_masks": self._inside(down, across, height, width),
            "fill_value": self._filling(images, seed),
        }

    def _span(self, images: Tensor, seed: Seed, size: DimLike, share: Tensor) -> tuple[Tensor, Tensor]:
        whole = ops.cast(size, share.dtype)
        start = self._uniform(images, seed, 0.0, 1.0, ones=0) * (whole - share * whole)
        return start, start + share * whole

    def _inside(
        self, down: tuple[Tensor, Tensor], across: tuple[Tensor, Tensor], height: DimLike, width: DimLike
    ) -> Tensor:
        """Return a mask of the pixels in the rectangles, ``(batch, height, width, 1)``."""
        rows, columns = ops.cast(ops.arange(height), "float32"), ops.cast(ops.arange(width), "float32")
        in_rows = ops.logical_and(rows >= down[0][:, None], rows < down[1][:, None])
        in_columns = ops.logical_and(columns >= across[0][:, None], columns < across[1][:, None])
        both = ops.logical_and(in_rows[:, :, None], in_columns[:, None, :])
        return ops.expand_dims(both, -1 if self.data_format == "channels_last" else 1)

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        low, high = self.value_range
        filling = ops.clip(ops.cast(transformation["fill_value"], images.dtype), low, high)
        erased = ops.logical_and(transformation["batch_masks"], per_image(transformation["apply_erasing"]))
        return ops.where(erased, filling, images)

    def _filling(self, images: Tensor, seed: Seed) -> Tensor | np.ndarray:
        if self.fill_value is None:
            noise = random.normal(ops.shape(images), seed=seed)
            return noise * self.value_range[1]
        color = np.asarray(self.fill_value, "float32")
        return color if color.ndim == 0 or self.data_format == "channels_last" else color.reshape(-1, 1, 1)
