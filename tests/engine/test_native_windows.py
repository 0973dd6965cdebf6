"""Native regions with small convolutions and poolings, compared with those of the ops."""

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


def _filtered(x: Any, *kernel: int, **options: Any) -> Any:
    return ops.conv(x, draw_fixed(*kernel), padding="same", **options) * 0.3 + x * 0.5


def draw_fixed(*shape: int) -> Any:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype="float32").reshape(shape)


def _slope(x: Any) -> Any:
    return ab.gradients(ops.sum(ops.square(ops.max_pool(x, 2, strides=1, padding="same"))), [x])[0]


BODIES: dict[str, Callable[[Any], Any]] = {
    "plane": lambda x: _filtered(x, 3, 3, 4, 4),
    "wide taps": lambda x: _filtered(x, 2, 5, 4, 4),
    "dilated": lambda x: _filtered(x, 3, 2, 4, 4, dilation_rate=2),
    "groups": lambda x: _filtered(x, 2, 3, 2, 4),
    "each channel": lambda x: ops.depthwise_conv(x, draw_fixed(3, 3, 4, 1), padding="same") * 0.3 + x * 0.5,
    "inside": lambda x: x * 0.5 + ops.mean(ops.conv(x, draw_fixed(3, 2, 4, 3), strides=2)),
    "line": lambda x: x * 0.5 + ops.conv(x[:, 0], draw_fixed(3, 4, 4), padding="causal")[:, None] * 0.3,
    "transposed": lambda x: (
        x * 0.5 + ops.conv_transpose(x[:, :3, :3], draw_fixed(2, 2, 4, 4), strides=2)[:, :5, :6] * 0.2
    ),
    "means": lambda x: x * 0.5 + ops.average_pool(x, 2, strides=1, padding="same"),
    "maxima": lambda x: x * 0.5 + ops.max_pool(x, 2, strides=1, padding="same") * 0.4,
    "maxima of equals": lambda x: x * 0.5 + ops.mean(ops.max_pool(ops.relu(x), 3)),
}
WITHOUT_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "maxima of NaN": lambda x: x * 0.5 + ops.max_pool(ops.where(x > 0.8, np.nan, x), 2, strides=1, padding="same"),
    "steps along maxima": lambda x: x - 0.1 * _slope(x),
    "steps along maxima of NaN": lambda x: x - 0.1 * _slope(ops.where(x > 0.8, np.nan, x)),
    "steps along slopes of maxima": lambda x: x - 0.01 * ab.gradients(ops.sum(ops.square(_slope(x))), [x])[0],
}


@pytest.mark.parametrize("name", [*BODIES, *WITHOUT_GRADIENTS])
def test_a_body(name: str) -> None:
    check(repeated({**BODIES, **WITHOUT_GRADIENTS}[name], 2), draw(2, 5, 6, 4), rtol=1e-4)


@pytest.mark.parametrize("name", BODIES)
def test_a_gradient(name: str) -> None:
    """The gradient, a convolution or what pooling gives back, is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name], 2)(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(2, 5, 6, 4), native=2, rtol=1e-4)


def test_a_filter_is_trained_in_a_loop() -> None:
    """Steps of gradient descent on the kernel are one native loop."""
    image, wanted = draw(1, 6, 6, 2), draw(1, 6, 6, 3)

    def build(kernel: Any) -> Any:
        def body(i: Any, kernel: Any) -> tuple[Any, ...]:
            loss = ops.mean(ops.square(ops.conv(image, kernel, padding="same") - wanted))
            return i + 1, kernel - 0.1 * ab.gradients(loss, [kernel])[0]

        return ab.while_loop(lambda i, _: i < 3, body, (0, kernel))[1]

    check(build, draw(3, 3, 2, 3))


@settings(max_examples=examples(2, 300), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    kernel=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    strides=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    padding=st.sampled_from(["same", "valid"]),
    groups=st.integers(1, 2),
    channels=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 1000),
)
def test_generated(
    sizes: list[int],
    kernel: list[int],
    strides: list[int],
    padding: str,
    groups: int,
    channels: int,
    dtype: str,
    seed: int,
) -> None:
    """Convolutions, their gradients and poolings of 1 to 3 axes, with windows that reach out on any side."""
    rank, generator = len(sizes), np.random.default_rng(seed)
    cells = [min(cell, size) for cell, size in zip(kernel[:rank], sizes, strict=True)]
    x = generator.standard_normal((2, *sizes, groups * channels)).astype(dtype)
    weights = generator.standard_normal((*cells, channels, groups * 2)).astype(dtype)

    def build(x: Any, weights: Any) -> list[Any]:
        def body(i: Any, *_: Any) -> tuple[Any, ...]:
            wide = x * ops.cast(i + 1, dtype)
            found = [ops.conv(wide, weights, strides[:rank], padding)]
            found += [pool(wide, cells, strides[:rank], padding) for pool in (ops.max_pool, ops.average_pool)]
            y = sum(ops.sum(ops.square(each)) for each in found)
            return i + 1, *found, *ab.gradients(y, [wide, weights])

        outs = [
            -(-size // step) if padding == "same" else (size - cell) // step + 1
            for size, cell, step in zip(sizes, cells, strides[:rank], strict=True)
        ]
        start = [np.zeros((2, *outs, count), dtype) for count in (groups * 2, *[groups * channels] * 2)]
        return list(ab.while_loop(lambda i, *_: i < 2, body, (0, *start, x * 0, weights * 0)))[1:]

    check(build, x, weights, rtol=1e-4)
