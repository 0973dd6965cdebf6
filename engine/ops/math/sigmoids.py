"""Sigmoid and softplus, whose derivative it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import Operation, Sample, Tensor, TensorLike, TensorSpec, apply, as_floating, as_scalar_or_array
from .elementwise import ElementwiseOp, check_dtype
from .elementwise_samples import unary_samples


@dataclass(frozen=True)
class Sigmoid(ElementwiseOp):
    """``1 / (1 + exp(-x))``: for very negative x the exponential is large or infinite, and the quotient still right."""

    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    source = "1 / (1 + np.exp(-{0}))"
    floating = True

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.sigmoid(inputs[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(1 / (1 + xp.exp(-inputs[0])))

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        exponential = f"np.exp(np.negative({arguments[0]}, out={out}), out={out})"
        return f"np.divide(1, np.add(1, {exponential}, out={out}), out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (dy * (y * (1 - y)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any) -> Any:
            return 0.5 + 0.5 * np.tanh(0.5 * x.astype("float64"))

        yield from unary_samples(cls(), reference)
        x = np.array([-np.inf, -1000, -80, 1000, np.inf, np.nan], "float32")
        expected = np.array([0, 0, math.exp(-80), 1, 1, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Softplus(ElementwiseOp):
    """``log(1 + exp(x))``, computed as ``max(x, 0) + log1p(exp(-|x|))``, of which nothing overflows."""

    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    source = "np.maximum({0}, 0) + np.log1p(np.exp(-np.absolute({0})))"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return e.maximum(x, 0) + e.log1p(e.exp(-e.absolute(x)))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (dy * sigmoid(node.inputs[0]),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any) -> Any:
            return np.log1p(np.exp(x))

        yield from unary_samples(cls(), reference)
        x = np.array([-np.inf, -1000, 1000, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], np.array([0, 0, 1000, np.inf, np.nan]), differentiable=(), label="special")


def sigmoid(x: TensorLike) -> Tensor:
    """Compute ``1 / (1 + exp(-x))``, for `x` of any size.

    >>> import anabranch as ab
    >>> ab.ops.sigmoid([-1000.0, 0.0, 1000.0])
    Tensor([0. , 0.5, 1. ], dtype=float32)
    """
    return apply(Sigmoid(), as_floating(x))


def softplus(x: TensorLike) -> Tensor:
    """Compute ``log(1 + exp(x))``, for `x` of any size.

    >>> import anabranch as ab
    >>> ab.ops.softplus([-1000.0, 1000.0])
    Tensor([   0., 1000.], dtype=float32)
    """
    return apply(Softplus(), as_floating(x))


__all__ = ["sigmoid", "softplus"]
