"""Metrics whose state is no sum: under strategies their results are those of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.distribute import DataParallel, Pipeline
from anabranch.framework.replicas.metric_updates import can_be_summed

X, Y = np.random.default_rng(3).normal(size=(2, 11, 2))
WEIGHTS = np.linspace(0.5, 2.0, 11)


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()


class Largest(ab.metrics.Metric):
    """The largest error; where `is_lazy` its variable is made with the first batch."""

    value: Any = None

    def __init__(self, is_lazy: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not is_lazy:
            self.build()

    def build(self) -> None:
        self.value = self.add_variable(shape=(), name="value", initializer=lambda shape, dtype: np.full(shape, -np.inf))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if self.value is None:
            self.build()
        assert self.value is not None
        self.value.assign(ops.maximum(self.value, ops.max(y_true - y_pred)))

    def result(self) -> Any:
        return self.value

    def reset_state(self) -> None:
        if self.value is not None:
            self.value.assign(-np.inf)


class Ratio(ab.metrics.Metric):
    """The weighted mean of which of two outputs is larger, kept as a mean and a count; takes truth values."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mean = self.add_variable(shape=(), name="mean", aggregation="mean")
        self.count = self.add_variable(shape=(), name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.add(y_pred[:, 0] > y_pred[:, 1], sample_weight)

    def add(self, hits: Any, weights: Any) -> None:
        values = ops.cast(hits, self.dtype)
        weights = ops.ones_like(values) if weights is None else ops.cast(weights, self.dtype)
        total = self.count + ops.sum(weights)
        self.mean.assign((self.mean * self.count + ops.sum(values * weights)) / total)
        self.count.assign(total)

    def result(self) -> Any:
        return self.mean


class OfHits(Ratio):
    """Gets truth values, and a scalar by keyword."""

    def update_state(self, hits: Any, *, loss: Any = 0.0) -> None:  # type: ignore[override]
        self.mean.assign(ops.maximum(self.mean, loss))
        self.count.assign(self.count + ops.sum(ops.cast(hits, self.dtype)) * ops.cast(self.mean > 0, self.dtype))

    def result(self) -> Any:
        return self.mean + self.count


class OwnStep(ab.Sequential):
    """A step that logs results of metrics under other names, and what is computed of them."""

    hits: Any
    error: Any
    scale: Any
    offset: Any

    def train_step(self, data: Any) -> Any:
        x, y = data
        steps = ops.convert_to_tensor(self.optimizer.iterations)
        with ab.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = ops.mean(ops.square(y - predicted))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.hits.update_state(predicted > y, loss=loss)
        self.error.update_state(loss, sample_weight=ops.shape(x)[0])
        error = self.error.result()
        return {
            self.hits.name: self.hits.result(),
            "loss": loss,  # of the batch, though compile has made a metric of this name
            "mine": error,
            "largest": self.hits.result() * 2,
            "root": ops.cond(error > 0, lambda: ops.sqrt(error), lambda: error),
            "gap": error * self.scale - loss,
            "shaped": ops.sum(error * self.offset) + ops.cast(steps, "float64"),
        }


def root_of_mean(y: Any, predicted: Any) -> Any:
    """One number for a batch, of which an epoch has the mean."""
    return ops.sqrt(ops.mean(ops.square(y - predicted)))


def trained(kind: str, strategy: Any) -> dict[str, Any]:
    ab.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        parts = [ab.Input((2,)), layers.Dense(3, "tanh"), layers.Dense(2)]
        model: Any = (OwnStep if kind == "own step" else ab.Sequential)(parts)
        if kind == "own step":
            model.hits, model.error = OfHits(name="hits"), ab.metrics.Mean(name="error")
            model.scale = ab.Variable(0.5, name="scale", trainable=False, dtype="float64")
            model.offset = ab.Variable([1.0, -3.0], name="offset", trainable=False, dtype="float64")
            model.compile("sgd")
        else:
            metrics = [Largest(kind == "lazy", name="largest"), "mae", root_of_mean]
            weighted = [Ratio(name="ratio"), root_of_mean, "mse"]
            model.compile("sgd", "mse", metrics=metrics, weighted_metrics=weighted)
    options: Any = {} if kind == "own step" else {"sample_weight": WEIGHTS}
    return model.fit(X, Y, batch_size=4, epochs=2, verbose=0, **options).history


@pytest.mark.parametrize("kind", ["plain", "lazy", "own step"])
def test_metrics_are_those_of_one_device(kind: str) -> None:
    """Parts are uneven: of 11 rows the last batch has 3."""
    expected = trained(kind, None)
    ab.config.set_devices(cpu=3)
    strategies: list[Any] = [DataParallel(devices=["cpu:0", "cpu:1", "cpu:2"])]
    if kind == "plain":
        strategies.append(Pipeline(2, microbatches=2))
    for strategy in strategies:
        found = trained(kind, strategy)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, 1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("metric", "adds"),
    [
        (ab.metrics.MeanSquaredError(), True),
        (ab.metrics.AUC(), True),
        (ab.metrics.F1Score(), True),
        (ab.metrics.R2Score(), True),
        (Largest(), False),
        (Ratio(), False),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: ops.abs(y - predicted)), True),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: root_of_mean(y, predicted)), False),
    ],
)
def test_states_that_are_sums_are_added_up(metric: Any, adds: bool) -> None:
    given = np.ones((3, 2)), np.ones((3, 2)) / 4
    metric.update_state(*given)  # makes variables
    with ab.Graph().as_default():
        assert can_be_summed(metric, tuple(map(ops.convert_to_tensor, given)), {"sample_weight": None}) is adds


