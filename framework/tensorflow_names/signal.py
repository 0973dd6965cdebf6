"""`tf.signal`: Fourier transforms, windows and spectrograms, with TensorFlow's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike, apply
from ...engine.ops.signal.short_time import OverlapAdd
from ...layers.preprocessing.spectrograms import mel_weights

Window: TypeAlias = Callable[..., TensorLike] | None
Parts: TypeAlias = tuple[Tensor, Tensor]  # real, imaginary


def _transformed(transform: Callable[[Parts], Parts], x: TensorLike) -> Tensor:
    tensor = ops.convert_to_tensor(x)
    return ops.complex(*transform((ops.real(tensor), ops.imag(tensor))))


def fft(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the Fourier transform of complex numbers along the last axis."""
    return _transformed(ops.fft, input)


def ifft(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse of `fft`: ``ifft(fft(x))`` is `x`."""
    backward = _transformed(ops.fft, ops.conj(ops.convert_to_tensor(input)))
    return ops.conj(backward) / ops.cast(ops.shape(backward)[-1], backward.dtype)


def fft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the Fourier transform of complex numbers along the last two axes."""
    return _transformed(ops.fft2, input)


def ifft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse of `fft2d`."""
    return _transformed(ops.ifft2, input)


def _length(fft_length: Sequence[int] | int | None) -> int | None:
    """Return the length of a transform, which TensorFlow takes as a vector of one element."""
    return None if fft_length is None else int(np.reshape(fft_length, ()))


def rfft(input_tensor: TensorLike, fft_length: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
    """Compute the Fourier transform of real numbers along the last axis: its first half, which says all.

    Args:
        input_tensor: real numbers.
        fft_length: to what the axis is cut, or padded with zeros, first.
    """
    return ops.complex(*ops.rfft(input_tensor, _length(fft_length)))


def irfft(input_tensor: TensorLike, fft_length: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
    """Return real numbers from the first half of their Fourier transform: the inverse of `rfft`.

    Args:
        input_tensor: complex numbers.
        fft_length: how many numbers the transform was made of; by default an even number.
    """
    tensor = ops.convert_to_tensor(input_tensor)
    return ops.irfft((ops.real(tensor), ops.imag(tensor)), _length(fft_length))


def _shifted(x: TensorLike, axes: Sequence[int] | int | None, to_middle: bool) -> Tensor:
    tensor = ops.convert_to_tensor(x)
    chosen = range(tensor.ndim or 0) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    for axis in chosen:
        size = ops.shape(tensor)[axis]
        tensor = ops.roll(tensor, size // 2 if to_middle else -(size // 2), axis)
    return tensor


def fftshift(x: TensorLike, axes: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
    """Move the element of frequency 0 to the middle, along some axes or all."""
    return _shifted(x, axes, True)


def ifftshift(x: TensorLike, axes: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
    """Move the middle to the front, along some axes or all: the inverse of `fftshift`."""
    return _shifted(x, axes, False)


# --- windows --------------------------------------------------------------------------------------------------------


def _raised_cosine(length: int, periodic: bool, dtype: DTypeLike, base: float) -> Tensor:
    if length == 1:
        return ops.ones((1,), dtype)
    points = np.arange(length) / (
        length - 1 + int(periodic and length % 2 == 0)
    )  # of odd lengths, as TensorFlow has it
    return ops.convert_to_tensor((base - (1 - base) * np.cos(2 * np.pi * points)).astype(as_dtype(dtype)))


def hann_window(
    window_length: int, periodic: bool = True, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor:
    """Return von Hann's window, a raised cosine; periodic: without its last point, where it is 0 again."""
    return _raised_cosine(int(window_length), periodic, dtype, 0.5)


def hamming_window(
    window_length: int, periodic: bool = True, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor:
    """Return Hamming's window, a raised cosine that is not 0 at its ends."""
    return _raised_cosine(int(window_length), periodic, dtype, 0.54)


def _weights(window_fn: Window, length: int, dtype: DTypeLike) -> TensorLike:
    return ops.ones((length,), dtype) if window_fn is None else window_fn(length, dtype=dtype)


def inverse_stft_window_fn(
    frame_step: int, forward_window_fn: Window = hann_window, name: str | None = None
) -> Callable[..., Tensor]:
    """Return the window for `inverse_stft` with which it gives back the signal that `stft` got.

    Args:
        frame_step: how far behind the start of a frame the next one starts.
        forward_window_fn: the window of `stft`.
    """

    def window(frame_length: int, dtype: DTypeLike = "float32") -> Tensor:
        forward = ops.convert_to_tensor(_weights(forward_window_fn, frame_length, dtype))
        overlaps = -(-frame_length // frame_step)
        squares = ops.pad(ops.square(forward), [(0, overlaps * frame_step - frame_length)])
        total = ops.sum(ops.reshape(squares, (overlaps, frame_step)), axis=0, keepdims=True)
        return forward / ops.reshape(ops.tile(total, (overlaps, 1)), (-1,))[:frame_length]

    return window


# --- frames ---------------------------------------------------------------------------------------------------------


def frame(
    signal: TensorLike,
    frame_length: int,
    frame_step: int,
    pad_end: bool = False,
    pad_value: float = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Cut an axis into frames of `frame_length` elements, one starting every `frame_step` elements.

    Args:
        signal: a tensor.
        frame_length: how many elements a frame has.
        frame_step: how far behind the start of a frame the next one starts.
        pad_end: whether a frame starts everywhere before the end, filled up with `pad_value`.
        pad_value: what is behind the end.
        axis: the axis, in whose place there are two.
    """
    tensor = ops.convert_to_tensor(signal)
    place = axis % (tensor.ndim or 1)
    tensor = ops.moveaxis(tensor, place, -1)
    if pad_end:
        size = ops.shape(tensor)[-1]
        missing = (-(-size // frame_step) - 1) * frame_step + frame_length - size
        missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
        tensor = ops.pad(tensor, [*[(0, 0)] * ((tensor.ndim or 1) - 1), (0, missing)], constant_values=pad_value)
    frames = ops.extract_sequences(tensor, int(frame_length), int(frame_step))
    return ops.moveaxis(frames, (-2, -1), (place, place + 1))


def overlap_and_add(signal: TensorLike, frame_step: int, name: str | None = None) -> Tensor:
    """Add up frames, [..., frames, frame_length], each `frame_step` elements behind the one before."""
    frames = ops.convert_to_tensor(signal)
    return apply(OverlapAdd(int(ops.shape(frames)[-1]), int(frame_step)), frames)


def stft(
    signals: TensorLike,
    frame_length: int,
    frame_step: int,
    fft_length: int | None = None,
    window_fn: Window = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the short-time Fourier transform of real signals, [..., samples].

    Args:
        signals: the signals.
        frame_length, frame_step, pad_end: as of `frame`.
        fft_length: the length of each transform; by default the next power of two.
        window_fn: gives the weights of the elements of a frame for its length and a dtype; None for none.

    Returns:
        Complex numbers, [..., frames, fft_length // 2 + 1].
    """
    frames = frame(signals, frame_length, frame_step, pad_end)
    return rfft(frames * _weights(window_fn, frame_length, frames.dtype), fft_length or _power_of_two(frame_length))


def inverse_stft(
    stfts: TensorLike,
    frame_length: int,
    frame_step: int,
    fft_length: int | None = None,
    window_fn: Window = hann_window,
    name: str | None = None,
) -> Tensor:
    """Compute signals from short-time Fourier transforms: frames, weighted by `window_fn`, are added up.

    Args:
        stfts: complex numbers, [..., frames, fft_length // 2 + 1].
        frame_length, frame_step, fft_length: as of `stft`.
        window_fn: the weights, by which signals get their own size again; see `inverse_stft_window_fn`.
    """
    frames = irfft(stfts, fft_length or _power_of_two(frame_length))[..., :frame_length]
    missing = frame_length - ops.shape(frames)[-1]
    if isinstance(missing, int) and missing > 0:
        frames = ops.pad(frames, [*[(0, 0)] * ((frames.ndim or 1) - 1), (0, missing)])
    return overlap_and_add(frames * _weights(window_fn, frame_length, frames.dtype), frame_step)


def _power_of_two(length: int) -> int:
    return 1 << max(int(length) - 1, 0).bit_length()


# --- cosine transforms, mel bands -----------------------------------------------------------------------------------


def dct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the discrete cosine transform along the last axis.

    Args:
        input: real numbers.
        type: 2, or 3 for its inverse but for a factor.
        n: to what the axis is cut, or padded with zeros, first.
        axis: -1.
        norm: "ortho" scales the transform so that it keeps lengths.

    Raises:
        ValueError: the type, the axis or `norm` is another one.
    """
    if type not in (2, 3) or axis != -1 or norm not in (None, "ortho"):
        raise ValueError(f"tf.signal.dct takes type 2 or 3 along axis -1; got type={type}, axis={axis}, norm={norm!r}.")
    tensor = ops.convert_to_tensor(input)
    size = int(ops.shape(tensor)[-1])
    if n is not None and n > size:
        tensor = ops.pad(tensor, [*[(0, 0)] * ((tensor.ndim or 1) - 1), (0, n - size)])
    tensor = tensor if n is None else tensor[..., :n]
    size = size if n is None else n
    waves = 2 * np.cos(np.pi * np.outer(2 * np.arange(size) + 1, np.arange(size)) / (2 * size))  # [element, frequency]
    if norm == "ortho":
        waves = waves / math.sqrt(2 * size) / np.where(np.arange(size) == 0, math.sqrt(2), 1)
    elif type == 3:
        waves = waves / np.where(np.arange(size) == 0, 2, 1)
    return ops.matmul(tensor, ops.cast(waves if type == 2 else waves.T, tensor.dtype))


def idct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the inverse of `dct` but for a factor, with the same arguments; `n` must be None."""
    if n is not None:
        raise ValueError(f"tf.signal.idct: n must be None; got {n}.")
    return dct(input, 5 - type, n, axis, norm)


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: int = 129,
    sample_rate: float = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Return the matrix by which a spectrogram is multiplied to give mel bands.

    Args:
        num_mel_bins: how many bands there are.
        num_spectrogram_bins: how many frequencies the spectrogram has.
        sample_rate: samples a second.
        lower_edge_hertz, upper_edge_hertz: where the first band begins and the last one ends.
        dtype: of the result.

    Returns:
        [num_spectrogram_bins, num_mel_bins].
    """
    edges = lower_edge_hertz, upper_edge_hertz
    weights = mel_weights(num_mel_bins, num_spectrogram_bins, sample_rate, *edges)
    return ops.convert_to_tensor(weights.astype(as_dtype(dtype)))


def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: TensorLike, name: str | None = None) -> Tensor:
    """Compute mel-frequency cepstral coefficients from logarithms of mel bands, [..., frames, bands]."""
    bands = ops.convert_to_tensor(log_mel_spectrograms)
    return dct(bands) * (1.0 / math.sqrt(2.0 * int(ops.shape(bands)[-1])))


__all__ = [
    "dct",
    "fft",
    "fft2d",
    "fftshift",
    "frame",
    "hamming_window",
    "hann_window",
    "idct",
    "ifft",
    "ifft2d",
    "ifftshift",
    "inverse_stft",
    "inverse_stft_window_fn",
    "irfft",
    "linear_to_mel_weight_matrix",
    "mfccs_from_log_mel_spectrograms",
    "overlap_and_add",
    "rfft",
    "stft",
]
