"""Kernels of `QuantizedMatMul`: rows are rounded first, then panels of the int8 matrix are multiplied by all of them.

A panel of 64 columns is laid out for a block of terms, in pairs, in the nearest cache: that costs little beside the
products even of one row, and the matrix is kept once, as its file holds it. Products of 16-bit numbers are added in
pairs (``vpmaddwd``), which saturates nowhere. Sums of a block are in the result's own memory until the last one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...ops.neural.quantized import QuantizedMatMul
from ..convolution.correlation import Fields, print_parallel
from ..elementwise.bound import BoundKernel
from ..elementwise.open_sizes import BoundedCache
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.scratch import scratch
from .gemm_bind import ProductKernel

PANEL = 64  # columns
_SUB = 16  # columns whose sums are in registers at once
_BLOCK = 256  # terms
_ROWS = 4  # of a tile
_DIRECT_ROWS = 2  # for so few, panels are not laid out,
_DIRECT_BLOCK = 32  # and so many terms are taken at once, whose rows the processor fetches in advance
_PARTS = 16
_FIELDS = ("x", "kernel", "scale", "out", "rows", "terms", "columns", "parts", "rounded", "scales", "tail", "step")


@dataclass(frozen=True)
class QuantizedKernel:
    """A product of rounded rows and an int8 matrix.

    Attributes:
        operands: the rows, the matrix, its scales, maybe the rows' scale, and the result.
        low, high, epsilon, transpose, is_fixed: those of the op.
        has_pairs: whether the host multiplies 16-bit numbers and adds pairs in one instruction of AVX2.
    """

    operands: tuple[Operand, ...]
    low: int
    high: int
    epsilon: float
    transpose: bool
    is_fixed: bool
    has_pairs: bool

    effort = Effort.LARGE

    @property
    def number_count(self) -> int:
        return len(_FIELDS) - 4

    def print_run(self, name: str) -> str:
        tiles = "".join(_print_tile(self, name, rows) for rows in (1, _ROWS))
        rounding, packing = _print_rounding(self, name), _print_packing(self, name)
        tiles += "" if self.transpose else _print_direct(self, name)
        return rounding + packing + tiles + _print_scaling(name) + _print_task(self, name) + _print_run(self, name)


class OpenQuantizedProduct:
    """A `QuantizedMatMul` of as many rows as there are when it runs.

    Args:
        op: the operation.
        inputs: what is known of the operands: all but the rows of the first one.
    """

    def __init__(self, op: QuantizedMatMul, inputs: list[TensorSpec]) -> None:
        self._op, self._inputs = op, inputs
        self._known = BoundedCache[int, BoundKernel | None](self._bind)

    def __call__(self, x: Any, *others: Any) -> Any:
        """The product."""
        kernel = self._known[len(x)]
        if kernel is None:
            return self._op.run(np, x, *others)
        columns = self._op.infer(*self._inputs).shape
        assert columns is not None
        result = np.empty((len(x), columns[1] or 0), np.float32)
        if kernel.entry(kernel.table, id(x), *map(id, others), id(result)):
            return self._op.run(np, x, *others)
        return result

    def _bind(self, rows: int) -> BoundKernel | None:
        x = self._inputs[0]
        assert x.shape is not None
        inputs = [TensorSpec((rows, x.shape[1]), x.dtype), *self._inputs[1:]]
        kernel = _bound(self._op, inputs, self._op.infer(*inputs))
        if kernel is not None:
            (kernel.entry,) = library.get([kernel.spec])
        return kernel


def bind_quantized(operation: Operation) -> BoundKernel | OpenQuantizedProduct | None:
    """The kernel of a `QuantizedMatMul`."""
    op: Op = operation.op
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs) if isinstance(tensor.spec, TensorSpec)]
    assert isinstance(op, QuantizedMatMul)
    *inputs, result = specs
    if [spec.dtype.name for spec in (inputs[0], *inputs[2:])] != ["float32"] * (len(inputs) - 1):
        return None
    if not all(spec.is_static for spec in inputs[1:]) or inputs[0].shape is None or inputs[0].shape[1] is None:
        return None
    if not inputs[0].is_static:
        library.expect(_kernel(op))
        return OpenQuantizedProduct(op, inputs)
    return _bound(op, inputs, result)


def _kernel(op: QuantizedMatMul) -> QuantizedKernel:
    operands = [Operand("float", 2), Operand("i8", 2), Operand("float", 1)]
    fixed = [Operand("float", None)] if op.is_fixed else []
    return QuantizedKernel(
        (*operands, *fixed, Operand("float", 2, (), True)),
        op.low,
        op.high,
        op.epsilon,
        op.transpose,
        op.is_fixed,
        has_pairs(library.host),
    )


def has_pairs(host: str) -> bool:
    """Test whether a host (`Library.host`) has the instruction of AVX2; others multiply and add in several."""
    return host.startswith("x86_64") and "+avx2" in host


def _bound(op: QuantizedMatMul, inputs: list[TensorSpec], result: TensorSpec) -> BoundKernel | None:
    rows, terms = [int(size or 0) for size in inputs[0].shape or ()]
    columns = int((result.shape or (0, 0))[1] or 0)
    if not rows * terms * columns:
        return None
    step = -(-terms // 16) * 16 + 16  # so that rows do not fall on the same lines of the cache
    sizes = [rows * step * 2, rows * 4 + 64, rows * PANEL * 4]
    starts = [sum(-(-size // 64) * 64 for size in sizes[:k]) for k in range(3)]
    address = scratch(starts[2] + sizes[2])
    panels = -(-columns // PANEL)
    parts = 1 if rows * terms * columns < machine_profile().quantized_work else min(_PARTS, panels)
    numbers = [rows, terms, columns, parts, *[address + start for start in starts], step]
    return ProductKernel(op, _kernel(op), inputs, [result], numbers)


# --- code -----------------------------------------------------------------------------------------------------------


def _print_run(kernel: QuantizedKernel, name: str) -> str:
    """The function that is called: it rounds the rows, and has all parts computed."""
    pointers = ["ptr %d0", "ptr %d1", "ptr %d2"]
    pointers += ["ptr %d3", "ptr %d4"] if kernel.is_fixed else ["ptr %d3"]
    code = FunctionBuilder(f"{name}_run", [*pointers, "ptr %numbers"])
    numbers = f"[{len(_FIELDS)} x i64]"
    fields = code.slot(numbers)
    for position, pointer in enumerate([*pointers[:3], pointers[-1]]):
        code.store("i64", code.let(f"ptrtoint {pointer} to i64"), fields, position)
    for number in range(kernel.number_count):
        code.store("i64", code.load("i64", "%numbers", number), fields, 4 + number)
    values = Fields(code, fields, _FIELDS)
    rounded, scales = values.address("rounded", "i16"), values.address("scales", "float")
    fixed = code.load("float", "%d3") if kernel.is_fixed else "0.0"
    sizes = ", ".join(f"i64 {values[size]}" for size in ("rows", "terms", "step"))
    code.line(f"call void @{name}_round(ptr %d0, ptr {rounded}, ptr {scales}, {sizes}, float {fixed})")
    print_parallel(code, f"{name}_task", fields, values["parts"])
    return code.text()


def _print_rounding(kernel: QuantizedKernel, name: str) -> str:
    """Rows as 16-bit numbers, a zero behind them, and their scales."""
    parameters = ["ptr %x", "ptr %q", "ptr %s"]
    sizes = ["i64 %rows", "i64 %terms", "i64 %step", "float %fixed"]
    code = FunctionBuilder(f"{name}_round", [*parameters, *sizes])
    whole = code.mul(code.div("%terms", 8), 8)
    with code.loop(0, "%rows") as row:
        x = code.at("float", "%x", code.mul(row, "%terms"))
        q = code.at("i16", "%q", code.mul(row, "%step"))
        scale = "%fixed"
        if not kernel.is_fixed:
            bits = code.let(f"bitcast i32 {_largest(code, x, whole)} to float")
            bottom = code.let(f"fadd float {bits}, {_float(kernel.epsilon)}")
            scale = code.let(f"fdiv float {_float(kernel.high)}, {bottom}")
        code.store("float", scale, "%s", row)
        wide = code.broadcast(8, "float", scale)
        with code.loop(0, whole, 8) as term:
            value = code.load_vector("<8 x float>", "float", x, term)
            found = _rounded(code, kernel, 8, value, wide)
            code.store_vector("<8 x i16>", "i16", found, q, term)
        with code.loop(whole, "%terms") as term:
            first = code.let(f"insertelement <1 x float> undef, float {code.load('float', x, term)}, i32 0")
            one = code.let(f"insertelement <1 x float> undef, float {scale}, i32 0")
            found = _rounded(code, kernel, 1, first, one)
            code.store("i16", code.let(f"extractelement <1 x i16> {found}, i32 0"), q, term)
        code.store("i16", 0, q, "%terms")
    return code.text()


def _float(value: float) -> str:
    """A float32 as LLVM writes it: the bits of the double that it equals."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def _largest(code: Builder, x: str, whole: Size) -> str:
    """The bits of a row's largest absolute value: those of NaN are larger than all numbers'."""
    vector = "<8 x i32>"
    slot, rest = code.slot(vector), code.slot("i32")
    code.line(f"store {vector} zeroinitializer, ptr {slot}")
    code.line(f"store i32 0, ptr {rest}")
    with code.loop(0, whole, 8) as term:
        value = code.load_vector("<8 x float>", "float", x, term)
        bits = code.let(f"bitcast <8 x float> {value} to {vector}")
        bits = code.let(f"and {vector} {bits}, {code.broadcast(8, 'i32', '2147483647')}")
        most = code.let(f"load {vector}, ptr {slot}")
        above = code.let(f"icmp sgt {vector} {bits}, {most}")
        most = code.let(f"select <8 x i1> {above}, {vector} {bits}, {vector} {most}")
        code.line(f"store {vector} {most}, ptr {slot}")
    with code.loop(whole, "%terms") as term:
        bits = code.let(f"bitcast float {code.load('float', x, term)} to i32")
        bits = code.let(f"and i32 {bits}, 2147483647")
        _keep_greater(code, rest, bits)
    most = code.let(f"load {vector}, ptr {slot}")
    for lane in range(8):
        _keep_greater(code, rest, code.let(f"extractelement {vector} {most}, i32 {lane}"))
    return code.let(f"load i32, ptr {rest}")


