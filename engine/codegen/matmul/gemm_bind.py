"""Kernels that call `gemm`, and the rule for which products they compute in place of NumPy's BLAS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.packed import Layout, Pack, PackedMatMul
from ...ops.linear_algebra.products import MatMul
from ..elementwise.bound import BoundKernel, KernelOrNumPy
from ..elementwise.kernel_specs import MANY, specs_of, static_shape, static_specs
from ..elementwise.open_sizes import BoundedCache, Names, Shape, Shapes, read_sizes
from ..llvm.entry import Operand, PrintedKernel
from ..llvm.library import library
from . import gemm
from .gemm_forms import PACKED, k_block
from .parallel_products import Begun

_LEAST_COLUMNS = 4  # but for a single one, which is a row of the transposed product
_MOST_SMALL = 32**3  # multiplications: up to here the call of NumPy takes longer than the product,
_MOST_SMALL_TERMS, _MOST_SMALL_ROWS = 512, 128  # if there are not many of one kind by few of the others
_LEAST_WORK = 64**3  # from here on OpenBLAS uses threads
_MOST_PACKED_ROWS = 1024  # of more, laying the weight out costs nothing beside the product;
_MOST_PACKED_ROWS_TURNED = 256  # as of fewer where that means to transpose it


class OpenProduct:
    """A `MatMul` whose shapes are known when it runs, such as one over the rows of all iterations of a loop.

    Args:
        op: the operation.
        dtype: "float32" or "float64".
    """

    def __init__(self, op: MatMul, dtype: str) -> None:
        self._op = op
        self._dtype = np.dtype(dtype)
        self._names = product_names(op.transpose_a, op.transpose_b)
        self._layouts = int(op.transpose_a), int(op.transpose_b)
        self._first: BoundKernel | None = None
        self._address = 0
        self._known = BoundedCache[Shapes, tuple[BoundKernel, Shape] | None](self._bind)

    def __call__(self, a: Any, b: Any) -> Any:
        """Return the product of two arrays."""
        begun = self.begin(a, b)
        if begun is None:
            return self._op.run(np, a, b)
        kernel, (result,) = begun
        if kernel.call(a, b, result):
            return self._op.run(np, a, b)
        return result

    def begin(self, a: Any, b: Any) -> Begun | None:
        """Return the product to compute; None where NumPy computes it."""
        found = self._known[a.shape, b.shape]
        return None if found is None else Begun(found[0], (np.empty(found[1], self._dtype),))

    def _bind(self, shapes: Shapes) -> tuple[BoundKernel, Shape] | None:
        """Return the kernel for these shapes and the shape of the result, where it is to be used."""
        sizes = read_sizes(self._names, shapes, 3)
        if sizes is None:
            self._op.infer(*[TensorSpec(shape, self._dtype) for shape in shapes])  # whose error says what does not fit
            return None
        rows, columns, _ = sizes
        if not is_faster(*sizes):
            return None
        first = self._first or self._compiled(shapes, (rows, columns))
        return first.resized((*shapes, (rows, columns)), [self._address, *sizes, *self._layouts]), (rows, columns)

    def _compiled(self, shapes: Shapes, result: Shape) -> BoundKernel:
        kernel = _product_kernel(self._dtype.name)
        self._address = gemm.product_address(self._dtype.name)
        a, b, c = [TensorSpec(shape, self._dtype) for shape in (*shapes, result)]
        self._first = BoundKernel(kernel, [a, b], [c], [0] * kernel.number_count).compiled()
        return self._first


def product_names(transpose_a: bool, transpose_b: bool) -> tuple[Names, Names]:
    """Return the axes of a product's operands: 0 are the rows of the result, 1 its columns, 2 the terms of a sum."""
    return (2, 0) if transpose_a else (0, 2), (1, 2) if transpose_b else (2, 1)


