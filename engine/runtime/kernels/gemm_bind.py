"""Which matrix products of a program are computed by `gemm` instead of NumPy's BLAS, and the kernels that call it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...graph.dtypes import name_of
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...ops.linalg import MatMul
from ...ops.packed import Layout, Pack, PackedMatMul
from . import gemm
from .bound import MANY, BoundKernel
from .entry import Kernel, Operand, PrintedKernel
from .library import library
from .products_together import Begun

_LEAST_ROWS = 2
_LEAST_COLUMNS = 4
_LEAST_WORK = 64**3  # from here on OpenBLAS uses threads
_MOST_PACKED_ROWS = 1024  # of more, laying the weight out costs nothing beside the product;
_MOST_PACKED_ROWS_TURNED = 256  # as of fewer where that means to transpose it
_MOST_SHAPES = 64  # of which an open product keeps tables


class ProductKernel(BoundKernel):
    """A kernel for what NumPy can compute as well, from operands that lie in memory in any way.

    Args:
        op: the operation.
        spec, inputs, outputs, numbers: as for `BoundKernel`.
    """

    def __init__(
        self, op: Op, spec: Kernel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], numbers: Sequence[int]
    ) -> None:
        super().__init__(spec, inputs, outputs, numbers)
        self._op = op

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Compute it by NumPy: BLAS takes a transposed view as it is, of which the kernel would need a copy."""
        for output, result in zip(outputs, [self._op.run(np, *operands)], strict=True):
            output[...] = result


class OpenProduct:
    """A `MatMul` whose shapes are known when it runs, such as one over the rows of all iterations of a loop.

    Args:
        op: the operation.
        dtype: "float32" or "float64".
    """

    def __init__(self, op: MatMul, dtype: str) -> None:
        self._op = op
        self._dtype = np.dtype(dtype)
        self._entry: Any = None
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[BoundKernel, tuple[int, int]] | None] = {}

    def __call__(self, a: Any, b: Any) -> Any:
        """The product of two arrays."""
        begun = self.begin(a, b)
        if begun is None:
            return self._op.run(np, a, b)
        kernel, (result,) = begun
        if kernel.entry(kernel.table, id(a), id(b), id(result)):
            return self._op.run(np, a, b)
        return result

    def begin(self, a: Any, b: Any) -> Begun | None:
        """What is to be computed; None where NumPy does it."""
        shapes = (a.shape, b.shape)
        if shapes not in self._known:
            self._bind(*shapes)
        found = self._known[shapes]
        return None if found is None else Begun(found[0], (np.empty(found[1], self._dtype),))

    def _bind(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Make a table for these shapes, where the kernel is to be used."""
        if len(self._known) >= _MOST_SHAPES:
            self._known.clear()
        specs = [TensorSpec(shape, self._dtype) for shape in (a, b)]
        rows, columns = _dims(self._op.infer(*specs))
        terms = a[0 if self._op.transpose_a else 1]
        if not is_faster(rows, columns, terms):
            self._known[a, b] = None
            return
        result = TensorSpec((rows, columns), self._dtype)
        kernel = _product_kernel(self._dtype.name, self._op.transpose_a, self._op.transpose_b)
        if self._entry is None:
            (self._entry,) = library.get([kernel])
        numbers = [gemm.product_address(self._dtype.name), rows, columns, terms]
        bound = BoundKernel(kernel, specs, [result], numbers)
        bound.entry = self._entry
        self._known[a, b] = (bound, (rows, columns))


def bind_matmul(operation: Operation) -> BoundKernel | OpenProduct | None:
    """The kernel of a `MatMul`, where it is not slower than BLAS."""
    op = operation.op
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    assert isinstance(op, MatMul)
    a, b, c = (spec for spec in specs if isinstance(spec, TensorSpec))
    dtype = name_of(c.dtype)
    if dtype not in gemm.ELEMENTS or not gemm.is_available() or not may_be_large(a, b):
        return None
    if not (a.is_static and b.is_static and c.is_static):
        library.expect(_product_kernel(dtype, op.transpose_a, op.transpose_b))
        return OpenProduct(op, dtype)
    rows, columns = _dims(c)
    terms = _dims(a)[0 if op.transpose_a else 1]
    if not is_faster(rows, columns, terms):
        return None
    kernel = _product_kernel(dtype, op.transpose_a, op.transpose_b)
    return ProductKernel(op, kernel, [a, b], [c], [gemm.product_address(dtype), rows, columns, terms])


def may_be_large(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether what is known of the shapes lets a kernel be worth its compilation: unknown dimensions are long ones."""
    known = [math.prod(dim or MANY for dim in spec.shape) for spec in (a, b) if spec.shape is not None]
    return math.prod(known) > _LEAST_WORK


def bind_pack(operation: Operation) -> BoundKernel | None:
    """The kernel of a `Pack`."""
    op = operation.op
    specs = _specs(operation)
    if not isinstance(op, Pack) or specs is None:
        return None
    matrix, packed = specs
    dtype = name_of(matrix.dtype)
    if not is_ours(op.layout, dtype):
        return None
    numbers = [gemm.packing_address(dtype), op.layout.columns, op.layout.rows, op.layout.block]
    return ProductKernel(op, _packing_kernel(dtype, op.transpose), [matrix], [packed], numbers)


class OpenPackedProduct:
    """A `PackedMatMul` of as many rows as there are when it runs.

    Args:
        op: the operation.
        inputs: what is known of the operands: all but the rows of the first one.
    """

    def __init__(self, op: PackedMatMul, inputs: Sequence[TensorSpec]) -> None:
        self._op = op
        self._inputs = inputs
        self._entry: Any = None
        self._known: dict[int, BoundKernel] = {}  # by rows

    def __call__(self, a: Any, *others: Any) -> Any:
        """The product of a matrix and the packed one, and what is added to it."""
        kernel, (result,) = self.begin(a)
        if kernel.entry(kernel.table, id(a), *map(id, others), id(result)):
            kernel.refit((a, *others), (result,))
        return result

    def begin(self, a: Any, *_: Any) -> Begun:
        """What is to be computed."""
        rows = len(a)
        kernel = self._known.get(rows) or self._bind(rows)
        return Begun(kernel, (np.empty((rows, self._op.layout.columns), a.dtype),))

    def _bind(self, rows: int) -> BoundKernel:
        if len(self._known) >= _MOST_SHAPES:
            self._known.clear()
        inputs = [TensorSpec((rows, self._op.layout.rows), self._inputs[0].dtype), *self._inputs[1:]]
        kernel = self._known[rows] = _bound_packed(self._op, inputs, self._op.infer(*inputs))
        if self._entry is None:
            (self._entry,) = library.get([kernel.spec])
        kernel.entry = self._entry
        return kernel


def bind_packed(operation: Operation) -> BoundKernel | OpenPackedProduct | None:
    """The kernel of a `PackedMatMul`."""
    op = operation.op
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs) if isinstance(tensor.spec, TensorSpec)]
    if not isinstance(op, PackedMatMul) or not gemm.is_available():
        return None
    *inputs, result = specs
    dtype = name_of(result.dtype)
    if dtype not in gemm.ELEMENTS or not is_ours(op.layout, dtype):
        return None
    if result.is_static:
        return _bound_packed(op, inputs, result)
    library.expect(_packed_kernel(dtype, _ranks(inputs[2:])))
    return OpenPackedProduct(op, inputs)


