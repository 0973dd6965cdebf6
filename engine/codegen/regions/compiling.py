"""From operations to a native region: its code as text, and the operands that it takes and gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...control_flow.frames import History
from ...control_flow.while_loop import While
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import ArraySpec, FrameSpec, TensorSpec
from ...graph.state.variable import Variable
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.random.keys import SeedGenerator
from ...passes.framework.prune import all_operations
from ..expression.expression import UnsupportedError
from ..expression.llvm import declarations
from .blocks import Block, print_loop, taken_inputs
from .checks import IS_ARRAY, Checks, Operand
from .forms import TICKS, Context, shape_of
from .function import Array, Elements, Ragged, Record, Scalar, Slots, State, Value
from .packed import declarations as packed_declarations
from .recording import recorded_inside
from .scalars import division_functions, type_of
from .variables import Held, StaleError, check_in_use, touched

TRIPS, NEEDED, REQUESTS, WRITTEN, FIRST_SIZE = range(5)  # places among the counts; REQUESTS is behind NEEDED
_LAST_BIT = 62
_MOST_COPIED_BYTES = 1 << 20  # of a variable that a part of a step writes, each time that it runs
FREE = -2  # is needed at first, where the region runs without the interpreter's lock


@dataclass
class Room:
    """Memory of which a region may need more than it was given: a TensorArray that is written, or a record.

    Attributes:
        dtype: of the elements.
        shape: of an element.
        is_record: whether only a loop adds to it, so that all elements are there.
        source: the number of the input that it starts as, or None where it is made inside.
        result: the number of the output that it ends as, or None.
        of: of a record of ends, the number of the room that these are places in.
        leader: of a record, the number of the room that always has as many rows; None where there is none before.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    is_record: bool = False
    source: int | None = None
    result: int | None = None
    of: int | None = None
    leader: int | None = None


@dataclass(frozen=True)
class HeldValue:
    """A variable, or a generator, whose value is an operand.

    Attributes:
        resource: which.
        bit: of what a region says it wrote, where its value has to be set then; -1 otherwise.
        is_scalar: whether its value is a scalar, so that a second operand, among the outputs, takes the new one.
        is_made: whether the operand is a copy of an array, which becomes the value, or the state of a generator. Those
            come last, generators behind variables.
    """

    resource: Variable | SeedGenerator
    bit: int
    is_scalar: bool
    is_made: bool


@dataclass
class Plan:
    """A native region, printed but not compiled.

    Attributes:
        text: the IR, in which ``@NAME`` stands for its name.
        inputs: the tensors outside whose values it takes.
        constants: the arrays that it takes after those: constants inside.
        outputs: the tensors that it gives.
        histories: for tensors inside of which it gives the values in all iterations the numbers of their rooms.
        rooms: what grows while it runs.
        arena_size: bytes that it works in.
        operations: how many operations it holds.
        ragged: how many inputs are TensorArrays of TensorArrays, whose ends are operands after the constants.
        variables: whose values are operands after those.
        in_pieces: how many of them are in functions that its own calls.
        run: the operations, where it is not a loop.
        is_whole: whether these are all of a step.
    """

    text: str
    inputs: list[Symbol]
    constants: list[Any]
    outputs: list[Symbol]
    histories: list[int]
    operands: list[Operand]
    rooms: list[Room]
    arena_size: int
    operations: int
    ragged: int
    variables: list[HeldValue] = field(default_factory=list[HeldValue])
    in_pieces: int = 0
    run: list[Operation] = field(default_factory=list[Operation])
    is_whole: bool = False

    @property
    def summary(self) -> str:
        """A summary of the region, in a few words."""
        return f"{self.operations} operations"


def plan_loop(operation: Operation, users: Sequence[Operation], host: str) -> Plan:
    """Return a loop as a native region.

    Raises:
        UnsupportedError, TooLargeError: it can't be one, or should not.
    """
    op = op_of(operation, While)
    histories = list(dict.fromkeys(user.op.inner for user in users if isinstance(user.op, History)))

    def body(block: Block) -> list[Value]:
        results = print_loop(block, op, operation, users)
        return [results[tensor] for tensor in operation.outputs[:-1]]

    return _planned(host, [operation], list(operation.outputs[:-1]), histories, body)


