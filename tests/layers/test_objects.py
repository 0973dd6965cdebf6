"""Initializers, activations, regularizers, constraints, and the registry that writes and reads them."""

import json
import re
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.objects import activations, constraints, initializers, registry, regularizers
from golden.loader import InitializerCase, load_cases

# --- initializers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load_cases("initializers"), ids=str)
def test_initializers_are_those_of_keras(case: InitializerCase) -> None:
    ab.random.set_global_seed(1)  # most cases have no seed, and their statistics are bounded
    value = case.build(initializers)(case.shape)
    assert value.dtype == np.float32
    assert value.shape == tuple(case.shape)
    if case.output is not None:
        rounding = 1e-6 if case.target == "STFT" else 0.0  # Keras computes its angles in float32
        np.testing.assert_allclose(value, case.output, rtol=0, atol=rounding)
        return
    wanted = case.statistics
    spread = wanted["std"] / np.sqrt(value.size)
    assert value.mean(dtype="float64") == pytest.approx(wanted["mean"], abs=8 * spread)
    assert value.std(dtype="float64") == pytest.approx(wanted["std"], rel=0.02)
    bounded = "Normal" not in case.target or "runcated" in case.name or case.target != "RandomNormal"
    if bounded and "untruncated" not in case.name and case.target != "Orthogonal":
        assert value.min() == pytest.approx(wanted["min"], rel=0.01, abs=1e-3)
        assert value.max() == pytest.approx(wanted["max"], rel=0.01, abs=1e-3)


def test_orthogonal_rows_or_columns() -> None:
    wide = initializers.Orthogonal(gain=2.0, seed=1)((3, 7)).astype("float64")
    np.testing.assert_allclose(wide @ wide.T, 4 * np.eye(3), atol=1e-5)
    tall = initializers.Orthogonal(seed=1)((2, 4, 3)).astype("float64").reshape(8, 3)
    np.testing.assert_allclose(tall.T @ tall, np.eye(3), atol=1e-5)


def test_seeds() -> None:
    seeded = initializers.GlorotUniform(seed=3)
    np.testing.assert_array_equal(seeded((2, 2)), seeded((2, 2)))
    np.testing.assert_array_equal(seeded((2, 2)), initializers.GlorotUniform(seed=3)((2, 2)))
    free = initializers.RandomNormal()
    assert not np.array_equal(free((4,)), free((4,)))
    ab.random.set_global_seed(5)
    first = free((4,))
    ab.random.set_global_seed(5)
    np.testing.assert_array_equal(free((4,)), first)


@pytest.mark.parametrize(
    "identifier",
    [
        "zeros",
        "Zeros",
        "zero",
        "one",
        "he_normal",
        "orthogonal",
        initializers.Ones,
        initializers.Constant(2.0),
        lambda s, dtype: 0,
    ],
)
def test_get_initializer(identifier: Any) -> None:
    assert callable(initializers.get(identifier))


def test_initializer_of_an_array() -> None:
    np.testing.assert_array_equal(initializers.get(np.array([1.0, 2.0]))((3, 2)), [[1, 2]] * 3)


@pytest.mark.parametrize("shape", [(2, 2), (2,), (1, 4, 3)])
def test_an_array_of_another_shape_is_no_initializer(shape: tuple[int, ...]) -> None:
    layer = ab.layers.Dense(3, kernel_initializer=np.ones(shape))
    message = rf"a weight of shape \(4, 3\) .* an array of shape {re.escape(str(shape))}, which does not broadcast"
    with pytest.raises(ValueError, match=message):
        layer.build((None, 4))


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_initializer_dtypes(dtype: str) -> None:
    for name in ("zeros", "glorot_uniform", "he_normal", "random_normal", "orthogonal"):
        assert initializers.get(name)((4, 4), dtype=dtype).dtype.name == dtype


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.get("he_nromal"), "Unknown initializer 'he_nromal'. Did you mean 'he_normal'"),
        (lambda: initializers.VarianceScaling(scale=0), "scale must be positive"),
        (lambda: initializers.VarianceScaling(mode="fan"), "mode must be"),
        (lambda: initializers.VarianceScaling(distribution="cauchy"), "distribution must be"),
        (lambda: initializers.RandomNormal(seed="x"), "seed must be"),  # pyright: ignore[reportArgumentType]
        (lambda: initializers.Orthogonal()((3,)), "at least two dimensions"),
        (lambda: initializers.Identity()((3,)), "makes matrices only"),
        (lambda: activations.get("rely"), "Unknown activation"),
        (lambda: activations.get(3), "is no activation"),  # pyright: ignore[reportArgumentType]
        (lambda: regularizers.L2(-1), "from 0 up"),
        (lambda: regularizers.get("l3"), "Unknown regularizer"),
        (lambda: constraints.get("max"), "Unknown constraint"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- regularizers and constraints -----------------------------------------------------------------------------------


def test_regularizers() -> None:
    x = ab.constant([[1.0, -2.0], [3.0, 0.0]])
    for regularizer, value in (
        (regularizers.L1(0.1), 0.6),
        (regularizers.L2(0.1), 1.4),
        (regularizers.l1_l2(0.1, 0.1), 2.0),
        (regularizers.get("l2"), 0.14),
        (regularizers.OrthogonalRegularizer(1.0), 0.5 * 2 / np.sqrt(5)),
    ):
        assert float(ab.Session().run(regularizer(x))) == pytest.approx(value, rel=1e-5)


def test_constraints() -> None:
    w = ab.constant([[3.0, 0.3], [4.0, -0.4]])
    cases = [
        (constraints.MaxNorm(1.0), [[0.6, 0.3], [0.8, -0.4]]),
        (constraints.NonNeg(), [[3, 0.3], [4, 0]]),
        (constraints.UnitNorm(), [[0.6, 0.6], [0.8, -0.8]]),
        (constraints.MinMaxNorm(1.0, 2.0), [[1.2, 0.6], [1.6, -0.8]]),
    ]
    for constraint, expected in cases:
        np.testing.assert_allclose(ab.Session().run(constraint(w)), expected, rtol=1e-5)


# --- the registry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        initializers.GlorotUniform(seed=1),
        initializers.VarianceScaling(2.0, "fan_out", "uniform"),
        initializers.RandomNormal(seed=ab.random.SeedGenerator(3)),
        initializers.Constant(np.array([1.0, 2.0])),
        regularizers.L1L2(0.1, 0.2),
        constraints.MaxNorm(3, axis=[0, 1]),
    ],
    ids=lambda item: type(item).__name__,
)
def test_objects_round_trip_through_json(item: Any) -> None:
    config = json.loads(json.dumps(registry.serialize_keras_object(item)))
    assert config["module"].startswith("keras.")
    assert config["registered_name"] is None
    again = registry.deserialize_keras_object(config)
    assert type(again) is type(item)
    assert registry.serialize_keras_object(again) == registry.serialize_keras_object(item)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        "text",
        [1, [2, None]],
        {"a": {"b": 1}},
        b"\x00\xff",
        slice(1, None, 2),
        ...,
    ],
    ids=repr,
)
def test_values_round_trip_through_json(value: Any) -> None:
    written = json.loads(json.dumps(registry.serialize_keras_object(value)))
    assert registry.deserialize_keras_object(written) == value


