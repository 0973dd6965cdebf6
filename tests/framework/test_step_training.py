"""Training that is counted in steps: `callbacks.Every` validates, saves and logs after every so many of them."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.framework.callbacks.api import (
    BackupAndRestore,
    Callback,
    CSVLogger,
    EarlyStopping,
    Every,
    LambdaCallback,
    ModelCheckpoint,
    ProgbarLogger,
    ReduceLROnPlateau,
    TerminateOnNaN,
)

RNG = np.random.default_rng(5)
X = RNG.normal(size=(20, 3)).astype("float32")
Y = RNG.normal(size=(20, 1)).astype("float32")
VALIDATION = X[:7], Y[:7]


class InterruptionError(Exception):
    """The error with which a test ends a run."""


def regression(optimizer: Any = None) -> ab.Model:
    inputs = ab.Input((3,))
    hidden = layers.Dropout(0.3)(layers.Dense(4, activation="tanh")(inputs))
    model = ab.Model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizer or ab.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def seeded() -> ab.Model:
    ab.utils.set_random_seed(11)
    return regression()


def fitted(model: ab.Model, *callbacks: Callback, epochs: int = 3, **options: Any) -> Any:
    return model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)


def repeated() -> Iterator[Any]:
    while True:
        yield X[:4], Y[:4]


def steps_of(history: Any) -> list[int]:
    return [row["step"] for row in history.by_step]


class Noting(Callback):
    """Notes the calls that it gets, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.told.append("train")

    def on_train_end(self, logs: Any = None) -> None:
        self.told.append("end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.told.append(f"begin {epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.told.append(f"end {epoch} at {(logs or {})['step']}")

    def on_test_begin(self, logs: Any = None) -> None:
        self.told.append("test")


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [1, 2, 3, 5, 7, 15, 16])
@pytest.mark.parametrize("together", [1, 2])
def test_steps_are_counted_across_epochs(frequency: int, together: int):
    model = regression()
    model.compile("sgd", "mse", steps_per_execution=together)
    history = fitted(model, Every(frequency))
    ends = [5 * epoch + min(done, 5) for epoch in range(3) for done in range(together, 5 + together, together)]
    expected: list[int] = []
    for end in ends:  # where callbacks are called at all
        if end - (expected[-1] if expected else 0) >= frequency:
            expected.append(end)

    assert steps_of(history) == expected


def test_one_long_epoch():
    history = regression().fit(repeated(), steps_per_epoch=20, verbose=0, callbacks=Every(6))

    assert steps_of(history) == [6, 12, 18]
    assert history.epoch == [0]


def test_data_without_a_known_length():
    def batches() -> Iterator[Any]:
        for _ in range(9):
            yield X[:4], Y[:4]

    history = regression().fit(batches(), verbose=0, callbacks=Every(4, validation_data=VALIDATION))

    assert steps_of(history) == [4, 8]


def test_a_second_fit_counts_anew():
    model, every = regression(), Every(4)
    first, second = fitted(model, every, epochs=1), fitted(model, every, epochs=1)

    assert (steps_of(first), steps_of(second)) == ([4], [4])


def test_callbacks_are_told_as_of_epochs():
    noting = Noting()
    fitted(regression(), Every(4, noting, validation_data=VALIDATION), epochs=2)

    assert noting.told == [
        *("train", "begin 0", "test", "end 0 at 4", "begin 0"),
        *("test", "end 1 at 8", "begin 1", "end"),
    ]


def test_several_at_once():
    noting = Noting()
    history = fitted(regression(), Every(5, noting), Every(4), epochs=2)

    assert steps_of(history) == [4, 5, 8, 10]
    assert [told for told in noting.told if " at " in told] == ["end 0 at 5", "end 1 at 10"]


# --- what -----------------------------------------------------------------------------------------------------------


def test_logs_are_those_of_the_epoch_so_far_and_of_evaluate():
    seen: list[dict[str, float]] = []

    class Comparing(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(dict(logs))

    found: list[Any] = []

    def compare(epoch: int, logs: Any) -> None:
        found.append((logs, model.get_weights()))

    model = seeded()
    history = fitted(
        model, Comparing(), Every(3, LambdaCallback(on_epoch_end=compare), validation_data=VALIDATION), epochs=1
    )
    (logs, weights) = found[0]
    assert list(logs) == ["loss", "mae", "val_loss", "val_mae", "step"]
    assert {name: logs[name] for name in ("loss", "mae")} == seen[2]
    model.set_weights(weights)
    expected = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert {name: logs[f"val_{name}"] for name in expected} == expected
    assert history.by_step == [logs]


def test_logs_of_other_batches_are_not_computed(monkeypatch: pytest.MonkeyPatch):
    model = regression()
    read, compute = list[int](), model.get_metrics_result
    monkeypatch.setattr(model, "get_metrics_result", lambda: read.append(0) or compute())
    history = model.fit(repeated(), steps_per_epoch=20, verbose=0, callbacks=Every(4))

    assert steps_of(history) == [4, 8, 12, 16, 20]
    assert 5 <= len(read) <= 7  # those, the end of the epoch, and what is asked for while the step is traced


def test_training_is_the_same_with_validation_between():
    plain = fitted(seeded())
    model = seeded()
    every = fitted(model, Every(2, validation_data=VALIDATION))

    assert every.history == plain.history
    assert len(every.by_step) == 7


def test_states_of_layers_go_on():
    def recurrent() -> ab.Model:
        ab.utils.set_random_seed(2)
        model = ab.Sequential([ab.Input((2, 3), batch_size=4), layers.GRU(3, stateful=True), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x, y = RNG.normal(size=(16, 2, 3)), RNG.normal(size=(16, 1))
    one, two = (
        recurrent().fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
        for callbacks in ([], [Every(3, validation_data=(x[:4], y[:4]))])
    )

    assert one == two


def test_validation_has_its_options():
    seen: list[int] = []
    count = LambdaCallback(on_test_end=lambda logs: seen.append(0))
    batches = LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    model = regression()
    options: dict[str, Any] = {"validation_batch_size": 2, "validation_steps": 3}
    history = fitted(model, Every(5, [count, batches], validation_data=VALIDATION, **options), epochs=1)

    assert seen == [0]
    expected = model.evaluate(X[:6], Y[:6], verbose=0)[0]
    assert history.by_step[0]["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_step_of_its_own():
    class Halving(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            loss = ab.ops.mean((self(x, training=True) - y) ** 2)
            self.optimizer.apply(ab.gradients(loss, self.trainable_weights), self.trainable_weights)
            return {"half": loss / 2}

    model = Halving()
    model.compile("sgd", "mse")
    history = fitted(model, Every(2, validation_data=VALIDATION), epochs=1)

    assert [sorted(row) for row in history.by_step] == [["half", "step", "val_loss"]] * 2


# --- with the callbacks of Keras ------------------------------------------------------------------------------------


def test_csv_lines(tmp_path: Path):
    path = tmp_path / "log.csv"
    fitted(regression(), Every(4, CSVLogger(path), validation_data=VALIDATION))
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))

    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "4"), ("1", "8"), ("2", "12")]
    assert {"loss", "mae", "val_loss", "val_mae"} < rows[0].keys()


def test_checkpoints(tmp_path: Path):
    files = str(tmp_path / "{step:03d}-{epoch}.weights.h5")
    fitted(regression(), Every(4, ModelCheckpoint(files, monitor="loss", save_weights_only=True)))

    assert sorted(os.listdir(tmp_path)) == ["004-1.weights.h5", "008-2.weights.h5", "012-3.weights.h5"]


def test_the_best_by_validation_is_kept(tmp_path: Path):
    path, seen = tmp_path / "best.weights.h5", []
    keep = ModelCheckpoint(str(path), save_best_only=True, save_weights_only=True)
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((logs["val_loss"], model.get_weights())))
    model = seeded()
    fitted(model, Every(2, [keep, note], validation_data=VALIDATION))
    model.load_weights(str(path))

    best = min(seen, key=lambda pair: pair[0])[1]
    for found, expected in zip(model.get_weights(), best, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_early_stopping_counts_its_patience_in_calls():
    model = regression(ab.optimizers.SGD(0.0))
    history = fitted(model, Every(2, EarlyStopping(patience=2), validation_data=VALIDATION), epochs=5)

    assert steps_of(history) == [2, 4, 6]  # the first sets the best, two more are its patience
    assert history.epoch == [0, 1]


def test_the_learning_rate_is_reduced():
    model = regression(ab.optimizers.SGD(1e-9))
    every = Every(2, ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.5), validation_data=VALIDATION)
    fitted(model, every, epochs=1)

    assert float(model.optimizer.learning_rate) == pytest.approx(0.5e-9)


# --- runs that are taken up -----------------------------------------------------------------------------------------


class _Stopping(Callback):
    """Ends a run at a step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise InterruptionError


def _run(folder: Path, log: Path, stop: int | None) -> tuple[ab.Model, Any]:
    model = seeded()
    every = Every(4, [CSVLogger(log), EarlyStopping(patience=20)], validation_data=VALIDATION)
    others = [] if stop is None else [_Stopping(stop)]
    history = fitted(model, every, BackupAndRestore(folder, save_freq=1), *others, epochs=3)
    return model, (history.history, history.by_step, every.step, every.callbacks[1].get_state()["wait"])


@pytest.mark.parametrize("stop", [2, 5, 6, 9, 12])
def test_a_run_that_is_taken_up_goes_on_counting(tmp_path: Path, stop: int):
    whole, expected = _run(tmp_path / "a", tmp_path / "a.csv", None)
    with pytest.raises(InterruptionError):
        _run(tmp_path / "b", tmp_path / "b.csv", stop)
    again, found = _run(tmp_path / "b", tmp_path / "b.csv", None)

    assert found == expected
    assert [row["step"] for row in found[1]] == [4, 8, 12]
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text()
    for one, other in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "epoch", None])
def test_steps_must_be_a_number(steps: Any):
    with pytest.raises(ValueError, match=f"Every: steps must be a number of steps, at least 1, got {steps!r}"):
        Every(steps)


def test_callbacks_for_batches_belong_to_fit(tmp_path: Path):
    by_batch = ModelCheckpoint(str(tmp_path / "{batch}.keras"), save_freq=3)
    for callback in (TerminateOnNaN(), ProgbarLogger(), by_batch, BackupAndRestore(tmp_path)):
        name = type(callback).__name__
        expected = rf"Every: {name} acts at single batches.*Give it to fit itself: callbacks=\[Every\(...\), {name}"
        with pytest.raises(ValueError, match=expected):
            Every(3, [CSVLogger(tmp_path / "log.csv"), callback])
    with pytest.raises(TypeError, match=r"callbacks must be anabranch\.callbacks\.Callback objects"):
        Every(3, print)  # pyright: ignore[reportArgumentType]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_where_there_is_no_terminal_an_epoch_is_one_line(capsys: pytest.CaptureFixture[str]):
    regression().fit(X, Y, batch_size=4, epochs=2, callbacks=Every(2, validation_data=VALIDATION))
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2
    assert re.match(r"Epoch 1/2 - 5/5 - \d+s - \d+(us|ms|s)/step( \(\d+(us|ms|s) data\))? - loss: ", lines[0])
