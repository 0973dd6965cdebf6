"""Random arrivals at most of what a server can do, with reloads and clients that leave: each answer is the model's own.

The load goes on for as many seconds as ANABRANCH_LOAD_SECONDS says, by default ten minutes in `make test-all`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.load import Connections, closed_loop, open_loop, post
from shared.serving_clients import ask
from shared.waiting import until

import anabranch as ab
from anabranch.distribute.inference.messages import SERVICE, message_class

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)
SECONDS = float(os.environ.get("ANABRANCH_LOAD_SECONDS", "600"))
SHARE = 0.8  # of the requests that are answered where clients never pause
AT_ONCE = 200
RELOAD_SECONDS = 5.0  # between two versions
KEPT = 3  # versions of a model on the disk
PATIENCE = 600.0  # seconds for an answer, on a machine that others use
CHOICES = 12  # different requests for a model
NAMES = ("dense", "decoder", "tagger", "mixing")


def make_model(kind: str) -> Any:
    """A model whose answers change with its version."""
    if kind == "dense":
        return ab.Sequential([ab.Input((6,), name="x"), ab.layers.Dense(16, "tanh"), ab.layers.Dense(3)])
    if kind == "tagger":
        tokens = ab.Input((None,), dtype="int64", name="x")
        steps = ab.layers.Embedding(9, 4, mask_zero=True)(tokens)
        return ab.Model(tokens, ab.layers.GRU(3, return_sequences=True)(steps))
    x = ab.Input((6,), name="x")
    return ab.Model(x, ab.layers.Dense(2)(x - ab.ops.mean(x, axis=0, keepdims=True)))


class Models:
    """The models that are served, their versions, and what each of these answers."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(0)
        self.kinds = {name: make_model(name) for name in names if name != "decoder"}
        self.inputs = {kind: [self._draw(kind) for _ in range(CHOICES)] for kind in self.kinds}
        self.expected: dict[tuple[str, str], list[Any]] = {}  # by model and version
        self.newest = dict.fromkeys(names, 0)
        for name in self.newest:
            self.export(name)

    def _draw(self, kind: str) -> Any:
        rows = int(self.rng.integers(1, 5))
        if kind == "tagger":
            return self.rng.integers(1, 9, (rows, int(self.rng.integers(1, 12))))
        return self.rng.normal(size=(rows, 6)).astype("float32")

    def export(self, name: str) -> None:
        """Write the next version of a model, with other weights, and drop the oldest one."""
        number = self.newest[name] = self.newest[name] + 1
        if name == "decoder":
            self._export_decoder(number)
        else:
            model = self.kinds[name]
            model.set_weights([self.rng.normal(size=w.shape).astype(w.dtype) for w in model.get_weights()])
            self.expected[name, str(number)] = [model.predict_on_batch(x) for x in self.inputs[name]]
            first = self.inputs[name][0]
            also = {"pad": {"x": 0}} if name == "tagger" else {}
            model.export(self.folder / name, verbose=False, version=number, warmup=first, **also)
        shutil.rmtree(self.folder / name / str(number - KEPT), ignore_errors=True)

    def _export_decoder(self, number: int) -> None:
        table = self.rng.normal(size=(9, 9)).astype("float32")
        decoder = ab.serving.Decoder(
            lambda tokens, states: (ab.ops.take(table, tokens, axis=0) + states, states * 0.9),
            lambda rows: ab.ops.ones((rows, 9)),
            end_token=0,
            max_length=40,
            slots=4,
        )
        self.expected["decoder", str(number)] = [
            decoder.generate([[1 + seed % 8]], temperature=float(seed % 2), seed=seed)[0].tolist()
            for seed in range(CHOICES)
        ]
        decoder.export(self.folder / "decoder", version=number)

    def check(self, name: str, number: int, found: Any) -> None:
        """Compare an answer with what the version that gave it gives alone."""
        expected = self.expected[name, str(found["model_version"])][number]
        if name == "decoder":
            assert found["tokens"] == expected
            return
        (output,) = found["outputs"]
        assert output["shape"] == list(expected.shape)
        array = np.array(output["data"], "float32").reshape(expected.shape)
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)


