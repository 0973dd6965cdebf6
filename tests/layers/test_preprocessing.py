"""Preprocessing layers: against Keras's numbers, on known values, saved and loaded, and inside models."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.saving.api import deserialize_keras_object, serialize_keras_object
from anabranch.framework.saving.archive import SavedFileError

L = ab.layers
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "preprocessing.json").read_text(encoding="utf-8"))["cases"]
TEXTS = ["Hello  World, foo!", "foo bar", "", "x y HELLO"]


def case_name(case: dict[str, Any]) -> str:
    return f"{case['layer']}-{json.dumps(case['kwargs'])}"


def made(case: dict[str, Any]) -> Any:
    kwargs = {key: tuple(value) if key == "ngrams" and value != 2 else value for key, value in case["kwargs"].items()}
    layer = getattr(L, case["layer"])(**kwargs)
    if case["adapt"] is not None:
        layer.adapt(np.array(case["adapt"]))
    return layer


def inputs_of(case: dict[str, Any]) -> Any:
    if case["layer"] == "HashedCrossing":
        return [np.array(part) for part in case["inputs"]]
    return np.array(case["inputs"])


_results: dict[str, Any] = {}


def result_of(case: dict[str, Any]) -> tuple[Any, Any]:
    """The layer of a case and its outputs, made once."""
    name = json.dumps(case)
    if name not in _results:
        layer = made(case)
        _results[name] = layer, layer(inputs_of(case))
    return _results[name]


# --- Keras's numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_layers_learn_and_give_what_keras_does(case: dict[str, Any]) -> None:
    layer, outputs = result_of(case)
    np.testing.assert_allclose(outputs, np.array(case["outputs"]), rtol=1e-5, atol=1e-6)
    if "vocabulary" in case:
        assert layer.get_vocabulary() == case["vocabulary"]
        assert layer.vocabulary_size() == len(case["vocabulary"])
    if "bin_boundaries" in case:
        np.testing.assert_allclose(layer.bin_boundaries, case["bin_boundaries"], rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_shapes_are_known_before_data_are(case: dict[str, Any]) -> None:
    layer, outputs = result_of(case)
    inputs = inputs_of(case)
    if isinstance(inputs, list):
        predicted = layer.compute_output_shape([array.shape for array in inputs])
    else:
        predicted = layer.compute_output_shape(inputs.shape)
    actual = np.shape(outputs)
    assert len(predicted) == len(actual)
    assert all(known in (None, size) for known, size in zip(predicted, actual, strict=True))


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_configs_make_the_same_layer(case: dict[str, Any], tmp_path: Path) -> None:
    layer, outputs = result_of(case)
    config = json.loads(json.dumps(serialize_keras_object(layer)))
    again = deserialize_keras_object(config)
    again.build_from_config(config.get("build_config") or {"input_shape": None})
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    again.load_own_variables(store)
    layer.save_assets(tmp_path)
    again.load_assets(tmp_path)
    np.testing.assert_array_equal(again(inputs_of(case)), outputs)
    assert again.get_config() == layer.get_config()


def test_a_model_that_keras_saved_has_its_vocabularies() -> None:
    model = ab.load_model(GOLDEN / "preprocessing" / "text.keras")
    expected = json.loads((GOLDEN / "preprocessing" / "text.json").read_text(encoding="utf-8"))
    embedded, tf_idf = model.predict(np.array(expected["texts"])[:, None], verbose=0)
    np.testing.assert_allclose(embedded, expected["embedded"], atol=1e-6)
    np.testing.assert_allclose(tf_idf, expected["tf_idf"], atol=1e-6)


# --- saved models ---------------------------------------------------------------------------------------------------


def text_model() -> Any:
    vectorize = L.TextVectorization(output_sequence_length=4)
    vectorize.adapt(TEXTS)
    return ab.Sequential([ab.Input((1,), dtype="string"), vectorize, L.Embedding(10, 2)])


def test_vocabularies_lie_in_the_archive_where_keras_has_them(tmp_path: Path) -> None:
    model = text_model()
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        place = "assets/layers/text_vectorization/"
        assert f"{place}_lookup_layer/vocabulary.txt" in archive.namelist()
        assert archive.read(f"{place}vocabulary.txt").decode().split("\n")[:3] == ["", "[UNK]", "hello"]
    again = ab.load_model(tmp_path / "model.keras")
    texts = np.array(TEXTS)[:, None]
    np.testing.assert_array_equal(again.predict(texts, verbose=0), model.predict(texts, verbose=0))


def test_configs_of_functional_models_name_strings_as_keras_does(tmp_path: Path) -> None:
    text = ab.Input((1,), dtype="string")
    model = ab.Model(text, L.StringLookup(vocabulary=["a"])(text))
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = archive.read("config.json").decode()
    assert config.count('"dtype": "string"') == 2
    assert "StringDType" not in config
    assert ab.load_model(tmp_path / "model.keras").predict(np.array([["a"]]), verbose=0).tolist() == [[1]]


@pytest.mark.parametrize("gap", [" ", "  ", "\t", " \n", "\r\n\v ", "\f\f"])
def test_any_white_space_separates(gap: str) -> None:
    layer = L.TextVectorization(vocabulary=["a", "b"])
    assert layer([f"{gap}a{gap}b{gap}"]).tolist() == [[2, 3]]


def test_weights_of_a_whole_file_bring_the_vocabulary(tmp_path: Path) -> None:
    model, other = text_model(), text_model()
    model.save(tmp_path / "model.keras")
    other.layers[0].set_vocabulary(["nothing"])
    other.load_weights(tmp_path / "model.keras")
    assert other.layers[0].get_vocabulary() == model.layers[0].get_vocabulary()


@pytest.mark.parametrize("name", ["../evil.txt", "a\\b.txt"])
def test_assets_that_lead_out_of_their_folder_are_refused(tmp_path: Path, name: str) -> None:
    text_model().save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras", "a") as archive:
        archive.writestr(f"assets/layers/text_vectorization/{name}", "x")
    with pytest.raises(SavedFileError, match="leads out of its folder"):
        ab.load_model(tmp_path / "model.keras")


def test_a_vocabulary_that_repeats_is_named_with_the_file(tmp_path: Path) -> None:
    text_model().save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "bad.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"\n[UNK]\na\na" if name.endswith("vocabulary.txt") else content)
    with pytest.raises(SavedFileError, match=r"bad.keras.*can't read its assets.*repeated terms: \['a'\]"):
        ab.load_model(tmp_path / "bad.keras")


# --- lookups --------------------------------------------------------------------------------------------------------


def test_an_inverse_lookup_gives_back_what_went_in() -> None:
    words = np.array([["b", "a"], ["c", "?"]])
    there = L.StringLookup(vocabulary=["a", "b", "c"])
    back = L.StringLookup(vocabulary=there.get_vocabulary(), invert=True)
    assert back(there(words)).tolist() == [["b", "a"], ["c", "[UNK]"]]
    assert back(np.array([-1, 99])).tolist() == ["[UNK]", "[UNK]"]
    numbers = L.IntegerLookup(vocabulary=[5, 9], invert=True)
    assert numbers([0, 1, 2]).tolist() == [-1, 5, 9]


def test_many_keys_are_found_and_others_not() -> None:
    rng = np.random.default_rng(3)
    keys = rng.permutation(5000)[:1000]
    layer = L.IntegerLookup(vocabulary=keys)
    values = np.arange(-10, 5010)
    places = {int(key): place + 1 for place, key in enumerate(keys)}
    np.testing.assert_array_equal(layer(values), [places.get(int(value), 0) for value in values])


def test_empty_and_scalar_inputs() -> None:
    layer = L.StringLookup(vocabulary=["a"])
    assert layer(np.zeros((0, 3), "U1")).shape == (0, 3)
    assert int(layer("a")) == 1
    counts = L.StringLookup(vocabulary=["a"], output_mode="count")
    assert counts(np.zeros((2, 0), "U1")).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert L.Hashing(3)(np.zeros(0, "U1")).shape == (0,)


def test_a_new_vocabulary_works_in_a_model_that_is_built() -> None:
    layer = L.StringLookup(vocabulary=["a"])
    model = ab.Sequential([ab.Input((1,), dtype="string"), layer])
    words = np.array([["a"], ["b"]])
    assert model.predict(words, verbose=0).tolist() == [[1], [0]]
    layer.set_vocabulary(["x", "b", "a"])
    assert model.predict(words, verbose=0).tolist() == [[3], [2]]


def test_the_width_of_encodings_can_not_change_after_a_call() -> None:
    layer = L.StringLookup(vocabulary=["a"], output_mode="multi_hot")
    layer([["a"]])
    layer.set_vocabulary(["b"])
    assert layer([["b"]]).tolist() == [[0.0, 1.0]]
    with pytest.raises(RuntimeError, match="had 2 terms when it was called"):
        layer.set_vocabulary(["a", "b"])


def test_a_vocabulary_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("to\nbe\n")
    assert L.StringLookup(vocabulary=str(path)).get_vocabulary() == ["[UNK]", "to", "be"]
    path.write_text("7\n-3\n")
    assert L.IntegerLookup(vocabulary=path)([-3, 7, 0]).tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="no vocabulary file"):
        L.StringLookup(vocabulary="nowhere.txt")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"vocabulary": ["a", "a"]}, "repeated terms"),
        ({"vocabulary": []}, "vocabulary is empty"),
        ({"vocabulary": ["a", ""], "mask_token": ""}, "mask token '' stands inside"),
        ({"vocabulary": ["a", "[UNK]"], "invert": True}, r"out-of-vocabulary token '\[UNK\]' stands inside"),
        ({"vocabulary": ["a", "b"], "max_tokens": 2}, "has 3 terms .* max_tokens=2"),
        ({"max_tokens": 1}, "greater than 1, got max_tokens=1"),
        ({"num_oov_indices": -1}, "num_oov_indices=-1"),
        ({"pad_to_max_tokens": True}, "needs max_tokens"),
        ({"output_mode": "few_hot"}, "output_mode='few_hot' is unknown"),
        ({"invert": True, "output_mode": "count"}, "invert=True needs output_mode='int'"),
        ({"idf_weights": [1.0]}, "for output_mode='tf_idf', got 'int'"),
        ({"vocabulary": ["a"], "output_mode": "tf_idf"}, "needs idf_weights"),
        ({"vocabulary": ["a"], "output_mode": "tf_idf", "idf_weights": [1.0, 2.0]}, r"shape \(2,\)"),
        ({"sparse": True, "output_mode": "count"}, "sparse=True is not supported"),
        ({"salt": "x"}, "salt must be an integer"),
    ],
)
def test_lookups_refuse_arguments_that_contradict_each_other(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L.StringLookup(**kwargs)


def test_lookups_refuse_inputs_of_another_kind() -> None:
    with pytest.raises(TypeError, match="looks up strings, got"):
        L.StringLookup(vocabulary=["a"])([1, 2])
    with pytest.raises(TypeError, match="looks up integers, got"):
        L.IntegerLookup(vocabulary=[1])(["1"])
    with pytest.raises(ValueError, match=r"\['z'\] are not. Consider num_oov_indices=1"):
        L.StringLookup(vocabulary=["a"], num_oov_indices=0)(["a", "z"])
    with pytest.raises(ValueError, match="made with a vocabulary"):
        L.StringLookup(vocabulary=["a"]).adapt(["b"])
    with pytest.raises(ValueError, match="salt needs oov_method"):
        L.IntegerLookup(salt=1)
    with pytest.raises(ValueError, match="vocabulary_dtype"):
        L.IntegerLookup(vocabulary_dtype="int32")


# --- adapting to data of every form ---------------------------------------------------------------------------------


class Batches:
    """A map-style dataset."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def forms_of(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    first, second = array[:2], array[2:]
    return {
        "array": array,
        "list": array.tolist(),
        "generator": (batch for batch in (first, second)),
        "pairs": iter([(first, 1), (second, 2)]),
        "map style": Batches((first, 1), (second, 2)),
        "list of arrays": [first, second],
    }


