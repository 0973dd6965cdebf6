"""Files that Keras 2.12 to 3.15 wrote: whole models, weights, and training that goes on with the optimizer's state."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

ARCHIVES = sorted((Path(__file__).parents[1] / "golden" / "files" / "old").glob("*.zip"))
VERSIONS = [path.stem for path in ARCHIVES]
MODELS = ["text", "image"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of one version."""
    with zipfile.ZipFile(ARCHIVES[VERSIONS.index(request.param)]) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def case(folder: Path, name: str) -> tuple[Any, Any, Any, list[np.ndarray], list[np.ndarray]]:
    """Inputs, targets, predictions, the weights that were saved, and those after one more step."""
    with np.load(folder / f"{name}.npz") as arrays:
        held = dict(arrays)

    def under(letter: str) -> list[np.ndarray]:
        return [held[f"{letter}{i}"] for i in range(sum(key[0] == letter and key[1:].isdigit() for key in held))]

    x = under("x")
    return x if len(x) > 1 else x[0], held["y"], held["before"], under("w"), under("a")


def path_version(folder: Path) -> str:
    return json.loads((folder / "versions.json").read_text())["keras"]


def whole(folder: Path, name: str, suffix: str) -> Any:
    path = folder / (name + suffix)
    if not path.exists():
        pytest.skip(f"that version of Keras could not write {path.name}")
    return ab.load_model(path)


def test_the_versions():
    assert VERSIONS == ["2.12.0", "2.13.1", "2.15.0", "3.0.5", "3.15.1", "3.3.3", "3.8.0"]


@pytest.mark.parametrize("folder", VERSIONS, indirect=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_whole_models_predict_and_go_on_training(folder: Path, name: str, suffix: str):
    x, y, before, saved, after = case(folder, name)
    model = whole(folder, name, suffix)
    for ours, theirs in zip(model.get_weights(), saved, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)
    model.fit(x, y, epochs=1, batch_size=len(y), shuffle=False, verbose=0)
    version = path_version(folder)
    if version.startswith("3.0.") and name == "image":
        return  # Keras 3.15 goes on otherwise from that file, too
    for weight, ours, theirs in zip(model.weights, model.get_weights(), after, strict=True):
        if version.startswith("2.") and weight.name == "moving_variance":
            continue  # TensorFlow's fused kernel divided by n - 1
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("folder", VERSIONS, indirect=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", [".weights.h5", ".h5", ".keras"])
def test_weights_alone(folder: Path, name: str, weights: str):
    x, _, before, _, _ = case(folder, name)
    model = whole(folder, name, ".keras")
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 0.5, weight.dtype))
    if not (folder / (name + weights)).exists():
        pytest.skip(f"that version of Keras could not write {name + weights}")
    model.load_weights(folder / (name + weights))
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)
