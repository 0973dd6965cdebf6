"""Dot products, norms and distances.

Matrix products are in `products`, contractions by subscripts in `einsum`, inverses in `matrices`, factorisations in
`cholesky`, `factorisations` and `spectral`.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

from ...common import dtypes
from ...graph.spec import shape_text
from ..arrays.axes import moveaxis
from ..arrays.creation import diagonal, zeros_like
from ..arrays.joining import concatenate, stack
from ..arrays.shaping import axes_argument, dim, expand_dims, ravel, reshape, squeeze
from ..base import (
    Tensor,
    TensorLike,
    as_floating,
    cast,
    normalize_axis,
    promote,
)
from ..math.comparison import not_equal
from ..math.complex_numbers import absolute, conjugated, part_type
from ..math.elementwise import multiply
from ..math.mathematics import power, root_of_total
from ..math.reduction import max, min, sum
from .cholesky import cholesky
from .einsum import einsum, tensordot
from .matrices import det, inv, matrix_power, solve
from .products import matmul, product_of
from .spectral import svd
from .triangular import solve_triangular


def dot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute `numpy.dot`: the sum over the last axis of `x1` and the last but one (or only) axis of `x2`.

    Raises:
        ValueError: these axes differ in size, or a rank is unknown.
    """
    a, b = promote(x1, x2)
    if a.ndim is None or b.ndim is None:
        raise ValueError("dot needs operands of known rank. Use ops.matmul, or give the placeholder a shape.")
    if a.ndim == 0 or b.ndim == 0:
        return multiply(a, b)
    if b.ndim <= 2:
        return product_of(a, b)
    return tensordot(a, b, axes=((-1,), (-2,)))


