"""`dynamic_rnn`: a recurrent network as one call of a function, with TensorFlow's meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.graph import Tensor, flatten, pack_as
from ...engine.ops.base import TensorLike
from .cell import state_form
from .rnn import RNN

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from .cell import CellLike


def dynamic_rnn(
    cell: CellLike | Sequence[CellLike],
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_state: Sequence[Nest[Tensor]] | None = None,
    time_major: bool = False,
    training: bool | None = False,
) -> tuple[Tensor, list[Nest[Tensor]]]:
    """Call a cell step by step over sequences of different lengths, as ``tf.nn.dynamic_rnn`` does.

    It is an `RNN` layer that is made for this call; the weights are the cell's.

    Args:
        cell: the cell, see `RNN`; or a list of cells to stack.
        inputs: ``(batch, steps, features...)``, or with `time_major` ``(steps, batch, features...)``.
        sequence_length: ints ``(batch,)``, the number of each row's steps; by default all of them. The loop ends with
            the longest row. Past its end a row's outputs are 0 and its state stays as it was at the end.
        initial_state: tensors in the structure of the cell's states; by default the cell's first states.
        time_major: whether inputs and outputs begin with the steps.
        training: whether dropout and its like act.

    Returns:
        ``(outputs, state)``: ``(batch, steps, output_size)``, or with `time_major` ``(steps, batch, output_size)``; and
        the final state: a list with a tensor for each state, nested for stacked cells.

    Raises:
        ValueError: `cell` is not a cell, or an argument does not fit it.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> cell = ab.layers.SimpleRNNCell(1, activation=None, kernel_initializer="ones", recurrent_initializer="ones")
    >>> x = np.arange(1, 7, dtype="float32").reshape(2, 3, 1)
    >>> outputs, (state,) = ab.dynamic_rnn(cell, x, sequence_length=[3, 2])
    >>> outputs[..., 0]
    Tensor([[1., 3., 6.],
            [4., 9., 0.]], dtype=float32)
    >>> state
    Tensor([[6.],
            [9.]], dtype=float32)
    """
    layer = RNN(cell, return_sequences=True, return_state=True, time_major=time_major)
    outputs, *final = layer(inputs, initial_state=initial_state, sequence_length=sequence_length, training=training)
    return outputs, pack_as(state_form(layer.cell), flatten(final))
