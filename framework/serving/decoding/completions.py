"""OpenAI's interface to decoders with texts: ``POST /v1/completions``, and ``GET /v1/models``."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from ....distribute.inference import RequestError
from ....distribute.inference.large import beside_others
from ..catalogue import Catalogue
from ..json_text import read_object, write_json
from ..signature import listed
from ..web.application import STOPS, Request, Response, Route
from .generation import Generation
from .rest import until_gone
from .served import ServedDecoder
from .texts import Piece, pieces

_MAX_TOKENS = 16  # OpenAI's default
_MOST_CHOICES = 128
_TAKEN = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "n",
    "stream",
    "stream_options",
    "stop",
    "seed",
    "echo",
    "user",
    "inputs",
}
_TYPES: tuple[tuple[str, type, str], ...] = (
    ("stream", bool, "true or false"),
    ("echo", bool, "true or false"),
    ("stream_options", dict, "an object"),
    ("inputs", dict, "an object"),
)
_NEUTRAL: dict[str, tuple[object, ...]] = {  # what is not offered, and the values that ask for nothing
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, 0, False),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}


class _Choice(NamedTuple):
    index: int
    generation: Generation
    prompt: str  # what is repeated before the text


class _Asked(NamedTuple):
    served: ServedDecoder
    choices: list[_Choice]
    head: dict[str, object]
    prompt_tokens: int
    wants_usage: bool


class Completions:
    """Its handlers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        return [
            Route("POST", re.compile("/v1/completions"), self._complete, error_form),
            Route("GET", re.compile("/v1/models"), self._models),
        ]

    async def _models(self, request: Request) -> Response:
        entries = [model_entry(name) for name in self._catalogue.open_names()]
        return Response(write_json({"object": "list", "data": entries}))

    async def _complete(self, request: Request) -> Response:
        body = await beside_others(len(request.body), read_object, request.body)
        asked = await self._asked(body)
        if body.get("stream"):
            events = _events(asked, request)
            first = await anext(events)  # what can't begin is answered with its status
            return Response(b"", "text/event-stream", {"cache-control": "no-store"}, stream=_all(first, events))
        tasks = [asyncio.ensure_future(_whole(asked, choice, request)) for choice in asked.choices]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        choices = [entry for entry, _ in found]
        usage = _usage(asked.prompt_tokens, sum(count for _, count in found))
        return Response(write_json({**asked.head, "choices": choices, "usage": usage}))

    async def _asked(self, body: Mapping[str, Any]) -> _Asked:
        refused = [key for key, value in body.items() if key not in _TAKEN and value not in _NEUTRAL.get(key, ())]
        if refused:
            are, known = "is" if len(refused) == 1 else "are", ", ".join(sorted(_TAKEN))
            raise RequestError(400, f"{listed(refused)} {are} not offered here. Known are {known}.")
        if not isinstance(body.get("model"), str):
            raise RequestError(400, "Expected 'model', the name of a decoder.")
        served = self._catalogue.find_decoder(body["model"])
        if not served.decoder.gives_text:
            raise RequestError(
                400, f"{served.name!r} has no detokenizer and gives no text: ask /v2/models/{served.name}/generate."
            )
        for name, kind, expected in _TYPES:
            if not isinstance(body.get(name), (kind, type(None))):
                raise RequestError(400, f"{name!r} must be {expected}; got {body[name]!r}.")
        count = 1 if body.get("n") is None else body["n"]
        prompts = _prompts(body.get("prompt"))
        if type(count) is not int or not 0 < count * len(prompts) <= _MOST_CHOICES:
            raise RequestError(400, f"n times the number of prompts must be from 1 to {_MOST_CHOICES}; got {count!r}.")
        choices: list[_Choice] = []
        for prompt in prompts:
            for _ in range(count):
                choices.append(await _choice(served, body, prompt, len(choices)))
        head: dict[str, object] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        prompt_tokens = sum(len(each.generation.prompt) for each in choices[::count])
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return _Asked(served, choices, head, prompt_tokens, wants_usage)


