"""W11, our side: a cold process to the end of the first trained step of W6's model, and the import alone.

`anabranch` finds its kernel cache as the process before left it; `anabranch_cold_cache` gets an empty one each time, as
on the first run after an install. Both run with byte code written, as an installed package has it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Record = dict[str, Any]

STEP = """
import anabranch as ab; t1 = time.perf_counter()
import numpy as np
r = np.random.RandomState(0)
w = [a for i, o in ((784, 512), (512, 512), (512, 10))
     for a in (r.standard_normal((i, o)).astype("f4") * .05, np.zeros(o, "f4"))]
m = ab.Sequential([ab.Input((784,)), ab.layers.Dense(512, "relu"), ab.layers.Dense(512, "relu"), ab.layers.Dense(10)])
m.set_weights(w)
m.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(r.standard_normal((32, 784)).astype("f4"), np.arange(32) % 10, batch_size=32, verbose=0)
"""
IMPORT = "import anabranch; t1 = time.perf_counter()"
BEFORE = "import time; t0 = time.perf_counter()\n"
AFTER = """
t2 = time.perf_counter()
import os, resource
print("@", t1 - t0, t2 - t0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
os._exit(0)
"""


def _process(code: str, cache: str) -> tuple[float, float, float]:
    """Run `code` in a fresh process: (import s, total s, peak MB), from just after the interpreter started."""
    environment = dict(os.environ, ANABRANCH_CACHE_DIR=cache)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", BEFORE + code + AFTER]
    # Not from the repository's own folder: `-c` puts the working directory first on the path.
    done = subprocess.run(command, env=environment, cwd=cache, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if not lines:
        raise RuntimeError(f"The measured process failed with exit status {done.returncode}: {done.stderr[-2000:]}")
    imported, total, peak = map(float, lines[-1].split()[1:])
    return imported, total, peak


@contextmanager
def _caches(count: int, *, keep: bool) -> Iterator[list[str]]:
    """`count` cache folders: one and the same if `keep`, else a new one each."""
    with tempfile.TemporaryDirectory() as root:
        folders = [os.path.join(root, "0" if keep else str(index)) for index in range(count)]
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
        yield folders


def _measure(code: str, runs: int, *, keep: bool) -> Record:
    """Median over `runs` processes, after a first one that is reported apart."""
    with _caches(runs + 1, keep=keep) as folders:
        rows = [_process(code, folder) for folder in folders]
    totals = sorted(1e3 * total for _, total, _ in rows[1:])
    return {
        "median_ms": round(statistics.median(totals), 1),
        "p10": round(totals[0], 1),
        "p90": round(totals[-1], 1),
        "reps": runs,
        "peak_rss_mb": round(rows[-1][2]),
        "import_s": round(statistics.median(imported for imported, _, _ in rows[1:]), 3),
        "first_process_ms": round(1e3 * rows[0][1]),
        "compile_or_first_step_s": None,
        "loss_check": [],
    }


def anabranch(params: dict[str, Any]) -> Record:
    return _measure(STEP, params["runs"], keep=True)


def anabranch_cold_cache(params: dict[str, Any]) -> Record:
    return _measure(STEP, params["runs"], keep=False)


def anabranch_import(params: dict[str, Any]) -> Record:
    return _measure(IMPORT, params["runs"], keep=True)


OURS = {
    "anabranch": anabranch,
    "anabranch_cold_cache": anabranch_cold_cache,
    "anabranch_import": anabranch_import,
}
