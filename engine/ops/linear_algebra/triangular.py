"""Triangular systems of equations, and the gradient of the Cholesky factor, by blocks: most of the work is in products.

I. Murray, "Differentiation of the Cholesky decomposition" (2016), section 4.2, gives the blocked gradient. No matrix is
inverted but the blocks on the diagonal, and nothing that is known to be triangular is factorised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.spec import Dim, broadcast_shapes, shape_text
from ..arrays.axes import swapaxes
from ..arrays.creation import tril, triu
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply
from ..run_time_shapes import sum_like
from .matrices import LowerHalf, check_factorised, matrix_product, solution, solved

_BLOCK = 64  # rows: smaller systems are one call of LAPACK's


@dataclass(frozen=True)
class SolveTriangular(Op):
    """The solutions X of A X = B (or of A^T X = B), by columns, where only a triangle of A counts.

    Attributes:
        lower: it is the lower one.
        transposed: its transpose is meant.
        unit_diagonal: the diagonal counts as ones.
    """

    lower: bool = False
    transposed: bool = False
    unit_diagonal: bool = False
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        a, b = inputs
        check_factorised(self, "solve_triangular", a)
        if a.shape is None or b.shape is None:
            return TensorSpec(None, b.dtype)
        size: Dim = a.shape[-1] if a.shape[-1] is not None else a.shape[-2]
        if len(b.shape) < 2 or (None not in (size, b.shape[-2]) and size != b.shape[-2]):
            shapes = f"{shape_text(a.shape)} and {shape_text(b.shape)}"
            raise ValueError(f"solve_triangular: shapes {shapes} do not fit: A X = B.")
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2]) or ()
        return TensorSpec((*batch, size if b.shape[-2] is None else b.shape[-2], b.shape[-1]), b.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, b = inputs
        if self.transposed:
            a = a.swapaxes(-1, -2)
        if not b.size:
            return solution(xp, _triangle(xp, a, self.lower != self.transposed, True), b)  # of the right shape
        return _by_halves(xp, a, b, self.lower != self.transposed, self.unit_diagonal)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dx,) = cotangents
        a, b = node.inputs
        x = node.outputs[0]
        assert dx is not None
        db = apply(SolveTriangular(self.lower, not self.transposed, self.unit_diagonal), a, dx)
        first, second = (x, db) if self.transposed else (db, x)
        offset = int(self.unit_diagonal)
        product = matrix_product(first, second, transpose_b=True)
        da = tril(product, -offset) if self.lower else triu(product, offset)
        return sum_like(-da, a), sum_like(db, b)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        a = np.array([[2, 7, 7], [1, 4, 7], [3, 2, 5]], "float32")
        x = np.array([[1, 2], [-1, 0], [0.5, 3]], "float32")
        lower, upper = np.tril(a), np.triu(a)
        yield Sample(cls(True), [a, lower @ x], x, (0, 1), label="lower")
        yield Sample(cls(False), [a, upper @ x], x, (0, 1), label="upper")
        yield Sample(cls(True, True), [a, lower.T @ x], x, (0, 1), label="lower transposed")
        yield Sample(cls(False, True), [a, upper.T @ x], x, (0, 1), label="upper transposed")
        unit = np.tril(a, -1) + np.eye(3, dtype="float32")
        yield Sample(cls(True, False, True), [a, unit @ x], x, (0, 1), label="unit diagonal")
        yield Sample(cls(True), [np.stack([a, lower]), lower @ x], np.stack([x, x]), (0, 1), label="stack")
        yield Sample(cls(True), [a, x[:, :0]], x[:, :0], (0, 1), label="empty")
        large = np.eye(150, dtype="float32") * 4 + np.sin(np.arange(150 * 150, dtype="float32").reshape(150, 150))
        ones = np.ones((150, 2), "float32")
        yield Sample(cls(True), [large, np.tril(large) @ ones], ones, (1,), label="blocks")
        z = np.array([[1j, 2], [1, 1 - 1j]], "complex64")
        y = np.array([[2 + 1j], [1 - 1j]], "complex64")
        yield Sample(cls(False), [z, y], np.array([[1], [1]], "complex64"), (0, 1), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: solve_triangular(np.eye(2), np.ones((3, 1))), ValueError, "do not fit", "rows")
        yield ErrorSample(lambda: solve_triangular(np.ones((2, 3)), np.ones((3, 1))), ValueError, "square", "square")


def _by_halves(xp: Any, a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    """Solve by halves: one half of the unknowns, what they contribute to the other half, and that."""
    size = a.shape[-1]
    if size <= _BLOCK:
        return solution(xp, _triangle(xp, a, lower, unit_diagonal), b)
    middle = -(-size // (2 * _BLOCK)) * _BLOCK
    upper_part, lower_part = slice(None, middle), slice(middle, None)
    first, second = (upper_part, lower_part) if lower else (lower_part, upper_part)
    known = _by_halves(xp, a[..., first, first], b[..., first, :], lower, unit_diagonal)
    rest = b[..., second, :] - xp.matmul(a[..., second, first], known)
    found = _by_halves(xp, a[..., second, second], rest, lower, unit_diagonal)
    return xp.concatenate([known, found] if lower else [found, known], axis=-2)


def _triangle(xp: Any, a: Any, lower: bool, unit_diagonal: bool) -> Any:
    offset = int(unit_diagonal)
    found = xp.tril(a, -offset) if lower else xp.triu(a, offset)
    return found + xp.eye(a.shape[-1], dtype=a.dtype) if unit_diagonal else found


@dataclass(frozen=True)
class CholeskyGradient(Op):
    """The cotangent, symmetric, of a real A from its Cholesky factor L and the cotangent of that.

    Of both only the lower triangles count.
    """

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        check_factorised(self, "cholesky_gradient", inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        lower, cotangent = inputs
        found = xp.tril(cotangent)
        size = lower.shape[-1]
        for start in reversed(range(0, size, _BLOCK)):
            _sweep_back(xp, lower, found, start, min(start + _BLOCK, size))
        return (found + found.swapaxes(-1, -2)) / 2

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (ds,) = cotangents
        (lower, cotangent), whole = node.inputs, node.outputs[0]
        assert ds is not None
        lower, cotangent = tril(lower), tril(cotangent)
        ds = (ds + swapaxes(ds, -1, -2)) * 0.5
        right = swapaxes(apply(SolveTriangular(True), lower, ds), -1, -2)  # ds L^-T
        middle = apply(LowerHalf(), apply(SolveTriangular(True), lower, right))
        dlower = matrix_product(cotangent, middle, transpose_b=True) - 2.0 * matrix_product(whole, right)
        return tril(dlower), matrix_product(lower, middle)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        lower = np.array([[2, 0, 0], [1, 1, 0], [3, -1, 2]], "float32")
        cotangent = np.array([[1, 0, 0], [2, -1, 0], [0.5, 1, 3]], "float32")
        yield Sample(cls(), [lower, cotangent], None, (0, 1), label="matrix")
        stack = np.stack([lower, lower + np.eye(3, dtype="float32")])
        yield Sample(cls(), [stack, np.stack([cotangent, lower])], None, (0, 1), label="stack")
        yield Sample(cls(), [lower[:0, :0], lower[:0, :0]], lower[:0, :0], (0, 1), label="empty")


def _sweep_back(xp: Any, lower: Any, found: Any, start: int, stop: int) -> None:
    """Bring the cotangents of the columns from `start` to `stop`, and what they pass on, into `found`."""
    own, left, below = slice(start, stop), slice(None, start), slice(stop, None)
    diagonal, rows = lower[..., own, own], lower[..., own, left]
    inverse = xp.linalg.inv(xp.tril(diagonal))
    passed = xp.matmul(found[..., below, own], inverse)
    found[..., below, own] = passed
    passed_back = passed.swapaxes(-1, -2)
    cotangent = found[..., own, own] - xp.tril(xp.matmul(passed_back, lower[..., below, own]))
    half = xp.tril(xp.matmul(xp.tril(diagonal).swapaxes(-1, -2), cotangent))
    half = half - half * (xp.eye(stop - start, dtype=half.dtype) / 2)
    square = xp.matmul(xp.matmul(inverse.swapaxes(-1, -2), half), inverse)
    square = square + square.swapaxes(-1, -2)
    found[..., own, own] = xp.tril(square) - square * (xp.eye(stop - start, dtype=half.dtype) / 2)
    found[..., below, left] -= xp.matmul(passed, rows)
    found[..., own, left] -= xp.matmul(passed_back, lower[..., below, left]) + xp.matmul(square, rows)


__all__ = ["CholeskyGradient", "SolveTriangular"]


def solve_triangular(a: TensorLike, b: TensorLike, lower: bool = False) -> Tensor:
    """Solve A X = B for X, where only the upper (or `lower`) triangle of A counts; see `solve`."""
    return solved(SolveTriangular(lower), a, b)
