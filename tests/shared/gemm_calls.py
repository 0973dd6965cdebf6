"""Calls of the functions for matrix products, as kernels make them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from anabranch.engine.codegen.matmul import gemm
from anabranch.engine.codegen.matmul.gemm_forms import PACKED, ROWS, TRANSPOSED, k_block


def address(array: Any) -> int:
    return 0 if array is None else array.ctypes.data


def step_of(matrix: Any) -> int:
    """The elements from one row to the next."""
    return matrix.strides[0] // matrix.itemsize


def product(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    form: int = ROWS,
    addends: Sequence[Any] = (),
    out: Any = None,
    release: bool = False,
) -> Any:
    """A @ B plus addends, by the function that kernels call; matrices may be columns of wider ones.

    B is packed here for form `PACKED`.

    Args:
        release: whether other threads of Python go on meanwhile.
    """
    dtype = a.dtype.name
    rows, terms = a.shape[::-1] if transpose_a else a.shape
    columns = b.shape[0] if form == TRANSPOSED else b.shape[1]
    step = step_of(b)
    if form == PACKED:
        step = k_block(terms, rows)
        b = packed(b, False, step)
    result = np.full((rows, columns), np.nan, dtype) if out is None else out
    call = ctypes.CFUNCTYPE if release else ctypes.PYFUNCTYPE
    function = call(None, *[ctypes.c_size_t] * 15)(gemm.product_address(dtype))
    given = [*addends, None, None][:2]
    steps = [0 if addend is None or addend.ndim == 1 else step_of(addend) for addend in given]
    function(
        *(rows, columns, terms, address(a), step_of(a), int(transpose_a), address(b), step, form),
        *(address(result), step_of(result), address(given[0]), steps[0], address(given[1]), steps[1]),
    )
    return result


def packed(matrix: Any, transpose: bool, block: int) -> Any:
    dtype = matrix.dtype.name
    terms, columns = matrix.shape[::-1] if transpose else matrix.shape
    result = np.full(gemm.packed_size(terms, columns, gemm.tiles(dtype).columns), np.nan, dtype)
    function = ctypes.PYFUNCTYPE(None, *[ctypes.c_size_t] * 7)(gemm.packing_address(dtype))
    function(columns, terms, block, address(matrix), matrix.shape[1], int(transpose), address(result))
    return result


__all__ = ["PACKED", "ROWS", "TRANSPOSED", "address", "packed", "product"]
