"""TensorFlow Serving's gRPC services: over a real channel, and by TensorFlow's own client where there is one."""

import subprocess
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.served_models import some_text
from shared.serving_clients import call, python_of

from anabranch.distribute.inference import RequestError, tensorflow
from anabranch.distribute.inference.dtypes import TENSORFLOW
from anabranch.distribute.inference.messages import message_class
from anabranch.distribute.inference.tensors import array_of, number_of, tensor_of
from anabranch.engine.common.dtypes import as_dtype

PREDICT = "tensorflow.serving.PredictionService/Predict"
METADATA = "tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "tensorflow.serving.ModelService/GetModelStatus"


def values_of(tensor: Any) -> Any:
    return array_of("x", tensor, 1 << 20).array


def test_predictions(served: Any) -> None:
    x = some_text(3, 5)
    answer = call(
        served.server.grpc_address, PREDICT, model_spec={"name": "letters"}, inputs={"x": tensor_of("int64", x)}
    )
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("letters", 1)
    assert answer.model_spec.signature_name == "serving_default"  # as TensorFlow Serving's predict_util.cc has it
    expected = served.letters.predict(x, verbose=0)
    np.testing.assert_allclose(values_of(answer.outputs["output_0"]), expected, rtol=1e-5, atol=1e-7)


def test_several_inputs_and_chosen_outputs(served: Any) -> None:
    a, b = np.array([[1, 2]], "float32"), np.array([[3, 4, 5]], "float32")
    inputs = {"a": tensor_of("float32", a), "b": tensor_of("float32", b)}
    answer = call(served.server.grpc_address, PREDICT, model_spec={"name": "pairs"}, inputs=inputs)
    assert {name: values_of(each).tolist() for name, each in answer.outputs.items()} == {
        "sum": [15],
        "scaled": [[2, 4]],
    }
    spec = {"name": "pairs", "version": {"value": 1}, "signature_name": "serving_default"}
    answer = call(served.server.grpc_address, PREDICT, model_spec=spec, inputs=inputs, output_filter=["sum"])
    assert list(answer.outputs) == ["sum"]
    assert answer.model_spec.signature_name == "serving_default"


def test_too_many_rows_are_refused_before_their_values_are_read(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: Any) -> Any:
        raise AssertionError("values were read")

    monkeypatch.setattr(tensorflow, "array_of", read)
    words = {"dtype": number_of("string"), "tensor_shape": {"dim": [{"size": 5000}]}, "string_val": [b""] * 5000}
    with pytest.raises(grpc.RpcError, match=r"The request has 5,000 rows; at most 4,096 are taken"):
        call(served.server.grpc_address, PREDICT, model_spec={"name": "words"}, inputs={"words": words})
    with pytest.raises(grpc.RpcError, match=r"Expected the inputs 'words', got 'word'"):
        call(served.server.grpc_address, PREDICT, model_spec={"name": "words"}, inputs={"word": words})


def test_text_and_half_precision(served: Any) -> None:
    address = served.server.grpc_address
    words = {"dtype": number_of("string"), "tensor_shape": {"dim": [{"size": 2}]}, "string_val": ["Öl".encode(), b""]}
    answer = call(address, PREDICT, model_spec={"name": "words"}, inputs={"words": words})
    assert list(answer.outputs["text"].string_val) == ["Öl".encode(), b""]
    bits = [int(each) for each in np.array([3, 4], "float16").view("uint16")]
    half = {"dtype": number_of("float16"), "tensor_shape": {"dim": [{"size": 2}]}, "half_val": bits}
    answer = call(address, PREDICT, model_spec={"name": "n"}, inputs={"n": half})
    assert values_of(answer.outputs["half"]).tolist() == [1.5, 2]


@pytest.mark.parametrize("dtype", list(TENSORFLOW))
def test_arrays_go_to_and_fro(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3) % 2
    wanted = array.astype(str).astype(object) if dtype == "string" else array.astype(as_dtype(dtype))
    found = array_of("x", tensor_of(dtype, wanted), 1 << 20)
    assert found.dtype == dtype
    expected = [[each.encode() for each in row] for row in wanted] if dtype == "string" else wanted.tolist()
    assert found.array.tolist() == expected


def test_the_last_value_fills_a_shape() -> None:
    made = message_class("tensorflow.TensorProto")
    shape = {"dim": [{"size": 2}, {"size": 2}]}
    assert values_of(made(dtype=1, tensor_shape=shape, float_val=[1, 7])).tolist() == [[1, 7], [7, 7]]
    assert values_of(made(dtype=3, tensor_shape=shape)).tolist() == [[0, 0], [0, 0]]
    huge = {"dim": [{"size": 1 << 40}, {"size": 1 << 40}]}
    with pytest.raises(RequestError, match="more than 1,048,576 bytes") as caught:
        values_of(made(dtype=1, tensor_shape=huge, float_val=[1]))
    assert caught.value.status == 413
    empty = {"dim": [{"size": 0}, {"size": 1 << 62}, {"size": 1 << 62}]}
    with pytest.raises(RequestError, match="more than 1,048,576 bytes"):
        values_of(made(dtype=1, tensor_shape=empty))
    with pytest.raises(RequestError, match="has 65 axes"):
        values_of(made(dtype=1, tensor_shape={"dim": [{"size": 1}] * 65}, float_val=[1]))


