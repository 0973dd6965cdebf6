"""Variables and generators of keys in native regions: read, assigned and advanced where the program says so.

An array is in one place while the region runs, and is changed there; a scalar is in a register. A read refers to that
place, which is right as long as nothing is written while the value is in use. That is known when code is printed: a
value carries a mark, with the version of the variable that it shows. If one is used after a write, all is printed again
with reads of that variable that copy.

A region that fails leaves nothing behind, so that it can run again on NumPy, up to where it fails: before the first
write an array's value is kept aside, and put back. The same holds for one that is interrupted. To other threads, what
it does to scalars shows when it is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ...common.quick_dataclass import dataclass
from ...control_flow.while_loop import While
from ...graph.graph import Operation
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import Assign, ReadVariable
from ...ops.containers.indexed_slices import AssignRows
from ...ops.random.keys import SeedGenerator, TakeKey
from ...passes.framework.prune import all_operations
from ..expression.expression import UnsupportedError
from .arrays import from_front, integer_at
from .function import Array, Buffer, FormContext, Function, Scalar, Value, buffers_of
from .scalars import size_of

MOST_KEPT_BYTES = 1 << 17  # of an array that is kept aside as a whole when rows are written
_ALWAYS = 1 << 30  # users of what is never given back


class StaleError(Exception):
    """A value of a variable is used after a write of it: reads of that variable must copy."""

    def __init__(self, resource: object) -> None:
        super().__init__("a value of a variable is used after a write")
        self.resource = resource


@dataclass(eq=False)
class Held:
    """A variable, or a generator, of which a region uses or changes the value.

    Attributes:
        resource: the variable or the generator.
        number: which bit says that it was written; -1 where nothing has to be done then.
        kind: the type of an element.
        shape: of the value.
        pointer: where an array is.
        slot: where a scalar is.
        is_written: whether the region writes it.
        is_own: whether the array is the variable's own memory, not a copy that becomes its value in the end.
        copies: whether what is read is copied.
        version: how many writes were printed.
        kept: the value before the first write, and the slot that says whether there was one.
        guards: the lines that keep it aside, by the first and the one behind the last.
        kept_rows: for each write of rows, these before, their positions, and whether it was reached.
    """

    resource: Variable | SeedGenerator
    number: int
    kind: str
    shape: tuple[int, ...]
    pointer: str = ""
    slot: str = ""
    is_written: bool = False
    is_own: bool = False
    copies: bool = False
    version: int = 0
    kept: tuple[Array, str] | None = None
    guards: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    kept_rows: list[tuple[Array, Array, str]] = field(default_factory=list[tuple[Array, Array, str]])

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * size_of(self.kind)


@dataclass(eq=False)
class Mark(Buffer):
    """Marks an array as (part of) the value that a variable has in a version."""

    held: Held | None = None
    version: int = 0

    @property
    def is_stale(self) -> bool:
        return self.held is not None and self.held.version != self.version


def touched(operations: Sequence[Operation]) -> dict[Variable | SeedGenerator, bool]:
    """Return the variables and generators that operations use, and whether they are written.

    Raises:
        UnsupportedError: they have other effects.
    """
    found: dict[Variable | SeedGenerator, bool] = {}
    for operation in operations:
        for effect in operation.effects:
            if not isinstance(effect.resource, (Variable, SeedGenerator)):
                raise UnsupportedError("an effect")
            found[effect.resource] = found.get(effect.resource, False) or effect.writes
    draws = any(isinstance(resource, SeedGenerator) for resource in found)
    writes = any(is_written and isinstance(resource, Variable) for resource, is_written in found.items())
    if draws and writes and any(isinstance(operation.op, While) for operation in all_operations(operations)):
        # Other threads may draw keys while it runs. Then it has to run again, as if it had done nothing.
        raise UnsupportedError("keys that are drawn in a loop, beside variables that are written")
    return found


def check_in_use(value: Value | None) -> None:
    """Check the conditions that hold for every use of a value.

    Raises:
        StaleError: it is a variable's value from before a write.
    """
    for mark in _marks(value):
        if mark.is_stale and mark.held is not None:
            _refuse(mark.held)


def _refuse(held: Held) -> None:
    if held.copies:
        raise UnsupportedError("an earlier value of a variable is used after a write")
    raise StaleError(held.resource)


def _marks(value: Value | None) -> list[Mark]:
    return [] if value is None else [buffer for buffer in buffers_of(value) if isinstance(buffer, Mark)]


class Variables:
    """The variables of a region, and the code that uses them."""

    def __init__(self, context: FormContext) -> None:
        self.context = context
        self.function = context.function
        self.held: dict[Variable | SeedGenerator, Held] = {}
        self.written = ""  # the slot with a bit for each that was written
        self.loops = 0  # how many are around what is printed

    def add(self, held: Held) -> None:
        """Add one more resource, whose memory is known."""
        self.held[held.resource] = held
        if held.number >= 0 and not self.written:
            self.written = self.function.slot("i64")
            self.function.prologue.append(f"  store i64 0, ptr {self.written}")

    def versions(self) -> dict[Held, int]:
        """Return the versions that all have now."""
        return {held: held.version for held in self.held.values()}

    # --- operations -----------------------------------------------------------------------------------------

    def printed(self, operation: Operation, inputs: Sequence[Value], is_used: bool) -> list[Value]:
        """Print an operation with an effect.

        Args:
            operation: which.
            inputs: the values of its inputs.
            is_used: whether anything takes what it gives as more than the value of which rows are written.

        Raises:
            UnsupportedError: it has no native form.
        """
        op = operation.op
        if isinstance(op, ReadVariable):
            return [self._read(self.held[op.variable], is_used)]
        if isinstance(op, Assign):
            return [self._assign(self.held[op.variable], inputs[0], is_used)]
        if type(op) is AssignRows:
            return [self._assign_rows(self.held[op.variable], inputs, is_used)]
        if isinstance(op, TakeKey):
            return [self._take_key(self.held[op.generator])]
        raise UnsupportedError(f"the effect of {op.type_name}")

    def _read(self, held: Held, is_used: bool) -> Value:
        function = self.function
        if held.slot:
            return Scalar(function.let(f"load {held.kind}, ptr {held.slot}"), held.kind)
        if not held.is_written:
            return Array(held.pointer, held.kind, held.shape)
        if held.copies and is_used:
            return function.copy_of(Array(held.pointer, held.kind, held.shape))
        return self._shown(held)

    def _shown(self, held: Held) -> Array:
        """Return the value now, in place."""
        return Array(held.pointer, held.kind, held.shape, frozenset([Mark(-1, 0, _ALWAYS, held, held.version)]))

    def _assign(self, held: Held, value: Value, is_used: bool) -> Value:
        function = self.function
        if held.slot:
            if not isinstance(value, Scalar) or value.kind != held.kind:
                raise UnsupportedError("a value of another kind is assigned")
            function.line(f"store {held.kind} {value.name}, ptr {held.slot}")
            self._note(held)
            return value
        if not isinstance(value, Array) or value.shape != held.shape or value.kind != held.kind:
            raise UnsupportedError("a value of another shape or type is assigned")
        self._keep(held)
        if value.pointer != held.pointer:
            self._refuse_own(held, value)
            function.copy_bytes(held.pointer, value.pointer, value.bytes)
        self._note(held)
        return self._read(held, is_used)

    def _assign_rows(self, held: Held, inputs: Sequence[Value], is_used: bool) -> Value:
        function = self.function
        whole, positions, rows = inputs
        if not isinstance(positions, Array) or not isinstance(rows, Array) or rows.kind != held.kind:
            raise UnsupportedError("rows that are no arrays")
        if rows.shape != (*positions.shape, *held.shape[1:]) or positions.kind not in ("i32", "i64"):
            raise UnsupportedError("rows of another shape")
        if not isinstance(whole, Array) or whole.shape != held.shape:
            raise UnsupportedError("rows of another value than the variable's")
        check_in_use(whole)
        self._refuse_own(held, rows)
        with function.count(positions.size) as k:
            place = _row(function, held, positions, k)
            self.context.fail_unless(function.let(f"icmp ult i64 {place}, {held.shape[0]}"))
        if any(mark.held is held for mark in _marks(whole)):
            self._keep(held, positions)
        else:  # a copy, of the value now or of an earlier one
            self._keep(held)
            function.copy_bytes(held.pointer, whole.pointer, whole.bytes)
        width = math.prod(held.shape[1:])
        size = width * size_of(held.kind)
        with function.count(positions.size) as k:
            place = function.let(f"mul nsw i64 {_row(function, held, positions, k)}, {width}")
            source = k if width == 1 else function.let(f"mul nsw i64 {k}, {width}")
            target = function.element(held.kind, held.pointer, place)
            function.copy_bytes(target, function.element(held.kind, rows.pointer, source), size)
        self._note(held)
        return self._read(held, is_used)

    def _take_key(self, held: Held) -> Value:
        function = self.function
        target = function.copy_of(Array(held.pointer, "i64", (2,)))
        place = function.element("i64", held.pointer, "1")
        function.combine("i64", place, 1, "add")
        self._note(held)
        return target

    def _refuse_own(self, held: Held, value: Value) -> None:
        """Refuse to write a value that is part of the variable it is written over."""
        if any(mark.held is held for mark in _marks(value)):
            _refuse(held)

    def _note(self, held: Held) -> None:
        held.version += 1
        if held.number >= 0:
            self.function.combine("i64", self.written, 1 << held.number, "or")

    # --- the way back ---------------------------------------------------------------------------------------

    def _keep(self, held: Held, positions: Array | None = None) -> None:
        """Keep aside what a write to the variable's own memory overwrites."""
        if not held.is_own:
            return
        if held.bytes > MOST_KEPT_BYTES and positions is not None:
            self._keep_rows(held, positions)
            return
        if held.bytes > 4 * MOST_KEPT_BYTES:
            raise UnsupportedError("a large variable is assigned")
        function = self.function
        if held.kept is None:
            held.kept = self._place_aside(held.kind, held.shape), self._flag()
        place, flag = held.kept
        keep, on = function.fresh("keep"), function.fresh("kept")
        first = len(function.lines)
        function.branch(function.let(f"load i1, ptr {flag}"), on, keep)
        function.begin(keep)
        function.copy_bytes(place.pointer, held.pointer, place.bytes)
        function.line(f"store i1 true, ptr {flag}")
        function.jump(on)
        function.begin(on)
        held.guards.append((first, len(function.lines)))

    def _keep_rows(self, held: Held, positions: Array) -> None:
        if self.loops:
            raise UnsupportedError("rows of a large variable are written in a loop")
        function = self.function
        rows = self._place_aside(held.kind, (positions.size, *held.shape[1:]))
        places, flag = self._place_aside("i64", positions.shape), self._flag()
        width = math.prod(held.shape[1:])
        with function.count(positions.size) as k:
            row = _row(function, held, positions, k)
            function.line(f"store i64 {row}, ptr {function.element('i64', places.pointer, k)}")
            self._copy_row(held, rows, row, k, width, back=False)
        function.line(f"store i1 true, ptr {flag}")
        held.kept_rows.append((rows, places, flag))

    def _copy_row(self, held: Held, rows: Array, row: str, k: str, width: int, back: bool) -> None:
        function = self.function
        own = function.element(held.kind, held.pointer, function.let(f"mul nsw i64 {row}, {width}"))
        aside = function.element(held.kind, rows.pointer, function.let(f"mul nsw i64 {k}, {width}"))
        pair = (own, aside) if back else (aside, own)
        function.copy_bytes(*pair, width * size_of(held.kind))

    def _place_aside(self, kind: str, shape: tuple[int, ...]) -> Array:
        with self.function.before_all():
            place = self.function.allocate(kind, shape)
        self.function.hold(place)
        return place

    def _flag(self) -> str:
        flag = self.function.slot("i1")
        self.function.prologue.append(f"  store i1 false, ptr {flag}")
        return flag

    def drop_guards(self) -> None:
        """Keep nothing aside of what is written when nothing can fail any more."""
        lines, last = self.function.lines, max(self.context.exits, default=-1)
        dropped: list[tuple[int, int]] = []
        for held in self.held.values():
            if held.guards and held.guards[0][0] >= last:
                dropped += held.guards
                held.kept = None
        for first, end in sorted(dropped, reverse=True):
            lines[first:end] = [f"  br label %{lines[end - 1].rstrip(':')}", lines[end - 1]]

    def print_undoing(self) -> None:
        """Print the end of a region that fails: put back what was there before."""
        function = self.function
        for held in self.held.values():
            for rows, places, flag in reversed(held.kept_rows):
                self._print_if(flag, lambda held=held, rows=rows, places=places: self._put_back(held, rows, places))
            if held.kept is not None:
                place, flag = held.kept
                self._print_if(
                    flag, lambda held=held, place=place: function.copy_bytes(held.pointer, place.pointer, place.bytes)
                )

    def _put_back(self, held: Held, rows: Array, places: Array) -> None:
        function = self.function
        with function.count(places.size) as k:
            row = function.let(f"load i64, ptr {function.element('i64', places.pointer, k)}")
            self._copy_row(held, rows, row, k, math.prod(held.shape[1:]), back=True)

    def _print_if(self, flag: str, act: Any) -> None:
        function = self.function
        undo, on = function.fresh("undo"), function.fresh("undone")
        function.branch(function.let(f"load i1, ptr {flag}"), undo, on)
        function.begin(undo)
        act()
        function.jump(on)
        function.begin(on)


def _row(function: Function, held: Held, positions: Array, k: str) -> str:
    """Print position k, counted from the front."""
    return from_front(function, integer_at(function, positions, k), held.shape[0])