def plan_alike(plan: Plan, operation: Operation) -> Plan:
    """Return the plan of a loop that has the form of another one, whose plan is given."""
    inputs = _inputs_of([operation])
    constants = _arrays_of(_constants_inside([operation], inputs))
    return replace(plan, inputs=inputs, constants=constants, outputs=list(operation.outputs[:-1]))


def plan_block(operations: Sequence[Operation], outputs: Sequence[Symbol], host: str, is_whole: bool = False) -> Plan:
    """Return operations in a row as a native region.

    Args:
        operations: which, in order.
        outputs: what is wanted of what they make.
        host: the processor (`Library.host`).
        is_whole: they are all of a step, so that nothing else needs earlier values of the variables that they write.

    Raises:
        UnsupportedError, TooLargeError: they can't be one, or should not.
    """

    def body(block: Block) -> list[Value]:
        block.print_operations(operations, outputs)
        return [block.value_of(tensor) for tensor in outputs]

    return _planned(host, operations, list(outputs), [], body, is_whole)


def _planned(
    host: str,
    operations: Sequence[Operation],
    outputs: list[Symbol],
    histories: list[Symbol],
    body: Callable[[Block], list[Value]],
    is_whole: bool = False,
) -> Plan:
    """Return a plan; reads of a variable copy where an earlier value of it is used after a write."""
    copied: set[object] = set()
    while True:
        try:
            return _Planner(host, operations, outputs, histories, copied, is_whole).plan(body)
        except StaleError as error:
            copied.add(error.resource)


