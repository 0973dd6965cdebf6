"""Integers of four bits, two in a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import name_of
from ...engine.graph import Tensor
from ...engine.ops.base import as_array

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike


_BYTES = ("int8", "uint8")


def pack_int4(arr: TensorLike, axis: int = 0, dtype: str = "int8") -> tuple[Tensor, tuple[int, ...], int]:
    """Put two integers of four bits into each byte.

    Args:
        arr: int8 in -8 to 7, or uint8 in 0 to 15, of known values.
        axis: along which neighbours share a byte: the first in the low half, the second in the high one.
        dtype: of `arr` and of the result, "int8" or "uint8".

    Returns:
        The bytes, their shape, and the size of `axis` before.

    Raises:
        ValueError: `dtype` is neither of these.
        TypeError: `arr` has another dtype.

    Source: ``keras.quantizers.pack_int4``.

    >>> pack_int4(np.array([[-3, 7], [2, -8], [1, 0]], "int8"))[0].numpy().tolist()
    [[45, -121], [1, 0]]
    """
    _check_dtype(dtype)
    array = as_array(arr)
    if array.dtype != dtype:
        raise TypeError(f"Expected {dtype} tensor for packing, got {array.dtype.name}.")
    packed = packed_array(array, axis)
    return ops.convert_to_tensor(packed), packed.shape, array.shape[axis]


def packed_array(array: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return `pack_int4` of an array."""
    numbers = np.moveaxis(array, axis, 0)
    if len(numbers) % 2:
        numbers = np.concatenate([numbers, np.zeros_like(numbers[:1])])
    halves = numbers.view(np.uint8) & 15
    packed = halves[::2] | (halves[1::2] << 4)
    return np.ascontiguousarray(np.moveaxis(packed, 0, axis)).view(array.dtype)


def unpack_int4(packed: TensorLike, orig_len: int, axis: int = 0, dtype: str = "int8") -> Tensor:
    """Take the integers of four bits out of their bytes again.

    Args:
        packed: what `pack_int4` gave.
        orig_len: the size of `axis` before.
        axis: as for `pack_int4`.
        dtype: "int8" for -8 to 7, "uint8" for 0 to 15.

    Returns:
        The integers.

    Raises:
        ValueError: `dtype` is neither of these.
        TypeError: `packed` has another dtype.

    Source: ``keras.quantizers.unpack_int4``.

    >>> unpack_int4(np.array([[45, -121], [1, 0]], "int8"), 3).numpy().tolist()
    [[-3, 7], [2, -8], [1, 0]]
    """
    _check_dtype(dtype)
    tensor = ops.convert_to_tensor(packed)
    if name_of(tensor.dtype) not in _BYTES:
        raise TypeError(f"Expected int8 or uint8 tensor for unpacking, got {name_of(tensor.dtype)}")
    shape = [int(size) for size in tensor.shape or () if size is not None]
    axis %= len(shape)
    unsigned = ops.cast(tensor, "int32") & 255
    halves = ops.stack([unsigned & 15, ops.right_shift(unsigned, 4)], axis=axis + 1)
    joined = ops.reshape(halves, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
    found = joined[(*[slice(None)] * axis, slice(orig_len))]
    if dtype == "int8":
        found = (found ^ 8) - 8
    return ops.cast(found, dtype)


def unpacked_array(packed: np.ndarray, orig_len: int, axis: int = -1) -> np.ndarray:
    """Return `unpack_int4` of an array, in its dtype."""
    halves = np.moveaxis(packed.view(np.uint8), axis, 0)
    found = np.empty((2 * len(halves), *halves.shape[1:]), np.uint8)
    found[::2], found[1::2] = halves & 15, halves >> 4
    found = found[:orig_len].view(packed.dtype)
    if packed.dtype == np.int8:
        found = (found ^ 8) - np.int8(8)
    return np.ascontiguousarray(np.moveaxis(found, 0, axis))


def _check_dtype(dtype: str) -> None:
    if dtype not in _BYTES:
        raise ValueError(f"Expected dtype to be 'int8' or 'uint8', but got '{dtype}'.")


def unpack_last(packed: Any, size: int) -> Tensor:
    """Return the integers of int8 bytes that were packed along the last axis; sizes of other axes may be unknown."""
    halves = ops.stack([ops.left_shift(packed, 4), packed], axis=-1)
    integers = ops.right_shift(halves, 4)  # which keeps the sign
    width = int(packed.shape[-1])
    shape = ops.shape(packed)
    joined = ops.reshape(integers, (*[shape[axis] for axis in range(len(packed.shape) - 1)], 2 * width))
    return joined if size == 2 * width else joined[..., :size]
