"""`AssignParts` and `AssignWindow`: parts of a variable are written. Made by a pass, never by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...graph.graph import Operation
from ...graph.state.variable import Variable
from ...graph.tensor import Tensor
from ..containers.indexed_slices import AssignRows
from ..signal.windows import window_key


class AssignParts(AssignRows):
    """Write parts of a variable that its first axes name; the output is its new value.

    Inputs: its value so far; positions, which count through the first axes in row-major order; a part for each.

    Attributes:
        variable: of which parts are written.
        depth: how many axes name a part.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_assign_parts"
    writes_rows: ClassVar[bool] = True

    def __init__(self, variable: Variable, depth: int) -> None:
        super().__init__(variable)
        self.depth = depth

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def rows_of(self, whole: Any) -> Any:
        return whole.reshape((-1, *whole.shape[self.depth :]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise NotImplementedError("AssignParts is made after gradients are: it has none.")


class AssignWindow(AssignRows):
    """Write a window of a variable; the output is its new value. Inputs: its value so far, the window's start, a part.

    Attributes:
        variable: of which a window is written.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_assign_parts"
    writes_rows: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def _write(self, whole: Any, positions: Any, rows: Any) -> None:
        whole[window_key(positions.tolist(), rows.shape, whole.shape)] = rows

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise NotImplementedError("AssignWindow is made after gradients are: it has none.")
