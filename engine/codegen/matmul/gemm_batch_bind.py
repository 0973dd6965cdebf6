"""Kernels for products of more than two axes, and the rule for which of these they compute in place of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op, is_plain_array
from ...graph.spec import TensorSpec
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.products import BatchMatMul
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import static_specs
from ..elementwise.open_sizes import BoundedCache, Shape
from ..llvm.entry import Operand, PrintedKernel
from ..llvm.library import library
from ..llvm.registers import registers_of
from . import gemm
from .gemm_batch import AXIS_FIELDS, FIELDS, BatchForm, print_batch
from .gemm_large import print_large
from .gemm_strides import StridedProduct, labels_of_matmul, strided_product

_MOST_AXES = 4
_MOST_PARTS = 16
_MOST_TERMS = 512
_MOST_PANEL = 1 << 17  # bytes that a part lays out at a time
_MOST_B_BYTES = 1 << 18
_MOST_SINGLE_B_BYTES = 1 << 15  # where there are few products
_FEW_PRODUCTS = 4  # for which large products are split, and not dealt out


class BoundBatch(BoundKernel):
    """The kernel of a stack of products; operands that are not contiguous have further ones, which read them in place.

    Args:
        op: what it computes.
        specs: of the operands and of the result.
        plan: the address of the function for the products, and its numbers.
        strides: those of the operands, in bytes, if either is not contiguous.
    """

    def __init__(self, op: Op, specs: Sequence[TensorSpec], plan: _Plan, strides: Sequence[Shape] = ()) -> None:
        super().__init__(plan.kernel(specs, bool(strides)), specs[:2], specs[2:], plan.numbers, strides)
        self._op = op
        self._specs = specs
        self._apart = BoundedCache[tuple[Shape, ...], BoundKernel | None](self._bind_apart)
        self._latest: BoundKernel | None = None  # of these

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Call again with operands that were refused as they are: in place where a kernel does that, else copied."""
        latest = self._latest  # operands mostly have the strides of the call before
        if latest is not None and not latest.call(*operands, *outputs):
            return
        strides = tuple([value.strides for value in operands if is_plain_array(value)])
        kernel = self._latest = self._apart[strides]
        if kernel is None or kernel.call(*operands, *outputs):
            super().refit(operands, outputs)

    def _bind_apart(self, strides: tuple[Shape, ...]) -> BoundKernel | None:
        """Return the kernel for operands of some strides; None where they are read better as contiguous copies."""
        size = int(self._specs[0].dtype.itemsize)
        if len(strides) < 2 or any(step <= 0 or step % size for each in strides for step in each):
            return None
        steps = [[step // size for step in each] for each in strides]
        plan = _plan(self._op, self._specs, steps)
        if plan is None:
            return None
        return BoundBatch(self._op, self._specs, plan, strides).compiled()


@dataclass(frozen=True)
class _Plan:
    """A way to compute a stack of products.

    Attributes:
        numbers: the address of the function for the products, and its numbers.
        is_swapped: whether A is the second operand, and B the first.
    """

    numbers: list[int]
    is_swapped: bool

    def kernel(self, specs: Sequence[TensorSpec], is_strided: bool) -> PrintedKernel:
        """Return the kernel for operands and a result of some specs, whose operands may have strides of their own."""
        ranks = [len(spec.shape or ()) for spec in specs]
        element = gemm.ELEMENTS[name_of(specs[0].dtype)]
        return _kernel(element, (ranks[0], ranks[1], ranks[2]), self.is_swapped, len(self.numbers), is_strided)


def bind_batch(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `BatchMatMul` or `Contraction`, where it is not slower than NumPy."""
    op = operation.op
    known = static_specs(operation)
    if known is None or not gemm.is_available() or name_of(known[0].dtype) not in gemm.ELEMENTS:
        return None
    plan = _plan(op, known)
    return None if plan is None else BoundBatch(op, known, plan)


def _plan(op: Op, specs: Sequence[TensorSpec], steps: Sequence[Sequence[int]] = ()) -> _Plan | None:
    """Return the way to compute an operation with inputs and output of these specs; None where NumPy is as fast."""
    product = product_of(op, specs, steps)
    if product is None or len(product.axes) > _MOST_AXES or product.count * product.work < machine_profile().batch_work:
        return None
    dtype = name_of(specs[0].dtype)
    numbers = (_large(product, dtype) if _is_large(product, dtype) else None) or _small(product, dtype)
    return None if numbers is None else _Plan(numbers, product.is_swapped)


def product_of(op: Op, specs: Sequence[TensorSpec], steps: Sequence[Sequence[int]] = ()) -> StridedProduct | None:
    """Return the product that an operation with inputs and output of these specs computes; None for empty ones.

    Args:
        op: a `BatchMatMul` or `Contraction`.
        specs: of its inputs and its output.
        steps: those of the inputs along their axes, in elements, unless they are contiguous.
    """
    shapes = [tuple(int(dim or 0) for dim in spec.shape or ()) for spec in specs]
    if any(0 in shape for shape in shapes):
        return None
    if isinstance(op, BatchMatMul):
        labels = labels_of_matmul(len(shapes[0]), len(shapes[1]), op.transpose_a, op.transpose_b)
    else:
        assert isinstance(op, Contraction)
        labels = (op.a, op.b, op.out)
    return strided_product(labels, (shapes[0], shapes[1], shapes[2]), steps)


def _is_large(product: StridedProduct, dtype: str) -> bool:
    """Test whether a product is better cut into blocks, as `gemm` does: B, or its copy, fills caches."""
    size = 4 if dtype == "float32" else 8
    terms, columns = product.terms.size, product.columns.size
    most = _MOST_B_BYTES if product.count >= _FEW_PRODUCTS else _MOST_SINGLE_B_BYTES
    return terms * columns * size >= most or not _fits(product, dtype)


def _fits(product: StridedProduct, dtype: str) -> bool:
    """Test whether there is room for a panel of B."""
    size = 4 if dtype == "float32" else 8
    panel = product.terms.size * min(product.columns.size, 4 * gemm.tiles(dtype).lanes) * size
    return product.terms.size <= _MOST_TERMS and panel <= _MOST_PANEL


def _axes(product: StridedProduct) -> list[int]:
    numbers = [number for axis in product.axes for number in (axis.size, axis.a, axis.b, axis.c)]
    return numbers + [0] * (AXIS_FIELDS * _MOST_AXES - len(numbers))


def _small(product: StridedProduct, dtype: str) -> list[int] | None:
    """Return the address of the function for a product, and its numbers."""
    if not _fits(product, dtype):
        return None
    registers = registers_of(library.host, gemm.ELEMENTS[dtype])
    rows, columns, terms = product.rows, product.columns, product.terms
    b = (1, columns.b or terms.size) if columns.b != 1 and columns.size > 1 else (terms.b or columns.size, 1)
    if columns.size == 1 and terms.b == 1:
        b = (1, terms.size)
    if columns.size == 1 and terms.b != 1 and terms.size > 1:
        return None
    count = product.count
    parts = max(1, min(_MOST_PARTS, max(_paying_parts(product))))
    wanted = -(-parts // count)  # chunks of rows
    form = BatchForm(
        gemm.ELEMENTS[dtype], registers, rows.size, columns.size, terms.size,
        (rows.a, terms.a), b, rows.c, len(product.axes), wanted > 1,
    )  # fmt: skip
    height = form.tiles.rows
    chunk_rows = -(-rows.size // min(wanted, -(-rows.size // height)) // height) * height
    chunks = -(-rows.size // chunk_rows)
    units = count * chunks
    part_units = -(-units // min(parts, units))
    numbers = {
        "part_units": part_units,
        "units": units,
        "parts": -(-units // part_units),
        "chunks": chunks,
        "chunk_rows": chunk_rows,
    }
    return [_address(form), *[numbers[name] for name in FIELDS], *_axes(product)]


def _paying_parts(product: StridedProduct) -> tuple[int, int]:
    """Return into how many parts it pays to cut a stack, by its multiplications, and by the elements that it reads.

    The elements take longer where rows are few, such as those of one query of attention.
    """
    profile, terms = machine_profile(), product.terms.size
    elements = product.count * terms * (product.rows.size + product.columns.size)
    return product.count * product.work // profile.batch_part_work, elements // profile.parallel_elements


@cache
def _address(form: BatchForm) -> int:
    name = "batch"
    engine = library.load(f"batch {form}", lambda: print_batch(form, name))
    return engine.get_function_address(name)


def _kernel(
    element: str, ranks: tuple[int, int, int], is_swapped: bool, numbers: int, is_strided: bool
) -> PrintedKernel:
    """Return a kernel that calls the function whose address is its first number."""
    first, second = ("%d1", "%d0") if is_swapped else ("%d0", "%d1")
    text = (
        f"define internal void @NAME_run(ptr %d0, ptr %d1, ptr %d2, ptr %numbers) noinline {{\n"
        "  %address = load i64, ptr %numbers\n"
        f"  %function = inttoptr i64 %address to ptr\n"
        "  %rest = getelementptr i64, ptr %numbers, i64 1\n"
        f"  call void %function(ptr {first}, ptr {second}, ptr %d2, ptr %rest)\n"
        "  ret void\n}\n"
    )
    *taken, made = ranks
    operands = (*[Operand(element, rank, is_strided=is_strided) for rank in taken], Operand(element, made, (), True))
    return PrintedKernel(operands, numbers, text)


def _large(product: StridedProduct, dtype: str) -> list[int] | None:
    """Return the address of the function that computes each product by `gemm`, and its numbers."""
    rows, columns, terms = product.rows, product.columns, product.terms
    is_row_wise = terms.a == 1 or terms.size == 1
    if not is_row_wise and rows.a != 1 and rows.size > 1:
        return None
    is_turned = columns.size > 1 and columns.b != 1
    if columns.size == 1 and terms.b != 1:
        return None
    if columns.size == 1 or rows.size == 1:
        return None  # BLAS does as well where each element of a matrix is read once
    steps = [rows.a or terms.size, 0] if is_row_wise else [terms.a, 1]
    steps += [columns.b, 1] if is_turned else [terms.b or columns.size, 0]
    parts = 1 if product.count < _FEW_PRODUCTS else min(_MOST_PARTS, product.count)
    part_units = -(-product.count // parts)
    parts = -(-product.count // part_units)
    sizes = [rows.size, columns.size, terms.size, *steps, rows.c]
    head = [part_units, product.count, parts, gemm.product_address(dtype), *sizes]
    return [_large_address(dtype, len(product.axes)), *head, *_axes(product)]


@cache
def _large_address(dtype: str, axes: int) -> int:
    element, name = gemm.ELEMENTS[dtype], "products"
    engine = library.load(f"batch of products {element} {axes}", lambda: print_large(element, axes, name))
    return engine.get_function_address(name)
