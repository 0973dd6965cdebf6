"""OpenAI's completions, and texts that end sequences."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.served_decoders import letters
from shared.serving_clients import ask, python_of

import anabranch as ab
from anabranch.framework.serving.decoding.texts import HeldText

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("decoders")
    letters().export(folder / "m")
    letters(texts=False).export(folder / "plain")
    ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1)]).export(folder / "dense", verbose=False)
    with ab.serving.Server({name: folder / name for name in ("m", "plain", "dense")}) as found:
        yield found


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "ab", "temperature": 0, "max_tokens": 5, **fields}


def events(data: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_text_is_completed(server: Any) -> None:
    found = ask(server.rest_url, PATH, body()).json
    assert found["object"] == "text_completion"
    assert found["model"] == "m"
    assert found["choices"] == [{"text": "cdefa", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    assert len(ask(server.rest_url, PATH, {"model": "m", "prompt": "a"}).json["choices"][0]["text"]) == 16


def test_several_prompts_and_choices(server: Any) -> None:
    found = ask(server.rest_url, PATH, body(prompt=["a", "bc", [5, 6]], n=2, max_tokens=2, echo=True)).json
    assert [each["text"] for each in found["choices"]] == ["abc", "abc", "bcde", "bcde", "defa", "defa"]
    assert [each["index"] for each in found["choices"]] == list(range(6))
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


def test_seeds_decide_what_is_drawn(server: Any) -> None:
    def drawn(seed: int) -> list[str]:
        found = ask(server.rest_url, PATH, body(temperature=8, seed=seed, n=3, max_tokens=20)).json
        return [each["text"] for each in found["choices"]]

    first = drawn(3)
    assert first == drawn(3)
    assert len(set(first)) == 3
    assert drawn(4)[:2] == first[1:]


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("e", "cd", "stop"), ("ef", "cd", "stop"), (["x", "fa"], "cde", "stop"), ("eg", "cdefabcd", "length")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_texts_end_sequences(server: Any, stream: bool, stop: Any, text: str, reason: str) -> None:
    reply = ask(server.rest_url, PATH, body(stop=stop, max_tokens=8, stream=stream))
    parts = [each["choices"][0] for each in (events(reply.body) if stream else [reply.json])]
    assert "".join(each["text"] for each in parts) == text
    assert [each["finish_reason"] for each in parts] == [None] * (len(parts) - 1) + [reason]


def test_stop_texts_of_generate(server: Any) -> None:
    asked = {"text_input": "ab", "parameters": {"max_tokens": 50, "stop": ["fa", 999]}}
    found = ask(server.rest_url, "/v2/models/m/generate", asked).json
    assert (found["text_output"], found["tokens"], found["finish_reason"]) == ("cde", [4, 5, 6, 7, 2], "stop")
    asked = {"tokens": [2], "parameters": {"stop": ["a"]}}
    reply = ask(server.rest_url, "/v2/models/plain/generate", asked)
    assert (reply.status, "no detokenizer" in reply.json["error"]) == (400, True)


def test_pieces_of_several_choices_are_events(server: Any) -> None:
    asked = body(prompt=["a", "d"], stream=True, max_tokens=3, stream_options={"include_usage": True}, echo=True)
    found = events(ask(server.rest_url, PATH, asked).body)
    texts = {0: "", 1: ""}
    for each in found[:-1]:
        (choice,) = each["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "abcd", 1: "defa"}
    assert found[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


def test_models_are_listed(server: Any) -> None:
    found = ask(server.rest_url, "/v1/models").json
    assert [each["id"] for each in found["data"]] == ["m", "plain", "dense"]
    one = ask(server.rest_url, "/v1/models/m").json  # TensorFlow Serving's and OpenAI's interfaces share the path
    assert one["model_version_status"][0]["state"] == "AVAILABLE"
    assert {name: one[name] for name in found["data"][0]} == found["data"][0]
    assert "id" not in ask(server.rest_url, "/v1/models/m/versions/1").json


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "none"}, 404, "Latest(none)"),
        ({"model": "dense"}, 400, "no decoder"),
        ({"model": "plain", "prompt": [2]}, 400, "no detokenizer"),
        ({"model": 3}, 400, "Expected 'model'"),
        ({"prompt": None}, 400, "Expected 'prompt'"),
        ({"prompt": []}, 400, "Expected 'prompt'"),
        ({"prompt": [[]]}, 400, "needs a token at least"),
        ({"n": 1000}, 400, "from 1 to 128"),
        ({"n": -1}, 400, "from 1 to 128"),
        ({"n": 0}, 400, "from 1 to 128"),
        ({"max_tokens": 0}, 400, "max_tokens must be an integer of at least 1; got 0"),
        ({"echo": "false"}, 400, "'echo' must be true or false; got 'false'"),
        ({"stream_options": [True]}, 400, "'stream_options' must be an object"),
        ({"logprobs": 3}, 400, "'logprobs' is not offered"),
        ({"suffix": "x"}, 400, "'suffix' is not offered"),
        ({"best_of": 2}, 400, "'best_of' is not offered"),
        ({"best_of": 2, "echoes": 1}, 400, "'best_of', 'echoes' are not offered here. Known are echo, "),
        ({"hot": 1}, 400, "'hot' is not offered"),
        ({"stop": 3}, 400, "stop must be a list"),
        ({"stop": ""}, 400, "an empty text"),
        ({"seed": "x"}, 400, "seed must be an integer"),
        ({"temperature": "hot"}, 400, "temperature must be"),
        ({"inputs": {"a": 1}}, 400, "unknown: 'a'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_can_not_be_asked(server: Any, stream: bool, fields: dict[str, Any], status: int, message: str) -> None:
    reply = ask(server.rest_url, PATH, body(**fields, stream=stream))
    assert (reply.status, message in reply.json["error"]["message"]) == (status, True)


def test_what_asks_for_nothing_is_taken(server: Any) -> None:
    asked = body(logprobs=None, suffix=None, best_of=1, presence_penalty=0, logit_bias={}, user="me")
    assert ask(server.rest_url, PATH, asked).status == 200


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_held_text_is_cut_at_the_first_stop(parts: list[str], stops: list[str]) -> None:
    held, given_ = HeldText(stops), ""
    for part in parts:
        given_ += held.add(part)
        if held.is_over:
            break
    whole = "".join(parts)
    places = [whole.find(stop) for stop in stops if stop in whole]
    if held.is_over:
        assert given_ == whole[: min(place for place in places)]
    else:
        assert not places
        assert given_ + held.rest() == whole


@pytest.mark.slow
def test_client_of_openai(server: Any) -> None:
    script = Path(__file__).parent / "clients" / "of_openai.py"
    subprocess.run([python_of("openai"), str(script), server.rest_url], check=True, timeout=120)


def test_only_true_streams(server: Any) -> None:
    for wrong in ("false", 0):
        reply = ask(server.rest_url, PATH, body(stream=wrong))
        assert (reply.status, "'stream' must be true or false" in reply.json["error"]["message"]) == (400, True)
    assert ask(server.rest_url, PATH, body(stream=None, n=None, max_tokens=None, echo=None)).status == 200