def _keep_greater(code: Builder, slot: str, value: str) -> None:
    most = code.let(f"load i32, ptr {slot}")
    above = code.let(f"icmp sgt i32 {value}, {most}")
    code.line(f"store i32 {code.let(f'select i1 {above}, i32 {value}, i32 {most}')}, ptr {slot}")


def _rounded(code: Builder, kernel: QuantizedKernel, lanes: int, value: str, scale: str) -> str:
    """Floats as whole numbers of 16 bits, within the range; NaN as 0."""
    vector, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    scaled = code.let(f"fmul {vector} {value}, {scale}")
    found = code.let(f"call {vector} @llvm.rint.v{lanes}f32({vector} {scaled})")
    for comparison, bound in (("olt", kernel.low), ("ogt", kernel.high)):
        limit = code.broadcast(lanes, "float", _float(bound))
        beyond = code.let(f"fcmp {comparison} {vector} {found}, {limit}")
        found = code.let(f"select {mask} {beyond}, {vector} {limit}, {vector} {found}")
    is_nan = code.let(f"fcmp uno {vector} {found}, {found}")
    found = code.let(f"select {mask} {is_nan}, {vector} zeroinitializer, {vector} {found}")
    whole = code.let(f"fptosi {vector} {found} to <{lanes} x i32>")
    return code.let(f"trunc <{lanes} x i32> {whole} to <{lanes} x i16>")


