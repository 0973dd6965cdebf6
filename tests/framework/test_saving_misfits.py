"""Models that can't be loaded, or saved: one clear error, and nothing changes."""

import warnings
from typing import Any

import numpy as np
import pytest
from shared.saved_models import assert_same, dense, refuses, replace_in_config, state

import anabranch as ab

SavedFileError = ab.saving.SavedFileError
layers = ab.layers


# --- files that do not fit ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "trainable", False),
        lambda layer: layer.quantize("int8"),
        lambda layer: layer.enable_lora(2),
    ],
    ids=["frozen", "quantised", "adapters"],
)
def test_trainable_weights_changed_after_compile_load_without_the_optimizers_state(tmp_path, change):
    model, x, y = dense(4, 5), np.ones((2, 3), "float32"), np.ones((2, 5), "float32")
    model.compile("adam", "mse")
    model.fit(x, y, verbose=0)
    change(model.layers[0])
    model.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match=r"optimizer 'adam\w*' \(optimizer\)[\s\S]*call compile\(\) again") as caught:
        loaded: Any = ab.load_model(tmp_path / "m.keras")
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    loaded.fit(x, y, verbose=0)
    assert int(loaded.optimizer.iterations) == 1


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


def test_a_layer_that_saves_nothing_is_loaded_all_the_same(tmp_path):
    loaded: list[dict[str, Any]] = []

    class Derived(layers.Layer):
        """A layer that computes what it needs when it is loaded."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

        def load_own_variables(self, store: Any) -> None:
            loaded.append(dict(store))

    model = ab.Sequential([ab.Input((3,)), Derived()])
    for name in ("m.weights.h5", "m.keras"):
        (model.save if name == "m.keras" else model.save_weights)(tmp_path / name)
        model.load_weights(tmp_path / name)
    assert loaded == [{}, {}]


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


class Odd(layers.Layer):
    """A layer whose config holds what the test gives."""

    def __init__(self, value: Any) -> None:
        super().__init__(name="odd")
        self.value = value

    def call(self, inputs: Any) -> Any:
        return inputs

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "settings": self.value}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"a": object()}, TypeError, r"of type object can't be written"),
        ({(1, 2): 3}, ValueError, r"holds \(1, 2\) \(tuple\) at config\.layers\.odd\.config\.settings\.\(1, 2\)"),
    ],
)
def test_a_config_that_is_no_json_names_the_place(value, error, message, tmp_path):
    model = ab.Sequential([ab.Input((3,)), Odd(value)])
    with pytest.raises(error, match=message) as caught:
        model.save(tmp_path / "m.keras")
    assert error is ValueError or "In the config of Odd 'odd'." in caught.value.__notes__
    assert list(tmp_path.iterdir()) == []
