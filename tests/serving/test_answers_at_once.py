"""Connections whose requests are answered without a task, at once or later: order, end, slow clients."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch.distribute.inference import RequestError, authorization
from anabranch.framework.serving.web import application
from anabranch.framework.serving.web.application import Application, Request, Response, Route

pytest.importorskip("uvicorn")
PATIENCE = 60


def post(path: str, *headers: str, length: int = 0) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until a condition holds."""
    while not condition():
        await asyncio.sleep(0)


def serve(
    handle: Callable[[Request], Awaitable[Response]],
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Any], Awaitable[Any]],
) -> Any:
    """Serve one connection, and give what `talk` gives, which gets its streams and the server."""
    from anabranch.framework.serving.server import loop_factory
    from anabranch.framework.serving.web.connections import HttpServer

    async def run() -> Any:
        route = Route("POST", re.compile("/(?P<name>[a-z0-9]+)"), handle, begins_at_once=True)
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

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


class Doors:
    """A handler that answers with the name of the path, once the door of that name is open: others are open."""

    def __init__(self, *closed: str) -> None:
        self.closed = closed
        self.open: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []
        self.left: list[str] = []

    async def __call__(self, request: Request) -> Response:
        name = request.parts["name"]
        self.begun.append(name)
        if name in self.closed:
            try:
                await self.open.setdefault(name, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.left.append(name)
                raise
        return Response(f"<{name} {request.body.decode()}>".encode())


async def answers(reader: asyncio.StreamReader, count: int) -> list[str]:
    """Return the statuses and bodies of so many answers."""
    found: list[str] = []
    for _ in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = await reader.readexactly(int(re.findall(r"content-length: (\d+)", head)[0]))
        found.append(f"{head.split()[1]} {body.decode()}{' closes' if 'connection: close' in head else ''}")
    return found


def test_answers_that_wait_come_without_a_task() -> None:
    async def handle(request: Request) -> Response:
        for waiting in (None, asyncio.sleep(0), asyncio.get_running_loop().run_in_executor(None, int)):
            if waiting is not None:
                await waiting
            assert asyncio.current_task() is None
        return Response(b"all")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/a"))
        found = await answers(reader, 1)
        assert not server.server_state.tasks
        return found

    assert serve(handle, talk) == ["200 all"]


@pytest.mark.parametrize(
    "large", [post("/b", *[f"h{number}: {number}" for number in range(9000)]), post("/" + "b" * 70_000)]
)
def test_large_heads_are_refused_in_one_piece_too(large: bytes) -> None:
    doors = Doors()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/a"))
        assert await answers(reader, 1) == ["200 <a >"]
        (connection,) = server.server_state.connections
        connection.data_received(large + post("/c"))
        return await answers(reader, 1)

    assert serve(doors, talk) == ['431 {"error":"The headers are too large."} closes']
    assert doors.begun == ["a"]


@pytest.mark.parametrize("size", [1, 60, 1000])
def test_offers_of_another_protocol_are_passed_over(size: int) -> None:
    async def handle(request: Request) -> Response:
        return Response(f"<{request.parts['name']} {request.body.decode()} {request.headers.get('x')}>".encode())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        offer = (
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk",
            "X: y",
        )
        sent = post("/java", *offer, length=4) + b"body" + post("/none", *offer) + post("/plain", length=2) + b"hi"
        sent += post("/last", "Connection: Upgrade, close", "Upgrade: websocket", length=3) + b"end"
        for start in range(0, len(sent), size):  # the body comes with its head, or behind it
            writer.write(sent[start : start + size])
            await asyncio.sleep(0)
        found = await answers(reader, 4)
        assert await reader.read() == b""
        return found

    assert serve(handle, talk) == [
        "200 <java body y>",
        "200 <none  y>",
        "200 <plain hi None>",
        "200 <last end None> closes",
    ]


def test_who_asks_for_a_tunnel_is_refused() -> None:
    """Parsers stop behind the head of CONNECT as they do behind offers of another protocol."""
    doors = Doors()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(b"CONNECT /a HTTP/1.1\r\nHost: x\r\n\r\n" + post("/b"))
        return await answers(reader, 2)

    first, second = serve(doors, talk)
    assert first.startswith("405 ")
    assert second == "200 <b >"
    assert doors.begun == ["b"]


def test_an_answer_that_can_not_be_made_is_an_error_of_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: Request) -> Response:
        return Response(request.parts["name"].encode())

    def is_worthwhile(body: bytes, content_type: str) -> bool:
        return body == b"bad" and bool(1 / 0)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/bad") + post("/good"))
        return await answers(reader, 2)

    monkeypatch.setattr(application, "is_worthwhile", is_worthwhile)
    found = serve(handle, talk)
    assert found == ['500 {"error":"The server failed: ZeroDivisionError: division by zero"}', "200 good"]
    assert [record.getMessage() for record in caplog.records] == ["POST /bad"]


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_that_can_not_be_written_is_an_error_of_the_server(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: Request) -> Response:
        if waits:
            await asyncio.sleep(0)
        return Response(b"", headers={"x": "\N{SNOWMAN}"} if request.parts["name"] == "bad" else {})

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/bad") + post("/good"))
        return await answers(reader, 2)

    first, second = serve(handle, talk)
    assert first.startswith("500 ")
    assert "The server failed: UnicodeEncodeError" in first
    assert second == "200 "
    assert [record.getMessage() for record in caplog.records] == ["POST /bad"]
    assert caplog.records[0].exc_info is not None


