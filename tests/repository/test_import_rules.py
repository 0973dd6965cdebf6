"""The import rules in pyproject.toml have teeth: a tree that breaks them is reported, one that keeps them is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ["engine", "engine/common", "engine/graph", "engine/ops", "engine/devices", "engine/codegen", "engine/runtime"]
DISTRIBUTE = ["distribute", "distribute/tasks", "distribute/transport"]
PACKAGES = ["", *ENGINE, "layers", "optim", *DISTRIBUTE, "framework", "framework/serving"]
KEPT = {
    "engine/common": "import ml_dtypes",
    "engine/devices": "import cupy, cupyx",
    "engine/codegen": "import llvmlite",
    "engine/ops": "from .. import graph",
    "layers": "from ..engine import ops",
    "optim": "from ..engine import ops",
    "distribute": "import grpc, ray\nfrom google.protobuf import message\nfrom .. import layers, optim",
    "distribute/tasks": "from .. import transport",
    "framework": "import h5py, tqdm\nfrom .. import distribute, layers",
    "framework/serving": "import orjson, prometheus_client, uvicorn, uvloop",
    "framework/onnx": "import onnx, onnxruntime",
    "framework/wrappers": "import sklearn",
}
BREACHES = [
    ("engine/ops", "from ... import framework"),
    ("engine/ops", "from .. import runtime"),
    ("engine", "from .. import layers"),
    ("layers", "from .. import optim"),
    ("optim", "from .. import layers"),
    ("distribute", "from .. import framework"),
    ("distribute/transport", "from .. import tasks"),
    ("engine/ops", "import llvmlite"),
    ("engine", "import llvmlite.binding"),
    ("layers", "import cupy"),
    ("engine/ops", "def late():\n    import ml_dtypes"),
    ("distribute", "import h5py"),
    ("engine", "import tqdm"),
    ("framework", "import grpc"),
    ("framework", "import uvicorn"),
    ("framework/serving", "import grpc"),
    ("distribute", "import orjson"),
    ("framework", "from google.protobuf import message"),
    ("", "import h5py"),
    ("framework", "import torch"),
    ("layers", "import sklearn"),
    ("layers", "from PIL import Image"),
    ("framework/serving", "import onnx"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package under the same rules, which keeps them and makes use of every exception."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in PACKAGES:
        folder = tmp_path / "anabranch" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(KEPT.get(package, "") + "\n")
    return tmp_path


def lint(tree: Path) -> str:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "500"}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert "Contracts: " in result.stdout, result.stdout + result.stderr
    return result.stdout


def test_a_tree_that_keeps_the_rules_passes(tree: Path):
    assert " 0 broken" in lint(tree)


def test_every_breach_is_reported(tree: Path):
    for number, (package, code) in enumerate(BREACHES):
        (tree / "anabranch" / package / f"breach_{number}.py").write_text(code + "\n")

    report = lint(tree)

    assert [BREACHES[number] for number in range(len(BREACHES)) if f".breach_{number} -> " not in report] == []
    assert " 0 kept" in report, "a contract without a breach in this test"


def test_a_new_folder_needs_a_place_in_the_layers(tree: Path):
    (tree / "anabranch" / "serving").mkdir()
    (tree / "anabranch" / "serving" / "__init__.py").touch()

    assert "serving" in lint(tree)
