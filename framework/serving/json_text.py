"""JSON of requests and answers: quick by orjson, exact by the standard library where there is NaN or infinity."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ...distribute.inference import RequestError
from ...distribute.inference.large import in_pieces

if TYPE_CHECKING:
    from ..structures import Array

_TOKENS = re.compile(rb"NaN|Infinity")


def read_json(body: bytes | memoryview) -> Any:
    """Return the value that a body holds; the tokens NaN, Infinity and -Infinity are numbers.

    Raises:
        RequestError: it is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not _TOKENS.search(body):
            raise RequestError(400, f"The body is no JSON: {error}.") from None
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"The body is no JSON: {error}.") from None


def read_object(body: bytes | memoryview) -> dict[str, Any]:
    """Read a body as `read_json` does, and check that it is an object."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise RequestError(400, f"Expected a JSON object, got {type(value).__name__}.")
    return value


def write_json(value: object, arrays: tuple[Array, ...] = ()) -> bytes:
    """Return `value`, which may hold arrays, as JSON.

    Args:
        value: what is written.
        arrays: the arrays in it, which are searched for NaN and infinity: orjson would write null for these.
    """
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain)
    if b"null" in text and any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
        return json.dumps(value, default=_plain).encode("utf-8")
    return text


def as_json_array(array: Array) -> Array | list[object]:
    """Return an array as one that `write_json` takes: text as lists, bfloat16 as float32, numbers in C order."""
    if array.dtype.kind == "T":
        return list(in_pieces(array)) if array.ndim == 1 else array.tolist()
    if array.dtype.isbuiltin != 1:
        array = array.astype("float32")
    return np.ascontiguousarray(array) if array.ndim else array


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form.")
