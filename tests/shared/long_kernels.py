"""Steps of one kernel that takes long, of each family that shares its work among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab

from .symbols import symbol_of

LONG_KERNELS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (lambda a, b: a @ b, ((700, 500), (500, 700))),
    "large product": (lambda a, b: a @ b, ((600, 1000), (1000, 600))),
    "products of a stack": (lambda a, b: a @ b, ((40, 60, 64), (40, 64, 60))),
    "elementwise": (lambda x: ab.ops.tanh(x) * ab.ops.exp(x), ((400, 500),)),
    "rows": (lambda x: ab.ops.softmax(x, axis=-1) ** 2, ((2000, 900),)),
    "convolution": (lambda x, k: ab.ops.conv(x, k), ((4, 30, 30, 8), (5, 5, 8, 24))),
    "winograd": (lambda x, k: ab.ops.conv(x, k), ((4, 30, 30, 32), (3, 3, 32, 32))),
    "depthwise": (lambda x, k: ab.ops.depthwise_conv(x, k), ((4, 40, 40, 64), (3, 3, 64, 1))),
    "pooling": (lambda x: ab.ops.max_pool(x, 3), ((8, 120, 120, 64),)),
    "top": (lambda x: ab.ops.top_k(x, 5)[0], ((4000, 300),)),
}


def step_of(name: str) -> Callable[[], Any]:
    """Return the step of one of `LONG_KERNELS`, which has run once."""
    build, shapes = LONG_KERNELS[name]
    generator = np.random.default_rng(5)
    values = [generator.normal(size=shape).astype("float32") for shape in shapes]
    with ab.Graph().as_default() as graph:
        inputs = [ab.placeholder(shape, "float32") for shape in shapes]
        result = build(*map(symbol_of, inputs))
    call = ab.Session(graph).make_callable(result, inputs)
    call(*values)
    return lambda: call(*values)
