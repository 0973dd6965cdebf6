"""The windows of Fourier transforms by name, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.engine.objects.fourier_windows import WINDOW_NAMES, window_of
from anabranch.layers import STFTSpectrogram

# From the articles that describe them: 5 samples, or 9 where 5 do not show the shape.
KNOWN = {
    "bartlett": [0, 0.5, 1, 0.5, 0],
    "bohman": [0, 1 / np.pi, 1, 1 / np.pi, 0],
    "exponential": [np.exp(-2), np.exp(-1), 1, np.exp(-1), np.exp(-2)],
    "lanczos": [0, 2 / np.pi, 1, 2 / np.pi, 0],
    "barthann": [0, 0.5, 1, 0.5, 0],
    "tukey": [0, 0.5, 1, 1, 1, 1, 1, 0.5, 0],
}


@pytest.mark.parametrize("name", KNOWN)
def test_values_of_the_definitions(name: str) -> None:
    np.testing.assert_allclose(window_of(name, len(KNOWN[name]), periodic=False), KNOWN[name], atol=1e-12)


@pytest.mark.parametrize(
    "name", [*WINDOW_NAMES, "brthan", "rect", "halfcosine", "poisson", "sinc", "par", "tri", "tuk"]
)
@pytest.mark.parametrize("periodic", [True, False])
def test_scipys_values(name: str, periodic: bool) -> None:
    signal = pytest.importorskip("scipy.signal")
    for size in (1, 2, 3, 4, 5, 7, 8, 16, 33):
        want = signal.get_window(name, size, periodic)
        np.testing.assert_allclose(window_of(name, size, periodic), want, rtol=1e-12, atol=1e-12)


def test_a_spectrogram_by_tukeys_window() -> None:
    x = np.random.default_rng(0).normal(size=(1, 64, 1)).astype("float32")
    layer = STFTSpectrogram(frame_length=16, frame_step=8, window="tukey", mode="magnitude", scaling=None)
    found = layer(x).numpy()
    # As in Keras a transform of 16 samples; its windows are symmetric unless periodic=True.
    window = window_of("tukey", 16, layer.periodic)
    frames = np.stack([x[0, start : start + 16, 0] for start in range(0, 49, 8)])
    np.testing.assert_allclose(found[0], np.abs(np.fft.rfft(frames * window)), rtol=1e-4, atol=1e-4)


def test_windows_that_need_a_number_are_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"There is no window called 'kaiser'\. Expected one of barthann, bartlett, .*tukey"
    ):
        STFTSpectrogram(frame_length=16, window="kaiser")
