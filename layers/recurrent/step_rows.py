"""Find the rows of the batch that take the step of a loop, for layers inside a cell.

A loop computes a step for all rows, and throws away what it made of those whose sequence has ended, that are masked, or
that have halted. Most layers need no more, as they compute each row by itself. A layer that combines rows (it counts
them, gives each a share of something, or takes means over them) has to leave those rows out itself.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.graph.graph import get_default_graph


class _Scope(NamedTuple):
    live: Tensor | None
    other_rows: bool


class _Open(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Scope] = []


_open = _Open()


@contextmanager
def rows_live(live: Tensor | None, other_rows: bool = False) -> Generator[None]:
    """Let only some rows take part inside of the block.

    Args:
        live: bools, ``(batch,)`` or ``(batch, 1)``; None for all rows.
        other_rows: whether what the block computes on has rows of its own, so that what was said of rows around it
            does not hold for them. Otherwise a row is live if it is in all blocks.
    """
    _open.stack.append(_Scope(live, other_rows))
    try:
        yield
    finally:
        _open.stack.pop()


def live_rows() -> Tensor | None:
    """Return the rows of the batch that take the step that is being built, bools ``(batch,)``; None if all do.

    What a cell computes for other rows is thrown away. Loops around cells, such as `RNN` with a mask or a
    `sequence_length`, say which these are.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> class MeanOfRows(ab.layers.Layer):
    ...     state_size = 1
    ...     def call(self, x, states):
    ...         live = ab.layers.live_rows()
    ...         weights = ab.ops.ones_like(x) if live is None else ab.ops.cast(live, x.dtype)[:, None]
    ...         mean = ab.ops.sum(weights * x) / ab.ops.sum(weights)
    ...         return x - mean, [x - mean]
    >>> x = np.array([[[1], [4]], [[3], [8]]], "float32")
    >>> ab.layers.RNN(MeanOfRows())(x, sequence_length=[2, 1])
    Tensor([[0.],
            [1.]], dtype=float32)
    """
    graph, found = get_default_graph(), None
    for scope in reversed(_open.stack):
        if scope.live is not None and graph.sees(scope.live):
            live = ops.reshape(scope.live, (-1,))
            found = live if found is None else ops.logical_and(live, found)
        if scope.other_rows:
            break
    return found
