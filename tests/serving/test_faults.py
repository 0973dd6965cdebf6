"""Faults of clients, disks and models on a real server: what goes wrong harms the one request, or the one version."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from shared.serving_clients import ask, call, call_stream
from shared.waiting import SCRIPT_SECONDS, until

import anabranch as ab
from anabranch.engine.ops.registered import register_function
from anabranch.framework.serving import storage

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
BODY = {"instances": [[1.0, 2.0]]}
PREDICT = "/v1/models/m:predict"


def double(folder: Path) -> None:
    x = ab.Input((2,), name="x")
    ab.Model(x, {"y": x * 2}).export(folder, verbose=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    double(tmp_path / "m")
    with ab.serving.Server({"m": tmp_path / "m"}, poll_seconds=0) as found:
        yield found


def works(server: Any) -> bool:
    return ask(server.rest_url, PREDICT, BODY).json == {"predictions": [[2.0, 4.0]]}


def state(server: Any, version: str) -> tuple[str, str]:
    (found,) = ask(server.rest_url, f"/v1/models/m/versions/{version}").json["model_version_status"]
    return found["state"], found["status"]["error_message"]


# --- the disk -------------------------------------------------------------------------------------------------------


def lose_weights(version: Path) -> None:
    (version / "graph.json").unlink()


def cut_graph(version: Path) -> None:
    (version / "graph.json").write_bytes((version / "graph.json").read_bytes()[:100])


def lie_about_shapes(version: Path) -> None:
    """A signature that says something else than the graph, with the right checksum."""
    path = version / "signature.json"
    document = json.loads(path.read_text())
    document["signatures"]["serving_default"]["inputs"][0]["tensor"] = "no_such_tensor:0"
    path.write_text(json.dumps(document))
    manifest = json.loads((version / "manifest.json").read_text())
    manifest["files"]["signature.json"] = {
        "size": path.stat().st_size,
        "sha256": storage._digest(path),  # pyright: ignore[reportPrivateUsage]
    }
    (version / "manifest.json").write_text(json.dumps(manifest))


def spoil_warmup(version: Path) -> None:
    path = version / "warmup.jsonl"
    path.write_text('{"signature": "serving_default", "inputs": {"x": [["not", "numbers"]]}}\n')
    manifest = json.loads((version / "manifest.json").read_text())
    manifest["files"]["warmup.jsonl"] = {
        "size": path.stat().st_size,
        "sha256": storage._digest(path),  # pyright: ignore[reportPrivateUsage]
    }
    (version / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", [lose_weights, cut_graph, lie_about_shapes, spoil_warmup])
def test_a_damaged_version_is_reported_and_the_old_one_stays(
    server: Any, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    double(tmp_path / "m")
    damage(tmp_path / "m" / "2")
    server.refresh()
    assert works(server)
    found, why = state(server, "2")
    assert found == "END"
    assert why
    index = ask(server.rest_url, "/v2/repository/index", {}).json
    assert {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": why} in index


def test_a_folder_that_goes_while_it_is_loaded(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double(tmp_path / "m")
    real = storage.rebuild

    def gone(*arguments: Any) -> Any:
        shutil.rmtree(tmp_path / "m" / "2")
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "rebuild", gone)
        server.refresh()
    assert works(server)
    shutil.rmtree(tmp_path / "m")
    server.refresh()
    assert works(server)


def test_memory_that_ends_while_a_version_is_loaded(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(tmp_path / "m")

    def without_memory(*arguments: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "rebuild", without_memory)
        server.refresh()
    assert works(server)
    assert "MemoryError" in state(server, "2")[1]


# --- clients --------------------------------------------------------------------------------------------------------


def connected(server: Any) -> socket.socket:
    parts = urlsplit(server.rest_url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)


def test_clients_that_leave_at_any_byte(server: Any) -> None:
    body = json.dumps(BODY).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for count in range(0, len(head + body) + 1, 7):
        with connected(server) as stream:
            stream.sendall((head + body)[:count])
    assert works(server)


def test_bytes_that_come_one_by_one(server: Any) -> None:
    body = json.dumps(BODY).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with connected(server) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head + body:
            stream.sendall(bytes([byte]))
        assert stream.recv(1000).startswith(b"HTTP/1.1 200")


def test_calls_that_are_cancelled(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        from anabranch.distribute.inference.messages import SERVICE, message_class

        stub = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", request_serializer=message_class("ModelInferRequest").SerializeToString
        )
        x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}
        request = message_class("ModelInferRequest")(model_name="m", inputs=[x])
        for _ in range(30):
            stub.future(request, timeout=60).cancel()
    assert works(server)
    assert call(server.grpc_address, "ServerReady").ready


@pytest.mark.parametrize("shape", [[2**40, 2**40], [2**62, 2], [2**31, 2]])
def test_shapes_that_overflow(server: Any, shape: list[int]) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": [1.0, 2.0]}
    reply = ask(server.rest_url, "/v2/models/m/infer", {"inputs": [tensor]})
    assert reply.status == 400
    inputs = [{"name": "x", "datatype": "FP32", "shape": shape}]
    with pytest.raises(grpc.RpcError) as caught:
        call(server.grpc_address, "ModelInfer", model_name="m", inputs=inputs, raw_input_contents=[b"\0" * 8])
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert works(server)


# --- models ---------------------------------------------------------------------------------------------------------


HOLD = 3  # the input with which steps of `holding` models and decoders last until a test lets them go on
goes_on = threading.Event()


@register_function("waits in a served model until a test lets it go on")
def _waits(value: Any) -> Any:
    if value == HOLD:
        assert goes_on.wait(SCRIPT_SECONDS)
    return value


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Steps with `HOLD` last until this is set, and at the latest until the test has ended."""
    goes_on.clear()
    yield goes_on
    goes_on.set()