def test_arrays_and_variables_round_trip() -> None:
    array = np.array([[1.5, 2.5]], "float16")
    for value in (array, ab.Variable(array)):
        again = registry.deserialize_keras_object(registry.serialize_keras_object(value))
        assert again.dtype == np.float16
        np.testing.assert_array_equal(again, array)
    assert registry.serialize_keras_object(np.float32(2.5)) == 2.5
    value = registry.deserialize_keras_object(registry.serialize_keras_object(ab.constant([1.0, 2.0])))
    np.testing.assert_array_equal(value, np.array([1.0, 2.0], "float32"))
    with ab.Graph().as_default(), pytest.raises(TypeError, match="it has no value"):
        registry.serialize_keras_object(ab.constant(1.0))
    with pytest.raises(TypeError, match="no get_config"):
        registry.serialize_keras_object(object())


@registry.register_keras_serializable(package="objects")
def thrice(x: Any) -> Any:
    return 3 * x


@registry.register_keras_serializable(package="objects", name="Half")
class Halved(initializers.Initializer):
    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return np.full(shape, 0.5, dtype)


def test_registered_functions_and_classes() -> None:
    config = activations.serialize(thrice)
    assert config == {
        "module": "builtins",
        "class_name": "function",
        "config": "objects>thrice",
        "registered_name": "function",
    }
    assert activations.get(config) is thrice
    assert activations.get("objects>thrice") is thrice
    written = initializers.serialize(Halved())
    assert written["registered_name"] == "objects>Half"
    assert isinstance(initializers.deserialize(written), Halved)
    assert activations.serialize(activations.get("relu")) == "relu"
    assert activations.serialize(activations.get("swish")) == "silu"
    assert registry.get_registered_object("objects>Half") is Halved
    assert registry.get_custom_objects()["objects>thrice"] is thrice


def test_a_class_without_config_is_not_registered() -> None:
    with pytest.raises(ValueError, match="no get_config"):
        registry.register_keras_serializable()(type("Bare", (), {}))


def test_custom_object_scope() -> None:
    def fourfold(x: Any) -> Any:
        return 4 * x

    with pytest.raises(ValueError, match="Unknown activation"):
        activations.get("fourfold")
    with registry.custom_object_scope({"fourfold": fourfold}):
        assert activations.get("fourfold") is fourfold
    with pytest.raises(TypeError, match=r"function 'fourfold', which is not known.*custom_objects"):
        registry.deserialize_keras_object({"class_name": "function", "config": "fourfold", "module": "builtins"})


def test_modules_of_older_keras_versions() -> None:
    for module in ("keras.src.initializers.random_initializers", "keras.initializers", "keras.src.engine.base", None):
        config = {"module": module, "class_name": "HeNormal", "config": {"seed": None}}
        assert isinstance(registry.deserialize_keras_object(config), initializers.HeNormal)


def test_no_module_is_imported_for_a_file() -> None:
    with pytest.raises(TypeError, match="which is not known here"):
        registry.deserialize_keras_object({"module": "antigravity", "class_name": "Anything", "config": {}})
    with pytest.raises(TypeError, match="which is not known here"):
        registry.deserialize_keras_object({"module": "os", "class_name": "function", "config": "system"})


def test_a_constructor_that_refuses_its_config() -> None:
    config = {"module": "keras.initializers", "class_name": "Constant", "config": {"value": 1, "extra": 2}}
    assert isinstance(registry.deserialize_keras_object(config), initializers.Constant)
    config = {"module": "keras.regularizers", "class_name": "L2", "config": {"l3": 2}}
    with pytest.raises(TypeError, match=r"L2\.from_config could not make the object from config"):
        registry.deserialize_keras_object(config)


def test_shared_objects_stay_shared() -> None:
    layer = ab.layers.Dense(2)
    with registry.shared_writing_scope():
        written = registry.serialize_keras_object([layer, layer])
    with registry.shared_reading_scope():
        first, second = registry.deserialize_keras_object(written)
    assert first is second
