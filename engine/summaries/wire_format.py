"""The wire format of protocol buffers, as far as it is written here: a message is a row of fields."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def varint(value: int) -> bytes:
    """Return an integer in groups of seven bits, the lowest first; negative ones as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def integer_field(field: int, value: int) -> bytes:
    """Return a field with an integer."""
    return varint(field << 3) + varint(value)


def float_field(field: int, value: float) -> bytes:
    """Return a field with a float32."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def double_field(field: int, value: float) -> bytes:
    """Return a field with a float64."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def doubles_field(field: int, values: Any) -> bytes:
    """Return a field with many float64, packed."""
    return bytes_field(field, np.asarray(values, "<f8").tobytes())


def bytes_field(field: int, value: bytes | str) -> bytes:
    """Return a field with text, bytes, or a message inside this one."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data
