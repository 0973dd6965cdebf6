"""Products of a transposed matrix by one of a few columns: gradients of the weights of a router or of a classifier.

One pass over the large matrix, in its own layout: vectors of its rows times single numbers of the other's.

The kernels for large products lay out both operands first, which here takes longer than the product.
"""

from __future__ import annotations

from functools import lru_cache

from ...common.dtypes import name_of
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.products import MatMul
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import specs_of
from ..llvm.builder import BYTES, ELEMENTS, Builder, FunctionBuilder, Size
from ..llvm.entry import Operand, PrintedKernel
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.tasks import Fields, begin_task, print_parallel
from .gemm_bind import OpenProduct, bind_matmul

_MOST_KEPT = 1 << 17  # bytes on the stack, where each part has a result to sum: others may run at the same time
_MOST_COLUMNS = 12  # two vectors of sums for each stay in registers
_ROWS = 32  # that are summed while they are in the first cache
_MOST_PARTS = 8
_FIELDS = ("a", "b", "out", "rows", "terms", "parts", "rows_of_part", "sums")


def bind_product(operation: Operation) -> BoundKernel | OpenProduct | None:
    """Return the kernel of a `MatMul`."""
    return bind_narrow(operation) or bind_matmul(operation)


def bind_narrow(operation: Operation) -> BoundKernel | None:
    """Return the kernel of ``a.T @ b`` where `a` is large and `b` has few columns; None for others."""
    op = op_of(operation, MatMul)
    specs = specs_of((*operation.inputs, *operation.outputs))
    if not op.transpose_a or op.transpose_b or len(specs) < 3 or not all(spec.is_static for spec in specs):
        return None
    element = ELEMENTS.get(name_of(specs[2].dtype))
    (rows, terms), (_, columns) = (tuple(int(dim or 0) for dim in spec.shape or ()) for spec in specs[:2])
    if element is None or not 1 < columns <= _MOST_COLUMNS or rows * terms < machine_profile().narrow_elements:
        return None
    registers = registers_of(library.host, element)
    kept = terms * columns * BYTES[element]
    if rows < 2 * _ROWS or 2 * kept > _MOST_KEPT or terms < 2 * registers.lanes:
        return None
    worth = rows * terms // machine_profile().narrow_part_elements
    parts = max(1, min(_MOST_PARTS, _MOST_KEPT // kept, worth, rows // _ROWS))
    own = -(-rows // parts // _ROWS) * _ROWS
    vectors = 2 if 2 * columns + 3 <= registers.sums else 1
    spec = _kernel(element, columns, registers.lanes, vectors)
    return BoundKernel(spec, specs[:2], specs[2:], [rows, terms, -(-rows // own), own])


@lru_cache(maxsize=64)
def _kernel(element: str, columns: int, lanes: int, vectors: int) -> PrintedKernel:
    """Return the code for a number of columns."""
    operand, result = Operand(element, 2, (True, True)), Operand(element, 2, (True, True), True)
    text = _print_task(element, columns, lanes, vectors) + _print_run(element, columns)
    return PrintedKernel((operand, operand, result), 4, text)


def _print_run(element: str, columns: int) -> str:
    """Print the function that is called: it writes down what tasks need, runs them, and adds up their sums."""
    code = FunctionBuilder("NAME_run", ["ptr %a", "ptr %b", "ptr %out", "ptr %n"])
    record = f"[{len(_FIELDS)} x i64]"
    fields = code.slot(record)
    for position, name in enumerate(("a", "b", "out")):
        code.store("i64", code.let(f"ptrtoint ptr %{name} to i64"), fields, position)
    for position in range(4):
        code.store("i64", code.load("i64", "%n", position), fields, 3 + position)
    known = Fields(code, fields, _FIELDS)
    terms, parts = known["terms"], known["parts"]
    sums = code.let(f"alloca {element}, i64 {code.mul(parts, terms, columns)}, align 64")
    code.store("i64", code.let(f"ptrtoint ptr {sums} to i64"), fields, _FIELDS.index("sums"))
    print_parallel(code, "NAME_task", fields, parts)
    total = code.slot(element)
    with code.loop(0, columns) as column, code.loop(0, terms) as term:
        code.store(element, "0.0", total)
        with code.loop(0, parts) as part:
            place = code.add(code.mul(code.add(code.mul(part, columns), column), terms), term)
            found = code.load(element, sums, place)
            code.store(element, code.let(f"fadd {element} {code.load(element, total)}, {found}"), total)
        code.store(element, code.load(element, total), "%out", code.add(code.mul(term, columns), column))
    return code.text()


def _print_task(element: str, columns: int, lanes: int, vectors: int) -> str:
    """Print a part's sums over its rows, for each column of the result."""
    code, known = begin_task("NAME", _FIELDS, flushes=True)
    terms, own = known["terms"], known["rows_of_part"]
    first = code.mul("%part", own)
    last = code.least(code.add(first, own), known["rows"])
    a, b = known.address("a"), known.address("b")
    sums = code.at(element, known.address("sums"), code.mul("%part", terms, columns))
    with code.loop(0, code.mul(terms, columns)) as place:
        code.store(element, "0.0", sums, place)
    blocks = code.mul(code.div(terms, vectors * lanes), vectors * lanes)
    whole = code.mul(code.div(terms, lanes), lanes)
    with code.loop(first, last, _ROWS) as begin:
        end = code.least(code.add(begin, _ROWS), last)
        for low, high, count, each in ((0, blocks, vectors, lanes), (blocks, whole, 1, lanes), (whole, terms, 1, 1)):
            with code.loop(low, high, count * each) as term:
                _print_block(code, (a, b, sums), (begin, end), (term, terms), (element, columns, each, count))
    return code.text()


def _print_block(
    code: Builder,
    pointers: tuple[str, str, str],
    rows: tuple[Size, Size],
    place: tuple[Size, Size],
    form: tuple[str, int, int, int],
) -> None:
    """Sum some terms over some rows.

    Args:
        code: where it is printed.
        pointers: to the matrices, and to the sums.
        rows: the first one, and where they end.
        place: the first term, and how many there are in all.
        form: element, columns, lanes of a vector, vectors.
    """
    (a, b, sums), (term, terms), (element, columns, lanes, vectors) = pointers, place, form
    vector = f"<{lanes} x {element}>"
    slots = [[code.slot(vector) for _ in range(vectors)] for _ in range(columns)]
    at = [[code.add(code.mul(terms, column), term, lanes * k) for k in range(vectors)] for column in range(columns)]
    for column, own in enumerate(slots):
        for k, slot in enumerate(own):
            found = code.load_vector(vector, element, sums, at[column][k])
            code.line(f"store {vector} {found}, ptr {slot}")
    with code.loop(*rows) as row:
        start = code.add(code.mul(row, terms), term)
        entries = [code.load_vector(vector, element, a, code.add(start, k * lanes)) for k in range(vectors)]
        for column, own in enumerate(slots):
            factor = code.load(element, b, code.add(code.mul(row, columns), column))
            factors = code.broadcast(lanes, element, factor)
            for entry, slot in zip(entries, own, strict=True):
                code.add_product(vector, slot, factors, entry)
    for column, own in enumerate(slots):
        for k, slot in enumerate(own):
            found = code.let(f"load {vector}, ptr {slot}")
            code.store_vector(vector, element, found, sums, at[column][k])
