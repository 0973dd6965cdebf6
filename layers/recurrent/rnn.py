"""`RNN`: a loop over the steps of a sequence, around any cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.common.keywords import given_in_a_row
from ...engine.control_flow import TensorArray, while_loop
from ...engine.graph import Region, Symbol, Tensor, TensorSpec, Variable, flatten, pack_as
from ...engine.graph.context import in_explicit_graph
from ...engine.graph.graph import Graph, get_default_graph
from ...engine.ops.math.elementwise import identity as pass_on  # ops.identity is the matrix
from ..core.calling import TensorOrTensors, map_leaves, one_or_several
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .cell import StateSize, build_cell, call_cell, dropout_scope, initial_states, state_form
from .stacked_rnn_cells import StackedRNNCells, check_cell
from .step_rows import rows_live
from .step_sums import StepSums, collect_step_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import LayerOptions
    from .cell import CellLike, StateSizes


@config_from_signature(time_major="")
class RNN(Layer):
    """Calls a cell step by step, handing its states on.

    Args:
        cell: a cell, or a list of cells to stack. A cell is a `Layer` (or another object) with

            - ``call(x, states)``, which gets the input of one step, ``(batch, features)``, and a list of states, and
              returns the output and the list of new states; it may take `training`;
            - ``state_size``: the length of its state, or a list of lengths (or shapes), one for each state;
            - ``output_size``, optionally: the length of its output;
            - ``get_initial_state(batch_size)``, optionally: the list of first states, by default zeros;
            - ``dropout_masks(batch_size, training)``, optionally: a context manager in which all steps are built, to
              draw once what is the same at each step.
        return_sequences: return the outputs of all steps, not only the last one's.
        return_state: return the final states behind the output.
        go_backwards: take the steps from last to first; outputs then come in that order.
        stateful: begin with the states in which the batch before ended. The batch size has to be known.
        unroll: accepted for Keras's sake; the loop is compiled either way.
        zero_output_for_mask: outputs at masked steps are 0, rather than the previous output.
        time_major: sequences, masks and outputs begin with the steps, ``(steps, batch, ...)``.

    Call arguments: ``sequences`` of shape ``(batch, steps, features...)``, whose number of steps need not be known;
    ``initial_state``, a list of tensors; ``mask``, ``(batch, steps)``, True for steps that count: at others, states
    stay as they are; ``training``; ``sequence_length``, ints ``(batch,)``: the number of each row's steps. Past its
    end a row's states stay as they are and its outputs are 0; the loop ends with the longest row, and the last output
    is that of each row's last step. Lengths are not a mask that is handed on: give them to each layer. ``reset``, bools
    ``(batch,)``, for stateful layers: the rows that begin again rather than where the batch before ended.

    Returns:
        The last output, ``(batch, output_size)``, or all, ``(batch, steps, output_size)``; with `return_state` a tuple
        of that and of each final state.

    Raises:
        ValueError: the cell has no `call` or no `state_size`; `sequence_length` or `reset` are of another shape or
            dtype (where the size of the batch is not known before, when it runs), or there is nothing to `reset`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> class Sum(ab.layers.Layer):
    ...     state_size = 2
    ...     def call(self, x, states):
    ...         total = states[0] + x
    ...         return total, [total]
    >>> ab.layers.RNN(Sum(), return_sequences=True)(np.ones((1, 3, 2), "float32"))
    Tensor([[[1., 1.],
             [2., 2.],
             [3., 3.]]], dtype=float32)
    """

    has_loops = True

    untracked: ClassVar[frozenset[str]] = Layer.untracked | {"states"}

    def __init__(
        self,
        cell: CellLike | Sequence[CellLike],
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        time_major: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        if isinstance(cell, (list, tuple)):
            cell = StackedRNNCells(cell)
        if isinstance(cell, RNN):
            raise ValueError(
                f"RNN takes a cell, such as LSTMCell(units), got the recurrent layer {cell!r}. Use it alone."
            )
        check_cell(cell)
        if isinstance(return_sequences, Layer):
            raise given_in_a_row(type(self).__name__)
        super().__init__(**kwargs)
        self.cell: Any = cell  # of the user's class
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.unroll = unroll
        self.zero_output_for_mask = zero_output_for_mask
        self.time_major = time_major
        self.supports_masking = True
        self.states: Any = None  # variables, in the form of the cell's states; None where there are none

    @property
    def state_size(self) -> list[StateSizes]:
        """The cell's state sizes, as a list."""
        size = self.cell.state_size
        return list(size) if isinstance(size, (list, tuple)) else [size]

    # --- building -------------------------------------------------------------------------------------------

    def build(
        self, sequences_shape: Sequence[int | None] | list[Sequence[int | None]], initial_state_shape: object = None
    ) -> None:
        is_list = isinstance(sequences_shape, list)
        shapes: list[Any] = sequences_shape if isinstance(sequences_shape, list) else [sequences_shape]
        for shape in shapes:
            if shape is None or len(shape) < 3:
                raise ValueError(
                    f"Layer {self.name!r} ({type(self).__name__}) takes sequences of shape (batch, steps, features), "
                    f"got input shape {shape}."
                )
        batch_axis = int(self.time_major)
        steps = [(s[batch_axis], *s[2:]) for s in shapes]
        build_cell(self.cell, steps if is_list else steps[0])
        if self.stateful and self.states is None:
            self._make_states(steps[0][0])

    def _make_states(self, batch_size: int | None) -> None:
        if batch_size is None:
            raise ValueError(
                f"Layer {self.name!r} is stateful, so that its batch size has to be known: give ab.Input a "
                "batch_size, or the first layer a batch_shape."
            )

        def variable(size: StateSize) -> Variable:
            claim((batch_size, *size.dims), 4, f"Layer {self.name!r}: a state")
            zeros = np.zeros((batch_size, *size.dims), self.variable_dtype)
            return Variable(zeros, trainable=False, name=f"{self.path}/rnn_state")

        self.states = map_leaves(variable, state_form(self.cell))

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zeros."""
        for variable in flatten(self.states):
            variable.write_value(np.zeros_like(variable.stored_value()))

    def reset_states(
        self, states: Nest[ArrayLike | None] = None, rows: int | Sequence[int] | ArrayLike | None = None
    ) -> None:
        """Set the states of a stateful layer, at once; `reset` in a call does so within a step.

        Args:
            states: a list of arrays, one for each state, ``(batch, ...)``, or ``(rows, ...)`` where `rows` are given;
                by default zeros.
            rows: the rows to set, an int, a list of ints, or bools ``(batch,)``; by default all.

        Raises:
            ValueError: the layer is not stateful or not built, or the states do not fit.
        """
        if states is None and rows is None:
            self.reset_state()
            return
        variables: list[Variable] = flatten(self.states)
        if not variables:
            raise ValueError(
                f"Layer {self.name!r} has no states to set. Make it with stateful=True, and build it or call it first."
            )
        values = [0.0] * len(variables) if states is None else flatten([states])
        if len(values) != len(variables):
            raise ValueError(f"Layer {self.name!r} has {len(variables)} states, but reset_states got {len(values)}.")
        chosen = slice(None) if rows is None else np.asarray(rows)
        for position, (variable, value) in enumerate(zip(variables, values, strict=True)):
            array, given = np.array(variable.stored_value()), np.asarray(value)
            if given.ndim and given.shape != array[chosen].shape:
                raise ValueError(
                    f"Layer {self.name!r}: states[{position}] in reset_states must have the shape "
                    f"{array[chosen].shape}, got {given.shape}."
                )
            array[chosen] = given
            variable.write_value(array)

    def get_initial_state(self, batch_size: DimLike | None) -> list[Nest[Tensor]]:
        """Return the states before the first step."""
        return initial_states(self.cell, batch_size, self.compute_dtype)

    # --- calling --------------------------------------------------------------------------------------------

    def call(
        self,
        sequences: Nest[Tensor | None],
        initial_state: Nest[TensorLike | None] = None,
        mask: TensorLike | None = None,
        training: bool | None = False,
        sequence_length: TensorLike | None = None,
        reset: TensorLike | None = None,
    ) -> TensorOrTensors:
        batch, steps = self._sizes(sequences)
        states = self._first_states(initial_state, batch)
        if reset is not None:
            states = self._begun_anew(reset, states, batch)
        lengths = None if sequence_length is None else self._lengths(sequence_length, batch)
        with dropout_scope(self.cell, batch, training):
            loop = _Loop(self, sequences, states, self._steps_mask(mask), lengths, steps, training)
            output, final = loop.run(batch)
        if self.stateful:
            for variable, state in zip(flatten(self.states), flatten(final), strict=True):
                variable.assign(state)
        return one_or_several([output, *final] if self.return_state else [output])

    def _sizes(self, sequences: Nest[Tensor | None]) -> tuple[DimLike, DimLike]:
        """Return the sizes of batch and steps."""
        first, second = ops.shape(flatten(sequences)[0])[:2]
        return (second, first) if self.time_major else (first, second)

    def _steps_mask(self, mask: Nest[TensorLike | None]) -> TensorLike | None:
        """Return the mask of the first input; None where there is none.

        Raises:
            ValueError: it has no axis of steps.
        """
        first = next(iter(flatten(mask)), None)
        shape = None if first is None else ops.convert_to_tensor(first).shape
        if shape is not None and len(shape) < 2:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): mask must be bools of shape "
                f"{'(steps, batch)' if self.time_major else '(batch, steps)'}, got shape {shape}. The number of each "
                "row's steps is sequence_length."
            )
        return first

    def _lengths(self, given: TensorLike, batch: DimLike) -> Tensor:
        """Return `sequence_length` as int32 ``(batch,)``."""
        lengths = ops.convert_to_tensor(given)
        if lengths.dtype.kind not in "iu" or (lengths.shape is not None and len(lengths.shape) != 1):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): sequence_length must be ints of shape (batch,), got "
                f"{lengths.dtype.name} of shape {lengths.shape}."
            )
        if lengths.shape is None:
            what = f"Layer {self.name!r} ({type(self).__name__}): sequence_length must have the shape (batch,)."
            assert isinstance(lengths, Symbol)  # the ranks of values are known
            with lengths.graph.control_dependencies([ops.assert_rank(lengths, 1, what)]):
                lengths = ops.reshape(lengths, (-1,))
        return ops.cast(self._of_each_row("sequence_length", lengths, batch), "int32")

    def _of_each_row(self, argument: str, given: Tensor, batch: DimLike) -> Tensor:
        """Return `given`, which has to be ``(batch,)``: a single entry would be spread over all rows in silence.

        Raises:
            ValueError: it is not, at once where both sizes are known; otherwise `InvalidArgumentError` when it runs.
        """
        what = f"Layer {self.name!r} ({type(self).__name__}): {argument} must have an entry for each row of the batch"
        size = None if given.shape is None else given.shape[0]
        if size is None or not isinstance(batch, int):
            check = ops.assert_equal(ops.shape(given)[0], batch, f"{what}.")
            assert check is not None  # sizes of values are known
            with check.graph.control_dependencies([check]):
                return pass_on(given)
        if size != batch:
            raise ValueError(f"{what}, of which there are {batch}; got shape ({size},).")
        return given

    def _begun_anew(self, reset: TensorLike, states: Nest[Tensor | None], batch: DimLike) -> Nest[Tensor]:
        """Return the states, with first ones for the rows of `reset`."""
        rows = ops.convert_to_tensor(reset)
        if not self.stateful:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) has nothing to reset: it is not stateful, so that each "
                "row of each batch starts from zero states."
            )
        if rows.dtype.kind != "b" or (rows.shape is not None and len(rows.shape) != 1):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): reset must be bools of shape (batch,), got "
                f"{rows.dtype.name} of shape {rows.shape}."
            )
        rows = self._of_each_row("reset", rows, batch)
        first = [ops.cast(new, self.compute_dtype) for new in flatten(self.get_initial_state(batch))]
        return pack_as(states, [_choose(rows, new, old) for new, old in zip(first, flatten(states), strict=True)])

    def _first_states(self, initial_state: Nest[TensorLike | None], batch: DimLike) -> list[Nest[Tensor]]:
        if self.stateful and isinstance(batch, int) and batch != flatten(self.states)[0].shape[0]:
            raise ValueError(
                f"Layer {self.name!r} is stateful with states for batches of {flatten(self.states)[0].shape[0]}, got a "
                f"batch of {batch}. Every batch has to have that size: leave out the rest of the data, or pad it."
            )
        if initial_state is None and self.stateful:
            initial_state = self.states
        if initial_state is None:
            return self.get_initial_state(batch)
        form = state_form(self.cell)
        given, wanted = flatten([initial_state]), flatten(form)
        if len(given) != len(wanted):
            raise ValueError(
                f"Layer {self.name!r} has {len(wanted)} states, of sizes {self.state_size}, but initial_state holds "
                f"{len(given)}."
            )
        return pack_as(form, [ops.convert_to_tensor(state, self.compute_dtype) for state in given])

    def step(
        self, x: Nest[Tensor | None], states: Nest[Tensor | None], training: bool | None
    ) -> tuple[Tensor, list[Nest[Tensor]]]:
        """Make one step of the cell; the new states come back in the form of the old ones.

        Raises:
            TypeError, ValueError: the cell does not return a pair of an output and as many states as it was given.
        """
        cell = type(self.cell).__name__
        result = call_cell(self.cell, x, states, training)
        if not isinstance(result, (list, tuple)) or len(result) != 2:
            count = f" of {len(result)}" if isinstance(result, (list, tuple)) else ""
            raise TypeError(
                f"The cell of layer {self.name!r} ({cell}) must return a pair (output, new states), got "
                f"{type(result).__name__}{count}."
            )
        output, new = result
        leaves, wanted = flatten([new]), flatten(states)
        if len(leaves) != len(wanted):
            raise ValueError(
                f"The cell of layer {self.name!r} ({cell}) was given {len(wanted)} states, but returned {len(leaves)}."
            )
        return ops.convert_to_tensor(output), pack_as(states, leaves)

    # --- facts ----------------------------------------------------------------------------------------------

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Any:
        """Return the steps' mask where all outputs are returned, else None."""
        mask = next(iter(flatten(mask)), None) if self.return_sequences else None
        return [mask] + [None] * len(flatten(state_form(self.cell))) if self.return_state else mask

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "time_major": True} if self.time_major else config  # an option that Keras 3 does not have


