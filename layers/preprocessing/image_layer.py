"""`ImageLayer` and `RandomImageLayer`: the bases of layers of images, with the steps of a call.

All take one image ``(height, width, channels)`` or a batch of images, or a dict with ``"images"`` beside
``"labels"``, ``"segmentation_masks"`` and ``"bounding_boxes"``. What is drawn at random is drawn for
each image of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, Unpack, overload

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.data_format import check_data_format
from ...engine.ops.random import samplers as random
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .box_formats import Size, known_format, moved_boxes, sides_of
from .layer_backend import LayerBackend

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import ImageOptions, LayerOptions


Transformation = dict[str, Any]
"""The random values of one transformation, by Keras's names, and "input_shape", the shape of the batch of images."""

Seed: TypeAlias = "random.SeedGenerator | TensorLike | None"
"""The source of random numbers: a generator, or a key; None for the global generator."""

_Made = TypeVar("_Made")

Entries: TypeAlias = dict[str, Any]
"""A dict of data, with "images", or of boxes, with "boxes" and "labels"."""

_STEPS = {  # by the entry of a dict: the method for a batch, and that for one image
    "images": ("transform_images", "transform_single_image"),
    "bounding_boxes": ("transform_bounding_boxes", "transform_single_bounding_box"),
    "labels": ("transform_labels", "transform_single_label"),
    "segmentation_masks": ("transform_segmentation_masks", "transform_single_segmentation_mask"),
}


