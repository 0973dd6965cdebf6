"""Products of inputs that are rounded as a layer's quantizer says, and int8 matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

from ...engine import ops
from ...engine.autodiff import custom_gradient
from ...engine.graph import Tensor
from ...engine.ops.neural.quantized import quantized_matmul
from .quantizable import QuantizableLayer
from .quantizer import AbsMaxQuantizer

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.ops.base import TensorLike


def int8_product(
    layer: QuantizableLayer,
    inputs: TensorLike,
    kernel: TensorLike,
    scale: TensorLike,
    transpose: bool = False,
    dtype: DTypeLike = None,
) -> Tensor:
    """Return the product of `inputs` (..., terms) and a kernel (terms, columns).

    Args:
        layer: its `inputs_quantizer` rounds the inputs, by a scale for each row, or by its fixed `inputs_scale`.
        inputs: floating.
        kernel: int8.
        scale: of the columns.
        transpose: the kernel is stored as (columns, terms).
        dtype: of the result; by default that of the inputs.
    """
    quantizer = layer.inputs_quantizer
    x = ops.convert_to_tensor(inputs)
    if rounds_by_rows(quantizer):
        product = quantized_matmul(
            x,
            kernel,
            scale,
            layer.inputs_scale,
            value_range=quantizer.value_range,
            epsilon=quantizer.epsilon,
            transpose=transpose,
        )
    else:
        product = _product_by(quantizer, x, kernel, scale, transpose)
    return ops.cast(product, dtype or x.dtype)


def rounds_by_rows(quantizer: object) -> TypeGuard[AbsMaxQuantizer]:
    """Test whether a quantizer rounds to int8 by a scale for each row, in whose place a fixed one can be."""
    return type(quantizer) is AbsMaxQuantizer and quantizer.output_dtype == "int8" and quantizer.axis in (None, (-1,))


def _product_by(
    quantizer: Callable[..., tuple[Tensor, Tensor]], x: Tensor, kernel: TensorLike, scale: TensorLike, transpose: bool
) -> Tensor:
    """Return the product by any quantizer. Rounding passes cotangents on, as for the one that is known."""

    @custom_gradient
    def product(x: Tensor, kernel: Tensor, scale: Tensor) -> tuple[Tensor, Callable[..., object]]:
        matrix = ops.transpose(kernel) if transpose else kernel
        rounded, inputs_scale = quantizer(x, axis=-1)
        sums = ops.matmul(rounded, matrix)
        result = ops.cast(ops.cast(sums, scale.dtype) / (ops.cast(inputs_scale, scale.dtype) * scale), x.dtype)

        def gradient(dy: Tensor) -> tuple[Tensor, None, None]:
            weights = ops.cast(matrix, scale.dtype) / scale
            return ops.cast(ops.matmul(ops.cast(dy, scale.dtype), ops.transpose(weights)), x.dtype), None, None

        return result, gradient

    return product(x, ops.convert_to_tensor(kernel), ops.convert_to_tensor(scale))