def test_requests_behind_one_that_waits_are_answered_after_it() -> None:
    doors = Doors("b", "d")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/a") + post("/b") + post("/c") + b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n" + post("/d"))
        await until(lambda: "b" in doors.open)
        writer.write(post("/e", "Connection: close", length=4) + b"body")
        found = await answers(reader, 1)
        assert doors.begun == ["a", "b"]
        doors.open["b"].set()
        found += await answers(reader, 2)
        found.append((await reader.readuntil(b"\r\n\r\n")).decode().split()[1])  # of HEAD, with no body
        await until(lambda: "d" in doors.open)
        doors.open["d"].set()
        found += await answers(reader, 2)
        assert await reader.read() == b""
        return found

    assert serve(doors, talk) == ["200 <a >", "200 <b >", "200 <c >", "405", "200 <d >", "200 <e body> closes"]


def test_connections_stay_open_behind_answers_that_waited() -> None:
    doors = Doors("b")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        found: list[str] = []
        for _ in range(3):
            writer.write(post("/b"))
            await until(lambda: "b" in doors.open)
            doors.open.pop("b").set()
            found += await answers(reader, 1)
            (connection,) = server.server_state.connections
            assert connection.idle_since is not None
        writer.write(post("/a") + post("/b", "Connection: close"))
        await until(lambda: "b" in doors.open)
        assert connection.idle_since is None
        doors.open["b"].set()
        found += await answers(reader, 2)
        assert await reader.read() == b""
        return found

    assert serve(doors, talk) == ["200 <b >"] * 3 + ["200 <a >", "200 <b > closes"]


def test_connections_without_requests_for_long_enough_are_closed() -> None:
    doors = Doors("b")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/a"))
        found = await answers(reader, 1)
        (connection,) = server.server_state.connections
        first = connection.timeout_keep_alive_task
        first.cancel()
        connection.timeout_keep_alive_handler()  # too early: the last answer was given just now
        assert connection.timeout_keep_alive_task not in (None, first)
        writer.write(post("/b"))
        await until(lambda: "b" in doors.open)
        connection.timeout_keep_alive_task.cancel()
        connection.timeout_keep_alive = 0
        connection.timeout_keep_alive_handler()  # a request waits
        assert connection.timeout_keep_alive_task is None
        doors.open["b"].set()
        found += await answers(reader, 1)
        assert await reader.read() == b""
        return found

    assert serve(doors, talk) == ["200 <a >", "200 <b >"]


