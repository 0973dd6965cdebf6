"""Factors, their gradients and triangular solutions of stacks of small matrices, with vectors across the matrices.

A group of as many matrices as a vector has elements is transposed into memory in the first cache: there the same
element of all of them is one vector, and each step of an algorithm computes all of them. Parts of a stack are some
groups each; threads take them as they come.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 8 and 10, and I. Murray,
"Differentiation of the Cholesky decomposition" (2016), equation 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...common.quick_dataclass import dataclass
from ..expression.llvm import divide
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.squares import print_transposed
from ..llvm.tasks import Fields, print_entry
from .blocks import absolute, compiled, is_left

MOST = 16  # rows, and right sides, of small matrices
_NANOSECONDS = 0.1  # that a term of a product takes for one matrix, and
_NANOSECONDS_TRANSPOSED = 0.5  # that an element takes to be transposed, there and back
_FIELDS = ("left", "right", "out", "count", "parts", "share")
_FLAG = len(_FIELDS)  # behind them: whether the work is left to NumPy

_LEAST_ELIMINATED = 512  # rows of all matrices: of fewer LAPACK is as quick

Printer = Callable[["Group"], None]


def is_small_stack(size: int, count: int) -> bool:
    """Test whether elimination of so many square matrices is worth a function of a stack."""
    return 0 < size <= MOST and size * count >= _LEAST_ELIMINATED


def run_stack(
    name: str,
    element: str,
    body: Printer,
    arrays: Sequence[Any],
    sizes: tuple[int, int, int],
) -> bool:
    """Run a function over a stack; return whether it has left the work to NumPy.

    The function is made for one size: then LLVM writes short loops out.

    Args:
        name: of the function.
        element: the LLVM type of elements.
        body: prints what is done with a group.
        arrays: up to two stacks that are read, and one that is written, row by row in memory.
        sizes: the rows of matrices, the columns of the second stack and of the result, and how many there are.
    """
    size, columns, count = sizes
    run = compiled(f"{name}_{size}_{columns}", element, (_Stack(name, body, size, columns),))
    groups = -(-count // registers_of(library.host, element).lanes)
    elements = size * (size + 2 * columns)
    work = count * (size * size * columns * _NANOSECONDS + elements * _NANOSECONDS_TRANSPOSED)
    parts, share = divide(work, groups)
    left, right, out = arrays if len(arrays) == 3 else (arrays[0], 0, arrays[1])
    return is_left(run, [left, right, out, count, parts, share])


@dataclass(frozen=True)
class _Stack:
    """Prints the function of a stack.

    Attributes:
        name: how the function's name begins.
        body: see `run_stack`.
        size: the rows of matrices.
        columns: of the second stack and of the result.
    """

    name: str
    body: Printer
    size: int
    columns: int

    def __call__(self, element: str, lanes: int) -> str:
        name = f"{self.name}_{self.size}_{self.columns}"
        code = FunctionBuilder(f"{name}_part", ["ptr %numbers", "i64 %part"], attributes="")
        fields = Fields(code, "%numbers", _FIELDS)
        group = Group(code, element, lanes, fields, (self.size, self.columns))
        first = code.mul("%part", fields["share"], lanes)
        end = code.least(fields["count"], code.add(first, code.mul(fields["share"], lanes)))
        with code.loop(first, end, lanes) as number:
            group.begin(number, code.least(lanes, code.sub(end, number)))
            self.body(group)
        bits = "f32" if element == "float" else "f64"
        vector = f"<{lanes} x {element}>"
        return (
            code.text() + print_entry(name, _FIELDS, "part") + f"declare {vector} @llvm.sqrt.v{lanes}{bits}({vector})\n"
        )


class Group:
    """The matrices of a group, element by element: a vector holds one element of all.

    Args:
        code: the function.
        element: the LLVM type of elements.
        lanes: matrices of a group.
        fields: what the function is called with.
        sizes: the rows of matrices, and the columns of the second stack.
    """

    def __init__(self, code: Builder, element: str, lanes: int, fields: Fields, sizes: tuple[int, int]) -> None:
        self.code, self.element, self.lanes, self.fields = code, element, lanes, fields
        self.vector = f"<{lanes} x {element}>"
        self.size, self.columns = sizes
        self._squares = [code.slot(f"[{self.size * max(sizes) * lanes} x {element}]", alignment=64) for _ in range(3)]
        self._number, self._high = "", ""

    @property
    def squares(self) -> list[str]:
        """Memory for three matrices of each."""
        return self._squares

    def begin(self, number: str, high: Size) -> None:
        """Turn to the matrices from `number` on, of which there are so many."""
        self._number, self._high = number, str(high)

    def read(self, field: str, columns: Size, target: str) -> None:
        """Load the matrices of a stack; those that a group lacks are identities."""
        code = self.code
        size = code.mul(self.size, columns)
        is_narrow = code.compare("slt", self._high, self.lanes)
        with code.when(is_narrow), code.loop(0, self.size) as i, code.loop(0, columns) as j:
            is_on = code.compare("eq", i, j)
            value = code.broadcast(self.lanes, self.element, code.choose(is_on, "1.0", "0.0", self.element))
            self.store(value, target, code.add(code.mul(i, columns), j))
        source = code.at(self.element, self.fields.address(field), code.mul(self._number, size))
        print_transposed(code, self.element, self.lanes, (source, size), (target, self.lanes), (self._high, size))

    def write(self, source: str, columns: Size, field: str = "out") -> None:
        """Write the matrices of a result."""
        self._write(source, self.code.mul(self.size, columns), field)

    def write_numbers(self, source: str) -> None:
        """Write a result that is a number for each matrix."""
        self._write(source, 1, "out")

    def _write(self, source: str, size: Size, field: str) -> None:
        code = self.code
        target = code.at(self.element, self.fields.address(field), code.mul(self._number, size))
        print_transposed(code, self.element, self.lanes, (source, self.lanes), (target, size), (size, self._high))

    def leave(self, condition: str) -> None:
        """Leave the work to NumPy where a condition holds for one of the matrices."""
        with self.code.when(self.holds_somewhere(condition)):
            self.code.store("i64", 1, "%numbers", _FLAG)

    def holds_somewhere(self, condition: str) -> str:
        """Test whether a condition holds for one of the matrices."""
        bits = self.code.let(f"bitcast <{self.lanes} x i1> {condition} to i{self.lanes}")
        return self.code.let(f"icmp ne i{self.lanes} {bits}, 0")

    def load(self, matrix: str, place: Size) -> str:
        """Return an element of all matrices."""
        return self.code.load_vector(self.vector, self.element, matrix, self.code.mul(place, self.lanes))

    def store(self, value: str, matrix: str, place: Size) -> None:
        """Write an element of all matrices."""
        self.code.store_vector(self.vector, self.element, value, matrix, self.code.mul(place, self.lanes))

    def place(self, row: Size, column: Size) -> Size:
        """Return the place of an element in square matrices."""
        return self.code.add(self.code.mul(row, self.size), column)

    def apply(self, operation: str, *values: str) -> str:
        """Return what an instruction gives."""
        return self.code.let(f"{operation} {self.vector} {', '.join(values)}")

    def number(self, value: str) -> str:
        """Return a number in all lanes."""
        return self.code.broadcast(self.lanes, self.element, value)

    def as_number(self, place: Size) -> str:
        """Return a row or column in all lanes, as a number of the elements' type."""
        return self.number(self.code.let(f"sitofp i64 {place} to {self.element}"))

    def choose(self, condition: str, yes: str, no: str) -> str:
        """Return one of two values for each matrix."""
        lanes = self.lanes
        return self.code.let(f"select <{lanes} x i1> {condition}, {self.vector} {yes}, {self.vector} {no}")

    def negative(self, value: str) -> str:
        """Return minus a value."""
        return self.code.let(f"fneg {self.vector} {value}")

    def size_of(self, value: str) -> str:
        """Return an absolute value."""
        return absolute(self.code, self.element, self.lanes, value)

    def slot(self) -> str:
        """Return a place for a value of all matrices that changes."""
        return self.code.slot(self.vector)

    def keep(self, value: str, slot: str) -> None:
        """Write a value into a slot."""
        self.code.store(self.vector, value, slot)

    def value(self, slot: str) -> str:
        """Return what a slot holds."""
        return self.code.load(self.vector, slot)

    def subtract(self, matrix: str, place: Size, one: str, two: str) -> None:
        """Subtract a product from an element."""
        self.store(
            self.code.multiply_add(self.vector, self.negative(one), two, self.load(matrix, place)), matrix, place
        )


