"""Kernels of convolutions: values against NumPy's road for strides and paddings; bits for any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.convolution import convolution
from anabranch.engine.codegen.convolution.correlation import FIELDS, CorrelationKernel
from anabranch.engine.codegen.convolution.correlation_filter import FilterKernel
from anabranch.engine.codegen.convolution.numbers import correlation_numbers
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.registers import Registers
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ALL = {"conv", "conv_filter_grad", "conv_input_grad"}


def _step(shape: Any, kernel_shape: Any, dtype: str = "float32", **options: Any) -> tuple[Any, ...]:
    """A convolution and its gradients: graph, fetches, feeds and values."""
    rng = np.random.default_rng(1)
    with ab.Graph().as_default() as graph:
        x, kernel = ab.placeholder(shape, dtype), ab.placeholder(kernel_shape, dtype)
        y = ab.ops.conv(x, kernel, **options)
        dy = ab.placeholder(y.shape, dtype)
        fetches = [y, *ab.gradients(y, [x, kernel], dy)]
    feeds = [x, kernel, dy]
    shapes: list[Any] = [feed.shape for feed in feeds]
    return graph, fetches, feeds, [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def _check(shape: Any, kernel_shape: Any, dtype: str = "float32", **options: Any) -> tuple[ab.Graph, list[Any]]:
    graph, fetches, feeds, values = _step(shape, kernel_shape, dtype, **options)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    return graph, check_against_numpy(graph, fetches, feeds, values, tolerance)


def test_known_values() -> None:
    """The sum of four cells, twice as wide as a vector of filters."""
    x = np.arange(36, dtype="float32").reshape(1, 6, 6, 1)
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv(fed, np.ones((2, 2, 1, 32), "float32"))
    assert "conv" in kernel_types(graph)
    (found,) = Program(graph, [symbol_of(y)], [fed])(x)
    expected = x[:, :-1, :-1] + x[:, 1:, :-1] + x[:, :-1, 1:] + x[:, 1:, 1:]
    np.testing.assert_array_equal(found, np.repeat(expected, 32, axis=-1))


@settings(max_examples=examples(4, 8), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.integers(1, 5),
    sizes=st.tuples(st.integers(5, 20), st.integers(5, 37)),
    taps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.sampled_from([1, 3, 8, 17]),
    filters=st.sampled_from([8, 16, 21, 40]),
    strides=st.sampled_from([1, 2, (1, 3), (4, 2)]),
    padding=st.sampled_from(["valid", "same"]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_strides_and_paddings(
    batch: int, sizes: Any, taps: Any, channels: int, filters: int, strides: Any, padding: str, dtype: str
) -> None:
    _check((batch, *sizes, channels), (*taps, channels, filters), dtype, strides=strides, padding=padding)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("dilation", [2, (1, 3)])
def test_dilation(padding: str, dilation: Any) -> None:
    graph, _ = _check((2, 11, 13, 8), (3, 3, 8, 24), padding=padding, dilation_rate=dilation)
    assert kernel_types(graph) >= ALL


@pytest.mark.parametrize("padding", ["valid", "same", "causal"])
def test_one_axis(padding: str) -> None:
    graph, _ = _check((3, 29, 16), (3, 16, 20), padding=padding)
    assert kernel_types(graph) >= ALL


def test_many_filters() -> None:
    """So many that parts of the gradient divide tiles among them, and their sums take several parts."""
    graph, _ = _check((2, 6, 9, 96), (3, 3, 96, 320), padding="same")
    assert kernel_types(graph) >= ALL


@pytest.mark.parametrize(
    ("shape", "kernel_shape", "dtype"),
    [
        ((2, 6, 6, 2), (1, 1, 2, 2), "float32"),  # one matrix product, of few columns
        ((0, 6, 6, 4), (3, 3, 4, 32), "float32"),  # no images
        ((0, 6, 6, 4), (3, 3, 1, 8), "float32"),
        ((2, 6, 6, 4), (3, 3, 4, 32), "float16"),
        ((2, 6, 6, 4), (3, 3, 1, 8), "float16"),
    ],
)
def test_what_has_no_kernel_stays_right(shape: Any, kernel_shape: Any, dtype: str) -> None:
    graph, fetches, feeds, values = _step(shape, kernel_shape, dtype)
    assert not kernel_types(graph) & ALL
    check_against_numpy(graph, fetches, feeds, values, 1e-5)


@pytest.mark.parametrize("shape", [(2, 50, 42), (3, 1400), (2, 30, 14, 5)])
def test_pointwise(shape: Any) -> None:
    """All cells are one row."""
    ones = (1,) * (len(shape) - 1)
    graph, _ = _check((*shape, 24), (*ones, 24, 40))
    assert kernel_types(graph) >= ALL
    graph, _ = _check((*shape, 24), (*ones, 24, 80), "float64")
    assert kernel_types(graph) >= ALL


@pytest.mark.parametrize(
    ("shape", "filters"),
    [((4, 14, 14, 200), 60), ((4, 14, 14, 200), 200), ((2, 50, 42, 400), 400), ((1, 9, 7, 65), 66), ((1, 5, 5, 16), 8)],
)
def test_pointwise_convolutions_of_few_cells_or_weights_are_products_of_ours(shape: Any, filters: int) -> None:
    """None is left to BLAS where that uses threads of its own."""
    graph, _ = _check(shape, (1, 1, shape[-1], filters))
    assert kernel_types(graph) >= ALL


@pytest.mark.parametrize(("filters", "rows"), [(64, 3), (388, 3), (392, 8)])
def test_fewer_blocks_read_more_weights_than_the_cache_has(
    monkeypatch: pytest.MonkeyPatch, filters: int, rows: int
) -> None:
    """Up to 4,194,304 weights, a block has 65,536 elements of input: 3 rows and 2 beyond, of 10 cells of 1,200."""
    found: list[list[int]] = []

    def numbers(*sizes: Any) -> list[int]:
        found.append(correlation_numbers(*sizes))
        return found[-1]

    monkeypatch.setattr(convolution, "correlation_numbers", numbers)
    with ab.Graph().as_default():
        x, kernel = ab.placeholder((16, 8, 8, 1200), "float32"), ab.placeholder((3, 3, 1200, filters), "float32")
        assert convolution.bind_convolution(symbol_of(ab.ops.conv(x, kernel, padding="same")).operation)
    assert [each[FIELDS.index("block")] for each in found] == [rows]


@pytest.mark.parametrize("registers", [Registers(8, 12, 16), Registers(4, 24), Registers(16, 26)], ids=str)
@pytest.mark.parametrize(
    ("image", "channels", "taps", "filters"),
    [(27, 64, 5, 192), (27, 32, 5, 32), (9, 32, 5, 64), (230, 3, 7, 64), (12, 1, 3, 128), (28, 256, 1, 32)],
)
def test_tiles_fit_into_registers(
    registers: Registers, image: int, channels: int, taps: int, filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums, a row of what is multiplied and the number that multiplies it: what goes by memory takes twice as long."""
    monkeypatch.setattr(convolution, "registers_of", lambda *_: registers)
    with ab.Graph().as_default():
        x = ab.placeholder((8, image, image, channels), "float32")
        kernel = ab.placeholder((taps, taps, channels, filters), "float32")
        y = ab.ops.conv(x, kernel)
        gradient = symbol_of(ab.gradients(y, kernel)[0])
    found = [convolution.bind_convolution(symbol_of(y).operation), convolution.bind_filter_gradient(gradient.operation)]
    specs = [each.spec for each in found if each is not None]
    tiles = [(s.pixels, s.vectors) for s in specs if isinstance(s, CorrelationKernel)]
    tiles += [(s.cells, s.vectors) for s in specs if isinstance(s, FilterKernel)]
    assert len(tiles) == 2
    for rows, vectors in tiles:
        assert 1 <= rows * vectors <= registers.sums
        assert rows * vectors + vectors + 1 <= registers.count


