"""Types of arguments: of those that all layers have, for their `**kwargs`, and of those of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, PolicyLike, RegularizerLike

if TYPE_CHECKING:
    from .weight import Constraint, Regularizer

ShapeLike: TypeAlias = int | Sequence[int | None] | None
"""The shape of a weight: its sizes, or one of them; None for a scalar."""

WeightSettings: TypeAlias = "tuple[bool, Regularizer | None, Constraint | None, str | None, bool]"
"""Options of a weight: whether it is trainable, its regularizer, constraint, aggregation and autocast."""


class InputShapeOptions(TypedDict, total=False):
    """Arguments that give the shape of a layer's input."""

    input_shape: Sequence[int | None] | None
    batch_shape: Sequence[int | None] | None
    batch_input_shape: Sequence[int | None] | None
    batch_size: int | None


class ShapeOptions(InputShapeOptions, total=False):
    """Arguments by which the first layer of a `Sequential` says what its input is; see `Layer`."""

    input_dim: int | None


class NamedOptions(TypedDict, total=False):
    """Arguments of all layers that have nothing to do with the input."""

    trainable: bool
    dtype: PolicyLike
    autocast: bool
    name: str | None


class CommonOptions(ShapeOptions, NamedOptions, total=False):
    """Arguments of all layers, for classes that have `activity_regularizer` as an argument of their own."""


class LayerOptions(CommonOptions, total=False):
    """Arguments of all layers; see `Layer`."""

    activity_regularizer: RegularizerLike


class OtherOptions(ShapeOptions, total=False):
    """Arguments of all layers, for classes that have `name` and `dtype` as arguments of their own."""

    trainable: bool
    autocast: bool
    activity_regularizer: RegularizerLike


class ImageOptions(LayerOptions, total=False):
    """Arguments of all layers of images; see `ImageLayer`."""

    bounding_box_format: str | None


class AdapterOptions(LayerOptions, total=False):
    """Arguments of all layers that can have adapters; see `AdaptableLayer`."""

    lora_rank: int | None
    lora_alpha: float | None


class TableOptions(InputShapeOptions, NamedOptions, total=False):
    """Arguments of all layers, for classes that have `input_dim` as an argument of their own."""

    activity_regularizer: RegularizerLike


class EmbeddingOptions(TableOptions, total=False):
    """Further arguments of `Embedding`."""

    input_length: int | Sequence[int | None] | None  # Keras 2's name of `input_shape`


class UnnamedOptions(ShapeOptions, total=False):
    """Arguments of all layers, for classes that have `name` as an argument of their own."""

    trainable: bool
    dtype: PolicyLike
    autocast: bool
    activity_regularizer: RegularizerLike


class LookupOptions(UnnamedOptions, total=False):
    """Further arguments of the layers that look up a vocabulary, as configs have them."""

    vocabulary_size: int | None
    has_input_vocabulary: bool | None


class AttentionOptions(LayerOptions, total=False):
    """Further arguments of `Attention`, for classes that are made of it."""

    score_mode: str
    seed: int | None


class RecurrentOptions(CommonOptions, total=False):
    """Further arguments of the layers that are named after their cell."""

    zero_output_for_mask: bool
    time_major: bool
    implementation: int


class CellOptions(LayerOptions, total=False):
    """Further arguments of all cells; see `RecurrentCell`."""

    implementation: int


class CellWeightOptions(CellOptions, total=False):
    """Arguments of a cell's weights and dropout; see `RecurrentCell`."""

    kernel_initializer: InitializerLike
    recurrent_initializer: InitializerLike
    bias_initializer: InitializerLike
    kernel_regularizer: RegularizerLike
    recurrent_regularizer: RegularizerLike
    bias_regularizer: RegularizerLike
    kernel_constraint: ConstraintLike
    recurrent_constraint: ConstraintLike
    bias_constraint: ConstraintLike
    dropout: float
    recurrent_dropout: float
    seed: int | None


class LSTMCellOptions(CellWeightOptions, total=False):
    """Arguments of `LSTMCell`, for cells that are made of it."""

    activation: ActivationLike
    recurrent_activation: ActivationLike
    use_bias: bool
    unit_forget_bias: bool


class PeepholeLSTMCellOptions(LSTMCellOptions, total=False):
    """Arguments of `PeepholeLSTMCell`, for cells that are made of it."""

    peephole_initializer: InitializerLike
    peephole_regularizer: RegularizerLike
    peephole_constraint: ConstraintLike