@pytest.mark.parametrize("form", forms_of(np.zeros(4)))
def test_every_form_of_data_teaches_the_same(form: str) -> None:
    words = np.array([["a", "b"], ["c", "b"], ["c", "c"], ["d", "d"]])
    layer = L.StringLookup()
    layer.adapt(forms_of(words)[form])
    assert layer.get_vocabulary() == ["[UNK]", "c", "d", "b", "a"]
    numbers = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    scale = L.Normalization()
    scale.adapt(forms_of(numbers)[form])
    normal = scale(numbers)
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(normal.std(axis=0), 1, atol=1e-5)
    bins = L.Discretization(num_bins=2)
    bins.adapt(forms_of(np.array([[1.0], [2.0], [3.0], [4.0]]))[form])
    assert bins([1.0, 4.0]).tolist() == [0, 1]
    text = L.TextVectorization()
    text.adapt(forms_of(np.array(["a b", "c b", "c c", "d d"]))[form])
    assert text.get_vocabulary() == ["", "[UNK]", "c", "d", "b", "a"]


def test_steps_limit_what_is_taken() -> None:
    layer = L.StringLookup()
    layer.adapt((np.array([word]) for word in "abc"), steps=2)
    assert layer.get_vocabulary() == ["[UNK]", "b", "a"]


