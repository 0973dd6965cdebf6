"""Shared by cells of any class; the base class of those here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Unpack, runtime_checkable

import numpy as np

from ...engine import ops
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Shape, Tensor, Variable
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.arguments import check_numbers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.random import samplers as random
from ..core.calling import map_leaves, signature_of
from ..core.dense import known_features, positive_int
from ..core.input_spec import InputSpec, known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from ..regularization.dropout import Rate, acts

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import LayerOptions


StateSizes: TypeAlias = "int | Sequence[StateSizes]"
"""The length of a cell's state, or lengths (or shapes), one for each state; nested for cells made of cells."""

Masks: TypeAlias = Tensor | list[Tensor] | None
"""Masks of dropout: one for all gates, or one for each; None without dropout."""


class Cell(Protocol):
    """Describe what is called step by step; see `RNN`."""

    @property
    def state_size(self) -> StateSizes:
        """The length of the state, or a list of lengths (or shapes), one for each state."""
        ...

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output and the new states, from the input of a step and the states."""
        ...


CellLike: TypeAlias = Layer | Cell
"""A cell; its class may leave it to its instances to have a `state_size`."""


@dataclass(frozen=True)
class StateSize:
    """The shape of one state of a cell, without the batch."""

    dims: tuple[int, ...]


def state_form(cell: Cell) -> list[Any]:
    """Return the form of a cell's states: a list with a `StateSize` for each, nested for cells made of cells.

    Within these, a cell whose `state_size` is an int and that does not say how its states begin has no list, as in
    Keras: its state comes back from ``RNN(return_state=True)`` as it is.

    Raises:
        ValueError: `state_size` is neither an int nor a list of ints (or of shapes).
    """
    parts = getattr(cell, "cells", None)
    if isinstance(parts, list):
        return [state_form(part)[0] if has_bare_state(part) else state_form(part) for part in parts]
    size: Any = cell.state_size
    sizes = list(size) if isinstance(size, (list, tuple)) else [size]
    found = [tuple(item) if isinstance(item, (list, tuple)) else (item,) for item in sizes]
    if not found or not all(isinstance(dim, int) and dim >= 0 for dims in found for dim in dims):
        raise ValueError(
            f"state_size of cell {type(cell).__name__} must be an int, or a list of ints (one for each state), got "
            f"{size!r}."
        )
    return [StateSize(dims) for dims in found]


def has_bare_state(cell: Cell) -> bool:
    """Test whether the state of this cell, as a part of others, is a tensor and no list of one."""
    return isinstance(cell.state_size, int) and not hasattr(cell, "get_initial_state") and not hasattr(cell, "cells")


def initial_states(cell: Cell, batch_size: DimLike | None, dtype: DTypeLike) -> list[Any]:
    """Return the states of a cell before the first step: what its `get_initial_state` gives, or zeros."""
    getter = getattr(cell, "get_initial_state", None)
    if getter is None:
        dtype = cell.compute_dtype if isinstance(cell, Layer) else dtype
        return [ops.zeros((batch_size, *size.dims), dtype) for size in state_form(cell)]
    states = getter(batch_size=batch_size)
    return list(states) if isinstance(states, (list, tuple)) else [states]


def build_cell(cell: Cell, input_shape: Sequence[int | None] | Sequence[Sequence[int | None]]) -> None:
    """Build a cell that is a layer; one that leaves that to its parts is called on symbols once, with its states."""
    if not isinstance(cell, Layer) or cell.built:
        return
    # pyrefly: ignore[missing-attribute] - a layer's class
    if type(cell).build is Layer.build and any(not layer.built for layer in cell._sublayers()):
        batch = input_shape[0] if isinstance(input_shape, tuple) else None
        cell.compute_output_shape(input_shape, map_leaves(lambda size: (batch, *size.dims), state_form(cell)))
        cell._build_shapes = None  # it can't be built from the input's shape alone; whoever holds the cell does it
    else:
        cell.build(input_shape)


def output_size_of(cell: Cell) -> Any:
    """Return the length of a cell's output: its `output_size`, or else the first state's."""
    size = getattr(cell, "output_size", None)
    if size is not None:
        return size
    state_size = cell.state_size
    return state_size[0] if isinstance(state_size, (list, tuple)) else state_size


@runtime_checkable
class DrawsMasks(Protocol):
    """A cell that draws its dropout masks once for a sequence."""

    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> AbstractContextManager[None]:
        """Draw the masks, and use them in all calls inside the block."""
        ...


def dropout_scope(cell: Cell, batch_size: DimLike | None, training: bool | None) -> AbstractContextManager[None]:
    """Return the block in which a cell keeps to one draw of its masks; one that does nothing for other cells."""
    return cell.dropout_masks(batch_size, training) if isinstance(cell, DrawsMasks) else nullcontext()


def call_cell(cell: Cell, x: Nest[TensorLike | None], states: Nest[TensorLike | None], training: bool | None) -> Any:
    """Make one step of a cell that is a `Layer`, or any object with a `call`."""
    function = cell if isinstance(cell, Layer) else cell.call
    takes_training = signature_of(type(cell).call).takes("training")
    return function(x, states, training=training) if takes_training else function(x, states)


@config_from_signature(implementation="")
class RecurrentCell(Layer):
    """The base of the built-in cells: weights for a number of gates, and dropout.

    Args:
        units: the length of states and output, positive.
        activation: of the new value; a name or function, None for none.
        use_bias: whether there is a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties.
        kernel_constraint, recurrent_constraint, bias_constraint: projections after each update.
        dropout: in training, the part of the inputs that is dropped: the same ones at each step.
        recurrent_dropout: the same, of the previous output.
        seed: an integer for the dropout.
        implementation: 2, or Keras 2's 0, drops the same values for all gates; 1, which `recurrent_dropout` implies,
            others for each.

    Raises:
        ValueError: `units` is not positive, or `implementation` is not one of these.
    """

    gates = 1
    states_count = 1

    kernel: Weight
    recurrent_kernel: Weight
    bias: Weight | None

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
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        implementation: int = 2,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if implementation not in (0, 1, 2):
            raise ValueError(f"{type(self).__name__}: implementation must be 1 or 2, got {implementation!r}.")
        self.units = positive_int(type(self).__name__, "units", units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.recurrent_initializer = initializers.get(recurrent_initializer, "recurrent_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.recurrent_regularizer = regularizers.get(recurrent_regularizer, "recurrent_regularizer")
        self.bias_regularizer = regularizers.get(bias_regularizer, "bias_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")
        self.recurrent_constraint = constraints.get(recurrent_constraint, "recurrent_constraint")
        self.bias_constraint = constraints.get(bias_constraint, "bias_constraint")
        self.dropout = _within_one(type(self).__name__, "dropout", dropout)
        self.recurrent_dropout = _within_one(type(self).__name__, "recurrent_dropout", recurrent_dropout)
        self.implementation = 1 if acts(self.recurrent_dropout) else implementation or 2
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self.state_size: Any = self.units if self.states_count == 1 else [self.units] * self.states_count
        self.output_size = self.units
        self._masks: tuple[Masks, Masks] | None = None

    # --- weights --------------------------------------------------------------------------------------------

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        columns = self.gates * self.units
        return (
            WeightSpec("kernel", (known_features(self, input_shape), columns)),
            WeightSpec("recurrent_kernel", (self.recurrent_size, columns), options="recurrent"),
            WeightSpec("bias", self.bias_shape, self._first_bias(), present=self.use_bias),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self.input_spec = InputSpec(ndim=2, axes={-1: known_features(self, input_shape)})

    @property
    def recurrent_size(self) -> int:
        """The length of the state that `recurrent_kernel` takes."""
        return self.units

    @property
    def bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def _first_bias(self) -> Callable[..., object]:
        """Return the initializer of the bias."""
        return self.bias_initializer

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Tensor]:
        """Return zeros."""
        return [ops.zeros((batch_size, self.units), self.compute_dtype) for _ in range(self.states_count)]

    # --- dropout --------------------------------------------------------------------------------------------

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the masks once, for all steps inside the block (Gal and Ghahramani, 2016)."""
        self._masks = self._draw_masks(batch_size, training)
        try:
            yield
        finally:
            self._masks = None

    def _draw_masks(self, batch_size: DimLike | None, training: bool | None) -> tuple[Masks, Masks]:
        if not training:
            return None, None
        return (
            self._draw_mask(batch_size, self.kernel.shape, self.dropout),
            self._draw_mask(batch_size, self.recurrent_kernel.shape, self.recurrent_dropout),
        )

    def _draw_mask(self, batch_size: DimLike | None, kernel_shape: Shape, rate: Rate) -> Masks:
        if not acts(rate):
            return None
        ones = ops.ones((batch_size, known_shape(kernel_shape)[0]), self.compute_dtype)
        count = self.gates if self.implementation == 1 else 1
        masks = [random.dropout(ones, rate, seed=self.seed_generator) for _ in range(count)]
        return masks if count > 1 else masks[0]

    def current_masks(self, inputs: TensorLike, training: bool | None) -> tuple[Masks, Masks]:
        """Return masks of the inputs and the previous output: None, a tensor for all gates, or a list of one each."""
        return self._masks if self._masks is not None else self._draw_masks(ops.shape(inputs)[0], training)

    def product(self, x: TensorLike, kernel: TensorLike, mask: Masks) -> Tensor:
        """Return ``x @ kernel`` for all gates, behind each other, with what a mask of `current_masks` leaves of `x`."""
        if not isinstance(mask, list):
            return ops.matmul(x if mask is None else x * mask, kernel)
        parts = ops.split(kernel, len(mask), axis=1)
        products = [ops.matmul(x * kept, part) for kept, part in zip(mask, parts, strict=True)]
        return ops.concatenate(products, axis=1)

    def dropped(self, inputs: Tensor, hidden: Tensor, training: bool | None) -> tuple[Tensor, Tensor]:
        """Return the inputs and the previous output, with what dropout leaves of them; for cells with one gate."""
        input_mask, hidden_mask = self.current_masks(inputs, training)
        assert not isinstance(input_mask, list)  # one gate has one mask
        assert not isinstance(hidden_mask, list)
        return (
            inputs if input_mask is None else inputs * input_mask,
            hidden if hidden_mask is None else hidden * hidden_mask,
        )


def forget_gate_of_ones(initializer: Callable[..., object], units: int) -> Callable[..., np.ndarray]:
    """Return an initializer of the bias of the gates i, f, candidate, o, with ones for f (Jozefowicz et al., 2015)."""

    def first(shape: Sequence[int], dtype: DTypeLike = None) -> np.ndarray:
        parts = [initializer((units,), dtype=dtype), np.ones(units), initializer((2 * units,), dtype=dtype)]
        return np.concatenate([np.asarray(part, dtype) for part in parts])

    return first


def _within_one(cell: str, name: str, rate: Rate) -> Rate:
    """Return a rate as a number from 0 to 1, as Keras cuts it off; of a tensor the value is not known yet."""
    check_numbers(cell, **{name: rate})
    return rate if isinstance(rate, (Tensor, Variable)) else min(1.0, max(0.0, rate))
