"""Saving and loading: what goes out comes back, and what can't come back changes nothing."""

import io
import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.archive import atomic_write
from anabranch.saving import SavedFileError

layers = ab.layers
X = np.random.default_rng(0).normal(size=(6, 5, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(6, 2)).astype("float32")


@ab.saving.register_keras_serializable(package="tests")
class DecayCell(layers.Layer):
    """A cell: h' = tanh(x k + decay h)."""

    def __init__(self, units: int, decay: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.decay = decay
        self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")

    def call(self, inputs: Any, states: Any) -> Any:
        state = ab.ops.tanh(inputs @ self.kernel + self.decay * states[0])
        return state, [state]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "decay": self.decay}


@ab.saving.register_keras_serializable(package="tests")
class Mixer(ab.Model):
    """A subclassed model."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.cells = {"first": layers.RNN(DecayCell(units)), "second": layers.LSTM(units)}
        self.head = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.head(self.cells["first"](inputs) * self.cells["second"](inputs))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@ab.saving.register_keras_serializable(package="tests")
class Functionlike(ab.Model):
    """A functional model by subclassing."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        inputs = ab.Input((5, 3))
        super().__init__(inputs, layers.Dense(2)(layers.GRU(units)(inputs)), **kwargs)
        self.units = units

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "units": self.units}


def sequential() -> Any:
    return ab.Sequential([ab.Input((5, 3)), layers.LSTM(4), layers.LayerNormalization(), layers.Dense(2)])


def unbuilt_sequential() -> Any:
    model = ab.Sequential([layers.RNN(DecayCell(3, decay=0.25)), layers.Dense(2)])
    model(X)
    return model


def functional() -> Any:
    inputs = ab.Input((5, 3), name="sequence")
    shared = layers.GRU(3)
    nested = ab.Sequential([ab.Input((3,)), layers.Dense(3, activation="relu")], name="nested")
    joined = layers.Concatenate()([nested(shared(inputs)), shared(ab.ops.tanh(inputs) * 2.0)])
    return ab.Model(inputs, layers.Dense(2)(joined))


def subclassed() -> Any:
    model = Mixer(3)
    model(X)
    return model


def frozen() -> Any:
    model = sequential()
    model.layers[0].trainable = False
    return model


MODELS = [sequential, unbuilt_sequential, functional, subclassed, lambda: Functionlike(3), frozen]
NAMES = ["sequential", "unbuilt_sequential", "functional", "subclassed", "functionlike", "frozen"]


def trained(model: Any, optimizer: Any = "adam") -> Any:
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    model.fit(X, Y, epochs=2, batch_size=3, verbose=0, shuffle=False)
    return model


def state(model: Any) -> list[np.ndarray]:
    optimizer = getattr(model, "optimizer", None)
    return model.get_weights() + ([v.numpy() for v in optimizer.variables] if optimizer is not None else [])


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their)


# --- there and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_a_saved_model_predicts_the_same(make, tmp_path):
    model = make()
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    assert type(again) is type(model)
    assert again.name == model.name
    assert_same(again.get_weights(), model.get_weights())
    np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))


@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_weights_go_into_another_instance(make, tmp_path):
    model, other = trained(make()), make()
    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    assert_same(other.get_weights(), model.get_weights())