def print_factor(group: Group) -> None:
    """Print the Cholesky factors of a group: column by column, each subtracted from those behind it at once."""
    code, size, x = group.code, group.size, group.squares[0]
    group.read("left", size, x)
    half, zero = group.number("0.5"), group.number("0.0")
    with code.loop(0, size) as i, code.loop(0, i) as j:
        own, other = group.place(i, j), group.place(j, i)
        total = group.apply("fadd", group.load(x, own), group.load(x, other))
        group.store(group.apply("fmul", total, half), x, own)
        group.store(zero, x, other)
    bits = "f32" if group.element == "float" else "f64"
    with code.loop(0, size) as k:
        pivot = group.load(x, group.place(k, k))
        group.leave(code.let(f"fcmp ule {group.vector} {pivot}, {zero}"))
        root = code.let(f"call {group.vector} @llvm.sqrt.v{group.lanes}{bits}({group.vector} {pivot})")
        factor = group.apply("fdiv", group.number("1.0"), root)
        group.store(root, x, group.place(k, k))
        below = code.add(k, 1)
        with code.loop(below, size) as i:
            group.store(group.apply("fmul", group.load(x, group.place(i, k)), factor), x, group.place(i, k))
        with code.loop(below, size) as i:
            value = group.load(x, group.place(i, k))
            with code.loop(below, code.add(i, 1)) as j:
                group.subtract(x, group.place(i, j), value, group.load(x, group.place(j, k)))
    group.write(x, size)


