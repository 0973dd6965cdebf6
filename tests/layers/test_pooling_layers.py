"""Pooling, padding, cropping, upsampling and spatial dropout, beyond the golden data."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph.graph import get_default_graph

FIRST = "channels_first"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")


def data(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def to_last(x: Any) -> Any:
    return np.moveaxis(x, 1, -1)


def to_first(x: Any) -> Any:
    return np.moveaxis(x, -1, 1)


# --- pooling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("data_format", ["channels_last", FIRST])
def test_pooling_is_its_definition(rank: int, data_format: str) -> None:
    x = data(2, *(7, 6, 4)[:rank], 3)
    given = to_first(x) if data_format == FIRST else x
    windows = np.lib.stride_tricks.sliding_window_view(x, (3,) * rank, axis=tuple(range(1, rank + 1)))
    windows = windows[(slice(None), *[slice(None, None, 2)] * rank)]
    axes = tuple(range(-rank, 0))
    for name, function in (("Max", np.max), ("Average", np.mean)):
        layer = getattr(layers, f"{name}Pooling{rank}D")(3, strides=2, data_format=data_format)
        found = layer(given)
        found = to_last(found) if data_format == FIRST else found
        np.testing.assert_allclose(found, function(windows, axis=axes), rtol=1e-5, atol=1e-6)
        everything = getattr(layers, f"Global{name}Pooling{rank}D")(data_format=data_format, keepdims=True)
        spatial = tuple(range(1, rank + 1))
        found = everything(given)
        found = to_last(found) if data_format == FIRST else found
        np.testing.assert_allclose(found, function(x, axis=spatial, keepdims=True), rtol=1e-5, atol=1e-6)


def test_adaptive_pooling_of_an_unknown_size() -> None:
    layer = layers.AdaptiveMaxPooling1D(3)
    x = np.arange(7, dtype="float32").reshape(1, 7, 1)
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, None, 1), "float32")
        y = layer(symbol)
        assert y.shape == (None, 3, 1)
        found = ab.Session().run(y, {symbol: x})
    np.testing.assert_array_equal(found[0, :, 0], [2, 4, 6])


def test_cells_outside_do_not_count() -> None:
    x = np.full((1, 3, 1), -2.0, "float32")
    np.testing.assert_array_equal(layers.AveragePooling1D(2, padding="same")(x), np.full((1, 2, 1), -2))
    np.testing.assert_array_equal(layers.MaxPooling1D(2, padding="same")(x), np.full((1, 2, 1), -2))


def test_nan_is_passed_on() -> None:
    x = np.array([[[1.0], [np.nan], [3.0], [4.0]]], "float32")
    np.testing.assert_array_equal(layers.MaxPooling1D(2)(x)[0, :, 0], [np.nan, 4])
    np.testing.assert_array_equal(layers.AveragePooling1D(2)(x)[0, :, 0], [np.nan, 3.5])
    np.testing.assert_array_equal(layers.Conv1D(1, 2, kernel_initializer="ones")(x)[0, :, 0], [np.nan, np.nan, 7])


def test_masked_mean_ignores_masked_values_whatever_they_are() -> None:
    x = np.array([[[1.0], [np.nan], [3.0]], [[np.inf], [5.0], [np.nan]]], "float32")
    mask = np.array([[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(layers.GlobalAveragePooling1D()(x, mask=mask), [[2], [5]])
    first = layers.GlobalAveragePooling1D(data_format=FIRST, keepdims=True)
    np.testing.assert_array_equal(first(to_first(x), mask=mask), [[[2]], [[5]]])
    nothing = layers.GlobalAveragePooling1D()(x[:1], mask=np.zeros((1, 3), bool))
    assert np.isnan(nothing).all()


def test_mask_from_an_embedding_reaches_the_mean() -> None:
    table = np.array([[9.0], [1.0], [3.0]], "float32")
    model = ab.Sequential([layers.Embedding(3, 1, mask_zero=True, weights=[table]), layers.GlobalAveragePooling1D()])
    np.testing.assert_array_equal(model(np.array([[1, 2, 0, 0], [2, 0, 0, 0]])), [[2], [3]])


def test_integers_are_pooled() -> None:
    x = np.array([[[1], [4], [2], [3]]], "int32")
    found = layers.MaxPooling1D(2)(x)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found[0, :, 0], [4, 3])


# --- ends and sizes -------------------------------------------------------------------------------------------------

ends = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=examples(5, 15), deadline=None, derandomize=True, database=None)
@given(st.data(), st.integers(2, 3), st.booleans())
def test_cropping_takes_away_what_padding_adds(draw: Any, rank: int, first: bool) -> None:
    pairs = tuple(draw.draw(ends) for _ in range(rank))
    data_format = FIRST if first else "channels_last"
    x = np.abs(data(2, *(2, 3, 4)[:rank], 2)) + 1
    grown = getattr(layers, f"ZeroPadding{rank}D")(pairs, data_format=data_format)(x)
    added = np.array([0, 0, *map(sum, pairs)] if first else [0, *map(sum, pairs), 0])
    np.testing.assert_array_equal(np.array(grown.shape) - x.shape, added)
    assert np.count_nonzero(grown) == x.size
    np.testing.assert_array_equal(getattr(layers, f"Cropping{rank}D")(pairs, data_format=data_format)(grown), x)


def test_padding_and_cropping_of_steps() -> None:
    x = data(2, 3, 4)
    grown = layers.ZeroPadding1D((2, 0))(x)
    np.testing.assert_array_equal(grown, np.pad(x, [(0, 0), (2, 0), (0, 0)]))
    np.testing.assert_array_equal(layers.Cropping1D((2, 0))(grown), x)
    np.testing.assert_array_equal(layers.ZeroPadding1D(1, FIRST)(x), np.pad(x, [(0, 0), (0, 0), (1, 1)]))


def test_cropping_of_unknown_sizes() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, None, None, 2), "float32")
        y = layers.Cropping2D(((1, 2), (0, 1)))(x)
        array = data(2, 6, 5, 2)
        np.testing.assert_array_equal(ab.Session().run(y, {x: array}), array[:, 1:-2, :-1])


def test_upsampling_repeats() -> None:
    x = data(2, 2, 3, 4, 2)
    np.testing.assert_array_equal(layers.UpSampling1D(3)(x[:, 0, 0]), x[:, 0, 0].repeat(3, 1))
    np.testing.assert_array_equal(layers.UpSampling2D((2, 3))(x[:, 0]), x[:, 0].repeat(2, 1).repeat(3, 2))
    expected = x.repeat(2, 2).repeat(3, 3).repeat(2, 4)
    np.testing.assert_array_equal(layers.UpSampling3D((2, 3, 2), FIRST)(x), expected)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("data_format", ["channels_last", FIRST])
def test_upsampling_of_unknown_sizes(interpolation: str, data_format: str) -> None:
    layer = layers.UpSampling2D((3, 2), data_format, interpolation)
    arrays = [data(*shape) for shape in ((2, 5, 4, 3), (1, 1, 2, 1), (0, 2, 3, 2))]
    expected = [layer(array) for array in arrays]
    with ab.Graph().as_default():
        x = ab.placeholder((None, None, None, None), "float32")
        y = layer(x)
        session = ab.Session(get_default_graph())
        for array, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(session.run(y, {x: array}), wanted, rtol=1e-4, atol=1e-5)


def test_upsampling_of_integers_rounds() -> None:
    layer = layers.UpSampling2D((1, 2), interpolation="bilinear")
    array = np.array([[[[0], [10], [255]]]], "uint8")
    expected = layer(array)
    assert expected.dtype == np.uint8
    np.testing.assert_array_equal(expected[0, 0, :, 0], [0, 2, 8, 71, 194, 255])
    with ab.Graph().as_default():
        x = ab.placeholder((None, None, None, 1), "uint8")
        found = ab.Session().run(layer(x), {x: array})
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (lambda: layers.Conv1D(4, 3, padding="causal", strides=2), (None, 7, 2), (None, 4, 4)),
        (lambda: layers.Conv1D(4, 3), (None, None, 2), (None, None, 4)),
        (lambda: layers.Conv2D(4, 3), (None, 8, None, 2), (None, 6, None, 4)),
        (lambda: layers.Conv2D(4, 3, data_format=FIRST), (5, 2, 8, 7), (5, 4, 6, 5)),
        (lambda: layers.Conv3D(4, (1, 2, 3), padding="same"), (None, 3, 4, 5, 2), (None, 3, 4, 5, 4)),
        (lambda: layers.Conv2DTranspose(4, 3, 2), (None, 4, 5, 2), (None, 9, 11, 4)),
        (lambda: layers.Conv2DTranspose(4, 3, 2, "same"), (None, None, 5, 2), (None, None, 10, 4)),
        (lambda: layers.DepthwiseConv2D(3, depth_multiplier=3), (None, 4, 5, 2), (None, 2, 3, 6)),
        (lambda: layers.MaxPooling2D(), (None, 5, None, 2), (None, 2, None, 2)),
        (lambda: layers.AveragePooling3D(2, padding="same"), (None, 3, 4, 5, 2), (None, 2, 2, 3, 2)),
        (lambda: layers.GlobalMaxPooling3D(), (None, None, None, None, 2), (None, 2)),
        (lambda: layers.ZeroPadding2D(2), (None, 3, None, 2), (None, 7, None, 2)),
        (lambda: layers.Cropping3D(1), (None, 3, 4, None, 2), (None, 1, 2, None, 2)),
        (lambda: layers.UpSampling2D(2), (None, 3, None, 2), (None, 6, None, 2)),
        (lambda: layers.UpSampling2D(2, interpolation="bilinear"), (None, 3, 4, 2), (None, 6, 8, 2)),
        (lambda: layers.ConvLSTM2D(4, 3, strides=2, return_sequences=True), (None, None, 7, 5, 2), None),
    ],
)
def test_output_shapes(layer: Any, shape: Any, expected: Any) -> None:
    expected = expected or (None, None, 3, 2, 4)
    assert tuple(layer().compute_output_shape(shape)) == expected


@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv2D(3, 2),
        layers.Conv2DTranspose(3, 2),
        layers.SeparableConv2D(3, 2),
        layers.MaxPooling2D(2),
        layers.GlobalAveragePooling2D(),
        layers.UpSampling2D(2, interpolation="bicubic"),
        layers.SpatialDropout2D(0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_batch_of_nothing(layer: Any) -> None:
    full, none = layer(data(2, 4, 5, 3)), layer(data(2, 4, 5, 3)[:0])
    assert none.shape == (0, *full.shape[1:])


# --- dropout and masks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("data_format", ["channels_last", FIRST])
def test_spatial_dropout_drops_whole_channels(rank: int, data_format: str) -> None:
    make = getattr(layers, f"SpatialDropout{rank}D")
    x = np.ones((20, *(3, 2, 2)[:rank], 10), "float32")
    dropped = make(0.25, data_format, seed=3)(to_first(x) if data_format == FIRST else x, training=True)
    channels = to_last(dropped) if data_format == FIRST else dropped
    kept = channels.reshape(20, -1, 10)
    np.testing.assert_array_equal(kept, np.repeat(kept[:, :1], kept.shape[1], axis=1))
    assert np.mean(kept == 0) == pytest.approx(0.25, abs=0.1)
    np.testing.assert_allclose(kept[kept != 0], 4 / 3, rtol=1e-6)
    np.testing.assert_array_equal(make(0.25, data_format)(x), x)


@pytest.mark.parametrize("layer", [layers.Conv1D(2, 1), layers.MaxPooling1D(1), layers.ZeroPadding1D(1)])
def test_a_mask_that_gets_lost_is_warned_of(layer: Any) -> None:
    with ab.Graph().as_default():
        x = layers.Masking()(ab.constant(data(2, 3, 2)))
        with pytest.warns(UserWarning, match="was given an input with a mask, which it does not support"):
            layer(x)
