"""Eigenvalues and singular values of the matrices in the last two axes, and what follows from them.

The gradients exist where these values are simple, and the loss does not depend on the sign (for complex matrices: the
phase) of the vectors. Between equal values the infinite factors of the formulas are taken as zero, so that losses whose
gradient exists all the same, such as those of the values alone, get it.

Sources: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008); J. Townsend, "Differentiating the singular value decomposition" (2016); Z. Wan and S. Zhang, "Automatic
differentiation for complex valued SVD" (2019); C. Boeddeker et al., "On the computation of complex-valued gradients
with application to statistically optimum beamforming" (2017), for the eigenvectors of general matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, overload

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.spec import Dim, Shape
from ..arrays.axes import swapaxes
from ..arrays.creation import diagonal, eye, zeros_like
from ..arrays.shaping import dim, expand_dims
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_multi,
    cast,
)
from ..math.comparison import equal, greater, maximum, where
from ..math.complex_numbers import complex_type, conjugated, imag, part_type, real
from ..math.elementwise import multiply
from ..math.reduction import max, sum
from .matrices import (
    Solve,
    adjoint,
    check_factorised,
    check_matrices,
    check_precision,
    hermitian_part,
    matrix_product,
    widened,
)


def _row(x: Tensor) -> Tensor:
    """Return vectors as matrices of one row."""
    return expand_dims(x, -2)


def _column(x: Tensor) -> Tensor:
    """Return vectors as matrices of one column."""
    return expand_dims(x, -1)


def _reciprocal(x: Tensor) -> Tensor:
    """Compute ``1 / x``, and 0 where x is 0."""
    zero = equal(x, 0)
    return where(zero, zeros_like(x), 1 / where(zero, 1, x))


def _differences(values: Tensor) -> Tensor:
    """Return the matrix of ``1 / (values[j] - values[i])``, with zeros between equal values."""
    return _reciprocal(_row(values) - _column(values))


def _diagonals(matrices: Tensor) -> Tensor:
    return diagonal(matrices, axis1=-2, axis2=-1)


def _on_diagonal(values: Tensor) -> Tensor:
    """Return square matrices with the given diagonals."""
    return multiply(_row(values), eye(dim(values, -1), dtype=values.dtype))


# --- eigenvalues ----------------------------------------------------------------------------------------------------

_SYMMETRIC = np.array([[2, 1, 0.5], [1, -1, 0.25], [0.5, 0.25, 4]], "float32")


def _eigenvalue_specs(op: Op, name: str, x: TensorSpec, values: Any, vectors: Any) -> tuple[TensorSpec, TensorSpec]:
    check_factorised(op, name, x)
    return TensorSpec(None if x.shape is None else x.shape[:-1], values), TensorSpec(x.shape, vectors)


@dataclass(frozen=True)
class Eigh(Op):
    """The eigenvalues, in ascending order, and eigenvectors, as columns, of the Hermitian parts of matrices."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        return _eigenvalue_specs(self, "eigh", x, part_type(x.dtype), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return tuple(xp.linalg.eigh(hermitian_part(inputs[0])))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dvalues, dvectors = cotangents
        values, vectors = node.outputs
        inner = None if dvalues is None else cast(_on_diagonal(dvalues), vectors.dtype)
        if dvectors is not None:
            turned = matrix_product(adjoint(vectors), conjugated(dvectors))
            shares = _differences(values) * turned
            inner = shares if inner is None else inner + shares
        assert inner is not None
        dx = matrix_product(matrix_product(vectors, inner), adjoint(vectors))
        return (conjugated((dx + adjoint(dx)) * 0.5),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        half = np.float32(np.sqrt(0.5))
        simple = np.array([[2, 1], [1, 2]], "float32")
        yield Sample(cls(), [_SYMMETRIC], None, (0,), label="matrix")
        yield Sample(cls(), [np.stack([_SYMMETRIC, _SYMMETRIC.T * 2 + 1])], None, (0,), label="stack")
        empty = np.zeros((0, 2, 2), "float32")
        yield Sample(cls(), [empty], (empty[..., 0], empty), (0,), label="empty")
        values, vectors = np.array([1, 3], "float32"), np.array([[-half, half], [half, half]])
        yield Sample(cls(), [simple], (values, vectors), (0,), label="known")
        z = np.array([[1, 2j], [-2j, 1]], "complex64")
        yield Sample(cls(), [z], None, (), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: eigh(np.ones((2, 3))), ValueError, "eigh: expected square matrices", "not square")


@dataclass(frozen=True)
class Eig(Op):
    """The eigenvalues and eigenvectors, as columns of length 1, of square matrices; complex in any case."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        dtype = complex_type(x.dtype)
        return _eigenvalue_specs(self, "eig", x, dtype, dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return tuple(part.astype(complex_type(x.dtype)) for part in xp.linalg.eig(x))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dvalues, dvectors = cotangents
        values, vectors = node.outputs
        inner = None if dvalues is None else _on_diagonal(conjugated(dvalues))
        if dvectors is not None:
            turned = matrix_product(adjoint(vectors), conjugated(dvectors))
            lengths = cast(real(_row(_diagonals(turned))), vectors.dtype)
            free = turned - matrix_product(adjoint(vectors), vectors) * lengths
            shares = conjugated(_differences(values)) * free
            inner = shares if inner is None else inner + shares
        assert inner is not None
        dx = apply(Solve(), adjoint(vectors), matrix_product(inner, adjoint(vectors)))
        return (cast(conjugated(dx), node.inputs[0].dtype),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        triangular = np.array([[2, 3], [0, 1]], "float32")
        half = np.sqrt(0.5)
        values, vectors = np.array([2, 1], "complex64"), np.array([[1, -3 / np.sqrt(10)], [0, 1 / np.sqrt(10)]])
        yield Sample(cls(), [triangular], (values, vectors.astype("complex64")), (), label="real")
        turn = np.array([[0, -1], [1, 0]], "float32")
        values, vectors = np.array([1j, -1j]), np.array([[half, half], [-half * 1j, half * 1j]])
        yield Sample(cls(), [turn], (values, vectors), (), label="rotation")
        empty = np.zeros((0, 2, 2), "complex64")
        yield Sample(cls(), [empty], (empty[..., 0], empty), (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: eig(np.ones((2, 3))), ValueError, "eig: expected square matrices", "not square")


# --- singular values ------------------------------------------------------------------------------------------------

_TALL = np.array([[1, 2], [-0.5, 1], [0.25, 3]], "float32")


def _shorter(shape: Shape) -> Dim:
    if shape is None or None in shape[-2:]:
        return None
    return min(int(size) for size in shape[-2:] if size is not None)


@dataclass(frozen=True)
class Svd(Op):
    """U, s and V^H with A = U diag(s) V^H; s descends.

    With `full_matrices` U and V are square; otherwise they have only the columns that belong to singular values.
    """

    full_matrices: bool
    type_name: ClassVar[str] = "svd"
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        check_precision(self, x)
        check_matrices("svd", x.shape)
        values = part_type(x.dtype)
        if x.shape is None:
            return TensorSpec(None, x.dtype), TensorSpec(None, values), TensorSpec(None, x.dtype)
        *batch, rows, columns = x.shape
        count = _shorter(x.shape)
        left, right = (rows, columns) if self.full_matrices else (count, count)
        return (
            TensorSpec((*batch, rows, left), x.dtype),
            TensorSpec((*batch, count), values),
            TensorSpec((*batch, right, columns), x.dtype),
        )

    def run(self, xp: Any, *inputs: Any) -> Any:
        return tuple(xp.linalg.svd(inputs[0], full_matrices=self.full_matrices))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        du, ds, dvh = cotangents
        x = node.inputs[0]
        if not self.full_matrices or (x.shape is not None and x.shape[-1] is not None and x.shape[-1] == x.shape[-2]):
            u, s, vh = node.outputs
            return (_svd_cotangent(u, s, vh, du, ds, dvh),)
        if du is not None or dvh is not None:
            raise LookupError(
                f"No gradient is defined for all of U and V of svd {node.name!r}: columns that belong to no singular "
                f"value are not determined by the matrix, of shape {x.spec}. Use svd(x, full_matrices=False)."
            )
        u, s, vh = apply_multi(Svd(False), x)
        return (_svd_cotangent(u, s, vh, None, ds, None),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(False), [_TALL], None, (0,), label="tall")
        yield Sample(cls(False), [_TALL.T.copy()], None, (0,), label="wide")
        yield Sample(cls(True), [_TALL], None, (), label="full")
        known = np.array([[0, 3], [2, 0]], "float32")
        expected = np.array([[-1, 0], [0, -1]]), np.array([3, 2]), np.array([[0, -1], [-1, 0]])
        yield Sample(cls(False), [known], expected, (0,), label="known")
        stack = np.stack([_TALL, _TALL[::-1] ** 2 + 1])
        yield Sample(cls(False), [stack], None, (0,), label="stack")
        empty = np.zeros((0, 2, 3), "float32")
        expected = np.zeros((0, 2, 2)), np.zeros((0, 2)), np.zeros((0, 2, 3))
        yield Sample(cls(False), [empty], expected, (0,), label="empty")
        yield Sample(cls(False), [_TALL * (1 + 1j)], None, (), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: svd(np.ones(3)), ValueError, "svd: expected matrices in the last two axes", "vector")


def _svd_cotangent(
    u: Tensor, s: Tensor, vh: Tensor, du: Tensor | None, ds: Tensor | None, dvh: Tensor | None
) -> Tensor:
    """Return the cotangent of the matrix, from those of its thin decomposition."""
    sizes, inverse = cast(s, u.dtype), cast(_reciprocal(s), u.dtype)
    shares = cast(_differences(s) * _reciprocal(_row(s) + _column(s)), u.dtype)
    inner: list[Tensor] = []
    outer: list[Tensor] = []
    if ds is not None:
        inner.append(cast(_on_diagonal(ds), u.dtype))
    if du is not None:
        up = conjugated(du)
        turned = matrix_product(adjoint(u), up)
        inner.append(shares * (turned - adjoint(turned)) * _row(sizes))
        if u.dtype.kind == "c":
            inner.append(_on_diagonal(_imaginary(_diagonals(turned)) * inverse))
        outside = (up - matrix_product(u, turned)) * _row(inverse)
        outer.append(matrix_product(outside, vh))
    if dvh is not None:
        v, up = adjoint(vh), swapaxes(dvh, -1, -2)
        turned = matrix_product(vh, up)
        inner.append(_column(sizes) * shares * (turned - adjoint(turned)))
        outside = (up - matrix_product(v, turned)) * _row(inverse)
        outer.append(matrix_product(u, adjoint(outside)))
    total = matrix_product(matrix_product(u, _add(inner)), vh)
    return conjugated(_add([total, *outer]))


def _imaginary(x: Tensor) -> Tensor:
    """Return complex numbers without their real parts."""
    return cast(imag(x), x.dtype) * 1j


def _add(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@dataclass(frozen=True)
class SingularValues(Op):
    """The singular values alone, in descending order, which are quicker to find than the vectors."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        check_precision(self, x)
        check_matrices("svd", x.shape)
        return TensorSpec(None if x.shape is None else (*x.shape[:-2], _shorter(x.shape)), part_type(x.dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.linalg.svd(inputs[0], compute_uv=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (ds,) = cotangents
        assert ds is not None
        u, _, vh = apply_multi(Svd(False), node.inputs[0])
        return (conjugated(matrix_product(u * _row(cast(ds, u.dtype)), vh)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        known = np.array([[0, 3], [2, 0]], "float32")
        yield Sample(cls(), [known], np.array([3, 2], "float32"), (0,), label="known")
        yield Sample(cls(), [np.stack([_TALL, _TALL[::-1] ** 2 + 1])], None, (0,), label="stack")
        yield Sample(cls(), [np.zeros((0, 2, 3), "float32")], np.zeros((0, 2), "float32"), (0,), label="empty")
        yield Sample(cls(), [_TALL * (1 + 1j)], None, (0,), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        bad = TensorSpec((2, 2), np.dtype("float16"))
        yield ErrorSample(lambda: cls().infer(bad), TypeError, "single and double precision", "half")


# --- functions ------------------------------------------------------------------------------------------------------


def eigh(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues and eigenvectors of the Hermitian (if real, symmetric) matrices in the last two axes.

    Args:
        x: [..., m, m]; what is not Hermitian in it does not count.

    Returns:
        The eigenvalues, real and ascending, [..., m], and the eigenvectors as columns, [..., m, m].

    Raises:
        ValueError: the matrices are not square.

    >>> import anabranch as ab
    >>> values, vectors = ab.ops.eigh([[2.0, 0.0], [0.0, 1.0]])
    >>> values
    Tensor([1., 2.], dtype=float32)
    """
    (tensor,), dtype = widened(x)
    values, vectors = apply_multi(Eigh(), tensor)
    return cast(values, part_type(dtype)), cast(vectors, dtype)


def eig(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues and eigenvectors of the square matrices in the last two axes, as complex numbers.

    Args:
        x: [..., m, m].

    Returns:
        The eigenvalues in no order, [..., m], and the eigenvectors as columns of length 1, [..., m, m]. They are
        complex for real matrices as well, so that their dtype does not depend on values.

    Raises:
        ValueError: the matrices are not square.

    >>> import anabranch as ab
    >>> values, vectors = ab.ops.eig([[0.0, -1.0], [1.0, 0.0]])
    >>> values
    Tensor([0.+1.j, 0.-1.j], dtype=complex64)
    """
    (tensor,), _ = widened(x)
    values, vectors = apply_multi(Eig(), tensor)
    return values, vectors


@overload
def svd(
    x: TensorLike, full_matrices: bool = True, compute_uv: Literal[True] = True
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def svd(x: TensorLike, full_matrices: bool = True, compute_uv: bool = True) -> Any: ...


def svd(x: TensorLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition A = U diag(s) V^H of the matrices in the last two axes.

    Args:
        x: [..., m, n]; k is the smaller of m and n.
        full_matrices: U is [..., m, m] and V^H [..., n, n] instead of [..., m, k] and [..., k, n]. Their further
            columns are not determined by the matrix, so that U and V then have a gradient only where m = n.
        compute_uv: False returns s alone.

    Returns:
        (U, s, V^H), or s, real and descending, [..., k].

    Raises:
        ValueError: `x` has less than two axes.
        LookupError: a gradient is asked for that does not exist.
        numpy.linalg.LinAlgError: (at run time) a matrix holds NaN or infinity.

    >>> import anabranch as ab
    >>> ab.ops.svd([[0.0, 3.0], [2.0, 0.0]], compute_uv=False)
    Tensor([3., 2.], dtype=float32)
    """
    (tensor,), dtype = widened(x)
    if not compute_uv:
        return cast(apply(SingularValues(), tensor), part_type(dtype))
    u, s, vh = apply_multi(Svd(bool(full_matrices)), tensor)
    return cast(u, dtype), cast(s, part_type(dtype)), cast(vh, dtype)


def matrix_rank(x: TensorLike, tol: TensorLike | None = None) -> Tensor:
    """Compute the ranks of the matrices in the last two axes: how many singular values exceed `tol`.

    Args:
        x: [..., m, n].
        tol: by default the largest singular value times the larger of m and n times the precision of the dtype.

    Returns:
        int32, [...].

    Raises:
        ValueError: `x` has less than two axes.

    >>> import anabranch as ab
    >>> ab.ops.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Tensor(1, dtype=int32)
    """
    (tensor,), _ = widened(x)
    values = apply(SingularValues(), tensor)
    least = max(values, -1, keepdims=True, initial=0.0) * relative_precision(tensor) if tol is None else tol
    return sum(cast(greater(values, least), "int32"), -1)


def relative_precision(x: Tensor) -> Any:
    """Return the part of the largest singular value that may be rounding: the larger side times the precision."""
    precision = float(np.finfo(part_type(x.dtype)).eps)
    rows, columns = dim(x, -2), dim(x, -1)
    if isinstance(rows, int) and isinstance(columns, int):
        return precision * (rows if rows > columns else columns)
    return cast(maximum(rows, columns), part_type(x.dtype)) * precision


__all__ = ["eig", "eigh", "matrix_rank", "svd"]
