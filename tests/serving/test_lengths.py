"""Sequences of several lengths in one batch: checked when a model is exported, filled up and cut back by a server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.serving_clients import ask
from shared.waiting import until

import anabranch as ab
from anabranch.framework.serving.servable import Servable
from anabranch.framework.serving.signature import Padding

PATIENCE = 60
WARMUP = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 0, 0]])


def tagger(mask: bool = True) -> ab.Model:
    """Tokens [rows, time] to "tags" [rows, time, 3], "pairs" [rows, time, time] and "all" [rows, 3]."""
    tokens = ab.Input((None,), dtype="int64", name="tokens")
    steps = ab.layers.Embedding(9, 4, mask_zero=mask)(tokens)
    tags = ab.layers.LSTM(3, return_sequences=True)(steps)
    pairs = ab.ops.matmul(steps, ab.ops.transpose(steps, (0, 2, 1)))
    return ab.Model(tokens, {"tags": tags, "pairs": pairs, "all": ab.layers.GRU(3)(steps)})


def two_inputs() -> ab.Model:
    """Tokens with kinds of the same length, and words, whose length is another."""
    tokens, kinds, words = (ab.Input((None,), dtype="int32", name=name) for name in ("tokens", "kinds", "words"))
    left = ab.layers.Embedding(9, 4, mask_zero=True)(tokens) * ab.layers.Embedding(3, 4)(kinds)
    left = ab.ops.where(ab.ops.expand_dims(tokens, -1) != 0, left, 0.0)
    right = ab.layers.Embedding(9, 4, mask_zero=True)(words)
    return ab.Model(
        {"tokens": tokens, "kinds": kinds, "words": words},
        {"sum": ab.ops.sum(left, axis=1), "words": ab.layers.GRU(2, return_sequences=True)(right)},
    )


def test_what_follows_the_length_is_found_and_written(tmp_path: Path) -> None:
    tagger().export(tmp_path / "m", verbose=False, warmup=WARMUP, pad={"tokens": 0})
    (found,) = ab.serving.load(tmp_path / "m").signature().paddings
    assert found == Padding((("tokens", 0),), (("pairs", 1), ("pairs", 2), ("tags", 1)))

    given = {"tokens": np.ones((2, 4), "int32"), "kinds": np.ones((2, 4), "int32"), "words": np.ones((2, 4), "int32")}
    two_inputs().export(tmp_path / "n", verbose=False, warmup=given, pad={"tokens": 0, "kinds": 0, "words": 0})
    alone, together = ab.serving.load(tmp_path / "n").signature().paddings
    assert alone == Padding((("words", 0),), (("words", 1),))
    assert together == Padding((("tokens", 0), ("kinds", 0)), ())


def mean(axis: int) -> ab.Model:
    tokens = ab.Input((None,), name="tokens")
    return ab.Model(tokens, ab.ops.mean(tokens, axis=axis, keepdims=True))


@pytest.mark.parametrize(
    ("model", "pad", "warmup", "message"),
    [
        (lambda: mean(1), {"tokens": 0}, WARMUP, r"output 'output_0' at \(0, 0\) is .*; it was 2.79.*has to mask"),
        (lambda: mean(0), {"tokens": 0}, WARMUP, r"computed one at a time anyway, since '.*' \(mean\)"),
        (lambda: tagger(mask=False), {"tokens": 0}, WARMUP, r"output 'all' at \(0, 0\)"),
        (tagger, {"tokens": 1}, WARMUP, r"pad=\{'tokens': 1\}"),
        (tagger, {"tokens": 0}, None, "give warmup, too"),
        (tagger, {"words": 0}, WARMUP, "no input 'words'. There are 'tokens'"),
        (tagger, {"tokens": 0.5}, WARMUP, "expected values of int64, got float64"),
        (tagger, {"tokens": [0]}, WARMUP, "expected one finite value for 'tokens'"),
        (two_inputs, {"tokens": 0}, dict.fromkeys(("tokens", "kinds", "words"), WARMUP % 3), "does not compute them"),
    ],
)
def test_what_is_not_masked_is_refused(tmp_path: Path, model: Any, pad: Any, warmup: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model().export(tmp_path, verbose=False, warmup=warmup, pad=pad)
    assert list(tmp_path.iterdir()) == []


def test_fixed_lengths_are_refused(tmp_path: Path) -> None:
    x = ab.Input((4,), name="x")
    with pytest.raises(ValueError, match=r"'x' has the shape \(None, 4\)"):
        ab.Model(x, x + 1.0).export(tmp_path, verbose=False, warmup=np.ones((1, 4)), pad={"x": 0})


def test_several_lengths_are_computed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    model = tagger()
    model.export(tmp_path, verbose=False, warmup=WARMUP, pad={"tokens": 0})
    shapes: list[tuple[int, ...]] = []
    began, free = threading.Semaphore(0), threading.Event()
    run = Servable.run

    def noted(servable: Servable, arrays: Any, *args: Any) -> list[Any]:
        shapes.append(arrays[0].shape)
        began.release()
        assert free.wait(PATIENCE)
        return run(servable, arrays, *args)

    batching = ab.serving.Batching(max_batch_size=8, max_queue_delay_ms=0)
    with ab.serving.Server({"m": tmp_path}, batching=batching) as server, ThreadPoolExecutor(8) as clients:
        monkeypatch.setattr(Servable, "run", noted)

        def predict(tokens: Any) -> Any:
            return ask(server.rest_url, "/v1/models/m:predict", {"inputs": tokens.tolist()}).json["outputs"]

        texts = [np.random.default_rng(n).integers(1, 9, (1, n)) for n in (2, 3, 8, 1, 13)]
        asked = [clients.submit(predict, texts[0])]
        assert began.acquire(timeout=PATIENCE)
        asked += [clients.submit(predict, text) for text in texts[1:]]
        until(lambda: 'under_way{model="m"} 5.0' in ask(server.rest_url, "/metrics").body.decode())
        free.set()
        found = [each.result() for each in asked]
    assert sorted(shapes) == [(1, 8), (1, 16), (4, 8)]
    for text, outputs in zip(texts, found, strict=True):
        expected = model.predict_on_batch(text)
        for name in ("tags", "pairs", "all"):
            assert np.shape(outputs[name]) == expected[name].shape
            np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-5, atol=1e-5)


def test_lengths_beyond_what_the_model_takes_are_computed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    x = ab.Input((None,), name="x")
    places = ab.ops.cumsum(ab.ops.cast(ab.ops.ones_like(x), "int32"), axis=1) - 1
    places = ab.ops.take(ab.ops.arange(20, dtype="float32"), places)
    ab.Model(x, x * places).export(tmp_path, verbose=False, warmup=np.ones((1, 3)), pad={"x": 0})
    shapes: list[tuple[int, ...]] = []
    run = Servable.run

    def noted(servable: Servable, arrays: Any, *args: Any) -> list[Any]:
        shapes.append(arrays[0].shape)
        return run(servable, arrays, *args)

    with ab.serving.Server({"m": tmp_path}) as server:
        monkeypatch.setattr(Servable, "run", noted)
        for length, status in ((18, 200), (19, 200), (21, 400), (5, 200)):
            reply = ask(server.rest_url, "/v1/models/m:predict", {"inputs": [[1.0] * length]})
            assert reply.status == status
            if status == 200:
                assert reply.json["outputs"] == [list(range(length))]
    assert shapes == [(1, 32), (1, 18), (1, 19), (1, 21), (1, 8)]
