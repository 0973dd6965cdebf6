"""The gRPC interface of the Open Inference Protocol, over a real channel."""

import struct
from typing import Any

import grpc
import numpy as np
import pytest
from shared.served_models import some_text
from shared.serving_clients import call


def an_input(name: str, datatype: str, shape: Any, **contents: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **({"contents": contents} if contents else {})}


def test_server_and_models_describe_themselves(served: Any) -> None:
    address = served.server.grpc_address
    assert call(address, "ServerLive").live
    assert call(address, "ServerReady").ready
    assert call(address, "ServerMetadata").name == "anabranch"
    assert call(address, "ModelReady", name="letters").ready
    assert call(address, "ModelReady", name="letters", version="1").ready
    assert not call(address, "ModelReady", name="letters", version="2").ready
    assert not call(address, "ModelReady", name="half").ready
    found = call(address, "ModelMetadata", name="letters")
    assert (found.name, list(found.versions)) == ("letters", ["1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in found.inputs] == [("x", "INT64", [-1, -1])]


def test_raw_contents(served: Any) -> None:
    x = some_text(3, 4)
    answer = call(
        served.server.grpc_address,
        "ModelInfer",
        model_name="letters",
        id="7",
        inputs=[an_input("x", "INT64", x.shape)],
        raw_input_contents=[x.astype("<i8").tobytes()],
    )
    assert (answer.model_name, answer.model_version, answer.id) == ("letters", "1", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("output_0", "FP32", [3, 4, 8])
    found = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(3, 4, 8)
    np.testing.assert_allclose(found, served.letters.predict(x, verbose=0), rtol=1e-5, atol=1e-7)


def test_typed_contents_and_requested_outputs(served: Any) -> None:
    a, b = an_input("a", "FP32", [1, 2], fp32_contents=[1, 2]), an_input("b", "FP32", [1, 3], fp32_contents=[3, 4, 5])
    request: dict[str, Any] = {"model_name": "pairs", "inputs": [a, b], "outputs": [{"name": "sum"}]}
    answer = call(served.server.grpc_address, "ModelInfer", **request)
    assert [each.name for each in answer.outputs] == ["sum"]
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [15]
    words = an_input("words", "BYTES", [1], bytes_contents=["Öl".encode()])
    answer = call(served.server.grpc_address, "ModelInfer", model_name="words", inputs=[words])
    assert answer.raw_output_contents[0] == struct.pack("<I", 3) + "Öl".encode()


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        ({"model_name": "half"}, "NOT_FOUND", "Latest(half)"),
        ({"model_name": "letters", "model_version": "9"}, "NOT_FOUND", "Specific(letters, 9)"),
        ({"model_name": "letters"}, "INVALID_ARGUMENT", "missing: 'x'"),
        (
            {"model_name": "letters", "inputs": [an_input("x", "INT64", [1, 1])], "raw_input_contents": [b"", b""]},
            "INVALID_ARGUMENT",
            "raw_input_contents has 2 entries for 1 inputs",
        ),
        (
            {
                "model_name": "letters",
                "inputs": [an_input("x", "INT64", [1, 1], int64_contents=[1])],
                "raw_input_contents": [b"12345678"],
            },
            "INVALID_ARGUMENT",
            "Input 'x' has typed contents beside raw_input_contents. Send one of them",
        ),
        (
            {"model_name": "letters", "inputs": [an_input("x", "INT64", [1, 2], int_contents=[1, 2])]},
            "INVALID_ARGUMENT",
            "Input 'x': INT64 has its values in int64_contents, which is empty; int_contents is not",
        ),
        (
            {"model_name": "letters", "inputs": [an_input("x", "INT64", [1, 2])], "raw_input_contents": [b"12345678"]},
            "INVALID_ARGUMENT",
            "needs 16 bytes, got 8",
        ),
        (
            {"model_name": "n", "inputs": [an_input("n", "FP16", [1], fp32_contents=[1])]},
            "INVALID_ARGUMENT",
            "'FP16' has no typed contents",
        ),
        (
            {"model_name": "letters", "inputs": [an_input("x", "INT64", [0, 1 << 62])], "raw_input_contents": [b""]},
            "INVALID_ARGUMENT",
            "expected sizes that are whole numbers",
        ),
        (
            {"model_name": "letters", "inputs": [an_input("x", "INT64", [0, 1 << 61])], "raw_input_contents": [b""]},
            "INVALID_ARGUMENT",
            "is too large",
        ),
        (
            {
                "model_name": "letters",
                "inputs": [an_input("x", "INT64", [1, 1], int64_contents=[1])],
                "outputs": [{"name": "output_0", "parameters": {"shared_memory_region": {"string_param": "r"}}}],
            },
            "INVALID_ARGUMENT",
            "Output 'output_0' is wanted in shared memory",
        ),
        (
            {
                "model_name": "letters",
                "inputs": [an_input("x", "INT64", [1, 1], int64_contents=[1])],
                "outputs": [{"name": "output_0", "parameters": {"classification": {"int64_param": 1}}}],
            },
            "INVALID_ARGUMENT",
            "Output 'output_0': classes are not offered",
        ),
    ],
)
def test_errors(served: Any, request_: Any, code: str, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(served.server.grpc_address, "ModelInfer", **request_)
    error: Any = caught.value
    assert error.code().name == code
    assert message in error.details()


def test_large_messages_are_refused(served: Any) -> None:
    large = an_input("x", "INT64", [1, 1 << 18])
    with pytest.raises(grpc.RpcError) as caught:
        call(
            served.server.grpc_address,
            "ModelInfer",
            model_name="letters",
            inputs=[large],
            raw_input_contents=[bytes(8 << 18)],
        )
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
