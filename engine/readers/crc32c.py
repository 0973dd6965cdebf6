"""CRC-32C (Castagnoli), the checksum of TFRecord files.

Source: RFC 3720, appendix B.4. A long input is cut into pieces whose checksums are computed side by side and then
joined: the checksum is linear in the bits, and zero bytes in front do not change it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # bits reversed
_MASK_DELTA = 0xA282EAD8
_PIECE = 32  # bytes; a power of two
_SHORT = 64  # bytes that a loop in Python is quicker for

Words = NDArray[np.uint32]


def _byte_table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _byte_table()
_WORDS: Words = np.array(_TABLE, "uint32")


@cache
def _zeros_table(count: int) -> Words:
    """Return what `count` zero bytes make of a register, for each value of each of its 4 bytes; ``[4, 256]``."""
    if count > 1:
        half = _zeros_table(count // 2)
        return _with_zeros(half, half)
    register: Words = np.arange(256, dtype="uint32") << (np.arange(4, dtype="uint32")[:, None] * np.uint32(8))
    return _WORDS[register & np.uint32(255)] ^ (register >> np.uint32(8))


def _with_zeros(register: Words, table: Words) -> Words:
    """Return registers after the zero bytes that `table` stands for."""
    result = table[0][register & np.uint32(255)]
    for byte in (1, 2, 3):
        result = result ^ table[byte][(register >> np.uint32(8 * byte)) & np.uint32(255)]
    return result


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of `data`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if len(data) < _SHORT:
        register = 0xFFFFFFFF
        for byte in data:
            register = _TABLE[(register ^ byte) & 255] ^ (register >> 8)
        return register ^ 0xFFFFFFFF
    pieces = 1 << (-(-len(data) // _PIECE) - 1).bit_length()
    padded = np.zeros(pieces * _PIECE, "uint8")
    start = len(padded) - len(data)
    padded[start:] = np.frombuffer(data, "uint8")
    padded[start : start + 4] ^= np.uint8(255)  # the register that it begins with
    return int(_joined(padded.reshape(pieces, _PIECE))) ^ 0xFFFFFFFF


def _joined(pieces: Any) -> Any:
    """Return the register after 2**k pieces, one behind the other, that begin with an empty one each."""
    register: Words = np.zeros(len(pieces), "uint32")
    for column in np.ascontiguousarray(pieces.T):
        register = _WORDS[(register ^ column) & np.uint32(255)] ^ (register >> np.uint32(8))
    length = _PIECE
    while len(register) > 1:
        register = _with_zeros(register[::2], _zeros_table(length)) ^ register[1::2]
        length *= 2
    return register[0]


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum as TFRecord files keep it, so that checksums of data that hold checksums are sound."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