def model_entry(name: str) -> dict[str, object]:
    """Return the description of a model as OpenAI's clients read it, from the list or by name."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "anabranch"}


def error_form(status: int, message: str) -> dict[str, object]:
    """Return an error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": None, "code": status}


def _prompts(given: object) -> list[object]:
    """Return one prompt or several: texts, or lists of tokens."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(type(each) is int for each in given):
            return [given]
        if all(isinstance(each, (str, list)) for each in given):
            return given
    raise RequestError(400, "Expected 'prompt': a text, a list of tokens, or a list of such prompts.")


async def _choice(served: ServedDecoder, body: Mapping[str, Any], prompt: Any, index: int) -> _Choice:
    stop = body.get("stop")
    settings: dict[str, object] = {
        "max_tokens": _MAX_TOKENS if body.get("max_tokens") is None else body["max_tokens"],
        "temperature": 1.0 if body.get("temperature") is None else body["temperature"],
        "stop": [] if stop is None else [stop] if isinstance(stop, str) else stop,
        **{name: body[name] for name in ("top_p", "top_k") if body.get(name) is not None},
    }
    seed = body.get("seed")
    if type(seed) is int:
        settings["seed"] = (seed + index) % 2**64
    elif seed is not None:
        raise RequestError(400, f"seed must be an integer; got {seed!r}.")
    generation = await served.make_generation(prompt, body.get("inputs") or {}, settings)
    shown = ""
    if body.get("echo"):
        shown = prompt if isinstance(prompt, str) else served.decoder.text(prompt) or ""
    return _Choice(index, generation, shown)


def _entry(index: int, text: str, reason: str | None) -> dict[str, object]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _whole(asked: _Asked, choice: _Choice, request: Request) -> tuple[dict[str, object], int]:
    """Return the entry of a choice, and how many tokens it has."""
    async with aclosing(until_gone(pieces(asked.served, choice.generation), request)) as found:
        every = [piece async for piece in found]
    text = choice.prompt + "".join(piece.text or "" for piece in every)
    return _entry(choice.index, text, every[-1].finish_reason), len(every)


async def _events(asked: _Asked, request: Request) -> AsyncGenerator[bytes]:
    """Yield the pieces of all choices, in the order in which they come."""
    news: asyncio.Queue[tuple[_Choice, Piece | Exception | None]] = asyncio.Queue(64)

    async def follow(choice: _Choice) -> None:
        try:
            async with aclosing(pieces(asked.served, choice.generation)) as found:
                async for piece in found:
                    await news.put((choice, piece))
            await news.put((choice, None))
        except Exception as error:
            await news.put((choice, error))

    async def merged() -> AsyncGenerator[tuple[_Choice, Piece]]:
        left = len(asked.choices)
        while left:
            choice, piece = await news.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                left -= 1
            else:
                yield choice, piece

    tasks = [asyncio.ensure_future(follow(choice)) for choice in asked.choices]
    shown, count = set[int](), 0
    try:
        async with aclosing(until_gone(merged(), request)) as found:
            async for choice, piece in found:
                text = (piece.text or "") if choice.index in shown else choice.prompt + (piece.text or "")
                shown.add(choice.index)
                count += 1
                yield _event({**asked.head, "choices": [_entry(choice.index, text, piece.finish_reason)]})
        if asked.wants_usage:
            yield _event({**asked.head, "choices": [], "usage": _usage(asked.prompt_tokens, count)})
        yield b"data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(entry: Mapping[str, object]) -> bytes:
    return b"data: " + write_json(entry) + b"\n\n"


async def _all(first: bytes, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield all events; an error is one, too, since the status has been sent."""
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except RequestError as error:
            yield _event({"error": error_form(error.status, str(error))})
        except asyncio.CancelledError:
            yield _event({"error": error_form(503, STOPS)})
