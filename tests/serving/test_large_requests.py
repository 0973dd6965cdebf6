"""Large requests: read, and their answers written, beside others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.distribute.inference import RequestError, large
from anabranch.distribute.inference.tensors import number_of
from anabranch.framework.serving import json_text, served_model, values
from anabranch.framework.serving.protocols import open_inference_backend, tensorflow_rest

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
WIDTH = 512
ROWS = np.arange(2 * WIDTH, dtype="float32").reshape(2, WIDTH)
INFER: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2, WIDTH], "data": ROWS.tolist()}
SPACE = " " * large.LARGE  # which makes a body large that is read in no time


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    x = ab.Input((WIDTH,), name="x")
    ab.Model(x, x * 2).export(folder / "twice", verbose=False)
    words = ab.Input((), dtype="string", name="words")
    ab.Model(words, words).export(folder / "words", verbose=False)
    with ab.serving.Server({name: folder / name for name in ("twice", "words")}) as found:
        yield found


@pytest.mark.parametrize("space", ["", SPACE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/v1/models/twice:predict", {"instances": ROWS.tolist()}, (tensorflow_rest, "as_input")),
        ("/v2/models/twice/infer", {"inputs": [INFER]}, (open_inference_backend, "from_wire")),
    ],
    ids=["predict", "infer"],
)
def test_large_bodies_are_read_in_another_thread(
    server: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, read: Any, space: str
) -> None:
    module, name = read
    inner, threads = getattr(module, name), list[str]()

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return inner(*args)

    monkeypatch.setattr(module, name, watched)
    answer = ask(server.rest_url, path, (json.dumps(body) + space).encode())

    assert answer.status == 200
    found = answer.json["predictions"] if "predictions" in answer.json else answer.json["outputs"][0]["data"]
    np.testing.assert_array_equal(np.reshape(found, ROWS.shape), ROWS * 2)
    assert [thread.startswith("serving-reading-twice") for thread in threads] == [bool(space)]


@pytest.mark.parametrize("path", ["/v1/models/twice:predict", "/v2/models/twice/infer"])
def test_large_bodies_with_errors(server: Any, path: str) -> None:
    for body in ("{" + SPACE, "[]" + SPACE, '{"instances": [[1]], "inputs": []}' + SPACE):
        answer = ask(server.rest_url, path, body.encode())
        assert answer.status == 400
        assert answer.json["error"]


@pytest.mark.parametrize("path", ["/v1/models/twice:predict", "/v2/models/twice/infer"])
def test_large_answers_are_written_in_another_thread(server: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    inner, threads = json_text._plain, list[str]()

    def watched(value: object) -> Any:
        threads.append(threading.current_thread().name)
        return inner(value)

    monkeypatch.setattr(json_text, "_plain", watched)
    infinite = {**INFER, "data": [float("inf")] * ROWS.size}  # written by the standard library, which calls `_plain`
    body = {"instances": np.full(ROWS.shape, np.inf).tolist()} if "v1" in path else {"inputs": [infinite]}
    for bound in (4 * ROWS.nbytes, ROWS.nbytes):
        monkeypatch.setattr(large, "LARGE", bound)
        assert ask(server.rest_url, path, body).body.count(b"Infinity") == ROWS.size
    of_the_loop, other = threads
    assert of_the_loop != other


def test_many_texts_by_grpc(server: Any) -> None:
    texts = [b"a", b"bc"] * 2000
    words = {"dtype": number_of("string"), "tensor_shape": {"dim": [{"size": len(texts)}]}, "string_val": texts}
    answer = call(
        server.grpc_address,
        "tensorflow.serving.PredictionService/Predict",
        model_spec={"name": "words"},
        inputs={"words": words},
    )
    assert list(answer.outputs["output_0"].string_val) == texts


@pytest.mark.parametrize("bound", [1, 1 << 20])
@pytest.mark.parametrize("method", ["ModelInfer", "tensorflow.serving.PredictionService/Predict"])
def test_typed_texts_are_read_in_another_thread(
    server: Any, monkeypatch: pytest.MonkeyPatch, method: str, bound: int
) -> None:
    monkeypatch.setattr(served_model, "LARGE", bound)
    inner, threads = values.as_text, list[str]()

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return inner(*args)

    monkeypatch.setattr(values, "as_text", watched)
    texts = [b"a", b"bc"]
    if method == "ModelInfer":
        words = {"name": "words", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": texts}}
        call(server.grpc_address, method, model_name="words", inputs=[words])
    else:
        words = {"dtype": number_of("string"), "tensor_shape": {"dim": [{"size": 2}]}, "string_val": texts}
        call(server.grpc_address, method, model_spec={"name": "words"}, inputs={"words": words})
    assert [thread.startswith("serving-reading-words") for thread in threads] == [bound == 1] * 2


def test_many_typed_values(server: Any) -> None:
    rows = np.arange(200 * WIDTH, dtype="float32").reshape(200, WIDTH)
    x = {"name": "x", "datatype": "FP32", "shape": rows.shape, "contents": {"fp32_contents": rows.reshape(-1)}}
    (found,) = call(server.grpc_address, "ModelInfer", model_name="twice", inputs=[x]).raw_output_contents
    np.testing.assert_array_equal(np.frombuffer(found, "float32").reshape(rows.shape), rows * 2)


def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PIECE", 3)
    texts = ["", "a", "bc", "é", "\U0001f600", "f", "g"]
    vector = values.text_vector(texts)
    assert vector.tolist() == list(large.in_pieces(vector)) == list(large.in_pieces(texts)) == texts
    assert values.as_array_of("x", "string", [["a", b"b"], ["c", "d"]]).tolist() == [["a", "b"], ["c", "d"]]
    assert values.as_array_of("x", "string", []).shape == (0,)
    with pytest.raises(RequestError, match="expected text, got list"):
        values.as_array_of("x", "string", [["a"], ["b", "c"]])