def _bound_packed(op: PackedMatMul, inputs: Sequence[TensorSpec], result: TensorSpec) -> BoundKernel:
    dtype, addends = name_of(result.dtype), inputs[2:]
    rows, columns = _dims(result)
    numbers = [gemm.product_address(dtype), rows, columns, op.layout.rows, op.layout.block]
    numbers += [columns if addend.shape == result.shape and rows > 1 else 0 for addend in addends]
    return BoundKernel(_packed_kernel(dtype, _ranks(addends)), inputs, [result], numbers)


def _ranks(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    return tuple(len(spec.shape or ()) for spec in specs)


def is_faster(rows: int, columns: int, terms: int) -> bool:
    """Whether our product of these sizes is as fast as BLAS's, or faster. Measured on two cores with AVX-512.

    A vector times a matrix only streams the matrix, which BLAS does as well. Small products, which BLAS computes on one
    thread, cost little but the call. All others are ours, even where BLAS is as fast: its threads go on looking for
    work for some 30 ms, on the very cores that the engine's threads want, which takes a third off the speed of kernels.
    """
    return rows >= _LEAST_ROWS and columns >= _LEAST_COLUMNS and rows * columns * terms > _LEAST_WORK


def layout_for(rows: int | None, weight: TensorSpec, transpose: bool) -> Layout | None:
    """How to pack a weight, or its transpose, for many products of `rows` rows; None if that does not pay."""
    rows = MANY if rows is None else rows
    dtype, most = name_of(weight.dtype), _MOST_PACKED_ROWS_TURNED if transpose else _MOST_PACKED_ROWS
    if dtype not in gemm.ELEMENTS or rows > most or not gemm.is_available():
        return None
    terms, columns = reversed(_dims(weight)) if transpose else _dims(weight)
    return layout_of(terms, columns, dtype, rows) if is_faster(rows, columns, terms) else None


def layout_of(terms: int, columns: int, dtype: str, rows: int) -> Layout:
    """How kernels like a matrix of `terms` x `columns` to be packed that others of `rows` rows are multiplied by."""
    return Layout(terms, columns, gemm.k_block(terms, rows), gemm.tiles(dtype).columns)


def is_ours(layout: Layout, dtype: str) -> bool:
    """Whether this host's kernels take matrices that are packed like that, not only another's."""
    return layout.panel == gemm.tiles(dtype).columns


def _specs(operation: Operation) -> list[TensorSpec] | None:
    """The specs of the inputs and outputs; None where they are not known, or no products of ours."""
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    known = [spec for spec in specs if isinstance(spec, TensorSpec) and spec.is_static]
    usable = len(known) == len(specs) and name_of(known[0].dtype) in gemm.ELEMENTS and gemm.is_available()
    return known if usable else None


def _dims(spec: TensorSpec) -> tuple[int, int]:
    """Of a matrix of known shape."""
    rows, columns = spec.shape or (0, 0)
    assert rows is not None
    assert columns is not None
    return rows, columns


def _matrix(element: str, is_written: bool = False, rank: int = 2) -> Operand:
    return Operand(element, rank, (), is_written)


def _text(element: str, pointers: int, numbers: Sequence[str], call: str) -> str:
    """A run function that calls the function whose address is its first number, after reading the others."""
    parameters = ", ".join(f"{element}* %d{k}" for k in range(pointers))
    lines = [f"define internal void @NAME_run({parameters}, i64* %numbers) noinline {{"]
    for position, name in enumerate(("address", *numbers)):
        lines.append(f"  %p_{name} = getelementptr i64, i64* %numbers, i64 {position}")
        lines.append(f"  %{name} = load i64, i64* %p_{name}")
    kinds = [part.split()[0] for part in call.split(", ")]
    lines.append(f"  %function = inttoptr i64 %address to void ({', '.join(kinds)})*")
    lines.append(f"  call void %function({call})")
    lines.append("  ret void\n}\n")
    return "\n".join(lines)


@cache
def _product_kernel(dtype: str, transpose_a: bool, transpose_b: bool) -> PrintedKernel:
    e = gemm.ELEMENTS[dtype]
    a_step, b_step = "%m" if transpose_a else "%k", "%k" if transpose_b else "%n"
    call = (
        f"i64 %m, i64 %n, i64 %k, {e}* %d0, i64 {a_step}, i64 {int(transpose_a)}, {e}* %d1, i64 {b_step}, "
        f"i64 {int(transpose_b)}, {e}* %d2, i64 %n, {e}* null, i64 0, {e}* null, i64 0"
    )
    text = _text(e, 3, ("m", "n", "k"), call)
    return PrintedKernel((_matrix(e), _matrix(e), _matrix(e, True)), 4, text)


@cache
def _packing_kernel(dtype: str, transpose: bool) -> PrintedKernel:
    e = gemm.ELEMENTS[dtype]
    step = "%k" if transpose else "%n"
    call = f"i64 %n, i64 %k, i64 %block, {e}* %d0, i64 {step}, i64 {int(transpose)}, {e}* %d1"
    return PrintedKernel((_matrix(e), _matrix(e, True, 1)), 4, _text(e, 2, ("n", "k", "block"), call))


@cache
def _packed_kernel(dtype: str, addends: tuple[int, ...]) -> PrintedKernel:
    """With addends, at most two, of those ranks."""
    e = gemm.ELEMENTS[dtype]
    steps = tuple(f"step{k}" for k in range(len(addends)))
    added = [f"{e}* %d{2 + k}, i64 %{step}" for k, step in enumerate(steps)] + [f"{e}* null, i64 0"] * (
        2 - len(addends)
    )
    call = (
        f"i64 %m, i64 %n, i64 %k, {e}* %d0, i64 %k, i64 0, {e}* %d1, i64 %block, i64 {gemm.PACKED}, "
        f"{e}* %d{2 + len(addends)}, i64 %n, {', '.join(added)}"
    )
    operands = (_matrix(e), _matrix(e, rank=1), *[_matrix(e, rank=rank) for rank in addends], _matrix(e, True))
    return PrintedKernel(operands, 5 + len(steps), _text(e, len(operands), ("m", "n", "k", "block", *steps), call))
