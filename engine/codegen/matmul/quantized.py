"""Kernels of `QuantizedMatMul`: rows are rounded first, then panels of the int8 matrix are multiplied by all of them.

A variable's matrix is laid out once, as a whole (`Panels`). Of another one a panel of 64 columns is laid out for a
block of terms, in groups, in the nearest cache, or few rows are multiplied by it as it is stored. No instruction of
`dot_products` saturates. Sums of a block are in the result's own memory until the last one. What follows a product (see
`epilogues`) is computed of each panel when that is scaled.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.laid_out_matmul import LaidOutMatMul, Panels
from ...ops.internal.product_then import ProductThen
from ...ops.neural.quantized import QuantizedMatMul
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import MANY, kernel_spec, specs_of
from ..elementwise.open_sizes import BoundedCache, Shape
from ..expression.expression import UnsupportedError
from ..expression.llvm import KernelSpec
from ..host.scratch import pieces_of
from ..llvm.builder import BYTES, SHORT_LOOP, Builder, FunctionBuilder, Size
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.tasks import Fields, begin_task, print_parallel, print_share, stored_fields
from .dot_products import (
    BLOCK,
    PANEL,
    SUB,
    DotProduct,
    dot_product_of,
    print_direct,
    print_packing,
    print_tile,
)
from .tile_products import BLOCK_COLUMNS, TILE_ROWS, TILE_SUBS, Blocks, print_pending, print_tile_shapes, print_tiles

_FEW_ROWS = 2  # of a tile for rows that are left over
_LAID_OUT_BLOCK = 1024  # terms that are taken at once of panels that are laid out, where there are many rows
_DIRECT_ROWS = 2  # for so few, panels are not laid out,
_DIRECT_BLOCK = 32  # and so many terms are taken at once, whose rows the processor fetches in advance,
_WIDE, _WIDE_BLOCK = 2048, 16  # or so many where rows of the matrix are longer than that many bytes
_PARTS = 16
_NUMBERS = ("rows", "terms", "columns", "parts", "rounded", "scales", "offsets", "tail", "step", "scratch_bytes")


@dataclass(frozen=True)
class QuantizedKernel:
    """A product of rounded rows and an int8 matrix.

    Attributes:
        operands: the rows, the matrix, its scales, maybe the rows' scale, what else `then` takes, and the result.
        low, high, epsilon, transpose, is_fixed: those of the op.
        dot: the instruction that adds products.
        is_laid_out: the matrix is in the layout of panels.
        then: what follows: its first operand is the product, and its result takes the product's place.
    """

    operands: tuple[Operand, ...]
    low: int
    high: int
    epsilon: float
    transpose: bool
    is_fixed: bool
    dot: DotProduct
    is_laid_out: bool = False
    then: KernelSpec | None = None

    effort = Effort.LARGE
    number_count = len(_NUMBERS)
    scratch = tuple(map(_NUMBERS.index, ("rounded", "scales", "offsets", "tail")))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of what parts get: addresses of operands, then the numbers."""
        others = [] if self.then is None else [f"operand{k}" for k in range(1, len(self.then.inputs))]
        return ("x", "kernel", "scale", *others, "out", *_NUMBERS)

    @property
    def tiles(self) -> tuple[int, ...]:
        """The rows of the functions that add products by vectors; each takes what the last left."""
        return self.dot.rows, _FEW_ROWS, 1

    @property
    def is_direct(self) -> bool:
        """Test whether few rows are multiplied by the matrix as it is stored."""
        return not self.transpose and not self.is_laid_out

    def print_run(self, name: str) -> str:
        dot = self.dot
        functions = [print_tile(dot, name, rows) for rows in (1, _FEW_ROWS, dot.rows)]
        if not self.is_laid_out:
            functions.append(print_packing(dot, name, self.transpose))
        if self.is_direct:
            functions.append(print_direct(dot, name))
        if dot.has_tiles:
            functions += [print_tile_shapes(name), print_tiles(dot, name), print_pending(name)]
        functions += [_print_rounding(self, name), _print_scaling(self, name), _print_task(self, name)]
        if self.then is not None:
            functions += [self.then.print_body(name, SHORT_LOOP), _print_then(self, self.then, name)]
        return "".join([*functions, _print_run(self, name)])


