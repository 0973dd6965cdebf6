"""Gaussian elimination of stacks of small matrices: LU factors, solutions, inverses, determinants.

Each matrix of a group has its own pivots, so rows are exchanged element by element where a matrix asks for it. See
`stacks` for how the matrices are laid out.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 9: partial pivoting.
"""

from __future__ import annotations

from ..llvm.builder import Size
from .stacks import Group, Solution

_SMALLEST = {"float": "0x3810000000000000", "double": "0x0010000000000000"}  # normal numbers, as doubles
_INFINITY = "0x7FF0000000000000"


class _Elimination:
    """The elimination of a group.

    Args:
        group: the matrices, in the first square: they become the factors U and, below the diagonal, L.
        right: memory of right sides, or "".
        columns: of the right sides.
    """

    def __init__(self, group: Group, right: str = "", columns: Size = 0) -> None:
        self.group, self.code, self.a = group, group.code, group.squares[0]
        self.right, self.columns = right, columns
        self.best, self.row = group.slot(), group.slot()

    def print(self, goes_on: bool = False, is_whole: bool = False, pivots: str = "", sign: str = "") -> None:
        """Print all steps.

        Args:
            goes_on: whether a pivot of zero, with zeros below it, is passed by; else the work is left to NumPy.
            is_whole: whether rows are exchanged in all columns, as those of factors are.
            pivots: memory for the rows of the pivots, as numbers of the elements' type, or "".
            sign: a slot whose values change their signs with each exchange, or "".
        """
        group, code, size = self.group, self.code, self.group.size
        with code.loop(0, size) as k:
            own = self._find(k, is_whole)
            if pivots:
                group.store(group.value(self.row), pivots, k)
            if sign:
                is_own = code.let(f"fcmp oeq {group.vector} {group.value(self.row)}, {own}")
                group.keep(group.choose(is_own, group.value(sign), group.negative(group.value(sign))), sign)
            with code.loop(code.add(k, 1), size) as i:
                self._exchange(k, i, 0 if is_whole else k)
            pivot = group.load(self.a, group.place(k, k))
            is_zero = code.let(f"fcmp oeq {group.vector} {pivot}, {group.number('0.0')}")
            if goes_on:
                pivot = group.choose(is_zero, group.number("1.0"), pivot)
            else:
                group.leave(is_zero)
            with code.loop(code.add(k, 1), size) as i:
                factor = group.apply("fdiv", group.load(self.a, group.place(i, k)), pivot)
                group.store(factor, self.a, group.place(i, k))
                with code.loop(code.add(k, 1), size) as j:
                    group.subtract(self.a, group.place(i, j), factor, group.load(self.a, group.place(k, j)))
                if self.right:
                    with code.loop(0, self.columns) as j:
                        group.subtract(self.right, self._cell(i, j), factor, group.load(self.right, self._cell(k, j)))

    def _cell(self, row: Size, column: Size) -> Size:
        return self.code.add(self.code.mul(row, self.columns), column)

    def _find(self, k: str, is_whole: bool) -> str:
        """Find the rows of the largest elements of column `k`; return the number `k` in all lanes."""
        group, code = self.group, self.code
        own = group.as_number(k)
        first = group.size_of(group.load(self.a, group.place(k, k)))
        group.keep(first, self.best)
        group.keep(own, self.row)
        with code.loop(code.add(k, 1), group.size) as i:
            value, best = group.size_of(group.load(self.a, group.place(i, k))), group.value(self.best)
            if is_whole:  # NumPy's way decides which row has the first NaN
                group.leave(code.let(f"fcmp uno {group.vector} {value}, {first}"))
            is_larger = code.let(f"fcmp ogt {group.vector} {value}, {best}")
            group.keep(group.choose(is_larger, value, best), self.best)
            group.keep(group.choose(is_larger, group.as_number(i), group.value(self.row)), self.row)
        return own

    def _exchange(self, k: str, i: str, first: Size) -> None:
        """Exchange rows `k` and `i` of the matrices that have their pivot in row `i`."""
        group, code = self.group, self.code
        is_there = code.let(f"fcmp oeq {group.vector} {group.value(self.row)}, {group.as_number(i)}")

        def exchange(matrix: str, one: Size, two: Size) -> None:
            before, after = group.load(matrix, one), group.load(matrix, two)
            group.store(group.choose(is_there, after, before), matrix, one)
            group.store(group.choose(is_there, before, after), matrix, two)

        with code.when(group.holds_somewhere(is_there)):
            with code.loop(first, group.size) as j:
                exchange(self.a, group.place(k, j), group.place(i, j))
            if self.right:
                with code.loop(0, self.columns) as j:
                    exchange(self.right, self._cell(k, j), self._cell(i, j))


