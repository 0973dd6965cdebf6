"""The servers that are compared, each in a process of its own: anabranch's, bare uvicorn with orjson, and MLServer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
BARE = """
import sys
import orjson, uvicorn

async def app(scope, receive, send):
    body = (await receive())["body"]
    rows = orjson.loads(body)["instances"]
    answer = orjson.dumps({"predictions": [[2.0 * value for value in row] for row in rows]})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})

options = {"loop": "uvloop", "http": "httptools", "lifespan": "off", "access_log": False, "log_level": "error"}
uvicorn.run(app, port=int(sys.argv[1]), **options)
"""
RUNTIME = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Doubled(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        y = x * 2 if self.name == "trivial" else x.sum(axis=-1)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
"""


class Running(NamedTuple):
    """A server that answers.

    Attributes:
        url: of its REST interface.
        grpc: the address of its gRPC interface.
        process: of it.
        wall: seconds from its start until it answered.
        processor: seconds of processor time until then.
    """

    url: str
    grpc: str
    process: subprocess.Popen[str]
    wall: float
    processor: float

    def megabytes(self) -> float:
        """The resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def _processor_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Generator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def own(models: Mapping[str, Path], *options: str) -> Generator[Running]:
    """Have anabranch serve models."""
    command = [sys.executable, "-m", "anabranch", "serve", "--rest-port", "0", "--grpc-port", "0", *options]
    for name, path in models.items():
        command += ["--model", f"{name}={path}"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with _ended(process):
        assert process.stdout is not None
        found = re.fullmatch(r"ready rest=(\S+) grpc=(\S+)\n", process.stdout.readline())
        if found is None:
            raise RuntimeError(f"{' '.join(command)} did not start")
        yield Running(found[1], found[2], process, time.perf_counter() - began, _processor_seconds(process))


@contextlib.contextmanager
def _listening(command: list[str], url: str, grpc: str, path: str, folder: Path) -> Generator[Running]:
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, text=True, start_new_session=True
    )
    with _ended(process):
        while True:
            try:
                with urlopen(url + path) as reply:
                    reply.read()
                break
            except OSError as error:
                if process.poll() is not None or time.perf_counter() > began + 120:
                    raise RuntimeError(f"{' '.join(command)} did not start: {error}") from error
                time.sleep(0.05)
        yield Running(url, grpc, process, time.perf_counter() - began, _processor_seconds(process))


@contextlib.contextmanager
def bare(folder: Path) -> Generator[Running]:
    """Have uvicorn double numbers in a handler: what HTTP and JSON cost alone."""
    (port,) = free_ports(1)
    (folder / "bare.py").write_text(BARE)
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, str(folder / "bare.py"), str(port)], text=True)
    with _ended(process):
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None:
                raise RuntimeError("bare uvicorn did not start")
            time.sleep(0.05)
        yield Running(url, "", process, 0.0, 0.0)


@contextlib.contextmanager
def mlserver(python: str, folder: Path) -> Generator[Running]:
    """Have MLServer double numbers ("trivial") and add them up ("large"), in its own process (`parallel_workers` 0)."""
    rest, grpc, metrics = free_ports(3)
    settings = {"http_port": rest, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1"}
    settings |= {"parallel_workers": 0, "grpc_max_message_length": 1 << 26, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in ("trivial", "large"):
        place = folder / name
        place.mkdir()
        (place / "doubled.py").write_text(RUNTIME)
        (place / "model-settings.json").write_text(json.dumps({"name": name, "implementation": "doubled.Doubled"}))
    command = [python, "-m", "mlserver.cli.main", "start", str(folder)]
    script = Path(python).with_name("mlserver")
    if script.exists():
        command = [str(script), "start", str(folder)]
    ready = "/v2/models/trivial/ready"
    with _listening(command, f"http://127.0.0.1:{rest}", f"127.0.0.1:{grpc}", ready, folder) as found:
        yield found
