"""Kernels for fused and elementwise operations over arrays whose sizes are known at run time only.

A kernel is compiled for each choice of sizes that are 1. Sizes are put into a table when they are first seen. Where the
arrays are small, NumPy computes step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ...passes.fusion.iteration_spaces import with_sizes
from ...passes.fusion.stand_ins import unknown_sizes
from ..expression.expression import UnsupportedError
from ..expression.llvm import KernelSpec
from ..llvm.library import library
from .apart import KernelsApart
from .bound import BoundKernel
from .kernel_specs import MANY, can_fuse, kernel_spec, loop_numbers, specs_of
from .on_numpy import on_numpy
from .open_sizes import BoundedCache, Shapes, pattern_of
from .resized_rows import ResizedRows, laid_out_for

_Bound = tuple[BoundKernel | None, Shapes]


def elementwise_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner of an elementwise operation on arrays of known rank."""
    op, result = operation.op, operation.outputs[0].spec
    assert isinstance(result, TensorSpec)
    specs = specs_of(operation.inputs)
    if not can_fuse(op, [spec.dtype for spec in specs], result.dtype):
        return None
    fused = Fused(len(specs), ((op, tuple(range(len(specs)))),), (len(specs),))
    kernels = OpenKernels(fused, specs, [result])
    kernels.expect()
    on_arrays = on_numpy(fused)

    def run(*values: Any) -> Any:
        out = kernels.run(values)
        return (on_arrays(*values) if out is None else out)[0]

    return run


def fused_runner(operation: Operation) -> Callable[..., Any]:
    """Return a runner of a `Fused` on arrays of known rank; it returns a tuple, as that does.

    Raises:
        UnsupportedError: kernels can't compute it.
    """
    op = op_of(operation, Fused)
    specs, results = specs_of(operation.inputs), specs_of(operation.outputs)
    kernels = OpenKernels(op, specs, results)
    kernels.expect()
    on_arrays = on_numpy(op)

    def run(*values: Any) -> Any:
        out = kernels.run(values)
        return on_arrays(*values) if out is None else out

    return run


class OpenKernels:
    """The kernels of a fused op, for the shapes that were seen.

    Args:
        op: what they compute.
        inputs: what is known of the operands.
        results: what is known of the results.

    Raises:
        UnsupportedError: kernels can't compute it.
    """

    def __init__(self, op: Fused, inputs: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> None:
        self._dtypes = [np.dtype(name_of(spec.dtype)) for spec in results]
        self._least = machine_profile().kernel_elements // len(op.steps)
        dtypes, made = [spec.dtype for spec in inputs], [spec.dtype for spec in results]
        self._of_patterns: _Kernels = (
            _Rows(op, dtypes, made, self._least) if op.layouts else _Loops(op, inputs, results, self._least)
        )
        self._apart = None if op.layouts else KernelsApart(op, dtypes, made)
        self._bound = BoundedCache[Shapes, _Bound](self._of_patterns.bind)

    def expect(self) -> None:
        """Have the kernel compiled meanwhile that fits if unknown dimensions are long ones, where that is used."""
        self._of_patterns.expect()

    def run(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the results; None where they are to be computed otherwise."""
        shapes: Shapes = tuple([value.shape for value in values])
        kernel, made = self._bound[shapes]
        if kernel is None:
            return None
        out = tuple([np.empty(shape, dtype) for shape, dtype in zip(made, self._dtypes, strict=True)])
        refused = kernel.call(*values, *out)
        if refused and (self._apart is None or not self._apart.run(shapes, values, out)):
            kernel.refit(values, out)
        return out


class _Kernels(Protocol):
    def expect(self) -> None:
        """See `OpenKernels`."""
        ...

    def bind(self, shapes: Shapes) -> _Bound:
        """Return the kernel for operands of these shapes, and its results' shapes; None where NumPy is faster."""
        ...


class _Loops:
    """The kernels of elementwise steps with results of one shape, by which axes have more than one element."""

    def __init__(self, op: Fused, inputs: Sequence[TensorSpec], results: Sequence[TensorSpec], least: int) -> None:
        self._op = op
        self._inputs = inputs
        self._results = results
        self._least = least
        self._known: dict[Any, KernelSpec] = {}

    def expect(self) -> None:
        shapes = [spec.shape for spec in (*self._inputs, *self._results[:1]) if spec.shape is not None]
        known = [dim or MANY for dim in shapes[-1]]
        if len(shapes) <= len(self._inputs) or math.prod(known) < self._least:
            return
        spec = kernel_spec(self._op, self._inputs, self._results)
        self._known[pattern_of(shapes[:-1])] = spec
        library.expect(spec)

    def bind(self, shapes: Shapes) -> _Bound:
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            return None, ()  # the op's error says what does not fit
        if math.prod(shape) < self._least:
            return None, ()
        inputs = [TensorSpec(each, spec.dtype) for each, spec in zip(shapes, self._inputs, strict=True)]
        outputs = [TensorSpec(shape, spec.dtype) for spec in self._results]
        pattern = pattern_of(shapes)
        if pattern not in self._known:
            self._known[pattern] = kernel_spec(self._op, inputs, outputs)
        spec = self._known[pattern]
        kernel = BoundKernel(spec, inputs, outputs, loop_numbers(spec, inputs, outputs)).compiled()
        return kernel, (shape,) * len(outputs)


class _Rows:
    """The kernels of steps that are laid out in a space, by which axes have more than one element."""

    def __init__(self, op: Fused, dtypes: Sequence[Any], results: Sequence[Any], least: int) -> None:
        self._op = op
        self._dtypes = dtypes, results
        self._least = least
        self._long = ResizedRows(op, dtypes, results)  # if all that is unknown has more than one element
        self._known: dict[Any, ResizedRows | None] = {}

    def expect(self) -> None:
        if with_sizes(self._op.size, dict.fromkeys(unknown_sizes(self._op.layouts), MANY)) >= self._least:
            library.expect(self._long.spec)

    def bind(self, shapes: Shapes) -> _Bound:
        pattern = pattern_of(shapes)
        if pattern not in self._known:
            self._known[pattern] = self._kernel(shapes)
        known = self._known[pattern]
        found = None if known is None else known.resized(shapes)
        return (None, ()) if found is None or found[2] < self._least else found[:2]

    def _kernel(self, shapes: Shapes) -> ResizedRows | None:
        op = laid_out_for(self._op, shapes)
        if op == self._op:
            return self._long
        try:
            return ResizedRows(op, *self._dtypes)
        except UnsupportedError:
            return None
