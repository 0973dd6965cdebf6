"""Measure how quickly graphs are built and made ready to run.

`anabranch_operations`: operations a second through the public functions and operators, one after the other.

The other rows: an Inception-v3 in several replicas that share their variables, its gradient and SGD updates, from
nothing to the compiled program of a training step (built, differentiated, pruned, specialised, fused, printed,
compiled, kernels bound), each time in a fresh process. `_cold_cache` compiles the kernels too, the others find them on
disk. The time depends on the number of operations and not on what they compute, so images and layers are small. One
step runs afterwards, unmeasured, to show that the program is a sound one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np
from common import BUDGET, few_runs, rss_mb

import anabranch as ab

Record = dict[str, Any]
_THINNER = 8  # channels are an eighth of the original's
_CLASSES = 100
_IMAGES, _SIZE = 2, 75


# --- operations a second --------------------------------------------------------------------------------------------


def _mixed(x: Any, matrix: Any, row: Any) -> Any:
    """25 operations of many kinds, the cheap and the dear ones, over matrices of 8 x 8."""
    h = ab.ops.tanh(x @ matrix + row)  # 3
    h = h * 0.5 - x / 3.0  # 3
    centred = h - ab.ops.mean(h, axis=-1, keepdims=True)  # 2
    spread = ab.ops.sum(centred * centred, axis=1)  # 2
    scaled = centred * ab.ops.expand_dims(ab.ops.rsqrt(spread + 1e-3), -1)  # 4
    gate = ab.ops.sigmoid(ab.ops.matmul(scaled, matrix))  # 2
    chosen = ab.ops.where(gate > row, ab.ops.maximum(gate, x), -x)  # 4
    joined = ab.ops.concatenate([chosen, ab.ops.transpose(gate)], axis=0)  # 2
    top = joined[:8]  # 1
    return ab.ops.reshape(top, (8, 8)) + ab.ops.max(top)  # 3


def anabranch_operations(params: dict[str, Any]) -> Record:
    wanted = params["n"]
    seconds: list[float] = []
    built = 0
    for _ in range(max(3, round(7 * BUDGET))):
        with ab.Graph().as_default() as graph:
            x, matrix = ab.placeholder((8, 8), "float32", "x"), ab.constant(np.eye(8, dtype="float32"))
            row = ab.constant(np.zeros(8, "float32"))
            start = time.perf_counter()
            while len(graph.operations) < wanted:
                x = _mixed(x, matrix, row)
            seconds.append((time.perf_counter() - start) * wanted / len(graph.operations))
            built = len(graph.operations)
    return few_runs(seconds, seconds[0], [], operations=built)


# --- an Inception-v3 ------------------------------------------------------------------------------------------------


class _Layers:
    """Convolutions whose variables are made in the first replica and used again in the later ones."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self._position = 0
        self._random = np.random.default_rng(0)

    def start_replica(self) -> None:
        self._position = 0

    def variable(self, make: Callable[[], Any]) -> Any:
        if self._position == len(self.variables):
            self.variables.append(ab.Variable(make(), name=f"v{self._position}"))
        self._position += 1
        return self.variables[self._position - 1]

    def weights(self, *shape: int) -> Any:
        scale = np.sqrt(2.0 / np.prod(shape[:-1]))
        return self.variable(lambda: (self._random.standard_normal(shape) * scale).astype("float32"))

    def conv(self, x: Any, filters: int, rows: int, columns: int, strides: int = 1, padding: str = "same") -> Any:
        """Convolution, batch normalisation over the batch, ReLU."""
        filters = max(filters // _THINNER, 2)
        y = ab.ops.conv(x, self.weights(rows, columns, x.shape[-1], filters), strides, padding)
        centred = y - ab.ops.mean(y, (0, 1, 2))
        variance = ab.ops.mean(ab.ops.square(centred), (0, 1, 2))
        offset = self.variable(lambda: np.zeros(filters, "float32"))
        return ab.ops.relu(centred * ab.ops.rsqrt(variance + 1e-3) + offset)

    def dense(self, x: Any, units: int) -> Any:
        return x @ self.weights(x.shape[-1], units) + self.variable(lambda: np.zeros(units, "float32"))


def _joined(*parts: Any) -> Any:
    return ab.ops.concatenate(parts, axis=-1)


def _block_a(n: _Layers, x: Any, pooled: int) -> Any:
    wide = n.conv(n.conv(x, 48, 1, 1), 64, 5, 5)
    twice = n.conv(n.conv(n.conv(x, 64, 1, 1), 96, 3, 3), 96, 3, 3)
    pool = n.conv(ab.ops.average_pool(x, 3, 1, "same"), pooled, 1, 1)
    return _joined(n.conv(x, 64, 1, 1), wide, twice, pool)


def _block_b(n: _Layers, x: Any) -> Any:
    twice = n.conv(n.conv(n.conv(x, 64, 1, 1), 96, 3, 3), 96, 3, 3, 2, "valid")
    return _joined(n.conv(x, 384, 3, 3, 2, "valid"), twice, ab.ops.max_pool(x, 3, 2))


def _block_c(n: _Layers, x: Any, inner: int) -> Any:
    once = n.conv(n.conv(n.conv(x, inner, 1, 1), inner, 1, 7), 192, 7, 1)
    twice = n.conv(x, inner, 1, 1)
    for rows, columns, filters in ((7, 1, inner), (1, 7, inner), (7, 1, inner), (1, 7, 192)):
        twice = n.conv(twice, filters, rows, columns)
    pool = n.conv(ab.ops.average_pool(x, 3, 1, "same"), 192, 1, 1)
    return _joined(n.conv(x, 192, 1, 1), once, twice, pool)


def _block_d(n: _Layers, x: Any) -> Any:
    once = n.conv(n.conv(x, 192, 1, 1), 320, 3, 3, 2, "valid")
    cross = n.conv(n.conv(n.conv(x, 192, 1, 1), 192, 1, 7), 192, 7, 1)
    return _joined(once, n.conv(cross, 192, 3, 3, 2, "valid"), ab.ops.max_pool(x, 3, 2))


def _block_e(n: _Layers, x: Any) -> Any:
    once = n.conv(x, 384, 1, 1)
    twice = n.conv(n.conv(x, 448, 1, 1), 384, 3, 3)
    split = [n.conv(part, 384, *size) for part in (once, twice) for size in ((1, 3), (3, 1))]
    pool = n.conv(ab.ops.average_pool(x, 3, 1, "same"), 192, 1, 1)
    return _joined(n.conv(x, 320, 1, 1), *split, pool)


def _inception(n: _Layers, x: Any) -> Any:
    """Logits of images. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2015): 94
    convolutions."""
    x = n.conv(n.conv(n.conv(x, 32, 3, 3, 2, "valid"), 32, 3, 3, 1, "valid"), 64, 3, 3)
    x = ab.ops.max_pool(x, 3, 2)
    x = ab.ops.max_pool(n.conv(n.conv(x, 80, 1, 1), 192, 3, 3, 1, "valid"), 3, 2)
    for pooled in (32, 64, 64):
        x = _block_a(n, x, pooled)
    x = _block_b(n, x)
    for inner in (128, 160, 160, 192):
        x = _block_c(n, x, inner)
    x = _block_d(n, x)
    for _ in range(2):
        x = _block_e(n, x)
    return n.dense(ab.ops.mean(x, (1, 2)), _CLASSES)


def _training_step(replicas: int) -> tuple[Any, list[Any], list[Any], dict[str, float]]:
    """(loss, updates, feeds, seconds of each stage) of a step over several replicas, in the default graph."""
    marks = [time.perf_counter()]
    layers, losses, feeds = _Layers(), [], []
    for replica in range(replicas):
        layers.start_replica()
        images = ab.placeholder((_IMAGES, _SIZE, _SIZE, 3), "float32", f"images_{replica}")
        labels = ab.placeholder((_IMAGES,), "int32", f"labels_{replica}")
        scores = _inception(layers, images)
        losses.append(ab.ops.mean(ab.ops.sparse_categorical_crossentropy(labels, scores, from_logits=True)))
        feeds += [images, labels]
    loss = ab.ops.mean(ab.ops.stack(losses))
    marks.append(time.perf_counter())
    found = ab.gradients(loss, layers.variables)
    marks.append(time.perf_counter())
    updates = [v.assign_sub(0.01 * gradient) for v, gradient in zip(layers.variables, found, strict=True)]
    marks.append(time.perf_counter())
    names = ("forward_s", "gradients_s", "updates_s")
    return loss, updates, feeds, {k: round(b - a, 3) for k, a, b in zip(names, marks, marks[1:], strict=False)}


def _made_ready(replicas: int) -> Record:
    """Build a graph from nothing and make it ready to run: wall and processor seconds, and particulars."""
    start, busy = time.perf_counter(), time.process_time()
    with ab.Graph().as_default() as graph:
        loss, updates, feeds, stages = _training_step(replicas)
        built = time.perf_counter()
        program = ab.Session(graph).program([loss, *updates], feeds)
        ready, busy = time.perf_counter(), time.process_time() - busy
        images = np.random.default_rng(1).standard_normal((_IMAGES, _SIZE, _SIZE, 3)).astype("float32")
        values = [value for _ in range(replicas) for value in (images, np.arange(_IMAGES, dtype="int32"))]
        first_loss = float(program(*values)[0])
    return {
        "wall_s": ready - start,
        "busy_s": round(busy, 3),
        "operations": len(graph.operations),
        "stages": stages | {"program_s": round(ready - built, 3)},
        "peak_rss_mb": round(rss_mb()),
        "loss_check": [first_loss],
    }


def _in_process(replicas: int, cache: str) -> Record:
    """`_made_ready` in a fresh process that keeps its kernels in folder `cache`."""
    command = [sys.executable, __file__, str(replicas)]
    environment = dict(os.environ, ANABRANCH_CACHE_DIR=cache, PYTHONPATH=os.path.dirname(common.__file__))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The measured process failed with exit status {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _ready(replicas: int, *, cold: bool) -> Callable[[dict[str, Any]], Record]:
    def measure(params: dict[str, Any]) -> Record:
        with tempfile.TemporaryDirectory() as root:
            folders = [os.path.join(root, str(run) if cold else "0") for run in range(1 + params["runs"])]
            records = [_in_process(replicas, folder) for folder in folders]
        first, *others = records
        walls = [record["wall_s"] for record in others]
        shown = {key: others[-1][key] for key in ("operations", "stages", "peak_rss_mb", "busy_s")}
        return few_runs(walls, first["wall_s"], first["loss_check"]) | shown

    return measure


_REPLICAS = {"9k": 2, "18k": 4, "36k": 9, "72k": 17}  # by the number of operations of the graph

OURS = {
    "anabranch_operations": anabranch_operations,
    **{f"anabranch_{size}": _ready(replicas, cold=False) for size, replicas in _REPLICAS.items()},
    "anabranch_36k_cold_cache": _ready(_REPLICAS["36k"], cold=True),
}

if __name__ == "__main__":
    print(json.dumps(_made_ready(int(sys.argv[1]))))
