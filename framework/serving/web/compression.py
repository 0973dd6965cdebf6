"""Compressed bodies: gzip and deflate, in both directions, within a limit of bytes."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Mapping

from ....distribute.inference import RequestError

LEAST = 1024  # bytes from which an answer is compressed
_APART = 1 << 17  # bytes from which this is done in another thread, beside other requests
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's names of the formats
_TEXTS = ("application/json", "application/octet-stream", "text/")


async def plain(body: bytes, encoding: str, most: int) -> bytes:
    """A body without its compression.

    Args:
        body: as it came.
        encoding: the header "content-encoding".
        most: how many bytes are taken.

    Raises:
        RequestError: the encoding is another, the body is damaged, or holds more bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW:
        raise RequestError(415, f"Bodies of encoding {encoding!r} are not taken: send gzip, deflate, or plain bytes.")
    if len(body) < _APART and most < _APART:
        return _inflated(body, name, most)
    return await asyncio.get_running_loop().run_in_executor(None, _inflated, body, name, most)


def _inflated(body: bytes, name: str, most: int) -> bytes:
    pieces: list[bytes] = []
    left = most
    while body:
        reader = zlib.decompressobj(_WINDOW[name])
        try:
            piece = reader.decompress(body, left + 1)
        except zlib.error as error:
            raise RequestError(400, f"The body is no {name}: {error}.") from None
        left -= len(piece)
        if left < 0:
            raise RequestError(413, f"The body is larger, without its compression, than the {most:,} bytes taken.")
        if not reader.eof:
            raise RequestError(400, f"The body is no whole {name}: its end is missing.")
        pieces.append(piece)
        body = reader.unused_data if name != "deflate" else b""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def accepted(headers: Mapping[str, str]) -> str:
    """The encoding that a client takes; "" for none."""
    for entry in headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = entry.partition(";")
        if name.strip() in ("gzip", "deflate") and not re.fullmatch(r"\s*q=0(\.0*)?\s*", quality):
            return name.strip()
    return ""


def is_worthwhile(body: bytes, content_type: str) -> bool:
    """Test whether an answer is of a kind and size that is compressed."""
    return len(body) >= LEAST and content_type.startswith(_TEXTS)


async def compressed(body: bytes, encoding: str) -> bytes:
    """A body in an encoding that `accepted` gave."""
    if len(body) < _APART:
        return _deflated(body, encoding)
    return await asyncio.get_running_loop().run_in_executor(None, _deflated, body, encoding)


def _deflated(body: bytes, encoding: str) -> bytes:
    writer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    return writer.compress(body) + writer.flush()