def waits(t: Any) -> Any:
    """Return the largest of some integers, which takes long if it is `HOLD`."""
    return ab.ops.numpy_function(_waits, ab.ops.cast(ab.ops.max(t), "int32"), "int32", stateful=False, shape=())


def holding(folder: Path) -> None:
    """A model that returns its input, of one example."""
    x = ab.Input((), dtype="int32", name="x")
    ab.Model(x, ab.layers.Lambda(lambda t: ab.ops.maximum(t, waits(t)))(x)).export(folder, verbose=False)


def compiled(server: Any, path: str, body: dict[str, Any]) -> None:
    """Ask until the answer comes within the time for one, since the first one has to wait for the compiler."""
    until(lambda: ask(server.rest_url, path, body).status == 200)


def test_a_step_that_does_not_end_holds_up_nobody_else(tmp_path: Path, held: threading.Event) -> None:
    double(tmp_path / "m")
    holding(tmp_path / "loop")
    models = {name: {"path": str(tmp_path / name)} for name in ("m", "loop")}
    config = {"models": models, "limits": {"request_seconds": 1}}
    with ab.serving.Server(config=config, poll_seconds=0) as server:
        loop = "/v1/models/loop:predict"
        for _ in range(9):  # its calls are short so far
            compiled(server, loop, {"instances": [1]})
        reply = ask(server.rest_url, loop, {"instances": [HOLD]})
        assert (reply.status, "within 1 s" in reply.json["error"]) == (504, True)
        until(lambda: ask(server.rest_url, "/v2/models/loop/ready").status == 503)  # the step began after the request
        assert not call(server.grpc_address, "ModelReady", name="loop").ready
        assert call(server.grpc_address, "grpc.health.v1.Health/Check", service="loop").status == 2  # NOT_SERVING
        until(lambda: works(server))
        assert ask(server.rest_url, "/v2/health/live").status == 200
        assert ask(server.rest_url, "/v2/health/ready").status == 503
        assert not call(server.grpc_address, "ServerReady").ready
        assert call(server.grpc_address, "grpc.health.v1.Health/Check").status == 2
        held.set()


