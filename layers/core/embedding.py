"""`Embedding`: rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import floats
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..quantizers.tables import QuantizableTable
from .dense import positive_int
from .layer_config import config_from_signature
from .weight import WeightSpec

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ..quantizers.base_config import QuantizationConfig
    from .options import EmbeddingOptions


@config_from_signature(activity_regularizer="activity_regularizer", weights="")
class Embedding(QuantizableTable):
    """A vector for each integer.

    Args:
        input_dim: the number of integers: they are 0 to ``input_dim - 1``.
        output_dim: the length of the vectors.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table.
        mask_zero: 0 stands for padding: layers behind skip it (see `compute_mask`).
        weights: the table's first value, instead of the initializer's; an array, or a list of one.
        lora_rank, lora_alpha, quantization_config: see `enable_lora` and `quantize`.

    Shapes: ``(batch, ...)`` of integers to ``(batch, ..., output_dim)``. Weights: ``embeddings
    (input_dim, output_dim)``.

    >>> import anabranch as ab
    >>> ab.layers.Embedding(2, 3, weights=[[0, 1, 2], [3, 4, 5]])([1, 0])
    Tensor([[3., 4., 5.],
            [0., 1., 2.]], dtype=float32)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: InitializerLike = "uniform",
        embeddings_regularizer: RegularizerLike = None,
        embeddings_constraint: ConstraintLike = None,
        mask_zero: bool = False,
        weights: TensorLike | None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        quantization_config: QuantizationConfig | None = None,
        **kwargs: Unpack[EmbeddingOptions],
    ) -> None:
        length = kwargs.pop("input_length", None)  # Keras 2's
        if length is not None:
            kwargs["input_shape"] = (length,) if isinstance(length, int) else tuple(length)
        super().__init__(quantization_config=quantization_config, lora_rank=lora_rank, lora_alpha=lora_alpha, **kwargs)
        self.input_dim = positive_int("Embedding", "input_dim", input_dim)
        self.output_dim = positive_int("Embedding", "output_dim", output_dim)
        self.embeddings_initializer = initializers.get(embeddings_initializer, "embeddings_initializer")
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer, "embeddings_regularizer")
        self.embeddings_constraint = constraints.get(embeddings_constraint, "embeddings_constraint")
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False
        if weights is not None and not isinstance(weights, Tensor):
            floats("Embedding", "weights", weights)
        self._first_value = weights
        if weights is not None:
            self.build()

    def weight_specs(self, input_shape: Sequence[int | None] | None = None) -> Sequence[WeightSpec]:
        first = None if self._first_value is None else self._given_value
        return (WeightSpec("embeddings", (self.input_dim, self.output_dim), first),)

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self._enable_given_lora()

    def _given_value(self, shape: Sequence[int], dtype: DTypeLike = None) -> Tensor:
        table = initializers.Constant(self._first_value).value
        if isinstance(table, (list, tuple)) and len(table) == 1 and shape[0] != 1:
            table = table[0]
        return initializers.Constant(table)(shape, dtype)

    def call(self, inputs: Tensor) -> Tensor:
        if inputs.dtype.kind not in "iu":
            inputs = ops.cast(inputs, "int32")
        return self._rows(inputs)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Tensor | None:
        """Return a mask, True where the input is not 0; None without `mask_zero`."""
        return ops.not_equal(inputs, 0) if self.mask_zero else None
