"""Native regions with operations that move elements, or go along an axis element by element."""

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
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.math.running import CumSum

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops


def _running(x: Any, axis: int, exclusive: bool = False, reverse: bool = False) -> Any:
    return apply(CumSum(axis, exclusive, reverse), x)


BODIES: dict[str, Callable[[Any], Any]] = {
    "pad": lambda x: ops.pad(x, ((1, 0), (0, 2)), constant_values=2)[1:, 2:] * 0.5,
    "pad of nothing": lambda x: x + ops.pad(x[:0], ((4, 0), (0, 0)), constant_values=0.5),
    "roll": lambda x: ops.roll(x, 2, axis=1) * 0.5 + x,
    "roll along two axes": lambda x: ops.roll(x, (1, -8), axis=(0, 1)) * 0.5 + x,
    "roll of all": lambda x: ops.roll(x, 7) * 0.5 + x,
    "flip": lambda x: ops.flip(x, axis=0) * 0.5 + x,
    "flip of all": lambda x: ops.flip(x) * 0.5 + x,
    "argmax": lambda x: x + ops.cast(ops.argmax(x, axis=1, keepdims=True), "float32") * 0.1,
    "argmin along the first axis": lambda x: x + ops.cast(ops.argmin(x, axis=0), "float32") * 0.1,
    "argmax of all": lambda x: x * 0.5 + ops.cast(ops.argmax(x), "float32"),
    "argmax of integers": lambda x: (
        x + ops.cast(ops.argmax(ops.cast(x * 3, "int32"), axis=1, keepdims=True), "float32")
    ),
    "argmax of equals": lambda x: x + ops.cast(ops.argmax(x * 0, axis=1, keepdims=True), "float32"),
    "cumsum": lambda x: ops.cumsum(x, axis=1) * 0.2,
    "cumsum along the first axis": lambda x: ops.cumsum(x, axis=0) * 0.2,
    "cumprod": lambda x: ops.cumprod(x, axis=1) * 0.2 + x,
    "cumprod along the first axis": lambda x: ops.cumprod(x, axis=0) * 0.2 + x,
    "diagonal": lambda x: x + ops.diagonal(x, offset=1)[:, None] * 0.1,
    "diagonal of planes": lambda x: x + ops.reshape(ops.diagonal(ops.reshape(x, (2, 3, 4)), -1, 1, 2), (4, 1)) * 0.1,
    "matrix of a diagonal": lambda x: ops.diag(x[0, :3], 1) @ x * 0.5 + x,
    "triangles": lambda x: ops.tril(x, 1) * 0.3 + ops.triu(x, -1) * 0.2,
    "exclusive": lambda x: _running(x, 1, exclusive=True) * 0.2 + x,
    "reverse": lambda x: _running(x, 0, reverse=True) * 0.2 + x,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body(name: str) -> None:
    check(repeated(BODIES[name]), draw(4, 6))


OF_A_NUMBER: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: ops.transpose(ops.sin(x)),
    "roll": lambda x: ops.roll(ops.sin(x), 1),
    "flip": lambda x: ops.flip(ops.sin(x)),
    "pad": lambda x: ops.pad(ops.sin(x), []),
    "broadcast": lambda x: ops.broadcast_to(ops.sin(x), ()),
    "sum": lambda x: ops.sum(ops.sin(x)),
    "sum of two": lambda x: ops.sum(ops.stack([x, ops.sin(x)])) * 0.4,
    "maximum": lambda x: ops.max(ops.sin(x)),
    "zeros": lambda x: x * 0.9 + ops.zeros_like(x) + ops.sum(ops.zeros((2,))),
    "argmax": lambda x: x * 0.9 + ops.cast(ops.argmax(ops.reshape(x, (1,))), "float32"),
    "one element": lambda x: ops.reshape(ops.sin(x), (1, 1))[0, 0] + ops.broadcast_to(x, (2, 1))[1, 0],
    "window": lambda x: ops.slice(ops.reshape(ops.sin(x), (1,)), [0], [1])[0],
}


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_bodies_of_a_number(name: str, with_gradient: bool) -> None:
    def build(x: Any) -> list[Any]:
        _, y = repeated(OF_A_NUMBER[name])(x)
        return [y, *(ab.gradients(y * y, [x]) if with_gradient else [])]

    check(build, np.float32(0.7))


