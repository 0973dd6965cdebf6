"""Shared by tests of single loops and branches: running on both roads, unrolling, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.runtime.interpreter import Interpreter

ops = ab.ops


def run(fetches: list[Any], feeds: dict[Any, Any] | None = None) -> list[Any]:
    """The values of `fetches`, from a compiled step; the interpreter has to agree."""
    graph = ab.get_default_graph()
    values = ab.Session(graph).run(fetches, feeds)
    interpreted = Interpreter().run(graph, fetches, feeds)
    for value, expected in zip(values, interpreted, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    return values


def number(name: str = "x", dtype: str = "float64") -> ab.Tensor:
    return ab.placeholder((), dtype, name)


def repeat(count: Any, step: Callable[[Any, Any], Any], start: Any, **options: Any) -> Any:
    """``step(i, value)``, `count` times, as a loop of the graph."""
    return ab.while_loop(lambda i, _: i < count, lambda i, value: (i + 1, step(i, value)), (0, start), **options)[1]


def unrolled(count: int, step: Callable[[Any, Any], Any], start: Any) -> Any:
    for i in range(count):
        start = step(i, start)
    return start


def derivatives(y: Any, xs: list[Any], order: int) -> list[Any]:
    """y, and the first, second ... derivatives of the sums of all before, with respect to `xs`."""
    found = [y]
    target = ops.sum(y)
    for _ in range(order):
        parts = ab.gradients(target, xs, unconnected_gradients="zero")
        found.extend(ops.convert_to_tensor(part) for part in parts)  # dense, where only rows are used
        target = sum(ops.sum(part * (k + 1.0)) for k, part in enumerate(parts))
    return found


def assert_same(loop: list[Any], plain: list[Any], feeds: dict[Any, Any]) -> None:
    for value, expected in zip(run(loop, feeds), run(plain, feeds), strict=True):
        assert value.shape == expected.shape
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)
