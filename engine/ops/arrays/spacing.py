"""Evenly spaced values, on a linear or a logarithmic scale, and Vandermonde's matrix."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from ...common import dtypes
from ...common.claims import claim
from ...common.dtypes import DTypeLike, as_dtype
from ...common.nest import is_integer
from ...graph.spec import shape_text
from ..base import Tensor, TensorLike, cast, convert_to_tensor, dtype_of, make_constant, normalize_axis, promote
from ..math.comparison import equal, isnan, where
from ..math.complex_numbers import absolute
from ..math.elementwise import sign
from ..math.mathematics import floor, log10, power
from ..run_time_shapes import broadcast_like
from .axes import flip, moveaxis
from .creation import arange
from .shaping import constant_value, dim, expand_dims


def logspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    base: TensorLike = 10,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Tensor:
    """Return `num` powers of `base`, with exponents evenly spaced from `start` to `stop`.

    Args:
        start, stop: exponents, which broadcast against each other.
        num: how many values.
        endpoint: whether ``base ** stop`` is the last of them, or follows the last.
        base: of the powers.
        dtype: by default that of the floats among `start` and `stop`, or `config.floatx()`. Computed in float64.
        axis: where the new axis stands in the result.

    >>> import anabranch as ab
    >>> ab.ops.logspace(0, 2, 3)
    Tensor([  1.,  10., 100.], dtype=float32)
    """
    wanted = _result_dtype(start, stop, dtype)
    first, last = (convert_to_tensor(end, dtypes.float64) for end in (start, stop))
    exponents = linspace(first, last, num, endpoint=endpoint, axis=axis)
    return cast(power(convert_to_tensor(base, dtypes.float64), exponents), wanted)


def geomspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Tensor:
    """Return `num` values from `start` to `stop`, each the same multiple of the one before. Both ends are exact.

    Args:
        start, stop: numbers of one sign, which broadcast against each other; NaNs come of others.
        num: how many values.
        endpoint: whether `stop` is the last of them, or follows the last.
        dtype: by default that of the floats among `start` and `stop`, or `config.floatx()`. Computed in float64.
        axis: where the new axis stands in the result.

    Raises:
        ValueError: `start` or `stop` is known to hold a zero.

    >>> import anabranch as ab
    >>> ab.ops.geomspace(-1, -1000, 4)
    Tensor([   -1.,   -10.,  -100., -1000.], dtype=float32)
    """
    wanted = _result_dtype(start, stop, dtype)
    first, last = (convert_to_tensor(end, dtypes.float64) for end in (start, stop))
    for end in (first, last):
        known = constant_value(end)
        if known is not None and not np.all(known):
            raise ValueError(f"geomspace: start={start} and stop={stop} must not be zero.")
    shape = first * last
    first, last = broadcast_like(first, shape), broadcast_like(last, shape)
    size = linspace(log10(absolute(first)), log10(absolute(last)), num, endpoint=endpoint)
    values = where(shape > 0, sign(first), float("nan")) * power(10.0, size)
    if num > 0:
        values = _with_ends(values, first, last if endpoint and num > 1 else None, num)
    return moveaxis(cast(values, wanted), 0, axis)


def _with_ends(values: Tensor, first: Tensor, last: Tensor | None, num: int) -> Tensor:
    """Return `values` with the first and the last along axis 0 replaced, where the rank is known."""
    if values.ndim is None:
        return values
    place = np.arange(num).reshape((num,) + (1,) * (values.ndim - 1))
    fixed = where(place == 0, first, values)
    if last is not None:
        fixed = where(place == num - 1, last, fixed)
    return where(isnan(values), values, fixed)  # ends of two signs


def _result_dtype(start: TensorLike, stop: TensorLike, dtype: DTypeLike) -> Any:
    if dtype is not None:
        return as_dtype(dtype)
    given = [dtype_of(end) for end in (start, stop)]
    joined = dtypes.float_type(dtypes.result_type(*given))
    floats = joined.kind == "c" or any(dtypes.is_differentiable(d) for d in given if dtypes.is_dtype(d))
    return joined if floats else dtypes.default_float()


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """Return Vandermonde's matrix: the powers of each element of `x` as a row.

    Args:
        x: a vector.
        N: how many powers; by default as many as `x` has elements.
        increasing: whether the powers increase from left to right.

    Returns:
        [elements, N], of the dtype of `x`.

    Raises:
        ValueError: `x` is not a vector, or `N` is negative.
        TypeError: `N` is not an integer.

    >>> import anabranch as ab
    >>> ab.ops.vander([2, 3], 3)
    Tensor([[4, 2, 1],
            [9, 3, 1]], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if tensor.ndim != 1:
        raise ValueError(f"vander takes a vector; got shape {shape_text(tensor.shape)}.")
    if N is not None and not is_integer(N):
        raise TypeError(f"vander: N must be an int; got {N!r}.")
    if N is not None and N < 0:
        raise ValueError(f"vander: N must not be negative; got N={N}.")
    exponents: Any = arange(dim(tensor, 0) if N is None else N)
    exponents = exponents if increasing else flip(exponents, 0)
    number = dtypes.int32 if tensor.dtype == dtypes.bool_ else tensor.dtype
    powers = power(expand_dims(cast(tensor, number), 1), expand_dims(cast(exponents, number), 0))
    return cast(powers, tensor.dtype)


@overload
def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Tensor: ...


@overload
def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Any: ...


def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Any:
    """Return `num` evenly spaced values from `start` to `stop`.

    Args:
        start: a number or tensor.
        stop: a number or tensor that broadcasts against `start`.
        num: how many values.
        endpoint: whether `stop` is the last of them, or follows the last.
        retstep: return the step between values too.
        dtype: by default that of the floats among `start` and `stop`, or `config.floatx()`. Integers are rounded down,
            as in NumPy.
        axis: where the new axis stands in the result.

    Raises:
        ValueError: `num` is negative.

    >>> import anabranch as ab
    >>> ab.ops.linspace(0.0, 1.0, 5)
    Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    if num < 0:
        raise ValueError(f"linspace: num={num} must not be negative.")
    wanted = _result_dtype(start, stop, dtype)
    whole = wanted.kind in "iu"
    first, last = promote(start, stop, floating=True)
    computed = dtypes.float64 if whole else wanted if dtype is None else dtypes.result_type(first.dtype, wanted)
    if first.dtype != computed:
        first, last = cast(start, computed), cast(stop, computed)
    parts = num - 1 if endpoint else num
    total = last - first
    rank = None if total.shape is None else len(total.shape)
    place = axis if rank is None else normalize_axis(axis, rank + 1)
    claim((num,), 8, "linspace: the result")
    share = (np.arange(num) / max(parts, 1)).astype("float64")
    if rank is None and axis != 0:
        raise ValueError(f"linspace(axis={axis}) needs start and stop of known rank.")
    along = (-1,) + (1,) * ((rank or 0) - place)
    weights = make_constant(share.astype(first.dtype).reshape(along))
    begin = expand_dims(broadcast_like(first, total), place)
    end = expand_dims(broadcast_like(last, total), place)
    if whole:  # as in NumPy, which rounds down: numbers that are whole without rounding have to come out so
        steps = make_constant(np.arange(num, dtype="float64").reshape(along))
        values = floor(where(equal(weights, 1), end, begin + steps * (expand_dims(total, place) / max(parts, 1))))
    else:
        values = begin * (1 - weights) + end * weights  # in this form, both ends come out exactly
    result = convert_to_tensor(values, wanted)
    if not retstep:
        return result
    return result, total / parts if parts > 0 else total * float("nan")


__all__ = [
    "geomspace",
    "linspace",
    "logspace",
    "vander",
]