def _print_packing(kernel: QuantizedKernel, name: str) -> str:
    """A block of terms of 16 columns as pairs: (pairs, 16, 2) bytes, zeros where there is no column and no term."""
    sizes = ["i64 %terms", "i64 %width", "i64 %step"]
    code = FunctionBuilder(f"{name}_pack", ["ptr %b", "ptr %panel", *sizes])
    pairs = code.div(code.add("%terms", 1), 2)
    whole = code.div("%terms", 2)
    if kernel.transpose:
        _print_zeros(code, pairs)
        with code.loop(0, "%width") as column:
            source = code.at("i8", "%b", code.mul(column, "%step"))
            with code.loop(0, "%terms") as term:
                pair, odd = code.div(term, 2), code.let(f"and i64 {term}, 1")
                place = code.add(code.mul(pair, 2 * _SUB), code.mul(column, 2), odd)
                code.store("i8", code.load("i8", source, term), "%panel", place)
        return code.text()
    is_wide = code.compare("sge", "%width", _SUB)
    with code.when(is_wide):
        with code.loop(0, whole) as pair:
            first = code.at("i8", "%b", code.mul(pair, 2, "%step"))
            rows = [code.load_vector("<16 x i8>", "i8", first, start) for start in (0, "%step")]
            _print_pair(code, pair, rows[0], rows[1])
        with code.when(code.compare("slt", whole, pairs)):
            first = code.at("i8", "%b", code.mul(whole, 2, "%step"))
            _print_pair(code, whole, code.load_vector("<16 x i8>", "i8", first), "zeroinitializer")
    with code.when(code.let(f"xor i1 {is_wide}, true")):
        _print_zeros(code, pairs)
        with code.loop(0, "%terms") as term:
            source = code.at("i8", "%b", code.mul(term, "%step"))
            start = code.add(code.mul(code.div(term, 2), 2 * _SUB), code.let(f"and i64 {term}, 1"))
            with code.loop(0, "%width") as column:
                code.store("i8", code.load("i8", source, column), "%panel", code.add(start, code.mul(column, 2)))
    return code.text()


