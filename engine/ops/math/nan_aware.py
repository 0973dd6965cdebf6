"""Reductions and running totals that pass over NaNs, and `nan_to_num`. (Quantiles that do so are in `quantiles`.)"""

from __future__ import annotations

from typing import Any

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ..base import Tensor, TensorLike, as_floating, cast, convert_to_tensor
from .comparison import equal, isnan, logical_not, where
from .complex_numbers import absolute, imag, real
from .complex_numbers import complex as complex_of
from .mathematics import root_of_total
from .reduced import AxisLike, widened
from .reduction import all as all_true
from .reduction import argmax, argmin, prod
from .reduction import max as maximum_of
from .reduction import min as minimum_of
from .reduction import sum as total_of
from .running import cumprod, cumsum


def _without_nan(x: TensorLike, instead: float) -> Tensor:
    tensor = convert_to_tensor(x)
    return where(isnan(tensor), instead, tensor) if dtypes.is_differentiable(tensor.dtype) else tensor


def nansum(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the sum over `axis` of the elements that are not NaN. Bools and small integers are summed as int32.

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.nansum([1.0, float("nan"), 2.0])))
    3.0
    """
    return total_of(_without_nan(x, 0), axis, keepdims)


def nanprod(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the product over `axis` of the elements that are not NaN."""
    return prod(_without_nan(x, 1), axis, keepdims)


def nancumsum(x: TensorLike, axis: int | None = None, dtype: DTypeLike = None) -> Tensor:
    """Compute the running sum along `axis` (None: of the flattened input), in which NaNs count as 0."""
    return cumsum(_without_nan(x, 0), axis, dtype)


def nancumprod(x: TensorLike, axis: int | None = None, dtype: DTypeLike = None) -> Tensor:
    """Compute the running product along `axis` (None: of the flattened input), in which NaNs count as 1."""
    return cumprod(_without_nan(x, 1), axis, dtype)


def nanmax(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the maximum over `axis` of the elements that are not NaN; NaN where all are.

    Raises:
        ValueError: there are no elements.
    """
    tensor = convert_to_tensor(x)
    largest = maximum_of(_without_nan(tensor, float("-inf")), axis, keepdims)
    return _where_some(tensor, axis, keepdims, largest, float("nan"))


def nanmin(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the minimum over `axis` of the elements that are not NaN; NaN where all are.

    Raises:
        ValueError: there are no elements.
    """
    tensor = convert_to_tensor(x)
    smallest = minimum_of(_without_nan(tensor, float("inf")), axis, keepdims)
    return _where_some(tensor, axis, keepdims, smallest, float("nan"))


def nanargmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Compute the int32 position of the first maximum among the elements that are not NaN; -1 where all are.

    >>> import anabranch as ab
    >>> ab.ops.nanargmax([[float("nan"), 3.0], [float("nan")] * 2], axis=1)
    Tensor([ 1, -1], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    place = argmax(_without_nan(tensor, float("-inf")), axis, keepdims)
    return _where_some(tensor, axis, keepdims, place, -1)


def nanargmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Compute the int32 position of the first minimum among the elements that are not NaN; -1 where all are."""
    tensor = convert_to_tensor(x)
    place = argmin(_without_nan(tensor, float("inf")), axis, keepdims)
    return _where_some(tensor, axis, keepdims, place, -1)


def _where_some(x: Tensor, axis: AxisLike, keepdims: bool, result: Tensor, otherwise: float) -> Tensor:
    """Return `result`, but `otherwise` where all elements of `x` over `axis` are NaN."""
    if not dtypes.is_floating(x.dtype):
        return result
    return where(all_true(isnan(x), axis, keepdims), otherwise, result)


def _wide(x: TensorLike) -> tuple[Tensor, Any]:
    """Return `x` in the dtype in which its statistics are computed, and that of the result."""
    tensor = as_floating(x)
    return widened(tensor), tensor.dtype


def _count(x: Tensor, axis: AxisLike, keepdims: bool) -> Tensor:
    return total_of(cast(logical_not(isnan(x)), x.dtype), axis, keepdims)


def nanmean(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis` of the elements that are not NaN; NaN if there are none. Integers give float32."""
    wide, wanted = _wide(x)
    return cast(nansum(wide, axis, keepdims) / _count(wide, axis, keepdims), wanted)


def nanvar(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the variance over `axis` (divided by n) of the elements that are not NaN: real; NaN if there are none."""
    wide, wanted = _wide(x)
    deviation = where(isnan(wide), 0, wide - nanmean(wide, axis, keepdims=True))
    if wanted.kind == "c":
        deviation = absolute(deviation)
        return total_of(deviation * deviation, axis, keepdims) / cast(_count(wide, axis, keepdims), deviation.dtype)
    return cast(total_of(deviation * deviation, axis, keepdims) / _count(wide, axis, keepdims), wanted)


def nanstd(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the standard deviation over `axis` (divided by n) of the elements that are not NaN. See `nanvar`."""
    return root_of_total(nanvar(x, axis, keepdims))


def nan_to_num(x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return `x` with NaN and infinities replaced; no gradient flows to what is replaced.

    The real and the imaginary parts of complex numbers are replaced one by one.

    Args:
        posinf: for infinity; by default the greatest finite number of the dtype.
        neginf: for minus infinity; by default the smallest finite number.
    """
    tensor = convert_to_tensor(x)
    if tensor.dtype.kind == "c":
        return complex_of(*[nan_to_num(part, nan, posinf, neginf) for part in (real(tensor), imag(tensor))])
    if not dtypes.is_floating(tensor.dtype):
        return tensor
    largest = dtypes.largest(tensor.dtype)
    finite = where(equal(tensor, float("inf")), largest if posinf is None else posinf, tensor)
    finite = where(equal(tensor, -float("inf")), -largest if neginf is None else neginf, finite)
    return where(isnan(tensor), nan, finite)


__all__ = [
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]