@pytest.mark.slow
@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_a_step_that_outlasts_the_deadline_of_its_request(tmp_path: Path, front: str, held: threading.Event) -> None:
    double(tmp_path / "m")
    holding(tmp_path / "loop")
    with ab.serving.Server({name: tmp_path / name for name in ("m", "loop")}, poll_seconds=0) as server:
        loop = "/v1/models/loop:predict"
        compiled(server, loop, {"instances": [1]})
        if front == "rest":
            reply = ask(server.rest_url, loop, {"instances": [HOLD]}, headers={"X-Request-Timeout-Ms": "200"})
            assert reply.status == 504
        else:
            x = {"name": "x", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [HOLD]}}
            with pytest.raises(grpc.RpcError) as caught:
                call(server.grpc_address, "ModelInfer", timeout=0.2, model_name="loop", inputs=[x])
            error: Any = caught.value
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: ask(server.rest_url, "/v2/models/loop/ready").status == 503)
        assert ask(server.rest_url, "/v2/health/ready").status == 503
        assert call(server.grpc_address, "grpc.health.v1.Health/Check", service="loop").status == 2  # NOT_SERVING
        assert call(server.grpc_address, "ModelReady", name="m").ready
        assert works(server)
        held.set()
        until(lambda: ask(server.rest_url, "/v2/health/ready").status == 200)
        assert ask(server.rest_url, loop, {"instances": [1]}).status == 200


def test_an_answer_by_grpc_has_the_time_that_one_by_rest_has(tmp_path: Path, held: threading.Event) -> None:
    holding(tmp_path)
    config = {"models": {"loop": {"path": str(tmp_path)}}, "limits": {"request_seconds": 0.5}}
    with ab.serving.Server(config=config, poll_seconds=0) as server:
        compiled(server, "/v1/models/loop:predict", {"instances": [1]})
        x = {"name": "x", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [HOLD]}}
        with pytest.raises(grpc.RpcError) as caught:
            call(server.grpc_address, "ModelInfer", model_name="loop", inputs=[x])
        error: Any = caught.value
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no answer within 0.5 s" in error.details()
        x = {"dtype": 3, "tensor_shape": {"dim": [{"size": 1}]}, "int_val": [HOLD]}
        with pytest.raises(grpc.RpcError, match=r"no answer within 0.5 s"):
            call(
                server.grpc_address,
                "tensorflow.serving.PredictionService/Predict",
                model_spec={"name": "loop"},
                inputs={"x": x},
            )
        held.set()


def holding_decoder(folder: Path) -> None:
    """A decoder that counts up from the last token, to which `HOLD` belongs."""

    def step(tokens: Any, states: Any) -> Any:
        return ab.ops.one_hot((tokens + 1) % 4, 4) + 0 * ab.ops.cast(waits(tokens), "float32"), states

    decoder = ab.serving.Decoder(step, lambda rows: (), end_token=0, max_length=8, slots=2, row_wise=True)
    decoder.export(folder)


ONE_TOKEN = {"tokens": [1], "parameters": {"max_tokens": 1}}


def test_a_step_of_a_decoder_that_does_not_end(tmp_path: Path, held: threading.Event) -> None:
    holding_decoder(tmp_path / "d")
    config = {"models": {"d": {"path": str(tmp_path / "d")}}, "limits": {"request_seconds": 0.5}}
    generate = "/v2/models/d/generate"
    with ab.serving.Server(config=config, poll_seconds=0) as server:
        compiled(server, generate, ONE_TOKEN)
        assert ask(server.rest_url, "/v2/models/d/ready").status == 200
        assert ask(server.rest_url, generate, {"tokens": [HOLD]}).status == 504
        until(lambda: ask(server.rest_url, "/v2/models/d/ready").status == 503)  # the step began after the request
        assert call(server.grpc_address, "grpc.health.v1.Health/Check", service="d").status == 2  # NOT_SERVING
        tokens = {"name": "tokens", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [1]}}
        (answer,) = call_stream(server.grpc_address, "ModelStreamInfer", [{"model_name": "d", "inputs": [tokens]}])
        assert "no answer within 0.5 s" in answer.error_message
        held.set()
        until(lambda: ask(server.rest_url, "/v2/models/d/ready").status == 200)


