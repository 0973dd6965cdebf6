"""Kernels for the few largest elements of each row, and their positions.

The largest so far are kept in order, and vectors of which no element comes before the last of them are passed over by
one comparison, which holds for nearly all of a long row. For few of the largest such a row is read twice, first for a
bound that hardly more elements reach: what is kept for a while only costs branches that no processor foresees.
"""

from __future__ import annotations

import math

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.arrays.sorting import TopK
from ..elementwise.bound import BoundKernel
from ..elementwise.open_shapes import OpenRunner, Shape
from ..llvm.builder import ELEMENTS, Builder, FunctionBuilder, Size
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.tasks import begin_run_function, begin_task, print_parallel, print_share, stored_fields

_MOST = 64  # for more of the largest, sorting is quicker where rows ascend
_PARTS = 16
_VECTORS = 4  # that are passed over at once
_FEW = 8  # of the largest, for which it pays to look for a bound first,
_LONG = 4  # in rows of so many times the elements that are passed over at once
_LANES_OF_BOUND = 4  # for each of the largest: half as many make the bound, at least
_LOWEST = "0xFFF0000000000000"
_FIELDS = ("x", "values", "places", "rows", "columns", "parts")


@dataclass(frozen=True)
class TopKKernel:
    """The `k` largest of each row, and their positions.

    Attributes:
        operands: the rows, the values and the positions.
        k: how many.
        lanes: elements of a vector.
    """

    operands: tuple[Operand, ...]
    k: int
    lanes: int

    number_count = 3

    def print_run(self, name: str) -> str:
        return _print_insert(self, name) + _print_task(self, name) + _print_run(self, name)


def bind_top_k(operation: Operation) -> BoundKernel | OpenRunner | None:
    """Return the kernel of a `TopK`."""
    op, spec = op_of(operation, TopK), operation.inputs[0].spec
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return None
    if spec.dtype.name not in ELEMENTS or not 1 <= op.k <= _MOST:
        return None

    def bind(shape: Shape) -> tuple[BoundKernel, Shape] | None:
        return _bound(op, TensorSpec(shape, spec.dtype))

    if not spec.is_static:
        return OpenRunner(op, bind, spec.dtype.name, "int32")
    found = bind(tuple(int(size or 0) for size in spec.shape))
    return None if found is None else found[0]


def _bound(op: TopK, spec: TensorSpec) -> tuple[BoundKernel, Shape] | None:
    shape = tuple(int(size or 0) for size in spec.shape or ())
    if not math.prod(shape) or shape[-1] < op.k:
        return None
    element, results = ELEMENTS[spec.dtype.name], op.infer(spec)
    operands = Operand(element, len(shape)), *[Operand(kind, len(shape), (), True) for kind in (element, "i32")]
    kernel = TopKKernel(operands, op.k, registers_of(library.host, element).lanes)
    rows = math.prod(shape[:-1])
    parts = 1 if math.prod(shape) < machine_profile().parallel_elements else min(_PARTS, rows)
    return BoundKernel(kernel, [spec], results, [rows, shape[-1], parts]), (*shape[:-1], op.k)


# --- code -----------------------------------------------------------------------------------------------------------


def _print_run(kernel: TopKKernel, name: str) -> str:
    """Print the function that is called: it runs all parts."""
    code = begin_run_function(kernel, name)
    context, fields = stored_fields(code, ["%d0", "%d1", "%d2"], _FIELDS)
    print_parallel(code, f"{name}_task", context, fields["parts"])
    return code.text()


def _print_task(kernel: TopKKernel, name: str) -> str:
    """Print the function of a part, which goes through some of the rows."""
    element, k = kernel.operands[0].type, kernel.k
    code, fields = begin_task(name, _FIELDS)
    rows, columns, parts = (fields[size] for size in ("rows", "columns", "parts"))
    x, values, places = fields.address("x"), fields.address("values"), fields.address("places")
    first, end = print_share(code, rows, "%part", parts)
    with code.loop(first, end) as row:
        found = code.at(element, values, code.mul(row, k)), code.at("i32", places, code.mul(row, k))
        _Row(code, kernel, name, code.at(element, x, code.mul(row, columns)), found).print_search(columns)
    return code.text()