class _Loop:
    """The loop of one call of an `RNN`.

    Its variables are the step's number, the cell's states, the outputs so far (if all are wanted) and the latest
    output. The latter is left out where it is one of the new states anyway, as in most cells.
    """

    def __init__(
        self,
        rnn: RNN,
        sequences: Nest[Tensor | None],
        states: Nest[Tensor | None],
        mask: TensorLike | None,
        lengths: Tensor | None,
        steps: DimLike,
        training: bool | None,
    ) -> None:
        self.rnn = rnn
        self.sequences = sequences
        self.states = states
        self.steps = steps
        self.training = training
        self.live_steps = steps  # the loop's
        self.within: Tensor | None = None  # (steps, batch), whether a step is before the end of its row
        self.inputs = [TensorArray(x.dtype, steps).unstack(self._step_major(x)) for x in flatten(sequences)]
        self.zeroes = rnn.zero_output_for_mask and mask is not None
        keep = None if mask is None else self._step_major(ops.cast(mask, "bool"))
        if lengths is not None:
            self.live_steps = ops.minimum(ops.max(lengths, initial=0), steps)
            self.within = ops.expand_dims(ops.arange(steps, dtype="int32"), 1) < ops.expand_dims(lengths, 0)
            keep = self.within if keep is None else ops.logical_and(keep, _like_rank(self.within, keep))
        self.mask = None if keep is None else TensorArray("bool", steps).unstack(keep)
        self.output, self.state_position, self.sums = self._probe()

    def run(self, batch: DimLike) -> tuple[Tensor, list[Nest[Tensor]]]:
        """Return the output (the last one, or all) and the final states."""
        rnn, shape = self.rnn, self.output.shape
        carried: dict[str, Any] = {}
        if rnn.return_sequences:
            carried["outputs"] = TensorArray(self.output.dtype, self.live_steps, element_shape=shape)
        if self._carries_last:
            carried["last"] = ops.zeros((batch, *(shape or ())[1:]), self.output.dtype)
        carried["sums"] = self.sums.zeros(batch)
        _, final, carried = while_loop(
            lambda index, *_: index < self.live_steps, self._body, (0, self.states, carried), name="steps"
        )
        self.sums.finish(carried["sums"])
        if rnn.return_sequences:
            outputs = carried["outputs"].stack()
            if not isinstance(batch, int):  # no steps leave no trace of the batch size
                outputs = ops.reshape(outputs, (self.live_steps, batch, *ops.shape(outputs)[2:]))
            if self.within is not None:
                outputs = self._zero_past_end(outputs, self.within, batch)
            return (outputs if rnn.time_major else _batch_major(outputs)), final
        return carried["last"] if self._carries_last else flatten(final)[self.state_position or 0], final

    def _step_major(self, x: Tensor) -> Tensor:
        """Compute ``(steps, batch, ...)``."""
        return x if self.rnn.time_major else _batch_major(x)

    def _zero_past_end(self, outputs: Tensor, within: Tensor, batch: DimLike) -> Tensor:
        """Return all steps' outputs, 0 past the end of each row; those that the loop left out are added."""
        missing = (self.steps - self.live_steps, 0) if self.rnn.go_backwards else (0, self.steps - self.live_steps)
        sizes = ops.shape(outputs)[2:]
        padded = ops.pad(outputs, (missing, *[(0, 0)] * (len(sizes) + 1)))
        padded = ops.reshape(padded, (self.steps, batch, *sizes))
        within = ops.flip(within, axis=0) if self.rnn.go_backwards else within
        return ops.where(_like_rank(within, padded), padded, ops.zeros_like(padded))

    @property
    def _carries_last(self) -> bool:
        """Test whether the latest output is a loop variable of its own."""
        if self.zeroes:  # then it differs from the state
            return not self.rnn.return_sequences
        if self.state_position is not None:
            return False
        return not self.rnn.return_sequences or self.mask is not None

    def _body(
        self, index: Tensor, states: Nest[Tensor | None], carried: dict[str, Any]
    ) -> tuple[Tensor, list[Nest[Tensor]], dict[str, Any]]:
        place = self.live_steps - 1 - index if self.rnn.go_backwards else index
        keep = None if self.mask is None else self.mask.read(place)
        with collect_step_sums() as sums, rows_live(keep):
            output, new = self._step(place, states)
            added = sums.values(keep)
        if keep is not None:
            output, new = self._masked(keep, output, new, states, carried)
        updated = dict(carried)
        updated["sums"] = [total + value for total, value in zip(carried["sums"], added, strict=True)]
        if "outputs" in carried:
            updated["outputs"] = carried["outputs"].write(index, output)
        if "last" in carried:
            updated["last"] = output
        return index + 1, new, updated

    def _step(self, place: Tensor, states: Nest[Tensor | None]) -> tuple[Tensor, list[Nest[Tensor]]]:
        read = [array.read(place) for array in self.inputs]
        return self.rnn.step(_packed_like(self.sequences, read), states, self.training)

    def _masked(
        self,
        keep: Tensor,
        output: Tensor,
        new: Nest[Tensor | None],
        states: Nest[Tensor | None],
        carried: dict[str, Any],
    ) -> tuple[Tensor, list[Nest[Tensor]]]:
        """Return output and states of a step, with those of the step before where the mask is False."""
        kept = [_choose(keep, n, o) for n, o in zip(flatten(new), flatten(states), strict=True)]
        if self.zeroes:
            output = _choose(keep, output, ops.zeros_like(output))
        elif self.state_position is not None:
            output = kept[self.state_position]
        else:
            output = _choose(keep, output, carried["last"])
        return output, pack_as(new, kept)

    def _probe(self) -> tuple[TensorSpec, int | None, StepSums]:
        """Return the spec of the cell's output, which of the new states it is, if any, and what it sums over the steps.

        One step is built in a region that is then thrown away.
        """
        region = Region(get_default_graph() if in_explicit_graph() else Graph(), "probe")
        with region.as_default():
            specs = [TensorSpec(array.element_shape, array.dtype) for array in self.inputs]
            read = [region.add_parameter(spec, "input") for spec in specs]
            leaves = [region.add_parameter(ops.convert_to_tensor(s).spec, "state") for s in flatten(self.states)]
            x, states = _packed_like(self.sequences, read), pack_as(self.states, leaves)
            keep = None
            if self.mask is not None:
                keep = region.add_parameter(TensorSpec(self.mask.element_shape, self.mask.dtype), "mask")
            with collect_step_sums() as sums, rows_live(keep):
                output, new = self.rnn.step(x, states, self.training)
        positions = [position for position, leaf in enumerate(flatten(new)) if leaf is output]
        return TensorSpec(output.shape, output.dtype), positions[0] if positions else None, sums


def _packed_like(sequences: Nest[Tensor | None], read: Sequence[Tensor]) -> Tensor:
    return pack_as(sequences, list(read)) if isinstance(sequences, (list, tuple, dict)) else read[0]


def _batch_major(x: Tensor) -> Tensor:
    """Return the first two axes exchanged."""
    return ops.transpose(x, (1, 0, *range(2, len(x.shape or ()))))


def _choose(keep: Tensor, new: TensorLike, old: TensorLike) -> Tensor:
    """Return `new` for the samples of which `keep`, ``(batch,)`` or ``(batch, 1)``, holds; otherwise `old`."""
    new = ops.convert_to_tensor(new)
    return ops.where(_like_rank(keep, new), new, old)


def _like_rank(keep: Tensor, x: Tensor) -> Tensor:
    """Return `keep` with as many axes as `x`, of size 1 behind its own."""
    for _ in range(len(x.shape or ()) - len(keep.shape or ())):
        keep = ops.expand_dims(keep, -1)
    return keep
