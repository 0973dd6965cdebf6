"""`GroupQueryAttention`: heads that share keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ..core.dense import positive_int
from ..core.layer_config import config_from_signature
from .heads import HeadsAttention

if TYPE_CHECKING:
    from ..core.options import CommonOptions


@config_from_signature()
class GroupQueryAttention(HeadsAttention):
    """`MultiHeadAttention` in which several heads of the query share one of key and value (Ainslie et al., 2023).

    Args:
        head_dim: the length of a head's queries, keys and values.
        num_query_heads: the number of heads.
        num_key_value_heads: the number of heads of key and value, of which `num_query_heads` is a multiple.
        dropout: in training, the part of the weights that is dropped.
        use_bias: whether the projections have biases.
        sliding_window: a target sees only sources less than this many places away; None for no limit.
        flash_attention: how to compute, not what; there is one way here. It may not be True together with dropout.
        kernel_initializer, bias_initializer: first values of the projections.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties on the projections; the last one also on
            what the layer returns.
        kernel_constraint, bias_constraint: projections after each update.
        use_gate: what the heads give is multiplied by a sigmoid of the query, projected.
        seed: an integer for the dropout.

    Call arguments and result are those of `MultiHeadAttention`, for inputs of three axes.

    Raises:
        ValueError: an argument is out of range, the numbers of heads do not fit, or value and key do not.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.GroupQueryAttention(head_dim=4, num_query_heads=6, num_key_value_heads=2)
    >>> layer(np.zeros((3, 5, 8), "float32"), np.zeros((3, 7, 8), "float32")).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
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
        self.head_dim = positive_int("GroupQueryAttention", "head_dim", head_dim)
        self.num_query_heads = positive_int("GroupQueryAttention", "num_query_heads", num_query_heads)
        self.num_key_value_heads = positive_int("GroupQueryAttention", "num_key_value_heads", num_key_value_heads)
        if num_query_heads % num_key_value_heads:
            raise ValueError(
                "GroupQueryAttention: num_query_heads must be a multiple of num_key_value_heads, got "
                f"num_query_heads={num_query_heads} and num_key_value_heads={num_key_value_heads}."
            )
        self.num_repeats = num_query_heads // num_key_value_heads
        super().__init__(
            head_dim,
            dropout=dropout,
            use_bias=use_bias,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            **kwargs,
        )
        self.activity_regularizer = self._activity_regularizer  # as in Keras, of the output, too

    def build(
        self,
        query_shape: Sequence[int | None],
        value_shape: Sequence[int | None],
        key_shape: Sequence[int | None] | None = None,
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(value_shape, key_shape)
        queries = (None, self.num_query_heads, self.head_dim)
        keys = (None, self.num_key_value_heads, self.head_dim)
        self._query_dense = self._projection("bqm,muh->bquh", queries, "uh", "query", query_shape)
        self._key_dense = self._projection("bkm,mvh->bkvh", keys, "vh", "key", key_shape)
        if self.use_gate:
            self._gate_dense = self._projection("bqm,muh->bquh", queries, "uh", "gate", query_shape, "sigmoid")
        self._value_dense = self._projection("bkm,mvh->bkvh", keys, "vh", "value", value_shape)
        self._prepare("bkuh,bquh->buqk", "buqk,bkuh->bquh", attended=1)
        heads = (*query_shape[:-1], self.num_query_heads, self.head_dim)
        self._output_dense = self._projection("bquh,uhm->bqm", (None, query_shape[-1]), "m", "attention_output", heads)

    def _attend_with_scores(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, training: bool | None
    ) -> tuple[Tensor, Tensor]:
        key, value = ops.repeat(key, self.num_repeats, axis=2), ops.repeat(value, self.num_repeats, axis=2)
        return super()._attend_with_scores(query, key, value, mask, training)
