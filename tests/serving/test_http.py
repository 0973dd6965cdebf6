"""Requests that the HTTP front refuses, whichever protocol is used."""

import asyncio
import gzip
import json
import logging
import re
import socket
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import pytest
from shared.serving_clients import ask

pytest.importorskip("uvicorn")
from anabranch.framework.serving.web.application import Application, Request, Response, Route
from anabranch.framework.serving.web.connections import Joining


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v3", 404, None),
        ("POST", "/v1/models/letters:classify", 404, None),
        ("GET", "/v1/models/letters:predict", 405, "POST"),
        ("POST", "/v1/models/letters", 405, "GET"),
        ("DELETE", "/v2/models/letters", 405, "GET"),
        ("GET", "/v2/models/letters/infer", 405, "POST"),
    ],
)
def test_paths_and_methods(served: Any, method: str, path: str, status: int, allowed: str | None) -> None:
    reply = ask(served.server.rest_url, path, b"{}" if method == "POST" else None, method)
    assert (reply.status, reply.headers.get("allow")) == (status, allowed)
    assert set(reply.json) == {"error"}


def test_heads_of_answers_are_given(served: Any) -> None:
    for path in ("/v2/health/ready", "/", "/v1/models/letters"):
        reply, whole = (ask(served.server.rest_url, path, method=method) for method in ("HEAD", "GET"))
        assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", str(len(whole.body)))


def test_large_bodies_are_refused(served: Any) -> None:
    reply = ask(served.server.rest_url, "/v1/models/letters:predict", b" " * (1 << 20) + b"{}")
    assert reply.status == 413
    assert "1,048,576 bytes" in reply.json["error"]


