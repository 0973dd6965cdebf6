"""`tf.linalg`: matrices with TensorFlow's arguments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import epsilon
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from .arrays import adjoint as adjoint
from .arrays import einsum as einsum
from .arrays import eye as eye
from .arrays import matmul as matmul
from .arrays import norm as norm
from .arrays import tensordot as tensordot
from .clipping import global_norm as global_norm
from .math import l2_normalize as l2_normalize

_EPSILONS = 10  # by which, for each row or column, singular values are small


def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the lower Cholesky factors of Hermitian (if real, symmetric) positive definite matrices."""
    return ops.cholesky(input)


def det(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the determinants of matrices."""
    return ops.det(input)


def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Compute the logarithm of the determinants of positive definite matrices."""
    return ops.logdet(matrix)


def inv(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Compute the inverses of matrices, of the transposed (and conjugated) ones if `adjoint`."""
    return ops.inv(matrix_transpose(input, conjugate=True) if adjoint else input)


class LogDeterminant(NamedTuple):
    """The sign of determinants, and the logarithm of their absolute value."""

    sign: Tensor
    log_abs_determinant: Tensor


def slogdet(input: TensorLike, name: str | None = None) -> LogDeterminant:
    """Compute sign and logarithm of the absolute value of determinants."""
    return LogDeterminant(*ops.slogdet(input))


def matvec(a: TensorLike, b: TensorLike, transpose_a: bool = False, name: str | None = None) -> Tensor:
    """Multiply matrices by vectors."""
    return ops.squeeze(matmul(a, ops.expand_dims(b, -1), transpose_a=transpose_a), -1)


def solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Solve ``matrix @ x = rhs``, with the transposed matrix if `adjoint`."""
    return ops.solve(matrix_transpose(matrix, conjugate=True) if adjoint else matrix, rhs)


def triangular_solve(
    matrix: TensorLike, rhs: TensorLike, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """Solve ``matrix @ x = rhs`` with a triangular matrix, with it transposed if `adjoint`."""
    matrix = matrix_transpose(matrix, conjugate=True) if adjoint else matrix
    return ops.solve_triangular(matrix, rhs, lower=lower != adjoint)


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solve ``a @ x = rhs``, where `chol` is the Cholesky factor of `a`."""
    return triangular_solve(chol, triangular_solve(chol, rhs), adjoint=True)


def matrix_transpose(a: TensorLike, name: str | None = None, conjugate: bool = False) -> Tensor:
    """Swap the last two axes."""
    return adjoint(a) if conjugate else ops.swapaxes(a, -1, -2)


def svd(
    tensor: TensorLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Decompose matrices: singular values, then `u` and `v` with ``a = u @ diag(s) @ v.T``, in TensorFlow's order."""
    if not compute_uv:
        return ops.svd(tensor, full_matrices, compute_uv=False)
    u, s, vh = ops.svd(tensor, full_matrices)
    return s, u, adjoint(vh)


class Factors(NamedTuple):
    """A matrix with orthonormal columns, and a triangular one."""

    q: Tensor
    r: Tensor


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> Factors:
    """Decompose matrices into one with orthonormal columns and a triangular one."""
    return Factors(*ops.qr(input, "complete" if full_matrices else "reduced"))


def eigh(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues and eigenvectors of symmetric matrices."""
    return ops.eigh(tensor)


def eigvalsh(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Compute the eigenvalues of symmetric matrices."""
    return ops.eigh(tensor)[0]


def pinv(a: TensorLike, rcond: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Compute pseudo-inverses, in which singular values below the largest times `rcond` count as 0.

    By default `rcond` is 10 times the larger size of a matrix, times the epsilon of its dtype.
    """
    a = ops.convert_to_tensor(a)
    if rcond is None:
        larger = ops.cast(ops.maximum(*ops.shape(a)[-2:]), a.dtype)
        rcond = ops.multiply(larger, _EPSILONS * epsilon(a.dtype))
    return ops.pinv(a, rcond)


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """Add up the diagonals of matrices, the last two axes."""
    return ops.trace(x, 0, -2, -1)


def diag(
    diagonal: TensorLike,
    name: str | None = None,
    k: int = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: TensorLike = 0,
) -> Tensor:
    """Return matrices with vectors, the last axis, on a diagonal.

    Args:
        diagonal: the vectors.
        k: the diagonal: 0 is the main one, positive ones are above it.
        num_rows, num_cols: the sizes of the matrices; -1 for the least that the vectors fit in, square if both are -1.
        padding_value: the elements beside the diagonal.

    Raises:
        TypeError: `k` is a pair: of TensorFlow's bands only single diagonals are supported.
    """
    above = _one_diagonal("diag", k)
    values = ops.expand_dims(diagonal, -1)
    size = ops.shape(values)[-2]
    if num_rows == num_cols == -1:
        rows = columns = size + abs(above)
    else:
        rows = size + max(-above, 0) if num_rows == -1 else num_rows
        columns = size + max(above, 0) if num_cols == -1 else num_cols
    down, across = ops.expand_dims(ops.arange(rows), -1), ops.arange(columns)
    index = ops.clip(ops.arange(rows) + min(above, 0), 0, size - 1)
    return ops.where(
        ops.equal(across - down, above), ops.take(values, index, -2), ops.cast(padding_value, values.dtype)
    )


def set_diag(input: TensorLike, diagonal: TensorLike, name: str | None = None, k: int = 0) -> Tensor:
    """Return matrices with another diagonal: the main one, or `k` above it.

    Args:
        input: the matrices, the last two axes.
        diagonal: the vectors on it, the last axis.
        k: the diagonal: 0 is the main one, positive ones are above it.

    Raises:
        TypeError: `k` is a pair: of TensorFlow's bands only single diagonals are supported.
    """
    above = _one_diagonal("set_diag", k)
    matrices, values = ops.convert_to_tensor(input), ops.expand_dims(diagonal, -1)
    rows, columns = ops.shape(matrices)[-2:]
    down, across = ops.expand_dims(ops.arange(rows), -1), ops.arange(columns)
    index = ops.clip(ops.arange(rows) + min(above, 0), 0, ops.shape(values)[-2] - 1)
    return ops.where(ops.equal(across - down, above), ops.take(values, index, -2), matrices)


def diag_part(input: TensorLike, name: str | None = None, k: int = 0) -> Tensor:
    """Return a diagonal of matrices, the last two axes: the main one, or `k` above it.

    Raises:
        TypeError: `k` is a pair: of TensorFlow's bands only single diagonals are supported.
    """
    return ops.diagonal(input, _one_diagonal("diag_part", k), -2, -1)


def _one_diagonal(function: str, k: object) -> int:
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"tf.linalg.{function}: k must be an int, the number of one diagonal, got {k!r}.")
    return int(k)


def band_part(input: TensorLike, num_lower: int, num_upper: int, name: str | None = None) -> Tensor:
    """Keep some diagonals below and above the main one, all if their number is negative; others become 0."""
    kept = ops.convert_to_tensor(input)
    kept = kept if num_upper < 0 else ops.tril(kept, num_upper)
    return kept if num_lower < 0 else ops.triu(kept, -num_lower)


def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Compute cross products of vectors of three elements, the last axis."""
    return ops.cross(a, b)


__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "eigh",
    "eigvalsh",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "logdet",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "pinv",
    "qr",
    "set_diag",
    "slogdet",
    "solve",
    "svd",
    "tensordot",
    "trace",
    "triangular_solve",
]
