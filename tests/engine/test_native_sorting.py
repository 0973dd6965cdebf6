"""Native regions that sort short rows, or find places in sorted vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.loops import check, draw, repeated
from shared.examples import examples

import anabranch as ab

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
EDGES = np.array([-0.5, 0, 0, 0.25, 2], "float32")


def _positions(x: Any, axis: int) -> Any:
    return ops.cast(ops.argsort(x, axis=axis), "float32")


BODIES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: ops.sort(x, axis=1) * 0.5 + x,
    "columns": lambda x: ops.sort(x, axis=0) * 0.5 + x,
    "all": lambda x: ops.reshape(ops.sort(x, axis=None), (4, 6)) * 0.5 + x,
    "between axes": lambda x: ops.reshape(ops.sort(ops.reshape(x, (2, 4, 3)), axis=1), (4, 6)) * 0.5 + x,
    "rows of one": lambda x: ops.sort(x[:, :1], axis=1) * 0.5 + x,
    "no rows": lambda x: x * 0.5 + ops.sum(ops.sort(x[:0], axis=1)),
    "median": lambda x: x * 0.5 + ops.median(x, axis=1, keepdims=True),
    "quantile": lambda x: x * 0.5 + ops.quantile(x, 0.3, axis=0, keepdims=True),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "positions": lambda x: x * 0.5 + _positions(x, 1),
    "positions in columns": lambda x: x * 0.5 + _positions(x, 0),
    "positions of equals": lambda x: x * 0.5 + _positions(ops.round(x), 1),
    "integers": lambda x: x * 0.5 + ops.cast(ops.sort(ops.cast(x * 5, "int32"), axis=1), "float32"),
    "places": lambda x: x * 0.5 + ops.cast(ops.searchsorted(EDGES, x), "float32"),
    "places behind equals": lambda x: x * 0.5 + ops.cast(ops.digitize(ops.round(x), EDGES), "float32"),
    "place of a scalar": lambda x: x * 0.5 + ops.cast(ops.searchsorted(ops.sort(x[0]), x[1, 1]), "float32"),
    "a histogram": lambda x: x * 0.5 + ops.cast(ops.histogram(ops.ravel(x), 6, (-1, 1))[0], "float32"),
    "places among none": lambda x: x * 0.5 + ops.cast(ops.searchsorted(EDGES[:0], x), "float32"),
}


@pytest.mark.parametrize("name", [*BODIES, *PLACES])
def test_a_body(name: str) -> None:
    check(repeated({**BODIES, **PLACES}[name]), draw(4, 6))


@pytest.mark.parametrize("name", BODIES)
def test_a_gradient(name: str) -> None:
    """The gradient, which follows elements to where they went, is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name])(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(4, 6), native=2)


@settings(max_examples=examples(6, 400), deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    side=st.sampled_from(["left", "right"]),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    seed=st.integers(0, 1000),
)
def test_generated(shape: list[int], axis: int, side: str, dtype: str, seed: int) -> None:
    """Equal elements, NaNs and infinities along any axis; what is equal keeps its order."""
    axis, generator = axis % len(shape), np.random.default_rng(seed)
    x = generator.integers(-2, 3, shape).astype(dtype)
    edges = np.sort(generator.integers(-2, 3, generator.integers(0, 6))).astype(dtype)
    if dtype.startswith("float"):
        x = np.where(x == 2, np.nan, np.where(x == -2, np.inf, x)).astype(dtype)
        edges = np.sort(np.where(edges == 2, np.nan, edges)).astype(dtype)

    def build(x: Any, edges: Any) -> list[Any]:
        def body(i: Any, *_: Any) -> tuple[Any, ...]:
            found = (ops.sort(x, axis), ops.argsort(x, axis), ops.searchsorted(edges, x, side=side))
            return i + 1, *[each + ops.cast(i, each.dtype) for each in found]

        start = np.zeros(shape, dtype), np.zeros(shape, "int32"), np.zeros(shape, "int32")
        return list(ab.while_loop(lambda i, *_: i < 2, body, (0, *start)))[1:]

    check(build, x, edges)
