"""Loops and branches that are applied directly to the symbolic tensors of functional models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

pytestmark = pytest.mark.usefixtures("without_kernels")
RNG = np.random.default_rng(4)
X = RNG.normal(size=(6, 4)).astype("float32")
Y = RNG.normal(size=(6, 3)).astype("float32")
W = RNG.normal(size=(4,)).astype("float32")


@ab.saving.register_keras_serializable("loops")
def doubled(row: Any) -> Any:
    return row * 2


@ab.saving.register_keras_serializable("loops")
def summed(carry: Any, row: Any) -> Any:
    return carry + row, carry * row


@ab.saving.register_keras_serializable("loops")
def plus(one: Any, other: Any) -> Any:
    return one + other


def ctc(h: Any) -> Any:
    losses = ops.ctc_loss(np.ones((6, 1), "int32"), ops.reshape(h, (6, 1, 4)), np.ones(6, "int32"), np.ones(6, "int32"))
    return h * ops.expand_dims(losses, 1)


# What Keras takes, too, and what takes tensors from around it, which it does not.
SAVED: dict[str, Callable[[Any], Any]] = {
    "map": lambda h: ops.map(doubled, h),
    "scan": lambda h: ops.scan(summed, W, h)[1],
    "associative_scan": lambda h: ops.associative_scan(plus, h, axis=1),
    "switch": lambda h: ops.switch(ops.cast(ops.sum(h) > 0, "int32"), [doubled, doubled], h),
    "vectorized_map": lambda h: ops.vectorized_map(lambda row: row * ops.sum(row), h),
    "ctc_loss": ctc,
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "while_loop": lambda h: ops.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, ops.tanh(v * 2)), (0, h))[1],
    "bounded": lambda h: ops.while_loop(lambda v: ops.sum(v) < 1e9, lambda v: (v * 2,), (h,), maximum_iterations=3)[0],
    "fori_loop": lambda h: ops.fori_loop(0, 3, lambda i, v: v + ops.sin(v), h),
    "cond": lambda h: ops.cond(ops.sum(h) > 0, lambda: h * 3, lambda: ops.exp(h)),
    "nested": lambda h: ops.fori_loop(0, 2, lambda i, v: ops.cond(ops.sum(v) > 0, lambda: v * h, lambda: v - W), h),
    "map_around": lambda h: ops.map(lambda row: row * ops.max(h), h, reverse=True),
}
ALL = SAVED | REFUSED


class Inside(layers.Layer):
    """The function as a layer, which is how a model could always have it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def model_with(function: Callable[[Any], Any], in_layer: bool = False) -> ab.Model:
    x = ab.Input((4,), batch_size=6)
    h = layers.Dense(4, name="before")(x)
    h = Inside(function)(h) if in_layer else function(h)
    model = ab.Model(x, layers.Dense(3, name="after")(h))
    model.set_weights([np.resize(np.sin(np.arange(20.0)), w.shape) for w in model.get_weights()])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[ab.Model, np.ndarray]]:
    """Trained models, with what they predicted before."""
    found = {}
    for name, function in ALL.items():
        model = model_with(function)
        before = model.predict(X, verbose=0)
        model.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0)
        found[name] = model, before
    return found


@pytest.mark.parametrize("name", ALL)
def test_predicts_and_trains_as_in_a_layer(models: dict[str, Any], name: str) -> None:
    model, before = models[name]
    other = model_with(ALL[name], in_layer=True)
    np.testing.assert_allclose(before, other.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    other.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0)
    for found, expected in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_clones_and_calls_on_values(models: dict[str, Any], name: str) -> None:
    model, _ = models[name]
    expected = model.predict(X, verbose=0)
    clone = ab.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    with ab.GradientTape() as tape:
        loss = ops.sum(model(X) ** 2)
    slope = tape.gradient(loss, model.trainable_variables)
    np.testing.assert_allclose(loss, np.sum(expected**2), rtol=1e-4)
    assert len(slope) == 4
    step = 1e-3 * np.ones(3, "float32")
    weights = model.get_weights()
    model.set_weights([*weights[:3], weights[3] + step])
    above = np.sum(np.asarray(model(X), "float64") ** 2)
    model.set_weights([*weights[:3], weights[3] - step])
    below = np.sum(np.asarray(model(X), "float64") ** 2)
    model.set_weights(weights)
    np.testing.assert_allclose(np.sum(slope[3]), (above - below) / 2e-3, rtol=3e-2)


