"""Compiles CUDA C++ for the host, where a block's threads are fibres (`host_cuda.h`): kernels run without a GPU."""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.cupy_names import check_call
from shared.device_arrays import DeviceArray

_HEADER = Path(__file__).with_name("host_cuda.h")
_FUNCTION = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\) \{(.*?)\n\}', re.DOTALL)
_WAITS = ("__sync", "__shfl", "team_")
_FLAGS = ("-O0", "-ffp-contract=off", "-fPIC", "-Wno-unused", "-std=c++17")
_folder = tempfile.TemporaryDirectory(prefix="host_cuda")
_libraries: dict[str, Any] = {}  # by source: the library that has it
_C_TYPES: dict[str, Any] = {"f4": ctypes.c_float, "f8": ctypes.c_double, "i4": ctypes.c_int32, "i8": ctypes.c_int64}
_C_TYPES |= {"b1": ctypes.c_bool, "u2": ctypes.c_uint16, "u4": ctypes.c_uint32, "u8": ctypes.c_uint64}


def compile_on_host(sources: Iterable[str]) -> None:
    """Compile sources in one translation unit, which is much cheaper than in one each.

    Skips the test where there is no C++ compiler.
    """
    missing = [source for source in dict.fromkeys(sources) if source not in _libraries]
    if not missing:
        return
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    text = "\n".join([f'#include "{_header(compiler)}"', *map(_on_host, missing)])
    path = Path(_folder.name) / f"kernels{len(_libraries)}.cpp"
    path.write_text(text)
    result = path.with_suffix(".so")
    _run([compiler, *_FLAGS, "-shared", "-o", result, path])
    library = ctypes.CDLL(str(result))
    _libraries.update(dict.fromkeys(missing, library))


@cache
def _header(compiler: str) -> Path:
    """Return a copy of the header, which the compiler has read once: that takes half of the time for a few kernels."""
    copy = Path(shutil.copy(_HEADER, _folder.name))
    _run([compiler, *_FLAGS, "-x", "c++-header", "-o", f"{copy}.gch", copy])
    return copy


def _run(command: list[Any]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr


def _on_host(source: str) -> str:
    """Put a source into a namespace, with a function that launches each kernel."""
    lines = [f"namespace {_name(source)} {{", re.sub(r"#include <.*>\n", "", source).replace('extern "C" ', "static ")]
    for name, parameters, text in _FUNCTION.findall(source):
        passed = ", ".join(parameter.split()[-1] for parameter in parameters.split(", "))
        waits = str(any(word in text for word in _WAITS)).lower()
        own, held = f"{_name(source)}_{name}", f"arguments_{name}"
        members = parameters.replace(", ", "; ").replace(" __restrict__", "")
        taken = ", ".join(f"a->{parameter}" for parameter in passed.split(", "))
        lines += [
            f"struct {held} {{ {members}; }};",
            f"static void call_{name}(const void* x) {{ auto a = (const {held}*)x; {name}({taken}); }}",
            f'extern "C" const char* {own}(const unsigned* sizes, const {held}* a) {{',
            f"  return host::run(sizes, {waits}, call_{name}, a);",
            "}",
        ]
    return "\n".join([*lines, "}"])


def _name(source: str) -> str:
    return f"k{hashlib.sha256(source.encode()).hexdigest()[:20]}"


class HostModule:
    """Functions as `cupy.RawModule` gives them.

    Args:
        code: CUDA C++.
    """

    def __init__(self, code: str) -> None:
        compile_on_host([code])
        self._code = code

    def get_function(self, name: str) -> "HostKernel":
        check_call("RawModule.get_function", None, name)
        return HostKernel(self._code, name)


class HostKernel:
    """A kernel as `cupy.RawModule.get_function` gives it."""

    def __init__(self, code: str, name: str) -> None:
        compile_on_host([code])
        self._function = getattr(_libraries[code], f"{_name(code)}_{name}")
        self._function.restype = ctypes.c_char_p

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        check_call("RawKernel.__call__", None, grid, block, arguments)
        assert len(grid) == 2
        assert grid[0] < 1 << 31
        assert grid[1] < 1 << 16
        sizes = (ctypes.c_uint * 3)(*grid, *block)
        assert all(sizes), f"nothing is launched: {grid} blocks of {block}"
        failure = self._function(sizes, _packed([_passed(argument) for argument in arguments]))
        assert failure is None, failure.decode()


def _packed(values: list[Any]) -> Any:
    """The arguments as a structure of C."""
    fields = [(f"a{k}", type(value)) for k, value in enumerate(values)]
    kind = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    return ctypes.byref(kind(*values))


def _passed(argument: Any) -> Any:
    if isinstance(argument, DeviceArray):
        held = argument._held
        assert held.flags.c_contiguous
        return ctypes.c_void_p(held.ctypes.data)
    assert isinstance(argument, np.generic), f"{argument!r} would be passed as what cupy makes of it"
    return _C_TYPES[argument.dtype.str[1:]](argument.item())