@config_from_signature()
class ImageLayer(Layer):
    """The base of image layers. A layer of its own defines `draw` and `transform`.

    A call draws by `get_random_transformation`, and hands what that gives to `transform_images`, `transform_labels`,
    `transform_bounding_boxes` and `transform_segmentation_masks`, with Keras's arguments. A class may override these.

    Args:
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: of ``"bounding_boxes"``, a dict of "boxes" and "labels", beside the images: "xyxy", "yxyx",
            "xywh", "center_xywh" or "center_yxhw"; behind "rel_" as parts of the image's width and height.

    Raises:
        ValueError: the data format or the format of boxes is unknown.
    """

    # What becomes of segmentation masks: True where pixels move, False where only colours change.
    moves_pixels: ClassVar[bool] = True
    moves_boxes: ClassVar[bool] = False  # whether a class that moves pixels has a rule for boxes
    blends_masks: ClassVar[bool] = False  # whether masks of whole numbers become shares of them
    backend: ClassVar[LayerBackend] = LayerBackend()
    generator: random.SeedGenerator | None = None  # of layers that draw

    def __init__(
        self, data_format: str | None = None, bounding_box_format: str | None = None, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # images are cast by `_cast`; boxes would lose places in half types
        self.bounding_box_format = bounding_box_format
        if bounding_box_format is not None:
            known_format(bounding_box_format, f"Layer {self.name!r}: bounding_box_format")
        self.data_format = check_data_format(f"Layer {self.name!r}", data_format)
        axes = (-3, -2, -1) if self.data_format == "channels_last" else (-2, -1, -3)
        self.height_axis, self.width_axis, self.channel_axis = axes
        self._build_at_init()

    # --- what subclasses define -----------------------------------------------------------------------------

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        """Draw the random transformation of a batch of images, by a generator."""
        return {}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        """Return a batch of images, transformed."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform().")

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

    def size_after(self, size: Size) -> Size:
        """Return height and width of images that had another size before."""
        return size

    # --- the steps of a call --------------------------------------------------------------------------------

    def get_random_transformation(
        self, data: TensorLike | dict[str, TensorLike], training: bool | None = True, seed: Seed = None
    ) -> Transformation | None:
        """Draw how images are transformed.

        Args:
            data: one image, a batch of images, or a dict with "images".
            training: whether it is training.
            seed: a `SeedGenerator` or an integer, in place of the layer's own generator.

        Returns:
            The random values that the other steps take, by name, and "input_shape", the shape of the batch; None where
            images stay as they are.
        """
        if not self.is_active(training):
            return None
        images = ops.convert_to_tensor(data["images"] if isinstance(data, dict) else data)
        batch = ops.expand_dims(images, 0) if self._is_single(images) else images
        source = random.SeedGenerator(seed) if isinstance(seed, int) else seed
        return {"input_shape": ops.shape(batch), **self.draw(batch, self.generator if source is None else source)}

    def transform_images(
        self, images: TensorLike, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform a batch of images, or one image, by what `get_random_transformation` gave."""
        batch = self._cast(ops.convert_to_tensor(images))
        if transformation is None or not self.is_active(training):
            return batch
        if self._is_single(batch):
            return self.transform_single_image(batch, transformation, training)
        return self.transform(batch, transformation)

    def transform_labels(
        self, labels: Tensor, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform the labels of a batch of images: they stay the same unless a layer mixes images."""
        return labels

    def transform_bounding_boxes(
        self, bounding_boxes: Entries, transformation: Transformation | None, training: bool | None = True
    ) -> Entries:
        """Transform the boxes of a batch of images, or of one image, a dict of "boxes" and "labels"."""
        if transformation is None or not (self.moves_pixels and self.is_active(training)):
            return bounding_boxes
        if ops.convert_to_tensor(bounding_boxes["boxes"]).ndim == 2:
            return self.transform_single_bounding_box(bounding_boxes, transformation, training)
        shape = transformation["input_shape"]
        size = shape[self.height_axis], shape[self.width_axis]
        sides = self.transform_boxes(sides_of(bounding_boxes["boxes"], self._box_form, size), transformation, size)
        return moved_boxes(bounding_boxes, sides, self._box_form, self.size_after(size))

    def transform_segmentation_masks(
        self, segmentation_masks: TensorLike, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform the masks of a batch of images: they move as the pixels do, and keep their colours."""
        given = ops.convert_to_tensor(segmentation_masks)
        if not self.moves_pixels:
            return given
        masks = self._cast(given)
        if transformation is not None and self.is_active(training):
            masks = self.transform(masks, transformation, True)
        return self._like_masks(masks, given, training)

    def transform_single_image(
        self, image: TensorLike, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform one image, as `transform_images` does a batch."""
        return _as_batch(self.transform_images, image, transformation, training)

    def transform_single_label(
        self, label: TensorLike, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform the label of one image, as `transform_labels` does those of a batch."""
        return _as_batch(self.transform_labels, label, transformation, training)

    def transform_single_bounding_box(
        self, bounding_box: Entries, transformation: Transformation | None, training: bool | None = True
    ) -> Entries:
        """Transform the boxes of one image, as `transform_bounding_boxes` does those of a batch."""
        return _as_batch(self.transform_bounding_boxes, bounding_box, transformation, training)

    def transform_single_segmentation_mask(
        self, segmentation_mask: TensorLike, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        """Transform the mask of one image, as `transform_segmentation_masks` does those of a batch."""
        return _as_batch(self.transform_segmentation_masks, segmentation_mask, transformation, training)

    # --- calling --------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        @overload
        def __call__(self, data: Entries, *args: object, **kwargs: object) -> Entries: ...

        @overload
        def __call__(self, data: TensorLike, *args: object, **kwargs: object) -> Tensor: ...

        def __call__(self, *args: object, **kwargs: object) -> Any: ...

    def call(self, data: TensorLike | dict[str, TensorLike], training: bool | None = True) -> Any:
        if isinstance(data, dict):
            self._check_keys(data)
        given = data if isinstance(data, dict) else {"images": data}
        single = self._is_single(ops.convert_to_tensor(given["images"]))
        transformation = self.get_random_transformation(data, training=training)
        made: dict[str, object] = dict(given)
        for name, steps in _STEPS.items():
            if name in given:
                step = getattr(self, steps[single])
                made[name] = step(_each(ops.convert_to_tensor, given[name]), transformation, training=training)
        return made if isinstance(data, dict) else made["images"]

    def _is_single(self, images: Tensor) -> bool:
        """Test whether this is one image, rather than a batch.

        Raises:
            ValueError: it is neither.
        """
        if images.ndim not in (3, 4):
            raise ValueError(
                f"Layer {self.name!r} expects one image (3 axes) or a batch of images (4 axes), got shape "
                f"{images.shape}."
            )
        return images.ndim == 3

    def _like_masks(self, masks: Tensor, given: Tensor, training: bool | None) -> Tensor:
        """Return masks in the dtype of those that were given, if these are class numbers and remain such."""
        blended = self.blends_masks and self.is_active(training)
        return ops.cast(masks, given.dtype) if given.dtype.kind in "iu" and not blended else masks

    @property
    def _box_form(self) -> tuple[bool, str]:
        assert self.bounding_box_format is not None
        return known_format(self.bounding_box_format, "bounding_box_format")

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


def _each(change: Callable[[TensorLike], Tensor], values: TensorLike | Entries) -> Any:
    """Change a value, or each entry of a dict."""
    return {name: change(part) for name, part in values.items()} if isinstance(values, dict) else change(values)


def _as_batch(
    step: Callable[..., _Made], one: TensorLike | Entries, transformation: Transformation | None, training: bool | None
) -> _Made:
    """Return what a step for batches makes of what belongs to one image."""
    batch = _each(lambda part: ops.expand_dims(ops.convert_to_tensor(part), 0), one)
    made: Any = step(batch, transformation, training=training)
    return _each(lambda part: ops.squeeze(part, 0), made)


def per_image(values: TensorLike) -> Tensor:
    """Return one number for each image, with axes of size 1 behind it, so that it goes with a batch of images."""
    return ops.reshape(ops.convert_to_tensor(values), (-1, 1, 1, 1))


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
class RandomImageLayer(ImageLayer):
    """The base of layers that transform images at random in training, and not at all otherwise.

    Args:
        seed: an integer, so that a new process draws the same.
    """

    def __init__(self, seed: int | None = None, data_format: str | None = None, **kwargs: Unpack[ImageOptions]) -> None:
        super().__init__(data_format, **kwargs)
        self.seed = seed
        self.generator = random.SeedGenerator(seed)

    def _uniform(self, images: Tensor, seed: Seed, low: float, high: float, ones: int = 3) -> Tensor:
        """Return a number for each image, ``(batch, 1, 1, 1)`` with three further axes."""
        return random.uniform((ops.shape(images)[0], *(1,) * ones), low, high, seed=seed)

    def _chosen(self, images: Tensor, seed: Seed, low: float, high: float) -> Tensor:
        """Draw which images are transformed, ``(batch,)``, by probabilities from `low` to `high`."""
        likely = self._uniform(images, seed, low, high, ones=0)
        return self._uniform(images, seed, 0.0, 1.0, ones=0) < likely


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


def as_given(factor: object) -> object:
    """Return a factor as a config has it: a pair that was read from a file as it was before."""
    return tuple(factor) if isinstance(factor, list) else factor
