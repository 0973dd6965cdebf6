"""Compiles CUDA C++ for the host, where one thread after the other runs: so that kernels can be run without a GPU."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.device_arrays import DeviceArray

_PRELUDE = """
#include <cmath>
#include <cstring>
#define __global__
#define __restrict__
struct Three { unsigned x, y, z; };
static Three blockIdx, blockDim, gridDim, threadIdx;
static inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
static inline double __longlong_as_double(long long x) { double y; std::memcpy(&y, &x, 8); return y; }
extern "C" void set_block(unsigned b, unsigned d, unsigned g) { blockIdx.x = b; blockDim.x = d; gridDim.x = g; }
extern "C" void set_thread(unsigned t) { threadIdx.x = t; }
"""
_folder = tempfile.TemporaryDirectory(prefix="host_cuda")
_C_TYPES: dict[str, Any] = {"f4": ctypes.c_float, "f8": ctypes.c_double, "i4": ctypes.c_int32, "i8": ctypes.c_int64}
_C_TYPES["b1"] = ctypes.c_bool


class HostKernel:
    """A kernel as `cupy.RawKernel` gives it. Skips the test where there is no C++ compiler."""

    def __init__(self, code: str, name: str) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("needs g++")
        path = Path(_folder.name) / f"{hashlib.sha256(code.encode()).hexdigest()}.so"
        if not path.exists():
            source = path.with_suffix(".cpp")
            source.write_text(_PRELUDE + code)
            flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-unused"]
            subprocess.run([compiler, *flags, "-o", path, source], check=True, timeout=60)
        library = ctypes.CDLL(str(path))
        self._function = getattr(library, name)
        self._set_block, self._set_thread = library.set_block, library.set_thread

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        passed = [_passed(argument) for argument in arguments]
        for number in range(grid[0]):
            self._set_block(number, block[0], grid[0])
            for thread in range(block[0]):
                self._set_thread(thread)
                self._function(*passed)


def _passed(argument: Any) -> Any:
    if isinstance(argument, DeviceArray):
        held = argument._held
        assert held.flags.c_contiguous
        return ctypes.c_void_p(held.ctypes.data)
    assert isinstance(argument, np.generic), f"{argument!r} would be passed as what cupy makes of it"
    return _C_TYPES[argument.dtype.str[1:]](argument.item())
