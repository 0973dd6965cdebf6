"""Values in another code: `multi_hot`, `saturate_cast`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike, as_dtype
from ..arrays.positions import one_hot
from ..base import Tensor, TensorLike, cast, convert_to_tensor
from ..math.comparison import clip
from ..math.reduction import max


def multi_hot(
    inputs: TensorLike,
    num_classes: int | None = None,
    axis: int = -1,
    dtype: DTypeLike = None,
    sparse: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Return vectors with a one at the place of each label of a sample.

    Args:
        inputs: integers, [labels] or [batch, labels, ...]. Labels outside 0 to `num_classes` - 1 count for nothing.
        num_classes: the size of the vectors; ``num_tokens`` is its former name.
        axis: where the classes stand in the encoding of the single labels.
        dtype: of the result; float32 by default.
        sparse: sparse tensors are not supported.

    Returns:
        [num_classes] or [batch, num_classes, ...].

    Raises:
        ValueError: no `num_classes`, or sparse tensors are asked for.

    >>> import anabranch as ab
    >>> ab.ops.multi_hot([0, 4], 5)
    Tensor([1., 0., 0., 0., 1.], dtype=float32)
    """
    if num_classes is None:
        num_classes = kwargs.pop("num_tokens", None)
    if kwargs:
        raise TypeError(f"multi_hot takes no argument {', '.join(sorted(kwargs))}.")
    if num_classes is None:
        raise ValueError("multi_hot needs num_classes: how many classes there are.")
    labels = convert_to_tensor(inputs)
    if labels.shape is None:
        raise ValueError(f"multi_hot needs labels of known rank; got {labels!r}. Reshape them first.")
    if not labels.shape:
        raise ValueError(
            "multi_hot takes the labels of a sample along an axis; got a scalar. Use one_hot for one label."
        )
    if labels.shape[-1 if len(labels.shape) == 1 else 1] == 0:
        raise ValueError("multi_hot needs at least one label a sample; got an axis of size 0.")
    hot = one_hot(labels, num_classes, axis=axis, dtype=dtype, sparse=sparse)
    return max(hot, axis=1 if len(labels.shape) > 1 else 0)


def saturate_cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """Return `x` in another dtype, where values that it can't hold become the nearest that it can.

    Infinities become the largest finite values that both dtypes have.

    >>> import anabranch as ab
    >>> ab.ops.saturate_cast([-1.0, 300.0], "uint8")
    Tensor([  0, 255], dtype=uint8)
    """
    wanted, tensor = as_dtype(dtype), convert_to_tensor(x)
    if "c" in (tensor.dtype.kind, wanted.kind):
        raise TypeError(f"saturate_cast has no range for complex numbers; got {tensor.dtype} to {wanted}. Use cast.")
    if tensor.dtype == dtypes.bool_:
        return cast(tensor, wanted)
    low, high = _common_range(tensor.dtype, wanted)
    return cast(clip(tensor, low, high), wanted)


def _common_range(source: DType, target: DType) -> tuple[Any, Any]:
    """Return the smallest and largest numbers of `source` within the range of both dtypes."""
    (low, high), (least, most) = _range(source), _range(target)
    first, last = np.asarray(_max(low, least)).astype(source), np.asarray(_min(high, most)).astype(source)
    if _number(first) < least:  # rounded to a neighbour outside
        first = np.nextafter(first, np.zeros_like(first))
    if _number(last) > most:
        last = np.nextafter(last, np.zeros_like(last))
    return first[()], last[()]


def _range(dtype: DType) -> tuple[int | float, int | float]:
    if dtype == dtypes.bool_:
        return 0, 1
    if dtypes.is_integer(dtype):
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return -dtypes.largest(dtype), dtypes.largest(dtype)


def _number(value: Any) -> int | float:
    """Return a Python number, which compares exactly with ints of any size."""
    return int(value) if value.dtype.kind in "iu" else float(value)


def _max(first: int | float, second: int | float) -> int | float:
    return first if first >= second else second


def _min(first: int | float, second: int | float) -> int | float:
    return first if first <= second else second


__all__ = ["multi_hot", "saturate_cast"]
