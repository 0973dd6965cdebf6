"""LSTM cells with more in them: peepholes, a projection, limits, layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.dense import positive_int
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from ..normalization.batch_and_layer import LayerNormalization
from .lstm import LSTMCell

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import LSTMCellOptions, PeepholeLSTMCellOptions


@config_from_signature()
class PeepholeLSTMCell(LSTMCell):
    """An LSTM whose gates see the memory (Gers and Schmidhuber, 2000).

    ``i`` and ``f`` get ``p * c`` more, ``o`` gets ``p * c'``, each with weights p of its own, one for each unit.

    Args:
        units: the length of the states h and c, and of the output h.
        cell_clip: a limit of the memory: it is kept within ``[-cell_clip, cell_clip]``; None for no limit.
        peephole_initializer, peephole_regularizer, peephole_constraint: of the weights p.
        **kwargs: see `LSTMCell`.

    Weights: those of `LSTMCell`; ``peephole_kernel (3, units)``, in the order i, f, o.

    Raises:
        ValueError: `cell_clip` is not positive.

    Gers and Schmidhuber, "Recurrent Nets that Time and Count", 2000.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.RNN(ab.layers.PeepholeLSTMCell(4))(np.ones((2, 3, 1), "float32")).shape
    (2, 4)
    """

    has_peepholes = True
    peephole_kernel: Any  # None without peepholes

    def __init__(
        self,
        units: int,
        cell_clip: float | None = None,
        peephole_initializer: InitializerLike = "glorot_uniform",
        peephole_regularizer: RegularizerLike = None,
        peephole_constraint: ConstraintLike = None,
        **kwargs: Unpack[LSTMCellOptions],
    ) -> None:
        super().__init__(units, **kwargs)
        self.cell_clip = _limit(type(self).__name__, "cell_clip", cell_clip)
        self.peephole_initializer = initializers.get(peephole_initializer, "peephole_initializer")
        self.peephole_regularizer = regularizers.get(peephole_regularizer, "peephole_regularizer")
        self.peephole_constraint = constraints.get(peephole_constraint, "peephole_constraint")

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        peepholes = WeightSpec("peephole_kernel", (3, self.units), options="peephole", present=self.has_peepholes)
        return (*super().weight_specs(input_shape), peepholes)

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = self.advance(inputs, states, training)
        return hidden, [hidden, memory]

    def advance(self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None) -> tuple[Tensor, Tensor]:
        """Compute ``o * activation(c')`` and ``c'``."""
        hidden, memory = states
        masks = self.current_masks(inputs, training)
        gates = self.product(inputs, self.kernel, masks[0]) + self.product(hidden, self.recurrent_kernel, masks[1])
        if self.bias is not None:
            gates = gates + self.bias
        i, f, candidate, o = ops.split(gates, 4, axis=1)
        if self.has_peepholes:
            peepholes = ops.convert_to_tensor(self.peephole_kernel)
            i, f = i + peepholes[0] * memory, f + peepholes[1] * memory
        kept = self.recurrent_activation(f) * memory
        memory = _clipped(kept + self.recurrent_activation(i) * self.activation(candidate), self.cell_clip)
        if self.has_peepholes:
            o = o + ops.convert_to_tensor(self.peephole_kernel)[2] * memory
        return self.recurrent_activation(o) * self.activation(memory), memory


@config_from_signature()
class ProjectedLSTMCell(PeepholeLSTMCell):
    """An LSTM whose output is projected to fewer features, which is also what its gates get (Sak et al., 2014).

    ``h' = (o * activation(c')) @ projection_kernel``.

    Args:
        units: the length of the memory c.
        num_proj: the length of the state h and of the output h.
        use_peepholes: whether the gates see the memory, see `PeepholeLSTMCell`.
        cell_clip: a limit of the memory: it is kept within ``[-cell_clip, cell_clip]``; None for no limit.
        proj_clip: the same, of the output.
        projection_initializer, projection_regularizer, projection_constraint: of the projection.
        **kwargs: see `PeepholeLSTMCell` and `LSTMCell`.

    Weights: ``kernel (features, 4 * units)``, ``recurrent_kernel (num_proj, 4 * units)``, ``bias (4 * units,)``; with
    `use_peepholes` ``peephole_kernel (3, units)``; ``projection_kernel (units, num_proj)``.

    Raises:
        ValueError: `num_proj`, `cell_clip` or `proj_clip` is not positive.

    Sak, Senior and Beaufays, "Long Short-Term Memory Based Recurrent Neural Network Architectures for Large Vocabulary
    Speech Recognition", 2014, arXiv:1402.1128.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.RNN(ab.layers.ProjectedLSTMCell(8, num_proj=3), return_state=True)
    >>> [result.shape for result in layer(np.ones((2, 5, 1), "float32"))]
    [(2, 3), (2, 3), (2, 8)]
    """

    projection_kernel: Weight

    def __init__(
        self,
        units: int,
        num_proj: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
        projection_initializer: InitializerLike = "glorot_uniform",
        projection_regularizer: RegularizerLike = None,
        projection_constraint: ConstraintLike = None,
        **kwargs: Unpack[PeepholeLSTMCellOptions],
    ) -> None:
        super().__init__(units, cell_clip=cell_clip, **kwargs)
        self.num_proj = positive_int("ProjectedLSTMCell", "num_proj", num_proj)
        self.use_peepholes = self.has_peepholes = use_peepholes
        self.proj_clip = _limit("ProjectedLSTMCell", "proj_clip", proj_clip)
        self.projection_initializer = initializers.get(projection_initializer, "projection_initializer")
        self.projection_regularizer = regularizers.get(projection_regularizer, "projection_regularizer")
        self.projection_constraint = constraints.get(projection_constraint, "projection_constraint")
        self.state_size = [self.num_proj, self.units]
        self.output_size = self.num_proj

    @property
    def recurrent_size(self) -> int:
        return self.num_proj

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        projection = WeightSpec("projection_kernel", (self.units, self.num_proj), options="projection")
        return (*super().weight_specs(input_shape), projection)

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Tensor]:
        """Return zeros."""
        return [ops.zeros((batch_size, size), self.compute_dtype) for size in self.state_size]

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = self.advance(inputs, states, training)
        projected = _clipped(ops.matmul(hidden, self.projection_kernel), self.proj_clip)
        return projected, [projected, memory]


@config_from_signature()
class LayerNormLSTMCell(LSTMCell):
    """An LSTM with layer normalisation of what the gates get, and of the memory where it is read (Ba et al., 2016).

    The gates are made of ``LN(x @ kernel) + LN(h @ recurrent_kernel) + bias``; ``h' = o * activation(LN(c'))``. The
    memory itself is carried on as it is.

    Args:
        units: the length of the states h and c, and of the output h.
        norm_gamma_initializer, norm_beta_initializer: first values of the weights of the normalisations.
        norm_epsilon: added to the variances.
        **kwargs: see `LSTMCell`.

    Weights: those of `LSTMCell`; ``gamma`` and ``beta`` in ``kernel_norm`` and ``recurrent_norm``, ``(4 * units,)``,
    and in ``state_norm``, ``(units,)``.

    Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450, equations 20 to 22.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.RNN(ab.layers.LayerNormLSTMCell(4))(np.ones((2, 3, 1), "float32")).shape
    (2, 4)
    """

    def __init__(
        self,
        units: int,
        norm_gamma_initializer: InitializerLike = "ones",
        norm_beta_initializer: InitializerLike = "zeros",
        norm_epsilon: float = 1e-3,
        **kwargs: Unpack[LSTMCellOptions],
    ) -> None:
        super().__init__(units, **kwargs)
        self.norm_gamma_initializer = initializers.get(norm_gamma_initializer, "norm_gamma_initializer")
        self.norm_beta_initializer = initializers.get(norm_beta_initializer, "norm_beta_initializer")
        check_numbers("LayerNormLSTMCell", norm_epsilon=norm_epsilon)
        self.norm_epsilon = norm_epsilon
        self.kernel_norm = self._norm("kernel_norm")
        self.recurrent_norm = self._norm("recurrent_norm")
        self.state_norm = self._norm("state_norm")

    def _norm(self, name: str) -> LayerNormalization:
        return LayerNormalization(
            epsilon=self.norm_epsilon,
            gamma_initializer=self.norm_gamma_initializer,
            beta_initializer=self.norm_beta_initializer,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        self.kernel_norm.build((None, 4 * self.units))
        self.recurrent_norm.build((None, 4 * self.units))
        self.state_norm.build((None, self.units))

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = states
        masks = self.current_masks(inputs, training)
        gates = self.kernel_norm(self.product(inputs, self.kernel, masks[0]))
        gates = gates + self.recurrent_norm(self.product(hidden, self.recurrent_kernel, masks[1]))
        if self.bias is not None:
            gates = gates + self.bias
        i, f, candidate, o = ops.split(gates, 4, axis=1)
        kept = self.recurrent_activation(f) * memory
        memory = kept + self.recurrent_activation(i) * self.activation(candidate)
        hidden = self.recurrent_activation(o) * self.activation(self.state_norm(memory))
        return hidden, [hidden, memory]


def _clipped(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else ops.clip(x, -limit, limit)


def _limit(cell: str, name: str, value: float | None) -> float | None:
    """Return `value` if it is a limit.

    Raises:
        ValueError: it is not positive.
    """
    check_optional_numbers(cell, **{name: value})
    if value is not None and not value > 0:
        raise ValueError(f"{cell}: {name} must be a positive number or None, got {name}={value!r}.")
    return value
