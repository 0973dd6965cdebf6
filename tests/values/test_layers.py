"""Layers called on values. Each holds for Keras, too, where it has the names."""

from pathlib import Path

import numpy as np
import pytest
from shared.values import plain, same

import anabranch as k


def test_layers_return_values() -> None:
    layer = k.layers.Dense(2, kernel_initializer="ones", bias_initializer="ones")
    y = layer(np.ones((1, 3), "float32"))
    same(y * 2, [[8.0, 8.0]])
    same(layer(k.ops.ones((1, 3))) + y, [[8.0, 8.0]])
    assert float(k.ops.sum(layer(np.ones((2, 3), "float32")))) == 16.0


def test_batch_normalization_moves_its_statistics() -> None:
    layer = k.layers.BatchNormalization(momentum=0.5, epsilon=0.0)
    x = k.ops.array([[1.0], [3.0]])
    same(layer(x, training=True), [[-1.0], [1.0]])
    same(layer.moving_mean, [1.0])
    same(layer.moving_variance, [1.0])
    layer(x + 4, training=True)
    same(layer.moving_mean, [3.5])
    same(layer(x, training=False), [[-2.5], [-0.5]])
    same(layer.moving_mean, [3.5])


def test_stateful_rnn_goes_on() -> None:
    def make(stateful):
        k.utils.set_random_seed(3)
        return k.layers.LSTM(2, stateful=stateful, return_sequences=True)

    x = np.linspace(-1, 1, 8, dtype="float32").reshape(1, 8, 1)
    whole = plain(make(False)(x))
    layer = make(True)
    first, second = layer(k.ops.array(x[:, :4])), layer(k.ops.array(x[:, 4:]))
    same(first, whole[:, :4])
    same(second, whole[:, 4:])
    layer.reset_state()
    same(layer(k.ops.array(x[:, :4])), whole[:, :4])


def test_dropout_draws_anew() -> None:
    layer = k.layers.Dropout(0.5, seed=5)
    x = k.ops.ones((100,))
    first, second = plain(layer(x, training=True)), plain(layer(x, training=True))
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == {0.0, 2.0}
    same(layer(x, training=False), np.ones(100, "float32"))
    same(k.layers.Dropout(0.5, seed=5)(x, training=True), first)


def test_masks_travel_with_values() -> None:
    k.utils.set_random_seed(1)
    embedding, lstm = k.layers.Embedding(5, 3, mask_zero=True), k.layers.LSTM(2)
    short, padded = lstm(embedding(k.ops.array([[1, 2]]))), lstm(embedding(k.ops.array([[1, 2, 0, 0]])))
    same(padded, plain(short))


def test_call_may_look_at_numbers() -> None:
    class Gate(k.layers.Layer):
        def call(self, x):
            if k.ops.sum(x) > 0:
                return x * 2
            return x * 0

    gate = Gate()
    same(gate(k.ops.array([1.0, 2.0])), [2.0, 4.0])
    same(gate(k.ops.array([-1.0, -2.0])), [0.0, 0.0])
    same(gate(np.array([3.0, 2.0], "float32")), [6.0, 4.0])


def test_call_may_note_and_count() -> None:
    class Noting(k.layers.Layer):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

        def call(self, x):
            self.calls += 1
            self.seen = x * 3
            self.count.assign_add(1.0)
            return x

    layer = Noting()
    for number in range(3):
        layer(k.ops.array([float(number)]))
    assert float(layer.count) == 3.0
    assert layer.calls == 3
    same(layer.seen, [6.0])


def test_losses_of_layers() -> None:
    class Penalised(k.layers.Layer):
        def call(self, x):
            self.add_loss(k.ops.sum(x))
            return x

    layer = Penalised()
    layer(k.ops.array([1.0, 2.0]))
    assert float(sum(layer.losses)) == 3.0
    layer(k.ops.array([5.0]))
    assert float(sum(layer.losses)) == 5.0
    dense = k.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=k.regularizers.L2(0.5))
    dense(k.ops.ones((1, 2)))
    assert float(dense.losses[0]) == 1.0
    dense.kernel.assign(dense.kernel * 2)
    assert float(dense.losses[0]) == 4.0


