"""The golden data are whole, and a few of their numbers are what the formulas give."""

import importlib.util
from pathlib import Path

import h5py
import numpy as np
import pytest

_SPEC = importlib.util.spec_from_file_location("golden_loader", Path(__file__).with_name("loader.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
loader = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(loader)

COUNTS = {
    "layers": 140,
    "attention_layers": 130,
    "convolution_layers": 140,
    "losses": 400,
    "metrics": 100,
    "optimizers": 120,
    "schedules": 11,
    "initializers": 30,
    "fit": 15,
}


def case(kind: str, name: str):
    return next(found for found in loader.load_cases(kind) if found.name == name)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", COUNTS)
def test_every_case_of_a_kind_loads_under_its_own_name(kind: str):
    names = [found.name for found in loader.load_cases(kind)]
    assert len(names) >= COUNTS[kind]
    assert len(set(names)) == len(names)


def test_an_unknown_kind_is_refused_with_the_list_of_kinds():
    with pytest.raises(KeyError, match=r"no golden data called 'layer'.*'layers'"):
        loader.load_cases("layer")


def test_an_unknown_class_is_named():
    with pytest.raises(LookupError, match=r"'Dense', found in none of"):
        case("layers", "Dense/tanh").build(np)


def test_layer_cases_have_a_gradient_for_each_float_input_and_weights_to_match():
    for found in loader.load_cases("layers"):
        floats = {name for name, array in found.inputs.items() if array.dtype == np.float32}
        assert set(found.gradients) == floats, found.name
        assert all(found.gradients[name].shape == found.inputs[name].shape for name in floats), found.name
        assert len(found.weights) == len(found.weight_names), found.name
        assert [out.shape for out in found.outputs] == [seed.shape for seed in found.cotangents], found.name


def test_arguments_pass_every_array_through_convert():
    found = case("layers", "LSTM/initial_state")
    args, kwargs = found.arguments(lambda name, array: (name, array.shape))
    assert args == [("x", (3, 4, 2))]
    assert kwargs == {"initial_state": [("state0", (3, 3)), ("state1", (3, 3))]}


def test_dense_is_the_formula():
    found = case("layers", "Dense/tanh")
    kernel, bias = found.weights
    np.testing.assert_allclose(found.outputs[0], np.tanh(found.inputs["x"] @ kernel + bias), rtol=1e-5, atol=1e-6)


def test_lstm_is_the_formula():
    found = case("layers", "LSTM/default")
    kernel, recurrent, bias = found.weights
    h = c = np.zeros((3, 3), np.float32)
    for step in range(4):
        i, f, g, o = np.split(found.inputs["x"][:, step] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    np.testing.assert_allclose(found.outputs[0], h, rtol=1e-5, atol=1e-6)


def test_adam_is_the_formula():
    found = case("optimizers", "Adam/plain")
    value = found.initial["bias"].astype(np.float64)
    m = v = np.zeros(3)
    for step, gradient in enumerate(found.gradients["bias"], start=1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        value -= 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * m / (np.sqrt(v) + 1e-7)
        np.testing.assert_allclose(found.values["bias"][step - 1], value, rtol=1e-5)


def test_class_weights_have_int_keys_again():
    assert case("fit", "mlp/class_weight").fit_kwargs["class_weight"] == {0: 0.5, 1: 2.0, 2: 1.0}


def test_saved_files_hold_the_recorded_trees():
    files = {found.name: found for found in loader.load_files()}
    assert set(files) == {"sequential", "functional", "custom_cell", "weights", "subclassed", "legacy"}
    with h5py.File(files["weights"].path, "r") as file:
        for path, text in files["weights"].tree.items():
            dataset = file[path]
            assert isinstance(dataset, h5py.Dataset)
            assert f"{dataset.dtype.name}[{','.join(str(size) for size in dataset.shape)}]" == text