class _Planner:
    def __init__(
        self,
        host: str,
        operations: Sequence[Operation],
        outputs: list[Symbol],
        histories: list[Symbol],
        copied: Collection[object],
        is_whole: bool,
    ) -> None:
        self.copied = copied
        self.is_whole = is_whole
        self.operations = operations
        self.outputs = outputs
        self.histories = histories
        self.context = Context(host)
        self.function = self.context.function
        self.inputs = _inputs_of(operations)
        self.operands: list[Operand] = []
        self.rooms: list[Room] = []
        self.variables: list[HeldValue] = []
        self.scalars: list[tuple[Held, int]] = []  # that are written, and the numbers of their operands
        self.checks = Checks()
        self.context.make_state = self._new_state
        self.context.make_record = self._new_record

    def plan(self, body: Callable[[Block], list[Value]]) -> Plan:
        """Print the region, whose operations `body` prints, and return all that is needed to compile and call it."""
        written = _written(self.operations)
        values = {tensor: self._input(tensor) for tensor in self.inputs if tensor not in written}
        constants = _constants_inside(self.operations, self.inputs)
        for tensor in constants:
            self.context.constants[tensor] = self._input(tensor)
        ragged = [tensor for tensor, value in values.items() if _is_ragged(tensor) and isinstance(value, Elements)]
        for tensor in ragged:
            values[tensor] = self._with_ends(values[tensor])
        used = touched(self.operations)
        rank = {resource: self._is_made(resource, used[resource]) for resource in used}
        for resource in sorted(used, key=lambda resource: (rank[resource], isinstance(resource, SeedGenerator))):
            self._hold(resource, used[resource])
        first = len(self.operands)
        self._take_results()
        for tensor in self.inputs:
            if tensor in written:
                values[tensor] = self._first_state(tensor)
        results = body(Block(self.context, values))
        self.context.check_worth()
        self._give_results(results, first)
        text = self._text()
        for record in self.context.records.values():
            self.rooms[record.number].leader = record.leader
        return Plan(
            text,
            self.inputs,
            _arrays_of(constants),
            self.outputs,
            [self.context.records[tensor].number for tensor in self.histories],
            self.operands,
            self.rooms,
            max(self.function.arena_size, 1),
            self.context.operations,
            len(ragged),
            self.variables,
            in_pieces=self.context.in_pieces,
        )

    def _take_results(self) -> None:
        """Add operands for the outputs, the scalars of variables that are written, the counts, and the arena."""
        for tensor in self.outputs:
            if not isinstance(tensor.spec, ArraySpec):
                self._add(_dtype(tensor), shape_of(tensor), True)
        scalars = [held for held in self.context.variables.held.values() if held.slot and held.number >= 0]
        for held in scalars:
            assert isinstance(held.resource, Variable)
            self.scalars.append((held, self._add(np.dtype(name_of(held.resource.dtype)), (), True)))
        self.counts = f"%d{self._add(np.dtype('int64'), (None,), True)}"
        self.arena = f"%d{self._add(np.dtype('uint8'), (None,), True)}"

    def _add(self, dtype: np.dtype[np.generic], shape: tuple[int | None, ...] | None, is_written: bool = False) -> int:
        """Add one more operand (see `Operand`), and return its number."""
        position = len(self.operands)
        self.operands.append(Operand(dtype, shape, is_written))
        self.checks.add(position, self.operands[-1])
        return position

    def _give_results(self, results: Sequence[Value], first: int) -> None:
        """Print what writes the results to their operands, from number `first` on, and the counts; then return."""
        function, positions = self.function, itertools.count(first)
        for number, (tensor, value) in enumerate(zip(self.outputs, results, strict=True)):
            if isinstance(tensor.spec, ArraySpec):
                self._give_state(number, value)
            else:
                self._give(f"%d{next(positions)}", tensor, value)
        loop = self.operations[0]
        if loop in self.context.loop_trips:
            self._note(TRIPS, self.context.loop_trips[loop])
        for record in self.context.records.values():
            self._note(FIRST_SIZE + record.number, record.count)
        self._give_scalars()
        function.line("ret i32 0")

    def _note(self, place: int, slot: str) -> None:
        """Print the number in a slot to its place among the counts."""
        register = self.function.load("i64", slot)
        self.function.line(f"store i64 {register}, ptr {self.function.element('i64', self.counts, str(place))}")

    def _is_made(self, resource: Variable | SeedGenerator, is_written: bool) -> bool:
        """Test whether the operand is made for each call, rather than a variable's value."""
        if isinstance(resource, SeedGenerator):
            return True
        return is_written and not self.is_whole and resource.shape != ()

    def _hold(self, resource: Variable | SeedGenerator, is_written: bool) -> None:
        """Add one more operand: the value of a variable or generator."""
        if isinstance(resource, SeedGenerator):
            dtype, shape = np.dtype("int64"), (2,)
        else:
            shape, dtype = _static_shape(resource), np.dtype(name_of(resource.dtype))
        is_scalar, kind = not shape, type_of(dtype)
        is_made = self._is_made(resource, is_written)
        if is_made and math.prod(shape) * dtype.itemsize > _MOST_COPIED_BYTES:
            raise UnsupportedError("a large variable is written")
        bit = -1
        if is_written and (is_made or is_scalar):
            bit = 1 + max((known.bit for known in self.variables), default=-1)
        if bit > _LAST_BIT:
            raise UnsupportedError("many variables are written")
        position = self._add(dtype, shape or None, is_written and not is_scalar)
        self.variables.append(HeldValue(resource, bit, is_scalar, is_made))
        copies = resource in self.copied
        held = Held(resource, bit, kind, shape, is_written=is_written, is_own=not is_made, copies=copies)
        if is_scalar:
            held.slot = self.function.slot(kind)
            self.function.prologue.append(f"  store {kind} %x{position}, ptr {held.slot}")
        else:
            held.pointer = f"%d{position}"
        if not is_written and not is_scalar:
            self.function.outside.add(held.pointer)
        self.context.variables.add(held)

    def _give_scalars(self) -> None:
        """Print the end of the function: note what was written, and store the scalars."""
        if self.context.variables.written:
            self._note(WRITTEN, self.context.variables.written)
        for held, position in self.scalars:
            value = self.function.let(f"load {held.kind}, ptr {held.slot}")
            self.function.store(held.kind, value, f"%d{position}")

    def _print_ends(self) -> None:
        """Print the other ways out."""
        function = self.function
        self.context.variables.drop_guards()
        for label in ("interrupted", "failed", "no_room"):
            function.begin(label)
            function.jump("undo")
        function.begin("undo")
        code = function.let("phi i32 [2, %failed], [3, %no_room], [4, %interrupted]")
        self.context.variables.print_undoing()
        function.line(f"ret i32 {code}")

    def _new_state(self, tensor: Symbol) -> State:
        """Add two operands: the elements, and what says which are there."""
        spec = tensor.spec
        assert isinstance(spec, ArraySpec)
        shape, kind = _element_shape(spec), type_of(tensor.dtype)
        number = len(self.rooms)
        self.rooms.append(Room(_dtype(tensor), shape))
        position = self._add(_dtype(tensor), (None, *shape), True)
        flags = self._add(np.dtype("uint8"), (None,), True)
        size = self.function.slot("i64")
        self.function.prologue.append(f"  store i64 0, ptr {size}")
        return State(number, kind, shape, f"%d{position}", f"%d{flags}", size, f"%rows{position}")

    def _new_record(self, tensor: Symbol) -> Record:
        """Add one operand: the values, or where those of each inner loop end."""
        inner = recorded_inside(tensor)
        of = None if inner is None else self.context.record_of(inner)
        if of is not None and of.of is not None:
            raise UnsupportedError("a record of records of records")
        shape, dtype = (shape_of(tensor), _dtype(tensor)) if of is None else ((), np.dtype("int64"))
        number = len(self.rooms)
        self.rooms.append(Room(dtype, shape, is_record=True, of=None if of is None else of.number))
        position = self._add(dtype, (None, *shape), True)
        count = self.function.slot("i64")
        self.function.prologue.append(f"  store i64 0, ptr {count}")
        return Record(number, type_of(dtype), shape, f"%d{position}", f"%rows{position}", count, of)

    def _first_state(self, tensor: Symbol) -> Slots:
        """Return a state that starts with the elements of an input."""
        state = self._new_state(tensor)
        self.rooms[-1].source = place_among(tensor, self.inputs)
        place = self.function.element("i64", self.counts, str(FIRST_SIZE + state.number))
        self.function.line(f"store i64 {self.function.let(f'load i64, ptr {place}')}, ptr {state.size}")
        return Slots(state, 0)

    def _give_state(self, number: int, value: Value) -> None:
        if not isinstance(value, Slots) or value.version != value.state.version:
            raise UnsupportedError("a TensorArray that is given as it was")
        plan = self.rooms[value.state.number]
        if plan.result is not None:
            raise UnsupportedError("a TensorArray that is given twice")
        plan.result = number
        self._note(FIRST_SIZE + value.state.number, value.state.size)

    def _input(self, tensor: Symbol) -> Value:
        spec, kind = tensor.spec, type_of(tensor.dtype)
        if isinstance(spec, ArraySpec):
            shape = _element_shape(spec.element if isinstance(spec.element, ArraySpec) else spec)
            position = self._add(_dtype(tensor), (None, *shape))
            return Elements(f"%d{position}", kind, shape, f"%rows{position}")
        shape = shape_of(tensor)
        position = self._add(_dtype(tensor), shape or None)
        if not shape:
            return Scalar(f"%x{position}", kind)
        self.function.outside.add(f"%d{position}")
        return Array(f"%d{position}", kind, shape)

    def _with_ends(self, rows: Value) -> Ragged:
        """Return the rows of a TensorArray of TensorArrays as that: one more operand says where each ends."""
        assert isinstance(rows, Elements)
        position = self._add(np.dtype("int64"), (None,))
        count = self.function.let(f"sub i64 %rows{position}, 1")
        return Ragged(rows.pointer, rows.kind, rows.shape, f"%d{position}", count)

    def _give(self, pointer: str, tensor: Symbol, value: Value) -> None:
        check_in_use(value)
        shape = shape_of(tensor)
        if isinstance(value, Scalar) and not shape and value.kind == type_of(tensor.dtype):
            self.function.store(value.kind, value.name, pointer)
        elif isinstance(value, Array) and value.shape == shape and value.kind == type_of(tensor.dtype):
            self.function.copy_bytes(pointer, value.pointer, value.bytes)
        else:
            raise UnsupportedError("a result of another shape or type")

    def _text(self) -> str:
        function = self.function
        self._print_ends()
        lines = [
            *self.checks.globals_text(),
            *function.helpers_text(),
            "define i32 @NAME(i64 %table, ptr %operands) {",
            *function.slots,
            *self.context.pieces.slots(),
            *self._with_frame(self.checks.text()),
            "  br label %begin",
            "begin:",
            f"  %arena = getelementptr i8, ptr {self.arena}, i64 0",
            f"  %needed = getelementptr i64, ptr {self.counts}, i64 {NEEDED}",
            f"  store i64 {TICKS}, ptr {self.context.budget}",
            *function.prologue,
            "  br label %start",
            "start:",
            *function.lines,
            "refuse:\n  ret i32 1\n}\n",
        ]
        return "\n".join(lines)

    def _with_frame(self, lines: Sequence[str]) -> list[str]:
        """Return lines that name operands; those that pieces take are put into the frame at once."""
        if not self.context.pieces.given:
            return list(lines)
        found: list[str] = []
        for line in lines:
            found.append(line)
            found += self.context.pieces.given_lines(line.split(" = ")[0].strip())
        return found