class _Row:
    """Writes the lines for one row.

    Args:
        code: the function.
        kernel, name: the kernel.
        row: where the row is.
        found: where the largest values, and their places, are put.
    """

    def __init__(self, code: Builder, kernel: TopKKernel, name: str, row: str, found: tuple[str, str]) -> None:
        self.code, self.element, self.k, self.name = code, kernel.operands[0].type, kernel.k, name
        self.width = _VECTORS * kernel.lanes
        self.row = row
        self.values, self.places = found
        self.count, self.bound = code.slot("i64"), code.slot(self.element)  # of those found; what others have to reach
        self.peaks, self.left = code.slot(f"<{self.width} x {self.element}>"), code.slot("i64")

    def print_search(self, columns: Size) -> None:
        code, element, width = self.code, self.element, self.width
        code.line(f"store i64 0, ptr {self.count}")
        code.line(f"store {element} {_LOWEST}, ptr {self.bound}")
        whole = code.mul(code.div(columns, width), width)
        if self.k <= _FEW:
            with code.when(code.compare("sge", columns, _LONG * width)):
                self._print_bound(whole)
        vector = f"<{width} x {element}>"
        with code.loop(0, whole, width) as group:
            x = code.load_vector(vector, element, self.row, group)
            least = code.broadcast(width, element, code.load(element, self.values, self.k - 1))
            above = code.let(f"fcmp ugt {vector} {x}, {least}")
            bound = code.broadcast(width, element, code.load(element, self.bound))
            reaching = code.let(f"fcmp uge {vector} {x}, {bound}")
            mask_type = f"<{width} x i1>"
            passes = code.let(f"select i1 {self._is_short()}, {mask_type} {reaching}, {mask_type} {above}")
            mask = code.let(f"bitcast {mask_type} {passes} to i{width}")
            if width < 64:
                mask = code.let(f"zext i{width} {mask} to i64")
            with code.when(code.compare("ne", mask, 0)):
                self._print_offers(group, mask)
        with code.loop(whole, columns) as place:
            self._offer(place)

    def _is_short(self) -> str:
        """Print the test whether fewer than `k` have been found."""
        return self.code.compare("slt", self.code.load("i64", self.count), self.k)

    def _print_bound(self, whole: Size) -> None:
        """Find a number that at least `k` elements reach, without a branch that depends on them.

        The largest of each lane are elements; so is what is left of them when the largest is taken out k - 1 times.
        Some more lanes than `k` make a bound that is hardly lower than that of all lanes.
        """
        code, element, lanes = self.code, self.element, self.width
        vector = f"<{lanes} x {element}>"
        code.line(f"store {vector} {code.broadcast(lanes, element, _LOWEST)}, ptr {self.peaks}")
        with code.loop(0, whole, lanes) as group:
            x, peaks = code.load_vector(vector, element, self.row, group), code.load(vector, self.peaks)
            code.line(f"store {vector} {self._greater(lanes, x, peaks)}, ptr {self.peaks}")
        peaks = code.load(vector, self.peaks)
        while lanes >= _LANES_OF_BOUND * self.k:
            lanes, peaks = lanes // 2, self._halved(lanes, peaks)
        vector, lowest = f"<{lanes} x {element}>", code.broadcast(lanes, element, _LOWEST)
        for _ in range(self.k - 1):
            highest = code.broadcast(lanes, element, self._highest(lanes, peaks))
            is_highest = code.let(f"fcmp oeq {vector} {peaks}, {highest}")
            peaks = code.let(f"select <{lanes} x i1> {is_highest}, {vector} {lowest}, {vector} {peaks}")
        code.line(f"store {element} {self._highest(lanes, peaks)}, ptr {self.bound}")

    def _greater(self, lanes: int, x: str, others: str) -> str:
        """Return the greater of each lane; never NaN, if there is none among the `others`."""
        vector = f"<{lanes} x {self.element}>"
        is_greater = self.code.let(f"fcmp ogt {vector} {x}, {others}")
        return self.code.let(f"select <{lanes} x i1> {is_greater}, {vector} {x}, {vector} {others}")

    def _halved(self, lanes: int, peaks: str) -> str:
        """Return the greater of each two lanes."""
        sides = [range(lanes // 2), range(lanes // 2, lanes)]
        first, second = (self.code.shuffle(lanes, self.element, peaks, "undef", side) for side in sides)
        return self._greater(lanes // 2, first, second)

    def _highest(self, lanes: int, peaks: str) -> str:
        """Return the largest element of a vector."""
        while lanes > 1:
            lanes, peaks = lanes // 2, self._halved(lanes, peaks)
        return self.code.let(f"extractelement <1 x {self.element}> {peaks}, i32 0")

    def _print_offers(self, group: Size, mask: str) -> None:
        """Offer the elements of a group whose bits are set."""
        code = self.code
        code.line(f"store i64 {mask}, ptr {self.left}")
        with code.loop(0, code.let(f"call i64 @llvm.ctpop.i64(i64 {mask})")):
            left = code.load("i64", self.left)
            lane = code.let(f"call i64 @llvm.cttz.i64(i64 {left}, i1 true)")
            code.store("i64", code.let(f"and i64 {left}, {code.sub(left, 1)}"), self.left)
            self._offer(code.add(group, lane))

    def _offer(self, place: Size) -> None:
        """Insert an element if it may be among the first, or comes before the last of them: NaN before all but NaN."""
        code, element = self.code, self.element
        value, least = code.load(element, self.row, place), code.load(element, self.values, self.k - 1)
        is_above = code.let(f"fcmp ugt {element} {value}, {least}")
        is_number = code.let(f"fcmp ord {element} {least}, {least}")
        comes_before = code.let(f"and i1 {is_above}, {is_number}")
        reaches = code.let(f"fcmp uge {element} {value}, {code.load(element, self.bound)}")
        is_short = self._is_short()
        with code.when(code.let(f"select i1 {is_short}, i1 {reaches}, i1 {comes_before}")):
            count = code.load("i64", self.count)
            self._insert(place, code.least(count, self.k - 1))
            code.line(f"store i64 {code.least(code.add(count, 1), self.k)}, ptr {self.count}")

    def _insert(self, place: Size, rank: Size) -> None:
        value = self.code.load(self.element, self.row, place)
        lists = f"ptr {self.values}, ptr {self.places}"
        self.code.line(f"call void @{self.name}_insert({lists}, {self.element} {value}, i64 {place}, i64 {rank})")


def _print_insert(kernel: TopKKernel, name: str) -> str:
    """Insert a value into a list of `rank` others, and over what follows them.

    NaN comes before all numbers; of equals the one that was there.
    """
    element = kernel.operands[0].type
    parameters = ["ptr %values", "ptr %places", f"{element} %value", "i64 %place"]
    code = FunctionBuilder(f"{name}_insert", [*parameters, "i64 %rank"])
    is_nan = code.let(f"fcmp uno {element} %value, %value")
    target = code.slot("i64")
    code.line(f"store i64 0, ptr {target}")
    with code.loop(0, "%rank") as rank:  # how many come before
        other = code.load(element, "%values", rank)
        is_before = code.let(f"fcmp uge {element} {other}, %value")
        is_other_nan = code.let(f"fcmp uno {element} {other}, {other}")
        goes_first = code.let(f"select i1 {is_nan}, i1 {is_other_nan}, i1 {is_before}")
        total = code.add(code.let(f"load i64, ptr {target}"), code.let(f"zext i1 {goes_first} to i64"))
        code.line(f"store i64 {total}, ptr {target}")
    found = code.let(f"load i64, ptr {target}")
    with code.loop(0, code.sub("%rank", found)) as shift:  # from the end
        after = code.sub("%rank", shift)
        before = code.sub(after, 1)
        code.store(element, code.load(element, "%values", before), "%values", after)
        code.store("i32", code.load("i32", "%places", before), "%places", after)
    code.store(element, "%value", "%values", found)
    code.store("i32", code.let("trunc i64 %place to i32"), "%places", found)
    return code.text()
