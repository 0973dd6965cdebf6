"""Golden cases of preprocessing layers: what they learn from data and what they give, as ``preprocessing.json``.

TensorFlow has to be installed beside Keras: its string ops are what Keras's text layers run on.
"""

from __future__ import annotations

import datetime
import json
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import keras  # pyright: ignore[reportMissingImports]
import numpy as np

FOLDER = Path(__file__).resolve().parent
TEXTS = ["Hello  World, foo!", "foo bar", "", "\u00a0Ünï x\u00a0y HELLO"]
WORDS = ["", "a", "ab", "omar", "héllo wörld", "0123456", "01234567"]
WORDS += [letter * size for letter, size in zip("xyzqrstuv", (15, 16, 17, 32, 33, 64, 65, 128, 200), strict=True)]
TOKENS = [["a", "b", "a"], ["b", "c", "d"], ["", "q", "a"]]
NUMBERS = [[0.5, -3.0, 2.25], [1.5, 4.0, 2.25], [-2.0, 0.0, 9.0], [7.0, 1.0, -1.0]]
RAMP = np.arange(101.0).tolist()
Case = tuple[str, dict[str, Any], Any, Any]


def cases() -> list[Case]:
    """Layer, arguments, what it adapts to (or None) and what it is called on."""
    found: list[Case] = []
    vocabulary = {"vocabulary": ["a", "b", "c"]}
    for mode in ("int", "one_hot", "multi_hot", "count"):
        found.append(("StringLookup", {**vocabulary, "output_mode": mode}, None, TOKENS))
        found.append(("StringLookup", {"mask_token": "", "output_mode": mode, "num_oov_indices": 2}, TOKENS, TOKENS))
        found.append(("IntegerLookup", {"output_mode": mode}, [[3, 3, 5], [5, 5, 8]], [[8, 5, 1], [3, 3, 3]]))
        found.append(("TextVectorization", {"output_mode": mode}, TEXTS, TEXTS)) if mode != "one_hot" else None
        found.append(("Discretization", {"bin_boundaries": [0.0, 1.5], "output_mode": mode}, None, NUMBERS))
        found.append(("Hashing", {"num_bins": 3, "output_mode": mode}, None, [["a", "b"], ["b", "b"]]))
        if mode != "int":
            found.append(("CategoryEncoding", {"num_tokens": 4, "output_mode": mode}, None, [[0, 1], [2, 2]]))
    found += [
        ("StringLookup", {"output_mode": "tf_idf"}, TOKENS, TOKENS),
        ("StringLookup", {"max_tokens": 3}, TOKENS, TOKENS),
        ("StringLookup", {"max_tokens": 7, "pad_to_max_tokens": True, "output_mode": "count"}, TOKENS, TOKENS),
        ("StringLookup", {**vocabulary, "output_mode": "tf_idf", "idf_weights": [0.5, 0.25, 1.0]}, None, TOKENS),
        ("StringLookup", {**vocabulary, "num_oov_indices": 5, "salt": [3, 4]}, None, TOKENS),
        ("IntegerLookup", {"vocabulary": [10, 20], "num_oov_indices": 3}, None, [[10, 5, 20, 7, -1]]),
        ("IntegerLookup", {"vocabulary": [10], "num_oov_indices": 3, "oov_method": "farmhash"}, None, [[10, 5, 20]]),
        ("TextVectorization", {"output_mode": "tf_idf"}, TEXTS, TEXTS),
        ("TextVectorization", {"output_sequence_length": 2}, TEXTS, TEXTS),
        ("TextVectorization", {"output_sequence_length": 6}, TEXTS, TEXTS),
        ("TextVectorization", {"ngrams": 2}, TEXTS, TEXTS),
        ("TextVectorization", {"ngrams": [2, 3], "output_sequence_length": 4}, TEXTS, TEXTS),
        ("TextVectorization", {"split": "character", "output_sequence_length": 8}, TEXTS, TEXTS),
        ("TextVectorization", {"standardize": None}, TEXTS, TEXTS),
        ("TextVectorization", {"standardize": "lower"}, TEXTS, TEXTS),
        ("TextVectorization", {"standardize": "strip_punctuation"}, TEXTS, TEXTS),
        ("TextVectorization", {"max_tokens": 5, "pad_to_max_tokens": True, "output_mode": "count"}, TEXTS, TEXTS),
        ("Hashing", {"num_bins": 1000003}, None, WORDS),
        ("Hashing", {"num_bins": 1000003, "salt": 133}, None, WORDS),
        ("Hashing", {"num_bins": 1000003, "salt": [137, 2**40]}, None, WORDS),
        ("Hashing", {"num_bins": 10, "mask_value": "a"}, None, WORDS),
        ("Hashing", {"num_bins": 97}, None, [[1, 2, -3, 1000000007]]),
        ("Hashing", {"num_bins": 97}, None, [[1.7, 2.2, -3.9]]),
        ("HashedCrossing", {"num_bins": 1000003}, None, [["A", "B", "A"], [101, 101, 102]]),
        ("HashedCrossing", {"num_bins": 5, "output_mode": "one_hot"}, None, [["A", "B", "A"], ["x", "", "z"]]),
        ("Discretization", {"num_bins": 4}, RAMP, RAMP),
        ("Discretization", {"num_bins": 3, "epsilon": 0.1}, NUMBERS, NUMBERS),
        ("Normalization", {}, NUMBERS, NUMBERS),
        ("Normalization", {"axis": None}, NUMBERS, NUMBERS),
        ("Normalization", {"axis": [0, 1]}, NUMBERS, NUMBERS),
        ("Normalization", {"invert": True}, NUMBERS, NUMBERS),
        ("Normalization", {"mean": [1.0, 2.0, 3.0], "variance": [4.0, 0.0, 9.0]}, None, NUMBERS),
        ("Normalization", {"mean": 1.0, "variance": 4.0}, None, NUMBERS),
    ]
    return found


