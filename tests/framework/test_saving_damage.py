"""Random damage: a file either loads as it was, or is one clear error and changes nothing."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab

SavedFileError = ab.saving.SavedFileError


def make() -> Any:
    model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3), ab.layers.LayerNormalization(), ab.layers.Dense(2)])
    model.compile(optimizer="adam", loss="mse")
    model.train_on_batch(np.ones((2, 4), "float32"), np.ones((2, 2), "float32"))
    return model


def state(model: Any) -> list[bytes]:
    return [v.numpy().tobytes() for v in (*model.weights, *model.optimizer.variables)]


@functools.cache
def saved() -> tuple[dict[str, bytes], list[bytes]]:
    """The content of a file of each kind, and what the model in them is."""
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "m.keras"))
        model.save_weights(Path(folder, "m.weights.h5"))
        return {suffix: Path(folder, f"m{suffix}").read_bytes() for suffix in (".keras", ".weights.h5")}, state(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage")


def error_of(action: Callable[[], object]) -> str | None:
    """The message of the error for damaged files, if the action ends with it."""
    try:
        action()
    except SavedFileError as error:
        return str(error)
    return None


@st.composite
def damages(draw: Any) -> tuple[str, bytes]:
    """A kind of file, and its content with something wrong."""
    suffix = draw(st.sampled_from([".keras", ".weights.h5"]))
    content = bytearray(saved()[0][suffix])
    place = st.integers(0, len(content) - 1)
    kind = draw(st.sampled_from(["flip", "flips", "cut", "zeros", "gap", "insert", "swap"]))
    if kind in ("flip", "flips"):
        for position in draw(st.lists(place, min_size=1, max_size=1 if kind == "flip" else 20, unique=True)):
            content[position] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del content[draw(place) :]
    elif kind == "insert":
        position = draw(place)
        content[position:position] = draw(st.binary(min_size=1, max_size=40))
    elif kind == "swap":
        position, length = draw(place), draw(st.integers(1, 64))
        content[position : position + length] = content[position : position + length][::-1]
    else:
        position, length = draw(place), draw(st.integers(1, 512))
        length = min(length, len(content) - position)
        content[position : position + length] = b"\0" * length if kind == "zeros" else b""
    return suffix, bytes(content)


@given(damages())
def test_damaged_files_load_whole_or_not_at_all(folder, damage):
    suffix, content = damage
    path = Path(folder, f"damaged{suffix}")
    path.write_bytes(content)
    model = make()
    for variable in (*model.weights, *model.optimizer.variables):
        variable.assign(np.ones(variable.shape, variable.dtype.name))
    before = state(model)
    error = error_of(lambda: model.load_weights(path))
    if error is None:
        assert state(model) == saved()[1]
    else:
        assert path.name in error
        assert state(model) == before


@given(damages())
def test_damaged_models_load_whole_or_not_at_all(folder, damage):
    suffix, content = damage
    if suffix != ".keras":
        return
    path = Path(folder, "model.keras")
    path.write_bytes(content)
    loaded: list[Any] = []
    error = error_of(lambda: loaded.append(ab.load_model(path)))
    if error is None:
        assert state(loaded[0]) == saved()[1]
    else:
        assert path.name in error


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_undamaged_files_load(folder, suffix):
    model = make()
    path = Path(folder, f"undamaged{suffix}")
    path.write_bytes(saved()[0][suffix])
    model.load_weights(path)
    assert state(model) == saved()[1]
