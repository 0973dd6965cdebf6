"""Functions over `IndexedSlices`: adding up, making them dense, taking them apart, writing them to variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.nest import is_mapping, is_sequence
from ...common.quick_dataclass import dataclass
from ...graph.context import in_explicit_graph
from ...graph.graph import Operation, graph_for
from ...graph.op import Effect, Op
from ...graph.slices import IndexedSlices
from ...graph.spec import TensorSpec, shape_text, shapes_compatible
from ...graph.state.stateless import in_stateless_scope
from ...graph.state.variable import Variable, near
from ...graph.state.writing_rows import memory_of
from ...graph.tensor import Symbol, Tensor
from ..arrays.creation import arange
from ..arrays.front_positions import from_the_front
from ..arrays.gathering import AddRows, PutRows, Take, add_rows, checked_positions, integers
from ..arrays.joining import concatenate
from ..arrays.scattering import GatherLast, ScatterUpdate
from ..arrays.segments import segment_sum
from ..arrays.shaping import expand_dims, shape, size
from ..arrays.sorting import unique
from ..base import apply, as_array, cast, convert_to_tensor
from ..run_time_shapes import runtime_shape, zeros_of
from .contributions import PartialSum

__all__ = ["IndexedSlices"]


@dataclass(frozen=True)
class SlicesSum(PartialSum):
    """A cotangent that consists of rows so far: a sum of `IndexedSlices`, joined when it is looked at."""

    parts: tuple[IndexedSlices, ...]

    def add_to(self, current: Any) -> Any:
        if current is None:
            return self
        if isinstance(current, SlicesSum):
            return SlicesSum(current.parts + self.parts)
        return self.added_to(current)

    def added_to(self, dense: Tensor) -> Tensor:
        """Return a dense cotangent with these rows added."""
        joined = self.joined()
        return apply(AddRows(0, True), dense, joined.values, joined.indices)

    def put_together(self, sparse: bool) -> Any:
        joined = self.joined()
        return joined if sparse else joined.to_dense()

    def joined(self) -> IndexedSlices:
        """Return all parts as one."""
        if len(self.parts) == 1:
            return self.parts[0]
        dtype = "int64" if any(part.indices.dtype.itemsize > 4 for part in self.parts) else "int32"
        indices = [cast(part.indices, dtype) for part in self.parts]
        values = concatenate([part.values for part in self.parts], axis=0)
        return IndexedSlices(values, concatenate(indices, axis=0), self.parts[0].dense_shape)


def to_dense(slices: IndexedSlices) -> Tensor:
    """Return the whole tensor."""
    whole = convert_to_tensor(slices.whole_shape(), "int32")
    values, indices = convert_to_tensor(slices.values), convert_to_tensor(slices.indices)  # which may be fetched arrays
    return apply(PutRows(0, True, slices.shape), values, indices, whole)


def dense(structure: Any) -> Any:
    """Return `structure` with tensors in the place of `IndexedSlices`."""
    if isinstance(structure, IndexedSlices):
        return structure.to_dense()
    if is_mapping(structure):
        return {key: dense(value) for key, value in structure.items()}
    if not is_sequence(structure):
        return structure
    items = [dense(item) for item in structure]
    if hasattr(structure, "_fields"):
        return type(structure)(*items)
    return tuple(items) if isinstance(structure, tuple) else items


def as_slices(cotangent: Any, like: Tensor) -> IndexedSlices:
    """Return a cotangent of `like` as `IndexedSlices`: all rows, if it is dense."""
    if isinstance(cotangent, SlicesSum):
        return cotangent.joined()
    if isinstance(cotangent, IndexedSlices):
        return cotangent
    return IndexedSlices(cotangent, arange(shape(cotangent)[0], dtype="int32"), runtime_shape(like))


def deduplicated(slices: IndexedSlices) -> IndexedSlices:
    """Return the same tensor with each row named once, by its position from the front; rows in ascending order."""
    rows, places = unique(from_the_front(slices), return_inverse=True)
    return IndexedSlices(segment_sum(slices.values, places, size(rows)), rows, slices.dense_shape)


# --- rows of variables ----------------------------------------------------------------------------------------------


class AssignRows(Op):
    """Write rows of a variable; the output is its new value. Inputs: its value so far, positions, the rows.

    Of rows named several times the last one counts. Where a program needs the value so far no more, it does not copy
    it: see `write_in_place`.
    """

    no_samples: ClassVar[str] = "holds a variable: test_variable_rows"
    writes_rows: ClassVar[bool] = True
    view = True

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Whose rows are written: as many inputs are their values so far."""
        return (self.variable,)

    def infer(self, *inputs: Any) -> TensorSpec:
        whole, positions, rows = inputs
        if whole.shape == ():
            raise ValueError(f"Variable {self.variable.name!r} is a scalar, which has no rows; use assign().")
        if rows.dtype != self.variable.dtype:
            raise TypeError(f"Variable {self.variable.name!r} is {self.variable.spec}; rows {rows} can't be assigned.")
        rest = None if whole.shape is None else whole.shape[1:]
        wanted = None if rest is None or positions.shape is None else (*positions.shape, *rest)
        if positions.shape is not None and len(positions.shape) != 1:
            raise ValueError(f"Positions of rows must be a vector, got shape {shape_text(positions.shape)}.")
        if not shapes_compatible(rows.shape, wanted):
            raise ValueError(self._misfit(rows.shape, wanted))
        return whole

    def _misfit(self, rows: Any, wanted: Any) -> str:
        return (
            f"Variable {self.variable.name!r} has shape {shape_text(self.variable.shape)}: its rows must be given as "
            f"{shape_text(wanted)}, one for each position; got {shape_text(rows)}."
        )

    def run(self, xp: Any, *inputs: Any) -> Any:
        whole, positions, rows = inputs
        written = xp.array(whole, dtype=self.variable.dtype, order="C")
        self._write(self.rows_of(written), positions, rows)
        self.variable.write_value(written)
        return written

    def write_in_place(self, positions: Any, rows: Any, /) -> Any:
        """Return the same in the memory of the variable, for programs that need no earlier value of it."""
        whole = own_memory(self.variable)
        self._write(self.rows_of(whole), positions, rows)
        return whole

    def rows_of(self, whole: Any) -> Any:
        """Return the rows that positions number, a view of a value in C order."""
        return whole

    def _write(self, whole: Any, positions: Any, rows: Any) -> None:
        if rows.shape != positions.shape + whole.shape[1:]:
            raise ValueError(self._misfit(rows.shape, positions.shape + whole.shape[1:]))
        whole[positions] = rows

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        _, positions, rows = node.inputs
        places = expand_dims(positions, 1)
        return apply(ScatterUpdate(), dy, places, zeros_of(rows)), None, apply(GatherLast(), dy, places)

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.variable, writes=True),)


