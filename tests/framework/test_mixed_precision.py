"""Mixed precision: policies, what layers compute in, scaled losses; training as Keras does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from golden.loader import FitCase, load_cases, resolve

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
HALVES = ["float16", "bfloat16"]
# What a step of half precision may be off by, where sums are taken in another order.
CLOSE = {"mixed_float16": 4e-3, "mixed_bfloat16": 3e-2}


# --- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifier", "compute", "variable"),
    [
        ("float32", "float32", "float32"),
        ("mixed_float16", "float16", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32"),
        (np.float64, "float64", "float64"),
        (np.dtype("float16"), "float16", "float16"),
        ("int32", "int32", "int32"),
        (None, "float32", "float32"),
        ({"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}, "float16", "float32"),
    ],
)
def test_what_stands_for_a_policy(identifier: Any, compute: str, variable: str) -> None:
    policy = ab.dtype_policies.get(identifier)
    assert (policy.compute_dtype, policy.variable_dtype) == (compute, variable)
    assert ab.dtype_policies.get(policy) is policy
    again = ab.dtype_policies.deserialize(ab.dtype_policies.serialize(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert repr(again) == f'<DTypePolicy "{policy.name}">'
    assert policy.quantization_mode is None


def test_policies_differ_by_name() -> None:
    assert ab.DTypePolicy("float16") != ab.DTypePolicy("mixed_float16")
    assert ab.DTypePolicy("float16") != "float16"
    assert ab.DTypePolicy() == ab.FloatDTypePolicy("float32")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ab.DTypePolicy("int8_from_float32"), ValueError, "one of quantisation: ab.dtype_policies.get"),
        (
            lambda: ab.DTypePolicy(32),  # pyright: ignore[reportArgumentType]
            TypeError,
            "takes a name, such as 'float32' or 'mixed_float16'; got 32",
        ),
        (
            lambda: ab.dtype_policies.QuantizedDTypePolicy("int8", 32),  # pyright: ignore[reportArgumentType]
            TypeError,
            "QuantizedDTypePolicy: source_name must be the name of a policy, .* got 32 of type int",
        ),
        (lambda: ab.DTypePolicy("mixed_float64"), ValueError, "mixed_float64"),
        (lambda: ab.DTypePolicy("bf16"), ValueError, "Unknown dtype 'bf16'.* also 'mixed_float16' and 'mixed_bf"),
        (lambda: ab.config.set_floatx("mixed_float16"), ValueError, r"call ab\.config\.set_dtype_policy"),
    ],
)
def test_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_global_policy_is_that_of_layers_made_from_now_on() -> None:
    before = layers.Dense(2)
    ab.mixed_precision.set_global_policy("mixed_float16")
    assert ab.mixed_precision.global_policy() == ab.config.dtype_policy() == ab.DTypePolicy("mixed_float16")
    after, own = layers.Dense(2), layers.Dense(2, dtype="float32")
    assert [layer.compute_dtype for layer in (before, after, own)] == ["float32", "float16", "float32"]
    assert ab.losses.MeanSquaredError().dtype == ab.metrics.Mean().dtype == "float32"
    ab.config.set_dtype_policy(None)
    assert ab.config.dtype_policy().name == "float32"


# --- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda dtype: layers.Dense(4, dtype=dtype), X),
        (lambda dtype: layers.Embedding(5, 4, dtype=dtype), np.array([[1, 4], [0, 2]], "int32")),
        (lambda dtype: layers.BatchNormalization(dtype=dtype), X),
        (lambda dtype: layers.LayerNormalization(dtype=dtype), X),
        (lambda dtype: layers.PReLU(dtype=dtype), X),
        (lambda dtype: layers.LSTM(4, dtype=dtype), X[:, :, None]),
        (lambda dtype: layers.GRU(4, return_sequences=True, dtype=dtype), X[:, :, None]),
        (lambda dtype: layers.Bidirectional(layers.SimpleRNN(2, dtype=dtype), dtype=dtype), X[:, :, None]),
        (lambda dtype: layers.TimeDistributed(layers.Dense(2, dtype=dtype), dtype=dtype), X[:, :, None]),
    ],
    ids=["Dense", "Embedding", "BatchNormalization", "LayerNormalization", "PReLU", "LSTM", "GRU", "Bidir", "TimeDist"],
)
def test_outputs_are_half_and_near_those_of_whole_precision(make: Any, x: Any, half: str) -> None:
    layer, whole = make(f"mixed_{half}"), make("float32")
    whole(x)
    output = layer(x)
    assert str(output.dtype) == half
    assert all(weight.numpy().dtype == np.float32 for weight in layer.weights)
    layer.set_weights(whole.get_weights())
    np.testing.assert_allclose(layer(x).astype("float32"), whole(x), atol=0.05, rtol=0.05)
    again = type(layer).from_config(layer.get_config())
    assert again.dtype_policy == layer.dtype_policy


class Probe(layers.Layer):
    """Notes in which dtypes it sees its weights."""

    def build(self, input_shape: Any) -> None:
        self.cast = self.add_weight(shape=(3,), initializer="ones", name="cast")
        self.kept = self.add_weight(shape=(3,), initializer="ones", autocast=False, name="kept")
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def call(self, inputs: Any) -> Any:
        self.seen = [str(w.dtype) for w in (inputs, self.cast, self.cast.value, self.kept, self.count)]
        self.count.assign_add(1)
        self.cast.assign(self.kept + 2.0**-12)
        return inputs + self.cast


def test_what_a_call_sees_of_its_weights() -> None:
    probe = Probe(dtype="mixed_float16", trainable=False)
    probe(X)
    assert probe.seen == ["float16", "float16", "float16", "float32", "int32"]
    assert str(probe.cast.dtype) == "float32"
    np.testing.assert_array_equal(probe.cast.numpy(), np.full(3, 1 + 2.0**-12, "float32"))  # float16 would round it
    assert probe.count.numpy() == 1
    probe = Probe(dtype="mixed_float16", autocast=False)
    probe(X)
    assert probe.seen == ["float32", "float32", "float32", "float32", "int32"]


def test_a_layer_inside_keeps_its_own_policy() -> None:
    class Outer(layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.inner = Probe(dtype="float32")
            self.weight = self.add_weight(shape=(3,), initializer="ones")

        def call(self, inputs: Any) -> Any:
            outputs = self.inner(inputs)
            self.seen = str(self.weight.dtype)
            return outputs

    outer = Outer(dtype="mixed_bfloat16")
    assert outer(X).dtype == np.float32
    assert outer.inner.seen[:2] == ["float32", "float32"]
    assert outer.seen == "bfloat16"


def test_inputs_of_a_model_reach_a_layer_of_whole_precision_unrounded() -> None:
    ab.config.set_dtype_policy("mixed_float16")
    inputs = ab.Input((1,))
    model = ab.Model(inputs, layers.Rescaling(2.0, dtype="float32")(inputs))
    sequence = ab.Sequential([ab.Input((1,)), layers.Rescaling(2.0, dtype="float32")])
    x = np.array([[1 + 2.0**-12]], "float32")
    for each in (model, sequence):
        np.testing.assert_array_equal(each.predict(x, verbose=0), 2 * x)


def test_numbers_of_words_are_not_rounded() -> None:
    ab.config.set_dtype_policy("mixed_float16")
    model = ab.Sequential([layers.Embedding(5000, 1), layers.Flatten()])
    model(np.array([[0]], "int32"))
    table = model.layers[0].embeddings
    table.assign(np.arange(5000, dtype="float32")[:, None] % 7)
    np.testing.assert_array_equal(model.predict(np.array([[4999], [4098]], "int32"), verbose=0), [[1], [3]])


def test_penalties_are_computed_in_whole_precision() -> None:
    layer = layers.Dense(
        2, kernel_initializer="ones", kernel_regularizer=ab.regularizers.L2(1e5), dtype="mixed_float16"
    )
    layer(X)
    assert float(ab.Session().run(layer.losses[0])) == 6e5  # more than float16 can hold


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load_cases("mixed"), ids=str)
def test_training_gives_keras_numbers(case: FitCase) -> None:
    policy = case.name.partition("/")[0]
    ab.config.set_dtype_policy(policy)
    model = case.build(ab, layers)
    model(case.arrays["x"][:1])
    model.set_weights(case.initial_weights)
    model.compile(**resolve(case.compile_kwargs, ab.optim))
    history = model.fit(**case.arrays, **case.fit_kwargs).history
    for name, values in case.history.items():
        np.testing.assert_allclose(history[name], values, rtol=CLOSE[policy], atol=CLOSE[policy], err_msg=name)
    for name, weight, expected in zip(case.weight_names, model.get_weights(), case.final_weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=CLOSE[policy], atol=CLOSE[policy], err_msg=name)


def small(dtype: str) -> ab.Sequential:
    return ab.Sequential([ab.Input((3,)), layers.Dense(4, "tanh", dtype=dtype), layers.Dense(1, dtype="float32")])


def test_float16_gets_a_scaled_loss() -> None:
    model = small("mixed_float16")
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, ab.mixed_precision.LossScaleOptimizer)
    assert isinstance(model.optimizer.inner_optimizer, ab.optim.Adam)
    own = ab.optim.LossScaleOptimizer(ab.optim.SGD(), initial_scale=8.0)
    model.compile(own, "mse")
    assert model.optimizer is own
    model.compile("adam", "mse", auto_scale_loss=False)
    assert isinstance(model.optimizer, ab.optim.Adam)
    for dtype in ("mixed_bfloat16", "float16", "float32"):
        model = small(dtype)
        model.compile("adam", "mse")
        assert isinstance(model.optimizer, ab.optim.Adam)


def test_small_gradients_survive() -> None:
    """A gradient of some 1e-8 is 0 in float16, unless the loss is scaled."""

    def tiny(y_true: Any, y_pred: Any) -> Any:
        return (y_pred - y_true) * 1e-8

    moved = []
    for scale in (True, False):
        model = ab.Sequential([ab.Input((3,)), layers.Dense(1, use_bias=False, dtype="mixed_float16")])
        model.set_weights([np.ones((3, 1), "float32")])
        model.compile(ab.optim.SGD(1e6), tiny, auto_scale_loss=scale)
        model.train_on_batch(X, np.zeros((6, 1), "float32"))
        moved.append(np.abs(model.get_weights()[0] - 1.0).max() > 1e-4)
    assert moved == [True, False]


def test_saved_without_a_scale(tmp_path: Path) -> None:
    model = small("mixed_float16")
    model.compile("sgd", "mse", auto_scale_loss=False)
    model.train_on_batch(X, X[:, :1])
    model.save(tmp_path / "model.keras")
    assert isinstance(ab.load_model(tmp_path / "model.keras").optimizer, ab.optim.SGD)


def test_saved_with_its_policy_and_scale(tmp_path: Path) -> None:
    model = small("mixed_float16")
    model.compile(ab.optim.Adam(0.01), "mse")
    y = X.sum(axis=1, keepdims=True)
    model.fit(X, y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    assert again.layers[0].dtype_policy.name == "mixed_float16"
    assert isinstance(again.optimizer, ab.optim.LossScaleOptimizer)
    for found, expected in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert again.train_on_batch(X, y) == model.train_on_batch(X, y)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
