"""Signals cut into overlapping sequences, added up again, and the Fourier transforms of such sequences.

Source of the reconstruction: D. Griffin and J. Lim, "Signal estimation from modified short-time Fourier transform"
(1984).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...common.quick_dataclass import dataclass
from ...graph.spec import Dim, Shape, shape_text
from ..arrays.padding import pad
from ..arrays.shaping import broadcast_to, dim, reshape
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    cast,
    convert_to_tensor,
    make_constant,
)
from ..math.comparison import greater, where
from ..math.elementwise import multiply
from ..run_time_shapes import runtime_shape
from .fourier import InverseRealTransform, RealTransform, check_positive, joined_parts, parted, real_signal


def _count(size: int, length: int, stride: int) -> int:
    """Return how many sequences of `length`, each `stride` behind the one before, fit into `size` elements."""
    return 0 if size < length else 1 + (size - length) // stride


def _covered(count: int, length: int, stride: int) -> int:
    """Return the number of elements that so many sequences cover."""
    return 0 if count == 0 else (count - 1) * stride + length


@dataclass(frozen=True)
class ExtractSequences(Op):
    """Sequences of `length` elements of the last axis, starting every `stride` elements: [..., count, length]."""

    length: int
    stride: int
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        if not x.shape:
            raise ValueError(f"extract_sequences needs at least one axis; got {x}.")
        size = x.shape[-1]
        count = None if size is None else _count(size, self.length, self.stride)
        return TensorSpec((*x.shape[:-1], count, self.length), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape[-1] < self.length:
            return xp.zeros((*x.shape[:-1], 0, self.length), x.dtype)
        windows = xp.lib.stride_tricks.sliding_window_view(x, self.length, axis=-1)
        return windows[..., :: self.stride, :]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (apply(OverlapAdd(self.length, self.stride, x.shape), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([1, 2, 3, 4, 5, 6], "float32")
        yield Sample(cls(3, 2), [x], np.array([[1, 2, 3], [3, 4, 5]], "float32"), (0,), label="overlapping")
        yield Sample(cls(1, 4), [x.reshape(1, 6)], np.array([[[1], [5]]], "float32"), (0,), label="gaps")
        yield Sample(cls(4, 1), [x[:3]], np.zeros((0, 4), "float32"), (0,), label="too short")
        yield Sample(cls(2, 2), [x.reshape(2, 3)[:0]], np.zeros((0, 1, 2), "float32"), (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: extract_sequences(1.0, 1, 1), ValueError, "at least one axis; got float32", "scalar")
        yield ErrorSample(lambda: extract_sequences([1.0], 0, 1), ValueError, "sequence_length must be a pos", "length")
        yield ErrorSample(lambda: extract_sequences([1.0], 1, -1), ValueError, "sequence_stride must be", "stride")


@dataclass(frozen=True)
class OverlapAdd(Op):
    """The transpose of `ExtractSequences`: sequences added up where they came from.

    Inputs: the sequences, and the shape of the result as an int32 vector, of which `shape` is what is known. Without it
    the result is as long as the sequences reach.
    """

    length: int
    stride: int
    shape: Shape = None

    def infer(self, *inputs: Any) -> TensorSpec:
        x = inputs[0]
        if len(inputs) == 2:
            return TensorSpec(self.shape, x.dtype)
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        if len(x.shape) < 2 or x.shape[-1] not in (None, self.length):
            raise ValueError(f"overlap_add takes sequences of {self.length} elements, [..., count, length]; got {x}.")
        count: Dim = x.shape[-2]
        size = None if count is None else _covered(count, self.length, self.stride)
        return TensorSpec((*x.shape[:-2], size), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x = inputs[0]
        *batch, count, length = x.shape
        size = _covered(count, length, self.stride) if len(inputs) == 1 else int(inputs[1][-1])
        parts = math.ceil(length / self.stride)  # each sequence, as whole strides, is added to so many rows
        padded = xp.zeros((*batch, count, parts * self.stride), x.dtype)
        padded[..., :length] = x
        padded = padded.reshape(*batch, count, parts, self.stride)
        room = max(math.ceil(size / self.stride), count + parts)
        out = xp.zeros((*batch, room, self.stride), x.dtype)
        for part in range(parts):
            out[..., part : part + count, :] += padded[..., part, :]
        return out.reshape(*batch, room * self.stride)[..., :size]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(ExtractSequences(self.length, self.stride), dy), *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2, 3], [4, 5, 6]], "float32")
        yield Sample(cls(3, 2), [x], np.array([1, 2, 7, 5, 6], "float32"), (0,), label="overlapping")
        yield Sample(cls(3, 1), [x[None]], np.array([[1, 6, 8, 6]], "float32"), (0,), label="close")
        longer = np.array([1, 2, 3, 0, 0, 4, 5, 6, 0], "float32")
        yield Sample(cls(3, 5, (9,)), [x, np.array([9], "int32")], longer, (0,), label="gaps, longer")
        yield Sample(cls(3, 2), [x[:0]], np.zeros(0, "float32"), (0,), label="no sequence")
        inputs = [x[None, :0], np.array([1, 2], "int32")]
        yield Sample(cls(3, 2, (None, 2)), inputs, np.zeros((1, 2), "float32"), (0,), label="too short")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls(4, 1).infer(spec), ValueError, "sequences of 4 elements", "length")


# --- functions ------------------------------------------------------------------------------------------------------


def extract_sequences(x: TensorLike, sequence_length: int, sequence_stride: int) -> Tensor:
    """Cut the last axis into sequences of `sequence_length`, one starting every `sequence_stride` elements.

    Args:
        x: [..., n].
        sequence_length: how many elements a sequence has.
        sequence_stride: how far behind the start of a sequence the next one starts.

    Returns:
        [..., 1 + (n - sequence_length) // sequence_stride, sequence_length]; no sequences if n is too small.

    Raises:
        ValueError: `x` has no axis, or a number is not positive.

    >>> import anabranch as ab
    >>> ab.ops.extract_sequences([1, 2, 3, 4, 5, 6], 3, 2)
    Tensor([[1, 2, 3],
            [3, 4, 5]], dtype=int32)
    """
    check_positive("extract_sequences", sequence_length=sequence_length, sequence_stride=sequence_stride)
    return apply(ExtractSequences(int(sequence_length), int(sequence_stride)), convert_to_tensor(x))


def _window(name: str, window: Any, length: int, transform_length: int, dtype: DTypeLike) -> Tensor:
    """Return the weights of a sequence, with zeros on both sides up to the length of the transform.

    Raises:
        ValueError: the window is not known, or is not as long as a sequence.
    """
    check_positive(name, sequence_length=length, fft_length=transform_length)
    before = (transform_length - length) // 2
    if before < 0 or length > transform_length:
        raise ValueError(f"{name}: fft_length={transform_length} must not be less than sequence_length={length}.")
    if window is None:
        return make_constant(np.ones(transform_length, dtype))
    ends = (before, transform_length - length - before)
    if isinstance(window, str):
        return make_constant(np.pad(_named_window(name, window, length), ends).astype(dtype))
    weights = cast(convert_to_tensor(window), dtype)
    if weights.shape is not None and (len(weights.shape) != 1 or weights.shape[0] not in (length, None)):
        raise ValueError(
            f"{name}: the window has shape {shape_text(weights.shape)}; expected one weight for each of the {length} "
            "elements of a sequence."
        )
    return pad(weights, [ends])


def _named_window(name: str, window: str, length: int) -> Any:
    """Return the periodic Hann or Hamming window."""
    constants = {"hann": 0.5, "hamming": 0.54}
    if window not in constants:
        raise ValueError(f"{name}: window={window!r} is not known; expected 'hann', 'hamming', a tensor or None.")
    if length == 1:
        return np.ones(1)
    constant = constants[window]
    return constant - (1 - constant) * np.cos(2 * np.pi * np.arange(length) / length)


def stft(
    x: TensorLike,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: Any = "hann",
    center: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute the short-time Fourier transform along the last axis (``keras.ops.stft``).

    Args:
        x: real numbers, [..., n].
        sequence_length: how many elements a sequence has.
        sequence_stride: how far behind the start of a sequence the next one starts.
        fft_length: the length of each transform, at least `sequence_length`; sequences are in the middle of it.
        window: "hann" or "hamming" (periodic), None for none, or a tensor, [sequence_length]; the weights of the
            elements of a sequence.
        center: sequence t has its middle at element ``t * sequence_stride``, for which `x` is mirrored at both ends;
            otherwise its transform starts there.

    Returns:
        The real and the imaginary part, [..., count, fft_length // 2 + 1].

    Raises:
        ValueError: an argument is out of range, or `x` is complex, or of unknown rank and to be mirrored.

    >>> import anabranch as ab
    >>> ab.ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 3, 2, 3)[0]
    Tensor([[ 0.75 , -0.375],
            [ 3.75 , -1.875],
            [ 5.25 , -2.625]], dtype=float32)
    """
    check_positive("stft", sequence_stride=sequence_stride)
    signal, dtype = real_signal("stft", x)
    weights = _window("stft", window, sequence_length, fft_length, signal.dtype)
    if center and fft_length > 1:
        if signal.shape is None or not signal.shape:
            raise ValueError(f"stft(center=True) needs a signal of known rank, at least 1; got {signal.spec}.")
        ends = (fft_length // 2, fft_length // 2)
        signal = pad(signal, [*[(0, 0)] * (len(signal.shape) - 1), ends], "reflect")
    sequences = extract_sequences(signal, fft_length, sequence_stride)
    return parted(apply(RealTransform(), multiply(sequences, weights)), dtype)


_NEGLIGIBLE = 1e-10  # where the weights of all sequences add up to less, the signal is not divided by them


def istft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: Any = "hann",
    center: bool = True,
) -> Tensor:
    """Return the signal whose `stft`, with the same arguments, is `x`; if there is none, that closest to it.

    Args:
        x: a pair of the real and the imaginary part, [..., count, fft_length // 2 + 1].
        sequence_length, sequence_stride, fft_length, window, center: as of `stft`.
        length: the result is cut, or padded with zeros, to this length; by default it is as long as the sequences
            reach, less the halves of a transform that were mirrored at both ends.

    Returns:
        [..., length].

    Raises:
        ValueError: an argument is out of range, or `x` is not a pair of real tensors of one shape with two axes.

    >>> import anabranch as ab
    >>> signal = [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> ab.Session().run(ab.ops.istft(ab.ops.stft(signal, 4, 1, 4), 4, 1, 4)).round(3) + 0.0
    array([0., 1., 2., 3., 4.], dtype=float32)
    """
    check_positive("istft", sequence_stride=sequence_stride)
    if length is not None:
        check_positive("istft", length=length)
    transforms, dtype = joined_parts("istft", x)
    if transforms.ndim in (0, 1):
        raise ValueError(f"istft takes transforms of sequences, [..., count, bins]; got {transforms.spec}.")
    sequences = apply(InverseRealTransform(int(fft_length)), transforms)
    weights = _window("istft", window, sequence_length, fft_length, sequences.dtype)
    add = OverlapAdd(int(fft_length), int(sequence_stride))
    total = apply(add, broadcast_to(multiply(weights, weights), (dim(sequences, -2), fft_length)))
    known = greater(total, _NEGLIGIBLE)
    signal = apply(add, multiply(sequences, weights)) / where(known, total, 1)
    mirrored = fft_length // 2 if center else 0
    if length is not None:
        return cast(_of_length(signal[..., mirrored:], int(length)), dtype)
    return cast(signal[..., mirrored : dim(signal, -1) - mirrored], dtype)


def _of_length(signal: Tensor, length: int) -> Tensor:
    """Return the last axis cut, or padded with zeros, to a length."""
    size = dim(signal, -1)
    if isinstance(size, int) and size >= length:
        return signal[..., :length]
    if signal.shape is None:
        raise ValueError("istft(length=...) needs transforms of known rank; give the placeholder a shape.")
    missing = length - size if isinstance(size, int) else length
    padded = pad(signal, [*[(0, 0)] * (len(signal.shape) - 1), (0, missing)])[..., :length]
    return reshape(padded, [*(dim(padded, a) for a in range(len(signal.shape) - 1)), length])  # its size is known


__all__ = ["extract_sequences", "istft", "stft"]
