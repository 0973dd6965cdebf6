"""Layers that change the colours of training images at random: hue, saturation, sharpness, and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.random import samplers as random
from ..core.layer_config import config_from_signature
from .augmentation import RandomBrightness, RandomContrast
from .image_layer import RandomImageLayer, Seed, Transformation, factor_pair, per_image, rescaled, value_pair

if TYPE_CHECKING:
    from ..core.options import ImageOptions


_Made = TypeVar("_Made", bound=RandomImageLayer)
_EPSILON = 1e-7
_BITS = 8


@config_from_signature()
class RandomColorLayer(RandomImageLayer):
    """The base of layers that change colours, with a factor and the range of the pixels' values."""

    moves_pixels: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0, 1)  # of the factor

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", self.bounds)
        self.value_range = value_pair(self, value_range)


class RandomHue(RandomColorLayer):
    """In training, turns the colours of each image along the colour wheel.

    Args:
        factor: how far at most, or a range, from 0 to 1: 1 is half a turn, in either direction.
        value_range: the range of the pixels.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Input: images of three channels, red, green and blue.

    Raises:
        ValueError: the factor is outside of [0, 1], or the range is not a pair.

    >>> red = np.array([[[255.0, 0.0, 0.0]]])
    >>> RandomHue((1.0, 1.0), seed=0)(red).round(2).tolist()  # half a turn from red is cyan
    [[[0.0, 255.0, 255.0]]]
    """

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        sign = ops.where(self._uniform(images, seed, 0.0, 1.0) > 0.5, -1.0, 1.0)
        return {"factor": sign * self._uniform(images, seed, *self.factor) * 0.5}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        colors = ops.image.rgb_to_hsv(rescaled(images, self.value_range, (0, 1)), data_format=self.data_format)
        hue, saturation, value = ops.split(colors, 3, axis=self.channel_axis)
        hue = hue + ops.cast(per_image(transformation["factor"]), hue.dtype)
        hue = ops.where(hue > 1.0, hue - 1.0, hue)
        hue = ops.where(hue < 0.0, hue + 1.0, hue)
        turned = ops.concatenate([hue, saturation, value], axis=self.channel_axis)
        made = ops.image.hsv_to_rgb(turned, data_format=self.data_format)
        return rescaled(ops.clip(made, 0.0, 1.0), (0, 1), self.value_range)


class RandomSaturation(RandomColorLayer):
    """In training, makes the colours of each image paler or stronger.

    Args:
        factor: a number, or the range that it is drawn from; 0 leaves no colours, 0.5 leaves them as they are, and
            towards 1 they get as strong as can be.
        value_range: the range that the saturation is cut off at.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Input: images of three channels, red, green and blue.

    Raises:
        ValueError: the factor is outside of [-1, 1], or the range is not a pair.

    >>> RandomSaturation((0.0, 0.0))(np.array([[[200.0, 100.0, 50.0]]])).tolist()
    [[[200.0, 200.0, 200.0]]]
    """

    bounds: ClassVar[tuple[float, float]] = (-1, 1)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        factor = self._uniform(images, seed, *self.factor)
        return {"factor": factor / (1.0 - factor + _EPSILON)}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        colors = ops.image.rgb_to_hsv(images, data_format=self.data_format)
        hue, saturation, value = ops.split(colors, 3, axis=self.channel_axis)
        strength = ops.cast(per_image(transformation["factor"]), images.dtype)
        saturation = ops.clip(saturation * strength, *self.value_range)
        changed = ops.concatenate([hue, saturation, value], axis=self.channel_axis)
        return ops.image.hsv_to_rgb(changed, data_format=self.data_format)


class RandomSharpness(RandomColorLayer):
    """In training, makes each image sharper or softer.

    Args:
        factor: a number up to 1, or the range that it is drawn from: 0 is soft, 0.5 leaves images as they are, 1 is
            sharp.
        value_range: the range of the pixels, which they are clipped to.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: the factor is outside of [0, 1], the range is not a pair, or the number of channels is unknown.
    """

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"factor": self._uniform(images, seed, *self.factor)}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        channels = (images.shape or (None,) * 4)[self.channel_axis]
        if channels is None:
            raise ValueError(
                f"Layer {self.name!r} needs images of a known number of channels, got shape {images.shape}. Give it in "
                "Input."
            )
        kernel = np.full((3, 3, channels, 1), 1.0 / 13.0)
        kernel[1, 1] = 5.0 / 13.0
        smooth = ops.depthwise_conv(
            images, ops.convert_to_tensor(kernel, images.dtype), 1, "same", data_format=self.data_format
        )
        softness = 1.0 - 2.0 * ops.cast(per_image(transformation["factor"]), images.dtype)
        return ops.clip(images + softness * (smooth - images), *self.value_range)