class Clients:
    """Random requests by HTTP and gRPC, some of which are left before they are answered."""

    def __init__(self, models: Models, url: str, channel: Any, rng: random.Random) -> None:
        self.models, self.rng = models, rng
        self.connections = Connections(url)
        self.infer = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=message_class("ModelInferRequest").SerializeToString,
            response_deserializer=message_class("ModelInferResponse").FromString,
        )
        self.answered = self.left = 0

    async def act(self) -> None:
        """Ask for something; sometimes leave before the answer."""
        name = self.rng.choice(list(self.models.newest))
        number = self.rng.randrange(CHOICES)
        by_grpc = name != "decoder" and self.rng.random() < 0.3
        asked = asyncio.ensure_future((self.by_grpc if by_grpc else self.by_http)(name, number))
        if self.rng.random() < 0.05:
            await asyncio.wait({asked}, timeout=self.rng.random() * 0.005)
            if asked.cancel():
                self.left += 1
                await asyncio.wait({asked})
                return
        self.models.check(name, number, await asked)
        self.answered += 1

    async def by_http(self, name: str, number: int) -> Any:
        if name == "decoder":
            path, body = (
                "generate",
                {
                    "tokens": [1 + number % 8],
                    "parameters": {"temperature": float(number % 2), "seed": number},
                },
            )
        else:
            x = self.models.inputs[name][number]
            datatype = "INT64" if name == "tagger" else "FP32"
            path, body = (
                "infer",
                {
                    "inputs": [
                        {"name": "x", "shape": list(x.shape), "datatype": datatype, "data": x.reshape(-1).tolist()}
                    ]
                },
            )
        answer = await self.connections.ask(post(f"/v2/models/{name}/{path}", json.dumps(body).encode()))
        assert answer.status == 200, (name, answer)
        return answer.json

    async def by_grpc(self, name: str, number: int) -> Any:
        x = self.models.inputs[name][number]
        tensor = {"name": "x", "datatype": "INT64" if name == "tagger" else "FP32", "shape": x.shape}
        request = message_class("ModelInferRequest")(model_name=name, inputs=[tensor], raw_input_contents=[x.tobytes()])
        answer = await self.infer(request, timeout=PATIENCE)
        (output,) = answer.outputs
        data = np.frombuffer(answer.raw_output_contents[0], "<f4")
        return {"model_version": answer.model_version, "outputs": [{"shape": list(output.shape), "data": data}]}


def serve(models: Models) -> tuple[subprocess.Popen[str], str, str]:
    """Start the command as a process of its own: with its URL and its address for gRPC."""
    command = [sys.executable, "-W", "error", "-m", "anabranch", "serve", "--rest-port", "0", "--grpc-port", "0"]
    command += ["--poll-seconds", "0.1"]
    for name in models.newest:
        command += ["--model", f"{name}={models.folder / name}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found = re.fullmatch(r"ready rest=(\S+) grpc=(\S+)\n", process.stdout.readline())
    assert found is not None
    return process, found[1], found[2]


async def load(models: Models, url: str, address: str, seconds: float, reloads: int) -> Clients:
    """Find out what the server can do, and then ask for most of it while versions change."""
    import grpc.aio

    rng = random.Random(0)
    async with grpc.aio.insecure_channel(address) as channel:
        clients = Clients(models, url, channel, rng)
        rate = await closed_loop(clients.act, 16, seconds * 0.1)

        async def reload() -> None:
            for number in range(reloads):
                await asyncio.sleep(seconds * 0.8 / reloads)
                await asyncio.to_thread(models.export, list(models.newest)[number % len(models.newest)])

        reloading = asyncio.create_task(reload())
        await open_loop(clients.act, SHARE * rate, seconds * 0.9, AT_ONCE, rng)
        await reloading
        await clients.connections.close()
    return clients


def check_load(models: Models, seconds: float, reloads: int) -> None:
    process, url, address = serve(models)
    try:
        clients = asyncio.run(load(models, url, address, seconds, reloads))
        for name, number in models.newest.items():
            assert number > 1
            until(lambda name=name, number=number: ask(url, f"/v1/models/{name}/versions/{number}").status == 200)
        text = ask(url, "/metrics").body.decode()
        statuses = re.findall(r'anabranch_requests_total\{model="\w+",status="(\d+)"\}', text)
        assert set(statuses) <= {"200", "504"}  # 504: clients that left
        under_way = re.findall(r"^anabranch_(?:requests_under_way|slots_busy)\{.*\} (.*)$", text, re.M)
        assert {float(each) for each in under_way} == {0.0}
        assert clients.answered > 10 * clients.left > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_short_load(tmp_path: Path) -> None:
    check_load(Models(tmp_path, NAMES[:2]), 0.6, 2)


@pytest.mark.slow
def test_a_long_load(tmp_path: Path) -> None:
    check_load(Models(tmp_path, NAMES), SECONDS, max(len(NAMES), round(SECONDS / RELOAD_SECONDS)))
