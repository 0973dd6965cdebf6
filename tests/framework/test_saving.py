"""Saving and loading: what goes out comes back, in Keras's places."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from shared.saved_models import (
    MODELS,
    NAMES,
    X,
    Y,
    assert_same,
    functional,
    sequential,
    state,
    trained,
)

import anabranch as ab

SavedFileError = ab.saving.SavedFileError
layers = ab.layers


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
    model: Any = ab.Model(inputs, layers.Dense(2)(inputs))
    model.extra = layers.Dense(2)
    model.zoo = layers.Dense(2)
    for layer in (model.extra, model.zoo):
        layer.build((None, 2))
    model.save_weights(tmp_path / "m.weights.h5")
    groups = [name for name in tree(tmp_path / "m.weights.h5") if name.endswith("/vars")]
    assert groups == ["extra/vars", "layers/dense/vars", "layers/input_layer/vars", "zoo/vars"]


@ab.saving.register_keras_serializable(package="test_saving")
class Shifted(layers.Layer):
    """Its weight that is not trained comes first."""

    def build(self, input_shape: Any) -> None:
        self.shift = self.add_weight(shape=(2,), initializer="zeros", trainable=False, name="shift")
        self.factor = self.add_weight(shape=(2,), initializer="ones", name="factor")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor + self.shift


def test_frozen_weights_stay_in_their_places(tmp_path):
    model = ab.Sequential([ab.Input((2,)), Shifted()])
    layer: Any = model.layers[0]
    names = [weight.name for weight in model.weights]
    layer.factor.trainable = False
    assert [weight.name for weight in model.weights] == names == ["factor", "shift"]
    assert model.trainable_weights == []
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    again, fresh = ab.load_model(tmp_path / "m.keras"), ab.Sequential([ab.Input((2,)), Shifted()])
    fresh.load_weights(tmp_path / "m.weights.h5")
    for found in (again, fresh):
        np.testing.assert_array_equal(found(X[:, 0, :2]), X[:, 0, :2])


def test_large_weights_begin_at_a_cache_line_however_they_are_set(tmp_path: Path) -> None:
    # Vectors of what does not are in two lines each: a recurrent layer of one row took a fifth longer.
    def check() -> None:
        large = [weight.stored_value() for weight in model.weights if weight.stored_value().nbytes >= 1 << 15]
        assert [array.ctypes.data % 64 for array in large] == [0, 0]

    x = np.zeros((4, 3, 96), "float32")
    model = ab.Sequential([ab.Input((3, 96)), ab.layers.LSTM(64), ab.layers.Dense(2)])
    weights = [np.array(weight, "float64") for weight in model.get_weights()]
    for _ in range(4):  # memory of the allocator begins at a line by chance
        model.set_weights(weights)
        check()
        model.save_weights(tmp_path / "all.weights.h5")
        model.load_weights(tmp_path / "all.weights.h5")
        check()
    model.save(tmp_path / "all.keras")
    model = ab.load_model(tmp_path / "all.keras")
    check()
    model.compile("sgd", "mse")
    for _ in range(2):  # what the first call has saved the second one reads
        model.fit(
            x, np.zeros((4, 2)), verbose=0, callbacks=[ab.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)]
        )
        check()
