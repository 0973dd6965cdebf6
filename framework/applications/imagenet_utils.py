"""Prepare images for models of ImageNet, and name its classes."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.floats import floatx
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format, image_data_format
from ..data.get_file import get_file
from ..structures import Array

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from numpy.typing import ArrayLike

    from ..structures import Array

Shape = tuple[int | None, ...]

_CLASSES = "https://storage.googleapis.com/download.tensorflow.org/data/imagenet_class_index.json"
_CLASSES_HASH = "c2c37ea517e94d9795004a39431a14cb"
_MODES = ("caffe", "tf", "torch")
# Means and standard deviations of ImageNet: of blue, green and red from 0 to 255; of red, green and blue from 0 to 1.
_CAFFE_MEAN = (103.939, 116.779, 123.68)
TORCH_MEAN = (0.485, 0.456, 0.406)
TORCH_DEVIATION = (0.229, 0.224, 0.225)


def preprocess_input(x: TensorLike, data_format: str | None = None, mode: str = "caffe") -> Tensor | Array:
    """Return images as a model of ImageNet expects them.

    Args:
        x: an array or tensor of images with three channels, red, green and blue, from 0 to 255: ``[batch, height,
            width, 3]`` or without the batch. An array stays as it is; Keras writes the result over arrays of floats.
        data_format: "channels_last", or "channels_first" for ``[batch, 3, height, width]``.
        mode: "caffe" (blue, green, red, less the mean of ImageNet), "tf" (-1 to 1), or "torch" (0 to 1, less the mean,
            divided by the standard deviation).

    Returns:
        An array or tensor of the same shape; numbers that are not floats become `config.floatx()`.

    Raises:
        ValueError: the mode or data format is unknown, or there are not three channels.

    >>> preprocess_input(np.array([[[0, 127.5, 255]]]), mode="tf")
    array([[[-1.,  0.,  1.]]])
    """
    if mode not in _MODES:
        raise ValueError(f"preprocess_input: mode must be 'caffe', 'tf' or 'torch', got {mode!r}.")
    order = check_data_format("preprocess_input", data_format)
    floats = _as_floats(x)
    if mode == "tf":
        return floats / 127.5 - 1.0
    axis = _channel_axis(floats.shape, order)
    mean, deviation = (_CAFFE_MEAN, None) if mode == "caffe" else (TORCH_MEAN, TORCH_DEVIATION)
    floats = _reversed(floats, axis) if mode == "caffe" else floats / 255.0
    floats = floats - _along(mean, axis, floats)
    return floats if deviation is None else floats / _along(deviation, axis, floats)


def _as_floats(x: TensorLike) -> Tensor | Array:
    """Return the images as floats, of their own dtype if it is one."""
    if isinstance(x, Tensor):
        return x if "float" in str(x.dtype) else ops.cast(x, floatx())
    x = np.asarray(x)
    return x if "float" in str(x.dtype) else x.astype(floatx())


def _channel_axis(shape: Sequence[int | None] | None, data_format: str) -> int:
    """Return the axis of the channels, counted from behind."""
    axis = -1 if data_format == "channels_last" else -3
    if shape is not None and (len(shape) < -axis or shape[axis] not in (3, None)):
        raise ValueError(
            f"preprocess_input: images of three channels are expected in axis {axis} (data_format={data_format!r}), "
            f"got the shape {tuple(shape)}. Repeat the one channel of grey images three times."
        )
    return axis


def _reversed(x: Tensor | Array, axis: int) -> Tensor | Array:
    return ops.flip(x, axis=axis) if isinstance(x, Tensor) else np.flip(x, axis)


def _along(numbers: tuple[float, ...], axis: int, x: Tensor | Array) -> Array:
    """Return one number for each channel, in a shape and dtype that broadcast against `x`."""
    return np.asarray(numbers, str(x.dtype)).reshape((-1,) + (1,) * (-1 - axis))


def decode_predictions(preds: ArrayLike, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Return the likeliest classes of ImageNet, with their names.

    The names are a file of Keras's, which `utils.get_file` fetches once into the cache.

    Args:
        preds: predictions ``[batch, 1000]``.
        top: how many classes to return.

    Returns:
        For each image a list of tuples ``(identifier, name, score)``, the highest score first: ``("n02123045",
        "tabby", 0.52)``.

    Raises:
        ValueError: `preds` has another shape. OSError: the file is not in the cache and can't be fetched.
    """
    scores = np.asarray(preds)
    if scores.ndim != 2 or scores.shape[1] != 1000:
        raise ValueError(
            f"decode_predictions expects scores of the 1000 classes of ImageNet, (batch, 1000); got {scores.shape}."
        )
    path = get_file("imagenet_class_index.json", origin=_CLASSES, cache_subdir="models", file_hash=_CLASSES_HASH)
    with open(path, encoding="utf-8") as stream:
        classes = json.load(stream)
    orders = np.argsort(scores, axis=1)[:, ::-1][:, :top]
    return [[(*classes[str(i)], row[i]) for i in order] for row, order in zip(scores, orders, strict=True)]


def obtain_input_shape(
    input_shape: Sequence[int | None] | None,
    default_size: int,
    min_size: int,
    require_flatten: bool,
    weights: str | PathLike[str] | None = None,
) -> Shape:
    """Return the shape of a model's images, without the batch.

    Args:
        input_shape: what the user gave: (height, width, channels), in the default order of axes, or None.
        default_size: the height and width for which the model was made.
        min_size: the smallest height and width that are left over behind all halvings.
        require_flatten: whether sizes must be known.
        weights: "imagenet" asks for three channels, and with `require_flatten` for the default shape.

    Raises:
        ValueError: the shape does not suit the model.
    """
    shape = None if input_shape is None else tuple(input_shape)
    is_last = image_data_format() == "channels_last"
    axis, sizes = (2, slice(0, 2)) if is_last else (0, slice(1, 3))
    channels = 3
    if weights != "imagenet" and shape and len(shape) == 3:
        channels = shape[axis]
        if channels not in (1, 3):
            warnings.warn(f"Images have 1 or 3 channels, but input_shape={shape} has {channels}.", stacklevel=4)
    pair = (default_size, default_size)
    default = (*pair, channels) if is_last else (channels, *pair)
    if weights == "imagenet" and require_flatten:
        if shape is not None and shape != default:
            raise ValueError(
                f"With include_top=True and weights='imagenet' input_shape must be {default}, got {shape}. Pass "
                "include_top=False for images of other sizes."
            )
        return default
    if not shape:
        return default if require_flatten else (None, None, 3) if is_last else (3, None, None)
    if len(shape) != 3:
        order = "(height, width, channels)" if is_last else "(channels, height, width)"
        raise ValueError(f"input_shape must be three integers, {order}, got {shape}.")
    if weights == "imagenet" and shape[axis] != 3:
        raise ValueError(f"With weights='imagenet' images must have 3 channels, got input_shape={shape}.")
    if any(size is not None and size < min_size for size in shape[sizes]):
        raise ValueError(f"Images must be at least {min_size}x{min_size}, got input_shape={shape}.")
    if require_flatten and None in shape:
        raise ValueError(
            f"With include_top=True input_shape must be known in full, got {shape}. Pass include_top=False for images "
            "whose sizes vary."
        )
    return shape


__all__ = ["decode_predictions", "preprocess_input"]
