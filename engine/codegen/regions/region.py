"""`NativeRegion`: a compiled region as a function of values, and the choice of what becomes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from ...common.deadlines import requests_address
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.state.variable import Variable
from ...graph.tensor import Symbol
from ...ops.containers.array_value import ArrayValue
from ...ops.random.keys import SeedGenerator
from ...queues.stops import check_stop
from ..host import threads
from ..host.numpy_interface import empty_function
from ..llvm.builtin_functions import REGION
from .checks import Operand
from .compiling import FIRST_SIZE, FREE, NEEDED, REQUESTS, TRIPS, WRITTEN, HeldValue, Plan
from .ragged import RaggedArray, rows_and_ends, rows_of

_RAN, _REFUSED, _FAILED, _NO_ROOM, _INTERRUPTED = range(5)
_FIRST_CAPACITY = 16
_MOST_BYTES = 1 << 30  # of one room: with more, Python keeps what it records piece by piece


_current_value = attrgetter("_value")  # of a variable


class NativeRegion:
    """A region that runs as machine code.

    A call takes the statistics, to count what is saved, and the inputs of the plan. It returns the results, the
    histories and the trip count as a tuple; or None where the region can't be run so: an operation fails, or an operand
    is not what the program was compiled for. It has changed nothing then, so that the caller runs it on NumPy, which
    raises the error where it belongs. Nor has it where it is interrupted, or asked to end.

    Attributes:
        plan: the region, printed.
        seconds: about how long it takes, infinity where that depends on the data.
        is_free: whether it runs without the interpreter's lock, so that other threads of Python run beside it.
        entry: calls the compiled function with the operands, once there is one; returns how that has ended.
        gives_trips: whether the trip count is among the results.
        output_types: the shape and dtype of each result that is an array or a scalar.
        scalar_types: the dtypes of scalar variables that are written.
    """

    def __init__(self, plan: Plan, seconds: float = 0.0, is_free: bool = False) -> None:
        self.plan = plan
        self.seconds = seconds
        self.is_free = is_free
        self.entry: Any = None
        self.gives_trips = False
        operands, rooms = plan.operands, plan.rooms
        self._sources = {room.source for room in rooms if room.source is not None}
        taken = [tensor for k, tensor in enumerate(plan.inputs) if k not in self._sources]
        count = len(taken) + len(plan.constants)
        self._inputs = operands[: count + plan.ragged]
        self._held = operands[len(self._inputs) : len(self._inputs) + len(plan.variables)]
        self._arrays = [k for k, tensor in enumerate(taken) if isinstance(tensor.spec, ArraySpec)]
        self._ragged = [k for k in self._arrays if isinstance(_element_of(taken[k]), ArraySpec)]
        self._arrays = [k for k in self._arrays if k not in self._ragged]
        outputs = [tensor for tensor in plan.outputs if isinstance(tensor.spec, TensorSpec)]
        first = len(self._inputs) + len(self._held)
        self.output_types: list[tuple[Any, Any]] = [
            (operand.shape, operand.dtype) for operand in operands[first : first + len(outputs)]
        ]
        self._gives_arrays = any(shape for shape, _ in self.output_types)
        self._makers: list[Callable[[], Any] | None] = []
        self._plain: list[Any] = [held.resource for held in plan.variables if not held.is_made]
        made = [held.resource for held in plan.variables if held.is_made]
        self._copied: list[Any] = [resource for resource in made if isinstance(resource, Variable)]
        self._writes_in_place = any(
            operand.is_written and not held.is_made for held, operand in zip(plan.variables, self._held, strict=True)
        )
        self._generators = [generator.write_state for generator in made if isinstance(generator, SeedGenerator)]
        scalars = [held for held in plan.variables if held.is_scalar and held.bit >= 0]
        # The bit, the variable, and where its new value is: among the scalars, or among the values that were made.
        self._written: list[tuple[int, Any, int]] = [(1 << h.bit, h.resource, k) for k, h in enumerate(scalars)]
        self._changed: list[tuple[int, HeldValue, int]] = [
            (1 << held.bit, held, k) for k, held in enumerate(plan.variables) if held.is_made and held.bit >= 0
        ]
        self.scalar_types = [operand.dtype for operand in operands[first + len(outputs) :][: len(scalars)]]
        is_read_only = not (made or scalars or self._writes_in_place)
        self._is_simple = is_read_only and not (rooms or self._arrays or self._ragged)
        self._is_array = [not isinstance(tensor.spec, TensorSpec) for tensor in plan.outputs]
        self._room_of = {room.result: number for number, room in enumerate(rooms)}
        types = [id(operand.dtype.type) if operand.shape is None else id(operand.dtype) for operand in operands]
        self._memory = np.array([0, id(np.ndarray), *types], "int64")
        self._places: list[_Places] = []  # kept from call to call; as many as threads were in calls at once
        self._capacities = [_FIRST_CAPACITY] * len(rooms)

    def link(self, address: int) -> None:
        """Have calls run the compiled function at an address; errors of Python come through."""
        self._memory[0] = address
        self.entry = threads.builtin_function(REGION, self._memory)
        self._makers = [empty_function(shape, dtype) if shape else None for shape, dtype in self.output_types]

    def __call__(self, stats: Any, *values: Any) -> tuple[Any, ...] | None:
        found = self._run_simply(values) if self._is_simple and not self.gives_trips else None
        return found or self._run(stats, values)

    def _run_simply(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Run a region of arrays and scalars that writes nothing; None where more has to be done for that."""
        try:
            places = self._places.pop()
        except IndexError:
            return None
        outputs = self._new_outputs(places) if self._gives_arrays else places.outputs
        places.counts[NEEDED] = FREE if self.is_free else 0
        held = map(_current_value, self._plain)
        code = self.entry(*values, *self.plan.constants, *held, *outputs, places.counts, places.arena)
        found = tuple([output if output.ndim else output[()] for output in outputs]) if code == _RAN else None
        self._places.append(places)
        return found

    def _run(self, stats: Any, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Run the region; None where it can't be run so."""
        given = self._given(values)
        if given is None:
            return None
        places = self._places.pop() if self._places else _Places(self)
        held = self._values(places) if self._held else []
        outputs = self._new_outputs(places) if self._gives_arrays else places.outputs
        counts = places.counts
        refitted = False
        while True:
            rooms = self._filled_rooms(values, counts) if self.plan.rooms else []
            if rooms is None:
                return None
            counts[NEEDED] = FREE if self.is_free else 0
            parts = [part for room in rooms for part in room]
            code = self.entry(*given, *held, *outputs, *places.scalars, counts, places.arena, *parts)
            if code == _RAN:
                if (self._written or self._changed) and not self._note_written(held, places):
                    return None  # another thread has drawn keys meanwhile
                results = self._results(stats, outputs, rooms, counts)
                self._places.append(places)
                return results
            if code == _NO_ROOM and self._grow(int(counts[NEEDED])):
                held = self._values(places)  # copies once more
                continue
            if code == _INTERRUPTED:
                check_stop()
            if code != _REFUSED or refitted:
                return None
            refitted = True
            given = [_fitted(value, operand) for value, operand in zip(given, self._inputs, strict=True)]
            held = [_refitted(*each) for each in zip(self.plan.variables, held, self._held, strict=True)]

    def _new_outputs(self, places: _Places) -> list[Any]:
        """Make memory for results: arrays are given away, scalars are copied from memory that is used again."""
        return [own if make is None else make() for make, own in zip(self._makers, places.outputs, strict=True)]

    def _note_written(self, held: Sequence[Any], places: _Places) -> bool:
        """Give variables and generators the values that are not in their own memory.

        Returns whether the generators had not been advanced otherwise; else nothing is changed.
        """
        bits = int(places.counts[WRITTEN])
        if not bits:
            return True
        if self._generators:
            drawn = [
                (plan.resource, places.first_keys[k - len(held) + len(places.keys)], held[k])
                for bit, plan, k in self._changed
                if bits & bit and isinstance(plan.resource, SeedGenerator)
            ]
            if not SeedGenerator.advance_all(drawn):
                if not self._writes_in_place:
                    return False
                for generator, _, after in drawn:  # what is written can't be taken back any more
                    generator.state = after
        for bit, variable, k in self._written:
            if bits & bit:
                variable._value = places.scalars[k][()]
        for bit, plan, k in self._changed:
            if bits & bit and not isinstance(plan.resource, SeedGenerator):
                plan.resource.write_value(held[k])
        return True

    def _values(self, places: _Places) -> list[Any]:
        """Return the current values of variables and generators."""
        values: list[Any] = list(map(_current_value, self._plain))
        if self._copied:
            values += [np.array(variable._value, order="C") for variable in self._copied]
        for write_state, key in zip(self._generators, places.keys, strict=True):
            write_state(key)
        places.first_keys = [key.tolist() for key in places.keys]
        return values + places.keys

    def _given(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the operands that are read, TensorArrays as the rows of arrays; None where they can't be."""
        passed = values if not self._sources else [v for k, v in enumerate(values) if k not in self._sources]
        given = [*passed, *self.plan.constants]
        for position in self._arrays:
            operand = self._inputs[position]
            given[position] = rows_of(given[position], operand.shape, operand.dtype)
            if given[position] is None:
                return None
        for position in self._ragged:
            operand = self._inputs[position]
            pair = rows_and_ends(given[position], operand.shape, operand.dtype)
            if pair is None:
                return None
            given[position] = pair[0]
            given.append(pair[1])
        return given

    def _grow(self, needed: int) -> bool:
        """Double the room; all records grow together, as they would ask one by one. Return False if it is too much."""
        asking = self.plan.rooms[needed]
        if self._capacities[needed] * math.prod(asking.shape) * asking.dtype.itemsize > _MOST_BYTES:
            self._capacities = [_FIRST_CAPACITY] * len(self._capacities)
            return False
        is_record = asking.is_record
        for number, room in enumerate(self.plan.rooms):
            if number == needed or (is_record and room.is_record):
                self._capacities[number] *= 2
        return True

    def _filled_rooms(self, values: Sequence[Any], counts: Any) -> list[tuple[Any, ...]] | None:
        """Return each room's memory; of a TensorArray also what says which elements are there, as it is at first."""
        rooms: list[tuple[Any, ...]] = []
        for number, plan in enumerate(self.plan.rooms):
            if plan.is_record:
                capacity = self._capacities[number if plan.leader is None else plan.leader]
                rooms.append((np.empty((capacity, *plan.shape), plan.dtype),))
                continue
            source: ArrayValue | None = None if plan.source is None else values[plan.source]
            size = 0 if source is None else source.size
            capacity = self._capacities[number] = max(self._capacities[number], size)
            rows, flags = np.empty((capacity, *plan.shape), plan.dtype), np.zeros(capacity, "uint8")
            counts[FIRST_SIZE + number] = size
            if source is not None and not _fill(source, rows, flags):
                return None
            rooms.append((rows, flags))
        return rooms

    def _results(self, stats: Any, outputs: list[Any], rooms: list[tuple[Any, ...]], noted: Any) -> Any:
        if not rooms and not self.gives_trips:
            return tuple([output if output.ndim else output[()] for output in outputs])
        counts: list[int] = noted.tolist()
        remaining = iter(outputs)
        results: list[Any] = []
        for number, is_written in enumerate(self._is_array):
            if is_written:
                room = self._room_of[number]
                rows, flags = rooms[room]
                results.append(_array_value(rows, flags, counts[FIRST_SIZE + room]))
            else:
                output = next(remaining)
                results.append(output if output.ndim else output[()])
        if self.plan.histories:
            histories = [self._history(number, rooms, counts) for number in self.plan.histories]
            stats.note_saved(*histories)
            results += histories
        if self.gives_trips:
            results.append(counts[TRIPS])
        return tuple(results)

    def _history(self, number: int, rooms: list[tuple[Any, ...]], counts: list[int]) -> ArrayValue:
        of = self.plan.rooms[number].of
        if of is None:
            return ArrayValue.from_stacked(self._recorded(number, rooms, counts[FIRST_SIZE + number]))
        ends = self._recorded(number, rooms, counts[FIRST_SIZE + number] + 1)
        return RaggedArray(self._recorded(of, rooms, counts[FIRST_SIZE + of]), ends)

    def _recorded(self, number: int, rooms: list[tuple[Any, ...]], count: int) -> Any:
        """Return the recorded rows in the room of a record, which is smaller from now on if little was recorded."""
        (rows,) = rooms[number]
        if count >= len(rows) // 2:
            return rows[:count]
        self._capacities[number] = count + count // 2 + 2
        return rows[:count].copy()


class _Places:
    """The arrays that one call of a region needs, for the next one to use again."""

    def __init__(self, region: NativeRegion) -> None:
        plan = region.plan
        self.arena: Any = np.empty(plan.arena_size, "uint8")
        self.counts: Any = np.zeros(FIRST_SIZE + len(plan.rooms), "int64")
        self.counts[REQUESTS] = requests_address()
        self.first_keys: list[list[int]] = []
        self.keys: list[Any] = [np.empty(2, "int64") for h in plan.variables if isinstance(h.resource, SeedGenerator)]
        self.scalars: list[Any] = [np.empty((), dtype) for dtype in region.scalar_types]
        self.outputs: list[Any] = [np.empty((), dtype) for _, dtype in region.output_types]


def _refitted(plan: HeldValue, value: Any, operand: Operand) -> Any:
    """Return a value as the region takes it; a variable whose own memory is written gets memory that can be."""
    if isinstance(plan.resource, SeedGenerator):
        return value
    if operand.shape is None:
        return operand.dtype.type(value)
    is_right = value.dtype == operand.dtype and value.shape == operand.shape
    if not is_right or (value.dtype is operand.dtype and value.flags.carray):
        return value
    fitted = np.empty(value.shape, operand.dtype)
    fitted[...] = value
    if operand.is_written and not plan.is_made:
        plan.resource.write_value(fitted)
    return fitted


def _element_of(tensor: Symbol) -> Any:
    assert isinstance(tensor.spec, ArraySpec)
    return tensor.spec.element


def _fill(source: ArrayValue, rows: Any, flags: Any) -> bool:
    """Copy the elements that are there; False if one is of another shape or type."""
    if source.is_unwritten:
        return True
    for index in range(source.size):
        element = source.read_or_none(index)
        if element is None:
            continue
        if element.shape != rows.shape[1:] or element.dtype != rows.dtype:
            return False
        rows[index] = element
        flags[index] = 1
    return True


def _array_value(rows: Any, flags: Any, size: int) -> ArrayValue:
    """Return a TensorArray of `size` elements of which those with a flag are there."""
    if b"\0" not in flags[:size].tobytes():  # many times as quick as `all` for the few flags of a short loop
        return ArrayValue.from_stacked(rows[:size])
    return ArrayValue.from_written(size, {index: rows[index] for index in range(size) if flags[index]})


def _fitted(value: Any, operand: Any) -> Any:
    """Return a value as the region takes it: contiguous, and of the very dtype.

    None, which a branch saves if it is not taken, becomes zeros: only the gradient of the same branch reads it.
    """
    if value is None:
        if operand.shape is None:
            return operand.dtype.type(0)
        return np.zeros([size or 0 for size in operand.shape], operand.dtype)
    if operand.shape is None:
        return operand.dtype.type(value)
    fitted = np.ascontiguousarray(value, operand.dtype)
    return fitted if fitted.flags.aligned and fitted.dtype is operand.dtype else fitted.astype(operand.dtype, copy=True)


def free_text(name: str) -> str:
    """Return the entry of region `name` that releases Python's lock while it runs."""
    return f"""
define i32 @{name}_free(i64 %table, ptr %operands) {{
  %thread = call ptr @PyEval_SaveThread()
  %code = call i32 @{name}(i64 %table, ptr %operands) noinline
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %code
}}
"""


def entries(plans: Sequence[NativeRegion], compiled: Any, names: Sequence[str]) -> None:
    """Give regions their compiled functions."""
    for region, name in zip(plans, names, strict=True):
        region.link(compiled.get_function_address(f"{name}_free" if region.is_free else name))
