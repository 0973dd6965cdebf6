"""`SampledSoftmax`: the last layer of a model with very many classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import ShardedVariable, Tensor, Variable
from ...engine.graph.state.sharded import rows_of_shards
from ...engine.objects import initializers
from ...engine.objects.identifiers import InitializerLike
from ...engine.objects.registry import serialize_keras_object
from ...engine.ops.base import TensorLike
from ...engine.ops.neural.embedding import shards_of
from ...engine.ops.random import samplers as random
from ...engine.ops.replicas import part_of_mean
from ..core.dense import known_features, positive_int
from ..core.embedding import Embedding
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .sampled_losses import sampled_softmax_loss
from .sharded_embedding import ShardedEmbedding
from .sharded_softmax import sharded_logits, sharded_softmax_loss, sharded_top_k

if TYPE_CHECKING:
    from ..core.options import LayerOptions


@config_from_signature(embedding="")
class SampledSoftmax(Layer):
    """A softmax over very many classes, which is trained by a sample of them.

    Args:
        num_classes: how many there are; give frequent ones small numbers, for those are sampled most.
        num_sampled: how many to sample, for each batch.
        num_shards, partition, devices: of the weights; see `ShardedEmbedding`.
        top_k: None for all logits as outputs; or a number k for the k largest and their classes.
        embedding: None for weights of its own. Or an `Embedding` or `ShardedEmbedding` of `num_classes` rows, whose
            table is used (Press and Wolf, 2017); shards, partition and devices are then those of that layer.
        kernel_initializer, bias_initializer: first values of each shard.
        seed: an integer, for the samples.

    Call arguments:
        inputs: ``(batch, ..., dim)``, floats.
        labels: integers ``(batch, ...)``, the true classes; None where there are none. With labels the mean of the loss
            over all positions that are not masked is added to the model's loss (`add_loss`): in training that of the
            sampled softmax, otherwise the exact one of the softmax over all classes. So `compile` needs no loss.
        mask: booleans ``(batch, ...)``, the positions that count.
        training: see `labels`.

    Returns:
        Logits ``(batch, ..., num_classes)``; with `top_k` a pair ``(batch, ..., top_k)`` of logits, largest first, and
        int32 classes. What a training step makes no use of is not computed in it.

    Raises:
        ValueError: an argument is out of range, or shapes do not fit.

    Jean, Cho, Memisevic and Bengio, "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015;
    Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 4.2.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.SampledSoftmax(1000, num_sampled=20, num_shards=2)
    >>> layer(np.ones((2, 3, 8), "float32"), np.zeros((2, 3), "int32")).shape, len(layer.losses)
    ((2, 3, 1000), 1)
    """

    def __init__(
        self,
        num_classes: int,
        num_sampled: int,
        num_shards: int = 1,
        partition: str = "mod",
        devices: Sequence[str] | None = None,
        top_k: int | None = None,
        embedding: Embedding | ShardedEmbedding | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = positive_int("SampledSoftmax", "num_classes", num_classes)
        self.num_sampled = positive_int("SampledSoftmax", "num_sampled", num_sampled)
        self.top_k = None if top_k is None else positive_int("SampledSoftmax", "top_k", top_k)
        for name, value in (("num_sampled", num_sampled), ("top_k", top_k or 1)):
            if value > num_classes:
                raise ValueError(f"SampledSoftmax: {name} must be at most num_classes={num_classes}, got {value}.")
        self.num_shards, self.partition, self.devices = num_shards, partition, devices
        self.embedding = _checked_embedding(embedding, num_classes)
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self.is_tied = embedding is not None
        self.supports_masking = True
        if embedding is None:  # what it has to say of its arguments is said here
            ShardedEmbedding(num_classes, 1, num_shards, partition, devices)

    def build(self, input_shape: Sequence[int | None]) -> None:
        units = known_features(self, input_shape)
        if self.embedding is None:
            self.embedding = ShardedEmbedding(
                self.num_classes,
                units,
                self.num_shards,
                self.partition,
                self.devices,
                embeddings_initializer=self.kernel_initializer,
                dtype=self.dtype_policy,
                name="kernel",
            )
        if self.embedding.output_dim != units:
            raise ValueError(
                f"Layer {self.name!r} (SampledSoftmax): the last axis of the inputs, {units}, must be the embedding's "
                f"output_dim={self.embedding.output_dim}. Put a Dense({self.embedding.output_dim}) before it."
            )
        if not self.embedding.built:
            self.embedding.build(None)
        self.bias = self._add_bias()

    @property
    def tables(self) -> list[Variable]:
        """The shards of the weights, ``(rows, dim)`` each."""
        return shards_of(self.embedding.embeddings, "")[0]

    @property
    def _layout(self) -> str:
        return shards_of(self.embedding.embeddings, "mod")[1]

    @property
    def biases(self) -> list[Variable]:
        """The shards of the biases, ``(rows,)`` each."""
        return self.bias.shards

    def _add_bias(self) -> ShardedVariable:
        """Return a bias for each class, where its row of the weights is."""
        rows = rows_of_shards(self.num_classes, len(self.tables), self._layout)
        return self.add_sharded_weight(
            rows,
            self._layout,
            (self.num_classes,),
            self.bias_initializer,
            settings=(True, None, None, None, False),
            name="bias",
            places=self.tables,
        )

    def call(
        self,
        inputs: Tensor,
        labels: TensorLike | None = None,
        mask: TensorLike | None = None,
        training: bool | None = False,
    ) -> Any:
        dims = ops.shape(inputs)[:-1]
        flat = ops.reshape(inputs, (-1, self.embedding.output_dim))
        partition = self._layout
        if labels is not None:
            losses = self._losses(flat, self._flat(labels, inputs, "labels"), training, partition)
            self.add_loss(_mean(losses, None if mask is None else self._flat(mask, inputs, "mask")))
        if self.top_k is None:
            logits = sharded_logits(self.tables, self.biases, flat, partition)
            return ops.reshape(logits, (*dims, self.num_classes))
        best = sharded_top_k(self.tables, self.biases, flat, self.top_k, partition)
        return tuple(ops.reshape(each, (*dims, self.top_k)) for each in best)

    def _losses(self, flat: Tensor, labels: Tensor, training: bool | None, partition: str) -> Tensor:
        """Return the loss of each position."""
        if training:
            losses = sampled_softmax_loss(
                self.tables,
                self.biases,
                ops.expand_dims(labels, 1),
                flat,
                self.num_sampled,
                self.num_classes,
                seed=self.seed_generator,
                partition_strategy=partition,
            )
        else:
            losses = sharded_softmax_loss(self.tables, self.biases, labels, flat, partition)
        return ops.cast(losses, self.variable_dtype)

    def _flat(self, given: TensorLike, inputs: Tensor, argument: str) -> Tensor:
        """Return labels or mask as ``(positions,)``."""
        tensor = ops.convert_to_tensor(given)
        if tensor.shape is not None and inputs.shape is not None and len(tensor.shape) != len(inputs.shape) - 1:
            raise ValueError(
                f"Layer {self.name!r} (SampledSoftmax): {argument} must have the inputs' shape without the last axis, "
                f"{len(inputs.shape) - 1} axes, got shape {tensor.shape}."
            )
        if argument == "labels" and tensor.dtype.kind not in "iu":
            tensor = ops.cast(tensor, "int32")
        return ops.reshape(tensor, (-1,))

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Any:
        """Return the inputs' mask, for each output."""
        return mask if self.top_k is None or mask is None else [mask] * 2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "embedding": serialize_keras_object(self.embedding) if self.is_tied else None}


def _mean(losses: Tensor, mask: TensorLike | None) -> Tensor:
    """Return the mean over the positions that count."""
    if mask is None:
        return ops.mean(losses)
    live = ops.cast(mask, "bool")
    return part_of_mean(ops.sum(ops.where(live, losses, ops.zeros_like(losses))), ops.sum(live))


def _checked_embedding(embedding: object, num_classes: int) -> Any:
    if embedding is None:
        return None
    if not isinstance(embedding, (Embedding, ShardedEmbedding)):
        raise TypeError(f"SampledSoftmax: embedding must be an Embedding or a ShardedEmbedding, got {embedding!r}.")
    if embedding.input_dim != num_classes:
        raise ValueError(
            f"SampledSoftmax: embedding must have num_classes={num_classes} rows, got input_dim={embedding.input_dim}."
        )
    return embedding
