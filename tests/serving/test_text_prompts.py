"""Prompts of a served decoder: texts are read beside other requests, and a decoder stays until they are answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from shared.served_decoders import letters

pytest.importorskip("prometheus_client")

from anabranch.distribute.inference import RequestError
from anabranch.distribute.inference.large import PIECE
from anabranch.framework.serving.batching import Batching
from anabranch.framework.serving.decoding import decoder as decoder_module
from anabranch.framework.serving.decoding.served import ServedDecoder
from anabranch.framework.serving.metrics import Metrics


def served_letters() -> ServedDecoder:
    return ServedDecoder("letters", letters(max_length=2 * PIECE), Metrics(), Batching())


def test_texts_and_long_prompts_are_read_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    inner = decoder_module.make_generation

    def watched(*args: Any, **settings: Any) -> Any:
        threads.append(threading.current_thread().name)
        return inner(*args, **settings)

    monkeypatch.setattr(decoder_module, "make_generation", watched)

    async def run() -> None:
        served = served_letters()
        for prompt in ("ab", [2] * PIECE, [2, 3]):
            await served.make_generation(prompt, {}, {})
        with pytest.raises(RequestError, match="1000000 tokens"):
            await served.make_generation("a" * 10**6, {}, {})
        await served.end()

    asyncio.run(run())
    assert [thread.startswith("serving-reading-letters") for thread in threads] == [True, True, False, True]


def test_a_decoder_stays_until_what_was_read_is_answered() -> None:
    async def run() -> list[int]:
        served = served_letters()
        made = [await served.make_generation("ab", {}, {"max_tokens": 3}) for _ in range(2)]
        ending = asyncio.ensure_future(served.end())
        del made[1]  # its client has gone
        await asyncio.wait({ending}, timeout=0.05)
        assert not ending.done()
        tokens = [token async for token in served.tokens(made.pop())]
        await asyncio.wait_for(ending, 60)
        return tokens

    assert asyncio.run(run()) == [4, 5, 6]
