"""Models of many kinds, asked by each protocol, answer as `predict` does."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.servable_models import MODELS, inputs_of
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.distribute.inference.dtypes import OPEN_INFERENCE
from anabranch.distribute.inference.tensors import array_of, tensor_of
from anabranch.engine.common.dtypes import name_of
from anabranch.engine.common.nest import flatten
from anabranch.engine.graph import as_dtype

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
Arrays = dict[str, Any]


def raw_bytes(array: Any) -> bytes:
    if array.dtype.kind != "T":
        return array.tobytes()
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def described(inputs: Arrays) -> list[Any]:
    return [
        {"name": name, "datatype": OPEN_INFERENCE[name_of(array.dtype)], "shape": list(array.shape)}
        for name, array in inputs.items()
    ]


def array_from(datatype: str, shape: Any, data: bytes) -> Any:
    dtype = next(name for name, each in OPEN_INFERENCE.items() if each == datatype)
    return np.frombuffer(data, as_dtype(dtype)).reshape(tuple(shape))


def by_rows(server: Any, name: str, inputs: Arrays) -> Arrays:
    columns = {key: array.tolist() for key, array in inputs.items()}
    rows = [{key: column[number] for key, column in columns.items()} for number in range(3)]
    if len(inputs) == 1:
        rows = [next(iter(row.values())) for row in rows]
    found = ask(server.rest_url, f"/v1/models/{name}:predict", {"instances": rows}).json["predictions"]
    if isinstance(found[0], dict):
        return {key: np.array([row[key] for row in found]) for key in found[0]}
    return {"": np.array(found)}


def by_columns(server: Any, name: str, inputs: Arrays) -> Arrays:
    body = {"inputs": {key: array.tolist() for key, array in inputs.items()}}
    found = ask(server.rest_url, f"/v1/models/{name}:predict", body).json["outputs"]
    return {key: np.array(each) for key, each in found.items()} if isinstance(found, dict) else {"": np.array(found)}


def by_json(server: Any, name: str, inputs: Arrays) -> Arrays:
    tensors = [{**each, "data": inputs[each["name"]].reshape(-1).tolist()} for each in described(inputs)]
    found = ask(server.rest_url, f"/v2/models/{name}/infer", {"inputs": tensors}).json["outputs"]
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in found}


def by_raw_grpc(server: Any, name: str, inputs: Arrays) -> Arrays:
    raw = [raw_bytes(array) for array in inputs.values()]
    answer = call(server.grpc_address, "ModelInfer", model_name=name, inputs=described(inputs), raw_input_contents=raw)
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {each.name: array_from(each.datatype, each.shape, data) for each, data in pairs}


def by_tensorflow_grpc(server: Any, name: str, inputs: Arrays) -> Arrays:
    given = {key: tensor_of(name_of(array.dtype), array) for key, array in inputs.items()}
    answer = call(
        server.grpc_address,
        "tensorflow.serving.PredictionService/Predict",
        model_spec={"name": name},
        inputs=given,
    )
    return {key: array_of(key, each, 1 << 20).array for key, each in sorted(answer.outputs.items())}


PROTOCOLS = (by_rows, by_columns, by_json, by_raw_grpc, by_tensorflow_grpc)


def check(names: list[str], folder: Path) -> None:
    models = {f"m{number}": MODELS[name]() for number, name in enumerate(names)}
    for name, model in models.items():
        model.export(folder / name, verbose=False)
    with ab.serving.Server({name: folder / name for name in models}, poll_seconds=0) as server:
        for number, (name, model) in enumerate(models.items()):
            arrays = inputs_of(model, 3, np.random.default_rng(number))
            infos = server.signature_of(name).inputs
            inputs = {info.name: array.astype(as_dtype(info.dtype)) for info, array in zip(infos, arrays, strict=True)}
            expected = flatten(model.predict(arrays if len(arrays) > 1 else arrays[0], verbose=0))
            for protocol in PROTOCOLS:
                found = protocol(server, name, inputs)
                assert len(found) == len(expected), (names[number], protocol)
                for array, wanted in zip(found.values(), expected, strict=True):
                    np.testing.assert_allclose(
                        array, wanted, rtol=2e-5, atol=2e-6, err_msg=f"{names[number]}, {protocol.__name__}"
                    )


def test_some_models(tmp_path: Path) -> None:
    check(["mlp", "two inputs", "strings", "recurrent of open length", "doubles", "truths"], tmp_path)


@pytest.mark.slow
def test_all_models(tmp_path: Path) -> None:
    assert len(MODELS) >= 40
    check(list(MODELS), tmp_path)
