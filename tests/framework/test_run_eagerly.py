"""With `compile(run_eagerly=True)` Python computes each step, on values, and learns what compiled steps learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, tf

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 5, 3)).astype("float32")
Y = RNG.normal(size=(12, 2)).astype("float32")


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    yield
    ab.config.set_devices()


def recurrent() -> ab.Model:
    return ab.Sequential(
        [
            ab.Input((5, 3)),
            layers.GRU(4, return_sequences=True, recurrent_dropout=0.2),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1"),
        ]
    )


def two_outputs() -> ab.Model:
    x = ab.Input((5, 3))
    h = layers.Dense(4, "relu")(layers.Flatten()(x))
    return ab.Model(x, {"a": layers.Dense(2, name="a")(h), "b": layers.Dense(2, name="b")(h)})


def convolutional() -> ab.Model:
    return ab.Sequential([layers.Conv1D(4, 3, activation="relu"), layers.GlobalMaxPooling1D(), layers.Dense(2)])


TARGETS: dict[Any, Any] = {two_outputs: {"a": Y, "b": Y[::-1]}}
COMPILED: dict[Any, dict[str, Any]] = {
    recurrent: {"optimizer": "adam", "loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mse"]},
    two_outputs: {"optimizer": "rmsprop", "loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 0.5, "b": 2.0}},
    convolutional: {"optimizer": "sgd", "loss": "huber", "metrics": ["cosine_similarity"]},
}


@pytest.mark.parametrize("make", COMPILED)
def test_values_and_compiled_steps_learn_the_same(make: Any):
    found = []
    weights = {"a": np.arange(12.0), "b": np.ones(12)} if make is two_outputs else np.arange(12.0)
    for run_eagerly in (False, True):
        ab.utils.set_random_seed(4)
        model, y = make(), TARGETS.get(make, Y)
        model.compile(**COMPILED[make], run_eagerly=run_eagerly)
        kept: dict[str, Any] = {"verbose": 0, "batch_size": 5}
        history = model.fit(X, y, epochs=2, sample_weight=weights, validation_data=(X, y), **kept).history
        results = model.evaluate(X, y, **kept), model.train_on_batch(X, y), model.test_on_batch(X, y)
        found.append([history, *results, model.predict(X, **kept), model.get_weights()])
        assert all(steps.count() == 0 for steps in model._steps.values()) == run_eagerly
    for with_graph, at_once in zip(*map(ab.tree.flatten, found), strict=True):
        np.testing.assert_allclose(at_once, with_graph, rtol=2e-4, atol=1e-6)


class CountingMetric(ab.metrics.Metric):
    """A metric that NumPy computes."""

    def __init__(self, name: str = "largest", **options: Any):
        super().__init__(name=name, **options)
        self.largest = self.add_weight(name="largest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(max(float(self.largest), float(np.max(np.asarray(y_pred)))))

    def result(self) -> Any:
        return float(self.largest) * 2


@ab.saving.register_keras_serializable("test_run_eagerly")
class Looking(ab.Model):
    """A model whose steps and calls look at values, which no graph has."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.dense = layers.Dense(2, kernel_initializer="ones")
        self.seen: list[tuple[str, float]] = []

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)

    def call(self, x: Any, training: bool = False) -> Any:
        self.seen.append(("training" if training else "call", float(ab.ops.sum(x))))
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with ab.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.seen.append(("gradient", float(np.abs(gradients[0].numpy()).sum())))
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss.numpy(), "is_small": bool(loss < 5)}


ROWS = X[:, 0]


def looking(**options: Any) -> Looking:
    model = Looking()
    model.compile("sgd", "mse", run_eagerly=True, **options)
    return model


