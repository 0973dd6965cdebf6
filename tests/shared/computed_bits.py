"""Digests of what kernels compute, forward and backward: run as a script, once for each number of threads.

Sizes are such that the work is cut into parts, several for each of seven threads, and that lengths are no multiple of
vectors or blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch.engine.graph import as_dtype

ops = ab.ops


class Case(NamedTuple):
    """What is computed, and the arrays that it is computed from: shapes, or bounds of indices behind their shape."""

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    dtype: str = "float32"


class Indices(NamedTuple):
    """Positions, from 0 to below `bound`."""

    shape: tuple[int, ...]
    bound: int


def _normalised(x: Any, scale: Any, offset: Any) -> Any:
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred * ops.rsqrt(ops.mean(centred**2, axis=-1, keepdims=True) + 1e-3) * scale + offset


def _gated(x: Any, start: Any, w: Any, u: Any) -> Any:
    """A loop with a product, gates and a product of its own for each gradient of a weight."""

    def body(t: Any, h: Any) -> Any:
        z, n = ops.split(x[t] @ w + h @ u, 2, axis=1)
        gate = ops.sigmoid(z)
        return t + 1, gate * h + (1 - gate) * ops.tanh(n)

    return ab.while_loop(lambda t, _: t < 5, body, (0, start))[1]


CASES: dict[str, Case] = {
    "max pooling": Case(lambda x: ops.max_pool(x, 3, strides=2, padding="same"), ((6, 33, 35, 24),)),
    "average pooling": Case(lambda x: ops.average_pool(x, 2, strides=1), ((6, 33, 35, 24),)),
    "segment sum, broad rows": Case(lambda x, i: ops.segment_sum(x, i, 190), ((3000, 96), Indices((3000,), 190))),
    "segment sum, narrow rows": Case(lambda x, i: ops.segment_sum(x, i, 190), ((20000, 7), Indices((20000,), 190))),
    "rows of a table": Case(lambda x, i: ops.take(x, i, axis=0), ((900, 70), Indices((5000,), 900))),
    "elements of rows": Case(lambda x, i: ops.take_along_axis(x, i, axis=-1), ((1500, 70), Indices((1500, 33), 70))),
    "top_k": Case(lambda x: ops.top_k(x, 5)[0], ((300, 1100),)),
    "top_k, many": Case(lambda x: ops.top_k(x, 40)[0], ((200, 700),)),
    "2 columns": Case(lambda x, w: x @ w, ((4001, 130), (130, 2))),
    "7 columns": Case(lambda x, w: x @ w, ((4001, 130), (130, 7))),
    "12 columns": Case(lambda x, w: ops.tanh(x @ w), ((4001, 130), (130, 12))),
    "batched products": Case(lambda a, b: a @ b, ((17, 70, 61), (17, 61, 53))),
    "batched products, float64": Case(lambda a, b: a @ b, ((17, 45, 61), (17, 61, 33)), "float64"),
    "depthwise convolution": Case(
        lambda x, w: ops.depthwise_conv(x, w, padding="same"), ((5, 27, 29, 48), (3, 3, 48, 1))
    ),
    "cumulative sums of columns": Case(lambda x: ops.cumsum(x, axis=0), ((3000, 65),)),
    "cumulative sums of rows": Case(lambda x: ops.cumsum(x, axis=1), ((700, 301),)),
    "softmax": Case(lambda x: ops.softmax(x, axis=-1), ((2001, 130),)),
    "softmax of columns": Case(lambda x: ops.softmax(x, axis=0), ((2001, 130),)),
    "softmax, float64": Case(lambda x: ops.log_softmax(x, axis=-1), ((1001, 130),), "float64"),
    "layer norm": Case(_normalised, ((2001, 130), (130,), (130,))),
    "layer norm, float16": Case(_normalised, ((2001, 130), (130,), (130,)), "float16"),
    "float16": Case(lambda x, y: ops.tanh(x) * ops.sigmoid(y) + x, ((1999, 130), (130,)), "float16"),
    "bfloat16": Case(lambda x, y: ops.sum(ops.exp(x * y), axis=0), ((1999, 130), (130,)), "bfloat16"),
    "float16, softmax": Case(lambda x: ops.softmax(x, axis=-1), ((2001, 130),), "float16"),
    "a gated loop": Case(_gated, ((5, 160, 40), (160, 130), (40, 260), (130, 260))),
}


def digest(case: Case) -> str:
    """A digest of the bits of a case's value and of its gradients."""
    random = np.random.default_rng(0)
    with ab.Graph().as_default():
        feeds: dict[Any, Any] = {}
        for given in case.arrays:
            if isinstance(given, Indices):
                value = random.integers(0, given.bound, given.shape).astype("int32")
            else:
                value = random.uniform(-2, 2, given).astype(as_dtype(case.dtype))
            feeds[ab.placeholder(value.shape, value.dtype)] = value
        y = case.function(*feeds)
        weights = random.uniform(-1, 1, y.shape).astype(as_dtype(case.dtype))
        sources = [x for x, given in zip(feeds, case.arrays, strict=True) if not isinstance(given, Indices)]
        gradients = [g.to_dense() if isinstance(g, ab.IndexedSlices) else g for g in ab.gradients(y, sources, weights)]
        found = ab.Session().run([y, *gradients], feeds)
    assert all(np.isfinite(np.asarray(value, "float64")).all() for value in found)
    return hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in found)).hexdigest()


if __name__ == "__main__":
    print(json.dumps({name: digest(case) for name, case in CASES.items()}))
