"""Shared by attention layers with several heads: projections, masks, weights over the sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import check_numbers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, PolicyLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.activation import Softmax
from ..core.calling import TensorOrTensors, one_or_several
from ..core.einsum_dense import EinsumDense
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..regularization.dropout import Dropout, acts
from .aliases import Alias
from .masks import as_mask, both, causal_mask, window_mask, with_rank

if TYPE_CHECKING:
    from ..core.options import CommonOptions


class _ProjectionOptions(TypedDict):
    kernel_initializer: InitializerLike
    bias_initializer: InitializerLike
    kernel_regularizer: RegularizerLike
    bias_regularizer: RegularizerLike
    activity_regularizer: RegularizerLike
    kernel_constraint: ConstraintLike
    bias_constraint: ConstraintLike
    dtype: PolicyLike


@config_from_signature(activity_regularizer="_activity_regularizer", head_size="", flash_attention="")
class HeadsAttention(Layer):
    """The base of `MultiHeadAttention` and `GroupQueryAttention`.

    A subclass makes ``_query_dense``, ``_key_dense``, ``_value_dense`` and ``_output_dense`` (and ``_gate_dense`` where
    `use_gate` is set), and calls `_prepare`.

    Args:
        head_size: the length of a head's queries, whose root scores are divided by.
        dropout: in training, the part of the weights that is dropped.
        use_bias: whether the projections have biases.
        sliding_window: a target sees only sources less than this many places away; None for no limit.
        flash_attention: how to compute, not what; there is one way here. It may not be True together with dropout.
        kernel_initializer, bias_initializer: first values of the projections.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties on the projections.
        kernel_constraint, bias_constraint: projections after each update.
        use_gate: what the heads give is multiplied by a sigmoid of the query, projected.
        seed: an integer for the dropout.
    """

    _query_dense: EinsumDense
    _key_dense: EinsumDense
    _value_dense: EinsumDense
    _gate_dense: EinsumDense
    _output_dense: EinsumDense

    _use_bias, _dropout = Alias[bool]("use_bias"), Alias[float]("dropout")
    _kernel_initializer = Alias[InitializerLike]("kernel_initializer")
    _bias_initializer = Alias[InitializerLike]("bias_initializer")
    _kernel_regularizer = Alias[RegularizerLike]("kernel_regularizer")
    _bias_regularizer = Alias[RegularizerLike]("bias_regularizer")
    _kernel_constraint = Alias[ConstraintLike]("kernel_constraint")
    _bias_constraint = Alias[ConstraintLike]("bias_constraint")

    def __init__(
        self,
        head_size: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        use_gate: bool = False,
        seed: int | None = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**kwargs)
        label = type(self).__name__
        if sliding_window is not None and (not isinstance(sliding_window, int) or sliding_window <= 0):
            raise ValueError(f"{label}: sliding_window must be None or a positive integer, got {sliding_window!r}.")
        if flash_attention and acts(dropout):
            raise ValueError(f"{label}: flash_attention=True takes no dropout, got dropout={dropout}. Set one of them.")
        check_numbers(type(self).__name__, dropout=dropout)
        self.dropout = dropout
        self.use_bias = use_bias
        self.use_gate = use_gate
        self.sliding_window = sliding_window
        self._flash_attention = flash_attention
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.bias_regularizer = regularizers.get(bias_regularizer, "bias_regularizer")
        self._activity_regularizer = regularizers.get(activity_regularizer, "activity_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")
        self.bias_constraint = constraints.get(bias_constraint, "bias_constraint")
        self._inverse_sqrt_key_dim = 1.0 / math.sqrt(head_size)
        self.seed = seed
        self.supports_masking = True
        self._attended = 1  # over how many axes

    # --- building -------------------------------------------------------------------------------------------

    def _prepare(self, scores_equation: str, combine_equation: str, attended: int) -> None:
        """Keep what is needed beside the projections: equations over key and query, then weights and value."""
        self._dot_product_equation = scores_equation
        self._combine_equation = combine_equation
        self._attended = attended
        self._softmax = Softmax(axis=list(range(-attended, 0)), dtype=self.dtype_policy)
        self._dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)

    def _projection(
        self,
        equation: str,
        output_shape: Sequence[int | None],
        bias_axes: str,
        name: str,
        input_shape: Sequence[int | None],
        activation: ActivationLike = None,
    ) -> EinsumDense:
        """Return a built projection."""
        layer = EinsumDense(
            equation,
            output_shape,
            activation=activation,
            bias_axes=bias_axes if self.use_bias else None,
            name=name,
            **self._get_common_kwargs_for_sublayer(),
        )
        layer.supports_masking = True  # masks are seen to here; a projection keeps places apart
        layer.build(input_shape)
        return layer

    def _get_common_kwargs_for_sublayer(self) -> _ProjectionOptions:
        """Return the arguments that all projections share."""
        return {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "activity_regularizer": self._activity_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
            "dtype": self.dtype_policy,
        }

    def _check_shapes(self, value_shape: Sequence[int | None], key_shape: Sequence[int | None]) -> None:
        if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): value and key must agree in all axes but the batch and "
                f"the last, got value shape {value_shape} and key shape {key_shape}."
            )

    # --- calling --------------------------------------------------------------------------------------------

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None,
        key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> TensorOrTensors:
        if self._flash_attention and return_attention_scores:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): flash_attention=True gives no attention scores. Set "
                "flash_attention=None, or leave return_attention_scores."
            )
        seen = self._compute_attention_mask(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )
        gate = self._gate_dense(query) if self.use_gate else None
        wanted = {"return_attention_scores": True} if return_attention_scores else {}  # not all overrides take it
        outputs, scores = self._compute_attention(
            self._query_dense(query),
            self._key_dense(value if key is None else key),
            self._value_dense(value),
            seen,
            training,
            **wanted,
        )
        outputs = self._output_dense(outputs if gate is None else outputs * gate)
        return one_or_several([outputs, scores] if return_attention_scores else [outputs])

    def _compute_attention_mask(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None,
        key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | None:
        """Return all masks as one, ``(batch, targets, sources)`` or what broadcasts to it; None for no mask."""
        targets, sources = ops.shape(query)[1], ops.shape(value)[1]
        mask = both(as_mask(query_mask, -1), as_mask(value_mask, -2))
        mask = both(mask, as_mask(key_mask, -2))
        if use_causal_mask:
            mask = both(mask, causal_mask(targets, sources))
        if self.sliding_window is not None:
            mask = both(mask, window_mask(targets, sources, self.sliding_window))
        return both(as_mask(attention_mask), mask)

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of each head, ``(batch, targets, heads, value size)``, and its weights if they are wanted.

        Subclasses may override it to attend in another way; the arguments are the projected ones. `call` has put the
        causal mask into `attention_mask`; for `use_causal_mask` it is put in here.
        """
        if use_causal_mask:
            causal = causal_mask(ops.shape(query)[1], ops.shape(key)[1])
            attention_mask = both(as_mask(attention_mask), causal)
        wants_scores = return_attention_scores or acts(self.dropout) or len(query.shape or ()) != 4
        if wants_scores:
            return self._attend_with_scores(query, key, value, attention_mask, training)
        mask = None if attention_mask is None else with_rank(attention_mask, 4, -3)
        return ops.dot_product_attention(query, key, value, mask=mask, scale=self._inverse_sqrt_key_dim), None

    def _attend_with_scores(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, training: bool | None
    ) -> tuple[Tensor, Tensor]:
        scores = ops.einsum(self._dot_product_equation, key, query * self._inverse_sqrt_key_dim)
        weights = self._masked_softmax(scores, mask)
        kept = self._dropout_layer(weights, training=training) if acts(self.dropout) else weights
        return ops.einsum(self._combine_equation, kept, value), weights

    def _masked_softmax(self, attention_scores: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the weights of the sources: softmax of the scores where the mask is True."""
        if attention_mask is not None:
            rank = len(attention_scores.shape or ())
            attention_mask = with_rank(attention_mask, rank, -2 * self._attended - 1)
        return self._softmax(attention_scores, mask=attention_mask)
