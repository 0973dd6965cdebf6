"""Functional models with ops: Keras opens what is written here, and what Keras writes is opened here."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.objects.registry import deserialize_keras_object, serialize_keras_object
from golden.operations import Sample, samples

SAMPLES = samples(ab.ops)
GOLDEN = Path(__file__).parents[1] / "golden" / "operations.json"
# Complex numbers between ops, which Keras's transforms take and give as pairs, and the median of an unknown number.
NOT_IN_KERAS = {"fft", "rfft", "stft", "median"}
# Keras itself fails on them in PyTorch, or takes the batch for the axis of vectors.
FAILS_IN_KERAS = {"conv_transpose", "cross"}


@functools.cache
def golden() -> Any:
    return json.loads(GOLDEN.read_text())


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
    """Why Keras could not make this op of a config; empty if it could."""
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
    for name, sample in SAMPLES.items():
        config = serialize_keras_object(model_of(sample))["config"]
        entries = [entry for entry in config["layers"] if entry["module"] != "keras.layers"]
        found = [problem for problem in map(unknown_to_keras, entries) if problem]
        if found:
            problems[name] = found
    assert problems.keys() == NOT_IN_KERAS, problems


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
    for name, sample in SAMPLES.items():
        model = model_of(sample)
        model.save(tmp_path / "m.keras")
        assert_same(results_of(ab.load_model(tmp_path / "m.keras"), sample), results_of(model, sample), name)


OPENING = """
import sys, pathlib
import numpy as np, keras
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.keras")):
    inputs = np.load(path.with_suffix(".inputs.npz"))
    try:
        found = keras.models.load_model(path)([inputs[name] for name in sorted(inputs)])
        found = found if isinstance(found, (list, tuple)) else [found]
        np.savez(path.with_suffix(".found.npz"), *[keras.ops.convert_to_numpy(value) for value in found])
    except Exception as error:
        print(path.stem, type(error).__name__, str(error)[:300].replace(chr(10), " "))
"""


def keras_python() -> str:
    """A Python that has Keras: this one, or what KERAS_PYTHON names."""
    named = os.environ.get("KERAS_PYTHON")
    if named is None and importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed; KERAS_PYTHON may name a Python that has it")
    return named or sys.executable


@pytest.mark.slow
def test_keras_opens_what_is_written(tmp_path: Path) -> None:
    python, expected = keras_python(), {}
    for name, sample in SAMPLES.items():
        if name in NOT_IN_KERAS | FAILS_IN_KERAS:
            continue
        model = model_of(sample)
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.inputs.npz", *sample.inputs())
        expected[name] = results_of(model, sample)
    result = subprocess.run([python, "-c", OPENING, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    for name, values in expected.items():
        found = np.load(tmp_path / f"{name}.found.npz")
        assert_same([found[f"arr_{i}"] for i in range(len(values))], values, name)
