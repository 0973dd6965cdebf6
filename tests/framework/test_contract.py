"""Errors and warnings about a model's first batch before it trains on nonsense."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

RNG = np.random.default_rng(2)
X = RNG.normal(size=(8, 3)).astype("float32")


def model(loss: Any, units: int = 2, activation: str | None = None) -> ab.Sequential:
    made = ab.Sequential([ab.Input((3,)), layers.Dense(units, activation, name="out")])
    made.compile("sgd", loss)
    return made


# --- NaN in the data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_in_the_data_is_a_warning_that_says_where(value: float) -> None:
    bad = X.copy()
    bad[1, 2] = bad[0, 0] = value
    with pytest.warns(UserWarning, match=r"x has 2 values that are NaN or infinite, of 24 .*np.nan_to_num\(x\)"):
        model("mse").fit(bad, X[:, :2], verbose=0)
    with pytest.warns(UserWarning, match="y has 2 values that are NaN"):
        model("mse", 3).train_on_batch(X, bad)
    with pytest.warns(UserWarning, match=r"sample_weight has 1 values"):
        model("mse", 3).evaluate(X, X, sample_weight=bad[:, 2], verbose=0)


def test_nested_data_are_named_by_their_path() -> None:
    left, right = ab.Input((3,), name="left"), ab.Input((3,), name="right")
    made = ab.Model({"left": left, "right": right}, layers.Dense(1)(left + right))
    made.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"x\['right'\] has 24 values .*np.nan_to_num\(x\['right'\]\)"):
        made.fit({"left": X, "right": np.full_like(X, np.nan)}, X[:, :1], verbose=0)


def test_the_first_batch_is_looked_at_once_after_compile() -> None:
    made = model("mse")
    made.fit(X, X[:, :2], verbose=0)
    bad = np.full_like(X, np.nan)
    made.fit(bad, X[:, :2], verbose=0)  # no warning: warnings are errors here
    made.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="x has 24 values"):
        made.fit(bad, X[:, :2], verbose=0)


def test_finite_data_of_any_size_pass() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model("mse").evaluate(np.full((8, 3), 1e15, "float32"), X[:, :2], verbose=0)
        model("mse").evaluate(np.ones((8, 3), "int64"), X[:, :2], verbose=0)


def test_every_batch_is_run_whether_it_was_looked_at_or_not() -> None:
    seen = []

    class Counting(ab.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    made = model("mse")
    made.fit(X, X[:, :2], batch_size=3, epochs=2, callbacks=[Counting()], verbose=0)
    assert seen == [0, 1, 2, 0, 1, 2]
    plain = model("mse")
    plain.fit(X, X[:, :2], batch_size=3, epochs=2, verbose=0)
    assert int(plain.optimizer.iterations) == 6


# --- labels and activations -----------------------------------------------------------------------------------------


def test_labels_that_are_no_probabilities() -> None:
    labels = np.where(X[:, :1] > 0, 1.0, -1.0)
    with pytest.warns(UserWarning, match=r"targets from -1 to 1, but binary_crossentropy expects labels 0 and 1"):
        model("binary_crossentropy", 1, "sigmoid").fit(X, labels, verbose=0)
    with pytest.warns(UserWarning, match="targets from 1 to 2"):
        model(ab.losses.BinaryCrossentropy(), 1, "sigmoid").train_on_batch(X, np.array([[1], [2]] * 4))
    model("binary_crossentropy", 1, "sigmoid").fit(X, labels > 0, verbose=0)
    model("mse", 1).fit(X, labels, verbose=0)


@pytest.mark.parametrize(
    ("loss", "activation", "y"),
    [
        (ab.losses.SparseCategoricalCrossentropy(from_logits=True), "softmax", np.arange(8) % 2),
        (ab.losses.CategoricalCrossentropy(from_logits=True), "softmax", np.eye(2)[np.arange(8) % 2]),
        (ab.losses.BinaryCrossentropy(from_logits=True), "sigmoid", np.eye(2)[np.arange(8) % 2]),
    ],
)
def test_an_activation_that_the_loss_would_apply_again(loss: Any, activation: str, y: np.ndarray) -> None:
    with pytest.warns(UserWarning, match=rf"output 'out' ends in a {activation}, which .*\(from_logits=True\) applies"):
        model(loss, 2, activation).fit(X, y, verbose=0)
    model(loss, 2).fit(X, y, verbose=0)
    model(type(loss)(), 2, activation).fit(X, y, verbose=0)


def _focal(y_true: ab.Tensor, y_pred: ab.Tensor, from_logits: bool = False) -> ab.Tensor:
    return ab.losses.binary_crossentropy(y_true, y_pred)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y_true, y_pred: ab.ops.mean(ab.ops.square(y_true - y_pred), axis=-1),  # its config would be bytecode
        _focal,
        ab.losses.LossFunctionWrapper(_focal, from_logits=True),  # its use of the option is not known
        ab.losses.CategoricalCrossentropy(from_logits=True),  # applies a softmax, not a sigmoid
    ],
)
def test_no_warning_where_it_is_not_certain(loss: object) -> None:
    model(loss, 2, "sigmoid").fit(X, np.eye(2)[np.arange(8) % 2], verbose=0)


# --- class weights --------------------------------------------------------------------------------------------------


def test_class_weights_need_classes() -> None:
    several = (X[:, :2] > 0).astype("float32")
    several[0] = 1.0
    made = model("binary_crossentropy", 2, "sigmoid")
    with pytest.raises(ValueError, match=r"class_weight: y of shape \(8, 2\) has 2 values a row that are not one-hot"):
        made.fit(X, several, class_weight={0: 1.0, 1: 3.0}, verbose=0)
    with pytest.raises(ValueError, match="Pass sample_weight with a weight for each value"):
        made.train_on_batch(X, several, class_weight={1: 3.0})


@pytest.mark.parametrize(
    ("loss", "units", "y"),
    [
        ("categorical_crossentropy", 2, np.eye(2)[np.arange(8) % 2]),
        ("sparse_categorical_crossentropy", 2, np.arange(8) % 2),
        ("sparse_categorical_crossentropy", 2, (np.arange(8) % 2)[:, None]),
        ("binary_crossentropy", 1, (np.arange(8) % 2)[:, None]),
    ],
)
def test_class_weights_of_labels_of_every_form_weigh_the_same(loss: str, units: int, y: np.ndarray) -> None:
    made = model(loss, units, "sigmoid" if units == 1 else "softmax")
    weights = made.get_weights()
    found = made.train_on_batch(X, y, class_weight={1: 3.0})
    made.set_weights(weights)
    assert found == pytest.approx(made.test_on_batch(X, y, np.where(np.arange(8) % 2, 3.0, 1.0)), rel=1e-5)
