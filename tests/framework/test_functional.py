"""Functional models: structures, shared and nested layers, raw ops, configs, messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.objects.registry import deserialize_keras_object, serialize_keras_object
from anabranch.framework.models.model import Functional
from anabranch.framework.models.raw_ops import RawOp

RNG = np.random.default_rng(1)


def reloaded(model: ab.Model) -> ab.Model:
    """The model made again from its config, through JSON, with the same weights."""
    again = deserialize_keras_object(json.loads(json.dumps(serialize_keras_object(model))))
    again.set_weights(model.get_weights())
    return again


def two_towers() -> ab.Model:
    left, right = ab.Input((3,), name="left"), ab.Input((2,), name="right")
    shared = layers.Dense(4, "relu", name="shared")
    joined = layers.concatenate([shared(left), shared(layers.Dense(3, name="widen")(right))])
    score = layers.Dense(1, name="score")(joined)
    kind = layers.Dense(3, activation="softmax", name="kind")(joined)
    return ab.Model([left, right], [score, kind], name="towers")


def inputs(count: int = 6) -> list[np.ndarray]:
    return [RNG.normal(size=(count, 3)).astype("float32"), RNG.normal(size=(count, 2)).astype("float32")]


# --- structure ------------------------------------------------------------------------------------------------------


def test_model_of_inputs_and_outputs_is_functional() -> None:
    model = two_towers()
    assert type(model) is Functional
    assert model.built
    assert model.input_names == ["left", "right"]
    assert model.output_names == ["score", "kind"]
    assert model.input_shape == [(None, 3), (None, 2)]
    assert model.output_shape == [(None, 1), (None, 3)]


def test_layers_are_in_keras_order_by_distance_from_the_outputs() -> None:
    names = [layer.name for layer in two_towers().layers]
    assert names[0] == "right"
    assert names[1:4] == ["left", "widen", "shared"]
    assert names[-2:] == ["score", "kind"]


def test_shared_layers_have_their_weights_once() -> None:
    model = two_towers()
    assert len(model.weights) == 8
    x = inputs()
    shared, widen = model.get_layer("shared"), model.get_layer("widen")
    joined = np.concatenate([shared(x[0]), shared(widen(x[1]))], axis=-1)
    np.testing.assert_allclose(model.predict(x, verbose=0)[0], model.get_layer("score")(joined), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["list", "tuple", "dict"])
def test_inputs_come_as_lists_or_by_name(form: str) -> None:
    model = two_towers()
    left, right = inputs()
    given = {"list": [left, right], "tuple": (left, right), "dict": {"right": right, "left": left}}[form]
    reference = model([left, right])
    for found, expected in zip(model(given), reference, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_dicts_of_inputs_and_outputs_keep_their_keys() -> None:
    model = two_towers()
    given = {"a": ab.Input((3,)), "b": ab.Input((2,))}
    score, kind = model([given["a"], given["b"]])
    outer = ab.Model(given, {"score": score, "kind": kind})
    left, right = inputs()
    found = outer.predict({"a": left, "b": right}, verbose=0)
    assert set(found) == {"score", "kind"}
    np.testing.assert_allclose(found["score"], model.predict([left, right], verbose=0)[0], rtol=1e-5, atol=1e-6)
    outer.compile("sgd", {"score": "mse", "kind": "sparse_categorical_crossentropy"}, metrics={"score": ["mae"]})
    targets = {"score": np.zeros((6, 1)), "kind": np.zeros(6, int)}
    history = outer.fit({"a": left, "b": right}, targets, verbose=0).history
    assert list(history) == ["kind_loss", "loss", "score_loss", "score_mae"]


def test_losses_weights_and_metrics_of_several_outputs() -> None:
    model = two_towers()
    model.compile(
        "sgd",
        ["mse", "sparse_categorical_crossentropy"],
        loss_weights={"score": 2.0, "kind": 0.5},
        metrics=[[], ["acc"]],
    )
    x, y = inputs(), [RNG.normal(size=(6, 1)), np.array([0, 1, 2, 0, 1, 2])]
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert list(found) == ["kind_acc", "kind_loss", "loss", "score_loss"]
    assert found["loss"] == pytest.approx(2 * found["score_loss"] + 0.5 * found["kind_loss"], rel=1e-5)
    values = model.evaluate(x, y, verbose=0)
    assert values == [found[name] for name in ("loss", "score_loss", "kind_loss", "kind_acc")]


def test_one_loss_serves_all_outputs_and_some_may_have_none() -> None:
    model = two_towers()
    model.compile("sgd", "mse")
    x, y = inputs(), [np.zeros((6, 1)), np.zeros((6, 3))]
    assert list(model.evaluate(x, y, verbose=0, return_dict=True)) == ["kind_loss", "loss", "score_loss"]
    model.compile("sgd", {"score": "mse"})
    assert list(model.evaluate(x, y[0], verbose=0, return_dict=True)) == ["loss"]


# --- nesting and raw ops --------------------------------------------------------------------------------------------


def test_models_nest_and_share_weights() -> None:
    inner = ab.Sequential([ab.Input((2,)), layers.Dense(2, "tanh")], name="inner")
    x = ab.Input((2,))
    outer = ab.Model(x, inner(inner(x)))
    data = RNG.normal(size=(3, 2)).astype("float32")
    np.testing.assert_allclose(outer(data), inner(inner(data)), rtol=1e-5, atol=1e-6)
    assert outer.weights == inner.weights
    assert outer.get_layer("inner") is inner


def test_a_model_may_begin_at_what_a_layer_gives(tmp_path: Any) -> None:
    """As an input of its own: the layers before it are no part of the model."""
    x = ab.Input((3,))
    hidden = layers.Dense(4, "tanh", name="first")(x)
    output = layers.Dense(1, name="second")(hidden * 2.0 + 1.0)
    model = ab.Model(hidden, output)
    kinds = ["InputLayer", "Multiply", "Add", "Dense"]
    assert [entry["class_name"] for entry in model.get_config()["layers"]] == kinds
    assert [layer.name for layer in model.layers] == ["first_output", "second"]
    assert (len(model.weights), model.count_params(), model.input_shape) == (2, 5, (None, 4))
    data = RNG.normal(size=(5, 4)).astype("float32")
    second = ab.Model(x, output).get_layer("second")  # of the whole model, which is as it was
    expected = (data * 2 + 1) @ second.kernel.numpy() + second.bias.numpy()
    model.save(tmp_path / "part.keras")
    for each in (model, ab.models.load_model(tmp_path / "part.keras")):
        np.testing.assert_allclose(each.predict(data, verbose=0), expected, rtol=1e-5, atol=1e-6)
    model.compile("sgd", "mse")
    model.fit({"first_output": data}, np.ones((5, 1)), verbose=0)


def test_a_model_may_begin_at_several_places() -> None:
    x = ab.Input((3,))
    shared = layers.Dense(4, name="shared")
    left, right = shared(x), shared(x * 2.0)
    inputs = {"b": left, "a": x, "c": right}
    model = ab.Model(inputs, {"sum": left + right, "whole": ab.ops.sum(left * right, -1) + ab.ops.sum(x, -1)})
    data = {name: RNG.normal(size=(2, size)).astype("float32") for name, size in (("a", 3), ("b", 4), ("c", 4))}
    found = model.predict(data, verbose=0)
    np.testing.assert_allclose(found["sum"], data["b"] + data["c"], rtol=1e-5)
    whole = (data["b"] * data["c"]).sum(-1) + data["a"].sum(-1)
    np.testing.assert_allclose(found["whole"], whole, rtol=1e-4, atol=1e-5)
    assert not model.weights
    assert len({layer.name for layer in model.layers}) == 3


def test_a_model_may_begin_at_what_an_op_gives(tmp_path: Any) -> None:
    x = ab.Input((3,), name="x")
    scaled = layers.Dense(4)(x) * 2.0
    head = ab.Model(scaled, layers.Dense(1, kernel_initializer="ones")(ab.ops.relu(scaled[:, :2])))
    head.save(tmp_path / "head.keras")
    for model in (head, ab.models.load_model(tmp_path / "head.keras")):
        assert model.predict(np.array([[1.0, -2.0, 7.0, 7.0]], "float32"), verbose=0).tolist() == [[1.0]]
    with pytest.raises(ValueError, match=r"depend on \['x'\], which is not among the inputs"):
        ab.Model(scaled, scaled + x[:, :1])
    with pytest.raises(ValueError, match=r"placeholder 'plain.*which is no ab.Input"):
        ab.Model(ab.placeholder((None, 3), name="plain") * 2.0, layers.Dense(1)(x))


def test_one_of_two_outputs_of_a_layer_is_not_enough_to_begin_with() -> None:
    class Halves(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs[:, :2], inputs[:, 2:]

    left, right = Halves()(ab.Input((4,), name="whole"))
    with pytest.raises(ValueError, match=r"depend on \['whole'\], which is not among the inputs"):
        ab.Model(left, left + right)


def test_a_part_of_a_model_is_a_model() -> None:
    model = two_towers()
    hidden = ab.Model(model.inputs, model.get_layer("score").input)
    assert hidden.output_shape == (None, 8)
    assert hidden.get_layer("shared") is model.get_layer("shared")


def test_a_model_may_start_at_a_layers_output() -> None:
    model = two_towers()
    joined = model.get_layer("score").input
    head = ab.Model(joined, model.outputs[0])
    assert [layer.name for layer in head.layers] == [f"{joined.annotations['history'].layer.name}_output", "score"]
    data = RNG.normal(size=(3, 8)).astype("float32")
    np.testing.assert_allclose(head(data), model.get_layer("score")(data), rtol=1e-5, atol=1e-6)


def test_raw_ops_are_parts_of_the_model() -> None:
    x = ab.Input((3,))
    scaled = (x + 1.0) * np.array([1.0, 2.0, 3.0], "float32")
    flipped = ab.ops.reshape(ab.ops.transpose(ab.ops.reshape(scaled, (-1, 1, 3)), (0, 2, 1)), (-1, 3))[:, ::-1]
    model = ab.Model(x, layers.Dense(2)(flipped))
    graph = model._layer_graph
    assert graph is not None
    assert any(isinstance(operation, RawOp) for operation in graph.operations)
    data = RNG.normal(size=(4, 3)).astype("float32")
    expected = ((data + 1) * np.array([1, 2, 3], "float32"))[:, ::-1] @ model.get_weights()[0]
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reloaded(model)(data), expected, rtol=1e-5, atol=1e-6)


def test_a_dtype_among_the_attributes_of_a_raw_op_survives_a_config() -> None:
    x = ab.Input((2,))
    model = ab.Model(x, ab.ops.cast(ab.ops.cast(x * 1.5, "int32"), "float32"))
    again = reloaded(model)
    np.testing.assert_array_equal(again(np.ones((1, 2), "float32")), [[1, 1]])
    assert again.outputs[0].dtype == np.dtype("float32")


def test_an_index_with_a_tensor_in_it_survives_a_config() -> None:
    x, at = ab.Input((5,)), ab.Input(batch_shape=(), dtype="int32")
    model = ab.Model([x, at], layers.Dense(1)(ab.ops.reshape(x[:, at:][:, 0], (-1, 1))))
    data = RNG.normal(size=(2, 5)).astype("float32")
    found = reloaded(model)([data, np.int32(2)])
    np.testing.assert_allclose(found, data[:, 2:3] @ model.get_weights()[0], rtol=1e-5, atol=1e-6)


def test_a_variable_used_directly_is_read_at_each_step_but_not_saved() -> None:
    x = ab.Input((2,))
    factor = ab.Variable(2.0, name="factor")
    model = ab.Model(x, x * factor)
    np.testing.assert_array_equal(model(np.ones((1, 2), "float32")), [[2, 2]])
    factor.assign(5.0)
    np.testing.assert_array_equal(model(np.ones((1, 2), "float32")), [[5, 5]])
    with pytest.raises(ValueError, match=r"Variable 'factor' is used directly"):
        model.get_config()


def test_masks_reach_through_a_model() -> None:
    ids = ab.Input((4,), dtype="int32")
    embedded = layers.Embedding(5, 3, mask_zero=True)(ids)
    model = ab.Model(ids, layers.LSTM(2)(embedded))
    weights = model.get_weights()
    short = np.array([[1, 2, 3, 0]], "int32")
    unmasked = ab.Sequential([ab.Input((3,), dtype="int32"), layers.Embedding(5, 3), layers.LSTM(2)])
    unmasked.set_weights(weights)
    np.testing.assert_allclose(model(short), unmasked(short[:, :3]), rtol=1e-5, atol=1e-6)


def test_training_given_in_the_call_is_kept() -> None:
    x = ab.Input((100,))
    always = ab.Model(x, layers.Dropout(0.5)(x, training=True))
    assert (always.predict(np.ones((1, 100)), verbose=0) == 0).any()
    assert (reloaded(always).predict(np.ones((1, 100)), verbose=0) == 0).any()


def test_inputs_are_fitted_in_rank_and_dtype() -> None:
    model = ab.Sequential([ab.Input((1,)), layers.Dense(2)])
    np.testing.assert_array_equal(model(np.arange(3)), model(np.arange(3, dtype="float32")[:, None]))


# --- configs --------------------------------------------------------------------------------------------------------


def test_configs_make_the_model_again() -> None:
    model = two_towers()
    again = reloaded(model)
    assert again.name == "towers"
    assert [layer.name for layer in again.layers] == [layer.name for layer in model.layers]
    x = inputs()
    for found, expected in zip(again(x), model(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_configs_are_what_keras_writes() -> None:
    x = ab.Input((3,), name="x")
    model = ab.Model(x, layers.Dense(1, name="out")(x + 1.0), name="m")
    written = serialize_keras_object(model)
    assert (written["module"], written["class_name"]) == ("keras.src.models.functional", "Functional")
    config = written["config"]
    assert config["input_layers"] == ["x", 0, 0]
    assert config["output_layers"] == ["out", 0, 0]
    start, add, out = config["layers"]
    assert start["inbound_nodes"] == []
    assert (add["module"], add["class_name"]) == ("keras.src.ops.numpy", "Add")
    tensor = {"class_name": "__keras_tensor__", "config": {"shape": [None, 3], "dtype": "float32"}}
    tensor["config"]["keras_history"] = ["x", 0, 0]
    assert add["inbound_nodes"] == [{"args": [tensor, 1.0], "kwargs": {}}]
    assert out["build_config"] == {"input_shape": [None, 3]}


def test_configs_of_keras_2_are_read() -> None:
    config = {
        "name": "old",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 3], "name": "x"}, "inbound_nodes": []},
            {"class_name": "Dense", "config": {"units": 2, "name": "out"}, "inbound_nodes": [[["x", 0, 0, {}]]]},
        ],
        "input_layers": [["x", 0, 0]],
        "output_layers": [["out", 0, 0]],
    }
    for entry in config["layers"]:
        entry["name"] = entry["config"]["name"]
        entry["module"] = "keras.layers"
    model = Functional.from_config(config)
    assert model.predict(np.ones((2, 3)), verbose=0).shape == (2, 2)


def test_a_config_with_a_missing_layer_says_which() -> None:
    config = two_towers().get_config()
    config["layers"] = [entry for entry in config["layers"] if entry["name"] != "widen"]
    with pytest.raises(ValueError, match=r"layers \[.*'shared'.*\] of the saved model wait for inputs"):
        Functional.from_config(config)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_an_input_that_is_not_given_is_named() -> None:
    left, right = ab.Input((3,), name="left"), ab.Input((3,), name="right")
    with pytest.raises(ValueError, match=r"depend on \['right'\], which is not among the inputs \['left'\]"):
        ab.Model(left, layers.Add()([left, right]))


def test_inputs_must_be_symbolic() -> None:
    array: Any = np.ones((2, 2))
    with pytest.raises(ValueError, match="inputs must be symbolic tensors"):
        ab.Model(inputs=array, outputs=ab.Input((2,)))
    plain = ab.placeholder((None, 2))
    with pytest.raises(ValueError, match=r"Start the model from ab.Input"):
        ab.Model(plain, plain + 1.0)


def test_two_layers_of_one_name_are_refused() -> None:
    x = ab.Input((2,))
    with pytest.raises(ValueError, match="two layers are called 'same'"):
        ab.Model(x, layers.Dense(2, name="same")(layers.Dense(2, name="same")(x)))


def test_a_plain_placeholder_inside_is_refused() -> None:
    x = ab.Input((2,))
    with pytest.raises(ValueError, match=r"placeholder 'other.*which is no ab.Input"):
        ab.Model(x, x + ab.placeholder((2,), name="other"))


def test_the_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 2 inputs \(left, right\), but was called on 1"):
        two_towers()(inputs()[0])
    with pytest.raises(ValueError, match="missing"):
        two_towers()({"left": inputs()[0]})


class OfAnyTarget(ab.losses.Loss):
    def call(self, y_true, y_pred):
        return ab.ops.mean(y_pred**2)


def test_y_that_does_not_match_the_outputs_is_refused() -> None:
    model = two_towers()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"has 2 outputs \(score, kind\), but y is one array"):
        model.fit(inputs(), np.zeros((6, 1)), verbose=0)
    model.compile("sgd", ["mse", "mse"])
    with pytest.raises(ValueError, match=r"has 2 outputs \(score, kind\), but a single array was given"):
        model.fit(inputs(), np.zeros((6, 1)), verbose=0)
    model.compile("sgd", [OfAnyTarget(), OfAnyTarget()])
    with pytest.raises(ValueError, match=r"has 2 outputs \(score, kind\), but a single array was given"):
        model.fit(inputs(), np.zeros((6, 1)), verbose=0)
    with pytest.raises(ValueError, match=r"\['other'\] name no output"):
        model.fit(inputs(), {"score": np.zeros((6, 1)), "other": np.zeros((6, 3))}, verbose=0)
