"""Triton's additions to the Open Inference Protocol: the repository, statistics, configurations, and streams."""

import gc
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.served_decoders import circle
from shared.serving_clients import ask, call, call_stream, message_of, python_of
from shared.waiting import until

import anabranch as ab
from anabranch.distribute.inference.messages import message_class

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)


def dense(folder: Path) -> ab.Model:
    model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(3)])
    model.export(folder, verbose=False)
    return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    dense(folder / "dense")
    circle().export(folder / "circle")
    models = {name: folder / name for name in ("dense", "circle")}
    with ab.serving.Server(models, may_manage=True, poll_seconds=0) as found:
        yield found


def rows(count: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [count, 2], "data": [1.0] * 2 * count}]}


def test_models_are_unloaded_and_loaded(server: Any) -> None:
    url, address = server.rest_url, server.grpc_address
    for way in ("rest", "grpc"):
        if way == "rest":
            assert ask(url, "/v2/repository/models/dense/unload", {}).status == 200
        else:
            call(address, "RepositoryModelUnload", model_name="dense")
        gone = ask(url, "/v2/models/dense/infer", rows(1))
        assert gone.status == 404
        assert gone.json["error"].endswith("Loaded are 'circle' (version 1).")
        assert ask(url, "/v2/health/ready").status == 200  # others answer
        assert call(address, "grpc.health.v1.Health/Check", service="dense").status == 2  # NOT_SERVING
        index = ask(url, "/v2/repository/index", {}).json
        assert {"name": "dense", "version": "", "state": "UNAVAILABLE", "reason": "unloaded"} in index
        ready = call(address, "RepositoryIndex", ready=True).models
        assert [(each.name, each.version, each.state) for each in ready] == [("circle", "1", "READY")]
        if way == "rest":
            assert ask(url, "/v2/repository/models/dense/load", b"", "POST").status == 200
        else:
            call(address, "RepositoryModelLoad", model_name="dense")
        assert ask(url, "/v2/models/dense/infer", rows(1)).status == 200
    assert ask(url, "/v2/repository/models/other/load", {}).status == 404
    refused = ask(url, "/v2/repository/models/dense/load", {"parameters": {"config": "{}"}})
    assert (refused.status, "parameters of a load" in refused.json["error"]) == (400, True)


def test_a_load_brings_new_versions(tmp_path: Path) -> None:
    dense(tmp_path)
    with ab.serving.Server({"m": tmp_path}, may_manage=True, poll_seconds=0) as server:
        dense(tmp_path)
        assert call(server.grpc_address, "ModelMetadata", name="m").versions == ["1"]
        call(server.grpc_address, "RepositoryModelLoad", model_name="m")
        assert call(server.grpc_address, "ModelMetadata", name="m").versions == ["2"]


def test_who_may_not_manage_is_refused(served: Any) -> None:
    reply = ask(served.server.rest_url, "/v2/repository/models/letters/unload", {})
    assert (reply.status, "--manage" in reply.json["error"]) == (403, True)
    with pytest.raises(grpc.RpcError) as caught:
        call(served.server.grpc_address, "RepositoryModelLoad", model_name="letters")
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED


def test_statistics(server: Any) -> None:
    def counted() -> dict[str, Any]:
        (found,) = ask(server.rest_url, "/v2/models/dense/stats").json["model_stats"]
        return found

    before = counted()
    for count in (1, 3, 3):
        assert ask(server.rest_url, "/v2/models/dense/infer", rows(count)).status == 200
    assert ask(server.rest_url, "/v2/models/dense/infer", {"inputs": []}).status == 400
    after = counted()
    assert after["inference_count"] - before["inference_count"] == 7
    assert after["execution_count"] - before["execution_count"] == 3
    stats = after["inference_stats"]
    assert stats["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert stats["success"]["ns"] > stats["compute_infer"]["ns"] > 0
    assert [each["batch_size"] for each in after["batch_stats"]] == [1, 3]
    by_grpc = call(server.grpc_address, "ModelStatistics", name="dense", version="1").model_stats
    assert by_grpc[0].inference_count == after["inference_count"]
    everything = ask(server.rest_url, "/v2/models/stats").json["model_stats"]
    assert {each["name"] for each in everything} == {"dense", "circle"}
    assert ask(server.rest_url, "/v2/models/other/stats").status == 404


def test_configurations(server: Any) -> None:
    found = ask(server.rest_url, "/v2/models/dense/config").json
    assert found["max_batch_size"] == 64
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert found["dynamic_batching"] == {"max_queue_delay_microseconds": 1000}
    config = call(server.grpc_address, "ModelConfig", name="circle").config
    assert config.model_transaction_policy.decoupled
    assert (config.max_batch_size, [each.name for each in config.input]) == (0, ["tokens", "stride"])


def asked(name: str, tokens: list[int], stride: int = 1, **parameters: Any) -> dict[str, Any]:
    kinds = {int: "int64_param", float: "double_param", bool: "bool_param"}
    return {
        "model_name": "circle",
        "id": name,
        "inputs": [
            {"name": "tokens", "datatype": "INT32", "shape": [len(tokens)], "contents": {"int_contents": tokens}},
            {"name": "stride", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [stride]}},
        ],
        "parameters": {key: {kinds[type(value)]: value} for key, value in parameters.items()},
    }


