"""An LLVM function under construction: registers, loops, and an arena in which arrays have fixed places.

A place in the arena is given back as soon as no value refers to it, at the time of printing: so what is used in the
rounds of a loop has to be alive (referred to) while all of the loop is printed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from typing import ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ..expression.expression import UnsupportedError
from ..llvm.builder import LOOP, Builder
from .scalars import size_of

_ALIGNMENT = 64
MOST_ARENA_BYTES = 1 << 22


class TooLargeError(Exception):
    """A region that native code would not make faster, or that would take too long to compile."""


@dataclass(eq=False)
class Buffer:
    """A place in the arena; `users` values refer to it."""

    offset: int
    size: int
    users: int = 0


@dataclass(frozen=True)
class Scalar:
    """A value in a register."""

    name: str
    kind: str


@dataclass(frozen=True)
class Array:
    """A contiguous array of a known shape."""

    pointer: str
    kind: str
    shape: tuple[int, ...]
    buffers: frozenset[Buffer] = field(default=frozenset())

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * size_of(self.kind)


@dataclass(frozen=True)
class Complex:
    """Complex numbers: arrays of their real and of their imaginary parts, of one shape and type."""

    real: Array
    imag: Array

    @property
    def kind(self) -> str:
        return self.real.kind


@dataclass(frozen=True)
class Elements:
    """The value of a TensorArray whose elements are all there: the rows of one block of memory.

    An array whose first dimension is known only at run time is the same: its rows.

    Attributes:
        count: how many there are, an i64.
        shape: of an element.
        of: the TensorArray in whose memory they are, if that is written.
        buffers: the places in the arena in which they are.
    """

    pointer: str
    kind: str
    shape: tuple[int, ...]
    count: str
    of: Slots | None = None
    buffers: frozenset[Buffer] = field(default=frozenset())

    @property
    def is_there(self) -> bool:
        """Test whether nothing was written over it."""
        return self.of is None or self.of.version == self.of.state.version


@dataclass(frozen=True)
class Ragged:
    """The value of a TensorArray of TensorArrays: the rows of all, one after the other.

    Attributes:
        offsets: the memory that holds where each begins, and where the last one ends, as i64.
        count: how many there are, an i64.
        shape: of a row.
    """

    pointer: str
    kind: str
    shape: tuple[int, ...]
    offsets: str
    count: str


@dataclass(eq=False)
class State:
    """The memory of a TensorArray that is written.

    Attributes:
        number: which of the region's states it is.
        rows, flags: where its elements are, and a byte for each that says whether it is there.
        size: the stack slot that holds how many elements it has.
        capacity: how many there is room for.
        version: of the value that it holds.
    """

    number: int
    kind: str
    shape: tuple[int, ...]
    rows: str
    flags: str
    size: str
    capacity: str
    version: int = 0


@dataclass(eq=False)
class Record:
    """The place where a loop puts the values of a tensor.

    Attributes:
        number: by which more room is asked for.
        rows: the memory: a row for each iteration, or, of TensorArrays, where each ends.
        capacity: how many rows there is room for.
        count: the stack slot that holds how many there are.
        of: where the rows of the TensorArrays are.
        leader: the number of the record that has the same count, if that was made before.
    """

    number: int
    kind: str
    shape: tuple[int, ...]
    rows: str
    capacity: str
    count: str
    of: Record | None = None
    leader: int | None = None

    def follow(self, other: Record) -> None:
        """Have as many rows as another record, and as much room, from now on."""
        self.capacity, self.count, self.leader = other.capacity, other.count, other.number


@dataclass(frozen=True)
class Slots:
    """A value of a TensorArray that is written: its state at a version."""

    state: State
    version: int

    @property
    def kind(self) -> str:
        return self.state.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.state.shape


Value = Scalar | Array | Complex | Elements | Ragged | Slots


class Function(Builder):
    """Lines of LLVM IR, and the arena in which the arrays that they make have places."""

    def __init__(self) -> None:
        super().__init__("start")
        self.arena_size = 0
        self.prologue: list[str] = []  # lines that run once, before the others
        self.prologue_block = "begin"
        self.outside: set[str] = set()  # pointers to what does not change while the function runs
        self.helpers: dict[str, str] = {}  # texts of functions that are called, with their names
        self._turned: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._zeros: dict[int, Array] = {}  # by their bytes
        self._free: list[tuple[int, int]] = []  # offset and size, in order

    @contextmanager
    def count(self, extent: int | str, is_parallel: bool = False) -> Generator[str]:
        """Print a block for each number from 0 to before `extent`; yield the number. One round is not a loop.

        Args:
            extent: how many rounds there are.
            is_parallel: whether it is an innermost loop of independent iterations.
        """
        if extent == 1:
            yield "0"
            return
        with self.loop(0, extent, metadata=LOOP if is_parallel else "") as number:
            yield number

    @contextmanager
    def counters(self, dims: Sequence[int], is_parallel: bool = False) -> Generator[list[str]]:
        """Print a block for each place in a space of so many elements along its axes; yield its numbers.

        Args:
            dims: the sizes of the axes, the innermost last.
            is_parallel: whether the innermost loop has independent iterations.
        """
        last = len(dims) - 1
        with ExitStack() as loops:
            yield [loops.enter_context(self.count(dim, is_parallel and axis == last)) for axis, dim in enumerate(dims)]

    def offset_of(self, indices: Sequence[str], strides: Sequence[int]) -> str:
        """Return the sum of indices times strides."""
        total = "0"
        for index, stride in zip(indices, strides, strict=True):
            if stride == 0 or index == "0":
                continue
            term = index if stride == 1 else self.let(f"mul nsw i64 {index}, {stride}")
            total = term if total == "0" else self.let(f"add nsw i64 {total}, {term}")
        return total

    def put(self, value: Value, kind: str, shape: tuple[int, ...], target: str, place: str) -> None:
        """Write a value into the memory of an element of a stack or record.

        Args:
            value: what is written.
            kind: the LLVM type of the element's numbers.
            shape: of the element.
            target: its pointer.
            place: what it belongs to, for the error.

        Raises:
            UnsupportedError: the value has another shape or type.
        """
        if isinstance(value, Scalar) and not shape and value.kind == kind:
            self.store(kind, value.name, target)
        elif isinstance(value, Array) and value.shape == shape and value.kind == kind:
            self.copy_bytes(target, value.pointer, value.bytes)
        else:
            raise UnsupportedError(f"{place} of another shape or type")

    def zero(self, target: Array) -> None:
        """Fill an array with zeros."""
        self.clear_bytes(target.pointer, target.bytes)

    def helper(self, text: str) -> str:
        """Return the name of a function whose text calls it ``@HELPER``."""
        return self.helpers.setdefault(text, f"@NAME_helper_{len(self.helpers)}")

    def helpers_text(self) -> list[str]:
        """Return the functions that are called."""
        return [text.replace("@HELPER", name) for text, name in self.helpers.items()]

    def turned(
        self, matrix: Array, shape: tuple[int, int], make: Callable[[Function, Array, tuple[int, int]], Array]
    ) -> Array:
        """Return the transpose of a matrix, which `make` prints; of one from outside, made once, before all else."""
        if matrix.pointer not in self.outside:
            return make(self, matrix, shape)
        known = self._turned.get((matrix.pointer, shape))
        if known is None:
            with self.before_all():
                known = self._turned[matrix.pointer, shape] = make(self, matrix, shape)
            self.hold(known)
        return known

    def zeros(self, like: Array) -> str:
        """Return the address of zeros of that shape, which nothing changes."""
        known = self._zeros.get(like.bytes)
        if known is None:
            with self.before_all():
                known = self._zeros[like.bytes] = self.allocate(like.kind, like.shape)
                self.zero(known)
            self.hold(known)
        return known.pointer

    @contextmanager
    def before_all(self) -> Generator[None]:
        """Print the code of the block before the rest, to run once, in memory that nothing used or uses."""
        free, self._free = self._free, []
        self._swap_prologue()
        yield
        self._swap_prologue()
        self._free = free

    def _swap_prologue(self) -> None:
        self.lines, self.prologue = self.prologue, self.lines
        self.block, self.prologue_block = self.prologue_block, self.block

    # --- the arena ------------------------------------------------------------------------------------------

    def allocate(self, kind: str, shape: tuple[int, ...]) -> Array:
        """Return a new array, whose place is given back when its last user is gone."""
        size = max(1, math.prod(shape) * size_of(kind))
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        buffer = Buffer(self._take(size), size)
        pointer = self.let(f"getelementptr inbounds i8, ptr %arena, i64 {buffer.offset}")
        return Array(pointer, kind, shape, frozenset([buffer]))

    def allocate_zeros(self, kind: str, shape: tuple[int, ...]) -> Array:
        """Return a new array of zeros."""
        target = self.allocate(kind, shape)
        self.zero(target)
        return target

    def copy_of(self, array: Array) -> Array:
        """Return a new array with the elements of another one."""
        target = self.allocate(array.kind, array.shape)
        self.copy_bytes(target.pointer, array.pointer, target.bytes)
        return target

    def _take(self, size: int) -> int:
        for position, (offset, free) in enumerate(self._free):
            if free >= size:
                self._free[position : position + 1] = [(offset + size, free - size)] if free > size else []
                return offset
        offset = self.arena_size
        self.arena_size += size
        if self.arena_size > MOST_ARENA_BYTES:
            raise TooLargeError("its arrays are large")
        return offset

    def hold(self, value: Value) -> None:
        """Add one user of a value's memory."""
        for buffer in buffers_of(value):
            buffer.users += 1

    def release(self, value: Value) -> None:
        """Remove one user of a value's memory, which is given back after the last one."""
        for buffer in buffers_of(value):
            buffer.users -= 1
            if buffer.users == 0:
                self._give_back(buffer)

    def disown(self, value: Value) -> None:
        """Remove one user, but give nothing back: whoever takes the value holds it in turn."""
        for buffer in buffers_of(value):
            buffer.users -= 1

    def _give_back(self, buffer: Buffer) -> None:
        self._free.append((buffer.offset, buffer.size))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for offset, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self._free = merged


