"""Values of requests as arrays of the dtypes and shapes that a signature asks for; errors name the input."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.inference import RequestError
from ...distribute.inference.large import filled, in_pieces
from ...engine.common.dtypes import DType, as_dtype, name_of
from .image_inputs import decoded, is_encoded
from .signature import TensorInfo

if TYPE_CHECKING:
    from ..structures import Array

_NEVER_TOO_SMALL = 4  # bytes of a float that holds all integers, if rounded
_MOST_AXES = 64  # of NumPy's arrays
_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}  # of the wanted dtype: kinds that may be given


def as_input(info: TensorInfo, value: object) -> Array:
    """Return `value`, an array, nested lists or images, as an array for an input.

    Raises:
        RequestError: it is not an array, its values are of another kind or out of range, or its shape does not fit.
    """
    if info.image is not None and is_encoded(value):
        return decoded(info, value)
    array = as_array_of(f"Input {info.name!r}", info.dtype, value)
    check_shape(info, array.shape)
    return array


def check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Raise a `RequestError` where an array of such a shape does not fit the input."""
    if not info.accepts(shape):
        wanted = f"({', '.join('any' if size is None else str(size) for size in info.shape)})"
        raise RequestError(400, f"Input {info.name!r}: expected the shape {wanted}, got {tuple(shape)}.")


def as_array_of(what: str, dtype: str, value: object) -> Array:
    """Return `value` as an array of a dtype; numbers keep their kind: no text as numbers, no fractions as integers."""
    if dtype == "string":
        return _as_strings(what, value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(400, f"{what}: expected an array of {dtype}, got unequal lists: {_said(error)}.") from None
    wanted = as_dtype(dtype)
    if wanted.kind in "iu" and array.dtype.kind in ("f", "O") and array is not value:
        array = _exact(value, array)
    if array.dtype == wanted or array.size == 0:
        return array.astype(wanted, copy=False)
    given = array.dtype.kind
    if given == "O" and _are_integers(array):
        given = "i"
    if given not in _KINDS[wanted.kind] and given != wanted.kind:
        found = {"O": "null or mixed values"}.get(given, "text" if given in "UST" else name_of(array.dtype))
        raise RequestError(400, f"{what}: expected values of {dtype}, got {found}.")
    if wanted.kind in "iu":
        _check_range(what, array, wanted)
    if array.dtype.kind in "iub" and wanted.itemsize >= _NEVER_TOO_SMALL:
        return array.astype(wanted)
    try:
        with np.errstate(over="ignore"):  # a large float64 is infinite in float32, as in NumPy
            return array.astype(wanted)
    except OverflowError:
        raise RequestError(400, f"{what}: expected values of {dtype}, got an integer that is too large.") from None


def _exact(value: object, array: Array) -> Array:
    """Return an array of integers as objects, where NumPy made floats of those that share no dtype; else `array`."""
    exact = np.array(value, object)
    return exact if exact.shape == array.shape and _are_integers(exact) else array


def _are_integers(array: Array) -> bool:
    return all(type(each) is int for each in array.flat)


def _said(error: Exception) -> str:
    return str(error).rstrip(".")


def _check_range(what: str, array: Array, wanted: DType) -> None:
    limits = np.iinfo(wanted)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        found = low if low < limits.min else high
        raise RequestError(400, f"{what}: expected values of {wanted.name}, got {found}, which is out of its range.")


def _as_strings(what: str, value: object) -> Array:
    try:
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "USTO":
                raise RequestError(400, f"{what}: expected text, got {name_of(value.dtype)}.")
            flat, shape = value.reshape(-1), value.shape
        else:
            boxed = _boxed(what, value)
            is_flat = isinstance(boxed, list) and not any(isinstance(each, list) for each in boxed)
            nested = None if is_flat else np.array(boxed, object)
            flat, shape = (boxed, (len(boxed),)) if nested is None else (nested.reshape(-1), nested.shape)
        return text_vector([as_text(what, each) for each in in_pieces(flat)]).reshape(shape)
    except ValueError as error:
        raise RequestError(400, f"{what}: expected an array of text, got unequal lists: {_said(error)}.") from None


def text_vector(texts: list[str]) -> Array:
    """Return strings as a vector."""
    return filled(np.empty(len(texts), as_dtype("string")), texts)


def _boxed(what: str, value: object, depth: int = 0) -> Any:
    """Return `value` with ``{"b64": ...}`` decoded; these become bytes."""
    if isinstance(value, (list, tuple)):
        if depth == _MOST_AXES:
            raise RequestError(400, f"{what}: expected an array of text, got lists in more than {_MOST_AXES} lists.")
        return [_boxed(what, item, depth + 1) for item in value]
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise RequestError(400, f"{what}: a value {{'b64': ...}} is no base64: {error}.") from None
    return value


def as_text(what: str, value: object) -> str:
    """Return a string, or the string that bytes of UTF-8 hold."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise RequestError(400, f"{what}: expected text, got {type(value).__name__}.")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"{what}: expected bytes that are UTF-8, got others ({error.reason}).") from None
