"""Losses: Keras's numbers, identities between reductions, shapes, masks, errors, configs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import losses
from anabranch.engine.graph import as_dtype
from golden.loader import LossCase, load_cases

CASES = load_cases("losses")
BASES = sorted({case.target for case in CASES if case.form == "class"})


def symbolic(*arrays):
    return [None if array is None else ab.placeholder(array.shape, str(array.dtype)) for array in arrays]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_gives_keras_numbers(case: LossCase):
    if case.form == "function":
        output = getattr(losses, case.target)(case.y_true, case.y_pred, **case.kwargs)
    else:
        output = case.build(losses)(case.y_true, case.y_pred, sample_weight=case.sample_weight)
    assert isinstance(output, ab.Tensor)
    np.testing.assert_allclose(output, case.output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.gradient is not None], ids=str)
def test_gradient_is_that_of_keras(case: LossCase):
    with ab.Graph().as_default():
        y_true, y_pred, weight = symbolic(case.y_true, case.y_pred, case.sample_weight)
        loss = case.build(losses)(y_true, y_pred, sample_weight=weight)
        (gradient,) = ab.gradients(loss, [y_pred])
        feed = {y_true: case.y_true, y_pred: case.y_pred}
        if case.sample_weight is not None:
            feed[weight] = case.sample_weight
        found = ab.Session().run(gradient, feed)
    assert case.gradient is not None
    np.testing.assert_allclose(found, case.gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", BASES)
def test_reductions_agree_with_each_other(target: str):
    case = next(case for case in CASES if case.target == target and case.sample_weight is not None)
    weight = case.sample_weight
    assert weight is not None
    kwargs = {key: value for key, value in case.kwargs.items() if key != "reduction"}

    def compute(reduction: str, weight=weight):
        loss = getattr(losses, target)(**kwargs, reduction=reduction)
        return loss(case.y_true, case.y_pred, sample_weight=weight)

    values = compute("none")
    np.testing.assert_allclose(compute("sum"), np.sum(values), rtol=1e-5)
    np.testing.assert_allclose(compute("mean"), np.mean(values), rtol=1e-5)
    np.testing.assert_allclose(compute("sum_over_batch_size"), np.mean(values), rtol=1e-5)
    np.testing.assert_allclose(compute("mean", 2 * weight), 2 * np.mean(values), rtol=1e-5)
    same = compute("mean_with_sample_weight", 2 * weight)
    np.testing.assert_allclose(same, compute("mean_with_sample_weight"), rtol=1e-5)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("mse", "mean_squared_error"),
        ("MAE", "mean_absolute_error"),
        ("mape", "mean_absolute_percentage_error"),
        ("msle", "mean_squared_logarithmic_error"),
        ("bce", "binary_crossentropy"),
        ("KLD", "kl_divergence"),
    ],
)
def test_aliases(alias: str, name: str):
    assert losses.get(alias) is getattr(losses, name)
    assert getattr(losses, alias) is getattr(losses, name)


def test_get_takes_names_classes_configs_and_objects():
    assert isinstance(losses.get("MeanSquaredError"), losses.MeanSquaredError)
    assert isinstance(losses.get(losses.Huber), losses.Huber)
    assert losses.get(None) is None
    loss = losses.Huber(delta=2.0)
    assert losses.get(loss) is loss
    assert losses.get({"class_name": "Huber", "config": {"delta": 2.0}}).get_config()["delta"] == 2.0


def test_get_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown loss 'mean_square_error'. Did you mean 'mean_squared_error'"):
        losses.get("mean_square_error")
    with pytest.raises(ValueError, match="3 of type int is no loss"):
        losses.get(3)


@pytest.mark.parametrize("case", [case for case in CASES if case.form == "class"][::5], ids=str)
def test_config_rebuilds_the_loss(case: LossCase):
    loss = case.build(losses)
    again = losses.deserialize(losses.serialize(loss))
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()
    np.testing.assert_array_equal(
        again(case.y_true, case.y_pred, case.sample_weight), loss(case.y_true, case.y_pred, case.sample_weight)
    )


def test_functions_are_serialised_by_name():
    assert losses.serialize(losses.mean_squared_error) == "mean_squared_error"
    assert losses.deserialize("mean_squared_error") is losses.mean_squared_error


def test_own_loss_from_a_subclass_and_from_a_function():
    class Worst(losses.Loss):
        def call(self, y_true, y_pred):
            return ab.ops.max(ab.ops.abs(y_true - y_pred), axis=-1)

    wrapped = losses.LossFunctionWrapper(lambda t, p, power: ab.ops.sum((t - p) ** power, -1), reduction="sum", power=2)
    y_true, y_pred = np.zeros((2, 2), "float32"), np.array([[1, -3], [2, 0]], "float32")
    assert Worst()(y_true, y_pred) == np.float32(2.5)
    assert wrapped(y_true, y_pred) == np.float32(14)


def test_integers_and_lists_are_taken():
    assert losses.MeanAbsoluteError()([0, 0], [1, 3]) == np.float32(2)
    assert losses.mean_squared_error(np.array([[1, 2]]), np.array([[1, 4]])).tolist() == [2.0]


def test_float64_is_kept_by_functions_and_asked_of_classes():
    exact = np.array([[1e-9, 1.0]])
    assert losses.mean_absolute_error(exact, exact * 2).dtype == np.float64
    assert losses.MeanAbsoluteError()(exact, exact * 2).dtype == np.float32
    assert losses.MeanAbsoluteError(dtype="float64")(exact, exact * 2).dtype == np.float64


def test_options_may_be_given_by_position():
    y_true, y_pred = np.zeros((1, 1), "float32"), np.full((1, 1), 3, "float32")
    assert losses.huber(y_true, y_pred, 2.0) == losses.huber(y_true, y_pred, delta=2.0) == np.float32(4)


# --- masks and weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [True, False], ids=["static", "unknown batch"])
def test_mask_on_predictions_gives_the_mean_over_what_it_keeps(static: bool):
    y_true, y_pred = np.zeros((2, 3, 1), "float32"), np.arange(6, dtype="float32").reshape(2, 3, 1)
    mask = np.array([[True, True, False], [False, True, False]])
    with ab.Graph().as_default():
        batch = 2 if static else None
        target, prediction = ab.placeholder((batch, 3, 1)), ab.placeholder((batch, 3, 1))
        kept = ab.placeholder((batch, 3), "bool")
        prediction.annotations["mask"] = kept
        mean = losses.MeanSquaredError()(target, prediction)
        total = losses.MeanSquaredError(reduction="sum")(target, prediction)
        weighted = losses.MeanSquaredError()(target, prediction, np.array([2.0, 1.0], "float32"))
        feed = {target: y_true, prediction: y_pred, kept: mask}
        found = ab.Session().run([mean, total, weighted], feed)
    np.testing.assert_allclose(found, [(0 + 1 + 16) / 3, 17, (0 + 2 + 16) / 3], rtol=1e-6)


def test_mask_that_keeps_nothing_gives_zero():
    with ab.Graph().as_default():
        prediction = ab.placeholder((2, 3))
        prediction.annotations["mask"] = ab.constant([False, False])
        loss = losses.MeanSquaredError()(np.zeros((2, 3), "float32"), prediction)
        assert ab.Session().run(loss, {prediction: np.ones((2, 3))}) == 0


def test_ignored_class_and_mask_are_joined():
    labels = np.array([[0, 1, -1], [1, -1, 0]], "int32")
    scores = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("float32")
    mask = np.array([[True, False, True], [True, True, False]])
    with ab.Graph().as_default():
        prediction = ab.constant(scores)
        prediction.annotations["mask"] = ab.constant(mask)
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)(labels, prediction)
        found = ab.Session().run(loss)
    each = losses.sparse_categorical_crossentropy(np.maximum(labels, 0), scores, from_logits=True)
    np.testing.assert_allclose(found, each[mask & (labels >= 0)].mean(), rtol=1e-6)


def test_weights_per_example_go_with_values_per_step():
    y_true, y_pred = np.zeros((2, 2, 1), "float32"), np.array([[[1], [2]], [[3], [4]]], "float32")
    loss = losses.MeanSquaredError(reduction="none")
    np.testing.assert_array_equal(loss(y_true, y_pred, np.array([1.0, 10.0])), [[1, 4], [90, 160]])
    np.testing.assert_array_equal(loss(y_true, y_pred, np.array([[1.0], [10.0]])), [[1, 4], [90, 160]])
    np.testing.assert_array_equal(loss(y_true, y_pred, 2.0), [[2, 8], [18, 32]])


def test_large_class_numbers_are_not_rounded():
    scores = ab.placeholder((1, 2**24 + 2), "float32")
    label = ab.placeholder((1,), "int32")
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)(label, scores)
    row = np.zeros((1, 2**24 + 2), "float32")
    row[0, 2**24 + 1] = 100.0
    assert ab.Session().run(loss, {scores: row, label: [2**24 + 1]}) < 1e-6


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_ranks_that_differ_by_one_are_matched():
    flat, column = np.array([0, 1, 2], "float32"), np.array([[1], [1], [1]], "float32")
    assert losses.mean_squared_error(flat, column).shape == (3,)
    assert losses.mean_squared_error(column, flat).shape == (3,)
    assert losses.mean_squared_error(np.zeros((3, 2, 1)), np.zeros((3, 2))).shape == (3,)
    assert losses.MeanSquaredError()(flat, column) == losses.MeanSquaredError()(flat[:, None], column)


@pytest.mark.parametrize(
    ("name", "target", "prediction", "message"),
    [
        ("mean_squared_error", (4, 1), (4, 3), "each prediction needs a target.*the last layer should have 1 unit"),
        ("mean_squared_error", (4, 2), (4, 3), "the last layer should have 2 units"),
        ("huber", (4,), (4, 3), r"huber: targets \(y_true\) of shape \[4\].*of shape \[4,3\]"),
        ("binary_crossentropy", (4, 1), (4, 3), "binary_crossentropy: targets"),
        ("categorical_crossentropy", (4,), (4, 3), "use sparse_categorical_crossentropy"),
        ("categorical_crossentropy", (4, 1), (4, 3), "use sparse_categorical_crossentropy"),
    ],
)
def test_shapes_that_would_broadcast_are_refused(name: str, target, prediction, message: str):
    with pytest.raises(ValueError, match=message):
        getattr(losses, name)(np.zeros(target, "float32"), np.zeros(prediction, "float32"))


def test_one_hot_targets_for_class_numbers_are_refused():
    with pytest.raises(ValueError, match="For one-hot targets use categorical_crossentropy"):
        losses.sparse_categorical_crossentropy(np.zeros((4, 3), "int32"), np.zeros((4, 3), "float32"))


@pytest.mark.parametrize("from_logits", [False, True])
def test_class_number_out_of_range_is_an_error(from_logits: bool):
    with pytest.raises(ValueError, match=r"7 is out of range.*3 classes"):
        losses.SparseCategoricalCrossentropy(from_logits)(np.array([0, 7]), np.full((2, 3), 1 / 3, "float32"))


def test_single_class_warns():
    with pytest.warns(SyntaxWarning, match="use binary_crossentropy"):
        losses.categorical_crossentropy(np.ones((2, 1), "float32"), np.ones((2, 1), "float32"))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"reduction must be one of .*'sum'.*; got 'total'"):
        losses.MeanSquaredError(reduction="total")
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\]; got 2"):
        losses.CategoricalCrossentropy(label_smoothing=2)


# --- probabilities that come straight from an activation --------------------------------------------------------------

EXTREMES = np.array([[0, 0, 0], [1, -2, 3], [30, 0, -30], [-80, 80, 0], [12, 0, 9]], "float32")


def values_and_gradients(loss_function, target, activation):
    """Return the loss for ``activation(x)`` as the output of that op, and hidden behind a multiplication by 1."""
    found = []
    for hide in (False, True):
        with ab.Graph().as_default():
            x = ab.placeholder(EXTREMES.shape)
            probability = activation(x)
            loss = loss_function(target, probability * 1.0 if hide else probability)
            found.append(ab.Session().run([loss, ab.gradients(loss, [x])[0]], {x: EXTREMES}))
    return found


def test_softmax_and_its_logits_give_the_same():
    for target, function in (
        (np.array([2, 2, 0, 0, 2]), losses.sparse_categorical_crossentropy),
        (np.eye(3, dtype="float32")[[2, 2, 0, 0, 2]], losses.categorical_crossentropy),
    ):
        (direct, gradient), (hidden, hidden_gradient) = values_and_gradients(function, target, ab.ops.softmax)
        np.testing.assert_allclose(direct, hidden, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gradient, hidden_gradient, rtol=1e-4, atol=1e-6)


def test_sigmoid_and_its_logits_give_the_same():
    target = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]], "float32")
    results = values_and_gradients(losses.binary_crossentropy, target, ab.ops.sigmoid)
    (direct, gradient), (hidden, hidden_gradient) = results
    np.testing.assert_allclose(direct, hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, hidden_gradient, rtol=1e-2, atol=1e-6)  # 1 - p rounds for p near 1


@pytest.mark.parametrize(
    ("function", "target", "activation"),
    [
        (losses.binary_crossentropy, [[0.0, 1.0, 1.0]], ab.ops.sigmoid),
        (losses.categorical_crossentropy, [[0.0, 0.0, 1.0]], ab.ops.softmax),
        (losses.sparse_categorical_crossentropy, [2], ab.ops.softmax),
    ],
)
def test_float64_losses_of_graphs_are_clipped_as_those_of_values(function: Any, target: Any, activation: Any) -> None:
    """A graph computes with what an activation was taken of; the bound is that of float64, not of float32."""
    scores = np.array([[17.0, 16.0, 40.0]])
    x = ab.placeholder((1, 3), "float64")
    found = ab.Session().run(function(target, activation(x)), {x: scores})
    np.testing.assert_allclose(found, function(target, activation(scores)), 1e-9)


def test_softmax_over_another_axis_is_left_alone():
    x = ab.placeholder((3, 3))
    loss = losses.categorical_crossentropy(np.eye(3, dtype="float32"), ab.ops.softmax(x, axis=0))
    plain = losses.categorical_crossentropy(np.eye(3, dtype="float32"), ab.ops.softmax(x, axis=0) * 1.0)
    value = {x: np.arange(9.0).reshape(3, 3).astype("float32")}
    np.testing.assert_allclose(*ab.Session().run([loss, plain], value), rtol=1e-6)


def test_call_runs_once_for_each_call_on_arrays():
    seen: list[float] = []

    class Watched(losses.Loss):
        def call(self, y_true: ab.Tensor, y_pred: ab.Tensor) -> ab.Tensor:
            seen.append(float(y_pred[0, 0]))
            return ab.ops.mean((y_true - y_pred) ** 2, axis=-1)

    loss = Watched()
    found = [loss(np.zeros((2, 2), "float32"), np.full((2, 2), k, "float32")) for k in range(3)]
    assert seen == [0.0, 1.0, 2.0]
    assert all(isinstance(value, ab.Tensor) for value in found)
    assert [float(value) for value in found] == [0.0, 1.0, 4.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_loss_is_of_its_dtype(dtype: str):
    """Also where it computes in another one: CTC does in float32 at least. The numbers are those of Keras."""
    logits = (np.arange(24).reshape(2, 4, 3) - 12).astype("float32") / 100
    target = np.array([[1, 2, 1, 0], [1, 2, 0, 2]])
    for reduction, expected in (("none", [2.44293, 2.45436]), ("sum", 4.89729), ("sum_over_batch_size", 2.44865)):
        found = np.asarray(losses.CTC(reduction, dtype=dtype)(target, logits))
        assert found.dtype == as_dtype(dtype)
        np.testing.assert_allclose(found.astype("float64"), expected, rtol={"bfloat16": 1e-2}.get(dtype, 1e-3))

    class Counting(losses.Loss):
        def call(self, y_true, y_pred):
            return ab.ops.cast(ab.ops.sum(ab.ops.abs(y_true - y_pred), -1), "float32")

    assert np.asarray(Counting(dtype=dtype)([[0.0]], [[1.0]])).dtype == as_dtype(dtype)


def test_class_numbers_in_a_loss_of_few_bits_are_not_rounded():
    logits = np.zeros((1, 2, 600), "float32")
    logits[:, :, 511] = 8.0  # bfloat16 would take 512 for it
    found = [float(losses.CTC(dtype=dtype)([[511]], logits)) for dtype in ("float32", "bfloat16")]
    assert found[1] == pytest.approx(found[0], rel=1e-2)
    assert found[0] < 1.0


@pytest.mark.parametrize("name", ["categorical_crossentropy", "categorical_focal_crossentropy"])
@pytest.mark.parametrize("from_logits", [False, True])
def test_labels_are_smoothed_over_the_classes_wherever_their_axis_is(name: str, from_logits: bool) -> None:
    loss = getattr(losses, name)
    shares = np.array([[0.7, 0.1, 0.2], [0.2, 0.3, 0.5], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], "float32")
    y_pred = np.log(shares) if from_logits else shares
    y_true = np.eye(3, dtype="float32")[[0, 2, 1, 1]]
    expected = loss(y_true, y_pred, label_smoothing=0.1, from_logits=from_logits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((3, 4), (3, 4, 1)):
            moved = [each.T.reshape(shape) for each in (y_true, y_pred)]
            found = loss(*moved, label_smoothing=0.1, from_logits=from_logits, axis=0)
            np.testing.assert_allclose(np.reshape(found, -1), expected, rtol=1e-5)
