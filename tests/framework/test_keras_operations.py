"""Functional models with ops: Keras opens what is written here, and what Keras writes is opened here."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.real_keras import keras_python, results_in_keras

import anabranch as ab
from anabranch.engine.objects.registry import deserialize_keras_object, serialize_keras_object
from anabranch.framework.saving.keras_calls import operations
from golden.operations import Sample, samples
from golden.own_operations import own_samples

OWN = own_samples(ab.ops)
SAMPLES = samples(ab.ops)
ALL = SAMPLES | OWN
GOLDEN = Path(__file__).parents[1] / "golden" / "operations.json"
# What Keras 3.15.1, whose signatures the file holds, does not have yet.
NEWER: dict[str, Any] = {"math.Gammainc": [["name=None"], ["x1", "x2"]]}  # in Keras 3.16
NEWER_NAMES = ("gammainc",)
# Errors of Keras itself, or results of another shape, by its backend (the environment's KERAS_BACKEND).
FAILS_IN_KERAS = {
    "torch": "nonzero",
    # JAX takes tuples for sizes and axes, which are lists in files, those of Keras included.
    "jax": "adaptive_max_pool average_pool cholesky_inverse max_pool max_pool_same quantile rot90",
    "tensorflow": "complex conj_of conjugate_of lu searchsorted view_as_complex view_as_real",
}


@functools.cache
def golden() -> Any:
    content = json.loads(GOLDEN.read_text())
    content["signatures"] |= NEWER
    return content


def model_of(sample: Sample) -> Any:
    inputs = [ab.Input(shape, dtype=sample.dtype, name=f"in{i}") for i, shape in enumerate(sample.shapes)]
    outputs = sample.apply(*inputs)
    return ab.Model(inputs, list(outputs) if isinstance(outputs, tuple) else outputs)


def results_of(model: Any, sample: Sample) -> list[np.ndarray]:
    found = model(sample.inputs())
    return [np.asarray(value) for value in (found if isinstance(found, (list, tuple)) else [found])]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray], name: str) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=name)


def tensors_in(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(tensors_in, value))
    return isinstance(value, dict) and value.get("class_name") == "__keras_tensor__"


def unknown_to_keras(entry: dict[str, Any]) -> str:
    """Return why Keras could not make this op of a config; empty if it could."""
    package, _, module = entry["module"].partition("keras.src.ops.")
    signature = golden()["signatures"].get(f"{module}.{entry['class_name']}")
    if package or signature is None:
        return f"{entry['module']}.{entry['class_name']} is no operation of Keras"
    settings, parameters = signature
    names = {parameter.partition("=")[0] for parameter in settings} | {"name"}
    if not entry["config"].keys() <= names:
        return f"{entry['class_name']} takes no {entry['config'].keys() - names}"
    for call in entry["inbound_nodes"]:
        if not tensors_in(call["args"]):
            return f"a call of {entry['class_name']} has no tensors"
        if not parameters[0].startswith("*") and len(call["args"]) > len(parameters):
            return f"{entry['class_name']} takes {parameters}, not {len(call['args'])} arguments"
    return ""


def test_what_is_written_keras_has() -> None:
    problems = {}
    for name, sample in ALL.items():
        config = serialize_keras_object(model_of(sample))["config"]
        entries = [entry for entry in config["layers"] if entry["module"] != "keras.layers"]
        found = [problem for problem in map(unknown_to_keras, entries) if problem]
        if found:
            problems[name] = found
    assert not problems


def test_what_keras_writes_is_opened(without_kernels: None) -> None:
    assert len(golden()["configs"]) > 270
    for name, config in golden()["configs"].items():
        sample = SAMPLES[name]
        model = deserialize_keras_object(config)
        assert_same(results_of(model, sample), results_of(model_of(sample), sample), name)


@pytest.mark.parametrize("name", ["softmax_twice", "shared"])
def test_ops_that_are_used_twice_are_written_once(name: str, tmp_path: Path) -> None:
    x = ab.Input((4,))
    y = ab.ops.softmax(x) if name == "shared" else ab.ops.softmax(ab.ops.softmax(x))
    model = ab.Model(x, y * y + ab.ops.zeros_like(x))
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    value = np.linspace(0, 1, 8, dtype="float32").reshape(2, 4)
    np.testing.assert_allclose(again.predict(value, verbose=0), model.predict(value, verbose=0), rtol=1e-6)
    assert serialize_keras_object(again)["config"]["layers"][1]["class_name"] == "Softmax"


@pytest.mark.slow
def test_all_that_is_written_is_read_again(tmp_path: Path, without_kernels: None) -> None:
    for name, sample in ALL.items():
        model = model_of(sample)
        model.save(tmp_path / "m.keras")
        assert_same(results_of(ab.load_model(tmp_path / "m.keras"), sample), results_of(model, sample), name)


@pytest.mark.slow
def test_keras_opens_what_is_written(tmp_path: Path) -> None:
    keras_python()
    expected: dict[str, Any] = {}
    fails = FAILS_IN_KERAS.get(os.environ.get("KERAS_BACKEND", "tensorflow"), "")
    for name, sample in ALL.items():
        if name in fails.split() or name in NEWER_NAMES:
            continue
        model = model_of(sample)
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.inputs.npz", *sample.inputs())
        expected[name] = results_of(model, sample)
    found = results_in_keras(tmp_path)
    for name, values in expected.items():
        assert_same(found[name], values, name)


# --- all names ------------------------------------------------------------------------------------------------------

# Functions whose result's shape depends on values, that have effects, or that take Python functions and strings: Keras
# has no operation for them that a file can hold. The loop of ctc_loss is for the call() of a layer.
NOT_IN_KERAS = """
    argwhere boolean_mask dynamic_partition setdiff1d unique_with_counts embedding_lookup_sparse
    assert_equal assert_greater assert_greater_equal assert_less assert_less_equal assert_non_negative assert_positive
    assert_rank assert_shape assert_true check_numerics print
    associative_scan cond ctc_loss custom_gradient fori_loop jvp map numpy_function scan switch vectorize vectorized_map
    while_loop