def test_adapting_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="was given no batch"):
        L.StringLookup().adapt(iter([]))
    with pytest.raises(TypeError, match=r"expects an array.*got int"):
        L.StringLookup().adapt(3)
    with pytest.raises(ValueError, match="without rows"):
        L.Normalization().adapt(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="without rows"):
        L.Normalization().adapt([])


def test_a_batch_without_rows_adds_nothing() -> None:
    lookup = L.StringLookup()
    lookup.adapt([np.array([["a"]]), np.zeros((0, 1), "U1"), np.array([["b"]])])
    assert lookup.get_vocabulary() == ["[UNK]", "b", "a"]


# --- text -----------------------------------------------------------------------------------------------------------


def test_functions_standardize_and_split_in_the_graph() -> None:
    strings = ab.ops.strings
    layer = L.TextVectorization(
        standardize=lambda texts: strings.regex_replace(texts, "<br>", " "),
        split=lambda texts: strings.split(texts, "-"),
        vocabulary=["a", "b c"],
    )
    assert layer(["a-b<br>c", "b c"]).tolist() == [[2, 3], [3, 0]]


def test_rows_of_tokens_are_taken_as_they_are() -> None:
    layer = L.TextVectorization(split=None, vocabulary=["a", "b"])
    assert layer([["a", "", "B!"]]).tolist() == [[2, 0, 3]]
    with pytest.raises(ValueError, match=r"expected shape \(batch,\) or \(batch, 1\), got \(1, 2\)"):
        L.TextVectorization()([["a", "b"]])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"standardize": "upper"}, "standardize='upper' is none of"),
        ({"split": "lines"}, "split='lines' is none of"),
        ({"ngrams": "2"}, "ngrams must be"),
        ({"ngrams": 0}, "ngrams must be a positive integer"),
        ({"ngrams": ()}, "ngrams must be a positive integer"),
        ({"ngrams": (1, -2)}, "ngrams must be a positive integer"),
        ({"ragged": True}, "ragged=True is not supported"),
        ({"output_mode": "count", "output_sequence_length": 3}, "output_sequence_length is for output_mode='int'"),
        ({"output_sequence_length": 3.0}, "must be a positive integer, got 3.0"),
        ({"output_sequence_length": -1}, "must be a positive integer, got -1"),
    ],
)
def test_text_vectorization_refuses_unknown_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L.TextVectorization(**kwargs)


