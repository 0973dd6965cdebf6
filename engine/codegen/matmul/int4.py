"""Kernels of `Int4MatMul` for few rows: the integers are multiplied as they are, and nothing is made floats but sums.

A row is multiplied by a number that makes its largest element 2**22, and rounded, so that its error is that of
float32. Each of these integers is three digits of 8 bits with a sign: a row is three rows for the instructions of
`nibbles` on VNNI and AVX2, elsewhere for those of `dot_products`. Of a group of terms the sums of the three are exact.
They become one float, which is multiplied by the group's scale, group by group: all instructions give the same bits. In
the panel integers are 8 too large, which is added to the zero point. A variable's matrix is laid out in panels once, as
a whole (`Int4Panels`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.int4_matmul import Int4MatMul
from ...ops.internal.laid_out_int4 import Int4Panels, LaidOutInt4MatMul
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import specs_of
from ..elementwise.open_sizes import BoundedCache
from ..host.scratch import pieces_of
from ..llvm.builder import BYTES, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.tasks import Fields, begin_task, print_parallel, print_share, stored_fields
from .dot_products import BLOCK, PANEL, SUB, DotProduct, dot_product_of, print_packing, print_tile
from .nibbles import (
    DIGITS,
    FOUR,
    keeps_nibbles,
    line_of,
    panel_bytes,
    panels_of,
    print_nibbles,
    print_pairing,
    rows_of,
)
from .quantized import bytes_of_row, float_text, lanes_of, largest_of, parts_of, rounded, total_of

_FEW_ROWS, _MOST_ROWS = 8, 128
_LARGE_GROUP = 64  # terms from which on kernels of any number of rows take no longer than floats
_LARGEST, _EPSILON = 1 << 22, 1e-30
_POINTERS = ("x", "packed", "scale", "zero", "out")
_NUMBERS = ("rows", "terms", "columns", "block", "parts", "digits", "factors", "totals", "step", "scratch_bytes")
_FIELDS = (*_POINTERS, *_NUMBERS)
_PrintRows = Callable[[str, str, Size, Size, int], None]  # of digits, sums, the panel, its columns, and rows
_PrintPanels = Callable[[Size, Size, Size, Size], _PrintRows]  # of the first term, terms, the first panel, panels


@dataclass(frozen=True)
class Int4Kernel:
    """A product of rows of floats and a matrix of four-bit integers.

    Attributes:
        dot: the instruction that adds products.
        is_laid_out: the matrix is in the layout of panels.
    """

    dot: DotProduct
    is_laid_out: bool = False
    effort = Effort.LARGE
    number_count = len(_NUMBERS)
    scratch = tuple(map(_NUMBERS.index, ("digits", "factors", "totals")))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows, the integers, scales, zero points, and the result."""
        packed = Operand("i8", 1 if self.is_laid_out else 2)
        return Operand("float", 2), packed, Operand("float", 2), Operand("i8", 2), Operand("float", 2, (), True)

    def print_run(self, name: str) -> str:
        if keeps_nibbles(self.dot):
            tiles = [print_nibbles(self.dot, name, rows) for rows in _tiles(self.dot)]
            functions = tiles if self.is_laid_out else [print_pairing(self.dot, name), *tiles]
        else:
            functions = [print_packing(self.dot, name, False, four_bits=True), print_tile(self.dot, name, DIGITS)]
        functions += [_print_digits(self.dot, name), _print_sums(self.dot, name), _print_task(self, name)]
        return "".join([*functions, _print_run(name)])


