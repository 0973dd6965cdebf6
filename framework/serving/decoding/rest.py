"""Generation over HTTP: Triton's `generate` and `generate_stream`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from ....distribute.inference import RequestError
from ..catalogue import Catalogue
from ..json_text import read_object, write_json
from ..web.application import Request, Response, Route
from .generation import SETTINGS, Generation
from .served import ServedDecoder
from .texts import TextPieces

_MODEL = r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?"
_FIELDS = ("id", "inputs", "parameters", "text_input", "tokens")


class _Asked(NamedTuple):
    decoder: ServedDecoder
    generation: Generation
    head: dict[str, Any]


class GenerateRest:
    """Its handlers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Give the paths that it answers."""
        return [
            Route("POST", re.compile(f"{_MODEL}/generate"), self._generate),
            Route("POST", re.compile(f"{_MODEL}/generate_stream"), self._generate_stream),
        ]

    def _asked(self, request: Request) -> _Asked:
        found = self._catalogue.find_decoder(request.parts["model"], request.parts["version"])
        body = read_object(request.body)
        _check_keys("the request", body, _FIELDS)
        if ("text_input" in body) == ("tokens" in body):
            raise RequestError(400, "Expected 'text_input' (a text) or 'tokens' (a list of integers), one of them.")
        prompt = body.get("text_input", body.get("tokens"))
        if not isinstance(prompt, str if "text_input" in body else list):
            raise RequestError(400, "'text_input' must be a text, and 'tokens' a list of integers.")
        inputs, settings = (_object(body, key) for key in ("inputs", "parameters"))
        _check_keys("'parameters'", settings, SETTINGS)
        given = {name: value for name, value in settings.items() if value is not None}
        head = {"id": body["id"]} if body.get("id") else {}
        head |= {"model_name": found.name, "model_version": found.version}
        return _Asked(found, found.make_generation(prompt, inputs, given), head)

    async def _generate(self, request: Request) -> Response:
        asked = self._asked(request)
        async with aclosing(_until_gone(asked.decoder.tokens(asked.generation), request)) as tokens:
            found = [token async for token in tokens]
        text = asked.decoder.decoder.text(found)
        written = {} if text is None else {"text_output": text}
        return Response(
            write_json({**asked.head, **written, "tokens": found, "finish_reason": asked.generation.finish_reason})
        )

    async def _generate_stream(self, request: Request) -> Response:
        asked = self._asked(request)
        tokens = _until_gone(asked.decoder.tokens(asked.generation), request)
        first = await anext(tokens)  # what can't begin is answered with its status
        return Response(b"", "text/event-stream", {"cache-control": "no-store"}, stream=_events(asked, first, tokens))


async def _events(asked: _Asked, first: int, tokens: AsyncGenerator[int]) -> AsyncGenerator[bytes]:
    """Give an event for each token; an error is an event, too, since the status has been sent."""
    pieces = TextPieces(asked.decoder.decoder, asked.generation)

    def event(token: int) -> bytes:
        entry: dict[str, Any] = {**asked.head, "tokens": [token]}
        text = pieces.add(token)
        if text is not None:
            entry["text_output"] = text
        entry["finish_reason"] = asked.generation.finish_reason if pieces.is_last else None
        return _event(entry)

    async with aclosing(tokens):
        yield event(first)
        try:
            async for token in tokens:
                yield event(token)
        except RequestError as error:
            yield _event({"error": str(error)})


def _event(entry: Mapping[str, Any]) -> bytes:
    return b"data: " + write_json(entry) + b"\n\n"


async def _until_gone(tokens: AsyncGenerator[int], request: Request) -> AsyncGenerator[int]:
    """Give tokens until the client has gone, or the request's time is over."""
    gone = asyncio.ensure_future(request.gone())
    loop = asyncio.get_running_loop()
    end = None if request.seconds is None else loop.time() + request.seconds
    following: asyncio.Future[int] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_awaited(anext(tokens)))
            left = None if end is None else max(0.0, end - loop.time())
            await asyncio.wait({following, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                if gone.done():
                    raise ConnectionAbortedError
                raise RequestError(504, f"The sequence did not end within {request.seconds:g} s, its time.")
            try:
                token = following.result()
            except StopAsyncIteration:
                return
            yield token
    finally:
        gone.cancel()
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait({following})
        await tokens.aclose()


async def _awaited(value: Awaitable[int]) -> int:
    return await value


def _check_keys(what: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = next((key for key in found if key not in known), None)
    if unknown is not None:
        raise RequestError(400, f"{what} has {unknown!r}, which has no meaning here. Known are {', '.join(known)}.")


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key) or {}
    if not isinstance(found, dict):
        raise RequestError(400, f"'{key}' has to be an object.")
    return found
