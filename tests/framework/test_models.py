"""Model, Sequential and Input: building, layers, configs, summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.objects.registry import deserialize_keras_object, serialize_keras_object


@ab.saving.register_keras_serializable(package="test_models")
class Classifier(ab.Model):
    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        self.classes = classes
        self.blocks = [layers.Dense(4, "relu"), layers.Dense(4, "relu")]
        self.drop = layers.Dropout(0.5)
        self.head = layers.Dense(classes)

    def call(self, inputs, training=None):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.drop(inputs, training=training))


# --- Input ----------------------------------------------------------------------------------------------------------


def test_input_is_a_symbolic_tensor_with_the_batch_left_open() -> None:
    x = ab.Input((3, 4), name="x", dtype="int32")
    assert x.shape == (None, 3, 4)
    assert x.dtype == np.int32
    assert ab.Input((3,), batch_size=7).shape == (7, 3)
    assert ab.Input(batch_shape=(2, None)).shape == (2, None)


@pytest.mark.parametrize("arguments", [{}, {"shape": (3,), "batch_shape": (None, 3)}])
def test_input_needs_one_shape(arguments) -> None:
    with pytest.raises(ValueError, match="either shape, without the batch, or batch_shape"):
        ab.Input(**arguments)


def test_clear_session_starts_names_anew() -> None:
    ab.utils.clear_session()
    assert [layers.Dense(1).name, layers.Dense(1).name] == ["dense", "dense_1"]
    before = ab.Input((2,))
    model = ab.Model(before, layers.Dense(1)(before))
    ab.utils.clear_session()
    assert layers.Dense(1).name == "dense"
    assert model.predict(np.ones((1, 2))).shape == (1, 1)
    assert symbol_of(ab.Input((2,))).graph is not symbol_of(before).graph


# --- Sequential -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_a_layer_may_be_used_several_times(declared: bool, tmp_path: Path):
    shared = layers.Dense(3, "tanh", kernel_initializer="ones", name="shared")
    stack = [layers.Dense(3, kernel_initializer="ones", name="first"), shared, shared, layers.Dense(1, name="last")]
    model = ab.Sequential([ab.Input((3,)), *stack] if declared else stack)
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    hidden = np.tanh(3 * np.tanh(3 * x.sum(1)))[:, None].repeat(3, 1)
    np.testing.assert_allclose(model(x), hidden @ model.weights[4].numpy(), rtol=2e-5)
    assert (len(model.layers), len(model.weights), model.count_params()) == (4, 6, 28)
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1, keepdims=True), verbose=0)
    model.save(tmp_path / "model.keras")
    again = ab.Sequential.from_config(model.get_config())
    for other in (ab.models.load_model(tmp_path / "model.keras"), ab.models.clone_model(model), again):
        assert [layer.name for layer in other.layers] == ["first", "shared", "shared", "last"]
        assert other.layers[1] is other.layers[2]
        other.build((None, 3))
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))
    assert (model.pop().name, model.pop().name, model(x).shape, model.count_params()) == ("last", "shared", (4, 3), 24)


def test_equal_configs_without_names_are_several_layers():
    entry = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}, "registered_name": None}
    model = ab.Sequential.from_config({"layers": [entry, dict(entry)], "name": "row"})
    assert model.layers[0] is not model.layers[1]
    with pytest.raises(ValueError, match="has a layer called 'x' already"):
        ab.Sequential([layers.Dense(1, name="x"), layers.Dense(1, name="x")])


@pytest.mark.parametrize(
    "start", [lambda: [ab.Input((3,)), layers.Dense(2)], lambda: [layers.Dense(2, input_shape=(3,))]]
)
def test_sequential_with_a_known_input_has_weights_at_once(start) -> None:
    model = ab.Sequential(start())
    assert model.built
    assert [weight.shape for weight in model.weights] == [(3, 2), (2,)]
    assert [type(layer).__name__ for layer in model.layers] == ["Dense"]
    assert model.input_shape == (None, 3)


def test_sequential_grows_and_shrinks() -> None:
    model = ab.Sequential()
    model.add(ab.Input((3,)))
    model.add(layers.Dense(4))
    model.add(layers.Dense(2))
    assert model.predict(np.ones((1, 3))).shape == (1, 2)
    assert model.pop().units == 2
    assert model.output_shape == (None, 4)
    assert model.predict(np.ones((1, 3))).shape == (1, 4)
    model.add(layers.Dense(5))
    assert model.predict(np.ones((1, 3))).shape == (1, 5)


def test_sequential_is_built_by_data_by_build_and_again_after_add() -> None:
    model = ab.Sequential([layers.Dense(4)])
    assert model.inputs is None
    model.build((None, 3))
    assert [weight.shape for weight in model.weights] == [(3, 4), (4,)]
    model.add(layers.Dense(2))
    assert not model.built
    assert model(np.ones((5, 3), "float32")).shape == (5, 2)
    assert model.output_shape == (None, 2)


def test_sequential_refuses_what_is_no_layer() -> None:
    classes: list[Any] = [layers.Dense]
    with pytest.raises(TypeError, match=r"with parentheses: Dense\(3\)"):
        ab.Sequential(classes)
    with pytest.raises(ValueError, match="has a layer called 'twice' already"):
        ab.Sequential([layers.Dense(1, name="twice"), layers.Dense(1, name="twice")])
    with pytest.raises(ValueError, match="an Input must come first"):
        ab.Sequential([layers.Dense(1), ab.Input((3,))])
    with pytest.raises(ValueError, match="gives 3 tensors"):
        ab.Sequential([ab.Input((4, 2)), layers.LSTM(2, return_state=True)])
    with pytest.raises(ValueError, match="has no layers"):
        ab.Sequential()(np.ones((1, 2)))


@pytest.mark.parametrize("declared", [True, False])
def test_sequential_configs_make_it_again(declared: bool) -> None:
    stack = [layers.Dense(3, "relu"), layers.Dense(2)]
    model = ab.Sequential([ab.Input((4,)), *stack] if declared else stack, name="row")
    data = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    expected = model(data)
    written = serialize_keras_object(model)
    assert (written["module"], written["class_name"]) == ("keras", "Sequential")
    assert written["config"]["build_input_shape"] == [None, 4]
    assert written["config"]["layers"][0]["class_name"] == "InputLayer"
    again = deserialize_keras_object(written)
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(data), expected)


def test_compiled_configs_compile_again() -> None:
    model = ab.Sequential([ab.Input((4,)), layers.Dense(3)])
    model.compile(ab.optim.Adam(0.01), ab.losses.Huber(delta=0.5), metrics=["mae"], steps_per_execution=3)
    again = deserialize_keras_object(serialize_keras_object(model))
    assert float(again.optimizer.learning_rate) == pytest.approx(0.01)
    assert again.loss.get_config() == model.loss.get_config()
    assert again.steps_per_execution == 3
    again.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
    assert again.metrics_names == ["loss", "mae"]


# --- subclasses -----------------------------------------------------------------------------------------------------


def test_a_subclass_builds_on_first_data_and_trains() -> None:
    ab.utils.set_random_seed(0)
    model = Classifier(3)
    loss = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ab.optim.Adam(0.03), loss, metrics=["accuracy"])
    x = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
    y = np.argmax(x[:, :3], axis=-1)
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=10, batch_size=10, verbose=0)
    after = model.evaluate(x, y, verbose=0)
    assert after[0] < 0.7 * before[0]
    assert after[1] > before[1]
    assert [layer.name for layer in model.layers] == [layer.name for layer in (*model.blocks, model.drop, model.head)]
    assert len(model.weights) == 6


def test_a_subclass_can_be_built_without_data() -> None:
    model = Classifier(2)
    model.build((None, 5))
    assert [weight.shape for weight in model.weights] == [(5, 4), (4,), (4, 4), (4,), (4, 2), (2,)]


def test_a_subclass_is_made_again_from_its_constructors_arguments() -> None:
    model = Classifier(3, name="kinds")
    x = np.ones((2, 5), "float32")
    expected = model(x)
    again = deserialize_keras_object(serialize_keras_object(model))
    assert again.name == "kinds"
    assert again.built
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(x), expected)


def test_a_subclass_of_several_arguments_is_rebuilt() -> None:
    @ab.saving.register_keras_serializable(package="test_models")
    class Pair(ab.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.first, self.second = layers.Dense(2), layers.Dense(2)

        def call(self, x, y):
            return self.first(x) + self.second(y)

    model = Pair()
    x, y = np.ones((1, 3), "float32"), np.ones((1, 4), "float32")
    expected = model(x, y)
    again = deserialize_keras_object(serialize_keras_object(model))
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(x, y), expected)


def test_a_subclass_may_be_given_inputs_and_outputs() -> None:
    class Named(ab.Model):
        def greet(self) -> str:
            return f"I am {self.name}"

    x = ab.Input((2,))
    model = Named(x, layers.Dense(1)(x), name="n")
    assert model.greet() == "I am n"
    assert model.predict(np.ones((3, 2))).shape == (3, 1)
    assert [type(layer).__name__ for layer in model.layers] == ["InputLayer", "Dense"]


def test_a_subclass_may_pass_inputs_and_outputs_up() -> None:
    class Wrapped(ab.Model):
        def __init__(self, units):
            x = ab.Input((2,))
            super().__init__(inputs=x, outputs=layers.Dense(units)(x))
            self.units = units

    assert Wrapped(3).predict(np.ones((1, 2))).shape == (1, 3)


def test_a_model_without_call_says_so() -> None:
    class Empty(ab.Model):
        pass

    with pytest.raises(NotImplementedError, match=r"defines no call\(self, inputs\)"):
        Empty()(np.ones((1, 2)))


def test_a_model_does_not_take_other_arguments() -> None:
    with pytest.raises(TypeError, match="takes inputs and outputs"):
        ab.Model(*[3])


def test_get_layer_by_name_and_index() -> None:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1, name="only")])
    assert model.get_layer("only") is model.get_layer(index=0)
    with pytest.raises(ValueError, match=r"no layer called 'other'\. Its layers are: only"):
        model.get_layer("other")
    with pytest.raises(ValueError, match="has 1 layers"):
        model.get_layer(index=3)
    with pytest.raises(ValueError, match="one of them"):
        model.get_layer()


# --- summary --------------------------------------------------------------------------------------------------------


def test_summary_of_a_sequential(capsys: pytest.CaptureFixture[str]) -> None:
    ab.Sequential([ab.Input((4,)), layers.Dense(3, name="a"), layers.Dense(2, name="b")], name="row").summary()
    expected = """\
