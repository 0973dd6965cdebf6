"""`jacobian`, `batch_jacobian` and `hessian`: all derivatives of all elements, row by row, computed together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.gradients import check_unconnected, gradients
from ..common.nest import flatten, map_structure, pack_as
from ..graph.tensor import Tensor
from ..ops.arrays.axes import moveaxis
from ..ops.arrays.creation import eye, zeros
from ..ops.arrays.joining import concatenate, stack
from ..ops.arrays.shaping import broadcast_to, ravel, reshape, shape, size
from ..ops.base import apply, convert_to_tensor, runs_now
from ..ops.containers.indexed_slices import dense
from ..ops.math.reduction import sum as sum_of
from ..ops.run_time_shapes import ZerosOfShape, runtime_shape
from .scan import map_fn
from .vectorized_map import batched_map


def jacobian(ys: Any, xs: Any, unconnected_gradients: str = "none", parallel: bool = True) -> Any:
    """Compute the derivative of each element of `ys` by each element of `xs` (as ``tf.GradientTape.jacobian``).

    Args:
        ys: a tensor, or a structure of them, of floating or complex dtypes.
        xs: a tensor or variable, or a structure of them.
        unconnected_gradients: what is returned for an x on which a y does not depend: "none" gives None, "zero" zeros.
        parallel: compute all rows at once (`vectorized_map`), which takes memory for all of them; otherwise one after
            the other, in a loop.

    Returns:
        For a y and an x a tensor of shape ``y.shape + x.shape``; for structures that of `ys`, and in the place of each
        y that of `xs`.

    Raises:
        TypeError, LookupError: as `gradients`.

    >>> import anabranch as ab
    >>> x = ab.placeholder((2,), "float32")
    >>> ab.Session().run(ab.jacobian(x * x, x), {x: [1.0, 2.0]})
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    _check_arguments("jacobian", ys, unconnected_gradients)

    def of_one(y: Any) -> Any:
        return _jacobian(y, xs, unconnected_gradients == "zero", parallel)

    return map_structure(of_one, dense(ys))


def hessian(y: Any, xs: Any, unconnected_gradients: str = "zero", parallel: bool = True) -> Any:
    """Return the second derivatives of the sum of `y` by the elements of each x, twice (as ``tf.compat.v1.hessians``).

    Args:
        y: a tensor, or a structure of them; their sum is differentiated.
        xs: a tensor or variable, or a structure of them. Derivatives by two different x are not among the result.
        unconnected_gradients: what is returned where nothing depends on an x, not even the first derivative: "zero"
            gives zeros, "none" None.
        parallel: as in `jacobian`.

    Returns:
        For each x a tensor of shape ``x.shape + x.shape``, in the structure of `xs`.

    >>> import anabranch as ab
    >>> x = ab.placeholder((2,), "float32")
    >>> ab.Session().run(ab.hessian(x[0] * x[0] * x[1], x), {x: [1.0, 2.0]})
    array([[4., 2.],
           [2., 0.]], dtype=float32)
    """
    _check_arguments("hessian", y, unconnected_gradients)
    zero = unconnected_gradients == "zero"
    leaves = flatten(xs)
    slopes = dense(gradients(y, leaves))
    rows = [
        None if slope is None else _jacobian(slope, x, zero=False, parallel=parallel)
        for x, slope in zip(leaves, slopes, strict=True)
    ]
    return pack_as(
        xs,
        [
            _all_zero(x, x) if row is None and zero else row
            for x, row in zip([convert_to_tensor(leaf) for leaf in leaves], rows, strict=True)
        ],
    )