def test_models_called_on_values() -> None:
    k.utils.set_random_seed(2)
    a, b = k.Input((2,), name="a"), k.Input((3,), name="b")
    model = k.Model({"a": a, "b": b}, {"out": k.layers.Dense(1)(k.layers.Concatenate()([a, b]))})
    given = {"a": np.ones((4, 2), "float32"), "b": np.full((4, 3), 2.0, "float32")}
    called = model({name: k.ops.array(value) for name, value in given.items()})
    same(called["out"], model.predict(given, verbose=0)["out"])
    sequential = k.Sequential([k.layers.Dense(3, activation="relu"), k.layers.Dense(1)])
    x = k.ops.array([[1.0, -1.0]])
    same(sequential(x), sequential.predict(np.array([[1.0, -1.0]], "float32"), verbose=0))


def test_larger_layers_on_values() -> None:
    k.utils.set_random_seed(4)
    image = np.linspace(-1, 1, 2 * 6 * 6, dtype="float32").reshape(2, 6, 6, 1)
    model = k.Sequential([k.layers.Conv2D(2, 3, data_format="channels_last"), k.layers.Flatten(), k.layers.Dense(2)])
    same(model(k.ops.array(image)), model.predict(image, verbose=0), 1e-4)
    words = np.linspace(-1, 1, 12, dtype="float32").reshape(1, 4, 3)
    attention = k.layers.MultiHeadAttention(2, 3)
    out, scores = attention(k.ops.array(words), k.ops.array(words), return_attention_scores=True)
    same(k.ops.sum(scores, axis=-1), np.ones((1, 2, 4), "float32"))
    assert tuple(out.shape or ()) == (1, 4, 3)


def test_build_may_compute() -> None:
    class Scale(k.layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="scale")
            self.scale.assign(k.ops.ones((input_shape[-1],)) * 3)

        def call(self, x):
            return x * self.scale

    layer = Scale()
    same(layer(np.ones((1, 2), "float32")), [[3.0, 3.0]])
    layer.scale.assign([1.0, 2.0])
    same(layer(np.ones((1, 2), "float32")), [[1.0, 2.0]])


def test_stateless_calls_on_values() -> None:
    layer = k.layers.BatchNormalization(momentum=0.5, epsilon=0.0, center=False, scale=False)
    layer.build((None, 1))
    state = [k.ops.zeros((1,)), k.ops.ones((1,))]
    y, (mean, variance) = layer.stateless_call([], state, k.ops.array([[1.0], [3.0]]), training=True)
    same(y, [[-1.0], [1.0]])
    same(mean + variance, [2.0])
    same(layer.moving_mean, [0.0])


def test_weights_set_to_values() -> None:
    layer = k.layers.Dense(1)
    layer.build((None, 2))
    layer.kernel.assign(k.ops.ones((2, 1)) * 3)
    assert layer.bias is not None
    layer.bias.assign(layer.bias + 1)
    same(layer(k.ops.ones((1, 2))), [[7.0]])


@pytest.mark.parametrize("kind", ["layer", "argument", "mask", "op"])
def test_models_with_values_among_their_arguments_are_saved(kind: str, tmp_path: Path) -> None:
    x = k.Input((5, 3), batch_size=2)
    outputs = {
        "layer": lambda: k.layers.Add()([x, k.ops.ones((2, 5, 3))]),
        "argument": lambda: k.layers.GRU(2)(x, initial_state=k.ops.ones((2, 2))),
        "mask": lambda: k.layers.GRU(2)(x, mask=k.ops.array([[True, True, False, False, False]] * 2)),
        "op": lambda: k.ops.maximum(x * k.ops.array([1.0, 2.0, 3.0]), k.ops.array(0.5)),
    }
    model = k.Model(x, outputs[kind]())
    model.save(tmp_path / "model.keras")
    data = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    expected = model.predict(data, verbose=0)
    same(k.models.load_model(tmp_path / "model.keras").predict(data, verbose=0), expected)
    copied = k.models.clone_model(model)
    copied.set_weights(model.get_weights())
    same(copied.predict(data, verbose=0), expected)
