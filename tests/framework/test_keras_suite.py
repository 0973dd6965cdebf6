"""Behaviour that Keras's own tests ask for: one test for each kind of failure that running them here found."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - users pickle optimizers
import warnings
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, metrics, optimizers

X = np.arange(6, dtype="float32").reshape(2, 3)


# --- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        lambda: layers.SpatialDropout1D(0.5, 1, "named", "float16"),
        lambda: layers.SpatialDropout2D(0.5, None, 1, "named", "float16"),
        lambda: layers.SpatialDropout3D(0.5, None, 1, "named", "float16"),
        lambda: layers.Discretization([0.0], None, 0.01, "one_hot", False, "float16", "named"),
        lambda: layers.HashedCrossing(3, "one_hot", False, "named", "float16"),
    ],
)
def test_name_and_dtype_are_taken_by_position(made: Any) -> None:
    layer = made()
    assert (layer.name, layer.compute_dtype) == ("named", "float16")
    again = type(layer).from_config(layer.get_config())
    assert (again.name, again.compute_dtype) == ("named", "float16")


@pytest.mark.parametrize("layer", [layers.ReLU, layers.Softmax, layers.GlobalMaxPooling1D, layers.Masking])
def test_a_layer_without_weights_is_built_unless_a_subclass_builds_it(layer: Any) -> None:
    class WithWeights(layer):
        def build(self, input_shape: Any) -> None:
            self.scale = self.add_weight((), "ones", name="scale")

    assert layer().built
    assert not WithWeights().built


def test_a_weight_made_in_call_is_refused() -> None:
    class Leaks(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + self.add_weight((), name="w")

    with pytest.raises(ValueError, match=r"'leaks' \(Leaks\) makes a weight in call\(\)"):
        Leaks(name="leaks")(X)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: layers.Dense(2, trainable=cast("Any", "yes")), ValueError, "trainable must be True or False"),
        (
            lambda: layers.Dropout(0.5, noise_shape=cast("Any", 3)),
            ValueError,
            "noise_shape must be a tuple of positive",
        ),
        (lambda: layers.AlphaDropout(0.5, noise_shape=(2, -1)), ValueError, "noise_shape must be a tuple of positive"),
        (lambda: layers.RandomTranslation((-1.1, 0.5), 0.0), ValueError, "a pair of numbers, from -1 to 1; got height"),
        (lambda: layers.RandomTranslation(0.0, (0.5, 1.1)), ValueError, "a pair of numbers, from -1 to 1; got width"),
        (lambda: ab.Input(tensor=ab.Input((2,))), ValueError, "Give it to Model as an input as it is"),
        (lambda: ab.Input(tensor=cast("Any", X)), ValueError, "input_tensor must be symbolic, as KerasTensor makes"),
        (lambda: ab.Input((4,), tensor=ab.KerasTensor((2, 3))), ValueError, r"shape=\(4,\) is not that of the tensor"),
        (lambda: ab.Input(batch_size=5, tensor=ab.KerasTensor((2, 3))), ValueError, "batch_size=5 is not that of"),
        (lambda: ab.Input(dtype="int32", tensor=ab.KerasTensor((2, 3))), ValueError, "dtype='int32' is not that of"),
        (lambda: ab.Input(batch_shape=(2, 4), tensor=ab.KerasTensor((2, 3))), ValueError, r"batch_shape=\(2, 4\) is"),
        (lambda: ab.Input(batch_size=4, batch_shape=(2, 3)), ValueError, "leave batch_size=4 out"),
        (lambda: layers.Add().compute_mask(cast("Any", X), [None, None]), ValueError, "inputs must be a list of ten"),
        (
            lambda: layers.Layer().add_weight(cast("Any", "kernel")),
            ValueError,
            "Write name='kernel'",
        ),
        (lambda: layers.Reshape((-2, 3)), ValueError, "integers from 0 up, or -1"),
        (
            lambda: layers.LayerNormalization(axis=cast("Any", {"a": 1})),
            TypeError,
            "axis must be an int or a list of ints",
        ),
        (lambda: layers.LayerNormalization(axis=2)(X), ValueError, "axis=2 is out of range for an input of rank 2"),
        (lambda: layers.RMSNormalization(axis=[1, -1])(X), ValueError, "names an axis twice"),
        (lambda: layers.Add().compute_mask([X, X], cast("Any", X > 0)), ValueError, "mask must be a list with a mask"),
        (lambda: layers.Concatenate().compute_mask([X, X], [None]), ValueError, "got a list of 1"),
        (lambda: ab.DTypePolicy("mixed_bfloat15"), ValueError, "mixed_bfloat15"),
        (lambda: ab.callbacks.BackupAndRestore(cast("Any", None)), ValueError, "backup_dir is empty"),
    ],
)
def test_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_masks_are_called_mask() -> None:
    mask = np.array([[True, False]])
    query = np.zeros((1, 2, 3), "float32")
    assert layers.Attention().compute_mask(inputs=[query, query], mask=[mask, None]) is mask
    assert layers.Add().compute_mask([query, query], mask=[mask, None]) is None


def test_an_activation_may_be_taken_away() -> None:
    layer = layers.Dense(3, "relu", kernel_initializer="identity")
    layer(X)
    layer.activation = None  # pyright: ignore[reportAttributeAccessIssue] - Keras's scripts do
    np.testing.assert_array_equal(layer(-X), -X)
    assert layer.get_config()["activation"] is None


def test_an_embedding_of_given_weights_has_them_at_once() -> None:
    table = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(layers.Embedding(3, 4, weights=[table]).embeddings, table)


def test_a_lambda_layer_is_read_where_code_is_trusted() -> None:
    with pytest.warns(UserWarning, match="safe_mode=False"):
        config = layers.Lambda(lambda x: x**2).get_config()
    with pytest.raises(ValueError, match="lambda"):
        layers.Lambda.from_config(config)
    np.testing.assert_allclose(layers.Lambda.from_config(config, safe_mode=False)(X), X**2)


def test_containers_that_hold_themselves_are_walked_once(tmp_path: Any) -> None:
    class Knot(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[Any] = [layers.Dense(2)]
            self.parts.append(self.parts)

        def call(self, x: Any) -> Any:
            return self.parts[0](x)

    layer = Knot()
    layer(X)
    assert len(layer.weights) == 2


def test_a_variable_begins_with_what_an_initializer_of_that_name_gives() -> None:
    np.testing.assert_array_equal(ab.Variable("ones", shape=(2,), dtype="int32"), [1, 1])
    np.testing.assert_array_equal(ab.Variable("zeros", (2,)), [0.0, 0.0])
    assert ab.Variable("ones", shape=(), dtype="string").numpy() == "ones"
    assert ab.Variable("ones").numpy() == "ones"


def test_name_scopes_name_variables() -> None:
    with ab.name_scope("outer"), ab.name_scope("inner"):
        assert ab.Variable(1.0, name="v").path == "outer/inner/v"
    assert ab.Variable(1.0, name="v").path == "v"


@pytest.mark.parametrize("layer", [layers.LayerNormalization, layers.RMSNormalization])
def test_layers_that_normalise_the_last_axis_take_any_rank(layer: Any) -> None:
    made = layer()
    made.build((2, 4, 3))
    x = np.arange(12, dtype="float32").reshape(2, 2, 1, 3)
    np.testing.assert_allclose(made(x)[0, 0, 0], made(x[0, 0, 0][None])[0], rtol=1e-6)
    with pytest.raises(ValueError, match="axis -1"):
        made(x[..., :2])


def test_a_discretization_without_boundaries_is_refused() -> None:
    layer = layers.Discretization(num_bins=3)
    with pytest.raises(ValueError, match="has no boundaries yet"):
        layer([[0.1, 0.8]])


@pytest.mark.parametrize("is_functional", [True, False])
def test_a_model_with_a_discretization_is_refused_until_that_is_adapted(is_functional: bool, tmp_path: Any) -> None:
    class Binned(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.bins = layers.Discretization(num_bins=2, name="bins")

        def call(self, x: Any) -> Any:
            return self.bins(x)

    made = (
        ab.Sequential([ab.Input((1,)), layers.Discretization(num_bins=2, name="bins")]) if is_functional else Binned()
    )
    x = np.array([[1.0], [4.0]], "float32")
    for again in (made, copy.deepcopy(made)):
        with pytest.raises(ValueError, match="Layer 'bins' has no boundaries yet"):
            again.predict(x, verbose=0)
    if is_functional:
        made.save(tmp_path / "made.keras")
        read = cast("Any", ab.saving.load_model(tmp_path / "made.keras"))
        with pytest.raises(ValueError, match="Layer 'bins' has no boundaries yet"):
            read.predict(x, verbose=0)
    cast("Any", made.layers[0]).adapt(np.array([1.0, 2.0, 3.0, 4.0]))
    assert made.predict(x, verbose=0).ravel().tolist() == [0, 1]


def test_an_embedding_that_was_built_alone_is_read_with_its_table(tmp_path: Any) -> None:
    layer = layers.Embedding(4, 2)
    layer.build()
    with pytest.warns(UserWarning, match="saved before it is built"):
        ab.Sequential([layer]).save(tmp_path / "m.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "m.keras").layers[0].embeddings, layer.embeddings)


def test_configs_of_keras_2_say_implementation_0() -> None:
    config = {**layers.GRU(2, kernel_initializer="ones", recurrent_initializer="ones").get_config()}
    x = X.reshape(1, 2, 3)
    expected = layers.GRU.from_config({**config, "implementation": 2})(x)
    np.testing.assert_array_equal(layers.GRU.from_config({**config, "implementation": 0})(x), expected)


# --- ops ------------------------------------------------------------------------------------------------------------


def test_the_part_of_a_slice_that_is_left_has_a_size_where_it_is_known() -> None:
    x = ab.KerasTensor((None, 3))
    assert ab.ops.slice(x, (1, 1), (-1, -1)).shape == (None, 2)
    for wrong in (lambda: ab.ops.slice(x, (1, 1, 1), (2, 2)), lambda: ab.ops.slice(x, (1,), (-1, -1))):
        with pytest.raises(ValueError, match="needs a start with 2 entries"):
            wrong()
    with pytest.raises(ValueError, match="needs a start with 2 entries"):
        ab.ops.slice_update(x, (1, 1, 1), X[:1])


@pytest.mark.parametrize(("axis", "sizes"), [(0, (2,)), (1, (3,)), ((0, 1), (2, 3)), ((0, 2), (2, 2))])
def test_layer_normalization_takes_weights_of_the_sizes_along_its_axes(axis: Any, sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("float32")
    gamma = np.arange(1, 1 + np.prod(sizes), dtype="float32").reshape(sizes)
    axes = (axis,) if isinstance(axis, int) else axis
    broadcast = gamma.reshape([size if each in axes else 1 for each, size in enumerate(x.shape)])
    plain = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    found = ab.ops.layer_normalization(x, gamma, -gamma, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(found, plain * broadcast - broadcast, rtol=1e-4, atol=1e-5)


def test_a_scalar_is_sorted_as_a_vector_of_one() -> None:
    np.testing.assert_array_equal(ab.ops.argsort(np.array(7)), [0])


@pytest.mark.parametrize("axis", [0, (0,), [-2]])
def test_weights_of_an_average_go_along_its_axis(axis: Any) -> None:
    np.testing.assert_allclose(ab.ops.average(X, axis=axis, weights=np.array([1.0, 2.0], "float32")), [2.0, 3.0, 4.0])


def test_a_histogram_has_as_many_counts_as_bins_before_it_is_run() -> None:
    counts, edges = ab.ops.histogram(ab.KerasTensor((None,)), bins=4)
    assert (counts.shape, edges.shape) == ((4,), (5,))


def test_a_scan_that_is_not_unrolled() -> None:
    last, sums = ab.ops.scan(lambda s, x: (s + x, s), np.float32(0), X[0], unroll=False)
    assert float(last) == 3.0
    np.testing.assert_array_equal(sums, [0.0, 0.0, 1.0])


def test_no_dtype_counts_as_the_default_float_type() -> None:
    assert (ab.backend.result_type(), ab.backend.result_type("int8", None)) == ("float32", "float32")


# --- models ---------------------------------------------------------------------------------------------------------


def small_model() -> Any:
    inputs = ab.Input((3,))
    return ab.Model(inputs, layers.Dense(2, name="inner")(inputs))


@pytest.mark.parametrize("first", [small_model, lambda: ab.Sequential([ab.Input((3,)), layers.Dense(2)])])
def test_a_sequential_model_of_a_model_with_inputs_is_built(first: Any) -> None:
    model = ab.Sequential([first(), layers.Dense(1)])
    assert model.built
    assert model.input_shape == (None, 3)
    assert model.output_shape == (None, 1)


def test_several_losses_of_one_output_are_summed() -> None:
    inputs = ab.Input((3,))
    model = ab.Model(inputs, [layers.Dense(1, name="a")(inputs), layers.Dense(1, name="b")(inputs)])
    targets = [X[:, :1], X[:, 1:2]]
    model.compile("sgd", loss=["mse", ["mse", "mae"]])
    found = model.evaluate(X, targets, verbose=0, return_dict=True)
    error = targets[1] - model.predict(X, verbose=0)[1]
    assert found["b_loss"] == pytest.approx(np.mean(error**2) + np.mean(np.abs(error)), rel=1e-5)
    assert found["loss"] == pytest.approx(found["a_loss"] + found["b_loss"], rel=1e-5)


def test_one_loss_weight_is_that_of_each_output() -> None:
    inputs = ab.Input((3,))
    outputs = [layers.Dense(1, name=name, kernel_initializer="ones")(inputs) for name in ("a", "b")]
    made = ab.Model(inputs, outputs)
    made.compile(optimizer=ab.optim.SGD(0.0), loss="mse", loss_weights=2.0)
    logs = made.evaluate(X, [np.zeros((2, 1)), np.ones((2, 1))], verbose=0, return_dict=True)
    assert (logs["a_loss"], logs["b_loss"], logs["loss"]) == (76.5, 62.5, 2 * (76.5 + 62.5))


def test_a_model_is_made_from_its_config_with_custom_objects() -> None:
    class Mine(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + 1.0

    inputs = ab.Input((3,))
    for model in (ab.Model(inputs, Mine()(inputs)), ab.Sequential([ab.Input((3,)), Mine()])):
        again = type(model).from_config(model.get_config(), custom_objects={"Mine": Mine})
        np.testing.assert_array_equal(again(X), X + 1.0)


def test_the_state_tree_is_given_and_set() -> None:
    model = small_model()
    model.compile("adam", "mse")
    model.fit(X, X[:, :2], verbose=0)
    tree = model.get_state_tree("numpy_array")
    assert set(tree["metrics_variables"]["loss"]) == {"total", "count"}
    assert tree["optimizer_variables"][model.optimizer.name]["iteration"] == 1
    other = small_model()
    other.set_state_tree({"trainable_variables": tree["trainable_variables"]})
    np.testing.assert_array_equal(other(X), model(X))
    with pytest.raises(ValueError, match="have no inner/weights"):
        other.set_state_tree({"trainable_variables": {"inner": {"weights": 1.0, "bias": [9.0, 9.0]}}})
    np.testing.assert_array_equal(other(X), model(X))
    with pytest.raises(ValueError, match="no group 'weights'"):
        other.set_state_tree({"weights": {}})
    with pytest.raises(ValueError, match="value_format"):
        other.get_state_tree("jax")


def test_a_config_keeps_whether_outputs_are_a_list_or_a_tuple() -> None:
    inputs = ab.Input((3,))
    for kind in (list, tuple):
        model = ab.Model(inputs, kind([layers.Dense(1)(inputs), layers.Dense(2)(inputs)]))
        assert type(ab.Model.from_config(model.get_config())(X)) is kind


def test_a_model_gives_the_output_of_a_list_of_one() -> None:
    inputs = ab.Input((3,))
    model = ab.Model(inputs, [layers.Dense(2)(inputs)])
    assert isinstance(model.predict(X, verbose=0), np.ndarray)
    assert np.shape(model(X)) == (2, 2)
    assert isinstance(model(inputs), list)  # Keras's models are made of this one by `model(inputs)[0]`
    around = ab.Model(inputs, layers.Dense(1)(model(inputs)[0]))
    np.testing.assert_allclose(around(X), around.layers[-1](model(X)), rtol=1e-6)
    for loss, targets in (("mse", X[:, :2]), (["mse"], [X[:, :2]])):
        model.compile("sgd", loss)
        assert set(model.fit(X, targets, verbose=0).history) == {"loss"}


def test_a_sequential_model_with_an_input_is_built_for_no_other_shape() -> None:
    model = ab.Sequential([ab.Input((2,), batch_size=3), layers.Dense(2)])
    model.build((3, 2))
    with pytest.raises(ValueError, match=r"has an Input of shape \[3,2\], so it can't be built for \[3,4\]"):
        model.build((3, 4))


# --- optimizers, callbacks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Ftrl", "Lion", "Muon"])
@pytest.mark.parametrize("copied", [lambda item: pickle.loads(pickle.dumps(item)), copy.deepcopy])
def test_optimizers_are_pickled_and_copied_with_their_state(name: str, copied: Any) -> None:
    optimizer = getattr(optimizers, name)()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    variable = ab.Variable(np.ones((3, 2), "float32"), name="kernel")
    gradient = np.full((3, 2), 0.5, "float32")
    optimizer.apply([gradient], [variable])
    other = copied(optimizer)
    twin = other._trainable_variables[0]
    for each, held in ((optimizer, variable), (other, twin)):
        each.apply([gradient], [held])
    assert int(other.iterations) == 2
    np.testing.assert_array_equal(variable, twin)


def test_callbacks_set_the_rates_of_several_optimizers() -> None:
    first, second = optimizers.SGD(0.1), optimizers.SGD(0.01)
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2, name="one"), layers.Dense(1, name="two")])
    model.compile(optimizers.MultiOptimizer(optimizers.OptimizerMap(second, {"one/.*": first})), "mse")
    history = model.fit(
        X, X[:, :1], epochs=2, verbose=0, callbacks=ab.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    )
    assert float(first.learning_rate) == pytest.approx(0.025)
    assert float(second.learning_rate) == pytest.approx(0.0025)
    assert history.history[f"learning_rate_{first.name}"] == pytest.approx([0.05, 0.025])
    assert history.history[f"learning_rate_{second.name}"] == pytest.approx([0.005, 0.0025])
    plateau = ab.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
    plateau.set_model(model)
    plateau.on_train_begin()
    for epoch in range(2):
        plateau.on_epoch_end(epoch, {"loss": 1.0})
    assert float(first.learning_rate) == pytest.approx(0.0125)
    assert float(second.learning_rate) == pytest.approx(0.00125)


@pytest.mark.parametrize("names", [("sgd", "sgd"), ("sgd", "sgd_1"), ("sgd_1", "sgd"), ("sgd", "sgd_1", "sgd")])
def test_rates_of_optimizers_with_alike_names_have_a_key_each(names: tuple[str, ...]) -> None:
    rates = [0.1 / (index + 1) for index in range(len(names))]
    made = [optimizers.SGD(rate, name=name) for rate, name in zip(rates, names, strict=True)]
    model = ab.Sequential([ab.Input((3,)), *(layers.Dense(1, name=f"dense{index}") for index in range(len(names)))])
    maps: dict[str, optimizers.Optimizer] = {f"dense{index}/.*": made[index] for index in range(1, len(made))}
    model.compile(optimizers.MultiOptimizer(optimizers.OptimizerMap(made[0], maps)), "mse")
    plateau = ab.callbacks.ReduceLROnPlateau("loss")
    plateau.set_model(model)
    plateau.on_train_begin()
    logs = {"loss": 1.0}
    plateau.on_epoch_end(0, logs)
    del logs["loss"]
    assert {name.removeprefix("learning_rate_").split("_")[0] for name in logs} == {"sgd"}
    assert sorted(logs.values()) == pytest.approx(sorted(rates))


def test_terminate_on_nan_may_raise_and_then_keeps_the_backup() -> None:
    ended: list[str] = []
    model = ab.Sequential([ab.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [
        ab.callbacks.TerminateOnNaN(raise_error=True),
        ab.callbacks.LambdaCallback(on_train_end=lambda logs: ended.append("end")),
    ]
    with pytest.raises(RuntimeError, match=r"Batch \d: the loss is"):
        model.fit([[1.0], [2.0]], [[1.0], [1e30]], batch_size=1, verbose=0, callbacks=callbacks)
    assert ended == []


def test_an_unknown_mode_is_taken_for_auto_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="got 'unknown'. 'auto' is taken"):
        callback = ab.callbacks.EarlyStopping("val_accuracy", mode="unknown")
    assert callback.maximises


def test_lambda_callbacks_take_methods_of_ones_own() -> None:
    callback = ab.callbacks.LambdaCallback(mine=lambda: 3)
    assert callback.mine() == 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["l1_regularization", "l2_regularization", "l2_shrinkage_regularization"])
def test_ftrl_refuses_negative_strengths(name: str) -> None:
    options: Any = {f"{name}_strength": -0.1}
    with pytest.raises(ValueError, match=f"{name}_strength must not be negative; got -0.1"):
        optimizers.Ftrl(**options)


# --- losses, metrics, initializers, utils ---------------------------------------------------------------------------


def test_the_mean_of_circle_losses_is_over_embeddings_that_have_one() -> None:
    labels, vectors = [1, 1, 2], np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], "float32")
    each = np.asarray(ab.losses.circle(labels, vectors, gamma=2.0))
    assert each[2] == 0.0  # alone in its class
    assert float(ab.losses.Circle(gamma=2.0)(labels, vectors)) == pytest.approx(each[:2].mean(), rel=1e-6)
    assert float(ab.losses.Circle(gamma=2.0, reduction="sum")(labels, vectors)) == pytest.approx(each.sum(), rel=1e-6)


def test_metrics_have_their_settings_and_counts_as_attributes() -> None:
    precision = metrics.Precision(name="p")
    precision.update_state([1.0, 0.0], [1.0, 1.0])
    np.testing.assert_array_equal(precision.true_positives, [1.0])
    np.testing.assert_array_equal(precision.false_positives, [1.0])
    assert [(each.name, each.path) for each in precision.variables] == [
        ("true_positives", "p/true_positives"),
        ("false_positives", "p/false_positives"),
    ]
    assert metrics.FalseNegatives().accumulator.shape == (1,)
    assert metrics.SensitivityAtSpecificity(0.5).specificity == 0.5
    assert metrics.TopKCategoricalAccuracy(k=2).k == 2
    assert metrics.SparseTopKCategoricalAccuracy(k=2, from_sorted_ids=True).from_sorted_ids
    assert metrics.AUC(num_thresholds=5).false_negatives.shape == (5,)


def test_variables_that_a_metric_holds_in_containers_are_reset() -> None:
    class Sums(metrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.total = self.add_variable((), name="total")
            self.more = {"a": [ab.Variable(0.0), ab.Variable(0.0)]}

        def update_state(self, values: Any) -> None:
            for variable in (self.total, *self.more["a"]):
                variable.assign_add(ab.ops.sum(values))

        def result(self) -> Any:
            return self.total + self.more["a"][1]

    metric = Sums()
    assert len(metric.variables) == 3
    metric.update_state([1.0, 2.0])
    assert float(metric.result()) == 6.0
    metric.reset_state()
    assert float(metric.result()) == 0.0


@pytest.mark.parametrize(
    ("aggregation", "regressors", "expected"),
    [  # of Keras after 3.15.1, which counted each value of a sample as a sample
        (None, 0, [0.17305559, -8.836666, -0.521]),
        (None, 1, [-0.65388882, -18.673332, -2.042]),
        (None, 2, [0.17305559, -8.836666, -0.521]),
    ],
)
def test_adjusted_r2_counts_samples(aggregation: str | None, regressors: int, expected: list[float]) -> None:
    metric = metrics.R2Score(aggregation, regressors)
    true = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    pred = [[0.4, 0.9, 1.6], [0.1, 1.2, 0.6], [1.5, 0.8, 0.6]]
    metric.update_state(true, pred, [0.8, 0.1, 0.4])
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-5)


def test_variance_scaling_counts_the_axes_it_is_told() -> None:
    assert ab.initializers.compute_fans((2, 3, 5), input_axes=[0], output_axes=[1, 2]) == (2, 15)
    initializer = ab.initializers.VarianceScaling(mode="fan_in", seed=1, input_axes=[1], output_axes=[0])
    again = ab.initializers.VarianceScaling.from_config(initializer.get_config())
    values = np.asarray(again((4, 4000)))
    assert values.std() == pytest.approx((1 / 4000) ** 0.5, rel=0.05)
    assert "input_axes" not in ab.initializers.GlorotUniform().get_config()
    plain = ab.initializers.GlorotUniform.from_config({"seed": 1, "input_axes": None, "output_axes": None})
    assert plain.get_config() == {"seed": 1}


def test_tensors_are_initializers_and_classes() -> None:
    value = ab.ops.convert_to_tensor([[1.0, 2.0]])
    np.testing.assert_array_equal(ab.initializers.get(value)((1, 2)), value)
    rows = ab.utils.to_categorical(ab.ops.convert_to_tensor([0, 2]), 3)
    assert isinstance(rows, ab.Tensor)
    np.testing.assert_array_equal(rows, [[1, 0, 0], [0, 0, 1]])


def test_no_custom_objects_are_no_error() -> None:
    with warnings.catch_warnings(), ab.saving.custom_object_scope(None):
        assert isinstance(
            ab.saving.deserialize_keras_object(ab.saving.serialize_keras_object(layers.ReLU())), layers.ReLU
        )


def test_a_constraint_leaves_weights_as_they_are_unless_it_is_defined() -> None:
    class Halves(ab.constraints.Constraint):
        def __call__(self, w: Any) -> Any:
            return super().__call__(w) / 2

    value = ab.ops.convert_to_tensor([2.0, -4.0])
    np.testing.assert_array_equal(ab.constraints.Constraint()(value), value)
    np.testing.assert_array_equal(Halves()(value), [1.0, -2.0])


def test_a_feature_space_whose_layers_are_given_what_they_would_learn_needs_no_adapt() -> None:
    kind = ab.utils.FeatureSpace.feature
    texts = layers.TextVectorization(vocabulary=["this", "is"], output_mode="int", output_sequence_length=3)
    size = layers.Normalization(mean=12.0, variance=4.0)
    space = ab.utils.FeatureSpace(
        {"text": kind("string", texts, "int"), "size": kind("float32", size, "float"), "n": "integer_hashed"},
        output_mode="dict",
    )
    found = space({"text": ["This is", "not"], "size": [12.0, 16.0], "n": [1, 2]})
    np.testing.assert_array_equal(found["text"], [[2, 3, 0], [1, 0, 0]])
    np.testing.assert_allclose(found["size"], [[0.0], [2.0]])
    assert found["n"].shape == (2, 32)
