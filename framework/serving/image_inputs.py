"""Inputs that may come as PNG or JPEG bytes: decoded and resized as `image_dataset_from_directory` does it."""

from __future__ import annotations

import base64
import binascii
import io
import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ...distribute.inference import RequestError
from ...engine.common.dtypes import as_dtype
from ..data.images import img_to_array, load_img, open_image, resizer
from .signature import ImageForm, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...engine.graph import Tensor
    from ..structures import Array

MAX_PIXELS = 1 << 25  # of an image: a few bytes can ask for many
MAX_BYTES = 1 << 28  # of the images of a request, as arrays
_MODES = {1: "grayscale", 3: "rgb", 4: "rgba"}
_FORMATS = ("PNG", "JPEG")
_turn = threading.Lock()


def check_image_form(info: TensorInfo, form: ImageForm) -> None:
    """Raise a `ValueError` unless images can be made arrays for an input."""
    shape = info.shape
    if len(shape) != 4 or shape[0] is not None or shape[3] not in _MODES or (shape[1] is None) != (shape[2] is None):
        raise ValueError(
            f"input {info.name!r} has the shape {shape}; expected (None, height, width, channels), with 1, 3 or 4 "
            "channels, and both sizes or none."
        )
    if as_dtype(info.dtype).kind not in "iufV":
        raise ValueError(f"input {info.name!r} is {info.dtype}, and pixels are numbers.")
    if shape[1] is None and form.resize is not None:
        raise ValueError(f"input {info.name!r} has no size to which images could be resized. Give resize=None.")
    if form.resize is None and (form.crop_to_aspect_ratio or form.pad_to_aspect_ratio):
        raise ValueError(f"input {info.name!r}: crop_to_aspect_ratio and pad_to_aspect_ratio belong to resize.")
    if form.resize is not None:
        _resizer(4, 4, form)(np.zeros((1, 1, 1), "float32"))  # checks the options


def is_encoded(value: object) -> bool:
    """Return whether a value is bytes, base64 or a list of them, in place of an array."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "SOT" and value.ndim > 0
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bytes, str)) or (isinstance(value, dict) and value.keys() == {"b64"})


def decoded(info: TensorInfo, value: object) -> Array:
    """Return images as an array for an input.

    Args:
        info: the input.
        value: an image for each row: its bytes, ``{"b64": ...}`` or base64.

    Raises:
        RequestError: one is not an image, of another size or too large.
    """
    what = f"Input {info.name!r}"
    images = value.reshape(-1).tolist() if isinstance(value, np.ndarray) and value.ndim <= 2 else value
    if not isinstance(images, (list, tuple)):
        raise RequestError(400, f"{what}: expected a list of images, one for each row.")
    held = 0
    arrays: list[Array] = []
    for row, given in enumerate(images):
        try:
            array = _one(info, _bytes(given))
        except _NoImageError as error:
            raise RequestError(400, f"{what}, row {row}: {error}") from None
        except ImportError as error:
            raise RequestError(500, f"{what}: {error}") from None
        held += array.nbytes
        if held > MAX_BYTES:
            raise RequestError(413, f"{what}: the images are more than {MAX_BYTES:,} bytes as arrays. Send fewer.")
        if arrays and array.shape != arrays[0].shape:
            raise RequestError(400, f"{what}, row {row}: the size is {array.shape}; row 0 has {arrays[0].shape}.")
        arrays.append(array)
    return np.stack(arrays)


class _NoImageError(Exception):
    """The bytes that were sent are not an image, or one of another size; the message says why."""


def _bytes(value: object) -> bytes:
    while isinstance(value, (list, tuple)) and len(value) == 1:  # a row of the shape [1]
        value = value[0]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        value = value["b64"]
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _NoImageError(f"expected the bytes of an image, got {type(value).__name__}.")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _NoImageError(f"expected bytes as base64: {error}.") from None


def _one(info: TensorInfo, content: bytes) -> Array:
    """Return the array of one image.

    Raises:
        _NoImageError: it can't be read, or is of another size.
    """
    form, (height, width, channels) = info.image or ImageForm(), info.shape[1:]
    columns, rows = _size(content)
    try:
        pixels = img_to_array(load_img(io.BytesIO(content), _MODES[channels or 3]), "channels_last", "float32")
    except Exception as error:  # what Pillow's decoders raise depends on the bytes
        raise _NoImageError(f"the image can't be read: {error}.") from None
    if height is not None and width is not None and (rows, columns) != (height, width):
        if form.resize is None:
            raise _NoImageError(f"expected an image of {height} x {width} pixels, got {rows} x {columns}.")
        with _turn:
            pixels = np.asarray(_resizer(height, width, form)(pixels))
    wanted = as_dtype(info.dtype)
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        pixels = np.clip(np.round(pixels), limits.min, limits.max)
    return pixels.astype(wanted)


def _size(content: bytes) -> tuple[int, int]:
    """Return width and height, which are known before the pixels are read.

    Raises:
        _NoImageError: it is not a PNG or JPEG, or has too many pixels.
    """
    file = io.BytesIO(content)
    try:
        with open_image(file, _FORMATS) as image:
            size = image.size
    except ImportError:
        raise
    except Exception as error:
        why = str(error).replace(f" {file!r}", "")  # Pillow names the object that it reads from
        raise _NoImageError(f"expected PNG or JPEG, got {len(content)} bytes: {why}.") from None
    if math.prod(size) > MAX_PIXELS:
        raise _NoImageError(f"the image has {size[1]} x {size[0]} pixels; at most {MAX_PIXELS:,} are read.")
    return size


@lru_cache(maxsize=32)
def _resizer(height: int, width: int, form: ImageForm) -> Callable[[Array], Tensor]:
    crop, padded = form.crop_to_aspect_ratio, form.pad_to_aspect_ratio
    return resizer((height, width), form.resize or "nearest", crop, padded, "channels_last")


def image_forms(
    caller: str, infos: Sequence[TensorInfo], images: Mapping[str, Mapping[str, object]] | None
) -> tuple[TensorInfo, ...]:
    """Return inputs with the forms in which images may come.

    Args:
        caller: the function that was given `images`, for errors.
        infos: the inputs.
        images: by the name of an input, ``{"resize": ...}``.

    Raises:
        TypeError, ValueError: an input can't come as images, or an option is unknown.
    """
    if not isinstance(images, dict) or not all(isinstance(each, dict) for each in images.values()):
        raise TypeError(f'{caller}(images={images!r}): expected a dict such as {{"x": {{"resize": "bilinear"}}}}.')
    names = [info.name for info in infos]
    unknown = [name for name in images if name not in names]
    if unknown:
        raise ValueError(f"{caller}(images=...): no input is called {unknown[0]!r}. There are {', '.join(names)}.")
    found: list[TensorInfo] = []
    for info in infos:
        if info.name in images:
            try:
                form = ImageForm.from_json(images[info.name])
                check_image_form(info, form)
            except ValueError as error:
                raise ValueError(f"{caller}(images=...): {error}") from None
            info = info.with_image(form)
        found.append(info)
    return tuple(found)