def test_integers_keep_their_values() -> None:
    made = message_class("tensorflow.TensorProto")
    shape, largest = {"dim": [{"size": 2}]}, 2**64 - 1
    found = values_of(made(dtype=number_of("uint64"), tensor_shape=shape, uint64_val=[largest, 1]))
    assert found.tolist() == [largest, 1]
    flags = values_of(made(dtype=number_of("bool"), tensor_shape=shape, tensor_content=b"\x02\x00"))
    assert flags.view("uint8").tolist() == [1, 0]
    wide = values_of(made(dtype=number_of("int8"), tensor_shape=shape, int_val=[300, 1]))
    assert wide.tolist() == [300, 1]  # for the backend, which refuses what is out of range


def test_metadata(served: Any) -> None:
    answer = call(
        served.server.grpc_address, METADATA, model_spec={"name": "letters"}, metadata_field=["signature_def"]
    )
    made = message_class("tensorflow.serving.SignatureDefMap")()
    assert answer.metadata["signature_def"].Unpack(made)
    signature = made.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in signature.inputs["x"].tensor_shape.dim] == [-1, -1]
    assert signature.inputs["x"].dtype == 9
    assert signature.outputs["output_0"].dtype == 1


def test_states(served: Any) -> None:
    answer = call(served.server.grpc_address, STATUS, model_spec={"name": "words"})
    (found,) = answer.model_version_status
    assert (found.version, found.state, found.status.error_code) == (3, 30, 0)


@pytest.mark.parametrize(
    ("method", "fields", "code", "message"),
    [
        (PREDICT, {"model_spec": {"name": "half"}}, "NOT_FOUND", "Latest(half)"),
        (PREDICT, {"model_spec": {"name": "letters", "version": {"value": 9}}}, "NOT_FOUND", "Specific(letters, 9)"),
        (PREDICT, {"model_spec": {"name": "letters", "version_label": "a"}}, "NOT_FOUND", "Specific(letters, a)"),
        (PREDICT, {"model_spec": {"name": "letters"}}, "INVALID_ARGUMENT", "missing: 'x'"),
        (
            PREDICT,
            {"model_spec": {"name": "letters"}, "inputs": {"x": {"dtype": 1, "float_val": [1]}}},
            "INVALID_ARGUMENT",
            "expected the dtype DT_INT64, got DT_FLOAT",
        ),
        (
            PREDICT,
            {"model_spec": {"name": "letters"}, "inputs": {"x": {"dtype": 9, "int64_val": [1]}}},
            "INVALID_ARGUMENT",
            "expected the shape (any, any), got ()",
        ),
        (
            PREDICT,
            {"model_spec": {"name": "letters"}, "inputs": {"x": {"dtype": 8}}},
            "INVALID_ARGUMENT",
            "the dtype 8 is not served",
        ),
        (
            PREDICT,
            {
                "model_spec": {"name": "letters"},
                "inputs": {"x": {"dtype": 9, "int64_val": [1]}},
                "output_filter": ["output_1", "z"],
            },
            "INVALID_ARGUMENT",
            "There are no outputs 'output_1', 'z'. There are 'output_0'. Did you mean 'output_0' for 'output_1'?",
        ),
        (METADATA, {"model_spec": {"name": "letters"}}, "INVALID_ARGUMENT", "'signature_def'"),
        (STATUS, {"model_spec": {"name": "half"}}, "NOT_FOUND", "Latest(half)"),
    ],
)
def test_errors(served: Any, method: str, fields: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(served.server.grpc_address, method, **fields)
    error: Any = caught.value
    assert error.code().name == code
    assert message in error.details()


@pytest.mark.parametrize("method", ["Classify", "Regress", "MultiInference"])
def test_what_is_not_offered(served: Any, method: str) -> None:
    with grpc.insecure_channel(served.server.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")(b"", timeout=60)
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


def test_what_is_no_message_is_said_so(served: Any) -> None:
    with grpc.insecure_channel(served.server.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{PREDICT}")(b"\xff\xff", timeout=60)
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no message tensorflow.serving.PredictRequest" in error.details()


def test_client_of_tensorflow_serving(served: Any, tmp_path: Path) -> None:
    python = python_of("tensorflow")
    x = some_text(3, 7)
    np.save(tmp_path / "x.npy", x)
    script = Path(__file__).parent / "clients" / "of_tensorflow.py"
    paths = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    subprocess.run([python, str(script), served.server.grpc_address, *paths], check=True, timeout=120)
    expected = served.letters.predict(x, verbose=0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-7)
