"""`SimpleRNN` and its cell."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from ..engine.graph import Tensor
from .recurrent_cell import RecurrentCell
from .recurrent_layer import RecurrentLayer


class SimpleRNNCell(RecurrentCell):
    """``h' = activation(x @ kernel + bias + h @ recurrent_kernel)`` (Elman, 1990).

    Args:
        units: the length of state and output.
        activation: a name or function.
        use_bias: whether there is a bias.
        **kwargs: see `RecurrentCell` and `Layer`.
    """

    def __init__(self, units: int, activation: Any = "tanh", use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, activation, use_bias, **kwargs)

    def call(self, inputs: Any, states: Any, training: Any = False) -> tuple[Tensor, list[Tensor]]:
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
        **kwargs: see `SimpleRNNCell` and `RNN`.
    """

    cell_class = SimpleRNNCell

    def __init__(self, units: int, activation: Any = "tanh", use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)
