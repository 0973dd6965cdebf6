"""Kernels of products of which each tile is handed to an elementwise kernel while it is in the cache: `ProductThen`.

What follows a product is the body of a kernel as fused operations have it, with a loop for rows and one for columns.
The product calls it for one tile after the other (see `gemm`). The product is written into the memory of a result of
its own dtype, which replaces it, unless it is needed itself. So each element has the bits that both kernels would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.packed import PackedMatMul
from ...ops.internal.product_then import ProductThen
from ...ops.internal.winograd import Winograd
from ...ops.linear_algebra.products import MatMul
from ...ops.neural.quantized import QuantizedMatMul
from ..elementwise.bound import BoundKernel
from ..elementwise.dynamic import OpenKernels
from ..elementwise.kernel_specs import MANY, kernel_spec, specs_of
from ..elementwise.open_sizes import BoundedCache, Names, Shape, Shapes, named_like, pattern_of, read_sizes
from ..expression.expression import UnsupportedError
from ..expression.llvm import KernelSpec
from ..llvm.builder import SHORT_LOOP, FunctionBuilder
from ..llvm.entry import Operand
from ..llvm.library import library
from . import gemm
from .gemm_bind import (
    OpenPackedProduct,
    OpenProduct,
    is_faster,
    is_ours,
    may_be_large,
    print_product_run,
    product_names,
)
from .gemm_forms import PACKED
from .parallel_products import Begun


@dataclass(frozen=True)
class EpilogueKernel:
    """The code of a product and what follows.

    Attributes:
        element: the LLVM type of the product's elements.
        transposed: whether either operand is; None if the second one is packed.
        addends: the ranks of what is added to a product by a packed matrix.
        body: what follows; its first operand is the product.
        keeps: whether the product is an output of its own.
        target: the result in whose memory the product is written, where it is none itself.
    """

    element: str
    transposed: tuple[bool, bool] | None
    addends: tuple[int, ...]
    body: KernelSpec
    keeps: bool
    target: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        ranks = (2, 1 if self.transposed is None else 2, *self.addends)
        product = [Operand(self.element, rank, has_step=rank == 2) for rank in ranks]
        made = [Operand(self.element, 2, (), True)] if self.keeps else []
        return (*product, *self.body.inputs[1:], *made, *[operand for operand, _ in self.body.outputs])

    @property
    def number_count(self) -> int:
        """The address of the function for products, rows, columns, terms, a block's; whether addends have rows."""
        return 5 + len(self.addends)

    def print_run(self, name: str) -> str:
        ask = _print_ask(f"{name}_ask", self.body, self._record, self.target)
        return self.body.print_body(name, SHORT_LOOP) + ask + self._print_block(name) + self._print_call(name)

    @property
    def _record(self) -> str:
        """The type of the record that a block reads: the places of the body's operands, and the columns."""
        return f"{{{', '.join([*['ptr'] * len(self.body.operands), 'i64'])}}}"

    def _print_block(self, name: str) -> str:
        """Print a function that computes what follows on one block, or prefetches its operands."""
        body, record, count = self.body, self._record, len(self.body.operands)
        place = "i64 %row, i64 %row_end, i64 %column, i64 %column_end"
        lines = [f"define internal void @{name}_block(ptr %context, {place}, i64 %is_early) noinline {{"]
        lines += ["  %early = icmp ne i64 %is_early, 0", "  br i1 %early, label %ask, label %compute", "ask:"]
        lines += [f"  call void @{name}_ask(ptr %context, {place})", "  ret void", "compute:"]
        lines += [f"  %numbers = alloca [{body.number_count} x i64]"]
        lines.append(f"  %p_n = getelementptr {record}, ptr %context, i64 0, i32 {count}")
        lines.append("  %n = load i64, ptr %p_n")
        arguments: list[str] = []
        for k, operand in enumerate(body.operands):
            lines.append(f"  %f{k} = getelementptr {record}, ptr %context, i64 0, i32 {k}")
            lines.append(f"  %b{k} = load ptr, ptr %f{k}")
            offset = "%column" if operand.steps[1] else "0"
            lines.append(f"  %d{k} = getelementptr {operand.memory}, ptr %b{k}, i64 {offset}")
            arguments.append(f"ptr %d{k}")
        lines.append("  %width = sub i64 %column_end, %column")
        steps = ["%n" if body.operands[k].steps[1] else "1" for k, _ in body.strided]
        for position, value in enumerate(["%row_end", "%width", *steps]):
            cell = f"[{body.number_count} x i64], ptr %numbers, i64 0, i64 {position}"
            lines += [f"  %c{position} = getelementptr {cell}", f"  store i64 {value}, ptr %c{position}"]
        lines.append(f"  call void @{name}_body({', '.join(arguments)}, ptr %numbers, i64 %row, i64 %row_end)")
        return "\n".join([*lines, "  ret void", "}\n"])

    def _print_call(self, name: str) -> str:
        """Print the run function: it writes down all addresses, and calls the function for products."""
        record, ranks = self._record, enumerate(self.addends)
        counts = [f"counts{k}" for k in range(len(self.addends))]  # 1 where each row of the product has one of its own
        lines = [f"  %step{k} = mul i64 {f'%r{2 + k}' if rank == 2 else '0'}, %counts{k}" for k, rank in ranks]
        taken, others = 2 + len(self.addends), len(self.body.inputs) - 1
        results = taken + others + self.keeps
        c = f"%d{taken + others if self.keeps else results + self.target}"
        values = [c, *[f"%d{taken + k}" for k in range(others)]]
        values += [f"%d{results + k}" for k in range(len(self.body.outputs))]
        lines.append(f"  %record = alloca {record}")
        kinds = [*["ptr"] * len(self.body.operands), "i64"]
        for k, (kind, value) in enumerate(zip(kinds, [*values, "%n"], strict=True)):
            lines.append(f"  %f{k} = getelementptr {record}, ptr %record, i64 0, i32 {k}")
            lines.append(f"  store {kind} {value}, ptr %f{k}")
        added = [f"ptr %d{2 + k}, i64 %step{k}" for k in range(len(self.addends))] + ["ptr null, i64 0"] * 2
        arguments = [*self._factors(), f"ptr {c}", "i64 %n", *added[:2]]
        arguments += [f"ptr @{name}_block", "ptr %record"]
        text = print_product_run(self.operands, ("m", "n", "k", "block", *counts), ", ".join(arguments), lines)
        return text.replace("@NAME", f"@{name}")

    def _factors(self) -> list[str]:
        sizes = ["i64 %m", "i64 %n", "i64 %k"]
        if self.transposed is None:
            return [*sizes, "ptr %d0", "i64 %r0", "i64 0", "ptr %d1", "i64 %block", f"i64 {PACKED}"]
        a, b = self.transposed
        first = ["ptr %d0", "i64 %r0", f"i64 {int(a)}"]
        return [*sizes, *first, "ptr %d1", "i64 %r1", f"i64 {int(b)}"]


