"""Elementwise ops: their base, and arithmetic.

Each carries its scalar `expression` over a module-like ``e`` (NumPy itself, or the kernel printer), from which both
the NumPy execution and fused kernels come: one definition, two printers. Constants in expressions are the Python ints
0 and 1 only: a Python float beside bfloat16 would widen the result to float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from .. import row_rules
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    as_scalar_or_array,
    broadcast_shapes,
    cast,
    check_numbers,
    convert_to_tensor,
    promote,
)
from ..run_time_shapes import sum_like
from .dtype_checks import check_dtype, check_floating, is_real
from .elementwise_samples import binary_samples, unary_samples

# --- bases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ElementwiseOp(Op, abstract=True):
    """Base: inputs of one dtype broadcast against each other; the output has the same dtype.

    Class attributes:
        source: the call as Python source over ``np`` with places {0}, {1} for the inputs; None where only
            `expression` defines it.
        ufunc: the name of the NumPy ufunc that writes into ``out=``, if there is one.
        floating: takes floating-point (or complex) numbers only; the public function makes them of integers.
        takes_strings: it is defined on strings.
    """

    elementwise: ClassVar[bool] = True
    source: ClassVar[str | None] = None
    ufunc: ClassVar[str | None] = None
    floating: ClassVar[bool] = False
    takes_strings: ClassVar[bool] = False

    def infer(self, *inputs: Any) -> TensorSpec:
        if self.floating:
            check_floating(self, inputs[0])
        shape = self.broadcast(*inputs)
        for spec in inputs:
            if spec.shape is shape and type(spec) is TensorSpec:
                return spec
        return TensorSpec(shape, inputs[0].dtype)

    def broadcast(self, *inputs: Any) -> Any:
        """Return the common shape of `inputs`.

        Raises:
            ValueError: they do not broadcast.
            TypeError: their dtypes differ.
        """
        dtype = inputs[0].dtype
        if dtype.kind == "T" or [spec.dtype for spec in inputs].count(dtype) < len(inputs):
            self._check_dtypes(*inputs)
        try:
            return broadcast_shapes(*[spec.shape for spec in inputs])
        except ValueError as error:
            raise ValueError(f"{self.type_name}: {error}") from None

    def _check_dtypes(self, *inputs: Any) -> None:
        if not self.takes_strings:
            check_numbers(self, *inputs)
        if len({spec.dtype for spec in inputs}) > 1:
            raise TypeError(
                f"{self.type_name} takes inputs of one dtype; got {' and '.join(str(spec) for spec in inputs)}. "
                "Cast one of them with ops.cast."
            )

    def expression(self, e: Any, *inputs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define expression().")

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(self.expression(xp, *inputs))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return None if self.source is None else self.source.format(*arguments)

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return None if self.ufunc is None else f"np.{self.ufunc}({', '.join(arguments)}, out={out})"


@dataclass(frozen=True)
class ElementwiseFunction(ElementwiseOp, abstract=True):
    """Base: a function of one value that NumPy has as the ufunc named in `ufunc`."""

    function: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.function:
            cls.ufunc = cls.function
            cls.source = f"np.{cls.function}({{0}})"

    def expression(self, e: Any, *inputs: Any) -> Any:
        return getattr(e, self.function)(inputs[0])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (self.pullback(dy, node.inputs[0], node.outputs[0]),)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Any:
        """Return the cotangent of the input `x`, from that of the output `y`; None where nothing flows."""
        raise NotImplementedError(f"{type(self).__name__} must define pullback().")


def promote_numbers(*values: TensorLike) -> list[Tensor]:
    """Promote as `promote` does, but bools count as int32."""
    tensors = promote(*values)
    if tensors[0].dtype == dtypes.bool_:
        return [cast(tensor, dtypes.int32) for tensor in tensors]
    return tensors


# --- arithmetic -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add(ElementwiseOp):
    """The sum; of strings, one behind the other."""

    grows_with: ClassVar[tuple[int, ...]] = (1, 1)
    row_state = row_rules.moved

    source = "{0} + {1}"
    ufunc = "add"
    takes_strings = True

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x + y

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return [sum_like(dy, x) if node.needs(position) else None for position, x in enumerate(node.inputs)]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.add)
        x = np.array([127, -128], "int8")
        yield Sample(cls(), [x, x], np.array([-2, 0], "int8"), differentiable=(), label="wraps around")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: add([1, 2], [1, 2, 3]), ValueError, r"add: Shapes \[2\] and \[3\] do not broadcast")


@dataclass(frozen=True)
class Subtract(ElementwiseOp):
    grows_with: ClassVar[tuple[int, ...]] = (1, -1)
    row_state = row_rules.moved

    source = "{0} - {1}"
    ufunc = "subtract"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], _is_number, "numbers", "Use ops.logical_xor, or cast the bools to 'int32'.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x - y

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        return sum_like(dy, x), negative(sum_like(dy, y)) if node.needs(1) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.subtract)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: subtract(True, [False]), TypeError, "subtract takes numbers; got bool")


@dataclass(frozen=True)
class Multiply(ElementwiseOp):
    linear_in: ClassVar[tuple[int, ...]] = (0, 1)
    row_state = row_rules.multiplied

    source = "{0} * {1}"
    ufunc = "multiply"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x * y

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        dx = sum_like(dy * y, x) if node.needs(0) else None
        return dx, sum_like(dy * x, y) if node.needs(1) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.multiply)


@dataclass(frozen=True)
class Divide(ElementwiseOp):
    linear_in: ClassVar[tuple[int, ...]] = (0,)

    source = "{0} / {1}"
    ufunc = "divide"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(
            self, inputs[0], dtypes.is_differentiable, "floating-point numbers", "Use ops.floor_divide, or ops.cast."
        )
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x / y

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        dx = dy / y
        return sum_like(dx, x), sum_like(negative(dx * node.outputs[0]), y) if node.needs(1) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.divide, low=0.5)
        x, y = np.array([1, -1, 0, 3], "float32"), np.array([0, 0, 0, -4], "float32")
        expected = np.array([np.inf, -np.inf, np.nan, -0.75], "float32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="by zero")


@dataclass(frozen=True)
class FloorDivide(ElementwiseOp):
    source = "{0} // {1}"
    ufunc = "floor_divide"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real_number, "real numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x // y

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return False  # a divisor of 0 is reported where it is asked for

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None  # a step function

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.floor_divide, low=0.5, differentiable=())
        x, y = np.array([7, -7, 7, -7, 7], "int32"), np.array([2, 2, -2, -2, 0], "int32")
        expected = np.array([3, -4, -4, 3, 0], "int32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="integers round down; by zero is 0")


@dataclass(frozen=True)
class Mod(ElementwiseOp):
    """``x - floor(x / y) * y``: the remainder has the sign of the divisor, as in Python."""

    source = "{0} % {1}"
    ufunc = "remainder"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real_number, "real numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x % y

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return False  # a divisor of 0 is reported where it is asked for

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        return sum_like(dy, x), sum_like(negative(dy * floor_divide(x, y)), y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.mod, low=0.5)
        x, y = np.array([5.5, -5.5, 5.5, -5.5], "float32"), np.array([2, 2, -2, -2], "float32")
        yield Sample(cls(), [x, y], np.array([1.5, 0.5, -0.5, -1.5], "float32"), label="signs")
        x, y = np.array([7, -7, 7, -7, 7], "int32"), np.array([3, 3, -3, -3, 0], "int32")
        expected = np.array([1, 2, -2, -1, 0], "int32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="integers")


@dataclass(frozen=True)
class Negative(ElementwiseOp):
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (-1,)

    source = "-{0}"
    ufunc = "negative"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], _is_number, "numbers", "Use ops.logical_not, or cast the bools to 'int32'.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return -inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (negative(dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.negative)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: negative([True]), TypeError, "negative takes numbers; got bool")


@dataclass(frozen=True)
class Absolute(ElementwiseFunction):
    function = "absolute"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real, "real numbers", "Take the parts of a complex number apart first.")
        return super().infer(*inputs)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * sign(x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.abs)
        x = np.array([-0.0, -np.inf, np.nan], "float32")
        yield Sample(cls(), [x], np.array([0, np.inf, np.nan], "float32"), differentiable=(), label="special")


@dataclass(frozen=True)
class Sign(ElementwiseFunction):
    function = "sign"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real_number, "real numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> None:
        return None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.sign, differentiable=())
        x = np.array([-3, 0, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], np.array([-1, 0, 1, np.nan], "float32"), differentiable=(), label="special")


# --- passing values on ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity(ElementwiseOp):
    view = True
    source = "{0}"
    takes_strings = True

    def expression(self, e: Any, *inputs: Any) -> Any:
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.positive)


@dataclass(frozen=True)
class StopGradient(ElementwiseOp):
    view = True
    source = "{0}"
    takes_strings = True

    def expression(self, e: Any, *inputs: Any) -> Any:
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.positive, differentiable=())


def _is_number(dtype: DType) -> bool:
    return dtype != dtypes.bool_


def is_real_number(dtype: DType) -> bool:
    return dtype != dtypes.bool_ and is_real(dtype)


# --- functions ------------------------------------------------------------------------------------------------------


def add(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 + x2``, with broadcasting. The sum of two bools is their logical or.

    >>> import anabranch as ab
    >>> ab.ops.add([1, 2], 3)
    Tensor([4, 5], dtype=int32)
    """
    return apply_promoted(Add(), x1, x2)


