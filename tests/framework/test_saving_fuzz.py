"""Mutated files: each is an error or a model, and takes little memory."""

import copy
import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

KINDS = ("bytes", "config", "directory", "weights", "assets")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MOST_BYTES = 200 << 20  # beside 4 times the file


def models() -> list[Any]:
    """Return models with the parts that files describe."""
    inputs = ab.Input((4, 3), batch_size=2)
    hidden = layers.Conv1D(4, 2, activation="relu", kernel_regularizer="l2")(inputs) * 2.0
    functional = ab.Model(inputs, layers.SimpleRNN(1, stateful=True)(layers.LayerNormalization()(hidden)))
    functional.compile("adam", loss="mse", metrics=["mae", ab.metrics.AUC(num_thresholds=5)])

    text = layers.TextVectorization(max_tokens=20, output_mode="tf_idf", pad_to_max_tokens=True)
    text.adapt(["one two three", "two three", "three"])
    strings = ab.Sequential([ab.Input((), dtype="string"), text, layers.Dense(2)])

    lookup = layers.StringLookup(num_oov_indices=1)
    lookup.adapt(["a", "b", "b"])
    tokens = ab.Sequential([ab.Input((3,), dtype="string"), lookup, layers.Embedding(5, 2), layers.Flatten()])
    return [functional, strings, tokens, of_ops(), *of_integers()]


def of_integers() -> list[Any]:
    """Quantised models, one of them with adapters."""
    by_row = ab.Sequential([ab.Input((5,), dtype="int32"), layers.Embedding(9, 6), layers.LSTM(4), layers.Dense(3)])
    by_row.quantize("int8", include="all")
    x = ab.Input((5, 8), batch_size=2)
    by_group = ab.Model(x, layers.MultiHeadAttention(2, 4)(x, x))
    by_group.quantize(config=ab.quantizers.Int4QuantizationConfig(block_size=4))
    by_group.layers[1].output_dense.enable_lora(2)
    by_data = ab.Sequential([ab.Input((8,)), layers.Dense(6, dtype="gptq/4/4_from_float32")])
    return [by_row, by_group, by_data]


def of_ops() -> Any:
    """A model of ops whose settings are sizes, numbers and kinds of padding."""
    ops = ab.ops
    image = ab.Input((6, 6, 4))
    x = ops.conv(image, np.ones((3, 3, 2, 4), "float32"), padding="same")
    x = ops.pad(ops.max_pool(x, 2), ((0, 0), (1, 1), (0, 1), (0, 0)))
    x = ops.image.resize(ops.repeat(ops.roll(x, 1, axis=1), 2, axis=2), (4, 4))
    x = ops.einsum("bijc->bicj", ops.tile(x, (1, 1, 2, 1)))
    x = ops.clip(ops.cumsum(ops.diff(x, axis=1), axis=1), -2.0, 2.0)
    x = ops.concatenate([x, ops.full_like(x, 3.0), ops.one_hot(ops.argmax(x, axis=-1), 8)], axis=-1)
    x = ops.reshape(ops.image.extract_patches(x, 2), (-1, 384))
    values, _ = ops.top_k(x, 5)
    count = ops.arange(ops.shape(x)[0])
    return ab.Model(image, [ops.quantile(values, 0.5, axis=-1), ops.take(x, [0, 3], axis=1), x[:, ::7], count])


def saved(folder: Path) -> list[bytes]:
    files: list[bytes] = []
    for model in models():
        model.save(folder / "original.keras")
        files.append((folder / "original.keras").read_bytes())
    return files


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, cut out or put in."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 10])):
        place = draw.randrange(len(data) or 1)
        kind = draw.randrange(5)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[place : place + draw.choice([1, 4, 8])] = draw.choice([b"\xff", b"\0", b"\x7f"]) * draw.choice(
                [1, 4, 8]
            )
        elif kind == 2:
            del data[place : place + draw.randrange(1, 100)]
        elif kind == 3:
            data[place:place] = draw.randbytes(draw.randrange(1, 40))
        else:
            source = draw.randrange(len(data) or 1)
            data[place : place + 8] = data[source : source + 8]
    return bytes(data)


