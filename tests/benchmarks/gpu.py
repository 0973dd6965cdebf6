"""Measure a GPU: ours beside PyTorch and JAX on CUDA, and memory that swaps. `make gpu` runs the GPU tests before.

    python tests/benchmarks/gpu.py            writes docs/gpu-results.md
    python tests/benchmarks/gpu.py --check    only says whether there is a GPU to measure

Exit status: 2 if no GPU can be used, 1 if frameworks compute other numbers than ours, else 0.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_calls import calls

import anabranch as ab
from anabranch.engine.devices import DeviceMemoryError
from anabranch.engine.devices.cuda import GpuUnavailableError, check_gpu

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks" / "workloads"))
sys.path.insert(0, str(ROOT / "tests" / "benchmarks" / "peers"))
Arrays = list[np.ndarray[Any, Any]]
Step = Callable[[], float]
_ROUNDS = 20
_LENGTHS = (100, 200, 500, 600, 700, 900, 1000)  # of table 1 in Yu et al., EuroSys 2018
_FIT = 520  # time steps whose state fits into the memory that the experiment allows


def mlp_data(width: int, rows: int) -> Arrays:
    draw = np.random.default_rng(0).standard_normal
    weights = [(draw((width, width)) / np.sqrt(width)).astype("float32") for _ in range(3)]
    return [draw((rows, width)).astype("float32"), *weights]


def lstm_data(units: int, rows: int) -> Arrays:
    draw = np.random.default_rng(0).standard_normal
    return [
        draw((rows, units)).astype("float32"),
        (draw((2 * units, 4 * units)) / np.sqrt(2 * units)).astype("float32"),
    ]


# --- ours -----------------------------------------------------------------------------------------------------------


def our_mlp(data: Arrays, kind: str, _: int) -> Step:
    return _ours(data, kind, _mlp_loss(ab.ops.tanh, ab.ops.mean))


def our_lstm(data: Arrays, kind: str, steps: int) -> Step:
    def loss(x: Any, kernel: Any) -> Any:
        from machine_lstm import cell  # pyright: ignore[reportMissingImports]

        zeros = ab.ops.zeros_like(x)

        def body(t: Any, h: Any, c: Any) -> Any:
            return (t + 1, *cell(x, h, c, kernel))

        return ab.ops.mean(ab.while_loop(lambda t, *_: t < steps, body, (0, zeros, zeros))[1] ** 2)

    return _ours(data, kind, loss)


def _ours(data: Arrays, kind: str, loss_of: Callable[..., Any]) -> Step:
    """Return a step that computes loss and gradients, and fetches the loss and the sum of the gradients' squares."""
    with ab.Graph().as_default() as graph, ab.device(f"{kind}:0"):
        x, *weights = [ab.Variable(each) for each in data]
        loss = loss_of(x, *weights)
        squares = sum(ab.ops.sum(ab.ops.square(each)) for each in ab.gradients(loss, weights))
        total = loss + squares
    session = ab.Session(graph)
    return lambda: float(session.run(total))


def _mlp_loss(tanh: Callable[..., Any], mean: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Any, *weights: Any) -> Any:
        for each in weights:
            x = tanh(x @ each)
        return mean(x * x)

    return loss


# --- peers ----------------------------------------------------------------------------------------------------------


def torch_step(data: Arrays, name: str, steps: int) -> Step:
    import torch  # pyright: ignore[reportMissingImports]

    x, *weights = [torch.tensor(each, device="cuda") for each in data]
    for each in weights:
        each.requires_grad_()

    def lstm(x: Any, kernel: Any) -> Any:
        h = c = torch.zeros_like(x)
        for _ in range(steps):
            i, f, g, o = (torch.cat([x, h], -1) @ kernel).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return (h * h).mean()

    loss_of = lstm if name == "lstm" else _mlp_loss(torch.tanh, torch.mean)

    def step() -> float:
        loss = loss_of(x, *weights)
        squares = sum((each * each).sum() for each in torch.autograd.grad(loss, weights))
        return float((loss + squares).detach())

    return step