def make(versions: dict[str, str]) -> None:
    """Writes ``preprocessing.json`` and ``preprocessing/text.keras``."""
    lines = ",\n".join(json.dumps(run(*case), separators=(",", ":")) for case in cases())
    text = f'{{"versions": {json.dumps(versions)},\n"cases": [\n{lines}\n]}}\n'
    (FOLDER / "preprocessing.json").write_text(text, encoding="utf-8")
    save_text_model()


def run(name: str, kwargs: dict[str, Any], data: Any, inputs: Any) -> dict[str, Any]:
    """One case."""
    given = {key: tuple(value) if key == "ngrams" and value != 2 else value for key, value in kwargs.items()}
    layer = getattr(keras.layers, name)(**given)
    if data is not None:
        layer.adapt(np.array(data))
    called = [np.array(part) for part in inputs] if name == "HashedCrossing" else np.array(inputs)
    outputs = np.asarray(layer(called))
    case = {"layer": name, "kwargs": kwargs, "adapt": data, "inputs": inputs, "outputs": outputs.tolist()}
    if hasattr(layer, "get_vocabulary"):
        case["vocabulary"] = [term.item() if hasattr(term, "item") else term for term in layer.get_vocabulary()]
    if name == "Discretization":
        case["bin_boundaries"] = layer.bin_boundaries
    return case


def save_text_model() -> None:
    """A model with a vocabulary in its assets, beside what it gives."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    vectorize = keras.layers.TextVectorization(output_sequence_length=4)
    vectorize.adapt(TEXTS)
    tf_idf = keras.layers.TextVectorization(output_mode="tf_idf")
    tf_idf.adapt(TEXTS)
    text = keras.Input((1,), dtype="string")
    embedding = keras.layers.Embedding(10, 2)
    model = keras.Model(text, [embedding(vectorize(text)), tf_idf(text)])
    path = FOLDER / "preprocessing" / "text.keras"
    path.parent.mkdir(exist_ok=True)
    with mock.patch.object(datetime, "datetime", mock.Mock(now=lambda: datetime.date(2026, 1, 1))):
        model.save(path)
    with zipfile.ZipFile(path) as archive:
        assert any(name.startswith("assets/") for name in archive.namelist())
    # Layer by layer: Keras on JAX has no arrays of strings to run the whole with.
    first, second = np.asarray(embedding(vectorize(TEXTS))), np.asarray(tf_idf(TEXTS))
    outputs = {"texts": TEXTS, "embedded": first.tolist(), "tf_idf": second.tolist()}
    path.with_suffix(".json").write_text(json.dumps(outputs) + "\n", encoding="utf-8")
