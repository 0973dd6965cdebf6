"""Several outputs, losses from layers, weights of losses and of rows, and freezing: numbers against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

RNG = np.random.default_rng(7)
X = RNG.normal(size=(10, 3)).astype("float32")
YS = [RNG.normal(size=(10, 2)).astype("float32"), RNG.normal(size=(10, 1)).astype("float32")]
WEIGHT = np.linspace(0.5, 2.0, 10, dtype="float32")


def two_heads(form: str = "list") -> ab.Model:
    x = ab.Input((3,))
    heads = {"b": layers.Dense(2, name="b")(x), "a": layers.Dense(1, name="a")(x)}
    return ab.Model(x, heads if form == "dict" else list(heads.values()))


def errors(model: ab.Model) -> list[np.ndarray]:
    """The squared error of each row, for each head."""
    found = model.predict(X, verbose=0)
    outputs = [found["b"], found["a"]] if isinstance(found, dict) else found
    return [((output - y) ** 2).mean(-1) for output, y in zip(outputs, YS, strict=True)]


@pytest.mark.parametrize(
    ("form", "loss", "loss_weights", "factors"),
    [
        ("list", "mse", None, (1, 1)),
        ("list", ["mse", "mse"], [2.0, 0.5], (2, 0.5)),
        ("list", {"b": "mse", "a": "mse"}, {"a": 0.5}, (1, 0.5)),
        ("list", ["mse", None], None, (1, 0)),
        ("dict", {"b": "mse", "a": "mse"}, {"b": 2.0, "a": 0.5}, (2, 0.5)),
        ("dict", {"a": "mse"}, None, (0, 1)),
    ],
)
def test_losses_of_outputs_and_their_weights(form: str, loss: Any, loss_weights: Any, factors: tuple) -> None:
    model = two_heads(form)
    model.compile("sgd", loss, loss_weights=loss_weights)
    y = {"b": YS[0], "a": YS[1]} if form == "dict" else YS
    logs = model.test_on_batch(X, y, return_dict=True)
    expected = [float(error.mean()) for error in errors(model)]
    total = sum(factor * value for factor, value in zip(factors, expected, strict=True))
    assert logs["loss"] == pytest.approx(total, rel=1e-5)
    if all(factors):
        assert [logs["b_loss"], logs["a_loss"]] == [pytest.approx(value, rel=1e-5) for value in expected]
    else:
        assert list(logs) == ["loss"]


@pytest.mark.parametrize("losses", [["mse", None, "mse"], [None, "mse", None]])
def test_targets_of_the_outputs_with_a_loss_only(losses: list[str | None]) -> None:
    x = ab.Input((3,))
    model = ab.Model(x, [layers.Dense(2)(x) for _ in range(3)])
    model.compile("sgd", losses)
    targets = [YS[0] + number for number, loss in enumerate(losses) if loss is not None]
    found = model.test_on_batch(X, targets if len(targets) > 1 else targets[0], return_dict=True)
    used = [output for output, loss in zip(model.predict(X, verbose=0), losses, strict=True) if loss is not None]
    expected = sum(np.mean((output - target) ** 2) for output, target in zip(used, targets, strict=True))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_metrics_of_outputs_by_name_and_order() -> None:
    model = two_heads()
    model.compile("sgd", "mse", metrics=[["mse", "mae"], ["mae"]], weighted_metrics={"b": ["mse"]})
    found = model.evaluate(X, YS, verbose=0, return_dict=True)
    assert list(found) == ["a_loss", "a_mae", "b_loss", "b_mae", "b_mse", "b_weighted_mse", "loss"]
    # As real Keras 3.15.1 orders them: the loss, the outputs' losses, the rest by name.
    order = ["loss", "b_loss", "a_loss", "a_mae", "b_mae", "b_mse", "b_weighted_mse"]
    assert model.evaluate(X, YS, verbose=0) == [pytest.approx(found[name]) for name in order]
    weighted = model.evaluate(X, YS, sample_weight=WEIGHT, verbose=0, return_dict=True)
    error = errors(model)[0]
    assert weighted["b_mse"] == pytest.approx(float(error.mean()), rel=1e-5)
    assert weighted["b_weighted_mse"] == pytest.approx(float((error * WEIGHT).sum() / WEIGHT.sum()), rel=1e-5)
    assert weighted["b_loss"] == pytest.approx(float((error * WEIGHT).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": {"b": "mse", "a": "mse"}}, r"no targets for the outputs \['a'\], for which there is a loss"),
        ({"loss": {"b": "mse", "a": "crossentropy"}}, "for which there is a loss. Give them in y, or compile with no"),
        ({"loss": "mse"}, "for which there is a loss"),
        ({"loss": {"b": "mse"}, "metrics": {"a": ["mae"]}}, r"outputs \['a'\], for which there is a metric"),
        ({"loss": {"b": "mse"}, "metrics": {"a": "accuracy"}}, "for which there is a metric. Give them in y"),
        ({"loss": {"b": "mse"}, "weighted_metrics": {"a": ["mae"]}}, "for which there is a metric"),
    ],
)
@pytest.mark.parametrize("is_built", [False, True])
def test_outputs_without_targets_are_named(arguments: Any, message: str, is_built: bool) -> None:
    model = two_heads("dict")
    model.get_layer("a").trainable = False  # where it has no loss, it would have no gradient
    model.compile("sgd", **arguments)
    if is_built:
        y = {"b": YS[0], "a": YS[1]}
        if "crossentropy" in str(arguments):
            y["a"] = np.ones((10, 1), "float32")
        model.fit(X, y, verbose=0)
    with pytest.raises(ValueError, match=message):
        model.fit(X, {"b": YS[0]}, verbose=0)
    with pytest.raises(ValueError, match=message):
        model.evaluate(X, {"b": YS[0]}, verbose=0)


def test_values_of_one_output_come_in_the_order_of_compile() -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(1)])
    model.compile("sgd", "mae", metrics=["mse", "mae"])
    logs = model.evaluate(X, YS[1], verbose=0, return_dict=True)
    expected = [logs["loss"], logs["mse"], logs["mae"]]
    assert logs["mse"] != logs["mae"]
    assert model.evaluate(X, YS[1], verbose=0) == expected
    assert model.test_on_batch(X, YS[1]) == pytest.approx(expected)


def test_weights_of_rows_for_each_output() -> None:
    model = two_heads()
    model.compile("sgd", "mse")
    logs = model.test_on_batch(X, YS, sample_weight=[WEIGHT, np.ones(10, "float32")], return_dict=True)
    first, second = errors(model)
    assert logs["b_loss"] == pytest.approx(float((first * WEIGHT).mean()), rel=1e-5)
    assert logs["a_loss"] == pytest.approx(float(second.mean()), rel=1e-5)


def test_losses_that_models_and_layers_add_are_trained_on_and_listed() -> None:
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * ab.ops.mean(inputs**2))
            return inputs

    class Own(ab.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1, use_bias=False, kernel_regularizer=ab.regularizers.L2(0.5))
            self.penalty = Penalty()

        def call(self, inputs):
            outputs = self.penalty(self.dense(inputs))
            self.add_loss(ab.ops.sum(outputs) / 10)
            return outputs

    model = Own()
    model(X[:1])
    model.compile(ab.optim.SGD(0.1))
    kernel = model.get_weights()[0].astype("float64")
    output = X @ kernel
    loss = 0.1 * (output**2).mean() + output.sum() / 10 + 0.5 * (kernel**2).sum()
    slope = X.T @ (0.2 * output / 10 + 1 / 10) + kernel
    assert model.fit(X, batch_size=10, verbose=0).history["loss"] == [pytest.approx(loss, rel=1e-5)]
    np.testing.assert_allclose(model.get_weights()[0], kernel - 0.1 * slope, rtol=1e-5, atol=1e-6)
    model(X)
    assert len(model.losses) == 3


@pytest.mark.parametrize("when", ["before compile", "after compile", "after fit", "after fit and compile"])
def test_frozen_layers_stay_as_they_are(when: str) -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])

    def freeze() -> None:
        for layer in model.layers[:2]:
            layer.trainable = False

    if when == "before compile":
        freeze()
    model.compile("adam", "mse")
    if when == "after compile":
        freeze()
    if when.startswith("after fit"):
        model.fit(X, YS[1], verbose=0)
        freeze()
    if when == "after fit and compile":
        model.compile("adam", "mse")
    before = model.get_weights()
    model.fit(X, YS[1], verbose=0)
    changed = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert changed == [False] * 6 + [True] * 2  # moving averages of a frozen BatchNormalization stay, too
    assert len(model.trainable_variables) == 2


def test_arguments_that_ask_for_speed_change_no_numbers() -> None:
    histories = []
    changes: list[dict[str, Any]] = [{}, {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 3}]
    for options in changes:
        model = ab.Sequential([ab.Input((3,)), layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", auto_scale_loss=False, **options)
        histories.append(model.fit(X, YS[1], batch_size=2, shuffle=False, verbose=0).history["loss"])
        config: Any = model.get_compile_config()
        assert {name: config[name] for name in options} == options
    assert histories == [histories[0]] * 4
