"""Fused operations on a GPU: as CUDA kernels for operands of each shape, step by step where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.cuda.elementwise import OPTIONS
from ...codegen.cuda.launches import launches_of
from ...codegen.expression.expression import UnsupportedError
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused

_KNOWN_SHAPES = 1024  # for which a fused operation keeps its kernels


class FusedRunner:
    """Runs a fused operation by CUDA kernels for operands of each shape; step by step where none can be printed.

    Args:
        cupy: the module.
        op: what to run.
        steps: what runs each step of it.
    """

    def __init__(self, cupy: Any, op: Fused, steps: Sequence[Callable[..., Any]]) -> None:
        self._cupy = cupy
        self._op = op
        self._kernels: dict[Any, _Bound | None] = {}
        self._steps = steps

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        key = tuple([(value.shape, value.dtype, isinstance(value, np.generic)) for value in inputs])
        if key not in self._kernels:
            if len(self._kernels) >= _KNOWN_SHAPES:
                self._kernels.clear()
            self._kernels[key] = self._prepare(key)
        bound = self._kernels[key]
        return self._run_steps(inputs) if bound is None else bound(inputs)

    def _prepare(self, key: Sequence[tuple[tuple[int, ...], Any, bool]]) -> _Bound | None:
        by_value = [position for position, (_, _, is_number) in enumerate(key) if is_number]
        inputs = [TensorSpec(shape, dtype) for shape, dtype, _ in key]
        if len(by_value) == len(key):
            return None  # nothing is on the device
        try:
            return _Bound(self._cupy, self._op, inputs, by_value)
        except UnsupportedError:
            return None

    def _run_steps(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        values = list(inputs)
        for run, (_, arguments) in zip(self._steps, self._op.steps, strict=True):
            values.append(run(*[values[k] for k in arguments]))
        return tuple([values[k] for k in self._op.results])


class _Bound:
    """Compiled kernels, and the sizes with which they are launched."""

    def __init__(self, cupy: Any, op: Fused, inputs: Sequence[TensorSpec], by_value: Sequence[int]) -> None:
        self._cupy = cupy
        inferred: Any = op.infer(*inputs)
        self._outputs = [(spec.shape, spec.dtype) for spec in inferred]
        self._by_value = frozenset(by_value)
        self._launches = launches_of(op, inputs, inferred, by_value)
        module = compiled_module(cupy, self._launches.source)
        self._functions = [module.get_function(call.function) for call in self._launches.calls]

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        cupy, launches = self._cupy, self._launches
        outputs = tuple([cupy.empty(shape, dtype) for shape, dtype in self._outputs])
        given = [self._passed(k, value) for k, value in enumerate(inputs)]
        scratch = [] if launches.scratch is None else [cupy.empty((launches.scratch,), np.dtype("uint8"))]
        passed = (*given, *outputs, *scratch, *launches.numbers)
        for function, call in zip(self._functions, launches.calls, strict=True):
            function(call.grid, (call.block,), (*passed, *call.numbers))
        return outputs

    def _passed(self, k: int, value: Any) -> Any:
        if k in self._launches.halves:
            return np.asarray(value).view(np.uint16)[()]
        if k in self._by_value:
            return value
        value = self._cupy.asarray(value)
        return value if value.flags.c_contiguous else self._cupy.ascontiguousarray(value)


_modules: dict[tuple[int, str], Any] = {}


def compiled_module(cupy: Any, source: str) -> Any:
    """Compile the functions of a source, once a process (cupy keeps machine code on disk)."""
    module = _modules.get((id(cupy), source))
    if module is None:
        module = _modules[id(cupy), source] = cupy.RawModule(code=source, options=OPTIONS)
    return module
