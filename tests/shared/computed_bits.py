"""Digests of what kernels compute, forward and backward: run as a script, once for each number of threads.

Sizes are such that the work is cut into parts, several for each of seven threads, and that lengths are no multiple of
vectors or blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch.engine.graph import as_dtype

ops = ab.ops


class Case(NamedTuple):
    """One case: what is computed, a result or a list, and the arrays that it is computed from: shapes, or `Indices`."""

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


def _reduced(x: Any, b: Any) -> list[Any]:
    """Chains of elementwise operations with the reductions inside them and behind them."""
    z = ops.tanh(x * 0.5 + b)
    y = ops.softmax(z) * ops.log1p(ops.exp(x))
    return [z, y, ops.mean(y * y) + ops.sum(ops.max(z, axis=0))]


def _convolutions(x: Any, kernel: Any, places: Any, *filters: Any) -> list[Any]:
    """Convolutions of all kinds, pooled, and rows of their input added up."""
    y = ops.max_pool(ops.conv(x, kernel, padding="same"), 3, 2)
    rows = ops.take(ops.reshape(x, (-1, 160)), places, axis=0)
    flat = ops.reshape(x, (1, -1, 16))
    inputs = (x, x, flat, flat, ops.reshape(x, (4, 5, 14, 30, 16)))
    convolved = [ops.conv(value, weights) for value, weights in zip(inputs, filters, strict=True)]
    return [y, ops.average_pool(y, 2, 1, "same"), rows, ops.segment_sum(rows, places, 300), *convolved]


def _distances(x: Any, y: Any) -> list[Any]:
    """Reductions over short axes, with sums of their gradients over each other axis."""
    near = ops.exp(-0.1 * ops.sum(ops.square(ops.expand_dims(x, 1) - ops.expand_dims(y, 0)), axis=-1))
    return [near, ops.softmax(x), ops.softmax(ops.reshape(x, (7, 11, -1)), axis=1)]


def _factorised(x: Any) -> Any:
    """The Cholesky factor of a matrix whose products are cut into parts, and its gradient."""
    return ops.cholesky(x @ ops.transpose(x) + 100 * ops.eye(x.shape[0]))


FILTERS = ((3, 3, 1, 16), (3, 3, 4, 32), (5, 1, 32), (3, 16, 24), (2, 3, 3, 8, 16))
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
    "convolution of few channels and filters": Case(
        lambda x, w: ops.conv(x, w, padding="same"), ((7, 61, 75, 3), (3, 3, 3, 2))
    ),
    "convolution of few filters": Case(lambda x, w: ops.conv(x, w, padding="same"), ((7, 61, 75, 26), (3, 3, 26, 1))),
    "short axes": Case(_distances, ((539, 6), (301, 6))),
    "Cholesky factor": Case(_factorised, ((901, 30),)),
    "stacks of small factors": Case(
        lambda x, b: ops.solve_triangular(ops.cholesky(x @ ops.swapaxes(x, 1, 2) + 9 * ops.eye(7)), b, lower=True),
        ((9001, 7, 7), (9001, 7, 2)),
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
    **{
        f"product {rows} x {terms} x {columns}": Case(lambda x, w: x @ w, ((rows, terms), (terms, columns)))
        for rows, terms, columns in [(32, 512, 777), (300, 100, 40), (513, 300, 333), (2, 600, 600)]
    },
    **{
        f"batched products {rows} x {terms} x {columns}": Case(
            lambda a, b: a @ ops.swapaxes(b, 1, 2), ((8, rows, terms), (8, columns, terms))
        )
        for rows, columns, terms in [(64, 64, 64), (700, 33, 17), (16, 300, 700), (1, 64, 64)]
    },
    **{
        f"reductions of {shape}": Case(_reduced, (shape, shape[-1:])) for shape in [(300, 700), (100_003,), (2, 90_000)]
    },
    "convolutions": Case(_convolutions, ((20, 14, 30, 16), (3, 3, 16, 40), Indices((4000,), 300), *FILTERS)),
    "a gated loop": Case(_gated, ((5, 160, 40), (160, 130), (40, 260), (130, 260))),
}


def digest(case: Case) -> str:
    """A digest of the bits of a case's results and of their gradients."""
    random = np.random.default_rng(0)
    with ab.Graph().as_default():
        feeds: dict[Any, Any] = {}
        for given in case.arrays:
            if isinstance(given, Indices):
                value = random.integers(0, given.bound, given.shape).astype("int32")
            else:
                value = random.uniform(-2, 2, given).astype(as_dtype(case.dtype))
            feeds[ab.placeholder(value.shape, value.dtype)] = value
        results = case.function(*feeds)
        results = results if isinstance(results, list) else [results]
        weights = [random.uniform(-1, 1, y.shape).astype(as_dtype(case.dtype)) for y in results]
        sources = [x for x, given in zip(feeds, case.arrays, strict=True) if not isinstance(given, Indices)]
        gradients = ab.gradients(results, sources, weights)
        dense = [g.to_dense() if isinstance(g, ab.IndexedSlices) else g for g in gradients]
        found = ab.Session().run([*results, *dense], feeds)
    return digest_of(found)


def digest_of(found: Sequence[Any]) -> str:
    """A digest of the bits of arrays, none of which holds NaN or infinity."""
    assert all(np.isfinite(np.asarray(value, "float64")).all() for value in found)
    return hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in found)).hexdigest()


def of_variables() -> dict[str, str]:
    """Digests of products by variables, whose rows are packed once: one with an epilogue, and several together."""
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype("float32") for shape in ((300, 700), (700, 530), (530,)))
    sizes = (1030, 300, 5, 140, 777)
    values = [random.uniform(-1, 1, (rows, 256)).astype("float32") for rows in sizes]
    matrices = [random.uniform(-1, 1, (256, 320)).astype("float32") for _ in sizes]
    with ab.Graph().as_default(), ab.Session() as session:
        epilogue = session.run(ops.gelu(ab.Variable(x) @ ab.Variable(w) + ab.Variable(b)))
        parts = [ab.constant(value) @ ab.Variable(matrix) for value, matrix in zip(values, matrices, strict=True)]
        together = [digest_of(session.run([ops.relu(part) for part in parts])) for _ in range(3)]
    assert len(set(together)) == 1, "products together differ from run to run"
    return {"epilogue": digest_of([epilogue]), "products together": together[0]}


if __name__ == "__main__":
    print(json.dumps({name: digest(case) for name, case in CASES.items()} | of_variables()))