def batch_jacobian(y: Any, x: Any, unconnected_gradients: str = "none", parallel: bool = True) -> Any:
    """Return the derivatives of each row of `y` by the same row of `x` (as ``tf.GradientTape.batch_jacobian``).

    Args:
        y: a tensor of shape [batch, ...], whose rows depend on the same rows of `x` only. If they depend on others too,
            the result is the sum over all rows.
        x: a tensor of shape [batch, ...].
        unconnected_gradients: what is returned if `y` does not depend on `x`: "none" gives None, "zero" zeros.
        parallel: as in `jacobian`.

    Returns:
        A tensor of shape ``[batch, *y.shape[1:], *x.shape[1:]]``, for the work of one row of a Jacobian an element of
        ``y[0]``.

    Raises:
        ValueError: `y` or `x` has no first axis, an unknown number of axes, or they differ in size.

    >>> import anabranch as ab
    >>> x = ab.placeholder((2, 2), "float32")
    >>> ab.Session().run(ab.batch_jacobian(ab.ops.sum(x * x, axis=1), x), {x: [[1.0, 2.0], [3.0, 4.0]]})
    array([[2., 4.],
           [6., 8.]], dtype=float32)
    """
    _check_arguments("batch_jacobian", y, unconnected_gradients)
    y, source = convert_to_tensor(y), convert_to_tensor(x)
    for name, tensor in (("y", y), ("x", source)):
        if not tensor.shape:
            raise ValueError(
                f"batch_jacobian: {name} must have a first axis, and a known number of axes; got {tensor.spec}."
            )
    y_sizes, x_sizes = shape(y), shape(source)
    if isinstance(y_sizes[0], int) and isinstance(x_sizes[0], int) and y_sizes[0] != x_sizes[0]:
        raise ValueError(f"batch_jacobian: y and x must have as many rows; got {y.spec} and {source.spec}.")
    # [elements of a row of y, batch, ...]
    if runs_now([y]):
        (found,) = _rows_of_value(y, y_sizes[1:], [x])
    else:
        columns = math.prod(y_sizes[1:])
        (found,) = _rows(reshape(y, (y_sizes[0], columns)), columns, [x], parallel)
    if found is None:
        return zeros((*y_sizes, *x_sizes[1:]), source.dtype) if unconnected_gradients == "zero" else None
    return reshape(moveaxis(found, 0, 1), (*y_sizes, *x_sizes[1:]))


def _check_arguments(name: str, y: Any, unconnected_gradients: str) -> None:
    check_unconnected(unconnected_gradients, unconnected_gradients)
    if callable(y):
        raise TypeError(
            f"{name} takes a tensor and what it was computed from; got a function instead. Call it first, "
            f"y = f(x): in a graph or an ab.function for {name}(y, x), or inside of `with ab.GradientTape() as tape:` "
            "for tape.jacobian(y, x)."
        )


def _jacobian(y: Any, xs: Any, zero: bool, parallel: bool) -> Any:
    target = convert_to_tensor(y)
    leaves = flatten(xs)
    if runs_now([target]):
        found = _rows_of_value(target, shape(target), leaves)
    else:
        found = _rows(ravel(target), size(target), leaves, parallel)
    return pack_as(
        xs,
        [
            (_all_zero(target, x) if zero else None) if rows is None else _shaped(rows, target, x)
            for x, rows in zip([convert_to_tensor(leaf) for leaf in leaves], found, strict=True)
        ],
    )


def _rows(target: Tensor, count: Any, xs: list[Any], parallel: bool) -> list[Any]:
    """Compute for each x the gradients of each column of `target`, stacked; None where there is no path."""
    connected: list[bool] = []

    def row(unit: Tensor) -> list[Any]:
        found = dense(gradients(sum_of(target * unit), xs))
        connected[:] = [gradient is not None for gradient in found]
        return [gradient for gradient in found if gradient is not None]

    units = eye(count, dtype=target.dtype)
    stacked = iter(batched_map(row, units)[0] if parallel else map_fn(row, units))
    return [next(stacked) if is_there else None for is_there in connected]


def _rows_of_value(target: Tensor, sizes: Sequence[int], xs: list[Any]) -> list[Any]:
    """Compute the rows for a value, for each element of its last axes, of these sizes: a sweep of the tape each.

    The value itself is differentiated, for no tape has recorded what would be made of it now.
    """
    found: list[Any] = []
    for number in range(math.prod(sizes)):  # one after the other: all units take the square of their number
        unit = np.zeros(sizes, target.dtype)
        unit.flat[number] = 1
        found.append(dense(gradients(target, xs, [broadcast_to(unit, shape(target))])))
    columns: list[Any] = list(zip(*found, strict=True))
    if not found:
        return [
            None if of is None else zeros((0, *x.shape), x.dtype)
            for of, x in zip(gradients(target, xs), xs, strict=True)
        ]
    return [None if column[0] is None else stack(list(column)) for column in columns]


def _shaped(rows: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return rows [elements of y, *x.shape] as [*y.shape, *x.shape]."""
    if y.shape is None or x.shape is None:
        return reshape(rows, concatenate([runtime_shape(y), runtime_shape(x)]))
    return reshape(rows, (*shape(y), *shape(x)))


def _all_zero(y: Tensor, x: Tensor) -> Tensor:
    if y.shape is None or x.shape is None:
        return apply(ZerosOfShape(None, x.dtype), concatenate([runtime_shape(y), runtime_shape(x)]))
    return zeros((*shape(y), *shape(x)), x.dtype)


__all__ = ["batch_jacobian", "hessian", "jacobian"]
