"""Convolutions and ConvLSTM beyond the golden data; configs and refusals of all layers along spatial axes."""

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers
from golden.loader import LayerCase, load_cases

CASES = load_cases("convolution_layers")
FIRST = "channels_first"


def data(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def to_last(x: Any) -> Any:
    return np.moveaxis(x, 1, -1)


def to_first(x: Any) -> Any:
    return np.moveaxis(x, -1, 1)


# --- configs --------------------------------------------------------------------------------------------------------


def plain(config: Any) -> Any:
    """A config without options, of the objects in it, too, that are not set."""
    if not isinstance(config, dict):
        return config
    return {name: plain(value) for name, value in config.items() if value is not None}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_configs_are_those_of_keras(case: LayerCase) -> None:
    layer = case.build(ab.layers)
    config = json.loads(json.dumps(layers.serialize(layer)["config"]))
    config = {name: value for name, value in config.items() if name not in ("name", "dtype")}
    assert set(config) == set(case.config)
    assert plain(config) == plain(case.config)
    again = type(layer).from_config(case.config)
    assert {**again.get_config(), "name": layer.name} == layer.get_config()


@pytest.mark.parametrize(
    ("layer", "leftover"),
    [
        (layers.DepthwiseConv2D(3), {"groups": 1}),
        (layers.Conv2DTranspose(2, 3), {"groups": 1}),
        (layers.ConvLSTM2D(2, 3), {"time_major": False}),
        (layers.SeparableConv1D(2, 3), {"groups": 1, "kernel_initializer": None, "kernel_constraint": None}),
    ],
)
def test_configs_of_keras_2_are_read(layer: Any, leftover: Any) -> None:
    again = type(layer).from_config({**layer.get_config(), **leftover})
    assert again.get_config() == layer.get_config()


def test_options_of_keras_2_that_would_change_a_layer_are_refused() -> None:
    with pytest.raises(TypeError, match="groups"):
        layers.DepthwiseConv2D.from_config({**layers.DepthwiseConv2D(3).get_config(), "groups": 2})
    with pytest.raises(TypeError, match="groups"):
        layers.SeparableConv1D.from_config({**layers.SeparableConv1D(2, 3).get_config(), "groups": 2})


def test_aliases() -> None:
    for rank in "123":
        for alias, name in (
            ("Convolution{}D", "Conv{}D"),
            ("Convolution{}DTranspose", "Conv{}DTranspose"),
            ("MaxPool{}D", "MaxPooling{}D"),
            ("AvgPool{}D", "AveragePooling{}D"),
            ("GlobalAvgPool{}D", "GlobalAveragePooling{}D"),
            ("GlobalMaxPool{}D", "GlobalMaxPooling{}D"),
        ):
            assert getattr(layers, alias.format(rank)) is getattr(layers, name.format(rank))
    assert layers.SeparableConvolution1D is layers.SeparableConv1D
    assert layers.SeparableConvolution2D is layers.SeparableConv2D


def test_arguments_by_position() -> None:
    """In Keras's order, which differs for the transposed convolutions."""
    assert layers.Conv2D(2, 3, 2, "same", FIRST, 1, 2, "relu").groups == 2
    assert layers.Conv2DTranspose(2, 3, 2, "same", 1, FIRST).output_padding == (1, 1)
    assert layers.Conv3DTranspose(2, 3, 2, "same", FIRST, 1).output_padding == (1, 1, 1)
    assert layers.DepthwiseConv2D(3, 2, "same", 4, FIRST).depth_multiplier == 4
    assert layers.SeparableConv2D(2, 3, 1, "same", FIRST, 2, 4).depth_multiplier == 4
    assert list(inspect.signature(layers.AveragePooling2D).parameters) == [
        *("pool_size", "strides", "padding", "data_format", "name", "kwargs")
    ]


# --- convolutions ---------------------------------------------------------------------------------------------------


def padded(x: Any, kernel: Any, strides: Any, dilation: Any, padding: str) -> Any:
    """Zeros around `x`, channels last, as the padding asks for."""
    widths = [(0, 0)]
    for axis, stride in enumerate(strides):
        reach = (kernel.shape[axis] - 1) * dilation[axis] + 1
        size = x.shape[axis + 1]
        total = max((-(-size // stride) - 1) * stride + reach - size, 0) if padding == "same" else 0
        widths.append((reach - 1, 0) if padding == "causal" else (total // 2, total - total // 2))
    return np.pad(x, [*widths, (0, 0)])


def convolved(x: Any, kernel: Any, strides: Any, dilation: Any, padding: str, groups: int) -> Any:
    """The definition of a convolution, window by window, channels last."""
    x = padded(x, kernel, strides, dilation, padding)
    rank, filters = len(strides), kernel.shape[-1]
    reach = [(kernel.shape[axis] - 1) * dilation[axis] + 1 for axis in range(rank)]
    counts = [(x.shape[axis + 1] - reach[axis]) // strides[axis] + 1 for axis in range(rank)]
    result = np.zeros((x.shape[0], *counts, filters))
    wide, narrow = kernel.shape[-2], filters // groups
    for place in itertools.product(*map(range, counts)):
        starts = [p * s for p, s in zip(place, strides, strict=True)]
        cells = [slice(b, b + r, d) for b, r, d in zip(starts, reach, dilation, strict=True)]
        window = x[(slice(None), *cells)]
        for group in range(groups):
            part = kernel[..., group * narrow : (group + 1) * narrow]
            result[(slice(None), *place, slice(group * narrow, (group + 1) * narrow))] = np.tensordot(
                window[..., group * wide : (group + 1) * wide], part, rank + 1
            )
    return result


@st.composite
def conv_arguments(draw: Any) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    per_axis = st.lists(st.integers(1, 3), min_size=rank, max_size=rank).map(tuple)
    strided = draw(st.booleans())
    groups = draw(st.integers(1, 2))
    return {
        "rank": rank,
        "filters": groups * draw(st.integers(1, 2)),
        "kernel_size": draw(per_axis),
        "strides": draw(per_axis) if strided else 1,
        "dilation_rate": 1 if strided else draw(per_axis),
        "padding": draw(st.sampled_from(["valid", "same", "causal"] if rank == 1 else ["valid", "same"])),
        "groups": groups,
        "data_format": draw(st.sampled_from(["channels_last", FIRST])),
        "use_bias": draw(st.booleans()),
    }


@settings(max_examples=examples(6, 25), deadline=None, derandomize=True, database=None)
@given(conv_arguments())
def test_convolution_is_its_definition(arguments: dict[str, Any]) -> None:
    rank = arguments.pop("rank")
    layer = getattr(layers, f"Conv{rank}D")(**arguments, dtype="float64", bias_initializer="random_normal")
    x = data(2, *(7, 8, 7)[:rank], 2 * layer.groups, dtype="float64")
    found = layer(to_first(x) if layer.data_format == FIRST else x)
    expected = convolved(x, layer.kernel.numpy(), layer.strides, layer.dilation_rate, layer.padding, layer.groups)
    if layer.bias is not None:
        expected = expected + layer.bias.numpy()
    np.testing.assert_allclose(to_last(found) if layer.data_format == FIRST else found, expected, rtol=1e-9, atol=1e-9)
    shape = (None, *(to_first(x) if layer.data_format == FIRST else x).shape[1:])
    assert layer.compute_output_shape(shape) == (None, *found.shape[1:])


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("strides", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 1)])
def test_transposed_convolution_is_the_adjoint(padding: str, strides: int, dilation: int) -> None:
    """``<conv(x), y> == <x, transposed(y)>``, where a stride does not leave cells of x out."""
    options: dict[str, Any] = {"strides": strides, "dilation_rate": dilation, "padding": padding, "use_bias": False}
    transposed = layers.Conv2DTranspose(2, 3, **options, dtype="float64")
    y = data(2, 4, 5, 3, dtype="float64")
    back = np.asarray(transposed(y))
    x = data(*back.shape, dtype="float64")
    conv = layers.Conv2D(3, 3, **options, dtype="float64")
    conv.build(x.shape)
    conv.set_weights(transposed.get_weights())
    np.testing.assert_allclose(np.vdot(conv(x), y), np.vdot(x, back), rtol=1e-10)


@pytest.mark.parametrize("rank", [1, 2])
def test_separable_convolution_is_two(rank: int) -> None:
    x = data(2, *(6, 5)[:rank], 3, dtype="float64")
    separable = getattr(layers, f"SeparableConv{rank}D")(4, 2, depth_multiplier=2, padding="same", dtype="float64")
    expected = separable(x)
    depthwise, pointwise, bias = separable.get_weights()
    first = getattr(layers, f"DepthwiseConv{rank}D")(
        2, depth_multiplier=2, padding="same", use_bias=False, dtype="float64"
    )
    first.build(x.shape)
    first.set_weights([depthwise])
    np.testing.assert_allclose(first(x) @ pointwise.reshape(6, 4) + bias, expected, rtol=1e-10)


def test_depthwise_convolution_is_one_with_a_group_for_each_channel() -> None:
    x = data(2, 6, 5, 3, dtype="float64")
    depthwise = layers.DepthwiseConv2D(2, depth_multiplier=2, strides=2, dtype="float64")
    expected = depthwise(x)
    grouped = layers.Conv2D(6, 2, strides=2, groups=3, dtype="float64")
    grouped.build(x.shape)
    kernel, bias = depthwise.get_weights()
    grouped.set_weights([kernel.reshape(2, 2, 1, 6), bias])
    np.testing.assert_allclose(grouped(x), expected, rtol=1e-12)


def test_causal_outputs_do_not_depend_on_later_steps() -> None:
    layer = layers.Conv1D(2, 3, padding="causal", dilation_rate=2)
    x = data(1, 9, 2)
    changed = np.concatenate([x[:, :5], data(1, 4, 2) + 1], axis=1)
    before, after = layer(x), layer(changed)
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert not np.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv2D(2, 2, strides=2, padding="same", activation="tanh", dtype="float64"),
        layers.Conv2DTranspose(2, 3, strides=2, activation="tanh", dtype="float64"),
        layers.DepthwiseConv2D(2, activation="tanh", dtype="float64"),
        layers.SeparableConv2D(2, 2, data_format=FIRST, dtype="float64"),
        layers.AveragePooling2D(2, strides=1, padding="same", dtype="float64"),
        layers.UpSampling2D(2, interpolation="bicubic", dtype="float64"),
        layers.ZeroPadding2D(1, dtype="float64"),
        layers.Cropping2D(((1, 0), (0, 1)), dtype="float64"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients_against_finite_differences(layer: Any) -> None:
    check_layer_gradients(layer, data(1, 3, 4, 2, dtype="float64"), rtol=1e-6, known=(None, 3, 4, 2))


def test_penalties_and_constraints_reach_the_weights() -> None:
    layer = layers.SeparableConv1D(
        2,
        2,
        depthwise_initializer="ones",
        pointwise_initializer="ones",
        depthwise_regularizer="l1",
        pointwise_regularizer=ab.regularizers.L2(0.5),
        bias_constraint="non_neg",
        activity_regularizer="l2",
    )
    layer(data(1, 4, 3))
    activity, *penalties = layer.losses
    assert float(activity) > 0
    with ab.Graph().as_default():
        values = ab.Session().run(layer.losses[-2:])
    np.testing.assert_allclose(values, [0.01 * 6, 0.5 * 6], rtol=1e-6)
    assert len(penalties) == 2
    assert [type(weight.constraint).__name__ for weight in layer.weights] == ["NoneType", "NoneType", "NonNeg"]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    x = data(2, 3, 6, 3)
    for make in (lambda dtype: layers.Conv2D(4, 3, dtype=dtype), lambda dtype: layers.ConvLSTM1D(4, 3, dtype=dtype)):
        full, mixed = make("float32"), make(policy)
        expected = full(x)
        mixed.build(x.shape)
        mixed.set_weights(full.get_weights())
        found = mixed(x)
        assert found.dtype.name == policy.removeprefix("mixed_")
        assert {weight.numpy().dtype.name for weight in mixed.weights} == {"float32"}
        np.testing.assert_allclose(found.astype("float32"), expected, rtol=0.05, atol=0.05)


# --- ConvLSTM -------------------------------------------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def conv_lstm(x: Any, layer: Any) -> Any:
    """All outputs of a `ConvLSTM2D` with channels last, step by step."""
    kernel, recurrent, bias = layer.get_weights()
    h = c = 0.0
    outputs = []
    for step in range(x.shape[1]):
        gates = convolved(x[:, step], kernel, layer.cell.strides, layer.cell.dilation_rate, layer.cell.padding, 1)
        gates = gates + bias
        if step:
            gates = gates + convolved(h, recurrent, (1, 1), (1, 1), "same", 1)
        i, f, candidate, o = np.split(gates, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, axis=1)


def test_conv_lstm_is_its_definition() -> None:
    layer = layers.ConvLSTM2D(2, (2, 3), strides=(2, 1), return_sequences=True, dtype="float64")
    x = data(2, 3, 5, 4, 2, dtype="float64")
    np.testing.assert_allclose(layer(x), conv_lstm(x, layer), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(layer.cell.bias.numpy(), [0, 0, 1, 1, 0, 0, 0, 0])


def test_conv_lstm_gradients_against_finite_differences() -> None:
    layer = layers.ConvLSTM1D(2, 2, padding="same", recurrent_initializer="glorot_uniform", dtype="float64")
    check_layer_gradients(layer, data(1, 3, 4, 2, dtype="float64"), rtol=1e-6, known=(None, 3, 4, 2))


def test_conv_lstm_goes_on_where_it_ended() -> None:
    x = data(2, 4, 3, 3, 2)
    layer = layers.ConvLSTM2D(2, 2, padding="same", return_state=True)
    expected = layer(x)
    _, *states = layer(x[:, :2])
    for found, wanted in zip(layer(x[:, 2:], initial_state=states), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    stateful = layers.ConvLSTM2D(2, 2, padding="same", stateful=True)
    stateful.build((2, 2, 3, 3, 2))
    stateful.set_weights(layer.get_weights())
    stateful(x[:, :2])
    np.testing.assert_allclose(stateful(x[:, 2:]), expected[0], rtol=1e-4, atol=1e-6)
    stateful.reset_state()
    np.testing.assert_allclose(stateful(x[:, :2]), layer(x[:, :2])[0], rtol=1e-4, atol=1e-6)


def test_masked_steps_of_a_conv_lstm_change_nothing() -> None:
    x = data(2, 3, 3, 3, 2)
    layer = layers.ConvLSTM2D(2, 2, padding="same")
    expected = layer(x)
    longer = np.concatenate([x[:, :1], np.full_like(x[:, :1], 7), x[:, 1:]], axis=1)
    mask = np.array([[True, False, True, True]] * 2)
    np.testing.assert_allclose(layer(longer, mask=mask), expected, rtol=1e-5, atol=1e-6)


def test_dropout_of_a_conv_lstm() -> None:
    x = data(2, 3, 4, 4, 4)
    options: dict[str, Any] = {"padding": "same", "data_format": FIRST, "return_sequences": True}
    dropping = layers.ConvLSTM2D(4, 2, dropout=0.4, recurrent_dropout=0.3, seed=5, **options)
    first = dropping(x, training=True)
    assert not np.allclose(first, dropping(x, training=True))
    plain = layers.ConvLSTM2D(4, 2, **options)
    plain(x)
    plain.set_weights(dropping.get_weights())
    np.testing.assert_array_equal(dropping(x), plain(x))
    again = layers.ConvLSTM2D(4, 2, dropout=0.4, recurrent_dropout=0.3, seed=5, **options)
    again.build(x.shape)
    again.set_weights(dropping.get_weights())
    np.testing.assert_array_equal(again(x, training=True), first)
    # The same cells are dropped at each step: without a state to carry on, equal steps give equal outputs.
    steps = layers.ConvLSTM2D(4, 2, dropout=0.4, recurrent_initializer="zeros", seed=5, **options)
    assert (steps.filters, steps.kernel_size, steps.strides) == (4, (2, 2), (1, 1))
    assert (steps.padding, steps.data_format, steps.dropout) == ("same", FIRST, 0.4)
    steps.build(x.shape)
    kernel, recurrent, bias = steps.get_weights()
    bias[4:8] = -1e9  # forget everything
    steps.set_weights([kernel, recurrent, bias])
    outputs = steps(np.repeat(x[:, :1], 3, axis=1), training=True)
    np.testing.assert_array_equal(outputs, np.repeat(outputs[:, :1], 3, axis=1))


def test_a_conv_lstm_cell_in_a_loop_of_ones_own() -> None:
    x = data(2, 3, 4, 2)
    cell = layers.ConvLSTMCell(1, 3, 2, padding="same")
    loop = layers.RNN(cell, return_sequences=True)
    named = layers.ConvLSTM1D(3, 2, padding="same", return_sequences=True)
    expected = named(x)
    loop.build(x.shape)
    loop.set_weights(named.get_weights())
    np.testing.assert_allclose(loop(x), expected, rtol=1e-6)
    again = layers.deserialize(layers.serialize(loop))
    assert again.get_config() == loop.get_config()


# --- models ---------------------------------------------------------------------------------------------------------


def test_a_model_learns_and_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (64, 1)).astype("float32")
    x = y[:, :, None, None] + rng.standard_normal((64, 8, 8, 1)).astype("float32")
    ab.utils.set_random_seed(1)
    model = ab.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer="l2"),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(4, 3, padding="same", activation="relu"),
            layers.Conv2DTranspose(2, 3, strides=2, padding="same"),
            layers.AveragePooling2D(2),
            layers.SpatialDropout2D(0.1),
            layers.Flatten(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(ab.optim.Adam(0.02), "binary_crossentropy")
    history = model.fit(x, y, batch_size=16, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


# --- refused --------------------------------------------------------------------------------------------------------

anything: Any = layers  # arguments of wrong types are given on purpose


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: anything.Conv2D(0, 3), "Conv2D: filters must be a positive integer, got filters=0"),
        (lambda: anything.Conv2D(4, 0), "Conv2D: kernel_size must be a positive integer, or a tuple of 2"),
        (lambda: anything.Conv2D(4, (3,)), r"Conv2D: kernel_size .* got kernel_size=\(3,\)"),
        (lambda: anything.Conv2D(4, "3"), "Conv2D: kernel_size .* got kernel_size='3'"),
        (lambda: anything.Conv2D(4, 2.5), "Conv2D: kernel_size .* got kernel_size=2.5"),
        (lambda: anything.Conv2D(4, True), "Conv2D: kernel_size .* got kernel_size=True"),
        (lambda: anything.Conv1D(4, 3, strides=-1), "Conv1D: strides must be a positive integer, got strides=-1"),
        (lambda: anything.Conv3D(4, 3, dilation_rate=(1, 2)), "Conv3D: dilation_rate .* tuple of 3"),
        (lambda: anything.Conv2D(4, 3, padding="causal"), "padding must be one of 'valid', 'same', got padding='causa"),
        (lambda: anything.Conv1D(4, 3, padding="full"), "one of 'valid', 'same', 'causal', got padding='full'"),
        (lambda: anything.Conv1D(4, 3, padding=1), "got padding=1"),
        (lambda: anything.Conv2D(4, 3, groups=3), "filters must be a multiple of groups, got filters=4, groups=3"),
        (lambda: anything.Conv2D(4, 3, groups=0), "groups must be a positive integer"),
        (lambda: anything.Conv2D(4, 3, data_format="NCHW"), "data_format must be 'channels_last'"),
        (lambda: anything.Conv2D(4, 3, strides=2, dilation_rate=2), "strides > 1 can't be combined with dilation_rate"),
        (lambda: anything.Conv2D(4, 3, activation="rellu"), "Unknown activation 'rellu'"),
        (lambda: anything.Conv2DTranspose(4, 3, 2, output_padding=2), "output_padding must be less than strides"),
        (lambda: anything.Conv2DTranspose(4, 3, 2, output_padding=-1), "output_padding must be an integer from 0 up"),
        (lambda: anything.DepthwiseConv2D(3, depth_multiplier=0), "depth_multiplier must be a positive integer"),
        (lambda: anything.SeparableConv2D(0, 3), "SeparableConv2D: filters must be"),
        (lambda: anything.MaxPooling2D(0), "MaxPooling2D: pool_size must be a positive integer"),
        (lambda: anything.MaxPooling2D(2, strides=(1, 2, 3)), "MaxPooling2D: strides must be"),
        (lambda: anything.AveragePooling1D(2, padding="causal"), "AveragePooling1D: padding must be one of"),
        (lambda: anything.AdaptiveMaxPooling2D((2, 0)), "AdaptiveMaxPooling2D: output_size must be"),
        (lambda: anything.ZeroPadding1D(-1), "ZeroPadding1D: padding must be an integer from 0 up, or a tuple of 2"),
        (lambda: anything.ZeroPadding2D((1, 2, 3)), "a tuple of 2 entries .* got padding="),
        (lambda: anything.ZeroPadding2D(((1, 2), (3, -1))), "padding of axis 1 must be an integer from 0 up"),
        (lambda: anything.ZeroPadding3D("1"), "padding of axis 0"),
        (lambda: anything.Cropping2D(((1, 1), (1, 1), (1, 1))), "Cropping2D: cropping must be an integer, or a tuple"),
        (lambda: anything.UpSampling1D(0), "UpSampling1D: size must be a positive integer"),
        (lambda: anything.UpSampling2D(2, interpolation="cubic"), "interpolation must be one of 'nearest', 'bilinear'"),
        (lambda: anything.SpatialDropout2D(1.5), r"SpatialDropout2D: rate must be within \[0, 1\]"),
        (lambda: anything.ConvLSTM2D(0, 3), "filters must be a positive integer"),
        (lambda: anything.ConvLSTM2D(4, (3, 3, 3)), "ConvLSTM2D: kernel_size must be"),
        (lambda: anything.ConvLSTM2D(4, 3, padding="causal"), "ConvLSTM2D: padding must be one of"),
        (lambda: anything.ConvLSTM2D(4, 3, strides=2, dilation_rate=2), "ConvLSTM2D: strides > 1 can't be combined"),
        (lambda: anything.ConvLSTMCell(4, 3, 3), "rank must be 1, 2 or 3, got rank=4"),
    ],
)
def test_refused_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            lambda **name: layers.Conv2D(4, 3, **name),
            (2, 8, 3),
            r"'odd' \(Conv2D\) takes inputs of shape \(batch, size_1",
        ),
        (
            lambda **name: layers.Conv1D(4, 3, **name),
            (2, 8),
            r"shape \(batch, steps, channels\), got input shape \(2, 8\)",
        ),
        (lambda **name: layers.Conv1D(4, 3, data_format=FIRST, **name), (2, 8), r"\(batch, channels, steps\)"),
        (lambda **name: layers.Conv2D(4, 3, groups=2, **name), (2, 8, 8, 3), "'odd'.*multiple of groups=2, got 3"),
        (lambda **name: layers.Conv2D(4, 9, **name), (2, 8, 8, 3), "A window of 9 cells does not fit into an axis of"),
        (lambda **name: layers.MaxPooling2D(9, **name), (2, 8, 8, 3), "does not fit into an axis of size 8"),
        (lambda **name: layers.MaxPooling2D(**name), (2, 8, 3), "'odd' .*expected ndim=4, got ndim=3"),
        (lambda **name: layers.GlobalMaxPooling3D(**name), (2, 8, 3), "'odd' .*expected ndim=5, got ndim=3"),
        (lambda **name: layers.Cropping2D(2, **name), (2, 4, 8, 3), "cropping must be less than the input's size"),
        (lambda **name: layers.UpSampling2D(2, **name), (2, 8, 3), "'odd' .*expected ndim=4, got ndim=3"),
        (lambda **name: layers.ConvLSTM2D(4, 3, **name), (2, 5, 8, 3), "takes inputs of shape"),
    ],
)
def test_refused_inputs(layer: Any, shape: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(name="odd")(data(*shape))


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (layers.Conv2D(4, 3), (None, 8, 8, None), "needs a known number of channels"),
        (layers.SeparableConv1D(4, 3, data_format=FIRST), (None, None, 8), r"\(batch, channels, steps\), to make its"),
        (layers.ConvLSTM2D(4, 3), (None, 5, None, 8, 3), "needs known spatial sizes of its input"),
    ],
)
def test_unknown_sizes_that_weights_need(layer: Any, shape: Any, message: str) -> None:
    with ab.Graph().as_default(), pytest.raises(ValueError, match=message):
        layer(ab.placeholder(shape, "float32"))


def test_another_number_of_channels_is_refused() -> None:
    layer = layers.Conv2D(4, 3, data_format=FIRST, name="first")
    layer(data(2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"'first' .*expected axis 1 of the input to have size 3, got size 5"):
        layer(data(2, 5, 8, 8))
