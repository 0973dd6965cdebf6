"""Models of many kinds for the tests of serving, by name, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, ops


def model_of(*stack: Any) -> Any:
    return ab.Sequential(list(stack))


def transformer() -> Any:
    tokens = ab.Input((None,), dtype="int32")
    x = layers.Embedding(30, 8)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    return ab.Model(tokens, layers.Dense(30)(x + layers.Dense(8)(layers.Dense(16, "gelu")(x))))


def two_inputs() -> Any:
    a, b = ab.Input((3,)), ab.Input((2,))
    both = layers.Concatenate()([a, b])
    return ab.Model([a, b], [layers.Dense(2)(both), ops.sum(both, axis=-1, keepdims=True)])


def crossed() -> Any:
    words, numbers = ab.Input((), dtype="string"), ab.Input((), dtype="int64")
    bins = layers.HashedCrossing(7)((words, layers.Hashing(5)(numbers)))
    return ab.Model([words, numbers], layers.Embedding(7, 2)(bins))


def adapted() -> Any:
    layer = layers.Normalization()
    layer.adapt(np.arange(12, dtype="float32").reshape(4, 3))
    return model_of(ab.Input((3,)), layer, layers.Dense(2))


def cell_of_ones_own() -> Any:
    class Leaky(layers.Layer):
        state_size = output_size = 4

        def build(self, input_shape: Any) -> None:
            self.w = self.add_weight((input_shape[-1], 4), name="w")

        def call(self, inputs: Any, states: Any) -> Any:
            kept = ops.cond(ops.sum(self.w) > 0, lambda: states[0] * 0.9, lambda: states[0] * 0.8)
            state = kept + ops.tanh(inputs @ self.w)
            return state, [state]

    return model_of(ab.Input((None, 3)), layers.RNN(Leaky()), layers.Dense(1))


def words(**settings: Any) -> Any:
    """Texts of one letter each, as the numbers of so many words."""
    layer = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3, **settings)
    return model_of(ab.Input((), dtype="string"), layer, layers.Embedding(5, 3), layers.GlobalAveragePooling1D())


EACH_ROW: dict[str, Callable[[], Any]] = {
    "mlp": lambda: model_of(
        ab.Input((4,)),
        layers.Dense(8, "relu"),
        layers.Dropout(0.5),
        layers.BatchNormalization(),
        layers.Dense(3, "softmax"),
    ),
    "convnet": lambda: model_of(
        ab.Input((12, 12, 3)),
        layers.Conv2D(4, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.SeparableConv2D(6, 3),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(2),
    ),
    "upsampling": lambda: model_of(
        ab.Input((4, 4, 2)),
        layers.Conv2DTranspose(3, 3, strides=2, padding="same"),
        layers.UpSampling2D(2),
        layers.ZeroPadding2D(1),
        layers.Cropping2D(1),
        layers.DepthwiseConv2D(3),
        layers.GlobalAveragePooling2D(),
    ),
    "convolution of open length": lambda: model_of(
        ab.Input((None, 3)), layers.Conv1D(4, 3, padding="causal"), layers.GlobalMaxPooling1D()
    ),
    "recurrent": lambda: model_of(ab.Input((7, 3)), layers.LSTM(5, return_sequences=True), layers.GRU(4)),
    "recurrent of open length": lambda: model_of(
        ab.Input((None, 3)), layers.SimpleRNN(5, return_sequences=True), layers.TimeDistributed(layers.Dense(2))
    ),
    "masked": lambda: model_of(
        ab.Input((None,), dtype="int64"), layers.Embedding(20, 6, mask_zero=True), layers.Bidirectional(layers.LSTM(5))
    ),
    "transformer": transformer,
    "two inputs": two_inputs,
    "normalised": adapted,
    "cell of one's own": cell_of_ones_own,
    "reordered": lambda: model_of(
        ab.Input((6, 8)),
        layers.GroupNormalization(4),
        layers.Permute((2, 1)),
        layers.Reshape((4, 12)),
        layers.Softmax(),
    ),
    "hashes": lambda: model_of(ab.Input((), dtype="string"), layers.Hashing(9, salt=3), layers.Embedding(9, 3)),
    "crossed": crossed,
    "words": words,
    "characters": lambda: words(split="character", standardize="lower"),
    "all known": lambda: model_of(
        ab.Input((), dtype="string"),
        layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0),
        layers.Embedding(3, 3),
    ),
    "strings": lambda: model_of(
        ab.Input((), dtype="string"), layers.StringLookup(vocabulary=["a", "b"]), layers.Embedding(4, 3)
    ),
}
MODELS = {
    **EACH_ROW,
    **{
        name: (lambda layer=layer: model_of(ab.Input((6, 4)), layer()))
        for name, layer in {
            "dense": lambda: layers.Dense(3),
            "elu": lambda: layers.Dense(3, "elu"),
            "selu": lambda: layers.Dense(3, "selu"),
            "swish": lambda: layers.Dense(3, "swish"),
            "leaky": lambda: layers.LeakyReLU(),
            "prelu": lambda: layers.PReLU(),
            "conv1d": lambda: layers.Conv1D(3, 2),
            "dilated": lambda: layers.Conv1D(3, 2, dilation_rate=2, padding="causal"),
            "transposed": lambda: layers.Conv1DTranspose(3, 2),
            "pooled": lambda: layers.AveragePooling1D(2),
            "gru": lambda: layers.GRU(3),
            "gru sequences": lambda: layers.GRU(3, return_sequences=True, go_backwards=True),
            "lstm": lambda: layers.LSTM(3),
            "both ways": lambda: layers.Bidirectional(layers.GRU(2, return_sequences=True)),
            "layer norm": lambda: layers.LayerNormalization(),
            "unit norm": lambda: layers.UnitNormalization(),
            "rms norm": lambda: layers.RMSNormalization(),
            "flat": lambda: layers.Flatten(),
            "permuted": lambda: layers.Permute((2, 1)),
            "repeated": lambda: layers.Lambda(lambda x: ops.repeat(x, 2, axis=1)),
            "sorted": lambda: layers.Lambda(lambda x: ops.sort(x, axis=-1)),
            "taken along": lambda: layers.Lambda(
                lambda x: ops.take_along_axis(x, ops.argmax(x, axis=1, keepdims=True), axis=1)
            ),
            "doubles": lambda: layers.Lambda(lambda x: ops.cast(x, "float64") * 2),
            "integers": lambda: layers.Lambda(lambda x: ops.cast(x * 10, "int32")),
            "truths": lambda: layers.Lambda(lambda x: x > 0),
        }.items()
    },
}


def inputs_of(model: Any, rows: int, rng: np.random.Generator) -> list[Any]:
    found: list[Any] = []
    for tensor in model.inputs:
        shape = (rows, *[5 if size is None else size for size in tensor.shape[1:]])
        kind = tensor.dtype.kind
        drawn: Any = rng.normal(size=shape).astype("float32") if kind == "f" else rng.integers(0, 20, shape)
        found.append(
            np.array(["a", "b", "c"], dtype=np.dtypes.StringDType())[rng.integers(0, 3, shape)]
            if kind == "T"
            else drawn
        )
    return found
