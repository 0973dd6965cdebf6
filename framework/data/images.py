"""Images in files and as arrays, through Pillow, which is loaded on first use."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.common.names_elsewhere import IMAGES_MODULE
from ...engine.graph import Tensor, eagerly
from ...engine.objects.on_demand import on_demand
from ...engine.ops.data_format import check_data_format
from ...engine.session.function import HostFunction
from ..config import floatx
from ..structures import Array

if TYPE_CHECKING:
    from types import ModuleType
    from typing import IO

    from numpy.typing import ArrayLike
    from PIL.Image import Image

PathLike = str | os.PathLike[str]
_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}
_RESAMPLING = ("nearest", "bilinear", "bicubic", "hamming", "box", "lanczos")


def _pillow(what: str) -> ModuleType:
    """Return Pillow's module of images.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            f"{what} reads and writes images with Pillow, which is not installed. Install it with "
            "`pip install anabranch[images]`, or `pip install pillow`."
        ) from error
    return PIL.Image


def array_to_img(x: ArrayLike, data_format: str | None = None, scale: bool = True, dtype: DTypeLike = None) -> Image:
    """Convert an array to an image of Pillow's.

    Args:
        x: ``(height, width, channels)`` with 1, 3 or 4 channels.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        scale: stretch the values to 0 ... 255; otherwise they are taken as they are.
        dtype: what to compute in; by default `config.floatx()`.

    Raises:
        ValueError: the array has other axes or channels. ImportError: Pillow is not installed.
    """
    pillow = _pillow("array_to_img")
    array = np.asarray(x, dtype=dtype or floatx())
    if array.ndim != 3:
        raise ValueError(f"array_to_img expects one image (3 axes), got an array of shape {array.shape}.")
    if check_data_format("array_to_img", data_format) == "channels_first":
        array = array.transpose(1, 2, 0)
    channels = array.shape[2]
    if channels not in (1, 3, 4):
        raise ValueError(f"array_to_img expects 1, 3 or 4 channels, got an array of shape {np.shape(x)}.")
    if scale and array.size:
        array = array - array.min()
        array = array / (array.max() or 1) * 255
    if channels == 1 and array.size and array.max() > 255:
        return pillow.fromarray(array[:, :, 0].astype("int32"))
    return pillow.fromarray(array.astype("uint8") if channels > 1 else array[:, :, 0].astype("uint8"))


def img_to_array(img: ArrayLike | Image, data_format: str | None = None, dtype: DTypeLike = None) -> Array:
    """Convert an image of Pillow's (or anything that converts to an array) to an array with channels.

    Args:
        img: the image.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        dtype: of the array; by default `config.floatx()`.

    Returns:
        ``(height, width, channels)``, or ``(channels, height, width)``.

    Raises:
        ValueError: it has neither 2 nor 3 axes.

    >>> img_to_array(np.zeros((2, 5))).shape
    (2, 5, 1)
    """
    channels_first = check_data_format("img_to_array", data_format) == "channels_first"
    array = np.asarray(img, dtype=dtype or floatx())
    if array.ndim == 2:
        return array[None] if channels_first else array[:, :, None]
    if array.ndim != 3:
        raise ValueError(f"img_to_array expects an image with 2 or 3 axes, got shape {array.shape}.")
    return array.transpose(2, 0, 1) if channels_first else array


def load_img(
    path: PathLike | io.BytesIO,
    color_mode: str = "rgb",
    target_size: tuple[int, int] | None = None,
    interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Image:
    """Load an image file as an image of Pillow's.

    Args:
        path: the file's name, or its content.
        color_mode: "grayscale", "rgb" or "rgba".
        target_size: ``(height, width)`` to resize to.
        interpolation: "nearest", "bilinear", "bicubic", "hamming", "box" or "lanczos".
        keep_aspect_ratio: cut off what does not fit rather than distort.

    Raises:
        ValueError: an option is unknown. TypeError: `path` is not a path. ImportError: Pillow is not installed.

    >>> import anabranch as ab
    >>> ab.utils.save_img("small.png", ab.ops.ones((4, 6, 3)).numpy())
    >>> ab.utils.load_img("small.png", target_size=(2, 3)).size
    (3, 2)
    """
    pillow = _pillow("load_img")
    if color_mode not in _MODES:
        raise ValueError(f"color_mode must be 'grayscale', 'rgb' or 'rgba', got {color_mode!r}.")
    if interpolation not in _RESAMPLING:
        raise ValueError(f"interpolation={interpolation!r} must be one of {', '.join(_RESAMPLING)}.")
    image = _converted(pillow.open(io.BytesIO(_content(path))), color_mode)
    if target_size is None or image.size == (target_size[1], target_size[0]):
        return image
    resample = getattr(pillow.Resampling, interpolation.upper())
    return image.resize(
        (target_size[1], target_size[0]), resample, box=_middle(image.size, target_size) if keep_aspect_ratio else None
    )


def open_image(content: io.BytesIO, formats: Sequence[str] | None = None) -> Image:
    """Open an image of one of some formats of Pillow's, by default any; the pixels are not read yet."""
    return _pillow("open_image").open(content, formats=formats)


def _content(path: object) -> bytes:
    if isinstance(path, io.BytesIO):
        return path.getvalue()
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"load_img takes a path or a BytesIO, got {type(path).__name__}.")
    return Path(os.fsdecode(path)).read_bytes()


