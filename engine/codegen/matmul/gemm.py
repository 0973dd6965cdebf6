"""Matrix products of the engine's own: C = A @ B + D + E in float32 and float64, split over the engine's threads.

Functions that any kernel may call by name once `start` has run (declare them as here, with ``double`` for ``d``)::

    void @anabranch_sgemm(i64 m, i64 n, i64 k,
                          ptr a, i64 a_step, i64 a_transposed,   ; (m, k), or (k, m) if transposed
                          ptr b, i64 b_step, i64 form,           ; 0: (k, n); 1: (n, k), transposed; 2: packed
                          ptr c, i64 c_step,                     ; (m, n)
                          ptr d, i64 d_step, ptr e, i64 e_step) ; (m, n), or (n,) with a step of 0, or null
    void @anabranch_sgemm_then(..., ptr then, ptr context)
    void @anabranch_spack(i64 n, i64 k, ptr b, i64 b_step, i64 transposed, ptr out)

Steps are the distances of rows, in elements; rows are contiguous. C may be D, but shares no memory with A, B and E.
`out` has room for `packed_size` elements. The second form calls ``then(context, row, row_end, column, column_end, 1)``
before each tile of C, to ask for what will be read with it, and the same with 0 as it is done, while it is in the first
cache, on the thread that made it; tiles do not overlap.
Sums are taken in an order that depends on sizes and on how operands are laid out, and work is cut likewise: so results
are the same for any number of threads. Sizes may be zero; without terms (k = 0) C is D + E.

The functions are one module, compiled once (a quarter of a second) and cached by its content.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ..llvm.builder import ELEMENTS
from ..llvm.compiler import Effort
from ..llvm.library import library
from .gemm_forms import packing_name, product_name, then_name
from .gemm_tile import Tiles, tiles_of


def tiles(dtype: str) -> Tiles:
    """Return the tiles of this host for "float32" or "float64"."""
    return tiles_of(library.host, ELEMENTS[dtype])


def packed_size(k: int, n: int, panel: int) -> int:
    """Return the elements of a packed matrix of `k` rows and `n` columns, in panels of `panel` columns."""
    return k * (-(-n // panel) * panel)


def is_available() -> bool:
    """Test whether these functions can be compiled and find memory."""
    return library.usable and _malloc() != 0


@cache
def _malloc() -> int:
    """Return the address of the system's function; 0 if there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    except (OSError, TypeError, AttributeError):
        return 0


@cache
def start(dtype: str) -> Any:
    """Compile the functions for a dtype, or load them from the disk, and offer them to kernels by name.

    Returns:
        the engine that holds them.
    """
    library.offer("malloc", _malloc())
    library.offer_system(["free"])
    known = tiles(dtype)
    engine = library.load(_key(known), lambda: _text(known), effort=Effort.PRINTED)
    for name in (product_name(known), then_name(known), packing_name(known)):
        library.offer(name, engine.get_function_address(name))
    return engine


def prepare(dtype: str) -> None:
    """Have the functions for a dtype compiled by another thread, if they are not known yet."""
    known = tiles(dtype)
    library.prepare(_key(known), lambda: _text(known), Effort.PRINTED)


def is_compiled(dtype: str) -> bool:
    """Test whether the functions for a dtype are compiled, or will be soon."""
    return library.contains(_key(tiles(dtype)))


def _key(known: Tiles) -> str:
    return f"products {known}"


def _text(known: Tiles) -> str:
    from .gemm_driver import COMMON, print_products  # few processes print them: the object code is on the disk

    return COMMON + print_products(known)


def product_address(dtype: str) -> int:
    """Return the address of ``anabranch_sgemm`` (or ``dgemm``) in this process."""
    return start(dtype).get_function_address(product_name(tiles(dtype)))


def then_address(dtype: str) -> int:
    """Return the address of ``anabranch_sgemm_then`` (or ``dgemm``) in this process."""
    return start(dtype).get_function_address(then_name(tiles(dtype)))


def packing_address(dtype: str) -> int:
    """Return the address of ``anabranch_spack`` (or ``dpack``) in this process."""
    return start(dtype).get_function_address(packing_name(tiles(dtype)))
