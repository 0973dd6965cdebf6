"""Load for the tests and benchmarks of the model server: HTTP over raw sockets, from one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """The bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


_IDLE_SECONDS = 2.0  # a server closes what nobody uses, perhaps just when a request is sent


class Connections:
    """Keeps connections to a server, as many as there are requests at once, for as long as they are in use."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._where = parts.hostname or "", parts.port or 0
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> Answer:
        """Send the bytes of a request and give its answer. A connection is dropped where that is cancelled."""
        reader, writer = self._kept() or await asyncio.open_connection(*self._where)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length))
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.perf_counter(), reader, writer))
        return Answer(int(head[9:12]), body)

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return the connection that was used last, unless that is too long ago: then so it is for all others."""
        if not self._idle:
            return None
        since, reader, writer = self._idle.pop()
        if time.perf_counter() - since < _IDLE_SECONDS:
            return reader, writer
        writer.close()
        for _, _, other in self._idle:
            other.close()
        self._idle.clear()
        return None

    async def close(self) -> None:
        """Close those that are idle, and wait for that."""
        for _, _, writer in self._idle:
            writer.close()
        for _, _, writer in self._idle:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._idle.clear()


Act = Callable[[], Awaitable[None]]


async def closed_loop(act: Act, connections: int, seconds: float) -> float:
    """Have so many clients ask one request after the other for a time; gives how many were answered a second."""
    count, began = 0, time.perf_counter()

    async def client() -> None:
        nonlocal count
        while time.perf_counter() < began + seconds:
            await act()
            count += 1

    async with asyncio.TaskGroup() as clients:
        for _ in range(connections):
            clients.create_task(client())
    return count / (time.perf_counter() - began)


async def open_loop(act: Act, rate: float, seconds: float, most: int, rng: random.Random) -> int:
    """Begin requests at random times, so many a second, whether those before are answered or not; gives their number.

    Args:
        act: asks one request, and checks its answer.
        rate: the mean, a second. Times between are exponential.
        seconds: for how long.
        most: of requests at once; those that would be more begin later.
        rng: decides about the times.
    """
    count, began = 0, time.perf_counter()
    due, end, turn = began, began + seconds, asyncio.Semaphore(most)

    async def one() -> None:
        try:
            await act()
        finally:
            turn.release()

    async with asyncio.TaskGroup() as requests:
        while (due := due + rng.expovariate(rate)) < end and time.perf_counter() < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await turn.acquire()
            requests.create_task(one())
            count += 1
    return count
