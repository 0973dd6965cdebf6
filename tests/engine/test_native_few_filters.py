"""Kernels of convolutions with few filters or channels, against float64: shapes, registers, and what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from natives.comparing import kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.convolution import convolution
from anabranch.engine.codegen.convolution.few_filters import ChannelVectors, PixelVectors
from anabranch.engine.codegen.convolution.few_filters_gradient import ChannelVectorsGradient, PixelVectorsGradient
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.registers import Registers
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ALL = {"conv", "conv_filter_grad", "conv_input_grad"}
REGISTERS = [Registers(16, 26), Registers(8, 12, 16), Registers(4, 24)]  # AVX-512, AVX2, NEON


def _step(shape: Any, kernel_shape: Any, dtype: str, **options: Any) -> tuple[ab.Graph, list[Any], list[Any]]:
    """A convolution and its gradients: graph, fetches and feeds."""
    with ab.Graph().as_default() as graph:
        x, kernel = ab.placeholder(shape, dtype), ab.placeholder(kernel_shape, dtype)
        y = ab.ops.conv(x, kernel, **options)
        dy = ab.placeholder(y.shape, dtype)
        fetches = [symbol_of(each) for each in (y, *ab.gradients(y, [x, kernel], dy))]
    return graph, fetches, [x, kernel, dy]


def _check(shape: Any, kernel_shape: Any, dtype: str = "float32", **options: Any) -> set[Any]:
    """Compare a convolution and its gradients with the interpreter's in float64; returns the kernels."""
    graph, fetches, feeds = _step(shape, kernel_shape, dtype, **options)
    rng = np.random.default_rng(1)
    values = [rng.uniform(-1, 1, feed.shape).astype(dtype) for feed in feeds]
    found = Program(graph, fetches, feeds)(*values)
    precise = Program(*_step(shape, kernel_shape, "float64", **options), exact=True)
    tolerance = 2e-6 if dtype == "float32" else 1e-14
    for result, wanted in zip(found, precise(*[value.astype("float64") for value in values]), strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max()))
    assert kernel_types(graph) >= ALL
    binders = (convolution.bind_convolution, convolution.bind_input_gradient, convolution.bind_filter_gradient)
    bound = [bind(fetch.operation) for bind, fetch in zip(binders, fetches, strict=True)]
    return {type(each.spec) for each in bound if each is not None}


@settings(max_examples=examples(12, 120), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.integers(1, 3),
    sizes=st.lists(st.integers(4, 40), min_size=1, max_size=2),
    taps=st.tuples(st.integers(1, 4), st.integers(2, 4)),
    channels=st.integers(1, 20),
    filters=st.integers(1, 7),
    windows=st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]),
    padding=st.sampled_from(["valid", "same"]),
    dtype=st.sampled_from(["float32", "float64"]),
    registers=st.sampled_from(REGISTERS),
    is_turned=st.booleans(),
)
def test_random_shapes(
    batch: int,
    sizes: list[int],
    taps: tuple[int, int],
    channels: int,
    filters: int,
    windows: tuple[int, int],
    padding: str,
    dtype: str,
    registers: Registers,
    is_turned: bool,
) -> None:
    """Strides, dilations and borders, for the registers of three kinds of processors."""
    strides, dilation = windows
    kernel = [min(cells, (size - 1) // dilation + 1) for cells, size in zip(reversed(taps), sizes, strict=False)]
    weights = (filters, channels) if is_turned else (channels, filters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "registers_of", lambda *_: registers)
        options: dict[str, Any] = {"strides": strides, "dilation_rate": dilation, "padding": padding}
        _check((batch, *sizes, weights[0]), (*kernel, *weights), dtype, **options)


@pytest.mark.parametrize(
    ("shape", "kernel_shape", "kind"),
    [
        ((1, 28, 28, 1), (3, 3, 1, 1), PixelVectors),
        ((2, 9, 37, 3), (5, 2, 3, 3), PixelVectors),
        ((2, 6, 9, 11, 2), (2, 3, 3, 2, 1), PixelVectors),
        ((2, 130, 1), (5, 1, 2), PixelVectors),
        ((2, 13, 17, 16), (3, 3, 16, 1), ChannelVectors),
        ((2, 13, 17, 37), (3, 3, 37, 3), ChannelVectors),
        ((1, 64, 64, 16), (1, 1, 16, 1), ChannelVectors),
        ((1, 5, 6, 7, 19), (2, 2, 2, 19, 2), ChannelVectors),
        ((3, 50, 24), (4, 24, 1), ChannelVectors),
    ],
)
@pytest.mark.parametrize("registers", REGISTERS[:2], ids=["AVX-512", "AVX2"])
def test_vectors_are_channels_where_there_are_enough(
    shape: Any, kernel_shape: Any, kind: Any, registers: Registers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "registers_of", lambda *_: registers)
    for padding in ("valid", "same"):
        gradient = PixelVectorsGradient if kind is PixelVectors else ChannelVectorsGradient
        assert _check(shape, kernel_shape, padding=padding) >= {kind, gradient}


@pytest.mark.parametrize("channels", [1, 3, 19])
def test_nan_and_infinity_reach_the_windows_they_are_in(channels: int) -> None:
    """Neither neighbours of a pixel, nor channels that a vector repeats, add what they have times zero."""
    x = np.zeros((1, 8, 40, channels), "float32")
    x[0, 2, 3, channels // 2], x[0, 6, 12, -1], x[0, 3, 30, 0] = np.nan, np.inf, -np.inf
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv(fed, np.ones((3, 3, channels, 2), "float32"), padding="same")
    assert "conv" in kernel_types(graph)
    (found,) = Program(graph, [symbol_of(y)], [fed])(x)
    expected = np.zeros((8, 40, 1), "float32")
    expected[1:4, 2:5], expected[5:8, 11:14], expected[2:5, 29:32] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(found[0], np.broadcast_to(expected, (8, 40, 2)))


@pytest.mark.parametrize("channels", [1, 3, 19])
def test_infinities_are_in_the_gradients_of_the_taps_that_reach_them(channels: int) -> None:
    """The last columns of a row are multiplied by some taps only, and a vector of pixels reaches beyond these."""
    graph, fetches, feeds = _step((1, 5, 21, channels), (2, 3, channels, 2), "float32")
    x, weights, dy = (np.ones(feed.shape, "float32") for feed in feeds)
    x[0, 2, -1, 0], x[0, 0, -2, -1] = np.inf, -np.inf
    found = Program(graph, fetches[2:], feeds)(x, weights, dy)
    expected = Program(graph, fetches[2:], feeds, exact=True)(x, weights, dy)
    assert np.isfinite(expected[0]).any()
    assert np.isinf(expected[0]).any()
    np.testing.assert_array_equal(found[0], expected[0])


def test_a_batch_has_the_bits_of_its_images() -> None:
    """Whatever the blocks are that threads take."""
    rng = np.random.default_rng(2)
    for channels, filters in ((1, 2), (24, 1)):
        images, weights = rng.normal(size=(9, 30, 50, channels)), rng.normal(size=(3, 3, channels, filters))
        images, weights = images.astype("float32"), weights.astype("float32")

        def convolved(x: Any, weights: Any = weights) -> Any:
            with ab.Graph().as_default() as graph:
                fed = ab.placeholder(x.shape, "float32")
                y = symbol_of(ab.ops.conv(fed, weights, padding="same"))
            return Program(graph, [y], [fed])(x)[0]

        alone = [convolved(images[number : number + 1]) for number in range(len(images))]
        np.testing.assert_array_equal(convolved(images), np.concatenate(alone))