def subtract(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 - x2``, with broadcasting.

    Raises:
        TypeError: both are bools.
    """
    return apply_promoted(Subtract(), x1, x2)


def multiply(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 * x2``, with broadcasting. The product of two bools is their logical and."""
    return apply_promoted(Multiply(), x1, x2)


def divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 / x2``, with broadcasting; integers are divided as float32.

    >>> import anabranch as ab
    >>> ab.ops.divide([1, 3], 2)
    Tensor([0.5, 1.5], dtype=float32)
    """
    return apply_promoted(Divide(), x1, x2, floating=True)


def true_divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 / x2``: another name of `divide`."""
    return divide(x1, x2)


def floor_divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 // x2``: the quotient rounded down. An integer divided by zero gives 0."""
    return apply(FloorDivide(), *promote_numbers(x1, x2))


def mod(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 % x2``: the remainder of `floor_divide`, with the sign of `x2`. An integer modulo zero gives 0.

    >>> import anabranch as ab
    >>> ab.ops.mod([-7, 7], [3, -3])
    Tensor([ 2, -2], dtype=int32)
    """
    return apply(Mod(), *promote_numbers(x1, x2))


def negative(x: TensorLike) -> Tensor:
    """Compute ``-x``.

    Raises:
        TypeError: `x` holds bools.
    """
    return apply(Negative(), convert_to_tensor(x))


def sign(x: TensorLike) -> Tensor:
    """Return -1, 0 or 1 by the sign of `x`; NaN where `x` is NaN. Its gradient is zero."""
    return apply(Sign(), *promote_numbers(x))


def square(x: TensorLike) -> Tensor:
    """Compute ``x * x``."""
    (tensor,) = promote_numbers(x)
    return multiply(tensor, tensor)


def squared_difference(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``(x1 - x2) ** 2``, with broadcasting."""
    return square(subtract(x1, x2))


def reciprocal(x: TensorLike) -> Tensor:
    """Compute ``1 / x``; integers count as float32."""
    return divide(1, x)


def identity(x: TensorLike) -> Tensor:
    """Return `x` as the output of an operation of its own, to be given a name, a device or control dependencies."""
    return apply(Identity(), convert_to_tensor(x))


def stop_gradient(variable: TensorLike) -> Tensor:
    """Return `variable` unchanged, as a constant in the eyes of `gradients`.

    >>> import anabranch as ab
    >>> x = ab.Variable(3.0)
    >>> with ab.GradientTape() as tape:
    ...     y = x * ab.ops.stop_gradient(x)
    >>> float(tape.gradient(y, x))
    3.0
    """
    return apply(StopGradient(), convert_to_tensor(variable))


__all__ = [
    "add",
    "divide",
    "floor_divide",
    "mod",
    "multiply",
    "negative",
    "reciprocal",
    "sign",
    "square",
    "squared_difference",
    "stop_gradient",
    "subtract",
    "true_divide",
]
