"""`quantize(include="all")`: weights of any layer as int8, against NumPy and the same layer with float weights."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, quantizers
from anabranch.layers.core.quantized_form import RoundedWeight
from anabranch.layers.quantizers.rounding import abs_max_arrays

X = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
IMAGES = np.random.default_rng(1).normal(size=(2, 9, 9, 3)).astype("float32")
WEIGHTS_ONLY = quantizers.Int8QuantizationConfig(activation_quantizer=None)

RECURRENT = {
    "lstm": lambda: layers.LSTM(6),
    "gru": lambda: layers.GRU(6),
    "simple": lambda: layers.SimpleRNN(6, return_sequences=True),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(4)),
    "stacked": lambda: layers.RNN([layers.LSTMCell(5), layers.GRUCell(4)]),
    "own cell": lambda: layers.RNN(Scaled(6)),
}
CONVOLUTIONS = {
    "conv1d": (X, lambda: layers.Conv1D(7, 3, padding="causal")),
    "conv2d": (IMAGES, lambda: layers.Conv2D(6, 3, strides=2, activation="relu")),
    "groups": (IMAGES, lambda: layers.Conv2D(6, (1, 3), groups=3, data_format="channels_last")),
    "depthwise": (IMAGES, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)),
    "separable": (IMAGES, lambda: layers.SeparableConv2D(5, 3, use_bias=False)),
    "transpose": (IMAGES, lambda: layers.Conv2DTranspose(4, 3, strides=2)),
}


@ab.saving.register_keras_serializable("rounded_weights")
class Scaled(layers.Layer):
    """A cell of one's own: two matrices by which rows are multiplied, and one by which elements are."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight(shape=(input_shape[-1], self.units), name="w")
        self.u = self.add_weight(shape=(self.units, self.units), name="u")
        self.gain = self.add_weight(shape=(1, self.units), initializer="ones", name="gain")

    def call(self, x: Any, states: Any) -> Any:
        h = ab.ops.tanh(x @ self.w + ab.ops.matmul(states[0], self.u) * self.gain)
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def model_of(layer: Any, x: Any, dtype: Any = None) -> Any:
    with ab.name_scope("model"):
        return ab.Sequential([ab.Input(x.shape[1:], dtype=dtype), layer])


def error(found: Any, expected: Any) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


def rounded_in(model: Any) -> list[tuple[Any, str, RoundedWeight]]:
    return [
        (layer, name, weight) for layer in model._flatten_layers() for name, weight in layer._rounded_weights.items()
    ]


def read_as_floats(model: Any, plain: Any) -> Any:
    """Give a model that was just made the floats that another one's weights are read as."""
    for layer, original in zip(plain._flatten_layers(), model._flatten_layers(), strict=True):
        for name, weight in vars(layer).items():
            if isinstance(weight, ab.Variable):
                weight.assign(vars(original)[name].numpy())
    return plain


def test_a_product_is_that_of_rounded_rows_and_a_rounded_matrix():
    model = model_of(layers.RNN(Scaled(4)), X)
    weights = {name: vars(model.layers[0].cell)[name].numpy() for name in ("w", "u", "gain")}
    assert model.quantize("int8", include="all") == {model.layers[0].cell.path.removeprefix(f"{model.name}/"): "int8"}
    cell = model.layers[0].cell
    assert set(cell._rounded_weights) == {"w", "u"}  # elements are multiplied by the gain, rows are not

    def product(rows: Any, weight: Any) -> Any:
        integers, scale = abs_max_arrays(weight, 0)
        high = np.float32(127) / (np.abs(rows).max(axis=1, keepdims=True) + np.float32(1e-7))
        sums = np.rint(rows * high).astype("int64") @ integers.astype("int64")
        return sums.astype("float32") / (high * scale.reshape(-1))

    h = np.zeros((3, 4), "float32")
    for t in range(5):
        h = np.tanh(product(X[:, t], weights["w"]) + product(h, weights["u"]) * weights["gain"])
    np.testing.assert_allclose(model.predict(X, verbose=0), h, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_come_near_and_rows_do_not_change_each_other(name: str):
    model = model_of(RECURRENT[name](), X)
    expected = model.predict(X, verbose=0)
    outcome = model.quantize("int8", include="all")
    assert set(outcome.values()) == {"int8"}
    found = model.predict(X, verbose=0)
    assert 0 < error(found, expected) < 0.05
    np.testing.assert_array_equal(np.concatenate([model.predict(row[None], verbose=0) for row in X]), found)
    np.testing.assert_array_equal(model(X).numpy(), found)
    assert model(X[:0]).shape == (0, *found.shape[1:])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_of_convolutions_are_rounded_by_output(name: str):
    x, make = CONVOLUTIONS[name]
    model = model_of(make(), x)
    expected = model.predict(x, verbose=0)
    kernels = {name: getattr(model.layers[0], name).numpy() for name in model.layers[0].rounded_kernels}
    assert set(model.quantize("int8", include="all").values()) == {"int8"}
    found = model.predict(x, verbose=0)
    assert 0 < error(found, expected) < 0.03
    np.testing.assert_allclose(
        found, read_as_floats(model, model_of(make(), x)).predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )
    for name, kernel in kernels.items():
        weight = model.layers[0]._rounded_weights[name]
        summed = tuple(axis for axis in range(kernel.ndim) if axis - kernel.ndim not in weight.kept)
        step = np.abs(kernel).max(axis=summed, keepdims=True) / 127
        assert np.all(np.abs(weight.numpy() - kernel) <= step / 2 + 1e-6)
        np.testing.assert_array_equal(np.abs(weight.integers.numpy()).max(axis=summed), 127)


@pytest.mark.parametrize("name", ["lstm", "own cell", "conv2d", "depthwise"])
def test_files_hold_integers(name: str, tmp_path: Path):
    x, make = CONVOLUTIONS.get(name) or (X, RECURRENT[name])
    model = model_of(make(), x)
    model.quantize("int8", include="all")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = ab.saving.load_model(tmp_path / "model.keras")
    assert [str(variable.numpy().dtype) for variable in loaded.weights].count("int8") == len(rounded_in(model))
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    for file in ("w.weights.h5", "w.safetensors"):
        model.save_weights(tmp_path / file)
        other = ab.models.clone_model(model)  # as it is: quantised, with other values
        assert len(rounded_in(other)) == len(rounded_in(model))
        other.load_weights(tmp_path / file)
        np.testing.assert_array_equal(other.predict(x, verbose=0), expected)
    model.export(tmp_path / "served", verbose=0)
    served = ab.serving.load(tmp_path / "served")(x)
    np.testing.assert_array_equal(next(iter(served.values())) if isinstance(served, dict) else served, expected)


def test_a_layer_that_a_model_of_ones_own_makes_is_rounded_and_saved(tmp_path: Path):
    model = Own()
    expected = model.predict(X, verbose=0)
    outcome = model.quantize("int8", include="all", filters=lambda layer: layer.name != "head")
    assert {path.rpartition("/")[2]: mode for path, mode in outcome.items()} == {
        "scaled": "int8",
        "norm": "multiplies no matrix by rows",
        "head": "left out by filters",
    }
    found = model.predict(X, verbose=0)
    assert 0 < error(found, expected) < 0.05
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.saving.load_model(tmp_path / "model.keras").predict(X, verbose=0), found)


