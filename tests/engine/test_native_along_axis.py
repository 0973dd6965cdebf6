"""Native regions with operations that pick elements along an axis: by positions, or as the largest ones."""

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
ROWS = np.array([[2, -1, 0], [0, 0, 5], [-6, 1, 1], [3, 4, 5]], "int32")


def _largest(x: Any, k: int) -> Any:
    values, places = ops.top_k(x, k)
    return ops.sum(values * ops.cast(places + 1, x.dtype), axis=-1, keepdims=True)


BODIES: dict[str, Callable[[Any], Any]] = {
    "along rows": lambda x: ops.pad(ops.take_along_axis(x, ROWS, axis=1), ((0, 0), (0, 3))) + x * 0.5,
    "along columns": lambda x: ops.take_along_axis(x, ROWS[:1, [0, 1]].T, axis=0)[:1] * 0.5 + x,
    "one for all": lambda x: x * 0.5 + ops.take_along_axis(x, [[3]], axis=1),
    "of an axis of 1": lambda x: x * 0.5 + ops.take_along_axis(x[:, :1], [[0]] * 4, axis=1),
    "by positions of 64 bits": lambda x: x * 0.5 + ops.take_along_axis(x, ROWS[:, :1].astype("int64"), axis=-1),
    "by positions in order": lambda x: x * 0.5 + ops.take_along_axis(x, ops.argmax(x, axis=1, keepdims=True), axis=1),
    "parts along another axis": lambda x: x * 0.5 + ops.take(x, [[0, -1, 2], [5, 5, 3]], axis=1)[:, 1, :1],
    "one part along another axis": lambda x: x * 0.5 + ops.expand_dims(ops.take(x, -2, axis=1), 1),
    "parts between axes": lambda x: (
        x * 0.5 + ops.reshape(ops.take(ops.reshape(x, (2, 4, 3)), [1, 1, 3, 0], axis=1), (4, 6))
    ),
    "elements by pairs": lambda x: x * 0.5 + ops.reshape(ops.gather_nd(x, [[0, 1], [3, 5], [0, 1], [2, 2]]), (4, 1)),
    "rows by index": lambda x: x * 0.5 + ops.gather_nd(x, [[3], [0], [0], [1]]),
    "elements added": lambda x: ab.tf.tensor_scatter_nd_add(x * 0.5, [[0, 1], [3, 5], [0, 1]], x[0, :3]),
    "rows added": lambda x: ab.tf.tensor_scatter_nd_add(x * 0.5, [[3], [0], [3]], x[:3]),
    "elements replaced": lambda x: ops.scatter_update(x * 0.5, [[0, 1], [3, 5], [0, 1]], x[0, :3]),
    "rows replaced": lambda x: ops.scatter_update(x * 0.5, [[3], [0], [3]], x[:3]),
    "sums of segments": lambda x: x * 0.5 + ops.segment_sum(x, [2, 0, 2, 0], num_segments=4),
    "segments left out": lambda x: x * 0.5 + ops.segment_sum(x[:, 0], [-1, 1, 9, 1], num_segments=4)[:, None],
    "largest of segments": lambda x: x * 0.5 + ops.maximum(ops.segment_max(x, [2, 0, 2, 0], num_segments=4), -1),
    "least of segments": lambda x: x * 0.5 + ops.minimum(ops.segment_min(x[:, 0], [1, 1, 9, 0], 4), 1)[:, None],
    "products of segments": lambda x: x * 0.5 + ops.segment_prod(x, [2, 0, 2, 0], num_segments=4),
    "an element": lambda x: x * 0.5 + ops.take(x[2], 4),
    "one row": lambda x: x * 0.5 + x[1],
    "largest": lambda x: x * 0.5 + _largest(x, 3) * 0.1,
    "largest one": lambda x: x * 0.5 + _largest(x, 1),
    "all in order": lambda x: x * 0.5 + _largest(x, 6) * 0.01,
    "largest of equals": lambda x: x + _largest(x * 0, 4) + _largest(ops.round(x), 4) * 0.01,
    "largest of integers": lambda x: x + ops.cast(_largest(ops.cast(x * 5, "int32"), 2), "float32") * 0.01,
    "largest of a vector": lambda x: x * 0.5 + _largest(x[0], 2),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body(name: str) -> None:
    check(repeated(BODIES[name]), draw(4, 6))


@pytest.mark.parametrize("name", [name for name in BODIES if "integers" not in name and "equals" not in name])
def test_a_gradient(name: str) -> None:
    """The gradient, which adds to the elements that were taken, is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name])(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(4, 6), native=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_largest_of_numbers_and_nan(dtype: str) -> None:
    """NaN is larger than infinity; of equal elements the first counts, zeros of either sign among them."""
    x = np.array([[1, np.nan, 2, np.nan], [np.inf, 0.0, -0.0, -np.inf], [np.nan] * 4, [-1, -1, -1, -2]], dtype)

    def build(x: Any) -> list[Any]:
        values, places = np.zeros((4, 3), dtype), np.zeros((4, 3), "int32")
        found = ab.while_loop(
            lambda i, *_: i < 2,
            lambda i, a, b: (i + 1, *(old + new for old, new in zip((a, b), ops.top_k(x, 3), strict=True))),
            (0, values, places),
        )
        return list(found[1:])

    check(build, x)


@settings(max_examples=examples(8, 400), deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    count=st.integers(1, 5),
    alone=st.lists(st.booleans(), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
)
def test_generated(shape: list[int], axis: int, count: int, alone: list[bool], seed: int) -> None:
    """Positions of any shape that broadcasts against that of the elements, negative ones among them."""
    axis, generator = axis % len(shape), np.random.default_rng(seed)
    sizes = [count if a == axis else 1 if alone[a] else size for a, size in enumerate(shape)]
    x = generator.integers(-3, 4, shape).astype("float32")  # with equals
    positions = generator.integers(-shape[axis], shape[axis], sizes)

    def build(x: Any, positions: Any) -> list[Any]:
        k = min(count, shape[-1])
        taken, values = np.zeros(np.broadcast_shapes(sizes, [*shape[:axis], 1, *shape[axis + 1 :]]), "float32"), 0.0
        _, taken, values, places = ab.while_loop(
            lambda i, *_: i < 2,
            lambda i, a, b, c: (
                i + 1,
                a + ops.take_along_axis(x * ops.cast(i + 1, "float32"), positions, axis=axis),
                b + ops.top_k(x, k)[0],
                c + ops.top_k(x, k)[1],
            ),
            (0, taken, np.zeros((*shape[:-1], k), "float32"), np.zeros((*shape[:-1], k), "int32")),
        )
        return [taken, values, places, *ab.gradients(ops.sum(taken * taken) + ops.sum(values * values), [x])]

    check(build, x, positions)


def test_a_position_out_of_bounds_is_named() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        places = ab.placeholder((4, 1), "int32")
        x = ab.constant(draw(4, 6))
        _, y = ab.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.5 + ops.take_along_axis(x, places, axis=1)), (0, x)
        )

        assert np.isfinite(session.run(y, {places: [[0], [5], [-6], [1]]})).all()
        with pytest.raises(IndexError, match="index 6 is out of bounds for axis 1 with size 6"):
            session.run(y, {places: [[0], [5], [6], [1]]})


def test_beam_search_is_one_native_loop() -> None:
    """A decoder that keeps the best hypotheses, by `top_k` and `take_along_axis`."""
    beams, letters, length = 3, 7, 5
    scores = draw(letters, letters)

    def build(table: Any) -> list[Any]:
        def body(i: Any, total: Any, tokens: Any) -> tuple[Any, ...]:
            latest = tokens[:, :, 0]
            following = ops.expand_dims(total, -1) + ops.take(table, latest, axis=0)
            best, places = ops.top_k(ops.reshape(following, (2, beams * letters)), beams)
            kept = ops.take_along_axis(tokens, ops.expand_dims(places // letters, -1), axis=1)
            return i + 1, best, ops.concatenate([ops.expand_dims(places % letters, -1), kept[:, :, :-1]], axis=-1)

        start = np.array([[0.0, -9, -9]] * 2, "float32"), np.zeros((2, beams, length), "int32")
        return list(ab.while_loop(lambda i, *_: i < length, body, (0, *start)))[1:]

    assert "# native: 18 operations" in check(build, scores).source
