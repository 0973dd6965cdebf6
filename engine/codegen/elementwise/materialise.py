"""Views that have to be copied: reshapes of transposes and of repeated elements, and fetches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.op import is_plain_array
from ...graph.spec import TensorSpec
from ...ops.arrays.axes import Transpose
from ...ops.arrays.shaping import BroadcastTo
from ..llvm.library import library
from .bound import fitted
from .kernel_specs import static_shape


def contiguous_copy(value: Any) -> Any:
    """Return a contiguous copy of an array that is not contiguous."""
    if not is_plain_array(value) or not library.usable:
        return value.copy()
    return fitted(value, value.dtype)


def reshape_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner of a `Reshape` to a known shape of what is not contiguous, by the op that gave it."""
    source, result = operation.inputs[0], operation.outputs[0].spec
    if not isinstance(source.operation.op, (BroadcastTo, Transpose)) or not isinstance(result, TensorSpec):
        return None
    if not result.is_static or math.prod(static_shape(result)) < machine_profile().parallel_elements:
        return None
    shape = static_shape(result)

    def reshape(x: Any, *dynamic: Any) -> Any:
        try:
            return np.reshape(x, shape, copy=False)
        except ValueError:  # no view has that shape
            return contiguous_copy(x).reshape(shape)

    return reshape
