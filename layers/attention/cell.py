"""`AttentionCell`, a recurrent cell that looks at a memory at each step, and `AttentionRNN`, the loop around it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

from ...engine import ops
from ...engine.graph import Tensor, flatten, pack_as
from ...engine.objects.identifiers import ActivationLike
from ..core.calling import TensorOrTensors
from ..core.dense import Dense, known_features, positive_int
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..recurrent.cell import build_cell, call_cell, dropout_scope, initial_states, output_size_of, state_form
from ..recurrent.rnn import RNN
from ..recurrent.stacked_rnn_cells import check_cell
from .masks import as_mask

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike
    from ..core.options import LayerOptions
    from ..recurrent.cell import CellLike


class Memory(NamedTuple):
    """The memory that an `AttentionCell` attends to, as `AttentionCell.prepare` makes it."""

    keys: Tensor  # (batch, sources, size of the scores)
    values: Tensor  # (batch, sources, features)
    mask: Tensor | None  # (batch, sources)


@config_from_signature()
class AttentionCell(Layer):
    """A cell that looks at a memory, such as an encoder's outputs, at each step (Luong et al., 2015).

    The wrapped cell gets the input together with the latest attention (*input feeding*). Its output is compared with
    the memory; the weighted mean of that, the context, makes the new attention, which is the output:
    ``tanh([output, context] @ kernel)``.

    Args:
        cell: the cell.
        units: the length of the attention.
        score: how the cell's output ``q`` is compared with a place ``m`` of the memory: ``"general"``, ``q @ (W m)``;
            ``"dot"``, ``q @ m``, which have to be of one length; ``"additive"``, ``v @ tanh(U q + W m)``, where ``v``
            has the length `units` (Bahdanau et al., 2015).

    Call arguments: ``inputs (batch, features)``; ``states``, those of the cell, then the attention; ``memory``, what
    `prepare` gave. Without it the cell attends to that of the block `attending` around the call.

    Returns:
        The attention, ``(batch, units)``, and the new states.

    Raises:
        ValueError: an argument is not one of these, or there is no memory.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> decoder = ab.layers.AttentionRNN(ab.layers.AttentionCell(ab.layers.GRUCell(3), units=4), return_sequences=True)
    >>> decoder(np.zeros((2, 5, 1), "float32"), np.zeros((2, 7, 6), "float32")).shape
    (2, 5, 4)
    """

    def __init__(self, cell: CellLike, units: int, score: str = "general", **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        check_cell(cell)
        if score not in ("general", "dot", "additive"):
            raise ValueError(f"AttentionCell: score must be 'general', 'dot' or 'additive', got {score!r}.")
        self.cell = cast(Any, cell)  # of the user's class
        self.units = positive_int("AttentionCell", "units", units)
        self.score = score
        self.output_size = self.units
        self.state_size = [*(size.dims for size in flatten(state_form(self.cell))), self.units]
        size = self.units if score == "additive" else output_size_of(self.cell)
        self.memory_layer = None if score == "dot" else self._dense(size, "memory_layer")
        self.query_layer = self._dense(size, "query_layer") if score == "additive" else None
        self.score_layer = self._dense(1, "score_layer") if score == "additive" else None
        self.attention_layer = self._dense(self.units, "attention_layer", "tanh")
        self._memory: Memory | None = None

    def _dense(self, units: int, name: str, activation: ActivationLike = None) -> Dense:
        return Dense(units, activation, use_bias=False, name=name, dtype=self.dtype_policy)

    def build(self, inputs_shape: Sequence[int | None], memory_shape: Any = None) -> None:
        if isinstance(memory_shape, Memory):
            memory_shape = memory_shape.values
        if memory_shape is None:
            raise ValueError(
                f"Layer {self.name!r} (AttentionCell) can't be built without a memory. Put it into an AttentionRNN, or "
                "call it with memory=cell.prepare(...)."
            )
        query = output_size_of(self.cell)
        if self.score == "dot" and memory_shape[-1] != query:
            raise ValueError(
                f"Layer {self.name!r} (AttentionCell): score='dot' needs a memory of the length of the cell's output, "
                f"{query}, got memory of shape {memory_shape}. Use score='general'."
            )
        build_cell(self.cell, (inputs_shape[0], known_features(self, inputs_shape) + self.units))
        if self.memory_layer is not None and not self.memory_layer.built:
            self.memory_layer.build(memory_shape)
        if self.query_layer is not None and self.score_layer is not None:
            self.query_layer.build((inputs_shape[0], query))
            self.score_layer.build((*memory_shape[:2], self.units))
        self.attention_layer.build((inputs_shape[0], query + memory_shape[-1]))

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Tensor]:
        """Return the cell's first states, and an attention of zeros."""
        first = flatten(initial_states(self.cell, batch_size, self.compute_dtype))
        return [*first, ops.zeros((batch_size, self.units), self.compute_dtype)]

    def prepare(self, memory: TensorLike, mask: TensorLike | None = None) -> Memory:
        """Compute once what does not change from step to step.

        Args:
            memory: ``(batch, sources, features)``.
            mask: ``(batch, sources)``, True where a place counts; by default the one that `memory` carries.
        """
        values = ops.cast(ops.convert_to_tensor(memory), self.compute_dtype)
        mask = memory.annotations.get("mask") if mask is None and isinstance(memory, Tensor) else mask
        keys = values if self.memory_layer is None else self.memory_layer(values)
        return Memory(keys, values, as_mask(mask))

    @contextmanager
    def attending(self, memory: Memory) -> Generator[None]:
        """Attend to `memory`, which `prepare` gave, in calls inside the block."""
        before, self._memory = self._memory, memory
        try:
            yield
        finally:
            self._memory = before

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the dropout masks of the cell once, for all steps inside the block."""
        with dropout_scope(self.cell, batch_size, training):
            yield

    def call(
        self, inputs: Tensor, states: Nest[Tensor | None], memory: Memory | None = None, training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        memory = self._memory if memory is None else memory
        if memory is None:
            raise ValueError(
                f"Layer {self.name!r} (AttentionCell) has nothing to attend to. Put it into an AttentionRNN, or call "
                "it with memory=cell.prepare(...)."
            )
        *inner, attention = flatten(states)
        own = pack_as(state_form(self.cell), inner)
        output, new = call_cell(self.cell, ops.concatenate([inputs, attention], axis=-1), own, training)
        context = self._context(output, memory)
        attention = self.attention_layer(ops.concatenate([output, context], axis=-1))
        return attention, [*flatten([new]), attention]

    def _context(self, query: Tensor, memory: Memory) -> Tensor:
        """Return the mean of the memory, weighted by how well its places match the query."""
        if self.query_layer is not None and self.score_layer is not None:
            sums = ops.tanh(memory.keys + ops.expand_dims(self.query_layer(query), 1))
            scores = self.score_layer(sums)[:, :, 0]
        else:
            scores = ops.einsum("bd,bsd->bs", query, memory.keys)
        if memory.mask is not None:  # lowered rather than replaced, so that rows of which nothing counts stay finite
            scores = ops.where(memory.mask, scores, scores - (65504.0 if scores.dtype.name == "float16" else 1e9))
        return ops.einsum("bs,bsd->bd", ops.softmax(scores, axis=-1), memory.values)


class AttentionRNN(RNN):
    """An `RNN` over an `AttentionCell`, called with sequences and the memory that they attend to.

    Args:
        cell: the `AttentionCell`.
        Others: see `RNN`.

    Call arguments: ``sequences (batch, steps, features)``; ``memory (batch, sources, features)``; ``initial_state``,
    the first states of the wrapped cell, such as an encoder's last (the attention begins with zeros); ``mask`` of the
    sequences and ``memory_mask``, ``(batch, sources)``, by default those that the inputs carry; ``training``,
    ``sequence_length`` and ``reset`` as for an `RNN`. The memory is ``(batch, ...)`` with `time_major` too.

    Returns:
        See `RNN`.

    Raises:
        ValueError: the cell is not an `AttentionCell`, or has one inside: attention goes around other cells.

    >>> import anabranch as ab
    >>> cell = ab.layers.AttentionCell(ab.layers.GRUCell(3), units=4)
    >>> layer = ab.layers.AttentionRNN(cell)
    >>> layer(ab.ops.ones((2, 5, 1)), ab.ops.ones((2, 7, 6))).shape
    (2, 4)
    """

    def __init__(self, cell: AttentionCell, *args: Any, **kwargs: Any) -> None:
        if not isinstance(cell, AttentionCell):
            raise ValueError(f"AttentionRNN takes an AttentionCell, got {cell!r}. {_remedy(cell)}")
        super().__init__(cell, *args, **kwargs)

    def build(self, sequences_shape: Sequence[int | None], memory_shape: Sequence[int | None]) -> None:
        if not self.cell.built:
            self.cell.build((sequences_shape[0], sequences_shape[-1]), memory_shape)
        super().build(sequences_shape)

    def call(
        self,
        sequences: Tensor,
        memory: Tensor,
        initial_state: Nest[Tensor | None] = None,
        mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        training: bool | None = False,
        sequence_length: TensorLike | None = None,
        reset: TensorLike | None = None,
    ) -> TensorOrTensors:
        batch = self._sizes(sequences)[0]
        if initial_state is not None and len(flatten(initial_state)) == len(self.state_size) - 1:
            initial_state = [*flatten(initial_state), ops.zeros((batch, self.cell.units), self.compute_dtype)]
        prepared = self.cell.prepare(memory, memory_mask)
        with self.cell.attending(prepared):
            return super().call(sequences, initial_state, mask, training, sequence_length, reset)


def _remedy(cell: object) -> str:
    """Say what to give to an `AttentionRNN` in place of a cell that is not an `AttentionCell`."""
    inside = cell._sublayers() if isinstance(cell, Layer) else []
    for part in inside:
        if isinstance(part, AttentionCell):
            nested = f"{type(cell).__name__}({type(part.cell).__name__}(...))"
            return f"It is around an AttentionCell; put them the other way round: AttentionCell({nested}, units)."
    return "Other cells go into an RNN."
