"""Image layers: `Resizing`, `CenterCrop`, and what is done to training images at random: flips and crops.

All take one image ``(height, width, channels)`` or a batch of images, or a dict with ``"images"`` beside
``"labels"``, ``"segmentation_masks"`` and ``"bounding_boxes"``. What is drawn at random is drawn for
each image of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_integer
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers
from ...engine.ops.random import samplers as random
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .box_formats import Size, known_format, moved_boxes, parts_of, sides_of

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import ImageOptions, LayerOptions


Transformation = dict[str, Any]


@config_from_signature()
class ImageLayer(Layer):
    """The base of image layers. A layer of its own defines `draw` and `transform`.

    Args:
        data_format: "channels_last" (the default) or "channels_first".
        bounding_box_format: of ``"bounding_boxes"``, a dict of "boxes" and "labels", beside the images: "xyxy", "yxyx",
            "xywh", "center_xywh" or "center_yxhw"; behind "rel_" as parts of the image's width and height.

    Raises:
        ValueError: the data format or the format of boxes is unknown.
    """

    # What becomes of segmentation masks: True where pixels move, False where only colours change.
    moves_pixels: ClassVar[bool] = True
    moves_boxes: ClassVar[bool] = False  # whether a class that moves pixels has a rule for boxes
    blends_masks: ClassVar[bool] = False  # whether masks of whole numbers become shares of them

    def __init__(
        self, data_format: str | None = None, bounding_box_format: str | None = None, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # images are cast by `_cast`; boxes would lose places in half types
        self.bounding_box_format = bounding_box_format
        if bounding_box_format is not None:
            known_format(bounding_box_format, f"Layer {self.name!r}: bounding_box_format")
        if data_format not in (None, "channels_last", "channels_first"):
            raise ValueError(
                f"Layer {self.name!r}: data_format must be 'channels_last' or 'channels_first', got {data_format!r}."
            )
        self.data_format = data_format or "channels_last"
        axes = (-3, -2, -1) if self.data_format == "channels_last" else (-2, -1, -3)
        self.height_axis, self.width_axis, self.channel_axis = axes
        self._build_at_init()

    # --- what subclasses define -----------------------------------------------------------------------------

    def draw(self, images: Tensor) -> Transformation:
        """Draw the random transformation of a batch of images."""
        return {}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        """Return a batch of images, transformed."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform().")

    def transform_labels(self, labels: Tensor, transformation: Transformation) -> Tensor:
        """Return the labels of a batch of transformed images; the same ones unless a layer mixes images."""
        return labels

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        """Transform boxes with their images.

        Args:
            sides: left, top, right and bottom in pixels, ``(batch, n, 4)``.
            transformation: what `draw` gave.
            size: height and width of the images before.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define transform_boxes().")

    def is_active(self, training: bool | None) -> bool:
        """Test whether images are transformed: random layers do it in training."""
        return bool(training)

    # --- calling --------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        @overload
        def __call__(self, data: dict[str, Any], *args: object, **kwargs: object) -> dict[str, Any]: ...

        @overload
        def __call__(self, data: TensorLike, *args: object, **kwargs: object) -> Tensor: ...

        def __call__(self, *args: object, **kwargs: object) -> Any: ...

    def call(self, data: TensorLike | dict[str, TensorLike], training: bool | None = True) -> Any:
        if not isinstance(data, dict):
            return self._on_images(data, None, training)[0]
        self._check_keys(data)
        images, transformation = self._on_images(data["images"], None, training)
        made: dict[str, object] = {**data, "images": images}
        if "labels" in data and transformation:
            made["labels"] = self._on_labels(data["labels"], images, transformation)
        if self.moves_pixels and "segmentation_masks" in data:
            given = ops.convert_to_tensor(data["segmentation_masks"])
            masks, _ = self._on_images(given, transformation, training, True)
            made["segmentation_masks"] = self._like_masks(masks, given, training)
        if self.moves_pixels and "bounding_boxes" in data and self.is_active(training):
            old, new = (self._size(ops.convert_to_tensor(each)) for each in (data["images"], images))
            boxes: Any = data["bounding_boxes"]
            made["bounding_boxes"] = self._on_boxes(boxes, transformation, old, new, images.ndim == 3)
        return made

    def _like_masks(self, masks: Tensor, given: Tensor, training: bool | None) -> Tensor:
        """Return masks in the dtype of those that were given, if these are class numbers and remain such."""
        blended = self.blends_masks and self.is_active(training)
        return ops.cast(masks, given.dtype) if given.dtype.kind in "iu" and not blended else masks

    def _on_boxes(
        self, given: dict[str, Tensor], transformation: Transformation, old: Size, new: Size, is_single: bool
    ) -> dict[str, Tensor]:
        boxes = {name: ops.expand_dims(part, 0) for name, part in given.items()} if is_single else given
        moved = self._on_batch_of_boxes(boxes, transformation, old, new)
        return {name: ops.squeeze(part, 0) for name, part in moved.items()} if is_single else moved

    def _on_batch_of_boxes(
        self, given: dict[str, Tensor], transformation: Transformation, old: Size, new: Size
    ) -> dict[str, Tensor]:
        sides = self.transform_boxes(sides_of(given["boxes"], self._box_form, old), transformation, old)
        return moved_boxes(given, sides, self._box_form, new)

    @property
    def _box_form(self) -> tuple[bool, str]:
        assert self.bounding_box_format is not None
        return known_format(self.bounding_box_format, "bounding_box_format")

    def _on_labels(self, data: TensorLike, images: Tensor, transformation: Transformation) -> Tensor:
        labels = ops.convert_to_tensor(data)
        if images.ndim == 4:
            return self.transform_labels(labels, transformation)
        return ops.squeeze(self.transform_labels(ops.expand_dims(labels, 0), transformation), 0)

    def _check_keys(self, data: Mapping[str, object]) -> None:
        takes_boxes = self.moves_boxes or not self.moves_pixels
        others = ["labels", "segmentation_masks", *(["bounding_boxes"] if takes_boxes else [])]
        if "bounding_boxes" in data and not takes_boxes:
            raise ValueError(
                f"Layer {self.name!r} can't take 'bounding_boxes': {type(self).__name__} moves pixels of a box to "
                "several places. Leave the boxes out, or use another layer, such as RandomRotation or MixUp."
            )
        if set(data) - {"images", *others} or "images" not in data:
            raise ValueError(
                f"Layer {self.name!r} takes images, or a dict with 'images' and perhaps "
                f"{' and '.join(map(repr, others))}; got {sorted(data)}."
            )
        if "bounding_boxes" not in data:
            return
        boxes = data["bounding_boxes"]
        if not isinstance(boxes, dict) or not {"boxes", "labels"} <= boxes.keys():
            got = sorted(boxes) if isinstance(boxes, dict) else type(boxes).__name__
            raise ValueError(
                f"Layer {self.name!r}: 'bounding_boxes' must be a dict with 'boxes' and 'labels'; got {got}."
            )
        if self.moves_boxes and self.bounding_box_format is None:
            raise ValueError(
                f"Layer {self.name!r} was given 'bounding_boxes', and has no format for them. Make it with one, such "
                f"as {type(self).__name__}(..., bounding_box_format='xyxy')."
            )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self.bounding_box_format is None:
            config.pop("bounding_box_format", None)
        return config

    def _on_images(
        self, data: TensorLike, transformation: Transformation | None, training: bool | None, is_mask: bool = False
    ) -> tuple[Tensor, Transformation]:
        images = self._cast(ops.convert_to_tensor(data))
        if images.ndim not in (3, 4):
            raise ValueError(
                f"Layer {self.name!r} expects one image (3 axes) or a batch of images (4 axes), got shape "
                f"{images.shape}."
            )
        if not self.is_active(training):
            return images, {}
        batch = ops.expand_dims(images, 0) if images.ndim == 3 else images
        drawn = self.draw(batch) if transformation is None else transformation
        made = self.transform(batch, drawn, is_mask)
        return (ops.squeeze(made, 0) if images.ndim == 3 else made), drawn

    def _cast(self, images: Tensor) -> Tensor:
        return ops.cast(images, self.compute_dtype)

    def _size(self, images: Tensor) -> Size:
        """Return height and width: ints where they are known, else scalar tensors."""
        shape = ops.shape(images)
        return shape[self.height_axis], shape[self.width_axis]

    def _known_size(self, images: Tensor) -> tuple[int, int]:
        """Return height and width, which have to be known.

        Raises:
            ValueError: one is unknown.
        """
        height, width = self._size(images)
        if not (isinstance(height, int) and isinstance(width, int)):
            raise ValueError(
                f"Layer {self.name!r} needs images of known height and width, got shape {images.shape}. Give the sizes "
                "in Input, or put a Resizing layer in front."
            )
        return height, width

    def _window(self, images: Tensor, top: DimLike, left: DimLike, height: DimLike, width: DimLike) -> Tensor:
        rows, columns = slice(top, top + height), slice(left, left + width)
        if self.data_format == "channels_last":
            return images[:, rows, columns, :]
        return images[:, :, rows, columns]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def _resized_shape(self, input_shape: Any, height: int, width: int) -> Any:
        if isinstance(input_shape, dict):
            masks = {"images", "segmentation_masks"}
            return {
                name: self._resized_shape(shape, height, width) if name in masks else shape
                for name, shape in input_shape.items()
            }
        shape = list(input_shape)
        shape[self.height_axis], shape[self.width_axis] = height, width
        return tuple(shape)


def value_pair(layer: Layer, value_range: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value of a pixel.

    Raises:
        ValueError: they are not two.
    """
    if not isinstance(value_range, (tuple, list, np.ndarray)) or len(value_range) != 2:
        raise ValueError(f"Layer {layer.name!r}: value_range must be a pair of numbers, got {value_range!r}.")
    low, high = sorted(value_range)
    return low, high


