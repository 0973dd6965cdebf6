"""TensorFlow's tensors on the wire (`TensorProto`) as arrays, and arrays as these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...engine.common.dtypes import as_dtype
from . import RequestError, TypedArray
from .dtypes import TENSORFLOW
from .large import filled, in_pieces
from .messages import message_class, pool

# By dtype, the field of typed values.
_FIELDS = {
    "bool": "bool_val",
    **dict.fromkeys(["int8", "int16", "int32", "uint8", "uint16"], "int_val"),
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
    "string": "string_val",
}
_MOST_AXES = 64  # of NumPy
_ENUMERATION = pool().FindEnumTypeByName("tensorflow.DataType")
_NUMBERS = {name: value.number for name, value in _ENUMERATION.values_by_name.items()}
_DTYPES = {_NUMBERS[name]: dtype for dtype, name in TENSORFLOW.items()}


def rows_of(tensor: Any) -> int:
    """Return the size of axis 0 that a `TensorProto` has; 1 without axes."""
    sizes = tensor.tensor_shape.dim
    return sizes[0].size if sizes else 1


def array_of(name: str, tensor: Any, most_bytes: int) -> TypedArray:
    """Return the array that a `TensorProto` describes.

    Args:
        name: of the input, for errors.
        tensor: the message.
        most_bytes: how large it may be: a few bytes can ask for a large array that has the same value everywhere.

    Raises:
        RequestError: it has no such form, or is too large.
    """
    what = f"Input {name!r}"
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise RequestError(400, f"{what}: the dtype {tensor.dtype} is not served. There are {', '.join(_NUMBERS)}.")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise RequestError(400, f"{what}: expected a shape with known sizes, got {list(shape)}.")
    if len(shape) > _MOST_AXES:
        raise RequestError(400, f"{what}: the shape has {len(shape)} axes; at most {_MOST_AXES} are taken.")
    count, size = math.prod(shape), as_dtype(dtype).itemsize
    if math.prod(each or 1 for each in shape) * size > most_bytes:  # without elements, too: a model may make some
        raise RequestError(413, f"{what}: the shape {list(shape)} of {dtype} is more than {most_bytes:,} bytes.")
    if tensor.tensor_content:
        return TypedArray(dtype, _from_content(what, dtype, shape, tensor.tensor_content))
    values = _values(dtype, getattr(tensor, _FIELDS[dtype]))
    if len(values) > count:
        raise RequestError(400, f"{what}: the shape {list(shape)} needs {count} values, got {len(values)}.")
    if len(values) < count:  # the last value stands for those that are left out
        last = (
            values[-1:] if len(values) else np.array([b""], object) if dtype == "string" else np.zeros(1, values.dtype)
        )
        values = np.concatenate([values, np.repeat(last, count - len(values))])
    return TypedArray(dtype, values.reshape(shape))


def _from_content(what: str, dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    if dtype == "string":
        raise RequestError(400, f"{what}: text has to come as string_val, not as tensor_content.")
    wanted = as_dtype(dtype)
    needed = math.prod(shape) * wanted.itemsize
    if len(content) != needed:
        raise RequestError(400, f"{what}: the shape {list(shape)} of {dtype} needs {needed} bytes, got {len(content)}.")
    if wanted.kind == "b":  # any byte but 0 is true
        return (np.frombuffer(content, np.uint8) != 0).reshape(shape)
    return np.frombuffer(content, wanted.newbyteorder("<")).astype(wanted, copy=False).reshape(shape)


def _values(dtype: str, given: Any) -> Any:
    if dtype == "string":
        return filled(np.empty(len(given), object), given)
    if _FIELDS[dtype] == "half_val":
        return (np.array(given, "int64") & 0xFFFF).astype("uint16").view(as_dtype(dtype))
    if _FIELDS[dtype] == "int_val":  # wide, so that what is out of the dtype's range can be refused
        return np.array(given, "int64")
    return np.array(given, as_dtype(dtype))


def tensor_of(dtype: str, array: Any) -> Any:
    """Return the `TensorProto` of an array; text may be strings or bytes."""
    made = message_class("tensorflow.TensorProto")
    message = made(dtype=number_of(dtype), tensor_shape=shape_of(array.shape))
    if dtype == "string":
        flat = in_pieces(array.reshape(-1))
        message.string_val.extend([each if isinstance(each, bytes) else each.encode("utf-8") for each in flat])
    else:
        message.tensor_content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return message


def shape_of(sizes: Any) -> Any:
    """Return the `TensorShapeProto` of sizes."""
    return message_class("tensorflow.TensorShapeProto")(dim=[{"size": size} for size in sizes])


def number_of(dtype: str) -> int:
    """Return the number of a dtype in TensorFlow's enumeration."""
    return _NUMBERS[TENSORFLOW[dtype]]
