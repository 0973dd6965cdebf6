"""Looking at the package needs no extras: `help`, completion and ``import *`` read every public name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib.abc, inspect, pydoc, sys

MISSING = {"sklearn", "onnx", "onnxruntime", "PIL", "tqdm", "uvicorn", "orjson", "ray", "scipy"}

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import anabranch as ab
from anabranch import *
assert len(inspect.getmembers(ab)) > 100
assert "Sequential" in pydoc.render_doc(ab, renderer=pydoc.plaintext)
assert hasattr(ab, "wrappers")
try:
    ab.wrappers.SKLearnClassifier
except ImportError as error:
    assert "anabranch.wrappers.SKLearnClassifier needs scikit-learn" in str(error)
else:
    raise AssertionError
"""


def test_public_names_can_be_listed_without_extras(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
