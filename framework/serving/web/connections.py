"""`HttpServer`: uvicorn with bounds for slow and large heads of requests, TLS, and signals left to the program."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import ssl
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ....engine.common.quick_dataclass import dataclass
from ..json_text import write_json
from .application import Application, Begun, Response, fields_of, texts_of

if TYPE_CHECKING:
    import socket

_MOST_HEAD_BYTES = 1 << 16  # of a request: its line and headers
_NOT_PLAIN = frozenset(b"%?#")  # with one of them, an address is more than a path, or a path is to be decoded
_TURN_SECONDS = 0.1  # in which connections and tasks notice that they are ended
_LAST_SECONDS = 3  # after which uvicorn ends what did not notice, and logs an error
_KEEP_ALIVE_SECONDS = 75  # clients keep connections for longer than uvicorn's 5 seconds


@dataclass(frozen=True)
class Tls:
    """Describe how a server is encrypted.

    Attributes:
        certificate: a file with the server's certificate, and those of its authorities behind it, as PEM.
        key: a file with its private key, as PEM.
        client_authorities: a file with certificates, as PEM; clients must have a certificate that one of these has
            signed. None lets clients without one in.

    >>> import anabranch as ab
    >>> ab.serving.Tls("server.pem", "server.key").read()
    Traceback (most recent call last):
    ValueError: ...
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_authorities: str | os.PathLike[str] | None = None

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Return the content of the three files.

        Raises:
            ValueError: one can't be read, or the key is not that of the certificate.
        """
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
            authorities = None if self.client_authorities is None else Path(self.client_authorities).read_bytes()
            return Path(self.certificate).read_bytes(), Path(self.key).read_bytes(), authorities
        except OSError as error:  # an `ssl.SSLError`, too
            raise ValueError(
                f"TLS with the certificate {str(self.certificate)!r} and the key {str(self.key)!r}: {error}"
            ) from None


class Transport(Protocol):
    """The part of a connection's transport that an answer is written to."""

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class Joining:
    """The transport of one answer: its head goes with the beginning of its body, in one packet instead of two.

    An answer whose body takes longer sends an empty piece of it first.

    Args:
        transport: of the connection.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self._head, self._has_begun = transport, b"", False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._has_begun and not data.startswith(b"HTTP/1.1 100"):
            self._head, self._has_begun = data, True
            return
        self._transport.write(self._head + data if self._head else data)
        self._head = b""

    def flush(self) -> None:
        """Write a head that has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


class _Waiting:
    """A request that has come whole and waits for its answer: stands where uvicorn has the cycle of a request.

    It resumes the coroutine that gives the answer when that can go on, as a task would, which takes longer.

    Args:
        begun: what has begun to answer it.
        keep_alive: whether the connection stays open behind the answer.
        end: writes the answer; None where none comes.
    """

    __slots__ = ("_context", "_end", "_handling", "_waits_for", "keep_alive")
    response_complete = False  # which uvicorn reads

    def __init__(self, begun: Begun, keep_alive: bool, end: Callable[[Response | None], None]) -> None:
        self.keep_alive, self._end = keep_alive, end
        self._handling, waits_for, self._context = begun
        self._wait_for(waits_for)

    def _wait_for(self, future: Any) -> None:
        """Go on when a future is done, or in the next turn of the event loop if that is None."""
        self._waits_for = future
        if future is None:
            asyncio.get_running_loop().call_soon(self._go_on, context=self._context)
        else:
            future.add_done_callback(self._go_on, context=self._context)

    def _go_on(self, done: object = None) -> None:
        try:
            waits_for = self._handling.send(None)
        except StopIteration as end:
            self._end(end.value)
        except asyncio.CancelledError:  # while the answer was compressed
            self._end(None)
        except BaseException:  # which the event loop logs
            self._end(None)
            raise
        else:
            self._wait_for(waits_for)

    def cancel(self) -> None:
        """Have the coroutine fail where it waits, as if its task was cancelled."""
        if self._waits_for is not None:
            self._waits_for.cancel()


