"""Expectations of scripts written for Keras on models, optimizers and callbacks, beyond the numbers."""

from __future__ import annotations

import errno
import gc
import re
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
Y = X.sum(1, keepdims=True)


def compiled(**options: Any) -> Any:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(1, kernel_initializer="ones")])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


# --- building -------------------------------------------------------------------------------------------------------

WEIGHTLESS = [
    layers.Activation("relu"),
    layers.AveragePooling2D(2),
    layers.Cropping2D(),
    layers.Flatten(),
    layers.GlobalMaxPooling2D(),
    layers.MaxPooling2D(),
    layers.Permute((3, 1, 2)),
    layers.ReLU(),
    layers.Reshape((-1,)),
    layers.Softmax(),
    layers.UpSampling2D(),
    layers.ZeroPadding2D(),
]


@pytest.mark.parametrize("layer", WEIGHTLESS, ids=lambda layer: type(layer).__name__)
def test_layers_without_weights_are_built_by_build(layer: layers.Layer):
    layer.build((2, 4, 4, 3))
    assert layer.built
    assert layer.weights == []


# The layers of Keras 3.15 that have nothing to build.
BUILT_AT_ONCE = """
    Activation ActivityRegularization AlphaDropout AveragePooling1D AveragePooling2D AveragePooling3D Dropout ELU
    GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D Identity LeakyReLU Masking MaxPooling1D MaxPooling2D
    MaxPooling3D ReLU Reshape Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D UnitNormalization
"""


@pytest.mark.parametrize("name", BUILT_AT_ONCE.split())
def test_layers_with_nothing_to_build_are_built_at_once(name: str):
    argument = {"Activation": ["relu"], "Reshape": [(1, -1)]}
    needs_one = name.startswith(("Alpha", "Average", "Dropout", "Gaussian", "Spatial"))
    layer = getattr(layers, name)(*argument.get(name, [0.5] if needs_one and "Pool" not in name else [2] * needs_one))
    assert layer.built