@pytest.mark.parametrize("name", [name for name in BODIES if "arg" not in name])
def test_a_gradient(name: str) -> None:
    """The gradient is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name])(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(4, 6), native=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_positions_of_nan(dtype: str) -> None:
    """The first NaN is an extremum, as in NumPy, at the beginning, in between and at the end."""
    x = draw(5, 4, dtype=dtype)
    x[0, 0] = x[1, 1] = x[1, 2] = x[2, 3] = np.nan
    x[3] = [np.inf, np.nan, np.inf, np.nan]

    def build(x: Any) -> list[Any]:
        zeros = np.zeros(5, "int32")
        _, first, last = ab.while_loop(
            lambda i, *_: i < 2,
            lambda i, a, b: (i + 1, a + ops.argmax(x * (i + 1), axis=1), b + ops.argmin(x, axis=1)),
            (0, zeros, zeros),
        )
        return [first, last]

    check(build, x)


@settings(max_examples=examples(12, 400), deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    shifts=st.lists(st.integers(-7, 7), min_size=3, max_size=3),
    widths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=3, max_size=3),
    axis=st.integers(0, 2),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_shapes(
    shape: list[int], shifts: list[int], widths: list[tuple[int, int]], axis: int, flags: tuple[bool, bool, bool]
) -> None:
    rank, (of_first, exclusive, reverse) = len(shape), flags
    axis %= rank

    def build(x: Any) -> Any:
        moved = ops.roll(x, shifts[:2] if rank > 1 else shifts[0], axis=(0, 1) if rank > 1 else 0)
        padded = ops.pad(moved, widths[:rank])
        total = _running(ops.flip(padded, axis=axis), axis, exclusive, reverse)
        found = ops.argmax(total, axis=axis) if of_first else ops.argmin(total, axis=None)
        return ops.sum(total * padded), ops.sum(ops.cast(found, "float64"))

    def loop(x: Any) -> list[Any]:
        def body(i: Any, x: Any, a: Any, b: Any) -> tuple[Any, ...]:
            first, second = build(x)
            return i + 1, x * 0.5, a + first, b + second

        zero = np.float64(0)
        return list(ab.while_loop(lambda i, *_: i < 2, body, (0, x, zero, zero)))[2:]

    check(loop, draw(*shape, dtype="float64"))


# --- windows --------------------------------------------------------------------------------------------------------


def _windows(x: Any) -> Any:
    def body(i: Any, x: Any) -> tuple[Any, Any]:
        part = ops.slice(x, ops.stack([i, i + 1]), (2, 3))
        return i + 1, ops.slice_update(x, ops.stack([i + 1, i]), ops.tanh(part))

    return ab.while_loop(lambda i, _: i < 2, body, (0, x))


def test_windows_at_computed_places() -> None:
    check(_windows, draw(4, 6))
    check(lambda x: ab.gradients(ops.sum(ops.square(_windows(x)[1])), [x]), draw(4, 6), native=2)


def test_a_window_that_leaves_the_array_is_an_error() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder((4, 6), "float32")
        fetched = ab.while_loop(
            lambda i, _: i < 5, lambda i, x: (i + 1, x + ops.slice(x, ops.stack([i, 0]), (1, 6))), (0, x)
        )
        with pytest.raises(IndexError, match=r"A slice from 4 of size 1 leaves axis 0, whose size is 4"):
            session.run(fetched, {x: draw(4, 6)})