def bind_matmul(operation: Operation) -> BoundKernel | OpenProduct | None:
    """Return the kernel of a `MatMul`, where it is not slower than BLAS."""
    op = op_of(operation, MatMul)
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    a, b, c = (spec for spec in specs if isinstance(spec, TensorSpec))
    dtype = name_of(c.dtype)
    if dtype not in gemm.ELEMENTS or not gemm.is_available():
        return None
    if not (a.is_static and b.is_static and c.is_static):
        if not may_be_large(a, b):
            return None
        library.expect(_product_kernel(dtype))
        return OpenProduct(op, dtype)
    rows, columns = _dims(c)
    terms = _dims(a)[0 if op.transpose_a else 1]
    if terms != _dims(b)[1 if op.transpose_b else 0] or not is_faster(rows, columns, terms):
        return None  # in a branch that may never run operands need not fit
    is_turned = op.transpose_a and rows > 1  # a row has the memory of a column
    numbers = [gemm.product_address(dtype), rows, columns, terms, int(is_turned), int(op.transpose_b)]
    return KernelOrNumPy(op, _product_kernel(dtype), [a, b], [c], numbers)


def bind_pointwise(
    operation: Operation, sizes: tuple[int, int, int], transpose_a: bool = False, transpose_b: bool = False
) -> BoundKernel | None:
    """Return the kernel of a convolution, or its gradient, that is one matrix product; None where BLAS is as fast.

    Args:
        operation: of two operands, whose leading axes are rows, and maybe a shape, which is known.
        sizes: the rows and columns of the result, and how many terms are summed.
        transpose_a, transpose_b: how the operands are laid out.
    """
    specs = _specs(operation)
    if specs is None or not is_wide(sizes[1]) or 0 in sizes:
        return None
    dtype, inputs, results = name_of(specs[-1].dtype), specs[:2], specs[-1:]
    a, b, c = [len(spec.shape or ()) for spec in (*inputs, *results)]
    numbers = [gemm.product_address(dtype), *sizes, int(transpose_a), int(transpose_b)]
    return BoundKernel(_product_kernel(dtype, (a, b, c)), inputs, results, numbers)


def may_be_large(a: TensorSpec, b: TensorSpec) -> bool:
    """Test whether a kernel may be worth its compilation, by the known dimensions: unknown ones count as long."""
    known = [math.prod(dim or MANY for dim in spec.shape) for spec in (a, b) if spec.shape is not None]
    return math.prod(known) > _LEAST_WORK


