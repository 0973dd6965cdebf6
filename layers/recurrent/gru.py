"""`GRU` and its cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.layer_config import config_from_signature
from .cell import Masks, RecurrentCell
from .layer import RecurrentLayer
from .of_cell import OfCell

if TYPE_CHECKING:
    from ..core.options import CellOptions, RecurrentOptions


@config_from_signature()
class GRUCell(RecurrentCell):
    """Gated recurrent unit (Cho et al., 2014): ``h' = z * h + (1 - z) * candidate``.

    Args:
        units: the length of state and output.
        activation: of the candidate; a name or function.
        recurrent_activation: of the gates z and r.
        use_bias: whether there is a bias.
        reset_after: r acts on ``h @ recurrent_kernel``, rather than on h.
        Others: see `RecurrentCell` and `Layer`.

    Weights: ``kernel (features, 3 * units)``, ``recurrent_kernel (units, 3 * units)``, and ``bias``:
    ``(2, 3 * units)`` with `reset_after` (of the input and of h), otherwise ``(3 * units,)``; in the order z, r,
    candidate.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        seed: int | None = None,
        **kwargs: Unpack[CellOptions],
    ) -> None:
        super().__init__(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            **kwargs,
        )
        self.recurrent_activation = activations.get(recurrent_activation, "recurrent_activation")
        self.reset_after = reset_after

    @property
    def bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        previous = states[0]
        masks = self.current_masks(inputs, training)
        x = self.product(inputs, self.kernel, masks[0])
        if self.bias is not None:
            x = x + (self.bias[0] if self.reset_after else self.bias)
        x_z, x_r, x_h = ops.split(x, 3, axis=1)
        inner = self._reset_after if self.reset_after else self._reset_before
        z, candidate = inner(x_z, x_r, x_h, previous, masks[1])
        new = z * previous + (1.0 - z) * candidate
        return new, [new]

    def _reset_after(self, x_z: Tensor, x_r: Tensor, x_h: Tensor, hidden: Tensor, mask: Masks) -> tuple[Tensor, Tensor]:
        inner = self.product(hidden, self.recurrent_kernel, mask)
        if self.bias is not None:
            inner = inner + self.bias[1]
        h_z, h_r, h_h = ops.split(inner, 3, axis=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(x_h + r * h_h)

    def _reset_before(
        self, x_z: Tensor, x_r: Tensor, x_h: Tensor, hidden: Tensor, mask: Masks
    ) -> tuple[Tensor, Tensor]:
        of_gates, of_candidate = (mask[:2], mask[2]) if isinstance(mask, list) else (mask, mask)
        inner = self.product(hidden, self.recurrent_kernel[:, : 2 * self.units], of_gates)
        h_z, h_r = ops.split(inner, 2, axis=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(
            x_h + self.product(r * hidden, self.recurrent_kernel[:, 2 * self.units :], of_candidate)
        )


class GRU(RecurrentLayer):
    """An `RNN` over `GRUCell`.

    Args:
        units: the length of state and output.
        activation: of the candidate; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        use_cudnn: accepted for Keras's sake; there is one way of computing.
        Others: see `GRUCell` and `RNN`.
    """

    cell_class = GRUCell

    recurrent_activation = OfCell[Callable[[Tensor], Tensor]]()
    reset_after = OfCell[bool]()

    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        reset_after: bool = True,
        use_cudnn: bool | str = "auto",
        **kwargs: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(
            units,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            reset_after=reset_after,
            use_cudnn=use_cudnn,
            **kwargs,
        )
