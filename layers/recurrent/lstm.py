"""`LSTM` and its cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.layer_config import config_from_signature
from .cell import RecurrentCell, forget_gate_of_ones
from .layer import RecurrentLayer
from .of_cell import OfCell

if TYPE_CHECKING:
    from ..core.options import CellOptions, RecurrentOptions


@config_from_signature()
class LSTMCell(RecurrentCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate: Gers et al., 2000).

    ``c' = f * c + i * activation(candidate)``, ``h' = o * activation(c')``, with gates i, f, o from the input and h.

    Args:
        units: the length of the states h and c, and of the output h.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        unit_forget_bias: the bias of the forget gate starts at 1 (Jozefowicz et al., 2015).
        Others: see `RecurrentCell` and `Layer`.

    Weights: ``kernel (features, 4 * units)``, ``recurrent_kernel (units, 4 * units)``, ``bias (4 * units,)``; in the
    order i, f, candidate, o.
    """

    gates = 4
    states_count = 2

    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
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
        self.unit_forget_bias = unit_forget_bias

    def _first_bias(self) -> Callable[..., object]:
        first = super()._first_bias()
        return forget_gate_of_ones(first, self.units) if self.unit_forget_bias else first

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = states
        masks = self.current_masks(inputs, training)
        gates = self.product(inputs, self.kernel, masks[0]) + self.product(hidden, self.recurrent_kernel, masks[1])
        if self.bias is not None:
            gates = gates + self.bias
        i, f, candidate, o = ops.split(gates, 4, axis=1)
        kept = self.recurrent_activation(f) * memory
        memory = kept + self.recurrent_activation(i) * self.activation(candidate)
        hidden = self.recurrent_activation(o) * self.activation(memory)
        return hidden, [hidden, memory]


class LSTM(RecurrentLayer):
    """An `RNN` over `LSTMCell`.

    Args:
        units: the length of the states and of the output.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        use_cudnn: accepted for Keras's sake; there is one way of computing.
        Others: see `LSTMCell` and `RNN`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> output, h, c = ab.layers.LSTM(4, return_state=True)(np.zeros((2, 5, 3), "float32"))
    >>> output.shape, h.shape, c.shape
    ((2, 4), (2, 4), (2, 4))
    """

    cell_class = LSTMCell

    recurrent_activation = OfCell[Callable[[Tensor], Tensor]]()
    unit_forget_bias = OfCell[bool]()

    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        unit_forget_bias: bool = True,
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
            unit_forget_bias=unit_forget_bias,
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
            use_cudnn=use_cudnn,
            **kwargs,
        )
