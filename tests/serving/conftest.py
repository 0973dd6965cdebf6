"""A server of a few models, which the tests of its protocols share."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from shared.served_models import LETTERS, letters, two_in_two_out

import anabranch as ab


class Served(NamedTuple):
    server: Any
    letters: ab.Model
    pairs: ab.Model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    for name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("models")
    ab.utils.set_random_seed(0)
    text, pairs = letters(), two_in_two_out()
    text.export(folder / "letters", verbose=False, input_signature=LETTERS)
    pairs.export(folder / "pairs", verbose=False)
    n, words = ab.Input((), dtype="float16", name="n"), ab.Input((), dtype="string", name="words")
    ab.Model(n, {"half": n / 2, "root": ab.ops.sqrt(ab.ops.cast(n, "float32"))}).export(folder / "n", verbose=False)
    ab.Model(words, {"text": words, "text_bytes": words}).export(folder / "words", verbose=False, version=3)
    models = {name: folder / name for name in ("letters", "pairs", "n", "words")}
    with ab.serving.Server(models, max_body_bytes=1 << 20) as server:
        yield Served(server, text, pairs)
