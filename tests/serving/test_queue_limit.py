"""A model takes so many requests, and refuses those beyond."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.served_decoders import circle
from shared.served_models import two_in_two_out
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.distribute.inference import RequestError
from anabranch.framework.serving.servable import Servable

BODY = {"inputs": {"a": [[1, 2]], "b": [[1, 2, 3]]}}
PATH = "/v1/models/pairs:predict"


class Held:
    """Models that compute only when `free` is set; `begun` is, when one is about to."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), threading.Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Have models compute only when they are let."""
    pytest.importorskip("uvicorn")
    held, run = Held(), Servable.run

    def run_when_free(self: Servable, *args: Any) -> list[Any]:
        held.begun.set()
        assert held.free.wait(60)
        return run(self, *args)

    monkeypatch.setattr(Servable, "run", run_when_free)
    return held


def test_one_runs_one_waits_and_the_third_is_refused(held: Held, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    with (
        ab.serving.Server({"pairs": tmp_path}, batching=ab.serving.Batching(max_queue_size=1)) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        try:
            asked = [clients.submit(ask, server.rest_url, PATH, BODY)]
            assert held.begun.wait(60)  # those that come together are computed together
            asked += [clients.submit(ask, server.rest_url, PATH, BODY) for _ in range(2)]
            (refused,), others = wait(asked, timeout=60, return_when=FIRST_COMPLETED)
            assert (refused.result().status, refused.result().headers["retry-after"]) == (429, "1")
            assert "max_queue_size" in refused.result().json["error"]
            fields = {"name": "a", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}
            more = {"name": "b", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": [1, 2, 3]}}
            with pytest.raises(grpc.RpcError) as caught:
                call(server.grpc_address, "ModelInfer", model_name="pairs", inputs=[fields, more])
            error: Any = caught.value
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            held.free.set()
        assert [each.result().json["outputs"]["sum"] for each in others] == [[9.0], [9.0]]
        assert ask(server.rest_url, PATH, BODY).status == 200


def test_who_has_gone_does_not_wait_any_more(held: Held, tmp_path: Path) -> None:
    """A place in the queue is free as soon as its client has gone, and not when the batch in front has ended."""
    from anabranch.framework.serving.metrics import Metrics
    from anabranch.framework.serving.served_model import ServedModel

    two_in_two_out().export(tmp_path, verbose=False)
    arrays = [np.ones((1, 2), "float32"), np.ones((1, 3), "float32")]

    async def use() -> None:
        settings = ab.serving.Batching(max_queue_size=1)
        model = ServedModel("pairs", ab.serving.load(tmp_path), Metrics(), settings)
        first = asyncio.create_task(model.run(arrays))
        await asyncio.get_running_loop().run_in_executor(None, held.begun.wait, 60)
        gone = asyncio.create_task(model.run(arrays))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="max_queue_size"):
            await model.run(arrays)
        gone.cancel()
        await asyncio.wait([gone])
        last = asyncio.create_task(model.run(arrays))
        await asyncio.sleep(0)
        held.free.set()
        assert (await first)[1].tolist() == (await last)[1].tolist() == [5.0]
        await model.end()

    try:
        asyncio.run(use())
    finally:
        held.free.set()


def test_who_has_gone_does_not_wait_for_a_decoder_any_more() -> None:
    pytest.importorskip("uvicorn")
    from anabranch.framework.serving.decoding.served import ServedDecoder
    from anabranch.framework.serving.metrics import Metrics

    async def use() -> None:
        settings, free = ab.serving.Batching(max_queue_size=1), threading.Event()
        decoder = ServedDecoder("circle", circle(slots=1), Metrics(), settings)

        async def tokens() -> AsyncGenerator[int]:
            made = await decoder.make_generation([2], {"stride": 1}, {"max_tokens": 2})
            async for token in decoder.tokens(made):
                yield token

        decoder._thread.submit(free.wait, 60)  # pyright: ignore[reportPrivateUsage]  (it takes no step before)
        try:
            gone = tokens()
            waiting = asyncio.create_task(anext(gone))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="max_queue_size"):
                await anext(tokens())
            waiting.cancel()
            await asyncio.wait([waiting])
            last = asyncio.create_task(_all(tokens()))
            await asyncio.sleep(0)
        finally:
            free.set()
        assert await last == [3, 4]
        await decoder.end()

    asyncio.run(use())


def test_a_decoder_ends_though_the_error_of_a_sequence_that_was_refused_keeps_it() -> None:
    """Its end waited for as long as the collector of reference cycles had nothing to do."""
    pytest.importorskip("uvicorn")
    from anabranch.framework.serving.decoding.served import ServedDecoder
    from anabranch.framework.serving.metrics import Metrics

    async def use() -> None:
        settings, free = ab.serving.Batching(max_queue_size=1), threading.Event()
        decoder = ServedDecoder("circle", circle(slots=1), Metrics(), settings)
        made = [await decoder.make_generation([2], {"stride": 1}, {"max_tokens": 2}) for _ in range(2)]
        decoder._thread.submit(free.wait, 60)  # pyright: ignore[reportPrivateUsage]  (it takes no step before)
        try:
            waiting = asyncio.create_task(_all(decoder.tokens(made[0])))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="max_queue_size"):
                await anext(decoder.tokens(made[1]))
        finally:
            free.set()
        assert await waiting == [3, 4]
        await asyncio.wait_for(decoder.end(), 60)

    asyncio.run(use())


async def _all(tokens: AsyncGenerator[int]) -> list[int]:
    return [token async for token in tokens]