def _inputs_of(operations: Sequence[Operation]) -> list[Symbol]:
    """Return the tensors that come from outside, but for scalar constants."""
    made = {tensor for operation in operations for tensor in operation.outputs}
    taken = dict.fromkeys(tensor for operation in operations for tensor in taken_inputs(operation))
    found: list[Symbol] = []
    for tensor in taken:
        is_constant = isinstance(tensor.operation.op, Constant)
        if (tensor in made and not (is_constant and tensor.shape != ())) or (is_constant and tensor.shape == ()):
            continue
        if isinstance(tensor.spec, FrameSpec):
            raise UnsupportedError("a frame from outside")
        found.append(tensor)
    return found


def _written(operations: Sequence[Operation]) -> set[Symbol]:
    """Return the TensorArrays from outside that loop variables start as."""
    loops = [operation for operation in operations if isinstance(operation.op, While)]
    return {tensor for operation in loops for tensor in operation.own_inputs if isinstance(tensor.spec, ArraySpec)}


def _constants_inside(operations: Sequence[Operation], known: Sequence[Symbol]) -> list[Symbol]:
    """Return the constant arrays whose values are needed, or recorded, in regions too."""
    found: dict[Symbol, None] = {}
    for operation in all_operations(operations):
        results = [tensor for region in operation.op.regions for tensor in (*region.results, *region.demanded)]
        for tensor in (*taken_inputs(operation), *results):
            if isinstance(tensor.operation.op, Constant) and tensor.shape != () and not is_among(tensor, known):
                found[tensor] = None
    return list(found)