def test_a_text_model_trains_from_strings() -> None:
    ab.utils.set_random_seed(0)
    texts = np.array(["good fun", "bad", "good", "bad bad fun"] * 8, dtype=object)
    labels = np.array([1, 0, 1, 0] * 8)
    vectorize = L.TextVectorization(output_mode="multi_hot")
    vectorize.adapt(texts)
    model = ab.Sequential([ab.Input((), dtype="string"), vectorize, L.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = 0.1
    model.fit(texts, labels, epochs=10, verbose=0)
    assert model.evaluate(texts, labels, verbose=0)[1] == 1.0
    assert model.predict(np.array(["good", "bad"]), verbose=0).ravel().round().tolist() == [1, 0]


# --- numbers --------------------------------------------------------------------------------------------------------


def test_normalization_inverts_itself() -> None:
    x = np.random.default_rng(1).normal(3, 2, size=(5, 4)).astype("float32")
    there, back = L.Normalization(), L.Normalization(invert=True)
    there.adapt(x)
    back.adapt(x)
    np.testing.assert_allclose(back(there(x)), x, rtol=1e-5)


def test_normalization_keeps_axes_apart_and_masks() -> None:
    x = np.random.default_rng(1).normal(size=(6, 2, 3)).astype("float32")
    layer = L.Normalization(axis=1)
    layer.adapt(x)
    expected = (x - x.mean(axis=(0, 2), keepdims=True)) / x.std(axis=(0, 2), keepdims=True)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert layer.supports_masking
    assert [weight.name for weight in layer.weights] == ["mean", "variance", "count"]
    assert layer.trainable_weights == []


def test_a_model_normalizes_with_what_it_learnt_later() -> None:
    layer = L.Normalization()
    model = ab.Sequential([ab.Input((2,)), layer])
    x = np.array([[1.0, 10.0], [3.0, 30.0]], "float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0), x)
    layer.adapt(x)
    np.testing.assert_allclose(model.predict(x, verbose=0), [[-1, -1], [1, 1]], atol=1e-6)


def test_normalization_shows_what_it_learnt_along_the_axes_of_inputs(tmp_path: Any) -> None:
    x = np.random.default_rng(1).normal(3, 2, size=(6, 2, 3)).astype("float32")
    layer = L.Normalization(axis=1)
    assert layer.mean is layer.variance is None
    layer.build((None, 2, 3))
    layer.finalize_state()
    np.testing.assert_array_equal(layer.mean, np.zeros((1, 2, 1)))
    np.testing.assert_array_equal(layer.variance, np.ones((1, 2, 1)))
    model = ab.Sequential([ab.Input((2, 3)), layer])
    layer.adapt(x)
    np.testing.assert_allclose(layer.mean, x.mean(axis=(0, 2), keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(layer.variance, x.var(axis=(0, 2), keepdims=True), rtol=1e-5)
    model.save(tmp_path / "model.keras")
    again: Any = ab.models.load_model(tmp_path / "model.keras").layers[-1]
    np.testing.assert_array_equal(again.mean, layer.mean)
    np.testing.assert_array_equal(again.variance, layer.variance)
    layer.set_weights([np.array([1.0, 2.0]), np.array([4.0, 9.0]), 0])
    layer.finalize_state()
    np.testing.assert_allclose(layer(x), (x - layer.mean) / np.sqrt(layer.variance), rtol=1e-6)


@pytest.mark.parametrize(
    ("axis", "given", "expected"),
    [
        (-1, 2.0, np.full((1, 1, 3), 2.0)),
        (None, 2.0, np.full((1, 1, 1), 2.0)),
        ((1, 2), [1.0, 2.0, 3.0], np.tile([1.0, 2.0, 3.0], (1, 2, 1))),
        ((2, 1), [[1.0], [2.0]], np.repeat([[[1.0], [2.0]]], 3, axis=2)),
    ],
)
def test_normalization_shows_what_it_was_given(axis: Any, given: Any, expected: Any) -> None:
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    layer = L.Normalization(axis, given, 4.0 * np.array(given), dtype="float64")
    np.testing.assert_allclose(layer(x), (x - expected) / np.sqrt(4 * expected), rtol=1e-12)
    np.testing.assert_array_equal(layer.mean, expected)
    np.testing.assert_array_equal(layer.variance, 4 * expected)
    assert layer.mean.dtype == "float64"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mean": 1.0}, "must both be given"),
        ({"mean": [1.0, 2.0], "variance": [1.0]}, "must have one shape"),
        ({"mean": [[1.0]], "variance": [[1.0]]}, "mean has 2 axes"),
    ],
)
def test_normalization_refuses_statistics_that_do_not_fit(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L.Normalization(**kwargs)


def test_normalization_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="is outside of inputs"):
        L.Normalization(axis=3)(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="sizes of axis="):
        L.Normalization().build((None, None))
    layer = L.Normalization()
    layer.build((None, 2))
    with pytest.raises(ValueError, match=r"data of shape \(4, 3\)"):
        layer.adapt(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="can't be adapted"):
        L.Normalization(mean=0.0, variance=1.0).adapt(np.zeros((2, 2)))


def test_discretization_refuses_what_it_can_not_use() -> None:
    with pytest.raises(ValueError, match="either bin_boundaries or num_bins"):
        L.Discretization()
    with pytest.raises(ValueError, match="either bin_boundaries or num_bins"):
        L.Discretization([1.0], num_bins=2)
    with pytest.raises(ValueError, match="must rise"):
        L.Discretization([2.0, 1.0])
    with pytest.raises(ValueError, match="num_bins=0"):
        L.Discretization(num_bins=0)
    with pytest.raises(ValueError, match="was given bin_boundaries"):
        L.Discretization([1.0]).adapt([1.0])
    with pytest.raises(ValueError, match="no boundaries yet"):
        L.Discretization(num_bins=2, output_mode="one_hot")([1.0])


def test_quantiles_of_many_batches_are_right_within_epsilon() -> None:
    rng = np.random.default_rng(2)
    layer = L.Discretization(num_bins=4, epsilon=0.01)
    data = rng.normal(size=(20, 500))
    layer.adapt(list(data))
    shares = [(data < boundary).mean() for boundary in layer.bin_boundaries or []]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.75], atol=0.02)


def test_category_encoding_counts_with_weights() -> None:
    layer = L.CategoryEncoding(4, output_mode="count")
    weights = np.array([[0.1, 0.2], [0.3, 0.4]])
    counts = layer(np.array([[0, 3], [1, 1]]), count_weights=weights)
    np.testing.assert_allclose(counts, [[0.1, 0, 0, 0.2], [0, 0.7, 0, 0]], rtol=1e-6)
    assert L.CategoryEncoding(3)([7, -1, 1]).tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="count_weights are for output_mode='count'"):
        L.CategoryEncoding(4)(np.array([[0]]), count_weights=np.ones((1, 1)))
    with pytest.raises(ValueError, match="num_tokens must be at least 1"):
        L.CategoryEncoding()


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_siphash_is_that_of_its_paper() -> None:
    from anabranch.engine.ops.fingerprints import siphash

    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    message = "".join(chr(byte) for byte in range(15))
    assert int(siphash(np.array(message), key)) == 0xA129CA6149BE45E5  # appendix A


def test_hashing_refuses_what_it_can_not_use() -> None:
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        L.Hashing(0)
    with pytest.raises(ValueError, match="'int32' or 'int64', got 'float32'"):
        L.Hashing(3, dtype="float32")
    with pytest.raises(ValueError, match="at least two features"):
        L.HashedCrossing(3)([np.array(["a"])])
    with pytest.raises(ValueError, match="the same shape"):
        L.HashedCrossing(3)([np.array(["a"]), np.array(["a", "b"])])
    with pytest.raises(ValueError, match=r"must have shape \(\), \(batch,\) or \(batch, 1\)"):
        L.HashedCrossing(3)([np.zeros((2, 2), "int64"), np.zeros((2, 2), "int64")])
    with pytest.raises(ValueError, match="strings or integers, got float64"):
        L.HashedCrossing(3)([np.array([1.5]), np.array([1])])