def test_steps_and_calls_see_the_values_of_each_batch():
    model = looking()
    history = model.fit(ROWS, Y, batch_size=6, epochs=2, shuffle=False, verbose=0).history
    sums = [pytest.approx(float(ROWS[first : first + 6].sum()), rel=1e-5) for first in (0, 6, 0, 6)]
    assert [value for kind, value in model.seen if kind == "training"] == sums
    gradients = [value for kind, value in model.seen if kind == "gradient"]
    assert len(gradients) == 4
    assert gradients[0] > gradients[2] > 0  # the same rows with other weights
    assert history["is_small"] == [1.0, 1.0]
    assert history["loss"][1] < history["loss"][0]

    model.seen.clear()
    model.predict(ROWS, batch_size=6, verbose=0)
    model.evaluate(ROWS, Y, batch_size=6, verbose=0)
    model.predict_on_batch(ROWS[:6])
    assert model.seen == [("call", value) for value in [*sums, sums[0]]]


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_metrics_may_compute_with_numpy(steps_per_execution: int):
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2, kernel_initializer="ones")])
    options = {"run_eagerly": True, "steps_per_execution": steps_per_execution}
    model.compile(ab.optim.SGD(0.0), "mse", metrics=[CountingMetric(), "mae"], **options)
    history = model.fit(ROWS, Y, batch_size=5, verbose=0).history
    wanted = 2 * ROWS.sum(1).max()
    assert history["largest"] == [pytest.approx(wanted, rel=1e-5)]
    assert model.evaluate(ROWS, Y, verbose=0, return_dict=True)["largest"] == pytest.approx(wanted, rel=1e-5)


def test_the_attribute_takes_effect_at_the_next_call():
    model = looking()
    model.run_eagerly = False
    with pytest.raises(TypeError, match="so it can't become a float") as raised:
        model.fit(ROWS, Y, verbose=0)
    assert "run_eagerly=True" in raised.value.__notes__[-1]
    model.run_eagerly = True
    assert model.train_on_batch(ROWS, Y, return_dict=True)["is_small"] in (0.0, 1.0)


def test_a_step_may_call_that_of_the_base():
    class Wrapping(ab.Sequential):
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            assert float(logs["loss"]) > 0
            return {**logs, "rows": len(np.asarray(data[0]))}

    model = Wrapping([ab.Input((3,)), layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    assert model.fit(ROWS, Y, batch_size=12, verbose=0).history["rows"] == [12.0]
    assert set(model.train_step((ROWS, Y))) == {"loss", "rows"}  # also by hand


def test_saved_models_and_interrupted_runs_go_on_eagerly(tmp_path: Path):
    class Interrupt(ab.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    kept: dict[str, Any] = {"batch_size": 6, "shuffle": False, "verbose": 0}
    straight = looking()
    straight.fit(ROWS, Y, epochs=4, **kept)
    straight.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    assert loaded.run_eagerly
    loaded.fit(ROWS, Y, **kept)
    assert [kind for kind, _ in loaded.seen] == ["training", "gradient"] * 2

    backup = ab.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        looking().fit(ROWS, Y, epochs=4, callbacks=[backup, Interrupt()], **kept)
    resumed = looking()
    resumed.fit(ROWS, Y, epochs=4, callbacks=[backup], **kept)
    np.testing.assert_array_equal(resumed.get_weights()[0], straight.get_weights()[0])


def test_steps_that_devices_share_are_compiled_with_a_warning():
    ab.config.set_devices(cpu=2)
    with ab.distribute.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
        with pytest.warns(UserWarning, match="training steps under DataParallel are compiled"):
            model.compile("sgd", "mse", run_eagerly=True)
    model.fit(ROWS, Y, verbose=0)
    assert model._steps["train"].count() == 1


@pytest.fixture
def eager_functions() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def test_functions_and_steps_run_eagerly_while_it_is_switched_on(eager_functions: None):
    seen: list[float] = []

    class Owner:
        @tf.function(reduce_retracing=True)
        def doubled(self, x: Any, *, by: Any = 2) -> Any:
            seen.append(float(x))
            return x * by

    @tf.function
    def quadrupled(x: Any) -> Any:
        return Owner().doubled(Owner().doubled(x))

    x = tf.constant(1.5)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quadrupled(x)
    assert tf.config.functions_run_eagerly()
    assert (float(y), float(tape.gradient(y, x)), seen) == (6.0, 4.0, [1.5, 3.0])
    assert float(Owner().doubled(x, by=tf.constant(3.0))) == 4.5

    model = looking()
    model.run_eagerly = False
    model.fit(ROWS, Y, batch_size=6, verbose=0)
    assert len(model.seen) == 4
    tf.config.run_functions_eagerly(False)
    assert not tf.config.functions_run_eagerly()
    with pytest.raises(TypeError, match="so it can't become a float"):
        model.fit(ROWS, Y, verbose=0)
    with pytest.raises(TypeError, match="so it can't become a float"):
        quadrupled(x)
