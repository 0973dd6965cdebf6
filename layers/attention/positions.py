"""Encodings of positions: for layers that do not depend on the order of vectors in a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import initializers
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.cut_weights import cut_of, product_in_parts
from ..core.dense import positive_int
from ..core.embedding import Embedding
from ..core.input_spec import InputSpec, known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import EmbeddingOptions, LayerOptions
    from ..quantizers.base_config import QuantizationConfig
    from ..quantizers.quantizable import Array


@config_from_signature()
class PositionEmbedding(Layer):
    """A learnt vector for each position (Gehring et al., 2017; Devlin et al., 2019).

    Args:
        sequence_length: the largest number of positions.
        initializer: of the vectors.

    Call arguments: ``inputs (batch, steps, features)``, of which only the shape counts; ``start_index``, the position
    of the first step; ``positions``, ints ``(steps,)`` or ``(batch, steps)``, instead of those from `start_index` on.

    Returns:
        The vectors, of the shape of the inputs, to be added to them.

    Raises:
        ValueError: there are more steps than positions.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.PositionEmbedding(sequence_length=4, initializer="ones")
    >>> layer(np.zeros((2, 3, 5), "float32")).shape
    (2, 3, 5)
    """

    position_embeddings: Weight

    def __init__(
        self, sequence_length: int, initializer: InitializerLike = "glorot_uniform", **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.sequence_length = positive_int("PositionEmbedding", "sequence_length", sequence_length)
        self.initializer = initializers.get(initializer, "initializer")
        self.supports_masking = True
        self.input_spec = InputSpec(min_ndim=2)

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        shape = (self.sequence_length, input_shape[-1])
        return (WeightSpec("embeddings", shape, self.initializer, attribute="position_embeddings"),)

    def call(self, inputs: Tensor, start_index: TensorLike = 0, positions: TensorLike | None = None) -> Tensor:
        steps = known_shape(inputs.shape)[-2]
        if steps is not None and positions is None and steps > self.sequence_length:
            raise ValueError(
                f"Layer {self.name!r} (PositionEmbedding) has vectors for sequence_length={self.sequence_length} "
                f"positions, got inputs of shape {inputs.shape}."
            )
        rows = _positions(inputs, -2, start_index, positions)
        return ops.broadcast_to(ops.take(self.position_embeddings, rows, axis=0), ops.shape(inputs))


@config_from_signature()
class SinePositionEncoding(Layer):
    """Sines and cosines of the position, of ever longer waves (Vaswani et al., 2017).

    Feature ``2 i`` of position p is ``sin(p / max_wavelength ** (2 i / features))``, feature ``2 i + 1`` the cosine.

    Args:
        max_wavelength: that of the last features, over two pi.

    Call arguments, and Returns: see `PositionEmbedding`; any number of positions is allowed.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.SinePositionEncoding()(np.zeros((1, 2, 4), "float32")).round(2)
    Tensor([[[0.  , 1.  , 0.  , 1.  ],
             [0.84, 0.54, 0.01, 1.  ]]], dtype=float32)
    """

    def __init__(self, max_wavelength: float = 10000, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = _wavelength("SinePositionEncoding", max_wavelength)
        self.supports_masking = True
        self.input_spec = InputSpec(min_ndim=2)
        self._build_at_init()

    def call(self, inputs: Tensor, start_index: TensorLike = 0, positions: TensorLike | None = None) -> Tensor:
        features = ops.shape(inputs)[-1]
        feature, dtype = ops.arange(features, dtype="int32"), _wide(self.compute_dtype)
        exponents = ops.cast(2 * (feature // 2), dtype) / ops.cast(features, dtype)
        waves = ops.power(ops.constant(1 / self.max_wavelength, dtype), exponents)
        places = ops.cast(_positions(inputs, -2, start_index, positions), dtype)
        angles = ops.expand_dims(places, -1) * waves
        encoding = ops.where(ops.equal(feature % 2, 0), ops.sin(angles), ops.cos(angles))
        return ops.broadcast_to(ops.cast(encoding, self.compute_dtype), ops.shape(inputs))


@config_from_signature()
class RotaryEmbedding(Layer):
    """Pairs of features turned by an angle that grows with the position (Su et al., 2021).

    Feature i of the first half and feature i of the second half are one pair, turned by
    ``position / scaling_factor / max_wavelength ** (2 i / features)``. Products of queries and keys that are treated so
    depend on how far they are apart.

    Args:
        max_wavelength: that of the last pair, over two pi.
        scaling_factor: what positions are divided by.
        sequence_axis: the axis of the positions.
        feature_axis: the axis of the features, an even number of them.

    Call arguments: ``inputs``, of any rank; ``start_index``, the position of the first step; ``positions``, ints
    ``(steps,)`` or ``(batch, steps)``, instead of those that follow `start_index`.

    Raises:
        ValueError: the axes are the same, or the number of features is odd or not known.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.RotaryEmbedding()(np.ones((1, 2, 2), "float32")).round(2)
    Tensor([[[ 1.  ,  1.  ],
             [-0.3 ,  1.38]]], dtype=float32)
    """

    def __init__(
        self,
        max_wavelength: float = 10000,
        scaling_factor: float = 1.0,
        sequence_axis: int = 1,
        feature_axis: int = -1,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = _wavelength("RotaryEmbedding", max_wavelength)
        check_numbers(
            "RotaryEmbedding", scaling_factor=scaling_factor, sequence_axis=sequence_axis, feature_axis=feature_axis
        )
        self.scaling_factor = scaling_factor
        self.sequence_axis = sequence_axis
        self.feature_axis = feature_axis
        self.supports_masking = True
        self._build_at_init()

    def call(self, inputs: Tensor, start_index: TensorLike = 0, positions: TensorLike | None = None) -> Tensor:
        shape = known_shape(inputs.shape)
        rank = len(shape)
        sequence, feature = self.sequence_axis % rank, self.feature_axis % rank
        features = shape[feature]
        if sequence == feature or features is None or features % 2:
            raise ValueError(
                f"Layer {self.name!r} (RotaryEmbedding) takes inputs with an even, known number of features along axis "
                f"{self.feature_axis} and positions along axis {self.sequence_axis}, got shape {inputs.shape}."
            )
        angles = self._angles(inputs, sequence, feature, features, start_index, positions)
        first, second = ops.split(inputs, 2, axis=feature)
        cosines, sines = (ops.cast(f(angles), inputs.dtype) for f in (ops.cos, ops.sin))
        return ops.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=feature)

    def _angles(
        self,
        inputs: Tensor,
        sequence: int,
        feature: int,
        features: int,
        start_index: TensorLike,
        positions: TensorLike | None,
    ) -> Tensor:
        """Return the angle of each position and pair, with the axes of the inputs."""
        places = _positions(inputs, sequence, start_index, positions)
        dtype = _wide(self.compute_dtype)
        exponents = ops.arange(0, features, 2, dtype=dtype) / features
        waves = ops.power(ops.constant(self.max_wavelength, dtype), -exponents)
        angles = ops.expand_dims(ops.cast(places, dtype) / self.scaling_factor, -1) * waves
        if sequence > feature:
            angles = ops.swapaxes(angles, -1, -2)
        sizes = ops.shape(angles)
        shape: list[DimLike] = [1] * len(inputs.shape or ())
        shape[min(sequence, feature)], shape[max(sequence, feature)] = sizes[-2:]
        if len(sizes) == 3:  # positions by row
            shape[0] = sizes[0]
        return ops.reshape(angles, shape)


_REVERSE_NAMES = ("reverse_embeddings", "reverse_embeddings_scale", "reverse_embeddings_zero")


@config_from_signature()
class ReversibleEmbedding(Embedding):
    """An `Embedding` that also goes back, from vectors to a logit for each integer (Press and Wolf, 2017).

    Args:
        input_dim, output_dim: see `Embedding`.
        tie_weights: back by the same table, transposed, rather than by a table of its own.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint, mask_zero: see `Embedding`.
        reverse_dtype: the dtype of the way back; by default that of the computation.
        logit_soft_cap: logits go smoothly to this limit: ``cap * tanh(logits / cap)``; None for no limit.

    Call arguments: ``inputs``; ``reverse``, True to go back.

    Weights: ``embeddings (input_dim, output_dim)``; without `tie_weights` ``reverse_embeddings (output_dim,
    input_dim)``.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.ReversibleEmbedding(7, 3)
    >>> vectors = layer(np.array([[1, 2]]))
    >>> vectors.shape, layer(vectors, reverse=True).shape
    ((1, 2, 3), (1, 2, 7))
    """

    reverse_embeddings: Weight
    reverse_embeddings_scale: Weight
    reverse_embeddings_zero: Weight | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: InitializerLike = "uniform",
        embeddings_regularizer: RegularizerLike = None,
        embeddings_constraint: ConstraintLike = None,
        mask_zero: bool = False,
        reverse_dtype: str | None = None,
        logit_soft_cap: float | None = None,
        **kwargs: Unpack[EmbeddingOptions],
    ) -> None:
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            embeddings_regularizer,
            embeddings_constraint,
            mask_zero,
            **kwargs,
        )
        self.tie_weights = tie_weights
        self.reverse_dtype = reverse_dtype
        check_optional_numbers("ReversibleEmbedding", logit_soft_cap=logit_soft_cap)
        self.logit_soft_cap = logit_soft_cap

    @property
    def takes_inputs_scale(self) -> bool:
        return True  # on the way back

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        super().build(input_shape)
        if not self.tie_weights and self.quantization_mode is None:
            self.reverse_embeddings = self.add_weight(
                shape=(self.output_dim, self.input_dim),
                initializer=self.embeddings_initializer,
                name="reverse_embeddings",
            )

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if not reverse:
            outputs = super().call(inputs)
            if self.mask_zero:
                outputs.annotations["mask"] = ops.not_equal(inputs, 0)
            return outputs
        logits = self._reverse_product(inputs)
        if self.logit_soft_cap is None:
            return logits
        return ops.tanh(logits / self.logit_soft_cap) * self.logit_soft_cap

    def _reverse_product(self, inputs: TensorLike) -> Tensor:
        if self.quantization_mode is not None:
            from .reversing import reverse_product

            return reverse_product(self, inputs)
        dtype = self.reverse_dtype or self.compute_dtype
        inputs, kernel = ops.cast(inputs, dtype), self.embeddings if self.tie_weights else self.reverse_embeddings
        cut = cut_of(self._embeddings if self.tie_weights else kernel)
        kernel = ops.cast(kernel, dtype)
        if cut is None:
            return self._logits(inputs, kernel)
        axes: list[tuple[int | None, int | None]] = [(-1, None), (None, -1)]
        return product_in_parts(cut, inputs, kernel, None, self._logits, axes[::-1] if self.tie_weights else axes)

    def _logits(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        return ops.matmul(inputs, ops.transpose(kernel) if self.tie_weights else kernel)

    def _build_quantized(self, mode: str) -> None:
        from .reversing import build_reverse

        super()._build_quantized(mode)
        build_reverse(self, mode)

    def _replaced_names(self) -> list[str]:
        return [*super()._replaced_names(), *([] if self.tie_weights else ["reverse_embeddings"])]

    def _quantized_values(self, mode: str, config: QuantizationConfig) -> dict[str, Array]:
        from .reversing import reverse_values

        return {**super()._quantized_values(mode, config), **reverse_values(self, mode, config)}

    def _saved_names(self, mode: str | None) -> list[str]:
        names = super()._saved_names(mode)
        return names if self.tie_weights else [*names, *_REVERSE_NAMES]

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> None:
        """Return None: the call itself notes where the input is not 0, as only its result has such a mask."""
        return


@config_from_signature()
class TokenAndPositionEmbedding(Layer):
    """The sum of a vector for each token and one for its position.

    Args:
        vocabulary_size: the number of tokens.
        sequence_length: the largest number of positions.
        embedding_dim: the length of the vectors.
        tie_weights: see `ReversibleEmbedding`; ``layer.token_embedding(x, reverse=True)`` gives logits.
        embeddings_initializer: of both tables.
        mask_zero: token 0 stands for padding, see `Embedding`.

    Call arguments: ``inputs``, ints ``(batch, steps)``; ``start_index`` and ``positions``, see `PositionEmbedding`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.TokenAndPositionEmbedding(vocabulary_size=7, sequence_length=4, embedding_dim=5)
    >>> layer(np.array([[1, 2, 3]])).shape
    (1, 3, 5)
    """

    def __init__(
        self,
        vocabulary_size: int,
        sequence_length: int,
        embedding_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: InitializerLike = "uniform",
        mask_zero: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = positive_int("TokenAndPositionEmbedding", "vocabulary_size", vocabulary_size)
        self.sequence_length = positive_int("TokenAndPositionEmbedding", "sequence_length", sequence_length)
        self.embedding_dim = positive_int("TokenAndPositionEmbedding", "embedding_dim", embedding_dim)
        self.tie_weights = tie_weights
        self.embeddings_initializer = initializers.get(embeddings_initializer, "embeddings_initializer")
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        first = initializers.serialize(self.embeddings_initializer)
        self.token_embedding = ReversibleEmbedding(
            self.vocabulary_size,
            self.embedding_dim,
            tie_weights=tie_weights,
            embeddings_initializer=first,
            mask_zero=mask_zero,
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        self.position_embedding = PositionEmbedding(
            self.sequence_length, initializer=first, name="position_embedding", dtype=self.dtype_policy
        )

    def build(self, inputs_shape: Sequence[int | None]) -> None:
        self.token_embedding.build(inputs_shape)
        self.position_embedding.build((*inputs_shape, self.embedding_dim))

    def call(self, inputs: Tensor, start_index: TensorLike = 0, positions: TensorLike | None = None) -> Tensor:
        embedded = self.token_embedding(inputs)
        return embedded + self.position_embedding(embedded, start_index=start_index, positions=positions)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Tensor | None:
        """Return a mask, True where the token is not 0; None without `mask_zero`."""
        return ops.not_equal(inputs, 0) if self.mask_zero else None


def _positions(inputs: Tensor, axis: int, start_index: TensorLike, positions: TensorLike | None) -> Tensor:
    """Return the positions, int32 ``(steps,)`` or ``(batch, steps)``."""
    if positions is not None:
        return ops.cast(ops.convert_to_tensor(positions), "int32")
    return ops.arange(ops.shape(inputs)[axis], dtype="int32") + ops.cast(start_index, "int32")


def _wide(dtype: str) -> str:
    """Return float32 for half precision, in which large positions are not distinct."""
    return dtype if dtype == "float64" else "float32"


def _wavelength(layer: str, value: float) -> float:
    check_numbers(layer, max_wavelength=value)
    if not value > 0:
        raise ValueError(f"{layer}: max_wavelength must be positive, got max_wavelength={value!r}.")
    return value
