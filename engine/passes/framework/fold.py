"""Constant folding: small pure operations over constants are computed while the step is prepared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...control_flow.scheduling import ScheduledPart
from ...graph.op import Op, as_scalar_or_array
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant, is_numpy
from ...ops.left_out import LeavesOut, first_left_out
from .patterns import Place, constant_of

LARGEST = 256  # elements of what is computed


def folded(op: Op, inputs: Sequence[Symbol], place: Place) -> Constant | None:
    """Return the constant that `op` gives over constants; None if it does not, or may fail, or gives too much.

    What raises an error is left to do so when it runs, and so is what `debugging` reports: what makes NaN or infinity
    of finite numbers, and what leaves ids out.
    """
    values: list[Any] = []
    for tensor in inputs:
        value = constant_of(tensor, place)
        if value is None or value.dtype.kind not in "biufc":
            return None
        values.append(value)
    if not values or op.regions or isinstance(op, ScheduledPart) or not _is_small(op, inputs):
        return None
    if isinstance(op, LeavesOut) and first_left_out(op, values) is not None:
        return None
    with np.errstate(all="ignore"):
        try:
            result = op.run(np, *values)
        except Exception:  # whatever it is, the step raises it if it runs
            return None
    return _as_constant(result, values)


def _is_small(op: Op, inputs: Sequence[Symbol]) -> bool:
    try:
        spec = op.infer(*[tensor.spec for tensor in inputs])
    except (TypeError, ValueError, IndexError):
        return False
    if not isinstance(spec, TensorSpec) or spec.shape is None or spec.dtype.kind not in "biufc":
        return False
    size = math.prod(dim or 0 for dim in spec.shape)  # what is unknown is looked at when it is computed
    return size <= (1 if op.repeats_values else LARGEST)  # as a constant it would only take more room


def _as_constant(result: Any, values: Sequence[Any]) -> Constant | None:
    if not is_numpy(result) or result.size > LARGEST:
        return None
    if not np.all(np.isfinite(result)) and all(np.all(np.isfinite(value)) for value in values):
        return None
    value: Any = as_scalar_or_array(np.array(result))
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return Constant(value)