def test_building_notes_the_shape_and_builds_the_parts():
    class Twice(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(4), layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return self.second(self.first(inputs))

    layer = Twice()
    layer.build((None, 3))
    assert layer.built
    assert [weight.shape for weight in layer.weights] == [(3, 4), (4,), (4, 2), (2,)]
    assert layer.get_build_config() == {"input_shape": (None, 3)}


# --- callbacks ------------------------------------------------------------------------------------------------------


class StopsAtTheSecondBatch(ab.callbacks.Callback):
    seen = 0

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        self.model.stop_evaluating = batch == 1

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        self.model.stop_predicting = batch == 1


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_callbacks_stop_evaluation_and_prediction(steps_per_execution: int):
    model = compiled(steps_per_execution=steps_per_execution)
    x, y = np.tile(X, (3, 1)), np.tile(Y, (3, 1))
    testing, predicting = StopsAtTheSecondBatch(), StopsAtTheSecondBatch()

    model.evaluate(x, y, batch_size=1, callbacks=[testing], verbose=0)
    found = model.predict(x, batch_size=1, callbacks=[predicting], verbose=0)

    assert testing.seen == 2 // steps_per_execution
    assert (predicting.seen, found.shape) == (2, (2, 1))
    assert model.predict(x, batch_size=1, verbose=0).shape == (12, 1)  # the next one runs to its end


# --- clone_model ----------------------------------------------------------------------------------------------------


def functional() -> Any:
    inputs = ab.Input((3,))
    return ab.Model(inputs, layers.Dense(1)(inputs))


@pytest.mark.parametrize("make", [functional, lambda: ab.Sequential([ab.Input((3,)), layers.Dense(1)])])
def test_a_clone_is_compiled_as_its_model_is(make: Any):
    model, metric = make(), ab.metrics.MeanAbsoluteError(name="away")

    def loss(y_true: Any, y_pred: Any) -> Any:
        return ab.ops.mean(ab.ops.abs(y_true - y_pred), axis=-1)

    model.compile(ab.optim.Adam(0.25, clipnorm=2.0), loss, metrics=[metric, "mse"])
    model.fit(X, Y, verbose=0)
    clone = ab.models.clone_model(model)

    assert (clone.compiled, clone.loss) == (True, loss)
    assert clone.optimizer is not model.optimizer
    assert (float(clone.optimizer.learning_rate), clone.optimizer.clipnorm) == (0.25, 2.0)
    assert clone.optimizer.iterations.numpy() == 0
    clone.set_weights(model.get_weights())
    before = float(metric.result())
    expected = model.evaluate(X, Y, return_dict=True, verbose=0)
    assert clone.evaluate(X, Y, return_dict=True, verbose=0) == pytest.approx(expected)
    assert sorted(expected) == ["away", "loss", "mse"]
    clone.fit(X, Y, epochs=3, verbose=0)
    assert float(metric.result()) == pytest.approx(expected["away"])
    assert before != float(metric.result())


def test_a_model_that_is_not_compiled_has_a_clone_that_is_not():
    assert not ab.models.clone_model(functional()).compiled


# --- optimizers -----------------------------------------------------------------------------------------------------


def test_bounds_of_clipping_are_attributes():
    optimizer = ab.optim.SGD(1.0, clipnorm=1.0)
    assert (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm) == (1.0, None, None)
    variable = ab.Variable([0.0, 0.0])
    optimizer.apply([np.array([3.0, 4.0], "float32")], [variable])
    np.testing.assert_allclose(variable.numpy(), [-0.6, -0.8], rtol=1e-6)
    optimizer.clipnorm = None
    optimizer.clipvalue = 2.0
    variable.assign([0.0, 0.0])
    optimizer.apply([np.array([3.0, 1.0], "float32")], [variable])
    np.testing.assert_allclose(variable.numpy(), [-2.0, -1.0])
    assert optimizer.get_config()["clipvalue"] == 2.0
    with pytest.raises(ValueError, match="Only one of clipnorm, clipvalue"):
        optimizer.global_clipnorm = 1.0


def test_several_optimizers_with_schedules_train_and_are_shown(tmp_path: Path):
    schedule = ab.optim.schedules.ExponentialDecay(0.1, 1, 0.5)
    halved, other = ab.optim.SGD(schedule), ab.optim.SGD(0.01)
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2, name="first"), layers.Dense(1, name="second")])
    model.compile(ab.optim.MultiOptimizer(ab.optim.OptimizerMap(other, {".*first/.*": halved})), "mse")
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[ab.callbacks.TensorBoard(tmp_path)])
    assert float(halved.learning_rate) == pytest.approx(0.1 / 8)
    assert halved.iterations.numpy() == other.iterations.numpy() == 3


# --- ops ------------------------------------------------------------------------------------------------------------


def test_one_hot_takes_class_numbers_in_floats():
    with ab.Graph().as_default():
        found = ab.Session().run(ab.ops.one_hot(np.array([1.0, 2.7, -1.0], "float32"), 3))
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 1], [0, 0, 0]])


# --- errors that name the mistake -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "msee"}, "Unknown loss 'msee'. Did you mean 'mse'?"),
        ({"metrics": ["acuracy"]}, "Unknown metric 'acuracy'. Did you mean 'accuracy'?"),
        ({"metrics": {"out": ["mae", "msee"]}}, "Unknown metric 'msee'"),
        ({"weighted_metrics": ["msee"]}, "Unknown metric 'msee'"),
        ({"loss": {"a": {"b": "msee"}}}, "Unknown loss 'msee'"),
    ],
)
def test_compile_knows_names_at_once(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        compiled(**arguments)


def test_names_whose_meaning_shapes_decide_are_known():
    model = compiled(loss="crossentropy", metrics=["accuracy", "acc"], weighted_metrics=["ce"])
    assert model.compiled


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("fit", {"batch_size": 2.5}, "fit(batch_size=2.5): expected a positive integer, got float. Round it: batch_"),
        ("fit", {"batch_size": 0}, "fit(batch_size=0): expected a positive integer"),
        ("fit", {"batch_size": "8"}, "fit(batch_size='8'): expected a positive integer, got str."),
        ("fit", {"epochs": 1.5}, "fit(epochs=1.5): expected an integer from 0 up, got float."),
        ("fit", {"steps_per_epoch": -1}, "fit(steps_per_epoch=-1): expected a positive integer"),
        ("fit", {"validation_batch_size": 1.5}, "fit(validation_batch_size=1.5)"),
        ("evaluate", {"batch_size": 2.5}, "evaluate(batch_size=2.5)"),
        ("predict", {"batch_size": 2.5}, "predict(batch_size=2.5)"),
        ("fit", {"epochs": -1}, "fit(epochs=-1): expected an integer from 0 up, got -1."),
        ("predict", {"steps": 0.5}, "predict(steps=0.5): expected a positive integer, got float."),
    ],
)
def test_counts_are_integers(method: str, arguments: dict[str, Any], message: str):
    data = [X] if method == "predict" else [X, Y]
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(compiled(), method)(*data, verbose=0, **arguments)


