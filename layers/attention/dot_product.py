"""`Attention` and `AdditiveAttention`: one head, no projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers
from ...engine.ops.random import samplers as random
from ..core.calling import TensorOrTensors, one_or_several
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from ..regularization.dropout import acts
from .masks import as_mask, both, causal_mask

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from ..core.options import AttentionOptions, LayerOptions


@config_from_signature()
class Attention(Layer):
    """For each query the mean of the values, weighted by how well their keys match it (Luong et al., 2015).

    Args:
        use_scale: scores are multiplied by a learned scalar.
        score_mode: ``"dot"``, the inner product of query and key; or ``"concat"``, the sum of ``tanh(query + key)``,
            times a learned scalar.
        dropout: in training, the part of the weights that is dropped.
        seed: an integer for the dropout.

    Call arguments: ``inputs``, a list of query ``(batch, targets, dim)``, value ``(batch, sources, dim)`` and, unless
    it is the value, key ``(batch, sources, dim)``; ``mask``, a list of the masks of these (each may be None): outputs
    are 0 where the query's mask is False, and values do not count where theirs is; ``return_attention_scores``;
    ``use_causal_mask``, so that a target sees no later sources; ``training``.

    Returns:
        ``(batch, targets, dim)``, with ``return_attention_scores`` also the weights, ``(batch, targets, sources)``.

    Raises:
        ValueError: an argument is not one of these, or inputs or mask are not a list of two or three.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> query, value = np.zeros((1, 1, 2), "float32"), np.array([[[1, 2], [3, 4]]], "float32")
    >>> ab.layers.Attention()([query, value])
    Tensor([[[2., 3.]]], dtype=float32)
    """

    scale: Weight | None
    concat_score_weight: Weight | None

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if score_mode not in ("dot", "concat"):
            raise ValueError(f"{type(self).__name__}: score_mode must be 'dot' or 'concat', got {score_mode!r}.")
        self.use_scale = use_scale
        self.score_mode = score_mode
        check_numbers(type(self).__name__, dropout=dropout)
        self.dropout = dropout
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def weight_specs(self, input_shape: Sequence[Sequence[int | None]]) -> Sequence[WeightSpec]:
        self._check(input_shape, None)
        return (
            WeightSpec("scale", (), "ones", present=self.use_scale),
            WeightSpec("concat_score_weight", (), "ones", present=self.score_mode == "concat"),
        )

    def call(
        self,
        inputs: Sequence[Tensor],
        mask: Sequence[TensorLike | None] | None = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> TensorOrTensors:
        self._check(inputs, mask)
        query, value, key = inputs[0], inputs[1], inputs[-1]
        query_mask, value_mask = mask[:2] if mask else (None, None)
        scores = self._calculate_scores(query, key)
        allowed = as_mask(value_mask, -2)
        if use_causal_mask:
            allowed = both(allowed, causal_mask(*ops.shape(scores)[-2:]))
        outputs, weights = self._apply_scores(scores, value, allowed, training)
        if query_mask is not None:
            outputs = ops.where(as_mask(query_mask, -1), outputs, ops.zeros_like(outputs))
        return one_or_several([outputs, weights] if return_attention_scores else [outputs])

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scores of each query with each key, ``(batch, targets, sources)``. Subclasses may do it otherwise."""
        if self.concat_score_weight is None:
            scores = ops.matmul(query, ops.swapaxes(key, -2, -1))
            return scores if self.scale is None else scores * self.scale
        pairs = _pair_sums(query, key)
        return self.concat_score_weight * ops.sum(ops.tanh(pairs if self.scale is None else self.scale * pairs), -1)

    def _apply_scores(
        self, scores: Tensor, value: Tensor, scores_mask: Tensor | None = None, training: bool | None = False
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted means of the values, and the weights."""
        if scores_mask is not None:
            # Keras's numbers: lowered rather than replaced, so that scores count where all are masked.
            lowest = 65504.0 if scores.dtype.name == "float16" else 1e9
            scores = ops.where(scores_mask, scores, scores - lowest)
        weights = ops.softmax(scores, axis=-1)
        if training and acts(self.dropout):
            weights = random.dropout(weights, self.dropout, seed=self.seed_generator)
        return ops.matmul(weights, value), weights

    def compute_mask(
        self, inputs: Sequence[TensorLike], mask: Sequence[TensorLike | None] | None = None
    ) -> TensorLike | None:
        """Return the query's mask."""
        return mask[0] if isinstance(mask, (list, tuple)) else None

    def _check(self, inputs: object, mask: object) -> None:
        for argument, value in (("inputs", inputs), ("mask", mask)):
            if argument == "mask" and value is None:
                continue
            if not isinstance(value, (list, tuple)) or len(value) not in (2, 3):
                count = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else "no list"
                raise ValueError(
                    f"Layer {self.name!r} ({type(self).__name__}): {argument} must be a list [query, value] or [query, "
                    f"value, key]{' of masks' if argument == 'mask' else ''}, got {count}."
                )


class AdditiveAttention(Attention):
    """`Attention` whose scores are ``sum(scale * tanh(query + key))`` (Bahdanau et al., 2015).

    Args:
        use_scale: each feature has a learned factor; otherwise they count alike.
        dropout: in training, the part of the weights that is dropped.
        **kwargs: ``seed``, and those of `Layer`.

    Call arguments and result are those of `Attention`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.AdditiveAttention()
    >>> layer([np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, 4), "float32")]).shape
    (2, 3, 4)
    >>> layer.scale.shape
    (4,)
    """

    def __init__(self, use_scale: bool = True, dropout: float = 0.0, **kwargs: Unpack[AttentionOptions]) -> None:
        super().__init__(use_scale=use_scale, dropout=dropout, **kwargs)

    def weight_specs(self, input_shape: Sequence[Sequence[int | None]]) -> Sequence[WeightSpec]:
        self._check(input_shape if all(isinstance(shape, (list, tuple)) for shape in input_shape) else None, None)
        return (WeightSpec("scale", (input_shape[0][-1],), "glorot_uniform", present=self.use_scale),)

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Tensor:
        matches = ops.tanh(_pair_sums(query, key))
        return ops.sum(matches if self.scale is None else self.scale * matches, axis=-1)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["score_mode"]
        return config


def _pair_sums(query: Tensor, key: Tensor) -> Tensor:
    """Return each query plus each key: ``(batch, targets, sources, dim)``."""
    return ops.expand_dims(query, -2) + ops.expand_dims(key, -3)
