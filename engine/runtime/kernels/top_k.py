"""Kernels for the positions of the few largest elements of each row.

A row is read once. The largest so far are kept in order, and vectors of which no element comes before the last of them
are passed over by one comparison, which holds for nearly all of a long row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...ops.sorting import TopKIndices
from .bound import BoundKernel
from .code import Code, Size
from .correlation import Fields, print_parallel
from .entry import Operand
from .library import library
from .open_shapes import OpenRunner, Shape
from .registers import registers_of

_MOST = 64  # for more of the largest, sorting is quicker where rows ascend
_PARTS = 16
_SERIAL_ELEMENTS = 1 << 15
_VECTORS = 4  # that are passed over at once
_FIELDS = ("x", "places", "rows", "columns", "parts")
_ELEMENTS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class TopKKernel:
    """The positions of the `k` largest of each row.

    Attributes:
        operands: the rows, and the positions.
        k: how many.
        lanes: elements of a vector.
    """

    operands: tuple[Operand, ...]
    k: int
    lanes: int

    @property
    def number_count(self) -> int:
        return 3

    def print_run(self, name: str) -> str:
        return _print_insert(self, name) + _print_task(self, name) + _print_run(self, name)


def bind_top_k(operation: Operation) -> BoundKernel | OpenRunner | None:
    """The kernel of a `TopKIndices`."""
    op, spec = operation.op, operation.inputs[0].spec
    assert isinstance(op, TopKIndices)
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return None
    if spec.dtype.name not in _ELEMENTS or not 1 <= op.k <= _MOST:
        return None

    def bind(shape: Shape) -> tuple[BoundKernel, Shape] | None:
        return _bound(op, TensorSpec(shape, spec.dtype))

    if not spec.is_static:
        return OpenRunner(op, bind, "int32")
    found = bind(tuple(int(size or 0) for size in spec.shape))
    return None if found is None else found[0]


def _bound(op: TopKIndices, spec: TensorSpec) -> tuple[BoundKernel, Shape] | None:
    shape = tuple(int(size or 0) for size in spec.shape or ())
    if not math.prod(shape) or shape[-1] < op.k:
        return None
    element, result = _ELEMENTS[spec.dtype.name], op.infer(spec)
    operands = Operand(element, len(shape)), Operand("i32", len(shape), (), is_written=True)
    kernel = TopKKernel(operands, op.k, registers_of(library.host, element).lanes)
    rows = math.prod(shape[:-1])
    parts = 1 if math.prod(shape) < _SERIAL_ELEMENTS else min(_PARTS, rows)
    return BoundKernel(kernel, [spec], [result], [rows, shape[-1], parts]), (*shape[:-1], op.k)


# --- code -----------------------------------------------------------------------------------------------------------


def _print_run(kernel: TopKKernel, name: str) -> str:
    """The function that is called: it runs all parts."""
    element = kernel.operands[0].type
    code = Code(f"{name}_run", [(f"{element}*", "%d0"), ("i32*", "%d1"), ("i64*", "%numbers")])
    numbers = f"[{len(_FIELDS)} x i64]"
    fields = code.value(f"bitcast {numbers}* {code.slot(numbers)} to i64*")
    code.store("i64", code.value(f"ptrtoint {element}* %d0 to i64"), fields, 0)
    code.store("i64", code.value("ptrtoint i32* %d1 to i64"), fields, 1)
    for number in range(kernel.number_count):
        code.store("i64", code.load("i64", "%numbers", number), fields, 2 + number)
    parts = Fields(code, fields, _FIELDS)["parts"]
    print_parallel(code, f"{name}_task", code.value(f"bitcast i64* {fields} to i8*"), parts)
    return code.text()


def _print_task(kernel: TopKKernel, name: str) -> str:
    """A part goes through some of the rows."""
    element, k = kernel.operands[0].type, kernel.k
    code = Code(f"{name}_task", [("i8*", "%context"), ("i64", "%part")])
    fields = Fields(code, code.value("bitcast i8* %context to i64*"), _FIELDS)
    rows, columns, parts = (fields[size] for size in ("rows", "columns", "parts"))
    x, places = fields.address("x", element), fields.address("places", "i32")
    kept = code.slot(f"[{k} x {element}]")
    values = code.value(f"bitcast [{k} x {element}]* {kept} to {element}*")
    first = code.div(code.mul(rows, "%part"), parts)
    end = code.div(code.mul(rows, code.add("%part", 1)), parts)
    with code.loop(first, end) as row:
        found = values, code.at("i32", places, code.mul(row, k))
        _Row(code, kernel, name, code.at(element, x, code.mul(row, columns)), found).print_search(columns)
    return code.text()


class _Row:
    """Writes the lines for one row.

    Args:
        code: the function.
        kernel, name: the kernel.
        row: where the row lies.
        found: where the largest values, and their places, are put.
    """

    def __init__(self, code: Code, kernel: TopKKernel, name: str, row: str, found: tuple[str, str]) -> None:
        self.code, self.element, self.k, self.name = code, kernel.operands[0].type, kernel.k, name
        self.width = _VECTORS * kernel.lanes
        self.row = row
        self.values, self.places = found

    def print_search(self, columns: Size) -> None:
        code, element, width, k = self.code, self.element, self.width, self.k
        with code.loop(0, k) as place:
            self._insert(place, place)
        whole = code.add(k, code.mul(code.div(code.sub(columns, k), width), width))
        vector = f"<{width} x {element}>"
        with code.loop(k, whole, width) as group:
            least = code.broadcast(width, element, code.load(element, self.values, k - 1))
            passes = code.value(f"fcmp ugt {vector} {code.load_vector(vector, element, self.row, group)}, {least}")
            mask = code.value(f"bitcast <{width} x i1> {passes} to i{width}")
            if width < 64:
                mask = code.value(f"zext i{width} {mask} to i64")
            with code.when(code.compare("ne", mask, 0)):
                self._print_offers(group, mask)
        with code.loop(whole, columns) as place:
            self._offer(place)

    def _print_offers(self, group: Size, mask: str) -> None:
        """Offer the elements of a group whose bits are set."""
        code, lanes = self.code, self.width // _VECTORS
        with code.loop(0, _VECTORS) as number:
            start = code.mul(number, lanes)
            bits = code.value(f"and i64 {code.value(f'lshr i64 {mask}, {start}')}, {(1 << lanes) - 1}")
            with code.when(code.compare("ne", bits, 0)), code.loop(0, lanes) as lane:
                bit = code.value(f"and i64 {code.value(f'lshr i64 {bits}, {lane}')}, 1")
                with code.when(code.compare("ne", bit, 0)):
                    self._offer(code.add(group, start, lane))

    def _offer(self, place: Size) -> None:
        """Insert an element if it comes before the last of those found: NaN before all but NaN."""
        code, element = self.code, self.element
        value, least = code.load(element, self.row, place), code.load(element, self.values, self.k - 1)
        is_above = code.value(f"fcmp ugt {element} {value}, {least}")
        is_number = code.value(f"fcmp ord {element} {least}, {least}")
        with code.when(code.value(f"and i1 {is_above}, {is_number}")):
            self._insert(place, self.k - 1)

    def _insert(self, place: Size, rank: Size) -> None:
        value = self.code.load(self.element, self.row, place)
        lists = f"{self.element}* {self.values}, i32* {self.places}"
        self.code.line(f"call void @{self.name}_insert({lists}, {self.element} {value}, i64 {place}, i64 {rank})")


def _print_insert(kernel: TopKKernel, name: str) -> str:
    """Insert a value into a list of `rank` others, and over what follows them.

    NaN comes before all numbers; of equals the one that was there.
    """
    element = kernel.operands[0].type
    parameters = [(f"{element}*", "%values"), ("i32*", "%places"), (element, "%value"), ("i64", "%place")]
    code = Code(f"{name}_insert", [*parameters, ("i64", "%rank")])
    is_nan = code.value(f"fcmp uno {element} %value, %value")
    target = code.slot("i64")
    code.line(f"store i64 0, i64* {target}")
    with code.loop(0, "%rank") as rank:  # how many come before
        other = code.load(element, "%values", rank)
        is_before = code.value(f"fcmp uge {element} {other}, %value")
        is_other_nan = code.value(f"fcmp uno {element} {other}, {other}")
        goes_first = code.value(f"select i1 {is_nan}, i1 {is_other_nan}, i1 {is_before}")
        total = code.add(code.value(f"load i64, i64* {target}"), code.value(f"zext i1 {goes_first} to i64"))
        code.line(f"store i64 {total}, i64* {target}")
    found = code.value(f"load i64, i64* {target}")
    with code.loop(0, code.sub("%rank", found)) as shift:  # from the end
        after = code.sub("%rank", shift)
        before = code.sub(after, 1)
        code.store(element, code.load(element, "%values", before), "%values", after)
        code.store("i32", code.load("i32", "%places", before), "%places", after)
    code.store(element, "%value", "%values", found)
    code.store("i32", code.value("trunc i64 %place to i32"), "%places", found)
    return code.text()
