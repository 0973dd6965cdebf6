"""`ShardedEmbedding`: rows of a table that is cut into several variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.graph.state.sharded import rows_of_shards
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import listed
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.neural.embedding import STRATEGIES
from ..core.dense import positive_int
from ..core.layer import Layer
from ..core.layer_config import config_from_signature

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ...engine.ops.base import TensorLike
    from ..core.options import TableOptions


@config_from_signature(activity_regularizer="activity_regularizer")
class ShardedEmbedding(Layer):
    """A vector for each integer, from a table in shards: for vocabularies too large for one device.

    Args:
        input_dim: the number of integers: they are 0 to ``input_dim - 1``.
        output_dim: the length of the vectors.
        num_shards: how many variables hold the table.
        partition: "mod": the vector of i is row ``i // num_shards`` of shard ``i % num_shards``, so that frequent
            words, which have small numbers, are spread over all shards. "div": each shard holds vectors that follow
            one another.
        devices: a device for each shard, such as ``["sim:0", "sim:1"]``; None for no request.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of each shard.
        mask_zero: 0 stands for padding: layers behind skip it.

    Shapes: ``(batch, ...)`` of integers to ``(batch, ..., output_dim)``. Weights: ``embeddings``, a `ShardedVariable`
    of ``(input_dim, output_dim)``. Of its shards the first ``input_dim % num_shards`` have one row more. Files have the
    whole table, whatever the number of shards.

    Integers are split by shard, each shard's rows gathered on its device, and put into their places again
    (`ops.embedding_lookup`). The gradient of each shard is `IndexedSlices`, so a step touches no other rows.

    Raises:
        IndexError: an integer is negative or too large (when it runs).
        ValueError: an argument is out of range.

    Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 4.2.

    >>> import anabranch as ab
    >>> layer = ab.layers.ShardedEmbedding(1000, 4, num_shards=3)
    >>> layer([[0, 1, 999]]).shape
    (1, 3, 4)
    >>> [weight.shape for weight in layer.weights]
    [(334, 4), (333, 4), (333, 4)]
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        num_shards: int = 1,
        partition: str = "mod",
        devices: Sequence[str] | None = None,
        embeddings_initializer: InitializerLike = "uniform",
        embeddings_regularizer: RegularizerLike = None,
        embeddings_constraint: ConstraintLike = None,
        mask_zero: bool = False,
        **kwargs: Unpack[TableOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim = positive_int("ShardedEmbedding", "input_dim", input_dim)
        self.output_dim = positive_int("ShardedEmbedding", "output_dim", output_dim)
        self.num_shards = positive_int("ShardedEmbedding", "num_shards", num_shards)
        if num_shards > input_dim:
            raise ValueError(
                f"ShardedEmbedding: num_shards must be at most input_dim={input_dim}, or shards are empty; got "
                f"num_shards={num_shards}."
            )
        if partition not in STRATEGIES:
            raise ValueError(f"ShardedEmbedding: partition must be 'mod' or 'div', got {partition!r}.")
        if devices is not None:
            devices = listed("ShardedEmbedding", "devices", devices, "a list of names")
        if devices is not None and len(devices) != num_shards:
            raise ValueError(
                f"ShardedEmbedding: devices must name one for each of num_shards={num_shards}, got {len(devices)}."
            )
        self.partition = partition
        self.devices = None if devices is None else list(devices)
        self.embeddings_initializer = initializers.get(embeddings_initializer, "embeddings_initializer")
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer, "embeddings_regularizer")
        self.embeddings_constraint = constraints.get(embeddings_constraint, "embeddings_constraint")
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        self.embeddings = self.add_sharded_weight(
            rows_of_shards(self.input_dim, self.num_shards, self.partition),
            self.partition,
            (self.input_dim, self.output_dim),
            self.embeddings_initializer,
            settings=(True, self.embeddings_regularizer, self.embeddings_constraint, None, True),
            name="embeddings",
            places=self.devices,
        )

    @property
    def tables(self) -> list[Variable]:
        """The shards of the table."""
        return self.embeddings.shards

    def call(self, inputs: Tensor) -> Tensor:
        if inputs.dtype.kind not in "iu":
            inputs = ops.cast(inputs, "int32")
        return ops.cast(ops.embedding_lookup(self.embeddings, inputs), self.compute_dtype)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Tensor | None:
        """Return a mask, True where the input is not 0; None without `mask_zero`."""
        return ops.not_equal(inputs, 0) if self.mask_zero else None
