"""Loops and branches of LLVM IR, written as blocks of Python.

Variables live on the stack until LLVM takes them into registers, so that no phi has to be written by hand.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

Value = str | int


class Code:
    """The body of one function under construction.

    Args:
        head: ``name(parameters)``.
        kind: what stands between ``define`` and the return type.
        result: the return type.
    """

    def __init__(self, head: str, kind: str = "internal", result: str = "void") -> None:
        self._head = f"define {kind} {result} @{head} {{\nentry:"
        self._allocations: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        body = ["  br label %start", "start:", *self._lines]
        return "\n".join([self._head, *self._allocations, *body]) + "\n}\n"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def let(self, expression: str) -> str:
        """The name of a new value."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {expression}")
        return name

    # --- integers --------------------------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> str:
        return self.let(f"add i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> str:
        return self.let(f"sub i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> str:
        return self.let(f"mul i64 {a}, {b}")

    def div(self, a: Value, b: Value) -> str:
        return self.let(f"sdiv i64 {a}, {b}")

    def rem(self, a: Value, b: Value) -> str:
        return self.let(f"srem i64 {a}, {b}")

    def test(self, kind: str, a: Value, b: Value) -> str:
        return self.let(f"icmp {kind} i64 {a}, {b}")

    def choose(self, test: str, a: Value, b: Value) -> str:
        return self.let(f"select i1 {test}, i64 {a}, i64 {b}")

    def least(self, a: Value, b: Value) -> str:
        return self.choose(self.test("slt", a, b), a, b)

    def most(self, a: Value, b: Value) -> str:
        return self.choose(self.test("sgt", a, b), a, b)

    def parts(self, a: Value, b: Value) -> str:
        """Return how many times `b`, the last of them perhaps in part, make up `a`."""
        return self.div(self.sub(self.add(a, b), 1), b)

    def rounded(self, a: Value, b: Value) -> str:
        """`a` rounded up to a multiple of `b`."""
        return self.mul(self.parts(a, b), b)

    # --- memory ----------------------------------------------------------------------------------------------

    def variable(self, kind: str = "i64") -> str:
        """The address of a variable on the stack."""
        name = f"%{self.fresh()}"
        self._allocations.append(f"  {name} = alloca {kind}")
        return name

    def at(self, kind: str, pointer: str, *offsets: Value) -> str:
        """The address some elements further on."""
        for offset in offsets:
            pointer = self.let(f"getelementptr inbounds {kind}, {kind}* {pointer}, i64 {offset}")
        return pointer

    def load(self, kind: str, pointer: str) -> str:
        return self.let(f"load {kind}, {kind}* {pointer}")

    def store(self, kind: str, value: Value, pointer: str) -> None:
        self.line(f"store {kind} {value}, {kind}* {pointer}")

    def load_vector(self, vector: str, element: str, pointer: str, alignment: int) -> str:
        cast = self.let(f"bitcast {element}* {pointer} to {vector}*")
        return self.let(f"load {vector}, {vector}* {cast}, align {alignment}")

    def store_vector(self, vector: str, element: str, value: str, pointer: str, alignment: int) -> None:
        cast = self.let(f"bitcast {element}* {pointer} to {vector}*")
        self.line(f"store {vector} {value}, {vector}* {cast}, align {alignment}")

    # --- control ---------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value, end: Value, step: Value = 1) -> Generator[str]:
        """Run the block for each index from `start` to before `end`; gives the index."""
        label, index = self.fresh(), self.variable()
        self.store("i64", start, index)
        self.line(f"br label %{label}_head")
        self._lines.append(f"{label}_head:")
        now = self.load("i64", index)
        self.line(f"br i1 {self.test('slt', now, end)}, label %{label}_body, label %{label}_done")
        self._lines.append(f"{label}_body:")
        yield now
        self.store("i64", self.add(now, step), index)
        self.line(f"br label %{label}_head, !llvm.loop !100")
        self._lines.append(f"{label}_done:")

    @contextmanager
    def when(self, test: str) -> Generator[None]:
        """Run the block if `test` holds."""
        label = self.fresh()
        self.line(f"br i1 {test}, label %{label}_then, label %{label}_end")
        self._lines.append(f"{label}_then:")
        yield
        self.line(f"br label %{label}_end")
        self._lines.append(f"{label}_end:")

    def call(self, name: str, arguments: Sequence[tuple[str, Value]]) -> None:
        self.line(f"call void @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})")
