"""`StackedRNNCells`: cells on top of each other, as one cell."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from ...engine.graph import Tensor, flatten
from ...engine.objects.arguments import listed
from ...engine.ops.base import TensorLike
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .cell import build_cell, call_cell, dropout_scope, has_bare_state, initial_states, output_size_of

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import LayerOptions
    from .cell import CellLike, StateSizes


@config_from_signature()
class StackedRNNCells(Layer):
    """One cell out of several: the output of each is the input of the next.

    Args:
        cells: the cells, the first one closest to the input. States are a list with a list for each cell, or with a
            tensor for one whose `state_size` is an int and that has no `get_initial_state`.

    Raises:
        ValueError: one of them has no `call` or no `state_size`.
    """

    def __init__(self, cells: Sequence[CellLike], **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.cells: list[Any] = listed("StackedRNNCells", "cells", cells, "a list of cells")  # of the user's classes
        for cell in self.cells:
            check_cell(cell)

    @property
    def state_size(self) -> list[StateSizes]:
        """The state sizes of the cells."""
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> int:
        return output_size_of(self.cells[-1])

    def get_initial_state(self, batch_size: DimLike | None = None) -> list[Nest[Tensor]]:
        """Return the first states of each cell."""
        first = [initial_states(cell, batch_size, self.compute_dtype) for cell in self.cells]
        return [states[0] if has_bare_state(cell) else states for cell, states in zip(self.cells, first, strict=True)]

    def build(self, input_shape: Sequence[int | None]) -> None:
        for cell in self.cells:
            build_cell(cell, input_shape)
            input_shape = (input_shape[0], output_size_of(cell))

    def call(
        self, inputs: TensorLike, states: Sequence[Tensor], training: bool | None = False
    ) -> tuple[TensorLike, list[Nest[Tensor]]]:
        new_states: list[Nest[Tensor]] = []
        for cell, state in zip(self.cells, states, strict=True):
            given = list(state) if isinstance(state, (list, tuple)) else [state]
            inputs, new = call_cell(cell, inputs, given, training)
            kept = flatten([new])
            new_states.append(kept if isinstance(state, (list, tuple)) or len(kept) != 1 else kept[0])
        return inputs, new_states

    @contextmanager
    def dropout_masks(self, batch_size: DimLike | None, training: bool | None) -> Generator[None]:
        """Draw the dropout masks of all cells once, for all steps inside the block."""
        with ExitStack() as stack:
            for cell in self.cells:
                stack.enter_context(dropout_scope(cell, batch_size, training))
            yield


def check_cell(cell: object) -> None:
    """Check that `cell` is one.

    Raises:
        ValueError: it has no `call` or no `state_size`.
        RuntimeError: it is a layer whose `__init__` did not call that of `Layer`.
    """
    missing = [name for name in ("call", "state_size") if getattr(cell, name, None) is None]
    if missing:
        raise ValueError(
            f"{cell!r} is no cell: it has no {' and no '.join(missing)}. A cell defines call(x, states), which returns "
            "(output, new states), and state_size, an int or a list of ints."
        )
    if isinstance(cell, Layer):
        cell._check_initialized()
