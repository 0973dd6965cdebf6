"""The transforms of Winograd's minimal filtering, as matrices, and code that applies them to vectors.

F(m x m, 3 x 3) computes m x m results of a convolution with 3 x 3 taps from a tile of (m + 2) x (m + 2) cells. With the
transforms of a tile of the input d, of the taps g and back, ``Y = A.T [(G g G.T) * (B.T d B)] A``, it takes (m + 2)**2
multiplications for each channel and filter in place of 9 m**2: 2.25 times fewer for m = 2, 4 times for m = 4.

Sources: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4; B. Barabasz and
others, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks" (2020).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from ..llvm.builder import Builder

Matrix = tuple[tuple[Fraction, ...], ...]
TAPS = 3  # along each axis


class Transforms(NamedTuple):
    """The matrices of F(m x m, 3 x 3).

    Attributes:
        input: B.T, (m + 2) x (m + 2).
        weights: G, (m + 2) x 3.
        back: A.T, m x (m + 2).
    """

    input: Matrix
    weights: Matrix
    back: Matrix

    @property
    def cells(self) -> int:
        """The cells of the input of a tile along each axis."""
        return len(self.input)


def transposed(matrix: Matrix) -> Matrix:
    """Return the transpose of a matrix."""
    return tuple(zip(*matrix, strict=True))


def _transforms(*points: Fraction) -> Transforms:
    """Return the transforms that multiply polynomials by their values at some points, and at infinity.

    Toom's and Cook's way: the taps are evaluated at the points (with Lagrange's denominators), the transposes of
    interpolation and evaluation are those of the input and back. Points in pairs of both signs give rows in pairs.
    """
    size = len(points) - 1  # results of a tile
    back = [[*(point**power for point in points), Fraction(power == size - 1)] for power in range(size)]
    others = [[other for other in points if other != point] for point in points]
    weights = [
        [point**power / prod(point - other for other in rest) for power in range(TAPS)]
        for point, rest in zip(points, others, strict=True)
    ]
    weights.append([Fraction(power == TAPS - 1) for power in range(TAPS)])
    polynomials = [*(_product_of(rest) for rest in others), _product_of(points)]
    rows = [[*polynomial, *[Fraction()] * (len(points) + 1 - len(polynomial))] for polynomial in polynomials]
    return Transforms(*(tuple(map(tuple, matrix)) for matrix in (rows, weights, back)))


def _product_of(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, from that of x**0 on."""
    found = [Fraction(1)]
    for root in roots:
        found = [high - root * low for high, low in zip([Fraction(), *found], [*found, Fraction()], strict=True)]
    return found


# By the results of a tile along each axis. In place of the usual points 0, 1, -1, 2, -2 for m = 4, these cost 2
# additions more in 12 and have a quarter of the errors (the second paper says why: all powers stay near 1).
TRANSFORMS = {
    2: _transforms(*map(Fraction, ("0", "1", "-1"))),
    4: _transforms(*map(Fraction, ("0", "2/3", "-2/3", "3/2", "-3/2"))),
}


def print_on_both_axes(
    code: Builder, kind: str, lanes: int, matrix: Matrix, values: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Print ``matrix @ values @ matrix.T`` for a square of vectors; return the names of its elements."""
    columns = [print_transform(code, kind, lanes, matrix, column) for column in zip(*values, strict=True)]
    return [print_transform(code, kind, lanes, matrix, row) for row in zip(*columns, strict=True)]


def print_transform(code: Builder, kind: str, lanes: int, matrix: Matrix, values: Sequence[str]) -> list[str]:
    """Print ``matrix @ values`` for some vectors; return the names of its elements.

    Columns and rows that are equal but for signs come in pairs: the sum and the difference of two values, or of two
    partial sums, serve both. That halves what F(4 x 4)'s matrices cost.
    """
    vector = _Vector(code, kind, lanes)
    matrix, values = _with_paired_columns(vector, matrix, values)
    found: dict[int, str] = {}
    for first, row in enumerate(matrix):
        if first in found:
            continue
        second = next(
            (k for k in range(first + 1, len(matrix)) if k not in found and _are_paired(row, matrix[k])), None
        )
        if second is None:
            found[first] = vector.combined(row, values)
            continue
        signs = list(zip(row, matrix[second], strict=True))
        even = vector.combined([left if left == right else Fraction() for left, right in signs], values)
        odd = vector.combined([left if left != right else Fraction() for left, right in signs], values)
        found[first], found[second] = vector.added(even, odd), vector.subtracted(even, odd)
    return [found[number] for number in range(len(matrix))]


def _are_paired(left: Sequence[Fraction], right: Sequence[Fraction]) -> bool:
    """Test whether two rows are equal but for signs, of which some differ and some do not."""
    if any(abs(a) != abs(b) for a, b in zip(left, right, strict=True)):
        return False
    return len({a == b for a, b in zip(left, right, strict=True) if a}) == 2


def _with_paired_columns(vector: _Vector, matrix: Matrix, values: Sequence[str]) -> tuple[Matrix, list[str]]:
    """Return a matrix and values of the same product, with sums and differences for values of paired columns."""
    columns, named = list(transposed(matrix)), list(values)
    for first in range(len(columns)):
        for second in range(first + 1, len(columns)):
            if not _are_paired(columns[first], columns[second]):
                continue
            signs = list(zip(columns[first], columns[second], strict=True))
            columns[first] = tuple(a if a == b else Fraction() for a, b in signs)
            columns[second] = tuple(a if a != b else Fraction() for a, b in signs)
            pair = named[first], named[second]
            named[first], named[second] = vector.added(*pair), vector.subtracted(*pair)
            break
    return transposed(tuple(columns)), named


class _Vector:
    """Sums and products of vectors of one type."""

    def __init__(self, code: Builder, kind: str, lanes: int) -> None:
        self._code, self._kind, self._lanes = code, kind, lanes
        self._type = f"<{lanes} x {kind}>"

    def added(self, left: str, right: str) -> str:
        return self._code.let(f"fadd {self._type} {left}, {right}")

    def subtracted(self, left: str, right: str) -> str:
        return self._code.let(f"fsub {self._type} {left}, {right}")

    def combined(self, factors: Sequence[Fraction], values: Sequence[str]) -> str:
        """Sum values with factors, of which at least one is not 0. Ones come first: they cost no product."""
        terms = [(factor, value) for factor, value in zip(factors, values, strict=True) if factor]
        (factor, total), *others = sorted(terms, key=lambda term: (term[0] != 1, abs(term[0]) == 1))
        if factor != 1:
            total = self._code.let(f"fmul {self._type} {total}, {self._spread(factor)}")
        for factor, value in others:
            if factor == 1:
                total = self.added(total, value)
            elif factor == -1:
                total = self.subtracted(total, value)
            else:
                total = self._code.multiply_add(self._type, value, self._spread(factor), total)
        return total

    def _spread(self, factor: Fraction) -> str:
        return self._code.broadcast(self._lanes, self._kind, literal(factor))


def literal(number: Fraction) -> str:
    """Return a number as a float32 constant of LLVM."""
    (rounded,) = struct.unpack("f", struct.pack("f", float(number)))
    return f"0x{struct.pack('>d', rounded).hex().upper()}"
