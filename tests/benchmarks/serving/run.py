"""Measure the model server beside bare uvicorn with orjson and MLServer, and print a table.

    python tests/benchmarks/serving/run.py [--seconds 3] [--rounds 3] [WHAT ...]

WHAT: trivial, triton, batching, decoder, reload, start; by default all. Load comes over raw sockets from this process.
Servers that are compared run at the same time and are asked in turns, so that what else the machine does falls on all
of them. MLServer is in the environment that `make_env.sh mlserver` makes beside the peers, or in that of the Python
ANABRANCH_MLSERVER_PYTHON; tritonclient in that of `make clients`, or of ANABRANCH_TRITON_PYTHON. Rows that need what is
not there are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "2")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # servers start with byte code, as users have it

import numpy as np  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import load  # noqa: E402
import servers  # noqa: E402

import anabranch as ab  # noqa: E402


class Row(NamedTuple):
    """A line of the table."""

    what: str
    goal: str
    found: str
    is_met: bool | None


class Options(NamedTuple):
    seconds: float
    rounds: int
    folder: Path


def python_of(client: str, made: Path) -> str | None:
    named = os.environ.get(f"ANABRANCH_{client.upper()}_PYTHON")
    return named or (str(made) if made.exists() else None)


TRITON = python_of("triton", ROOT / ".venv/clients/triton/bin/python")
MLSERVER = python_of("mlserver", HERE.parent / "peers/.env-mlserver/bin/python")


def export_models(folder: Path) -> None:
    """Write the models "trivial" (16 numbers, doubled), "large" (1 MB, added up) and "mlp"."""
    x = ab.Input((16,), name="x")
    ab.Model(x, {"y": x * 2.0}).export(folder / "trivial", verbose=False, warmup=np.ones((1, 16), "float32"))
    x = ab.Input((1 << 18,), name="x")
    ab.Model(x, {"y": ab.ops.sum(x, axis=-1)}).export(
        folder / "large", verbose=False, warmup=np.ones((1, 1 << 18), "float32")
    )


def body(rows: int, size: int) -> bytes:
    return json.dumps({"instances": [[0.5] * size] * rows}).encode()


OPEN_INFERENCE = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]}
).encode()


def trivial(options: Options) -> list[Row]:
    """A trivial model by JSON: requests a second at 16 connections, and the median at one."""
    predict = load.post("/v1/models/trivial:predict", body(1, 16))
    infer = load.post("/v2/models/trivial/infer", OPEN_INFERENCE)
    with ExitStack() as stack:
        own = stack.enter_context(servers.own({"trivial": options.folder / "trivial"}))
        peers = {"own": (own, predict), "bare": (stack.enter_context(servers.bare(options.folder)), predict)}
        peers["own v2"] = (own, infer)
        if MLSERVER:
            (options.folder / "mlserver").mkdir(exist_ok=True)
            running = stack.enter_context(servers.mlserver(MLSERVER, options.folder / "mlserver"))
            peers["mlserver"] = (running, infer)
        rates: dict[str, list[float]] = {name: [] for name in peers}
        medians: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(options.rounds):
            for name, (server, request) in peers.items():
                rates[name].append(load.measure(server.url, request, 16, options.seconds).per_second)
                medians[name].append(load.measure(server.url, request, 1, options.seconds / 2).at(50))
    rows = [_ratio("trivial model, JSON, 16 connections: of bare uvicorn + orjson", rates, "own", "bare", 0.25, "/s")]
    if MLSERVER:
        rows.append(_ratio("by the Open Inference Protocol: of MLServer", rates, "own v2", "mlserver", 5, "/s"))
        rows.append(_ratio("p50 at 1 connection: of MLServer's", medians, "own v2", "mlserver", -0.4, " ms"))
    rows.append(_ratio("p50 at 1 connection: of bare uvicorn's", medians, "own", "bare", 0, " ms"))
    return rows


def _ratio(what: str, found: dict[str, list[float]], own: str, peer: str, goal: float, unit: str) -> Row:
    """A line with the median of the ratios within rounds; a negative goal is an upper bound, 0 is none."""
    ratio = median(a / b for a, b in zip(found[own], found[peer], strict=True))
    form = ",.0f" if unit == "/s" else ".3f"
    shown = f"{ratio:.2f} ({median(found[own]):{form}}{unit}; {median(found[peer]):{form}}{unit})"
    bound = "" if not goal else f"at most {-goal:g}" if goal < 0 else f"at least {goal:g}"
    return Row(what, bound, shown, None if not goal else ratio <= -goal if goal < 0 else ratio >= goal)


def triton(options: Options) -> list[Row]:
    """tritonclient's calls: one row, and 1 MB."""
    if TRITON is None:
        return []
    client: str = TRITON

    def ask(protocol: str, address: str, model: str, size: int, rounds: int) -> float:
        script = str(HERE / "triton_times.py")
        command = [client, script, protocol, address, model, str(size), str(rounds)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]

    with ExitStack() as stack:
        own = stack.enter_context(servers.own({name: options.folder / name for name in ("trivial", "large")}))
        peers = {"own": own}
        if MLSERVER:
            (options.folder / "mlserver-triton").mkdir(exist_ok=True)
            peers["mlserver"] = stack.enter_context(servers.mlserver(MLSERVER, options.folder / "mlserver-triton"))
        one: dict[str, list[float]] = {name: [] for name in peers}
        large: dict[str, list[float]] = {name: [] for name in peers}
        http: list[float] = []
        for _ in range(options.rounds):
            http.append(ask("http", own.url.removeprefix("http://"), "large", 1 << 18, 100))
            for name, server in peers.items():
                one[name].append(ask("grpc", server.grpc, "trivial", 16, 1000))
                large[name].append(ask("grpc", server.grpc, "large", 1 << 18, 100))
    rows = [Row("1 MB in by tritonclient.http", "at most 6 ms", f"{median(http):.2f} ms", median(http) <= 6)]
    if MLSERVER:
        rows.append(_ratio("tritonclient.grpc, one row: of MLServer's", one, "own", "mlserver", -0.75, " ms"))
        rows.append(_ratio("1 MB in by tritonclient.grpc: of MLServer's", large, "own", "mlserver", -0.3, " ms"))
    return rows


