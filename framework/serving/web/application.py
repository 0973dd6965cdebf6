"""The HTTP front: an ASGI application that finds the handler of a path, reads bodies and writes answers and errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from contextvars import Context, copy_context
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

from ....distribute.inference import RequestError, authorization
from ....distribute.inference.time_limit import time_limit
from ..json_text import write_json
from .compression import accepted, compressed, is_worthwhile, plain

_log = logging.getLogger("anabranch.serving")

_LINGER_SECONDS = 5.0
_KNOWN_PATHS = 256  # whose routes are remembered
STOPS = "The server stops, and the time that it had left for answers (drain_seconds) is over."
_UNREAD = "a client does not read its answer; the server stops without it"
_TIMEOUT = "x-request-timeout-ms"
_TIMEOUT_BYTES = _TIMEOUT.encode()
_HEADERS = {  # of errors
    401: {"www-authenticate": "Bearer"},
    413: {"connection": "close"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}

Message: TypeAlias = MutableMapping[str, Any]
"""An event of ASGI, such as a part of a body, or the scope of a connection."""

Receive: TypeAlias = Callable[[], Awaitable[Message]]
"""A function that waits for the next event of the client, by ASGI."""

Send: TypeAlias = Callable[[Message], Awaitable[None]]
"""A function that sends an event to the client, by ASGI."""


class Request(NamedTuple):
    """A request, as a handler gets it.

    Attributes:
        parts: the named parts of the path; those that are not there are "".
        headers: by names in lower case.
        body: the whole body.
        gone: waits until the client has gone.
        seconds: how long an answer may take; None for any time.
        scheme: "http" or "https".
    """

    parts: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    gone: Callable[[], Awaitable[None]]
    seconds: float | None
    scheme: str = "http"


class Response(NamedTuple):
    """A response, as a handler gives it. With a `stream`, its pieces are the body."""

    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    status: int = 200
    stream: AsyncGenerator[bytes] | None = None


class Route(NamedTuple):
    """A path, as a regular expression with named parts, its handler, and the form of its errors.

    Attributes:
        begins_at_once: whether the handler may run outside of a task. Such a one does not use the current task, waits
            for futures alone, and does not watch whether the client has gone.
    """

    method: str
    path: re.Pattern[str]
    handle: Callable[[Request], Awaitable[Response]]
    error_form: Callable[[int, str], object] = lambda status, message: message
    begins_at_once: bool = False


class Begun(NamedTuple):
    """An answer that is not there yet.

    Attributes:
        handling: the coroutine that gives it, which has run to where it waits.
        waits_for: the future there, or None for one turn of the event loop.
        context: the context in which it runs.
    """

    handling: Coroutine[object, None, Response]
    waits_for: object
    context: Context


class Application:
    """An ASGI application.

    Args:
        routes: tried in their order.
        max_body_bytes: the largest body that is read.
        request_seconds: how long an answer may take; None for any time. A request may ask for less.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        max_body_bytes: int,
        request_seconds: float | None = None,
    ) -> None:
        self._routes = routes
        self._matching = lru_cache(_KNOWN_PATHS)(self._find)
        self._max_body_bytes = max_body_bytes
        self._request_seconds = request_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. It is cancelled if the server stops and can't wait any longer."""
        try:
            await self._respond(scope, receive, send)
        except ConnectionAbortedError:
            return
        except asyncio.CancelledError:
            _log.info(_UNREAD)

    async def _respond(self, scope: Message, receive: Receive, send: Send) -> None:
        """Get an answer and send it."""
        headers = _headers_of(scope)
        answering = self._answer(scope, headers, receive)
        response = await self._finished(scope["method"], scope["path"], headers, answering)
        await self._send(response, receive, send)

    async def _finished(
        self, method: str, path: str, headers: Mapping[str, str], answering: Awaitable[Response]
    ) -> Response:
        """Wait for an answer; give it compressed where the client takes that, or the answer for what was raised."""
        try:
            try:
                response = await answering
            except RequestError as error:
                response = self._refusal(path, error)
            except asyncio.CancelledError:
                response = self._refusal(path, RequestError(503, STOPS))
            if response.stream is not None or not is_worthwhile(response.body, response.content_type):
                return response
            more = {"vary": "accept-encoding", **response.headers}
            encoding = accepted(headers)
            if not encoding:
                return response._replace(headers=more)
            body = await compressed(response.body, encoding)
            return response._replace(body=body, headers={**more, "content-encoding": encoding})
        except ConnectionAbortedError:
            raise
        except Exception as error:
            return self.failure(method, path, error)

    @staticmethod
    def failure(method: str, path: str, error: Exception) -> Response:
        """Return the answer for what should not have been raised, and log that."""
        _log.error("%s %s", method, path, exc_info=error)
        return _failure(500, f"The server failed: {type(error).__name__}: {error}")

    async def _send(self, response: Response, receive: Receive, send: Send) -> None:
        body = response.body
        encoded = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in fields_of(response)]
        await send({"type": "http.response.start", "status": response.status, "headers": encoded})
        if response.stream is not None:
            await _send_pieces(response.stream, send)
        if response.status == 413:  # the rest of the body may be under way
            await send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
            await _linger(receive)
        await send({"type": "http.response.body", "body": body})

    def begins_at_once(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Test whether a POST may go to `begin`, once its whole body is there.

        Tasks keep time limits: a request that has one needs a task.
        """
        found = self._matching(path)
        if not found or not found[0][0].begins_at_once or self._request_seconds is not None:
            return False
        length = b""
        for name, text in headers:
            if name == b"content-length":
                length = text
            elif name == _TIMEOUT_BYTES:
                return False
        return length.isdigit() and int(length) <= self._max_body_bytes

    def begin(self, path: str, headers: Mapping[str, str], body: bytes, scheme: str) -> Response | Begun:
        """Answer a POST, for which `begins_at_once` holds, without a task as far as nothing has to be waited for.

        Most calls of small models end here. The caller resumes the others when what they wait for is done.
        """
        route, parts = self._matching(path)[0]
        encoding = headers.get("content-encoding")
        if encoding:
            answering = self._handled(route, Request(parts, headers, body, _unwatched, None, scheme), encoding)
        else:
            answering = route.handle(Request(parts, headers, body, _unwatched, None, scheme))
        handling = self._finished("POST", path, headers, answering)
        context = copy_context()
        try:
            context.run(authorization.set, headers.get("authorization", ""))
            waits_for = context.run(handling.send, None)
        except StopIteration as end:
            return end.value
        return Begun(handling, waits_for, context)

    async def _handled(self, route: Route, request: Request, encoding: str) -> Response:
        body = await plain(request.body, encoding, self._max_body_bytes)
        return await route.handle(request._replace(body=body))

    def _refusal(self, path: str, error: RequestError) -> Response:
        """Return the answer for what a handler raised, in the form that its path has for errors."""
        form = next((route.error_form for route, _ in self._matching(path)), None)
        said = str(error) if form is None else form(error.status, str(error))
        return _failure(error.status, said, _HEADERS.get(error.status))

    async def _answer(self, scope: Message, headers: Mapping[str, str], receive: Receive) -> Response:
        method, path = scope["method"], scope["path"]
        found = self._matching(path)
        if not found:
            raise RequestError(404, f"There is nothing at {path!r}. Models are at /v1/models/NAME and /v2/models/NAME.")
        wanted = "GET" if method == "HEAD" else method  # uvicorn leaves out the body
        route, parts = next((each for each in found if each[0].method == wanted), found[0])
        if route.method != wanted:
            allowed = ", ".join(dict.fromkeys(each.method for each, _ in found))
            return _failure(405, f"{method} is no method of {path!r}; it has {allowed}.", {"allow": allowed})
        body, seconds = await self._whole_body(headers, receive), self._seconds(headers)
        return await self._handle(
            route, Request(parts, headers, body, partial(_gone, receive), seconds, scope["scheme"])
        )

    @staticmethod
    async def _handle(route: Route, request: Request) -> Response:
        """Return the answer of a handler, if it comes in time."""
        authorization.set(request.headers.get("authorization", ""))
        seconds = request.seconds
        if seconds is None:
            return await route.handle(request)
        async with time_limit(seconds):
            return await route.handle(request)

    def _find(self, path: str) -> list[tuple[Route, dict[str, str]]]:
        """Return the routes of a path, and the named parts of it."""
        found = [(route, match) for route in self._routes if (match := route.path.fullmatch(path))]
        return [(route, {name: text or "" for name, text in match.groupdict().items()}) for route, match in found]

    def _seconds(self, headers: Mapping[str, str]) -> float | None:
        """Return how many seconds an answer may take."""
        said = headers.get(_TIMEOUT)
        if said is None:
            return self._request_seconds
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", said) or float(said) == 0:
            raise RequestError(400, f"{_TIMEOUT} is {said!r}; expected milliseconds, above 0.")
        asked = float(said) / 1000
        return asked if self._request_seconds is None else min(asked, self._request_seconds)

    async def _whole_body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        body = await self._body(headers, receive)
        encoding = headers.get("content-encoding")
        return await plain(body, encoding, self._max_body_bytes) if encoding else body

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        said = headers.get("content-length", "0")
        size = int(said) if said.isdecimal() else 0
        pieces: list[bytes] = []
        count = 0
        while size <= self._max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            pieces.append(message.get("body", b""))
            count += len(pieces[-1])
            size = max(size, count)
            if not message.get("more_body", False):
                break
        if size > self._max_body_bytes:
            raise RequestError(413, f"The body is larger than the {self._max_body_bytes:,} bytes that are taken.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def fields_of(response: Response) -> list[tuple[str, str]]:
    """Return the names and texts of the headers of an answer."""
    fields = [("content-type", response.content_type)]
    fields += [(name.lower(), text) for name, text in response.headers.items()]
    if response.stream is None:
        fields.append(("content-length", str(len(response.body))))
    return fields


def _headers_of(scope: Message) -> dict[str, str]:
    return texts_of(scope["headers"])


def texts_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers, which came as bytes, by name."""
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in headers}


async def _unwatched() -> None:
    raise RuntimeError("a handler that begins at once does not watch whether its client has gone")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _linger(receive: Receive) -> None:
    """Take what the client still sends, for a while, and throw it away.

    A connection that is closed while data arrives is reset, and a client that is reset may never see the answer.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while (message := await receive())["type"] != "http.disconnect" and message.get("more_body", False):
                pass


async def _send_pieces(stream: AsyncGenerator[bytes], send: Send) -> None:
    """Send the pieces of a body until it ends or the client has gone."""
    await send({"type": "http.response.body", "body": b"", "more_body": True})  # the head does not wait for the first
    try:
        async for piece in stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionAbortedError:
        pass
    except Exception:  # the status has been sent
        _log.exception("a stream broke off")
    finally:
        await stream.aclose()


def _failure(status: int, message: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(write_json({"error": message}), headers=headers or {}, status=status)