def test_each_request_has_its_own_path_and_headers() -> None:
    async def handle(request: Request) -> Response:
        return Response(f"{request.parts['name']} {authorization.get()} {request.headers.get('x-y')}".encode())

    asked = [("a", "1", "2"), ("a", "1", "2"), ("a", "3", "2"), ("b", "3", "2"), ("b", "3", "4"), ("a", "1", "2")]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        for name, key, other in asked:
            writer.write(post(f"/{name}", f"Authorization: {key}", f"X-Y: {other}"))
        writer.write(post("/a"))
        return await answers(reader, len(asked) + 1)

    assert serve(handle, talk) == [f"200 {' '.join(each)}" for each in asked] + ["200 a  None"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_bodies_in_chunks_and_those_that_are_waited_for(name: str) -> None:
    doors = Doors("b")
    chunked = f"POST /{name} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        found: list[str] = []
        for request, expects in ((chunked, False), (post(f"/{name}", "Expect: 100-continue", length=4), True)):
            writer.write(request)
            if expects:
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"body" if expects else b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n")
            if name == "b":
                await until(lambda: "b" in doors.open)
                doors.open.pop("b").set()
            found += await answers(reader, 1)
        return found

    assert serve(doors, talk) == [f"200 <{name} body>"] * 2


@pytest.mark.parametrize("behind", [b"", post("/c")])
def test_clients_that_leave_harm_nobody(behind: bytes) -> None:
    """The request of one is cancelled, unless another one behind it keeps the connection from being read."""
    doors = Doors("b")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/b") + behind)
        await until(lambda: "b" in doors.open)
        address = writer.get_extra_info("peername")
        writer.transport.abort()
        if behind:
            doors.open["b"].set()
        await until(lambda: not server.server_state.connections)
        await until(lambda: behind or doors.left)
        other, to_other = await asyncio.open_connection(*address)
        to_other.write(post("/a"))
        found = await answers(other, 1)
        to_other.close()
        await to_other.wait_closed()
        return found

    assert serve(doors, talk) == ["200 <a >"]
    assert doors.left == ([] if behind else ["b"])


def test_clients_that_leave_while_their_answer_is_compressed_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, left, errors = asyncio.Event(), asyncio.Event(), list[Any]()

    async def compress(body: bytes, encoding: str) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return body

    async def handle(request: Request) -> Response:
        await asyncio.sleep(0)
        return Response(b"x" * 2000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        writer.write(post("/a", "Accept-Encoding: gzip"))
        await begun.wait()
        writer.transport.abort()
        await left.wait()
        await asyncio.sleep(0)

    monkeypatch.setattr(application, "compressed", compress)
    serve(handle, talk)
    assert errors == []


def test_an_answer_that_fails_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = list[Any]()

    class Odd(BaseException):
        pass

    async def compress(body: bytes, encoding: str) -> bytes:
        await asyncio.sleep(0)
        raise Odd

    async def handle(request: Request) -> Response:
        return Response(b"x" * 2000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        writer.write(post("/a", "Accept-Encoding: gzip") + post("/b"))
        return await reader.read()

    monkeypatch.setattr(application, "compressed", compress)
    assert serve(handle, talk) == b""
    assert [type(error) for error in errors] == [Odd]


@pytest.mark.parametrize("names", ["b", "bcd"])
def test_the_end_of_the_server_waits_for_answers(names: str) -> None:
    doors = Doors("b")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(b"".join(post(f"/{name}") for name in names))
        await until(lambda: "b" in doors.open)
        (connection,) = server.server_state.connections
        server.should_exit = True
        await until(lambda: not connection.cycle.keep_alive)
        doors.open["b"].set()
        found = await answers(reader, len(names))
        assert await reader.read() == b""
        return found

    *before, last = serve(doors, talk)
    assert before == [f"200 <{name} >" for name in names[:-1]]
    # Requests behind one that waits are uvicorn's; older versions end the connection without the header.
    assert last.removesuffix(" closes") == f"200 <{names[-1]} >"
    assert last.endswith(" closes") or len(names) > 1


@pytest.mark.parametrize("waits", [False, True])
def test_no_more_is_computed_for_a_client_that_does_not_read(waits: bool) -> None:
    count, size, begun = 64, 1 << 20, 0

    async def handle(request: Request) -> Response:
        nonlocal begun
        begun += 1
        if waits:
            await asyncio.sleep(0)
        return Response(b"x" * size, "image/png")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> int:
        await until(lambda: server.server_state.connections)
        (connection,) = server.server_state.connections
        transport: Any = writer.transport
        transport.pause_reading()
        writer.write(b"".join(post(f"/{number}") for number in range(count)))
        await until(lambda: connection.flow.write_paused)
        for _ in range(100):  # turns, in which all could begin
            await asyncio.sleep(0)
        early = begun
        transport.resume_reading()
        assert await answers(reader, count) == [f"200 {'x' * size}"] * count
        return early

    assert serve(handle, talk) < count // 2
    assert begun == count


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
        is_timed = connection.idle_since is not None
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


def test_half_a_head_is_not_refused_before_the_request_in_front_of_it_is_answered() -> None:
    doors = Doors("a")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Any) -> list[str]:
        writer.write(post("/a") + b"POST /b")
        await until(lambda: doors.begun)
        (connection,) = server.server_state.connections
        connection._is_late()  # which its timer calls
        doors.open.setdefault("a", asyncio.Event()).set()
        found = await answers(reader, 1)
        connection._is_late()
        return found + await answers(reader, 1)

    first, last = serve(doors, talk)
    assert (first, last.split()[0]) == ("200 <a >", "408")