def batching(options: Options) -> list[Row]:
    """A dense network of 1024-4096-4096-10 at 64 connections, with batches and without."""
    x = ab.Input((1024,), name="x")
    layers = [ab.layers.Dense(4096, "relu"), ab.layers.Dense(4096, "relu"), ab.layers.Dense(10)]
    path = options.folder / "mlp"
    model = ab.Sequential([x, *layers])
    model.export(path, verbose=False, warmup=np.ones((1, 1024), "float32"))
    request = load.post("/v1/models/mlp:predict", body(1, 1024))
    rates: dict[str, list[float]] = {"on": [], "off": []}
    tails: list[float] = []
    with servers.own({"mlp": path}) as on, servers.own({"mlp": path}, "--max-batch-size", "1") as off:
        for _ in range(options.rounds):
            for name, server in (("on", on), ("off", off)):
                found = load.measure(server.url, request, 64, options.seconds)
                rates[name].append(found.per_second)
                if name == "on":
                    tails.append(found.at(99) / found.at(50))
    tail = median(tails)
    return [
        _ratio("MLP 1024-4096-4096-10, 64 connections: with batching, of without", rates, "on", "off", 5, "/s"),
        Row("the same: p99 of p50", "at most 2.5", f"{tail:.2f}", tail <= 2.5),
    ]


