"""`ConvLSTM1D`, `ConvLSTM2D`, `ConvLSTM3D`: LSTMs whose products with weights are convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.data_format import check_data_format
from ...engine.ops.neural.window_geometry import count_windows
from ...engine.ops.random import samplers as random
from ..convolution.base import check_dilation, per_channel
from ..convolution.spatial import axis_sizes, channels_axis, known_channels, one_of
from ..core.dense import positive_int
from ..core.input_spec import InputSpec
from ..core.layer_config import config_from_signature
from ..core.weight import WeightSpec
from ..regularization.dropout import Rate, acts
from .cell import Masks, RecurrentCell, forget_gate_of_ones
from .of_cell import NamedAfterCell, OfCell

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import CellWeightOptions


Sizes = int | tuple[int, ...]


@config_from_signature(units="")
class ConvLSTMCell(RecurrentCell):
    """One step of a convolutional LSTM (Shi et al., 2015, without its connections from the memory to the gates).

    ``c' = f * c + i * activation(candidate)``, ``h' = o * activation(c')``, where the gates i, f, o and the candidate
    are convolutions of the input plus convolutions of h.

    Args:
        rank: the number of spatial axes, 1 to 3.
        filters: the number of channels of the states h and c, and of the output h.
        kernel_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells of the input from one window to the next: likewise. Windows over h are side by side.
        padding: of the input: ``"valid"`` or ``"same"``; h is always padded to stay as large.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: of the input, from one cell of a window to the next; an int, or one for each spatial axis.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        unit_forget_bias: the bias of the forget gate starts at 1.
        **kwargs: see `RecurrentCell` and `Layer`.

    Weights: ``kernel (*kernel_size, channels, 4 * filters)``, ``recurrent_kernel (*kernel_size, filters, 4 *
    filters)``, ``bias (4 * filters,)``; in the order i, f, candidate, o.

    Raises:
        ValueError: an argument is not one of those above; or at the first call a spatial size or the number of channels
            is not known.

    >>> import anabranch as ab
    >>> cell = ab.layers.ConvLSTMCell(rank=1, filters=4, kernel_size=3, padding="same")
    >>> ab.layers.RNN(cell)(ab.ops.ones((2, 5, 8, 3))).shape
    (2, 8, 4)
    """

    gates = 4
    states_count = 2

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Sizes,
        strides: Sizes = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Sizes = 1,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        unit_forget_bias: bool = True,
        **kwargs: Unpack[CellWeightOptions],
    ) -> None:
        if rank not in (1, 2, 3):
            raise ValueError(f"ConvLSTMCell: rank must be 1, 2 or 3, got rank={rank!r}.")
        super().__init__(positive_int("ConvLSTMCell", "filters", filters), activation, use_bias, **kwargs)
        layer = f"ConvLSTM{rank}D"
        self.rank = rank
        self.filters = self.units
        self.kernel_size = axis_sizes(layer, "kernel_size", kernel_size, rank)
        self.strides = axis_sizes(layer, "strides", strides, rank)
        self.padding = one_of(layer, "padding", padding, ("valid", "same"))
        self.data_format = check_data_format(layer, data_format)
        self.dilation_rate = axis_sizes(layer, "dilation_rate", dilation_rate, rank)
        check_dilation(layer, self.strides, self.dilation_rate)
        self.recurrent_activation = activations.get(recurrent_activation, "recurrent_activation")
        self.unit_forget_bias = unit_forget_bias
        self.input_spec = InputSpec(ndim=rank + 2)

    # --- weights --------------------------------------------------------------------------------------------

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        channels, columns = known_channels(self, input_shape, self.rank, self.data_format), 4 * self.filters
        return (
            WeightSpec("kernel", (*self.kernel_size, channels, columns)),
            WeightSpec("recurrent_kernel", (*self.kernel_size, self.filters, columns), options="recurrent"),
            WeightSpec("bias", self.bias_shape, self._first_bias(), present=self.use_bias),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        specs = self.weight_specs(input_shape)
        self._input_shape = tuple(input_shape[1:])
        self._state_shape = self._state_shape_for(input_shape)
        self.state_size = [self._state_shape, self._state_shape]
        self.input_spec = InputSpec(shape=(None, *self._input_shape))
        self.build_weights(specs)

    def _state_shape_for(self, input_shape: Sequence[int | None]) -> tuple[int, ...]:
        """Return the shape of a state without the batch."""
        last = self.data_format == "channels_last"
        sizes = input_shape[1:-1] if last else input_shape[2:]
        if None in sizes:
            raise ValueError(
                f"Layer {self.name!r} (ConvLSTM{self.rank}D) needs known spatial sizes of its input, got input "
                f"shape {input_shape} for a step. Give these axes sizes in ab.Input."
            )
        counts = [
            count_windows(size, self.kernel_size[axis], self.strides[axis], self.dilation_rate[axis], self.padding) or 0
            for axis, size in enumerate(sizes)
        ]
        return (*counts, self.filters) if last else (self.filters, *counts)

    def _first_bias(self) -> Callable[..., object]:
        first = super()._first_bias()
        return forget_gate_of_ones(first, self.units) if self.unit_forget_bias else first

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Tensor]:
        """Return zeros."""
        return [ops.zeros((batch_size, *self._state_shape), self.compute_dtype) for _ in range(2)]

    # --- calling --------------------------------------------------------------------------------------------

    def _draw_masks(self, batch_size: DimLike | None, training: bool | None) -> tuple[Masks, Masks]:
        """Draw, for each gate, a mask of the input, and one of the previous output."""
        if not training:
            return None, None
        return (
            self._gate_masks((batch_size, *self._input_shape), self.dropout),
            self._gate_masks((batch_size, *self._state_shape), self.recurrent_dropout),
        )

    def _gate_masks(self, shape: Sequence[DimLike | None], rate: Rate) -> list[Tensor] | None:
        if not acts(rate):
            return None
        ones = ops.ones(shape, self.compute_dtype)
        return [random.dropout(ones, rate, seed=self.seed_generator) for _ in range(4)]

    def call(
        self, inputs: Tensor, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, memory = states
        masks = self.current_masks(inputs, training)
        windows: _Windows = {"strides": self.strides, "padding": self.padding, "dilation_rate": self.dilation_rate}
        gates = self._convolved(inputs, self.kernel, masks[0], windows)
        gates = gates + self._convolved(hidden, self.recurrent_kernel, masks[1], {"padding": "same"})
        if self.bias is not None:
            gates = gates + per_channel(self.bias, self.rank, self.data_format)
        i, f, candidate, o = ops.split(gates, 4, axis=channels_axis(self.data_format))
        kept = self.recurrent_activation(f) * memory
        memory = kept + self.recurrent_activation(i) * self.activation(candidate)
        hidden = self.recurrent_activation(o) * self.activation(memory)
        return hidden, [hidden, memory]

    def _convolved(self, x: Tensor, kernel: TensorLike, masks: Masks, windows: _Windows) -> Tensor:
        """Return the convolutions for all gates, behind each other along the channels."""
        if masks is None:
            return ops.conv(x, kernel, data_format=self.data_format, **windows)
        parts = [
            ops.conv(x * mask, part, data_format=self.data_format, **windows)
            for mask, part in zip(masks, ops.split(kernel, 4, axis=-1), strict=True)
        ]
        return ops.concatenate(parts, axis=channels_axis(self.data_format))


class _Windows(TypedDict, total=False):
    strides: tuple[int, ...]
    padding: str
    dilation_rate: tuple[int, ...]


class _ConvLSTM(NamedAfterCell):
    """The base of the convolutional LSTMs; see `ConvLSTM2D`."""

    rank: ClassVar[int]

    filters = OfCell[int]()
    kernel_size = OfCell[tuple[int, ...]]()
    strides = OfCell[tuple[int, ...]]()
    padding = OfCell[str]()
    data_format = OfCell[str]()
    dilation_rate = OfCell[tuple[int, ...]]()
    recurrent_activation = OfCell[Callable[[Tensor], Tensor]]()
    unit_forget_bias = OfCell[bool]()

    def __init__(
        self,
        filters: int,
        kernel_size: Sizes,
        strides: Sizes = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Sizes = 1,
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
        **kwargs: Any,
    ) -> None:
        shared = {name: kwargs[name] for name in ("dtype", "trainable") if name in kwargs}
        cell = ConvLSTMCell(
            self.rank,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            recurrent_activation,
            use_bias,
            unit_forget_bias,
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
            name="conv_lstm_cell",
            **shared,
        )
        super().__init__(
            cell,
            return_sequences,
            return_state,
            go_backwards,
            stateful,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = InputSpec(ndim=self.rank + 3)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["rank"]
        return config


class ConvLSTM1D(_ConvLSTM):
    """An `RNN` over a `ConvLSTMCell` with one spatial axis.

    Args:
        filters, kernel_size, strides, padding, data_format, dilation_rate, ...: see `ConvLSTM2D`.

    Shapes: ``(batch, steps, size, channels)`` to ``(batch, new_size, filters)``.

    Raises:
        ValueError: see `ConvLSTM2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.ConvLSTM1D(4, 3, padding="same")(np.ones((2, 5, 8, 3), "float32")).shape
    (2, 8, 4)
    """

    rank = 1


class ConvLSTM2D(_ConvLSTM):
    """An `RNN` over a `ConvLSTMCell` with two spatial axes, as for films (Shi et al., 2015).

    Args:
        filters: the number of channels of states and output, positive.
        kernel_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells of the input from one window to the next: likewise.
        padding: ``"valid"`` or ``"same"``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of a window to the next; an int, or one for each spatial axis.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values.
        unit_forget_bias: the bias of the forget gate starts at 1.
        kernel_regularizer, recurrent_regularizer, bias_regularizer, activity_regularizer: penalties.
        kernel_constraint, recurrent_constraint, bias_constraint: projections after each update.
        dropout: in training, the part of the inputs that is dropped: for each gate its own, the same at each step.
        recurrent_dropout: the same, of the previous output.
        seed: an integer for the dropout.
        return_sequences, return_state, go_backwards, stateful: see `RNN`.
        **kwargs: see `RNN` and `Layer`.

    Shapes: ``(batch, steps, height, width, channels)`` to ``(batch, new_height, new_width, filters)``, or with
    `return_sequences` ``(batch, steps, new_height, new_width, filters)``. Height and width have to be known.

    Raises:
        ValueError: an argument is not one of those above; or at the first call a spatial size or the number of channels
            is not known.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> film = np.ones((2, 5, 8, 6, 3), "float32")
    >>> ab.layers.ConvLSTM2D(4, 3, return_sequences=True)(film).shape
    (2, 5, 6, 4, 4)
    """

    rank = 2


class ConvLSTM3D(_ConvLSTM):
    """An `RNN` over a `ConvLSTMCell` with three spatial axes.

    Args:
        filters, kernel_size, strides, padding, data_format, dilation_rate, ...: see `ConvLSTM2D`.

    Shapes: ``(batch, steps, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, filters)``.

    Raises:
        ValueError: see `ConvLSTM2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.ConvLSTM3D(4, 2, strides=2)(np.ones((1, 3, 4, 6, 2, 3), "float32")).shape
    (1, 2, 3, 1, 4)
    """

    rank = 3
