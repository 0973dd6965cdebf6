"""Quantiles, percentiles and medians, of all elements or of those that are not NaN.

They are made of sorting, picking and interpolation, through all of which gradients flow: to the one or two elements
that a quantile comes from, and to `q` where the method interpolates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.row_states import State
from ...graph.spec import shape_text
from ..arrays.axes import moveaxis
from ..arrays.gathering import take, take_along_axis
from ..arrays.shaping import constant_value, dim, expand_dims, ravel, reshape, squeeze
from ..arrays.sorting import sort
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_array,
    as_floating,
    cast,
    convert_to_tensor,
    dtype_of,
    is_numpy,
    normalize_axes,
)
from .comparison import clip, equal, isfinite, isinf, isnan, logical_and, logical_not, logical_or, where
from .mathematics import ceil, floor
from .mathematics import round as round_half_even
from .reduced import AxisLike
from .reduction import sum as total_of


@dataclass(frozen=True)
class NotEmpty(Op):
    """The input as it is, which must have elements on its last axis.

    Attributes:
        name: of the public function, for the error's text.
        axis: the axis or axes that its caller gave.
    """

    name: str
    axis: AxisLike
    view: ClassVar[bool] = True

    def row_state(self, node: Operation, given: Sequence[State]) -> State:
        return given[0]

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        return x if x.shape is None else self.run(np, x)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape[-1] == 0:
            raise ValueError(_no_elements(self.name, "", self.axis))
        return x

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls("median", None), [x], x, differentiable=(0,), label="matrix")
        yield Sample(cls("median", None), [x[0]], x[0], differentiable=(0,), label="vector")
        yield Sample(cls("median", 1), [x[:0]], x[:0], differentiable=(0,), label="no rows")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls("median", 1).run(np, np.zeros((2, 0))), ValueError, "over axis 1", "run")


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: TensorLike, q: TensorLike, axis: AxisLike = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Compute the values below which the shares `q` of the elements are; NaN where an element is NaN.

    Args:
        x: numbers; integers count as float32.
        q: a number from 0 to 1, or a vector of such.
        axis: the axes over which elements are ordered together; by default all.
        method: what a quantile between two elements is: "linear" (in proportion), "lower" or "higher" (one of them),
            "midpoint" (their mean), "nearest" (the nearer one; half-way, the one of even position).
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The reduced shape; for a vector `q`, with an axis for its entries in front.

    Raises:
        ValueError: `q` is known and outside [0, 1] or no vector, there are no elements, or `method` is unknown.

    >>> import anabranch as ab
    >>> ab.ops.quantile([4.0, 1.0, 3.0, 2.0], [0.25, 0.5])
    Tensor([1.75, 2.5 ], dtype=float32)
    """
    return _quantile("quantile", x, _shares("quantile", q, 1.0), axis, method, keepdims, skip_nan=False)


def percentile(
    x: TensorLike, q: TensorLike, axis: AxisLike = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles, with `q` in percent: from 0 to 100. See `quantile`."""
    return _quantile("percentile", x, _shares("percentile", q, 100.0), axis, method, keepdims, skip_nan=False)


def median(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the middle element in order over `axis` (all by default), or the mean of the two; NaN if one is NaN.

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.median([3, 1, 2, 10])))
    2.5
    """
    return _quantile("median", x, _shares("median", 0.5, 1.0), axis, "linear", keepdims, skip_nan=False)


def nanquantile(
    x: TensorLike, q: TensorLike, axis: AxisLike = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles of the elements that are not NaN; NaN where all are. See `quantile`.

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.nanquantile([1.0, float("nan"), 3.0], 0.5)))
    2.0
    """
    return _quantile("nanquantile", x, _shares("nanquantile", q, 1.0), axis, method, keepdims, skip_nan=True)


def nanpercentile(
    x: TensorLike, q: TensorLike, axis: AxisLike = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return percentiles of the elements that are not NaN; NaN where all are. See `percentile`."""
    return _quantile("nanpercentile", x, _shares("nanpercentile", q, 100.0), axis, method, keepdims, skip_nan=True)


