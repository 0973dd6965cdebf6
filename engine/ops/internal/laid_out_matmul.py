"""Products by int8 matrices in the layout that kernels read. Made by the pass `lay_out`, never by users.

A variable's matrix is laid out when the first of these products runs, and again when the variable has another value.
The layout takes the place of the value: what else needs that computes it from the layout (`LaidOut`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.op import Cost, Effect
from ...graph.spec import TensorSpec
from ...graph.state.initial_values import Later
from ...graph.state.variable import Variable
from ..base import Op, Operation, Sample, Tensor
from ..neural.quantized import QuantizedMatMul
from .laid_out_int4 import Int4Panels, filled_up, in_order

SUB = 16  # columns that are side by side
_MOST_COMPUTED = 2  # of so many times that a value was needed again, it stays beside the layout


@dataclass(frozen=True)
class Panels:
    """The layout of an int8 matrix: for each 16 columns, for each group of terms, for each column, these terms.

    Attributes:
        terms, columns: the sizes of the matrix, which is stored as (terms, columns).
        transpose: it is stored as (columns, terms).
        group: the terms that an instruction multiplies at once.
        granule: zeros fill up the terms to a multiple of this,
        subs: and the columns to a multiple of 16 times this.
        is_unsigned: bytes are 128 larger, as unsigned numbers.
    """

    terms: int
    columns: int
    transpose: bool
    group: int
    granule: int
    subs: int
    is_unsigned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix as it is stored elsewhere."""
        return (self.columns, self.terms) if self.transpose else (self.terms, self.columns)

    @property
    def padded(self) -> int:
        """The number of terms, zeros included."""
        return -(-self.terms // self.granule) * self.granule

    @property
    def wide(self) -> int:
        """The number of columns, zeros included."""
        unit = SUB * self.subs
        return -(-self.columns // unit) * unit

    @property
    def size(self) -> int:
        """The bytes of the layout."""
        return self.padded * self.wide

    def laid_out(self, xp: Any, matrix: Any) -> Any:
        """Return the bytes of a matrix in this layout."""
        matrix = matrix.T if self.transpose else matrix
        sizes = (self.padded // self.group, self.group, self.wide // SUB, SUB)
        parts = filled_up(xp, matrix, self.padded, self.wide).reshape(sizes).transpose((2, 0, 3, 1))
        flat = in_order(xp, parts)
        if self.is_unsigned:
            flat ^= xp.int8(-128)
        return flat

    def plain(self, xp: Any, flat: Any) -> Any:
        """Return the matrix as it is stored elsewhere."""
        flat = flat ^ xp.int8(-128) if self.is_unsigned else flat
        parts = flat.reshape((self.wide // SUB, self.padded // self.group, SUB, self.group)).transpose((1, 3, 0, 2))
        matrix = parts.reshape((self.padded, self.wide))[: self.terms, : self.columns]
        return xp.ascontiguousarray(matrix.T if self.transpose else matrix)


class LaidOut(Later):
    """The value of a variable as the layout of its matrix.

    Attributes:
        panels: the layout.
        content: the bytes in that layout.
        array: the matrix that was computed last, if it was needed.

    Args:
        array: the matrix.
    """

    keeps_array = True

    def __init__(self, panels: Panels | Int4Panels, array: Any) -> None:
        self.panels = panels
        self.dtype = dtypes.as_dtype("int8")
        self.content = panels.laid_out(np, array)
        self.array: Any = None
        self._computed = 0  # how often the matrix was needed, too

    @property
    def shape(self) -> tuple[int, ...]:
        return self.panels.shape

    @property
    def is_rarely_computed(self) -> bool:
        """Test whether the matrix was needed so seldom that it is not kept beside the layout."""
        return self._computed < _MOST_COMPUTED

    def compute(self) -> Any:
        self._computed += 1
        self.array = self.panels.plain(np, self.content)
        return self.array


class ReadLaidOut(Op):
    """The bytes of a variable's matrix in a layout.

    Args:
        variable: of int8; its bytes may hold two integers each.
        panels: the layout.
    """

    type_name: ClassVar[str] = "read_laid_out"
    no_samples: ClassVar[str] = "made by a pass; it holds a variable: test_laid_out_products"
    cost: ClassVar[Cost] = Cost.NOTHING
    view = True  # nobody writes over it

    def __init__(self, variable: Variable, panels: Panels | Int4Panels) -> None:
        self.variable, self.panels = variable, panels

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((self.panels.size,), self.variable.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        variable = self.variable
        first = variable.first_value
        if isinstance(first, LaidOut) and (first.panels is self.panels or first.panels == self.panels):
            return first.content
        form = None
        if variable.lock.acquire(blocking=False):  # who writes it may wait for this very step
            try:
                form = variable.store_as(self._form)
            finally:
                variable.lock.release()
        if form is None:
            return self.panels.laid_out(xp, variable.stored_value())
        assert isinstance(form, LaidOut)
        return form.content

    def _form(self, array: Any, known: Later | None) -> tuple[LaidOut, bool]:
        """Return the layout of a matrix, which may be one that is there already, and whether the matrix is let go."""
        if not isinstance(known, LaidOut) or known.array is not array or known.panels != self.panels:
            return LaidOut(self.panels, array), True
        is_taken_out = known.is_rarely_computed
        if is_taken_out:
            known.array = None
        return known, is_taken_out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.variable, writes=False),)


@dataclass(frozen=True)
class LaidOutMatMul(QuantizedMatMul):
    """A `QuantizedMatMul` whose matrix is in a layout: its bytes are the second input.

    Attributes:
        panels: the layout.
    """

    type_name: ClassVar[str] = "laid_out_mat_mul"
    no_samples: ClassVar[str] = "is made by a pass: test_laid_out_products"
    cost: ClassVar[Cost] = Cost.PRODUCT
    panels: Panels | None = None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return ()  # those of `QuantizedMatMul` have matrices as they are

    def infer(self, *inputs: Any) -> TensorSpec:
        assert self.panels is not None
        return TensorSpec((inputs[0].shape[0], self.panels.columns), inputs[0].dtype)

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        return ((Follows(0, 0),),)

    def run(self, xp: Any, *inputs: Any) -> Any:
        assert self.panels is not None
        return super().run(xp, inputs[0], self.panels.plain(xp, inputs[1]), *inputs[2:])


__all__ = ["LaidOut", "LaidOutMatMul", "Panels", "ReadLaidOut"]
