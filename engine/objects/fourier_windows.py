"""The windows of `STFT` kernels by name, as SciPy's ``signal.get_window`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Sums of cosines: the weights of cos(0), cos(x), cos(2 x) and so on, with alternating signs.
_COSINES: dict[str, tuple[float, ...]] = {
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
    "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
    "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
}
# SciPy's other names.
_OTHER_NAMES = {
    other: name
    for name, others in {
        "barthann": "brthan bth",
        "bartlett": "bart brt",
        "blackman": "black blk",
        "blackmanharris": "blackharr bkh",
        "bohman": "bman bmn",
        "boxcar": "box ones rect rectangular",
        "cosine": "halfcosine",
        "exponential": "poisson",
        "flattop": "flat flt",
        "hamming": "hamm ham",
        "hann": "han hanning",
        "lanczos": "sinc",
        "nuttall": "nutl nut",
        "parzen": "parz par",
        "taylor": "taylorwin",
        "triang": "triangle tri",
        "tukey": "tuk",
    }.items()
    for other in others.split()
}
WINDOW_NAMES = (*_COSINES, *sorted({*_OTHER_NAMES.values()} - {*_COSINES}))


def check_window(name: Any) -> None:
    """Refuse a name that no window has; anything but a string is let through.

    Raises:
        ValueError: there is no such window.
    """
    if isinstance(name, str) and _OTHER_NAMES.get(name, name) not in WINDOW_NAMES:
        raise ValueError(
            f"There is no window called {name!r}. Expected one of {', '.join(sorted(WINDOW_NAMES))}, an array with "
            "the weight of each sample, or None."
        )


def window_of(name: str, size: int, periodic: bool) -> NDArray[np.float64]:
    """Return the weights of `size` samples; periodic ones are those of one sample more, without the last.

    >>> window_of("hann", 4, periodic=True).round(6).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    check_window(name)
    if size <= 1:
        return np.ones(size)
    count = size + 1 if periodic else size
    places = np.linspace(0.0, 1.0, count)
    return _shape(_OTHER_NAMES.get(name, name), places, count)[:size]


def _shape(name: str, places: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the window of `count` samples at `places`, which go from 0 to 1."""
    if name in _COSINES:
        return _cosines(_COSINES[name], 2 * np.pi * places)
    if name == "triang":  # not 0 at the ends
        steps = np.arange(1, count + 1, dtype="float64")
        return 1.0 - np.abs(2 * steps - count - 1) / (count + count % 2)
    if name == "cosine":
        return np.sin(np.pi * (np.arange(count) + 0.5) / count)
    if name == "taylor":
        return _taylor(count)
    return _by_distance(name, np.abs(2 * places - 1.0), count)


def _cosines(weights: Sequence[float], angles: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sum([(-1) ** k * weight * np.cos(k * angles) for k, weight in enumerate(weights)], axis=0)


def _by_distance(name: str, distance: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return a window by the distance of each sample from the middle: 1 at the ends."""
    if name == "bartlett":
        return 1.0 - distance
    if name == "barthann":
        return 0.62 - 0.24 * distance + 0.38 * np.cos(np.pi * distance)
    if name == "bohman":
        inner = (1 - distance) * np.cos(np.pi * distance) + np.sin(np.pi * distance) / np.pi
        return np.where(distance == 1, 0.0, inner)
    if name == "exponential":
        return np.exp(-distance * (count - 1) / 2)
    if name == "lanczos":
        return np.sinc(distance)
    if name == "parzen":
        part = distance * (count - 1) / count
        return np.where(2 * distance <= 1, 1 - 6 * part**2 + 6 * part**3, 2 * (1 - part) ** 3)
    if name == "tukey":  # flat in the middle half
        return np.where(distance <= 0.5, 1.0, 0.5 * (1 + np.cos(2 * np.pi * (distance - 0.5))))
    return np.ones(count)


def _taylor(count: int) -> NDArray[np.float64]:
    """Return Taylor's window with 4 side lobes of nearly one height, 30 dB below the main one."""
    width = (np.arccosh(10 ** (30 / 20)) / np.pi) ** 2
    lobes = np.arange(1, 4)
    spread = 4**2 / (width + 3.5**2)
    waves = 0.5 * _ratios(lobes, spread * (width + (lobes - 0.5) ** 2))
    angles = 2 * np.pi * (np.arange(count) - (count - 1) / 2) / count
    return (1 + 2 * np.cos(np.outer(angles, lobes)) @ waves) / (1 + 2 * waves.sum())


def _ratios(lobes: NDArray[np.int64], zeros: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each cosine: a product over the zeros of the spectrum, with signs that alternate."""
    squares = np.square(lobes)[:, None]
    above = np.prod(1 - squares / zeros, axis=1)
    below = np.prod(np.where(squares == squares.T, 1.0, 1 - squares / squares.T), axis=1)
    return (-1.0) ** (lobes + 1) * above / below