def rescaled(images: Tensor, old: Sequence[float], new: Sequence[float]) -> Tensor:
    """Return pixels of one range of values in another."""
    if tuple(old) == tuple(new):
        return images
    return (images - old[0]) / (old[1] - old[0]) * (new[1] - new[0]) + new[0]


def check_size(layer: Layer, height: object, width: object) -> None:
    """Refuse sizes that are not positive integers."""
    for name, size in (("height", height), ("width", width)):
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"Layer {layer.name!r}: {name} must be a positive integer, got {name}={size!r}.")


def check_choice(layer: Layer, name: str, value: object, known: Sequence[str]) -> None:
    """Refuse what is not one of the known values of an option."""
    if value not in known:
        raise ValueError(f"Layer {layer.name!r}: {name} must be one of {', '.join(known)}; got {value!r}.")


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
        data_format: "channels_last" or "channels_first".
        bounding_box_format: see `ImageLayer`.

    Input: images ``(..., height, width, channels)``; those of integers stay integers. Boxes are those of Keras: where
    images are padded or cropped by no whole number of pixels, pixels are up to one pixel of the old image away.

    Raises:
        ValueError: a size is not a positive integer.

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
        data_format: "channels_last" or "channels_first".
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: a size is not a positive integer, or that of the images is unknown.

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
class RandomImageLayer(ImageLayer):
    """The base of layers that transform images at random in training, and not at all otherwise.

    Args:
        seed: an integer, so that a new process draws the same.
    """

    def __init__(self, seed: int | None = None, data_format: str | None = None, **kwargs: Unpack[ImageOptions]) -> None:
        super().__init__(data_format, **kwargs)
        self.seed = seed
        self.generator = random.SeedGenerator(seed)

    def _uniform(self, images: Tensor, low: float, high: float, ones: int = 3) -> Tensor:
        """Return a number for each image, ``(batch, 1, 1, 1)`` with three further axes."""
        shape = (ops.shape(images)[0], *(1,) * ones)
        return random.uniform(shape, low, high, seed=self.generator)

    def _chosen(self, images: Tensor, low: float, high: float) -> Tensor:
        """Draw which images are transformed, ``(batch, 1, 1, 1)``, by probabilities from `low` to `high`."""
        likely = self._uniform(images, low, high)
        return self._uniform(images, 0.0, 1.0) < likely


