"""The way back of a quantised `ReversibleEmbedding`: from vectors to a logit for each row of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.graph import Tensor
from ..quantizers.kernels import INT4_RANGE
from ..quantizers.packing import packed_array, unpack_int4
from ..quantizers.products import int8_product
from ..quantizers.quantizer import AbsMaxQuantizer
from ..quantizers.rounding import abs_max_arrays, grouped_arrays

if TYPE_CHECKING:
    import numpy as np

    from ...engine.ops.base import TensorLike
    from ..quantizers.base_config import QuantizationConfig
    from .positions import ReversibleEmbedding


def build_reverse(layer: ReversibleEmbedding, mode: str) -> None:
    """Make the weights of the way back: those of a table of its own, unless weights are tied."""
    layer.inputs_quantizer = layer._activation_quantizer(AbsMaxQuantizer(axis=-1))
    if layer.tie_weights:
        return
    block, columns = layer._int4_block_size, layer.input_dim
    rows = (layer.output_dim + 1) // 2 if mode == "int4" else layer.output_dim
    scales = (columns,) if block is None else (-(-layer.output_dim // block), columns)
    layer.reverse_embeddings = layer._frozen_weight("reverse_embeddings", (rows, columns), "int8")
    layer.reverse_embeddings_scale = layer._frozen_weight("reverse_embeddings_scale", scales, initializer="ones")
    layer.reverse_embeddings_zero = None
    if block is not None:
        layer.reverse_embeddings_zero = layer._frozen_weight("reverse_embeddings_zero", scales)


def reverse_values(layer: ReversibleEmbedding, mode: str, config: QuantizationConfig) -> dict[str, np.ndarray]:
    """Return the values of these weights, from the float table."""
    if layer.tie_weights:
        return {}
    weight, quantizer = layer.reverse_embeddings.numpy(), getattr(config, "weight_quantizer", None)
    found: dict[str, np.ndarray] = {}
    if mode == "int4" and layer._int4_block_size is not None:
        table, scale, zero = grouped_arrays(weight, layer._int4_block_size)
        found["reverse_embeddings_zero"] = zero
    elif quantizer is not None:
        # pyrefly: ignore[unexpected-keyword] - those of weights take more than `Quantizer`
        table, scale = [part.numpy() for part in quantizer(weight, axis=0, to_numpy=True)]
        scale = scale.reshape(-1)
    else:
        table, scale = abs_max_arrays(weight, 0, (-127, 127) if mode == "int8" else INT4_RANGE)
        scale = scale.reshape(-1)
    found["reverse_embeddings"] = packed_array(table, 0) if mode == "int4" else table
    found["reverse_embeddings_scale"] = scale
    return found


def reverse_product(layer: ReversibleEmbedding, inputs: TensorLike) -> Tensor:
    """Return the logits, without the cap.

    Where groups of an int4 table have scales of their own, inputs are not rounded: Keras rounds them and multiplies
    floats, which loses precision and no time.
    """
    x = ops.cast(inputs, layer.reverse_dtype or layer.compute_dtype)
    if layer.lora_enabled and layer.tie_weights:
        return ops.matmul(x, ops.cast(ops.transpose(layer.embeddings), x.dtype))
    if layer.quantization_mode == "int8" and layer.inputs_quantizer is not None:
        if layer.tie_weights:
            return int8_product(layer, x, layer._embeddings, layer.embeddings_scale, transpose=True)
        return int8_product(layer, x, layer.reverse_embeddings, layer.reverse_embeddings_scale)
    return ops.matmul(x, ops.stop_gradient(ops.cast(_reverse_table(layer), x.dtype)))


def _reverse_table(layer: ReversibleEmbedding) -> Tensor:
    """Return the table of the way back as floats, (output_dim, input_dim)."""
    if layer.tie_weights:
        return ops.transpose(layer._dequantized())
    integers = layer.reverse_embeddings
    if layer.quantization_mode == "int4":
        integers = unpack_int4(integers, layer.output_dim, axis=0)
    integers = ops.cast(integers, "float32")
    if layer.reverse_embeddings_zero is None:
        return integers / layer.reverse_embeddings_scale
    assert layer.g_idx is not None  # groups of values have their numbers
    groups = ops.cast(layer.g_idx, "int32")
    zero, scale = [
        ops.take(part, groups, axis=0) for part in (layer.reverse_embeddings_zero, layer.reverse_embeddings_scale)
    ]
    return (integers - zero) * scale
