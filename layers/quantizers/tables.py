"""`QuantizableTable`: a table of vectors that may be of int8, of int4 or of floats, with a scale for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor, eagerly
from ..core.cut_weights import cut_of, rows_in_parts
from ..core.weight import Weight, WeightSpec
from .quantizable import Array, QuantizableLayer

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from .base_config import QuantizationConfig


class QuantizableTable(QuantizableLayer):
    """Base of layers with `embeddings`, of which rows are taken.

    A class defines `input_dim` and `output_dim`, the table's sizes.
    """

    main_weight: ClassVar[str] = "embeddings"
    untracked = QuantizableLayer.untracked | {"embeddings"}
    input_dim: int
    output_dim: int
    _embeddings: Any = None

    @property
    def embeddings(self) -> Weight:
        """The table: a weight; with adapters, or of int4, the tensor that they come to."""
        table: Any = self._embeddings
        if self.lora_enabled:
            table = table if self.quantization_mode is None else self._dequantized()
            a, b = self._lora_factors()
            table = ops.cast(table + ops.matmul(a, b) * self._lora_scale, self.compute_dtype)
        elif self.quantization_mode == "int4":
            from .packing import unpack_int4

            table = unpack_int4(table, self.output_dim, axis=-1)
        return table

    @embeddings.setter
    def embeddings(self, value: Weight) -> None:
        self._embeddings = value

    def _make_weight(self, spec: WeightSpec) -> Weight:
        """Make a weight; the table as the dtype policy has it."""
        mode = self.quantization_mode
        if spec.name != "embeddings" or mode is None:
            return super()._make_weight(spec)
        self._int4_block_size = self._block_size()
        self._build_quantized(mode)
        return self._embeddings

    def _build_quantized(self, mode: str) -> None:
        if mode == "int8":
            self._embeddings = self._frozen_weight("embeddings", (self.input_dim, self.output_dim), "int8")
            self.embeddings_scale = self._frozen_weight("embeddings_scale", (self.input_dim,), initializer="ones")
            return
        block = self._int4_block_size
        self._embeddings = self._frozen_weight("embeddings", (self.input_dim, (self.output_dim + 1) // 2), "int8")
        scales = (self.input_dim,) if block is None else (self.input_dim, -(-self.output_dim // block))
        self.embeddings_scale = self._frozen_weight("embeddings_scale", scales, initializer="ones")
        self.embeddings_zero, self.g_idx = None, None
        if block is not None:
            self.embeddings_zero = self._frozen_weight("embeddings_zero", scales, "int8")
            self.g_idx = self._frozen_weight("g_idx", (self.output_dim,), "float32")
            self.g_idx.assign(np.arange(self.output_dim) // block)

    def _saved_names(self, mode: str | None) -> list[str]:
        own = {"int8": ["embeddings_scale"], "int4": ["embeddings_scale", "embeddings_zero", "g_idx"]}
        return ["_embeddings", *own.get(mode or "", [])]

    def _quantized_values(self, mode: str, config: QuantizationConfig) -> dict[str, Array]:
        return self._round(mode, self._embeddings.numpy(), config)

    def _round(self, mode: str, weight: Array, config: QuantizationConfig | None = None) -> dict[str, Array]:
        from .kernels import INT4_RANGE
        from .packing import packed_array
        from .rounding import abs_max_arrays, grouped_arrays

        quantizer = getattr(config or self.quantization_config, "weight_quantizer", None)
        if mode == "int4" and self._int4_block_size is not None:
            table, scale, zero = [part.T for part in grouped_arrays(weight.T, self._int4_block_size)]
            return {"_embeddings": packed_array(table), "embeddings_scale": scale, "embeddings_zero": zero}
        if quantizer is not None:
            table, scale = [part.numpy() for part in quantizer(weight, to_numpy=True)]
        elif mode == "int8":
            table, scale = abs_max_arrays(weight, -1)
        else:
            table, scale = abs_max_arrays(weight, -1, INT4_RANGE)
        table = packed_array(table) if mode == "int4" else table
        return {"_embeddings": table, "embeddings_scale": scale.reshape(-1)}

    def _float_weight(self) -> Array:
        if self.quantization_mode is None:
            return self._embeddings.numpy()
        with eagerly():
            return np.asarray(self._dequantized(), "float32")

    def _lora_shapes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        return (self.input_dim, rank), (rank, self.output_dim)

    # --- computing ------------------------------------------------------------------------------------------

    def _dequantized(self) -> Tensor:
        """Return the whole quantised table as floats."""
        return self._float_rows(self._embeddings, self.embeddings_scale, getattr(self, "embeddings_zero", None))

    def _float_rows(self, packed: TensorLike, scale: TensorLike, zero: TensorLike | None) -> Tensor:
        """Return rows of a quantised table as floats; any axes may come before the last."""
        dtype = self.compute_dtype
        integers = packed
        if self.quantization_mode == "int4":
            from .packing import unpack_last

            integers = unpack_last(packed, self.output_dim)
        if self._int4_block_size is None or zero is None:
            return ops.cast(integers, dtype) / ops.cast(ops.expand_dims(scale, -1), dtype)
        assert self.g_idx is not None, "groups of values have their numbers"
        groups = ops.cast(self.g_idx, "int32")
        scale, zero = ops.cast(scale, "float32"), ops.cast(zero, "float32")
        shifted = ops.cast(integers, "float32") - ops.take(zero, groups, axis=-1)
        return ops.cast(shifted * ops.take(scale, groups, axis=-1), dtype)

    def _rows(self, places: Tensor) -> Tensor:
        """Return the rows at `places`, whole numbers."""
        if self.quantization_mode is None:
            cut = cut_of(self._embeddings)
            table = self._embeddings
            rows = ops.take(table, places, axis=0) if cut is None else rows_in_parts(cut, table, places)
            rows = ops.cast(rows, self.compute_dtype)
        else:
            zero = getattr(self, "embeddings_zero", None)
            packed, scale = [ops.take(part, places, axis=0) for part in (self._embeddings, self.embeddings_scale)]
            rows = self._float_rows(packed, scale, None if zero is None else ops.take(zero, places, axis=0))
        if not self.lora_enabled:
            return rows
        a, b = self._lora_factors()
        adapted = ops.matmul(ops.take(a, places, axis=0), b) * self._lora_scale
        return ops.cast(rows + adapted, self.compute_dtype)
