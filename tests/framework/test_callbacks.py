"""Callbacks: what is called when, and what each of them does."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.framework.callbacks.api import (
    Callback,
    CallbackList,
    CSVLogger,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)

X = np.linspace(-1, 1, 12, dtype="float32").reshape(6, 2)
Y = X.sum(1, keepdims=True)


def model_for_tests(rate: float = 0.1) -> ab.Sequential:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile(ab.optim.SGD(rate), "mse")
    return model


class Recorder(Callback):
    """Notes every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.logs: list[dict[str, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def note(*args: Any, logs: Any = None) -> None:
            numbers = [each for each in args if isinstance(each, int)]
            self.calls.append(f"{name[3:]}{numbers or ''}")
            self.logs.append(dict(args[-1] if logs is None else logs))

        return note

    def wants_batches(self, mode: str) -> bool:
        return True


class Scripted(Callback):
    """Puts given values of ``val_loss`` into the logs, ahead of the callback under test."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs["val_loss"] = self.values[epoch]


def fit_with(
    values: list[float], callback: Callback, model: ab.Sequential | None = None
) -> tuple[ab.Sequential, History]:
    model = model or model_for_tests()
    return model, model.fit(X, Y, epochs=len(values), callbacks=[Scripted(values), callback], verbose=0)


# --- protocol -------------------------------------------------------------------------------------------------------


def test_methods_are_called_in_keras_order() -> None:
    recorder = Recorder()
    model_for_tests().fit(X, Y, batch_size=3, epochs=1, validation_data=(X, Y), callbacks=recorder, verbose=0)
    assert recorder.calls == [
        "train_begin",
        "epoch_begin[0]",
        "train_batch_begin[0]",
        "train_batch_end[0]",
        "train_batch_begin[1]",
        "train_batch_end[1]",
        "test_begin",
        "test_batch_begin[0]",
        "test_batch_end[0]",
        "test_batch_begin[1]",
        "test_batch_end[1]",
        "test_end",
        "epoch_end[0]",
        "train_end",
    ]
    assert list(recorder.logs[3]) == ["loss"]
    assert list(recorder.logs[-2]) == ["loss", "val_loss"]


def test_arguments_are_passed_as_keras_passes_them() -> None:
    """Give logs by position, but at batches."""
    seen: list[Any] = []

    def twice(name: str) -> Any:
        return lambda number, values: seen.append((name, number, sorted(values)))

    def once(name: str) -> Any:
        return lambda values: seen.append((name, sorted(values)))

    names = ("on_train_begin", "on_train_end")
    given = LambdaCallback(twice("begin"), twice("end"), **{name: once(name) for name in names})
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0, callbacks=[given])
    assert seen == [("on_train_begin", []), ("begin", 0, []), ("end", 0, ["loss"]), ("on_train_end", ["loss"])]


def test_predict_hands_over_the_outputs() -> None:
    recorder = Recorder()
    outputs = model_for_tests().predict(X, batch_size=4, callbacks=[recorder], verbose=0)
    assert recorder.calls[0] == "predict_begin"
    assert recorder.calls[-1] == "predict_end"
    np.testing.assert_array_equal(recorder.logs[2]["outputs"], outputs[:4])


def test_steps_per_execution_groups_batches() -> None:
    recorder = Recorder()
    model = model_for_tests()
    model.compile("sgd", "mse", steps_per_execution=2)
    model.fit(X, Y, batch_size=2, callbacks=recorder, verbose=0)
    assert [call for call in recorder.calls if "batch" in call] == [
        "train_batch_begin[0]",
        "train_batch_end[1]",
        "train_batch_begin[2]",
        "train_batch_end[2]",
    ]


def test_only_callbacks_that_override_batch_methods_are_called_at_batches() -> None:
    class AtBatches(Callback):
        def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            pass

    assert not CallbackList([EarlyStopping(), ModelCheckpoint("x.keras")]).wants_batches("train")
    assert CallbackList([AtBatches()]).wants_batches("train")
    assert not CallbackList([AtBatches()]).wants_batches("test")
    assert CallbackList([LambdaCallback(on_train_batch_end=lambda batch, logs: None)]).wants_batches("train")
    assert CallbackList([ModelCheckpoint("x.keras", save_freq=2)]).wants_batches("train")


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(TypeError, match="LambdaCallback"):
        model_for_tests().fit(X, Y, callbacks=[len], verbose=0)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def test_a_callback_may_stop_training_within_an_epoch() -> None:
    seen: list[int] = []

    def stop(batch: int, logs: dict[str, Any]) -> None:
        seen.append(batch)
        model.stop_training = batch == 1

    model = model_for_tests()
    model.fit(X, Y, batch_size=1, epochs=3, callbacks=LambdaCallback(on_train_batch_end=stop), verbose=0)
    assert seen == [0, 1]


def test_history_collects_epochs_from_initial_epoch_on() -> None:
    model = model_for_tests()
    history = model.fit(X, Y, epochs=5, initial_epoch=3, verbose=0)
    assert history.epoch == [3, 4]
    assert len(history.history["loss"]) == 2
    assert model.history is history


def test_validation_freq() -> None:
    history = model_for_tests().fit(X, Y, epochs=4, validation_data=(X, Y), validation_freq=2, verbose=0)
    assert len(history.history["val_loss"]) == 2
    history = model_for_tests().fit(X, Y, epochs=4, validation_data=(X, Y), validation_freq=[1, 2, 4], verbose=0)
    assert len(history.history["val_loss"]) == 3


def test_lambda_callback_refuses_names_that_are_no_methods() -> None:
    with pytest.raises(TypeError, match="'on_epoch_middle' is no method"):
        LambdaCallback(on_epoch_middle=lambda: None)


# --- EarlyStopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "values", "epochs"),
    [
        ({}, [3, 2, 2.5, 1], 3),
        ({"patience": 2}, [3, 2, 2.5, 2.2, 1], 4),
        ({"patience": 2}, [3, 2, 2.5, 1.9, 2, 2], 6),
        ({"min_delta": 0.5}, [3, 2, 1.8, 1], 3),
        ({"mode": "max"}, [1, 2, 3, 2, 5], 4),
        ({"start_from_epoch": 3}, [1, 2, 3, 4, 3, 5, 6], 6),
        ({"baseline": 1.0, "patience": 2}, [3, 2, 1.5, 0.5], 4),
        ({"baseline": 0.1, "patience": 1}, [3, 2, 2.5, 0.5], 3),
    ],
)
def test_early_stopping_stops_as_keras_does(options: dict[str, Any], values: list[float], epochs: int) -> None:
    _, history = fit_with(values, EarlyStopping(**options))
    assert len(history.epoch) == epochs


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0, 2.0], [3.0, 1.0, 0.9]])
def test_early_stopping_restores_the_best_weights(values: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[list[np.ndarray]] = []
    model = model_for_tests()
    keep = LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(model.get_weights()))
    stop = EarlyStopping(patience=2, restore_best_weights=True, verbose=1)
    model.fit(X, Y, epochs=len(values), callbacks=[Scripted(values), keep, stop], verbose=0)
    best = int(np.argmin(values))
    assert stop.best_epoch == best
    for found, expected in zip(model.get_weights(), kept[best], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert f"best epoch: {best + 1}" in capsys.readouterr().out


def test_a_subclass_says_what_early_stopping_compares() -> None:
    class OfSquares(EarlyStopping):
        def get_monitor_value(self, logs: Any) -> float | None:
            value = super().get_monitor_value(logs)
            return None if value is None or value == 0.0 else value**2

    stop = OfSquares()
    _, history = fit_with([-2.0, 1.0, 0.0, -1.5, 0.5], stop)  # the third is passed over
    assert (len(history.epoch), stop.best) == (4, 1.0)


def test_a_quantity_that_is_not_there_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="watches 'val_acc', which is not among the logs: loss"):
        model_for_tests().fit(X, Y, callbacks=EarlyStopping("val_acc"), verbose=0)


@pytest.mark.parametrize(
    ("name", "maximises"),
    [("val_accuracy", True), ("auc", True), ("val_loss", False), ("mae", False), ("recall", True)],
)
def test_auto_mode_goes_by_the_name(name: str, maximises: bool) -> None:
    callback = EarlyStopping(name)
    assert callback.maximises is maximises
    assert callback.monitor_op is (np.greater if maximises else np.less)


@pytest.mark.parametrize(
    ("metric", "name", "maximises"),
    [
        (ab.metrics.R2Score(), "r2_score", True),
        (ab.metrics.CosineSimilarity(), "cosine_similarity", True),
        (ab.metrics.PearsonCorrelation(axis=0), "pearson_correlation", True),
        (ab.metrics.FBetaScore(average="micro"), "fbeta_score", True),
        (ab.metrics.SensitivityAtSpecificity(0.5), "sensitivity_at_specificity", True),
        (ab.metrics.SpecificityAtSensitivity(0.5, name="best"), "best", True),
        (ab.metrics.BinaryAccuracy(name="loss_of_none"), "loss_of_none", True),
        (ab.metrics.MeanSquaredError(name="accuracy_in_cm"), "accuracy_in_cm", False),
        ("cosine_similarity", "cosine_similarity", True),
    ],
)
def test_auto_mode_goes_by_the_metric_of_that_name(metric: Any, name: str, maximises: bool) -> None:
    x = ab.Input((2,))
    outputs = {"one": ab.layers.Dense(1, "sigmoid", name="one")(x), "two": ab.layers.Dense(1, name="two")(x)}
    for model, prefix in ((ab.Model(x, outputs["one"]), ""), (ab.Model(x, outputs), "one_")):
        model.compile("sgd", "mse", metrics={"one": [metric], "two": ["mae"]} if prefix else [metric])
        stop = EarlyStopping(f"val_{prefix}{name}", patience=5)
        targets = np.array([[0.0], [1.0]])
        y: Any = {"one": targets, "two": targets} if prefix else targets
        history = model.fit(np.eye(2), y, validation_data=(np.eye(2), y), verbose=0, callbacks=stop).history
        assert stop.maximises is maximises
        assert stop.best == history[f"val_{prefix}{name}"][0]


def test_auto_mode_of_a_quantity_of_ones_own_is_an_error() -> None:
    def agreement(y_true: Any, y_pred: Any) -> Any:
        return -abs(y_true - y_pred)

    model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[agreement])
    with pytest.raises(ValueError, match=r"watches 'agreement' with mode='auto'.*Give mode='max' or mode='min'"):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=EarlyStopping("agreement"))
    stop = EarlyStopping("agreement", mode="max")
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=stop)
    assert stop.best is not None


# --- ModelCheckpoint ------------------------------------------------------------------------------------------------


def test_checkpoint_names_hold_epochs_and_logs(tmp_path: Path) -> None:
    fit_with([0.5, 0.25], ModelCheckpoint(tmp_path / "deep" / "{epoch:02d}-{val_loss:.2f}.keras"))
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["01-0.50.keras", "02-0.25.keras"]


def test_checkpoints_keep_the_best_only(tmp_path: Path) -> None:
    path = tmp_path / "{epoch}.keras"
    fit_with([3, 1, 2, 0.5], ModelCheckpoint(path, save_best_only=True))
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["1", "2", "4"]


def test_a_threshold_has_to_be_beaten_first(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}.keras", save_best_only=True, initial_value_threshold=1.5)
    fit_with([3, 1, 2], checkpoint)
    assert [file.stem for file in tmp_path.iterdir()] == ["2"]


def test_checkpoints_of_weights_hold_the_weights_of_that_time(tmp_path: Path) -> None:
    model, _ = fit_with([1, 1], ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True))
    weights = model.get_weights()
    model.fit(X, Y, verbose=0)
    model.load_weights(tmp_path / "2.weights.h5")
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])


def test_checkpoints_every_few_batches(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=2)
    model_for_tests().fit(X, Y, batch_size=2, epochs=2, callbacks=checkpoint, verbose=0)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["1-2", "2-1", "2-3"]


def test_checkpoint_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in '.weights.h5'"):
        ModelCheckpoint("a.keras", save_weights_only=True)
    with pytest.raises(ValueError, match=r"must end in '.keras'"):
        ModelCheckpoint("a.pickle")
    with pytest.raises(ValueError, match="save_freq"):
        ModelCheckpoint("a.keras", save_freq="batch")
    with pytest.raises(KeyError, match="asks for 'val_auc'"):
        fit_with([1.0], ModelCheckpoint(tmp_path / "{val_auc}.keras"))


# --- learning rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [lambda epoch: 0.5 / (epoch + 1), lambda epoch, rate: 0.5 / (epoch + 1)])
def test_learning_rate_scheduler(schedule: Any) -> None:
    _, history = fit_with([1, 1], LearningRateScheduler(schedule))
    assert history.history["learning_rate"] == pytest.approx([0.5, 0.25])


def test_learning_rate_scheduler_wants_numbers() -> None:
    with pytest.raises(ValueError, match="must return a number, got None"):
        fit_with([1], LearningRateScheduler(lambda epoch, rate: None))  # type: ignore[arg-type,return-value]


def test_reduce_on_plateau() -> None:
    callback = ReduceLROnPlateau(factor=0.5, patience=2, min_delta=0.0, cooldown=1, min_lr=0.03)
    _, history = fit_with([3, 3, 3, 3, 3, 3, 3, 3], callback)
    # The epoch that ends the cooldown counts again, as in Keras; min_lr stops the second change at 0.03.
    assert history.history["learning_rate"] == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.03])
    with pytest.raises(ValueError, match="factor must be below 1"):
        ReduceLROnPlateau(factor=1.0)


# --- others ---------------------------------------------------------------------------------------------------------


def test_terminate_on_nan(capsys: pytest.CaptureFixture[str]) -> None:
    targets = Y.copy()
    targets[3] = np.nan
    recorder = Recorder()
    model_for_tests().fit(
        X, targets, batch_size=2, shuffle=False, epochs=2, callbacks=[TerminateOnNaN(), recorder], verbose=0
    )
    assert sum(call.startswith("train_batch_end") for call in recorder.calls) == 2
    assert "Batch 1: the loss is nan" in capsys.readouterr().out


def test_csv_logger_has_columns_for_values_that_come_later(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    options: dict[str, Any] = {"epochs": 4, "validation_freq": 2, "verbose": 0}
    model = model_for_tests()
    history = model.fit(X, Y, validation_data=(X, Y), callbacks=CSVLogger(path), **options).history
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0] == ["epoch", "loss", "val_loss"]
    assert [row[2] for row in rows[1:]] == ["NA", str(history["val_loss"][0]), "NA", str(history["val_loss"][1])]
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(X, Y, callbacks=CSVLogger(path, append=True), **options)
    assert list(csv.reader(path.read_text().splitlines()))[-1][2:] == ["NA"]  # the columns are those of the file
    model.fit(X, Y, callbacks=CSVLogger(path), **options)
    assert path.read_text().splitlines()[0] == "epoch,loss,mae,val_loss,val_mae"


def test_csv_logger_names_the_file_that_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory") as caught:
        fit_with([3], CSVLogger(tmp_path))
    assert caught.value.__notes__[-1].startswith(f"CSVLogger can't write to filename={str(tmp_path)!r}: make room")


def test_csv_logger_writes_and_appends(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    model, first = fit_with([3, 2], CSVLogger(path))
    _, second = fit_with([1], CSVLogger(path, append=True), model)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "0"]
    assert [float(row["val_loss"]) for row in rows] == [3, 2, 1]
    assert [float(row["loss"]) for row in rows] == first.history["loss"] + second.history["loss"]
    fit_with([5], CSVLogger(path, separator=";"))
    assert path.read_text().splitlines()[0] == "epoch;loss;val_loss"
