"""Builds functions of LLVM IR: values, addresses, loads and stores, loops and branches, as blocks of Python.

Kernels, products and compiled regions all print by it. Sizes are numbers where they are known while the function is
printed, and registers of type i64 otherwise; arithmetic of numbers is done at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, NamedTuple

from .subnormals import flushing

Size = str | int  # a value of type i64: a register, or a number
BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}  # of an element in memory
ELEMENTS = {"float32": "float", "float64": "double"}  # types by dtypes
MEMORY = {"i1": "i8", "bfloat": "i16"}  # the types of elements in memory, where they are others than in registers

# Metadata, which `declarations` of `expression.llvm` defines.
IN_LOOP = ", !llvm.access.group !0"  # of loads and stores of an innermost loop
LOOP = ", !llvm.loop !2"  # of the branch back: iterations are independent, but for sums
SHORT_LOOP = ", !llvm.loop !3"  # the same, of loops that run for a few vectors: one at a time

_LINE = 64  # bytes of a cache line


class Carried(NamedTuple):
    """A value that goes from one iteration of a loop to the next.

    Attributes:
        name: the register that holds it in an iteration.
        kind: its type.
        initial: its value before the first iteration.
        following: the register that holds its value for the next iteration, by the end of one.
    """

    name: str
    kind: str
    initial: str
    following: str


class Builder:
    """Lines of LLVM IR under construction.

    Attributes:
        lines: instructions and labels, in order.
        slots: stack slots, which belong into the first block of the function: LLVM makes registers of them.
        block: the label of the block that is being printed.
        loop_metadata: what is attached to the branch back of each loop.
    """

    loop_metadata: ClassVar[str] = ""

    def __init__(self, block: str) -> None:
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.block = block
        self._count = 0

    def line(self, text: str) -> None:
        """Print an instruction."""
        self.lines.append(f"  {text}")

    def fresh(self, hint: str = "v") -> str:
        """Return a name, without its sign, that nothing has yet."""
        self._count += 1
        return f"{hint}{self._count}"

    def let(self, text: str) -> str:
        """Print an instruction; return the register that holds its result."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return name

    def call(self, name: str, arguments: Sequence[tuple[str, Size]]) -> None:
        """Call a function that returns nothing; arguments are types and values."""
        self.line(f"call void @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def call_on(self, name: str, pointers: Sequence[str], sizes: Sequence[Size]) -> None:
        """Call a function that takes pointers, and sizes behind them (see `taking`)."""
        self.call(name, [*[("ptr", pointer) for pointer in pointers], *[("i64", size) for size in sizes]])

    # --- sizes ----------------------------------------------------------------------------------------------

    def add(self, *terms: Size) -> Size:
        """Return the sum of sizes."""
        total: Size = 0
        for term in terms:
            if isinstance(total, int) and isinstance(term, int):
                total += term
            elif total == 0 or term == 0:
                total = term if total == 0 else total
            else:
                total = self.let(f"add i64 {total}, {term}")
        return total

    def sub(self, left: Size, right: Size) -> Size:
        """Return the difference of two sizes."""
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        return left if right == 0 else self.let(f"sub i64 {left}, {right}")

    def mul(self, *factors: Size) -> Size:
        """Return the product of sizes."""
        total: Size = 1
        for factor in factors:
            if isinstance(total, int) and isinstance(factor, int):
                total *= factor
            elif total == 1 or factor == 1:
                total = factor if total == 1 else total
            else:
                total = self.let(f"mul i64 {total}, {factor}")
        return total

    def div(self, left: Size, right: Size) -> Size:
        """Return the quotient of sizes that are not negative, rounded down."""
        if isinstance(left, int) and isinstance(right, int):
            return left // right
        return left if right == 1 else self.let(f"sdiv i64 {left}, {right}")

    def rem(self, left: Size, right: Size) -> Size:
        """Return the remainder of sizes that are not negative."""
        if isinstance(left, int) and isinstance(right, int):
            return left % right
        return self.let(f"srem i64 {left}, {right}")

    def ceil_div(self, left: Size, right: Size) -> Size:
        """Return the quotient of sizes that are not negative, rounded up."""
        return self.div(self.sub(self.add(left, right), 1), right)

    def round_up(self, size: Size, multiple: Size) -> Size:
        """Return the least multiple that is not below `size`."""
        return self.mul(self.ceil_div(size, multiple), multiple)

    def least(self, left: Size, right: Size) -> Size:
        """Return the smaller one of two sizes."""
        return self.choose(self.compare("slt", left, right), left, right)

    def greatest(self, left: Size, right: Size) -> Size:
        """Return the larger one of two sizes."""
        return self.choose(self.compare("sgt", left, right), left, right)

    def compare(self, comparison: str, left: Size, right: Size) -> str:
        """Compare two sizes by a predicate of LLVM, such as ``"slt"``; return an i1."""
        return self.let(f"icmp {comparison} i64 {left}, {right}")

    def choose(self, condition: str, yes: Size, no: Size, kind: str = "i64") -> str:
        """Return one of two values, by a condition."""
        return self.let(f"select i1 {condition}, {kind} {yes}, {kind} {no}")

    # --- memory ---------------------------------------------------------------------------------------------

    def slot(self, kind: str = "i64", initial: str | None = None, alignment: int | None = None) -> str:
        """Return the address of a stack slot for a value of type `kind`, which is written here if it is given.

        Arrays and vectors begin at a cache line, unless another alignment is given.
        """
        name = f"%{self.fresh('s')}"
        alignment = alignment or (_LINE if "[" in kind or "<" in kind else None)
        self.slots.append(f"  {name} = alloca {kind}" + (f", align {alignment}" if alignment else ""))
        if initial is not None:
            self.line(f"store {kind} {initial}, ptr {name}")
        return name

    def at(self, kind: str, pointer: str, *offsets: Size) -> str:
        """Return the address some elements of type `kind` further on, which may be outside of the array."""
        for offset in offsets:
            if offset != 0:
                pointer = self.let(f"getelementptr {kind}, ptr {pointer}, i64 {offset}")
        return pointer

    def element(self, kind: str, pointer: str, index: Size) -> str:
        """Return the address of an element that the array behind `pointer` has."""
        return self.let(f"getelementptr inbounds {MEMORY.get(kind, kind)}, ptr {pointer}, i64 {index}")

    def load(self, kind: str, pointer: str, index: Size = 0, metadata: str = "") -> str:
        """Return element `index` of those behind `pointer`; bools are bytes in memory."""
        address = self.at(MEMORY.get(kind, kind), pointer, index)
        if kind == "i1":
            return self.let(f"icmp ne i8 {self.let(f'load i8, ptr {address}{metadata}')}, 0")
        return self.let(f"load {kind}, ptr {address}{metadata}")

    def store(self, kind: str, value: Size, pointer: str, index: Size = 0, metadata: str = "") -> None:
        """Write element `index` of those behind `pointer`; bools are bytes in memory."""
        if kind == "i1":
            value, kind = self.let(f"zext i1 {value} to i8"), "i8"
        self.line(f"store {kind} {value}, ptr {self.at(kind, pointer, index)}{metadata}")

    def load_integer(self, kind: str, pointer: str, index: Size) -> str:
        """Return an element that is an integer as an i64."""
        found = self.load(kind, pointer, index)
        return found if kind == "i64" else self.let(f"sext {kind} {found} to i64")

    def load_number(self, kind: str, pointer: str, metadata: str = "") -> str:
        """Return a number in the type in which it is computed: those of half types as float; "bfloat" is bits."""
        if kind == "half":
            return self.let(f"fpext half {self.load('half', pointer, 0, metadata)} to float")
        if kind == "bfloat":
            wide = self.let(f"zext i16 {self.load('i16', pointer, 0, metadata)} to i32")
            return self.let(f"bitcast i32 {self.let(f'shl i32 {wide}, 16')} to float")
        return self.load(kind, pointer, 0, metadata)

    def store_number(self, kind: str, value: str, pointer: str, metadata: str = "", is_rounded: bool = False) -> None:
        """Write what `load_number` reads.

        Args:
            is_rounded: whether a value for "bfloat" has no more bits than that has.
        """
        if kind == "half":
            value = self.let(f"fptrunc float {value} to half")
        elif kind == "bfloat":
            bits = self.let(f"bitcast float {value} to i32")
            bits = bits if is_rounded else self._rounded_to_bfloat(value, bits)
            value, kind = self.let(f"trunc i32 {self.let(f'lshr i32 {bits}, 16')} to i16"), "i16"
        self.store(kind, value, pointer, 0, metadata)

    def _rounded_to_bfloat(self, value: str, bits: str) -> str:
        """Return the bits of a float whose upper half is the nearest bfloat, to even; NaNs stay such."""
        is_odd = self.let(f"and i32 {self.let(f'lshr i32 {bits}, 16')}, 1")
        raised = self.let(f"add i32 {bits}, {self.let(f'add i32 {is_odd}, 32767')}")
        is_nan = self.let(f"fcmp uno float {value}, {value}")
        nan = self.let(f"or i32 {bits}, {0x00400000}")
        return self.let(f"select i1 {is_nan}, i32 {nan}, i32 {raised}")

    def load_vector(self, vector: str, kind: str, pointer: str, index: Size = 0) -> str:
        """Return the vector that begins at element `index` behind `pointer`."""
        return self.let(f"load {vector}, ptr {self.at(kind, pointer, index)}, align {BYTES[kind]}")

    def store_vector(self, vector: str, kind: str, value: str, pointer: str, index: Size = 0) -> None:
        """Write the vector that begins at element `index` behind `pointer`."""
        self.line(f"store {vector} {value}, ptr {self.at(kind, pointer, index)}, align {BYTES[kind]}")

    def copy(self, kind: str, source: str, target: str, count: Size) -> None:
        """Copy `count` elements to memory that does not overlap with theirs."""
        self.copy_bytes(target, source, self.mul(count, BYTES[kind]))

    def copy_bytes(self, target: str, source: str, size: Size) -> None:
        """Copy bytes between places that do not overlap."""
        self.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

    def clear(self, kind: str, pointer: str, count: Size) -> None:
        """Write `count` zeros."""
        self.clear_bytes(pointer, self.mul(count, BYTES[kind]))

    def clear_bytes(self, pointer: str, size: Size) -> None:
        """Write zeros into bytes."""
        self.line(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 0, i64 {size}, i1 false)")

    def prefetch(self, kind: str, pointer: str, start: Size, stop: Size, to_write: bool = False) -> None:
        """Fetch the elements from `start` to `stop` behind a pointer into the cache, line by line."""
        with self.loop(start, stop, _LINE // BYTES[kind]) as element:
            line = self.at(kind, pointer, element)
            self.line(f"call void @llvm.prefetch.p0(ptr {line}, i32 {int(to_write)}, i32 3, i32 1)")

    # --- vectors --------------------------------------------------------------------------------------------

    def broadcast(self, lanes: int, kind: str, value: str) -> str:
        """Return a vector of `lanes` times `value`."""
        vector = f"<{lanes} x {kind}>"
        first = self.let(f"insertelement {vector} undef, {kind} {value}, i32 0")
        return self.let(f"shufflevector {vector} {first}, {vector} undef, <{lanes} x i32> zeroinitializer")

    def shuffle(self, size: int, kind: str, first: str, second: str, places: Sequence[int]) -> str:
        """Return the elements of two vectors that are at `places`, those of the second counted from `size` on."""
        vector, listed = f"<{size} x {kind}>", ", ".join(f"i32 {place}" for place in places)
        return self.let(f"shufflevector {vector} {first}, {vector} {second}, <{len(places)} x i32> <{listed}>")

    def larger(self, lanes: int, vector: str, value: str, before: str) -> str:
        """Return the larger ones of two vectors, and NaN where `value` is NaN."""
        is_larger = self.let(f"fcmp ogt {vector} {value}, {before}")
        is_nan = self.let(f"fcmp uno {vector} {value}, {value}")
        chosen = self.let(f"or <{lanes} x i1> {is_larger}, {is_nan}")
        return self.let(f"select <{lanes} x i1> {chosen}, {vector} {value}, {vector} {before}")

    def multiply_add(self, kind: str, left: str, right: str, term: str) -> str:
        """Return ``left * right + term``, rounded once where the machine can."""
        product = self.let(f"fmul contract {kind} {left}, {right}")
        return self.let(f"fadd contract {kind} {product}, {term}")

    def add_product(self, kind: str, slot: str, left: str, right: str) -> None:
        """Add a product to what a slot holds."""
        total = self.load(kind, slot)
        self.store(kind, self.multiply_add(kind, left, right, total), slot)

    def combine(self, kind: str, slot: str, value: Size, instruction: str = "fadd") -> None:
        """Combine a value with what a slot holds, by an instruction that adds unless another one is given."""
        total = self.load(kind, slot)
        self.store(kind, self.let(f"{instruction} {kind} {total}, {value}"), slot)

    # --- control --------------------------------------------------------------------------------------------

    def begin(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str, metadata: str = "") -> None:
        """End the block with a branch to another one."""
        self.line(f"br label %{label}{metadata}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block with a branch to one of two."""
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    @contextmanager
    def loop(
        self, start: Size, stop: Size, step: Size = 1, metadata: str | None = None, carried: Sequence[Carried] = ()
    ) -> Generator[str]:
        """Print a block for each number from `start` to before `stop`; yield the number.

        Args:
            metadata: of the branch back, in place of `loop_metadata`.
            carried: further values that go from one iteration to the next.
        """
        head, body, latch, done = (self.fresh(hint) for hint in ("head", "body", "latch", "done"))
        before, number, following = self.block, f"%i_{head}", f"%n_{head}"
        self.jump(head)
        self.begin(head)
        self.line(f"{number} = phi i64 [{start}, %{before}], [{following}, %{latch}]")
        for each in carried:
            self.line(f"{each.name} = phi {each.kind} [{each.initial}, %{before}], [{each.following}, %{latch}]")
        self.branch(self.compare("slt", number, stop), body, done)
        self.begin(body)
        yield number
        self.jump(latch)
        self.begin(latch)
        self.line(f"{following} = add i64 {number}, {step}")
        self.jump(head, self.loop_metadata if metadata is None else metadata)
        self.begin(done)

    @contextmanager
    def nest(self, *counts: Size) -> Generator[list[str]]:
        """Print a block for each choice of numbers from 0 to before some counts, the last innermost; yield these."""
        with ExitStack() as loops:
            yield [loops.enter_context(self.loop(0, count)) for count in counts]

    @contextmanager
    def claim(self, counter: str, stop: Size) -> Generator[str]:
        """Print a block for each number before `stop` that a counter in memory gives, which threads share."""
        head, body, done = (self.fresh(hint) for hint in ("head", "body", "done"))
        self.jump(head)
        self.begin(head)
        number = self.let(f"atomicrmw add ptr {counter}, i64 1 monotonic")
        self.branch(self.compare("slt", number, stop), body, done)
        self.begin(body)
        yield number
        self.jump(head)
        self.begin(done)

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Print a block that runs only where `condition` holds."""
        name = self.fresh("l")
        self.branch(condition, f"{name}_then", f"{name}_done")
        self.begin(f"{name}_then")
        yield
        self.jump(f"{name}_done")
        self.begin(f"{name}_done")

    def unless(self, condition: str) -> AbstractContextManager[None]:
        """Print a block that runs only where `condition` does not hold."""
        return self.when(self.let(f"xor i1 {condition}, true"))


def suffix_of(kind: str) -> str:
    """Return a type as it stands in the names of LLVM's functions."""
    return {"float": "f32", "double": "f64"}.get(kind, kind)


def masked_load(lanes: int, kind: str, address: str, mask: str, otherwise: str) -> str:
    """Return the instruction that loads the lanes of `mask` of a vector; the others are those of `otherwise`."""
    vector, given = f"<{lanes} x {kind}>", f"ptr {address}, i32 {BYTES[kind]}, <{lanes} x i1> {mask}"
    return f"call {vector} @llvm.masked.load.v{lanes}{suffix_of(kind)}.p0({given}, {vector} {otherwise})"


def masked_store(lanes: int, kind: str, value: str, address: str, mask: str) -> str:
    """Return the instruction that stores the lanes of `mask` of a vector."""
    given = f"<{lanes} x {kind}> {value}, ptr {address}, i32 {BYTES[kind]}, <{lanes} x i1> {mask}"
    return f"call void @llvm.masked.store.v{lanes}{suffix_of(kind)}.p0({given})"


def declare_masked(lanes: int, kind: str) -> str:
    """Return the declarations of what `masked_load` and `masked_store` call."""
    name, vector, mask = f"v{lanes}{suffix_of(kind)}.p0", f"<{lanes} x {kind}>", f"<{lanes} x i1>"
    return (
        f"declare {vector} @llvm.masked.load.{name}(ptr, i32, {mask}, {vector})\n"
        f"declare void @llvm.masked.store.{name}({vector}, ptr, i32, {mask})\n"
    )


def taking(pointers: Sequence[str], sizes: Sequence[str] = ()) -> list[str]:
    """Return the parameters of a function that takes pointers, and sizes behind them (see `Builder.call_on`)."""
    return [*[f"ptr %{pointer}" for pointer in pointers], *[f"i64 %{size}" for size in sizes]]


class FunctionBuilder(Builder):
    """The body of one function under construction.

    Args:
        name: of the function, without the ``@``.
        parameters: each with its type, such as ``"ptr noalias %x"``.
        attributes: of the function, in place of `usual_attributes`.
        linkage: ``"internal"``, or ``""`` if code from elsewhere calls it.
        result: the type of what it returns.
        flushes: whether it computes with zeros in the place of subnormal numbers; see `subnormals`.
    """

    usual_attributes: ClassVar[str] = "noinline"

    def __init__(
        self,
        name: str,
        parameters: Sequence[str],
        attributes: str | None = None,
        linkage: str = "internal",
        result: str = "void",
        flushes: bool = False,
    ) -> None:
        super().__init__("start")
        self._is_void = result == "void"
        self._flushes = flushes
        attributes = self.usual_attributes if attributes is None else attributes
        words = ["define", linkage, result, f"@{name}({', '.join(parameters)})", attributes]
        self._head = " ".join(word for word in words if word) + " {\nentry:"

    def text(self) -> str:
        """Return the whole function; one without a result ends behind its last line."""
        ending = ["  ret void"] if self._is_void else []
        lines = flushing(self.lines) if self._flushes else self.lines
        return "\n".join([self._head, *self.slots, "  br label %start", "start:", *lines, *ending, "}\n"])