def print_factors(group: Group) -> None:
    """Print L and U of a group, and the rows of the pivots."""
    group.read("left", group.size, group.squares[0])
    _Elimination(group).print(goes_on=True, is_whole=True, pivots=group.squares[1])
    group.write(group.squares[0], group.size)
    group.write(group.squares[1], 1, "right")


def print_solutions(group: Group) -> None:
    """Print the solutions X of A X = B of a group."""
    group.read("left", group.size, group.squares[0])
    group.read("right", group.columns, group.squares[1])
    _print_solved(group, group.columns)


def print_inverses(group: Group) -> None:
    """Print the inverses of a group."""
    code, size = group.code, group.size
    group.read("left", size, group.squares[0])
    one, zero = group.number("1.0"), group.number("0.0")
    with code.loop(0, size) as i, code.loop(0, size) as j:
        value = code.choose(code.compare("eq", i, j), one, zero, group.vector)
        group.store(value, group.squares[1], group.place(i, j))
    _print_solved(group, size)


def _print_solved(group: Group, columns: Size) -> None:
    a, x = group.squares[:2]
    _Elimination(group, x, columns).print()
    Solution(is_forward=False, is_transposed=False, is_unit=False).print(group, a, x, columns)
    group.write(x, columns)


def print_pivots(group: Group) -> None:
    """Print the pivots of a group; the first one of each matrix has the sign of the exchanges."""
    code, (a, found, _) = group.code, group.squares
    sign = _print_signed(group)
    with code.loop(0, group.size) as k:
        group.store(group.load(a, group.place(k, k)), found, k)
    group.store(group.apply("fmul", group.load(found, 0), group.value(sign)), found, 0)
    group.write(found, 1)


def print_determinants(group: Group) -> None:
    """Print the determinants of a group: the products of the pivots.

    Where a product leaves the range of normal numbers, which it may do on its way alone, the work is left to NumPy.
    """
    code, (a, found, _), vector = group.code, group.squares, group.vector
    product = _print_signed(group)
    is_zero = group.slot()
    group.keep(group.number("0.0"), is_zero)
    with code.loop(0, group.size) as k:
        pivot = group.load(a, group.place(k, k))
        group.keep(group.apply("fmul", group.value(product), pivot), product)
        is_own = code.let(f"fcmp oeq {vector} {pivot}, {group.number('0.0')}")
        group.keep(group.choose(is_own, group.number("1.0"), group.value(is_zero)), is_zero)
        size = group.size_of(group.value(product))
        is_small = code.let(f"fcmp olt {vector} {size}, {group.number(_SMALLEST[group.element])}")
        is_infinite = code.let(f"fcmp oeq {vector} {size}, {group.number(_INFINITY)}")
        is_out = code.let(f"or <{group.lanes} x i1> {is_small}, {is_infinite}")
        is_normal = code.let(f"fcmp oeq {vector} {group.value(is_zero)}, {group.number('0.0')}")
        group.leave(code.let(f"and <{group.lanes} x i1> {is_out}, {is_normal}"))
    group.store(group.value(product), found, 0)
    group.write_numbers(found)


def _print_signed(group: Group) -> str:
    """Print the factors of a group; return the slot of the signs of the exchanges."""
    sign = group.slot()
    group.keep(group.number("1.0"), sign)
    group.read("left", group.size, group.squares[0])
    _Elimination(group).print(goes_on=True, sign=sign)
    return sign
