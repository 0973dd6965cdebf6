"""Regularizers and constraints: Keras's numbers, what layers and optimizers make of them, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import constraints, layers, regularizers
from golden.loader import PenaltyCase, load_cases

CASES = load_cases("penalties")
X = np.array([[1.0, -2.0, 3.0], [0.5, 1.0, -1.0]], "float32")


def value_of(tensor: Any) -> Any:
    return ab.Session().run(tensor)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_those_of_keras(case: PenaltyCase) -> None:
    with ab.Graph().as_default():
        x = ab.placeholder(case.x.shape)
        output = case.build(regularizers, constraints)(x)
        fetches = [output] if case.gradient is None else [output, ab.gradients(output, [x])[0]]
        values = ab.Session().run(fetches, {x: case.x})
    np.testing.assert_allclose(values[0], case.output, rtol=1e-5, atol=1e-6)
    if case.gradient is not None:
        np.testing.assert_allclose(values[1], case.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_config_round_trip(case: PenaltyCase) -> None:
    module = regularizers if case.gradient is not None else constraints
    item = case.build(module)
    config = module.serialize(item)
    assert config["module"] == f"keras.{module.__name__.rpartition('.')[2]}"
    again = module.get(config)
    assert type(again) is type(item)
    assert again.get_config() == item.get_config()


@pytest.mark.parametrize("name", ["l1", "L1", "l2", "L1L2", "l1l2", "OrthogonalRegularizer", "orthogonal_regularizer"])
def test_regularizers_by_name(name: str) -> None:
    assert isinstance(regularizers.get(name), regularizers.Regularizer)


def test_both_penalties_by_name_are_those_of_either() -> None:
    assert regularizers.get("l1_l2").get_config() == {"l1": 0.01, "l2": 0.01}
    assert regularizers.l1_l2(l2=0.5).get_config() == {"l1": 0.0, "l2": 0.5}


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "0.1"])
def test_strengths_must_be_finite_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="l2 must be a finite number from 0 up, got"):
        regularizers.L2(value)


@pytest.mark.parametrize(
    ("make", "argument", "shapes"),
    [
        (lambda **given: layers.Dense(2, **given), "kernel", [(2, 3)]),
        (lambda **given: layers.Dense(2, bias_initializer="ones", **given), "bias", [(2, 3)]),
        (lambda **given: layers.BatchNormalization(**given), "gamma", [(2, 3)]),
        (lambda **given: layers.LayerNormalization(beta_initializer="ones", **given), "beta", [(2, 3)]),
        (lambda **given: layers.LSTM(2, **given), "kernel", [(2, 4, 3)]),
        (lambda **given: layers.GRU(2, **given), "recurrent", [(2, 4, 3)]),
        (lambda **given: layers.SimpleRNN(2, bias_initializer="ones", **given), "bias", [(2, 4, 3)]),
    ],
)
def test_layers_pass_penalties_to_their_weights(make: Any, argument: str, shapes: list[tuple[int, ...]]) -> None:
    layer = make(**{f"{argument}_regularizer": "l2", f"{argument}_constraint": "non_neg"})
    layer(np.ones(shapes[0], "float32"))
    weight = next(w for w in layer.weights if w.regularizer is not None)
    assert weight.name.startswith(argument)
    assert isinstance(weight.constraint, constraints.NonNeg)
    (loss,) = layer.losses
    assert value_of(loss) == pytest.approx(0.01 * np.sum(weight.numpy() ** 2), rel=1e-5)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    layer.trainable = False
    assert layer.losses == []


def test_embedding_penalties() -> None:
    layer = layers.Embedding(3, 2, embeddings_regularizer="l1", embeddings_constraint="unit_norm")
    layer(np.zeros((1, 2), "int32"))
    assert value_of(layer.losses[0]) == pytest.approx(0.01 * np.sum(np.abs(layer.embeddings.numpy())), rel=1e-5)


def test_activity_penalties_are_those_of_the_latest_call() -> None:
    layer = layers.Dense(2, kernel_initializer="ones", activity_regularizer=regularizers.L1(0.1))
    for factor in (1.0, 2.0):
        layer(factor * X)
        assert float(layer.losses[0]) == pytest.approx(factor * 0.1 * 2 * (2.0 + 0.5) / 2, rel=1e-5)  # a row
    assert len(layer.losses) == 1


def test_a_function_is_a_penalty() -> None:
    layer = layers.Dense(2, use_bias=False, kernel_initializer="ones", kernel_regularizer=lambda w: ab.ops.max(w) * 3)
    layer(X)
    assert value_of(layer.losses[0]) == 3.0


def test_penalties_are_part_of_the_loss_in_training_and_evaluation() -> None:
    inputs = ab.Input((3,))
    hidden = layers.Dense(2, kernel_initializer="ones", kernel_regularizer=regularizers.L2(0.1), use_bias=False)
    model = ab.Model(inputs, hidden(inputs))
    model.compile(ab.optim.SGD(0.0), "mse")
    y = model.predict(X, verbose=0)
    assert model.evaluate(X, y, verbose=0) == pytest.approx(0.6, rel=1e-5)
    assert model.fit(X, y, verbose=0).history["loss"] == pytest.approx([0.6], rel=1e-5)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam", "Nadam", "AdamW"])
def test_constraints_hold_after_each_step(name: str) -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(4, kernel_constraint=constraints.MaxNorm(0.3))])
    model.compile(getattr(ab.optim, name)(0.5), "mse")
    for _ in range(3):
        model.train_on_batch(X, np.ones((2, 4), "float32"))
        norms = np.linalg.norm(model.layers[0].kernel.numpy(), axis=0)
        assert np.all(norms <= 0.3 + 1e-5)


def test_a_base_class_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match=r"Mine does not define __call__"):
        type("Mine", (regularizers.Regularizer,), {})()(1.0)
    assert type("Mine", (constraints.Constraint,), {})()(1.0) == 1.0  # as in Keras


def test_orthogonality_is_of_matrices() -> None:
    with pytest.raises(ValueError, match="takes matrices, got shape"):
        regularizers.OrthogonalRegularizer()(ab.constant([1.0, 2.0]))
    with pytest.raises(ValueError, match="mode must be 'rows' or 'columns'"):
        regularizers.OrthogonalRegularizer(mode="all")


class Halved(layers.Layer):
    """A layer of a user's, whose config says what its own constructor takes."""

    def __init__(self, times: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.times = times

    def call(self, inputs: Any) -> Any:
        return inputs * 0.5**self.times

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "times": self.times}


