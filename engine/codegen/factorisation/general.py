"""Runners of solutions, inverses and determinants of general square matrices, by LU factors with partial pivoting.

Stacks of small matrices are eliminated by vectors across the matrices, large ones by blocks. What is between is left
to NumPy, and so is what has a pivot of zero where that is an error, or an element that is no number. As in NumPy,
float32 is computed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ..elementwise.bound import fitted
from .blocks import dtype_of_kernels
from .eliminations import print_determinants, print_inverses, print_pivots, print_solutions
from .lu import factors_of
from .stacks import MOST, Printer, is_small_stack, run_stack
from .triangular import substitute_in_place

_LEAST_ROWS = 256  # of large matrices: LAPACK is as quick with fewer
_WIDE = np.dtype("float64")

Runner = Callable[..., Any]


def general_runner(operation: Operation) -> Runner | None:
    """Return what runs a `Solve`, `Inverse`, `Adjugate`, `Determinant` or `SlogDet` on single or double precision.

    Returns:
        The runner; None for other dtypes, and where NumPy is as quick.
    """
    compute = _COMPUTED[operation.type]
    op, dtype, has_parts = operation.op, _dtype_worth(operation), len(operation.outputs) > 1
    if dtype is None:
        return None

    def run(*arrays: Any) -> Any:
        with np.errstate(over="ignore", under="ignore"):
            found = compute(*arrays)
            if found is None:
                return op.run(np, *arrays)
            return tuple(part.astype(dtype) for part in found) if has_parts else found.astype(dtype, copy=False)

    return run


def _solutions(a: Any, b: Any) -> Any:
    if not (a.size and b.size):
        return None
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    size, columns, count = a.shape[-1], b.shape[-1], math.prod(batch)
    right = np.broadcast_to(b, (*batch, size, columns))
    if columns <= MOST and is_small_stack(size, count):
        return _small("any_solutions", print_solutions, np.broadcast_to(a, (*batch, size, size)), right.shape, right)
    return _large_solutions(a, right) if size >= _LEAST_ROWS else None


def _large_solutions(a: Any, right: Any) -> Any:
    found = factors_of(fitted(a, _WIDE), _WIDE)
    if found is None:
        return None
    lu, _, order = found
    batch, size = right.shape[:-2], right.shape[-2]
    places = np.broadcast_to(order, (*batch, size))[..., None]
    x = fitted(np.take_along_axis(right, places, -2), _WIDE)
    if lu.ndim > 2:
        lu = fitted(np.broadcast_to(lu, (*batch, size, size)), _WIDE)
    flags = (True, False, True), (False, False, False)  # L has ones on its diagonal, U may have a zero
    return None if any(substitute_in_place(lu, x, _WIDE, each) for each in flags) else x


def _inverses(x: Any) -> Any:
    if _is_small(x):
        return _small("inverses", print_inverses, x, x.shape)
    size = x.shape[-1]
    return _large_solutions(x, np.broadcast_to(np.eye(size), x.shape)) if x.size and size >= _LEAST_ROWS else None


def _determinants(x: Any) -> Any:
    if _is_small(x):
        return _small("determinants", print_determinants, x, x.shape[:-2])
    pivots = _large_pivots(x)
    if pivots is None:
        return None
    sign, logarithm = _sign_and_logarithm(pivots)
    return sign * np.exp(logarithm)


def _adjugates(x: Any) -> Any:
    inverses, determinants = _inverses(x), _determinants(x)
    return None if inverses is None or determinants is None else inverses * determinants[..., None, None]


def _signs_and_logarithms(x: Any) -> Any:
    pivots = _small("pivots", print_pivots, x, x.shape[:-1]) if _is_small(x) else _large_pivots(x)
    return None if pivots is None else _sign_and_logarithm(pivots)


def _dtype_worth(operation: Operation) -> Any:
    """Return the dtype of the matrices that an operation takes; None if none, or none of its sizes, has a kernel."""
    dtype, first = dtype_of_kernels(operation), operation.inputs[0]
    if any(each.dtype is not first.dtype for each in operation.inputs):
        return None
    if dtype is None or first.shape is None or first.shape[-1] is None:
        return dtype
    size = first.shape[-1]
    stack = (operation.outputs[0] if operation.type == "solve" else first).shape
    count = None if stack is None or None in stack[:-2] else math.prod(dim or 0 for dim in stack[:-2])
    is_small = size <= MOST and (count is None or is_small_stack(size, count))
    return dtype if is_small or size >= _LEAST_ROWS else None


def _is_small(x: Any) -> bool:
    return is_small_stack(x.shape[-1], math.prod(x.shape[:-2]))


def _small(name: str, body: Printer, x: Any, shape: tuple[int, ...], right: Any = None) -> Any:
    """Return what a function of a stack gives, of a shape; None where NumPy is to do it."""
    size, out = x.shape[-1], np.empty(shape)
    arrays = [fitted(each, _WIDE) for each in (x, right) if each is not None]
    sizes = size, 1 if right is None else right.shape[-1], x.size // (size * size)
    return None if run_stack(name, "double", body, (*arrays, out), sizes) else out


def _large_pivots(x: Any) -> Any:
    """Return the pivots of large matrices, of which the first has the sign of the exchanges; else None."""
    found = factors_of(fitted(x, _WIDE), _WIDE) if x.size and x.shape[-1] >= _LEAST_ROWS else None
    if found is None:
        return None
    lu, exchanged, _ = found
    pivots = np.diagonal(lu, axis1=-2, axis2=-1).copy()
    own = np.arange(x.shape[-1], dtype=np.int32)
    exchanges = np.sum(exchanged != own, axis=-1)
    pivots[..., 0] *= 1 - 2 * (exchanges % 2)
    return pivots


def _sign_and_logarithm(pivots: Any) -> tuple[Any, Any]:
    with np.errstate(divide="ignore"):
        return np.prod(np.sign(pivots), -1), np.sum(np.log(np.abs(pivots)), -1)


# By the types of operations what gives their results in double precision, or None where NumPy is to compute them.
_COMPUTED: dict[str, Runner] = {
    "adjugate": _adjugates,
    "determinant": _determinants,
    "inverse": _inverses,
    "slogdet": _signs_and_logarithms,
    "solve": _solutions,
}