def tokens_of(answer: Any) -> tuple[str, int, bool]:
    found = answer.infer_response
    (token,) = np.frombuffer(found.raw_output_contents[0], "<i4")
    return found.id, int(token), found.parameters["triton_final_response"].bool_param


def test_streams_of_tokens(server: Any) -> None:
    requests = [asked("a", [2], max_tokens=4), asked("b", [3], stride=2, max_tokens=3)]
    answers = [tokens_of(each) for each in call_stream(server.grpc_address, "ModelStreamInfer", requests)]
    assert [each[1:] for each in answers if each[0] == "a"] == [(3, False), (4, False), (5, False), (6, True)]
    assert [each[1:] for each in answers if each[0] == "b"] == [(5, False), (7, False), (3, True)]


def test_streams_of_texts(server: Any) -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"ab"]}}
    request = asked("t", [2], max_tokens=3)
    request["inputs"] = [text, request["inputs"][1]]
    answers = [each.infer_response for each in call_stream(server.grpc_address, "ModelStreamInfer", [request])]
    assert b"".join(each.raw_output_contents[1][4:] for each in answers) == b"cde"
    assert answers[-1].parameters["finish_reason"].string_param == "length"


def test_streams_of_models_and_errors(server: Any) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}
    requests = [
        {"model_name": "dense", "id": "1", "inputs": [x]},
        {"model_name": "other", "id": "2"},
        asked("3", [2], hot=True),
        asked("4", [99]),
        {"model_name": "circle", "id": "5"},
        asked("6", [2], hot=True, max_token=1),
        {**(both := asked("7", [2])), "inputs": [{**both["inputs"][0], "name": name} for name in ("tokens", "a", "b")]},
        {**both, "id": "8", "inputs": [both["inputs"][0]] * 2},
    ]
    answers = {each.infer_response.id: each for each in call_stream(server.grpc_address, "ModelStreamInfer", requests)}
    assert answers["1"].infer_response.outputs[0].shape == [1, 3]
    assert answers["1"].infer_response.parameters["triton_final_response"].bool_param
    for name, message in (
        ("2", "Latest(other)"),
        ("3", "parameter 'hot'"),
        ("4", "the token 99"),
        ("5", "one of them"),
        ("6", "There are no parameters "),
        ("6", ". There are 'max_tokens', 'temperature', 'top_k', 'top_p', 'seed', 'stop'. "),
        ("6", "Did you mean 'max_tokens' for 'max_token'?"),
        ("7", "There are no inputs 'a', 'b'. There are 'tokens', 'text_input', 'stride'."),
        ("8", "Input 'tokens' is given twice"),
    ):
        assert message in answers[name].error_message


def stream(channel: grpc.Channel) -> Any:
    """The call of a stream on a channel, of the bytes of requests."""
    return channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        response_deserializer=message_class("ModelStreamInferResponse").FromString,
    )


def test_a_server_that_stops_ends_streams(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    circle(max_length=1 << 20).export(tmp_path)
    made = message_of(message_class("ModelInferRequest"), asked("a", [2]))
    with ab.serving.Server({"circle": tmp_path}, drain_seconds=0) as server:
        channel = grpc.insecure_channel(server.grpc_address)
        answers = stream(channel)(iter([made.SerializeToString()]), timeout=60)
        next(answers)
    with channel, pytest.raises(grpc.RpcError) as raised:
        list(answers)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE  # pyright: ignore[reportAttributeAccessIssue]
    gc.collect()  # by which tasks say that nobody has asked for their errors
    assert "never retrieved" not in caplog.text


def test_a_message_that_can_not_be_read_ends_its_stream(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as raised:
        list(stream(channel)(iter([b"\xff"]), timeout=60))
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # pyright: ignore[reportAttributeAccessIssue]
    assert "no message inference.ModelInferRequest" in str(raised.value)


def test_who_leaves_a_stream_gives_the_slots_free(server: Any) -> None:
    def slots_busy() -> float:
        text = ask(server.rest_url, "/metrics").body.decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("anabranch_slots_busy{"))

    with grpc.insecure_channel(server.grpc_address) as channel:
        made = message_of(message_class("ModelInferRequest"), asked("a", [2]))
        answers = stream(channel)(iter([made.SerializeToString()] * 2), timeout=60)
        next(answers)
        answers.cancel()
    until(lambda: slots_busy() == 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.slow
def test_tritonclient(server: Any, protocol: str, tmp_path: Path) -> None:
    address = server.grpc_address if protocol == "grpc" else server.rest_url.removeprefix("http://")
    script = Path(__file__).parent / "clients" / "of_triton_extensions.py"
    result = subprocess.run(
        [python_of("triton"), str(script), protocol, address],
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert json.loads(result.stdout) == ([3, 4, 5] if protocol == "grpc" else [])