def _print_ask(name: str, body: KernelSpec, record: str, target: int) -> str:
    """Print a function that prefetches a block of all operands as large as the product that have their own memory.

    They come from memory while the sums are made.
    """
    place = [f"i64 %{end}" for end in ("row", "row_end", "column", "column_end")]
    code = FunctionBuilder(name, ["ptr %context", *place])

    def field(k: int, kind: str) -> str:
        return code.load(kind, code.let(f"getelementptr {record}, ptr %context, i64 0, i32 {k}"))

    columns = field(len(body.operands), "i64")
    for k, operand in enumerate(body.operands):
        if k in (0, len(body.inputs) + target) or not all(operand.steps):
            continue
        base = field(k, "ptr")
        with code.loop("%row", "%row_end") as row:
            start = code.at(operand.memory, base, code.mul(row, columns))
            code.prefetch(operand.memory, start, "%column", "%column_end", operand.is_written)
    return code.text()


def pays(operation: Operation) -> bool:
    """Test whether a `ProductThen` is computed by one kernel, as far as sizes are known, and that is not slower."""
    op, specs = op_of(operation, ProductThen), _specs(operation)
    if isinstance(op.product, QuantizedMatMul):
        from .quantized import bind_quantized  # loaded where there is such a product

        return bind_quantized(operation) is not None
    if not specs or not gemm.is_available():
        return False
    inputs, outputs = specs
    if all(spec.is_static for spec in (*inputs, *outputs)):
        return _is_worthwhile(op, inputs) and _code(op, inputs, outputs) is not None
    return _is_open(op, inputs, outputs)


def bind_product_then(operation: Operation) -> BoundKernel | Callable[..., Any] | None:
    """Return the kernel of a `ProductThen`."""
    op, specs = op_of(operation, ProductThen), _specs(operation)
    if isinstance(op.product, QuantizedMatMul):
        from .quantized import bind_quantized  # loaded where there is such a product

        return bind_quantized(operation)
    if not specs or not gemm.is_available():
        return None
    inputs, outputs = specs
    if all(spec.is_static for spec in (*inputs, *outputs)):
        return _kernel(op, inputs, outputs)
    return OpenProductThen(op, inputs, outputs[-1]) if _is_open(op, inputs, outputs) else None


def _specs(operation: Operation) -> tuple[list[TensorSpec], list[TensorSpec]] | None:
    """Return the specs of the inputs and of the outputs, if all are tensors."""
    inputs, outputs = specs_of(operation.inputs), specs_of(operation.outputs)
    is_whole = len(inputs) == len(operation.inputs) and len(outputs) == len(operation.outputs)
    return (inputs, outputs) if is_whole else None


