"""Complex numbers: their parts, how they are put together, and what a gradient with respect to them is.

**The gradient of a real loss L with respect to z = x + iy is dL/dx + i dL/dy**, the direction of steepest ascent, so
that ``z - rate * gradient`` descends. It is what TensorFlow and PyTorch compute, and the conjugate of what JAX does.
For a holomorphic f the gradient of f(z), with the seed 1, is the conjugate of f'(z).

Inside the reverse sweep a cotangent c means ``dL = Re(c dz)``, without a conjugate. There a holomorphic op passes on
``c f'(z)``, which is the very formula that it has for real numbers: an op's `grad` transposes and never conjugates.
`gradients` conjugates the seeds that enter the sweep and the results that leave it, and real tensors pay nothing.
Only ops that are not holomorphic, such as `conj`, have to think about what they do.

Sources: K. Kreutz-Delgado, "The complex gradient operator and the CR-calculus" (2009); the JAX documentation, "The
autodiff cookbook", section "Complex numbers and differentiation".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.spec import broadcast_shapes, shape_text
from ..arrays.creation import ones_like, zeros_like
from ..arrays.joining import stack
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_floating,
    as_scalar_or_array,
    cast,
    convert_to_tensor,
    promote,
)
from ..run_time_shapes import sum_like, zeros_of
from .comparison import equal
from .elementwise import Absolute, multiply, negative, stop_gradient
from .mathematics import hypot
from .trigonometry import arctan2, cos, sin


def part_type(dtype: DType) -> DType:
    """Return the real dtype of the parts of a complex one; any other dtype itself.

    >>> part_type(np.dtype("complex64")), part_type(np.dtype("int8"))
    (dtype('float32'), dtype('int8'))
    """
    return np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype


def complex_type(dtype: DType) -> DType:
    """Return the complex dtype whose parts are of `dtype`; float32 stands in for types of less than 32 bits."""
    if dtype.kind == "c":
        return dtype
    return np.dtype("complex128" if dtype == dtypes.float64 else "complex64")


def _check_complex(op: Op, spec: Any) -> None:
    if spec.dtype.kind != "c":
        raise TypeError(f"{op.type_name} takes complex numbers; got {spec}. Make them with ops.complex.")


# --- parts ----------------------------------------------------------------------------------------------------------


_PAIR = np.array([[1 + 2j, -3j, 0.5], [-1 - 1j, 4, 2 - 0.5j]], "complex64")


@dataclass(frozen=True)
class RealPart(Op):
    """The real parts of complex numbers."""

    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_complex(self, inputs[0])
        return TensorSpec(inputs[0].shape, part_type(inputs[0].dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].real

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (cast(dy, node.inputs[0].dtype),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), [_PAIR], np.array([[1, 0, 0.5], [-1, 4, 2]], "float32"), (0,), label="matrix")
        yield Sample(cls(), [_PAIR[0, 0]], np.float32(1), (0,), label="0-d")
        yield Sample(cls(), [_PAIR[:0]], np.zeros((0, 3), "float32"), (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2,), dtypes.float32)
        yield ErrorSample(lambda: cls().infer(spec), TypeError, "takes complex numbers; got float32", "real")


@dataclass(frozen=True)
class ImaginaryPart(Op):
    """The imaginary parts of complex numbers."""

    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_complex(self, inputs[0])
        return TensorSpec(inputs[0].shape, part_type(inputs[0].dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].imag

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(FromParts(), zeros_of(dy), negative(dy)),)  # Im(dz) = Re(-i dz)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), [_PAIR], np.array([[2, -3, 0], [-1, 0, -0.5]], "float32"), (0,), label="matrix")
        yield Sample(cls(), [_PAIR[0, 0]], np.float32(2), (0,), label="0-d")
        yield Sample(cls(), [_PAIR[:0]], np.zeros((0, 3), "float32"), (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2,), dtypes.float32)
        yield ErrorSample(lambda: cls().infer(spec), TypeError, "takes complex numbers; got float32", "real")


@dataclass(frozen=True)
class FromParts(Op):
    """Complex numbers with the given real and imaginary parts, which broadcast against each other."""

    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        real, imag = inputs
        if real.dtype != imag.dtype or real.dtype not in (dtypes.float32, dtypes.float64):
            raise TypeError(
                f"complex: expected real and imaginary parts of one dtype, float32 or float64; got {real} and {imag}."
            )
        return TensorSpec(broadcast_shapes(real.shape, imag.shape), complex_type(real.dtype))

    def run(self, xp: Any, *inputs: Any) -> Any:
        real, imag = inputs
        # Not real + 1j * imag, which makes NaN of infinities and loses the sign of zeros.
        out = xp.empty(np.broadcast_shapes(real.shape, imag.shape), complex_type(real.dtype))
        out.real = real
        out.imag = imag
        return as_scalar_or_array(out)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (
            sum_like(apply(RealPart(), dy), node.inputs[0]),
            sum_like(negative(apply(ImaginaryPart(), dy)), node.inputs[1]),
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, y = np.array([[1, -2, 0.5], [3, 0.25, -1]], "float32"), np.array([2, 0.5, -1], "float32")
        yield Sample(cls(), [x, y], x + 1j * y, (0, 1), label="broadcast")
        yield Sample(cls(), [x[0, 0], y[0]], np.complex64(1 + 2j), (0, 1), label="0-d")
        yield Sample(cls(), [x[:0], y], np.zeros((0, 3), "complex64"), (0, 1), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: complex([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "do not broadcast", "shapes")
        whole = TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(whole, whole), TypeError, "float32 or float64; got int32", "integers")


@dataclass(frozen=True)
class Conjugate(Op):
    """Complex numbers with the sign of their imaginary parts changed."""

    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 0

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_complex(self, inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(xp.conjugate(inputs[0]))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"np.conjugate({arguments[0]})"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.conjugate({arguments[0]}, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(Conjugate(), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        expected = np.array([[1 - 2j, 3j, 0.5], [-1 + 1j, 4, 2 + 0.5j]], "complex64")
        yield Sample(cls(), [_PAIR], expected, (0,), label="matrix")
        yield Sample(cls(), [_PAIR[0, 0]], np.complex64(1 - 2j), (0,), label="0-d")
        yield Sample(cls(), [_PAIR[:0]], _PAIR[:0], (0,), label="empty")


# --- functions ------------------------------------------------------------------------------------------------------


def conjugated(x: Tensor) -> Tensor:
    """Return the conjugate of a complex tensor; any other tensor itself, for which nothing is built."""
    return apply(Conjugate(), x) if x.dtype.kind == "c" else x


def complex(real: TensorLike, imag: TensorLike) -> Tensor:
    """Make complex numbers from their real and imaginary parts (``tf.complex``).

    Args:
        real, imag: real numbers, which broadcast against each other.

    Returns:
        complex128 if one of them is float64, complex64 otherwise.

    Raises:
        TypeError: a part is complex itself.

    >>> import anabranch as ab
    >>> ab.ops.complex([1.0, 2.0], [3.0, 0.0])
    Tensor([1.+3.j, 2.+0.j], dtype=complex64)
    """
    parts = promote(real, imag, floating=True)
    dtype = parts[0].dtype
    if dtype.kind == "c":
        raise TypeError(f"complex takes real numbers as parts; got {dtype.name}.")
    return apply(FromParts(), *[cast(part, part_type(complex_type(dtype))) for part in parts])


def real(x: TensorLike) -> Tensor:
    """Compute the real part of each element; real numbers stay what they are.

    >>> import anabranch as ab
    >>> ab.ops.real([1 + 2j, 3.0])
    Tensor([1., 3.], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    return apply(RealPart(), tensor) if tensor.dtype.kind == "c" else tensor


def imag(x: TensorLike) -> Tensor:
    """Compute the imaginary part of each element, which is 0 for real numbers.

    >>> import anabranch as ab
    >>> ab.ops.imag([1 + 2j, 3.0])
    Tensor([2., 0.], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    return apply(ImaginaryPart(), tensor) if tensor.dtype.kind == "c" else zeros_like(tensor)


def conjugate(x: TensorLike) -> Tensor:
    """Compute the complex conjugate of each element; real numbers stay what they are.

    >>> import anabranch as ab
    >>> ab.ops.conjugate([1 + 2j])
    Tensor([1.-2.j], dtype=complex64)
    """
    return conjugated(convert_to_tensor(x))


def conj(x: TensorLike) -> Tensor:
    """Compute the complex conjugate: another name of `conjugate`."""
    return conjugate(x)


def angle(x: TensorLike) -> Tensor:
    """Return the angle of each element in the complex plane, in radians from -pi to pi; negative numbers have pi.

    The gradient with respect to real numbers is zero, and NaN at a complex 0.

    >>> import anabranch as ab
    >>> ab.ops.angle([1j, -1.0])
    Tensor([1.5707964, 3.1415927], dtype=float32)
    """
    tensor = as_floating(x)
    if tensor.dtype.kind == "c":
        return arctan2(apply(ImaginaryPart(), tensor), apply(RealPart(), tensor))
    return arctan2(zeros_like(tensor), stop_gradient(tensor))


def magnitude(x: Tensor) -> Tensor:
    """Compute the absolute values of complex numbers, with no overflow on the way. The gradient at 0 is 0."""
    return hypot(apply(RealPart(), x), apply(ImaginaryPart(), x))


def absolute(x: TensorLike) -> Tensor:
    """Compute the absolute value. Its gradient at 0 is 0."""
    tensor = convert_to_tensor(x)
    if tensor.dtype.kind == "c":
        return magnitude(tensor)
    return tensor if tensor.dtype == dtypes.bool_ else apply(Absolute(), tensor)


def abs(x: TensorLike) -> Tensor:
    """Compute the absolute value: another name of `absolute`."""
    return absolute(x)


def isreal(x: TensorLike) -> Tensor:
    """Test whether the imaginary part of each element is 0.

    >>> import anabranch as ab
    >>> ab.ops.isreal([1 + 1j, 2 + 0j])
    Tensor([False,  True], dtype=bool)
    """
    tensor = convert_to_tensor(x)
    return equal(apply(ImaginaryPart(), tensor), 0) if tensor.dtype.kind == "c" else ones_like(tensor, "bool")


def polar(abs_: TensorLike, angle: TensorLike) -> Tensor:
    """Compute the complex numbers of the given absolute values and angles (``keras.ops.polar``).

    Args:
        abs_: absolute values, real.
        angle: angles in radians, real; they broadcast against `abs_`.

    Raises:
        TypeError: an argument is complex.

    >>> import anabranch as ab
    >>> ab.ops.polar([2.0], [0.0])
    Tensor([2.+0.j], dtype=complex64)
    """
    size, phase = promote(abs_, angle, floating=True)
    return complex(multiply(size, cos(phase)), multiply(size, sin(phase)))


def view_as_complex(x: TensorLike) -> Tensor:
    """Make complex numbers from real ones, whose last axis holds the real and the imaginary parts.

    Args:
        x: real numbers, [..., 2].

    Returns:
        Complex numbers, [...]; complex128 for float64, complex64 for other dtypes.

    Raises:
        ValueError: the last axis is known not to have 2 elements.
        TypeError: `x` is complex already.

    >>> import anabranch as ab
    >>> ab.ops.view_as_complex([[1.0, 2.0], [3.0, 4.0]])
    Tensor([1.+2.j, 3.+4.j], dtype=complex64)
    """
    tensor = as_floating(x)
    if tensor.shape == () or (tensor.shape is not None and tensor.shape[-1] not in (2, None)):
        raise ValueError(
            f"view_as_complex takes pairs of a real and an imaginary part in a last axis of size 2; "
            f"got shape {shape_text(tensor.shape)}."
        )
    return complex(tensor[..., 0], tensor[..., 1])


def view_as_real(x: TensorLike) -> Tensor:
    """Compute the real and imaginary parts of complex numbers, in a new last axis of size 2.

    >>> import anabranch as ab
    >>> ab.ops.view_as_real([1 + 2j])
    Tensor([[1., 2.]], dtype=float32)
    """
    return stack([real(x), imag(x)], axis=-1)


__all__ = [
    "abs",
    "absolute",
    "angle",
    "complex",
    "conj",
    "conjugate",
    "imag",
    "isreal",
    "polar",
    "real",
    "view_as_complex",
    "view_as_real",
]
