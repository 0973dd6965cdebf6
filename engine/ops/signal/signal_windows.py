"""Window functions of signal processing: bartlett, blackman, hamming, hanning, kaiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...common import dtypes
from ..arrays.creation import arange
from ..arrays.shaping import constant_value
from ..base import Tensor, TensorLike, cast, convert_to_tensor
from ..math.comparison import equal, where
from ..math.complex_numbers import absolute
from ..math.mathematics import sqrt
from ..math.special import i0
from ..math.trigonometry import cos


def _window(x: TensorLike, name: str, shape: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a window of `x` points as `config.floatx()`: `shape` gives it, in float64, over places from -1 to 1.

    Raises:
        TypeError: `x` is not a number.
        ValueError: `x` is not a scalar, or is known and not whole.
    """
    given = convert_to_tensor(x)
    if given.dtype.kind in "Tc":
        raise TypeError(f"{name}: the number of points must be an integer, or a whole float; got {given!r}.")
    if given.shape not in (None, ()):
        raise ValueError(f"{name}: the number of points must be a scalar; got {given!r}.")
    known = constant_value(given)
    if known is not None and not (np.isfinite(known) and known == int(known)):
        raise ValueError(f"{name}: the number of points must be whole; got {known}. Round it first.")
    count: Any = cast(given, dtypes.int32)
    place = cast(arange(count), dtypes.float64)
    last = cast(count, dtypes.float64) - 1
    alone = equal(last, 0)  # a window of one point is 1
    values = shape(place * 2 / where(alone, 1, last) - 1)
    return cast(where(alone, 1, values), dtypes.default_float())


def bartlett(x: TensorLike) -> Tensor:
    """Return Bartlett's window of `x` points: a triangle that is 0 at both ends.

    Args:
        x: the number of points, a whole number or a scalar tensor.

    Returns:
        A vector of `config.floatx()`.

    >>> import anabranch as ab
    >>> ab.ops.bartlett(5)
    Tensor([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _window(x, "bartlett", lambda place: 1 - absolute(place))


def hanning(x: TensorLike) -> Tensor:
    """Return von Hann's window of `x` points: a raised cosine that is 0 at both ends. See `bartlett`."""
    return _window(x, "hanning", lambda place: 0.5 + 0.5 * cos(place * math.pi))


def hamming(x: TensorLike) -> Tensor:
    """Return Hamming's window of `x` points: a raised cosine on a pedestal of 0.08. See `bartlett`."""
    return _window(x, "hamming", lambda place: 0.54 + 0.46 * cos(place * math.pi))


def blackman(x: TensorLike) -> Tensor:
    """Return Blackman's window of `x` points: the first three terms of a cosine series. See `bartlett`."""
    return _window(x, "blackman", lambda place: 0.42 + 0.5 * cos(place * math.pi) + 0.08 * cos(place * (2 * math.pi)))


def kaiser(x: TensorLike, beta: TensorLike) -> Tensor:
    """Return Kaiser's window of `x` points, made of Bessel functions.

    Args:
        x: the number of points, a whole number or a scalar tensor.
        beta: the shape: 0 is rectangular, 5 like Hamming's window, 6 like von Hann's, 8.6 like Blackman's.

    >>> import anabranch as ab
    >>> ab.ops.kaiser(3, 0.0)
    Tensor([1., 1., 1.], dtype=float32)
    """
    sharpness = convert_to_tensor(beta, dtypes.float64)

    def shape(place: Tensor) -> Tensor:
        inside = 1 - place * place
        at_edge = inside <= 0  # where the gradient of the root is infinite, and its factor 0
        return i0(sharpness * where(at_edge, 0, sqrt(where(at_edge, 1, inside)))) / i0(sharpness)

    return _window(x, "kaiser", shape)


__all__ = ["bartlett", "blackman", "hamming", "hanning", "kaiser"]
