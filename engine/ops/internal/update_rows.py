"""`UpdateRows`: rows of variables are read, changed and written back. Made by a pass, never by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...graph.graph import Operation
from ...graph.op import Effect
from ...graph.state.variable import Variable
from ...graph.tensor import Tensor
from ..arrays.gathering import checked_positions
from ..containers.indexed_slices import AssignRows, own_memory
from .fused import Fused


class UpdateRows(AssignRows):
    """Change rows of variables of the same shape. The outputs are their new values.

    Inputs: their values so far; positions, each named once; and what else `change` takes.

    Attributes:
        variable: the first of the variables.
        change: elementwise; it takes the rows at the positions, of one variable after the other, and then the rest:
            rows, one for each position, and scalars. It gives rows for each variable.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_row_update_fusion"
    writes_rows: ClassVar[bool] = True

    def __init__(self, variables: Sequence[Variable], change: Fused) -> None:
        super().__init__(variables[0])
        self._all = tuple(variables)
        self.change = change

    @property
    def variables(self) -> tuple[Variable, ...]:
        return self._all

    def infer(self, *inputs: Any) -> Any:
        wholes = tuple(inputs[: len(self._all)])
        return wholes if len(self._all) > 1 else wholes[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        count = len(self._all)
        pairs = zip(self._all, inputs, strict=False)
        wholes = [xp.array(whole, dtype=variable.dtype, order="C") for variable, whole in pairs]
        given = self._changed(wholes, inputs[count], inputs[count + 1 :])
        for variable, whole in zip(self._all, wholes, strict=True):
            variable.write_value(whole)
        return given

    def write_in_place(self, positions: Any, *others: Any) -> Any:
        """Return the same in the memory of the variables, for programs that need no earlier values of them."""
        return self._changed([own_memory(variable) for variable in self._all], positions, others)

    def _changed(self, wholes: Sequence[Any], positions: Any, others: Sequence[Any]) -> Any:
        places = checked_positions(np, positions, len(wholes[0]), 0, wrap=True)
        made = self.change.run(np, *[whole[places] for whole in wholes], *others)
        for whole, rows in zip(wholes, made, strict=True):
            self._write(whole, places, rows)
        return tuple(wholes) if len(wholes) > 1 else wholes[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise NotImplementedError("UpdateRows is made after gradients are: it has none.")

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Effect(variable, writes=True) for variable in self._all)
