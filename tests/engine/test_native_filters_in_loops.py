"""Convolutions and pooling in loops that are machine code, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from natives.loops import check, draw, repeated

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library

pytestmark = [
    pytest.mark.usefixtures("loops_stay", "native_whatever_the_size"),
    pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here"),
]

ops = ab.ops
KERNEL = draw(3, 2, 3, 3) * 0.3
PER_CHANNEL = draw(3, 3, 3, 1) * 0.3


def _conv(x: Any, **options: Any) -> Any:
    return ops.tanh(ops.conv(x, KERNEL, **options))


def _in_size(y: Any) -> Any:
    """Repeat cells, so that the result is of the size of the loop variable."""
    return ops.repeat(ops.repeat(y, 2, axis=1), 2, axis=2)


BODIES: dict[str, Callable[[Any], Any]] = {
    "convolution": lambda x: _conv(x, padding="same"),
    "convolution without padding": lambda x: ops.pad(_conv(x), ((0, 0), (1, 1), (1, 0), (0, 0))),
    "dilated": lambda x: _conv(x, padding="same", dilation_rate=2),
    "strided": lambda x: x * 0.5 + _in_size(_conv(x, padding="same", strides=2)),
    "of each channel": lambda x: ops.tanh(ops.depthwise_conv(x, PER_CHANNEL, padding="same")),
    "transposed": lambda x: x * 0.5 + ops.tanh(ops.conv_transpose(x, KERNEL, strides=2, padding="same"))[:, ::2, ::2],
    "maximum": lambda x: x * 0.5 + ops.max_pool(x, 2, strides=1, padding="same"),
    "maximum of every other": lambda x: x * 0.5 + _in_size(ops.max_pool(x, 2)),
    "average": lambda x: x * 0.5 + ops.average_pool(x, (3, 2), strides=1, padding="same"),
    "average of every other": lambda x: x * 0.5 + _in_size(ops.average_pool(x, 2)),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body(name: str) -> None:
    check(repeated(BODIES[name]), draw(2, 6, 4, 3))


@pytest.mark.parametrize("name", BODIES)
def test_a_gradient(name: str) -> None:
    """The gradient is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name])(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(2, 6, 4, 3), native=2, rtol=1e-4)


def test_gradient_of_the_kernel() -> None:
    def build(x: Any, kernel: Any) -> list[Any]:
        _, y = repeated(lambda x: ops.tanh(ops.conv(x, kernel, padding="same")))(x)
        return ab.gradients(ops.sum(y * y), [kernel])

    check(build, draw(2, 5, 4, 3), KERNEL, rtol=1e-4)