def _arrays_of(constants: Sequence[Symbol]) -> list[Any]:
    return [np.ascontiguousarray(_value_of(tensor)) for tensor in constants]


def _value_of(tensor: Symbol) -> Any:
    op = tensor.operation.op
    assert isinstance(op, Constant)
    return op.value


def _element_shape(spec: ArraySpec) -> tuple[int, ...]:
    element = spec.element
    if not isinstance(element, TensorSpec) or not element.is_static or element.shape is None or spec.empty:
        raise UnsupportedError("a TensorArray of unknown elements")
    return tuple(int(dim or 0) for dim in element.shape)


def _static_shape(variable: Variable) -> tuple[int, ...]:
    if not variable.spec.is_static or variable.shape is None:
        raise UnsupportedError("a variable without a static shape")
    return tuple(int(dim or 0) for dim in variable.shape)


def _is_ragged(tensor: Symbol) -> bool:
    return isinstance(tensor.spec, ArraySpec) and isinstance(tensor.spec.element, ArraySpec)


def _dtype(tensor: Symbol) -> np.dtype[np.generic]:
    return np.dtype(name_of(tensor.dtype))


def module_text(plans: Iterable[tuple[str, str]]) -> str:
    """Return one module of several regions, given as (name, text)."""
    printed = "".join(text.replace("@NAME", f"@{name}") for name, text in plans)
    known = declarations().splitlines()
    wanted = [line for line in _declarations() if line not in known]
    return "\n".join(wanted) + "\n" + division_functions() + IS_ARRAY + printed


def _declarations() -> list[str]:
    """Return the declarations of functions that regions call beside those that kernels call."""
    lines = ['!100 = !{!"branch_weights", i32 1, i32 1000000}', '!101 = !{!"branch_weights", i32 1000000, i32 1}']
    for suffix, kind in (("f32", "float"), ("f64", "double")):
        for width in (1, 2, 4, 8, 16):
            lane = f"<{width} x {kind}>"
            lines.append(f"declare {lane} @llvm.fmuladd.v{width}{suffix}({lane}, {lane}, {lane})")
    lines += packed_declarations()
    return lines
