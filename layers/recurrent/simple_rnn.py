"""`SimpleRNN` and its cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from .cell import RecurrentCell
from .layer import RecurrentLayer

if TYPE_CHECKING:
    from ..core.options import RecurrentOptions


class SimpleRNNCell(RecurrentCell):
    """``h' = activation(x @ kernel + bias + h @ recurrent_kernel)`` (Elman, 1990).

    Args:
        units: the length of state and output.
        activation: a name or function.
        use_bias: whether there is a bias.
        Others: see `RecurrentCell` and `Layer`.
    """

    def call(
        self, inputs: Tensor, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        inputs, hidden = self.dropped(inputs, states[0], training)
        outputs = ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            outputs = outputs + self.bias
        outputs = self.activation(outputs + ops.matmul(hidden, self.recurrent_kernel))
        return outputs, [outputs]


class SimpleRNN(RecurrentLayer):
    """An `RNN` over `SimpleRNNCell`.

    Args:
        units: the length of state and output.
        activation: a name or function.
        use_bias: whether there is a bias.
        Others: see `SimpleRNNCell` and `RNN`.
    """

    cell_class = SimpleRNNCell

    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
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
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        **kwargs: Unpack[RecurrentOptions],
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
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            seed=seed,
            **kwargs,
        )
