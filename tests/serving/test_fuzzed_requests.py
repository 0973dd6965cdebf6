"""Damaged requests by each protocol: each is answered or refused, none by an error of the server."""

import asyncio
import copy
import gzip
import json
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from shared.served_decoders import circle
from shared.serving_clients import message_of

import anabranch as ab
from anabranch.distribute.inference.messages import methods_of

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)

SCRAPS = [b"null", b"1e999", b"NaN", b"-Infinity", b"-1", b"[]", b"{}", b'"', b"9" * 400, b"[" * 5000, b"\x00", b"\xff"]
VALUES: list[Any] = [None, True, -1, 0, 1.5, 2**63, 10**400, 1e308, "", "x", "\ud800"]
VALUES += [
    [],
    {},
    [[]],
    [1, [2]],
    [2**62, 2**62],
    [0],
    [-1, -1],
    ["a", 1],
    [[1, 2], [3]],
    {"b64": "?"},
    {"b64": "AAAA"},
]
LONGEST_SECONDS = 20  # for one answer, on a machine that others use


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    a, words = ab.Input((None, 2), name="a"), ab.Input((None,), dtype="string", name="words")
    both = {"sum": ab.ops.sum(a, axis=(1, 2)), "words": ab.ops.strings.upper(words)}
    ab.Model({"a": a, "words": words}, both).export(folder / "m", verbose=False)
    circle(max_length=40).export(folder / "d")
    with ab.serving.Server({"m": folder / "m", "d": folder / "d"}, max_body_bytes=1 << 20) as found:
        yield found


JSON: list[tuple[str, Any]] = [
    ("/v1/models/m:predict", {"instances": [{"a": [[1.5, 2]], "words": ["x", {"b64": "eA=="}]}] * 2}),
    ("/v1/models/m:predict", {"signature_name": "serving_default", "inputs": {"a": [[[1, 2]]], "words": [["x"]]}}),
    (
        "/v2/models/m/infer",
        {
            "id": "1",
            "parameters": {"binary_data_output": False},
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 1, 2], "data": [1, 2]},
                {"name": "words", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]},
            ],
            "outputs": [{"name": "sum", "parameters": {"binary_data": True}}],
        },
    ),
    (
        "/v2/models/d/generate",
        {
            "text_input": "ab",
            "inputs": {"stride": 2},
            "parameters": {"max_tokens": 3, "temperature": 1.0, "top_k": 3, "top_p": 0.5, "seed": 7, "stop": ["a", 3]},
        },
    ),
    ("/v2/models/d/generate_stream", {"tokens": [2, 3], "inputs": {"stride": 2}, "parameters": {"max_tokens": 2}}),
    ("/v1/completions", {"model": "d", "prompt": ["ab", [3]], "max_tokens": 3, "inputs": {"stride": 1}, "stop": "c"}),
    ("/v2/repository/index", {"ready": True}),
]


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0:
                del found[place : place + rng.randint(1, 20)]
            case 1:
                found[place:place] = rng.choice(SCRAPS)
            case 2:
                found[place:place] = found[place : place + rng.randint(1, 30)]
            case 3 if place < len(found):
                found[place] ^= 1 << rng.randrange(8)
            case _:
                found[place : place + 1] = bytes([rng.randrange(256)])
    return bytes(found)


def damaged_json(document: Any, rng: random.Random) -> bytes:
    found = copy.deepcopy(document)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            visit(node[key])

    visit(found)
    node, key = rng.choice(places)
    if rng.random() < 0.15 and isinstance(node, dict):
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(found).encode("utf-8", "surrogatepass")


def answered(application: Any, path: str, body: bytes, headers: dict[str, str]) -> Callable[[], Any]:
    """A request, without a socket: what comes out is the status."""

    async def ask() -> int:
        sent: list[Any] = []
        waits = asyncio.get_running_loop().create_future()
        first = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return first.pop() if first else await asyncio.shield(waits)

        async def send(message: Any) -> None:
            sent.append(message)

        encoded = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": encoded, "scheme": "http"}
        await asyncio.wait_for(application(scope, receive, send), LONGEST_SECONDS)
        waits.cancel()
        assert sent, (path, body, headers)
        return int(sent[0]["status"])

    return ask


