"""Tensors of the Open Inference Protocol: bytes or lists in, bytes or arrays out."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, MutableSequence, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....distribute.inference import RequestError, WireTensor
from ....distribute.inference.large import in_pieces
from ....engine.common.dtypes import as_dtype
from ..image_inputs import decoded
from ..servable import Servable
from ..signature import OPEN_INFERENCE, Signature, TensorInfo
from ..values import as_array_of, as_input, as_text, check_shape, text_vector

if TYPE_CHECKING:
    from ...structures import Array

EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "model_repository", "sequence", "statistics")
PLATFORM = "anabranch"
RAW_ONLY = ("FP16", "BF16")
_MOST_WITHOUT_ELEMENTS = 1 << 30  # sizes multiplied, but for zeros: what a model makes of them may have elements
_IS_LITTLE = sys.byteorder == "little"
_SIZED = (MutableSequence, bytes, memoryview, np.ndarray)
_LENGTH = struct.Struct("<I")


def from_wire(signature: Signature, tensors: Sequence[WireTensor], check_size: Callable[[int], None]) -> list[Array]:
    """Return arrays for the inputs of a signature, in its order.

    Args:
        signature: inputs and outputs.
        tensors: of the request.
        check_size: called with the number of rows, before values are read.

    Raises:
        RequestError: an input is missing, unknown, given twice, or does not fit.
    """
    given = by_name(tensors)
    Servable.check_names(signature, given)
    return [array_from_wire(info, given[info.name], check_size) for info in signature.inputs]


def by_name(tensors: Sequence[WireTensor]) -> dict[str, WireTensor]:
    """Return the inputs of a request by name.

    Raises:
        RequestError: one is given twice.
    """
    given: dict[str, WireTensor] = {}
    for tensor in tensors:
        if tensor.name in given:
            raise RequestError(400, f"Input {tensor.name!r} is given twice.")
        given[tensor.name] = tensor
    return given


def array_from_wire(info: TensorInfo, tensor: WireTensor, check_size: Callable[[int], None] | None = None) -> Array:
    """Return the array for one input; as `from_wire`.

    Raises:
        RequestError: it does not fit.
    """
    what, wanted = f"Input {info.name!r}", OPEN_INFERENCE[info.dtype]
    if info.image is not None and tensor.datatype == "BYTES":
        return _images(info, tensor)
    if tensor.datatype != wanted:
        raise RequestError(400, f"{what}: expected the datatype {wanted}, got {tensor.datatype!r}.")
    shape = _shape(what, tensor.shape)
    check_shape(info, shape)
    if check_size is not None and shape and isinstance(tensor.data, _SIZED) and shape[0] <= len(tensor.data):
        check_size(shape[0] if info.shape[0] is None else 1)
    if isinstance(tensor.data, bytes | memoryview):
        return _from_bytes(what, info.dtype, shape, tensor.data)
    if wanted in RAW_ONLY:
        raise RequestError(400, f"{what}: {wanted} has no JSON form; send its bytes (binary_data_size).")
    array = as_array_of(what, info.dtype, _listed(tensor.data))
    if array.size != math.prod(shape):
        raise RequestError(400, f"{what}: the shape {shape} needs {math.prod(shape)} values, got {array.size}.")
    return array.reshape(shape)


def _images(info: TensorInfo, tensor: WireTensor) -> Array:
    """Return the array of images that came as bytes, of the shape [rows] or [rows, 1]."""
    what = f"Input {info.name!r}"
    shape = _shape(what, tensor.shape)
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise RequestError(400, f"{what}: images as BYTES have the shape [rows] or [rows, 1], got {list(shape)}.")
    is_raw = isinstance(tensor.data, bytes | memoryview)
    items = _split(what, tensor.data, shape[0]) if is_raw else _listed(tensor.data)
    if not isinstance(items, list) or len(items) != shape[0]:
        raise RequestError(400, f"{what}: the shape {list(shape)} needs a list of {shape[0]} images.")
    return decoded(info, items) if items else as_input(info, np.zeros((0, *[each or 0 for each in info.shape[1:]])))


def _listed(data: object) -> object:
    """Return values as they are, those of a repeated field as a list."""
    is_repeated = isinstance(data, MutableSequence) and not isinstance(data, list)
    return list(in_pieces(data)) if is_repeated else data


def _shape(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(shape)
    except TypeError:
        raise RequestError(400, f"{what}: expected a shape such as [1, 3], got {shape!r}.") from None
    for size in sizes:
        if type(size) is not int or not 0 <= size < 2**62:
            raise RequestError(
                400, f"{what}: expected sizes that are whole numbers from 0 to 2**62 - 1, got {list(sizes)}."
            )
    if 0 in sizes and math.prod(size or 1 for size in sizes) > _MOST_WITHOUT_ELEMENTS:
        raise RequestError(400, f"{what}: the shape {list(sizes)} is too large, though it has no elements.")
    return sizes


def _from_bytes(what: str, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    count = math.prod(shape)
    if dtype == "string":
        texts = [as_text(what, each) for each in _split(what, data, count)]
        if len(texts) != count:
            found = "more" if len(texts) > count else len(texts)
            raise RequestError(400, f"{what}: the shape {shape} needs {count} elements, got {found}.")
        return text_vector(texts).reshape(shape)
    wanted = as_dtype(dtype)
    if len(data) != count * wanted.itemsize:
        raise RequestError(
            400, f"{what}: the shape {shape} of {dtype} needs {count * wanted.itemsize} bytes, got {len(data)}."
        )
    if wanted.kind == "b":  # any byte but 0 is true
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    if not _IS_LITTLE:
        return np.frombuffer(data, wanted.newbyteorder("<")).astype(wanted).reshape(shape)
    return np.frombuffer(data, wanted).reshape(shape)


def _split(what: str, data: bytes | memoryview, count: int) -> list[bytes]:
    """Return the elements of BYTES, at most ``count + 1``: each has its length in front, four bytes, lowest first."""
    found: list[bytes] = []
    place = 0
    while place < len(data) and len(found) <= count:
        if place + 4 > len(data):
            raise RequestError(400, f"{what}: {len(data) - place} bytes are left where a length of 4 bytes should be.")
        (length,) = _LENGTH.unpack_from(data, place)
        place += 4
        if place + length > len(data):
            raise RequestError(400, f"{what}: an element of {length} bytes is said, and {len(data) - place} are left.")
        found.append(bytes(data[place : place + length]))
        place += length
    return found


def as_wire(info: TensorInfo, array: Array, raw: bool) -> WireTensor:
    """Return an output for the wire; its data are bytes if `raw`, else the array."""
    return WireTensor(info.name, OPEN_INFERENCE[info.dtype], list(array.shape), as_bytes(array) if raw else array)


def as_bytes(array: Array) -> bytes:
    """Return the bytes of an array, in C order, the lowest byte of each number first."""
    if array.dtype.kind == "T":
        texts = [text.encode("utf-8") for text in in_pieces(array.reshape(-1))]
        return b"".join([part for text in texts for part in (_LENGTH.pack(len(text)), text)])
    return (array if _IS_LITTLE else array.astype(array.dtype.newbyteorder("<"))).tobytes()
