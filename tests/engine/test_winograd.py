"""Convolutions by Winograd's filtering: transforms, values against float64, bits, NaN, switches and training."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.convolution import transforms, winograd_bind
from anabranch.engine.codegen.convolution.transforms import TAPS, TRANSFORMS, Matrix, print_transform, transposed
from anabranch.engine.codegen.llvm.builder import FunctionBuilder
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.registers import Registers
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.runtime.program import Program

with_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
MOST = {2: 1e-5, 4: 3e-5}  # differences from float64, in deviations; docs/convolutions.md promises 1e-4 for 4


def _product(matrix: Matrix, values: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, values, strict=True)), Fraction()) for row in matrix]


@pytest.mark.parametrize("tile", list(TRANSFORMS))
def test_transforms_give_the_convolution_of_fractions_exactly(tile: int) -> None:
    rng = np.random.default_rng(0)
    own = TRANSFORMS[tile]
    cells, taps = ([Fraction(int(n), 7) for n in rng.integers(-99, 99, count)] for count in (own.cells, TAPS))
    parts = zip(_product(own.weights, taps), _product(own.input, cells), strict=True)
    found = _product(own.back, [a * b for a, b in parts])
    assert found == [sum(taps[k] * cells[start + k] for k in range(TAPS)) for start in range(tile)]


@pytest.mark.parametrize("tile", list(TRANSFORMS))
def test_pairs_of_rows_and_columns_share_sums(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the same products take half as many operations more."""

    def operations() -> int:
        code = FunctionBuilder("test", [])
        own = TRANSFORMS[tile]
        for matrix in (own.input, own.weights, own.back, transposed(own.weights), transposed(own.back)):
            print_transform(code, "float", 8, matrix, [f"%x{k}" for k in range(len(matrix[0]))])
        return sum(" fadd " in line or " fsub " in line or " fmul " in line for line in code.text().splitlines())

    shared = operations()
    monkeypatch.setattr(transforms, "_are_paired", lambda *_: False)
    assert shared < operations()


# --- values ---------------------------------------------------------------------------------------------------------


def _direct(values: list[Any], padding: str) -> list[Any]:
    """The convolution and its gradients in float64."""
    x, kernel, dy = (value.astype("float64") for value in values)
    pad = int(padding == "same")
    around = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    wide, (rows, columns) = np.pad(x, around), dy.shape[1:3]
    y, dx, dkernel = np.zeros_like(dy), np.zeros_like(wide), np.zeros_like(kernel)
    for a, b in np.ndindex(3, 3):
        seen = wide[:, a : a + rows, b : b + columns]
        y += seen @ kernel[a, b]
        dx[:, a : a + rows, b : b + columns] += dy @ kernel[a, b].T
        dkernel[a, b] = np.tensordot(seen, dy, ([0, 1, 2], [0, 1, 2]))
    return [y, dx[:, pad : dx.shape[1] - pad, pad : dx.shape[2] - pad], dkernel]


def _step(shape: Any, kernel_shape: Any, padding: str) -> tuple[Any, ...]:
    """A convolution and its gradients: graph, fetches, feeds and values."""
    rng = np.random.default_rng(sum(shape))
    with ab.Graph().as_default() as graph:
        x, kernel = ab.placeholder(shape, "float32"), ab.placeholder(kernel_shape, "float32")
        y = ab.ops.conv(x, kernel, padding=padding)
        dy = ab.placeholder(y.shape, "float32")
        fetches = [symbol_of(found) for found in (y, *ab.gradients(y, [x, kernel], dy))]
    feeds = [x, kernel, dy]
    sizes: list[Any] = [feed.shape for feed in feeds]
    return graph, fetches, feeds, [rng.normal(size=size).astype("float32") for size in sizes]


def _errors(shape: Any, filters: int, padding: str) -> list[float]:
    """The largest differences of a convolution and its gradients from float64, in deviations of each."""
    graph, fetches, feeds, values = _step(shape, (3, 3, shape[-1], filters), padding)
    expected = _direct(values, padding)
    found = Program(graph, fetches, feeds)(*values)
    return [float(np.abs(result - wanted).max() / wanted.std()) for result, wanted in zip(found, expected, strict=True)]