def fuzz_rest(server: Any, count: int) -> None:
    rng = random.Random(5)
    binary = b'{"inputs":[{"name":"a","datatype":"FP32","shape":[1,1,2],"parameters":{"binary_data_size":8}},'
    binary += b'{"name":"words","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":5}}]}'
    raw = b"\x00\x00\x80?\x00\x00\x00@" + b"\x01\x00\x00\x00x"
    statuses: dict[int, int] = {}
    for number in range(count):
        path, document = rng.choice(JSON)
        headers: dict[str, str] = {}
        kind = rng.randrange(8)
        if kind < 4:
            body = damaged_json(document, rng)
        elif kind < 6:
            body = damaged_bytes(json.dumps(document).encode(), rng)
        elif kind == 6:
            path, head = "/v2/models/m/infer", damaged_bytes(binary, rng) if rng.random() < 0.5 else binary
            body = head + (damaged_bytes(raw, rng) if rng.random() < 0.7 else raw)
            length = rng.choice([str(len(head)), str(len(head)), str(rng.randrange(300)), "-1", "x"])
            headers["inference-header-content-length"] = length
        else:
            body = gzip.compress(json.dumps(document).encode())
            body, headers["content-encoding"] = damaged_bytes(body, rng), "gzip"
        status = server.on_loop(answered(server.application, path, body, headers))
        statuses[status] = statuses.get(status, 0) + 1
        assert 200 <= status < 500, (number, path, status, body[:2000], headers)
    assert {200, 400} <= statuses.keys()


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "inference.GRPCInferenceService",
        "ModelInfer",
        {
            "model_name": "m",
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 1, 2], "contents": {"fp32_contents": [1, 2]}},
                {"name": "words", "datatype": "BYTES", "shape": [1, 1], "contents": {"bytes_contents": [b"x"]}},
            ],
        },
    ),
    (
        "inference.GRPCInferenceService",
        "ModelInfer",
        {
            "model_name": "m",
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 1, 2]},
                {"name": "words", "datatype": "BYTES", "shape": [1, 1]},
            ],
            "raw_input_contents": [b"\x00\x00\x80?\x00\x00\x00@", b"\x01\x00\x00\x00x"],
        },
    ),
    (
        "tensorflow.serving.PredictionService",
        "Predict",
        {
            "model_spec": {"name": "m", "version": {"value": 1}},
            "inputs": {
                "a": {
                    "dtype": 1,
                    "tensor_shape": {"dim": [{"size": 1}, {"size": 1}, {"size": 2}]},
                    "tensor_content": b"\x00\x00\x80?\x00\x00\x00@",
                },
                "words": {
                    "dtype": 7,
                    "tensor_shape": {"dim": [{"size": 1}, {"size": 1}]},
                    "string_val": [b"x"],
                },
            },
        },
    ),
    ("tensorflow.serving.PredictionService", "GetModelMetadata", {"model_spec": {"name": "m"}}),
    ("tensorflow.serving.ModelService", "GetModelStatus", {"model_spec": {"name": "m"}}),
    ("inference.GRPCInferenceService", "ModelStatistics", {"name": "m", "version": "1"}),
]


def fuzz_grpc(server: Any, count: int) -> None:
    rng = random.Random(6)
    requests: list[tuple[str, bytes]] = []
    for service, name, fields in CALLS:
        method = next(each for each in methods_of(service) if each.name == name)
        requests.append((f"/{service}/{name}", message_of(method.request, fields).SerializeToString()))
    codes: dict[Any, int] = {}
    with grpc.insecure_channel(server.grpc_address) as channel:
        stubs = {path: channel.unary_unary(path) for path, _ in requests}
        for number in range(count):
            path, data = rng.choice(requests)
            body = damaged_bytes(data, rng)
            try:
                stubs[path](body, timeout=LONGEST_SECONDS)
                code = grpc.StatusCode.OK
            except grpc.RpcError as error:
                code = error.code()  # pyright: ignore[reportAttributeAccessIssue]
            codes[code] = codes.get(code, 0) + 1
            bad = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
            assert code not in bad, (number, path, code, body)
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT} <= codes.keys()


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("fuzz", [fuzz_rest, fuzz_grpc])
def test_some_damaged_requests(server: Any, fuzz: Callable[[Any, int], None]) -> None:
    before = peak_megabytes()
    fuzz(server, 600)
    assert peak_megabytes() - before < 400


@pytest.mark.slow
@pytest.mark.parametrize("fuzz", [fuzz_rest, fuzz_grpc])
def test_many_damaged_requests(server: Any, fuzz: Callable[[Any, int], None]) -> None:
    before = peak_megabytes()
    fuzz(server, 100_000)
    assert peak_megabytes() - before < 400


def test_a_million_brackets(server: Any, tmp_path: Path) -> None:
    for scrap in (b"[" * 1_000_000, b'{"a":' * 150_000, b'{"instances":' + b"[" * 900_000 + b"]" * 900_00 + b"}"):
        assert server.on_loop(answered(server.application, "/v1/models/m:predict", scrap, {})) == 400
        with_nan = b'{"instances": [NaN, ' + scrap[:500_000]
        assert server.on_loop(answered(server.application, "/v1/models/m:predict", with_nan, {})) == 400