def _print_pair(code: Builder, pair: Size, first: str, second: str) -> None:
    """Two rows of 16 bytes, byte by byte in turn."""
    places = ", ".join(f"i32 {lane // 2 + _SUB * (lane % 2)}" for lane in range(2 * _SUB))
    mixed = code.let(f"shufflevector <16 x i8> {first}, <16 x i8> {second}, <32 x i32> <{places}>")
    code.store_vector("<32 x i8>", "i8", mixed, "%panel", code.mul(pair, 2 * _SUB))


def _print_zeros(code: Builder, pairs: Size) -> None:
    with code.loop(0, pairs) as pair:
        code.store_vector("<32 x i8>", "i8", "zeroinitializer", "%panel", code.mul(pair, 2 * _SUB))


def _print_tile(kernel: QuantizedKernel, name: str, rows: int) -> str:
    """Sums of a block for some rows and 16 columns, added to those of the blocks before."""
    pointers = ["ptr %q", "ptr %panel", "ptr %sums"]
    sizes = [f"i64 {size}" for size in ("%step", "%pairs", "%width", "%is_first")]
    code = FunctionBuilder(f"{name}_tile{rows}", [*pointers, *sizes])
    vector, halves = "<8 x i32>", 2
    slots = [[code.slot(vector) for _ in range(halves)] for _ in range(rows)]
    is_first = code.compare("ne", "%is_first", 0)
    for row, own in enumerate(slots):
        for half, slot in enumerate(own):
            code.line(f"store {vector} zeroinitializer, ptr {slot}")
            place = code.add(code.mul(row, "%width"), 8 * half)
            with code.when(code.let(f"xor i1 {is_first}, true")):
                code.line(f"store {vector} {code.load_vector(vector, 'i32', '%sums', place)}, ptr {slot}")
    starts = [code.at("i16", "%q", code.mul(row, "%step")) for row in range(rows)]
    with code.loop(0, "%pairs") as pair:
        place, weights = code.mul(pair, 2 * _SUB), list[str]()
        for half in range(halves):
            narrow = code.load_vector("<16 x i8>", "i8", "%panel", code.add(place, 16 * half))
            weights.append(code.let(f"sext <16 x i8> {narrow} to <16 x i16>"))
        for row, own in enumerate(slots):
            address = code.at("i16", starts[row], code.mul(pair, 2))
            both = code.broadcast(8, "i32", code.let(f"load i32, ptr {address}, align 2"))
            x = code.let(f"bitcast {vector} {both} to <16 x i16>")
            for slot, weight in zip(own, weights, strict=True):
                product = _pairs_added(code, kernel, x, weight)
                total = code.let(f"add {vector} {code.let(f'load {vector}, ptr {slot}')}, {product}")
                code.line(f"store {vector} {total}, ptr {slot}")
    for row, own in enumerate(slots):
        for half, slot in enumerate(own):
            place = code.add(code.mul(row, "%width"), 8 * half)
            code.store_vector(vector, "i32", code.let(f"load {vector}, ptr {slot}"), "%sums", place)
    return code.text()


