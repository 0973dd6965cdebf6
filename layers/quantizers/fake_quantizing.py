"""Rounding and back, for training that is to be quantised later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.autodiff import custom_gradient
from ...engine.graph import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...engine.ops.base import TensorLike


def fake_quant_with_min_max_vars(
    inputs: TensorLike,
    min_vals: TensorLike,
    max_vals: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Round to the integers of a range, and take them back: what is lost by quantising is lost, the dtype stays.

    Args:
        inputs: floating.
        min_vals, max_vals: the range: a number, or one for each index of `axis`. It is moved a little, so that 0 is
            one of the integers.
        num_bits: of the integers.
        narrow_range: leave out the smallest one.
        axis: the axis along which ranges differ; None for a single range.

    Returns:
        Numbers of the shape and dtype of `inputs`. Gradients pass where an input is inside of the range, else they go
        to the end that it was cut to.

    Source: Jacob et al., "Quantization and Training of Neural Networks", 2018; Keras's function of this name.

    >>> fake_quant_with_min_max_vars([0.1, 0.4, 2.0], 0.0, 1.0, num_bits=2).numpy().round(3)
    array([0.   , 0.333, 1.   ], dtype=float32)
    """
    x = ops.convert_to_tensor(inputs)
    rank = len(x.shape or ())
    at = None if axis is None else axis % rank

    @custom_gradient
    def rounded(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Callable[..., object]]:
        shape = [1] * rank if at is None else [-1 if i == at else 1 for i in range(rank)]
        smallest, largest = ops.reshape(low, shape), ops.reshape(high, shape)
        first, last = int(narrow_range), (1 << int(num_bits)) - 1
        scale = (largest - smallest) / (last - first)
        zero = ops.round(ops.clip(first - smallest / scale, first, last))
        nudged_low, nudged_high = (first - zero) * scale, (last - zero) * scale
        inverse = (last - first) / (largest - smallest)
        shift = ops.floor(-nudged_low * inverse + 0.5)
        cut = ops.clip(ops.cast(x, scale.dtype), nudged_low, nudged_high)
        result = ops.floor((cut - nudged_low) * inverse - shift + 0.5) * scale

        def gradient(dy: Tensor) -> tuple[Tensor, ...]:
            others = None if at is None else [i for i in range(rank) if i != at]
            ends = [ops.less_equal(x, nudged_low), ops.greater_equal(x, nudged_high)]
            inside = ops.logical_and(ops.greater_equal(x, nudged_low), ops.less_equal(x, nudged_high))
            sums = [ops.sum(ops.where(end, dy, ops.zeros_like(dy)), axis=others) for end in ends]
            bounds = [ops.cast(ops.reshape(s, v.shape or ()), v.dtype) for s, v in zip(sums, (low, high), strict=True)]
            return (ops.where(inside, dy, ops.zeros_like(dy)), *bounds)

        return ops.cast(result, x.dtype), gradient

    return rounded(x, *[ops.cast(ops.convert_to_tensor(bound), "float32") for bound in (min_vals, max_vals)])
