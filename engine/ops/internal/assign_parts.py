"""`AssignParts` and `AssignWindow`: parts of a variable are written. Made by a pass, never by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...graph.graph import Operation
from ...graph.state.variable import Variable
from ...graph.tensor import Tensor
from ..containers.indexed_slices import AssignRows
from ..signal.windows import window_key


class _MadeByPass(AssignRows):
    """Base: what a pass makes of an assignment, behind which no gradient is taken."""

    no_samples: ClassVar[str] = "is made by a pass: test_assign_parts"

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise NotImplementedError(f"{type(self).__name__} is made after gradients are: it has none.")


class AssignParts(_MadeByPass):
    """Write parts of a variable that its first axes name; the output is its new value.

    Inputs: its value so far; positions, which count through the first axes in row-major order; a part for each.

    Attributes:
        variable: of which parts are written.
        depth: how many axes name a part.
    """

    def __init__(self, variable: Variable, depth: int) -> None:
        super().__init__(variable)
        self.depth = depth

    def rows_of(self, whole: Any) -> Any:
        return whole.reshape((-1, *whole.shape[self.depth :]))


class AssignWindow(_MadeByPass):
    """Write a window of a variable; the output is its new value. Inputs: its value so far, the window's start, a part.

    Attributes:
        variable: of which a window is written.
    """

    def _write(self, whole: Any, positions: Any, rows: Any) -> None:
        whole[window_key(positions.tolist(), rows.shape, whole.shape)] = rows
