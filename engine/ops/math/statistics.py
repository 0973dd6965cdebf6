"""Weighted means, differences, integrals, ranges, correlations and histograms."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.claims import claim
from ...common.nest import is_integer
from ...common.quick_dataclass import dataclass
from ...graph.spec import TensorSpec, shape_text
from ..arrays.axes import flip, transpose
from ..arrays.creation import ones_like
from ..arrays.segments import segment_sum
from ..arrays.shaping import dim, ravel, reshape
from ..arrays.sorting import searchsorted
from ..arrays.spacing import linspace
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    apply,
    as_floating,
    cast,
    convert_to_tensor,
    normalize_axis,
    promote,
)
from ..linear_algebra.products import matmul
from ..run_time_shapes import broadcast_like
from .comparison import clip, equal, less, logical_and, maximum, minimum, not_equal, where
from .mathematics import sqrt
from .reduced import AxisLike
from .reduction import max as maximum_of
from .reduction import mean
from .reduction import min as minimum_of
from .reduction import sum as total_of
from .special import as_wide_floating

_BYTES_AN_OPERATION = 2000  # at least: an operation, its output, and what its graph notes of it

# --- differences and integrals --------------------------------------------------------------------------------------


def _neighbours(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return all elements but the last along `axis`, and all but the first."""
    before = (slice(None),) * axis
    return x[(*before, slice(None, -1))], x[(*before, slice(1, None))]


def diff(a: TensorLike, n: int = 1, axis: int = -1) -> Tensor:
    """Compute the differences of neighbours along `axis`, taken `n` times. Those of bools say where they differ.

    Raises:
        ValueError: `n` is negative, or there is no such axis.

    >>> import anabranch as ab
    >>> ab.ops.diff([1, 4, 9])
    Tensor([3, 5], dtype=int32)
    """
    tensor = convert_to_tensor(a)
    if n < 0:
        raise ValueError(f"diff: n must not be negative; got n={n}.")
    place = normalize_axis(axis, tensor.ndim)
    size = None if tensor.shape is None else tensor.shape[place]
    times = n if size is None else min(n, size)  # then nothing is left
    claim((times,), _BYTES_AN_OPERATION, f"diff: its operations, for n={n},")
    for _ in range(times):
        first, second = _neighbours(tensor, place)
        tensor = not_equal(first, second) if tensor.dtype == dtypes.bool_ else second - first
    return tensor


def trapezoid(y: TensorLike, x: TensorLike | None = None, dx: TensorLike = 1.0, axis: int = -1) -> Tensor:
    """Compute the integral along `axis` of a function with the values `y`, by the trapezoidal rule.

    Args:
        y: values; integers count as float32.
        x: the places of the values: a vector along `axis`, or of a shape that broadcasts against that of `y`.
        dx: the distance of the places, where `x` is None.
        axis: the axis to integrate along.

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.trapezoid([1, 2, 3], dx=0.5)))
    2.0
    """
    values = as_floating(y)
    place = normalize_axis(axis, values.ndim)
    first, second = _neighbours(values, place)
    places = None if x is None else convert_to_tensor(x, values.dtype)
    step = convert_to_tensor(dx, values.dtype) if places is None else _steps(places, values, axis)
    return total_of(step * (first + second), place) * 0.5


def _steps(x: Tensor, y: Tensor, axis: int) -> Tensor:
    if x.ndim != 1:
        return diff(x, axis=axis)
    if y.ndim is None:
        raise ValueError("trapezoid over a vector x needs values y of known rank.")
    shape = [1] * y.ndim
    shape[axis] = -1
    return reshape(diff(x), shape)