"""
# Classes and modules, what gives numbers of Python, and what makes values of numbers alone.
NO_OPS = """
    ErrorSample InvalidArgumentError Op Sample SparseTensor apply apply_multi constant convert_to_numpy dtype image
    is_tensor linalg ndim nn numpy registered_ops shape sparse strings
    blackman empty eye geomspace hamming hanning identity kaiser linspace logspace ones tri zeros
"""


def public_functions() -> dict[str, Any]:
    names = {name: getattr(ab.ops, name) for name in ab.ops.__all__}
    return names | {f"image.{name}": getattr(ab.ops.image, name) for name in ab.ops.image.__all__}


def test_each_op_has_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[Any] = set()

    def recorded(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(function)
            return function(*args, **kwargs)

        return call

    functions = public_functions()
    for name, function in functions.items():
        if callable(function) and not isinstance(function, type):
            owner = ab.ops.image if name.startswith("image.") else ab.ops
            monkeypatch.setattr(owner, name.removeprefix("image."), recorded(function))
    for sample in (samples(ab.ops) | own_samples(ab.ops)).values():
        model_of(sample)
    missing = {name for name, function in functions.items() if function not in seen}
    # What is drawn again by each library has no common result.
    assert missing - {*NO_OPS.split()} == {*NOT_IN_KERAS.split(), "image.elastic_transform"}


def test_keras_operations_have_the_settings_that_keras_gives_them() -> None:
    signatures = golden()["signatures"]
    for name, settings in operations().items():
        given = [parameter.partition("=")[0] for parameter in signatures[name][0] if not parameter.startswith("**")]
        assert [*settings] == [setting for setting in given if setting != "name"], name


# --- what Keras lacks -----------------------------------------------------------------------------------------------


def test_what_keras_lacks_is_refused_for_keras_only(tmp_path: Path) -> None:
    x = ab.Input((4,), name="x")
    many = ab.ops.boolean_mask(ab.layers.Dense(4)(x), ab.ops.max(x, axis=1) > 0)
    model = ab.Model(x, many, name="picks")
    with pytest.raises(
        ValueError, match=r"Model 'picks' can't be opened by Keras, which has no op GetItems \('get_items"
    ):
        model.save(tmp_path / "m.keras", for_keras=True)
    assert not (tmp_path / "m.keras").exists()
    model.save(tmp_path / "m.keras")
    value = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    np.testing.assert_allclose(ab.load_model(tmp_path / "m.keras")(value), model(value), rtol=1e-6)


def test_layers_that_keras_lacks_are_refused_for_keras(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((4, 6)), ab.layers.TransformerEncoder(12, 2, name="encoder")])
    model.compile(ab.optim.Lookahead(ab.optim.SGD()), loss="mse")
    with pytest.raises(ValueError, match=r"has no TransformerEncoder \('encoder'\), Lookahead"):
        model.save(tmp_path / "m.keras", for_keras=True)
    plain = ab.Sequential([ab.Input((4,)), ab.layers.Dense(2)])
    plain.compile("adam", loss="mse")
    plain.save(tmp_path / "m.keras", for_keras=True)


def test_complex_numbers_in_files(tmp_path: Path) -> None:
    x = ab.Input((4, 2))
    turned = ab.ops.multiply(ab.ops.view_as_complex(x), np.array([1j, 2, 3 - 1j, 0], "complex64"))
    model = ab.Model(x, ab.ops.view_as_real(turned * (1 + 2j) * 2))
    with pytest.raises(ValueError, match="has no complex numbers in files"):
        model.save(tmp_path / "m.keras", for_keras=True)
    model.save(tmp_path / "m.keras")
    value = np.linspace(-1, 1, 24, dtype="float32").reshape(3, 4, 2)
    np.testing.assert_allclose(ab.load_model(tmp_path / "m.keras")(value), model(value), rtol=1e-6)


def test_settings_of_newer_keras_are_read_and_not_written() -> None:
    x = ab.Input((4,))
    model = ab.Model(x, list(ab.ops.top_k(x, 2, is_stable=False)))
    config = serialize_keras_object(model)
    settings = config["config"]["layers"][1]["config"]
    assert settings == {"name": "top_k", "k": 2, "sorted": True}  # all that Keras 3.15 takes
    settings["is_stable"] = True  # as Keras 3.16 writes it
    value = np.array([[1.0, 3.0, 3.0, 2.0]], "float32")
    np.testing.assert_array_equal(deserialize_keras_object(config)(value)[1], [[1, 2]])


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("numpy.ColumnStack", {}, (4,)),
        ("linalg.MatrixPower", {"n": 3}, (4, 4)),
        ("image.ReconstructPatches", {"size": [2, 2], "output_size": [4, 4], "strides": [2, 2]}, (2, 2, 12)),
    ],
)
def test_operations_of_newer_keras_are_read(name: str, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = ab.Input(shape, name="x")
    config = serialize_keras_object(ab.Model(x, ab.ops.exp(x)))
    module, _, class_name = name.partition(".")
    operation = config["config"]["layers"][1]
    operation |= {"module": f"keras.src.ops.{module}", "class_name": class_name, "config": {"name": "exp", **settings}}
    operation["registered_name"] = class_name
    given = operation["inbound_nodes"][0]["args"]
    operation["inbound_nodes"][0]["args"] = [given * 2] if class_name == "ColumnStack" else given
    value = np.random.default_rng(0).uniform(size=(3, *shape)).astype("float32")
    found = deserialize_keras_object(config)(value)
    expected = {
        "ColumnStack": lambda: np.column_stack([value, value]),
        "MatrixPower": lambda: np.linalg.matrix_power(value, 3),
        "ReconstructPatches": lambda: ab.ops.image.reconstruct_patches(value, 2, (4, 4)),
    }[class_name]()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_second_file_holds_the_same() -> None:
    for name in ("gelu", "conv_grouped", "positions", "ifft"):
        model = model_of(ALL[name])
        first = json.dumps(serialize_keras_object(model))
        assert json.dumps(serialize_keras_object(model)) == first
        again = deserialize_keras_object(json.loads(first))
        kinds = [layer["class_name"] for layer in json.loads(first)["config"]["layers"]]
        written = serialize_keras_object(again)["config"]["layers"]
        assert sorted(layer["class_name"] for layer in written) == sorted(kinds)


def test_a_call_is_one_operation() -> None:
    x = ab.Input((4,))
    layers = serialize_keras_object(ab.Model(x, ab.ops.gelu(x) + ab.ops.std(x)))["config"]["layers"]
    assert [layer["class_name"] for layer in layers] == ["InputLayer", "Gelu", "Std", "Add"]
    assert layers[1]["config"] == {"name": "gelu", "approximate": True}
    assert layers[2]["config"] == {"name": "std", "axis": None, "keepdims": False}


def test_names_of_layers_are_kept_apart_from_those_of_calls() -> None:
    x = ab.Input((4,))
    y = ab.layers.Dense(4, name="gelu")(x)
    layers = serialize_keras_object(ab.Model(x, ab.ops.gelu(ab.ops.gelu(y))))["config"]["layers"]
    assert sorted(layer["name"] for layer in layers[1:]) == ["gelu", "gelu_1", "gelu_2"]