def centred(y: Any, predicted: Any) -> Any:
    """Return numbers for rows that depend on a mean over all rows."""
    return ops.mean(ops.square(predicted - ops.mean(predicted, axis=0)), axis=-1)


@pytest.mark.parametrize(
    ("metric", "adds"),
    [
        (ab.metrics.MeanSquaredError(), True),
        (ab.metrics.AUC(), True),
        (ab.metrics.Hinge(), True),
        (ab.metrics.Precision(), True),
        (ab.metrics.R2Score(), True),
        (ab.metrics.F1Score(), True),
        (ab.metrics.MeanMetricWrapper(root_of_mean), False),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: ops.mean(ops.abs(y - predicted))), False),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: ops.max(ops.abs(y - predicted))), False),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: ops.cast(ops.mean(predicted) > 0, "float64")), False),
        (ab.metrics.MeanMetricWrapper(lambda y, predicted: ops.cast(ops.any(predicted > 0), "float64")), False),
        (ab.metrics.MeanMetricWrapper(centred), False),
    ],
)
def test_numbers_of_a_batch_times_its_weights_are_no_sums(metric: Any, adds: bool) -> None:
    """A number for a batch counts as often as its weights say: its product with their sum is none over rows."""
    given = np.ones((3, 2)), np.ones((3, 2)) / 4
    weights = np.ones(3)
    metric.update_state(*given, sample_weight=weights)  # makes variables
    with ab.Graph().as_default():
        given = tuple(map(ops.convert_to_tensor, given))
        assert can_be_summed(metric, given, {"sample_weight": ops.convert_to_tensor(weights)}) is adds