class OpenQuantizedProduct:
    """A product of int8, and maybe what follows, of as many rows as there are when it runs.

    Args:
        op: the operation.
        inputs: what is known of the operands.
        result: what is known of the result.
    """

    def __init__(self, op: QuantizedMatMul | ProductThen, inputs: list[TensorSpec], result: TensorSpec) -> None:
        self._op, self._inputs = op, inputs
        self._taken = op.taken if isinstance(op, ProductThen) else len(inputs)
        self._columns = int((result.shape or (0, 0))[1] or 0)
        self._known = BoundedCache[tuple[int | Shape, ...], BoundKernel | None](self._bind)

    def __call__(self, x: Any, *others: Any) -> Any:
        """Return the result."""
        kernel = self._known[(len(x), *[other.shape for other in others[self._taken - 1 :]])]
        if kernel is None:
            return self._op.run(np, x, *others)
        result = np.empty((len(x), self._columns), np.float32)
        if kernel.call(x, *others, result):
            kernel.refit((x, *others), (result,))
        return result

    def _bind(self, sizes: tuple[Any, ...]) -> BoundKernel | None:
        """Return the kernel for a number of rows, and the shapes of what the operations that follow take."""
        (rows, *shapes), x = sizes, self._inputs[0]
        assert x.shape is not None
        others = [
            TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, self._inputs[self._taken :], strict=True)
        ]
        inputs = [TensorSpec((rows, x.shape[1]), x.dtype), *self._inputs[1 : self._taken], *others]
        kernel = _bound(self._op, inputs)
        return None if kernel is None else kernel.compiled()


def bind_quantized(operation: Operation) -> BoundKernel | OpenQuantizedProduct | None:
    """Return the kernel of a `QuantizedMatMul`, or of one in a `ProductThen` that has one result of float32."""
    op: Op = operation.op
    assert isinstance(op, (QuantizedMatMul, ProductThen))
    inputs, results = specs_of(operation.inputs), specs_of(operation.outputs)
    taken = op.taken if isinstance(op, ProductThen) else len(inputs)
    if len(inputs) != len(operation.inputs) or len(results) != 1 or len(operation.outputs) != 1:
        return None
    if any(spec.dtype.name != "float32" for spec in (inputs[0], *inputs[2:taken], *results)):
        return None
    x = inputs[0].shape
    if not all(spec.is_static for spec in inputs[1:taken]) or x is None or x[1] is None:
        return None
    if any(spec.shape is None for spec in inputs):
        return None
    if all(spec.is_static for spec in inputs):
        return _bound(op, inputs)
    long = [
        TensorSpec(tuple([MANY if dim is None else dim for dim in spec.shape or ()]), spec.dtype) for spec in inputs
    ]
    kernel = _kernel(op, long)
    if kernel is None:
        return None
    library.expect(kernel)
    return OpenQuantizedProduct(op, inputs, results[0])


def panels_of(op: QuantizedMatMul, terms: int, columns: int) -> Panels:
    """Return the layout in which kernels of this host read a matrix."""
    dot = dot_product_of(library.host)
    return Panels(terms, columns, op.transpose, dot.terms, dot.granule, dot.subs, dot.is_unsigned)


def panels_for(product: Operation) -> Panels | None:
    """Return the layout in which the kernel of a `QuantizedMatMul` reads its matrix; None if it has none."""
    op = op_of(product, QuantizedMatMul)
    terms, columns = (product.inputs[1].shape or (None, None))[:: -1 if op.transpose else 1]
    if bind_quantized(product) is None or not terms or not columns:
        return None
    return panels_of(op, terms, columns)


def _kernel(op: QuantizedMatMul | ProductThen, inputs: list[TensorSpec]) -> QuantizedKernel | None:
    """Return the code for operands of these sizes (only which are 1 matters); None where it can't be compiled."""
    product, then = (op.product, _following(op, inputs)) if isinstance(op, ProductThen) else (op, None)
    assert isinstance(product, QuantizedMatMul)
    if then is None and isinstance(op, ProductThen):
        return None
    is_laid_out = isinstance(product, LaidOutMatMul)
    operands = [Operand("float", 2), Operand("i8", 1 if is_laid_out else 2), Operand("float", 1)]
    fixed = [Operand("float", None)] if product.is_fixed else []
    others = () if then is None else then.inputs[1:]
    return QuantizedKernel(
        (*operands, *fixed, *others, Operand("float", 2, (), True)),
        product.low,
        product.high,
        product.epsilon,
        product.transpose and not is_laid_out,
        product.is_fixed,
        dot_product_of(library.host),
        is_laid_out,
        then,
    )