def bind_pack(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `Pack`."""
    op = operation.op
    specs = _specs(operation)
    if not isinstance(op, Pack) or specs is None:
        return None
    matrix, packed = specs
    dtype = name_of(matrix.dtype)
    if not is_ours(op.layout, dtype):
        return None
    numbers = [gemm.packing_address(dtype), op.layout.columns, op.layout.rows, op.layout.block]
    return KernelOrNumPy(op, _packing_kernel(dtype, op.transpose), [matrix], [packed], numbers)


class OpenPackedProduct:
    """A `PackedMatMul` of as many rows as there are when it runs.

    Args:
        op: the operation.
        inputs: what is known of the operands: all but the rows of the first one.
    """

    def __init__(self, op: PackedMatMul, inputs: Sequence[TensorSpec]) -> None:
        self._op = op
        self._inputs = inputs
        self._first: BoundKernel | None = None
        self._address = 0
        self._known = BoundedCache[Shapes, BoundKernel](self._bind)  # by the shapes of the matrix and of what is added

    def __call__(self, a: Any, *others: Any) -> Any:
        """Return the product of a matrix and the packed one, and what is added to it."""
        kernel, (result,) = self.begin(a, *others)
        if kernel.call(a, *others, result):
            kernel.refit((a, *others), (result,))
        return result

    def begin(self, a: Any, *others: Any) -> Begun:
        """Return the product to compute."""
        kernel = self._known[a.shape, *[addend.shape for addend in others[1:]]]
        return Begun(kernel, (np.empty((len(a), self._op.layout.columns), a.dtype),))

    def _bind(self, shapes: Shapes) -> BoundKernel:
        matrix, *addends = [TensorSpec(shape, self._inputs[0].dtype) for shape in shapes]
        inputs = [matrix, self._inputs[1], *addends]
        result = self._op.infer(*inputs)
        if self._first is None:
            self._address = gemm.product_address(name_of(result.dtype))
            self._first = _bound_packed(self._op, inputs, result).compiled()
        known = [static_shape(spec) for spec in (*inputs, result)]
        return self._first.resized(known, _packed_numbers(self._op, inputs, result, self._address))


def bind_packed(operation: Operation) -> BoundKernel | OpenPackedProduct | None:
    """Return the kernel of a `PackedMatMul`."""
    op = operation.op
    specs = specs_of((*operation.inputs, *operation.outputs))
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
    dtype = name_of(result.dtype)
    numbers = _packed_numbers(op, inputs, result, gemm.product_address(dtype))
    return BoundKernel(_packed_kernel(dtype, _ranks(inputs[2:])), inputs, [result], numbers)


def _packed_numbers(op: PackedMatMul, inputs: Sequence[TensorSpec], result: TensorSpec, address: int) -> list[int]:
    rows, columns = _dims(result)
    steps = [int(addend.shape == result.shape and rows > 1) for addend in inputs[2:]]  # or one row for all
    return [address, rows, columns, op.layout.rows, op.layout.block, *steps]


def _ranks(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    return tuple(len(spec.shape or ()) for spec in specs)


def is_faster(rows: int, columns: int, terms: int) -> bool:
    """Test whether our product of these sizes is as fast as BLAS's, or faster. Measured on two cores with AVX-512.

    Small products cost little but the call, which is NumPy's longest. Those of medium size BLAS computes on one thread,
    as fast or faster. All others are ours, even where BLAS is as fast: its threads go on looking for work for some 30
    ms, on the very cores that the engine's threads want, which takes a third off the speed of kernels.
    """
    if not is_wide(columns):
        return False
    work = rows * columns * terms
    if work > _LEAST_WORK:
        return rows > 0
    is_even = terms <= _MOST_SMALL_TERMS and (rows <= _MOST_SMALL_ROWS or columns == 1)
    return 0 < work <= _MOST_SMALL and is_even


def is_wide(columns: int) -> bool:
    """Test whether kernels compute products of so many columns as fast as BLAS."""
    return columns >= _LEAST_COLUMNS or columns == 1


def layout_for(rows: int | None, weight: TensorSpec, transpose: bool) -> Layout | None:
    """Return the layout of a packed weight, or its transpose; None if packing does not pay.

    It is for many products of `rows` rows.
    """
    rows = MANY if rows is None else rows
    dtype, most = name_of(weight.dtype), _MOST_PACKED_ROWS_TURNED if transpose else _MOST_PACKED_ROWS
    if dtype not in gemm.ELEMENTS or rows > most or not gemm.is_available():
        return None
    terms, columns = reversed(_dims(weight)) if transpose else _dims(weight)
    if rows == 1 or columns < _LEAST_COLUMNS or rows * columns * terms <= _LEAST_WORK:
        return None
    return layout_of(terms, columns, dtype, rows)


def layout_of(terms: int, columns: int, dtype: str, rows: int) -> Layout:
    """Return the packed layout that kernels take for a matrix of `terms` x `columns`.

    Others of `rows` rows are multiplied by it.
    """
    return Layout(terms, columns, k_block(terms, rows), gemm.tiles(dtype).columns)


def is_ours(layout: Layout, dtype: str) -> bool:
    """Test whether this host's kernels take matrices that are packed like that, not only another's."""
    return layout.panel == gemm.tiles(dtype).columns


def _specs(operation: Operation) -> list[TensorSpec] | None:
    """Return the specs of the inputs and outputs; None where they are not known, or no products of ours."""
    known = static_specs(operation)
    is_usable = known is not None and name_of(known[0].dtype) in gemm.ELEMENTS and gemm.is_available()
    return known if is_usable else None


def _dims(spec: TensorSpec) -> tuple[int, int]:
    """Return the rows and columns of a matrix of known shape."""
    rows, columns = spec.shape or (0, 0)
    assert rows is not None
    assert columns is not None
    return rows, columns


def _matrix(element: str, is_written: bool = False, rank: int = 2) -> Operand:
    return Operand(element, rank, (), is_written)


def _rows(element: str, rank: int = 2) -> Operand:
    """Return an operand; a matrix may be some columns of a wider one."""
    return Operand(element, rank, has_step=rank == 2)


def print_product_run(
    operands: Sequence[Operand], numbers: Sequence[str], call: str, before: Sequence[str] = ()
) -> str:
    """Print a run function that reads its numbers, and calls the function whose address is the first of them.

    Args:
        operands: of the kernel.
        numbers: the names of the others.
        call: the arguments.
        before: lines that compute them.
    """
    pointers = [f"ptr %d{k}" for k in range(len(operands))]
    steps = [f"i64 %r{k}" for k, operand in enumerate(operands) if operand.has_step]
    lines = [f"define internal void @NAME_run({', '.join([*pointers, *steps])}, ptr %numbers) noinline {{"]
    for position, name in enumerate(("address", *numbers)):
        lines.append(f"  %p_{name} = getelementptr i64, ptr %numbers, i64 {position}")
        lines.append(f"  %{name} = load i64, ptr %p_{name}")
    lines += before
    lines.append("  %function = inttoptr i64 %address to ptr")
    lines.append(f"  call void %function({call})")
    lines.append("  ret void\n}\n")
    return "\n".join(lines)


@cache
def _product_kernel(dtype: str, ranks: tuple[int, int, int] = (2, 2, 2)) -> PrintedKernel:
    """Return the kernel of a product. It reads from its numbers whether operands are transposed."""
    e = gemm.ELEMENTS[dtype]
    operands = a, b, _ = (_rows(e, ranks[0]), _rows(e, ranks[1]), _matrix(e, True, ranks[2]))
    before = list[str]()
    for name, turned, plain in (("a", "%m", "%k"), ("b", "%k", "%n")):
        before.append(f"  %{name}_turned = icmp ne i64 %{name}_transposed, 0")
        before.append(f"  %{name}_step = select i1 %{name}_turned, i64 {turned}, i64 {plain}")
    a_step, b_step = "%r0" if a.has_step else "%a_step", "%r1" if b.has_step else "%b_step"
    call = (
        f"i64 %m, i64 %n, i64 %k, ptr %d0, i64 {a_step}, i64 %a_transposed, ptr %d1, i64 {b_step}, i64 %b_transposed, "
        "ptr %d2, i64 %n, ptr null, i64 0, ptr null, i64 0"
    )
    numbers = ("m", "n", "k", "a_transposed", "b_transposed")
    return PrintedKernel(operands, 1 + len(numbers), print_product_run(operands, numbers, call, before))


@cache
def _packing_kernel(dtype: str, transpose: bool) -> PrintedKernel:
    e = gemm.ELEMENTS[dtype]
    step = "%k" if transpose else "%n"
    call = f"i64 %n, i64 %k, i64 %block, ptr %d0, i64 {step}, i64 {int(transpose)}, ptr %d1"
    operands = (_matrix(e), _matrix(e, True, 1))
    return PrintedKernel(operands, 4, print_product_run(operands, ("n", "k", "block"), call))


@cache
def _packed_kernel(dtype: str, addends: tuple[int, ...]) -> PrintedKernel:
    """Return the kernel of a packed product with addends, at most two, of those ranks."""
    e = gemm.ELEMENTS[dtype]
    operands = (_rows(e), _matrix(e, rank=1), *[_rows(e, rank) for rank in addends], _matrix(e, True))
    counts = [f"counts{k}" for k in range(len(addends))]  # 1 where each row of the result has one of its own
    steps = [f"%r{2 + k}" if rank == 2 else "0" for k, rank in enumerate(addends)]
    before = [f"  %step{k} = mul i64 {step}, %counts{k}" for k, step in enumerate(steps)]
    added = [f"ptr %d{2 + k}, i64 %step{k}" for k in range(len(addends))] + ["ptr null, i64 0"] * (2 - len(addends))
    call = (
        f"i64 %m, i64 %n, i64 %k, ptr %d0, i64 %r0, i64 0, ptr %d1, i64 %block, i64 {PACKED}, "
        f"ptr %d{2 + len(addends)}, i64 %n, {', '.join(added)}"
    )
    numbers = ("m", "n", "k", "block", *counts)
    return PrintedKernel(operands, 1 + len(numbers), print_product_run(operands, numbers, call, before))
