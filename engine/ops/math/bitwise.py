"""Elementwise ops on the bits of integers and on bools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ..base import (
    ErrorSample,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    convert_to_tensor,
)
from .elementwise import ElementwiseOp, check_dtype, promote_numbers
from .elementwise_samples import binary_samples, unary_samples


def _has_bits(dtype: DType) -> bool:
    return dtype.kind in "biu"


_CAST_TO_BITS = "Cast it to 'int32' or 'bool' with ops.cast."


@dataclass(frozen=True)
class _Bitwise(ElementwiseOp):
    """Base: integers bit by bit, or bools by logic."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], _has_bits, "integers or bools", _CAST_TO_BITS)
        return super().infer(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True)
class BitwiseAnd(_Bitwise):
    grows_with: ClassVar[tuple[int, ...]] = (1, 1)

    source = "{0} & {1}"
    ufunc = "bitwise_and"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x & y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from _bit_samples(cls(), np.bitwise_and)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: bitwise_and(1.0, 2), TypeError, "bitwise_and takes integers or bools; got float32")


@dataclass(frozen=True)
class BitwiseOr(_Bitwise):
    grows_with: ClassVar[tuple[int, ...]] = (1, 1)

    source = "{0} | {1}"
    ufunc = "bitwise_or"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x | y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from _bit_samples(cls(), np.bitwise_or)


@dataclass(frozen=True)
class BitwiseXor(_Bitwise):
    source = "{0} ^ {1}"
    ufunc = "bitwise_xor"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x ^ y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from _bit_samples(cls(), np.bitwise_xor)


@dataclass(frozen=True)
class BitwiseNot(_Bitwise):
    """The bits of an integer inverted; bools are for `LogicalNot`, so that a kernel need not distinguish them."""

    source = "~{0}"
    ufunc = "invert"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_integer, "integers", "Use ops.logical_not, or cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return ~inputs[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.invert, low=-99, high=99, differentiable=(), dtype="int32")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: bitwise_not(1.0), TypeError, "bitwise_not takes integers; got float32")


@dataclass(frozen=True)
class LogicalNot(ElementwiseOp):
    grows_with: ClassVar[tuple[int, ...]] = (-1,)

    source = "np.logical_not({0})"
    ufunc = "logical_not"

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.bool_)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.logical_not(inputs[0])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.logical_not, differentiable=(), dtype="bool")


@dataclass(frozen=True)
class _Shift(_Bitwise):
    """Base: shifts of integers."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_integer, "integers", "Cast it to 'int32' with ops.cast.")
        return super().infer(*inputs)


@dataclass(frozen=True)
class LeftShift(_Shift):
    source = "{0} << {1}"
    ufunc = "left_shift"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x << y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.left_shift, differentiable=(), low=0, high=9, dtype="int32")
        x, y = np.array([1, 3, -1], "int32"), np.array([31, 32, 40], "int32")
        expected = np.array([-(2**31), 0, 0], "int32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="past the width")


@dataclass(frozen=True)
class RightShift(_Shift):
    source = "{0} >> {1}"
    ufunc = "right_shift"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x >> y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.right_shift, differentiable=(), low=0, high=9, dtype="int32")
        x, y = np.array([-8, 8, -8], "int32"), np.array([1, 40, 40], "int32")
        yield Sample(cls(), [x, y], np.array([-4, 0, -1], "int32"), differentiable=(), label="past the width")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: right_shift(1.0, 2), TypeError, "right_shift takes integers; got float32")


def _bit_samples(op: _Bitwise, reference: Any) -> Iterable[Sample]:
    yield from binary_samples(op, reference, differentiable=(), low=-99, high=99, dtype="int32")
    yield from binary_samples(op, reference, differentiable=(), dtype="bool")


# --- functions ------------------------------------------------------------------------------------------------------


def bitwise_and(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x & y``: bit by bit for integers, by logic for bools.

    Raises:
        TypeError: an input is neither.
    """
    return apply_promoted(BitwiseAnd(), x, y)


def bitwise_or(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x | y``: bit by bit for integers, by logic for bools.

    Raises:
        TypeError: an input is neither.
    """
    return apply_promoted(BitwiseOr(), x, y)


def bitwise_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x ^ y``: bit by bit for integers, by logic for bools.

    Raises:
        TypeError: an input is neither.
    """
    return apply_promoted(BitwiseXor(), x, y)


def bitwise_not(x: TensorLike) -> Tensor:
    """Invert every bit of an integer, or negate bools: ``~x``.

    Raises:
        TypeError: the input is neither.
    """
    tensor = convert_to_tensor(x)
    return apply(LogicalNot() if tensor.dtype == dtypes.bool_ else BitwiseNot(), tensor)


def bitwise_invert(x: TensorLike) -> Tensor:
    """Compute ``~x``: another name of `bitwise_not`."""
    return bitwise_not(x)


def left_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x << y`` for integers; 0 where `y` is not less than their width.

    Raises:
        TypeError: an input is not an integer.
    """
    return apply(LeftShift(), *promote_numbers(x, y))


def right_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x >> y`` for integers; the sign is kept.

    Raises:
        TypeError: an input is not an integer.
    """
    return apply(RightShift(), *promote_numbers(x, y))


def bitwise_left_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x << y``: another name of `left_shift`."""
    return left_shift(x, y)


def bitwise_right_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute ``x >> y``: another name of `right_shift`."""
    return right_shift(x, y)


__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "left_shift",
    "right_shift",
]
