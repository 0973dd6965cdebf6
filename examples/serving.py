"""Train a small model with a cell of its own, export it, serve it, and ask for predictions by each protocol.

The server is a process that does not use this file. What it answers is compared with `predict`.

    python examples/serving.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np

import anabranch as ab
from anabranch import layers, optim
from anabranch.distribute.inference.messages import SERVICE, message_class

TOLERANCE = 1e-5


class LeakyCell(layers.Layer):
    """Keeps nine tenths of its state at each step and adds one tenth of news."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")

    def call(self, x: Any, states: Any) -> Any:
        (h,) = states
        h = 0.9 * h + 0.1 * ab.ops.tanh(x @ self.kernel + h @ self.recurrent_kernel)
        return h, [h]


def train(epochs: int) -> ab.Model:
    """A model that says which letter comes next, of an alphabet of 8 that is repeated."""
    text = np.tile(np.arange(8), (40, 3))
    ab.utils.set_random_seed(1)
    model = ab.Sequential(
        [layers.Embedding(8, 16), layers.RNN(LeakyCell(32), return_sequences=True), layers.Dense(8, "softmax")]
    )
    model.compile(optimizer=optim.Adam(1e-2), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(text[:, :-1], text[:, 1:], epochs=epochs, verbose=0)
    return model


def serve(folder: Path) -> tuple[subprocess.Popen[str], str, str]:
    """Start a server of the exported model: its process, its URL and its address for gRPC."""
    command = [sys.executable, "-m", "anabranch", "serve", "--model", f"letters={folder}"]
    process = subprocess.Popen([*command, "--rest-port", "0", "--grpc-port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.match(r"ready rest=(\S+) grpc=(\S+)", process.stdout.readline())
    if found is None:
        raise SystemExit(f"The server ended with {process.wait()}.")
    return process, found[1], found[2]


# --- clients --------------------------------------------------------------------------------------------------------


def ask_by_tensorflow_rest(url: str, x: np.ndarray) -> np.ndarray:
    """As for TensorFlow Serving: rows as JSON."""
    body = json.dumps({"instances": x.tolist()}).encode()
    with urlopen(Request(f"{url}/v1/models/letters:predict", body)) as reply:
        return np.array(json.load(reply)["predictions"], "float32")


def ask_by_open_inference_rest(url: str, x: np.ndarray) -> np.ndarray:
    """As for KServe and Triton: JSON with binary tensors behind it, both ways."""
    raw = x.astype("<i8").tobytes()
    tensor = {"name": "x", "shape": x.shape, "datatype": "INT64", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    with urlopen(Request(f"{url}/v2/models/letters/infer", head + raw, headers)) as reply:
        size, body = int(reply.headers["Inference-Header-Content-Length"]), reply.read()
    return np.frombuffer(body[size:], "<f4").reshape(json.loads(body[:size])["outputs"][0]["shape"])


def ask_by_open_inference_grpc(address: str, x: np.ndarray) -> np.ndarray:
    """The same by gRPC. (`tritonclient.grpc` does this for you; docs/serving.md shows it.)"""
    request = message_class("ModelInferRequest")(
        model_name="letters",
        inputs=[{"name": "x", "datatype": "INT64", "shape": x.shape}],
        raw_input_contents=[x.astype("<i8").tobytes()],
    )
    with grpc.insecure_channel(address) as channel:
        infer = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=message_class("ModelInferRequest").SerializeToString,
            response_deserializer=message_class("ModelInferResponse").FromString,
        )
        answer = infer(request, timeout=60)
    return np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(answer.outputs[0].shape)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, export, serve and compare; gives the largest difference to `predict` by protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", type=Path, help="a folder for the exported model (default: one that is removed)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.output or Path(temporary)) / "letters"
        model = train(options.epochs)
        model.export(folder, input_signature=[ab.InputSpec(shape=(None, None), dtype="int64", name="x")])
        process, url, address = serve(folder)
        try:
            print(f"served at {url} and, by gRPC, at {address}")
            differences = compare(model, url, address)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait()
            process.communicate()
    print(f"the server ended with status {status}")
    if status or max(differences.values()) > TOLERANCE:
        raise SystemExit("The goal, predict's numbers by each protocol, was missed.")
    return differences


def compare(model: ab.Model, url: str, address: str) -> dict[str, float]:
    """The largest difference between what is served and what `predict` gives, by protocol."""
    protocols: dict[str, tuple[Callable[[str, np.ndarray], np.ndarray], str]] = {
        "TensorFlow Serving, REST": (ask_by_tensorflow_rest, url),
        "Open Inference, REST": (ask_by_open_inference_rest, url),
        "Open Inference, gRPC": (ask_by_open_inference_grpc, address),
    }
    x = np.random.default_rng(0).integers(0, 8, (5, 12))
    expected = model.predict(x, verbose=0)
    differences: dict[str, float] = {}
    for name, (ask, where) in protocols.items():
        differences[name] = float(np.max(np.abs(ask(where, x) - expected)))
        print(f"{name}: {len(x)} rows, largest difference to predict {differences[name]:.1e}")
    return differences


if __name__ == "__main__":
    main()