def decoder(options: Options) -> list[Row]:
    """Continuous batching against `greedy_search` over batches and against padded batches; time outside the step."""
    import decoders

    rates = decoders.rates(32, options.rounds)
    own, greedy, padded = (median(column) for column in zip(*rates, strict=True))
    of_greedy, of_padded = median(a / b for a, b, _ in rates), median(a / c for a, _, c in rates)
    outside = decoders.outside(8)
    of_padded_shown = f"{of_padded:.2f} ({own:,.0f}; {padded:,.0f} tokens/s)"
    of_greedy_shown = f"{of_greedy:.2f} ({greedy:,.0f} tokens/s)"
    return [
        Row("decoder, GRU 256, 32 slots: of padded batches", "at least 2.5", of_padded_shown, of_padded >= 2.5),
        Row("the same: of greedy_search", "at least 1.25", of_greedy_shown, of_greedy >= 1.25),
        Row("outside of step, an iteration of 8 slots", "at most 60 us", f"{outside:.0f} us", outside <= 60),
    ]


def reload(options: Options) -> list[Row]:
    """A new version of a small model under load: the slowest hundredth of requests around that, and before."""
    path = options.folder / "small"
    model = ab.Sequential([ab.Input((16,), name="x"), ab.layers.Dense(64, "relu"), ab.layers.Dense(4)])
    example = np.ones((1, 16), "float32")
    model.export(path, verbose=False, warmup=example)
    request = load.post("/v1/models/small:predict", body(1, 16))
    before: list[float] = []
    around: list[float] = []
    with servers.own({"small": path}, "--poll-seconds", "0.5") as server:
        load.measure(server.url, request, 4, 1.0)
        for _ in range(options.rounds):
            before.append(load.measure(server.url, request, 4, 10.0).at(99))
            later = threading.Timer(5.0, lambda: _copy_version(path))
            later.start()
            around.append(load.measure(server.url, request, 4, 10.0).at(99))
            later.join()
    ratio = median(a / b for a, b in zip(around, before, strict=True))
    shown = f"{ratio:.2f} ({median(around):.2f} ms; {median(before):.2f} ms)"
    return [
        Row(
            "reload under load, small model: p99 of the 10 s around it, of p99 before",
            "at most 1.5",
            shown,
            ratio <= 1.5,
        )
    ]


def _copy_version(path: Path) -> None:
    """A version like the highest, with the next number: made without computing here."""
    import shutil

    last = max(int(each.name) for each in path.iterdir() if each.name.isdigit())
    shutil.copytree(path / str(last), path / ".next")
    (path / ".next").rename(path / str(last + 1))


def start(options: Options) -> list[Row]:
    """From the start of the process to its being ready, and its memory after a thousand requests."""
    request = load.post("/v1/models/trivial:predict", body(1, 16))
    walls: list[float] = []
    processors: list[float] = []
    sizes: list[float] = []
    for _ in range(options.rounds):
        with servers.own({"trivial": options.folder / "trivial"}) as server:
            walls.append(server.wall)
            processors.append(server.processor)
            load.measure(server.url, request, 4, 0.5)
            sizes.append(server.megabytes())
    wall, processor, size = median(walls), median(processors), median(sizes)
    return [
        Row("start to ready", "at most 1.5 s", f"{wall:.2f} s ({processor:.2f} s of processor time)", wall <= 1.5),
        Row("resident", "at most 170 MB", f"{size:.0f} MB", size <= 170),
    ]


PARTS: dict[str, Callable[[Options], list[Row]]] = {
    each.__name__: each for each in (trivial, triton, batching, decoder, reload, start)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*PARTS, []], default=[], metavar="WHAT", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in a round (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the servers, too
    began = time.strftime("%Y-%m-%d")
    print(
        f"{began}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.python_implementation()} "
        f"{platform.python_version()}; MLServer: {MLSERVER or 'not there'}; tritonclient: {TRITON or 'not there'}\n"
    )
    print("| what | goal | found | |\n|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        options = Options(given.seconds, given.rounds, Path(folder))
        export_models(options.folder)
        for name in given.what or PARTS:
            for row in PARTS[name](options):
                verdict = {None: "", True: "holds", False: "missed"}[row.is_met]
                missed += row.is_met is False
                print(f"| {row.what} | {row.goal} | {row.found} | {verdict} |", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
