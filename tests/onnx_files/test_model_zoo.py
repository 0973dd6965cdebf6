"""Many kinds of layers and decoders as ONNX files in onnxruntime, at several sizes, and imported again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import assert_same  # noqa: F401 - skips without onnxruntime

import anabranch as ab
from anabranch import layers

SEQUENCES = [(2, 3, 8), (1, 1, 8), (3, 0, 8)]
IMAGES = [(2, 8, 8, 3), (1, 8, 8, 3)]


def of(shape: tuple[int | None, ...], *parts: Any, dtype: str = "float32") -> ab.Model:
    return ab.Sequential([ab.Input(shape, dtype=dtype, name="x"), *parts])


def over_sequences(call: Callable[[Any], Any]) -> ab.Model:
    x = ab.Input((None, 8), name="x")
    return ab.Model(x, call(x))


def attend(layer: Any, **options: Any) -> ab.Model:
    return over_sequences(lambda x: layer(x, x, **options))


def experts(**options: Any) -> Any:
    return layers.MixtureOfExperts(4, lambda: layers.Dense(4), noisy=False, **options)


def ponder(cell: Any) -> ab.Model:
    act = layers.AdaptiveComputationTime(cell, max_steps=4)
    return over_sequences(layers.RNN(act, return_sequences=True))


MODELS: dict[str, tuple[Callable[[], ab.Model], list[tuple[int, ...]]]] = {
    "layer norm": (lambda: over_sequences(layers.LayerNormalization()), SEQUENCES),
    "rms norm": (lambda: over_sequences(layers.RMSNormalization()), SEQUENCES),
    "group norm": (lambda: of((8, 8, 4), layers.GroupNormalization(2)), [(2, 8, 8, 4)]),
    "unit norm": (lambda: over_sequences(layers.UnitNormalization()), SEQUENCES),
    "attention of heads": (lambda: attend(layers.MultiHeadAttention(2, 4)), SEQUENCES),
    "causal attention": (lambda: attend(layers.MultiHeadAttention(2, 4), use_causal_mask=True), SEQUENCES),
    "grouped heads": (lambda: attend(layers.GroupQueryAttention(4, 4, 2)), SEQUENCES),
    "attention": (lambda: over_sequences(lambda x: layers.Attention()([x, x])), SEQUENCES),
    "additive attention": (lambda: over_sequences(lambda x: layers.AdditiveAttention()([x, x])), SEQUENCES),
    "einsum": (
        lambda: over_sequences(layers.EinsumDense("abc,cd->abd", output_shape=(None, 4), bias_axes="d")),
        SEQUENCES,
    ),
    "encoder": (lambda: over_sequences(layers.TransformerEncoder(16, 2)), SEQUENCES),
    "decoder": (lambda: over_sequences(layers.TransformerDecoder(16, 2)), SEQUENCES),
    "positions": (lambda: of((6, 8), layers.PositionEmbedding(6)), [(2, 6, 8)]),
    "rotary": (lambda: over_sequences(layers.RotaryEmbedding()), SEQUENCES),
    "conv": (lambda: of((8, 8, 3), layers.Conv2D(4, 3, strides=2, padding="same")), IMAGES),
    "dilated": (lambda: of((8, 8, 3), layers.Conv2D(4, 3, dilation_rate=2)), IMAGES),
    "open conv": (
        lambda: of((None, None, 3), layers.Conv2D(4, 3, strides=2, padding="same")),
        [(2, 8, 8, 3), (1, 7, 9, 3)],
    ),
    "depthwise": (lambda: of((8, 8, 3), layers.DepthwiseConv2D(3, depth_multiplier=2)), IMAGES),
    "separable": (lambda: of((8, 8, 3), layers.SeparableConv2D(4, 3)), IMAGES),
    "transposed": (lambda: of((8, 8, 3), layers.Conv2DTranspose(4, 3, strides=2, padding="same")), IMAGES),
    "transposed, valid": (lambda: of((8, 8, 3), layers.Conv2DTranspose(4, 3, strides=2)), IMAGES),
    "causal conv": (lambda: over_sequences(layers.Conv1D(4, 3, padding="causal", dilation_rate=2)), SEQUENCES[:1]),
    "volume": (lambda: of((4, 4, 4, 2), layers.Conv3D(3, 2)), [(2, 4, 4, 4, 2)]),
    "max pool": (lambda: of((8, 8, 3), layers.MaxPooling2D(3, 2, padding="same")), IMAGES),
    "average pool": (lambda: of((8, 8, 3), layers.AveragePooling2D(3, 2, padding="same")), IMAGES),
    "global pools": (lambda: of((8, 8, 3), layers.GlobalMaxPooling2D()), IMAGES),
    "adaptive pool": (lambda: of((8, 8, 3), layers.AdaptiveAveragePooling2D(3)), IMAGES),
    "larger": (lambda: of((8, 8, 3), layers.UpSampling2D(2)), IMAGES),
    "larger, bilinear": (lambda: of((8, 8, 3), layers.UpSampling2D(2, interpolation="bilinear")), IMAGES),
    "resized": (lambda: of((8, 8, 3), layers.Resizing(5, 6)), IMAGES),
    "padded": (lambda: of((8, 8, 3), layers.ZeroPadding2D(1), layers.Cropping2D(2)), IMAGES),
    "batch norm": (lambda: of((8, 8, 3), layers.BatchNormalization()), IMAGES),
    "spectral norm": (lambda: of((8,), layers.SpectralNormalization(layers.Dense(3))), [(2, 8)]),
    "prelu": (lambda: over_sequences(layers.PReLU(shared_axes=[1])), SEQUENCES),
    "shapes": (
        lambda: of((6, 4), layers.Reshape((-1, 2)), layers.Permute((2, 1)), layers.Flatten(), layers.RepeatVector(3)),
        [(2, 6, 4)],
    ),
    "scaled": (
        lambda: of((8, 8, 3), layers.Rescaling(0.1), layers.Normalization(mean=[0.0, 0, 0], variance=[1.0, 1, 1])),
        IMAGES,
    ),
    "bins": (lambda: of((4,), layers.Discretization([0.0, 1.0])), [(3, 4)]),
    "dropout": (lambda: of((4,), layers.Dropout(0.5), layers.GaussianNoise(0.1)), [(3, 4)]),
    "convlstm": (lambda: of((4, 6, 3), layers.ConvLSTM1D(3, 2)), [(2, 4, 6, 3)]),
    "states": (lambda: over_sequences(layers.LSTM(3, return_state=True, return_sequences=True)), SEQUENCES),
    "experts": (lambda: of((8,), experts(k=2)), [(3, 8)]),
    "experts of a capacity": (lambda: of((8,), experts(k=1, capacity_factor=1.0)), [(5, 8)]),
    "ponder": (lambda: ponder(layers.SimpleRNNCell(4)), SEQUENCES),
    "ponder, lstm": (lambda: ponder(layers.LSTMCell(4)), SEQUENCES),
}
FEW = ("causal attention", "conv", "experts", "ponder")


def batch_of(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def compare(model: ab.Model, path: Path, shapes: list[tuple[int, ...]], opsets: tuple[int, ...]) -> None:
    for opset in opsets:
        model.export(path, "onnx", verbose=False, opset_version=opset)
        for shape in shapes:
            ab.onnx.check(model, path, batch_of(shape))
    layer = ab.onnx.load(path)
    for shape in shapes:
        found, wanted = layer(batch_of(shape)), model(batch_of(shape))
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        for a, b in pairs:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-4, 1e-5)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.slow) for n in MODELS])
def test_model_in_onnxruntime_and_again(name: str, tmp_path: Path) -> None:
    ab.utils.set_random_seed(5)
    make, shapes = MODELS[name]
    compare(make(), tmp_path / "m.onnx", shapes, (21,) if name in FEW else (18, 21, 23))


class Decoding(ab.Model):
    """Decodes greedily or by beams, by a table of logits."""

    def __init__(self, beams: int) -> None:
        super().__init__()
        self.beams = beams
        self.table = layers.Embedding(5, 5)

    def call(self, x: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            return self.table(tokens) + states, states

        options = {"start_token": 1, "end_token": 0, "max_length": 6}
        if self.beams == 1:
            return ab.decoding.greedy_search(step, x, **options)[0]
        return ab.decoding.beam_search(step, x, beam_width=self.beams, **options)[0]


@pytest.mark.parametrize("beams", [1, 3])
def test_decoding_whose_rows_end_one_by_one(beams: int, tmp_path: Path) -> None:
    """The values written in each step have as many rows as go on: sequences, and no scan outputs."""
    ab.utils.set_random_seed(6)
    model = Decoding(beams)
    model(batch_of((2, 5)))
    signature = [ab.InputSpec(shape=(None, 5), dtype="float32", name="x")]
    model.export(tmp_path / "m.onnx", "onnx", verbose=False, input_signature=signature)
    for rows in (1, 2, 7, 0):
        ab.onnx.check(model, tmp_path / "m.onnx", 3 * batch_of((rows, 5)))
    x = ab.Input((5,), name="x")
    again = ab.Model(x, ab.onnx.load(tmp_path / "m.onnx")(x))
    again.export(tmp_path / "again.onnx", "onnx", verbose=False)
    for rows in (1, 2, 7, 0):
        given = 3 * batch_of((rows, 5))
        np.testing.assert_array_equal(np.asarray(again(given)), np.asarray(model(given)))
        ab.onnx.check(again, tmp_path / "again.onnx", given)


@pytest.mark.parametrize("kind", ["string", "int64"])
def test_lookups(kind: str, tmp_path: Path) -> None:
    words: Any = ["b", "c", "a"] if kind == "string" else [5, 3, 9]
    layer = (layers.StringLookup if kind == "string" else layers.IntegerLookup)(vocabulary=words)
    model = of((2,), layer, dtype=kind)
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    ab.onnx.check(model, tmp_path / "m.onnx", np.array([words[:2], [words[2], "zz" if kind == "string" else 7]]))


def test_order_of_texts_is_refused(tmp_path: Path) -> None:
    x = ab.placeholder((None,), "string")
    places = ab.ops.searchsorted(ab.constant(["a", "c"]), x)
    with pytest.raises(ab.onnx.OnnxError, match="does not order texts"):
        ab.onnx.export_graph(tmp_path / "m.onnx", {"x": x}, {"y": places})


# --- ONNX's operators for recurrent networks ------------------------------------------------------------------------

OPERATORS: dict[str, tuple[Callable[[], Any], str]] = {
    "lstm": (lambda: layers.LSTM(4, return_sequences=True, bias_initializer="normal"), "LSTM"),
    "lstm, no bias": (lambda: layers.LSTM(4, use_bias=False), "LSTM"),
    "lstm, backwards": (lambda: layers.LSTM(4, go_backwards=True, return_sequences=True), "LSTM"),
    "gru": (lambda: layers.GRU(4, return_sequences=True, bias_initializer="normal"), "GRU"),
    "gru, backwards": (lambda: layers.GRU(4, go_backwards=True, return_sequences=True), "GRU"),
    "gru, reset before": (lambda: layers.GRU(4, reset_after=False, bias_initializer="normal"), "GRU"),
    "gru, no bias": (lambda: layers.GRU(4, use_bias=False), "GRU"),
    "simple": (lambda: layers.SimpleRNN(4, bias_initializer="normal"), "RNN"),
    "simple, relu": (lambda: layers.SimpleRNN(4, activation="relu", return_sequences=True), "RNN"),
    "other activation": (lambda: layers.LSTM(4, activation="softsign"), "Loop"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_recurrent_layer_is_onnx_operator(name: str, tmp_path: Path) -> None:
    """No steps and no samples too, for which onnxruntime gives zeros or ends the process."""
    import onnx

    ab.utils.set_random_seed(7)
    make, op_type = OPERATORS[name]
    model = over_sequences(make())
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    used = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert used & {"LSTM", "GRU", "RNN", "Loop"} == {op_type}
    for shape in [*SEQUENCES, (0, 3, 8)]:
        ab.onnx.check(model, tmp_path / "m.onnx", batch_of(shape))
    layer = ab.onnx.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        np.asarray(layer(batch_of((2, 3, 8)))), np.asarray(model(batch_of((2, 3, 8)))), 1e-4, 1e-5
    )


def test_masked_recurrent_layer_stays_a_loop(tmp_path: Path) -> None:
    import onnx

    model = of((None, 8), layers.Masking(), layers.LSTM(4))
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    used = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert used & {"LSTM", "Loop"} == {"Loop"}


def test_given_first_states_of_no_steps_are_the_last_ones(tmp_path: Path) -> None:
    x, h, c = ab.Input((None, 8), name="x"), ab.Input((4,), name="h"), ab.Input((4,), name="c")
    model = ab.Model([x, h, c], layers.LSTM(4, return_state=True)(x, initial_state=[h, c]))
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    for steps in (0, 3):
        ab.onnx.check(model, tmp_path / "m.onnx", [batch_of((2, steps, 8)), batch_of((2, 4)), batch_of((2, 4))])