OPTIMIZERS = {
    "adam": lambda: ab.optim.Adam(0.01),
    "amsgrad": lambda: ab.optim.Adam(0.01, amsgrad=True),
    "adamw": lambda: ab.optim.AdamW(0.01, clipnorm=1.0),
    "nadam": lambda: ab.optim.Nadam(0.01),
    "sgd": lambda: ab.optim.SGD(0.1),
    "momentum": lambda: ab.optim.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: ab.optim.RMSprop(0.01, momentum=0.9, centered=True),
    "scheduled": lambda: ab.optim.Adam(ab.optim.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "ema": lambda: ab.optim.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    "accumulating": lambda: ab.optim.Adam(0.01, gradient_accumulation_steps=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_exactly(name, tmp_path):
    model = trained(sequential(), OPTIMIZERS[name]())
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    assert_same(state(again), state(model))
    for each in (model, again):
        each.fit(X, Y, batch_size=2, epochs=2, verbose=0, shuffle=False)
    assert_same(state(again), state(model))


def test_a_model_saved_between_compile_and_fit(tmp_path):
    model = sequential()
    model.compile(optimizer=ab.optim.Adam(0.02), loss="mse")
    model.optimizer.learning_rate = 0.5
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    assert float(again.optimizer.learning_rate) == 0.5
    for each in (model, again):
        each.fit(X, Y, verbose=0, shuffle=False)
    assert_same(state(again), state(model))


def test_compile_false_leaves_the_optimizer_out(tmp_path):
    model = trained(sequential())
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras", compile=False)
    assert not again.compiled
    assert_same(again.get_weights(), model.get_weights())


def test_a_fresh_compile_gets_the_optimizer_state_with_the_weights(tmp_path):
    model = trained(sequential())
    model.save_weights(tmp_path / "m.weights.h5")
    other = sequential()
    other.compile(optimizer="adam", loss="mse")
    other.load_weights(tmp_path / "m.weights.h5")
    assert_same(state(other), state(model))


def test_weights_without_optimizer_leave_the_optimizer_alone(tmp_path):
    sequential().save_weights(tmp_path / "m.weights.h5")
    model = trained(sequential())
    before = [v.numpy() for v in model.optimizer.variables]
    model.load_weights(tmp_path / "m.weights.h5")
    assert_same([v.numpy() for v in model.optimizer.variables], before)


def test_another_optimizer_keeps_its_state_with_a_warning(tmp_path):
    trained(sequential(), "adam").save_weights(tmp_path / "m.weights.h5")
    model = trained(sequential(), ab.optim.SGD(0.1))
    before = [v.numpy() for v in model.optimizer.variables]
    with pytest.warns(UserWarning, match="optimizer 'sgd.*has 2 weights, the file 16"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert_same([v.numpy() for v in model.optimizer.variables], before)


def test_shared_layers_and_objects_stay_shared(tmp_path):
    model = functional()
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    assert len([layer for layer in again.layers if isinstance(layer, layers.GRU)]) == 1
    assert len(again.weights) == len(model.weights)


def test_bfloat16_weights(tmp_path):
    def make() -> Any:
        return ab.Sequential([ab.Input((3,)), layers.Dense(2, dtype="bfloat16")])

    model, other = make(), make()
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        kernel: Any = file["layers/dense/vars/0"]
        assert kernel.attrs["dtype"] == "bfloat16"
        assert kernel.dtype.itemsize == 2
    other.load_weights(tmp_path / "m.weights.h5")
    assert other.get_weights()[0].dtype.name == "bfloat16"
    assert_same(other.get_weights(), model.get_weights())


def test_files_of_half_precision_fit_full_precision(tmp_path):
    half = ab.Sequential([ab.Input((3,)), layers.Dense(2, dtype="float16")])
    half.save_weights(tmp_path / "m.weights.h5")
    full = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
    full.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(full.get_weights()[0], half.get_weights()[0].astype("float32"))


def test_loading_acts_at_once_also_where_a_graph_is_being_built(tmp_path):
    model = trained(sequential())
    model.save(tmp_path / "m.keras")
    other = sequential()
    other.compile(optimizer="adam", loss="mse")
    with ab.Graph().as_default() as graph:
        other.load_weights(tmp_path / "m.keras")
        assert len(graph.operations) == 0
    assert_same(state(other), state(model))


FRESH_PROCESS = """
import sys
import anabranch as ab
assert "h5py" not in sys.modules
model = ab.load_model(sys.argv[1])
import numpy as np
print(json.dumps(np.asarray(model.predict(np.ones((1, 5, 3), "float32"), verbose=0)).tolist()))
"""


def test_a_fresh_process_loads_it(tmp_path):
    model = trained(sequential(), OPTIMIZERS["scheduled"]())
    model.save(tmp_path / "m.keras")
    code = "import json" + FRESH_PROCESS
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "m.keras")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    expected = model.predict(np.ones((1, 5, 3), "float32"), verbose=0)
    np.testing.assert_allclose(json.loads(result.stdout), expected, rtol=1e-6)


# --- the tree -------------------------------------------------------------------------------------------------------


class Wide(layers.Layer):
    """All ways to hold a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"b": layers.Dense(2), "deep": [layers.Dense(2), [layers.Dense(2)], (layers.Dense(2),)]}
        self._hidden = layers.Dense(2)
        self.zeta = [layers.Dense(2), layers.Dropout(0.1), layers.Dense(2)]
        self.again = self.zeta[0]
        self._inner = layers.Dense(2)

    @property
    def inner(self) -> Any:
        return self._inner

    @property
    def not_yet(self) -> Any:
        raise ValueError("no value yet")

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(2,), name="scale")
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros", name="count")
        self.shift = self.add_weight(shape=(2,), name="shift")
        deep = self.parts["deep"]
        for layer in (*self.zeta, self._hidden, self._inner, self.parts["b"], deep[0], deep[1][0], deep[2][0]):
            layer.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


class Top(ab.Model):
    def __init__(self) -> None:
        super().__init__()
        self.wide = Wide()
        self.alpha = layers.Dense(2)
        self.rows = layers.RNN([layers.LSTMCell(2), layers.GRUCell(2)])

    def call(self, inputs: Any) -> Any:
        return self.wide(self.alpha(self.rows(inputs)))


# What Keras 3.15.1 writes for the same classes.
KERAS_TREE = """
alpha/vars alpha/vars/0 alpha/vars/1 layers/rnn/cell/cells/gru_cell/vars layers/rnn/cell/cells/gru_cell/vars/0
layers/rnn/cell/cells/gru_cell/vars/1 layers/rnn/cell/cells/gru_cell/vars/2 layers/rnn/cell/cells/lstm_cell/vars
layers/rnn/cell/cells/lstm_cell/vars/0 layers/rnn/cell/cells/lstm_cell/vars/1 layers/rnn/cell/cells/lstm_cell/vars/2
layers/rnn/cell/vars layers/rnn/vars layers/wide/_hidden/vars layers/wide/_hidden/vars/0 layers/wide/_hidden/vars/1
layers/wide/again/vars layers/wide/again/vars/0 layers/wide/again/vars/1 layers/wide/inner/vars
layers/wide/inner/vars/0 layers/wide/inner/vars/1 layers/wide/parts/container/container/dense/vars
layers/wide/parts/container/container/dense/vars/0 layers/wide/parts/container/container/dense/vars/1
layers/wide/parts/container/container_1/dense/vars layers/wide/parts/container/container_1/dense/vars/0
layers/wide/parts/container/container_1/dense/vars/1 layers/wide/parts/container/dense/vars
layers/wide/parts/container/dense/vars/0 layers/wide/parts/container/dense/vars/1 layers/wide/parts/dense/vars
layers/wide/parts/dense/vars/0 layers/wide/parts/dense/vars/1 layers/wide/vars layers/wide/vars/0 layers/wide/vars/1
layers/wide/vars/2 layers/wide/zeta/dense_1/vars layers/wide/zeta/dense_1/vars/0 layers/wide/zeta/dense_1/vars/1
layers/wide/zeta/dropout/vars vars
"""


def tree(path: Path) -> list[str]:
    found: list[str] = []
    with h5py.File(path) as file:
        file.visit(lambda name: found.append(name) if "vars" in name.split("/") else None)
    return sorted(found)


def test_the_paths_are_those_of_keras(tmp_path):
    model = Top()
    model(X)
    model.save_weights(tmp_path / "m.weights.h5")
    assert tree(tmp_path / "m.weights.h5") == sorted(KERAS_TREE.split())
    with h5py.File(tmp_path / "m.weights.h5") as file:
        wide: Any = file["layers/wide/vars"]
        assert [wide[key].shape for key in "012"] == [(2,), (2,), ()]  # trainable ones first


def test_attributes_of_functional_models_are_not_their_layers(tmp_path):
    inputs = ab.Input((2,))
    model = ab.Model(inputs, layers.Dense(2)(inputs))
    model.extra = layers.Dense(2)
    model.zoo = layers.Dense(2)
    for layer in (model.extra, model.zoo):
        layer.build((None, 2))
    model.save_weights(tmp_path / "m.weights.h5")
    groups = [name for name in tree(tmp_path / "m.weights.h5") if name.endswith("/vars")]
    assert groups == ["extra/vars", "layers/dense/vars", "layers/input_layer/vars", "zoo/vars"]


# --- files that do not fit ------------------------------------------------------------------------------------------


def dense(*units: int, inputs: int = 3) -> Any:
    return ab.Sequential([ab.Input((inputs,)), *[layers.Dense(n, name=f"d{i}") for i, n in enumerate(units)]], name="m")


def refuses(model: Any, path: Path, *words: str, **options: Any) -> None:
    before = state(model)
    with pytest.raises(SavedFileError) as caught:
        model.load_weights(path, **options)
    for word in (path.name, *words):
        assert word in str(caught.value)
    assert_same(state(model), before)


def test_every_difference_is_listed_and_nothing_is_loaded(tmp_path):
    dense(4, 5, 6).save_weights(tmp_path / "m.weights.h5")
    refuses(
        dense(4, 7),
        tmp_path / "m.weights.h5",
        "does not fit model 'm', and nothing was loaded",
        "layer 'd1' (layers/dense_1): weight 0 has shape (4, 7) in the model, (4, 5) in the file",
        "layers/dense_2: the model has nothing here, the file has weights of shape (5, 6), (6,)",
        "skip_mismatch=True",
    )


def test_weights_that_the_file_lacks(tmp_path):
    dense(4).save_weights(tmp_path / "m.weights.h5")
    refuses(dense(4, 5), tmp_path / "m.weights.h5", "layer 'd1' (layers/dense_1): the model has 2 weights, the file 0")


def test_a_dtype_that_would_lose_digits(tmp_path):
    class Counter(layers.Layer):
        def __init__(self, dtype: str) -> None:
            super().__init__()
            self.count = self.add_weight(shape=(), dtype=dtype, initializer="ones", trainable=False, name="count")

        def call(self, inputs: Any) -> Any:
            return inputs

    def make(dtype: str) -> Any:
        return ab.Sequential([ab.Input((1,)), Counter(dtype)])

    make("float32").save_weights(tmp_path / "f.weights.h5")
    refuses(make("int32"), tmp_path / "f.weights.h5", "weight 0 is int32 in the model, float32 in the file")
    make("int32").save_weights(tmp_path / "i.weights.h5")
    make("float32").load_weights(tmp_path / "i.weights.h5")


def test_skip_mismatch_loads_what_fits_and_says_what_does_not(tmp_path):
    saved = dense(4, 5)
    saved.save_weights(tmp_path / "m.weights.h5")
    model = dense(4, 7)
    head = model.layers[1].get_weights()
    with pytest.warns(UserWarning, match=r"layer 'd1' \(layers/dense_1\)"):
        model.load_weights(tmp_path / "m.weights.h5", skip_mismatch=True)
    assert_same(model.layers[0].get_weights(), saved.layers[0].get_weights())
    assert_same(model.layers[1].get_weights(), head)


def test_a_layer_that_is_not_built(tmp_path):
    class Lazy(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(2)
            self.second = layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return self.second(self.first(inputs))

    full, partial = Lazy(), Lazy()
    full(np.ones((1, 3)))
    full.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="not built and has none yet"):
        partial.load_weights(tmp_path / "m.weights.h5")
    partial.built = True
    refuses(partial, tmp_path / "m.weights.h5", "it is not built (call it on data first)")


class Vocabulary(layers.Layer):
    """A layer with its own way to save."""

    def __init__(self, size: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.table = self.add_weight(shape=(2,), initializer="zeros", name="table")

    def call(self, inputs: Any) -> Any:
        return inputs

    def save_own_variables(self, store: Any) -> None:
        store["table"] = self.table
        store["words"] = np.arange(self.size)

    def load_own_variables(self, store: Any) -> None:
        self.table.assign(store["table"])
        if len(store["words"]) > 5:
            raise ValueError("too many words")
        self.size = len(store["words"])


def test_a_layer_with_its_own_way_to_save(tmp_path):
    def make(size: int) -> Any:
        return ab.Sequential([ab.Input((3,)), layers.Dense(3), Vocabulary(size)])

    make(5).save_weights(tmp_path / "m.weights.h5")
    model = make(3)
    model.load_weights(tmp_path / "m.weights.h5")
    assert model.layers[1].size == 5


def test_a_layer_that_refuses_at_the_last_moment_leaves_all_as_it_was(tmp_path):
    def make(size: int) -> Any:
        return ab.Sequential([ab.Input((3,)), layers.Dense(3), Vocabulary(size), layers.Dense(3)])

    saved, model = make(9), make(3)
    saved.layers[1].table.assign([1.0, 2.0])
    saved.save_weights(tmp_path / "m.weights.h5")
    before = state(model)
    with pytest.raises(ValueError, match="too many words"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert_same(state(model), before)


def test_text_can_not_be_saved_as_a_weight(tmp_path):
    class Words(Vocabulary):
        def save_own_variables(self, store: Any) -> None:
            store["words"] = np.array(["a", "b"])

    model = ab.Sequential([ab.Input((3,)), Words()])
    with pytest.raises(ValueError, match="only numbers and booleans"):
        model.save_weights(tmp_path / "m.weights.h5")
    assert list(tmp_path.iterdir()) == []


# --- custom objects and code ----------------------------------------------------------------------------------------


class Unregistered(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs * 2.0


def test_a_class_that_is_not_here_is_named(tmp_path):
    ab.Sequential([ab.Input((3,)), Unregistered()]).save(tmp_path / "m.keras")
    replace_in_config(tmp_path / "m.keras", {"Unregistered": "Vanished", __name__: "elsewhere"})
    with pytest.raises(SavedFileError, match=r"m\.keras.*names class 'Vanished'.*custom_objects"):
        ab.load_model(tmp_path / "m.keras")
    model = ab.load_model(tmp_path / "m.keras", custom_objects={"Vanished": Unregistered})
    np.testing.assert_array_equal(model(np.ones((1, 3), "float32")), np.full((1, 3), 2.0))
    with ab.saving.custom_object_scope({"Vanished": Unregistered}):
        ab.load_model(tmp_path / "m.keras")


def test_lambdas_are_refused_unless_trusted(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.Sequential([ab.Input((3,)), layers.Lambda(lambda x: x * 3.0)]).save(tmp_path / "m.keras")
    with pytest.raises(SavedFileError, match="safe_mode=False"):
        ab.load_model(tmp_path / "m.keras")
    model = ab.load_model(tmp_path / "m.keras", safe_mode=False)
    np.testing.assert_array_equal(model(np.ones((1, 3), "float32")), np.full((1, 3), 3.0))


def test_a_config_that_is_no_json_names_the_place(tmp_path):
    class Odd(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "settings": {"number": 1j}}

    model = ab.Sequential([ab.Input((3,)), Odd(name="odd")])
    with pytest.raises((TypeError, ValueError), match="1j"):
        model.save(tmp_path / "m.keras")
    assert list(tmp_path.iterdir()) == []


# --- files on the disk ----------------------------------------------------------------------------------------------


def test_names_of_files(tmp_path):
    model = dense(2)
    with pytest.raises(ValueError, match=r"ends in \.keras; got .*m\.h5"):
        model.save(tmp_path / "m.h5")
    with pytest.raises(ValueError, match=r"ends in \.weights\.h5; got .*m\.keras"):
        model.save_weights(tmp_path / "m.keras")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nothing\.keras"):
        ab.load_model(tmp_path / "nothing.keras")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        model.save(tmp_path / "absent" / "m.keras")
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ab.load_model(tmp_path / "folder.keras")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        model.save(tmp_path / "folder.keras")


def test_paths_may_be_strings(tmp_path):
    model = dense(2)
    model.save(str(tmp_path / "m.keras"))
    assert_same(ab.load_model(str(tmp_path / "m.keras")).get_weights(), model.get_weights())


def test_overwrite(tmp_path):
    first, second = dense(2), dense(2)
    for save in ("save", "save_weights"):
        path = tmp_path / ("m.keras" if save == "save" else "m.weights.h5")
        getattr(first, save)(path)
        with pytest.raises(FileExistsError, match="overwrite=True"):
            getattr(second, save)(path, overwrite=False)
        getattr(second, save)(path)
        first.load_weights(path)
        assert_same(first.get_weights(), second.get_weights())


def test_an_unbuilt_model_has_no_weights_to_save(tmp_path):
    model = ab.Sequential([layers.Dense(2)])
    with pytest.raises(ValueError, match="not built and has none yet"):
        model.save_weights(tmp_path / "m.weights.h5")
    with pytest.warns(UserWarning, match="before it is built, so without weights"):
        model.save(tmp_path / "m.keras")
    assert not ab.load_model(tmp_path / "m.keras").built


class BoomError(Exception):
    pass


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.keras"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as stream:
            stream.write(b"half of the new")
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_layer_that_can_not_be_saved_leaves_the_old_file(tmp_path):
    class Broken(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

        def save_own_variables(self, store: Any) -> None:
            raise BoomError

    model = ab.Sequential([ab.Input((3,)), layers.Dense(2), Broken()])
    for name in ("m.keras", "m.weights.h5"):
        path = tmp_path / name
        path.write_bytes(b"old")
        with pytest.raises(BoomError):
            (model.save if name == "m.keras" else model.save_weights)(path)
        assert path.read_bytes() == b"old"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.keras", "m.weights.h5"]


@pytest.mark.skipif(os.name != "posix", reason="links and modes are those of POSIX")
def test_links_and_modes_stay(tmp_path):
    real, link = tmp_path / "real.keras", tmp_path / "link.keras"
    dense(2).save(real)
    real.chmod(0o640)
    link.symlink_to(real)
    model = dense(2)
    model.save(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert_same(ab.load_model(real).get_weights(), model.get_weights())


# --- wrong and hostile files ----------------------------------------------------------------------------------------


def replace_in_config(path: Path, words: dict[str, str]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = members["config.json"].decode()
    for old, new in words.items():
        config = config.replace(f'"{old}"', f'"{new}"')
    write_zip(path, {**members, "config.json": config.encode()})


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello, this is no model at all", "it is not a zip archive"),
        (b"\x89HDF\r\n\x1a\n" + b"\x00" * 100, r"is an HDF5 file.*model\.load_weights"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"PK\x03\x04 and then nothing", "damaged or cut short"),
    ],
    ids=["empty", "text", "hdf5", "lfs", "zip start"],
)
def test_other_kinds_of_files(content, message, tmp_path):
    (tmp_path / "m.keras").write_bytes(content)
    with pytest.raises(SavedFileError, match=message):
        ab.load_model(tmp_path / "m.keras")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"readme.txt": b"x"}, r"no member 'config\.json', but readme\.txt"),
        ({"config.json": b'{"class_name": 1}'}, r"no member 'model\.weights\.h5'"),
        ({"config.json": b"{}", "model.weights.npz": b""}, "needs pickle"),
        ({"config.json": b"[1, 2]", "model.weights.h5": b""}, "describes no model"),
        ({"config.json": b"{{{", "model.weights.h5": b""}, "damaged"),
        ({"config.json": b'{"class_name": "Adam", "config": {}}', "model.weights.h5": b""}, "not a model"),
    ],
    ids=["no config", "no weights", "npz", "list", "no json", "optimizer"],
)
def test_zips_that_are_no_models(members, message, tmp_path):
    write_zip(tmp_path / "m.keras", members)
    with pytest.raises(SavedFileError, match=message):
        ab.load_model(tmp_path / "m.keras")


def test_a_weights_file_that_is_no_hdf5(tmp_path):
    (tmp_path / "m.weights.h5").write_bytes(b"nothing of the kind")
    refuses(dense(2), tmp_path / "m.weights.h5", "damaged")


def write_hdf5(path: Path, fill: Any) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/d0/vars")
        fill(group, path)
    return path


def external_link(group: Any, path: Path) -> None:
    group["0"] = h5py.ExternalLink("/etc/secret.h5", "/data")


def soft_link(group: Any, path: Path) -> None:
    group["0"] = h5py.SoftLink("/elsewhere")


def external_storage(group: Any, path: Path) -> None:
    group.create_dataset("0", (3, 2), "f4", external=[(str(path) + ".raw", 0, 24)])


def virtual(group: Any, path: Path) -> None:
    layout = h5py.VirtualLayout((3, 2), "f4")
    layout[:] = h5py.VirtualSource(str(path) + ".other", "x", (3, 2), "f4")
    group.create_virtual_dataset("0", layout)


def text(group: Any, path: Path) -> None:
    group["0"] = "text"


def bomb(group: Any, path: Path) -> None:
    group.create_dataset("0", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")


def deep(group: Any, path: Path) -> None:
    for _ in range(200):
        group = group.create_group("g")


HOSTILE = {
    external_link: "link elsewhere",
    soft_link: "link elsewhere",
    external_storage: "another file",
    virtual: "another file",
    text: "not numbers",
    bomb: "next to none",
    deep: "nested more than",
}


@pytest.mark.parametrize("fill", HOSTILE, ids=lambda fill: fill.__name__)
def test_hostile_hdf5(fill, tmp_path):
    refuses(dense(2), write_hdf5(tmp_path / "m.weights.h5", fill), HOSTILE[fill])


def test_a_zip_bomb(tmp_path):
    path = tmp_path / "m.keras"
    dense(2).save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        members = {name: archive.read(name) for name in ("metadata.json", "config.json")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        with archive.open("model.weights.h5", "w") as member:
            for _ in range(300):
                member.write(b"\0" * (1 << 20))
    with pytest.raises(SavedFileError, match="would unpack"):
        ab.load_model(path)


def test_a_compressed_archive_is_read(tmp_path):
    path = tmp_path / "m.keras"
    model = dense(2)
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert_same(ab.load_model(path).get_weights(), model.get_weights())


# --- the seal of weights files --------------------------------------------------------------------------------------


def test_a_file_changed_on_purpose_is_read(tmp_path):
    path = tmp_path / "m.weights.h5"
    model = dense(2)
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        bias: Any = file["layers/dense/vars/1"]
        bias[:] = [5.0, 6.0]
    model.load_weights(path)
    np.testing.assert_array_equal(model.get_weights()[1], [5.0, 6.0])


def test_the_inner_file_of_an_archive_is_read(tmp_path):
    saved, model = dense(2), dense(2)
    saved.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        (tmp_path / "inner.weights.h5").write_bytes(archive.read("model.weights.h5"))
    model.load_weights(tmp_path / "inner.weights.h5")
    assert_same(model.get_weights(), saved.get_weights())


def test_old_names_of_layers(tmp_path):
    saved, model = dense(4, 2), dense(4, 2)
    saved.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5", "r+") as file:
        file.move("layers", "_layer_checkpoint_dependencies")
    model.load_weights(tmp_path / "m.weights.h5")
    assert_same(model.get_weights(), saved.get_weights())


def test_zeros_at_the_end_are_noticed(tmp_path):
    path = tmp_path / "m.weights.h5"
    dense(2).save_weights(path)
    content = path.read_bytes()
    for length in (1, 30, 60, 500):
        path.write_bytes(content[:-length] + b"\0" * length)
        refuses(dense(2), path, "damaged")


def test_an_inner_file_cut_short(tmp_path):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["x"] = np.arange(1000)
    for length in (0, 7, 8, 50, 500, len(stream.getvalue()) - 1):
        (tmp_path / "m.weights.h5").write_bytes(stream.getvalue()[:length])
        refuses(dense(2), tmp_path / "m.weights.h5", "damaged")
