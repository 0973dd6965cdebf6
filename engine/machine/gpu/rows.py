"""Rows combined on a GPU, in an order that is the same in each run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...codegen.cuda.row_sums import TILE, RowSums, print_row_sums
from ...codegen.cuda.rows import BLOCK
from ...codegen.expression.expression import UnsupportedError
from ...common.dtypes import name_of
from .fused import compiled_module

_MOST_BLOCKS = 1 << 16


def combine_rows_on_gpu(cupy: Any, ufunc: str, out: Any, places: Any, values: Any) -> bool:
    """Combine rows into others, in place, as `combine_rows` does; return whether there are kernels for it.

    Args:
        cupy: the module.
        ufunc: NumPy's name of what combines two elements.
        out: rows (m, width), contiguous.
        places: which of them, ints (n,).
        values: rows (n, width).
    """
    try:
        kernels = _printed(ufunc, name_of(out.dtype))
    except UnsupportedError:
        return False
    count, width = values.shape
    if not count * width:
        return True
    places = cupy.asarray(places).astype(np.int64, copy=False)
    order = cupy.argsort(places)
    held = cupy.ascontiguousarray(values.astype(out.dtype, copy=False))
    tiles = -(-count // TILE)
    pieces = cupy.empty((tiles * width * kernels.itemsize,), np.dtype("uint8"))
    given = (out, held, order.astype(np.int64, copy=False), places[order], pieces, np.int64(count), np.int64(width))
    module = compiled_module(cupy, kernels.source)
    grid = min(-(-tiles * width // BLOCK), _MOST_BLOCKS), 1
    for name in ("tiles", "spread") if tiles > 1 else ("tiles",):
        module.get_function(name)(grid, (BLOCK,), given)
    return True


def _printed(ufunc: str, dtype: str) -> RowSums:
    found = _kernels.get((ufunc, dtype))
    if found is None:
        found = _kernels[ufunc, dtype] = print_row_sums(ufunc, dtype)
    return found


_kernels: dict[tuple[str, str], RowSums] = {}
