"""Compiles CUDA C++ as cupy does, by NVRTC, or else by nvcc: so that printed kernels are checked without a GPU.

NVRTC comes with NVIDIA's wheels (the extra `cuda-check`, or cupy's `ctk`) or with a CUDA toolkit. Tests are skipped
where there is neither compiler.
"""

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_REQUIRED = "ANABRANCH_TEST_NVRTC"  # where it is set, tests fail without NVRTC instead of being skipped
_ARCHITECTURE = "compute_90"  # its PTX, which needs no assembler


class Nvrtc(NamedTuple):
    """NVRTC, and the folders of the headers that came with it."""

    library: Any
    includes: tuple[Path, ...]


def compile_cuda(source: str, options: Sequence[str] = (), architecture: str = _ARCHITECTURE) -> str:
    """The PTX of a source. Skips the test where nothing can compile it.

    Args:
        source: CUDA C++.
        options: passed to the compiler, beside the architecture.
        architecture: for which; of one like ``sm_90`` machine code is made, too.

    Raises:
        AssertionError: the source is wrong; the compiler's messages are in the text.
    """
    options = [*options, f"-arch={architecture}"]
    nvrtc = _nvrtc()
    if nvrtc is not None and ("#include" not in source or nvrtc.includes):
        return _by_nvrtc(nvrtc, source, options)
    if shutil.which("nvcc") is None or os.environ.get(_REQUIRED):
        assert not os.environ.get(_REQUIRED), f"{_REQUIRED} is set, and NVRTC or the headers of half types are missing"
        pytest.skip("needs NVRTC (pip install anabranch[cuda-check]) or nvcc")
    return _by_nvcc(source, options)


def _by_nvrtc(nvrtc: Nvrtc, source: str, options: Sequence[str]) -> str:
    library, program = nvrtc.library, ctypes.c_void_p()
    assert not library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        given = [option.encode() for option in (*options, *[f"-I{folder}" for folder in nvrtc.includes])]
        failed = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        assert not failed, _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        return _text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, text_of: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    assert not size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    assert not text_of(program, text)
    return text.value.decode()


def _by_nvcc(source: str, options: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        result = path.with_suffix(".ptx")
        command = ["nvcc", "-ptx", *options, "-o", str(result), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr
        return result.read_text()


@functools.cache
def _nvrtc() -> Nvrtc | None:
    """NVRTC from the first place that has it."""
    for root in _roots():
        for path in sorted(root.glob("**/libnvrtc.so*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            includes = {header.parent for header in root.glob("**/include/cuda_fp16.h")}
            includes |= {header.parent.parent for header in root.glob("**/include/nv/target")}
            return Nvrtc(library, tuple(sorted(includes)))
    return None


def _roots() -> list[Path]:
    """Return places of NVRTC and headers of the same release: NVIDIA's wheels, a folder each release, and toolkits."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    releases = [folder for wheel in wheels for folder in sorted(wheel.glob("cu[0-9]*"), reverse=True)]
    toolkits = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    return [*releases, *wheels, *toolkits, Path("/usr/local/cuda")]