def jax_step(data: Arrays, name: str, steps: int) -> Step:
    import jax  # pyright: ignore[reportMissingImports]
    from jax import numpy as jnp  # pyright: ignore[reportMissingImports]

    def lstm(x: Any, kernel: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ kernel, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        (h, _), _ = jax.lax.scan(body, (jnp.zeros_like(x), jnp.zeros_like(x)), None, steps)
        return (h * h).mean()

    loss_of = lstm if name == "lstm" else _mlp_loss(jnp.tanh, jnp.mean)
    x, *weights = [jax.device_put(each, jax.devices("gpu")[0]) for each in data]

    @jax.jit
    def total(weights: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda given: loss_of(x, *given))(weights)
        return loss + sum((each * each).sum() for each in gradients)

    return lambda: float(total(weights))


def peers() -> dict[str, Callable[..., Step]]:
    """Return the peers that are installed and can use CUDA."""
    found: dict[str, Callable[..., Step]] = {}
    if importlib.util.find_spec("torch") is not None:
        import torch  # pyright: ignore[reportMissingImports]

        if torch.cuda.is_available():
            torch.backends.cuda.matmul.allow_tf32 = False  # float32 throughout, as ours
            found["PyTorch"] = torch_step
    if importlib.util.find_spec("jax") is not None:
        import jax  # pyright: ignore[reportMissingImports]

        jax.config.update("jax_default_matmul_precision", "highest")
        if any(device.platform == "gpu" for device in jax.devices()):
            found["JAX"] = jax_step
    return found


# --- the report -----------------------------------------------------------------------------------------------------


def milliseconds(step: Step, rounds: int) -> float:
    """Return the median time of a step, after one that compiles."""
    step()
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def compared(kind: str, width: int, rows: int, steps: int, rounds: int) -> tuple[list[list[str]], list[str]]:
    """Return a row of figures for each workload, and the names of peers that compute other numbers than ours."""
    others, table, wrong = peers() if kind == "gpu" else {}, [], []
    lines = [("mlp", our_mlp, mlp_data(width, rows)), ("lstm", our_lstm, lstm_data(width, rows))]
    for name, ours, data in lines:
        made = {"ours": ours(data, kind, steps)} | {peer: make(data, name, steps) for peer, make in others.items()}
        wanted = made["ours"]()
        wrong += [f"{name}: {peer}" for peer, step in made.items() if not np.isclose(step(), wanted, rtol=1e-2)]
        found = {peer: f"{milliseconds(step, rounds):.2f}" for peer, step in made.items()}
        shape = f"{rows} x {width}" + (f", {steps} steps" if name == "lstm" else "")
        table.append([f"{name}, {shape}", *[found.get(peer, "-") for peer in ("ours", "PyTorch", "JAX")]])
        print(*table[-1], sep=" | ", flush=True)
    return table, wrong


def swapping(kind: str, units: int, lengths: tuple[int, ...], fit: int) -> list[list[str]]:
    """Return milliseconds a time step of training an LSTM without and with swapping (EuroSys 2018, table 1)."""
    from machine_lstm import _program, weights  # pyright: ignore[reportMissingImports]

    values = weights(1, units)
    device: Any = {kind: {"count": 1, "memory_limit": _bytes_a_step(values, units) * fit}}
    table: list[list[str]] = []
    for length in lengths:
        row = [str(length)]
        for swap in (False, True):
            ab.config.set_devices(cpu=1, **device)
            program = _program(values, units, 1, swap, kind)
            try:
                row.append(f"{milliseconds(partial(_run, program, length), 3) / length:.3f}")
            except DeviceMemoryError:
                row.append("OOM")
        table.append(row)
        print(*row, sep=" | ", flush=True)
    return table


def _run(program: Any, length: int) -> float:
    return float(program(np.int32(length))[0])


def _bytes_a_step(values: Arrays, units: int) -> int:
    from machine_lstm import _bytes_a_step as measured  # pyright: ignore[reportMissingImports]

    return round(measured(values, units))


def facts() -> list[str]:
    """Return the device, its driver, the versions and the commit."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    device = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    cupy = check_gpu(0)
    return [
        f"- Date: {datetime.date.today().isoformat()}",
        f"- Device, driver, memory: {device}",
        f"- CUDA {cupy.cuda.runtime.runtimeGetVersion()}, cupy {cupy.__version__}, NumPy {np.__version__}",
        f"- anabranch {ab.version()}, commit {commit.strip() or 'unknown'}",
    ]


def report(head: list[str], rows: list[list[str]], swapped: list[list[str]], called: list[list[str]]) -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Results on a GPU",
            "",
            "Written by `make gpu`; [what is measured](gpu.md).",
            "",
            *head,
            "",
            "Milliseconds of loss and gradients, float32, medians:",
            "",
            "| workload | ours | PyTorch | JAX |",
            "|---|---|---|---|",
            *[f"| {' | '.join(row)} |" for row in rows],
            "",
            f"Memory that swaps (EuroSys 2018, table 1): an LSTM of 512 units and 512 rows, of which about {_FIT} time",
            "steps fit. Milliseconds a time step; OOM stands for `DeviceMemoryError`:",
            "",
            "| length | without swapping | with swapping |",
            "|---|---|---|",
            *[f"| {' | '.join(row)} |" for row in swapped],
            "",
            "Calls, microseconds of the host; arrays of 64 x 64 float32:",
            "",
            "| call | µs |",
            "|---|---|",
            *[f"| {' | '.join(row)} |" for row in called],
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpu-results.md")
    options = parser.parse_args(arguments)
    try:
        check_gpu(0)
    except GpuUnavailableError as error:
        print("make gpu needs a GPU, and none can be used here; nothing was measured or written.", file=sys.stderr)
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return 0
    ab.config.set_devices(cpu=1, gpu=1)
    rows, wrong = compared("gpu", 1024, 512, 100, _ROUNDS)
    called = calls(check_gpu(0))
    options.output.write_text(report(facts(), rows, swapping("gpu", 512, _LENGTHS, _FIT), called), encoding="utf-8")
    print(f"Written: {options.output}")
    for each in wrong:
        print(f"Other numbers than ours: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