@config_from_signature()
class RandomFlip(RandomImageLayer):
    """In training, flips half of the images.

    Args:
        mode: "horizontal" (left and right), "vertical" (top and bottom) or "horizontal_and_vertical" (both at once).
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first".
        bounding_box_format: see `ImageLayer`.

    Raises:
        ValueError: the mode is unknown.

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

    def draw(self, images: Tensor) -> Transformation:
        return {"flips": self._uniform(images, 0.0, 1.0) <= 0.5}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        axes = [self.height_axis] if "vertical" in self.mode.split("_") else []
        axes += [self.width_axis] if "horizontal" in self.mode.split("_") else []
        return ops.where(transformation["flips"], ops.flip(images, axis=tuple(axes)), images)

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
        data_format: "channels_last" or "channels_first".
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

    def draw(self, images: Tensor) -> Transformation:
        height, width = self._known_size(images)
        if height > self.height and width > self.width:
            return {"top": self._start(height - self.height), "left": self._start(width - self.width)}
        window = max(min(height, width * self.height // self.width), 1)
        across = max(min(width, height * self.width // self.height), 1)
        return {"top": (height - window) // 2, "left": (width - across) // 2}

    def _start(self, largest: int) -> Tensor:
        return ops.cast(random.uniform((), 0.0, float(largest + 1), seed=self.generator), "int32")

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        height, width = self._size(images)
        if height > self.height and width > self.width:
            made = self._window(images, transformation["top"], transformation["left"], self.height, self.width)
            return ops.reshape(made, self._resized_shape(ops.shape(images), self.height, self.width))
        top, left = transformation["top"], transformation["left"]
        made = self._window(images, top, left, min(self.height, height - top), min(self.width, width - left))
        how = "nearest" if is_mask else "bilinear"
        return ops.image.resize(made, (self.height, self.width), interpolation=how, data_format=self.data_format)

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        (height, width), top, left = size, transformation["top"], transformation["left"]
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


def factor_pair(layer: Layer, factor: object, name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return a factor, one number or two, as a range.

    Raises:
        ValueError: it is none, or is outside of the bounds.
    """
    low, high = bounds
    if isinstance(factor, (int, float)) and low <= factor <= high:
        return max(-abs(factor), low), abs(factor)
    if isinstance(factor, (tuple, list)) and len(factor) == 2 and all(low <= each <= high for each in factor):
        first, second = sorted(factor)
        return first, second
    raise ValueError(
        f"Layer {layer.name!r}: {name} must be a number, or a pair of numbers, from {low} to {high}; got "
        f"{name}={factor!r}."
    )
