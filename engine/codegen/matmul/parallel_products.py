"""Independent products of matrices in one call: threads take one product after the other, not parts of each in turn.

So threads wait for each other once for all products instead of once for each, and what disturbs one thread keeps the
others waiting only at the end, where they help with the parts of the products that are left. The parts into which a
product is cut are the same as if it ran by itself, and so are its results.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...graph.spec import TensorSpec
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import native_dtype
from ..llvm.compiler import Effort
from ..llvm.library import library
from ..llvm.tasks import print_parallel
from .gemm_code import ProductBuilder

_MOST_OPERANDS = 12  # and results, of one product
_FIELDS = ("entry", "refused", "table")  # of a call, then the addresses of operands and results
_WIDTH = len(_FIELDS) + _MOST_OPERANDS

Result = tuple[Any, ...] | None


class Begun(NamedTuple):
    """A product that is to be computed.

    Attributes:
        kernel: what computes it.
        results: the arrays that it writes.
    """

    kernel: BoundKernel
    results: tuple[Any, ...]


class Runner(Protocol):
    """The runner of a product whose sizes are known when it runs."""

    def begin(self, *values: Any) -> Begun | None:
        """Return the product to compute for these operands; None if no kernel computes them."""
        ...

    def __call__(self, *values: Any) -> Any: ...


class Member:
    """A product of a group. Called, it computes the product by itself, as a tuple of results.

    Args:
        kernel: what computes it where it stands alone.
        outputs: what is known of its results.
    """

    def __init__(self, kernel: BoundKernel | Runner, outputs: Sequence[TensorSpec]) -> None:
        self._kernel = kernel
        self._is_single = len(outputs) == 1
        shapes = [tuple([int(dim or 0) for dim in spec.shape or ()]) for spec in outputs]  # those that are not known
        self._made = [(shape, native_dtype(spec.dtype)) for shape, spec in zip(shapes, outputs, strict=True)]  # unused

    def begin(self, *values: Any) -> Begun | None:
        kernel = self._kernel
        if not isinstance(kernel, BoundKernel):
            return kernel.begin(*values)
        return Begun(kernel, tuple([np.empty(shape, dtype) for shape, dtype in self._made]))

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        kernel = self._kernel
        if not isinstance(kernel, BoundKernel):
            found = kernel(*values)
            return (found,) if self._is_single else found
        begun = self.begin(*values)
        results = () if begun is None else begun.results
        if kernel.call(*values, *results):
            kernel.refit(values, results)
        return results


def run_products(*pieces: tuple[Any, ...]) -> list[Result]:
    """Compute products, each a `Member` and its operands; return the results of each, None of what is to run alone."""
    begun = [_begun(piece) for piece in pieces]
    wanted = [number for number, each in enumerate(begun) if each is not None]
    calls: list[int] = []
    for number in wanted:
        calls += _call(begun[number], pieces[number][1:])
    memory = array("q", calls)
    _function()(memory.buffer_info()[0], len(wanted))
    for place, number in enumerate(wanted):
        if memory[place * _WIDTH + _FIELDS.index("refused")]:
            begun[number] = None
    return [None if each is None else each.results for each in begun]


def _begun(piece: tuple[Any, ...]) -> Begun | None:
    member, *values = piece
    try:
        found: Begun | None = member.begin(*values)
    except Exception:
        return None  # it fails again in its turn
    return None if found is None or len(values) + len(found.results) > _MOST_OPERANDS else found


def _call(begun: Begun | None, values: Sequence[Any]) -> list[int]:
    assert begun is not None
    addresses = [*map(id, values), *map(id, begun.results)]
    padding = [0] * (_MOST_OPERANDS - len(addresses))
    return [begun.kernel.address, 0, begun.kernel.table, *addresses, *padding]


@cache
def _function() -> Any:
    text = _text()
    engine = library.load(f"products together {text}", lambda: text, effort=Effort.PRINTED)
    return ctypes.PYFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)(engine.get_function_address("run_products"))


def _text() -> str:
    """Compute ``void @run_products(calls, count)``: each call is a part."""
    code = ProductBuilder("run_call", ["ptr %context", "i64 %part"])
    first = code.mul("%part", _WIDTH)
    places = [code.add(first, k) for k in range(len(_FIELDS) + 1)]
    entry, table = code.load("ptr", "%context", places[0]), code.load("i64", "%context", places[2])
    objects = code.at("i64", "%context", places[3])
    refused = code.let(f"call i32 {entry}(i64 {table}, ptr {objects})")
    code.store("i64", code.let(f"zext i32 {refused} to i64"), "%context", places[1])
    start = ProductBuilder("run_products", ["ptr %calls", "i64 %count"], linkage="")
    print_parallel(start, "run_call", "%calls", "%count")
    return code.text() + start.text()
