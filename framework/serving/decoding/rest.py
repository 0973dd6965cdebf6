"""Generation over HTTP: Triton's `generate` and `generate_stream`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from ....distribute.inference import RequestError
from ....distribute.inference.large import beside_others
from ..catalogue import Catalogue
from ..json_text import read_object, write_json
from ..signature import check_known
from ..web.application import STOPS, Request, Response, Route
from .generation import SETTINGS, Generation
from .served import ServedDecoder
from .texts import Piece, pieces

T = TypeVar("T")

_MODEL = r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?"
_FIELDS = ("id", "inputs", "parameters", "text_input", "tokens")


class _Asked(NamedTuple):
    decoder: ServedDecoder
    generation: Generation
    head: dict[str, object]


class GenerateRest:
    """Its handlers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        return [
            Route("POST", re.compile(f"{_MODEL}/generate"), self._generate),
            Route("POST", re.compile(f"{_MODEL}/generate_stream"), self._generate_stream),
        ]

    async def _asked(self, request: Request) -> _Asked:
        found = self._catalogue.find_decoder(request.parts["model"], request.parts["version"])
        body = await beside_others(len(request.body), read_object, request.body)
        check_known("field", body, _FIELDS)
        if ("text_input" in body) == ("tokens" in body):
            raise RequestError(400, "Expected 'text_input' (a text) or 'tokens' (a list of integers), one of them.")
        prompt = body.get("text_input", body.get("tokens"))
        if not isinstance(prompt, str if "text_input" in body else list):
            raise RequestError(400, "'text_input' must be a text, and 'tokens' a list of integers.")
        inputs, settings = (_object(body, key) for key in ("inputs", "parameters"))
        check_known("parameter", settings, SETTINGS)
        given = {name: value for name, value in settings.items() if value is not None}
        head = {"id": body["id"]} if body.get("id") else {}
        head |= {"model_name": found.name, "model_version": found.version}
        return _Asked(found, await found.make_generation(prompt, inputs, given), head)

    async def _generate(self, request: Request) -> Response:
        asked = await self._asked(request)
        async with aclosing(until_gone(pieces(asked.decoder, asked.generation), request)) as given:
            found = [piece async for piece in given]
        answer = {**asked.head}
        if asked.decoder.decoder.gives_text:
            answer["text_output"] = "".join(piece.text or "" for piece in found)
        answer |= {"tokens": [piece.token for piece in found], "finish_reason": found[-1].finish_reason}
        return Response(write_json(answer))

    async def _generate_stream(self, request: Request) -> Response:
        asked = await self._asked(request)
        found = until_gone(pieces(asked.decoder, asked.generation), request)
        first = await anext(found)  # what can't begin is answered with its status
        return Response(b"", "text/event-stream", {"cache-control": "no-store"}, stream=_events(asked, first, found))


async def _events(asked: _Asked, first: Piece, others: AsyncGenerator[Piece]) -> AsyncGenerator[bytes]:
    """Yield an event for each token; an error is an event, too, since the status has been sent."""

    def event(piece: Piece) -> bytes:
        written = {} if piece.text is None else {"text_output": piece.text}
        return _event({**asked.head, "tokens": [piece.token], **written, "finish_reason": piece.finish_reason})

    async with aclosing(others):
        yield event(first)
        try:
            async for piece in others:
                yield event(piece)
        except RequestError as error:
            yield _event({"error": str(error)})
        except asyncio.CancelledError:
            yield _event({"error": STOPS})


def _event(entry: Mapping[str, object]) -> bytes:
    return b"data: " + write_json(entry) + b"\n\n"


async def until_gone(items: AsyncGenerator[T], request: Request) -> AsyncGenerator[T]:
    """Yield items until the client has gone, or the request's time is over.

    Raises:
        ConnectionAbortedError: the client has gone.
        RequestError: the time is over.
    """
    gone = asyncio.ensure_future(request.gone())
    loop = asyncio.get_running_loop()
    end = None if request.seconds is None else loop.time() + request.seconds
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_awaited(anext(items)))
            left = None if end is None else max(0.0, end - loop.time())
            await asyncio.wait({following, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            # Also looked at where there is an item: those that come faster than they are sent are always there.
            if gone.done():
                raise ConnectionAbortedError
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            except asyncio.InvalidStateError:
                raise _too_late(request) from None
            if end is not None and loop.time() >= end:
                raise _too_late(request)
            yield item
    finally:
        gone.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
            if not following.cancelled():
                following.exception()  # which nobody waits for any more
        await items.aclose()


def _too_late(request: Request) -> RequestError:
    return RequestError(504, f"The sequence did not end within {request.seconds:g} s, its time.")


async def _awaited(value: Awaitable[T]) -> T:
    return await value


def _object(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = body.get(key) or {}
    if not isinstance(found, dict):
        raise RequestError(400, f"'{key}' has to be an object.")
    return found