def test_counts_may_be_numbers_of_numpy():
    model = compiled()
    history = model.fit(X, Y, batch_size=np.int64(2), epochs=np.int32(2), verbose=0)
    assert len(history.history["loss"]) == 2
    assert model.fit(X, Y, epochs=0, verbose=0).history == {}


@pytest.mark.parametrize("rate", [-1.0, float("nan"), np.float32(-0.1)])
def test_a_learning_rate_is_not_negative(rate: Any):
    with pytest.raises(ValueError, match=r"Adam\(learning_rate=.*\): expected 0 or more.*negate the loss"):
        ab.optim.Adam(rate)


@pytest.mark.parametrize(
    "layer",
    [layers.Dense(1, "softmax", name="head"), layers.Activation("softmax", name="head"), layers.Softmax(name="head")],
)
def test_a_softmax_of_one_unit_warns(layer: Any):
    inputs = ab.Input((1,))
    with pytest.warns(
        UserWarning, match=r"Layer 'head': softmax over axis -1 of shape .*1\], of size 1, gives 1.*'sigmoid'"
    ):
        layer(inputs)


def test_a_softmax_of_several_units_does_not_warn():
    assert layers.Dense(2, "softmax")(ab.Input((3,))).shape == (None, 2)


def test_a_layer_with_weights_that_is_made_in_a_call_is_refused():
    class Projects(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return layers.Dense(3, name="lost")(layers.Dropout(0.5)(inputs))

    with pytest.raises(RuntimeError) as caught:
        Projects(name="projects")(X)
    assert (
        "Layer 'lost' (Dense) was made inside call() of layer 'projects' (Projects) and does not belong to it"
        in str(caught.value)
    )
    assert "self.dense = Dense(...)" in str(caught.value)


def test_a_list_that_dense_is_called_on_names_the_layer():
    with pytest.raises(TypeError, match=r"Layer 'd' \(Dense\) takes one input, got 2 of shapes .*Concatenate"):
        layers.Dense(2, name="d")([ab.Input((3,)), ab.Input((4,))])


def test_a_layer_that_is_made_in_the_first_call_and_kept_is_trained():
    class Projects(layers.Layer):
        dense: Any = None

        def call(self, inputs: Any) -> Any:
            if self.dense is None:
                self.dense = ab.Sequential([layers.Dense(1)])
            return self.dense(inputs)

    model = ab.Sequential([Projects()])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert len(model.trainable_weights) == 2


# --- structures of structures ---------------------------------------------------------------------------------------


def test_inputs_in_dicts_of_dicts(tmp_path: Path):
    inputs = {"left": {"a": ab.Input((3,)), "b": ab.Input((3,))}, "right": [ab.Input((3,)), ab.Input((3,))]}
    left, right = inputs["left"], inputs["right"]
    joined = left["a"] + 2.0 * left["b"] + 4.0 * right[0] + 8.0 * right[1]  # pyright: ignore[reportArgumentType]
    model = ab.Model(inputs, layers.Dense(1, kernel_initializer="ones")(joined))
    data = {"right": [X + 2, X + 3], "left": {"b": X + 1, "a": X}}
    expected = (X + 2 * (X + 1) + 4 * (X + 2) + 8 * (X + 3)).sum(1, keepdims=True)

    np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=1e-5)
    model.compile("sgd", "mse")
    model.fit(data, expected, verbose=0)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(data, verbose=0), model.predict(data, verbose=0))
    with pytest.raises(ValueError, match=r"on inputs\['left'\]: expected a dict with the keys a, b, got one with a\."):
        model.predict({**data, "left": {"a": X}}, verbose=0)
    with pytest.raises(ValueError, match=r"on inputs\['right'\]: expected a list of 2, got one tensor"):
        model.predict({**data, "right": X}, verbose=0)