@pytest.fixture
def any_tile(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Winograd with a tile of one's choice wherever there is a kernel."""
    chosen = {"tile": 4}

    def tile_of(operation: Any) -> int:
        return chosen["tile"] if winograd_bind.images_of(operation, operation.op) else 0

    monkeypatch.setattr(winograd_bind, "tile_of", tile_of)
    return chosen


SHAPES: dict[str, Any] = {
    "tile": st.sampled_from([2, 4]),
    "batch": st.integers(1, 3),
    "sizes": st.tuples(st.integers(3, 23), st.integers(3, 23)),
    "padding": st.sampled_from(["valid", "same"]),
}


@with_kernels
@settings(
    max_examples=examples(12, 1000),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(channels=st.integers(16, 40), filters=st.sampled_from([16, 24, 29, 32, 40]), **SHAPES)
def test_against_float64(
    any_tile: dict[str, int], tile: int, batch: int, sizes: Any, padding: str, channels: int, filters: int
) -> None:
    any_tile["tile"] = tile
    assert max(_errors((batch, *sizes, channels), filters, padding)) < MOST[tile]


@with_kernels
@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    channels=st.integers(1, 40),
    filters=st.integers(1, 40),
    batch=st.integers(1, 3),
    sizes=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    padding=st.sampled_from(["valid", "same"]),
)
def test_the_chosen_kernels_against_float64(batch: int, sizes: Any, padding: str, channels: int, filters: int) -> None:
    """With fewer than 16 channels or filters, and in small work, the direct ones."""
    assert max(_errors((batch, *sizes, channels), filters, padding)) < MOST[4]


@with_kernels
@pytest.mark.slow
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_several_blocks_of_channels_filters_and_tiles(any_tile: dict[str, int], tile: int, padding: str) -> None:
    any_tile["tile"] = tile
    assert max(_errors((3, 30, 25, 150), 200, padding)) < MOST[tile]


@with_kernels
@pytest.mark.slow
@pytest.mark.parametrize("registers", [Registers(16, 26), Registers(4, 12, 16)], ids=["AVX-512", "SSE"])
@pytest.mark.parametrize("tile", [2, 4])
def test_vectors_of_other_hosts(
    any_tile: dict[str, int], monkeypatch: pytest.MonkeyPatch, registers: Registers, tile: int
) -> None:
    """LLVM makes several of wide vectors where the host has none."""
    any_tile["tile"] = tile
    monkeypatch.setattr(winograd_bind, "registers_of", lambda *_: registers)
    for channels, filters in ((20, 40), (33, 64), (16, 96)):
        assert max(_errors((2, 13, 18, channels), filters, "same")) < MOST[tile]


@with_kernels
def test_known_values() -> None:
    """A square of ones around one cell, far from and at the border."""
    x = np.zeros((1, 24, 24, 16), "float32")
    x[0, 9, 14, 3] = x[0, 0, 23, 3] = 1.0
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv(fed, np.ones((3, 3, 16, 32), "float32"), padding="same")
    with recording() as log:
        (found,) = Program(graph, [symbol_of(y)], [fed])(x)
    assert [note.text for note in log.of("winograd")[0]] == ["is computed by Winograd's F(4 x 4, 3 x 3)"]
    expected = np.zeros((24, 24))
    expected[8:11, 13:16] = expected[:2, 22:] = 1.0
    np.testing.assert_allclose(found[0], np.broadcast_to(expected[..., None], (24, 24, 32)), atol=1e-6)


@with_kernels
def test_results_have_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(winograd_bind, "thread_count", lambda threads=threads: threads)
        graph, fetches, feeds, values = _step((4, 21, 22, 24), (3, 3, 24, 32), "same")
        found.append(Program(graph, fetches, feeds)(*values))
    for others in found[1:]:
        for result, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(result, wanted)


@with_kernels
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_large_weights_are_read_by_few_blocks_with_the_same_bits(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Blocks are as many as threads, whatever the size of the weights that stay near: no bit depends on them."""
    monkeypatch.setattr(winograd_bind, "thread_count", lambda: threads)
    graph, fetches, feeds, values = _step((5, 21, 22, 24), (3, 3, 24, 32), "same")
    expected = Program(graph, fetches, feeds)(*values)
    monkeypatch.setattr(winograd_bind, "_NEAR_WEIGHTS", 0)
    for most in (128, 40):
        monkeypatch.setattr(winograd_bind, "_FAR_BLOCK_TILES", most)
        for result, wanted in zip(Program(graph, fetches, feeds)(*values), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


@with_kernels
@pytest.mark.parametrize("wanted", [1, 24], ids=["one share", "several shares"])
def test_gradients_of_taps_in_blocks_of_channels_and_filters(
    any_tile: dict[str, int], monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    """Blocks that have one share of the tiles are transformed back by themselves; the last ones overlap."""
    any_tile["tile"] = 2
    monkeypatch.setattr(winograd_bind, "_WANTED_UNITS", wanted)
    monkeypatch.setattr(winograd_bind, "_FILTER_TILES", 8)
    assert max(_errors((2, 13, 14, 71), 90, "same")) < MOST[2]


@with_kernels
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_reach_the_tiles_that_read_them(any_tile: dict[str, int], value: float) -> None:
    x = np.zeros((2, 24, 24, 16), "float32")
    x[0, 9, 14, 3] = value
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        y = ab.ops.conv(fed, np.ones((3, 3, 16, 16), "float32"), padding="same")
    (found,) = Program(graph, [symbol_of(y)], [fed])(x)
    is_finite = np.isfinite(found[..., 0])
    assert not is_finite[0, 8:11, 13:16].any()  # as of a direct convolution
    assert is_finite[1].all()
    tiles = ~is_finite[0]
    tiles[8:12, 12:16] = False  # the tile with results from row 8, column 12 on
    assert not tiles.any()


@with_kernels
def test_second_order(any_tile: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    x, kernel = rng.uniform(-1, 1, (2, 9, 9, 16)).astype("f"), rng.uniform(-1, 1, (3, 3, 16, 16)).astype("f")
    with ab.Graph().as_default() as graph:
        fed, weights = ab.placeholder(x.shape, "float32"), ab.placeholder(kernel.shape, "float32")
        loss = ab.ops.sum(ab.ops.tanh(ab.ops.conv(fed, weights, padding="same") * 0.1))
        (first,) = ab.gradients(loss, [fed])
        second = ab.gradients(ab.ops.sum(first * first), [fed, weights])
    check_against_numpy(graph, second, [fed, weights], [x, kernel], 1e-5)


# --- switches, and training -----------------------------------------------------------------------------------------


def test_the_direct_way_can_be_asked_for() -> None:
    assert ab.config.convolution_precision() == "winograd"
    ab.config.set_convolution_precision("direct")
    try:
        assert ab.config.convolution_precision() == "direct"
        assert not ab.config.get_passes()["winograd"]
    finally:
        ab.config.set_convolution_precision("winograd")
    assert ab.config.get_passes()["winograd"]
    with pytest.raises(ValueError, match="set_convolution_precision: 'exact'; expected 'winograd'"):
        ab.config.set_convolution_precision("exact")


@with_kernels
def test_training_reaches_the_same_loss() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(8, 16, 16, 16)).astype("f"), rng.integers(0, 4, 8)
    losses: list[float] = []
    for precision in ("direct", "winograd"):
        ab.config.set_convolution_precision(precision)
        try:
            ab.utils.set_random_seed(1)
            model = ab.Sequential(
                [
                    ab.Input((16, 16, 16)),
                    ab.layers.Conv2D(16, 3, padding="same", activation="relu"),
                    ab.layers.Conv2D(16, 3, activation="relu"),
                    ab.layers.GlobalAveragePooling2D(),
                    ab.layers.Dense(4),
                ]
            )
            model.compile("sgd", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
            history = model.fit(images, labels, batch_size=8, epochs=50, verbose=0)
        finally:
            ab.config.set_convolution_precision("winograd")
        losses.append(history.history["loss"][-1])
    assert losses[0] < 1.4
    assert abs(losses[0] - losses[1]) < 1e-4
