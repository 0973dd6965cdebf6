"""The windows of `STFT` kernels by name, as SciPy's ``signal.get_window`` gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
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
_OTHER_NAMES = {"hanning": "hann", "rectangular": "boxcar", "ones": "boxcar", "triangle": "triang", "bart": "bartlett"}
WINDOW_NAMES = (*_COSINES, "bartlett", "boxcar", "cosine", "triang")


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
    """The weights of `size` samples; periodic ones are those of one sample more, without the last.

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
    if name in _COSINES:
        waves = [(-1) ** k * weight * np.cos(2 * np.pi * k * places) for k, weight in enumerate(_COSINES[name])]
        return np.sum(waves, axis=0)
    if name == "bartlett":
        return 1.0 - np.abs(2 * places - 1.0)
    if name == "triang":  # not 0 at the ends
        steps = np.arange(1, count + 1, dtype="float64")
        return 1.0 - np.abs(2 * steps - count - 1) / (count + count % 2)
    if name == "cosine":
        return np.sin(np.pi * (np.arange(count) + 0.5) / count)
    return np.ones(count)
