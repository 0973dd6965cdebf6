"""Measure what calls of cupy and cuBLAS cost the host, and the launch of a CUDA graph. `gpu.py` reports it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_SOURCE = """extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
_SIZE = 64
_PRODUCTS = 100  # of a graph


def calls(cupy: Any) -> list[list[str]]:
    """Return rows of calls and their time for the host, in microseconds."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        a, b, c = (cupy.ones((_SIZE, _SIZE), "float32") for _ in range(3))
        kernel = cupy.RawModule(code=_SOURCE, options=("-std=c++17",)).get_function("add")
        passed = (a, b, c, np.int32(a.size))
        held = np.ones((_SIZE, _SIZE), "float32")

        def launch() -> None:
            kernel((16,), (256,), passed)

        def and_wait(function: Callable[[], Any]) -> Callable[[], None]:
            return lambda: (function(), stream.synchronize())[1]

        made: dict[str, Callable[[], Any]] = {
            "launch of a printed kernel": launch,
            "the same, and waiting for it": and_wait(launch),
            "`cupy.empty`": lambda: cupy.empty((_SIZE, _SIZE), "float32"),
            "`cupy.add`": lambda: cupy.add(a, b),
            "`cupy.matmul`": lambda: cupy.matmul(a, b),
            "`cupy.sum` along an axis": lambda: cupy.sum(a, 0),
            "`cupy.concatenate`": lambda: cupy.concatenate([a, b], 1),
            "upload of 16 kB": lambda: cupy.asarray(held),
        }
        product = _product(cupy, stream, a, b, c)
        if product is not None:
            made["`cublasSgemm` by ctypes"] = product
            stream.begin_capture()
            for _ in range(_PRODUCTS):
                product()
            graph = stream.end_capture()
            made[f"launch of a CUDA graph of {_PRODUCTS} products"] = lambda: graph.launch(stream)
            made["the same graph, and waiting for it"] = and_wait(lambda: graph.launch(stream))
        return [[name, f"{_microseconds(function, stream):.1f}"] for name, function in made.items()]


def _product(cupy: Any, stream: Any, a: Any, b: Any, c: Any) -> Callable[[], Any] | None:
    """Return a product of two matrices by cuBLAS without cupy, whose own can't be captured; None without a library."""
    cupy.matmul(a, b)  # loads the library
    library = next(filter(None, map(_loaded, ("libcublas.so.13", "libcublas.so.12", "libcublas.so"))), None)
    if library is None:
        return None
    handle = ctypes.c_void_p()
    assert library.cublasCreate_v2(ctypes.byref(handle)) == 0
    library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr))
    workspace = cupy.empty(32 << 20, "uint8")
    library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(workspace.nbytes))
    one, zero, size = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0)), _SIZE
    x, y, z = (ctypes.c_void_p(each.data.ptr) for each in (a, b, c))

    def product(kept: Any = workspace) -> None:
        assert library.cublasSgemm_v2(handle, 0, 0, size, size, size, one, x, size, y, size, zero, z, size) == 0

    return product


def _loaded(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _microseconds(function: Callable[[], Any], stream: Any, count: int = 300) -> float:
    """Return the median of 7 means of `count` calls."""
    for _ in range(20):
        function()
    stream.synchronize()
    means: list[float] = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            function()
        means.append((time.perf_counter() - start) / count * 1e6)
        stream.synchronize()
    return float(np.median(means))
