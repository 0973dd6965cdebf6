"""Kernels that run at the same time, without the interpreter's lock: each has scratch memory of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shared.fusion_checks import prepared
from shared.symbols import symbol_of

import anabranch as ab
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.host import scratch
from anabranch.engine.codegen.llvm.entry import scratch_of
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph import TensorSpec
from anabranch.engine.runtime.analyses import kernels_of

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

_THREADS = 6  # more than there are pieces of memory that are kept
_TIMES = 60
Build = Callable[..., Sequence[Any]]


def _softmax(x: Any) -> Sequence[Any]:
    return [ab.ops.softmax(ab.ops.tanh(x), axis=-1)]


def _normalised(x: Any, dy: Any) -> Sequence[Any]:
    mean = ab.ops.mean(x, axis=-1, keepdims=True)
    apart = x - mean
    y = apart * ab.ops.rsqrt(ab.ops.mean(apart * apart, axis=-1, keepdims=True) + 1e-5)
    return [ab.ops.sum(y * dy, axis=0), ab.ops.sum(dy, axis=0)]


def _convolution(x: Any, kernel: Any) -> Sequence[Any]:
    return [ab.ops.conv(x, kernel, padding="same")]


def _gradient(x: Any, kernel: Any) -> Sequence[Any]:
    return ab.gradients(ab.ops.sum(ab.ops.conv(x, kernel, padding="same") ** 2), [kernel])


def _depthwise(x: Any, kernel: Any) -> Sequence[Any]:
    return ab.gradients(ab.ops.sum(ab.ops.depthwise_conv(x, kernel, padding="same") ** 2), [kernel])


_CASES: dict[str, tuple[Build, tuple[tuple[int, ...], ...]]] = {
    "softmax": (_softmax, ((300, 257),)),
    "sums over rows": (_normalised, ((400, 129), (400, 129))),
    "convolution": (_convolution, ((2, 24, 24, 8), (5, 5, 8, 24))),
    "its filter's gradient": (_gradient, ((2, 24, 24, 8), (5, 5, 8, 24))),
    "winograd": (_convolution, ((2, 28, 28, 32), (3, 3, 32, 32))),
    "winograd, filter's gradient": (_gradient, ((2, 28, 28, 32), (3, 3, 32, 32))),
    "depthwise, filter's gradient": (_depthwise, ((2, 30, 30, 32), (3, 3, 32, 1))),
}


def _kernels(build: Build, shapes: Sequence[tuple[int, ...]]) -> list[tuple[Any, BoundKernel]]:
    """Return the kernels of a step that take scratch memory, with their operations."""
    with ab.Graph().as_default():
        inputs = [ab.placeholder(shape, "float32") for shape in shapes]
        step = prepared(build(*map(symbol_of, inputs)), inputs)
    found = kernels_of(step.operations, False).items()
    kept = [(o, k) for o, k in found if isinstance(k, BoundKernel) and scratch_of(k.spec)]
    return [(o, k) for o, k in kept if vars(k)["_memory"][-1] > 0]


class _Caller:
    """Calls of one kernel, on arrays of its own."""

    def __init__(self, operation: Any, kernel: BoundKernel, seed: int) -> None:
        generator = np.random.default_rng(seed)
        read = operation.inputs[: kernel.input_count]
        specs = [tensor.spec for tensor in read if isinstance(tensor.spec, TensorSpec)]
        self._inputs = [_values(spec, generator) for spec in specs]
        made = [tensor.spec for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec)]
        self._made = [(_shape(spec), np.dtype(spec.dtype.name)) for spec in made]
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)  # it releases the lock
        self._entry, self._table = function(kernel.address), kernel.table

    def call(self) -> list[bytes]:
        outputs = [np.full(shape, 7, dtype) for shape, dtype in self._made]
        objects = [*map(id, self._inputs), *map(id, outputs)]
        assert self._entry(self._table, (ctypes.c_size_t * len(objects))(*objects)) == 0
        return [output.tobytes() for output in outputs]


def _values(spec: TensorSpec, generator: np.random.Generator) -> Any:
    if spec.dtype.kind == "i":  # the shape of what a gradient is of
        return np.zeros(_shape(spec), np.dtype(spec.dtype.name))
    value: Any = generator.normal(size=_shape(spec)).astype(spec.dtype.name)
    return value if spec.shape else value[()]


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple([int(size or 0) for size in spec.shape or ()])


@pytest.mark.parametrize("name", _CASES)
def test_kernels_that_run_at_the_same_time_give_what_each_gives_alone(name: str) -> None:
    build, shapes = _CASES[name]
    kernels = _kernels(build, shapes)
    assert kernels
    callers = [_Caller(*kernels[k % len(kernels)], seed=k) for k in range(_THREADS)]
    expected = [caller.call() for caller in callers]
    start = threading.Barrier(_THREADS)
    wrong: list[int] = []

    def work(number: int) -> None:
        start.wait()
        for _ in range(_TIMES):
            if callers[number].call() != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_whoever_took_it_until_it_is_given_back() -> None:
    """Memory that is large enough is used again, and no piece is given to two."""
    text = f"""
define ptr @take(i64 %bytes) {{
  %memory = call ptr @{scratch.TAKE}(i64 %bytes)
  ret ptr %memory
}}
define void @give(ptr %memory) {{
  call void @{scratch.GIVE}(ptr %memory)
  ret void
}}
"""
    engine = library.load(text, lambda: text)
    take = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(engine.get_function_address("take"))
    give = ctypes.PYFUNCTYPE(None, ctypes.c_size_t)(engine.get_function_address("give"))
    taken = [(size, take(size)) for size in (100, 5000, 64, 1 << 20, 1, 300, 70_000)]
    for number, (size, address) in enumerate(taken):
        assert address > 0
        assert address % scratch.ALIGNMENT == 0
        ctypes.memset(address, number, size)
    for number, (size, address) in enumerate(taken):
        assert ctypes.string_at(address, size) == bytes([number]) * size
        give(address)
    first = take(1 << 20)
    give(first)
    assert take(10) == first
    give(first)
