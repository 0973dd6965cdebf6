"""Runs the kernels of a machine on cupy's arrays: the printed functions, over other globals.

A kernel that is printed for a GPU calls the `run` of its operations (`Printer.by_run`). Here these calls are given cupy
in place of NumPy, constants are uploaded once, fused operations are compiled as CUDA, and variables are read and
written by way of copies on the device. All of it is called by the dispatcher of the GPU.

Arrays of a kernel are cupy's, but for small integers that came from the host, such as shapes: operations that look at
their values get them as they are, others get them uploaded. Values of rank 0 are NumPy scalars or cupy's arrays of rank
0; either may be given.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ...devices.dispatcher import Dispatcher
from ...devices.transfer import Parts
from ...graph.op import Op, is_array
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import Assign
from ...ops.arrays.gathering import register_combiner
from ...ops.containers.array_value import ArrayValue
from ...ops.containers.indexed_slices import AssignRows
from ...ops.internal.fused import Fused
from .draws import draw_runner
from .fused import FusedRunner
from .rows import combine_rows_on_gpu
from .variables import DeviceVariable, DeviceVariables, StepVariables

_SMALL = 8  # elements of an integer vector that stays on the host, as in placement

# The inputs at whose values an operation looks: numbers, and vectors of integers. Most look at none.
_ALL, _FIRST, _SECOND, _THIRD = slice(0, None), slice(0, 1), slice(1, 2), slice(2, 3)
HOST_READS: dict[str, slice] = {
    "average_pool_grad": _SECOND,
    "broadcast_reduced": _SECOND,
    "broadcast_to": slice(1, None),
    "broadcast_to_shape": _SECOND,
    "conv_filter_grad": _THIRD,
    "conv_input_grad": _THIRD,
    "end_all_reduce": _FIRST,
    "fill": slice(1, None),
    "flat_places": _SECOND,
    "front_positions": _SECOND,
    "get_item": slice(1, None),
    "inverse_real_transform_back": _SECOND,
    "max_pool_grad": _THIRD,
    "overlap_add": _SECOND,
    "pad": slice(2, None),
    "pad_positions": _ALL,
    "place_class": _THIRD,
    "put_along_axis": _THIRD,
    "put_diagonal": _SECOND,
    "put_item": slice(1, None),
    "put_rows": _THIRD,
    "range": _ALL,
    "real_transform_back": _SECOND,
    "reduced_count": _FIRST,
    "repeat_positions": _FIRST,
    "reshape": slice(1, None),
    "reshape_to_shape": _SECOND,
    "roll": _SECOND,
    "segment_max": _THIRD,
    "segment_min": _THIRD,
    "segment_prod": _THIRD,
    "segment_sum": _THIRD,
    "slice": slice(1, None),
    "slice_update": _SECOND,
    "sparse_product": slice(4, 5),
    "split": slice(1, None),
    "sum_to_shape": _SECOND,
    "tri": _ALL,
    "unflatten_rows": _SECOND,
    "zeros_of_shape": _FIRST,
}


def travels(value: Any) -> bool:
    """Test whether a host's value is given to kernels as it is: numbers, and vectors of a few integers."""
    if not is_array(value):
        return isinstance(value, (np.generic, int, float, bool))
    return value.ndim <= 1 and value.size <= _SMALL and value.dtype.kind in "iub"


class GpuKernels:
    """Printed functions over the arrays of one GPU.

    Args:
        dispatcher: calls them.
        variables: where values of variables are.
    """

    def __init__(self, dispatcher: Dispatcher, variables: DeviceVariables | StepVariables) -> None:
        self._cupy = dispatcher.cupy
        register_combiner(self._cupy.ndarray, combine_rows_on_gpu)
        self._variables = variables
        self._functions: dict[types.CodeType, Callable[..., Any]] = {}
        self._translated: dict[int, Any] = {}
        self._kept: list[Any] = []  # what was translated, so that ids stay its own

    def function_of(self, function: Any) -> Callable[..., Any]:
        """Return a printed function over the arrays of the GPU."""
        return self._functions.get(function.__code__) or self._function(function)

    def on_device(self, value: Any) -> Any:
        """Return arrays of the host, uploaded."""
        return self._cupy.asarray(value) if is_array(value) else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return the same function over globals of its own."""
        given = function.__globals__
        own: dict[str, Any] = {"__builtins__": given.get("__builtins__")}
        copied = types.FunctionType(function.__code__, own, function.__name__)
        self._functions[function.__code__] = copied
        for name in function.__code__.co_names:
            if name in given:
                own[name] = self._translate(given[name], given)
        return copied

    def _translate(self, value: Any, given: dict[str, Any]) -> Any:
        if value is np:
            return self._cupy
        if isinstance(value, types.FunctionType) and value.__globals__ is given:
            return self.function_of(value)
        found = self._translated.get(id(value))
        if found is None:
            found = self._translated[id(value)] = self._replacement(value)
            self._kept.append(value)
        return found

    def _replacement(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return DeviceVariable(value, self._variables)
        if is_array(value):
            return value if travels(value) else self.on_device(value)
        op = _op_of(value)
        return value if op is None else self._runner(op)

    def _runner(self, op: Op) -> Callable[..., Any]:
        if isinstance(op, Fused):
            return FusedRunner(self._cupy, op, [OpRunner(self._cupy, step) for step, _ in op.steps])
        if isinstance(op, (Assign, AssignRows)):
            variable: Any = DeviceVariable(op.variable, self._variables)
            op = type(op)(variable)
        return draw_runner(self._cupy, op) or OpRunner(self._cupy, op)


def _op_of(value: Any) -> Op | None:
    """Return the operation that a printed call runs: those that are bound are ``partial(op.run, np)``."""
    call = value
    if not isinstance(value, functools.partial) or call.args != (np,):
        return None
    op = getattr(call.func, "__self__", None)
    return op if isinstance(op, Op) else None


class OpRunner:
    """Runs one operation on values of either kind.

    Args:
        cupy: the module.
        op: what to run.
    """

    def __init__(self, cupy: Any, op: Op) -> None:
        self._cupy = cupy
        self._op = op
        self._is_drawn = op.type_name.startswith("random_")
        self._reads = _ALL if self._is_drawn else HOST_READS.get(op.type_name, slice(0, 0))

    def __call__(self, *inputs: Any) -> Any:
        if self._op.elementwise and all(isinstance(value, np.generic) for value in inputs):
            return self._op.run(np, *inputs)
        given = [self._prepared(value) for value in inputs]
        read = inputs[self._reads]
        given[self._reads] = [self._on_host(value) for value in read]
        return self._op.run(self._cupy, *given)

    def _prepared(self, value: Any) -> Any:
        if isinstance(value, ArrayValue):
            return self._elements_prepared(value)
        return self._cupy.asarray(value) if is_array(value) or isinstance(value, np.generic) else value

    def _elements_prepared(self, value: ArrayValue) -> ArrayValue:
        parts = Parts(value, np.ndarray)
        return parts.rebuilt([self._cupy.asarray(array) for array in parts.arrays]) if parts.arrays else value

    def _on_host(self, value: Any) -> Any:
        if not isinstance(value, self._cupy.ndarray):
            return value
        is_read = self._is_drawn or not value.ndim or (value.ndim == 1 and value.dtype.kind in "iub")
        return value.get()[()] if is_read else value
