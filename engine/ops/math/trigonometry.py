"""Elementwise trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import Operation, Sample, Tensor, TensorLike, TensorSpec, apply, as_floating, promote
from ..run_time_shapes import sum_like
from .comparison import equal, where
from .elementwise import ElementwiseFunction, ElementwiseOp, check_dtype
from .elementwise_samples import binary_samples, unary_samples
from .mathematics import sqrt


@dataclass(frozen=True)
class Sin(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "sin"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * cos(x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.sin)


@dataclass(frozen=True)
class Cos(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "cos"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -(dy * sin(x))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.cos)


@dataclass(frozen=True)
class Tan(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "tan"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * (1 + y * y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.tan, low=-1.2, high=1.2)


@dataclass(frozen=True)
class Arcsin(ElementwiseFunction):
    function = "arcsin"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / sqrt((1 - x) * (1 + x))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arcsin, low=-0.8, high=0.8)


@dataclass(frozen=True)
class Arccos(ElementwiseFunction):
    function = "arccos"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -(dy / sqrt((1 - x) * (1 + x)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arccos, low=-0.8, high=0.8)


@dataclass(frozen=True)
class Arctan(ElementwiseFunction):
    function = "arctan"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / (1 + x * x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arctan)


@dataclass(frozen=True)
class Sinh(ElementwiseFunction):
    function = "sinh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * cosh(x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.sinh)


@dataclass(frozen=True)
class Cosh(ElementwiseFunction):
    function = "cosh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * sinh(x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.cosh)


@dataclass(frozen=True)
class Tanh(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "tanh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * (1 - y * y)  # the result is kept rather than the input

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.tanh)


@dataclass(frozen=True)
class Arcsinh(ElementwiseFunction):
    function = "arcsinh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / sqrt(x * x + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arcsinh)


@dataclass(frozen=True)
class Arccosh(ElementwiseFunction):
    function = "arccosh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if x.dtype.kind == "c":  # one root would be on the wrong branch in half of the plane
            return dy / (sqrt(x - 1) * sqrt(x + 1))
        return dy / sqrt((x - 1) * (x + 1))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arccosh, low=1.2, high=3.0)


@dataclass(frozen=True)
class Arctanh(ElementwiseFunction):
    function = "arctanh"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / ((1 - x) * (1 + x))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.arctanh, low=-0.8, high=0.8)


@dataclass(frozen=True)
class Arctan2(ElementwiseOp):
    """The angle of the point (y, x), whose coordinates come in this order."""

    source = "np.arctan2({0}, {1})"
    ufunc = "arctan2"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.arctan2(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y, x = node.inputs
        assert dy is not None
        square = x * x + y * y
        share = dy / where(equal(square, 0), 1, square)
        return sum_like(share * x, y), sum_like(-(share * y), x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.arctan2)
        y, x = np.array([0.0, -0.0, 0.0, 1.0], "float32"), np.array([-1, -1, 1, 0], "float32")
        expected = np.array([np.pi, -np.pi, 0, np.pi / 2], "float32")
        yield Sample(cls(), [y, x], expected, differentiable=(), label="on the axes")


# --- functions ------------------------------------------------------------------------------------------------------


def sin(x: TensorLike) -> Tensor:
    """Compute the sine."""
    return apply(Sin(), as_floating(x))


def cos(x: TensorLike) -> Tensor:
    """Compute the cosine."""
    return apply(Cos(), as_floating(x))


def tan(x: TensorLike) -> Tensor:
    """Compute the tangent."""
    return apply(Tan(), as_floating(x))


def arcsin(x: TensorLike) -> Tensor:
    """Compute the inverse sine; NaN outside [-1, 1]."""
    return apply(Arcsin(), as_floating(x))


def arccos(x: TensorLike) -> Tensor:
    """Compute the inverse cosine; NaN outside [-1, 1]."""
    return apply(Arccos(), as_floating(x))


def arctan(x: TensorLike) -> Tensor:
    """Compute the inverse tangent."""
    return apply(Arctan(), as_floating(x))


def sinh(x: TensorLike) -> Tensor:
    """Compute the hyperbolic sine."""
    return apply(Sinh(), as_floating(x))


def cosh(x: TensorLike) -> Tensor:
    """Compute the hyperbolic cosine."""
    return apply(Cosh(), as_floating(x))


def tanh(x: TensorLike) -> Tensor:
    """Compute the hyperbolic tangent."""
    return apply(Tanh(), as_floating(x))


def arcsinh(x: TensorLike) -> Tensor:
    """Compute the inverse hyperbolic sine."""
    return apply(Arcsinh(), as_floating(x))


def arccosh(x: TensorLike) -> Tensor:
    """Compute the inverse hyperbolic cosine; NaN below 1."""
    return apply(Arccosh(), as_floating(x))


def arctanh(x: TensorLike) -> Tensor:
    """Compute the inverse hyperbolic tangent; infinite at -1 and 1, NaN outside."""
    return apply(Arctanh(), as_floating(x))


def arctan2(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the angle of the point with ordinate `x1` and abscissa `x2`, in [-pi, pi]. Its gradient at (0, 0) is 0.

    >>> import anabranch as ab
    >>> ab.ops.arctan2([0.0, 1.0], [-1.0, 0.0])
    Tensor([3.1415927, 1.5707964], dtype=float32)
    """
    return apply(Arctan2(), *promote(x1, x2, floating=True))


__all__ = [
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