@ab.saving.register_keras_serializable("rounded_weights")
class Own(ab.Model):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rnn = layers.RNN(Scaled(6, name="scaled"))
        self.norm = layers.LayerNormalization(name="norm")
        self.head = layers.Dense(2, name="head")

    def call(self, x: Any) -> Any:
        return self.head(self.norm(self.rnn(x)))


def test_gradients_pass_to_inputs_by_the_float_weights():
    model = model_of(layers.RNN(Scaled(4)), X, "float64")
    model.quantize(config=WEIGHTS_ONLY, include="all")
    plain = read_as_floats(model, model_of(layers.RNN(Scaled(4)), X, "float64"))
    x = ab.ops.convert_to_tensor(X)
    gradients: list[Any] = []
    for one in (model, plain):
        with ab.GradientTape() as tape:
            tape.watch(x)
            loss = ab.ops.sum(one(x) ** 2)
        gradients.append(tape.gradient(loss, x).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)
    assert [variable.name for variable in model.trainable_variables] == ["gain"]


def test_weights_alone_are_rounded_where_the_config_says_so():
    model = model_of(layers.LSTM(6), X)
    expected = model.predict(X, verbose=0)
    assert set(model.quantize(config=WEIGHTS_ONLY, include="all").values()) == {"int8"}
    found = model.predict(X, verbose=0)
    assert 0 < error(found, expected) < 0.03
    np.testing.assert_allclose(
        found, read_as_floats(model, model_of(layers.LSTM(6), X)).predict(X, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float64"])
def test_a_layer_computes_in_its_own_dtype(dtype: str):
    model = model_of(layers.LSTM(6, dtype=dtype), X)
    expected = model.predict(X, verbose=0).astype("float64")
    model.quantize("int8", include="all")
    found = model.predict(X, verbose=0)
    assert str(found.dtype) == ("bfloat16" if dtype == "mixed_bfloat16" else dtype)
    assert error(found.astype("float64"), expected) < 0.05


def test_what_can_not_be_rounded_stays_and_says_why():
    model = ab.Sequential(
        [ab.Input((9, 9, 3)), layers.Conv2D(4, 3, name="conv"), layers.BatchNormalization(name="norm")]
    )
    with pytest.warns(UserWarning, match="no layer of model"):
        outcome = model.quantize("int4", include="all")
    assert outcome == {
        "conv": "has int8 as its only quantised form, not int4",
        "norm": "multiplies no matrix by rows",
    }
    model.layers[0].enable_lora(2)
    with pytest.warns(UserWarning, match="no layer of model"):
        outcome = model.quantize("int8", include="all")
    assert outcome == {
        "conv": "has adapters of low rank: call merge_lora() first",
        "norm": "multiplies no matrix by rows",
    }
    model.layers[0].merge_lora()
    assert model.quantize("int8", include="all")["conv"] == "int8"
    with pytest.raises(NotImplementedError, match=r"quantize\(include='all'\)"):
        model.layers[0].enable_lora(2)
    for mode, include in (("int8", "all"), ("int4", "all"), ("int8", "keras")):
        message = f"Layer 'conv' is already quantized to int8 by include='all'. Received: mode={mode}"
        with pytest.raises(ValueError, match=re.escape(message)):
            model.quantize(mode, include=include)


def test_a_model_of_unknown_shapes_is_refused_before_a_layer_is_quantised():
    class Own(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(3), layers.LSTM(2)
            self.first.build((None, 4))
            self.second.build((None, 5, 3))
            self.built = True

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = Own()
    with pytest.raises(ValueError, match="no known input shapes"):
        model.quantize("int8", include="all")
    assert model.first.quantization_mode is None


def test_a_file_whose_layer_has_no_such_weight_is_refused():
    layer = layers.Conv2D(4, 3)
    layer.build((None, 9, 9, 3))
    config = {"input_shape": (None, 9, 9, 3), "rounded_weights": {"0": {"nosuch": {"kept": [-1], "rounds_rows": True}}}}
    with pytest.raises(ValueError, match=r"'nosuch'.*there is no such weight"):
        layer.build_from_config(config)
