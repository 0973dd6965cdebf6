"""Cells around cells: zoneout, dropout, a residual connection, a device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor, Variable, device, flatten, pack_as
from ...engine.ops.random import samplers as random
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..regularization.dropout import Rate, acts
from .cell import build_cell, call_cell, dropout_scope, initial_states, output_size_of, state_form
from .stacked_rnn_cells import check_cell

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import LayerOptions
    from .cell import CellLike, StateSizes


_Masks = tuple[Tensor | None, Tensor | None, list[Tensor | None]]  # of inputs, output and states


@config_from_signature()
class CellWrapper(Layer):
    """The base of cells that change what another cell gets or gives; by itself it changes nothing.

    Args:
        cell: the cell, see `RNN`; states and sizes are its own.

    Raises:
        ValueError: it has no `call` or no `state_size`.

    >>> import anabranch as ab
    >>> class Twice(ab.layers.CellWrapper):
    ...     def call(self, inputs, states, training=False):
    ...         return super().call(2 * inputs, states, training)
    >>> ab.layers.RNN(Twice(ab.layers.GRUCell(4)))(ab.ops.ones((2, 3, 1))).shape
    (2, 4)
    """

    def __init__(self, cell: CellLike, **kwargs: Unpack[LayerOptions]) -> None:
        check_cell(cell)
        super().__init__(**kwargs)
        self.cell: Any = cell  # of the user's class

    @property
    def state_size(self) -> StateSizes:
        """The state size of the cell."""
        return self.cell.state_size

    @property
    def cells(self) -> list[Layer] | None:
        """The cells of a stack, each of which has a list of states; None for one cell."""
        return getattr(self.cell, "cells", None)

    @property
    def output_size(self) -> int:
        """The length of the cell's output."""
        return output_size_of(self.cell)

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Nest[Tensor]]:
        """Return the cell's first states."""
        return initial_states(self.cell, batch_size, self.compute_dtype)

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the dropout masks of the cell once, for all steps inside the block."""
        with dropout_scope(self.cell, batch_size, training):
            yield

    def build(self, input_shape: Sequence[int | None]) -> None:
        build_cell(self.cell, input_shape)

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        output, new, _ = self._advance(inputs, states, training)
        return output, new

    def _advance(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None
    ) -> tuple[Tensor, Nest[Tensor], Nest[Tensor]]:
        """Return one step of the cell: the output, and new and old states in one structure."""
        old = pack_as(state_form(self.cell), flatten(states))
        output, new = call_cell(self.cell, inputs, old, training)
        return output, pack_as(old, flatten([new])), old


@config_from_signature()
class ZoneoutCell(CellWrapper):
    """In training, a random part of the units of each state keeps its value at each step (Krueger et al., 2017).

    Otherwise the new states are the expected ones, ``rate * old + (1 - rate) * new``. A cell's output that is one
    of its states is the state as zoneout leaves it.

    Args:
        cell: the cell, see `RNN`.
        rate: the part of the units that keep their value, within [0, 1]; or one for each state, such as ``(0.05, 0.5)``
            for the h and c of an LSTM.
        seed: an integer, so that a new process draws the same units.

    Raises:
        ValueError: `cell` is not a cell, a rate is not within [0, 1], or there are not as many as states.

    Krueger et al., "Zoneout: Regularizing RNNs by Randomly Preserving Hidden Activations", 2017, arXiv:1606.01305.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.RNN(ab.layers.ZoneoutCell(ab.layers.LSTMCell(4), rate=(0.05, 0.5)))
    >>> layer(np.ones((2, 3, 1), "float32"), training=True).shape
    (2, 4)
    """

    def __init__(
        self, cell: CellLike, rate: Rate | Sequence[Rate] = 0.1, seed: int | None = None, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(cell, **kwargs)
        self.rate = _rate("ZoneoutCell", "rate", rate)
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        _rates(self, "rate", self.rate)

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        output, new, old = self._advance(inputs, states, training)
        rates = _rates(self, "rate", self.rate)
        given = flatten(new)
        mixed = [self._mixed(*parts, training) for parts in zip(rates, given, flatten(old), strict=True)]
        for state, kept in zip(given, mixed, strict=True):
            if output is state:
                return kept, pack_as(new, mixed)
        return output, pack_as(new, mixed)

    def _mixed(self, rate: Rate, new: Tensor, old: Tensor, training: bool | None) -> Tensor:
        if not acts(rate):
            return new
        if not training:
            return rate * old + (1 - rate) * new
        keeps = random.uniform(ops.shape(new), seed=self.seed_generator) < rate
        return ops.where(keeps, old, new)


@config_from_signature()
class DropoutCell(CellWrapper):
    """In training, drops parts of what a cell gets and gives: inputs, outputs, states.

    Args:
        cell: the cell, see `RNN`.
        input_rate: the part of the inputs that is set to 0; others are scaled up.
        output_rate: the same, of the output. The states stay as they are.
        state_rate: the same, of the states that the cell gets at each step; or one for each state.
        variational: the same units at each step of a sequence (Gal and Ghahramani, 2016), rather than others each time.
        seed: an integer, so that a new process draws the same masks.

    Raises:
        ValueError: `cell` is not a cell, a rate is not within [0, 1], or there are not as many as states.

    Zaremba et al., "Recurrent Neural Network Regularization", 2014, arXiv:1409.2329 (inputs and outputs); Gal and
    Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks", 2016, arXiv:1512.05287.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> cell = ab.layers.DropoutCell(ab.layers.GRUCell(4), input_rate=0.2, state_rate=0.2, variational=True)
    >>> ab.layers.RNN(cell)(np.ones((2, 3, 1), "float32"), training=True).shape
    (2, 4)
    """

    def __init__(
        self,
        cell: CellLike,
        input_rate: float = 0.0,
        output_rate: float = 0.0,
        state_rate: Rate | Sequence[Rate] = 0.0,
        variational: bool = False,
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(cell, **kwargs)
        self.input_rate = _rate("DropoutCell", "input_rate", input_rate)
        self.output_rate = _rate("DropoutCell", "output_rate", output_rate)
        self.state_rate = _rate("DropoutCell", "state_rate", state_rate)
        self.variational = variational
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self._input_shape: tuple[int | None, ...] = ()
        self._masks: _Masks | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        _rates(self, "state_rate", self.state_rate)
        self._input_shape = tuple(input_shape[1:])

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the masks of the cell, and with `variational` those here, once for all steps inside the block."""
        before = self._masks
        self._masks = self._draw(batch_size) if training and self.variational else None
        try:
            with super().dropout_masks(batch_size, training):
                yield
        finally:
            self._masks = before

    def _draw(self, batch: DimLike | None) -> _Masks:
        """Return masks of inputs, output and states; None where nothing is dropped."""
        size = self.output_size
        rates = _rates(self, "state_rate", self.state_rate)
        sizes = [form.dims for form in flatten(state_form(self.cell))]
        return (
            self._mask(batch, self._input_shape, self.input_rate),
            self._mask(batch, size if isinstance(size, (list, tuple)) else (size,), self.output_rate),
            [self._mask(batch, dims, rate) for dims, rate in zip(sizes, rates, strict=True)],
        )

    def _mask(self, batch: DimLike | None, shape: Sequence[int | None], rate: Rate) -> Tensor | None:
        if not acts(rate):
            return None
        return random.dropout(ops.ones((batch, *shape), self.compute_dtype), rate, seed=self.seed_generator)

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        if not training:
            return super().call(inputs, states, training)
        input_mask, output_mask, state_masks = self._masks or self._draw(ops.shape(inputs)[0])
        dropped = [_times(state, mask) for state, mask in zip(flatten(states), state_masks, strict=True)]
        output, new = super().call(_times(inputs, input_mask), pack_as(states, dropped), training)
        return _times(output, output_mask), new


