"""64-bit hashes of strings: FarmHash's fingerprint and SipHash, as TensorFlow's string ops compute them.

Strings are hashed in groups of equal length in bytes, so that each step is one array operation over a group. Arithmetic
is modulo 2^64, which NumPy's uint64 arrays do by themselves.

Pike and Alakuijala, FarmHash (``farmhashna::Hash64``); Aumasson and Bernstein, "SipHash: a fast short-input PRF",
INDOCRYPT 2012 (SipHash-2-4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Rows = NDArray[np.uint8]  # [strings, bytes]

_K0, _K1, _K2 = (np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F))
_CAT = np.uint64(0xC6A4A7935BD1E995)


def fingerprints(texts: Any) -> Words:
    """Return FarmHash's fingerprint of each string's UTF-8 bytes, of the shape of `texts`."""
    return _by_length(texts, _farm_hash)


def siphash(texts: Any, key: tuple[int, int]) -> Words:
    """Compute SipHash-2-4 of each string's UTF-8 bytes under a key of two 64-bit integers."""
    return _by_length(texts, lambda rows: _sip_hash(rows, key))


def fingerprint_cat(first: Words, second: Words) -> Words:
    """Return the fingerprint of two fingerprints, elementwise, in their order."""
    mixed = first ^ _CAT
    mixed = (mixed ^ (_shift_mix(second * _CAT) * _CAT)) * _CAT
    return _shift_mix(_shift_mix(mixed) * _CAT)


def _by_length(texts: Any, function: Callable[[Rows], Words]) -> Words:
    array = np.asarray(texts)
    groups: dict[int, tuple[list[int], list[bytes]]] = {}
    for position, text in enumerate(array.ravel().tolist()):
        encoded = text.encode()
        places, items = groups.setdefault(len(encoded), ([], []))
        places.append(position)
        items.append(encoded)
    hashes = np.zeros(array.size, np.uint64)
    for length, (places, items) in groups.items():
        hashes[places] = function(np.frombuffer(b"".join(items), np.uint8).reshape(len(items), length))
    return hashes.reshape(array.shape)


# --- words ----------------------------------------------------------------------------------------------------------


def _word(rows: Rows, start: int, size: int = 8) -> Words:
    """Return the little-endian number in `size` bytes of each row."""
    padded = np.zeros((len(rows), 8), np.uint8)
    padded[:, :size] = rows[:, start : start + size]
    return padded.view("<u8")[:, 0].astype(np.uint64)


def _rotate(value: Words, right: int) -> Words:
    return (value >> np.uint64(right)) | (value << np.uint64(64 - right))


def _shift_mix(value: Words) -> Words:
    return value ^ (value >> np.uint64(47))


# --- FarmHash -------------------------------------------------------------------------------------------------------


def _farm_hash(rows: Rows) -> Words:
    length = rows.shape[1]
    if length <= 16:
        return _farm_short(rows)
    if length <= 32:
        return _farm_17_to_32(rows)
    return _farm_33_to_64(rows) if length <= 64 else _farm_long(rows)


def _mix(u: Words, v: Words, multiplier: Words | np.uint64) -> Words:
    """Compute Hash128to64 with a multiplier."""
    a = _shift_mix((u ^ v) * multiplier)
    return _shift_mix((v ^ a) * multiplier) * multiplier


def _multiplier(length: int) -> np.uint64:
    return np.uint64((int(_K2) + 2 * length) % 2**64)


def _farm_short(rows: Rows) -> Words:
    length = rows.shape[1]
    multiplier = _multiplier(length)
    if length >= 8:
        a, b = _word(rows, 0) + _K2, _word(rows, length - 8)
        c, d = _rotate(b, 37) * multiplier + a, (_rotate(a, 25) + b) * multiplier
        return _mix(c, d, multiplier)
    if length >= 4:
        a = (_word(rows, 0, 4) << np.uint64(3)) + np.uint64(length)
        return _mix(a, _word(rows, length - 4, 4), multiplier)
    if length:
        first, middle, last = (_word(rows, place, 1) for place in (0, length >> 1, length - 1))
        y, z = first + (middle << np.uint64(8)), np.uint64(length) + (last << np.uint64(2))
        return _shift_mix((y * _K2) ^ (z * _K0)) * _K2
    return np.full(len(rows), _K2)


def _farm_17_to_32(rows: Rows) -> Words:
    length = rows.shape[1]
    multiplier = _multiplier(length)
    a, b = _word(rows, 0) * _K1, _word(rows, 8)
    c, d = _word(rows, length - 8) * multiplier, _word(rows, length - 16) * _K2
    return _mix(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, multiplier)


