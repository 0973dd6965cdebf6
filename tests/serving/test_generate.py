"""Decoders of a server: answers over HTTP, events, clients that leave, and what can't be asked."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np
import pytest
from shared.served_decoders import circle
from shared.serving_clients import ask
from shared.waiting import until

import anabranch as ab
from anabranch.distribute.inference import RequestError

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
LONGEST, SLOTS = 20_000, 2


def letters(length: int = LONGEST) -> ab.serving.Decoder:
    return circle(max_length=length, slots=SLOTS)


class Served(NamedTuple):
    server: Any
    decoder: ab.serving.Decoder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("decoders")
    made = letters()
    made.export(folder / "m", version=3)
    model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1)])
    model.export(folder / "dense", verbose=False)
    batching = ab.serving.Batching(max_queue_size=1)
    with ab.serving.Server({"m": folder / "m", "dense": folder / "dense"}, batching=batching) as server:
        yield Served(server, made)


def body(stride: int = 1, **fields: Any) -> dict[str, Any]:
    if not fields.keys() & {"text_input", "tokens"}:
        fields["text_input"] = "ab"
    return {"inputs": {"stride": stride}, "parameters": {"max_tokens": 5}, **fields}


def events(data: bytes) -> list[Any]:
    return [json.loads(line.removeprefix(b"data: ")) for line in data.split(b"\n\n") if line]


def test_a_sequence_is_generated(served: Served) -> None:
    reply = ask(served.server.rest_url, "/v2/models/m/generate", body())
    head = {"model_name": "m", "model_version": "3"}
    assert (reply.status, reply.json) == (
        200,
        {**head, "text_output": "cdefa", "tokens": [4, 5, 6, 7, 2], "finish_reason": "length"},
    )
    fields = {"id": "7", "tokens": [2], "parameters": {"stop": [7]}}
    reply = ask(served.server.rest_url, "/v2/models/m/versions/3/generate", body(**fields))
    assert reply.json == {
        "id": "7",
        **head,
        "text_output": "bcdef",
        "tokens": [3, 4, 5, 6, 7],
        "finish_reason": "stop",
    }


def test_tokens_are_events(served: Served) -> None:
    reply = ask(served.server.rest_url, "/v2/models/m/generate_stream", body(stride=2))
    assert reply.headers["content-type"] == "text/event-stream"
    found = events(reply.body)
    assert [each["tokens"] for each in found] == [[5], [7], [3], [5], [7]]
    assert "".join(each["text_output"] for each in found) == "dfbdf"
    assert [each["finish_reason"] for each in found] == [None] * 4 + ["length"]


def test_many_clients_get_what_they_get_alone(served: Served) -> None:
    settings = {"max_tokens": 30, "temperature": 5.0}
    found: dict[int, Any] = {}

    def one(number: int) -> None:
        asked = body(parameters={**settings, "seed": number}, tokens=[2 + number % 6])
        reply = ask(served.server.rest_url, "/v2/models/m/generate", asked)
        while reply.status == 429:
            reply = ask(served.server.rest_url, "/v2/models/m/generate", asked)
        found[number] = reply.json["tokens"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, tokens in found.items():
        stride = {"stride": np.ones(1, "int32")}
        (alone,) = served.decoder.generate([[2 + number % 6]], **settings, seed=number, inputs=stride)
        assert tokens == alone.tolist()


class Client:
    """A client that reads the first event of a long sequence, and no more."""

    def __init__(self, server: Any) -> None:
        parts = urlsplit(server.rest_url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        asked = body(parameters={})  # as many tokens as there may be
        self.connection.request("POST", "/v2/models/m/generate_stream", json.dumps(asked))
        self.reply = self.connection.getresponse()
        assert self.reply.readline().startswith(b"data: ")

    def leave(self) -> None:
        self.reply.close()
        self.connection.close()


def test_who_leaves_gives_the_slot_free(served: Served) -> None:
    for _ in range(3):
        clients = [Client(served.server) for _ in range(SLOTS)]
        for client in clients:
            client.leave()
    assert ask(served.server.rest_url, "/v2/models/m/generate", body()).status == 200

    def metrics() -> str:
        return ask(served.server.rest_url, "/metrics").body.decode()

    until(lambda: 'anabranch_slots_busy{model="m"} 0.0' in metrics())
    assert f'anabranch_slots{{model="m"}} {float(SLOTS)}' in metrics()
    assert 'anabranch_tokens_total{model="m"}' in metrics()


class Asked(NamedTuple):
    """A request whose client stays or has gone, and which has so many seconds."""

    is_gone: bool
    seconds: float | None

    async def gone(self) -> None:
        if not self.is_gone:
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("asked", "error"), [(Asked(True, None), ConnectionAbortedError), (Asked(False, 0.0), RequestError)]
)
def test_tokens_that_come_faster_than_they_are_sent_end_as_well(asked: Asked, error: type[Exception]) -> None:
    """Each token is there as soon as it is asked for, so that there is never nothing but the request to wait for."""
    from anabranch.framework.serving.decoding.rest import until_gone  # needs what is optional

    async def tokens() -> AsyncGenerator[int]:
        for token in range(1000):
            yield token

    taken: list[int] = []

    async def take() -> None:
        async for token in until_gone(tokens(), cast(Any, asked)):
            taken.append(token)

    with pytest.raises(error):
        asyncio.run(take())
    assert len(taken) < 10


def test_time_that_is_over_ends_a_sequence(served: Served) -> None:
    headers = {"X-Request-Timeout-Ms": "1"}
    asked = body(parameters={"max_tokens": LONGEST})
    reply = ask(served.server.rest_url, "/v2/models/m/generate", asked, headers=headers)
    assert (reply.status, "within 0.001 s" in reply.json["error"]) == (504, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_input": "a", "tokens": [2]}, "one of them"),
        ({"tokens": []}, "needs a token at least"),
        ({"tokens": "a"}, "'tokens' a list of integers"),
        ({"tokens": [9]}, "the token 9; tokens are from 0 to 7"),
        ({"tokens": [2], "parameters": {"beams": 3}}, "There is no parameter 'beams'. There are 'max_tokens', "),
        ({"tokens": [2], "parameters": {"temperature": "hot"}}, "temperature must be a number"),
        ({"tokens": [2], "parameters": [1]}, "'parameters' has to be an object"),
        ({"tokens": [2], "parameters": {"seed": 2**64}}, "seed must be an integer from 0 to 18446744073709551615; got"),
        ({"tokens": [2], "inputs": {}}, "missing: 'stride'"),
        ({"tokens": [2], "inputs": {"stride": [1, 2]}}, "Input 'stride': expected the shape"),
        ({"tokens": [2], "prompt": ""}, "There is no field 'prompt'. There are 'id', 'inputs', 'parameters', "),
        (
            {"tokens": [2], "parameters": {"max_token": 1, "sed": 2}},
            "There are no parameters 'max_token', 'sed'. There are 'max_tokens', 'temperature', 'top_k', 'top_p', "
            "'seed', 'stop'. Did you mean 'max_tokens' for 'max_token', 'seed' for 'sed'?",
        ),
    ],
)
@pytest.mark.parametrize("way", ["generate", "generate_stream"])
def test_what_can_not_be_asked_is_named(served: Served, way: str, fields: dict[str, Any], message: str) -> None:
    reply = ask(served.server.rest_url, f"/v2/models/m/{way}", body(**fields))
    assert reply.status == 400
    assert message in reply.json["error"]


def test_models_and_decoders_are_not_confused(served: Served) -> None:
    url = served.server.rest_url
    reply = ask(url, "/v2/models/dense/generate", body())
    assert (reply.status, "'dense' is no decoder" in reply.json["error"]) == (400, True)
    for path, asked in (("/v1/models/m:predict", {"instances": [[1]]}), ("/v2/models/m/infer", {"inputs": []})):
        reply = ask(url, path, asked)
        assert (reply.status, "/v2/models/m/generate" in reply.json["error"]) == (400, True)
    metadata = ask(url, "/v2/models/m").json
    assert [each["name"] for each in metadata["inputs"]] == ["tokens", "stride"]
    assert ask(url, "/v2/models/m/ready").status == 200
    assert ask(url, "/v1/models/m").json["model_version_status"][0]["state"] == "AVAILABLE"
    assert served.server.is_decoder("m")
    assert not served.server.is_decoder("dense")


def test_new_versions_take_over(tmp_path: Path) -> None:
    letters(20).export(tmp_path)
    with ab.serving.Server({"m": tmp_path}) as server:
        letters(20).export(tmp_path)
        server.refresh()
        assert ask(server.rest_url, "/v2/models/m/generate", body()).json["model_version"] == "2"


def test_a_server_that_stops_ends_sequences_after_their_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    letters(1 << 20).export(tmp_path)
    with ThreadPoolExecutor(2) as readers:
        with ab.serving.Server({"m": tmp_path}, drain_seconds=1) as server:
            client = Client(server)
            events = readers.submit(client.reply.read)
            whole = readers.submit(ask, server.rest_url, "/v2/models/m/generate", body(parameters={}))
            until(lambda: 'slots_busy{model="m"} 2.0' in ask(server.rest_url, "/metrics").body.decode())
        error = events.result().split(b"\n\n")[-2]
        assert error.startswith(b'data: {"error":"The server stops')
        assert whole.result().status == 503
        assert "drain_seconds" in whole.result().json["error"]
    client.leave()
    assert "CancelledError" not in caplog.text
    assert "ASGI" not in caplog.text


def test_no_client_waits_for_a_decoder_that_can_not_begin(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_memory(*arguments: Any) -> None:
        raise MemoryError("no room for the states")

    with monkeypatch.context() as patched:
        patched.setattr("anabranch.framework.serving.decoding.served.Slots", without_memory)
        reply = ask(served.server.rest_url, "/v2/models/m/generate", body())
    assert reply.status == 500
    assert reply.json["error"] == "Decoder 'm' failed: MemoryError: no room for the states"
    assert "no room for the states" in caplog.text
    assert ask(served.server.rest_url, "/v2/models/m/generate", body()).status == 200
