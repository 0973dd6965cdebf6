"""Writes functions of LLVM IR line by line: loops, sums of sizes, loads and stores of single values and vectors.

What changes in a loop is kept in slots on the stack, of which LLVM makes registers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

Size = str | int  # a value of type i64: its name, or a number
BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}  # of an element in memory

_LINE = 64  # bytes of a cache line


class Code:
    """The body of one function under construction.

    Args:
        name: of the function, without the ``@``.
        parameters: type and name (with ``%``) of each.
        inline: whether it is to be part of its callers.
    """

    def __init__(self, name: str, parameters: Sequence[tuple[str, str]], inline: bool = False) -> None:
        listed = ", ".join(f"{kind} {parameter}" for kind, parameter in parameters)
        attribute = "alwaysinline" if inline else "noinline"
        self._head = f"define internal void @{name}({listed}) {attribute} {{\nentry:\n"
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        """The whole function."""
        lines = [*self._slots, "  br label %begin", "begin:", *self._lines, "  ret void"]
        return self._head + "\n".join(lines) + "\n}\n\n"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """The name of what the instruction `text` gives."""
        name = self._fresh("v")
        self.line(f"{name} = {text}")
        return name

    def slot(self, kind: str) -> str:
        """A place on the stack for a value of type `kind`."""
        name = self._fresh("s")
        self._slots.append(f"  {name} = alloca {kind}, align {64 if '[' in kind or '<' in kind else 8}")
        return name

    def _fresh(self, letter: str) -> str:
        self._count += 1
        return f"%{letter}{self._count}"

    # --- sizes ----------------------------------------------------------------------------------------------

    def add(self, *terms: Size) -> Size:
        total: Size = 0
        for term in terms:
            if isinstance(total, int) and isinstance(term, int):
                total += term
            elif total == 0 or term == 0:
                total = term if total == 0 else total
            else:
                total = self.value(f"add i64 {total}, {term}")
        return total

    def sub(self, left: Size, right: Size) -> Size:
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        return left if right == 0 else self.value(f"sub i64 {left}, {right}")

    def mul(self, *factors: Size) -> Size:
        total: Size = 1
        for factor in factors:
            if isinstance(total, int) and isinstance(factor, int):
                total *= factor
            elif total == 1 or factor == 1:
                total = factor if total == 1 else total
            else:
                total = self.value(f"mul i64 {total}, {factor}")
        return total

    def div(self, left: Size, right: Size) -> Size:
        """The quotient of what is not negative, rounded down."""
        if isinstance(left, int) and isinstance(right, int):
            return left // right
        return left if right == 1 else self.value(f"sdiv i64 {left}, {right}")

    def least(self, left: Size, right: Size) -> Size:
        return self._chosen("slt", left, right)

    def greatest(self, left: Size, right: Size) -> Size:
        return self._chosen("sgt", left, right)

    def _chosen(self, comparison: str, left: Size, right: Size) -> Size:
        condition = self.compare(comparison, left, right)
        return self.value(f"select i1 {condition}, i64 {left}, i64 {right}")

    def compare(self, comparison: str, left: Size, right: Size) -> str:
        return self.value(f"icmp {comparison} i64 {left}, {right}")

    # --- memory ---------------------------------------------------------------------------------------------

    def at(self, kind: str, pointer: str, index: Size) -> str:
        """The address of element `index` behind `pointer`, which points to elements of type `kind`."""
        return self.value(f"getelementptr {kind}, {kind}* {pointer}, i64 {index}")

    def load(self, kind: str, pointer: str, index: Size = 0) -> str:
        return self.value(f"load {kind}, {kind}* {self.at(kind, pointer, index)}")

    def store(self, kind: str, value: Size, pointer: str, index: Size = 0) -> None:
        self.line(f"store {kind} {value}, {kind}* {self.at(kind, pointer, index)}")

    def vector_at(self, vector: str, kind: str, pointer: str, index: Size) -> str:
        """The address of the vector that begins at element `index` behind `pointer`."""
        return self.value(f"bitcast {kind}* {self.at(kind, pointer, index)} to {vector}*")

    def load_vector(self, vector: str, kind: str, pointer: str, index: Size = 0) -> str:
        address = self.vector_at(vector, kind, pointer, index)
        return self.value(f"load {vector}, {vector}* {address}, align {BYTES[kind]}")

    def store_vector(self, vector: str, kind: str, value: str, pointer: str, index: Size = 0) -> None:
        address = self.vector_at(vector, kind, pointer, index)
        self.line(f"store {vector} {value}, {vector}* {address}, align {BYTES[kind]}")

    def broadcast(self, lanes: int, kind: str, value: str) -> str:
        """A vector of `lanes` times `value`."""
        vector = f"<{lanes} x {kind}>"
        first = self.value(f"insertelement {vector} undef, {kind} {value}, i32 0")
        return self.value(f"shufflevector {vector} {first}, {vector} undef, <{lanes} x i32> zeroinitializer")

    def multiply_add(self, kind: str, left: str, right: str, term: str) -> str:
        """``left * right + term``, rounded once where the machine can."""
        product = self.value(f"fmul contract {kind} {left}, {right}")
        return self.value(f"fadd contract {kind} {product}, {term}")

    # --- control --------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Size, stop: Size, step: Size = 1) -> Generator[str]:
        """Lines for each number from `start` to before `stop`; gives the number's name."""
        slot = self.slot("i64")
        label = self._fresh("l")[1:]
        self.line(f"store i64 {start}, i64* {slot}")
        self.line(f"br label %{label}_head")
        self._lines.append(f"{label}_head:")
        number = self.value(f"load i64, i64* {slot}")
        more = self.compare("slt", number, stop)
        self.line(f"br i1 {more}, label %{label}_body, label %{label}_done")
        self._lines.append(f"{label}_body:")
        yield number
        self.line(f"store i64 {self.value(f'add i64 {number}, {step}')}, i64* {slot}")
        self.line(f"br label %{label}_head")
        self._lines.append(f"{label}_done:")

    def ask(self, kind: str, pointer: str, start: Size, stop: Size, to_write: bool = False) -> None:
        """Ask for the elements from `start` to `stop` behind a pointer, line by line: they are wanted soon."""
        with self.loop(start, stop, _LINE // BYTES[kind]) as element:
            line = self.value(f"bitcast {kind}* {self.at(kind, pointer, element)} to i8*")
            self.line(f"call void @llvm.prefetch.p0(i8* {line}, i32 {int(to_write)}, i32 3, i32 1)")

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Lines that run only where `condition` holds."""
        label = self._fresh("l")[1:]
        self.line(f"br i1 {condition}, label %{label}_then, label %{label}_done")
        self._lines.append(f"{label}_then:")
        yield
        self.line(f"br label %{label}_done")
        self._lines.append(f"{label}_done:")
