"""Kernels of convolutions in groups, of each channel by itself, and along three axes: values, gradients, geometry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.neural.convolution import Conv
from anabranch.engine.runtime.analyses import kernels_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ALL = {"conv", "conv_filter_grad", "conv_input_grad"}
CHECKED = settings(
    max_examples=examples(3, 5), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def _reference(x: Any, kernel: Any, strides: Sequence[int], dilation: Sequence[int], pads: Sequence[Any]) -> Any:
    """A convolution in float64, one tap and group at a time. Negative padding cuts cells off."""
    x, kernel = x.astype("float64"), kernel.astype("float64")
    for axis, (before, behind) in enumerate(pads, 1):
        x = np.moveaxis(np.moveaxis(x, axis, 0)[max(0, -before) : x.shape[axis] + min(0, behind)], 0, axis)
    x = np.pad(x, [(0, 0), *[(max(0, before), max(0, behind)) for before, behind in pads], (0, 0)])
    *taps, channels, filters = kernel.shape
    groups = x.shape[-1] // channels
    outs = [
        (size - (count - 1) * step - 1) // stride + 1
        for size, count, step, stride in zip(x.shape[1:-1], taps, dilation, strides, strict=True)
    ]
    y = np.zeros((x.shape[0], *outs, groups, filters // groups))
    for tap in product(*[range(count) for count in taps]):
        key = [
            slice(cell * step, cell * step + (out - 1) * stride + 1, stride)
            for cell, step, out, stride in zip(tap, dilation, outs, strides, strict=True)
        ]
        cells = x[(slice(None), *key)].reshape(x.shape[0], *outs, groups, channels)
        y += np.einsum("...gc,cgf->...gf", cells, kernel[tap].reshape(channels, groups, -1))
    return y.reshape(x.shape[0], *outs, filters)


def _step(shape: Any, kernel_shape: Any, op: Conv, dtype: str = "float32") -> tuple[Any, ...]:
    """A convolution and its gradients: graph, fetches, feeds and values."""
    rng = np.random.default_rng(2)
    with ab.Graph().as_default() as graph:
        x, kernel = ab.placeholder(shape, dtype), ab.placeholder(kernel_shape, dtype)
        y = apply(op, x, kernel)
        dy = ab.placeholder(y.shape, dtype)
        fetches = [y, *ab.gradients(y, [x, kernel], dy)]
    feeds = [x, kernel, dy]
    shapes: list[Any] = [feed.shape for feed in feeds]
    return graph, fetches, feeds, [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def _check(shape: Any, kernel_shape: Any, dtype: str, strides: Any, dilation: Any, pads: Any) -> set[str]:
    """Compare a convolution with the reference, and its gradients with differences; returns which have kernels."""
    graph, fetches, feeds, values = _step(shape, kernel_shape, Conv(strides, dilation, pads), dtype)
    y, *gradients = Program(graph, fetches, feeds)(*values)
    scale = 1e-5 if dtype == "float32" else 1e-12
    expected = _reference(values[0], values[1], strides, dilation, pads)
    np.testing.assert_allclose(y, expected, rtol=0, atol=scale * np.abs(expected).max(initial=1.0))
    rng = np.random.default_rng(3)
    for number, gradient in enumerate(gradients):
        # The convolution is linear in each operand: differences are exact, with steps of any size.
        for _ in range(3):
            direction = rng.uniform(-1, 1, gradient.shape)
            ends: list[Any] = []
            for sign in (1, -1):
                moved = [value.astype("float64") for value in values[:2]]
                moved[number] = moved[number] + sign * direction
                ends.append(np.sum(values[2] * _reference(moved[0], moved[1], strides, dilation, pads)))
            found = np.sum(gradient * direction)
            assert found == pytest.approx((ends[0] - ends[1]) / 2, abs=scale * float(1 + np.abs(gradient).sum()))
    return kernel_types(graph) & ALL


@st.composite
def _geometries(draw: Any, rank: int, most: int) -> tuple[Any, ...]:
    """Sizes, kernel sizes, strides, dilation and padding for which there is at least one window."""
    count = range(rank)
    taps = [draw(st.integers(1, 4)) for _ in count]
    strides = tuple(draw(st.integers(1, 3)) for _ in count)
    dilation = tuple(draw(st.integers(1, 3)) for _ in count)
    pads = tuple((draw(st.integers(-1, 5)), draw(st.integers(-1, 5))) for _ in count)
    sizes: list[int] = []
    for axis in count:
        least = max(3, (taps[axis] - 1) * dilation[axis] + 1 - sum(pads[axis]))
        sizes.append(draw(st.integers(least, least + most)))
    return sizes, taps, strides, dilation, pads


@CHECKED
@given(
    batch=st.integers(1, 3),
    geometry=_geometries(2, 14),
    channels=st.sampled_from([2, 3, 8, 17, 24, 40, 80]),
    multiplier=st.sampled_from([1, 1, 2, 3, 8]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_channels_by_themselves(batch: int, geometry: Any, channels: int, multiplier: int, dtype: str) -> None:
    sizes, taps, *rest = geometry
    found = _check((batch, *sizes, channels), (*taps, 1, channels * multiplier), dtype, *rest)
    assert found >= {"conv", "conv_filter_grad"}


@CHECKED
@given(
    batch=st.integers(1, 3),
    geometry=_geometries(2, 12),
    groups=st.integers(2, 5),
    channels=st.sampled_from([2, 5, 16]),
    filters=st.sampled_from([1, 3, 8, 20]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_groups(batch: int, geometry: Any, groups: int, channels: int, filters: int, dtype: str) -> None:
    sizes, taps, *rest = geometry
    _check((batch, *sizes, groups * channels), (*taps, channels, groups * filters), dtype, *rest)


@CHECKED
@given(
    geometry=_geometries(3, 5),
    groups=st.sampled_from([1, 2, 6]),
    channels=st.sampled_from([1, 3]),
    filters=st.sampled_from([8, 11]),
)
def test_three_axes(geometry: Any, groups: int, channels: int, filters: int) -> None:
    sizes, taps, *rest = geometry
    _check((2, *sizes, groups * channels), (*taps, channels, groups * filters), "float32", *rest)


@CHECKED
@given(
    batch=st.sampled_from([1, 2, 20]),
    geometry=_geometries(1, 90),
    groups=st.sampled_from([1, 2, 16]),
    filters=st.sampled_from([1, 16]),
)
def test_one_axis(batch: int, geometry: Any, groups: int, filters: int) -> None:
    sizes, taps, *rest = geometry
    _check((batch, *sizes, 16), (*taps, 16 // groups, groups * filters), "float32", *rest)


@pytest.mark.parametrize("kernel_shape", [(5, 48, 48), (5, 1, 48), (5, 24, 48)])
@pytest.mark.parametrize("stride", [1, 2])
def test_long_sequences_are_parted(kernel_shape: Any, stride: int) -> None:
    """One sequence, of which parts of rows are units of work; the last ones overlap."""
    found = _check((1, 1999, 48), kernel_shape, "float32", (stride,), (3,), ((12, 0),))
    assert found == ALL


@pytest.mark.parametrize(
    ("shape", "kernel_shape"),
    [
        ((2, 9, 9, 24), (3, 3, 1, 24)),
        ((2, 9, 9, 24), (3, 3, 1, 48)),
        ((2, 9, 9, 24), (3, 3, 12, 32)),
        ((2, 9, 9, 24), (1, 1, 12, 32)),
        ((2, 9, 24), (3, 1, 24)),
        ((2, 5, 6, 7, 8), (3, 3, 3, 8, 16)),
        ((2, 5, 6, 7, 8), (3, 3, 3, 1, 8)),
    ],
)
def test_these_have_kernels_unless_bits_must_not_change(shape: Any, kernel_shape: Any) -> None:
    ones = (1,) * (len(shape) - 2)
    graph, fetches, feeds, values = _step(shape, kernel_shape, Conv(ones, ones, "same"))
    assert kernel_types(graph) >= ALL
    assert not kernels_of(graph.operations, exact=True)
    check_against_numpy(graph, fetches, feeds, values, 1e-5)


def test_transposed_convolutions_have_the_kernel_of_the_gradient() -> None:
    rng = np.random.default_rng(4)
    x, kernel = rng.uniform(-1, 1, (2, 6, 7, 16)).astype("f"), rng.uniform(-1, 1, (3, 3, 24, 16)).astype("f")
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv_transpose(fed, kernel, strides=2, padding="same")
        assert "conv_input_grad" in kernel_types(graph)
        fetches = [y, *ab.gradients(ab.ops.sum(y * y), [fed])]
    check_against_numpy(graph, fetches, [fed], [x], 1e-5)


def test_separable_convolutions_and_second_order() -> None:
    rng = np.random.default_rng(5)
    shapes = ((2, 7, 9, 12), (3, 3, 12, 2), (1, 1, 24, 20))
    values = [rng.uniform(-1, 1, shape).astype("f") for shape in shapes]
    with ab.Graph().as_default() as graph:
        x, depthwise, pointwise = feeds = [ab.placeholder(shape, "float32") for shape in shapes]
        y = ab.ops.separable_conv(x, depthwise, pointwise, strides=2, padding="same")
        (first,) = ab.gradients(ab.ops.sum(ab.ops.tanh(y)), [x])
        second = ab.gradients(ab.ops.sum(first * first), [x, depthwise, pointwise])
    check_against_numpy(graph, [y, first, *second], feeds, values, 1e-5)


@pytest.mark.parametrize("kernel_shape", [(3, 3, 1, 16), (3, 3, 1, 32), (3, 3, 8, 32)])
def test_nan_and_infinity_reach_the_windows_they_lie_in(kernel_shape: Any) -> None:
    x = np.zeros((1, 8, 20, 16), "float32")
    x[0, 2, 3, 1], x[0, 7, 0, 14] = np.nan, np.inf
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        kernel = ab.convert_to_tensor(np.ones(kernel_shape, "float32"))
        y = ab.ops.conv(fed, kernel, padding="same")
        (dw,) = ab.gradients(y, [kernel])
    found, gradient = Program(graph, [symbol_of(y), dw], [fed])(x)
    expected = np.zeros((8, 20, kernel_shape[-1]))
    (first, behind), (late, end) = _filters_of(1, kernel_shape), _filters_of(14, kernel_shape)
    expected[1:4, 2:5, first:behind], expected[6:8, 0:2, late:end] = np.nan, np.inf
    np.testing.assert_array_equal(found[0], expected)
    is_nan = np.zeros(kernel_shape, bool)
    is_nan[:, :, 1 % kernel_shape[2], first:behind] = True
    np.testing.assert_array_equal(np.isnan(gradient), is_nan)


def _filters_of(channel: int, kernel_shape: Any) -> tuple[int, int]:
    """The filters of the group of one of 16 channels."""
    group, width = channel // kernel_shape[2], kernel_shape[-1] * kernel_shape[2] // 16
    return group * width, (group + 1) * width


def test_without_kernels_the_same_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w, v = (rng.uniform(-1, 1, shape).astype("f") for shape in ((2, 6, 9, 16), (3, 3, 1, 16), (3, 3, 8, 32)))
    found: list[float] = []
    for usable in (False, library.usable):
        monkeypatch.setattr(library, "_usable", usable)
        with ab.Graph().as_default():
            y = ab.ops.conv(ab.ops.conv(x, w, padding="same"), v)
            found.append(float(ab.Session().run(ab.ops.sum(y * y))))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert found[0] > 1000
