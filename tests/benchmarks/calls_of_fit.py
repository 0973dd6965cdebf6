"""A later call of `fit`, of one small step, with the steps that the model has kept and with steps that are built again.

    python tests/benchmarks/calls_of_fit.py [STRATEGY ...]

Two workers, each of one thread. A row has the medians of 20 calls, and of the processor time of the first worker.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CALLS = 20
PS_TASKS = {"ParameterServer()": 1, "ParameterServer(sync=False)": 1, "ParameterServer(backup_workers=1)": 1}
ON_CLUSTERS = ["DataParallel()", 'DataParallel(shard="optimizer")', "DataParallel(of=Pipeline(...))", *PS_TASKS]
ALONE = ["no strategy", "ModelParallel(...)", "Pipeline(...)"]


def strategy_of(name: str) -> Any:
    import anabranch as ab

    distribute = ab.distribute
    if name == "no strategy":
        return None
    if "Pipeline" in name:
        ab.config.set_devices(cpu=2)
        pipeline = distribute.Pipeline(stages=2, microbatches=2)
        return distribute.DataParallel(of=pipeline) if name.startswith("DataParallel") else pipeline
    if name == "ModelParallel(...)":
        ab.config.set_devices(cpu=2)
        layouts = ab.distribution.LayoutMap(ab.distribution.DeviceMesh((1, 2), ("batch", "model")))
        layouts["hidden.kernel"] = (None, "model")
        return ab.distribution.ModelParallel(layout_map=layouts)
    kind, _, given = name.rstrip(")").partition("(")
    arguments = {"shard": "optimizer"} if "shard" in given else {}
    more = {"sync": False} if "sync" in given else {"backup_workers": 1} if "backup" in given else {}
    return getattr(distribute, kind)(**arguments, **more)


def timed(call: Callable[[], Any]) -> str:
    call()
    found: list[tuple[float, float]] = []
    for _ in range(CALLS):
        began, before = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - began, time.process_time() - before))
    seconds, spent = (1000 * statistics.median(each) for each in zip(*found, strict=True))
    return f"{seconds:.1f} ({spent:.1f})"


def measure(name: str) -> None:
    """Measure a strategy, as one of its workers; the chief prints the row."""
    import anabranch as ab

    strategy = strategy_of(name)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        hidden = [ab.layers.Dense(16, "relu", name="hidden"), ab.layers.Dense(16)]
        model: Any = ab.Sequential([ab.Input((8,)), *hidden, ab.layers.Dense(4)])
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")

    def fit() -> None:
        model.fit(x, x[:, :4], batch_size=32, verbose=0)

    def fit_again() -> None:
        model._forget_programs()
        fit()

    fit()
    built, kept = timed(fit_again), timed(fit)
    if strategy is None or strategy.is_chief:
        print(f"| `{name}` | {built} | {kept} |", flush=True)


def main(names: list[str]) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    print("| a later `fit` of one step | built, ms (of a processor) | kept |\n|---|---|---|", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in names or [*ALONE, *ON_CLUSTERS]:
        launched = ["-m", "anabranch", "launch", "-n", "2", "--ps", str(PS_TASKS.get(name, 0))]
        script = [str(Path(__file__).resolve()), "--process", name]
        subprocess.run(
            [sys.executable, *(launched if name in ON_CLUSTERS else []), *script], check=True, env=environment
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        measure(sys.argv[2])
    else:
        main(sys.argv[1:])
