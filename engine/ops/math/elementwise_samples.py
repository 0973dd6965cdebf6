"""Samples of elementwise ops, from which tests are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...graph.op import Op, Sample, as_scalar_or_array


def _draw(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float, dtype: str) -> Any:
    if dtype == "bool":
        return as_scalar_or_array(rng.integers(0, 2, shape).astype(dtype))
    return as_scalar_or_array(np.asarray(rng.uniform(low, high, shape)).astype(dtype))


def binary_samples(
    op: Op,
    reference: Any,
    differentiable: Sequence[int] = (0, 1),
    low: float = -2.0,
    high: float = 2.0,
    dtype: str = "float32",
) -> Iterable[Sample]:
    """Yield samples of equal shapes, broadcasting, scalars, an empty axis."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return _draw(rng, shape, low, high, dtype)

    pairs = {
        "equal": (draw(2, 3), draw(2, 3)),
        "row": (draw(2, 3), draw(3)),
        "outer": (draw(2, 1), draw(1, 3)),
        "scalar": (draw(), draw(2)),
        "0-d": (draw(), draw()),
        "empty": (draw(0, 3), draw(1, 3)),
    }
    for label, (x, y) in pairs.items():
        yield Sample(op, [x, y], reference(x, y), differentiable=differentiable, label=label)


def unary_samples(
    op: Op,
    reference: Any,
    low: float = -2.0,
    high: float = 2.0,
    differentiable: Sequence[int] = (0,),
    dtype: str = "float32",
) -> Iterable[Sample]:
    """Yield a matrix, a scalar, an empty array."""
    rng = np.random.default_rng(0)
    for label, shape in {"matrix": (2, 3), "0-d": (), "empty": (0, 2)}.items():
        x = _draw(rng, shape, low, high, dtype)
        yield Sample(op, [x], reference(x), differentiable=differentiable, label=label)
