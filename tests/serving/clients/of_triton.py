"""Asks the model "letters" by tritonclient: run by a Python that has it, with protocol, address, and two files."""

import sys
from importlib import import_module

import numpy as np

protocol, address, given, wanted = sys.argv[1:]
triton = import_module(f"tritonclient.{protocol}")
client = triton.InferenceServerClient(address)
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("letters")
assert not client.is_model_ready("half")
client.get_server_metadata()
client.get_model_metadata("letters")
x = np.load(given)
tensor = triton.InferInput("x", x.shape, "INT64")
tensor.set_data_from_numpy(x)
found = client.infer("letters", [tensor]).as_numpy("output_0")
again = client.infer("letters", [tensor], outputs=[triton.InferRequestedOutput("output_0")], request_id="7")
assert again.get_response()["id"] == "7" if protocol == "http" else again.get_response().id == "7"
np.testing.assert_array_equal(again.as_numpy("output_0"), found)
if protocol == "http":
    tensor.set_data_from_numpy(x, binary_data=False)
    plain = client.infer("letters", [tensor], outputs=[triton.InferRequestedOutput("output_0", binary_data=False)])
    np.testing.assert_array_equal(plain.as_numpy("output_0"), found)
np.save(wanted, found)
client.close()
