"""Metrics: Keras's numbers at once, in graphs and in functions; weights, masks, errors, configs."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch import metrics
from golden.loader import MetricCase, load_cases

CASES = load_cases("metrics")


def of(name: str) -> MetricCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_metric_gives_keras_numbers(case: MetricCase):
    metric = case.build(metrics)
    for update, expected in zip(case.updates, case.results, strict=True):
        assert metric.update_state(**update) is None
        result = metric.result()
        assert isinstance(result, ab.Tensor)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_metric_in_a_function_gives_the_same(case: MetricCase):
    metric = case.build(metrics)

    @ab.function
    def step(update):
        metric.update_state(**update)
        return metric.result()

    for update, expected in zip(case.updates, case.results, strict=True):
        np.testing.assert_allclose(step(update), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metric.result(), case.results[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unknown_batch_size_changes_nothing(case: MetricCase):
    metric = case.build(metrics)
    with ab.Graph().as_default() as graph:
        feeds = {
            key: ab.placeholder((None, *array.shape[1:]), str(array.dtype)) for key, array in case.updates[0].items()
        }
        metric.update_state(**feeds)
        updates = [operation for operation in graph.get_operations() if operation.writes]
        session = ab.Session()
        for update in case.updates:
            session.run(updates, {feeds[key]: array for key, array in update.items()})
    np.testing.assert_allclose(metric.result(), case.results[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_reset_starts_anew(case: MetricCase):
    metric = case.build(metrics)
    metric.update_state(**case.updates[1])
    metric.reset_state()
    assert all(not variable.numpy().any() for variable in metric.variables)
    metric.update_state(**case.updates[0])
    np.testing.assert_allclose(metric.result(), case.results[0], rtol=1e-5, atol=1e-6)


# A 1-D batch is one value, not one per example; Keras counts ignored classes as zeros, unless there are weights; and
# matrices of counts take no fractions.
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.name.endswith(("weighted", "/1d", "/ignore", "/counts"))], ids=str
)
def test_weights_of_one_change_nothing(case: MetricCase):
    metric = case.build(metrics)
    for update in case.updates:
        metric.update_state(**update, sample_weight=np.ones(4, "float32"))
    np.testing.assert_allclose(metric.result(), case.results[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if not case.name.endswith("weighted")], ids=str)
def test_config_rebuilds_the_metric(case: MetricCase):
    metric = case.build(metrics)
    again = metrics.deserialize(metrics.serialize(metric))
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()
    again.update_state(**case.updates[0])
    np.testing.assert_allclose(again.result(), case.results[0], rtol=1e-5, atol=1e-6)


def test_results_are_not_traced_again():
    metric = metrics.Mean()
    for value in range(5):
        metric.update_state(np.array([value], "float32"))
        assert metric.result() == np.float32(value / 2)
    assert [function.trace_count() for function in metric._functions.values()] == [1] * len(metric._functions)


def test_call_updates_and_returns_the_result():
    metric = metrics.MeanSquaredError()
    assert metric([[0.0]], [[2.0]]) == 4
    assert metric([[0.0]], [[0.0]]) == 2


def test_empty_metric_is_zero():
    for name in ("Mean", "Sum", "Precision", "AUC", "RootMeanSquaredError"):
        assert getattr(metrics, name)().result() == 0


def test_updates_run_in_program_order():
    metric = metrics.Sum()

    @ab.function
    def twice(x):
        metric.update_state(x)
        first = metric.result()
        metric.update_state(x)
        return first, metric.result()

    assert [float(value) for value in twice(np.array([1, 2], "float32"))] == [3, 6]


# --- own metrics ----------------------------------------------------------------------------------------------------


class Extremes(metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.low = self.add_variable(shape=(), initializer="ones", name="low")
        self.high = self.add_variable(shape=(), name="high")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.low.assign(ab.ops.minimum(self.low, ab.ops.min(y_pred)))
        self.high.assign(ab.ops.maximum(self.high, ab.ops.max(y_pred)))

    def result(self):
        return {"low": self.low, "high": self.high}

    def reset_state(self):
        self.low.assign(ab.ops.ones(()))
        self.high.assign(0)


def test_own_metric_acts_at_once_and_may_return_a_dict():
    metric = Extremes()
    metric.update_state([0.0], [-3.0])
    metric.update_state([0.0], [5.0])
    assert metric.result() == {"low": -3, "high": 5}
    metric.reset_state()
    assert metric.result() == {"low": 1, "high": 0}
    assert [variable.trainable for variable in metric.variables] == [False, False]


def test_default_names_are_unique_in_the_process():
    first, second = Extremes(), Extremes()
    assert first.name.startswith("extremes")
    assert first.name != second.name
    assert first.variables[0].path == f"{first.name}/low"


def test_metric_of_metrics_has_their_variables():
    class Both(metrics.Metric):
        def __init__(self):
            super().__init__()
            self.sum = metrics.Sum()
            self.mean = metrics.Mean()

        def update_state(self, values):
            self.sum.update_state(values)
            self.mean.update_state(values)

        def result(self):
            return self.sum.result() - self.mean.result()

    metric = Both()
    assert len(metric.variables) == 3
    metric.update_state([1.0, 3.0])
    assert metric.result() == 2
    metric.reset_state()
    assert metric.sum.result() == 0


def test_metrics_in_containers_are_reset_with_the_one_that_holds_them():
    class Many(metrics.Metric):
        def __init__(self):
            super().__init__()
            self.parts = [metrics.Sum(), metrics.Mean()]
            self.parts.append(metrics.Sum())
            self.named = {"first": (metrics.Sum(),)}

        def update_state(self, values):
            for part in [*self.parts, *self.named["first"]]:
                part.update_state(values)

        def result(self):
            return ab.ops.stack([part.result() for part in [*self.parts, *self.named["first"]]])

    metric = Many()
    assert len(metric.variables) == 5
    metric.update_state([1.0, 3.0])
    assert np.asarray(metric.result()).tolist() == [4, 2, 4, 4]
    state = metric.stateless_update_state(metric.stateless_reset_state(), [2.0, 6.0])
    assert np.asarray(metric.stateless_result(state)).tolist() == [8, 4, 8, 8]
    metric.reset_state()
    metric.update_state([5.0])
    assert np.asarray(metric.result()).tolist() == [5, 5, 5, 5]


def test_a_list_of_metrics_begins_anew_with_each_epoch():
    class Pair(metrics.Metric):
        def __init__(self):
            super().__init__(name="pair")
            self.parts = [metrics.Sum() for _ in range(2)]

        def update_state(self, y_true, y_pred, sample_weight=None):
            for part in self.parts:
                part.update_state(y_true)

        def result(self):
            return self.parts[0].result() + self.parts[1].result()

    model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Pair()])
    history = model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=3, verbose=0).history
    assert history["pair"] == [8.0, 8.0, 8.0]


def test_what_a_result_gives_is_no_weight_of_the_model():
    """A metric whose result is its variable: `fit` keeps what it reads."""
    model = ab.Sequential([ab.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Latest()])
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert [weight.shape for weight in model.get_weights()] == [(2, 1), (1,)]


class Latest(metrics.Metric):
    def __init__(self):
        super().__init__()
        self.value = self.add_variable(name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ab.ops.sum(y_pred))

    def result(self):
        return self.value


def test_wrapper_takes_any_function():
    metric = metrics.MeanMetricWrapper(lambda y_true, y_pred, scale: scale * ab.ops.abs(y_true - y_pred), scale=2.0)
    metric.update_state([1.0, 2.0], [2.0, 4.0], sample_weight=[1.0, 0.0])
    assert metric.result() == 2


# --- masks and shapes -----------------------------------------------------------------------------------------------


def test_mask_on_predictions_is_applied():
    metric = metrics.SparseCategoricalAccuracy()
    scores = np.eye(3, dtype="float32")[np.array([[0, 1, 2], [2, 2, 2]])]
    with ab.Graph().as_default() as graph:
        prediction = ab.constant(scores)
        prediction.annotations["mask"] = ab.constant([[True, True, False], [False, True, False]])
        metric.update_state(np.array([[0, 0, 0], [0, 2, 0]]), prediction)
        ab.Session().run([operation for operation in graph.get_operations() if operation.writes])
    np.testing.assert_allclose(metric.total.numpy() / metric.count.numpy(), metric.result())
    # Per row the mean over all steps, of hits and of weights alike: (1/3 + 1/3) / (2/3 + 1/3).
    np.testing.assert_allclose(metric.result(), 2 / 3, rtol=1e-6)


def test_weights_per_example_for_values_per_step():
    metric = metrics.MeanAbsoluteError()
    metric.update_state(np.zeros((2, 3, 1), "float32"), np.ones((2, 3, 1), "float32"), np.array([1, 3], "float32"))
    assert metric.count.numpy() == 4
    assert metric.result() == 1


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"targets \(y_true\) of shape \[4,1\] do not go with.*\[4,3\]"):
        metrics.BinaryAccuracy().update_state(np.zeros((4, 1)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="For one-hot targets use categorical_accuracy"):
        metrics.SparseCategoricalAccuracy().update_state(np.zeros((4, 3)), np.zeros((4, 3)))


def test_sorted_ids():
    ids = np.array([[3, 1, 2], [0, 2, 1]])
    for k, expected in ((1, 0.0), (2, 0.5), (3, 1.0)):
        metric = metrics.SparseTopKCategoricalAccuracy(k=k, from_sorted_ids=True)
        assert metric([1, 1], ids) == expected


# --- counts and curves ----------------------------------------------------------------------------------------------


def test_many_even_thresholds_agree_with_comparing_each():
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.integers(0, 2, 50), rng.random(50, "float32")
    weight = rng.random(50, "float32")
    thresholds = list(np.linspace(0, 1, 21))
    even, each = metrics.Precision(thresholds), [metrics.Precision(float(t)) for t in thresholds]
    found = even(y_true, y_pred, sample_weight=weight)
    np.testing.assert_allclose(found, [metric(y_true, y_pred, weight) for metric in each], rtol=1e-4, atol=1e-5)


def test_counts_add_up_to_the_weights():
    rng = np.random.default_rng(1)
    y_true, y_pred, weight = rng.integers(0, 2, (8, 3)), rng.random((8, 3)), rng.random((8, 3), "float32")
    names = ("TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives")
    counts = [getattr(metrics, name)()(y_true, y_pred, weight) for name in names]
    np.testing.assert_allclose(np.sum(counts), weight.sum(), rtol=1e-5)


def test_auc_of_a_perfect_and_of_a_reversed_ranking():
    y_true, y_pred = [0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9]
    assert metrics.AUC()(y_true, y_pred) == pytest.approx(1.0, abs=1e-6)
    assert metrics.AUC()(y_true[::-1], y_pred) == pytest.approx(0.0, abs=1e-6)


def test_multi_label_auc_is_the_mean_of_the_labels():
    rng = np.random.default_rng(2)
    y_true, y_pred = rng.integers(0, 2, (20, 3)), rng.random((20, 3), "float32")
    by_label = [metrics.AUC()(y_true[:, label], y_pred[:, label]) for label in range(3)]
    np.testing.assert_allclose(metrics.AUC(multi_label=True)(y_true, y_pred), np.mean(by_label), rtol=1e-5)
    weighted = metrics.AUC(multi_label=True, label_weights=[1.0, 0.0, 3.0])(y_true, y_pred)
    np.testing.assert_allclose(weighted, (by_label[0] + 3 * by_label[2]) / 4, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.Precision(thresholds=[0.5, 1.5]), r"thresholds must be in \[0, 1\]; got \[1.5\]"),
        (lambda: metrics.AUC(curve="RC"), "curve must be one of 'ROC', 'PR', 'PRGAIN'; got 'RC'"),
        (lambda: metrics.AUC(summation_method="mid"), "summation_method must be one of"),
        (lambda: metrics.AUC(num_thresholds=1), "num_thresholds must be at least 2; got 1"),
        (lambda: metrics.AUC(num_labels=2), "num_labels=2 has a meaning only with multi_label=True"),
        (lambda: metrics.BinaryAccuracy(threshold=2), r"threshold must be in \[0, 1\]; got 2"),
        (lambda: metrics.get("acuracy"), "Unknown metric 'acuracy'. Did you mean 'accuracy'"),
        (lambda: metrics.get(3), "3 of type int is no metric"),
        (lambda: metrics.Recall(class_id=1)([1.0], [1.0]), "class_id=1 needs predictions of shape"),
    ],
)
def test_bad_arguments(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_unfinished_metric_says_what_is_missing():
    class Empty(metrics.Metric):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define update_state\(\)"):
        Empty().update_state(1)


@pytest.mark.parametrize("name", ["mse", "mean_squared_error", "MeanSquaredError", "AUC", "auc", "accuracy", "rmse"])
def test_get_makes_new_metrics_by_name(name: str):
    first, second = metrics.get(name), metrics.get(name)
    assert isinstance(first, metrics.Metric)
    assert first is not second


def test_a_metric_of_code_without_a_module():
    """Code that is run by `exec` with names of its own has no module: functions have None for it."""
    names: dict[str, object] = {}
    exec(
        "import anabranch as ab\n"
        "class Ones(ab.Metric):\n"
        "    def update_state(self, y_true, y_pred, sample_weight=None): pass\n"
        "    def result(self): return ab.ops.ones(())\n"
        "found = float(Ones().result())\n",
        names,
    )
    assert names["found"] == 1.0


def test_masks_of_predictions_hold_for_values_as_in_fit() -> None:
    words, y = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[1, 0, 1], [1, 1, 0]])
    model = ab.Sequential([ab.layers.Embedding(4, 2, mask_zero=True), ab.layers.Dense(2)])
    top = ab.metrics.SparseTopKCategoricalAccuracy(1, name="top")
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[top])
    expected = model.evaluate(words, y, verbose=0, return_dict=True)["top"]
    metric = ab.metrics.SparseTopKCategoricalAccuracy(1)
    outputs = model(words)
    metric.update_state(y, outputs)
    hits = np.argmax(np.asarray(outputs), -1) == y
    assert float(metric.result()) == pytest.approx(expected) == pytest.approx(hits[words > 0].mean())