class Penalised(layers.Layer):
    """A layer of a user's that penalises its outputs by itself, without a config of its own."""

    def __init__(self) -> None:
        super().__init__(activity_regularizer="l2")

    def call(self, inputs: Any) -> Any:
        return inputs


PENALISED = [
    layers.GroupNormalization(1, activity_regularizer="l2"),
    layers.Activation("tanh", activity_regularizer="l2"),
    layers.MaxPooling1D(2, activity_regularizer=regularizers.L1(0.1)),
    layers.TimeDistributed(layers.Dense(2), activity_regularizer="l2"),
    layers.Bidirectional(layers.GRU(2), activity_regularizer="l2"),
    layers.RNN(layers.LSTMCell(2), activity_regularizer="l1"),
    layers.Dense(2, activity_regularizer="l1"),
    layers.ActivityRegularization(0.2, 0.1),
    Halved(2, activity_regularizer="l2"),
    Penalised(),
]


@pytest.mark.parametrize("layer", PENALISED, ids=lambda layer: type(layer).__name__)
def test_penalties_of_outputs_are_in_configs(layer: Any) -> None:
    x = np.arange(24, dtype="float32").reshape(2, 4, 3)
    layer(x)
    again = type(layer).from_config(layer.get_config())
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    again(x)
    assert float(layer.losses[0]) > 0
    assert [float(loss) for loss in again.losses] == [float(loss) for loss in layer.losses]


def test_configs_say_nothing_of_penalties_that_layers_do_not_have() -> None:
    assert "activity_regularizer" not in layers.Activation("tanh").get_config()
    assert "activity_regularizer" not in layers.ActivityRegularization(0.2).get_config()
