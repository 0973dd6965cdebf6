"""Connections whose requests are answered at once, without a task: what comes behind such an answer, and their end."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch.distribute.inference import RequestError
from anabranch.framework.serving.web.application import Application, Request, Response, Route

pytest.importorskip("uvicorn")
PATIENCE = 60


def post(path: str, *headers: str) -> bytes:
    return ("\r\n".join([f"POST {path} HTTP/1.1", "Host: x", "Content-Length: 0", *headers]) + "\r\n\r\n").encode()


def serve(
    handle: Callable[[Request], Awaitable[Response]],
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Any], Awaitable[Any]],
) -> Any:
    """Serve one connection, and give what `talk` gives, which gets its streams and the server."""
    from anabranch.framework.serving.web.connections import HttpServer

    async def run() -> Any:
        route = Route("POST", re.compile("/(?P<name>[a-z]+)"), handle, begins_at_once=True)
        server = HttpServer(Application([route], 100), drain_seconds=5.0)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await server.listens.wait()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            try:
                return await asyncio.wait_for(talk(reader, writer, server), PATIENCE)
            finally:
                writer.close()
                await writer.wait_closed()
                server.should_exit = True
                await serving

    return asyncio.run(run())


def test_a_request_behind_another_one_may_take_longer_than_connections_are_kept() -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> Response:
        if request.parts["name"] == "slow":
            begun.set()
            await end.wait()
        return Response(request.parts["name"].encode())

    async def talk(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any
    ) -> tuple[bool, bytes, bytes]:
        writer.write(post("/quick") + post("/slow"))
        await begun.wait()
        first = await reader.readuntil(b"quick")
        (connection,) = server.server_state.connections
        is_timed = connection.timeout_keep_alive_task is not None
        end.set()
        return is_timed, first, await reader.readuntil(b"slow")

    is_timed, *answers = serve(handle, talk)
    assert not is_timed, "the time without requests runs while one is computed"
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
def test_an_answer_that_ends_the_connection_says_so_once_and_does(headers: tuple[str, ...]) -> None:
    async def handle(request: Request) -> Response:
        raise RequestError(413, "too large")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> bytes:
        writer.write(post("/large", *headers))
        return await reader.read()

    answer = serve(handle, talk)
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.count(b"connection: close") == 1
