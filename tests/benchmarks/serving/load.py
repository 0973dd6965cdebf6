"""Load from one process: requests over raw sockets, the next one on a connection as soon as the last is answered."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import uvloop


class Rate(NamedTuple):
    """Answers a second, and the times of single ones in seconds, in their order."""

    per_second: float
    seconds: np.ndarray

    def at(self, percent: float) -> float:
        """The time in milliseconds within which so many were answered."""
        return float(np.percentile(self.seconds, percent)) * 1000


def post(path: str, body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    """The bytes of a request."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, request: bytes, end: float, done: asyncio.Future[None], times: list[tuple[float, float]]
    ) -> None:
        self.request, self.end, self.done, self.times = request, end, done, times
        self.buffer, self.length = b"", 0
        self.began = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        if not self.length:
            head = self.buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            if not self.buffer.startswith(b"HTTP/1.1 200"):
                self.finish(RuntimeError(self.buffer[:500].decode("utf-8", "replace")))
                return
            said = self.buffer[:head].lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self.length = head + 4 + int(said)
        if len(self.buffer) < self.length:
            return
        now = time.perf_counter()
        self.times.append((now, now - self.began))
        self.buffer, self.length = b"", 0
        if now < self.end:
            self.ask()
        else:
            self.finish(None)

    def finish(self, error: Exception | None) -> None:
        self.transport.close()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(ConnectionError(f"the server closed the connection: {exc}"))


def measure(url: str, request: bytes, connections: int, seconds: float) -> Rate:
    """Ask on so many connections for a time."""
    parts = urlsplit(url)

    async def run() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        times: list[tuple[float, float]] = []
        end = time.perf_counter() + seconds
        waiting: list[asyncio.Future[None]] = []
        for _ in range(connections):
            done: asyncio.Future[None] = loop.create_future()
            await loop.create_connection(
                lambda done=done: _Client(request, end, done, times), parts.hostname or "", parts.port or 0
            )
            waiting.append(done)
        await asyncio.gather(*waiting)
        return times

    began = time.perf_counter()
    times = uvloop.run(run())
    return Rate(len(times) / (time.perf_counter() - began), np.array([seconds for _, seconds in times]))
