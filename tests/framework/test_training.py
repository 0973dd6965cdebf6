"""compile, fit, evaluate, predict: numbers as Keras gives them, and messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from golden.loader import FitCase, load_cases, resolve

RNG = np.random.default_rng(0)


def regression(units: int = 2) -> ab.Sequential:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(units)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def rows(count: int = 20, units: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(count, 3)).astype("float32"), RNG.normal(size=(count, units)).astype("float32")


# --- the same numbers as Keras --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load_cases("fit"), ids=str)
def test_fit_gives_keras_numbers(case: FitCase) -> None:
    model = case.build(ab, layers, ab.regularizers, ab.constraints)
    model(case.arrays["x"][:1])
    model.set_weights(case.initial_weights)
    model.compile(**resolve(case.compile_kwargs, ab.optim))
    history = model.fit(**case.arrays, **case.fit_kwargs).history
    assert list(history) == list(case.history)
    for name, values in case.history.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, atol=2e-6, err_msg=name)
    for name, weight, expected in zip(case.weight_names, model.get_weights(), case.final_weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=5e-6, err_msg=name)
    batch = case.fit_kwargs["batch_size"]
    found = model.evaluate(case.arrays["x"], case.arrays["y"], batch_size=batch, verbose=0, return_dict=True)
    assert found.keys() == case.evaluate.keys()
    for name, value in case.evaluate.items():
        assert found[name] == pytest.approx(value, rel=2e-5, abs=2e-6), name
    np.testing.assert_allclose(model.predict(case.arrays["x"], verbose=0), case.prediction, rtol=2e-5, atol=5e-6)


def test_epoch_averages_weigh_batches_by_their_rows() -> None:
    model = regression()
    x, y = rows(10)
    weights = model.get_weights()
    model.optimizer.learning_rate = 0.0
    history = model.fit(x, y, batch_size=4, verbose=0).history
    expected = float(np.mean((model.predict(x, verbose=0) - y) ** 2))
    assert history["loss"][0] == pytest.approx(expected, rel=1e-6)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


# --- programs -------------------------------------------------------------------------------------------------------


def test_a_partial_batch_has_its_own_program_and_more_shapes_share_one() -> None:
    model = regression()
    x, y = rows(40)
    for size in (8, 5, 7, 6, 4, 3, 9):
        model.train_on_batch(x[:size], y[:size])
    assert model._steps["train"].count() == 4  # three of known size, one for any


def test_any_batch_size_gives_the_same_losses_as_known_ones() -> None:
    x, y = rows(40)
    model = regression()
    values = {size: model.test_on_batch(x[:size], y[:size]) for size in (8, 5, 7)}
    for size in (6, 4, 8):
        model.reset_metrics()
        loss = model.test_on_batch(x[:size], y[:size], return_dict=True)["loss"]
        expected = np.mean((model.predict_on_batch(x[:size]) - y[:size]) ** 2)
        assert loss == pytest.approx(float(expected), rel=1e-5)
    assert set(values) == {8, 5, 7}


def test_freezing_a_layer_takes_effect_at_the_next_fit() -> None:
    model = regression()
    x, y = rows()
    model.fit(x, y, verbose=0)
    frozen = model.layers[0]
    frozen.trainable = False
    before, last = frozen.get_weights(), model.layers[1].get_weights()
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(before[0], frozen.get_weights()[0])
    assert not np.array_equal(last[0], model.layers[1].get_weights()[0])


def test_freezing_a_layer_without_trainable_weights_takes_effect_at_the_next_fit() -> None:
    statistics = layers.BatchNormalization(center=False, scale=False)
    model = ab.Sequential([ab.Input((3,)), statistics, layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = rows()
    model.fit(x, y, verbose=0)
    statistics.trainable = False
    before = statistics.get_weights()
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(before, statistics.get_weights())
    statistics.trainable = True
    model.fit(x, y, verbose=0)
    assert not np.array_equal(before, statistics.get_weights())


def test_fit_takes_notice_of_frozen_layers_behind_single_steps_on_other_shapes() -> None:
    model = regression()
    x, y = rows()
    model.fit(x, y, batch_size=len(x), verbose=0)
    frozen = model.layers[0]
    frozen.trainable = False
    before = frozen.get_weights()
    model.train_on_batch(x[:3], y[:3])
    model.fit(x, y, batch_size=len(x), verbose=0)
    np.testing.assert_array_equal(before[0], frozen.get_weights()[0])


def test_a_schedule_that_replaces_the_learning_rate_takes_effect_at_the_next_step() -> None:
    x, y = rows()
    model = regression()
    optimizer: Any = model.optimizer
    model.fit(x, y, batch_size=len(x), verbose=0)
    optimizer.learning_rate = ab.optim.schedules.ExponentialDecay(0.0, 1, 0.5)
    before = model.get_weights()
    model.train_on_batch(x, y)
    model.fit(x, y, batch_size=len(x), verbose=0)
    for found, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_compiling_again_trains_with_the_new_loss() -> None:
    model = regression()
    x, y = rows()
    model.fit(x, y, verbose=0)
    model.compile("sgd", "mae")
    history = model.fit(x, y, verbose=0).history
    assert list(history) == ["loss"]


def test_a_sequential_without_input_builds_on_the_first_data() -> None:
    model = ab.Sequential([layers.Embedding(5, 3), layers.Flatten(), layers.Dense(2)])
    assert not model.built
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    ids = RNG.integers(0, 5, (9, 4))
    model.fit(ids, np.arange(9) % 2, batch_size=4, verbose=0)
    assert [weight.shape for weight in model.weights] == [(5, 3), (12, 2), (2,)]
    assert model.input_shape == (None, 4)
    assert model.output_shape == (None, 2)
    assert model.inputs[0].dtype == ids.dtype


# --- metrics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "target", "kind"),
    [
        (1, np.array([[0.0], [1.0]]), "BinaryAccuracy"),
        (3, np.array([0, 2]), "SparseCategoricalAccuracy"),
        (3, np.array([[0], [2]]), "SparseCategoricalAccuracy"),
        (3, np.eye(3)[:2], "CategoricalAccuracy"),
    ],
)
def test_accuracy_goes_by_the_shapes(units: int, target: np.ndarray, kind: str) -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(units, "sigmoid")])
    loss = "sparse_categorical_crossentropy" if kind.startswith("Sparse") else "binary_crossentropy"
    model.compile("sgd", loss, metrics=["acc"])
    model.train_on_batch(np.ones((2, 3)), target)
    assert type(model.metrics[1]).__name__ == kind
    assert model.metrics_names == ["loss", "acc"]


def test_metric_objects_functions_and_names() -> None:
    def largest(y_true, y_pred):
        return ab.ops.max(y_pred, axis=-1)

    model = regression()
    model.compile("sgd", "mse", metrics=["mae", ab.metrics.MeanSquaredError(name="error"), largest, "mae"])
    x, y = rows()
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert list(found) == ["error", "largest", "loss", "mae", "mae_1"]
    assert found["error"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["largest"] == pytest.approx(float(model.predict(x, verbose=0).max(-1).mean()), rel=1e-5)


def test_weighted_metrics_see_weights_and_others_do_not() -> None:
    model = regression()
    model.compile("sgd", "mse", metrics=["mse"], weighted_metrics=["mse"])
    x, y = rows()
    weight = np.linspace(0, 1, len(x))
    found = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    errors = ((model.predict(x, verbose=0) - y) ** 2).mean(-1)
    assert found["mse"] == pytest.approx(float(errors.mean()), rel=1e-5)
    assert found["weighted_mse"] == pytest.approx(float((errors * weight).sum() / weight.sum()), rel=1e-5)
    assert found["loss"] == pytest.approx(float((errors * weight).mean()), rel=1e-5)


def test_train_on_batch_tells_of_its_batch_alone() -> None:
    model = regression()
    x, y = rows()
    model.optimizer.learning_rate = 0.0
    first = model.train_on_batch(x[:10], y[:10], return_dict=True)["loss"]
    second = model.train_on_batch(x[10:], y[10:], return_dict=True)["loss"]
    assert first != second
    assert second == pytest.approx(model.test_on_batch(x[10:], y[10:])[0], rel=1e-5)
    assert first == pytest.approx(float(np.mean((model.predict_on_batch(x[:10]) - y[:10]) ** 2)), rel=1e-5)


# --- losses ---------------------------------------------------------------------------------------------------------


def test_added_losses_and_regularizers_are_part_of_the_loss() -> None:
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(ab.ops.sum(inputs))
            return inputs

    model = ab.Sequential([ab.Input((2,)), Penalty(), layers.Dense(1, kernel_regularizer="l2", use_bias=False)])
    model.compile("sgd", "mse")
    x = np.ones((3, 2), "float32")
    kernel = model.get_weights()[0]
    loss = model.evaluate(x, np.zeros((3, 1)), verbose=0)
    assert loss == pytest.approx(float((x @ kernel)[0, 0] ** 2 + 6 + 0.01 * (kernel**2).sum()), rel=1e-5)


def test_a_model_may_have_added_losses_only() -> None:
    class Distance(layers.Layer):
        def call(self, inputs):
            self.add_loss(ab.ops.mean(ab.ops.square(inputs)))
            return inputs

    model = ab.Sequential([ab.Input((2,)), layers.Dense(2), Distance()])
    model.compile("sgd")
    history = model.fit(np.ones((8, 2)), epochs=5, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_overriding_compute_loss_changes_what_is_minimised() -> None:
    class Tripled(ab.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return 3.0 * super().compute_loss(x, y, y_pred, sample_weight, training)

    x, y = rows()
    plain, tripled = regression(), Tripled([ab.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])
    tripled.compile("sgd", "mse")
    tripled.set_weights(plain.get_weights())
    assert tripled.evaluate(x, y, verbose=0) == pytest.approx(3 * plain.evaluate(x, y, verbose=0)[0], rel=1e-5)


def test_dropout_is_active_in_training_only() -> None:
    model = ab.Sequential([ab.Input((50,)), layers.Dropout(0.5)])
    x = np.ones((4, 50), "float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0), x)
    assert (model(x, training=True) == 0).any()


# --- predict --------------------------------------------------------------------------------------------------------


def test_predict_joins_batches_and_takes_one_row() -> None:
    model = regression()
    x, _ = rows(70)
    whole = model.predict_on_batch(x)
    np.testing.assert_allclose(model.predict(x, batch_size=32, verbose=0), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(x[:1]), whole[:1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict([[*map(float, x[0])]], verbose=0), whole[:1], rtol=1e-5, atol=1e-6)


def test_predictions_do_not_alias_one_another_or_the_input() -> None:
    model = ab.Sequential([ab.Input((2,)), layers.Identity()])
    x = np.ones((1, 2), "float32")
    first = model.predict(x)
    first[:] = 7
    np.testing.assert_array_equal(model.predict(x), np.ones((1, 2)))
    np.testing.assert_array_equal(x, np.ones((1, 2)))


def test_predict_leaves_targets_of_a_generator_aside() -> None:
    model = regression()
    x, y = rows(8)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    np.testing.assert_allclose(model.predict(batches, verbose=0), model.predict_on_batch(x), rtol=1e-5, atol=1e-6)


# --- what is printed ------------------------------------------------------------------------------------------------


def test_verbose_2_prints_one_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    model = regression()
    model.fit(*rows(10), batch_size=4, epochs=2, validation_split=0.2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("Epoch 1/2 - 2/2 - ")
    for name in ("loss: ", "mae: ", "val_loss: ", "val_mae: "):
        assert name in lines[1]


def test_auto_prints_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    regression().fit(*rows(8), epochs=1)
    assert capsys.readouterr().out.count("\n") == 1


def test_verbose_1_draws_a_bar_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    regression().fit(*rows(8), epochs=2, verbose=1)
    captured = capsys.readouterr()
    assert re.search(r"Epoch 2/2: +(100%|1/1)", captured.out)  # without the bar where the line is full
    assert "loss: " in captured.out
    assert captured.err == ""


def test_verbose_0_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = regression()
    x, y = rows(8)
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x)
    assert capsys.readouterr().out == ""


def test_unknown_verbose_is_refused() -> None:
    with pytest.raises(ValueError, match="verbose must be 'auto', 0"):
        regression().fit(*rows(8), verbose=3)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_an_uncompiled_model_says_so() -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(1)])
    with pytest.raises(ValueError, match=r"must be compiled before fit\(\)"):
        model.fit(*rows(8, 1))


def test_targets_that_would_be_broadcast_are_refused() -> None:
    model = regression(3)
    x, y = rows(8, 1)
    with pytest.raises(ValueError, match=r"y_true.*\[8,1\].*y_pred.*\[8,3\]"):
        model.fit(x, y, verbose=0)


def test_labels_out_of_range_are_refused() -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, _ = rows(4)
    with pytest.raises(ValueError, match="7"):
        model.fit(x, np.array([0, 1, 2, 7]), verbose=0)


def test_metrics_in_the_place_of_loss_weights_are_noticed() -> None:
    model = regression()
    metrics: Any = ["accuracy"]
    model.compile("sgd", "mse", metrics)
    with pytest.raises(ValueError, match=r"pass them by name: metrics="):
        model.fit(*rows(8), verbose=0)


def test_no_loss_is_an_error_that_says_what_to_do() -> None:
    model = regression()
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"no loss to minimise: pass loss="):
        model.fit(*rows(8), verbose=0)


def test_missing_targets_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"no targets \(y\) were given"):
        regression().fit(rows(8)[0], verbose=0)


def test_training_while_a_graph_is_built_is_refused() -> None:
    model = regression()
    with (
        ab.Graph().as_default(),
        pytest.raises(RuntimeError, match=r"fit\(\) runs at once, but a graph"),
    ):
        model.fit(*rows(8), verbose=0)


def test_the_wrong_input_shape_names_the_input() -> None:
    with pytest.raises(ValueError, match=r"has shape \(None, 3\), but was given an array of shape \(8, 4\)"):
        regression().fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_training() -> None:
    def train() -> list[np.ndarray]:
        ab.utils.set_random_seed(3)
        model = ab.Sequential([ab.Input((3,)), layers.Dense(8), layers.Dropout(0.3), layers.Dense(2)])
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        return model.get_weights()

    x, y = rows(20)
    for first, second in zip(train(), train(), strict=True):
        np.testing.assert_array_equal(first, second)