class OpenInt4Product:
    """An `Int4MatMul` of as many rows as there are when it runs.

    Args:
        op: the operation.
        inputs: what is known of the operands: all but the rows of the first one.
    """

    def __init__(self, op: Int4MatMul, inputs: list[TensorSpec]) -> None:
        self._op, self._inputs = op, inputs
        self._spec = Int4Kernel(dot_product_of(library.host), isinstance(op, LaidOutInt4MatMul))
        self._known = BoundedCache[tuple[int, int], BoundKernel](self._bind)
        self._last: tuple[Any, int] = (None, 0)  # the groups of the terms, and what was found of them
        self._most_rows = most_rows(self._spec.dot, inputs)
        library.expect(self._spec)

    def __call__(self, x: Any, packed: Any, scale: Any, zero: Any, group: Any) -> Any:
        """Return the product."""
        rows, most = len(x), self._most_rows
        may_be_many = self._spec.is_laid_out and most >= _LARGE_GROUP  # floats of a layout take longer to make
        block = self._block_of(group) if rows > 0 and (rows <= most or may_be_many) else 0
        if not block:
            return self._op.run(np, x, packed, scale, zero, group)
        result = np.empty((rows, self._op.matrix.columns), np.float32)
        for start in range(0, rows, most):
            own, target = x[start : start + most], result[start : start + most]
            kernel = self._known[len(own), block]
            if kernel.call(own, packed, scale, zero, target):
                kernel.refit((own, packed, scale, zero), (target,))
        return result

    def _block_of(self, group: Any) -> int:
        """Return the terms of a group; 0 if groups are not of one size and in order, or not fit for kernels."""
        groups, block = self._last
        if groups is None or not np.array_equal(group, groups):
            size = int(np.count_nonzero(group == 0))
            is_in_order = size and np.array_equal(group, np.arange(len(group)) // size)
            fits = size <= BLOCK and (size % 4 == 0 or size == len(group))
            block = size if is_in_order and fits else 0
            self._last = group.copy(), block  # both at once: other threads read them meanwhile
        return block

    def _bind(self, sizes: tuple[int, int]) -> BoundKernel:
        rows, block = sizes
        known, columns = self._inputs[0], self._op.matrix.columns
        assert known.shape is not None
        terms = int(known.shape[1] or 0)
        x = TensorSpec((rows, terms), known.dtype)
        result = self._op.infer(x)
        spec = self._spec
        itemsize = BYTES[_element(spec.dot)]
        line = bytes_of_row(terms * itemsize)
        needed = [DIGITS * rows * line, rows * 4, DIGITS * rows * -(-terms // block) * 4]
        numbers = [rows, terms, columns, block, parts_of(rows, terms, columns)]
        pieces, size = pieces_of(needed)
        numbers += [*pieces, line // itemsize, size]
        return BoundKernel(spec, [x, *self._inputs[1:4]], [result], numbers).compiled()


def bind_int4(operation: Operation) -> OpenInt4Product | None:
    """Return the kernel of an `Int4MatMul`."""
    op = op_of(operation, Int4MatMul)
    specs = specs_of(operation.inputs)
    return OpenInt4Product(op, specs) if can_multiply(specs) and op.matrix.columns else None


def int4_panels_for(product: Operation) -> Int4Panels | None:
    """Return the layout in which the kernel of an `Int4MatMul` reads its matrix; None if it has none."""
    dot, (terms, width) = dot_product_of(library.host), product.inputs[1].shape or (None, None)
    if not keeps_nibbles(dot) or not terms or not width or bind_int4(product) is None:
        return None
    return Int4Panels(terms, width, line_of(dot))


def can_multiply(inputs: list[TensorSpec]) -> bool:
    """Test whether kernels multiply such operands, of an `Int4MatMul`: float32, and of known sizes but for the rows."""
    x, packed, scale, zero, _ = inputs
    if x.dtype.name != "float32" or scale.dtype.name != "float32" or x.shape is None or len(x.shape) != 2:
        return False
    if not x.shape[1] or not all(spec.is_static for spec in (packed, scale, zero)):
        return False
    return (x.shape[0] or 1) <= most_rows(dot_product_of(library.host), inputs)


def most_rows(dot: DotProduct, inputs: list[TensorSpec]) -> int:
    """Return the rows up to which a kernel takes less time than a product of floats, that of making floats included.

    For more rows than a group has terms, scaling its sums takes longer than making floats of its integers.
    """
    x, _, scale, *_ = inputs
    assert x.shape is not None
    assert scale.shape is not None
    size = int(x.shape[1] or 0) // max(1, int(scale.shape[0] or 0))
    return min(max(_FEW_ROWS, size), _MOST_ROWS) if keeps_nibbles(dot) else _FEW_ROWS


def _element(dot: DotProduct) -> str:
    """Return the type of a digit in memory."""
    return "i8" if keeps_nibbles(dot) else dot.element


def _panel(dot: DotProduct) -> int:
    """Return the columns of a panel."""
    return 2 * line_of(dot) if keeps_nibbles(dot) else PANEL


def _tiles(dot: DotProduct) -> list[int]:
    """Return the rows whose sums are made at once: as many as registers hold, then one by one."""
    return [rows_of(dot), 1] if keeps_nibbles(dot) and rows_of(dot) > 1 else [1]


# --- code -----------------------------------------------------------------------------------------------------------


def _print_run(name: str) -> str:
    """Print the function that is called: it takes the rows apart, and runs all parts."""
    pointers = [f"%d{k}" for k in range(len(_POINTERS))]
    code = FunctionBuilder(f"{name}_run", [f"ptr {each}" for each in [*pointers, "%numbers"]])
    fields, values = stored_fields(code, pointers, _FIELDS)
    pointers = ["%d0", *[values.address(each) for each in ("digits", "factors", "totals")]]
    code.call_on(f"{name}_digits", pointers, [values[size] for size in ("rows", "terms", "block", "step")])
    print_parallel(code, f"{name}_task", fields, values["parts"])
    return code.text()


def _print_digits(dot: DotProduct, name: str) -> str:
    """Print rows as three rows of digits each, lowest first, the factors of these numbers, and groups' sums."""
    pointers, sizes = ("x", "digits", "factors", "totals"), ("rows", "terms", "block", "step")
    code = FunctionBuilder(f"{name}_digits", taking(pointers, sizes))
    most = lanes_of(dot)
    whole, groups = code.mul(code.div("%terms", most), most), code.ceil_div("%terms", "%block")
    totals = {lanes: [code.slot(f"<{lanes} x i32>") for _ in range(DIGITS)] for lanes in (most, 1)}
    with code.loop(0, "%rows") as row:
        x = code.at("float", "%x", code.mul(row, "%terms"))
        lines = [code.add(code.mul(row, DIGITS), digit) for digit in range(DIGITS)]
        targets = [code.at(_element(dot), "%digits", code.mul(line, "%step")) for line in lines]
        largest = code.let(f"bitcast i32 {largest_of(code, x, whole, most)} to float")
        bottom = code.let(f"fadd float {largest}, {float_text(_EPSILON)}")
        factor = code.let(f"fdiv float {float_text(_LARGEST)}, {bottom}")
        code.store("float", factor, "%factors", row)
        with code.loop(0, groups) as group:
            start = code.mul(group, "%block")
            end = code.least("%terms", code.add(start, "%block"))
            middle = code.add(start, code.mul(code.div(code.sub(end, start), most), most))
            for lanes, first, stop in ((most, start, middle), (1, middle, end)):
                wide = code.broadcast(lanes, "float", factor)
                for total in totals[lanes]:
                    code.line(f"store <{lanes} x i32> zeroinitializer, ptr {total}")
                with code.loop(first, stop, lanes) as term:
                    value = code.load_vector(f"<{lanes} x float>", "float", x, term)
                    rest = rounded(code, lanes, value, wide)
                    for digit, (target, total) in enumerate(zip(targets, totals[lanes], strict=True)):
                        rest = _print_digit(code, dot, lanes, rest, (target, term, total), digit == DIGITS - 1)
            for digit, line in enumerate(lines):
                parts = [total_of(code, own[digit], lanes) for lanes, own in totals.items()]
                both = code.let(f"add i32 {', '.join(parts)}")
                code.store("i32", both, "%totals", code.add(code.mul(line, groups), group))
        with code.loop("%terms", code.round_up("%terms", FOUR)) as term:
            for target in targets:
                code.store(_element(dot), 0, target, term)
    return code.text()


def _print_digit(
    code: FunctionBuilder, dot: DotProduct, lanes: int, value: str, place: tuple[str, Size, str], is_last: bool
) -> str:
    """Write the lowest digit, from -128 to 127, and add it to the group's totals; return what is left."""
    integers, kind = f"<{lanes} x i32>", f"<{lanes} x {_element(dot)}>"
    target, term, total = place
    digit = value
    if not is_last:
        low = code.let(f"trunc {integers} {value} to <{lanes} x i8>")
        digit = code.let(f"sext <{lanes} x i8> {low} to {integers}")
    code.store_vector(kind, _element(dot), code.let(f"trunc {integers} {digit} to {kind}"), target, term)
    code.combine(integers, total, digit, "add")
    rest = code.let(f"sub {integers} {value}, {digit}")
    return code.let(f"ashr {integers} {rest}, {code.broadcast(lanes, 'i32', '8')}")


def _print_sums(dot: DotProduct, name: str) -> str:
    """Add a group's sums of a row and a panel to the result: the digits' sums as one float, times the scale."""
    pointers = ["ptr %sums", "ptr %scale", "ptr %zero", "ptr %out", "i64 %width", "i64 %is_first"]
    code = FunctionBuilder(f"{name}_sums", [*pointers, *[f"i32 %total{digit}" for digit in range(DIGITS)]])
    is_first = code.compare("ne", "%is_first", 0)
    most = lanes_of(dot)
    whole = code.mul(code.div("%width", most), most)
    middle = code.let(f"add i32 {code.let('shl i32 %total1, 8')}, %total0")
    for lanes, start, stop in ((most, 0, whole), (1, whole, "%width")):
        integers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
        totals = [code.broadcast(lanes, "i32", total) for total in (middle, "%total2")]
        with code.loop(start, stop, lanes) as column:
            narrow = code.load_vector(f"<{lanes} x i8>", "i8", "%zero", column)
            zero = code.let(f"sext <{lanes} x i8> {narrow} to {integers}")
            zero = code.let(f"add {integers} {zero}, {code.broadcast(lanes, 'i32', '8')}")
            places = [code.add(column, _panel(dot) * digit) for digit in range(DIGITS)]
            lowest, second, third = (code.load_vector(integers, "i32", "%sums", place) for place in places)
            second = code.let(f"shl {integers} {second}, {code.broadcast(lanes, 'i32', '8')}")
            parts: list[str] = []
            for found, total in zip((code.let(f"add {integers} {second}, {lowest}"), third), totals, strict=True):
                own = code.let(f"sub {integers} {found}, {code.let(f'mul {integers} {zero}, {total}')}")
                parts.append(code.let(f"sitofp {integers} {own} to {floats}"))
            lower, upper = parts
            upper = code.let(f"fmul {floats} {upper}, {code.broadcast(lanes, 'float', float_text(65536))}")
            scale = code.load_vector(floats, "float", "%scale", column)
            own = code.let(f"fmul {floats} {code.let(f'fadd {floats} {upper}, {lower}')}, {scale}")
            before = code.load_vector(floats, "float", "%out", column)
            both = code.let(f"fadd {floats} {before}, {own}")
            code.store_vector(
                floats, "float", code.let(f"select i1 {is_first}, {floats} {own}, {floats} {both}"), "%out", column
            )
    return code.text()


def _print_task(kernel: Int4Kernel, name: str) -> str:
    """Print the function of a part, which takes some of the panels, group by group of terms.

    Panels that are laid out are taken one after the other.
    """
    dot = kernel.dot
    code, fields = begin_task(name, _FIELDS)
    rows, terms, columns, block = (fields[size] for size in ("rows", "terms", "columns", "block"))
    wide, tiles = _panel(dot), _tiles(dot)
    panels, groups = code.ceil_div(columns, wide), code.ceil_div(terms, block)
    first, end = print_share(code, panels, "%part", fields["parts"])
    sums = code.slot(f"[{tiles[0] * DIGITS * wide} x i32]")
    most, prepare = (panels_of(dot), _nibbles) if keeps_nibbles(dot) else (1, _copied)
    if kernel.is_laid_out:
        most, prepare = 1, _in_place
    print_panels = prepare(code, dot, name, fields, (first, end))
    with _print_order(code, groups, (first, end, most), kernel.is_laid_out) as (group, base):
        start = code.mul(group, block)
        size, count = code.least(block, code.sub(terms, start)), code.least(most, code.sub(end, base))
        print_rows = print_panels(start, size, base, count)
        with code.loop(0, count) as number:
            column, begin = code.mul(code.add(base, number), wide), 0
            width = code.least(wide, code.sub(columns, column))
            for together in tiles:
                stop = code.add(begin, code.mul(code.div(code.sub(rows, begin), together), together))
                with code.loop(begin, stop, together) as row:
                    digits = fields.address("digits")
                    digits = code.at(_element(dot), digits, code.mul(row, DIGITS, fields["step"]), start)
                    print_rows(digits, sums, number, width, together)
                    for k in range(together):
                        own = code.at("i32", sums, k * DIGITS * wide)
                        _print_scaled(code, name, fields, own, (code.add(row, k), column, width), (group, groups))
                begin = stop
    begin, stop = code.mul(first, wide), code.least(columns, code.mul(end, wide))
    with code.loop(0, rows) as row:
        out = code.at("float", fields.address("out"), code.mul(row, columns))
        factor = code.load("float", fields.address("factors"), row)
        with code.loop(begin, stop) as column:
            code.store("float", code.let(f"fdiv float {code.load('float', out, column)}, {factor}"), out, column)
    return code.text()


@contextmanager
def _print_order(
    code: FunctionBuilder, groups: Size, panels: tuple[Size, Size, int], is_laid_out: bool
) -> Generator[tuple[str, str]]:
    """Print loops for groups of terms and for panels, whose bytes are read in the order in which memory has them."""
    if is_laid_out:
        with code.loop(*panels) as base, code.loop(0, groups) as group:
            yield group, base
    else:
        with code.loop(0, groups) as group, code.loop(*panels) as base:
            yield group, base


def _print_scaled(
    code: FunctionBuilder,
    name: str,
    fields: Fields,
    sums: str,
    place: tuple[Size, Size, Size],
    which: tuple[Size, Size],
) -> None:
    """Add the sums of a row and a panel to the result.

    Args:
        place: the row, the first column, and how many columns.
        which: the group, and how many groups there are.
    """
    (row, column, width), (group, groups), columns = place, which, fields["columns"]
    own = code.add(code.mul(group, columns), column)
    given = [("ptr", sums), ("ptr", code.at("float", fields.address("scale"), own))]
    given.append(("ptr", code.at("i8", fields.address("zero"), own)))
    out = code.at("float", fields.address("out"), code.mul(row, columns), column)
    is_first = code.let(f"zext i1 {code.compare('eq', group, 0)} to i64")
    given += [("ptr", out), ("i64", width), ("i64", is_first)]
    totals = code.at("i32", fields.address("totals"), code.mul(row, DIGITS, groups), group)
    given += [("i32", code.load("i32", totals, code.mul(digit, groups))) for digit in range(DIGITS)]
    code.call(f"{name}_sums", given)


def _in_place(
    code: FunctionBuilder, dot: DotProduct, name: str, fields: Fields, share: tuple[Size, Size]
) -> _PrintPanels:
    """Multiply by a panel that is laid out."""
    line = line_of(dot)
    step = code.mul(code.round_up(fields["terms"], FOUR), line)  # to the next panel
    packed = fields.address("packed")

    def print_panels(start: Size, size: Size, base: Size, count: Size) -> _PrintRows:
        panel = code.at("i8", packed, code.add(code.mul(base, step), code.mul(start, line)))
        ahead = code.at("i8", panel, code.mul(size, line))

        def print_rows(digits: str, sums: str, number: Size, width: Size, rows: int) -> None:
            code.call_on(f"{name}_nibbles{rows}", (digits, panel, sums, ahead), (fields["step"], size, line))

        return print_rows

    return print_panels


def _copied(
    code: FunctionBuilder, dot: DotProduct, name: str, fields: Fields, share: tuple[Size, Size]
) -> _PrintPanels:
    """Copy a panel for the instruction, and multiply by that."""
    panel_memory = code.slot(f"[{BLOCK * PANEL} x i8]")
    columns = fields["columns"]
    line = code.ceil_div(columns, 2)  # bytes

    def print_panels(start: Size, size: Size, base: Size, count: Size) -> _PrintRows:
        column = code.mul(base, PANEL)
        with code.loop(0, code.ceil_div(code.least(PANEL, code.sub(columns, column)), SUB)) as sub:
            at = code.add(column, code.mul(sub, SUB))
            source = code.at("i8", fields.address("packed"), code.add(code.mul(start, line), code.div(at, 2)))
            target = code.at("i8", panel_memory, code.mul(sub, dot.sub_bytes))
            code.call_on(f"{name}_pack", (source, target), (size, code.least(SUB, code.sub(columns, at)), line))

        def print_rows(digits: str, sums: str, number: Size, width: Size, rows: int) -> None:
            with code.loop(0, code.ceil_div(width, SUB), dot.subs) as sub:
                source = code.at("i8", panel_memory, code.mul(sub, dot.sub_bytes))
                pointers = (digits, source, code.at("i32", sums, code.mul(sub, SUB)))
                sizes = (fields["step"], code.ceil_div(size, dot.terms), PANEL, 1, dot.sub_bytes)
                code.call_on(f"{name}_tile{DIGITS}", pointers, sizes)

        return print_rows

    return print_panels


def _nibbles(
    code: FunctionBuilder, dot: DotProduct, name: str, fields: Fields, share: tuple[Size, Size]
) -> _PrintPanels:
    """Interleave the bytes of some panels, and multiply by those."""
    memory = code.slot(f"[{panels_of(dot) * panel_bytes(dot)} x i8]")
    line, wide = code.ceil_div(fields["columns"], 2), _panel(dot)  # bytes, and columns
    packed, (first, end) = fields.address("packed"), share

    def print_panels(start: Size, size: Size, base: Size, count: Size) -> _PrintRows:
        column = code.mul(base, wide)
        source = code.at("i8", packed, code.mul(start, line), code.div(column, 2))
        own = code.least(code.mul(count, wide), code.sub(fields["columns"], column))
        sizes = [size, code.div(own, wide), code.ceil_div(code.rem(own, wide), 2), line]
        code.call_on(f"{name}_pair", (source, memory), sizes)
        following = code.add(base, panels_of(dot))
        is_last = code.compare("sge", following, end)
        following = code.choose(is_last, first, following)
        ahead = code.choose(is_last, code.add(start, size), start)
        ahead = code.at("i8", packed, code.mul(ahead, line), code.mul(following, wide // 2))

        def print_rows(digits: str, sums: str, number: Size, width: Size, rows: int) -> None:
            panel = code.at("i8", memory, code.mul(number, panel_bytes(dot)))
            later = code.at("i8", ahead, code.mul(number, wide // 2))
            code.call_on(f"{name}_nibbles{rows}", (digits, panel, sums, later), (fields["step"], size, line))

        return print_rows

    return print_panels