def nanmedian(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the median of the elements that are not NaN; NaN where all are. See `median`."""
    return _quantile("nanmedian", x, _shares("nanmedian", 0.5, 1.0), axis, "linear", keepdims, skip_nan=True)


def _shares(name: str, q: TensorLike, whole: float) -> Tensor:
    """Return `q` as parts of 1, in float64 unless it is a float32 array: then its own rounding decides.

    Raises:
        ValueError: it has more than one axis, or is known and reaches outside of [0, whole].
    """
    is_single = (isinstance(q, Tensor) or is_numpy(q)) and dtype_of(q) == dtypes.float32
    share = convert_to_tensor(q, dtypes.float32 if is_single else dtypes.float64)
    if share.ndim is None or share.ndim > 1:
        raise ValueError(f"{name}: q must be a number or a vector; got shape {shape_text(share.shape)}.")
    known = constant_value(share)
    if known is not None and not np.all((known >= 0) & (known <= whole)):
        raise ValueError(f"{name}: q must be between 0 and {whole:g}; got {as_array(known).tolist()}.")
    return share if whole == 1 else share / whole


def _quantile(
    name: str, x: TensorLike, share: Tensor, axis: AxisLike, method: str, keepdims: bool, skip_nan: bool
) -> Tensor:
    if method not in METHODS:
        raise ValueError(f"{name}: method must be one of {', '.join(map(repr, METHODS))}; got {method!r}.")
    tensor = as_floating(x)
    rows = _rows(name, tensor, axis)
    shares = reshape(share, (1,)) if share.ndim == 0 else share
    ordered = sort(rows, axis=-1)  # NaNs come last
    count: Any = dim(rows, -1)
    if skip_nan:
        count = total_of(cast(logical_not(isnan(rows)), share.dtype), axis=-1, keepdims=True)
    values = _pick(ordered, shares, count, method, skip_nan)
    outside = where(logical_and(shares >= 0, shares <= 1), 0.0, float("nan"))
    if constant_value(share) is None:
        values = values + cast(outside, values.dtype)
    if not skip_nan:
        values = where(isnan(ordered[..., -1:]), float("nan"), values)
    return _put_back(values, share, tensor, axis, keepdims)


def _pick(ordered: Tensor, shares: Tensor, count: Any, method: str, per_row: bool) -> Tensor:
    """Return the quantiles [..., shares] of ordered rows [..., elements], of which the first `count` matter."""
    last = convert_to_tensor(count, shares.dtype) - 1
    # A row of NaNs has no last element: its first one then is the NaN that is wanted.
    place = clip(shares * last, 0, where(last > 0, last, 0))

    def at(position: Tensor) -> Tensor:
        indices = cast(position, dtypes.int32)
        return take_along_axis(ordered, indices, axis=-1) if per_row else take(ordered, indices, axis=-1)

    if method == "nearest":
        return at(round_half_even(place))
    if method == "lower":
        return at(floor(place))
    if method == "higher":
        return at(ceil(place))
    low, high = at(floor(place)), at(ceil(place))
    fraction = 0.5 if method == "midpoint" else cast(place - floor(place), ordered.dtype)
    # Infinite ones have no difference if they are equal, and from minus infinity on no number is nearer the next.
    stays = logical_and(isinf(low), logical_or(equal(low, high), isfinite(high)))
    return low + where(stays, 0, high - low) * fraction


def _rows(name: str, x: Tensor, axis: AxisLike) -> Tensor:
    """Return `x` with the axes of a reduction as one, behind all others.

    Raises:
        ValueError: there are no elements over these axes, or several axes are named and the rank is unknown.
    """
    if axis is None:
        rows = ravel(x)
    elif x.ndim is None and isinstance(axis, int):
        rows = moveaxis(x, axis, -1)
    elif x.ndim is None:
        raise ValueError(f"{name}(axis={axis}) over several axes needs an input of known rank.")
    else:
        axes = normalize_axes(axis, x.ndim) or ()
        others = [place for place in range(x.ndim) if place not in axes]
        moved = moveaxis(x, [*others, *axes], list(range(x.ndim))) if x.ndim else x
        size: Any = 1
        for place in axes:
            size = size * dim(x, place)
        rows = moved if len(axes) == 1 else reshape(moved, [*[dim(x, place) for place in others], size])
    if rows.shape is not None and rows.shape[-1] == 0:
        raise ValueError(_no_elements(name, f" of shape {shape_text(x.shape)}", axis))
    if rows.shape is not None and rows.shape[-1] is not None:
        return rows
    return apply(NotEmpty(name, axis if isinstance(axis, int) or axis is None else tuple(axis)), rows)


def _no_elements(name: str, shape: str, axis: AxisLike) -> str:
    where = "" if axis is None else f" over axis {axis}"
    return (
        f"{name} of an input{shape}{where}: there are no elements. "
        "Leave empty inputs out, or give another value for them with ops.cond."
    )


def _put_back(values: Tensor, share: Tensor, x: Tensor, axis: AxisLike, keepdims: bool) -> Tensor:
    """Return quantiles [..., shares] in the shape of the result.

    Raises:
        ValueError: all axes are to be kept, and how many there are is unknown.
    """
    vector = share.ndim == 1
    result = moveaxis(values, -1, 0) if vector else squeeze(values, -1)
    if not keepdims:
        return result
    if axis is not None and x.ndim is None:
        only: Any = axis  # several axes need a known rank
        return expand_dims(result, int(only) + vector if int(only) >= 0 else only)
    axes = normalize_axes(axis, x.ndim)
    if axes is None:
        raise ValueError("keepdims=True over all axes needs an input of known rank; that of the input is unknown.")
    return expand_dims(result, [place + vector for place in axes]) if axes else result


__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]
