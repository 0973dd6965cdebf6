"""Kernels for AArch64: they are compiled by LLVM's cross target, and their vectors give the right numbers here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "shared" / "compile_for_arm.py"


@pytest.mark.kernels
def test_kernels_are_compiled_for_arm_and_compute_the_same(tmp_path: Path) -> None:
    environment = {"ANABRANCH_KERNELS": "1", **os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["modules"] >= 10
    assert {name: worst for name, worst in found["differences"].items() if not worst < 1e-4} == {}