def ptp(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the range over `axis` (all axes by default): maximum minus minimum."""
    tensor = convert_to_tensor(x)
    return maximum_of(tensor, axis, keepdims) - minimum_of(tensor, axis, keepdims)


# --- correlation ----------------------------------------------------------------------------------------------------


def corrcoef(x: TensorLike) -> Tensor:
    """Compute Pearson's correlation coefficients of variables.

    Args:
        x: [variables, observations], or one variable as a vector. int64 counts as float64, other integers as float32.

    Returns:
        [variables, variables], or a scalar for one variable; NaN for variables that do not vary.

    Raises:
        ValueError: `x` has other axes.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.corrcoef([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).round(3)
    array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    tensor = as_wide_floating(x)
    if tensor.ndim not in (1, 2):
        raise ValueError(f"corrcoef takes [variables, observations]; got shape {shape_text(tensor.shape)}.")
    deviation = tensor - mean(tensor, axis=-1, keepdims=True)
    unit = deviation / sqrt(total_of(deviation * deviation, axis=-1, keepdims=True))
    products = matmul(unit, unit if tensor.ndim == 1 else transpose(unit))
    return clip(products[0, 0] if products.shape == (1, 1) else products, -1, 1)


def _check_vectors(name: str, *specs: Any) -> None:
    for spec in specs:
        if spec.rank not in (None, 1):
            raise ValueError(f"{name} takes vectors; got shape {shape_text(spec.shape)}.")
        if spec.shape == (0,):
            raise ValueError(f"{name} takes vectors of at least one element; got an empty one.")
        if not dtypes.is_floating(spec.dtype):
            raise TypeError(f"{name} takes real floating-point numbers; got {spec}. Cast it with ops.cast.")


@dataclass(frozen=True)
class _Correlation(Op):
    """Base: sums of products of two vectors, the second shifted along the first."""

    def size(self, first: int, second: int) -> int:
        """Return the number of shifts."""
        raise NotImplementedError

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_vectors("correlate", *inputs)
        first, second = inputs
        known = first.rank is not None and second.rank is not None and None not in (*first.shape, *second.shape)
        return TensorSpec((self.size(first.shape[0], second.shape[0]) if known else None,), first.dtype)

    def _correlated(self, xp: Any, x: Any, y: Any, mode: str) -> Any:
        if not x.size or not y.size:
            raise ValueError("correlate takes vectors of at least one element; got an empty one.")
        wide = "float64" if x.dtype == "float64" else "float32"
        return xp.correlate(x.astype(wide), y.astype(wide), mode).astype(x.dtype)


@dataclass(frozen=True)
class CorrelateFull(_Correlation):
    """All shifts at which the vectors overlap: ``result[k] = sum(x[n + k - len(y) + 1] * y[n])``."""

    never_fails: ClassVar[bool] = True

    def size(self, first: int, second: int) -> int:
        return first + second - 1

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._correlated(xp, *inputs, mode="full")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        return apply(CorrelateInside(), dy, flip(y, 0)), flip(apply(CorrelateInside(), dy, x), 0)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, y = np.array([1, 2, 3], "float32"), np.array([0, 1, 0.5], "float32")
        yield Sample(cls(), [x, y], np.array([0.5, 2, 3.5, 3, 0], "float32"), label="equal")
        yield Sample(cls(), [x, y[:2]], np.array([1, 2, 3, 0], "float32"), label="longer")
        yield Sample(cls(), [x[:1], y], np.array([0.5, 1, 0], "float32"), label="shorter")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: correlate([[1.0]], [1.0]), ValueError, r"takes vectors; got shape \[1,1\]", "matrix")
        yield ErrorSample(lambda: correlate(np.zeros(0), [1.0]), ValueError, "at least one element", "empty")
        yield ErrorSample(lambda: correlate([1.0], [1.0], "half"), ValueError, "'valid', 'same' or 'full'", "mode")


@dataclass(frozen=True)
class CorrelateInside(_Correlation):
    """The shifts at which y is inside of x, which is at least as long: ``result[k] = sum(x[n + k] * y[n])``."""

    never_fails: ClassVar[bool] = True

    def size(self, first: int, second: int) -> int:
        if first < second:
            raise ValueError(f"correlate: a vector of {second} elements does not fit into one of {first}.")
        return first - second + 1

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.size(len(inputs[0]), len(inputs[1]))
        return self._correlated(xp, *inputs, mode="valid")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        return apply(CorrelateFull(), dy, flip(y, 0)), apply(CorrelateInside(), x, dy)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, y = np.array([1, 2, 3, -1], "float32"), np.array([0, 1, 0.5], "float32")
        yield Sample(cls(), [x, y], np.array([3.5, 2.5], "float32"), label="longer")
        yield Sample(cls(), [x[:3], y], np.array([3.5], "float32"), label="equal")
        yield Sample(cls(), [x[:1], y[1:2]], np.array([1], "float32"), label="one")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        short, long = TensorSpec((2,), dtypes.float32), TensorSpec((3,), dtypes.float32)
        yield ErrorSample(lambda: cls().infer(short, long), ValueError, "3 elements does not fit into one of 2")


def correlate(x1: TensorLike, x2: TensorLike, mode: str = "valid") -> Tensor:
    """Compute the cross-correlation of two vectors: sums of products, with `x2` shifted along `x1`.

    Args:
        x1: a vector of m elements. int64 counts as float64, other integers as float32.
        x2: a vector of n elements.
        mode: "valid" has the shifts at which one is inside of the other, "full" all at which they overlap, "same"
            as many as the longer one has elements.

    Returns:
        A vector of max(m, n) - min(m, n) + 1, m + n - 1 or max(m, n) elements.

    Raises:
        ValueError: an input is not a vector or is empty, or `mode` is unknown.

    >>> import anabranch as ab
    >>> ab.ops.correlate([1, 2, 3], [0, 1, 0.5], "same")
    Tensor([2. , 3.5, 3. ], dtype=float32)
    """
    if mode not in ("valid", "same", "full"):
        raise ValueError(f"correlate: mode must be 'valid', 'same' or 'full'; got {mode!r}.")
    first, second = (as_wide_floating(x) for x in promote(x1, x2))
    _check_vectors("correlate", first.spec, second.spec)
    m, n = (dim(x, 0) for x in (first, second))
    if mode == "valid" and isinstance(m, int) and isinstance(n, int):
        return apply(CorrelateInside(), first, second) if m >= n else flip(apply(CorrelateInside(), second, first), 0)
    every = apply(CorrelateFull(), first, second)
    if mode == "full":
        return every
    if isinstance(m, int) and isinstance(n, int):
        shorter, longer = builtins.min(m, n), builtins.max(m, n)
        start: Any = shorter // 2 if m < n else (shorter - 1) // 2
    else:
        shorter, longer = minimum(m, n), maximum(m, n)
        start = where(less(m, n), shorter // 2, (shorter - 1) // 2)
    if mode == "valid":
        start, longer = shorter - 1, longer - shorter + 1
    return every[start : start + longer]


# --- histograms -----------------------------------------------------------------------------------------------------


def histogram(x: TensorLike, bins: int = 10, range: tuple[Any, Any] | None = None) -> tuple[Tensor, Tensor]:
    """Count the elements in each of `bins` intervals of equal width.

    Args:
        x: numbers, of any shape; integers count as float32.
        bins: how many intervals.
        range: where the first begins and the last ends, which has its end in it; by default the smallest and the
            largest element. Elements outside, and NaNs, are not counted.

    Returns:
        (int32 counts [bins], edges [bins + 1]).

    Raises:
        TypeError: `bins` is not an integer.
        ValueError: `bins` is not positive, or `range` is not an ascending pair.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.histogram([0.0, 0.5, 3.0, 4.0], bins=2))
    (array([2, 2], dtype=int32), array([0., 2., 4.], dtype=float32))
    """
    if not is_integer(bins):
        raise TypeError(f"histogram: bins must be an int; got {bins!r}.")
    if bins < 1:
        raise ValueError(f"histogram: bins must be positive; got bins={bins}.")
    values = ravel(as_floating(x))
    low, high = _limits(values, range)
    edges = linspace(low, high, bins + 1)
    below_end = searchsorted(edges, values, side="right") - 1
    place = where(equal(values, edges[-1]), bins - 1, below_end)
    inside = logical_and(values >= edges[0], values <= edges[-1])
    return segment_sum(ones_like(place), where(inside, place, bins), bins), edges  # those outside are in none


def _limits(values: Tensor, limits: Any) -> tuple[Tensor, Tensor]:
    """Return where the bins of a histogram begin and end, which is never the same place.

    Raises:
        ValueError: `limits` is not an ascending pair.
    """
    if limits is not None and (len(limits) != 2 or limits[1] < limits[0]):
        raise ValueError(f"histogram: range must be a pair of ascending numbers; got {limits!r}.")
    if limits is None:
        infinity = float("inf")
        least, most = minimum_of(values, initial=infinity), maximum_of(values, initial=-infinity)
        empty = least > most
        low, high = where(empty, 0, least), where(empty, 1, most)
    else:
        low, high = (convert_to_tensor(limit, values.dtype) for limit in limits)
    widen = cast(equal(low, high), values.dtype) * 0.5
    return low - widen, high + widen


def average(x: TensorLike, axis: AxisLike = None, weights: TensorLike | None = None) -> Tensor:
    """Return the weighted mean over `axis`.

    Args:
        weights: of the shape of `x`, or a vector along the one `axis`.

    Raises:
        ValueError: `weights` has another shape, and `axis` is not a single one.
    """
    if weights is None:
        return mean(x, axis)
    values, weight = promote(x, weights, floating=True)
    if weight.ndim == 1 and values.ndim != 1:
        weight = _along_axis(weight, values, axis)
    return total_of(values * weight, axis) / total_of(broadcast_like(weight, values), axis)


def _along_axis(weight: Tensor, x: Tensor, axis: AxisLike) -> Tensor:
    axes = [axis] if axis is None or isinstance(axis, int) else list(axis)
    if len(axes) != 1 or axes[0] is None or x.ndim is None:
        raise ValueError(
            f"average: weights of shape {shape_text(weight.shape)} go with one axis, and x of shape "
            f"{shape_text(x.shape)} is averaged over axis={axis}. Pass one axis, or weights of the shape of x."
        )
    shape = [1] * x.ndim
    shape[axes[0]] = -1
    return reshape(weight, shape)


__all__ = [
    "average",
    "corrcoef",
    "correlate",
    "diff",
    "histogram",
    "ptp",
    "trapezoid",
]
