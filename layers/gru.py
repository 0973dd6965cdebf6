"""`GRU` and its cell."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from ..engine.graph import Tensor
from ..engine.objects import activations
from .recurrent_cell import RecurrentCell
from .recurrent_layer import RecurrentLayer


class GRUCell(RecurrentCell):
    """Gated recurrent unit (Cho et al., 2014): ``h' = z * h + (1 - z) * candidate``.

    Args:
        units: the length of state and output.
        activation: of the candidate; a name or function.
        recurrent_activation: of the gates z and r.
        use_bias: whether there is a bias.
        reset_after: r acts on ``h @ recurrent_kernel``, rather than on h.
        **kwargs: see `RecurrentCell` and `Layer`.

    Weights: ``kernel (features, 3 * units)``, ``recurrent_kernel (units, 3 * units)``, and ``bias``:
    ``(2, 3 * units)`` with `reset_after` (of the input and of h), otherwise ``(3 * units,)``; in the order z, r,
    candidate.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation, use_bias, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.reset_after = reset_after

    @property
    def bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def call(self, inputs: Any, states: Any, training: Any = False) -> tuple[Tensor, list[Tensor]]:
        previous = states[0]
        inputs, hidden = self.dropped(inputs, previous, training)
        x = ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            x = x + (self.bias[0] if self.reset_after else self.bias)
        x_z, x_r, x_h = ops.split(x, 3, axis=1)
        z, candidate = (
            self._reset_after(x_z, x_r, x_h, hidden)
            if self.reset_after
            else (self._reset_before(x_z, x_r, x_h, hidden))
        )
        new = z * previous + (1.0 - z) * candidate
        return new, [new]

    def _reset_after(self, x_z: Tensor, x_r: Tensor, x_h: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        inner = ops.matmul(hidden, self.recurrent_kernel)
        if self.bias is not None:
            inner = inner + self.bias[1]
        h_z, h_r, h_h = ops.split(inner, 3, axis=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(x_h + r * h_h)

    def _reset_before(self, x_z: Tensor, x_r: Tensor, x_h: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        inner = ops.matmul(hidden, self.recurrent_kernel[:, : 2 * self.units])
        h_z, h_r = ops.split(inner, 2, axis=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(x_h + ops.matmul(r * hidden, self.recurrent_kernel[:, 2 * self.units :]))

    def get_config(self) -> dict[str, Any]:
        own = {
            "recurrent_activation": activations.serialize(self.recurrent_activation),
            "reset_after": self.reset_after,
        }
        return {**super().get_config(), **own}


class GRU(RecurrentLayer):
    """An `RNN` over `GRUCell`.

    Args:
        units: the length of state and output.
        activation: of the candidate; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        **kwargs: see `GRUCell` and `RNN`.
    """

    cell_class = GRUCell

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
