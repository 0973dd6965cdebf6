"""Helpers of all image functions: which axes are which, and images as batches with channels last."""

from __future__ import annotations

import builtins
from typing import Any

from ...common import dtypes
from ...common.dtypes import DType, result_type
from ...graph.spec import shape_text
from ..arrays.axes import transpose
from ..arrays.shaping import DimLike, expand_dims, squeeze
from ..base import Tensor, TensorLike, cast, convert_to_tensor
from ..math.comparison import maximum
from ..math.elementwise import sign
from ..math.mathematics import trunc
from ..text.encoding import saturate_cast


def image_tensor(what: str, images: TensorLike, batch_only: bool = False) -> Tensor:
    """Return the images as a tensor.

    Raises:
        ValueError: it is neither one image (3 axes) nor a batch of images (4 axes).
    """
    tensor = convert_to_tensor(images)
    allowed = (4,) if batch_only else (3, 4)
    if tensor.shape is None or len(tensor.shape) not in allowed:
        expected = "a batch of images (4 axes)" if batch_only else "one image (3 axes) or a batch of images (4 axes)"
        raise ValueError(f"{what}: expected {expected}; got shape {shape_text(tensor.shape)}.")
    return tensor


def height_axis(tensor: Tensor, data_format: str) -> int:
    """Return the axis of the rows; that of the columns is the next one."""
    return rank_of(tensor) - (3 if data_format == "channels_last" else 2)


def channels_axis(tensor: Tensor, data_format: str) -> int:
    """Return the axis of the channels."""
    return rank_of(tensor) - (1 if data_format == "channels_last" else 3)


def rank_of(tensor: Tensor) -> int:
    """Return the rank, which must be known."""
    assert tensor.shape is not None
    return len(tensor.shape)


def as_batch(tensor: Tensor, data_format: str) -> Tensor:
    """Return one image or several as [batch, height, width, channels]."""
    if rank_of(tensor) == 3:
        tensor = expand_dims(tensor, 0)
    return tensor if data_format == "channels_last" else transpose(tensor, (0, 2, 3, 1))


def from_batch(batch: Tensor, like: Tensor, data_format: str) -> Tensor:
    """Invert `as_batch`: return the layout of the tensor `like` that was given."""
    if data_format == "channels_first":
        batch = transpose(batch, (0, 3, 1, 2))
    return squeeze(batch, 0) if rank_of(like) == 3 else batch


def compute_dtype(tensor: Tensor) -> DType:
    """Return the dtype in which pixels are weighted: at least float32."""
    return result_type(tensor.dtype, dtypes.float32) if dtypes.is_floating(tensor.dtype) else dtypes.float32


def restore_dtype(values: Tensor, dtype: DType) -> Tensor:
    """Return weighted pixels in the dtype of the images: integers are rounded, halves away from zero, and in range."""
    if values.dtype == dtype:
        return values
    if dtypes.is_floating(dtype):
        return cast(values, dtype)
    return saturate_cast(trunc(values + sign(values) * 0.5), dtype)


def larger(first: Any, second: Any) -> DimLike:
    """Return the larger of two sizes, ints or scalar tensors."""
    if isinstance(first, int) and isinstance(second, int):
        return builtins.max(first, second)
    return maximum(first, second)


def smaller(first: Any, second: Any) -> DimLike:
    """Return the smaller of two sizes, ints or scalar tensors."""
    return -larger(-first, -second)