def test_large_bodies_of_unknown_length_are_refused(served: Any) -> None:
    parts = urlsplit(served.server.rest_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as stream:
        stream.sendall(b"POST /v1/models/letters:predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            stream.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert stream.recv(1000).startswith(b"HTTP/1.1 413")


def test_half_a_body_harms_nobody(served: Any) -> None:
    parts = urlsplit(served.server.rest_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as stream:
        stream.sendall(b"POST /v1/models/letters:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert ask(served.server.rest_url, "/v2/health/live").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"POST /v1/models/letters:predict HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
        b"POST /v1/models/letters:predict HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_harms_nobody(served: Any, sent: bytes) -> None:
    parts = urlsplit(served.server.rest_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as stream:
        stream.sendall(sent)
        head, _, body = b"".join(iter(lambda: stream.recv(1000), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/json" in head
    assert "HTTP" in json.loads(body)["error"]
    assert ask(served.server.rest_url, "/v2/health/live").status == 200


def test_requests_are_counted(served: Any) -> None:
    def counts() -> dict[str, float]:
        text = ask(served.server.rest_url, "/monitoring/prometheus/metrics").body.decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(number) for name, _, number in lines if 'model="pairs"' in name}

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    before = counts()
    good = {"inputs": {"a": [[1, 2]] * 3, "b": [[1, 2, 3]] * 3}}
    bad = {"inputs": {"a": [[1, 2]] * 2, "b": [[1, 2, 3]]}}
    for body, status in ((good, 200), (bad, 400), (good, 200)):
        assert ask(served.server.rest_url, "/v1/models/pairs:predict", body).status == status
    after = counts()
    assert grown('anabranch_requests_total{model="pairs",status="200"}') == 2
    assert grown('anabranch_requests_total{model="pairs",status="400"}') == 1
    assert grown('anabranch_rows_total{model="pairs"}') == 6
    assert grown('anabranch_request_seconds_count{model="pairs"}') == 3
    assert after['anabranch_requests_under_way{model="pairs"}'] == 0


def test_pipelined_requests_are_answered_in_their_order(served: Any) -> None:
    parts = urlsplit(served.server.rest_url)
    asked = [("HEAD", "/v2/health/live"), ("GET", "/v2/health/ready"), ("HEAD", "/nowhere"), ("GET", "/v2/health/live")]
    heads = [f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode() for method, path in asked]
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as stream:
        stream.sendall(b"\r\n".join([*heads[:-1], heads[-1] + b"Connection: close\r\n\r\n"]))
        found = b"".join(iter(lambda: stream.recv(65536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+)|(\{.*?\})", found) == [
        (b"200", b""),
        (b"200", b""),
        (b"", b'{"ready":true}'),
        (b"404", b""),
        (b"200", b""),
        (b"", b'{"live":true}'),
    ]


class Packets:
    """Stands for the transport of a connection."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.written.append(b"closed")


def test_the_head_of_an_answer_goes_with_its_body() -> None:
    packets = Packets()
    joining = Joining(packets)
    for data in (b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK ", b"one", b"HTTP/1.1 is no head"):
        joining.write(data)
    joining.close()
    assert packets.written == [b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK one", b"HTTP/1.1 is no head", b"closed"]


def test_the_head_of_an_answer_without_a_body_goes_before_the_end() -> None:
    packets = Packets()
    joining = Joining(packets)
    joining.write(b"HTTP/1.1 200 OK ")
    joining.close()
    joining.flush()
    assert packets.written == [b"HTTP/1.1 200 OK ", b"closed"]


def test_the_head_of_a_stream_does_not_wait_for_its_first_piece() -> None:
    sent: list[tuple[str, bytes]] = []

    async def pieces() -> AsyncGenerator[bytes]:
        sent.append(("the first piece is computed", b""))
        yield b"piece"

    async def handle(request: Request) -> Response:
        return Response(b"", stream=pieces())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append((message["type"], message.get("body", b"")))

    application = Application([Route("GET", re.compile("/"), handle)], 1)
    asyncio.run(application({"method": "GET", "path": "/", "headers": [], "scheme": "http"}, receive, send))
    assert sent[:2] == [("http.response.start", b""), ("http.response.body", b"")]
    assert sent[2][0] == "the first piece is computed"
    assert b"".join(body for _, body in sent) == b"piece"


def _post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def _answers(url: str, *pieces: bytes, count: int) -> list[tuple[bytes, bytes]]:
    """Send pieces, each after the one before has been taken, and give the heads and bodies of so many answers."""
    parts = urlsplit(url)
    found: list[tuple[bytes, bytes]] = []
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as stream:
        for piece in pieces:
            stream.sendall(piece)
        with stream.makefile("rb") as reader:
            for _ in range(count):
                head = b"".join(iter(reader.readline, b"\r\n"))
                length = int(re.findall(rb"content-length: (\d+)", head)[0])
                found.append((head, reader.read(length)))
            if b"connection: close" in head:
                assert reader.read() == b""
    return found


_PATH, _BODY = "/v1/models/letters:predict", b'{"instances": [[0, 1, 2, 3]]}'


@pytest.mark.parametrize("size", [1, 30, 70, 100, 10**6])
def test_requests_in_pieces_and_behind_each_other_are_answered_in_their_order(served: Any, size: int) -> None:
    url = served.server.rest_url
    wanted = ask(url, _PATH, {"instances": [[0, 1, 2, 3]]}).body
    sent = _post(_PATH, _BODY) + _post(_PATH, b"{") + _post("/v1/models/none:predict", _BODY)
    sent += _post(_PATH, _BODY, "Connection: close")
    found = _answers(url, *[sent[at : at + size] for at in range(0, len(sent), size)], count=4)
    assert [head.split()[1] for head, _ in found] == [b"200", b"400", b"404", b"200"]
    assert found[0][1] == found[3][1] == wanted
    assert [b"connection: close" in head for head, _ in found] == [False, False, False, True]


def test_addresses_with_more_than_a_path_mean_their_path(served: Any) -> None:
    url, wanted = served.server.rest_url, ask(served.server.rest_url, _PATH, {"instances": [[0, 1, 2, 3]]}).body
    for path in (_PATH + "?a=b", _PATH.replace("letters", "l%65tters")):
        ((head, body),) = _answers(url, _post(path, _BODY, "Connection: close"), count=1)
        assert (head.split()[1], body) == (b"200", wanted)
    ((head, _),) = _answers(url, _post("/v1/models/letters?x:predict", _BODY, "Connection: close"), count=1)
    assert head.split()[1] == b"405"  # the path is that of the model's state


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("begins_at_once", [False, True])
@pytest.mark.parametrize("fails", [None, 409, 500])
def test_answers_do_not_depend_on_where_they_begin(waits: bool, begins_at_once: bool, fails: int | None) -> None:
    from anabranch.distribute.inference import RequestError, authorization
    from anabranch.framework.serving.web.connections import HttpServer

    async def handle(request: Request) -> Response:
        assert (asyncio.current_task() is None) == begins_at_once
        if waits:
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, int)
        if fails == 409:
            raise RequestError(409, f"no {request.parts['name']}")
        if fails:
            raise ZeroDivisionError("none")
        text = f"{request.parts['name']}, {authorization.get()}, {request.body.decode()}".encode()
        return Response(text * 100, headers={"X-Name": "1"})

    async def run() -> tuple[bytes, bytes]:
        route = Route("POST", re.compile("/(?P<name>[a-z]+)"), handle, begins_at_once=begins_at_once)
        server = HttpServer(Application([route], 100), drain_seconds=5.0)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await server.listens.wait()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(_post("/abc", b"body", "Authorization: key", "Accept-Encoding: gzip", "Connection: close"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            server.should_exit = True
            await serving
        return head, body

    head, body = asyncio.run(run())
    assert int(head.split()[1]) == (fails or 200)
    assert b"connection: close" in head
    if fails is None:
        assert gzip.decompress(body) == b"abc, key, body" * 100
        assert b"content-encoding: gzip" in head
        assert b"x-name: 1" in head
    else:
        assert json.loads(body) == {"error": "no abc" if fails == 409 else "The server failed: ZeroDivisionError: none"}


@pytest.mark.parametrize("begins_at_once", [False, True])
def test_the_end_of_the_drain_answers_requests_and_logs_no_error(
    begins_at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from anabranch.framework.serving.web.connections import HttpServer

    async def handle(request: Request) -> Response:
        if request.parts["name"] == "large":
            return Response(bytes(1 << 26))
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def run() -> bytes:
        route = Route("POST", re.compile("/(?P<name>[a-z]+)"), handle, begins_at_once=begins_at_once)
        server = HttpServer(Application([route], 100), drain_seconds=0.1)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await server.listens.wait()
            streams = [await asyncio.open_connection(*listening.getsockname()) for _ in range(3)]
            for (_, writer), path in zip(streams, ("/endless", "/large", ""), strict=True):
                writer.write(_post(path, b"") if path else b"POST /half")
            await streams[1][0].readexactly(100)  # and the rest is not read
            server.should_exit = True
            answer = await streams[0][0].read()
            await serving
            for _, writer in streams:
                writer.transport.abort()
        return answer

    with caplog.at_level(logging.WARNING):
        answer = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"drain_seconds" in answer
    assert not caplog.records