Model: "row"
┌──────────────┬──────────────┬─────────┐
│ Layer (type) │ Output Shape │ Param # │
├──────────────┼──────────────┼─────────┤
│ a (Dense)    │ (None, 3)    │      15 │
│ b (Dense)    │ (None, 2)    │       8 │
└──────────────┴──────────────┴─────────┘
 Total params: 23 (92.00 B)
 Trainable params: 23 (92.00 B)
 Non-trainable params: 0 (0.00 B)
"""
    assert capsys.readouterr().out == expected


def test_summary_of_a_subclass_shows_shapes_once_it_is_built() -> None:
    model = Classifier(3)
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert "?" in lines[0]
    model(np.ones((2, 5), "float32"))
    model.summary(print_fn=lines.append)
    shapes = [line.split("│")[2].strip() for line in lines[1].splitlines() if "(Dense)" in line]
    assert shapes == ["(None, 4)", "(None, 4)", "(None, 3)"]


def test_summary_shows_connections_nested_layers_and_what_is_trained() -> None:
    x = ab.Input((2,), name="x")
    inner = ab.Sequential([ab.Input((2,)), layers.Dense(2, name="within")], name="inner")
    inner.trainable = False
    model = ab.Model(x, layers.Add(name="sum")([x, inner(x)]))
    lines: list[str] = []
    model.summary(print_fn=lines.append, expand_nested=True, show_trainable=True)
    assert "│   within (Dense)" in lines[0]
    assert "│ x, inner" in lines[0]
    assert "│ N " in lines[0]
    assert "Non-trainable params: 6" in lines[0]
    model.summary(print_fn=lines.append, layer_range=("inner", "sum"))
    assert "InputLayer" not in lines[1]
    with pytest.raises(ValueError, match="no layer 'nowhere'"):
        model.summary(layer_range=("nowhere", "sum"))