class ResidualCell(CellWrapper):
    """A cell whose input is added to its output (He et al., 2016; in recurrent networks: Wu et al., 2016).

    Args:
        cell: the cell, see `RNN`, whose output has the shape of its input.

    Raises:
        ValueError: `cell` is not a cell, or at the first call the shapes differ.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> cells = [ab.layers.LSTMCell(4), ab.layers.ResidualCell(ab.layers.LSTMCell(4))]
    >>> ab.layers.RNN(cells)(np.ones((2, 3, 1), "float32")).shape
    (2, 4)
    """

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        size = self.output_size
        output = tuple(size) if isinstance(size, (list, tuple)) else (size,)
        if tuple(input_shape[1:]) != output:
            raise ValueError(
                f"Layer {self.name!r} (ResidualCell) adds the input to the cell's output, so that they must have one "
                f"shape, got {tuple(input_shape[1:])} and {output}. Give the cell as many units as there are features."
            )

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        output, new = super().call(inputs, states, training)
        return inputs + output, new


@config_from_signature()
class DeviceCell(CellWrapper):
    """A cell that computes on a device of its own, as one of a stack.

    Args:
        cell: the cell, see `RNN`.
        device: what `ab.device` takes, such as ``"cpu:1"``.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> cells = [ab.layers.LSTMCell(4), ab.layers.DeviceCell(ab.layers.LSTMCell(4), "cpu:0")]
    >>> ab.layers.RNN(cells)(np.ones((2, 3, 1), "float32")).shape
    (2, 4)
    """

    def __init__(self, cell: CellLike, device: str, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(cell, **kwargs)
        self.device = device

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], training: bool | None = False
    ) -> tuple[Tensor, Nest[Tensor]]:
        with device(self.device):
            return super().call(inputs, states, training)


def _times(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def _rate(cell: str, name: str, value: Rate | Sequence[Rate]) -> Any:
    """Return `value` as a float or a list of floats; scalar tensors and variables as they are.

    Raises:
        ValueError: one is not within [0, 1].
    """
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    numbers = [item for item in values if not isinstance(item, (Tensor, Variable))]
    if not values or not all(isinstance(item, (int, float)) and 0 <= item <= 1 for item in numbers):
        raise ValueError(f"{cell}: {name} must be within [0, 1], got {name}={value!r}.")
    found = [random.checked_rate(cell, float(item) if isinstance(item, (int, float)) else item) for item in values]
    return found if isinstance(value, (list, tuple)) else found[0]


def _rates(layer: CellWrapper, name: str, value: Rate | list[Rate]) -> list[Rate]:
    """Return a rate for each state.

    Raises:
        ValueError: there are not as many as states.
    """
    count = len(flatten(state_form(layer.cell)))
    rates: list[Rate] = list(value) if isinstance(value, list) else [value] * count
    if len(rates) != count:
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}): {name} must be a number, or a list of one for each of the "
            f"cell's {count} states, got {value!r}."
        )
    return rates
