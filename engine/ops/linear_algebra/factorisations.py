"""QR and LU factorisations, pseudo-inverses, least squares and logarithms of determinants.

Sources of the gradients: S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions with
application in optimum experimental design" (2010), and H.-J. Liao et al., "Differentiable programming tensor networks"
(2019), for QR; G. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems
whose variables separate" (1973); M. Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.dtypes import int32
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, leading_map
from ...graph.op import Cost
from ...graph.spec import Dim, shape_text
from ..arrays.axes import swapaxes
from ..arrays.creation import eye, tril, triu
from ..arrays.gathering import take_along_axis
from ..arrays.joining import concatenate
from ..arrays.shaping import dim, expand_dims, squeeze
from ..arrays.sorting import argsort
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
    as_scalar_or_array,
    cast,
)
from ..math.complex_numbers import conjugated, imag, part_type
from .matrices import (
    Inverse,
    LowerHalf,
    adjoint,
    check_factorised,
    check_matrices,
    check_precision,
    matrix_product,
    solution,
    widened,
)
from .spectral import relative_precision
from .triangular import SolveTriangular


def _over_adjoint(x: Tensor, triangle: Tensor) -> Tensor:
    """Compute ``X T^-H`` for upper triangular T."""
    return adjoint(apply(SolveTriangular(), triangle, adjoint(x)))


# --- QR -------------------------------------------------------------------------------------------------------------

_TALL = np.array([[1, 2], [-0.5, 1], [0.25, 3]], "float32")


@dataclass(frozen=True)
class Qr(Op):
    """Q with orthonormal columns and an upper triangular R, A = Q R; R's diagonal is real but may be negative.

    With `complete` Q is square.
    """

    complete: bool
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        check_precision(self, x)
        check_matrices("qr", x.shape)
        if x.shape is None:
            return x, x
        *batch, rows, columns = x.shape
        inner = rows if self.complete else _smaller(rows, columns)
        return TensorSpec((*batch, rows, inner), x.dtype), TensorSpec((*batch, inner, columns), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return tuple(xp.linalg.qr(inputs[0], mode="complete" if self.complete else "reduced"))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dq, dr = (None if cotangent is None else conjugated(cotangent) for cotangent in cotangents)
        x = node.inputs[0]
        q, r = node.outputs
        rows, columns = (None, None) if x.shape is None else x.shape[-2:]
        if self.complete and (rows is None or columns is None or rows > columns):
            raise LookupError(
                f"No gradient is defined for the complete Q of qr {node.name!r}: its further columns are not "
                f"determined by the matrix, {x.spec}. Use qr(x, mode='reduced')."
            )
        if rows is not None and columns is not None and rows >= columns:
            return (conjugated(_qr_cotangent(q, r, dq, dr)),)
        count = dim(q, -1)  # a wide A = Q [U V] has the columns Q V beside those that determine Q
        dv = None if dr is None else dr[..., :, count:]
        if dv is not None:
            through = matrix_product(x[..., :, count:], adjoint(dv))
            dq = through if dq is None else dq + through
        left = _qr_cotangent(q, r[..., :, :count], dq, None if dr is None else dr[..., :, :count])
        right = matrix_product(q, r[..., :, count:] * 0 if dv is None else dv)
        return (conjugated(concatenate([left, right], axis=-1)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(False), [_TALL], None, (0,), label="tall")
        yield Sample(cls(False), [_TALL.T.copy()], None, (0,), label="wide")
        yield Sample(cls(True), [_TALL], None, (), label="complete")
        known = np.array([[3, 1], [4, 7]], "float32")
        expected = np.array([[-0.6, -0.8], [-0.8, 0.6]]), np.array([[-5, -6.2], [0, 3.4]])
        yield Sample(cls(False), [known], expected, (0,), label="known")
        yield Sample(cls(False), [np.stack([_TALL, _TALL[::-1] ** 2 + 1])], None, (0,), label="stack")
        empty = np.zeros((0, 2, 3), "float32")
        yield Sample(cls(False), [empty], (np.zeros((0, 2, 2)), empty), (0,), label="empty")
        z = np.array([[1j, 2, 1], [1, 1 - 1j, 0.5], [0.5, 3j, -1]], "complex64")
        yield Sample(cls(False), [z[:, :2]], None, (0,), label="complex tall")
        yield Sample(cls(False), [z[:2]], None, (0,), label="complex wide")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: qr(np.ones(3)), ValueError, "qr: expected matrices in the last two axes", "vector")
        yield ErrorSample(lambda: qr(np.eye(2), mode="r"), ValueError, "mode='r'.*'reduced' or 'complete'", "mode")


def _smaller(rows: Dim, columns: Dim) -> Dim:
    return None if rows is None or columns is None else min(rows, columns)


def _qr_cotangent(q: Tensor, r: Tensor, dq: Tensor | None, dr: Tensor | None) -> Tensor:
    """Return the cotangent of A = Q R where R is square."""
    terms: list[Tensor] = []
    if dr is not None:
        terms.append(matrix_product(r, adjoint(dr)))
    if dq is not None:
        terms.append(-matrix_product(adjoint(dq), q))
    lower = apply(LowerHalf(), terms[0] if len(terms) == 1 else terms[0] + terms[1])
    inner = matrix_product(q, lower + adjoint(lower))
    return _over_adjoint(inner if dq is None else inner + dq, r)


# --- LU -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LuFactor(Op):
    """P A = L U by partial pivoting: L (without its unit diagonal) and U in one matrix, row exchanges, rows of A.

    The second result says with which row each row was exchanged in turn (LAPACK's pivots, from 0), the third which row
    of A each row of L U is.
    """

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        check_precision(self, x)
        check_matrices("lu_factor", x.shape)
        if x.shape is None:
            return x, TensorSpec(None, int32), TensorSpec(None, int32)
        *batch, rows, columns = x.shape
        return x, TensorSpec((*batch, _smaller(rows, columns)), int32), TensorSpec((*batch, rows), int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        *batch, rows, columns = x.shape
        count = int(np.prod(batch))
        lu = xp.array(x, order="C").reshape(count, rows, columns)
        steps = min(rows, columns)
        pivots = xp.zeros((count, steps), "int32")
        order = xp.zeros((count, rows), "int32") + xp.arange(rows, dtype="int32")
        for start in range(0, steps, _PANEL):
            stop = min(start + _PANEL, steps)
            for step in range(start, stop):
                pivots[:, step] = _eliminate(xp, lu, order, step, stop)
            _update(xp, lu, start, stop)
        return lu.reshape(x.shape), pivots.reshape(*batch, steps), order.reshape(*batch, rows)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dlu = cotangents[0]
        x = node.inputs[0]
        if x.shape is not None and None not in x.shape[-2:] and x.shape[-1] != x.shape[-2]:
            raise LookupError(
                f"No gradient is defined for lu_factor {node.name!r} of matrices that are not square ({x.spec}). "
                "Factorise the square part, or use ops.qr."
            )
        assert dlu is not None
        lu, _, order = node.outputs
        up = conjugated(dlu)
        lower = tril(lu, -1) + eye(dim(lu, -1), dtype=lu.dtype)
        upper = triu(lu)
        inner = tril(matrix_product(adjoint(lower), tril(up, -1)), -1) + triu(matrix_product(triu(up), adjoint(upper)))
        rows = _over_adjoint(apply(SolveTriangular(), adjoint(lower), inner), upper)
        return (conjugated(take_along_axis(rows, expand_dims(argsort(order, -1), -1), axis=-2)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2], [4, 2]], "float32")
        expected = np.array([[4, 2], [0.25, 1.5]]), np.array([1, 1], "int32"), np.array([1, 0], "int32")
        yield Sample(cls(), [x], expected, (0,), label="known")
        z: Any = np.array([[1, 2, -1], [0.5, 1j, 2], [2j, 4, 1]], "complex64")
        yield Sample(cls(), [np.stack([z, z[::-1] * 2 + 1])], None, (0,), label="complex stack")
        yield Sample(cls(), [z.real[:2]], None, (), label="wide")
        yield Sample(cls(), [z.real[:, :2]], None, (), label="tall")
        empty = np.zeros((0, 2, 2), "float32")
        yield Sample(cls(), [empty], (empty, *[np.zeros((0, 2), "int32")] * 2), (0,), label="empty")
        none = np.zeros(1, "int32")
        yield Sample(cls(), [np.zeros((1, 1), "float32")], (np.zeros((1, 1)), none, none), (), label="singular")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: lu_factor(np.ones(3)), ValueError, "lu_factor: expected matrices", "vector")


_PANEL = 32  # columns that are eliminated one by one; what is right of them is updated by one product


def _eliminate(xp: Any, lu: Any, order: Any, step: int, stop: int) -> Any:
    """Eliminate one step of Gauss in place, over a stack of matrices: bring up the largest pivot, subtract its row.

    It is subtracted in the columns before `stop` only.

    Returns:
        The rows of the pivots.
    """
    column = lu[:, step:, step]
    pivots = xp.argmax(abs(column.real) + abs(column.imag), axis=1) + step
    stack = xp.arange(len(lu))
    for matrix in (lu, order):
        moved = matrix[stack, pivots].copy()
        matrix[stack, pivots] = matrix[:, step]
        matrix[:, step] = moved
    pivot = lu[:, step, step]
    lu[:, step + 1 :, step] /= xp.where(pivot == 0, 1, pivot)[:, None]  # a zero pivot has zeros below it
    lu[:, step + 1 :, step + 1 : stop] -= lu[:, step + 1 :, step, None] * lu[:, step, None, step + 1 : stop]
    return pivots


def _update(xp: Any, lu: Any, start: int, stop: int) -> None:
    """Eliminate in the columns from `stop` on what the rows and columns from `start` to `stop` say."""
    lower = xp.tril(lu[:, start:stop, start:stop], -1) + xp.eye(stop - start, dtype=lu.dtype)
    lu[:, start:stop, stop:] = solution(xp, lower, lu[:, start:stop, stop:])
    lu[:, stop:, stop:] -= lu[:, stop:, start:stop] @ lu[:, start:stop, stop:]


# --- pseudo-inverse, determinant ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PseudoInverse(Op):
    """Moore and Penrose's inverses. Inputs: the matrices, and the ratio below which singular values count as zero.

    The gradient exists where the rank stays what it is in a neighbourhood.
    """

    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        x = inputs[0]
        check_precision(self, x)
        check_matrices("pinv", x.shape)
        if x.shape is None:
            return x
        *batch, rows, columns = x.shape
        return TensorSpec((*batch, columns, rows), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        return leading_map([len(inputs[0].shape)], [2])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, ratio = inputs
        return xp.linalg.pinv(x, ratio)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        a, p, up = node.inputs[0], node.outputs[0], adjoint(conjugated(dy))
        ph = adjoint(p)
        first = matrix_product(matrix_product(ph, adjoint(up)), ph)
        second = matrix_product(matrix_product(up, p), ph)
        third = matrix_product(matrix_product(ph, p), up)
        second = second - matrix_product(a, matrix_product(p, second))
        third = third - matrix_product(matrix_product(third, p), a)
        return conjugated(second + third - first), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        ratio = np.float32(1e-6)
        known = np.array([[1, 0], [0, 2], [0, 0]], "float32")
        yield Sample(cls(), [known, ratio], np.array([[1, 0, 0], [0, 0.5, 0]], "float32"), (0,), label="known")
        yield Sample(cls(), [np.stack([_TALL, _TALL[::-1] ** 2 + 1]), ratio], None, (0,), label="stack")
        yield Sample(cls(), [_TALL.T.copy(), ratio], None, (0,), label="wide")
        empty = np.zeros((0, 2, 3), "float32")
        yield Sample(cls(), [empty, ratio], np.zeros((0, 3, 2), "float32"), (0,), label="empty")
        z = np.array([[1j, 2], [1, 1 - 1j], [0.5, 3j]], "complex64")
        yield Sample(cls(), [z, ratio], None, (0,), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: pinv(np.ones(3)), ValueError, "pinv: expected matrices", "vector")


@dataclass(frozen=True)
class SlogDet(Op):
    """Signs (phases, of complex matrices) of determinants, and the logarithms of their absolute values."""

    type_name: ClassVar[str] = "slogdet"
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        check_factorised(self, "slogdet", x)
        batch = None if x.shape is None else x.shape[:-2]
        return TensorSpec(batch, x.dtype), TensorSpec(batch, part_type(x.dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return tuple(as_scalar_or_array(part) for part in xp.linalg.slogdet(inputs[0]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dsign, dlog = cotangents
        x, sign = node.inputs[0], node.outputs[0]
        scale = None if dlog is None else cast(dlog, x.dtype)
        if dsign is not None and x.dtype.kind == "c":  # the sign of a real determinant is a step function
            turn = cast(imag(dsign * sign), x.dtype) * 1j
            scale = turn if scale is None else scale + turn
        if scale is None:
            return (None,)
        return (expand_dims(scale, (-2, -1)) * swapaxes(apply(Inverse(), x), -1, -2),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[[2, 1], [1, 1]], [[0, 4], [1, 0]]], "float32")
        yield Sample(cls(), [x], (np.array([1, -1]), np.array([0, np.log(4)])), (0,), label="stack")
        yield Sample(cls(), [x[1]], (np.float32(-1), np.float32(np.log(4))), (0,), label="matrix")
        yield Sample(cls(), [x[:0]], (np.zeros(0), np.zeros(0)), (0,), label="empty")
        z = np.array([[1j, 2], [1, 1 - 1j]], "complex64")
        sign = np.complex64((-1 + 1j) * np.sqrt(0.5))
        yield Sample(cls(), [z], (sign, np.float32(np.log(2) / 2)), (0,), label="complex")
        yield Sample(cls(), [x[0] * 0], (np.float32(0), np.float32(-np.inf)), (), label="singular")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: slogdet(np.ones((2, 3))), ValueError, "slogdet: expected square", "not square")


# --- functions ------------------------------------------------------------------------------------------------------


def qr(x: TensorLike, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Compute the factorisation A = Q R of the matrices in the last two axes, Q orthonormal, R upper triangular.

    Args:
        x: [..., m, n]; k is the smaller of m and n.
        mode: "reduced" gives Q [..., m, k] and R [..., k, n]; "complete" gives [..., m, m] and [..., m, n], with a
            gradient only where m <= n.

    Returns:
        (Q, R).

    Raises:
        ValueError: `x` has less than two axes, or the mode is another one.
        LookupError: a gradient is asked for that does not exist.

    >>> import anabranch as ab
    >>> q, r = ab.ops.qr([[3.0, 1.0], [4.0, 7.0]])
    >>> ab.Session().run(r).round(1) + 0.0
    array([[-5. , -6.2],
           [ 0. ,  3.4]], dtype=float32)
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode={mode!r} is not known; expected 'reduced' or 'complete'.")
    (tensor,), dtype = widened(x)
    q, r = apply_multi(Qr(mode == "complete"), tensor)
    return cast(q, dtype), cast(r, dtype)


def lu_factor(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the factorisation P A = L U of the matrices in the last two axes, by partial pivoting.

    Args:
        x: [..., m, n]; the gradient exists for m = n.

    Returns:
        L and U in one matrix, [..., m, n], where the ones on the diagonal of L are left out; and the pivots, int32,
        [..., min(m, n)]: row i was exchanged with row pivots[i], one after the other.

    Raises:
        ValueError: `x` has less than two axes.

    >>> import anabranch as ab
    >>> lu, pivots = ab.ops.lu_factor([[1.0, 2.0], [4.0, 2.0]])
    >>> lu
    Tensor([[4.  , 2.  ],
            [0.25, 1.5 ]], dtype=float32)
    """
    (tensor,), dtype = widened(x)
    lu, pivots, _ = apply_multi(LuFactor(), tensor)
    return cast(lu, dtype), pivots


def pinv(x: TensorLike, rcond: TensorLike | None = None) -> Tensor:
    """Compute the pseudo-inverses (Moore, Penrose) of the matrices in the last two axes.

    Args:
        x: [..., m, n].
        rcond: singular values up to `rcond` times the largest count as zero; one number, or one for each matrix, [...].
            By default the larger of m and n times the precision of the dtype.

    Returns:
        [..., n, m].

    Raises:
        ValueError: `x` has less than two axes.

    >>> import anabranch as ab
    >>> ab.ops.pinv([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    Tensor([[1. , 0. , 0. ],
            [0. , 0.5, 0. ]], dtype=float32)
    """
    (tensor,), dtype = widened(x)
    check_matrices("pinv", tensor.shape)
    ratio = relative_precision(tensor) if rcond is None else rcond
    return cast(apply(PseudoInverse(), tensor, cast(ratio, part_type(tensor.dtype))), dtype)


def lstsq(a: TensorLike, b: TensorLike, rcond: TensorLike | None = None) -> Tensor:
    """Find the X of least length among those with the least sum of squares of A X - B.

    Args:
        a: one matrix, [m, n].
        b: right sides, [m] or [m, k].
        rcond: singular values of `a` up to `rcond` times the largest count as zero; see `pinv`.

    Returns:
        [n] or [n, k].

    Raises:
        ValueError: the shapes are others, or do not fit.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.lstsq([[1.0], [1.0]], [1.0, 3.0])).round(3)
    array([2.], dtype=float32)
    """
    (left, right), dtype = widened(a, b)
    if left.ndim not in (2, None) or right.ndim not in (1, 2):
        raise ValueError(
            f"lstsq takes a matrix and one or more right sides, [m] or [m, k]; got shapes {shape_text(left.shape)} and "
            f"{shape_text(right.shape)}."
        )
    if right.shape is not None and left.shape is not None:
        _check_rows(left.shape[0], right.shape[0], left, right)
    inverse = pinv(left, rcond)
    if right.ndim == 1:
        return cast(squeeze(matrix_product(inverse, expand_dims(right, -1)), -1), dtype)
    return cast(matrix_product(inverse, right), dtype)


def _check_rows(first: Dim, second: Dim, a: Tensor, b: Tensor) -> None:
    if first is not None and second is not None and first != second:
        raise ValueError(
            f"lstsq: the matrix has {first} rows and the right side {second}; got shapes {shape_text(a.shape)} and "
            f"{shape_text(b.shape)}."
        )


def slogdet(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the sign and the logarithm of the absolute value of the determinants of matrices in the last two axes.

    Args:
        x: [..., m, m].

    Returns:
        The signs: -1, 0 or 1, or for complex matrices a number of absolute value 1, or 0; and the logarithms, which are
        -inf for singular matrices; both [...].

    Raises:
        ValueError: the matrices are not square.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.slogdet([[0.0, 1.0], [1.0, 0.0]]))
    (np.float32(-1.0), np.float32(0.0))
    """
    (tensor,), dtype = widened(x)
    sign, logarithm = apply_multi(SlogDet(), tensor)
    return cast(sign, dtype), cast(logarithm, part_type(dtype))


def logdet(x: TensorLike) -> Tensor:
    """Compute the logarithm of the absolute value of the determinants: the second part of `slogdet`."""
    return slogdet(x)[1]


def cholesky_inverse(x: TensorLike, upper: bool = False) -> Tensor:
    """Compute the inverses of Hermitian, positive definite matrices, from their Cholesky factors.

    Args:
        x: the factors, [..., m, m], as `cholesky` gives them; of which only the triangle counts.
        upper: they are upper factors U with U^H U = A instead of lower ones.

    Raises:
        ValueError: the matrices are not square.
        numpy.linalg.LinAlgError: (at run time) a diagonal has a zero.

    >>> import anabranch as ab
    >>> ab.ops.cholesky_inverse([[2.0, 0.0], [0.0, 1.0]])
    Tensor([[0.25, 0.  ],
            [0.  , 1.  ]], dtype=float32)
    """
    (tensor,), dtype = widened(x)
    inverse = apply(Inverse(), triu(tensor) if upper else tril(tensor))
    left, right = (inverse, adjoint(inverse)) if upper else (adjoint(inverse), inverse)
    return cast(matrix_product(left, right), dtype)


__all__ = ["cholesky_inverse", "logdet", "lstsq", "lu_factor", "pinv", "qr", "slogdet"]
