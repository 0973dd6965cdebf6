"""Image layers: `Resizing`, `CenterCrop`, and what is done to training images at random: flips and crops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from ...engine import ops
from ...engine.common.dtypes import is_integer
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers
from ...engine.ops.random import samplers as random
from ..core.layer_config import config_from_signature
from .box_formats import Size, parts_of
from .image_layer import ImageLayer, RandomImageLayer, Seed, Transformation, check_size, per_image

if TYPE_CHECKING:
    from ..core.options import ImageOptions


@config_from_signature()
class Resizing(ImageLayer):
    """Images of another size, in training and otherwise.

    Args:
        height, width: the new size.
        interpolation: "bilinear", "nearest", "bicubic", "lanczos3" or "lanczos5".
        crop_to_aspect_ratio: cut off what does not fit, rather than distort.
        pad_to_aspect_ratio: fill up, rather than distort.
        fill_mode: "constant", how padding is filled.
        fill_value: the value that padding is filled with.
        antialias: smooth when sizes shrink.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    Input: images ``(..., height, width, channels)``; those of integers stay integers. Boxes are those of Keras: where
    images are padded or cropped by no whole number of pixels, pixels are up to one pixel of the old image away.

    Raises:
        ValueError: a size is not a positive integer.

    >>> import numpy as np
    >>> Resizing(1, 2)(np.ones((4, 4, 3), "float32")).shape
    (1, 2, 3)
    """

    moves_boxes: ClassVar[bool] = True

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(data_format, **kwargs)
        check_size(self, height, width)
        self.height = height
        self.width = width
        self.interpolation = interpolation
        self.crop_to_aspect_ratio = crop_to_aspect_ratio
        self.pad_to_aspect_ratio = pad_to_aspect_ratio
        self.fill_mode = fill_mode
        check_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value
        self.antialias = bool(antialias)

    def is_active(self, training: bool | None) -> bool:
        return True

    def size_after(self, size: Size) -> Size:
        return self.height, self.width

    def _cast(self, images: Tensor) -> Tensor:
        return images

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        resized = ops.image.resize(
            images,
            (self.height, self.width),
            interpolation="nearest" if is_mask else self.interpolation,
            antialias=self.antialias,
            crop_to_aspect_ratio=self.crop_to_aspect_ratio,
            pad_to_aspect_ratio=self.pad_to_aspect_ratio,
            fill_mode=self.fill_mode,
            fill_value=self.fill_value,
            data_format=self.data_format,
        )
        if resized.dtype == images.dtype:
            return resized
        return ops.saturate_cast(ops.round(resized) if is_integer(images.dtype) else resized, images.dtype)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        high, wide = (ops.cast(each, "float32") for each in size)
        down, across = self.height / high, self.width / wide
        if self.pad_to_aspect_ratio or self.crop_to_aspect_ratio:
            choose = ops.minimum if self.pad_to_aspect_ratio else ops.maximum
            down = across = choose(down, across)
        kept = ops.stack([wide * across, high * down])
        # Half of what is added or cut off; 0 where images are stretched, but for rounding.
        start = ops.floor(ops.abs(ops.convert_to_tensor([float(self.width), float(self.height)]) - kept) / 2 + 1e-3)
        moved = sides * ops.stack([across, down, across, down])
        return moved + ops.tile(start, 2) if self.pad_to_aspect_ratio else moved - ops.tile(start, 2)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return self._resized_shape(input_shape, self.height, self.width)


@config_from_signature()
class CenterCrop(ImageLayer):
    """The middle of images, in training and otherwise; smaller images are resized, with their aspect ratio kept.

    Args:
        height, width: the size of the window.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: a size is not a positive integer, or that of the images is unknown.

    >>> import numpy as np
    >>> CenterCrop(1, 1)(np.arange(9.0).reshape(3, 3, 1)).item()
    4.0
    """

    moves_boxes: ClassVar[bool] = True

    def __init__(self, height: int, width: int, data_format: str | None = None, **kwargs: Unpack[ImageOptions]) -> None:
        super().__init__(data_format, **kwargs)
        check_size(self, height, width)
        self.height = height
        self.width = width

    def is_active(self, training: bool | None) -> bool:
        return True

    def size_after(self, size: Size) -> Size:
        return self.height, self.width

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        height, width = self._known_size(images)
        if height < self.height or width < self.width:
            size = (self.height, self.width)
            how = "nearest" if is_mask else "bilinear"
            return ops.image.resize(images, size, how, crop_to_aspect_ratio=True, data_format=self.data_format)
        top, left = (height - self.height) // 2, (width - self.width) // 2
        return self._window(images, top, left, self.height, self.width)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        height, width = size
        if height >= self.height and width >= self.width:
            top, left = (height - self.height) // 2, (width - self.width) // 2
            return sides - ops.convert_to_tensor([left, top, left, top], "float32")
        high = max(min(height, width * self.height // self.width), 1)
        wide = max(min(width, height * self.width // self.height), 1)
        top, left = (height - high) // 2, (width - wide) // 2
        scale = ops.convert_to_tensor([self.width / wide, self.height / high] * 2, "float32")
        return (sides - ops.convert_to_tensor([left, top, left, top], "float32")) * scale

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return self._resized_shape(input_shape, self.height, self.width)


# --- at random ------------------------------------------------------------------------------------------------------


@config_from_signature()
class RandomFlip(RandomImageLayer):
    """In training, flips half of the images.

    Args:
        mode: "horizontal" (left and right), "vertical" (top and bottom) or "horizontal_and_vertical" (both at once).
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: the mode is unknown.

    >>> import numpy as np
    >>> image = np.arange(2.0).reshape(1, 2, 1)
    >>> sorted({tuple(RandomFlip("horizontal", seed=seed)(image).ravel().tolist()) for seed in range(8)})
    [(0.0, 1.0), (1.0, 0.0)]
    """

    moves_boxes: ClassVar[bool] = True

    def __init__(
        self,
        mode: str = "horizontal_and_vertical",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        if mode not in ("horizontal", "vertical", "horizontal_and_vertical"):
            raise ValueError(
                f"Layer {self.name!r}: mode must be 'horizontal', 'vertical' or 'horizontal_and_vertical', got "
                f"mode={mode!r}."
            )
        self.mode = mode

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"flips": self._uniform(images, seed, 0.0, 1.0) <= 0.5}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        axes = [self.height_axis] if "vertical" in self.mode.split("_") else []
        axes += [self.width_axis] if "horizontal" in self.mode.split("_") else []
        return ops.where(per_image(transformation["flips"]), ops.flip(images, axis=tuple(axes)), images)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        height, width = (ops.cast(each, sides.dtype) for each in size)
        left, top, right, bottom = parts_of(sides)
        if "horizontal" in self.mode.split("_"):
            left, right = width - right, width - left
        if "vertical" in self.mode.split("_"):
            top, bottom = height - bottom, height - top
        flips = ops.reshape(transformation["flips"], (-1, 1, 1))
        return ops.where(flips, ops.concatenate([left, top, right, bottom], axis=-1), sides)


@config_from_signature()
class RandomCrop(RandomImageLayer):
    """In training, a window of the images at random, the same for a batch; images that are too small are resized.

    Otherwise images stay as they are; put `CenterCrop` behind it if sizes must agree.

    Args:
        height, width: the size of the window.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: a size is not a positive integer, or that of the images is unknown.
    """

    moves_boxes: ClassVar[bool] = True

    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        check_size(self, height, width)
        self.height = height
        self.width = width

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        height, width = self._known_size(images)
        if height > self.height and width > self.width:
            starts = self._start(height - self.height, seed), self._start(width - self.width, seed)
            return dict(zip(("h_start", "w_start"), starts, strict=True))
        window = max(min(height, width * self.height // self.width), 1)
        across = max(min(width, height * self.width // self.height), 1)
        return {"h_start": (height - window) // 2, "w_start": (width - across) // 2}

    def size_after(self, size: Size) -> Size:
        return self.height, self.width

    def _start(self, largest: int, seed: Seed) -> Tensor:
        return ops.cast(random.uniform((), 0.0, float(largest + 1), seed=seed), "int32")

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        top, left = transformation["h_start"], transformation["w_start"]
        height, width = self._size(images)
        if height > self.height and width > self.width:
            made = self._window(images, top, left, self.height, self.width)
            return ops.reshape(made, self._resized_shape(ops.shape(images), self.height, self.width))
        made = self._window(images, top, left, min(self.height, height - top), min(self.width, width - left))
        how = "nearest" if is_mask else "bilinear"
        return ops.image.resize(made, (self.height, self.width), interpolation=how, data_format=self.data_format)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        (height, width), top, left = size, transformation["h_start"], transformation["w_start"]
        start = ops.cast(ops.stack([left, top, left, top]), "float32")
        if height > self.height and width > self.width:
            return sides - start
        down, across = (
            full / min(full, old - first)
            for full, old, first in ((self.height, height, top), (self.width, width, left))
        )
        return (sides - start) * ops.convert_to_tensor([across, down, across, down], "float32")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return self._resized_shape(input_shape, self.height, self.width)
