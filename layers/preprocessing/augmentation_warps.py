"""Layers that shear, tilt, blur and bend training images at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers
from ...engine.ops.random import samplers as random
from ...engine.ops.random.keys import take_key
from ...engine.ops.signal.warping import homography
from ..core.layer_config import config_from_signature
from .augmentation import RandomWarp, columns
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
    from ..core.options import ImageOptions


_INTERPOLATIONS = ("nearest", "bilinear")
_FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
_LEAST_SIGMA = 1e-6


@config_from_signature()
class RandomShear(RandomWarp):
    """In training, shears each image along one axis or both.

    Args:
        x_factor: how far at most, as a part of the height, a pixel moves along the width; or a range from 0 to 1.
        y_factor: the same along the height.
        interpolation: "bilinear" or "nearest".
        fill_mode: the values outside: "reflect", "wrap", "constant" or "nearest".
        fill_value: the value outside with "constant".
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: a factor is outside of [0, 1], or a mode is unknown.
    """

    def __init__(
        self,
        x_factor: float | Sequence[float] = 0.0,
        y_factor: float | Sequence[float] = 0.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.x_factor = as_given(x_factor)
        self.y_factor = as_given(y_factor)
        self._x_range = self._range(x_factor, "x_factor")
        self._y_range = self._range(y_factor, "y_factor")

    def _range(self, factor: object, name: str) -> tuple[float, float]:
        parts = factor if isinstance(factor, (tuple, list)) else [factor]
        if len(parts) > 2 or not all(isinstance(part, (int, float)) and 0 <= part <= 1 for part in parts):
            raise ValueError(
                f"Layer {self.name!r}: {name} must be a number, or a pair of numbers, from 0 to 1; got {name}="
                f"{factor!r}."
            )
        return factor_pair(self, factor, name, (-1, 1))

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        sign = ops.where(self._uniform(images, seed, 0.0, 1.0, ones=0) > 0.5, -1.0, 1.0)
        down = self._uniform(images, seed, *self._y_range, ones=0) * sign
        across = self._uniform(images, seed, *self._x_range, ones=0) * sign
        return {"shear_factor": ops.stack([across, down], axis=1)}

    def matrix(self, transformation: Transformation, size: Size) -> Tensor:
        return shear_matrix(*columns(transformation["shear_factor"]))


def shear_matrix(across: Tensor, down: Tensor) -> Tensor:
    """Return the matrices ``[batch, 8]`` that `affine_transform` takes."""
    ones, zeros = ops.ones_like(across), ops.zeros_like(across)
    return ops.stack([ones, across, zeros, down, ones, zeros, zeros, zeros], axis=1)


@config_from_signature()
class RandomPerspective(RandomImageLayer):
    """In training, shows some images as if seen from elsewhere.

    Args:
        factor: the largest probability, or the range that it is drawn from for each image.
        scale: how far the corners move at most, from 0 to 1.
        interpolation: "bilinear" or "nearest".
        fill_value: the value outside.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: factor or scale are outside of [0, 1], or the interpolation is unknown.
    """

    moves_boxes: ClassVar[bool] = True

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float = 1.0,
        interpolation: str = "bilinear",
        fill_value: float = 0.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        if not isinstance(scale, (int, float)) or not 0 <= scale <= 1:
            raise ValueError(f"Layer {self.name!r}: scale must be a number from 0 to 1, got scale={scale!r}.")
        check_choice(self, "interpolation", interpolation, _INTERPOLATIONS)
        self.scale = scale
        self.interpolation = interpolation
        check_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        height, width = self._size(images)
        right, bottom = ops.cast(width - 1, "float32"), ops.cast(height - 1, "float32")
        zero = ops.zeros_like(right)
        corners = ops.stack([zero, zero, right, zero, zero, bottom, right, bottom])
        corners = ops.reshape(corners, (1, 4, 2))
        chosen = self._chosen(images, seed, *self.factor)
        shape = (ops.shape(images)[0], 4, 2)
        moves = random.uniform(shape, -0.5 * self.scale, 0.5 * self.scale, seed=seed)
        starts = ops.broadcast_to(corners, shape)
        return {"apply_perspective": chosen, "start_points": starts, "end_points": starts + starts * moves}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        seen = ops.image.perspective_transform(
            images,
            *_points(transformation),
            interpolation="nearest" if is_mask else self.interpolation,
            fill_value=self.fill_value,
            data_format=self.data_format,
        )
        return ops.where(per_image(transformation["apply_perspective"]), seen, images)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        chosen = ops.reshape(transformation["apply_perspective"], (-1, 1, 1))
        return ops.where(chosen, warped_sides(sides, homography(*_points(transformation))), sides)


def _points(transformation: Transformation) -> list[Tensor]:
    """Return the corners of images before and after, ``[batch, 4, 2]`` each."""
    return [ops.cast(ops.convert_to_tensor(transformation[name]), "float32") for name in ("start_points", "end_points")]


@config_from_signature()
class RandomGaussianBlur(RandomImageLayer):
    """In training, blurs some images.

    Args:
        factor: the largest probability, or the range that it is drawn from for each image.
        kernel_size: the size of the filter, an odd number or two of them.
        sigma: how wide the filter is at most, or a range from 0 to 1. It is drawn once a batch for each of two axes.
        value_range: the range of the pixels, which they are clipped to.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: factor or sigma are outside of [0, 1], the range is not a pair, or a size is even.
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        kernel_size: int | Sequence[int] = 3,
        sigma: float | Sequence[float] = 1.0,
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        self.kernel_size = self._odd_pair(kernel_size)
        self.sigma = factor_pair(self, sigma, "sigma", (0, 1))
        self.value_range = value_pair(self, value_range)

    def _odd_pair(self, sizes: Any) -> tuple[int, int]:
        pair = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes, sizes)
        if len(pair) != 2 or not all(isinstance(size, int) and size > 0 and size % 2 for size in pair):
            raise ValueError(
                f"Layer {self.name!r}: kernel_size must be an odd number, or a pair of them; got kernel_size={sizes!r}."
            )
        return pair

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        chosen = self._chosen(images, seed, *self.factor)
        sigma = random.uniform((2,), *self.sigma, seed=seed) + _LEAST_SIGMA
        return {"should_apply_blur": chosen, "blur_factor": sigma}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        blurred = ops.image.gaussian_blur(
            images, self.kernel_size, transformation["blur_factor"], data_format=self.data_format
        )
        chosen = per_image(transformation["should_apply_blur"])
        return ops.clip(ops.where(chosen, blurred, images), *self.value_range)


