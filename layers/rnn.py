"""`RNN`: a loop over the steps of a sequence, around any cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..engine import ops
from ..engine.control_flow import TensorArray, while_loop
from ..engine.graph import Region, Tensor, TensorSpec, Variable, flatten, pack_as
from ..engine.graph.graph import get_default_graph
from ..engine.objects.registry import serialize_keras_object
from .calling import enclosing_path, signature_of
from .dropout_cell import DropoutCell
from .layer import Layer
from .stacked_rnn_cells import StackedRNNCells, cell_call, initial_states, output_size_of, step_shape


@dataclass(frozen=True)
class _Output:
    """What is known of a cell's output before the loop is built.

    Attributes:
        spec: its dtype and shape.
        state: the position, among the flattened new states, of a tensor that is the output itself; None if none is.
    """

    spec: TensorSpec
    state: int | None


class RNN(Layer):
    """Calls a cell step by step, handing its states on.

    Args:
        cell: a cell, or a list of cells to stack. A cell is a `Layer` (or another object) with

            - ``call(x, states)``, which gets the input of one step, ``(batch, features)``, and a list of states, and
              returns the output and the list of new states; it may take `training`;
            - ``state_size``: the length of its state, or a list of lengths (or shapes), one for each state;
            - ``output_size``, optionally: the length of its output;
            - ``get_initial_state(batch_size)``, optionally: the list of first states, by default zeros.
        return_sequences: return the outputs of all steps, not only the last one's.
        return_state: return the final states behind the output.
        go_backwards: take the steps from last to first; outputs then come in that order.
        stateful: begin with the states in which the batch before ended. The batch size has to be known.
        unroll: accepted for Keras's sake; the loop is compiled either way.
        zero_output_for_mask: with `return_sequences`, outputs at masked steps are 0; otherwise the previous output.

    Call arguments: ``sequences`` of shape ``(batch, steps, features...)``, whose number of steps need not be known;
    ``initial_state``, a list of tensors; ``mask``, ``(batch, steps)``, True for steps that count: at others, states
    stay as they are; ``training``.

    Returns:
        The last output, ``(batch, output_size)``, or all, ``(batch, steps, output_size)``; with `return_state` a tuple
        of that and of each final state.

    Raises:
        ValueError: the cell has no `call` or no `state_size`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> class Sum(ab.layers.Layer):
    ...     state_size = 2
    ...     def call(self, x, states):
    ...         total = states[0] + x
    ...         return total, [total]
    >>> ab.layers.RNN(Sum(), return_sequences=True)(np.ones((1, 3, 2), "float32"))
    array([[[1., 1.],
            [2., 2.],
            [3., 3.]]], dtype=float32)
    """

    untracked: ClassVar[frozenset[str]] = Layer.untracked | {"states"}

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        if isinstance(cell, (list, tuple)):
            cell = StackedRNNCells(cell)
        _check_cell(cell)
        super().__init__(**kwargs)
        self.cell = cell
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.unroll = unroll
        self.zero_output_for_mask = zero_output_for_mask
        self.supports_masking = True
        self.states: Any = None

    @property
    def state_size(self) -> list[Any]:
        """The cell's state sizes, as a list."""
        size = self.cell.state_size
        return list(size) if isinstance(size, (list, tuple)) else [size]

    # --- building -------------------------------------------------------------------------------------------

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        first = sequences_shape[0] if isinstance(sequences_shape, list) else sequences_shape
        if first is None or len(first) < 3:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) takes sequences of shape (batch, steps, features), "
                f"got input shape {first}."
            )
        if isinstance(self.cell, Layer) and not self.cell.built:
            self.cell.build(_step_shapes(sequences_shape))
        if self.stateful and self.states is None:
            self._make_states(first[0])

    def _make_states(self, batch_size: int | None) -> None:
        if batch_size is None:
            raise ValueError(
                f"Layer {self.name!r} is stateful, so that its batch size has to be known: give ab.Input a "
                "batch_size, or the first layer a batch_shape."
            )
        sizes = flatten([_state_shapes(self.state_size)])
        path = f"{enclosing_path()}rnn_state"
        values = [np.zeros((batch_size, *size.dims), self.variable_dtype) for size in sizes]
        variables = [Variable(value, trainable=False, name=path) for value in values]
        self.states = pack_as(_state_shapes(self.state_size), variables)

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zeros."""
        for variable in flatten(self.states):
            variable.write_value(np.zeros_like(variable.read_value()))

    def reset_states(self) -> None:
        """`reset_state`, by its Keras 2 name."""
        self.reset_state()

    def get_initial_state(self, batch_size: Any) -> list[Any]:
        """The states before the first step."""
        return initial_states(self.cell, batch_size, self.compute_dtype)

    # --- calling --------------------------------------------------------------------------------------------

    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False) -> Any:
        leaves = flatten(sequences)
        batch, steps = ops.shape(leaves[0])[:2]
        states = self._first_states(initial_state, batch)
        mask = mask if not isinstance(mask, (list, tuple)) else next(iter(flatten(mask)), None)
        with ExitStack() as masks:
            for cell in _dropout_cells(self.cell):
                masks.enter_context(cell.dropout_masks(batch, training))
            last, outputs, final = self._loop(sequences, states, mask, steps, training)
        if self.stateful:
            for variable, state in zip(flatten(self.states), flatten(final), strict=True):
                variable.assign(state)
        output = outputs if self.return_sequences else last
        return (output, *final) if self.return_state else output

    def _first_states(self, initial_state: Any, batch: Any) -> list[Any]:
        if initial_state is None and self.stateful:
            initial_state = self.states
        if initial_state is None:
            return self.get_initial_state(batch)
        form = _state_shapes(self.state_size)
        given, wanted = flatten(initial_state), flatten([form])
        if len(given) != len(wanted):
            raise ValueError(
                f"Layer {self.name!r} has {len(wanted)} states, of sizes {self.state_size}, but initial_state holds "
                f"{len(given)}."
            )
        return pack_as(form, [ops.convert_to_tensor(state, self.compute_dtype) for state in given])

    def _loop(
        self, sequences: Any, states: list[Any], mask: Any, steps: Any, training: Any
    ) -> tuple[Any, Any, list[Any]]:
        """Run the cell over all steps: the last output, all outputs (if they are wanted), and the final states."""
        arrays = [_steps_of(x) for x in flatten(sequences)]
        mask_array = None if mask is None else TensorArray("bool", steps).unstack(_time_major(ops.cast(mask, "bool")))
        step = self._step(training)
        zero = self.zero_output_for_mask and self.return_sequences
        holds = mask is not None and not zero  # masked steps repeat the output before
        output = self._probe(step, arrays, sequences, states) if holds or not self.return_sequences else None
        carries = output is not None and output.state is None

        def body(index: Any, states: Any, carried: Any) -> Any:
            place = steps - 1 - index if self.go_backwards else index
            x = pack_as(sequences, [array.read(place) for array in arrays]) if _is_nested(sequences) else (
                arrays[0].read(place)
            )
            y, new = step(x, states)
            if mask_array is not None:
                keep = mask_array.read(place)
                new = pack_as(new, [_where(keep, n, o) for n, o in zip(flatten(new), flatten(states), strict=True)])
                if zero:
                    y = _where(keep, y, 0.0)
                elif output is not None:
                    y = flatten(new)[output.state] if output.state is not None else _where(keep, y, carried["last"])
            return index + 1, new, self._carried(carried, index, y)

        carried: dict[str, Any] = {}
        if carries and output is not None:
            carried["last"] = ops.zeros((ops.shape(flatten(sequences)[0])[0], *(output.spec.shape or ())[1:]), output.spec.dtype)
        if self.return_sequences:
            carried["outputs"] = TensorArray(self._output_dtype(output), steps)
        _, final, carried = while_loop(lambda index, *_: index < steps, body, (0, states, carried), name="steps")
        outputs = _batch_major(carried["outputs"].stack()) if self.return_sequences else None
        if self.return_sequences:
            return None, outputs, final
        last = carried["last"] if carries else flatten(final)[output.state or 0] if output is not None else None
        return last, outputs, final

    def _carried(self, carried: dict[str, Any], index: Any, y: Any) -> dict[str, Any]:
        updated = dict(carried)
        if "last" in carried:
            updated["last"] = y
        if "outputs" in carried:
            updated["outputs"] = carried["outputs"].write(index, y)
        return updated

    def _output_dtype(self, output: _Output | None) -> Any:
        return self.compute_dtype if output is None else output.spec.dtype

    def _step(self, training: Any) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
        """The cell as a function of input and states whose new states have the form of the old ones."""

        def step(x: Any, states: Any) -> tuple[Any, list[Any]]:
            result = cell_call(self.cell, x, states, training)
            if not isinstance(result, (list, tuple)) or len(result) != 2:
                raise TypeError(
                    f"The cell of layer {self.name!r} ({type(self.cell).__name__}) must return a pair (output, new "
                    f"states), got {type(result).__name__}{f' of {len(result)}' if _is_nested(result) else ''}."
                )
            y, new = result
            leaves, wanted = flatten([new]), flatten(states)
            if len(leaves) != len(wanted):
                raise ValueError(
                    f"The cell of layer {self.name!r} ({type(self.cell).__name__}) has {len(wanted)} states, but "
                    f"returned {len(leaves)} new ones."
                )
            return y, pack_as(states, leaves)

        return step

    def _probe(self, step: Any, arrays: list[TensorArray], sequences: Any, states: list[Any]) -> _Output:
        """What the cell's output is like, found by building one step in a region that is thrown away."""
        region = Region(get_default_graph(), "probe")
        with region.as_default():
            read = [region.add_parameter(TensorSpec(array.element_shape, array.dtype), "x") for array in arrays]
            inside = pack_as(states, [region.add_parameter(leaf.spec, "state") for leaf in flatten(states)])
            y, new = step(pack_as(sequences, read) if _is_nested(sequences) else read[0], inside)
            y = ops.convert_to_tensor(y)
        positions = [i for i, leaf in enumerate(flatten(new)) if leaf is y]
        return _Output(TensorSpec(y.shape, y.dtype), positions[0] if positions else None)

    # --- facts ----------------------------------------------------------------------------------------------

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The steps' mask where all outputs are returned, else None."""
        mask = next(iter(flatten(previous_mask)), None) if self.return_sequences else None
        return [mask] + [None] * len(flatten([_state_shapes(self.state_size)])) if self.return_state else mask

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "unroll": self.unroll,
            "zero_output_for_mask": self.zero_output_for_mask,
            "cell": serialize_keras_object(self.cell),
        }
