"""Native code that replaces a window of an array: keys and values of one token in what attention has kept, for example.

NumPy makes a slice for each axis first, which for small windows takes longer than the copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.signal.windows import SliceUpdate
from ..elementwise.any_sizes import AnySizes, KernelOfAnySizes
from ..elementwise.kernel_specs import specs_of
from ..llvm.builder import BYTES, Builder, Size
from ..llvm.entry import Operand
from ..llvm.tasks import begin_run_function
from .picks import INDICES, Updating, word_of
from .rows import print_copy


def window_runner(operation: Operation) -> Updating | None:
    """Return a runner of `SliceUpdate`."""
    op = op_of(operation, SliceUpdate)
    specs = specs_of(operation.inputs)
    if len(specs) < len(operation.inputs):
        return None
    x, starts, updates = specs
    word, index = word_of(x), INDICES.get(starts.dtype.name)
    if word is None or index is None or not x.rank or updates.rank != x.rank or updates.dtype != x.dtype:
        return None
    fill = AnySizes(WindowKernel(x.rank, word, index), x.dtype, starts.dtype, x.dtype)

    def over(out: Any, starts: Any, updates: Any) -> Any:
        return out if fill(updates, starts, out) else op.run_over(np, out, starts, updates)

    return Updating(over)


@dataclass(frozen=True)
class WindowKernel(KernelOfAnySizes):
    """A kernel that copies an array of any layout into a window of another one.

    Attributes:
        rank: of both.
        word: the type of elements.
        index: the type of the window's start.
    """

    rank: int
    word: str
    index: str

    @property
    def operands(self) -> tuple[Operand, ...]:
        updates = Operand(self.word, self.rank, is_strided=True)
        return updates, Operand(self.index, 1), Operand(self.word, self.rank, (), True)

    def print_run(self, name: str) -> str:
        code = begin_run_function(self, name, "sizes")
        code.store("i64", 1, "%sizes", self.failed)
        has_all = code.compare("eq", code.load("i64", "%sizes", self.first_size(1)), self.rank)
        with code.when(has_all):
            starts: list[Size] = [code.load_integer(self.index, "%d1", axis) for axis in range(self.rank)]
            with code.when(self._print_is_inside(code, starts)):
                code.store("i64", 0, "%sizes", self.failed)
                self._print_axis(code, 0, "%d0", "%d2", starts)
        return code.text()

    def _print_is_inside(self, code: Builder, starts: list[Size]) -> str:
        """Print the test whether the window is inside of the array."""
        is_inside = "true"
        for axis, start in enumerate(starts):
            size, room = code.load("i64", "%sizes", axis), code.load("i64", "%sizes", self.first_size(2) + axis)
            for check in (code.compare("sge", start, 0), code.compare("sle", start, code.sub(room, size))):
                is_inside = code.let(f"and i1 {is_inside}, {check}")
        return is_inside

    def _print_axis(self, code: Builder, axis: int, source: str, target: str, starts: list[Size]) -> None:
        """Print the copy of what is at one place of the axes before `axis`."""
        size, step = (code.load("i64", "%sizes", place) for place in (axis, self.rank + axis))
        after = [code.load("i64", "%sizes", self.first_size(2) + later) for later in range(axis + 1, self.rank)]
        target, room = code.at(self.word, target, code.mul(starts[axis], *after)), code.mul(*after)
        if axis < self.rank - 1:
            with code.loop(0, size) as number:
                own = code.at("i8", source, code.mul(number, step))
                self._print_axis(code, axis + 1, own, code.at(self.word, target, code.mul(number, room)), starts)
            return
        is_row = code.compare("eq", step, BYTES[self.word])
        with code.when(is_row):
            print_copy(code, self.word, source, target, size)
        with code.unless(is_row), code.loop(0, size) as number:
            value = code.load(self.word, code.at("i8", source, code.mul(number, step)))
            code.store(self.word, value, target, number)