@config_from_signature()
class RandomElasticTransform(RandomImageLayer):
    """In training, bends some images: each pixel moves a little, and neighbours move alike.

    Args:
        factor: the largest probability, or the range that it is drawn from for each image.
        scale: how strongly at most, or a range from 0 to 1, drawn once a batch: a pixel moves by about a tenth of
            this part of the larger side. Pixels within a twentieth of the largest scale's part of the smaller side move
            alike.
        interpolation: "bilinear" or "nearest".
        fill_mode: the values outside: "reflect", "wrap", "constant", "nearest" or "mirror".
        fill_value: the value outside with "constant".
        value_range: the range of the pixels, which they are clipped to.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Raises:
        ValueError: factor or scale are outside of [0, 1], a mode is unknown, or the images' size is.

    >>> import anabranch as ab
    >>> ab.layers.RandomElasticTransform(seed=1)(ab.ops.ones((1, 8, 8, 3)), training=True).shape
    (1, 8, 8, 3)
    """

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float | Sequence[float] = 1.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        self.scale = factor_pair(self, scale, "scale", (0, 1))
        check_choice(self, "interpolation", interpolation, _INTERPOLATIONS)
        check_choice(self, "fill_mode", fill_mode, _FILL_MODES)
        self.interpolation = interpolation
        self.fill_mode = fill_mode
        check_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value
        self.value_range = value_pair(self, value_range)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {
            "apply_transform": self._chosen(images, seed, *self.factor),
            "distortion_factor": random.uniform((), *self.scale, seed=seed),
            "seed": take_key(seed),  # images and masks bend alike
        }

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        height, width = self._known_size(images)
        if not self.scale[1]:
            return images
        bent = ops.image.elastic_transform(
            images,
            alpha=transformation["distortion_factor"] * (0.1 * max(height, width)),
            sigma=0.05 * min(height, width) * self.scale[1],
            interpolation="nearest" if is_mask else self.interpolation,
            fill_mode=self.fill_mode,
            fill_value=self.fill_value,
            seed=transformation["seed"],
            data_format=self.data_format,
        )
        made = ops.where(per_image(transformation["apply_transform"]), bent, images)
        return made if is_mask else ops.clip(made, *self.value_range)
