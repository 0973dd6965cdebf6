"""Which graphs compute each row for itself: those of models do, those that mix rows are found, by the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.passes.independent_rows import why_rows_depend


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


MODELS: dict[str, Callable[[], Any]] = {
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
    "all known": lambda: model_of(
        ab.Input((), dtype="string"),
        layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0),
        layers.Embedding(3, 3),
    ),
    "strings": lambda: model_of(
        ab.Input((), dtype="string"), layers.StringLookup(vocabulary=["a", "b"]), layers.Embedding(4, 3)
    ),
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


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_models_are_independent_and_computed_alike(name: str, tmp_path: Any) -> None:
    model = MODELS[name]()
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    assert servable.why_alone() is None
    inputs = inputs_of(model, 5, np.random.default_rng(3))
    together = servable.run(inputs)
    for row in range(5):
        alone = servable.run([array[row : row + 1] for array in inputs])
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_allclose(one[0], many[row], rtol=2e-5, atol=2e-6)


def reason(build: Callable[[Any], Any], *shape: int | None) -> str | None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, *shape), "float32", "x")
        return why_rows_depend(graph, [x], [build(x)])


def loop_to_the_longest(x: Any) -> Any:
    longest = ops.max(ops.sum(x, axis=1))
    return ab.while_loop(lambda i, _: i < longest, lambda i, y: (i + 1.0, y * 0.5), (0.0, x))[1]


def loop_that_shifts(x: Any) -> Any:
    return ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.roll(y, 1, axis=0)), (0, x))[1]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda x: x - ops.mean(x, axis=0, keepdims=True), "mean"),
        (lambda x: x / ops.max(x), "max"),
        (lambda x: ops.softmax(x, axis=0), "softmax"),
        (lambda x: ops.cumsum(x, axis=0), "cum_sum"),
        (lambda x: ops.argsort(x, axis=0), "arg_sort"),
        (lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), x), "matmul"),
        (lambda x: x[::-1], "get_item"),
        (lambda x: x - x[:1], "get_item"),
        (lambda x: ops.concatenate([x, x], axis=0), "concatenate"),
        (lambda x: ops.reshape(x, (4, -1)), "reshape"),
        (lambda x: ops.reshape(ops.transpose(x), (-1, 4)), "reshape"),
        (lambda x: x * ops.cast(ops.shape(x)[0], "float32"), "multiply"),
        (lambda x: x + ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None], "range"),
        (lambda x: ops.take(x, [0, 0], axis=0), "take"),
        (lambda x: x + ab.random.normal((1, 4)), "draws random numbers"),
        (loop_to_the_longest, "max"),
        (loop_that_shifts, ""),
        (lambda x: ops.cond(ops.sum(x) > 0, lambda: x, lambda: -x), "sum"),
        (lambda x: ops.sum(x), "sum"),
        (lambda x: ops.transpose(x), "no row for each row"),
        (lambda x: ops.convert_to_tensor(np.ones((3, 4), "float32")) + x, "add"),
    ],
)
def test_what_mixes_rows_is_named(build: Callable[[Any], Any], named: str) -> None:
    found = reason(build, 4)
    assert found is not None
    assert named in found


def test_an_input_without_rows_is_named() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3, 4), "float32", "fixed")
        assert why_rows_depend(graph, [x], [x]) == "input 'fixed' has no axis for the rows of a batch"


# --- random programs ------------------------------------------------------------------------------------------------

STEPS: list[Callable[[Any], Any]] = [
    lambda x: ops.tanh(x) + 0.5,
    lambda x: ops.transpose(x, (0, 2, 1)),
    lambda x: ops.transpose(x, (1, 0, 2)),
    lambda x: ops.reshape(x, (ops.shape(x)[0], 2, 6)),
    lambda x: ops.reshape(x, (-1, 3, 4)),
    lambda x: ops.reshape(x, (3, -1, 4)),
    lambda x: ops.reshape(ops.reshape(x, (-1, 4)) @ np.eye(4, dtype="float32"), (-1, 3, 4)),
    lambda x: x - ops.mean(x, axis=0, keepdims=True),
    lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    lambda x: ops.softmax(x, axis=1),
    lambda x: ops.flip(x, axis=2),
    lambda x: ops.cumsum(x, axis=1),
    lambda x: ops.sort(x, axis=2),
    lambda x: ops.flip(x, axis=0),
    lambda x: ops.concatenate([x[:, :, 1:], x[:, :, :1]], axis=2),
    lambda x: ops.concatenate([x[:, 1:], x[:, :1]], axis=1),
    lambda x: ops.concatenate([x[1:], x[:1]], axis=0),
    lambda x: ops.einsum("bij,bkj->bik", x, x) @ x,
    lambda x: ops.einsum("bij,cij->bc", x, x)[:, :, None] * ops.ones((1, 1, 4)),
    lambda x: ops.stack([x, -x], axis=1)[:, 0],
    lambda x: ops.expand_dims(x, 0)[0],
    lambda x: ops.scan(lambda c, e: (c * 0.5 + e, c * 0.5 + e), x[0], x)[1],
    lambda x: ops.swapaxes(ab.map_fn(lambda e: e * 2.0, ops.swapaxes(x, 0, 1)), 0, 1),
    lambda x: x + ops.zeros((ops.shape(x)[0], 1, 1)),
    lambda x: ops.cond(ops.shape(x)[1] > 2, lambda: x * 2.0, lambda: x),
]


@given(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=5))
def test_random_programs_that_are_accepted_compute_rows_apart(numbers: list[int]) -> None:
    with ab.Graph().as_default() as graph, ab.Session() as session:
        x = ab.placeholder((None, 3, 4), "float32", "x")
        y: Any = x
        try:
            for number in numbers:
                y = STEPS[number](y)
        except (ValueError, TypeError, IndexError):  # shapes that a step does not take
            return
        if why_rows_depend(graph, [x], [y]) is not None:
            return
        value = np.random.default_rng(len(numbers)).normal(size=(4, 3, 4)).astype("float32")
        together = session.run(y, {x: value})
        assert len(together) == 4
        for row in range(4):
            alone = session.run(y, {x: value[row : row + 1]})
            np.testing.assert_allclose(alone[0], together[row], rtol=1e-4, atol=1e-5)