def places_of(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container of a config with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        places_of(inner, found)
    return found


STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**6, 10**9, 2**31, 2**63, 10**30, 0.5, -1e300, float("nan"), float("inf")),
    *("", "relu", "float16", "string", "/etc/passwd", "same", "a" * 1000),
    *([], {}, [1, 2], [10**9, 10**9], [None, 4], [[]], {"class_name": "Dense", "config": {"units": 10**9}}),
    {"class_name": "__lambda__", "config": {"value": ["4wAAAA==", None, None]}},
    {"class_name": "__numpy__", "config": {"value": [1.0, [2]], "dtype": "float32"}},
    {"class_name": "Popen", "module": "subprocess", "config": {"args": "false"}, "registered_name": None},
)


def with_strange_config(content: bytes, draw: random.Random) -> bytes:
    """Values of a config changed: to strange ones, to others of the same config, or left out."""
    config = json.loads(content)
    for _ in range(draw.choice([1, 1, 1, 3])):
        places = places_of(config, [])
        holder, key = draw.choice(places)
        kind = draw.randrange(4)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1:
            other, at = draw.choice(places)
            holder[key] = json.loads(json.dumps(other[at]))
        else:
            holder[key] = copy.deepcopy(draw.choice(STRANGE))  # which may be changed in its turn
    return json.dumps(config).encode()


def with_strange_directory(content: bytes, draw: random.Random) -> bytes:
    """Sizes, methods and offsets of the archive's entries changed."""
    data = bytearray(content)
    headers = [m.start() for m in re.finditer(rb"PK\x01\x02|PK\x03\x04|PK\x05\x06", content)]
    for _ in range(draw.choice([1, 2])):
        place = draw.choice(headers) + draw.randrange(4, 46)
        value = draw.choice([0, 1, 8, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(content), draw.getrandbits(32)])
        data[place : place + 4] = struct.pack("<I", value)
    return bytes(data)


def mutated(content: bytes, draw: random.Random) -> bytes:
    kind = draw.choice(KINDS)
    if kind == "bytes":
        return damaged(content, draw)
    if kind == "directory":
        return with_strange_directory(content, draw)
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            member = old.read(name)
            if name == "config.json" and kind == "config":
                member = with_strange_config(member, draw)
            elif (name == "model.weights.h5" and kind == "weights") or (name.startswith("assets") and kind == "assets"):
                member = damaged(member, draw)
            new.writestr(name, member)
    return stream.getvalue()


def peak_beyond_now(action: Callable[[], None]) -> int:
    """Return the most bytes of memory that the process had beyond those when the action began."""
    try:
        CLEAR.write_text("5")
        text = STATUS.read_text()
    except OSError:
        pytest.skip("this system does not tell a process's largest memory")
    before = _kilobytes("VmRSS", text)
    action()
    return 1024 * (_kilobytes("VmHWM", STATUS.read_text()) - before)


def _kilobytes(name: str, text: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    assert found
    return int(found[1])


def fuzz(folder: Path, count: int, seed: int) -> Counter[str]:
    """Load mutated files; anything but a model or a SavedFileError is raised."""
    draw, files, results = random.Random(seed), saved(folder), Counter[str]()
    path = folder / "mutated.keras"

    def load() -> None:
        try:
            ab.load_model(path)
        except ab.saving.SavedFileError:
            results["refused"] += 1
        else:
            results["loaded"] += 1

    for _ in range(count):
        content = mutated(draw.choice(files), draw)
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peak = peak_beyond_now(load)
        assert peak < 4 * len(content) + MOST_BYTES, f"{peak} bytes for a file of {len(content)}, {path}"
    return results


def test_mutated_files_are_an_error_or_a_model(tmp_path: Path) -> None:
    results = fuzz(tmp_path, 60, seed=0)
    assert results["refused"] > 20
    assert results["loaded"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_mutated_files_are_an_error_or_a_model(tmp_path: Path, seed: int) -> None:
    assert fuzz(tmp_path, 10_000, seed).total() == 10_000
