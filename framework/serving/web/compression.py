"""Compressed bodies: gzip and deflate, in both directions, within a limit of bytes."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Mapping

from ....distribute.inference import RequestError

LEAST = 1024  # bytes from which an answer is compressed
_APART = 1 << 17  # bytes from which this is done in another thread, beside other requests
_PIECE = 1 << 12  # bytes that are read at once: what a member of gzip leaves of them is copied
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's names of the formats
_TEXTS = ("application/json", "application/octet-stream", "text/")


async def plain(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body without its compression.

    Args:
        body: as it came.
        encoding: the header "content-encoding".
        most: how many bytes are taken.

    Raises:
        RequestError: the encoding is another, the body is damaged, or holds more bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body
    if name not in _WINDOW:
        raise RequestError(415, f"Bodies of encoding {encoding!r} are not taken: send gzip, deflate, or plain bytes.")
    if len(body) < _APART and most < _APART:
        return _inflated(body, name, most)
    return await asyncio.get_running_loop().run_in_executor(None, _inflated, body, name, most)


def _inflated(body: bytes, name: str, most: int) -> bytes:
    pieces: list[bytes] = []
    left, place = most, 0
    reader = zlib.decompressobj(_WINDOW[name])
    while place < len(body):
        given = body[place : place + _PIECE]
        try:
            piece = reader.decompress(given, left + 1)
        except zlib.error as error:
            raise RequestError(400, f"The body is no {name}: {error}.") from None
        left -= len(piece)
        if left < 0:
            raise RequestError(413, f"The body is larger, without its compression, than the {most:,} bytes taken.")
        pieces.append(piece)
        place += len(given) - len(reader.unused_data)
        if reader.eof and (name == "deflate" or place == len(body)):
            return b"".join(pieces)
        if reader.eof:  # another member of gzip follows
            reader = zlib.decompressobj(_WINDOW[name])
    raise RequestError(400, f"The body is no whole {name}: its end is missing.")


def accepted(headers: Mapping[str, str]) -> str:
    """Return the encoding that a client takes; "" for none."""
    for entry in headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = entry.partition(";")
        if name.strip() in ("gzip", "deflate") and not re.fullmatch(r"\s*q=0(\.0*)?\s*", quality):
            return name.strip()
    return ""


def is_worthwhile(body: bytes, content_type: str) -> bool:
    """Test whether an answer is of a kind and size that is compressed."""
    return len(body) >= LEAST and content_type.startswith(_TEXTS)


async def compressed(body: bytes, encoding: str) -> bytes:
    """Return a body in an encoding that `accepted` gave."""
    if len(body) < _APART:
        return _deflated(body, encoding)
    return await asyncio.get_running_loop().run_in_executor(None, _deflated, body, encoding)


def _deflated(body: bytes, encoding: str) -> bytes:
    writer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    return writer.compress(body) + writer.flush()