def buffers_of(value: Value) -> Iterable[Buffer]:
    """Return the places in the arena that a value refers to."""
    if isinstance(value, Complex):
        return value.real.buffers | value.imag.buffers
    return value.buffers if isinstance(value, (Array, Elements)) else ()


def strides_of(shape: Sequence[int], space: Sequence[int]) -> list[int]:
    """Return the strides, in elements, to step through an array of `shape` over `space`; 0 where broadcast."""
    aligned = [1] * (len(space) - len(shape)) + list(shape)
    strides: list[int] = []
    step = 1
    for dim in reversed(aligned):
        strides.insert(0, 0 if dim == 1 else step)
        step *= dim
    return strides


def collapsed(space: Sequence[int], patterns: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop axes of 1 from the space, and join neighbours that all of `patterns` (strides) step through as one."""
    dims: list[int] = []
    strides: list[list[int]] = [[] for _ in patterns]
    for axis in range(len(space)):
        if space[axis] == 1:
            continue
        joins = bool(dims) and all(
            own[-1] == pattern[axis] * space[axis] for own, pattern in zip(strides, patterns, strict=True)
        )
        if joins:
            dims[-1] *= space[axis]
        else:
            dims.append(space[axis])
        for own, pattern in zip(strides, patterns, strict=True):
            if joins:
                own[-1] = pattern[axis]
            else:
                own.append(pattern[axis])
    return dims, strides


def reshaped(function: Function, value: Value, shape: tuple[int, ...]) -> Value:
    """Print the same elements in another shape."""
    if not isinstance(value, (Scalar, Array)):
        raise UnsupportedError("a TensorArray")
    if isinstance(value, Scalar):
        if not shape:
            return value
        target = function.allocate(value.kind, shape)
        function.store(value.kind, value.name, target.pointer)
        return target
    if not shape:
        return Scalar(function.load(value.kind, value.pointer), value.kind)
    return Array(value.pointer, value.kind, shape, value.buffers)


class FormContext(ABC):
    """The part of the state of printing a region that the native forms of operations use; `Context` has all of it.

    Attributes:
        function: the function under construction.
        host: the processor (`Library.host`).
        failed: the label to go to when an operation fails.
        targets: the memory in which tensors are wanted.
        constants: arrays that the region holds.
        work: how much the region computes.
        exits: behind how many lines the function may be left because something failed, there is no room, or the step
            has to end.
    """

    failed: ClassVar[str] = "failed"

    def __init__(self, host: str) -> None:
        self.function = Function()
        self.host = host
        self.targets: dict[Symbol, Array] = {}
        self.constants: dict[Symbol, Value] = {}
        self.work: int = 0
        self.exits: list[int] = []

    @abstractmethod
    def print_form(self, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
        """Print an operation that holds no regions."""

    @abstractmethod
    def new_state(self, tensor: Symbol) -> State:
        """Make memory for a TensorArray that is written."""

    def need_unless(self, condition: str, number: int) -> None:
        """Leave the function and ask for more room for a state (or, for -1, for histories), unless there is enough."""
        function = self.function
        self.exits.append(len(function.lines))
        on, more = function.fresh("on"), function.fresh("more")
        function.line(f"br i1 {condition}, label %{on}, label %{more}, !prof !101")
        function.begin(more)
        function.line(f"store i64 {number}, ptr %needed")
        function.jump("no_room")
        function.begin(on)

    def fail_unless(self, condition: str) -> None:
        """Leave the function, so that the operation runs again where its error is raised."""
        on = self.function.fresh("on")
        self.exits.append(len(self.function.lines))
        self.function.branch(condition, on, self.failed)
        self.function.begin(on)


Form = Callable[[FormContext, Operation, Sequence[Value]], list[Value]]
"""A function that prints an operation, of which it gets the values of the inputs; it returns those of the outputs."""


def shape_of(tensor: Symbol) -> tuple[int, ...]:
    """Return the static shape of a tensor.

    Raises:
        UnsupportedError: it is not known.
    """
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or not spec.is_static or spec.shape is None:
        raise UnsupportedError("a tensor without a static shape")
    return tuple(int(dim or 0) for dim in spec.shape)
