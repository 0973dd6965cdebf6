"""Fourier transforms along the last axes. Those of short sequences are in `short_time`.

As in Keras, complex values come and go as pairs of real tensors. The transforms themselves are ops over complex numbers
whose gradients are transforms again, so that derivatives of every order cost what the transforms cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike
from ...common.nest import is_integer, is_sequence
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, leading_map
from ...graph.spec import Dim, Shape, shape_text, shapes_compatible
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply, cast, promote
from ..math.complex_numbers import complex, complex_type, imag, part_type, real
from ..math.elementwise import check_dtype
from ..run_time_shapes import runtime_shape


def _is_complex(dtype: DType) -> bool:
    return dtype.kind == "c"


def _is_precise(dtype: DType) -> bool:
    return dtype in (dtypes.float32, dtypes.float64)


def _check_complex(op: Op, spec: TensorSpec, rank: int = 1) -> None:
    check_dtype(op, spec, _is_complex, "complex numbers", "Make them with ops.complex.")
    _check_rank(op, spec, rank)


def _check_real(op: Op, spec: TensorSpec) -> None:
    check_dtype(op, spec, _is_precise, "real numbers of single or double precision", "Cast them with ops.cast.")
    _check_rank(op, spec, 1)


def _check_rank(op: Op, spec: TensorSpec, rank: int) -> None:
    if spec.rank is not None and spec.rank < rank:
        axes = "one axis" if rank == 1 else f"{rank} axes"
        raise ValueError(f"{op.type_name} needs at least {axes}; got {spec}.")


def _with_last(shape: Shape, last: Dim) -> Shape:
    return None if shape is None else (*shape[:-1], last)


def _last(shape: Shape) -> Dim:
    return None if shape is None else shape[-1]


def _without_factor(xp: Any, transform: Any, x: Any, count: int, divided: str, **options: Any) -> Any:
    """Return a transform whose sums are not divided by `count`.

    NumPy (2.4) computes those of single precision in double precision, which takes three to five times as long.

    Args:
        xp: the module of the arrays.
        transform: its function.
        x: what is transformed.
        count: how many elements are added up.
        divided: the function's `norm` by which it divides the sums.
        options: its other arguments.
    """
    if xp is not np or part_type(complex_type(x.dtype)) == dtypes.float64:
        return transform(x, norm="forward" if divided == "backward" else "backward", **options)
    found = transform(x, norm=divided, **options)
    found *= np.float32(count)
    return found


def _fitted(xp: Any, x: Any, size: int) -> Any:
    """Return `x` with its last axis cut, or padded with zeros, to `size`."""
    if x.shape[-1] >= size:
        return x[..., :size]
    out = xp.zeros((*x.shape[:-1], size), x.dtype)
    out[..., : x.shape[-1]] = x
    return out


# --- complex transforms ---------------------------------------------------------------------------------------------

_SIGNAL = np.array([[1, 2 - 1j, 0.5j], [-1, 3j, 2]], "complex64")


@dataclass(frozen=True)
class FourierTransform(Op):
    """The discrete Fourier transform over the last `rank` axes, or its inverse (which divides by their size).

    The matrix of the transform is symmetric, so that the transform passes cotangents back as well.
    """

    rank: int = 1
    inverse: bool = False
    never_fails: ClassVar[bool] = True
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_complex(self, inputs[0], self.rank)
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        return leading_map([len(inputs[0].shape)], [self.rank])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,), axes = inputs, tuple(range(-self.rank, 0))
        if self.inverse:
            return xp.fft.ifftn(x, axes=axes)
        return _without_factor(xp, xp.fft.fftn, x, math.prod(x.shape[axis] for axis in axes), "forward", axes=axes)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(self, dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _SIGNAL
        matrix = np.exp(-2j * np.pi * np.outer(np.arange(3), np.arange(3)) / 3)
        flip = np.array([[1, 1], [1, -1]])
        yield Sample(cls(), [x], (x @ matrix).astype("complex64"), (0,), label="rows")
        yield Sample(cls(1, True), [x], (x @ matrix.conj() / 3).astype("complex64"), (0,), label="inverse")
        yield Sample(cls(2), [x], (flip @ x @ matrix).astype("complex64"), (0,), label="two axes")
        yield Sample(cls(2, True), [x], (flip @ x @ matrix.conj() / 6).astype("complex64"), (0,), label="two inverse")
        yield Sample(cls(), [x[0, :1]], x[0, :1], (0,), label="one element")
        yield Sample(cls(), [x[:0]], x[:0], (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: fft((1.0, 2.0)), ValueError, "at least one axis; got complex64", "scalar")
        yield ErrorSample(lambda: fft2(([1.0], [2.0])), ValueError, "at least 2 axes; got complex64", "vector")


# --- real transforms ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealTransform(Op):
    """The first half (n // 2 + 1 values) of the Fourier transform of real numbers along the last axis.

    The axis is cut, or padded with zeros, to `length` first; None takes it as it is.
    """

    length: int | None = None
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 1
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        _check_real(self, x)
        length = _last(x.shape) if self.length is None else self.length
        return TensorSpec(_with_last(x.shape, None if length is None else length // 2 + 1), complex_type(x.dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        length = x.shape[-1] if self.length is None else self.length
        return _without_factor(xp, xp.fft.rfft, x, length, "forward", n=length)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (apply(RealTransformBack(self.length, x.shape), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2, 0.5, -1], [0, 3, -2, 1]], "float32")
        yield Sample(cls(), [x], np.fft.fft(x)[:, :3], (0,), label="even")
        yield Sample(cls(), [x[:, :3]], np.fft.fft(x[:, :3])[:, :2], (0,), label="odd")
        yield Sample(cls(3), [x], np.fft.fft(x[:, :3])[:, :2], (0,), label="cut")
        padded = np.concatenate([x, np.zeros((2, 2), "float32")], axis=1)
        yield Sample(cls(6), [x], np.fft.fft(padded)[:, :4], (0,), label="padded")
        yield Sample(cls(), [x[:0]], np.zeros((0, 3), "complex64"), (0,), label="empty")
        yield Sample(cls(1), [x[0]], np.array([1], "complex64"), (0,), label="one element")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: rfft(1.0), ValueError, "at least one axis; got float32", "scalar")
        spec = TensorSpec((4,), np.dtype("complex64"))
        yield ErrorSample(lambda: cls().infer(spec), TypeError, "real numbers of single or double", "complex")


def _multiplicity(xp: Any, length: int, dtype: DTypeLike) -> Any:
    """Count how often each value of half a transform is in the whole: twice, but for the first and the middle one."""
    counts = xp.full(length // 2 + 1, 2, dtype)
    counts[0] = 1
    if length % 2 == 0:
        counts[-1] = 1
    return counts


@dataclass(frozen=True)
class RealTransformBack(Op):
    """The transpose of `RealTransform`. Inputs: a cotangent, and the shape of what was transformed."""

    length: int | None
    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ()
    shape_input: ClassVar[int | None] = 1
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_complex(self, inputs[0])
        return TensorSpec(self.shape, part_type(inputs[0].dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        dy, shape = inputs
        size = int(shape[-1])
        length = size if self.length is None else self.length
        counts = _multiplicity(xp, length, part_type(dy.dtype))
        found = _without_factor(xp, xp.fft.irfft, xp.conjugate(dy) / counts, length, "backward", n=length)
        return _fitted(xp, found, size)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(RealTransform(self.length), dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        dy: Any = np.array([[1 + 2j, -1j, 2]], "complex64")
        for length, size in ((None, 4), (None, 5), (5, 3), (4, 6)):
            waves = np.exp(-2j * np.pi * np.outer(np.arange(3), np.arange(size)) / (length or size))
            expected = (dy @ waves).real.astype("float32")
            expected[:, length or size :] = 0
            inputs = [dy, np.array([1, size], "int32")]
            yield Sample(cls(length, (1, size)), inputs, expected, (0,), label=f"{length}, {size}")
        inputs = [dy[:0], np.array([0, 4], "int32")]
        yield Sample(cls(None, (None, 4)), inputs, np.zeros((0, 4), "float32"), (0,), label="empty")


@dataclass(frozen=True)
class InverseRealTransform(Op):
    """Real numbers from the first half of their Fourier transform, along the last axis.

    `length` says how many; None gives twice as many as the transform has values, less 2.
    """

    length: int | None = None
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 1
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        _check_complex(self, x)
        count, length = _last(x.shape), self.length
        if length is None and count is not None:
            length = 2 * (count - 1)
        return TensorSpec(_with_last(x.shape, length), part_type(x.dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.fft.irfft(inputs[0], self.length)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (apply(InverseRealTransformBack(self.length, x.shape), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2 - 1j, 0.5], [-1, 3j, 2]], "complex64")
        even = np.fft.ifft(np.stack([x[:, 0], x[:, 1], x[:, 2], x[:, 1].conj()], axis=1)).real
        yield Sample(cls(), [x], even.astype("float32"), (0,), label="even")
        odd = np.fft.ifft(np.concatenate([x, x[:, :0:-1].conj()], axis=1)).real
        yield Sample(cls(5), [x], odd.astype("float32"), (0,), label="odd")
        cut = np.fft.ifft(np.stack([x[:, 0], x[:, 1], x[:, 1].conj()], axis=1)).real
        yield Sample(cls(3), [x], cut.astype("float32"), (0,), label="cut")
        padded = np.fft.ifft(np.concatenate([x, np.zeros((2, 2)), x[:, :0:-1].conj()], axis=1)).real
        yield Sample(cls(7), [x], padded.astype("float32"), (0,), label="padded")
        yield Sample(cls(), [x[:0]], np.zeros((0, 4), "float32"), (0,), label="empty")
        yield Sample(cls(1), [x[0]], np.array([1], "float32"), (0,), label="one element")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: irfft((1.0, 2.0)), ValueError, "at least one axis; got complex64", "scalar")


@dataclass(frozen=True)
class InverseRealTransformBack(Op):
    """The transpose of `InverseRealTransform`. Inputs: a cotangent, and the shape of what was transformed."""

    length: int | None
    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ()
    shape_input: ClassVar[int | None] = 1
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_real(self, inputs[0])
        return TensorSpec(self.shape, complex_type(inputs[0].dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        dy, shape = inputs
        counts = _multiplicity(xp, dy.shape[-1], dy.dtype)
        halves = xp.fft.rfft(dy, norm="forward")
        return _fitted(xp, xp.conjugate(halves) * counts, int(shape[-1]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(InverseRealTransform(self.length), dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2, 0.5, -1, 3]], "float32")
        for length, size in ((4, 3), (5, 3), (4, 2), (5, 4)):
            waves = np.exp(2j * np.pi * np.outer(np.arange(length), np.arange(size)) / length) / length
            shares = np.array([1, 2, 1 if length == 4 else 2, 0])[:size]
            expected = (x[:, :length] @ (waves * shares)).astype("complex64")
            inputs = [x[:, :length], np.array([1, size], "int32")]
            yield Sample(cls(length, (1, size)), inputs, expected, (0,), label=f"{length}, {size}")
        inputs = [x[:0, :4], np.array([0, 3], "int32")]
        yield Sample(cls(None, (None, 3)), inputs, np.zeros((0, 3), "complex64"), (0,), label="empty")


# --- functions ------------------------------------------------------------------------------------------------------


def joined_parts(name: str, x: Any) -> tuple[Tensor, DType]:
    """Return a pair of real and imaginary parts as complex numbers, and the dtype of the parts.

    Raises:
        ValueError: it is not a pair of real tensors of one shape.
    """
    if not is_sequence(x) or len(x) != 2:
        raise ValueError(f"{name} takes a pair of the real and the imaginary part; got {_described(x)}.")
    parts = promote(*x, floating=True)
    if parts[0].dtype.kind == "c":
        raise ValueError(
            f"{name} takes a pair of real tensors; got {parts[0].dtype.name}. Take complex numbers apart by ops.real "
            "and ops.imag."
        )
    shapes = [part.shape for part in parts]
    if not shapes_compatible(*shapes):
        raise ValueError(
            f"{name}: the real part has shape {shape_text(shapes[0])} and the imaginary part {shape_text(shapes[1])}; "
            "expected one shape."
        )
    return complex(*parts), parts[0].dtype


def _described(value: Any) -> str:
    return f"a sequence of {len(value)}" if is_sequence(value) else f"one {type(value).__name__}"


def parted(x: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary parts of complex numbers, in `dtype`."""
    return cast(real(x), dtype), cast(imag(x), dtype)


def real_signal(name: str, x: TensorLike) -> tuple[Tensor, DType]:
    """Return real numbers in single or double precision, and their own dtype.

    Raises:
        ValueError: they are complex.
    """
    (tensor,) = promote(x, floating=True)
    if tensor.dtype.kind == "c":
        raise ValueError(f"{name} takes real numbers; got {tensor.dtype.name}. Use ops.fft for complex ones.")
    return cast(tensor, part_type(complex_type(tensor.dtype))), tensor.dtype


def check_positive(name: str, **values: Any) -> None:
    """Refuse arguments that are not positive integers.

    Raises:
        ValueError: as it says.
    """
    for argument, value in values.items():
        if not is_integer(value) or value <= 0:
            raise ValueError(f"{name}: {argument} must be a positive integer; got {value!r}.")


def fft(x: Any) -> tuple[Tensor, Tensor]:
    """Compute the Fourier transform along the last axis (``keras.ops.fft``).

    Args:
        x: a pair of the real and the imaginary part, [..., n].

    Returns:
        The real and the imaginary part, [..., n].

    Raises:
        ValueError: `x` is not a pair of real tensors of one shape, or has no axis.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.fft(([1.0, 2.0], [0.0, 1.0])))
    (array([ 3., -1.], dtype=float32), array([ 1., -1.], dtype=float32))
    """
    signal, dtype = joined_parts("fft", x)
    return parted(apply(FourierTransform(), signal), dtype)


def ifft(x: Any) -> tuple[Tensor, Tensor]:
    """Compute the inverse of `fft`, with the same arguments and results."""
    signal, dtype = joined_parts("ifft", x)
    return parted(apply(FourierTransform(inverse=True), signal), dtype)


def fft2(x: Any) -> tuple[Tensor, Tensor]:
    """Compute the Fourier transform over the last two axes (``keras.ops.fft2``).

    Args:
        x: a pair of the real and the imaginary part, [..., m, n].

    Returns:
        The real and the imaginary part, [..., m, n].

    Raises:
        ValueError: `x` is not a pair of real tensors of one shape, or has less than two axes.
    """
    signal, dtype = joined_parts("fft2", x)
    return parted(apply(FourierTransform(2), signal), dtype)


def ifft2(x: Any) -> tuple[Tensor, Tensor]:
    """Compute the inverse of `fft2`, with the same arguments and results."""
    signal, dtype = joined_parts("ifft2", x)
    return parted(apply(FourierTransform(2, inverse=True), signal), dtype)


def rfft(x: TensorLike, fft_length: int | None = None) -> tuple[Tensor, Tensor]:
    """Compute the Fourier transform of real numbers along the last axis; its first half says all.

    Args:
        x: real numbers, [..., n].
        fft_length: to what the axis is cut, or padded with zeros, first; by default n.

    Returns:
        The real and the imaginary part, [..., fft_length // 2 + 1].

    Raises:
        ValueError: `x` is complex or has no axis, or the length is not positive.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.rfft([1.0, 2.0, 3.0, 4.0]))
    (array([10., -2., -2.], dtype=float32), array([0., 2., 0.], dtype=float32))
    """
    if fft_length is not None:
        check_positive("rfft", fft_length=fft_length)
    signal, dtype = real_signal("rfft", x)
    return parted(apply(RealTransform(fft_length), signal), dtype)


def irfft(x: Any, fft_length: int | None = None) -> Tensor:
    """Return real numbers from the first half of their Fourier transform: the inverse of `rfft`.

    Args:
        x: a pair of the real and the imaginary part, [..., n].
        fft_length: how many numbers the transform was made of; by default 2 * (n - 1). An odd number must be given.

    Returns:
        [..., fft_length].

    Raises:
        ValueError: `x` is not a pair of real tensors of one shape or has no axis, or the length is not positive.

    >>> import anabranch as ab
    >>> ab.ops.irfft(([10.0, -2.0, -2.0], [0.0, 2.0, 0.0]))
    Tensor([1., 2., 3., 4.], dtype=float32)
    """
    if fft_length is not None:
        check_positive("irfft", fft_length=fft_length)
    transform, dtype = joined_parts("irfft", x)
    return cast(apply(InverseRealTransform(fft_length), transform), dtype)


__all__ = ["fft", "fft2", "ifft", "ifft2", "irfft", "rfft"]
