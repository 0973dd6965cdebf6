"""Times of tritonclient's calls: run by a Python that has it, with a protocol, an address, a model and numbers a row.

Prints the median and the smallest time in milliseconds, as JSON.
"""

import json
import sys
import time
from importlib import import_module

import numpy as np

protocol, address, model, size, rounds = sys.argv[1:]
triton = import_module(f"tritonclient.{protocol}")
client = triton.InferenceServerClient(address)
x = np.ones((1, int(size)), "float32")
times = []
for _ in range(int(rounds)):
    began = time.perf_counter()
    tensor = triton.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    assert client.infer(model, [tensor]).as_numpy("y") is not None
    times.append((time.perf_counter() - began) * 1000)
client.close()
times = times[len(times) // 5 :]
print(json.dumps([float(np.median(times)), min(times)]))