def _print_direct(kernel: QuantizedKernel, name: str) -> str:
    """Add sums of a block, for one row and a panel of the matrix in its own layout, to those of the blocks before."""
    sizes = [f"i64 {size}" for size in ("%step", "%terms", "%is_first")]
    code = FunctionBuilder(f"{name}_direct", ["ptr %q", "ptr %b", "ptr %sums", *sizes])
    vector = "<8 x i32>"
    slots = [code.slot(vector) for _ in range(PANEL // 8)]
    for place, slot in enumerate(slots):
        code.line(f"store {vector} zeroinitializer, ptr {slot}")
        with code.when(code.compare("eq", "%is_first", 0)):
            code.line(f"store {vector} {code.load_vector(vector, 'i32', '%sums', 8 * place)}, ptr {slot}")
    whole = code.div("%terms", 2)
    with code.loop(0, whole) as pair:
        _print_direct_pair(code, kernel, slots, pair, has_second=True)
    with code.when(code.compare("slt", code.mul(whole, 2), "%terms")):
        _print_direct_pair(code, kernel, slots, whole, has_second=False)
    for place, slot in enumerate(slots):
        code.store_vector(vector, "i32", code.let(f"load {vector}, ptr {slot}"), "%sums", 8 * place)
    return code.text()


def _print_direct_pair(code: Builder, kernel: QuantizedKernel, slots: list[str], pair: Size, has_second: bool) -> None:
    """Add the products of two terms, or of the last one alone, of all columns of a panel."""
    vector = "<8 x i32>"
    address = code.at("i16", "%q", code.mul(pair, 2))
    both = code.broadcast(8, "i32", code.let(f"load i32, ptr {address}, align 2"))
    x = code.let(f"bitcast {vector} {both} to <16 x i16>")
    first = code.at("i8", "%b", code.mul(pair, 2, "%step"))
    second = code.at("i8", first, "%step")
    for sub in range(PANEL // _SUB):
        upper = code.load_vector("<16 x i8>", "i8", first, _SUB * sub)
        lower = code.load_vector("<16 x i8>", "i8", second, _SUB * sub) if has_second else "zeroinitializer"
        for half in range(2):
            places = ", ".join(f"i32 {8 * half + lane // 2 + _SUB * (lane % 2)}" for lane in range(_SUB))
            mixed = code.let(f"shufflevector <16 x i8> {upper}, <16 x i8> {lower}, <16 x i32> <{places}>")
            weights = code.let(f"sext <16 x i8> {mixed} to <16 x i16>")
            slot = slots[2 * sub + half]
            product = _pairs_added(code, kernel, x, weights)
            total = code.let(f"add {vector} {code.let(f'load {vector}, ptr {slot}')}, {product}")
            code.line(f"store {vector} {total}, ptr {slot}")


def _pairs_added(code: Builder, kernel: QuantizedKernel, left: str, right: str) -> str:
    """The products of 16 numbers, added in pairs."""
    if kernel.has_pairs:
        return code.let(f"call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> {left}, <16 x i16> {right})")
    wide = [code.let(f"sext <16 x i16> {side} to <16 x i32>") for side in (left, right)]
    products = code.let(f"mul <16 x i32> {wide[0]}, {wide[1]}")
    parts = list[str]()
    for first in (0, 1):
        places = ", ".join(f"i32 {lane}" for lane in range(first, 16, 2))
        parts.append(code.let(f"shufflevector <16 x i32> {products}, <16 x i32> undef, <8 x i32> <{places}>"))
    return code.let(f"add <8 x i32> {parts[0]}, {parts[1]}")


def _print_scaling(name: str) -> str:
    """Sums of a row and some columns as floats, divided by both scales."""
    pointers = ["ptr %sums", "ptr %scale", "ptr %out"]
    code = FunctionBuilder(f"{name}_scale", [*pointers, "i64 %width", "float %own"])
    whole = code.mul(code.div("%width", 8), 8)
    wide = code.broadcast(8, "float", "%own")
    with code.loop(0, whole, 8) as column:
        total = code.load_vector("<8 x i32>", "i32", "%sums", column)
        scale = code.load_vector("<8 x float>", "float", "%scale", column)
        found = code.let(f"sitofp <8 x i32> {total} to <8 x float>")
        both = code.let(f"fmul <8 x float> {scale}, {wide}")
        code.store_vector("<8 x float>", "float", code.let(f"fdiv <8 x float> {found}, {both}"), "%out", column)
    with code.loop(whole, "%width") as column:
        found = code.let(f"sitofp i32 {code.load('i32', '%sums', column)} to float")
        both = code.let(f"fmul float {code.load('float', '%scale', column)}, %own")
        code.store("float", code.let(f"fdiv float {found}, {both}"), "%out", column)
    return code.text()


def _print_task(kernel: QuantizedKernel, name: str) -> str:
    """A part takes some of the panels, block by block of terms, so that pages of the matrix are read again soon."""
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"])
    fields = Fields(code, "%context", _FIELDS)
    rows, terms, columns = (fields[size] for size in ("rows", "terms", "columns"))
    panels = code.div(code.add(columns, PANEL - 1), PANEL)
    first = code.div(code.mul(panels, "%part"), fields["parts"])
    end = code.div(code.mul(panels, code.add("%part", 1)), fields["parts"])
    space = f"[{_BLOCK * PANEL} x i8]"
    panel_memory = code.slot(space)
    block: Size = _BLOCK
    if not kernel.transpose:
        few = code.compare("sle", rows, _DIRECT_ROWS)
        block = code.let(f"select i1 {few}, i64 {_DIRECT_BLOCK}, i64 {_BLOCK}")
    with code.loop(0, terms, block) as start:
        size = code.least(block, code.sub(terms, start))
        with code.loop(first, end) as panel:
            _print_panel(code, kernel, name, fields, (start, size, panel), panel_memory)
    scale = fields.address("scale", "float")
    with code.loop(first, end) as panel:
        column = code.mul(panel, PANEL)
        width = code.least(PANEL, code.sub(columns, column))
        sums, step = _sums_of(code, fields, column, width)
        with code.loop(0, rows) as row:
            out = code.at("float", fields.address("out", "float"), code.add(code.mul(row, columns), column))
            own = code.load("float", fields.address("scales", "float"), row)
            source = code.at("i32", sums, code.mul(row, step))
            arguments = f"ptr {source}, ptr {code.at('float', scale, column)}, ptr {out}, i64 {width}"
            code.line(f"call void @{name}_scale({arguments}, float {own})")
    return code.text()


def _sums_of(code: Builder, fields: Fields, column: Size, width: Size) -> tuple[str, Size]:
    """Print the place of a panel's sums, and the distance of its rows: in the result, or apart for a panel not full."""
    is_full = code.compare("eq", width, PANEL)
    out = code.at("i32", fields.address("out", "i32"), column)
    tail = fields.address("tail", "i32")
    sums = code.let(f"select i1 {is_full}, ptr {out}, ptr {tail}")
    return sums, code.let(f"select i1 {is_full}, i64 {fields['columns']}, i64 {PANEL}")


def _print_panel(
    code: Builder,
    kernel: QuantizedKernel,
    name: str,
    fields: Fields,
    place: tuple[Size, Size, Size],
    panel_memory: str,
) -> None:
    """The products of a block of terms and a panel of columns, for all rows."""
    start, size, panel = place
    rows, terms, columns = (fields[name] for name in ("rows", "terms", "columns"))
    column = code.mul(panel, PANEL)
    width = code.least(PANEL, code.sub(columns, column))
    sums, step = _sums_of(code, fields, column, width)
    matrix, rounded = fields.address("kernel", "i8"), fields.address("rounded", "i16")
    pairs = code.div(code.add(size, 1), 2)
    is_first = code.let(f"zext i1 {code.compare('eq', start, 0)} to i64")
    subs = code.div(code.add(width, _SUB - 1), _SUB)
    if not kernel.transpose:
        few = code.compare("sle", rows, _DIRECT_ROWS)
        is_direct = code.let(f"and i1 {few}, {code.compare('eq', width, PANEL)}")
        subs = code.let(f"select i1 {is_direct}, i64 0, i64 {subs}")
        direct = code.let(f"select i1 {is_direct}, i64 {rows}, i64 0")
        with code.loop(0, direct) as row:
            q = code.at("i16", rounded, code.add(code.mul(row, fields["step"]), start))
            target = code.at("i32", sums, code.mul(row, step))
            source = code.at("i8", matrix, code.add(code.mul(start, columns), column))
            given = f"ptr {q}, ptr {source}, ptr {target}, i64 {columns}, i64 {size}, i64 {is_first}"
            code.line(f"call void @{name}_direct({given})")
    with code.loop(0, subs) as sub:
        inner = code.mul(sub, _SUB)
        left = code.least(_SUB, code.sub(width, inner))
        at = code.add(column, inner)
        if kernel.transpose:
            source, stride = code.add(code.mul(at, terms), start), terms
        else:
            source, stride = code.add(code.mul(start, columns), at), columns
        arguments = f"ptr {code.at('i8', matrix, source)}, ptr {panel_memory}, i64 {size}, i64 {left}, i64 {stride}"
        code.line(f"call void @{name}_pack({arguments})")
        whole = code.mul(code.div(rows, _ROWS), _ROWS)
        for first, end, count in ((0, whole, _ROWS), (whole, rows, 1)):
            with code.loop(first, end, count) as row:
                q = code.at("i16", rounded, code.add(code.mul(row, fields["step"]), start))
                target = code.at("i32", sums, code.add(code.mul(row, step), inner))
                given = f"ptr {q}, ptr {panel_memory}, ptr {target}, i64 {fields['step']}, i64 {pairs}"
                code.line(f"call void @{name}_tile{count}({given}, i64 {step}, i64 {is_first})")
