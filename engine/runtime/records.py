"""Results that are written where they are gathered: into the rows of a history, or the slots of a TensorArray.

A loop's weight gradients are products over all iterations at once. What they take is recorded in the rows of one
growing array, by the operation that makes it, so that nothing is stacked afterwards. What a backward loop reads element
by element stays a list, which gives memory back as the loop goes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.identity import is_among, place_among
from ..control_flow.call import Recursion
from ..control_flow.frames import History
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Parameter
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.containers.array_value import ArrayValue
from ..ops.containers.tensor_arrays import ArrayStack, ArrayWrite
from ..passes.framework.prune import frame_users
from ..passes.memory.storage import blocks, inner_blocks, is_fresh

_SMALLEST = 1 << 10  # bytes of a row: what is smaller is stacked as quickly
_FIRST_ROWS = 32
_Array = np.ndarray[Any, Any]


class Record:
    """Rows of one shape and dtype, of which there are more and more.

    Args:
        shape: of a row.
        dtype: of a row.
        expected: how many rows there will be, if that is known.
    """

    __slots__ = ("_buffer", "_count", "_slot")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], expected: int = _FIRST_ROWS) -> None:
        self._buffer = np.empty((max(int(expected), 1), *shape), dtype)
        self._count = 0
        self._slot: _Array | None = None

    def slot(self) -> _Array:
        """Return the next row, to be written and then appended."""
        if self._count == len(self._buffer):
            self._grow()
        row: _Array = self._buffer[self._count]
        self._slot = row
        return row

    def append(self, value: _Array) -> None:
        """Record a row; nothing is copied if it is the slot."""
        if value is not self._slot:
            self.slot()[...] = value
        self._count += 1
        self._slot = None

    def rows(self) -> _Array:
        """Return all rows, as one array."""
        return self._buffer[: self._count]

    @property
    def nbytes(self) -> int:
        return self.rows().nbytes

    def _grow(self) -> None:
        larger = np.empty((2 * len(self._buffer), *self._buffer.shape[1:]), self._buffer.dtype)
        larger[: self._count] = self.rows()
        self._buffer = larger


class RecordBeside(Record):
    """The values of a loop variable that an array gathers, too, one place later: both have the same memory.

    What a loop computes into the slots of an array, and carries, is there in the next iteration: only the first value
    has to be copied, in front of the slots. When a value is anywhere else, the rows move to memory of their own.

    Args:
        shape: of a row.
        dtype: of a row.
        array: the array before the loop.
        expected: how many rows there will be, if that is known.
    """

    __slots__ = ("_expected", "_shared")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], array: ArrayValue, expected: int = _FIRST_ROWS
    ) -> None:
        shared = array.slots_behind_a_row(shape, dtype)
        super().__init__(shape if shared is None else (0,), dtype, expected)
        self._expected = max(int(expected), 1)
        self._shared = shared
        if shared is not None:
            self._buffer = shared

    def append(self, value: _Array) -> None:
        if self._shared is None:
            super().append(value)
        elif not self._count:
            self._shared[0] = value
            self._count = 1
        elif self._count < len(self._shared) and _is_row(value, self._shared, self._count):
            self._count += 1
        else:
            self._move()
            super().append(value)

    def _move(self) -> None:
        own = np.empty((max(self._expected, self._count + 1), *self._buffer.shape[1:]), self._buffer.dtype)
        own[: self._count] = self.rows()
        self._buffer, self._shared = own, None


def _is_row(value: _Array, rows: _Array, index: int) -> bool:
    """Test whether `value` is that row of `rows` itself."""
    row: _Array = rows[index]
    return value.base is rows and value.__array_interface__ == row.__array_interface__


def recorded_beside(node: Operation, tensor: Symbol, in_slots: Mapping[Symbol, Operation]) -> int | None:
    """Return the position of the loop variable's array into which that writes the next value of variable `tensor`.

    Args:
        node: the loop.
        tensor: what it records.
        in_slots: what `written_into_slots` gave.
    """
    op = node.op
    if not isinstance(op, While) or not is_among(tensor, op.body.parameters):
        return None
    write = in_slots.get(op.body.results[place_among(tensor, op.body.parameters)])
    if write is None or not is_among(write.inputs[0], op.body.parameters):
        return None
    value, element = write.inputs[2].spec, tensor.spec
    return place_among(write.inputs[0], op.body.parameters) if value == element else None


def written_into_slots(operations: Sequence[Operation], fetches: Iterable[Symbol]) -> dict[Symbol, Operation]:
    """Map results in loops and branches to their writes, if computed in the TensorArray's slot that is written.

    The value is then in the array's memory, so it may be read and recorded, but not taken over by a variable.

    Args:
        operations: of a step, in order.
        fetches: what outlives it.

    Returns:
        for each such result the operation that writes it.
    """
    found: dict[Symbol, Operation] = {}
    inner = itertools.islice(blocks(operations, fetches), 1, None)  # what is fetched must not share memory
    for block, _ in inner:
        found.update(_written_in(block))
    return found


def _written_in(block: Sequence[Operation]) -> dict[Symbol, Operation]:
    writes = [operation for operation in block if isinstance(operation.op, ArrayWrite)]
    if not writes:
        return {}
    given = (Parameter, Constant)  # these are there from the beginning, wherever they stand
    order = {operation: position for position, operation in enumerate(block) if not isinstance(operation.op, given)}
    stored = {tensor for operation in block if operation.effects for tensor in operation.inputs}
    found: dict[Symbol, Operation] = {}
    for operation in writes:
        array, index, value = operation.inputs
        made = order.get(value.operation)
        if made is None or value in stored or value in found or not is_fresh(value) or not _is_worth_it(value):
            continue
        if all(order.get(source.operation, -1) < made for source in (array, index)):
            found[value] = operation
    return found


def recorded_in_rows(operations: Sequence[Operation], fetches: Iterable[Symbol]) -> set[Symbol]:
    """Return the tensors of loop bodies whose histories are only stacked.

    Args:
        operations: of a step, in order.
        fetches: what outlives it.
    """
    found: set[Symbol] = set()
    _find(operations, set(fetches), found)
    return found


def _find(block: Sequence[Operation], outliving: set[Symbol], found: set[Symbol]) -> None:
    users = frame_users(block)
    taken = [tensor for o in block if not isinstance(o.op, ArrayStack) for tensor in o.inputs] if users else ()
    otherwise = outliving.union(taken)
    for operation in block:
        if not operation.op.regions:
            continue
        if isinstance(operation.op, While):
            found.update(_only_stacked(users.get(operation.outputs[-1], ()), otherwise))
        if isinstance(operation.op, Recursion):
            continue  # frames of calls record what loops inside gather
        for operations, kept in inner_blocks(operation):
            _find(operations, kept, found)


def _only_stacked(users: Iterable[Operation], otherwise: set[Symbol]) -> set[Symbol]:
    """Return the tensors that a loop records only for stacking, and not for use `otherwise`; `users` take its frame."""
    histories: dict[Symbol, list[Symbol]] = {}
    for user in users:
        if isinstance(user.op, History) and _is_worth_it(user.op.inner):
            histories.setdefault(user.op.inner, []).append(user.outputs[0])
    return {inner for inner, several in histories.items() if otherwise.isdisjoint(several)}


def _is_worth_it(tensor: Symbol) -> bool:
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or spec.shape is None or not spec.shape or spec.dtype.kind == "T":
        return False
    shape = [dim for dim in spec.shape if dim is not None]
    return len(shape) == len(spec.shape) and math.prod(shape) * spec.dtype.itemsize >= _SMALLEST