@pytest.mark.slow
@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_a_step_of_a_decoder_that_outlasts_the_deadline_of_its_request(
    tmp_path: Path, front: str, held: threading.Event
) -> None:
    holding_decoder(tmp_path / "d")
    generate = "/v2/models/d/generate"
    with ab.serving.Server({"d": tmp_path / "d"}, poll_seconds=0) as server:
        compiled(server, generate, ONE_TOKEN)
        if front == "rest":
            limit = {"X-Request-Timeout-Ms": "200"}
            assert ask(server.rest_url, generate, {"tokens": [HOLD]}, headers=limit).status == 504
        else:
            tokens = {"name": "tokens", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [HOLD]}}
            request = {"model_name": "d", "inputs": [tokens]}
            with pytest.raises(grpc.RpcError, match=r"DEADLINE_EXCEEDED"):
                call_stream(server.grpc_address, "ModelStreamInfer", [request], timeout=0.2)
        until(lambda: ask(server.rest_url, "/v2/models/d/ready").status == 503)
        assert not call(server.grpc_address, "ServerReady").ready
        held.set()
        until(lambda: ask(server.rest_url, "/v2/health/ready").status == 200)


def test_an_op_that_raises_fails_one_request_of_a_batch(tmp_path: Path) -> None:
    tokens = ab.Input((), dtype="int64", name="t")
    lookup = ab.layers.IntegerLookup(vocabulary=[1, 2, 3], num_oov_indices=0)
    ab.Model(tokens, lookup(tokens)).export(tmp_path, verbose=False)
    found: dict[int, int] = {}
    batching = ab.serving.Batching(max_queue_delay_ms=200)
    with ab.serving.Server({"m": tmp_path}, batching=batching) as server:

        def one(value: int) -> None:
            found[value] = ask(server.rest_url, PREDICT, {"instances": [value]}).status

        threads = [threading.Thread(target=one, args=(value,)) for value in (1, 2, 3, 9, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {1: 200, 2: 200, 3: 200, 9: 400, 8: 400}


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP on this system")
def test_a_server_that_is_stopped_and_woken_goes_on(tmp_path: Path) -> None:
    double(tmp_path / "m")
    command = [sys.executable, "-m", "anabranch", "serve", "--model", f"m={tmp_path / 'm'}"]
    command += ["--rest-port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split("rest=")[1].split()[0]
            assert ask(url, PREDICT, BODY).status == 200
            process.send_signal(signal.SIGSTOP)
            statuses: list[int] = []
            thread = threading.Thread(target=lambda: statuses.append(ask(url, PREDICT, BODY).status))
            thread.start()
            process.send_signal(signal.SIGCONT)
            thread.join()
            assert statuses == [200]
        finally:
            process.kill()


def test_memory_comes_back_after_reloads(tmp_path: Path) -> None:
    """A short form of a hundred reloads: what a version held is free once it has gone."""
    import gc
    import weakref

    double(tmp_path / "m")
    with ab.serving.Server({"m": tmp_path / "m"}, poll_seconds=0) as server:
        held: list[Any] = []
        for _ in range(3):
            assert works(server)
            catalogue: Any = server._catalogue
            held.append(weakref.ref(catalogue.models["m"].find("", "").servable))
            double(tmp_path / "m")
            server.refresh()
        server.refresh()
        # Threads that end with a version may hold it for a moment.
        until(lambda: gc.collect() >= 0 and not any(each() for each in held))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory of the process from Linux")
def test_a_hundred_reloads_take_no_memory(tmp_path: Path) -> None:
    """In a process of its own, whose memory nothing else uses."""
    script = """
import json, pathlib, shutil, sys
from urllib.request import urlopen
import numpy as np
import anabranch as ab
folder = pathlib.Path(sys.argv[1])
def megabytes():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) / 1024
x = np.zeros((1, 9), "int64")
embedding, rnn = ab.layers.Embedding(9, 16), ab.layers.GRU(64, return_sequences=True)
model = ab.Sequential([ab.Input((None,), dtype="int64", name="x"), embedding, rnn, ab.layers.Dense(10)])
model.export(folder, verbose=False, warmup=x)
body = json.dumps({"instances": x.tolist()}).encode()
sizes = []
with ab.serving.Server({"m": folder}, poll_seconds=0) as server:
    for version in range(2, 122):
        shutil.copytree(folder / str(version - 1), folder / ".next")
        (folder / ".next").rename(folder / str(version))
        server.refresh()
        urlopen(f"{server.rest_url}/v1/models/m:predict", body).read()
        shutil.rmtree(folder / str(version - 1))
        sizes.append(megabytes())
print(sizes[0], min(sizes[-10:]))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "m")]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    before, after = map(float, result.stdout.split())
    assert after < 1.05 * before