def vdot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the dot product of the flattened inputs, of which the first is conjugated."""
    a, b = promote(x1, x2)
    return product_of(ravel(conjugated(a)), ravel(b))


def inner(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the sum over the last axes of both; scalars are multiplied.

    Raises:
        ValueError: the last axes differ in size.
    """
    a, b = promote(x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(a, b)
    return tensordot(a, b, axes=((-1,), (-1,)))


def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Multiply each element of `x1` by each element of `x2`, both flattened: [size of x1, size of x2]."""
    a, b = promote(x1, x2)
    return multiply(expand_dims(ravel(a), 1), expand_dims(ravel(b), 0))


def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Compute the sum along a diagonal of the matrices in `axis1` and `axis2`."""
    return sum(diagonal(x, offset=offset, axis1=axis1, axis2=axis2), axis=-1)


def kron(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the Kronecker product: `x2` once for each element of `x1`, multiplied by it.

    Axes that one operand lacks at the front count as axes of size 1; the sizes of the axes multiply.

    Raises:
        ValueError: a rank is unknown.

    >>> import anabranch as ab
    >>> ab.ops.kron([1, 10], [1, 2, 3])
    Tensor([ 1,  2,  3, 10, 20, 30], dtype=int32)
    """
    a, b = promote(x1, x2)
    if a.ndim is None or b.ndim is None:
        raise ValueError("kron needs operands of known rank; give the placeholder a shape.")
    rank = builtins.max(a.ndim, b.ndim)
    a, b = (expand_dims(x, tuple(range(rank - int(x.ndim or 0)))) if x.ndim != rank else x for x in (a, b))
    sizes = [dim(a, axis) * dim(b, axis) for axis in range(rank)]
    left = expand_dims(a, tuple(range(1, 2 * rank, 2))) if rank else a
    right = expand_dims(b, tuple(range(0, 2 * rank, 2))) if rank else b
    return reshape(multiply(left, right), sizes)


def cdist(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute the Euclidean distances between all pairs of rows.

    The gradient at distance 0 is 0.

    Args:
        x: [..., m, d].
        y: [..., n, d]; leading axes broadcast.

    Returns:
        [..., m, n].

    Raises:
        ValueError: an operand has less than two axes, or the last axes differ.

    >>> import anabranch as ab
    >>> ab.ops.cdist([[0.0, 0.0]], [[3.0, 4.0], [0.0, 1.0]])
    Tensor([[5., 1.]], dtype=float32)
    """
    a, b = promote(x, y, floating=True)
    for tensor in (a, b):
        if tensor.ndim in (0, 1):
            raise ValueError(
                f"cdist takes rows in the last two axes; got shapes {shape_text(a.shape)} and {shape_text(b.shape)}."
            )
    first, second = (None if tensor.shape is None else tensor.shape[-1] for tensor in (a, b))
    if first is not None and second is not None and first != second:
        raise ValueError(f"cdist: there is no distance between rows of {first} and of {second} elements.")
    return root_of_total(sum(_squared(expand_dims(a, -2) - expand_dims(b, -3)), -1))


def cross(
    x1: TensorLike, x2: TensorLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    """Return the cross product of vectors of 3 components (2 count as having no third) along an axis.

    Args:
        axisa, axisb: where the components of the inputs are.
        axisc: where those of the result go.
        axis: stands for all three.

    Raises:
        ValueError: the axes do not have 2 or 3 known components.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = (moveaxis(x, source, -1) for x, source in zip(promote(x1, x2), (axisa, axisb), strict=True))
    sizes = [x.shape[-1] if x.shape else None for x in (a, b)]
    if any(size not in (2, 3) for size in sizes):
        raise ValueError(f"cross takes vectors of 2 or 3 components; got {sizes[0]} and {sizes[1]}.")
    if sizes == [2, 2]:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    a, b = (
        concatenate([x, zeros_like(x[..., :1])], axis=-1) if size == 2 else x
        for x, size in zip((a, b), sizes, strict=True)
    )
    parts = [a[..., i] * b[..., j] - a[..., j] * b[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts, axis=-1), -1, axisc)


# --- norms ----------------------------------------------------------------------------------------------------------


def norm(x: TensorLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Compute the norm of vectors (one `axis`) or matrices (two), as `numpy.linalg.norm`.

    The gradient is 0 where the norm is 0.

    Args:
        ord: for vectors a number (None: 2, infinities allowed); for matrices None or "fro", "nuc" (the sum of the
            singular values), 2 or -2 (the largest or smallest of them), 1, -1, inf or -inf.
        axis: None takes all of `x`, as one vector if `ord` is None.

    Raises:
        ValueError: `ord` names no norm for vectors or matrices.
    """
    tensor = as_floating(x)
    wider = dtypes.accumulator_of(tensor.dtype)
    if wider is not None:  # squares of half precision overflow early
        return cast(norm(cast(tensor, wider), ord, axis, keepdims), tensor.dtype)
    if axis is None and ord is not None:
        if tensor.ndim not in (1, 2):
            raise ValueError(f"norm(ord={ord!r}) of an input of shape {shape_text(tensor.shape)} needs an axis.")
        axis = tuple(range(tensor.ndim))
    axes = None if axis is None else tuple(axes_argument(axis))
    if axes is None or (ord is None and len(axes) <= 2):
        return root_of_total(sum(_squared(tensor), axes, keepdims))
    if len(axes) == 1:
        return _vector_norm(tensor, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(tensor, ord, axes, keepdims)
    raise ValueError(f"norm takes one axis (vectors) or two (matrices); got axis={axis}.")


def _squared(x: Tensor) -> Tensor:
    size = absolute(x) if x.dtype.kind == "c" else x
    return size * size


def _vector_norm(x: Tensor, ord: Any, axis: int, keepdims: bool) -> Tensor:
    if isinstance(ord, str):
        raise ValueError(f"norm: ord={ord!r} is no norm of vectors; it takes two axes.")
    if ord == 0:
        return sum(cast(not_equal(x, 0), part_type(x.dtype)), axis, keepdims)
    if ord == 2:
        return root_of_total(sum(_squared(x), axis, keepdims))
    size = absolute(x)
    if ord == 1:
        return sum(size, axis, keepdims)
    if ord == math.inf:
        return max(size, axis, keepdims)
    if ord == -math.inf:
        return min(size, axis, keepdims)
    total = sum(power(size, ord), axis, keepdims)
    return root_of_total(total, ord) if ord > 0 else power(total, 1.0 / ord)


def _matrix_norm(x: Tensor, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if ord == "fro":
        return root_of_total(sum(_squared(x), axes, keepdims))
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ValueError(f"norm: ord={ord!r} is no norm of matrices; expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf.")
    if ord in ("nuc", 2, -2):
        values = svd(moveaxis(x, axes, (-2, -1)), compute_uv=False)
        total = sum(values, -1) if ord == "nuc" else max(values, -1) if ord == 2 else min(values, -1)
        return expand_dims(total, axes) if keepdims else total
    row, column = (normalize_axis(axis, x.ndim) for axis in axes)
    summed, kept = (row, column) if ord in (1, -1) else (column, row)
    reduce = max if ord in (1, math.inf) else min
    total = reduce(sum(absolute(x), summed, keepdims=True), kept, keepdims=True)
    return total if keepdims else squeeze(total, (row, column))


__all__ = [
    "cdist",
    "cholesky",
    "cross",
    "det",
    "dot",
    "einsum",
    "inner",
    "inv",
    "kron",
    "matmul",
    "matrix_power",
    "norm",
    "outer",
    "solve",
    "solve_triangular",
    "tensordot",
    "trace",
    "vdot",
]