def _kernel(op: ProductThen, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> BoundKernel | None:
    """Return the kernel for these sizes, if it pays."""
    code = _code(op, inputs, outputs) if _is_worthwhile(op, inputs) else None
    return None if code is None else BoundKernel(code, inputs, outputs, _numbers(op, inputs))


def _is_worthwhile(op: ProductThen, inputs: Sequence[TensorSpec]) -> bool:
    """Test whether a product of these sizes is joined with its followers, if that can be compiled."""
    dtype = name_of(inputs[0].dtype)
    return dtype in gemm.ELEMENTS and _are_worthwhile(op, dtype, _sizes(op, inputs))


def _are_worthwhile(op: ProductThen, dtype: str, sizes: tuple[int, int, int]) -> bool:
    """Test whether a product of these rows, columns and terms is large enough."""
    product, (rows, columns, terms) = op.product, sizes
    if isinstance(product, PackedMatMul) and not is_ours(product.layout, dtype):
        return False
    profile, elements = machine_profile(), rows * columns
    is_large = elements >= profile.epilogue_elements and elements * terms > profile.epilogue_work
    return is_large and columns > 1 and is_faster(rows, columns, terms)


def _numbers(op: ProductThen, inputs: Sequence[TensorSpec]) -> list[int]:
    """Return the numbers of a kernel for operands of these sizes."""
    rows, columns, terms = _sizes(op, inputs)
    counts = [int(addend.shape == (rows, columns)) for addend in inputs[2 : op.taken]]
    return [gemm.then_address(name_of(inputs[0].dtype)), rows, columns, terms, _block(op), *counts]


def _block(op: ProductThen) -> int:
    """Return how many rows of a packed operand stand together."""
    return op.product.layout.block if isinstance(op.product, PackedMatMul) else 0


def _code(op: ProductThen, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> EpilogueKernel | None:
    """Return the kernel to compile; None where kernels can't compute it. Sizes matter only where they are 1."""
    product, results = op.product, outputs[op.keeps :]
    result = product.infer(*inputs[: op.taken])
    target = next((k for k, spec in enumerate(results) if spec == result), None)
    if any(spec.shape != result.shape for spec in results) or (target is None and not op.keeps):
        return None
    try:
        body = kernel_spec(op.then, [result, *inputs[op.taken :]], results, has_loop_for_each_axis=True)
    except UnsupportedError:
        return None
    transposed = (product.transpose_a, product.transpose_b) if isinstance(product, MatMul) else None
    ranks = tuple(len(addend.shape or ()) for addend in inputs[2 : op.taken])
    return EpilogueKernel(gemm.ELEMENTS[name_of(result.dtype)], transposed, ranks, body, op.keeps, target or 0)


def _sizes(op: ProductThen, inputs: Sequence[TensorSpec]) -> tuple[int, int, int]:
    """Return the rows and columns of the product, and how many terms a sum has."""
    product, first = op.product, inputs[0].shape or (0, 0)
    result = product.infer(*inputs[: op.taken])
    rows, columns = (int(dim or 0) for dim in result.shape or (0, 0))
    is_turned = isinstance(product, MatMul) and product.transpose_a
    return rows, columns, int(first[0 if is_turned else 1] or 0)


# --- sizes known at run time ----------------------------------------------------------------------------------------


def _is_open(op: ProductThen, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Test whether the product's rows may turn out to be many, and one result follows.

    If the product is not kept, the result has its dtype.
    """
    result = op.product.infer(*inputs[: op.taken])
    if len(op.then.results) != 1 or result.is_static:
        return False
    if not op.keeps and outputs[0].dtype != result.dtype:
        return False
    if name_of(result.dtype) not in gemm.ELEMENTS or any(spec.shape is None for spec in inputs):
        return False
    return may_be_large(*inputs[:2])  # what the product adds is aside


def _product_alone(
    product: MatMul | PackedMatMul, inputs: Sequence[TensorSpec], result: TensorSpec
) -> OpenProduct | OpenPackedProduct:
    if isinstance(product, PackedMatMul):
        return OpenPackedProduct(product, inputs)
    return OpenProduct(product, name_of(result.dtype))


class OpenProductThen:
    """A `ProductThen` whose shapes are known when it runs.

    Args:
        op: the operation; one result follows the product.
        inputs: what is known of the operands.
        result: what is known of that result.
    """

    def __init__(self, op: ProductThen, inputs: Sequence[TensorSpec], result: TensorSpec) -> None:
        self._op = op
        self._dtypes = [spec.dtype for spec in inputs]
        self._dtype = name_of(inputs[0].dtype)
        product = op.product.infer(*inputs[: op.taken])
        assert not isinstance(op.product, (Winograd, QuantizedMatMul))  # which have kernels of their own
        self._factors = op.product
        self._made = [np.dtype(name_of(spec.dtype)) for spec in ([product, result] if op.keeps else [result])]
        self._product = _product_alone(self._factors, inputs[: op.taken], product)
        self._then = OpenKernels(op.then, [product, *inputs[op.taken :]], [result])
        self._address = 0
        self._known = BoundedCache[Shapes, tuple[BoundKernel | None, Shape]](self._bind)
        self._compiled: dict[object, BoundKernel | None] = {}  # by which axes have more than one element
        self._expect(inputs, [product, result] if op.keeps else [result])

    def __call__(self, *values: Any) -> Any:
        """Return the result for some arrays; where the product is kept, both."""
        begun = self.begin(*values)
        if begun is None:
            return self._one_after_the_other(values)
        kernel, results = begun
        if kernel.call(*values, *results):
            kernel.refit(values, results)
        return results if self._op.keeps else results[0]

    def begin(self, *values: Any) -> Begun | None:
        """Return the product to compute; None where one kernel does not do it all."""
        kernel, shape = self._known[tuple([value.shape for value in values])]
        if kernel is None:
            return None
        return Begun(kernel, tuple([np.empty(shape, dtype) for dtype in self._made]))

    def _expect(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        """Have the kernel compiled meanwhile that fits if unknown dimensions are long ones, where that pays."""
        long = [TensorSpec(tuple(dim or MANY for dim in spec.shape or ()), spec.dtype) for spec in inputs]
        try:
            code = _code(self._op, inputs, outputs) if _is_worthwhile(self._op, long) else None
        except ValueError:
            return  # what is known of an operand does not fit to what another was taken for
        if code is not None:
            library.expect(code)

    def _one_after_the_other(self, values: Sequence[Any]) -> Any:
        """Run one after the other, by the kernels that the product and what follows have by themselves."""
        product = self._product(*values[: self._op.taken])
        others = values[self._op.taken :]
        (result,) = self._then.run((product, *others)) or self._op.then.run(np, product, *others)
        return (product, result) if self._op.keeps else result

    def _bind(self, shapes: Shapes) -> tuple[BoundKernel | None, Shape]:
        """Return the kernel for these shapes, if it pays, and the shape of the result."""
        pattern = pattern_of(shapes)
        names = self._names(shapes)
        sizes = None if names is None else self._sizes(names, shapes)
        if names is None or sizes is None or not _are_worthwhile(self._op, self._dtype, sizes):
            return None, ()  # where they do not fit, the errors of ops say so
        if pattern not in self._compiled:
            self._compiled[pattern] = self._first(shapes)
        first = self._compiled[pattern]
        if first is None:
            return None, ()
        shape = sizes[:2]
        counts = [int(len(own) == 2 and own[0] == 0) for own in names[2 : self._op.taken]]
        numbers = [self._address, *sizes, _block(self._op), *counts]
        return first.resized((*shapes, *[shape] * len(self._made)), numbers), shape

    def _names(self, shapes: Shapes) -> list[Names] | None:
        """Return names of all operands' axes: 0 are the rows of the product, 1 its columns, 2 the terms of a sum."""
        product = self._factors
        if isinstance(product, PackedMatMul):
            layout = product.layout
            names: list[Names] = [(0, -layout.rows), (-layout.size,)]
            result = 0, -layout.columns
        else:
            names = [*product_names(product.transpose_a, product.transpose_b)]
            result = 0, 1
        for shape in shapes[2:]:
            own = named_like(result, shape)
            if own is None:
                return None
            names.append(own)
        return names

    def _sizes(self, names: Sequence[Names], shapes: Shapes) -> tuple[int, int, int] | None:
        """Return the product's rows and columns and the terms of a sum; None if operands do not fit, or are empty."""
        found = read_sizes(names, shapes, 3)
        if found is None:
            return None
        product = self._op.product
        rows, columns, terms = found
        if isinstance(product, PackedMatMul):
            columns, terms = product.layout.columns, product.layout.rows
        return rows, columns, terms

    def _first(self, shapes: Shapes) -> BoundKernel | None:
        """Return the kernel for shapes of a new pattern; None if there is none."""
        inputs = [TensorSpec(shape, dtype) for shape, dtype in zip(shapes, self._dtypes, strict=True)]
        outputs = [spec for spec in self._op.infer(*inputs) if isinstance(spec, TensorSpec)]
        code = _code(self._op, inputs, outputs)
        if code is None:
            return None
        self._address = gemm.then_address(self._dtype)
        return BoundKernel(code, inputs, outputs, [0] * code.number_count).compiled()