@config_from_signature()
class RandomGrayscale(RandomImageLayer):
    """In training, takes the colours out of some images, which keep their three channels.

    Args:
        factor: the probability for each image.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: the factor is outside of [0, 1].

    >>> RandomGrayscale(1.0)(np.array([[[255.0, 0.0, 0.0]]])).astype(int).tolist()
    [[[76, 76, 76]]]
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        factor: float = 0.5,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        if not isinstance(factor, (int, float)) or not 0 <= factor <= 1:
            raise ValueError(f"Layer {self.name!r}: factor must be a number from 0 to 1, got factor={factor!r}.")
        self.factor = factor

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"apply_grayscale": self._uniform(images, seed, 0.0, 1.0, ones=0) < self.factor}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        gray = ops.image.rgb_to_grayscale(images, data_format=self.data_format)
        return ops.where(per_image(transformation["apply_grayscale"]), gray, images)


class RandomInvert(RandomColorLayer):
    """In training, makes negatives of some images.

    Args:
        factor: the largest probability, or the range that it is drawn from for each image.
        value_range: the range of the pixels.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Raises:
        ValueError: the factor is outside of [0, 1], or the range is not a pair.

    >>> RandomInvert((1.0, 1.0))(np.array([[[0.0], [55.0]]]))[..., 0].tolist()
    [[255.0, 200.0]]
    """

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **kwargs)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"apply_inversion": self._chosen(images, seed, *self.factor)}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        return ops.where(per_image(transformation["apply_inversion"]), self.value_range[1] - images, images)


class RandomPosterization(RandomColorLayer):
    """In training, keeps only some of the eight bits of the colours of each image.

    Args:
        factor: the largest number of bits (it is drawn from those below), or a range ``(low, high)`` without `high`; a
            pair of one number is that number.
        value_range: the range of the pixels.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Raises:
        ValueError: the factor is outside of [1, 8], or the range is not a pair.

    >>> RandomPosterization((1, 1))(np.array([[[127.0], [128.0]]]))[..., 0].tolist()
    [[0.0, 128.0]]
    """

    bounds: ClassVar[tuple[float, float]] = (1, _BITS)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        low, high = (int(bits) for bits in self.factor)
        shape = (ops.shape(images)[0],)
        bits = random.randint(shape, low, high, seed=seed) if low < high else ops.full(shape, low, "int32")
        return {"shift_factor": _BITS - bits}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        lost = ops.cast(per_image(transformation["shift_factor"]), "uint8")
        pixels = ops.cast(rescaled(images, self.value_range, (0, 255)), "uint8")
        kept = ops.bitwise_left_shift(ops.bitwise_right_shift(pixels, lost), lost)
        return rescaled(ops.cast(kept, images.dtype), (0, 255), self.value_range)


class RandomColorDegeneration(RandomColorLayer):
    """In training, takes some of the colours out of each image.

    Args:
        factor: how much of them at most, or a range; 1 leaves grey.
        value_range: the range of the pixels, which they are clipped to.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.

    Input: images of three channels, red, green and blue.

    Raises:
        ValueError: the factor is outside of [-1, 1], or the range is not a pair.
    """

    bounds: ClassVar[tuple[float, float]] = (-1, 1)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"factor": self._uniform(images, seed, *self.factor)}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        gray = ops.image.rgb_to_grayscale(images, data_format=self.data_format)
        share = ops.cast(per_image(transformation["factor"]), images.dtype)
        return ops.clip(images + share * (gray - images), *self.value_range)


@config_from_signature()
class RandomColorJitter(RandomImageLayer):
    """In training, changes brightness, contrast, saturation and hue of each image, one after the other.

    Args:
        value_range: the range of the pixels.
        brightness_factor, contrast_factor, saturation_factor, hue_factor: see `RandomBrightness`, `RandomContrast`,
            `RandomSaturation` and `RandomHue`; None leaves that one out.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Raises:
        ValueError: a factor is outside of what its layer takes, or the range is not a pair.

    >>> import anabranch as ab
    >>> layer = ab.layers.RandomColorJitter(brightness_factor=0.2, hue_factor=0.1, seed=1)
    >>> layer(ab.ops.ones((1, 8, 8, 3)), training=True).shape
    (1, 8, 8, 3)
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        brightness_factor: float | Sequence[float] | None = None,
        contrast_factor: float | Sequence[float] | None = None,
        saturation_factor: float | Sequence[float] | None = None,
        hue_factor: float | Sequence[float] | None = None,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.value_range = value_pair(self, value_range)
        self.brightness_factor = brightness_factor
        self.contrast_factor = contrast_factor
        self.saturation_factor = saturation_factor
        self.hue_factor = hue_factor

        def made(kind: Callable[..., _Made], name: str, factor: object, bounds: tuple[float, float]) -> _Made | None:
            options = {"seed": seed, "data_format": self.data_format, "dtype": self.dtype}
            if factor is None:
                return None
            return kind(factor_pair(self, factor, name, bounds), value_range=self.value_range, **options)

        self.random_brightness = made(RandomBrightness, "brightness_factor", brightness_factor, (-1, 1))
        self.random_contrast = made(RandomContrast, "contrast_factor", contrast_factor, (0, 1))
        self.random_saturation = made(RandomSaturation, "saturation_factor", saturation_factor, (-1, 1))
        self.random_hue = made(RandomHue, "hue_factor", hue_factor, (0, 1))

    @property
    def _changes(self) -> list[RandomImageLayer]:
        found = (self.random_brightness, self.random_contrast, self.random_saturation, self.random_hue)
        return [layer for layer in found if layer is not None]

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        own = seed is self.generator
        return {"changes": [layer.draw(images, layer.generator if own else seed) for layer in self._changes]}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        for layer, drawn in zip(self._changes, transformation["changes"], strict=True):
            images = layer.transform(images, drawn)
        return images
