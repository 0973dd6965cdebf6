"""Names of Keras that scripts use beside layers and models."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import activations, initializers, layers, ops

smart_resize = ab.preprocessing.image.smart_resize

# --- variables ------------------------------------------------------------------------------------------------------


def test_a_variable_by_keras_arguments() -> None:
    made = ab.Variable(
        initializer=initializers.get("ones"), shape=(2, 3), dtype="float16", trainable=False, name="ones"
    )
    assert (made.shape, made.dtype, made.trainable, made.name) == ((2, 3), "float16", False, "ones")
    assert made.numpy().sum() == 6
    given = ab.Variable(initializer=[1, 2], autocast=False, aggregation="mean", synchronization="auto")
    np.testing.assert_array_equal(given.numpy(), [1, 2])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "Variable 'v' needs one initial value: give initial_value or initializer, a number"),
        ({"initial_value": 1.0, "initializer": 2.0}, "give initial_value or initializer, not both"),
        ({"initializer": "nought", "shape": (2,)}, "Unknown initializer 'nought'. Expected one of: constant"),
        ({"initializer": ab.initializers.Zeros()}, r"the initializer .*Zeros.* needs a shape. Pass shape=\.\.\."),
        ({"initializer": "zeros"}, "Variable 'v': an initializer by name needs a shape: initializer='zeros', shape="),
    ],
)
def test_refused_variables(arguments: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ab.Variable(**arguments, name="v")


def test_what_variables_can_not_be_given_is_refused() -> None:
    with pytest.raises(TypeError, match="Variable: name must be a str or None, got 123"):
        ab.Variable(1.0, name=cast("Any", 123))
    dense = ab.layers.Dense(2)
    dense.build((None, 3))
    for variable in (ab.Variable([1.0, 2.0], name="v"), dense.kernel):
        assert variable.regularizer is variable.constraint is None
        for name, kind in (("regularizer", "l2"), ("constraint", "non_neg")):
            with pytest.raises(ValueError, match=rf"{name} must be a function of its value, or None; got '{kind}'"):
                setattr(variable, name, kind)
            made = getattr(ab, f"{name}s").get(kind)
            setattr(variable, name, made)
            assert getattr(variable, name) is made
    assert float(dense.losses[0]) > 0
    assert copy.deepcopy(dense.kernel).regularizer is not None


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "constant",
        "glorot_normal",
        "glorot_uniform",
        "he_normal",
        "he_uniform",
        "identity",
        "lecun_normal",
        "lecun_uniform",
        "ones",
        "orthogonal",
        "random_normal",
        "random_uniform",
        "truncated_normal",
        "variance_scaling",
        "zeros",
        "IdentityInitializer",
        "OrthogonalInitializer",
    ],
)
def test_initializers_by_their_other_names(name: str) -> None:
    cls = getattr(initializers, name)
    assert name in initializers.__all__
    made = cls()
    assert type(initializers.get(name)) is type(made)
    assert type(initializers.deserialize(initializers.serialize(made))) is type(made)
    assert made.clone() == made
    assert made.clone() is not made


def test_activations_by_their_other_names() -> None:
    x = np.linspace(-4, 4, 9).astype("float32")
    assert ab.activations.swish is ab.activations.silu
    assert ab.activations.hard_swish is ab.activations.hard_silu
    assert ab.activations.serialize(ab.activations.swish) == "silu"
    np.testing.assert_allclose(layers.Activation("sparse_sigmoid")(x), np.clip((x + 1) / 2, 0, 1), atol=1e-6)
    expected = np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1) ** 2 / 4))
    np.testing.assert_allclose(layers.Activation("sparse_plus")(x), expected, atol=1e-6)


# --- layers ---------------------------------------------------------------------------------------------------------


class Twice(layers.Wrapper):
    def call(self, inputs: Any) -> Any:
        return self.layer(self.layer(inputs))


def test_a_wrapper() -> None:
    layer = Twice(layers.Dense(2, kernel_initializer="ones", name="inner"), name="twice")
    np.testing.assert_array_equal(layer(np.ones((1, 2), "float32")), [[4, 4]])
    assert [weight.path for weight in layer.weights] == ["twice/inner/kernel", "twice/inner/bias"]
    again = Twice.from_config(layer.get_config())
    assert isinstance(again.layer, layers.Dense)
    assert again.layer.units == 2
    with pytest.raises(ValueError, match="Twice takes a layer, got 3 of type int"):
        Twice(cast("Any", 3))


def test_convolutions_of_changed_kernels() -> None:
    class Standardized(layers.Conv2D):
        def convolution_op(self, inputs: Any, kernel: Any) -> Any:
            mean = ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
            return super().convolution_op(inputs, kernel - mean)

    layer = Standardized(2, 3, use_bias=False)
    constant = layer(np.ones((1, 5, 5, 1), "float32"))
    np.testing.assert_allclose(constant, np.zeros((1, 3, 3, 2)), atol=1e-6)


def test_statistics_of_all_replicas_are_those_of_the_one() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    layer, plain = layers.BatchNormalization(synchronized=True), layers.BatchNormalization()
    np.testing.assert_array_equal(layer(x, training=True), plain(x, training=True))
    np.testing.assert_array_equal(layer.get_weights()[2], plain.get_weights()[2])
    config = layer.get_config()
    assert config["synchronized"] is True
    assert layers.BatchNormalization.from_config(config).get_config() == config


# --- models ---------------------------------------------------------------------------------------------------------


def test_models_as_json() -> None:
    x = ab.Input((4,), name="x")
    model = ab.Model(x, layers.Dense(2, name="head")(layers.Dense(3, activation="relu")(x)))
    again = ab.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    data = np.ones((2, 4), "float32")
    np.testing.assert_array_equal(again.predict(data, verbose=0), model.predict(data, verbose=0))
    assert again.get_layer("head").units == 2


def test_json_of_custom_layers_and_of_nothing() -> None:
    class Own(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2.0

    text = ab.Sequential([ab.Input((2,)), Own()]).to_json()
    assert type(ab.models.model_from_json(text, custom_objects={"Own": Own}).layers[0]) is Own
    with pytest.raises(ValueError, match=r"expects what Model.to_json\(\) gave, got '\[1\]'"):
        ab.models.model_from_json(json.dumps([1]))
    with pytest.raises(ValueError, match=r"but '{\"class_name\": \"Sequential\"}' is no model"):
        ab.models.model_from_json(json.dumps({"class_name": "Sequential"}))


@pytest.mark.parametrize("kind", ["__lambda__", "__numpy__", "__tensor__", "__complex__", "__bytes__"])
@pytest.mark.parametrize("inner", [{}, 5])
def test_json_of_values_without_their_entries(kind: str, inner: Any) -> None:
    activation = {"class_name": kind, "config": inner}
    dense = {"class_name": "Dense", "config": {"units": 1, "activation": activation}}
    text = json.dumps({"class_name": "Sequential", "config": {"layers": [dense]}})
    with pytest.raises(ValueError, match=rf"of kind '{kind}' without 'value': got .*It is damaged"):
        ab.models.model_from_json(text)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda config: config.update(config=5), "'Sequential' has config=5; expected a dict"),
        (lambda config: config["config"]["layers"][0].update(config=5), "'Dense' has config=5; expected a dict"),
        (lambda config: config["config"]["layers"][0].update(class_name=5), "class_name=5; expected text"),
        (lambda config: config["config"].update(layers=5), "can't be made from"),
        (
            lambda config: config["config"]["layers"][0]["config"].update(kernel_initializer={"class_name": "Zeros"}),
            "is no kernel_initializer: expected a name, a config dict",
        ),
    ],
)
def test_json_that_is_damaged(change: Callable[[Any], None], match: str) -> None:
    config: Any = {
        "class_name": "Sequential",
        "config": {"layers": [{"class_name": "Dense", "config": {"units": 1}}]},
    }
    change(config)
    with pytest.raises(ValueError, match=match):
        ab.models.model_from_json(json.dumps(config))
    with pytest.raises(TypeError, match=r"expects the text .* got dict"):
        ab.models.model_from_json(config)


@pytest.mark.parametrize("kind", ["initializers", "regularizers", "constraints", "activations", "losses", "metrics"])
def test_a_config_without_its_config_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"\{'class_name': 'Zeros'\} of type dict is no "):
        getattr(ab, kind).get({"class_name": "Zeros"})


def test_json_of_a_slice_without_a_bound() -> None:
    config = {"class_name": "__slice__", "config": {"start": None, "stop": 3}}
    with pytest.raises(ValueError, match=r"of kind '__slice__' without 'step': got \{'start': None, 'stop': 3\}"):
        ab.saving.deserialize_keras_object(config)


# --- optimizers -----------------------------------------------------------------------------------------------------


def test_a_step_down_a_function() -> None:
    w = ab.Variable([4.0, -2.0])
    optimizer = ab.optimizers.SGD(0.25)

    def loss() -> Any:
        return ops.sum(w * w)

    for expected in ([2.0, -1.0], [1.0, -0.5]):
        assert optimizer.minimize(loss, [w]) is None
        np.testing.assert_array_equal(w.numpy(), expected)
    assert int(optimizer.iterations.numpy()) == 2


def test_a_step_under_a_tape() -> None:
    w, fixed = ab.Variable(3.0), ab.Variable(2.0)
    optimizer = ab.optimizers.SGD(1.0)
    with ab.Graph().as_default():
        with ab.GradientTape() as tape:
            loss = w * ops.stop_gradient(w) * fixed
        step = optimizer.minimize(loss, [w], tape=tape)
        ab.Session().run(step)
    assert float(w.numpy()) == 3.0 - 6.0


def test_a_step_down_a_function_in_a_graph() -> None:
    w = ab.Variable(4.0)
    with ab.Graph().as_default():
        step = ab.optimizers.SGD(0.25).minimize(lambda: w * w, [w])
        ab.Session().run(step)
    assert float(w.numpy()) == 2.0


# --- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("shape", [(4, 8, 1), (8, 4, 3), (2, 6, 6, 1)])
def test_the_largest_part_in_the_middle(shape: tuple[int, ...], data_format: str) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape).astype("float32")
    given = np.moveaxis(image, -1, -3) if data_format == "channels_first" else image
    found = smart_resize(given, (2, 2), data_format=data_format)
    height, width = shape[-3:-1]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    part = image[..., top : top + side, left : left + side, :]
    expected = np.asarray(layers.Resizing(2, 2)(part))
    found = np.moveaxis(np.asarray(found), -3, -1) if data_format == "channels_first" else found
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_wide_target_and_a_tensor() -> None:
    image = np.arange(16.0, dtype="float32").reshape(4, 4, 1)
    np.testing.assert_allclose(smart_resize(image, (2, 4), "nearest")[..., 0], image[1:3, :, 0])
    assert smart_resize(ab.Input((6, 4, 3)), (2, 2)).shape == (None, 2, 2, 3)
    with ab.Graph().as_default():
        assert smart_resize(image, (2, 4), "nearest").numpy()[..., 0].tolist() == image[1:3, :, 0].tolist()
    assert smart_resize(image.astype("uint8"), (2, 2)).dtype == "float32"


@pytest.mark.parametrize(
    ("x", "size", "match"),
    [
        (np.ones((4, 4)), (2, 2), r"3 or 4 axes\), got shape \(4, 4\)"),
        (np.ones((4, 4, 1)), (2, 2, 2), r"size must be \(height, width\), got \(2, 2, 2\)"),
    ],
)
def test_refused_sizes(x: Any, size: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        smart_resize(x, size)
    with pytest.raises(ValueError, match="needs a known height and width"):
        smart_resize(ab.Input((None, 4, 3)), (2, 2))


@pytest.mark.parametrize("name", ["zeros", "ones", "he_normal", "stft"])
def test_a_variable_takes_an_initializer_by_name(name: str) -> None:
    made = ab.Variable(initializer=name, shape=(4, 1, 3))
    assert made.shape == (4, 1, 3)
    if name in ("zeros", "ones"):
        assert (made.numpy() == float(name == "ones")).all()


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (layers, "TFSMLayer", "ab.onnx.load"),
        (layers, "JaxLayer", "in a Layer of your own"),
        (layers, "FlaxLayer", "in a Layer of your own"),
        (layers, "TorchModuleWrapper", "torch.onnx.export"),
        (ab.callbacks, "OrbaxCheckpoint", "ab.distribute.CheckpointManager"),
        (ab.quantizers, "QuantizationReport", "model.quantize returns a dict"),
        (ab.optimizers, "legacy", "same names in anabranch.optimizers"),
    ],
)
def test_names_of_other_frameworks_say_what_to_use(module: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=rf"does not have Keras's {name}\. It .*{remedy}"):
        getattr(module, name)
    assert not hasattr(module, name)
    assert name not in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'Nought'"):
        _ = module.Nought


def test_source_inputs() -> None:
    x, y, unused = ab.Input((2,)), ab.Input((3,)), ab.Input((1,))
    joined = layers.Concatenate()([x, y])
    outputs = ops.multiply(layers.Dense(2)(joined), 2.0) + x
    find = ab.utils.get_source_inputs

    def same(found: list[Any], expected: list[Any]) -> bool:
        return len(found) == len(expected) and all(map(lambda a, b: a is b, found, expected))

    assert same(find(outputs), [x, y])
    assert same(find(x), [x])
    assert same(find(ab.Model([x, y], joined)([x, y])), [x, y])
    assert same(find(layers.Add()([unused, unused])), [unused])
    with pytest.raises(ValueError, match=r"takes a symbolic tensor, .* got 3 of type int"):
        find(cast("Any", 3))


@pytest.mark.parametrize(
    ("module", "tables"), [(activations, ("_FUNCTIONS", "_ALIASES")), (initializers, ("_CLASSES", "_ALIASES"))]
)
def test_public_names_are_listed_literally_for_type_checkers(module: Any, tables: tuple[str, str]) -> None:
    registered = {name for table in tables for name in getattr(module, table)}
    assert registered == set(module.__all__) - {"Initializer", "deserialize", "get", "serialize"}