def _following(op: ProductThen, inputs: list[TensorSpec]) -> KernelSpec | None:
    """Return the code of what follows a product, a loop for rows and one for columns; None where there is none."""
    product, *others = (op.product.infer(*inputs[: op.taken]), *inputs[op.taken :])
    try:
        results = [spec for spec in op.then.infer(product, *others) if isinstance(spec, TensorSpec)]
        if results != [product]:
            return None
        return kernel_spec(op.then, [product, *others], results, has_loop_for_each_axis=True)
    except (UnsupportedError, TypeError, ValueError):  # operands that turn out not to fit: the operation says so
        return None


def _bound(op: QuantizedMatMul | ProductThen, inputs: list[TensorSpec]) -> BoundKernel | None:
    product, taken = (op.product, op.taken) if isinstance(op, ProductThen) else (op, len(inputs))
    assert isinstance(product, QuantizedMatMul)
    result = product.infer(*inputs[:taken])
    rows, terms = [int(size or 0) for size in inputs[0].shape or ()]
    columns = int((result.shape or (0, 0))[1] or 0)
    kernel = _kernel(op, inputs) if rows * terms * columns else None
    if kernel is None:
        return None
    itemsize = BYTES[kernel.dot.element]
    line = bytes_of_row(terms * itemsize)
    pieces, size = pieces_of([rows * line, rows * 4, rows * 4, rows * PANEL * 4])
    numbers = [rows, terms, columns, parts_of(rows, terms, columns), *pieces, line // itemsize, size]
    return BoundKernel(kernel, inputs, [result], numbers)


def bytes_of_row(size: int) -> int:
    """Return the distance between rows of `size` bytes: they do not fall on the same lines of the cache."""
    return -(-size // 64) * 64 + 64


def parts_of(rows: int, terms: int, columns: int) -> int:
    """Return the number of parts, of some panels each, for a product of such sizes."""
    is_small = rows * terms * columns < machine_profile().quantized_work
    return 1 if is_small else min(_PARTS, -(-columns // PANEL))


# --- code -----------------------------------------------------------------------------------------------------------


def _print_run(kernel: QuantizedKernel, name: str) -> str:
    """Print the function that is called: it rounds the rows, and runs all parts."""
    pointers = [f"%d{k}" for k in range(len(kernel.operands))]
    code = FunctionBuilder(f"{name}_run", [f"ptr {each}" for each in [*pointers, "%numbers"]])
    fields, values = stored_fields(code, [*pointers[:3], *pointers[3 + kernel.is_fixed :]], kernel.fields)
    given = [("ptr", "%d0"), ("ptr", values.address("rounded"))]
    given += [("ptr", values.address(each)) for each in ("scales", "offsets")]
    given += [("i64", values[size]) for size in ("rows", "terms", "step")]
    given.append(("float", code.load("float", "%d3") if kernel.is_fixed else "0.0"))
    code.call(f"{name}_round", given)
    print_parallel(code, f"{name}_task", fields, values["parts"])
    return code.text()


def _print_rounding(kernel: QuantizedKernel, name: str) -> str:
    """Print rows as integers, zeros behind them, their scales, and the surplus of their sums by unsigned weights."""
    parameters = ["ptr %x", "ptr %q", "ptr %s", "ptr %offsets"]
    code = FunctionBuilder(f"{name}_round", [*parameters, "i64 %rows", "i64 %terms", "i64 %step", "float %fixed"])
    dot, most = kernel.dot, lanes_of(kernel.dot)
    whole = code.mul(code.div("%terms", most), most)
    limits = (("olt", kernel.low), ("ogt", kernel.high))
    totals = [code.slot(f"<{lanes} x i32>") for lanes in (most, 1)]
    zeros = [code.slot(f"<{lanes} x float>") for lanes in (most, 1)] if kernel.is_fixed else []
    with code.loop(0, "%rows") as row:
        x = code.at("float", "%x", code.mul(row, "%terms"))
        q = code.at(dot.element, "%q", code.mul(row, "%step"))
        scale = "%fixed"
        if not kernel.is_fixed:
            bits = code.let(f"bitcast i32 {largest_of(code, x, whole, most)} to float")
            bottom = code.let(f"fadd float {bits}, {float_text(kernel.epsilon)}")
            scale = code.let(f"fdiv float {float_text(kernel.high)}, {bottom}")
            code.store("float", scale, "%s", row)
        for part, (total, lanes, start, stop) in enumerate(
            ((totals[0], most, 0, whole), (totals[1], 1, whole, "%terms"))
        ):
            integers, floats, kind = (f"<{lanes} x {each}>" for each in ("i32", "float", dot.element))
            code.line(f"store {integers} zeroinitializer, ptr {total}")
            if kernel.is_fixed:
                code.line(f"store {floats} zeroinitializer, ptr {zeros[part]}")
            wide = code.broadcast(lanes, "float", scale)
            with code.loop(start, stop, lanes) as term:
                values = code.load_vector(floats, "float", x, term)
                if kernel.is_fixed:  # 0 times them is 0, and NaN for NaN and infinities
                    code.combine(floats, zeros[part], code.let(f"fmul {floats} {values}, zeroinitializer"))
                found = rounded(code, lanes, values, wide, limits)
                narrow = code.let(f"trunc {integers} {found} to {kind}")
                code.store_vector(kind, dot.element, narrow, q, term)
                if dot.is_unsigned:
                    code.combine(integers, total, found, "add")
        if kernel.is_fixed:
            code.store("float", _scale_or_nan(code, scale, zeros, most), "%s", row)
        with code.loop("%terms", code.round_up("%terms", dot.granule)) as term:
            code.store(dot.element, 0, q, term)
        total = code.let(f"add i32 {total_of(code, totals[0], most)}, {total_of(code, totals[1], 1)}")
        code.store("i32", code.let(f"mul i32 {total}, 128"), "%offsets", row)
    return code.text()


def _scale_or_nan(code: Builder, scale: str, zeros: list[str], lanes: int) -> str:
    """Print the scale of a row; NaN where one of the sums of its elements times 0 is."""
    for slot, count in zip(zeros, (lanes, 1), strict=True):
        bits = code.let(f"load <{count} x i32>, ptr {slot}")
        bits = code.let(f"and <{count} x i32> {bits}, {code.broadcast(count, 'i32', '2147483647')}")
        most = code.let(f"call i32 @llvm.vector.reduce.smax.v{count}i32(<{count} x i32> {bits})")
        is_finite = code.let(f"icmp eq i32 {most}, 0")
        scale = code.let(f"select i1 {is_finite}, float {scale}, float 0x7FF8000000000000")
    return scale


def lanes_of(dot: DotProduct) -> int:
    """Return the numbers of 32 bits that a vector has where rows are rounded."""
    return 16 if dot.lanes == 16 else 8


def total_of(code: Builder, slot: str, lanes: int) -> str:
    """Return the sum of a vector of integers in a slot."""
    value = code.let(f"load <{lanes} x i32>, ptr {slot}")
    return code.let(f"call i32 @llvm.vector.reduce.add.v{lanes}i32(<{lanes} x i32> {value})")


def float_text(value: float) -> str:
    """Return a float32 as LLVM writes it: the bits of the double that it equals."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def largest_of(code: Builder, x: str, whole: Size, lanes: int) -> str:
    """Return the bits of a row's largest absolute value: those of NaN are larger than all numbers'.

    Args:
        whole: how many of `%terms` are taken by vectors of `lanes`.
    """
    found: list[str] = []
    for count, start, stop in ((lanes, 0, whole), (1, whole, "%terms")):
        vector = f"<{count} x i32>"
        slot = code.slot(vector)
        code.line(f"store {vector} zeroinitializer, ptr {slot}")
        with code.loop(start, stop, count) as term:
            bits = code.load_vector(vector, "i32", x, term)
            bits = code.let(f"and {vector} {bits}, {code.broadcast(count, 'i32', '2147483647')}")
            most = code.let(f"load {vector}, ptr {slot}")
            above = code.let(f"icmp sgt {vector} {bits}, {most}")
            more = code.let(f"select <{count} x i1> {above}, {vector} {bits}, {vector} {most}")
            code.line(f"store {vector} {more}, ptr {slot}")
        most = code.let(f"load {vector}, ptr {slot}")
        found.append(code.let(f"call i32 @llvm.vector.reduce.smax.v{count}i32({vector} {most})"))
    above = code.let(f"icmp sgt i32 {found[0]}, {found[1]}")
    return code.choose(above, *found, kind="i32")


def rounded(code: Builder, lanes: int, value: str, scale: str, limits: tuple[tuple[str, float], ...] = ()) -> str:
    """Print floats times a number as integers, within limits if there are some; NaN as 0."""
    vector, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    scaled = code.let(f"fmul {vector} {value}, {scale}")
    found = code.let(f"call {vector} @llvm.rint.v{lanes}f32({vector} {scaled})")
    for comparison, bound in limits:
        limit = code.broadcast(lanes, "float", float_text(bound))
        beyond = code.let(f"fcmp {comparison} {vector} {found}, {limit}")
        found = code.let(f"select {mask} {beyond}, {vector} {limit}, {vector} {found}")
    is_nan = code.let(f"fcmp uno {vector} {found}, {found}")
    found = code.let(f"select {mask} {is_nan}, {vector} zeroinitializer, {vector} {found}")
    return code.let(f"fptosi {vector} {found} to <{lanes} x i32>")


def _print_scaling(kernel: QuantizedKernel, name: str) -> str:
    """Print sums of a row and some columns as floats, divided by both scales."""
    pointers = ["ptr %sums", "ptr %scale", "ptr %out"]
    code = FunctionBuilder(f"{name}_scale", [*pointers, "i64 %width", "float %own", "i32 %offset"])
    whole = code.mul(code.div("%width", 8), 8)
    for lanes, start, stop in ((8, 0, whole), (1, whole, "%width")):
        integers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
        own, offset = code.broadcast(lanes, "float", "%own"), code.broadcast(lanes, "i32", "%offset")
        with code.loop(start, stop, lanes) as column:
            total = code.load_vector(integers, "i32", "%sums", column)
            if kernel.dot.is_unsigned:
                total = code.let(f"sub {integers} {total}, {offset}")
            found = code.let(f"sitofp {integers} {total} to {floats}")
            both = code.let(f"fmul {floats} {code.load_vector(floats, 'float', '%scale', column)}, {own}")
            code.store_vector(floats, "float", code.let(f"fdiv {floats} {found}, {both}"), "%out", column)
    return code.text()


def _print_task(kernel: QuantizedKernel, name: str) -> str:
    """Print the function of a part, which takes some panels, block by block of terms: pages are read again soon."""
    code, fields = begin_task(name, kernel.fields)
    rows, terms, columns = (fields[size] for size in ("rows", "terms", "columns"))
    panels = code.ceil_div(columns, PANEL)
    first, end = print_share(code, panels, "%part", fields["parts"])
    panel_memory = "" if kernel.is_laid_out else code.slot(f"[{BLOCK * PANEL} x i8]")
    block: Size = BLOCK
    if kernel.is_laid_out:
        block = code.choose(code.compare("sle", rows, kernel.dot.rows), terms, _LAID_OUT_BLOCK)
    elif kernel.is_direct:
        few = code.compare("sle", rows, _DIRECT_ROWS)
        is_wide = code.compare("sgt", columns, _WIDE)
        block = code.choose(few, code.choose(is_wide, _WIDE_BLOCK, _DIRECT_BLOCK), BLOCK)
    blocks = Blocks(code, name) if kernel.dot.has_tiles else None
    has_blocks = code.compare("sge", rows, TILE_ROWS)
    if blocks is not None:
        with code.when(has_blocks):
            code.line(f"call void @llvm.x86.ldtilecfg(ptr @{name}_shapes)")
    with code.loop(0, terms, block) as start:
        size = code.least(block, code.sub(terms, start))
        is_last = code.compare("eq", code.add(start, size), terms)
        with code.loop(first, end) as panel:
            done = _print_panel(code, kernel, name, fields, (start, size, panel), panel_memory, blocks)
            with code.when(is_last):
                if blocks is not None and kernel.then is not None:
                    blocks.finish()
                _print_results(code, kernel, name, fields, panel, done)
    if blocks is not None:
        with code.when(has_blocks):
            blocks.finish()
            code.line("call void @llvm.x86.tilerelease()")
    return code.text()


def _print_results(code: Builder, kernel: QuantizedKernel, name: str, fields: Fields, panel: Size, done: Size) -> None:
    """Print the sums of a panel as floats, those of row `done` on, and what follows, while they are in a near cache."""
    rows, columns = fields["rows"], fields["columns"]
    column = code.mul(panel, PANEL)
    width = code.least(PANEL, code.sub(columns, column))
    sums, step = _sums_of(code, fields, column, width)
    scale = code.at("float", fields.address("scale"), column)
    with code.loop(done, rows) as row:
        out = code.at("float", fields.address("out"), code.add(code.mul(row, columns), column))
        given = [("ptr", code.at("i32", sums, code.mul(row, step))), ("ptr", scale), ("ptr", out), ("i64", width)]
        given.append(("float", code.load("float", fields.address("scales"), row)))
        given.append(("i32", code.load("i32", fields.address("offsets"), row)))
        code.call(f"{name}_scale", given)
    if kernel.then is not None:
        code.call_on(f"{name}_then", ("%context",), (column, width))


def _print_then(kernel: QuantizedKernel, then: KernelSpec, name: str) -> str:
    """Print the function for what follows, of some columns: the result takes the place of the product."""
    code = FunctionBuilder(f"{name}_then", ["ptr %context", "i64 %column", "i64 %width"])
    fields, operands = Fields(code, "%context", kernel.fields), then.operands
    given: list[str] = []
    for k, operand in enumerate(operands):
        memory = fields.address("out" if k in (0, len(operands) - 1) else f"operand{k}")
        given.append(code.at(operand.memory, memory, "%column" if operand.steps[1] else 0))
    rows, columns = fields["rows"], fields["columns"]
    numbers = code.slot(f"[{then.number_count} x i64]")
    steps = [columns if operands[k].steps[1] else 1 for k, _ in then.strided]
    for position, value in enumerate([rows, "%width", *steps]):
        code.store("i64", value, numbers, position)
    code.call_on(f"{name}_body", [*given, numbers], (0, rows))
    return code.text()


def _sums_of(code: Builder, fields: Fields, column: Size, width: Size) -> tuple[str, Size]:
    """Print the place of a panel's sums, and the distance of its rows: in the result, or apart for a panel not full."""
    is_full = code.compare("eq", width, PANEL)
    out = code.at("i32", fields.address("out"), column)
    tail = fields.address("tail")
    sums = code.let(f"select i1 {is_full}, ptr {out}, ptr {tail}")
    return sums, code.let(f"select i1 {is_full}, i64 {fields['columns']}, i64 {PANEL}")


def _print_panel(
    code: Builder,
    kernel: QuantizedKernel,
    name: str,
    fields: Fields,
    place: tuple[Size, Size, Size],
    panel_memory: str,
    blocks: Blocks | None,
) -> Size:
    """Print the products of a block of terms and a panel of columns, for all rows.

    Returns:
        How many rows have their results, or are pending.
    """
    start, size, panel = place
    rows, terms, columns = (fields[name] for name in ("rows", "terms", "columns"))
    column = code.mul(panel, PANEL)
    width = code.least(PANEL, code.sub(columns, column))
    sums, step = _sums_of(code, fields, column, width)
    matrix, rounded = fields.address("kernel"), fields.address("rounded")
    groups = code.ceil_div(size, kernel.dot.terms)
    is_first = code.let(f"zext i1 {code.compare('eq', start, 0)} to i64")
    subs = code.ceil_div(width, SUB)
    source: str = panel_memory
    sub_step: Size = kernel.dot.sub_bytes
    if kernel.is_laid_out:
        sub_step = code.mul(code.round_up(terms, kernel.dot.granule), SUB)
        source = code.at("i8", matrix, code.mul(code.div(column, SUB), sub_step), code.mul(start, SUB))
    else:
        subs = _print_in_place(code, kernel, name, fields, place, panel_memory)

    def given(row: Size, sub: Size, target: str, apart: Size) -> list[tuple[str, Size]]:
        q = code.at(kernel.dot.element, rounded, code.add(code.mul(row, fields["step"]), start))
        sizes = (fields["step"], groups, apart, is_first, sub_step)
        pointers = (q, code.at("i8", source, code.mul(sub, sub_step)), target)
        return [*[("ptr", pointer) for pointer in pointers], *[("i64", each) for each in sizes]]

    begin: Size = 0
    done: Size = 0
    if blocks is not None:  # results of blocks of all terms, in full panels, are left for the next one
        is_left = code.let(f"and i1 {code.compare('eq', size, terms)}, {code.compare('eq', width, PANEL)}")
        begin = code.mul(code.div(rows, TILE_ROWS), TILE_ROWS)
        done = code.choose(is_left, begin, 0)
        with code.loop(0, subs, TILE_SUBS) as sub, code.loop(0, begin, TILE_ROWS) as row:
            addresses = _block_of(code, fields, row, code.add(column, code.mul(sub, SUB)))
            target = code.at("i32", sums, code.add(code.mul(row, step), code.mul(sub, SUB)))
            target = code.choose(is_left, blocks.next_sums(), target, kind="ptr")
            arguments = given(row, sub, target, code.choose(is_left, BLOCK_COLUMNS, step))
            blocks.print_products(is_left, arguments, [target, *addresses], columns)
    for count in kernel.tiles:
        end = code.add(begin, code.mul(code.div(code.sub(rows, begin), count), count))
        with code.loop(0, subs, kernel.dot.subs) as sub, code.loop(begin, end, count) as row:
            target = code.at("i32", sums, code.add(code.mul(row, step), code.mul(sub, SUB)))
            code.call(f"{name}_tile{count}", given(row, sub, target, step))
        begin = end
    return done


def _block_of(code: Builder, fields: Fields, row: Size, column: Size) -> list[str]:
    """Print the addresses of columns' scales, results, rows' scales, and their surplus from a row and column on."""
    return [
        code.at("float", fields.address("scale"), column),
        code.at("float", fields.address("out"), code.add(code.mul(row, fields["columns"]), column)),
        code.at("float", fields.address("scales"), row),
        code.at("i32", fields.address("offsets"), row),
    ]


def _print_in_place(
    code: Builder,
    kernel: QuantizedKernel,
    name: str,
    fields: Fields,
    place: tuple[Size, Size, Size],
    panel_memory: str,
) -> Size:
    """Print a panel of the matrix as it is stored: the products of few rows, or a copy that is laid out in the cache.

    Returns:
        How many groups of 16 columns are laid out.
    """
    start, size, panel = place
    rows, terms, columns = (fields[name] for name in ("rows", "terms", "columns"))
    column = code.mul(panel, PANEL)
    width = code.least(PANEL, code.sub(columns, column))
    matrix, subs = fields.address("kernel"), code.ceil_div(width, SUB)
    if kernel.is_direct:
        sums, step = _sums_of(code, fields, column, width)
        rounded = fields.address("rounded")
        few = code.compare("sle", rows, _DIRECT_ROWS)
        is_direct = code.let(f"and i1 {few}, {code.compare('eq', width, PANEL)}")
        subs = code.choose(is_direct, 0, subs)
        is_first = code.let(f"zext i1 {code.compare('eq', start, 0)} to i64")
        with code.loop(0, code.choose(is_direct, rows, 0)) as row:
            q = code.at(kernel.dot.element, rounded, code.add(code.mul(row, fields["step"]), start))
            target = code.at("i32", sums, code.mul(row, step))
            source = code.at("i8", matrix, code.add(code.mul(start, columns), column))
            code.call_on(f"{name}_direct", (q, source, target), (columns, size, is_first))
    with code.loop(0, subs) as sub:
        at = code.add(column, code.mul(sub, SUB))
        source = code.add(code.mul(at, terms), start) if kernel.transpose else code.add(code.mul(start, columns), at)
        panel_place = code.at("i8", panel_memory, code.mul(sub, SUB * BLOCK))
        left = code.least(SUB, code.sub(columns, at))
        sizes = (size, left, terms if kernel.transpose else columns)
        code.call_on(f"{name}_pack", (code.at("i8", matrix, source), panel_place), sizes)
    return subs