class OwnLoss(ab.Sequential):
    """A step that keeps its loss, as guides of Keras write it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tracker = ab.metrics.Mean(name="loss")
        self.squares = ab.metrics.Sum(name="squares")
        self.mixed = ab.metrics.Mean(name="mixed")  # updated with rows, with the loss, and with the loss and its weight

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.squares, self.mixed]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with ab.GradientTape() as tape:
            errors = ops.square(self(x, training=True) - y)
            loss = ops.mean(errors)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss)
        self.squares.update_state(ops.sum(errors))
        self.mixed.update_state(ops.mean(errors, -1))
        self.mixed.update_state(loss)
        self.mixed.update_state(loss, sample_weight=ops.shape(x)[0])
        return {each.name: each.result() for each in self.metrics}


def own_losses(strategy: Any) -> dict[str, Any]:
    ab.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = OwnLoss([ab.Input((2,)), layers.Dense(3), layers.Dense(2)])
        model.compile("sgd")
    return model.fit(X, Y, batch_size=4, epochs=2, verbose=0).history


def test_a_mean_of_losses_counts_steps_and_not_replicas() -> None:
    """Three replicas have unequal parts of the batches of 4 rows; the last batch has 3."""
    ab.config.set_devices(cpu=3)
    strategies = [DataParallel(devices=["cpu:0", "cpu:1", "cpu:2"]), Pipeline(2, microbatches=3)]
    expected, *found = [own_losses(each) for each in (None, *strategies)]
    for each in found:
        for name in ("loss", "squares", "mixed"):
            np.testing.assert_allclose(each[name], expected[name], 1e-10, err_msg=name)


class OfCounts(Largest):
    """The largest of the numbers that it gets."""

    def update_state(self, number: Any) -> None:  # type: ignore[override]
        self.value.assign(ops.maximum(self.value, ops.cast(number, "float64")))


class Counting(ab.Sequential):
    largest: Any
    counts_hits: bool

    def train_step(self, data: Any) -> Any:
        number: Any = ops.shape(data[0])[0]
        self.largest.update_state(ops.sum(ops.cast(data[0] > 0, "int32")) if self.counts_hits else number)
        return super().train_step(data)


@pytest.mark.parametrize(("counts_hits", "given"), [(False, "the number 4"), (True, r"int32 of shape \[\]")])
def test_updates_without_rows_are_refused(counts_hits: bool, given: str) -> None:
    ab.config.set_devices(cpu=2)
    with DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        model = Counting([ab.Input((2,)), layers.Dense(2)])
        model.counts_hits, model.largest = counts_hits, OfCounts(name="largest")
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=f"'largest' has a state that is no sum.* calls it with {given}, which has no"):
        model.train_on_batch(X[:4], Y[:4])


class Late(ab.Sequential):
    """A step that updates a metric when the results of all metrics have been computed, and logs one more value."""

    late: Any
    of_rows: bool

    def train_step(self, data: Any) -> Any:
        x, y = data
        logs = super().train_step(data)
        self.late.update_state(ops.mean(x * 0 + 3), sample_weight=ops.shape(x)[0])
        return {**logs, "more": ops.mean(self.late.result() * y[:, 0])} if self.of_rows else logs


def late(of_rows: bool, strategy: Any) -> Any:
    with strategy.scope():
        model = Late([ab.Input((2,)), layers.Dense(2)])
        model.late, model.of_rows = ab.metrics.Mean(name="late"), of_rows
        model.compile("sgd", "mse")
    return model


def test_results_that_were_computed_before_the_update_are_logged_with_it() -> None:
    ab.config.set_devices(cpu=2)
    model = late(False, DataParallel(devices=["cpu:0", "cpu:1"]))
    history = model.fit(X, Y, batch_size=4, verbose=0).history
    np.testing.assert_allclose(history["late"], [3.0])


def test_logs_of_metrics_and_single_rows_are_refused() -> None:
    ab.config.set_devices(cpu=2)
    model = late(True, DataParallel(devices=["cpu:0", "cpu:1"]))
    with pytest.raises(ValueError, match=r"logs 'more', .* of results of metrics and of .*, float64\[2\], whose shape"):
        model.train_on_batch(X[:4], Y[:4])


class Counted(ab.Sequential):
    """A step that logs what its optimizer counts, before and after the update."""

    keeps: bool
    kept: Any

    def train_step(self, data: Any) -> Any:
        x, y = data
        before = ops.cast(self.optimizer.iterations, "float64")
        with ab.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        if self.keeps:
            self.kept.assign(ops.cast(self.optimizer.iterations, "float64"))
        return {
            "before": before,
            "iterations": self.optimizer.iterations,
            "half": ops.cast(self.optimizer.iterations, "float64") / 2,
            "rate": ops.cast(self.optimizer.learning_rate, "float64"),
        }


def counted(optimizer: Any, strategy: Any, keeps: bool = False) -> Any:
    ab.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = Counted([ab.Input((2,)), layers.Dense(2)])
        model.keeps, model.kept = keeps, ab.Variable(0.0, name="kept", trainable=False, dtype="float64")
        model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("kind", ["plain", "accumulating", "scaled"])
def test_what_the_optimizer_counts_is_logged_as_on_one_device(kind: str) -> None:
    found: list[Any] = []
    ab.config.set_devices(cpu=2)
    for strategy in (None, DataParallel(devices=["cpu:0", "cpu:1"])):
        rate = ab.optim.schedules.ExponentialDecay(0.1, 1, 0.5)
        optimizer: Any = ab.optim.SGD(rate, gradient_accumulation_steps=2 if kind == "accumulating" else None)
        if kind == "scaled":  # a scale that overflows at first: steps are left out
            optimizer = ab.optim.LossScaleOptimizer(optimizer, initial_scale=2.0**127)
        found.append(counted(optimizer, strategy).fit(X * 1e3, Y, batch_size=4, epochs=2, verbose=0).history)
    assert found[0]["iterations"] != found[0]["before"] or kind == "scaled"
    assert found[1] == found[0]


def test_what_is_computed_of_the_count_behind_the_update_can_not_be_kept() -> None:
    ab.config.set_devices(cpu=2)
    model = counted("sgd", DataParallel(devices=["cpu:0", "cpu:1"]), keeps=True)
    with pytest.raises(ValueError, match=r"train_step of .* uses \['sgd.*/iteration'\] after an optimizer was to"):
        model.train_on_batch(X[:4], Y[:4])
