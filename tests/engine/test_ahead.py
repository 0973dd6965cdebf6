"""Code that steps of models have in common is compiled while names are imported that models are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.linker import can_link

pytestmark = pytest.mark.skipif(
    not (library.usable and can_link()), reason="nothing is compiled ahead where LLVM links object code"
)

_LAYERS = "import anabranch as ab; ab.Sequential"


def files_after(program: str, folder: Path, **environment: str) -> int:
    """Return how many modules a process with an empty cache has left there; a warning is an error."""
    settings = {"ANABRANCH_CACHE_DIR": str(folder), "ANABRANCH_KERNELS": "quick", "ANABRANCH_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "error", "-c", program]
    subprocess.run(command, env={**os.environ, **settings, **environment}, check=True, capture_output=True, text=True)
    return len(list(folder.glob("kernels/*.o")))


def test_threads_memory_and_products_are_compiled_ahead(tmp_path: Path) -> None:
    assert files_after(_LAYERS, tmp_path) == 3
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("kernels/*")}
    assert files_after(_LAYERS, tmp_path) == 3
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("kernels/*")} == written


@pytest.mark.parametrize(
    ("program", "environment"),
    [
        ("import anabranch as ab; ab.Graph, ab.ops.add", {}),
        (_LAYERS, {"ANABRANCH_NUM_THREADS": "1"}),
        (_LAYERS, {"ANABRANCH_KERNELS": "0"}),
    ],
    ids=["names that need no model", "one thread", "no kernels"],
)
def test_nothing_is_compiled_in_vain(tmp_path: Path, program: str, environment: dict[str, str]) -> None:
    assert files_after(program, tmp_path, **environment) == 0


def test_a_folder_that_cannot_be_used_is_no_warning_yet(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert files_after(_LAYERS, tmp_path / "file") == 0


def test_compilation_begins_before_ops_and_passes_are_imported(tmp_path: Path) -> None:
    # The compiler's threads work while the other processor imports those, which takes 70 ms.
    program = (
        "import sys; from anabranch.engine.codegen import ahead\n"
        "from anabranch.engine.codegen.host import memory\nfrom anabranch.engine.codegen.matmul import gemm\n"
        "early = [f'anabranch.engine.{name}' for name in ('graph', 'ops', 'passes', 'control_flow')]\n"
        "assert not [name for name in early if name in sys.modules]\nahead.begin()\n"
        "assert not [name for name in early if name in sys.modules]"
    )
    assert files_after(program, tmp_path) == 3