@dataclass(frozen=True)
class Solution:
    """Prints the solutions of triangular systems T X = B.

    Attributes:
        is_forward: T is a lower triangle: the first unknown is found first.
        is_transposed: T is the transpose of the matrices that are given.
        is_unit: the diagonal counts as ones.
    """

    is_forward: bool
    is_transposed: bool
    is_unit: bool

    def __call__(self, group: Group) -> None:
        a, x = group.squares[:2]
        group.read("left", group.size, a)
        group.read("right", group.columns, x)
        self.print(group, a, x, group.columns)
        group.write(x, group.columns)

    def print(self, group: Group, a: str, x: str, columns: Size) -> None:
        """Print what makes unknowns of right sides.

        Args:
            group: the matrices.
            a: memory of T.
            x: memory of the right sides.
            columns: of the right sides.
        """
        code, size = group.code, group.size
        with code.loop(0, size) as number:
            i = self._row(group, number)
            if not self.is_unit:
                self._divide(group, a, x, columns, i)
            with code.loop(code.add(number, 1), size) as other:
                k = self._row(group, other)
                value = group.load(a, group.place(i, k) if self.is_transposed else group.place(k, i))
                with code.loop(0, columns) as column:
                    known = group.load(x, code.add(code.mul(i, columns), column))
                    group.subtract(x, code.add(code.mul(k, columns), column), value, known)

    def _row(self, group: Group, number: Size) -> Size:
        """Return the unknown that is found as the one of that number."""
        return number if self.is_forward else group.code.sub(group.size - 1, number)

    def _divide(self, group: Group, a: str, x: str, columns: Size, i: Size) -> None:
        code = group.code
        diagonal = group.load(a, group.place(i, i))
        group.leave(code.let(f"fcmp oeq {group.vector} {diagonal}, {group.number('0.0')}"))
        with code.loop(0, columns) as column:
            own = code.add(code.mul(i, columns), column)
            group.store(group.apply("fdiv", group.load(x, own), diagonal), x, own)


def print_gradient(group: Group) -> None:
    """Print the cotangents of matrices, by their Cholesky factors L and the cotangents of these.

    With P the lower half of ``L.T @ dL``, its diagonal halved, they are the symmetric part of ``L^-T @ P @ L^-1``.
    """
    code, size = group.code, group.size
    lower, given, p = group.squares
    group.read("left", size, lower)
    group.read("right", size, given)
    half, zero = group.number("0.5"), group.number("0.0")
    with code.loop(0, size) as i, code.loop(0, size) as j:
        group.store(zero, p, group.place(i, j))
    with code.loop(0, size) as k:
        group.leave(code.let(f"fcmp oeq {group.vector} {group.load(lower, group.place(k, k))}, {zero}"))
        with code.loop(0, code.add(k, 1)) as i:
            value = code.let(f"fneg {group.vector} {group.load(lower, group.place(k, i))}")
            with code.loop(0, code.add(i, 1)) as j:
                group.subtract(p, group.place(i, j), value, group.load(given, group.place(k, j)))
    with code.loop(0, size) as i:
        place = group.place(i, i)
        group.store(group.apply("fmul", group.load(p, place), half), p, place)
    _print_back(group, lower, p, group.place)  # L^-T P
    _print_back(group, lower, p, lambda column, row: group.place(row, column))  # that times L^-1
    with code.loop(0, size) as i, code.loop(0, code.add(i, 1)) as j:
        own, other = group.place(i, j), group.place(j, i)
        value = group.apply("fmul", group.apply("fadd", group.load(p, own), group.load(p, other)), half)
        group.store(value, p, own)
        group.store(value, p, other)
    group.write(p, size)


def _print_back(group: Group, lower: str, p: str, place: Callable[[Size, Size], Size]) -> None:
    """Print the substitution with the transpose of a triangle, from the last row on.

    Args:
        group: the matrices.
        lower: the triangle.
        p: the right sides, which become the unknowns.
        place: of an element of `p`, by its row and column; with these exchanged, columns are substituted.
    """
    code, size = group.code, group.size
    with code.loop(0, size) as number:
        i = code.sub(code.sub(size, 1), number)
        diagonal = group.load(lower, group.place(i, i))
        with code.loop(0, size) as j:
            group.store(group.apply("fdiv", group.load(p, place(i, j)), diagonal), p, place(i, j))
        with code.loop(0, i) as k:
            value = group.load(lower, group.place(i, k))
            with code.loop(0, size) as j:
                group.subtract(p, place(k, j), value, group.load(p, place(i, j)))
