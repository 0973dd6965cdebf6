"""Actions that a saved model may not take when it is loaded, unless the user says that they trust it."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from shared.saved_models import write_zip

import anabranch as ab
from anabranch import layers, optim

SavedFileError = ab.saving.SavedFileError


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def forge(path: Path, change: Callable[[Any], object]) -> Path:
    """Change the config of a saved model; the checksums of the archive fit."""
    members = members_of(path)
    config = json.loads(members["config.json"])
    change(config)
    forged = path.with_name(f"forged-{path.name}")
    write_zip(forged, {**members, "config.json": json.dumps(config).encode()})
    return forged


def saved(folder: Path, *inner: Any, shape: Any = (4,), dtype: str = "float32", compiled: Any = None) -> Path:
    model = ab.Sequential([ab.Input(shape, dtype=dtype), *inner])
    if compiled is not None:
        model.compile(**compiled)
    model.save(folder / "m.keras")
    return folder / "m.keras"


def layer_config(config: Any, index: int) -> Any:
    return config["config"]["layers"][index]["config"]


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- other files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (layers.StringLookup, "string"),
        (layers.IntegerLookup, "int64"),
        (layers.TextVectorization, "string"),
    ],
)
def test_a_vocabulary_in_another_file_is_not_read(tmp_path: Path, make: Any, dtype: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("17\n23\n")
    terms: list[Any] = [1, 2] if dtype == "int64" else ["a", "b"]
    path = saved(tmp_path, make(vocabulary=terms), shape=(1,), dtype=dtype)

    def change(config: Any) -> None:
        layer_config(config, 1).update(vocabulary=str(secret), vocabulary_size=None)

    forged = forge(path, change)
    with pytest.raises(SavedFileError, match=r"names the file .*secret\.txt.*safe_mode=False"):
        ab.load_model(forged)
    trusted: Any = ab.load_model(forged, safe_mode=False)
    assert str(trusted.layers[-1].get_vocabulary()[-1]) == "23"
    config = json.loads(members_of(forged)["config.json"])["config"]["layers"][1]
    with pytest.raises(ValueError, match="names the file"):
        layers.deserialize(config)
    assert str(make(vocabulary=str(secret)).get_vocabulary()[-1]) == "23"  # a script's own


# --- classes --------------------------------------------------------------------------------------------------------


class Spy(layers.Layer):
    """A class that the program imported, and never meant to be named by files."""

    made: list[dict[str, Any]] = []  # noqa: RUF012

    def call(self, x: Any) -> Any:
        return x

    @classmethod
    def from_config(cls, config: Any) -> Any:
        cls.made.append(config)
        return super().from_config(config)


def test_only_classes_that_somebody_registered_are_made(tmp_path: Path) -> None:
    path = saved(tmp_path, Spy(), layers.Dense(2))
    assert json.loads(members_of(path)["config.json"])["config"]["layers"][1]["module"] == __name__
    Spy.made.clear()
    with pytest.raises(SavedFileError, match=r"class 'Spy'.*register_keras_serializable.*custom_objects"):
        ab.load_model(path)
    assert Spy.made == []
    assert ab.load_model(path, custom_objects={"Spy": Spy}).layers[0].name == "spy"
    assert ab.load_model(path, safe_mode=False).layers[0].name == "spy"
    assert len(Spy.made) == 2


def test_classes_of_other_packages_are_not_made(tmp_path: Path) -> None:
    path = saved(tmp_path, layers.Dense(2))
    names = {"module": "test_saving_trust", "class_name": "Spy", "config": {}, "registered_name": "Spy"}

    def change(config: Any) -> None:
        layer_config(config, 1)["kernel_initializer"] = names

    with pytest.raises(SavedFileError, match="class 'Spy'"):
        ab.load_model(forge(path, change))


class Cell(layers.SimpleRNNCell):
    pass


def test_what_a_program_copies_itself_needs_no_registration() -> None:
    inputs = ab.Input((3, 2))
    model = ab.Model(inputs, layers.Bidirectional(layers.RNN(Cell(2)))(inputs))
    assert ab.models.clone_model(model).count_params() == model.count_params()


# --- memory ---------------------------------------------------------------------------------------------------------


def test_assets_that_unpack_to_far_more_than_the_file_are_not_unpacked(tmp_path: Path) -> None:
    path = saved(tmp_path, layers.StringLookup(), shape=(1,), dtype="string")
    bomb = tmp_path / "bomb.keras"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members_of(path).items():
            archive.writestr(name, content)
        for number in range(5):
            archive.writestr(f"assets/layers/string_lookup/{number}.txt", bytes(10_000_000))
    assert bomb.stat().st_size < 100_000

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"would unpack .* bytes to 50,.*safe_mode=False"):
            ab.load_model(bomb)

    assert peak_of(load) < 5_000_000
    ab.load_model(bomb, safe_mode=False)


LIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "units": (lambda: layers.Dense(2), {"units": 400_000_000}, {}),
    "filters": (lambda: layers.Conv1D(2, 1), {"filters": 10**9}, {"shape": (4, 3)}),
    "input_dim": (lambda: layers.Embedding(3, 2), {"input_dim": 10**9}, {}),
    "states": (
        lambda: layers.SimpleRNN(2, stateful=True),
        {"units": 20_000},
        {"shape": (4, 3)},
    ),
    "padding": (
        lambda: layers.StringLookup(
            vocabulary=["a"], idf_weights=[1.0], output_mode="tf_idf", pad_to_max_tokens=True, max_tokens=5
        ),
        {"max_tokens": 10**9},
        {"shape": (1,), "dtype": "string"},
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_size_is_refused_before_its_memory_is_taken(tmp_path: Path, lie: str) -> None:
    make, wrong, arguments = LIES[lie]
    if lie == "states":
        model = ab.Sequential([ab.Input((4, 3), batch_size=2), make()])
        model.save(tmp_path / "m.keras")
        path = tmp_path / "m.keras"
    else:
        path = saved(tmp_path, make(), **arguments)
    forged = forge(path, lambda config: layer_config(config, 1).update(wrong))

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"takes [\d,]+ bytes, but all arrays of the file have [\d,]+ bytes"):
            ab.load_model(forged)

    assert peak_of(load) < 50_000_000


def test_lying_constants_are_refused_before_their_memory_is_taken(tmp_path: Path) -> None:
    x = ab.Input((4,))
    ab.Model(x, ab.ops.multiply(x, 2.0) + ab.ops.sum(x)).save(tmp_path / "m.keras")

    def change(config: Any) -> None:
        entry = next(entry for entry in config["config"]["layers"] if entry["class_name"] == "Multiply")
        full = {"class_name": "Full", "config": {"name": "full", "shape": [10**9], "dtype": "float32"}}
        calls = [{"args": [1.0], "kwargs": {}}]
        config["config"]["layers"].append(
            {**full, "name": "full", "module": "keras.src.ops.numpy", "registered_name": "Full", "inbound_nodes": calls}
        )
        tensor = {"shape": [10**9], "dtype": "float32", "keras_history": ["full", 0, 0]}
        entry["inbound_nodes"][0]["args"][1] = {"class_name": "__keras_tensor__", "config": tensor}
        config["config"]["layers"][0]["config"]["batch_shape"] = [None, 1]

    def load() -> None:
        with pytest.raises(SavedFileError, match="but all arrays of the file have"):
            ab.load_model(forge(tmp_path / "m.keras", change))

    assert peak_of(load) < 50_000_000


def test_an_op_that_is_many_operations_is_refused_before_it_is_built(tmp_path: Path) -> None:
    x = ab.Input((4,))
    ab.Model(x, ab.ops.diff(x, n=2, axis=0)).save(tmp_path / "m.keras")

    def change(config: Any) -> None:
        next(entry for entry in config["config"]["layers"] if entry["class_name"] == "Diff")["config"]["n"] = 10**9

    def load() -> None:
        with pytest.raises(SavedFileError, match="diff: its operations, for n=1000000000, of shape"):
            ab.load_model(forge(tmp_path / "m.keras", change))

    assert peak_of(load) < 50_000_000


def test_an_input_of_many_rows_takes_no_memory(tmp_path: Path) -> None:
    text = layers.TextVectorization(output_mode="count", max_tokens=5, pad_to_max_tokens=True)
    text.adapt(["a b c"])
    path = saved(tmp_path, text, shape=(), dtype="string")
    forged = forge(path, lambda config: layer_config(config, 0).update(batch_shape=[10**8]))
    assert peak_of(lambda: ab.load_model(forged)) < 50_000_000


@pytest.mark.parametrize("metric", ["AUC", "PrecisionAtRecall"])
def test_lying_metrics_are_refused_before_their_memory_is_taken(tmp_path: Path, metric: str) -> None:
    made = ab.metrics.AUC() if metric == "AUC" else ab.metrics.PrecisionAtRecall(0.5)
    path = saved(tmp_path, layers.Dense(1), compiled={"optimizer": "sgd", "loss": "mse", "metrics": [made]})

    def change(config: Any) -> None:
        config["compile_config"]["metrics"][0]["config"].update(num_thresholds=10**9)

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"list of thresholds.* takes"):
            ab.load_model(forge(path, change))

    assert peak_of(load) < 50_000_000


@pytest.mark.parametrize("lie", [10**6, 10**12, [10**9, 1]])
def test_long_ngrams_are_refused_before_their_operations_are_made(tmp_path: Path, lie: Any) -> None:
    layer = layers.TextVectorization(vocabulary=["a", "b"], ngrams=2, output_sequence_length=3)
    path = saved(tmp_path, layer, shape=(1,), dtype="string")
    assert ab.load_model(path)(np.array([["a b"]], "T")).shape == (1, 3)

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"ngrams=.* takes"):
            ab.load_model(forge(path, lambda config: layer_config(config, 1).update(ngrams=lie)))

    assert peak_of(load) < 50_000_000


@pytest.mark.parametrize("kind", [layers.StringLookup, layers.IntegerLookup])
def test_many_tokens_of_no_vocabulary_are_refused_before_they_are_made(tmp_path: Path, kind: Any) -> None:
    dtype, terms = ("string", ["a"]) if kind is layers.StringLookup else ("int64", [7])
    path = saved(tmp_path, kind(vocabulary=terms, num_oov_indices=2), shape=(1,), dtype=dtype)
    assert len(ab.load_model(path).layers[0].get_vocabulary()) == 3

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"num_oov_indices=.* takes"):
            ab.load_model(forge(path, lambda config: layer_config(config, 1).update(num_oov_indices=10**9)))

    assert peak_of(load) < 50_000_000


def test_weights_that_claim_more_than_the_file_has_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, layers.Dense(2))
    stream = io.BytesIO(members_of(path)["model.weights.h5"])
    with h5py.File(stream, "a") as file:
        for number in range(3):  # each below what one array may claim
            file.create_dataset(f"layers/dense/more/vars/{number}", (2_500_000,), "float64", chunks=(1000,))
    forged = tmp_path / "forged.keras"
    write_zip(forged, {**members_of(path), "model.weights.h5": stream.getvalue()})

    def load() -> None:
        with pytest.raises(SavedFileError, match=r"claim 40,000,\d+ bytes, more than the file has"):
            ab.load_model(forged)

    assert peak_of(load) < 5_000_000


def test_models_of_many_small_weights_and_of_few_large_ones_load(tmp_path: Path) -> None:
    path = saved(tmp_path, *[layers.Dense(4) for _ in range(60)], layers.Dense(300_000))
    assert ab.load_model(path).count_params() == 60 * 20 + 5 * 300_000


def test_weights_of_half_the_precision_load(tmp_path: Path) -> None:
    inner = layers.Dense(3_000_000)
    path = saved(tmp_path, inner, shape=(2,))
    stream = io.BytesIO(members_of(path)["model.weights.h5"])
    with h5py.File(stream, "a") as file:
        for name in ("0", "1"):
            values = np.asarray(file[f"layers/dense/vars/{name}"])
            del file[f"layers/dense/vars/{name}"]
            file[f"layers/dense/vars/{name}"] = values.astype("float16")
    write_zip(tmp_path / "half.keras", {**members_of(path), "model.weights.h5": stream.getvalue()})
    loaded = ab.load_model(tmp_path / "half.keras")
    np.testing.assert_allclose(loaded.get_weights()[0], inner.get_weights()[0], atol=1e-3)


def test_an_optimizer_that_made_no_step_yet_is_no_lie(tmp_path: Path) -> None:
    path = saved(tmp_path, layers.Dense(1_500_000), compiled={"optimizer": "adam", "loss": "mse"})
    assert ab.load_model(path).optimizer is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.Adam(0.25),
        lambda: optim.LossScaleOptimizer(optim.Adam(0.25)),
        lambda: optim.SWA(optim.LossScaleOptimizer(optim.SGD(0.25, momentum=0.5))),
        lambda: optim.MultiOptimizer(optim.OptimizerMap(optim.SGD(0.25), {".*kernel": optim.Adam(0.5)})),
    ],
    ids=["adam", "loss scale", "averages", "several"],
)
def test_a_file_from_before_the_first_step_goes_on_with_its_rates(tmp_path: Path, make: Callable[[], Any]) -> None:
    """No difference is reported (warnings are errors), and what a schedule has set before the first step holds."""
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
    optimizer = make()
    model.compile(optimizer, "mse")
    for maker in optimizer.makers:
        maker.learning_rate = 0.125
    model.save(tmp_path / "m.keras")
    loaded = ab.load_model(tmp_path / "m.keras")
    assert [float(maker.learning_rate) for maker in loaded.optimizer.makers] == [0.125 for _ in optimizer.makers]
    x, y = np.ones((4, 3)), np.ones((4, 2))
    for each in (model, loaded):
        each.fit(x, y, epochs=2, verbose=0)
    for old, new in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_old_files_are_held_to_the_same(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((4,)), layers.Dense(2)])
    model.save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5", "a") as file:
        config = json.loads(str(file.attrs["model_config"]))
        config["config"]["layers"][1]["config"]["units"] = 400_000_000
        file.attrs["model_config"] = json.dumps(config)

    def load() -> None:
        with pytest.raises(SavedFileError, match="but all arrays of the file have"):
            ab.load_model(tmp_path / "m.h5")

    assert peak_of(load) < 50_000_000