def test_layers_of_other_channels_and_strides_share_a_kernel() -> None:
    """A cold first step compiles a kernel for each tile, not for each layer."""
    found: set[Any] = set()
    with ab.Graph().as_default():
        for image, channels, stride in ((18, 16, 1), (18, 48, 1), (31, 24, 2)):
            x, kernel = (
                ab.placeholder((8, image, image, channels), "float32"),
                ab.placeholder((5, 5, channels, 64), "float32"),
            )
            bound = convolution.bind_convolution(symbol_of(ab.ops.conv(x, kernel, strides=stride)).operation)
            assert bound is not None
            found.add(bound.spec)
    assert len(found) == 1


def _bound_specs(image: int, taps: int, channels: int, filters: int) -> list[Any]:
    """The kernels of a convolution of eight images and of its gradients, in the input and in the filters."""
    with ab.Graph().as_default():
        x = ab.placeholder((8, image, image, channels), "float32")
        kernel = ab.placeholder((taps, taps, channels, filters), "float32")
        y = ab.ops.conv(x, kernel, padding="same")
        computed = [symbol_of(tensor).operation for tensor in (y, *ab.gradients(y, [x, kernel]))]
    binders = (convolution.bind_convolution, convolution.bind_input_gradient, convolution.bind_filter_gradient)
    found = [bind(operation) for bind, operation in zip(binders, computed, strict=True)]
    return [bound.spec for bound in found if bound is not None]


