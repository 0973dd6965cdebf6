"""Behaviour of layers that Keras's own tests of layers ask for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

X = np.array([[3.0, 1.0, 4.0, 2.0], [5.0, 9.0, 2.0, 6.0]], "float32")


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_a_symbolic_tensor_becomes_an_input(tmp_path: Any) -> None:
    tensor = ab.KerasTensor((None, 4))
    x = ab.Input(tensor=tensor, name="rows")
    assert x is tensor
    model = ab.Model(x, layers.Dense(2, name="head")(x))
    assert model.input_names == ["rows"]
    path = tmp_path / "model.keras"
    model.save(path)
    again = ab.models.load_model(path)
    np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))


def test_an_input_layer_takes_its_settings_from_a_tensor() -> None:
    tensor = ab.KerasTensor((2, 3), "int32")
    layer = layers.InputLayer((3,), 2, "int32", input_tensor=tensor)
    assert layer.output is tensor
    assert (layer.batch_shape, layer.dtype, layer.sparse, layer.ragged) == ((2, 3), "int32", False, False)


def test_an_input_layer_takes_the_shape_by_its_name_in_keras_2() -> None:
    with pytest.warns(UserWarning, match="Write shape= instead"):
        layer = layers.InputLayer(batch_size=4, input_shape=(2, 3))
    assert layer.batch_shape == (4, 2, 3)


# --- configs --------------------------------------------------------------------------------------------------------


def test_a_dense_config_names_penalties_of_outputs_only_if_there_are_some() -> None:
    assert "activity_regularizer" not in layers.Dense(2).get_config()
    config = layers.Dense(2, activity_regularizer="l2").get_config()
    assert layers.Dense.from_config(config).get_config()["activity_regularizer"]["class_name"] == "L2"
    penalty = layers.ActivityRegularization(0.1, 0.2)  # whose penalty has other arguments
    assert "activity_regularizer" not in penalty.get_config()
    assert layers.ActivityRegularization.from_config(penalty.get_config()).get_config() == penalty.get_config()


def test_the_mask_of_a_lambda_layer_is_written() -> None:
    mask = ab.ops.convert_to_tensor([[True, False, True, True]])
    layer = layers.Lambda(ab.ops.square, mask=mask)
    config = json.loads(json.dumps(layer.get_config()))
    again = layers.Lambda.from_config(config, {"square": ab.ops.square})
    assert np.asarray(again.compute_mask(X)).tolist() == [[True, False, True, True]]


def test_a_policy_set_on_a_layer_with_a_map_is_that_of_the_layer_alone() -> None:
    policies = ab.dtype_policies.DTypePolicyMap()
    one, other = layers.Dense(2, dtype=policies, name="one"), layers.Dense(2, dtype=policies, name="other")
    for policy in ("mixed_float16", "mixed_bfloat16"):
        one.dtype_policy = policy
    assert one.dtype_policy is policies
    assert {path: policy.name for path, policy in policies.items()} == {"one": "mixed_bfloat16"}
    assert (one.compute_dtype, other.compute_dtype) == ("bfloat16", "float32")


# --- layers ---------------------------------------------------------------------------------------------------------


def test_scaling_by_the_root_of_the_variance() -> None:
    with pytest.warns(UserWarning, match="Use RMSNormalization"):
        layer = layers.LayerNormalization(rms_scaling=True, gamma_initializer="random_normal")
    made = np.asarray(layer(X))
    assert [weight.name for weight in layer.weights] == ["gamma"]
    expected = X / np.sqrt(X.var(axis=-1, keepdims=True) + 1e-3) * layer.get_weights()[0]
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    config = layer.get_config()
    assert config["rms_scaling"]
    with pytest.warns(UserWarning, match="Use RMSNormalization"):
        again = layers.LayerNormalization.from_config(config)
    again.build(X.shape)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(X), made)


@pytest.mark.parametrize("dtype", ["float16", "mixed_bfloat16"])
def test_scaling_by_the_root_of_the_variance_in_half_types(dtype: str) -> None:
    with pytest.warns(UserWarning, match="Use RMSNormalization"):
        layer = layers.LayerNormalization(rms_scaling=True, dtype=dtype)
    large = X.reshape(2, 2, 2) * 6000  # squares of these are no float16
    made = layer(large.astype(layer.compute_dtype if dtype == "float16" else "float32"))
    assert made.dtype == layer.compute_dtype
    assert np.isfinite(np.asarray(ab.ops.cast(made, "float32"))).all()


def test_a_layer_of_layers_without_a_call_is_built() -> None:
    class Held(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2, name="inner")
            self.scale = self.add_weight((1,), name="scale")

    layer = Held()
    layer.build(None)
    assert layer.built
    assert [weight.name for weight in layer.weights] == ["scale"]


def test_states_of_both_directions() -> None:
    layer = layers.Bidirectional(layers.LSTM(2, stateful=True))
    assert layer.states is None
    layer(np.ones((2, 3, 4), "float32"))
    states: Any = layer.states
    assert [state.shape for state in states] == [(2, 2)] * 4
    assert all(np.any(state.numpy()) for state in states)
    layer.reset_states()
    assert not any(np.any(state.numpy()) for state in states)
    assert layers.Bidirectional(layers.GRU(2)).states is None


@pytest.mark.parametrize(("mode", "dtype"), [("int", "int32"), ("one_hot", "float16")])
def test_a_discretization_names_the_dtype_of_its_outputs(mode: str, dtype: str) -> None:
    layer = layers.Discretization([0.0, 1.0], output_mode=mode, dtype="float16")
    assert layer.output_dtype == layer([0.5]).dtype == dtype
