"""Functions of integers: common divisors and multiples, and positions in arrays as numbers or as coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ..arrays.shape_arguments import ShapeLike
from ..arrays.shaping import constant_value, resolve_shape
from ..base import (
    ErrorSample,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply_promoted,
    convert_to_tensor,
)
from .elementwise import ElementwiseOp, check_dtype
from .elementwise_samples import binary_samples


@dataclass(frozen=True)
class _IntegerFunction(ElementwiseOp):
    """Base: a function of two integers."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_integer, "integers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def _samples(cls, reference: Any, zero: int) -> Iterable[Sample]:
        yield from binary_samples(cls(), reference, (), -30, 30, "int32")
        x, y = np.array([12, -12, 0, 0], "int32"), np.array([18, 18, 5, 0], "int32")
        expected = np.array([reference(12, 18), reference(12, 18), zero, 0], "int32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="signs, zero")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        function = gcd if cls.__name__ == "Gcd" else lcm
        yield ErrorSample(lambda: function([1.5], 2), TypeError, "takes integers; got float32", "floats")


@dataclass(frozen=True)
class Gcd(_IntegerFunction):
    """The greatest common divisor, which is not negative."""

    source = "np.gcd({0}, {1})"
    ufunc = "gcd"

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.gcd(*inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(np.gcd, zero=5)


@dataclass(frozen=True)
class Lcm(_IntegerFunction):
    """The least common multiple, which is not negative."""

    source = "np.lcm({0}, {1})"
    ufunc = "lcm"

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.lcm(*inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(np.lcm, zero=0)


def gcd(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the greatest common divisor of two integers, elementwise; that with 0 is the other's size.

    Raises:
        TypeError: they are not integers.

    >>> import anabranch as ab
    >>> ab.ops.gcd([12, -8], 18)
    Tensor([6, 2], dtype=int32)
    """
    return apply_promoted(Gcd(), x1, x2)


def lcm(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the least common multiple of two integers, elementwise; 0 where one of them is 0.

    Raises:
        TypeError: they are not integers.
    """
    return apply_promoted(Lcm(), x1, x2)


def unravel_index(indices: TensorLike, shape: ShapeLike) -> tuple[Tensor, ...]:
    """Convert positions in a flattened array of `shape` to coordinates along its axes.

    Args:
        indices: integers; negative ones count from the end. They are not checked against the size of the array.
        shape: ints, int32 scalar tensors or both.

    Returns:
        For each axis a tensor of the shape and dtype of `indices`.

    Raises:
        TypeError: `indices` are not integers.
        ValueError: an index that is known now is outside the array.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.unravel_index(5, (3, 3)))
    (np.int32(1), np.int32(2))
    """
    position = convert_to_tensor(indices)
    if not dtypes.is_integer(position.dtype):
        raise TypeError(f"unravel_index takes integers; got {position!r}. Cast them with ops.cast.")
    static, dynamic = resolve_shape(shape)
    _check_indices(position, static)
    sizes, remaining = list[Any](static), iter(dynamic)
    coordinates: list[Tensor] = []
    for size in reversed([next(remaining) if size is None else size for size in sizes]):
        width = convert_to_tensor(size, position.dtype)
        coordinates.append(position % width)
        position = position // width
    return tuple(reversed(coordinates))


def _check_indices(indices: Tensor, shape: tuple[int | None, ...]) -> None:
    known = constant_value(indices)
    if known is None or None in shape or not np.size(known):
        return
    size = int(np.prod([dim or 0 for dim in shape]))
    lowest, highest = int(np.min(known)), int(np.max(known))
    if lowest < -size or highest >= size:
        raise ValueError(
            f"unravel_index: index {highest if highest >= size else lowest} is outside an array of shape {shape}, "
            f"which has {size} elements."
        )


__all__ = ["gcd", "lcm", "unravel_index"]
