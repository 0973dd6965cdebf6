"""Losses of regions, sequences and embeddings, and scores: known values, limits, errors.

Keras's numbers are in test_losses.py and test_metrics.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import losses, metrics

RNG = np.random.default_rng(0)


# --- losses ---------------------------------------------------------------------------------------------------------


def test_regions_that_agree_and_that_do_not() -> None:
    region = np.array([[1, 1, 0, 0], [0, 1, 0, 1]], "float32")
    for function in (losses.dice, losses.tversky):
        np.testing.assert_allclose(function(region, region, axis=1), [0, 0], atol=1e-6)
        np.testing.assert_allclose(function(region, 1 - region, axis=[1]), [1, 1], atol=1e-6)
        np.testing.assert_allclose(function(np.zeros((1, 4)), np.zeros((1, 4))), 1.0, atol=1e-6)  # nothing to find
    np.testing.assert_allclose(losses.tversky(region, region[::-1]), losses.dice(region, region[::-1]), rtol=1e-5)
    missed = losses.tversky([[1.0, 1.0]], [[1.0, 0.0]], alpha=0.0, beta=3.0)
    added = losses.tversky([[1.0, 0.0]], [[1.0, 1.0]], alpha=3.0, beta=0.0)
    np.testing.assert_allclose([missed, added], [0.75, 0.75], rtol=1e-5)


def test_circle_against_references() -> None:
    vectors = np.eye(3, dtype="float32")
    labels = np.array([0, 1, 0], "int32")
    own = losses.circle(labels, vectors, remove_diagonal=False, gamma=2.0)
    other = losses.circle(labels, vectors, labels, vectors, remove_diagonal=False, gamma=2.0)
    np.testing.assert_allclose(own, other, rtol=1e-6)
    one = losses.circle(labels, vectors, [1], vectors[1:2], remove_diagonal=False, gamma=2.0)
    assert one.shape == (3,)
    np.testing.assert_array_equal(one, [0, 0, 0])  # no reference of the same class, or none of another
    assert losses.Circle()(labels, vectors) >= 0


def test_circle_has_no_gradient_where_a_class_is_alone() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((2, 3))
        loss = losses.Circle(gamma=4.0)(np.array([0, 1], "int32"), x)
        value, gradient = ab.Session().run([loss, ab.gradients(loss, [x])[0]], {x: np.eye(2, 3)})
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


def test_focal_losses_without_focus_are_cross_entropies() -> None:
    true, chances = np.eye(3, dtype="float32"), RNG.dirichlet(np.ones(3), 3).astype("float32")
    plain = losses.categorical_crossentropy(true, chances)
    np.testing.assert_allclose(
        losses.categorical_focal_crossentropy(true, chances, alpha=1.0, gamma=0.0), plain, rtol=1e-5
    )
    weighted = losses.categorical_focal_crossentropy(true, chances, alpha=[1.0, 2.0, 3.0], gamma=0.0)
    np.testing.assert_allclose(weighted, plain * [1, 2, 3], rtol=1e-5)


def test_generalised_cross_entropy_lies_between_its_limits() -> None:
    labels, chances = np.array([0, 2]), np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], "float32")
    for shape in ((2,), (2, 1)):
        low = losses.categorical_generalized_cross_entropy(labels.reshape(shape), chances, 1e-3)
        np.testing.assert_allclose(low, -np.log([0.7, 0.4]), rtol=1e-2)
        high = losses.categorical_generalized_cross_entropy(labels.reshape(shape), chances, q=0.999)
        np.testing.assert_allclose(high, [0.3, 0.6], rtol=1e-2)


def test_ctc_of_certain_frames() -> None:
    frames = np.full((1, 3, 3), -50, "float32")
    frames[0, [0, 1, 2], [1, 0, 2]] = 50  # 1, blank, 2
    np.testing.assert_allclose(losses.ctc([[1, 2]], frames), [0], atol=1e-4)
    assert losses.CTC()([[2, 1, 0]], frames) > 50


@pytest.mark.parametrize("reduction", ["sum", "mean", "sum_over_batch_size", "mean_with_sample_weight", "none", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_masked_means_are_divided_by_the_mask(reduction: str | None, weighted: bool) -> None:
    values, kept = RNG.normal(size=(4, 3)).astype("float32"), RNG.random((4, 3)) > 0.4
    weight = RNG.random((4, 3)).astype("float32") if weighted else None
    with ab.Graph().as_default():
        y_pred = ab.constant(values[..., None])
        y_pred.annotations["mask"] = ab.constant(kept)
        loss = losses.MeanAbsoluteError(reduction=reduction)(np.zeros((4, 3, 1), "float32"), y_pred, weight)
        found = ab.Session().run(loss)
    terms = np.abs(values) * kept * (1.0 if weight is None else weight)
    divisor = {"sum": 1.0, "mean_with_sample_weight": (kept * (1.0 if weight is None else weight)).sum()}
    expected = terms if reduction in ("none", None) else terms.sum() / divisor.get(str(reduction), kept.sum())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.dice(np.ones((2, 3)), np.ones((2, 4))), r"dice: targets \(y_true\) of shape"),
        (lambda: losses.ctc([1, 2], np.ones((1, 3, 3))), r"ctc: targets \(y_true\) must have shape \[batch, labels\]"),
        (lambda: losses.ctc([[1, 2]], np.ones((3, 3))), r"predictions \(y_pred\) must have shape \[batch, steps,"),
        (lambda: losses.CategoricalGeneralizedCrossEntropy(q=1.0), "q must be between 0 and 1, got 1.0"),
        (
            lambda: losses.categorical_focal_crossentropy([0, 1], np.ones((2, 3))),
            "categorical_focal_crossentropy: targets .* For class numbers use sparse_categorical_crossentropy",
        ),
        (
            lambda: losses.categorical_generalized_cross_entropy(np.eye(3), np.ones((3, 3)), q=0.5),
            "categorical_generalized_cross_entropy: class numbers .* do not go with predictions",
        ),
    ],
)
def test_losses_refuse(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- metrics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [[1, 2], [[1], [2]], np.ones((2, 3, 1)), np.ones(5)])
def test_intersection_over_union_needs_a_weight_for_each_position(weights: Any) -> None:
    metric = metrics.MeanIoU(2, dtype="float32")
    with pytest.raises(ValueError, match=r"MeanIoU: sample_weight .* each of the 4 positions .* got shape \([2-5],"):
        metric.update_state([[0, 1], [1, 1]], [[0, 1], [0, 1]], sample_weight=weights)
    assert metric.result() == 0


def test_intersection_over_union_by_hand() -> None:
    true, found = np.array([[0, 0, 1], [1, 2, 2]]), np.array([[0, 1, 1], [1, 2, 0]])
    expected = [1 / 3, 2 / 3, 1 / 2]
    assert metrics.MeanIoU(3)(true, found) == pytest.approx(np.mean(expected), rel=1e-5)
    assert metrics.MeanIoU(9)(true, found) == pytest.approx(np.mean(expected), rel=1e-5)  # others never occur
    for number, share in enumerate(expected):
        assert metrics.IoU(3, [number])(true, found) == pytest.approx(share, rel=1e-5)
    one_hot = np.eye(3)
    assert metrics.OneHotMeanIoU(3)(one_hot[true], one_hot[found]) == pytest.approx(np.mean(expected), rel=1e-5)
    channels_first = np.moveaxis(one_hot[true], -1, 0)[None], np.moveaxis(one_hot[found], -1, 0)[None]
    assert metrics.OneHotMeanIoU(3, axis=1)(*channels_first) == pytest.approx(np.mean(expected), rel=1e-5)
    assert metrics.MeanIoU(3).result() == 0
    by_position = np.array([[1, 1, 0], [2, 1, 3]])
    expected = [1 / 5, 2 / 3, 1 / 4]
    assert metrics.MeanIoU(3)(true, found, sample_weight=by_position) == pytest.approx(np.mean(expected), rel=1e-5)
    assert metrics.MeanIoU(3)(np.zeros(0, "int32"), np.zeros(0, "int32")) == 0


def test_counts_cut_fractions_of_weights_off_and_say_so() -> None:
    metric = metrics.MeanIoU(2)
    with pytest.warns(UserWarning, match='MeanIoU counts in int32, .* Make it with dtype="float32"'):
        metric.update_state([0, 1], [0, 0], sample_weight=[0.5, 2.5])
    metric.update_state([0, 1], [0, 0], sample_weight=[1, 2])
    np.testing.assert_array_equal(metric.total_cm.numpy(), [[1, 0], [4, 0]])


def test_scores_of_perfect_and_useless_predictions() -> None:
    true = np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    for average in (None, "micro", "macro", "weighted"):
        np.testing.assert_allclose(
            metrics.F1Score(average)(true, true), np.ones(3)[: 3 if not average else 1], rtol=1e-5
        )
        np.testing.assert_allclose(metrics.FBetaScore(average)(true, np.zeros((4, 3))), 0, atol=1e-6)
    assert metrics.R2Score()(true, true) == 1
    mean = np.broadcast_to(true.mean(axis=0), true.shape)
    assert metrics.R2Score()(true, mean) == pytest.approx(0, abs=1e-6)
    assert metrics.R2Score().result() == metrics.F1Score().result() == 0


@pytest.mark.parametrize("function", [metrics.pearson_correlation, metrics.concordance_correlation])
def test_correlations_against_numpy(function: Any) -> None:
    x, y = RNG.normal(size=(2, 5, 8))
    found = function(x.astype("float32"), y.astype("float32"))
    pearson = np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)])
    scale = 2 * x.std(1) * y.std(1) / (x.var(1) + y.var(1) + (x.mean(1) - y.mean(1)) ** 2)
    np.testing.assert_allclose(found, pearson * (1 if "pearson" in function.__name__ else scale), rtol=1e-4)
    np.testing.assert_allclose(function(x, x, axis=[0, 1]), 1.0, rtol=1e-5)


def test_tradeoffs_where_nothing_is_good_enough() -> None:
    assert metrics.PrecisionAtRecall(1.0)([1, 0], [0.0, 0.9]) == pytest.approx(0)
    assert metrics.RecallAtPrecision(0.9)([0, 0, 1], [0.9, 0.8, 0.1]) == 0
    assert metrics.SensitivityAtSpecificity(1.0)([0, 1], [0.2, 0.8]) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.IoU(2, [0, 2]), r"target_class_ids must be in \[0, num_classes=2\); got \[2\]"),
        (lambda: metrics.FBetaScore("mean"), "average must be None, 'micro', 'macro' or 'weighted'; got 'mean'"),
        (lambda: metrics.FBetaScore(beta=1), "beta must be a positive float; got 1"),
        (lambda: metrics.F1Score(threshold=0.0), "threshold must be None or a float with 0 < threshold <= 1"),
        (lambda: metrics.F1Score()([1.0], [0.5]), r"F1Score takes targets and predictions of shape \[batch, columns\]"),
        (lambda: metrics.R2Score()(np.ones((2, 3)), np.ones((2, 2))), "R2Score: targets"),
        (lambda: metrics.R2Score("mean"), "class_aggregation must be None, 'uniform_average'"),
        (lambda: metrics.R2Score(num_regressors=-1), "num_regressors must be 0 or more; got -1"),
        (lambda: metrics.PrecisionAtRecall(1.5), r"PrecisionAtRecall: recall must be in \[0, 1\]; got 1.5"),
        (lambda: metrics.RecallAtPrecision(0.5, num_thresholds=0), "num_thresholds must be positive; got 0"),
    ],
)
def test_metrics_refuse(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_losses_are_metrics_by_function() -> None:
    for name in ("mean_squared_error", "huber", "poisson", "categorical_focal_crossentropy"):
        assert getattr(metrics, name) is getattr(losses, name)
