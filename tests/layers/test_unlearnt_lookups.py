"""Lookups before `adapt`: models may be built of them, but whatever looks a value up raises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

L = ab.layers
UNLEARNT = [
    (L.StringLookup, {}, [["a"], [""]]),
    (L.StringLookup, {"num_oov_indices": 0}, [["a"]]),
    (L.StringLookup, {"vocabulary_size": 5}, [["a"]]),
    (L.StringLookup, {"output_mode": "tf_idf", "max_tokens": 5, "pad_to_max_tokens": True}, [["a"]]),
    (L.StringLookup, {"invert": True}, [[1]]),
    (L.IntegerLookup, {}, [[1], [2]]),
    (L.IntegerLookup, {"invert": True}, [[1], [2]]),
    (L.TextVectorization, {}, [["a b"]]),
    (L.TextVectorization, {"output_mode": "count", "max_tokens": 5, "pad_to_max_tokens": True}, [["a b"]]),
]


@pytest.mark.parametrize(("kind", "kwargs", "data"), UNLEARNT)
def test_a_lookup_without_a_vocabulary_is_refused(kind: Any, kwargs: Any, data: Any) -> None:
    layer, array = kind(**kwargs, name="words"), np.array(data)
    dtype = "int64" if array.dtype.kind == "i" else "string"
    model = ab.Sequential([ab.Input((1,), dtype=dtype), layer])
    traced = ab.function(lambda: layer(array))
    with ab.Graph().as_default() as graph:
        inputs = ab.placeholder((None, 1), dtype=dtype)
        fetched = layer(inputs)
    session = ab.Session(graph)
    ways: list[Callable[[], Any]] = [
        lambda: layer(data),
        traced,
        lambda: model.predict(array, verbose=0),
        lambda: session.run(fetched, {inputs: array}),
    ]
    for way in ways:
        with pytest.raises(RuntimeError, match=r"Layer 'words' has no vocabulary yet.*adapt\(\).*vocabulary="):
            way()
    layer.adapt([7, 1, 1] if kind is L.IntegerLookup else ["b", "a", "a"])
    expected = np.asarray(layer(data)).tolist()
    assert [np.asarray(way()).tolist() for way in ways] == [expected] * 4


def test_encodings_as_wide_as_the_vocabulary_need_one_to_be_built() -> None:
    layer = L.StringLookup(output_mode="count", name="words")
    with pytest.raises(RuntimeError, match=r"'words' has no vocabulary yet.*width of its output in mode 'count'"):
        layer(ab.Input((1,), dtype="string"))
    with pytest.raises(RuntimeError, match="'words' has no vocabulary yet"):
        layer([["a"]])


def test_a_lookup_that_learnt_nothing_is_saved_and_copied(tmp_path: Path) -> None:
    layer = L.StringLookup(output_mode="tf_idf", max_tokens=5, pad_to_max_tokens=True, name="words")
    model = ab.Sequential([ab.Input((1,), dtype="string"), layer])
    model.save(tmp_path / "model.keras")
    opened = ab.models.load_model(tmp_path / "model.keras")
    for made in (opened, copy.deepcopy(model)):
        with pytest.raises(RuntimeError, match="'words' has no vocabulary yet"):
            made.predict(np.array([["a"]]), verbose=0)
        made.layers[-1].adapt(["a"])
        assert made.predict(np.array([["a"]]), verbose=0).argmax() == 1


def test_a_vocabulary_may_follow_when_the_model_is_built() -> None:
    layer = L.StringLookup()
    assert layer.get_vocabulary() == []
    model = ab.Sequential([ab.Input((1,), dtype="string"), layer])
    layer.adapt(["b", "b", "a"])
    assert model.predict(np.array([["a"], ["b"]]), verbose=0).tolist() == [[2], [1]]
