"""Inverses, determinants, powers and solutions with the square matrices in the last two axes.

The gradients follow M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.dtypes import DType
from ...common.nest import is_integer
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.spec import Dim, Shape, broadcast_shapes, shape_text
from ..arrays.axes import swapaxes
from ..arrays.creation import eye
from ..arrays.shaping import broadcast_to, dim, expand_dims, shape, squeeze
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_scalar_or_array,
    cast,
    convert_to_tensor,
    promote,
)
from ..math.complex_numbers import conjugated
from ..math.dtype_checks import check_dtype, check_floating
from ..math.reduction import sum as total_of
from ..run_time_shapes import sum_like
from .products import BatchMatMul


def solution(xp: Any, a: Any, b: Any) -> Any:
    """Return X of A X = B. Stacks of either are those of both: cupy wants them to be of one shape, and not empty."""
    if xp is np:
        return xp.linalg.solve(a, b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if not b.size:
        return xp.zeros((*batch, *b.shape[-2:]), b.dtype)
    return xp.linalg.solve(*[xp.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (a, b)])


def check_matrices(name: str, shape: Shape) -> None:
    """Refuse shapes of fewer than two axes.

    Raises:
        ValueError: as it says.
    """
    if shape is not None and len(shape) < 2:
        raise ValueError(f"{name}: expected matrices in the last two axes; got shape {shape_text(shape)}.")


def check_square(name: str, shape: Shape) -> None:
    """Refuse shapes whose last two axes are known to differ.

    Raises:
        ValueError: as it says.
    """
    check_matrices(name, shape)
    if shape is None:
        return
    rows, columns = shape[-2:]
    if rows is not None and columns is not None and rows != columns:
        raise ValueError(f"{name}: expected square matrices; got shape {shape_text(shape)}.")


def check_factorised(op: Op, name: str, spec: TensorSpec) -> None:
    """Refuse what LAPACK does not factorise: other dtypes than single and double precision, and what is not square."""
    check_precision(op, spec)
    check_square(name, spec.shape)


def check_precision(op: Op, spec: TensorSpec) -> None:
    """Refuse dtypes other than single and double precision, real or complex.

    Raises:
        TypeError: as it says.
    """
    check_dtype(op, spec, _is_factorised, "single and double precision", "Cast it to 'float32' with ops.cast.")


def _is_factorised(dtype: DType) -> bool:
    return dtype.kind in "fc" and dtype.name != "float16"


def adjoint(x: Tensor) -> Tensor:
    """Compute the conjugate transposes of matrices."""
    return conjugated(swapaxes(x, -1, -2))


def matrix_product(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Compute the products of the matrices in the last two axes, transposed first where that is said."""
    return apply(BatchMatMul(transpose_a, transpose_b), a, b)


