"""Layers of texts, exported and computed by onnxruntime: white space, punctuation, case, and what ONNX can't do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import run_file

import anabranch as ab
from anabranch import layers
from anabranch.framework.onnx.errors import OnnxError

pytest.importorskip("onnxruntime")
VOCABULARY = ["the", "cat", "sat", "on", "mat", "dont", "don't", "a\\b"]
TEXTS = ["The cat, sat!", "  on\tTHE \r\n mat. ", "", " \t ", "don't\x0ba\\b", "été [the] ^cat-sat", "...", "\u00a0cat"]


def exported(folder: Path, **settings: Any) -> tuple[ab.Model, Path]:
    layer = layers.TextVectorization(vocabulary=VOCABULARY, **settings)
    model = ab.Sequential([ab.Input((), dtype="string", name="x"), layer])
    model.export(folder / "m.onnx", "onnx", verbose=False)
    return model, folder / "m.onnx"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"standardize": None},
        {"standardize": "lower", "output_sequence_length": 3},
        {"standardize": "strip_punctuation", "output_mode": "multi_hot"},
        {"ngrams": 2},
        {"split": None},
    ],
    ids=["default", "as they are", "lower", "punctuation", "ngrams", "whole"],
)
def test_texts_become_the_same_numbers(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, path = exported(tmp_path, **settings)
    for texts in (TEXTS, TEXTS[:1], ["", "  "], TEXTS[2:3]):
        wanted = np.asarray(model.predict(np.array(texts), verbose=0))
        (found,) = run_file(path, {"x": np.array(texts, object)})
        np.testing.assert_array_equal(found, wanted)


def test_listed_characters_go(tmp_path: Path) -> None:
    x = ab.placeholder((None, 2), "string", "x")
    y = ab.ops.strings.regex_replace(x, r"[a\]\-b]", "")
    ab.onnx.export_graph(tmp_path / "m.onnx", {"x": x}, {"y": y})
    (found,) = run_file(tmp_path / "m.onnx", {"x": np.array([["a-b]c", "^"], ["", "ab"]], object)})
    assert found.tolist() == [["c", "^"], ["", ""]]


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (layers.TextVectorization(vocabulary=["a"], split="character"), "before the model, such as split='character'"),
        (layers.StringLookup(vocabulary=["a"], num_oov_indices=2), "num_oov_indices=1 are exported"),
        (layers.StringLookup(vocabulary=["a"], num_oov_indices=0), "Give num_oov_indices=1"),
        (layers.Hashing(7), "Lookups with a vocabulary and num_oov_indices=1"),
    ],
    ids=["characters", "several for others", "none for others", "hashing"],
)
def test_what_onnx_lacks_is_refused_with_its_remedy(tmp_path: Path, layer: Any, remedy: str) -> None:
    model = ab.Sequential([ab.Input((), dtype="string", name="x"), layer])
    with pytest.raises(OnnxError, match=remedy):
        model.export(tmp_path / "m.onnx", "onnx", verbose=False)


@pytest.mark.parametrize(
    ("pattern", "rewrite"), [("[a-c]", ""), ("[^a]", ""), (r"[\d]", ""), ("[ab]", "c"), ("ab", "")]
)
def test_other_patterns_are_refused(tmp_path: Path, pattern: str, rewrite: str) -> None:
    x = ab.placeholder((None,), "string", "x")
    y = ab.ops.strings.regex_replace(x, pattern, rewrite)
    with pytest.raises(OnnxError, match="replaces nothing within texts"):
        ab.onnx.export_graph(tmp_path / "m.onnx", {"x": x}, {"y": y})
