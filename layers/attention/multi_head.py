"""`MultiHeadAttention`."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ..core.dense import positive_int
from ..core.einsum_dense import EinsumDense
from ..core.layer_config import config_from_signature
from .aliases import Alias
from .heads import HeadsAttention

if TYPE_CHECKING:
    from ..core.options import CommonOptions


_LETTERS = string.ascii_lowercase


@config_from_signature(output_shape="_output_shape")
class MultiHeadAttention(HeadsAttention):
    """Several heads, each of which sees its own projections of query, key and value (Vaswani et al., 2017).

    Args:
        num_heads: the number of heads.
        key_dim: the length of a head's queries and keys.
        value_dim: the length of a head's values; by default `key_dim`.
        dropout: in training, the part of the weights that is dropped.
        use_bias: whether the projections have biases.
        output_shape: the sizes of the outputs' last axes; by default those of the query's last.
        attention_axes: the axes that are attended over; by default all but batch and features.
        sliding_window: a target sees only sources less than this many places away; None for no limit.
        flash_attention: how to compute, not what; there is one way here. It may not be True together with dropout.
        kernel_initializer, bias_initializer: first values of the projections.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties on the projections.
        kernel_constraint, bias_constraint: projections after each update.
        use_gate: what the heads give is multiplied by a sigmoid of the query, projected (Qiu et al., 2025).
        seed: an integer for the dropout.

    Call arguments: ``query (batch, targets, features)``; ``value (batch, sources, features)``; ``key``, by default the
    value; ``query_mask``, ``value_mask``, ``key_mask``, by default those that the inputs carry;
    ``attention_mask (batch, targets, sources)``, True where a target sees a source; ``return_attention_scores``;
    ``use_causal_mask``, so that a target sees no later sources; ``training``.

    Returns:
        ``(batch, targets, features)``, with ``return_attention_scores`` also the weights of each head,
        ``(batch, heads, targets, sources)``.

    Weights, in ``query_dense``, ``key_dense``, ``value_dense``: ``kernel (features, heads, size)``, ``bias (heads,
    size)``; in ``output_dense``: ``kernel (heads, value size, features)``, ``bias (features,)``.

    Raises:
        ValueError: an argument is out of range, or value and key do not fit.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = np.zeros((3, 5, 8), "float32")
    >>> outputs, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    >>> outputs.shape, scores.shape
    ((3, 5, 8), (3, 2, 5, 5))
    """

    _num_heads, _key_dim, _value_dim = Alias[int]("num_heads"), Alias[int]("key_dim"), Alias[int]("value_dim")
    _attention_axes = Alias[tuple[int, ...] | None]("attention_axes")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
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
        self.num_heads = positive_int("MultiHeadAttention", "num_heads", num_heads)
        self.key_dim = positive_int("MultiHeadAttention", "key_dim", key_dim)
        self.value_dim = key_dim if value_dim is None else positive_int("MultiHeadAttention", "value_dim", value_dim)
        super().__init__(
            key_dim,
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
        self._output_shape = _as_tuple("output_shape", output_shape)
        self.attention_axes = _as_tuple("attention_axes", attention_axes)

    def build(
        self,
        query_shape: Sequence[int | None],
        value_shape: Sequence[int | None],
        key_shape: Sequence[int | None] | None = None,
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(value_shape, key_shape)
        keys, values = (self.num_heads, self.key_dim), (self.num_heads, self.value_dim)
        self._query_dense = self._project_in(query_shape, keys, "query")
        self._key_dense = self._project_in(key_shape, keys, "key")
        if self.use_gate:
            self._gate_dense = self._project_in(query_shape, values, "gate", "sigmoid")
        self._value_dense = self._project_in(value_shape, values, "value")
        self._build_attention(len(value_shape) + 1)
        last = self._output_shape or (query_shape[-1],)
        free = len(query_shape) - 1
        self._output_dense = self._projection(
            *_projection(free, 2, last), "attention_output", (*query_shape[:-1], self.num_heads, self.value_dim)
        )

    def _build_attention(self, rank: int) -> None:
        """Make what `_compute_attention` needs beside the projections.

        Args:
            rank: of the projected query, key and value.
        """
        axes = tuple(axis % (rank - 1) for axis in self.attention_axes or range(1, rank - 2))
        self._prepare(*_attention_equations(rank, axes), attended=len(axes))

    def _project_in(
        self, shape: Sequence[int | None], sizes: tuple[int, int], name: str, activation: ActivationLike = None
    ) -> EinsumDense:
        return self._projection(*_projection(len(shape) - 1, 1, sizes), name, shape, activation)

    @property
    def query_dense(self) -> EinsumDense:
        return self._query_dense

    @property
    def key_dense(self) -> EinsumDense:
        return self._key_dense

    @property
    def value_dense(self) -> EinsumDense:
        return self._value_dense

    @property
    def output_dense(self) -> EinsumDense:
        return self._output_dense


def _as_tuple(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return tuple(value) or None
    raise ValueError(f"MultiHeadAttention: {name} must be an int or a list of ints, got {value!r}.")


def _projection(free: int, bound: int, sizes: Sequence[int | None]) -> tuple[str, list[int | None], str]:
    """Return equation, output shape and bias axes of a projection of the last `bound` axes to axes of the given sizes.

    >>> _projection(2, 1, (4, 8))
    ('abc,cde->abde', [None, 4, 8], 'de')
    """
    kept, last = _LETTERS[:free], _LETTERS[free : free + bound]
    new = _LETTERS[free + bound : free + bound + len(sizes)]
    return f"{kept}{last},{last}{new}->{kept}{new}", [*[None] * (free - 1), *sizes], new


def _attention_equations(rank: int, axes: tuple[int, ...]) -> tuple[str, str]:
    """Return equations of the scores from key and query, and of the outputs from scores and value.

    Args:
        rank: of the projected tensors, ``(batch, ..., heads, size)``.
        axes: those that are attended over; the others but the last are the query's, the key's and the value's alike.

    >>> _attention_equations(4, (1,))
    ('aecd,abcd->acbe', 'acbe,aecd->abcd')
    """
    target = _LETTERS[:rank]
    others = iter(_LETTERS[rank:])
    source = "".join(next(others) if axis in axes else letter for axis, letter in enumerate(target))
    shared = "".join(letter for axis, letter in enumerate(target[:-1]) if axis not in axes)
    scores = shared + "".join(target[axis] for axis in axes) + "".join(source[axis] for axis in axes)
    return f"{source},{target}->{scores}", f"{scores},{source}->{target}"
