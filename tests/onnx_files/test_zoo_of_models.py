"""Whole models as ONNX files in onnxruntime, by batch size, length and opset, and imported and exported again.

Each of 1 and 3 rows is combined with 0, 1 and 4 steps; no rows come last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared.onnx_models import RECURRENT
from shared.onnx_runs import assert_same, run_file

import anabranch as ab
from anabranch import applications, layers, ops, pretrained

FOLDERS = Path(__file__).parent.parent / "golden" / "files" / "pretrained"
BATCHES, STEPS = (1, 3), (0, 1, 4)
WORDS = 7
Shape = tuple[int | None, ...]
QUICK = ("lstm, zoneout", "beam search", "experts and attention", "resnet_basic")


class Case(NamedTuple):
    """A model, and its inputs by name: their shapes, in which 2 stands for an unknown number of steps, and dtypes."""

    make: Callable[[], Any]
    inputs: Mapping[str, tuple[Shape, str]]
    sizes: tuple[int, ...] = STEPS  # of what is unknown in the shapes


def over_steps(*parts: Callable[[], Any]) -> Case:
    """Layers one behind the other, over sequences of 8 features."""

    def make() -> Any:
        return ab.Sequential([ab.Input((None, 8), name="x"), *[part() for part in parts]])

    return Case(make, {"x": ((None, 8), "float32")})


def over_words(call: Callable[[Any], Any], mask_zero: bool = False) -> Case:
    def make() -> Any:
        tokens = ab.Input((None,), dtype="int32", name="x")
        return ab.Model(tokens, call(layers.Embedding(WORDS, 8, mask_zero=mask_zero)(tokens)))

    return Case(make, {"x": ((None,), "int32")})


def over_images(make: Callable[[], Any], size: int = 32) -> Case:
    return Case(make, {"x": ((size, size, 3), "float32")}, (0,))


def _rnn(cell: Callable[[], Any], **options: Any) -> Case:
    return over_steps(lambda: layers.RNN(cell(), return_sequences=True, **options), lambda: layers.Dense(3, "softmax"))


class Decoding(ab.Model):
    """Encodes sequences, and decodes by a recurrent cell: greedily, or by beams."""

    def __init__(self, beams: int) -> None:
        super().__init__()
        self.beams = beams
        self.encoder, self.cell = layers.GRU(6), layers.GRUCell(6)
        self.table, self.logits = layers.Embedding(WORDS, 6), layers.Dense(WORDS)

    def call(self, x: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            output, states = self.cell(self.table(tokens), states)
            return 5 * self.logits(output), states

        options = {"start_token": 1, "end_token": 0, "max_length": 5}
        if self.beams == 1:
            return ab.decoding.greedy_search(step, [self.encoder(x)], **options)
        return ab.decoding.beam_search(step, [self.encoder(x)], beam_width=self.beams, **options)


def decoding(beams: int) -> Case:
    return Case(lambda: Decoding(beams), {"x": ((None, 8), "float32")})


def _translation() -> Any:
    """Compute an encoder and decoder with attention, whose decoder is given the words before."""
    source, target = ab.Input((None, 8), name="source"), ab.Input((None,), dtype="int32", name="target")
    memory, *states = layers.LSTM(6, return_sequences=True, return_state=True)(source)
    cell = layers.AttentionCell(layers.LSTMCell(6), units=6)
    words = layers.Embedding(WORDS, 6)(target)
    outputs = layers.AttentionRNN(cell, return_sequences=True)(words, memory=memory, initial_state=states)
    return ab.Model({"source": source, "target": target}, layers.Dense(WORDS)(outputs))


def _by_lengths() -> Any:
    x, n = ab.Input((None, 8), name="x"), ab.Input((), dtype="int32", name="lengths")
    mask = ops.sequence_mask(n, ops.shape(x)[1])
    h = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x, mask=mask)
    return ab.Model({"x": x, "lengths": n}, layers.GRU(4)(h, mask=mask))


def _experts(k: int = 2) -> Any:
    return layers.MixtureOfExperts(4, lambda: layers.Dense(8, "relu"), k=k, noisy=False)


def _experts_between() -> Case:
    """Attention, and experts behind it, as in transformers with sparse layers."""

    def call(x: Any) -> Any:
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
        rows = ops.reshape(x, (-1, 8))
        return layers.Dense(WORDS)(x + ops.reshape(_experts()(rows), ops.shape(x)))

    return over_words(call)


def _ponder(cell: Callable[[], Any], last: bool = False) -> Case:
    act = lambda: layers.AdaptiveComputationTime(cell(), max_steps=5)  # noqa: E731 - made once for each model
    return over_steps(lambda: layers.RNN(act(), return_sequences=not last), lambda: layers.Dense(2))


def _convnet() -> Any:
    block = [layers.Conv2D(4, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    x = ab.Input((16, 16, 3), name="x")
    h = x
    for layer in block:
        h = layer(h)
    h = layers.Add()([h, layers.Conv2D(4, 1)(x)])
    h = layers.MaxPooling2D(2)(layers.DepthwiseConv2D(3, padding="same")(h))
    return ab.Model(x, layers.Dense(5, "softmax")(layers.GlobalAveragePooling2D()(h)))


def _u_net() -> Any:
    x = ab.Input((16, 16, 3), name="x")
    wide = layers.Conv2D(4, 3, padding="same", activation="gelu")(x)
    deep = layers.Conv2D(6, 3, strides=2, padding="same", activation="gelu")(wide)
    again = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(deep)
    joined = layers.Concatenate()([wide, layers.UpSampling2D(2, interpolation="bilinear")(deep), again])
    return ab.Model(x, layers.Conv2D(2, 1, activation="sigmoid")(joined))


def _of_sound() -> Any:
    x = ab.Input((None, 8), name="x")
    h = layers.Conv1D(6, 3, padding="causal", activation="relu")(x)
    h = layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="relu")(h)
    return ab.Model(x, layers.Dense(2)(layers.GRU(4, return_sequences=True)(h)))


def _application(name: str, **options: Any) -> Case:
    given = {"weights": None, "input_shape": (32, 32, 3), "classes": 5, **options}
    return over_images(lambda: getattr(applications, name)(**given))


def _pretrained(name: str, masked: bool = False) -> Case:
    if name in ("vit", "resnet", "resnet_basic"):
        size = np.load(FOLDERS / name / "golden.npz")["pixel_values"].shape[-1]
        return over_images(lambda: pretrained.load(FOLDERS / name), size)
    inputs = {"tokens": ((None,), "int32"), **({"mask": ((None,), "bool")} if masked else {})}
    return Case(
        lambda: pretrained.load(FOLDERS / name), inputs, (1, 3, 4) if name == "bert" or "classes" in name else STEPS
    )


MODELS: dict[str, Case] = {
    **{f"recurrent: {name}": over_steps(lambda make=make: ab.Sequential(make())) for name, make in RECURRENT.items()},
    "lstm, peepholes": _rnn(lambda: layers.PeepholeLSTMCell(4)),
    "lstm, projected": _rnn(lambda: layers.ProjectedLSTMCell(6, 3)),
    "lstm, normalised": _rnn(lambda: layers.LayerNormLSTMCell(4), go_backwards=True),
    "lstm, zoneout": _rnn(lambda: layers.ZoneoutCell(layers.LSTMCell(4), 0.2)),
    "residual": _rnn(lambda: layers.StackedRNNCells([layers.ResidualCell(layers.GRUCell(8)), layers.LSTMCell(4)])),
    "words": over_words(lambda x: layers.Dense(WORDS)(layers.LSTM(6, return_sequences=True)(x))),
    "padded words": over_words(lambda x: layers.Dense(2)(layers.Bidirectional(layers.GRU(6))(x)), mask_zero=True),
    "by lengths": Case(_by_lengths, {"x": ((None, 8), "float32"), "lengths": ((), "int32")}),
    "translation": Case(_translation, {"source": ((None, 8), "float32"), "target": ((None,), "int32")}),
    "greedy search": decoding(1),
    "beam search": decoding(3),
    "ponder": _ponder(lambda: layers.SimpleRNNCell(4)),
    "ponder, gru": _ponder(lambda: layers.GRUCell(4), last=True),
    "experts and attention": _experts_between(),
    "experts of steps": over_steps(lambda: layers.TimeDistributed(_experts(1)), lambda: layers.LSTM(4)),
    "encoder of words": over_words(lambda x: layers.Dense(WORDS)(layers.TransformerEncoder(16, 2)(x)), mask_zero=True),
    "decoder of words": over_words(lambda x: layers.Dense(WORDS)(layers.TransformerDecoder(16, 2)(x))),
    "convnet": over_images(_convnet, 16),
    "u-net": over_images(_u_net, 16),
    "sound": Case(_of_sound, {"x": ((None, 8), "float32")}),
    "MobileNetV2": _application("MobileNetV2", alpha=0.35),
    "MobileNetV3Small": _application("MobileNetV3Small", alpha=0.35),
    "EfficientNetV2B0": _application("EfficientNetV2B0"),
    "ResNet50V2": _application("ResNet50V2"),
    **{name: _pretrained(name) for name in sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())},
    "gpt2, masked": _pretrained("gpt2", masked=True),
    "llama, masked": _pretrained("llama", masked=True),
}


def feeds_of(case: Case, rows: int, steps: int) -> dict[str, Any]:
    generator = np.random.default_rng([rows, steps])
    found: dict[str, Any] = {}
    for name, (shape, dtype) in case.inputs.items():
        sizes = (rows, *[steps if size is None else size for size in shape])
        if dtype == "float32":
            found[name] = generator.normal(size=sizes).astype(dtype)
        elif dtype == "bool":  # padding behind the end
            found[name] = np.arange(steps) < generator.integers(min(1, steps), steps + 1, (rows, 1))
        else:
            found[name] = generator.integers(0, steps + 1 if name == "lengths" else WORDS, sizes).astype(dtype)
    return found


def compare(found: Any, wanted: list[Any]) -> None:
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other, 1e-4, 1e-4 * max(1.0, float(np.abs(other).max(initial=0))))


def test_there_are_forty_models() -> None:
    assert len(MODELS) >= 40


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in MODELS])
def test_model_in_onnxruntime_and_imported_again(name: str, tmp_path: Path) -> None:
    ab.utils.set_random_seed(5)
    case = MODELS[name]
    model = case.make()
    given = [feeds_of(case, rows, steps) for rows in BATCHES for steps in case.sizes]
    given.append(feeds_of(case, 0, case.sizes[-1]))
    specs = {
        key: ab.InputSpec(shape=(None, *shape), dtype=kind, name=key) for key, (shape, kind) in case.inputs.items()
    }
    whole = len(specs) > 1
    calls = [each if whole else next(iter(each.values())) for each in given]
    wanted = [[np.asarray(leaf) for leaf in ab.tree.flatten(model(call, training=False))] for call in calls]
    signature = [specs if whole else next(iter(specs.values()))]
    for opset in (21,) if name in QUICK else (18, 21, 23):
        path = tmp_path / f"{opset}.onnx"
        model.export(path, "onnx", verbose=False, input_signature=signature, opset_version=opset)
        imported = ab.onnx.load(path)
        for feeds, expected in zip(given, wanted, strict=True):
            compare(run_file(path, feeds), expected)
            compare(imported(feeds if whole else next(iter(feeds.values()))), expected)
    symbols = {key: ab.Input(shape, dtype=kind, name=key) for key, (shape, kind) in case.inputs.items()}
    again = ab.Model(symbols, imported(symbols if whole else next(iter(symbols.values()))))
    again.export(tmp_path / "again.onnx", "onnx", verbose=False)
    for feeds, expected in zip(given, wanted, strict=True):
        compare(run_file(tmp_path / "again.onnx", feeds), expected)