def test_a_gradient_in_the_input_shares_the_kernel_of_a_convolution_with_its_tile() -> None:
    (there, back, _) = _bound_specs(14, 5, 64, 64)
    assert there == back


def test_pointwise_convolutions_and_their_gradients_share_a_kernel() -> None:
    """One matrix product is like another: which operands are transposed is a number that the kernel reads."""
    assert len(set(_bound_specs(14, 1, 512, 112))) == 1


def test_tiles_that_divide_a_row_are_taken_where_they_save_time() -> None:
    """Four tiles of 7 pixels for 28 columns, in place of three of 10; narrow rests are cheaper than small tiles."""
    registers = Registers(16, 26)
    assert convolution._tile(28, 32, registers) == (7, 2)
    assert convolution._tile(33, 48, registers) == (7, 3)
    assert convolution._tile(28, 16, Registers(8, 12, 16)) == (6, 2)


@pytest.mark.parametrize(
    ("shape", "filters"),
    [((16, 1024, 64), 64), ((32, 256, 256), 256), ((1, 1023, 64), 64), ((3, 33, 2048), 16), ((8, 2, 700, 96), 32)],
)
def test_blocks_of_columns_do_not_overlap(
    shape: tuple[int, ...], filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that two blocks have in common are computed twice: blocks of 254 of 256 took twice the time."""
    found: list[dict[str, int]] = []

    def noted(*arguments: Any) -> list[int]:
        numbers = correlation_numbers(*arguments)
        found.append(dict(zip(FIELDS, numbers[:-1], strict=True)))
        return numbers

    monkeypatch.setattr(convolution, "correlation_numbers", noted)
    with ab.Graph().as_default():
        x = ab.placeholder(shape, "float32")
        kernel = ab.placeholder((*[3] * (len(shape) - 2), shape[-1], filters), "float32")
        assert convolution.bind_convolution(symbol_of(ab.ops.conv(x, kernel, padding="same")).operation) is not None
    (numbers,) = found
    computed = numbers["column_blocks"] * numbers["block_columns"]
    assert numbers["columns"] <= computed < numbers["columns"] + numbers["column_blocks"]


def test_unknown_batch_has_kernels_once_it_is_fed() -> None:
    rng = np.random.default_rng(0)
    x, kernel = rng.uniform(-1, 1, (4, 6, 9, 8)).astype("f"), rng.uniform(-1, 1, (3, 3, 8, 16)).astype("f")
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder((None, 6, 9, 8), "float32")
        y = ab.ops.conv(fed, kernel)
    assert not kernel_types(graph) & ALL
    found = ab.Session(graph).run(y, {fed: x})
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    np.testing.assert_allclose(found, np.einsum("nxycuv,uvcf->nxyf", windows, kernel), atol=1e-4)


def test_nan_and_infinity_reach_the_windows_they_lie_in() -> None:
    x = np.zeros((1, 8, 20, 8), "float32")
    x[0, 2, 3, 1], x[0, 6, 12, 5] = np.nan, np.inf
    kernel = np.ones((3, 3, 8, 16), "float32")
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv(fed, kernel, padding="same")
    (found,) = Program(graph, [symbol_of(y)], [fed])(x)
    expected = np.zeros((8, 20))
    expected[1:4, 2:5], expected[5:8, 11:14] = np.nan, np.inf
    np.testing.assert_array_equal(found[0], np.broadcast_to(expected[..., None], (8, 20, 16)))


def test_operands_in_other_layouts() -> None:
    """A kernel refuses them, and gets copies."""
    graph, fetches, feeds, values = _step((2, 6, 9, 8), (3, 3, 8, 16))
    program = Program(graph, fetches, feeds)
    expected = program(*values)
    for found, wanted in zip(program(*[np.asfortranarray(value) for value in values]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_second_order() -> None:
    rng = np.random.default_rng(3)
    x, kernel = rng.uniform(-1, 1, (2, 5, 9, 8)).astype("f"), rng.uniform(-1, 1, (3, 3, 8, 16)).astype("f")
    with ab.Graph().as_default() as graph:
        fed, weights = ab.placeholder(x.shape, "float32"), ab.placeholder(kernel.shape, "float32")
        loss = ab.ops.sum(ab.ops.tanh(ab.ops.conv(fed, weights, strides=2, padding="same")))
        (first,) = ab.gradients(loss, [fed])
        second = ab.gradients(ab.ops.sum(first * first), [fed, weights])
    check_against_numpy(graph, second, [fed, weights], [x, kernel], 1e-5)