def test_losses_and_metrics_in_dicts_of_dicts():
    inputs = ab.Input((3,))
    q, r, s = [layers.Dense(1, kernel_initializer="ones", name=f"d{name}")(inputs) for name in "qrs"]
    model = ab.Model(inputs, {"p": {"r": r, "q": q}, "s": s})
    model.compile(
        "sgd",
        loss={"p": {"q": "mse", "r": "mae"}, "s": "mse"},
        loss_weights={"p": {"r": 2.0}, "s": 3.0},
        metrics={"p": {"q": ["mae"]}, "s": ["mae", "mse"]},
    )
    y = {"s": Y + 1, "p": {"q": Y + 2, "r": Y + 4}}
    found = model.evaluate(X, y, return_dict=True, verbose=0)

    # The names are those of Keras 3.15, which has layers' names for metrics.
    assert found == pytest.approx(
        {"loss": 4 + 2 * 4 + 3 * 1, "p/q_loss": 4, "p/r_loss": 4, "s_loss": 1, "dq_mae": 2, "ds_mae": 1, "ds_mse": 1}
    )
    history = model.fit(X, y, sample_weight={"p": {"q": np.ones(4)}}, verbose=0).history
    assert set(history) == set(found)


def test_losses_in_lists_of_lists():
    inputs = ab.Input((3,))
    q, r, s = [layers.Dense(1, kernel_initializer="ones", name=f"e{name}")(inputs) for name in "qrs"]
    model = ab.Model(inputs, [[q, r], s])
    model.compile("sgd", loss=[["mse", "mae"], "mse"], metrics=[[["mae"], ["mse"]], ["mae"]])
    found = model.evaluate(X, [[Y + 1, Y + 2], Y + 3], return_dict=True, verbose=0)
    assert found == pytest.approx(
        {"loss": 12, "0/eq_loss": 1, "0/er_loss": 2, "es_loss": 9, "eq_mae": 1, "er_mse": 4, "es_mae": 3}
    )


def test_one_loss_for_all_outputs_of_a_structure():
    inputs = ab.Input((3,))
    model = ab.Model(inputs, {"p": {"q": layers.Dense(1)(inputs)}, "s": layers.Dense(1)(inputs)})
    model.compile("sgd", "mse")
    assert sorted(model.fit(X, {"p": {"q": Y}, "s": Y}, verbose=0).history) == ["loss", "p/q_loss", "s_loss"]


# --- sparse matrices of SciPy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "coo_array"])
def test_sparse_matrices_are_data(kind: str):
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((20, 3)) < 0.5, rng.normal(size=(20, 3)), 0).astype("float32")
    y = dense.sum(1, keepdims=True)
    x = getattr(sparse, kind)(dense)
    one, other = compiled(), compiled()
    ab.utils.set_random_seed(1)
    expected = one.fit(dense, y, batch_size=8, epochs=2, validation_split=0.2, verbose=0).history
    ab.utils.set_random_seed(1)
    found = other.fit(x, sparse.csr_matrix(y), batch_size=8, epochs=2, validation_split=0.2, verbose=0).history

    assert found == expected
    np.testing.assert_array_equal(other.predict(x, verbose=0), one.predict(dense, verbose=0))
    assert other.evaluate(x, y, batch_size=8, verbose=0) == one.evaluate(dense, y, batch_size=8, verbose=0)
    assert other.train_on_batch(x, y) == one.train_on_batch(dense, y)
    batches = [(x.tocsr()[:8], y[:8]), (x.tocsr()[8:], y[8:])]
    assert other.evaluate(batches, verbose=0) == pytest.approx(one.evaluate(dense, y, verbose=0), rel=1e-6)
    np.testing.assert_array_equal(other.predict_on_batch(x), one.predict_on_batch(dense))


# --- tracebacks -----------------------------------------------------------------------------------------------------


