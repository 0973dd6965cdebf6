"""Native regions with Fourier transforms, and complex numbers in them."""

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


def _filtered(x: Any, length: int | None = None) -> Any:
    """A signal whose transform is weighted, and transformed back."""
    real, imag = ops.rfft(x, length)
    return ops.irfft((real * 0.5, imag * 0.3), length)


BODIES: dict[str, Callable[[Any], Any]] = {
    "a filter": lambda x: x * 0.5 + _filtered(x),
    "a filter of cut rows": lambda x: x * 0.5 + ops.pad(_filtered(x, 5), [[0, 0], [0, 3]]),
    "a filter of padded rows": lambda x: x * 0.5 + _filtered(x, 13)[:, 2:10],
    "a spectrum": lambda x: x * 0.5 + ops.pad(ops.rfft(x)[1] * 0.1, [[0, 0], [0, 3]]),
    "both ways": lambda x: x * 0.5 + ops.ifft(ops.fft((x, x * 0.3)))[0] * 0.4,
    "parts": lambda x: x * 0.5 + ops.fft((x[:, :7], x[:, 1:]))[1][:, :1] * 0.1,
    "an inverse": lambda x: x * 0.5 + ops.ifft((x[:3], ops.tanh(x[1:])))[1][0] * 0.4,
    "two axes": lambda x: x * 0.5 + ops.ifft2(ops.fft2((x, x[::-1])))[0] * 0.3 + ops.fft2((x, x * 0.5))[1] * 0.01,
    "one element": lambda x: x * 0.5 + ops.irfft(ops.rfft(x[:, :1]), 1),
}


# The gradients of these save complex numbers, which native loops don't.
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "a product": lambda x: x * 0.5 + ops.real(ops.complex(x, x) * ops.conj(ops.complex(x * 0.2, -x))) * 0.1,
    "sums": lambda x: x * 0.5 + ops.imag(ops.complex(x, x) - ops.complex(x, -x) + ops.complex(x * 0.2, -x)) * 0.1,
    "a negative one": lambda x: x * 0.5 + ops.imag(-ops.complex(x, x * 0.1)),
}


@pytest.mark.parametrize("name", [*BODIES, *PRODUCTS])
def test_a_body(name: str) -> None:
    check(repeated({**BODIES, **PRODUCTS}[name]), draw(4, 8))


@pytest.mark.parametrize("name", BODIES)
def test_a_gradient(name: str) -> None:
    """The gradient, whose transforms are the transposes, is a native loop, too."""

    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name])(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, draw(4, 8), native=2)


@settings(max_examples=examples(6, 300), deadline=None)
@given(
    rows=st.lists(st.integers(1, 3), max_size=2),
    size=st.one_of(st.integers(1, 20), st.sampled_from([25, 32, 64, 128])),
    length=st.one_of(st.none(), st.integers(1, 20), st.sampled_from([32, 64])),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 1000),
)
def test_generated(rows: list[int], size: int, length: int | None, dtype: str, seed: int) -> None:
    """Transforms of any length, cut and padded, in both directions, with the transposes of both."""
    x = np.random.default_rng(seed).normal(size=(*rows, size)).astype(dtype)
    back = length if length is not None and length > 1 else max(2, 2 * (size - 1))
    back = back if back <= 25 or back & (back - 1) == 0 else 64

    def outputs(x: Any) -> list[Any]:
        found = [*ops.rfft(x, length), ops.irfft((x, x * 0.5), back), *ops.fft((x, x * 0.5)), *ops.ifft((x, -x))]
        total = [ops.sum(each * each) for each in found[:3]]
        return [*found, *ab.gradients(total, [x])]

    with ab.Graph().as_default():
        start = [np.zeros(each.shape, dtype) for each in outputs(ab.placeholder(x.shape, dtype))]

    def build(x: Any) -> list[Any]:
        def body(i: Any, *values: Any) -> tuple[Any, ...]:
            return i + 1, *[
                0.5 * old + new for old, new in zip(values, outputs(x * ops.cast(i + 1, dtype)), strict=True)
            ]

        return list(ab.while_loop(lambda i, *_: i < 3, body, (0, *start)))[1:]

    check(build, x, rtol=1e-4 if dtype == "float32" else 1e-10)


def test_long_axes_stay_with_numpy() -> None:
    """Lengths of no power of two from 65 on."""
    check(repeated(lambda x: x * 0.5 + _filtered(x)), draw(2, 66), native=0)


@pytest.mark.parametrize("of", ["a loop variable", "a branch", "what is captured"])
def test_complex_numbers_between_regions_stay_with_numpy(of: str) -> None:
    """Loop variables, results of branches and captured tensors are arrays of one type each."""

    def build(x: Any) -> Any:
        z = ops.complex(x, x * 0.5)
        if of == "a branch":
            body = lambda i, y: (i + 1, ops.real(ops.cond(y[0, 0] > 0, lambda: z * z, lambda: z + z)) * 0.1 + y)  # noqa: E731
            return ab.while_loop(lambda i, _: i < 3, body, (0, x))
        if of == "what is captured":
            body = lambda i, y: (i + 1, y * 0.5 + ops.real(z * ops.complex(y, y)))  # noqa: E731
            return ab.while_loop(lambda i, _: i < 3, body, (0, x))
        _, y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * z), (0, z))
        return [ops.real(y), ops.imag(y)]

    check(build, draw(4, 8), native=0)
