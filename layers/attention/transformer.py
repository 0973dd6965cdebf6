"""`TransformerEncoder`, `TransformerDecoder`, and the decoder as a cell, which writes one place at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor, flatten
from ...engine.objects import activations, initializers
from ...engine.objects.arguments import check_numbers
from ...engine.objects.identifiers import ActivationLike, InitializerLike
from ...engine.ops.base import TensorLike
from ..core.calling import TensorOrTensors, one_or_several
from ..core.dense import Dense, known_features, positive_int
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..normalization.batch_and_layer import LayerNormalization
from ..regularization.dropout import Dropout
from .cached import CachedMultiHeadAttention
from .cell import Memory
from .masks import as_mask, both

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import LayerOptions
    from .cached import Cache


@config_from_signature()
class TransformerBlock(Layer):
    """The base of `TransformerEncoder` and `TransformerDecoder`: parts with a residual connection and a normalisation.

    Args:
        intermediate_dim: the length of the vectors between the two layers of the feedforward part.
        num_heads: the number of heads; the features are divided among them.
        dropout: in training, the part of attention weights, and of what each part gives, that is dropped.
        activation: between the two layers of the feedforward part; a name or function.
        layer_norm_epsilon: added to variances.
        kernel_initializer, bias_initializer: first values.
        normalize_first: normalise what goes into a part, rather than the sum behind it.

    Raises:
        ValueError: a number is not positive, or there are not enough features for the heads.
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: ActivationLike = "relu",
        layer_norm_epsilon: float = 1e-05,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        normalize_first: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = positive_int(type(self).__name__, "intermediate_dim", intermediate_dim)
        self.num_heads = positive_int(type(self).__name__, "num_heads", num_heads)
        check_numbers(type(self).__name__, dropout=dropout, layer_norm_epsilon=layer_norm_epsilon)
        self.dropout = dropout
        self.activation = activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.normalize_first = normalize_first
        self.supports_masking = True
        self.hidden_dim: int | None = None

    # --- building -------------------------------------------------------------------------------------------

    def _build_feedforward(self, shape: Sequence[int | None]) -> None:
        self.feedforward_layer_norm = self._norm("feedforward_layer_norm", shape)
        self.feedforward_intermediate_dense = self._dense(
            self.intermediate_dim, "feedforward_intermediate_dense", shape, self.activation
        )
        inner = (*shape[:-1], self.intermediate_dim)
        self.feedforward_output_dense = self._dense(known_features(self, shape), "feedforward_output_dense", inner)
        self.feedforward_dropout = self._dropout("feedforward_dropout")

    def _features(self, shape: Sequence[int | None]) -> int:
        features = known_features(self, shape)
        if features < self.num_heads:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): num_heads={self.num_heads} heads need as many features "
                f"at least, got input shape {shape}."
            )
        return features

    def _attention(
        self, name: str, query_shape: Sequence[int | None], value_shape: Sequence[int | None]
    ) -> CachedMultiHeadAttention:
        layer = CachedMultiHeadAttention(
            self.num_heads,
            self._features(query_shape) // self.num_heads,
            dropout=self.dropout,
            kernel_initializer=initializers.serialize(self.kernel_initializer),
            bias_initializer=initializers.serialize(self.bias_initializer),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build(query_shape, value_shape)
        return layer

    def _norm(self, name: str, shape: Sequence[int | None]) -> LayerNormalization:
        layer = LayerNormalization(epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy)
        layer.build(shape)
        return layer

    def _dense(self, units: int, name: str, shape: Sequence[int | None], activation: ActivationLike = None) -> Dense:
        layer = Dense(
            units,
            activation,
            kernel_initializer=initializers.serialize(self.kernel_initializer),
            bias_initializer=initializers.serialize(self.bias_initializer),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build(shape)
        return layer

    def _dropout(self, name: str) -> Dropout:
        return Dropout(self.dropout, name=name, dtype=self.dtype_policy)

    # --- calling --------------------------------------------------------------------------------------------

    def _before(self, norm: LayerNormalization, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_first else x

    def _behind(self, norm: LayerNormalization, residual: Tensor, x: Tensor) -> Tensor:
        return residual + x if self.normalize_first else norm(residual + x)

    def _feedforward(self, x: Tensor, training: bool | None) -> Tensor:
        inner = self.feedforward_intermediate_dense(self._before(self.feedforward_layer_norm, x))
        outputs = self.feedforward_dropout(self.feedforward_output_dense(inner), training=training)
        return self._behind(self.feedforward_layer_norm, x, outputs)


class TransformerEncoder(TransformerBlock):
    """Attention of a sequence to itself, then two dense layers (Vaswani et al., 2017).

    Args:
        intermediate_dim: the length of the vectors between the two dense layers.
        num_heads: the number of heads; the features are divided among them.
        dropout: in training, the part of attention weights, and of what each part gives, that is dropped.
        activation: between the two dense layers; a name or function.
        layer_norm_epsilon: added to variances.
        kernel_initializer, bias_initializer: first values.
        normalize_first: normalise what goes into a part, rather than the sum behind it (Xiong et al., 2020).

    Call arguments: ``inputs (batch, steps, features)``; ``padding_mask (batch, steps)``, True where a place counts, by
    default the mask that the inputs carry; ``attention_mask (batch, steps, steps)``, True where a place sees another;
    ``training``; ``return_attention_scores``.

    Returns:
        ``(batch, steps, features)``; with `return_attention_scores` also ``(batch, heads, steps, steps)``.

    Raises:
        ValueError: a number is not positive, or there are not enough features for the heads.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.TransformerEncoder(intermediate_dim=16, num_heads=2)(np.ones((2, 3, 8), "float32")).shape
    (2, 3, 8)
    """

    def build(self, inputs_shape: Sequence[int | None]) -> None:
        self.hidden_dim = self._features(inputs_shape)
        self.self_attention_layer = self._attention("self_attention_layer", inputs_shape, inputs_shape)
        self.self_attention_layer_norm = self._norm("self_attention_layer_norm", inputs_shape)
        self.self_attention_dropout = self._dropout("self_attention_dropout")
        self._build_feedforward(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        mask: TensorLike | None = None,
    ) -> TensorOrTensors:
        seen = _seen(padding_mask if padding_mask is not None else mask, attention_mask)
        x = self._before(self.self_attention_layer_norm, inputs)
        attended = self.self_attention_layer(
            x, x, attention_mask=seen, training=training, return_attention_scores=return_attention_scores
        )
        attended, scores = attended if return_attention_scores else (attended, None)
        x = self.self_attention_dropout(attended, training=training)
        outputs = self._feedforward(self._behind(self.self_attention_layer_norm, inputs, x), training)
        return one_or_several([outputs, scores] if return_attention_scores else [outputs])


class TransformerDecoder(TransformerBlock):
    """Attention of a sequence to what comes before, to an encoder's outputs if there are any, then two dense layers.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, kernel_initializer, bias_initializer,
            normalize_first: see `TransformerEncoder`.

    Call arguments: ``decoder_sequence (batch, steps, features)``; ``encoder_sequence (batch, sources, features)``, at
    each call or at none; ``decoder_padding_mask``, ``encoder_padding_mask``, ``(batch, steps)``, by default the
    masks that the sequences carry; ``decoder_attention_mask``, ``encoder_attention_mask``, ``(batch, steps, steps)``;
    ``use_causal_mask``, False to see what follows as well; ``training``; and, to feed a sequence in parts, see
    `CachedMultiHeadAttention`: ``self_attention_cache``, a pair of keys and values, and
    ``self_attention_cache_update_index``; ``cross_attention_cache``, what `project_encoder_sequence` gave, which takes
    the place of `encoder_sequence`. With a cache, masks but that of the encoder are not taken.

    Returns:
        ``(batch, steps, features)``; with a ``self_attention_cache`` ``(outputs, cache)``.

    Raises:
        ValueError: an argument is out of range, or only some of the calls have an encoder sequence.

    Vaswani et al., "Attention is All You Need", 2017, arXiv:1706.03762.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> decoder = ab.layers.TransformerDecoder(intermediate_dim=16, num_heads=2)
    >>> decoder(np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")).shape
    (2, 3, 8)
    """

    has_cross_attention = False

    def build(
        self, decoder_sequence_shape: Sequence[int | None], encoder_sequence_shape: Sequence[int | None] | None = None
    ) -> None:
        shape = decoder_sequence_shape
        self.hidden_dim = self._features(shape)
        self.self_attention_layer = self._attention("self_attention", shape, shape)
        self.self_attention_layer_norm = self._norm("self_attention_layer_norm", shape)
        self.self_attention_dropout = self._dropout("self_attention_dropout")
        self.has_cross_attention = encoder_sequence_shape is not None
        if encoder_sequence_shape is not None:
            self.cross_attention_layer = self._attention("cross_attention", shape, encoder_sequence_shape)
            self.cross_attention_layer_norm = self._norm("cross_attention_layer_norm", shape)
            self.cross_attention_dropout = self._dropout("cross_attention_dropout")
        self._build_feedforward(shape)

    def initial_cache(self, batch_size: DimLike | None, capacity: DimLike) -> Cache:
        """Return an empty `self_attention_cache` for `capacity` places."""
        return self.self_attention_layer.initial_cache(batch_size, capacity)

    def project_encoder_sequence(self, encoder_sequence: TensorLike) -> Cache:
        """Return the keys and values of an encoder's outputs, to be computed once: a `cross_attention_cache`."""
        return self.cross_attention_layer.project(encoder_sequence)

    def call(
        self,
        decoder_sequence: Tensor,
        encoder_sequence: Tensor | None = None,
        decoder_padding_mask: TensorLike | None = None,
        decoder_attention_mask: TensorLike | None = None,
        encoder_padding_mask: TensorLike | None = None,
        encoder_attention_mask: TensorLike | None = None,
        self_attention_cache: Cache | None = None,
        self_attention_cache_update_index: TensorLike | None = None,
        cross_attention_cache: Cache | None = None,
        training: bool | None = None,
        use_causal_mask: bool = True,
        mask: TensorLike | None = None,
        encoder_sequence_mask: TensorLike | None = None,
    ) -> Any:
        has_source = encoder_sequence is not None or cross_attention_cache is not None
        if has_source != self.has_cross_attention:
            built, called = ("without", "with") if has_source else ("with", "without")
            raise ValueError(
                f"Layer {self.name!r} (TransformerDecoder) was built {built} an encoder_sequence, but called {called} "
                "one. Give it at each call or at none."
            )
        attention, norm = self.self_attention_layer, self.self_attention_layer_norm
        x = self._before(norm, decoder_sequence)
        cache = self_attention_cache
        if cache is None:
            padding = mask if decoder_padding_mask is None else decoder_padding_mask
            seen = _seen(padding, decoder_attention_mask)
            attended = attention(x, x, attention_mask=seen, use_causal_mask=use_causal_mask, training=training)
        else:
            index = 0 if self_attention_cache_update_index is None else self_attention_cache_update_index
            attended, cache = attention(x, x, cache=cache, cache_update_index=index, training=training)
        x = self._behind(norm, decoder_sequence, self.self_attention_dropout(attended, training=training))
        if self.has_cross_attention:
            padding = encoder_sequence_mask if encoder_padding_mask is None else encoder_padding_mask
            seen = _seen(padding, encoder_attention_mask)
            x = self._cross_attend(x, encoder_sequence, cross_attention_cache, seen, training)
        outputs = self._feedforward(x, training)
        return outputs if self_attention_cache is None else (outputs, cache)

    def _cross_attend(
        self, x: Tensor, source: TensorLike | None, cache: Cache | None, seen: Tensor | None, training: bool | None
    ) -> Tensor:
        attention, norm = self.cross_attention_layer, self.cross_attention_layer_norm
        if cache is None:
            assert source is not None  # as `call` has checked
            cache = self.project_encoder_sequence(source)
        query = self._before(norm, x)
        attended, _ = attention(query, query, attention_mask=seen, cache=cache, training=training)
        return self._behind(norm, x, self.cross_attention_dropout(attended, training=training))


@config_from_signature()
class TransformerDecoderCell(Layer):
    """A `TransformerDecoder` as a recurrent cell: one place a step, with keys and values of those before as states.

    It computes what the decoder computes with its causal mask, so that what was trained on whole sequences writes new
    ones in the loops of `ab.decoding`. It goes into `RNN` and `StackedRNNCells` as other cells do.

    Args:
        decoder: the decoder, whose weights are used.
        max_length: the largest number of places.

    Call arguments: ``inputs (batch, features)``; ``states``, the keys and values, ``(batch, max_length, heads, size)``,
    and the number of places so far, ints ``(batch,)``; ``memory``, for a decoder that attends to an encoder's outputs:
    what `prepare` gave; ``training``.

    Returns:
        ``(batch, features)``, and the new states.

    Raises:
        ValueError: `decoder` is not a `TransformerDecoder`, or there is no memory where one is needed.
        InvalidArgumentError: when it runs, there are more than `max_length` places.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> decoder = ab.layers.TransformerDecoder(intermediate_dim=16, num_heads=2)
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    >>> whole = decoder(x)
    >>> cell = ab.layers.TransformerDecoderCell(decoder, max_length=5)
    >>> bool(np.allclose(ab.layers.RNN(cell, return_sequences=True)(x), whole, atol=1e-5))
    True
    """

    def __init__(self, decoder: TransformerDecoder, max_length: int, **kwargs: Unpack[LayerOptions]) -> None:
        if not isinstance(decoder, TransformerDecoder):
            raise ValueError(f"TransformerDecoderCell takes a TransformerDecoder, got decoder={decoder!r}.")
        super().__init__(**kwargs)
        self.decoder = decoder
        self.max_length = positive_int("TransformerDecoderCell", "max_length", max_length)

    @property
    def state_size(self) -> list[tuple[int, ...]]:
        """The shapes of keys, values and number of places."""
        size = (self.output_size or 0) // self.decoder.num_heads  # 0 until the decoder is built
        heads: tuple[int, ...] = (self.max_length, self.decoder.num_heads, size)
        return [heads, heads, ()]

    @property
    def output_size(self) -> int | None:
        """The number of features; None until the decoder is built."""
        return self.decoder.hidden_dim

    def build(self, inputs_shape: Sequence[int | None]) -> None:
        if not self.decoder.built:
            self.decoder.build((inputs_shape[0], None, *inputs_shape[1:]))

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Tensor]:
        """Return the state before the first step: empty caches."""
        return [*self.decoder.initial_cache(batch_size, self.max_length), ops.zeros((batch_size,), "int32")]

    def prepare(self, encoder_sequence: TensorLike, mask: TensorLike | None = None) -> Memory:
        """Compute once what does not change from place to place.

        Args:
            encoder_sequence: ``(batch, sources, features)``.
            mask: ``(batch, sources)``, True where a source counts; by default the one that the sequence carries.
        """
        if mask is None and isinstance(encoder_sequence, Tensor):
            mask = encoder_sequence.annotations.get("mask")
        return Memory(*self.decoder.project_encoder_sequence(encoder_sequence), as_mask(mask))

    def call(
        self,
        inputs: TensorLike,
        states: Sequence[Tensor],
        memory: Memory | None = None,
        training: bool | None = False,
    ) -> tuple[Tensor, list[Tensor]]:
        outputs, new = self._fed(ops.expand_dims(inputs, 1), states, 1, memory, training)
        return outputs[:, 0], new

    def feed(
        self,
        sequence: TensorLike,
        states: Sequence[Tensor],
        lengths: TensorLike | None = None,
        memory: Memory | None = None,
        training: bool | None = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Process several places at once, such as the beginning of a text that is to be continued.

        Args:
            sequence: ``(batch, steps, features)``.
            states: those before.
            lengths: ints ``(batch,)``, how many of the places of each row count; what follows takes the place of the
                others. By default all do.
            memory, training: see the call.

        Returns:
            ``(batch, steps, features)``, and the new states.
        """
        sequence = ops.cast(ops.convert_to_tensor(sequence), self.compute_dtype)
        steps = ops.shape(sequence)[1] if lengths is None else lengths
        return self._fed(sequence, states, steps, memory, training)

    def _fed(
        self,
        sequence: Tensor,
        states: Sequence[Tensor],
        steps: TensorLike,
        memory: Memory | None,
        training: bool | None,
    ) -> tuple[Tensor, list[Tensor]]:
        keys, values, count = flatten(states)
        if self.decoder.has_cross_attention and memory is None:
            raise ValueError(
                f"Layer {self.name!r} (TransformerDecoderCell) has no encoder sequence to attend to. Call it with "
                "memory=cell.prepare(encoder_sequence)."
            )
        outputs, cache = self.decoder(
            sequence,
            self_attention_cache=(keys, values),
            self_attention_cache_update_index=ops.cast(count, "int32"),
            cross_attention_cache=None if memory is None else (memory.keys, memory.values),
            encoder_padding_mask=None if memory is None else memory.mask,
            training=training,
        )
        return outputs, [*cache, count + ops.cast(steps, count.dtype)]


def _seen(padding_mask: TensorLike | None, attention_mask: TensorLike | None) -> Tensor | None:
    """Compute ``(batch, targets, sources)``, or what broadcasts to it; None for no mask."""
    return both(as_mask(padding_mask, -2), as_mask(attention_mask))
