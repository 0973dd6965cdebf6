"""The REST interface of the Open Inference Protocol, with JSON and with binary tensors."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from shared.served_models import some_text
from shared.serving_clients import Reply, ask

LENGTH = "Inference-Header-Content-Length"


def infer(served: Any, model: str, document: Any, raw: bytes | None = None) -> Reply:
    path, text = f"/v2/models/{model}/infer", json.dumps(document).encode()
    if raw is None:
        return ask(served.server.rest_url, path, text)
    return ask(served.server.rest_url, path, text + raw, headers={LENGTH: str(len(text))})


def parted(reply: Reply) -> tuple[Any, bytes]:
    size = int(reply.headers[LENGTH.lower()])
    return json.loads(reply.body[:size]), reply.body[size:]


def test_server_and_models_describe_themselves(served: Any) -> None:
    url = served.server.rest_url
    assert {"binary_tensor_data", "sequence"} <= set(ask(url, "/v2").json["extensions"])
    assert ask(url, "/v2/health/live").json == {"live": True}
    assert ask(url, "/v2/health/ready").json == {"ready": True}
    for path in ("/v2/models/letters", "/v2/models/letters/versions/1"):
        assert ask(url, path).json == {
            "name": "letters",
            "versions": ["1"],
            "platform": "anabranch",
            "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}],
            "outputs": [{"name": "output_0", "datatype": "FP32", "shape": [-1, -1, 8]}],
        }
        assert ask(url, f"{path}/ready").json == {"name": "letters", "ready": True}
    for path in ("/v2/models/half", "/v2/models/half/ready", "/v2/models/letters/versions/2"):
        assert ask(url, path).status == 404


@pytest.mark.parametrize("flat", [True, False])
def test_json_in_and_out(served: Any, flat: bool) -> None:
    x = some_text(2, 3)
    data = x.ravel().tolist() if flat else x.tolist()
    entry = {"name": "x", "shape": [2, 3], "datatype": "INT64", "data": data}
    answer = infer(served, "letters", {"id": "7", "inputs": [entry]}).json
    (output,) = answer["outputs"]
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("letters", "1", "7")
    assert (output["name"], output["datatype"], output["shape"]) == ("output_0", "FP32", [2, 3, 8])
    found = np.array(output["data"], "float32").reshape(2, 3, 8)
    np.testing.assert_allclose(found, served.letters.predict(x, verbose=0), rtol=1e-5, atol=1e-7)


def test_binary_in_and_out(served: Any) -> None:
    x = some_text(2, 3)
    entry = {"name": "x", "shape": [2, 3], "datatype": "INT64", "parameters": {"binary_data_size": 48}}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    answer, raw = parted(infer(served, "letters", document, x.astype("<i8").tobytes()))
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 2 * 3 * 8 * 4}
    found = np.frombuffer(raw, "<f4").reshape(2, 3, 8)
    np.testing.assert_allclose(found, served.letters.predict(x, verbose=0), rtol=1e-5, atol=1e-7)


def test_requested_outputs_mix_both_forms(served: Any) -> None:
    inputs = [
        {"name": "b", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]},
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
    ]
    outputs = [{"name": "sum"}, {"name": "scaled", "parameters": {"binary_data": True}}]
    raw = np.array([1, 2], "<f4").tobytes()
    answer, back = parted(infer(served, "pairs", {"inputs": inputs, "outputs": outputs}, raw))
    assert [each["name"] for each in answer["outputs"]] == ["sum", "scaled"]
    assert answer["outputs"][0]["data"] == [9]
    assert np.frombuffer(back, "<f4").tolist() == [2, 4]
    only = infer(served, "pairs", {"inputs": inputs, "outputs": [{"name": "sum"}]}, raw).json
    assert [each["name"] for each in only["outputs"]] == ["sum"]


def test_text_in_both_forms(served: Any) -> None:
    texts = ["Wasser", "", "Öl"]
    encoded = [text.encode() for text in texts]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    asked = [{"name": "text", "parameters": {"binary_data": True}}]
    entry = {"name": "words", "shape": [3], "datatype": "BYTES"}
    sized = {**entry, "parameters": {"binary_data_size": len(raw)}}
    assert parted(infer(served, "words", {"inputs": [sized], "outputs": asked}, raw))[1] == raw
    plain = infer(served, "words", {"inputs": [{**entry, "data": texts}], "outputs": [{"name": "text"}]})
    assert plain.json["outputs"][0]["data"] == texts


def test_half_floats_are_binary_only(served: Any) -> None:
    entry = {"name": "n", "shape": [2], "datatype": "FP16"}
    sized = {**entry, "parameters": {"binary_data_size": 4}}
    asked = [{"name": "half", "parameters": {"binary_data": True}}]
    raw = np.array([1, 3], "<f2").tobytes()
    _, back = parted(infer(served, "n", {"inputs": [sized], "outputs": asked}, raw))
    assert np.frombuffer(back, "<f2").tolist() == [0.5, 1.5]
    for document in ({"inputs": [{**entry, "data": [1, 3]}]}, {"inputs": [sized], "outputs": [{"name": "half"}]}):
        reply = infer(served, "n", document, raw if "data" not in document["inputs"][0] else None)
        assert reply.status == 400
        assert "FP16 has no JSON form" in reply.json["error"]


X = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
SIZED = {"name": "x", "shape": [1, 2], "datatype": "INT64", "parameters": {"binary_data_size": 16}}
PAIR = [
    {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]},
    {"name": "b", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]},
]
WORDS = {"name": "words", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("model", "document", "raw", "message"),
    [
        ("letters", {}, None, "Expected 'inputs'"),
        ("letters", {"inputs": [3]}, None, "Each of 'inputs'"),
        ("letters", {"inputs": []}, None, "Expected the inputs 'x', got none (missing: 'x')"),
        ("letters", {"inputs": [X, X]}, None, "Input 'x' is given twice"),
        ("letters", {"inputs": [{**X, "name": "y"}]}, None, "missing: 'x'"),
        ("letters", {"inputs": [{**X, "datatype": "INT32"}]}, None, "'x': expected the datatype INT64, got 'INT32'"),
        ("letters", {"inputs": [{**X, "shape": [1, 3]}]}, None, "'x': the shape (1, 3) needs 3 values, got 2"),
        ("letters", {"inputs": [{**X, "shape": [2]}]}, None, "'x': expected the shape (any, any), got (2,)"),
        ("letters", {"inputs": [{**X, "shape": [-1, -2]}]}, None, "sizes that are whole numbers"),
        ("letters", {"inputs": [{**X, "shape": [1.0, 2]}]}, None, "sizes that are whole numbers"),
        ("letters", {"inputs": [{**X, "shape": [2**62, 4]}]}, None, "whole numbers from 0 to 2**62 - 1, got [46116860"),
        ("letters", {"inputs": [{**X, "shape": [2**61, 2**61]}]}, None, "values, got 2"),
        ("letters", {"inputs": [{**SIZED, "shape": [2**61, 2**61]}]}, b"0" * 16, "bytes, got 16"),
        (
            "letters",
            {"inputs": [{**X, "shape": [0, 2**61], "data": []}]},
            None,
            "2305843009213693952] is too large",
        ),
        ("letters", {"inputs": [{**SIZED, "shape": [2**31, 0]}]}, b"0" * 16, "[2147483648, 0] is too large"),
        ("letters", {"inputs": [{**X, "shape": [1] * 65}]}, None, "expected the shape (any, any)"),
        ("letters", {"inputs": [{**X, "shape": None}]}, None, "expected a shape such as"),
        ("letters", {"inputs": [{**X, "data": [1, None]}]}, None, "expected values of int64, got null or mixed values"),
        ("letters", {"inputs": [{**X, "data": [-1, 2**63]}]}, None, "got 9223372036854775808, which is out of"),
        ("letters", {"inputs": [{**X, "data": [1, [2]]}]}, None, "unequal lists"),
        ("letters", {"inputs": [{**X, "parameters": 3}]}, None, "'parameters' has to be an object"),
        ("letters", {"inputs": [X], "outputs": [{"name": "z"}]}, None, "no output 'z'. There are 'output_0'"),
        (
            "pairs",
            {"inputs": PAIR, "outputs": [{"name": "a"}, {"name": "sun"}, {"name": "sum"}]},
            None,
            "There are no outputs 'a', 'sun'. There are 'scaled', 'sum'. Did you mean 'sum' for 'sun'?",
        ),
        ("letters", {"inputs": [X], "outputs": 3}, None, "'outputs' has to be a list"),
        (
            "letters",
            {"inputs": [X], "outputs": [{"name": "output_0", "parameters": {"shared_memory_region": "r"}}]},
            None,
            "Output 'output_0' is wanted in shared memory",
        ),
        (
            "letters",
            {"inputs": [X], "outputs": [{"name": "output_0", "parameters": {"classification": 1}}]},
            None,
            "Output 'output_0': classes are not offered",
        ),
        (
            "letters",
            {"inputs": [{**X, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}]},
            None,
            "Input 'x' is in shared memory",
        ),
        ("letters", {"inputs": [SIZED]}, b"short", "binary_data_size is 16; 5 bytes are left"),
        ("letters", {"inputs": [SIZED]}, b"0" * 17, "1 bytes behind the last tensor belong to none"),
        ("letters", {"inputs": [{**SIZED, "shape": [1, 1]}]}, b"0" * 16, "needs 8 bytes, got 16"),
        (
            "words",
            {"inputs": [WORDS]},
            b"\xff\xff\xff\xffabcd",
            "an element of 4294967295 bytes is said, and 4 are left",
        ),
        ("words", {"inputs": [WORDS]}, b"\x01\0\0\0abcd", "3 bytes are left where a length of 4 bytes should be"),
        ("words", {"inputs": [WORDS]}, b"\x04\0\0\0\xff\xff\xff\xff", "expected bytes that are UTF-8"),
        ("words", {"inputs": [WORDS]}, b"\0\0\0\0" * 2, "'words': the shape (1,) needs 1 elements, got more"),
        ("words", {"inputs": [{**WORDS, "shape": [2]}]}, b"\x04\0\0\0abcd", "needs 2 elements, got 1"),
    ],
)
def test_errors(served: Any, model: str, document: Any, raw: bytes | None, message: str) -> None:
    reply = infer(served, model, document, raw)
    assert reply.status == 400
    assert message in reply.json["error"]


@pytest.mark.parametrize("said", ["x", "-1", "1000000", "9" * 30])
def test_wrong_lengths_of_the_header(served: Any, said: str) -> None:
    reply = ask(served.server.rest_url, "/v2/models/letters/infer", b"{}", headers={LENGTH: said})
    assert reply.status == 400
    assert LENGTH in reply.json["error"]