@pytest.mark.parametrize("name", SAVED)
def test_saves_what_a_file_can_say(models: dict[str, Any], name: str, tmp_path: Path) -> None:
    model, _ = models[name]
    model.save(tmp_path / "model.keras")
    again: Any = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_to_save_what_it_can_not(models: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"defined at .*py:\d+, is a loop or branch") as caught:
        models[name][0].save(tmp_path / "model.keras")
    assert "call() of a Layer" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_files_have_keras_operations(models: dict[str, Any]) -> None:
    expected = {"map": "Map", "scan": "Scan", "associative_scan": "AssociativeScan", "switch": "Switch"}
    for name, operation in {**expected, "ctc_loss": "CTCLoss"}.items():
        entries = [entry for entry in models[name][0].get_config()["layers"] if entry["class_name"] == operation]
        (entry,) = entries
        assert entry["module"] == ("keras.src.ops.nn" if name == "ctc_loss" else "keras.src.ops.core")


def test_other_batches_and_models_around() -> None:
    x = ab.Input((4,))
    model = ab.Model(x, REFUSED["nested"](x) + SAVED["map"](x))
    outer = ab.Input((4,))
    around = ab.Model(outer, model(outer * 2) + 1)
    for rows in (0, 1, 5):
        given = RNG.normal(size=(rows, 4)).astype("float32")
        expected = np.asarray(REFUSED["nested"](ops.convert_to_tensor(2 * given))) + 4 * given + 1
        np.testing.assert_allclose(around(given), expected, rtol=1e-5)
        np.testing.assert_allclose(ab.function(around)(given), expected, rtol=1e-5)
    with ab.Graph().as_default():
        fed = ab.placeholder((None, 4), "float32")
        inside = ab.fori_loop(0, 2, lambda i, v: v + model(v), fed)
        values = ab.Session().run(inside, {fed: X})
    expected = X
    for _ in range(2):
        expected = expected + np.asarray(model(expected))
    np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_inner_tensors_and_several_results() -> None:
    x = ab.Input((4,))
    total, rows = ops.scan(lambda c, r: (c + r, {"row": r, "sum": c}), ops.zeros((4,)), x)
    whole = ab.Model(x, {"total": total, **rows})
    found = whole.predict(X, verbose=0)
    np.testing.assert_allclose(found["total"], X.sum(0), rtol=1e-5)
    np.testing.assert_allclose(found["sum"], np.cumsum(X, 0) - X, rtol=1e-4, atol=1e-6)
    tail = ab.Model(rows["sum"], rows["sum"] * 2)
    np.testing.assert_allclose(tail.predict(X, verbose=0), 2 * X)


def test_random_and_variables_inside() -> None:
    seeds, scale = ab.random.SeedGenerator(3), ab.Variable(2.0)
    x = ab.Input((4,))
    y = ops.map(lambda row: row * 0 + scale + ab.random.uniform((4,), seed=seeds), x)
    model = ab.Model(x, y)
    first, second = model.predict(X, verbose=0), model.predict(X, verbose=0)
    assert (first >= 2).all()
    assert len(np.unique(first)) == first.size
    assert not np.array_equal(first, second)
    assert (np.asarray(model(X)) >= 2).all()
    assert not np.array_equal(model(X), model(X))
    scale.assign(10.0)
    assert (model.predict(X, verbose=0) >= 10).all()


def test_layers_inside_are_refused() -> None:
    x, dense = ab.Input((4,)), layers.Dense(4, name="untrained")
    with pytest.raises(ValueError, match=r"Layer 'untrained' is called inside .* would not train it"):
        ab.Model(x, ops.cond(ops.sum(x) > 0, lambda: dense(x), lambda: x))


def test_gradients_of_loops_are_refused() -> None:
    x = ab.Input((4,))
    y = REFUSED["fori_loop"](x)
    with pytest.raises(ValueError, match="takes part in the gradient of a loop"):
        ab.Model(x, ab.gradients(ops.sum(y), [x])[0])
