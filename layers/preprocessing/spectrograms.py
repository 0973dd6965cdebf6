"""Spectrograms: `STFTSpectrogram`, whose transform has weights, and `MelSpectrogram`, on a scale as ears have it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.objects.fourier_windows import check_window
from ...engine.objects.initializers import STFT
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import WeightSpec
from .layer_backend import LayerBackend

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ...engine.common.dtypes import DTypeLike
    from ..core.options import LayerOptions


_MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
_SMALLEST = 1e-7  # what roots and logarithms are kept away from 0 by


@config_from_signature()
class STFTSpectrogram(Layer):
    """A short-time Fourier transform made of convolutions, whose kernels can be trained.

    Args:
        mode: "log" (of the magnitude), "magnitude", "psd" (power spectral density), "real", "imag", "angle", or "stft",
            the real and behind it the imaginary part.
        frame_length: how many samples a frame has.
        frame_step: from one frame to the next; by default half of a frame.
        fft_length: the length of the transforms; by default the next power of two.
        window: the weights of a frame's samples: a name, such as "hann", an array, or None for none.
        periodic: whether a window by name is periodic.
        scaling: "density" or "spectrum": what the window is divided by, its norm or its sum; None for nothing.
        padding: "valid" or "same".
        expand_dims: keep frequencies and channels as two axes.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Input: ``(batch, samples, channels)``, floats. Output, with ``fft_length // 2 + 1`` frequencies (twice that for
    "stft"): ``(batch, frames, channels * frequencies)``, or with `expand_dims` ``(batch, frames, frequencies,
    channels)``; with "channels_first" ``(batch, channels * frequencies, frames)`` and ``(batch, channels, frames,
    frequencies)``.

    Raises:
        ValueError: an argument is out of range or unknown. TypeError: the input has no floats.

    >>> STFTSpectrogram("magnitude", frame_length=4, window=None, scaling=None)(np.ones((1, 4, 1), "float32")).round(3)
    Tensor([[[4., 0., 0.]]], dtype=float32)
    """

    real_kernel: Any  # None where the mode does not need it
    imag_kernel: Any

    def __init__(
        self,
        mode: str = "log",
        frame_length: int = 256,
        frame_step: int | None = None,
        fft_length: int | None = None,
        window: str | ArrayLike | None = "hann",
        periodic: bool = False,
        scaling: str | None = "density",
        padding: str = "valid",
        expand_dims: bool = False,
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self._check_choice("mode", mode, _MODES)
        self._check_choice("scaling", scaling, (None, "density", "spectrum"))
        self._check_choice("padding", padding, ("valid", "same"))
        check_numbers(f"Layer {self.name!r}", frame_length=frame_length)
        check_optional_numbers(f"Layer {self.name!r}", frame_step=frame_step, fft_length=fft_length)
        if frame_step is not None and not 1 <= frame_step <= frame_length:
            raise ValueError(
                f"Layer {self.name!r}: frame_step must be between 1 and frame_length={frame_length}, got {frame_step}."
            )
        if fft_length is not None and fft_length < frame_length:
            raise ValueError(
                f"Layer {self.name!r}: fft_length must be at least frame_length={frame_length}, got {fft_length}."
            )
        if fft_length is not None and fft_length & (fft_length - 1):
            warnings.warn(f"Layer {self.name!r}: fft_length={fft_length} is better a power of two.", stacklevel=2)
        check_window(window)
        self.mode = mode
        self.frame_length = frame_length
        self.frame_step = frame_step
        self.fft_length = fft_length
        self.window = window
        self.periodic = periodic
        self.scaling = scaling
        self.padding = padding
        self.expand_dims = expand_dims
        self.data_format = check_data_format(f"Layer {self.name!r}", data_format)
        self.input_spec = InputSpec(ndim=3)

    def _check_choice(self, name: str, value: object, allowed: tuple[object, ...]) -> None:
        if value not in allowed:
            raise ValueError(
                f"Layer {self.name!r}: {name} must be one of {', '.join(map(repr, allowed))}; got {value!r}."
            )

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        length = self.fft_length or 2 ** math.ceil(math.log2(self.frame_length))
        shape = (self.frame_length, 1, length // 2 + 1)
        real, imag = (STFT(side, self.window, self.scaling, self.periodic) for side in ("real", "imag"))
        return (
            WeightSpec("real_kernel", shape, real, present=self.mode != "imag"),
            WeightSpec("imag_kernel", shape, imag, present=self.mode != "real"),
        )

    def call(self, inputs: Tensor) -> Tensor:
        if not is_floating(inputs.dtype):
            raise TypeError(
                f"Layer {self.name!r} takes floats, got {inputs.dtype}. Cast the signal: ops.cast(x, 'float32')."
            )
        return self._arranged(self._spectrum(inputs))

    def _spectrum(self, inputs: Tensor) -> Tensor:
        """Compute ``(batch, channels, frames, frequencies)``."""
        if self.mode == "real":
            return self._transformed(inputs, self.real_kernel)
        imag = self._transformed(inputs, self.imag_kernel)
        if self.mode == "imag":
            return imag
        real = self._transformed(inputs, self.real_kernel)
        if self.mode == "angle":
            return ops.arctan2(imag, real)
        if self.mode == "stft":
            return ops.concatenate([real, imag], axis=-1)
        power = ops.square(real) + ops.square(imag)
        if self.mode == "psd":  # all frequencies but the first and the last stand for two
            return power + ops.pad(power[..., 1:-1], [[0, 0], [0, 0], [0, 0], [1, 1]])
        magnitude = ops.sqrt(ops.maximum(power, _SMALLEST))
        return magnitude if self.mode == "magnitude" else ops.log(ops.maximum(magnitude, _SMALLEST))

    def _transformed(self, inputs: Tensor, kernel: TensorLike) -> Tensor:
        signals = inputs if self.data_format == "channels_first" else ops.transpose(inputs, (0, 2, 1))
        batch, channels, samples = ops.shape(signals)
        frames = ops.conv(
            ops.reshape(signals, (batch * channels, samples, 1)),
            ops.cast(kernel, inputs.dtype),
            strides=self.frame_step or self.frame_length // 2,
            padding=self.padding,
            data_format="channels_last",
        )
        return ops.reshape(frames, (batch, channels, *ops.shape(frames)[1:]))

    def _arranged(self, spectrum: Tensor) -> Tensor:
        batch, channels, frames, frequencies = ops.shape(spectrum)
        if self.data_format == "channels_last":
            if self.expand_dims:
                return ops.transpose(spectrum, (0, 2, 3, 1))
            return ops.reshape(ops.transpose(spectrum, (0, 2, 1, 3)), (batch, frames, channels * frequencies))
        if self.expand_dims:
            return spectrum
        return ops.reshape(ops.transpose(spectrum, (0, 1, 3, 2)), (batch, channels * frequencies, frames))


@config_from_signature()
class MelSpectrogram(Layer):
    """Signals as spectrograms on the mel scale, in decibels.

    Args:
        fft_length: the length of the transforms.
        sequence_stride: the number of samples from one frame to the next.
        sequence_length: how many samples a frame has; by default `fft_length`.
        window: the weights of a frame's samples: "hann", "hamming", an array, or None for none.
        sampling_rate: samples a second.
        num_mel_bins: how many bands there are.
        min_freq, max_freq: the edges of the bands in hertz; the upper one is by default half the sampling rate.
        power_to_db: whether to give decibels.
        top_db: of decibels, how far below the greatest values of a batch are cut off.
        mag_exp: the power of the magnitudes: 1 for magnitudes, 2 for power.
        min_power: the least power before logarithms.
        ref_power: the power that counts as 0 decibels.

    Input: ``(samples,)`` or ``(batch, samples)``. Output: ``(..., num_mel_bins, frames)``.

    Raises:
        ValueError: `sequence_length` is greater than `fft_length`.

    Source of the scale: Young et al., "The HTK Book".

    >>> MelSpectrogram(fft_length=64, sequence_stride=32, num_mel_bins=8)(np.ones((2, 320), "float32")).shape
    (2, 8, 11)
    """

    backend: ClassVar[LayerBackend] = LayerBackend()

    def __init__(
        self,
        fft_length: int = 2048,
        sequence_stride: int = 512,
        sequence_length: int | None = None,
        window: str | ArrayLike | None = "hann",
        sampling_rate: int = 16000,
        num_mel_bins: int = 128,
        min_freq: float = 20.0,
        max_freq: float | None = None,
        power_to_db: bool = True,
        top_db: float = 80.0,
        mag_exp: float = 2.0,
        min_power: float = 1e-10,
        ref_power: float = 1.0,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        check_numbers(
            f"Layer {self.name!r}", fft_length=fft_length, sequence_stride=sequence_stride, sampling_rate=sampling_rate
        )
        check_numbers(
            f"Layer {self.name!r}", num_mel_bins=num_mel_bins, min_freq=min_freq, top_db=top_db, mag_exp=mag_exp
        )
        check_numbers(f"Layer {self.name!r}", min_power=min_power, ref_power=ref_power)
        check_optional_numbers(f"Layer {self.name!r}", sequence_length=sequence_length, max_freq=max_freq)
        self.fft_length = fft_length
        self.sequence_stride = sequence_stride
        self.sequence_length = sequence_length or fft_length
        if self.sequence_length > fft_length:
            raise ValueError(
                f"Layer {self.name!r}: a frame must fit into a transform, but sequence_length={sequence_length} is "
                f"greater than fft_length={fft_length}."
            )
        self.window = window
        self.sampling_rate = sampling_rate
        self.num_mel_bins = num_mel_bins
        self.min_freq = min_freq
        self.max_freq = max_freq or int(sampling_rate / 2)
        self.power_to_db = power_to_db
        self.top_db = top_db
        self.mag_exp = mag_exp
        self.min_power = min_power
        self.ref_power = ref_power
        self._build_at_init()

    def call(self, inputs: Tensor) -> Tensor:
        signal = ops.cast(inputs, "float64" if self.compute_dtype == "float64" else "float32")
        real, imag = ops.stft(
            signal, self.sequence_length, self.sequence_stride, self.fft_length, self.window, center=True
        )
        spectrum = ops.power(ops.sqrt(ops.square(real) + ops.square(imag)), self.mag_exp)
        matrix = self.linear_to_mel_weight_matrix(
            self.num_mel_bins, self.fft_length // 2 + 1, self.sampling_rate, self.min_freq, self.max_freq, signal.dtype
        )
        bands = ops.matmul(spectrum, matrix)
        if self.power_to_db:
            bands = self._in_decibels(bands)
        return ops.cast(ops.swapaxes(bands, -1, -2), self.compute_dtype)

    def _in_decibels(self, power: Tensor) -> Tensor:
        reference = 10.0 * math.log10(max(abs(self.ref_power), self.min_power))
        decibels = 10.0 * ops.log10(ops.maximum(power, self.min_power)) - reference
        return ops.maximum(decibels, ops.max(decibels) - self.top_db)

    def linear_to_mel_weight_matrix(
        self,
        num_mel_bins: int = 20,
        num_spectrogram_bins: int = 129,
        sampling_rate: float = 8000,
        lower_edge_hertz: float = 125.0,
        upper_edge_hertz: float = 3800.0,
        dtype: DTypeLike = "float32",
    ) -> np.ndarray:
        """Return the matrix by which a spectrogram is multiplied to give mel bands: a triangle of height 1 for each
        band.

        Args:
            num_mel_bins: how many bands there are.
            num_spectrogram_bins: how many frequencies the spectrogram has.
            sampling_rate: samples a second.
            lower_edge_hertz, upper_edge_hertz: where the first band begins and the last one ends.
            dtype: of the result.

        Returns:
            ``(num_spectrogram_bins, num_mel_bins)``.
        """
        edges = lower_edge_hertz, upper_edge_hertz
        return mel_weights(num_mel_bins, num_spectrogram_bins, sampling_rate, *edges).astype(dtype)


def mel_weights(
    bands: int, frequencies: int, sampling_rate: float, lower_edge_hertz: float, upper_edge_hertz: float
) -> np.ndarray:
    """Return the matrix by which a spectrogram is multiplied to give mel bands, [frequencies, bands]."""
    hertz = np.linspace(0.0, sampling_rate / 2.0, frequencies)[1:]  # without the mean
    places = _mel_of(hertz)[:, None]
    edges = np.linspace(_mel_of(lower_edge_hertz), _mel_of(upper_edge_hertz), bands + 2)
    lower, center, upper = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (places - lower) / (center - lower), (upper - places) / (upper - center)
    return np.pad(np.maximum(0.0, np.minimum(rising, falling)), [[1, 0], [0, 0]])


def _mel_of(hertz: float | np.ndarray) -> np.ndarray:
    return 1127.0 * np.log1p(hertz / 700.0)
