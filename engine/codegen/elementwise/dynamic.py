"""Kernels for elementwise operations whose shapes are known at run time only, fused or single.

A kernel is compiled for each choice of axes that are broadcast. Sizes are put into a table when they are first seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ..expression.llvm import KernelSpec
from ..llvm.library import library
from .apart import KernelsApart
from .bound import MANY, BoundKernel, can_fuse, kernel_spec, loop_numbers
from .on_numpy import on_numpy
from .open_sizes import BoundedCache, Shape, Shapes, pattern_of


def elementwise_runner(operation: Operation) -> Callable[..., Any] | None:
    """Runs an elementwise operation on arrays of known rank."""
    op, result = operation.op, operation.outputs[0].spec
    assert isinstance(result, TensorSpec)
    specs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    if not can_fuse(op, [spec.dtype for spec in specs], result.dtype):
        return None
    fused = Fused(len(specs), ((op, tuple(range(len(specs)))),), (len(specs),))
    kernels = OpenKernels(fused, specs, result)
    kernels.expect(specs, result)
    on_arrays = on_numpy(fused)

    def run(*values: Any) -> Any:
        out = kernels.run(values)
        return on_arrays(*values)[0] if out is None else out

    return run


def fused_runner(operation: Operation) -> Callable[..., Any]:
    """Runs a `Fused` of elementwise steps with one result, on arrays of known rank; gives a tuple, as that does."""
    op, result = operation.op, operation.outputs[0].spec
    assert isinstance(op, Fused)
    assert isinstance(result, TensorSpec)
    specs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    kernels = OpenKernels(op, specs, result)
    kernels.expect(specs, result)
    on_arrays = on_numpy(op)

    def run(*values: Any) -> Any:
        out = kernels.run(values)
        return on_arrays(*values) if out is None else (out,)

    return run


class OpenKernels:
    """The kernels of an operation, for the shapes that were seen.

    Args:
        op: what they compute.
        inputs: what is known of the operands.
        result: what is known of the result.
    """

    def __init__(self, op: Fused, inputs: Sequence[TensorSpec], result: TensorSpec) -> None:
        self._op = op
        self._dtypes = [spec.dtype for spec in inputs]
        self._result = result.dtype
        self._dtype = np.dtype(name_of(result.dtype))
        self._least = machine_profile().kernel_elements // len(op.steps)
        self._apart = KernelsApart(op, self._dtypes, self._result)
        self._bound = BoundedCache[Shapes, tuple[BoundKernel | None, Shape]](self._bind)
        # By which axes have more than one element; None is to be compiled still.
        self._compiled: dict[Any, tuple[KernelSpec, Any]] = {}

    def expect(self, inputs: Sequence[TensorSpec], result: TensorSpec) -> None:
        """Have the kernel compiled meanwhile that fits if unknown dimensions are long ones, where that is used."""
        shapes = [spec.shape for spec in (*inputs, result) if spec.shape is not None]
        known = [dim or MANY for dim in shapes[-1]]
        if len(shapes) <= len(inputs) or math.prod(known) < self._least:
            return
        spec = kernel_spec(self._op, inputs, [result])
        self._compiled[pattern_of(shapes[:-1])] = spec, None
        library.expect(spec)

    def run(self, values: tuple[Any, ...]) -> Any:
        """The result; None where it is to be computed otherwise."""
        shapes: Shapes = tuple([value.shape for value in values])
        kernel, shape = self._bound[shapes]
        if kernel is None:
            return None
        out = np.empty(shape, self._dtype)
        if kernel.entry(kernel.table, *map(id, values), id(out)) and not self._apart.run(shapes, values, out):
            kernel.refit(values, (out,))
        return out

    def _bind(self, shapes: Shapes) -> tuple[BoundKernel | None, Shape]:
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            return None, ()  # the op's error says what does not fit
        if math.prod(shape) < self._least:
            return None, ()
        inputs = [TensorSpec(each, dtype) for each, dtype in zip(shapes, self._dtypes, strict=True)]
        outputs = [TensorSpec(shape, self._result)]
        pattern = pattern_of(shapes)
        spec, entry = self._compiled.get(pattern, (None, None))
        if spec is None or entry is None:
            spec = spec or kernel_spec(self._op, inputs, outputs)
            (entry,) = library.get([spec])
            self._compiled[pattern] = spec, entry
        kernel = BoundKernel(spec, inputs, outputs, loop_numbers(spec, inputs, outputs))
        kernel.entry = entry
        return kernel, shape
