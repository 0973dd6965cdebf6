"""Operands that functions of cupy refuse whatever their signatures say, as seen on a GPU (cupy 14.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from anabranch.engine.graph.op import Sample

_SCATTERED = {"int32", "int64", "float32", "float64", "uint32", "uint64"}  # the dtypes of `ufunc.at`
_ADDED = _SCATTERED | {"float16", "complex64", "complex128"}


def check_operands(name: str, *arguments: Any) -> None:
    """Refuse operands that cupy refuses.

    Args:
        name: of the function.
        arguments: those given by position.

    Raises:
        TypeError, ValueError, ZeroDivisionError: as cupy.
    """
    if name in ("maximum.at", "minimum.at", "add.at"):
        allowed = _ADDED if name == "add.at" else _SCATTERED
        if str(arguments[0].dtype) not in allowed:
            raise TypeError(f"cupy.{name} only supports {', '.join(sorted(allowed))} as data type")
    if name == "linalg.solve":
        _check_solve(*arguments)


def _check_solve(a: Any, b: Any) -> None:
    if a.shape[:-2] != (b.shape[:-1] if b.ndim == a.ndim - 1 else b.shape[:-2]):
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    if a.ndim > 2 and not b.size:
        raise ZeroDivisionError("division by zero")


def is_left_to_kernels(sample: Sample) -> bool:
    """Test whether printed kernels run what cupy refuses."""
    return sample.op.type_name in {"segment_max", "segment_min"} and np.asarray(sample.inputs[0]).dtype == bool
