"""`LSTM` and its cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine import ops
from ..engine.graph import Tensor
from ..engine.objects import activations
from .recurrent_cell import RecurrentCell
from .recurrent_layer import RecurrentLayer


class LSTMCell(RecurrentCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate: Gers et al., 2000).

    ``c' = f * c + i * activation(candidate)``, ``h' = o * activation(c')``, with gates i, f, o from the input and h.

    Args:
        units: the length of the states h and c, and of the output h.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        unit_forget_bias: the bias of the forget gate starts at 1 (Jozefowicz et al., 2015).
        **kwargs: see `RecurrentCell` and `Layer`.

    Weights: ``kernel (features, 4 * units)``, ``recurrent_kernel (units, 4 * units)``, ``bias (4 * units,)``; in the
    order i, f, candidate, o.
    """

    gates = 4
    states_count = 2

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        unit_forget_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation, use_bias, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.unit_forget_bias = unit_forget_bias

    def _add_bias(self, shape: tuple[int, ...], initializer: Any) -> Any:
        if not self.unit_forget_bias:
            return super()._add_bias(shape, initializer)

        def with_ones(shape: Any, dtype: Any = None) -> Any:
            units = self.units
            parts = [initializer((units,), dtype=dtype), np.ones(units), initializer((2 * units,), dtype=dtype)]
            return np.concatenate([np.asarray(part, dtype) for part in parts])

        return super()._add_bias(shape, with_ones)

    def call(self, inputs: Any, states: Any, training: Any = False) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = states
        inputs, hidden = self.dropped(inputs, hidden, training)
        gates = ops.matmul(inputs, self.kernel) + ops.matmul(hidden, self.recurrent_kernel)
        if self.bias is not None:
            gates = gates + self.bias
        i, f, candidate, o = ops.split(gates, 4, axis=1)
        kept = self.recurrent_activation(f) * memory
        memory = kept + self.recurrent_activation(i) * self.activation(candidate)
        hidden = self.recurrent_activation(o) * self.activation(memory)
        return hidden, [hidden, memory]

    def get_config(self) -> dict[str, Any]:
        own = {
            "recurrent_activation": activations.serialize(self.recurrent_activation),
            "unit_forget_bias": self.unit_forget_bias,
        }
        return {**super().get_config(), **own}


class LSTM(RecurrentLayer):
    """An `RNN` over `LSTMCell`.

    Args:
        units: the length of the states and of the output.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        **kwargs: see `LSTMCell` and `RNN`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> output, h, c = ab.layers.LSTM(4, return_state=True)(np.zeros((2, 5, 3), "float32"))
    >>> output.shape, h.shape, c.shape
    ((2, 4), (2, 4), (2, 4))
    """

    cell_class = LSTMCell

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        gates = {"activation": activation, "recurrent_activation": recurrent_activation}
        super().__init__(units, use_bias=use_bias, **gates, **kwargs)
