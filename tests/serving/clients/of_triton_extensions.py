"""Asks for what Triton adds by tritonclient: run by a Python that has it, with protocol and address."""

import json
import queue
import sys
from importlib import import_module

import numpy as np

protocol, address = sys.argv[1:]
triton = import_module(f"tritonclient.{protocol}")
client = triton.InferenceServerClient(address)
client.unload_model("dense")
assert not client.is_model_ready("dense")
client.load_model("dense")
assert client.is_model_ready("dense")
found = []
if protocol == "http":
    assert {each["name"] for each in client.get_model_repository_index()} == {"dense", "circle"}
    assert client.get_model_config("dense")["max_batch_size"] == 64
    assert client.get_inference_statistics("dense")["model_stats"][0]["name"] == "dense"
else:
    assert {each.name for each in client.get_model_repository_index().models} == {"dense", "circle"}
    assert client.get_model_config("dense").config.max_batch_size == 64
    assert client.get_inference_statistics("dense").model_stats[0].name == "dense"
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    tokens, stride = triton.InferInput("tokens", [1], "INT32"), triton.InferInput("stride", [1], "INT32")
    tokens.set_data_from_numpy(np.array([2], "int32"))
    stride.set_data_from_numpy(np.array([1], "int32"))
    client.async_stream_infer("circle", [tokens, stride], parameters={"max_tokens": 3})
    is_last = False
    while not is_last:
        result, error = answers.get(timeout=60)
        assert error is None, error
        found += result.as_numpy("tokens").tolist()
        is_last = result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()
client.close()
print(json.dumps(found))