class _Connection(HttpToolsProtocol):
    """A connection whose requests have to come within a time, with heads of a bounded size.

    There is a timer only while a part of a request is missing, which is rare: most come whole. Requests that come whole
    are answered without a task (`_Waiting`), those behind one that is not answered yet by uvicorn.
    """

    application: Application
    cycle: Any  # of uvicorn, or what stands there
    read_seconds: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _is_head_missing = True  # of a request that has begun, or of the first one
    _is_body_missing = False
    _whole: bytes | None = None  # what has come of a body that is waited for before its request begins
    _waiting: _Waiting | None = None  # the request that waits for its answer
    idle_since: float | None = None  # when the last answer was given, as long as nothing came since
    _last_head: tuple[bytes, list[tuple[bytes, bytes]]] | None = None  # of the latest request that came whole
    _path, _texts = "", dict[str, str]()  # what that head holds: clients send the same one again and again
    _offers_upgrade = False  # whether the request that is read offers to go on by another protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self.cancel()
        self._forget_waiting()
        super().connection_lost(exc)

    def cancel(self) -> None:
        """Have the request that waits for its answer fail."""
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._is_body_missing and not self._is_answering():
            self._head_bytes += len(data)
            self._is_head_missing = True
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._whole is not None and not self.transport.is_closing():  # the rest of the body comes later
            self._begin_cycle()
        if self._head_bytes > _MOST_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", "The headers are too large.")
        self._set_timer()

    def _is_answering(self) -> bool:
        """Test whether a request has no whole answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:  # of CONNECT, too, which is answered as it is
                data = (self._without_offer() if self._offers_upgrade else b"") + data[offer.args[0] :]
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return

    def _without_offer(self) -> bytes:
        """Return the head that was read without its offer of another protocol, for another parser.

        Parsers stop at such a head, in front of its body. Java's `HttpClient` offers HTTP/2 with each first request.
        """
        self._offers_upgrade = False
        method, keeps = self.parser.get_method(), self.parser.should_keep_alive()
        self.parser = httptools.HttpRequestParser(self)
        if hasattr(self.parser, "set_dangerous_leniencies"):  # as uvicorn does, with httptools 0.6.3 and newer
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        fields = [each for each in self.headers if each[0] not in (b"connection", b"upgrade", b"http2-settings")]
        fields += [] if keeps else [(b"connection", b"close")]
        lines = [b"%s %s HTTP/1.1" % (method, self.url), *[b"%s: %s" % field for field in fields], b"", b""]
        return b"\r\n".join(lines)

    def on_message_begin(self) -> None:
        self._is_head_missing = True  # also behind a whole request that has come with the beginning of this one
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        parser = self.parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            self._offers_upgrade = True
            return
        if self._head_bytes > _MOST_HEAD_BYTES and self._size_of_head() > _MOST_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", "The headers are too large.")
            raise ValueError("The headers are too large.")  # so that the parser stops
        self._end_timer()  # the body has its own time
        self._head_bytes, self._is_head_missing, self._is_body_missing = 0, False, True
        if self._may_come_whole():
            self._whole = b""
        else:
            self._begin_cycle()

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _begin_cycle(self) -> None:
        """Have the application answer in a task, which reads the body as it comes."""
        self._unset_keepalive_if_required()  # an answer in front of this request may have begun that time just now
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and not isinstance(cycle.transport, Joining):
            cycle.transport = joining = Joining(self.transport)
            cycle.on_response = partial(self._end_answer, joining)
        if self._whole is not None:
            whole, self._whole = self._whole, None
            if whole:
                super().on_body(whole)

    def _may_come_whole(self) -> bool:
        """Test whether a request may be answered without a task, if its body has come with its head."""
        parser = self.parser
        if (
            parser.get_method() != b"POST"
            or self.expect_100_continue
            or self._is_answering()
            or self.flow.write_paused
            or self.transport.is_closing()
            or parser.get_http_version() != "1.1"
        ):
            return False
        head = self.url, self.headers
        if head == self._last_head:
            return True
        url = self.url
        is_path = url.isascii() and _NOT_PLAIN.isdisjoint(url)
        if not is_path or not self.application.begins_at_once(url.decode(), self.headers):
            return False
        self._last_head, self._path, self._texts = head, url.decode(), texts_of(self.headers)
        return True

    def on_body(self, body: bytes) -> None:
        if self._whole is None:
            super().on_body(body)
        else:
            self._whole = self._whole + body if self._whole else body

    def _end_answer(self, joining: Joining) -> None:
        joining.flush()
        self.on_response_complete()

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._is_body_missing = False
        if self._whole is None:
            super().on_message_complete()
        else:
            self._answer_whole(self._whole)

    def _answer_whole(self, body: bytes) -> None:
        """Answer a request that has come whole, now or when its answer is there."""
        self._whole = None
        parser = self.parser
        keep_alive = parser.should_keep_alive()
        found = self.application.begin(self._path, self._texts, body, self.scheme or "http")
        if isinstance(found, Begun):
            self._unset_keepalive_if_required()  # an answer in front may have begun that time just now
            self._waiting = _Waiting(found, keep_alive, self._end_waiting)
            self.cycle = self._waiting
        else:
            self._write_answer(found, keep_alive)

    def _end_waiting(self, response: Response | None) -> None:
        waiting = self._forget_waiting()
        if response is None:
            self.transport.close()
        elif waiting is not None and not self.transport.is_closing():
            self._write_answer(response, waiting.keep_alive)

    def _forget_waiting(self) -> _Waiting | None:
        waiting, self._waiting = self._waiting, None
        if self.cycle is waiting:  # otherwise it is that of a request behind it
            self.cycle = None
        return waiting

    def _write_answer(self, response: Response, keep_alive: bool) -> None:
        try:
            text = self._text_of(response, keep_alive)
        except Exception as error:  # httptools would take it for an error of the client
            response = self.application.failure("POST", self._path, error)
            text = self._text_of(response, keep_alive)
        self.transport.write(text)
        if not keep_alive or _says_end(response):
            self.transport.close()
        self.on_response_complete()

    def _text_of(self, response: Response, keep_alive: bool) -> bytes:
        pieces = [STATUS_LINE[response.status]]
        for name, value in self.server_state.default_headers:
            pieces += (name, b": ", value, b"\r\n")
        texts = [f"{name}: {text}\r\n" for name, text in fields_of(response)]
        end = b"\r\n" if keep_alive or _says_end(response) else b"connection: close\r\n\r\n"
        pieces += ("".join(texts).encode("latin-1"), end, response.body)
        return b"".join(pieces)

    def _unset_keepalive_if_required(self) -> None:
        self.idle_since = None

    def on_response_complete(self) -> None:
        """Begin the next request, or the time without requests. As uvicorn's, with one timer for many requests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, application = self.pipeline.pop()
            task = self.loop.create_task(cycle.run_asgi(application))  # uvicorn before 0.46 has no method for it
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            return
        self.idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._time_idleness(self.timeout_keep_alive)

    def _time_idleness(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if nothing came for long enough; else look again when it may be so."""
        self.timeout_keep_alive_task = None
        if self.idle_since is None or self.transport.is_closing():
            return
        left = self.idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._time_idleness(left)
        else:
            self.transport.close()

    def _set_timer(self) -> None:
        """Have a timer as long as something is missing."""
        if not (self._is_head_missing or self._is_body_missing):
            self._end_timer()
        elif self.read_seconds is not None and self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.read_seconds, self._is_late)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        if self.pipeline or (self._is_head_missing and self._is_answering()):
            self._set_timer()  # an error would come before the answers of those in front of it
        elif self._is_head_missing:
            self._refuse(b"408 Request Timeout", "The request did not come in time.")
        elif self.cycle.response_started:
            self.transport.close()
        else:
            limit = f"{self.read_seconds:g} s, which is the limit (read_seconds)"
            self._refuse(b"408 Request Timeout", f"The body did not come within {limit}.")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of all errors."""
        self._refuse(b"400 Bad Request", msg)

    def _refuse(self, status: bytes, message: str) -> None:
        transport: asyncio.Transport | None = self.transport
        if transport is None or transport.is_closing():
            return
        body = write_json({"error": message})
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        transport.write(head % (status, len(body)) + body)
        transport.close()


def _says_end(response: Response) -> bool:
    return response.headers.get("connection") == "close"


class HttpServer(uvicorn.Server):
    """uvicorn, which leaves signals to the program and says when it listens.

    Args:
        application: of ASGI.
        drain_seconds: how long requests under way may take when it stops.
        read_seconds: how long the head of a request may take, and how long its body; None for any time.
        tls: for encryption.
    """

    def __init__(
        self, application: Application, drain_seconds: float, read_seconds: float | None = None, tls: Tls | None = None
    ) -> None:
        secure: dict[str, Any] = {}
        if tls is not None:
            secure = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
            if tls.client_authorities is not None:
                secure |= {"ssl_ca_certs": os.fspath(tls.client_authorities), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        super().__init__(
            uvicorn.Config(
                application,
                http=type("_Timed", (_Connection,), {"application": application, "read_seconds": read_seconds}),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(drain_seconds) + _LAST_SECONDS,
                **secure,
            )
        )
        self._drain_seconds = drain_seconds
        self.listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        """End requests when the time for them is over, so that each is answered with an error.

        First go the clients that do not read their answers: there is no other way to be rid of them.
        """
        await asyncio.sleep(self._drain_seconds)
        self._abort(lambda connection: connection.flow.write_paused)
        await asyncio.sleep(_TURN_SECONDS)
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            cast(_Connection, connection).cancel()
        await asyncio.sleep(10 * _TURN_SECONDS)
        self._abort(lambda connection: True)

    def _abort(self, is_meant: Callable[[Any], bool]) -> None:
        for connection in [each for each in self.server_state.connections if is_meant(each)]:
            transport = connection.transport
            transport.abort()
