"""Editors: what a language server completes and shows of layers, ops, optimizers and models."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shared import type_checks
from shared.language_client import LanguageClient

ROOT = Path(__file__).parents[2]
SERVER = Path(sys.executable).with_name("pyright-langserver")
pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="needs pyright's language server")

HEAD = """import anabranch as ab
from anabranch import layers, optim
model, x = ab.Sequential([layers.Dense(3)]), [[1.0]]
"""
# Places behind a dot, with a name that is to be completed there, and parts of what is shown with it.
COMPLETIONS = [
    ("layers.", "Dense", ["activation"]),
    ("ab.layers.", "LSTM", ["units"]),
    ("ab.ops.", "softmax", ["(", "axis"]),
    ("ab.ops.nn.", "relu", ["("]),
    ("optim.", "Adam", ["learning_rate"]),
    ("model.", "fit", ["epochs: int = 1", "Train the model."]),
    ("ab.", "Sequential", ["Layers, each called on what the one before it gives."]),
    ("ab.losses.", "Huber", ["delta"]),
    ("ab.callbacks.", "EarlyStopping", ["patience"]),
]
# Expressions whose last name is hovered over, and parts of what is shown.
HOVERS = [
    ("layers.Dense(3)", "Dense", ["units: int", "activation", "kernel_initializer"]),
    ("layers.Conv2D(3, 3)", "Conv2D", ["filters: int", "kernel_size", "strides"]),
    ("layers.LSTM(3)", "LSTM", ["units: int"]),
    ("ab.ops.matmul", "matmul", ["x1", "x2", "-> Tensor"]),
    ("ab.ops.sum", "sum", ["axis", "keepdims", "-> Tensor"]),
    ("optim.Adam(0.1)", "Adam", ["learning_rate", "beta_1"]),
    ("model.fit", "fit", ["epochs: int = 1", "-> History", "Train the model."]),
    ("model.compile", "compile", ["optimizer", "loss", "Configure the model for training"]),
    ("ab.tf.reduce_sum", "reduce_sum", ["input_tensor", "keepdims", "-> Tensor", "Compute the sum over axes"]),
    ("ab.tf.nn.relu", "relu", ["features", "name: str | None = None", "where it is positive"]),
    ("ab.Input", "Input", ["shape", "-> Tensor", "Return a symbolic tensor"]),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageClient]:
    """A server over a folder of a user who has installed the package."""
    folder = tmp_path_factory.mktemp("user")
    packages = type_checks.site_packages(folder / "environment")
    (packages / "anabranch").symlink_to(ROOT)
    (packages / "numpy").symlink_to(Path(np.__file__).parent)
    settings = {"include": ["*.py"], "venvPath": str(folder), "venv": "environment"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    with LanguageClient([str(SERVER), "--stdio"], folder) as client:
        yield client


@pytest.mark.parametrize(("expression", "name", "parts"), HOVERS)
def test_hovering_shows_signature_and_docstring(
    server: LanguageClient, expression: str, name: str, parts: list[str]
) -> None:
    file_name = re.sub(r"\W", "_", expression)
    uri = server.open(f"hover_{file_name}.py", f"{HEAD}{expression}\n")
    shown = server.hover(uri, 3, expression.index(name) + 1)
    assert name in shown
    for part in parts:
        assert part in shown, shown


@pytest.mark.parametrize(("before", "name", "parts"), COMPLETIONS)
def test_completion_shows_signature_and_docstring(
    server: LanguageClient, before: str, name: str, parts: list[str]
) -> None:
    file_name = re.sub(r"\W", "_", before)
    uri = server.open(f"complete_{file_name}{name}.py", f"{HEAD}{before}\n")
    found = server.complete(uri, 3, len(before))
    assert name in found, sorted(found)
    assert not {"TYPE_CHECKING", "annotations"} & set(found)
    shown = server.resolve(found[name])
    for part in parts:
        assert part in shown, shown


@pytest.mark.parametrize(
    "before", ["layers.Dense(3)(x).", "model(x).", "ab.metrics.Mean()(x).", "ab.function(model)(x)."]
)
def test_completion_behind_a_call_shows_methods_of_tensors(server: LanguageClient, before: str) -> None:
    file_name = re.sub(r"\W", "_", before)
    uri = server.open(f"call_{file_name}.py", f"{HEAD}{before}\n")
    assert {"numpy", "reshape", "shape"} <= set(server.complete(uri, 3, len(before)))