class AddToRows(AssignRows):
    """Add to rows of a variable; the output is its new value. Inputs: its value so far, positions, rows, maybe a scale.

    To the row at each position, counted from the front, a row times the scale is added, in order; rows named several
    times add up. Made by the pass `row_updates`, never by users.

    Attributes:
        variable: whose rows they are.
        sign: 1 or -1, by which they are multiplied too.
        repeats: how many positions in a row take the same of the rows.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_row_updates"
    writes_rows: ClassVar[bool] = True

    def __init__(self, variable: Variable, sign: int, repeats: int = 1) -> None:
        super().__init__(variable)
        self.sign = sign
        self.repeats = repeats

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        whole, *given = inputs
        written = xp.array(whole, dtype=self.variable.dtype, order="C")
        self._add(written, *given)
        self.variable.write_value(written)
        return written

    def write_in_place(self, positions: Any, rows: Any, scale: Any = 1) -> Any:
        """Return the same in the memory of the variable, for programs that need no earlier value of it."""
        whole = own_memory(self.variable)
        self._add(whole, positions, rows, scale)
        return whole

    def _add(self, whole: Any, positions: Any, rows: Any, scale: Any = 1) -> None:
        wanted = (len(positions) // self.repeats, *whole.shape[1:])
        if rows.shape != wanted or len(positions) % self.repeats:
            raise ValueError(self._misfit(rows.shape, wanted))
        scaled = rows * (self.sign * np.asarray(scale, rows.dtype))
        add_rows(np, whole, positions, np.repeat(scaled, self.repeats, axis=0), 0, wrap=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise NotImplementedError("AddToRows is made after gradients are: it has none.")


def own_memory(variable: Variable) -> Any:
    """Return the current value of a variable, in memory that can be written row by row."""
    held = memory_of(variable)
    if held is not None:
        return held
    variable.take_back()
    whole = variable.stored_value()
    if not whole.flags.c_contiguous or not whole.flags.writeable:
        whole = np.array(whole, order="C")
        variable.write_value(whole)
    return whole


def take_rows(variable: Variable, indices: Tensor) -> Tensor:
    """Return the rows of a variable at `indices`."""
    return apply(Take(0), variable.value, indices)


def scatter(variable: Variable, slices: IndexedSlices, how: str, name: str | None = None) -> Any:
    """Write rows of a variable: "update", "add" or "subtract". In a graph the new value; None from plain Python."""
    if variable.shape == ():
        raise ValueError(f"Variable {variable.name!r} is a scalar, which has no rows; use assign().")
    fields = (slices.values, slices.indices)
    symbols = [field for field in fields if isinstance(field, Symbol)]
    if in_explicit_graph() or symbols:
        with graph_for(symbols).entered():
            return _scattered(variable, slices, how, name)
    if in_stateless_scope():
        return _scattered(variable, slices, how, name)
    values, indices = as_array(slices.values, variable.dtype), as_array(slices.indices)
    if indices.size and indices.dtype.kind not in "iu":
        raise TypeError(f"scatter_{how}: positions must be integers, got {indices.dtype}.")
    if variable.home is not None:
        _scatter_at_home(variable, values, indices, how)
        return None
    whole = own_memory(variable)
    positions = checked_positions(np, indices, len(whole), 0, wrap=True)
    operation = AssignRows(variable)
    rows, places = (TensorSpec(array.shape, array.dtype) for array in (values, positions))
    operation.infer(TensorSpec(whole.shape, whole.dtype), places, rows)
    if how == "update":
        whole[positions] = values
    else:
        add_rows(np, whole, positions, values if how == "add" else -values, 0, True)
    return None


def _scatter_at_home(variable: Variable, values: Any, indices: Any, how: str) -> None:
    """Write rows of a variable that a task holds."""
    assert variable.home is not None, "a task holds it"

    def build(rows: Tensor, positions: Tensor) -> Any:
        written: Any = _scattered(variable, IndexedSlices(rows, positions, variable.shape), how, None)
        return written.operation

    variable.home.run(f"scatter_{how}", build, [values, indices], is_repeatable=how == "update")


def _scattered(variable: Variable, slices: IndexedSlices, how: str, name: str | None) -> Tensor:
    label = name or f"{variable.name}/scatter_{how}"
    rows, positions = convert_to_tensor(slices.values, variable.dtype), integers(slices.indices, f"scatter_{how}")
    if how != "update":
        once = deduplicated(IndexedSlices(rows, positions, runtime_shape(variable.value)))
        positions = once.indices
        with near(variable):  # of two steps that add both count
            before = take_rows(variable, once.indices)
            rows = before + once.values if how == "add" else before - once.values
    else:
        positions = from_the_front(IndexedSlices(rows, positions, runtime_shape(variable.value)))
    if in_stateless_scope():
        changed = apply(ScatterUpdate(), variable.value, expand_dims(positions, -1), rows, name=label)
        return variable.assign(changed)
    return apply(AssignRows(variable), variable.value, positions, rows, name=label)