def _farm_33_to_64(rows: Rows) -> Words:
    length = rows.shape[1]
    multiplier = _multiplier(length)
    a, b = _word(rows, 0) * _K2, _word(rows, 8)
    c, d = _word(rows, length - 8) * multiplier, _word(rows, length - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _mix(y, a + _rotate(b + _K2, 18) + c, multiplier)
    e, f = _word(rows, 16) * multiplier, _word(rows, 24)
    g, h = (y + _word(rows, length - 32)) * multiplier, (z + _word(rows, length - 24)) * multiplier
    return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, multiplier)


def _weak(rows: Rows, start: int, a: Words, b: Words) -> tuple[Words, Words]:
    """Compute WeakHashLen32WithSeeds of 32 bytes."""
    w, x, y, z = (_word(rows, start + offset) for offset in (0, 8, 16, 24))
    a = a + w
    b = _rotate(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _rotate(a, 44) + c


_State = tuple[Words, Words, Words, tuple[Words, Words], tuple[Words, Words]]


def _farm_long(rows: Rows) -> Words:
    count, length = rows.shape
    nothing, seed = np.zeros(count, np.uint64), np.full(count, 81, np.uint64)
    y = seed * _K1 + np.uint64(113)
    z = _shift_mix(y * _K2 + np.uint64(113)) * _K2
    state: _State = (seed * _K2 + _word(rows, 0), y, z, (nothing, nothing), (nothing, nothing))
    for start in range(0, (length - 1) // 64 * 64, 64):
        state = _after_64(rows, start, *state)
    return _farm_last(rows, *state)


def _after_64(
    rows: Rows, start: int, x: Words, y: Words, z: Words, v: tuple[Words, Words], w: tuple[Words, Words]
) -> _State:
    """Return the state behind 64 bytes. This is no part of the loop, where type checkers take seconds for its lines."""
    x = _rotate(x + y + v[0] + _word(rows, start + 8), 37) * _K1
    y = _rotate(y + v[1] + _word(rows, start + 48), 42) * _K1
    x = x ^ w[1]
    y = y + v[0] + _word(rows, start + 40)
    z = _rotate(z + w[0], 33) * _K1
    v = _weak(rows, start, v[1] * _K1, x + w[0])
    w = _weak(rows, start + 32, z + w[1], y + _word(rows, start + 16))
    return z, y, x, v, w


def _farm_last(rows: Rows, x: Words, y: Words, z: Words, v: tuple[Words, Words], w: tuple[Words, Words]) -> Words:
    """Return the last 64 bytes, which may have been seen in part."""
    length = rows.shape[1]
    start, nine = length - 64, np.uint64(9)
    multiplier = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w = (w[0] + np.uint64((length - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x = _rotate(x + y + v[0] + _word(rows, start + 8), 37) * multiplier
    y = _rotate(y + v[1] + _word(rows, start + 48), 42) * multiplier
    x = x ^ (w[1] * nine)
    y = y + v[0] * nine + _word(rows, start + 40)
    z = _rotate(z + w[0], 33) * multiplier
    v = _weak(rows, start, v[1] * multiplier, x + w[0])
    w = _weak(rows, start + 32, z + w[1], y + _word(rows, start + 16))
    z, x = x, z
    first = _mix(v[0], w[0], multiplier) + _shift_mix(y) * _K0 + z
    return _mix(first, _mix(v[1], w[1], multiplier) + x, multiplier)


# --- SipHash --------------------------------------------------------------------------------------------------------


def _sip_round(v: list[Words]) -> list[Words]:
    a, b, c, d = v
    a = a + b
    b = _rotate(b, 64 - 13) ^ a
    a = _rotate(a, 32)
    c = c + d
    d = _rotate(d, 64 - 16) ^ c
    a = a + d
    d = _rotate(d, 64 - 21) ^ a
    c = c + b
    b = _rotate(b, 64 - 17) ^ c
    return [a, b, _rotate(c, 32), d]


def _sip_hash(rows: Rows, key: tuple[int, int]) -> Words:
    count, length = rows.shape
    first, second = (np.uint64(part % 2**64) for part in key)
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v: list[Words] = [
        np.full(count, np.uint64(word) ^ part) for word, part in zip(start, (first, second, first, second), strict=True)
    ]
    whole = length // 8 * 8
    words = [_word(rows, place) for place in range(0, whole, 8)]
    words.append(_word(rows, whole, length - whole) | np.uint64((length & 0xFF) << 56))
    for word in words:
        v[3] = v[3] ^ word
        v = _sip_round(_sip_round(v))
        v[0] = v[0] ^ word
    v[2] = v[2] ^ np.uint64(0xFF)
    for _ in range(4):
        v = _sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