class Breaks(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)

    def inner(self, inputs: Any) -> Any:
        raise KeyError("mine")


class BreaksInBatches(ab.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        raise KeyError("mine")


def breaking_loss(y_true: Any, y_pred: Any) -> Any:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("mine")  # noqa: B904 - the first one is its context


def frames_of(error: BaseException) -> tuple[list[str], int]:
    """The functions of this file in a traceback, and how many frames are not of this file."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f.name for f in frames if f.filename == __file__][1:], sum(f.filename != __file__ for f in frames)


@pytest.mark.parametrize(
    ("run", "users"),
    [
        (lambda: compiled(loss=breaking_loss).fit(X, Y, verbose=0), ["<lambda>", "breaking_loss"]),
        (lambda: compiled().fit(X, Y, verbose=0, callbacks=[BreaksInBatches()]), ["<lambda>", "on_train_batch_end"]),
        (lambda: broken().fit(X, Y, verbose=0), ["<lambda>", "call", "inner"]),
        (lambda: broken().evaluate(X, Y, verbose=0), ["<lambda>", "call", "inner"]),
        (lambda: broken().predict(X, verbose=0), ["<lambda>", "call", "inner"]),
        (lambda: broken().train_on_batch(X, Y), ["<lambda>", "call", "inner"]),
        (lambda: compiled().fit(np.ones((4, 5)), Y, verbose=0), ["<lambda>"]),
    ],
)
def test_tracebacks_show_the_users_lines_and_few_of_ours(run: Any, users: list[str]):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
        run()
    found, others = frames_of(caught.value)
    assert found == users
    assert others <= 8
    context = caught.value.__context__
    assert context is None or frames_of(context)[1] <= 8


def broken() -> Any:
    model = ab.Sequential([ab.Sequential([Breaks(), layers.Dense(1)])])
    model.compile("sgd", "mse")
    return model


def test_all_lines_are_shown_on_demand():
    ab.config.disable_traceback_filtering()
    try:
        with pytest.raises(KeyError) as caught:
            broken().fit(X, Y, verbose=0)
    finally:
        ab.config.enable_traceback_filtering()
    found, others = frames_of(caught.value)
    assert found == ["call", "inner"]
    assert others > 15


def test_warnings_name_the_users_line():
    ab.config.set_max_epochs(1)
    try:
        with pytest.warns(UserWarning, match="Limiting epochs to 1") as caught:
            compiled().fit(X, Y, epochs=2, verbose=0)
    finally:
        ab.config.set_max_epochs(None)
    assert caught[0].filename == __file__


# --- no room --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may have more than 20,000 bytes, as if the disk were full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5"])
def test_a_full_disk_is_told_with_the_file_and_a_remedy(tmp_path: Path, name: str):
    model = ab.Sequential([ab.Input((100,)), layers.Dense(100)])
    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(
        OSError, match=f"Can't write .*{name}.*the file that was there is as it was.* bytes are free"
    ) as e:
        (model.save_weights if "weights" in name else model.save)(path)
    assert e.value.errno == errno.EFBIG
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert path.read_bytes() == b"old"


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_ends_tensorboard_with_the_name_of_its_file(tmp_path: Path):
    class Writes(ab.callbacks.TensorBoard):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, dict.fromkeys(map(str, range(1000)), 1.0))

    with pytest.raises(OSError, match="File too large") as caught:
        compiled().fit(X, Y, verbose=0, epochs=2, callbacks=[Writes(tmp_path / "logs")])
    assert re.match(r"Records can't be written to '.*logs.*': make room there", caught.value.__notes__[0])
    del caught
    gc.collect()  # what is left of the writers is not written, which would warn


def test_a_weight_that_is_too_large_is_named():
    layer = layers.Dense(10**8, name="wide", kernel_initializer="zeros")
    with pytest.raises(
        MemoryError, match=r"Layer 'wide': .*'kernel' of shape \(100000000, 100000000\).*40,000,000\.0 GB"
    ):
        layer.build((None, 10**8))


@pytest.mark.parametrize("together", [1, 2])
def test_a_step_without_memory_names_the_batch(together: int):
    class Outer(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return ab.ops.numpy_function(lambda x: np.empty((10**9, 10**9)), [inputs], "float32")

    model = ab.Sequential([Outer()])
    model.compile(steps_per_execution=together)
    with pytest.raises(MemoryError) as caught:
        model.predict(X, batch_size=2, verbose=0)
    assert any("In a step on 2 rows, arrays of shapes (2, 3)." in note for note in caught.value.__notes__)


def test_an_op_without_memory_is_named():
    rows = ab.ops.broadcast_to(np.ones(1, "float32"), (10**8, 10**8))
    with pytest.raises(MemoryError) as caught:
        ab.ops.tanh(rows)
    assert caught.value.__notes__[0].startswith("In op 'tanh'; inputs: float32[100000000,100000000]. Give it smaller")


# --- symbolic tensors -----------------------------------------------------------------------------------------------


def test_a_symbolic_tensor_is_made_by_its_class():
    x = ab.KerasTensor((None, 3), dtype="int32", name="x")
    assert isinstance(x, ab.KerasTensor)
    assert isinstance(x, ab.Tensor)
    assert (x.shape, ab.backend.standardize_dtype(x.dtype)) == ((None, 3), "int32")
    assert layers.Embedding(7, 2)(x).shape == (None, 3, 2)
    assert layers.Dense(4).compute_output_shape((None, 3)) == (None, 4)
    assert not isinstance(np.ones(3), ab.KerasTensor)
    with pytest.raises(ValueError, match="sparse=True and ragged=True are not supported"):
        ab.KerasTensor((3,), sparse=True)


def test_masks_have_the_name_of_keras():
    ids = ab.Input((None,), dtype="int32")
    embedded = layers.Embedding(4, 3, mask_zero=True)(ids)
    assert embedded._keras_mask.shape == (None, None)  # pyright: ignore[reportAttributeAccessIssue]
    assert getattr(ids, "_keras_mask", None) is None
    assert not hasattr(layers.Dense(2)(ab.Input((3,))), "_keras_mask")
    x: Any = ab.Input((4, 2))
    x._keras_mask = ids > 0
    mask = layers.LSTM(3, return_sequences=True)(x)._keras_mask
    assert mask is x._keras_mask


# --- optional inputs ------------------------------------------------------------------------------------------------


@ab.saving.register_keras_serializable("scripts")
class AddedIfThere(layers.Layer):
    def call(self, first: Any, second: Any = None) -> Any:
        return first * 2.0 if second is None else first * 2.0 + second


@pytest.mark.parametrize("as_dict", [False, True])
def test_optional_inputs_may_be_left_out(as_dict: bool, tmp_path: Path):
    first, second = ab.Input((3,), name="first"), ab.Input((3,), name="second", optional=True)
    inputs = {"first": first, "second": second} if as_dict else [first, second]
    model = ab.Model(inputs, layers.Dense(1, kernel_initializer="ones")(AddedIfThere()(first, second)))

    def given(other: Any) -> Any:
        return {"first": X, "second": other} if as_dict else [X, other]

    for made in (model, saved_and_loaded(model, tmp_path)):
        np.testing.assert_allclose(made.predict(given(None), verbose=0), 2 * Y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(made.predict(given(X), verbose=0), 3 * Y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(made(given(None)), 2 * Y, rtol=1e-5, atol=1e-6)
    model.compile("sgd", "mse")
    assert model.evaluate(given(None), 2 * Y, verbose=0) == pytest.approx(0, abs=1e-9)
    assert model.fit(given(None), 2 * Y + 1, batch_size=2, verbose=0).history["loss"][0] > 0
    if as_dict:
        np.testing.assert_allclose(model.predict({"first": X}, verbose=0), model.predict(given(None), verbose=0))


def saved_and_loaded(model: Any, folder: Path) -> Any:
    model.save(folder / "model.keras")
    return ab.load_model(folder / "model.keras")


def test_other_inputs_may_not_be_left_out():
    first, second = ab.Input((3,), name="first"), ab.Input((3,), name="second")
    model = ab.Model([first, second], first + second)
    with pytest.raises(ValueError, match=r"input 'second' is None\. Give its data, or make it with .*optional=True"):
        model([X, None])