@dataclass(frozen=True)
class Inverse(Op):
    """The inverses of square matrices."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        check_factorised(self, "inv", inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.linalg.inv(inputs[0])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (-matrix_product(matrix_product(y, dy, transpose_a=True), y, transpose_b=True),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[[2, 1], [1, 1]], [[1, 0], [0, 4]]], "float32")
        expected = np.array([[[1, -1], [-1, 2]], [[1, 0], [0, 0.25]]], "float32")
        yield Sample(cls(), [x], expected, (0,), label="stack")
        yield Sample(cls(), [x[0]], expected[0], (0,), label="matrix")
        yield Sample(cls(), [x[:0]], x[:0], (0,), label="empty")
        z = np.array([[1j, 2], [0, 1 - 1j]], "complex64")
        yield Sample(cls(), [z], np.array([[-1j, -1 + 1j], [0, 0.5 + 0.5j]], "complex64"), (0,), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: inv(np.ones((2, 3))), ValueError, "square matrices; got shape", "not square")
        yield ErrorSample(lambda: inv(np.ones(3)), ValueError, "last two axes", "vector")


@dataclass(frozen=True)
class Solve(Op):
    """The solutions X of A X = B, by columns."""

    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        a, b = inputs
        check_factorised(self, "solve", a)
        if a.shape is None or b.shape is None:
            return TensorSpec(None, b.dtype)
        size: Dim = a.shape[-1] if a.shape[-1] is not None else a.shape[-2]
        if len(b.shape) < 2 or (None not in (size, b.shape[-2]) and size != b.shape[-2]):
            raise ValueError(f"solve: shapes {shape_text(a.shape)} and {shape_text(b.shape)} do not fit: A X = B.")
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2]) or ()
        return TensorSpec((*batch, size if b.shape[-2] is None else b.shape[-2], b.shape[-1]), b.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return solution(xp, *inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dx,) = cotangents
        a, b = node.inputs
        x = node.outputs[0]
        assert dx is not None
        db = apply(Solve(), swapaxes(a, -1, -2), dx)
        return sum_like(-matrix_product(db, x, transpose_b=True), a), sum_like(db, b)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        a = np.array([[[2, 1], [1, 1]], [[1, 0], [0, 4]]], "float32")
        b = np.array([[3, 1], [2, 0]], "float32")
        yield Sample(cls(), [a[0], b], np.array([[1, 1], [1, -1]], "float32"), (0, 1), label="matrix")
        yield Sample(cls(), [a, b], np.array([[[1, 1], [1, -1]], [[3, 1], [0.5, 0]]], "float32"), (0, 1), label="stack")
        yield Sample(cls(), [a[0], b[:, :0]], b[:, :0], (0, 1), label="empty")
        z, y = np.array([[1j, 2], [0, 1 - 1j]], "complex64"), np.array([[2 + 1j], [1 - 1j]], "complex64")
        yield Sample(cls(), [z, y], np.array([[1], [1]], "complex64"), (0, 1), label="complex")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: solve(np.eye(2), np.ones((3, 1))), ValueError, "do not fit", "rows")


@dataclass(frozen=True)
class Determinant(Op):
    """The determinants of square matrices. Their gradient exists where the matrix is singular, too."""

    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        check_factorised(self, "det", x)
        return TensorSpec(None if x.shape is None else x.shape[:-2], x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(xp.linalg.det(inputs[0]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (expand_dims(dy, (-2, -1)) * swapaxes(apply(Adjugate(), node.inputs[0]), -1, -2),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[[2, 1], [1, 1]], [[1, 0], [0, 4]]], "float32")
        yield Sample(cls(), [x], np.array([1, 4], "float32"), (0,), label="stack")
        yield Sample(cls(), [x[1]], np.float32(4), (0,), label="matrix")
        yield Sample(cls(), [x[:0]], np.zeros(0, "float32"), (0,), label="empty")
        z = np.array([[1j, 2], [1, 1 - 1j]], "complex64")
        yield Sample(cls(), [z], np.complex64(-1 + 1j), (0,), label="complex")


@dataclass(frozen=True)
class Adjugate(Op):
    """``det(x) * inv(x)``, which singular matrices have, too: the transposes of the derivatives of determinants.

    Its own gradient exists where the matrix can be inverted.
    """

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        check_factorised(self, "det", inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        try:
            return xp.linalg.det(x)[..., None, None] * xp.linalg.inv(x)
        except np.linalg.LinAlgError:
            left, values, right = (part.conj() for part in xp.linalg.svd(x))
        ones = xp.ones_like(values[..., :1])
        smaller = xp.cumprod(xp.concatenate([ones, values[..., :0:-1]], -1), -1)[..., ::-1]
        others = xp.cumprod(xp.concatenate([ones, values[..., :-1]], -1), -1) * smaller
        phase = (xp.linalg.det(left) * xp.linalg.det(right)).conj()[..., None, None]
        return phase * ((left * others[..., None, :]) @ right).swapaxes(-1, -2)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        inverse = apply(Inverse(), x)
        share = total_of(dy * inverse, (-2, -1), keepdims=True) * swapaxes(inverse, -1, -2)
        apart = matrix_product(matrix_product(inverse, dy, transpose_a=True), inverse, transpose_b=True)
        return (expand_dims(apply(Determinant(), x), (-2, -1)) * (share - apart),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[[2, 1], [1, 1]], [[1, 0], [0, 4]]], "float32")
        expected = np.array([[[1, -1], [-1, 2]], [[4, 0], [0, 1]]], "float32")
        yield Sample(cls(), [x], expected, (0,), label="stack")
        yield Sample(cls(), [x[0]], expected[0], (0,), label="matrix")
        yield Sample(cls(), [x[:0]], x[:0], (0,), label="empty")
        singular = np.array([[1, 2], [3, 6]], "float32")
        yield Sample(cls(), [singular], np.array([[6, -2], [-3, 1]], "float32"), (), label="singular")
        z = np.array([[1j, 2], [1, 1 - 1j]], "complex64")
        yield Sample(cls(), [z], np.array([[1 - 1j, -2], [-1, 1j]], "complex64"), (0,), label="complex")


def hermitian_part(x: Any) -> Any:
    """Return half the sum of arrays of matrices and their conjugate transposes."""
    flipped = x.swapaxes(-1, -2)
    return (x + (flipped.conj() if x.dtype.kind == "c" else flipped)) / 2


@dataclass(frozen=True)
class LowerHalf(Op):
    """The lower triangle with its diagonal halved (the function Phi of Murray's paper)."""

    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2

    def infer(self, *inputs: Any) -> TensorSpec:
        check_floating(self, inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        mask = xp.tril(xp.ones(x.shape[-2:], x.dtype)) - xp.eye(x.shape[-1], dtype=x.dtype) / 2
        return x * mask

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(LowerHalf(), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[2, 3], [4, 6]], "float32")
        expected = np.array([[1, 0], [4, 3]], "float32")
        yield Sample(cls(), [x], expected, (0,), label="matrix")
        yield Sample(cls(), [np.stack([x, x])], np.stack([expected] * 2), (0,), label="stack")
        yield Sample(cls(), [x[:0, :0]], x[:0, :0], (0,), label="empty")


# --- functions ------------------------------------------------------------------------------------------------------


def widened(*values: TensorLike) -> tuple[list[Tensor], DType]:
    """Return the values in a dtype that factorisations take, and the dtype of the result."""
    tensors = promote(*values, floating=True)
    dtype = tensors[0].dtype
    if dtype.name in ("float16", "bfloat16"):
        return [cast(tensor, "float32") for tensor in tensors], dtype
    return tensors, dtype


def inv(x: TensorLike) -> Tensor:
    """Compute the inverses of the square matrices in the last two axes.

    Raises:
        ValueError: the matrices are not square.
        numpy.linalg.LinAlgError: (at run time) one of them is singular.
    """
    (tensor,), dtype = widened(x)
    return cast(apply(Inverse(), tensor), dtype)


def matrix_power(x: TensorLike, n: int) -> Tensor:
    """Compute the products of `n` factors that are the square matrices in the last two axes, by repeated squaring.

    Args:
        x: square matrices.
        n: the number of factors. 0 gives identity matrices. A negative one is of factors that are the inverses, for
            which integers become float32.

    Raises:
        TypeError: `n` is no integer.
        ValueError: the matrices are not square.
        numpy.linalg.LinAlgError: (at run time) `n` is negative and one of them is singular.

    >>> import anabranch as ab
    >>> ab.ops.matrix_power([[1.0, 2.0], [3.0, 4.0]], 3)
    Tensor([[ 37.,  54.],
            [ 81., 118.]], dtype=float32)
    """
    if not is_integer(n):
        raise TypeError(f"matrix_power: n must be an integer; got {n!r}, of type {type(n).__name__}.")
    tensor = convert_to_tensor(x)
    check_square("matrix_power", tensor.shape)
    if n == 0:
        return broadcast_to(eye(dim(tensor, -1), dtype=tensor.dtype), shape(tensor))
    is_half = tensor.dtype.name in ("float16", "bfloat16")
    square = cast(tensor, "float32") if is_half else tensor
    square = inv(square) if n < 0 else square
    product, left = None, abs(int(n))
    while left:
        if left % 2:
            product = square if product is None else matrix_product(product, square)
        left //= 2
        square = matrix_product(square, square) if left else square
    assert product is not None
    return cast(product, tensor.dtype) if is_half else product


def det(x: TensorLike) -> Tensor:
    """Compute the determinants of the square matrices in the last two axes.

    Singular ones have gradients, too; second derivatives need matrices that can be inverted.

    Raises:
        ValueError: the matrices are not square.
    """
    (tensor,), dtype = widened(x)
    return cast(apply(Determinant(), tensor), dtype)


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """Solve A X = B for X.

    Args:
        a: square matrices, [..., m, m].
        b: right sides, [..., m, n], or one vector a matrix, [..., m].

    Raises:
        ValueError: the shapes do not fit.
        numpy.linalg.LinAlgError: (at run time) a matrix is singular.
    """
    return solved(Solve(), a, b)


def solved(op: Op, a: TensorLike, b: TensorLike) -> Tensor:
    """Solve by `op`; a right side with an axis less is one vector a matrix."""
    (left, right), dtype = widened(a, b)
    if left.ndim is not None and right.ndim == left.ndim - 1:
        return cast(squeeze(apply(op, left, expand_dims(right, -1)), -1), dtype)
    return cast(apply(op, left, right), dtype)


__all__ = ["det", "inv", "matrix_power", "solve"]