def _converted(image: Image, color_mode: str) -> Image:
    if color_mode == "grayscale" and image.mode in ("L", "I;16", "I"):  # grey already, of 8, 16 or 32 bits
        return image
    return image if image.mode == _MODES[color_mode] else image.convert(_MODES[color_mode])


def _middle(size: tuple[int, int], target_size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the largest box in the middle with the ratio of the target: left, upper, right, lower."""
    (width, height), (target_height, target_width) = size, target_size
    box_height = min(height, width * target_height // target_width)
    box_width = min(width, height * target_width // target_height)
    left, top = (width - box_width) // 2, (height - box_height) // 2
    return left, top, left + box_width, top + box_height


def smart_resize(
    x: ArrayLike | Tensor,
    size: Sequence[int],
    interpolation: str = "bilinear",
    data_format: str = "channels_last",
) -> Tensor:
    """Resize an image without distortion: the largest part in the middle with the ratio of the new size is kept.

    Args:
        x: ``(height, width, channels)`` or ``(batch, height, width, channels)``, an array or a tensor.
        size: the new height and width.
        interpolation: "bilinear", "nearest", "bicubic", "lanczos3" or "lanczos5".
        data_format: "channels_last" or "channels_first"; None for `config.image_data_format()`.

    Returns:
        An array for an array, a tensor for a tensor.

    Raises:
        ValueError: x has other axes or unknown sizes, or size is not a pair.

    >>> smart_resize(np.arange(8.0).reshape(2, 4, 1), (2, 2))[..., 0]
    Tensor([[1., 2.],
            [5., 6.]], dtype=float32)
    """
    target = tuple(size)
    if len(target) != 2:
        raise ValueError(f"smart_resize: size must be (height, width), got {size!r}.")
    shape = np.shape(x) if not isinstance(x, Tensor) else x.shape or ()
    if len(shape) not in (3, 4):
        raise ValueError(f"smart_resize expects an image or a batch of images (3 or 4 axes), got shape {shape}.")
    order = check_data_format("smart_resize", data_format)
    first = len(shape) - (3 if order == "channels_last" else 2)
    height, width = shape[first], shape[first + 1]
    if height is None or width is None:
        raise ValueError(f"smart_resize needs a known height and width, got shape {shape}. Give the sizes in Input.")
    kept_height = max(min(height, int(width * target[0] / target[1])), 1)
    kept_width = max(min(width, int(height * target[1] / target[0])), 1)
    top, left = (height - kept_height) // 2, (width - kept_width) // 2
    box = (slice(top, top + kept_height), slice(left, left + kept_width))
    key = (*[slice(None)] * first, *box)
    if isinstance(x, Tensor):
        return ops.image.resize(x[key], target, interpolation=interpolation, data_format=order)
    array = np.asarray(x)
    floats = array if array.dtype.kind == "f" and array.dtype.itemsize < 8 else array.astype(floatx())
    resized = HostFunction(lambda image: ops.image.resize(image, target, interpolation, data_format=order))
    with eagerly():
        return resized(floats[key])


def resizer(
    size: tuple[int, ...], interpolation: str, crop: bool, padded: bool, data_format: str
) -> HostFunction[Tensor]:
    """Return a function that gives an image another size, as `image_dataset_from_directory` does.

    Args:
        size: ``(height, width)``.
        interpolation, data_format: see `ops.image.resize`.
        crop, padded: keep the ratio of height to width, by cutting off or by filling up.

    Raises:
        ValueError: there are not two sizes, or both ratios are to be kept.
    """
    if len(size) != 2:
        raise ValueError(f"image_size must be (height, width), got {size}.")
    if crop and padded:
        raise ValueError("Only one of crop_to_aspect_ratio and pad_to_aspect_ratio can be True.")
    resize = HostFunction(
        lambda image: ops.image.resize(
            image,
            size,
            interpolation=interpolation,
            crop_to_aspect_ratio=crop,
            pad_to_aspect_ratio=padded,
            data_format=data_format,
        )
    )
    return eagerly()(resize)  # files are read at once where a graph is being built, too


def save_img(
    path: str | os.PathLike[str] | IO[bytes],
    x: ArrayLike,
    data_format: str | None = None,
    file_format: str | None = None,
    scale: bool = True,
    **kwargs: object,
) -> None:
    """Write an array as an image file.

    Args:
        path: the file's name, or an open file.
        x: ``(height, width, channels)``.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        file_format: such as "png"; by default from the name.
        scale: stretch the values to 0 ... 255.
        **kwargs: for Pillow's ``save``.

    Raises:
        ImportError: Pillow is not installed.

    >>> import anabranch as ab
    >>> import os
    >>> ab.utils.save_img("ones.png", ab.ops.ones((4, 6, 3)).numpy())
    >>> os.path.exists("ones.png")
    True
    """
    image = array_to_img(x, data_format=data_format, scale=scale)
    if file_format is None and isinstance(path, (str, os.PathLike)):
        file_format = Path(path).suffix[1:]
    file_format = (file_format or "").lower().replace("jpg", "jpeg") or None
    if image.mode == "RGBA" and file_format == "jpeg":
        warnings.warn("JPEG has no transparency: the image is written as RGB.", stacklevel=2)
        image = image.convert("RGB")
    image.save(path, format=file_format, **kwargs)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=IMAGES_MODULE)
