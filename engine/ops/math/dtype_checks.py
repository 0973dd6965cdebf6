"""Refusing dtypes that an op can't compute with, from its `infer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...graph.op import Op


def check_dtype(op: Op, spec: Any, allowed: Callable[[DType], bool], expected: str, remedy: str) -> None:
    """Refuse an input whose dtype `op` cannot compute with.

    Raises:
        TypeError: `allowed` is false for the dtype.
    """
    if not allowed(spec.dtype):
        raise TypeError(f"{op.type_name} takes {expected}; got {spec}. {remedy}")


def check_floating(op: Op, spec: Any) -> None:
    """Refuse integers and bools, of which `run` would make another dtype.

    Raises:
        TypeError: the input holds no floating-point or complex numbers.
    """
    check_dtype(op, spec, dtypes.is_differentiable, "floating-point numbers", "Cast it with ops.cast.")


def check_holds(op: Op, spec: Any, value: float | None, what: str) -> None:
    """Refuse a number that the integer dtype of an input does not hold.

    Raises:
        TypeError: `value` is outside it.
    """
    if value is None or not dtypes.is_integer(spec.dtype):
        return
    limits = np.iinfo(spec.dtype)
    if not int(limits.min) <= value <= int(limits.max):
        raise TypeError(
            f"{op.type_name} of {spec} with {what}={value}: {spec.dtype} does not hold that value. Pass one that it "
            "holds, or cast the input."
        )


def is_real(dtype: DType) -> bool:
    """Test whether `dtype` holds real numbers or bools."""
    return dtype.kind != "c"
