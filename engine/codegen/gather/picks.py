"""Native code for few elements or rows at positions of which the number is known at run time only.

NumPy has a call for each step of such an operation (bounds, wrapping, keys for the other axes), and for few elements
these calls are nearly all of the work. What the code does not handle (other layouts, positions out of bounds) is left
to the op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.arrays.gathering import TakeAlongAxis
from ...ops.arrays.scattering import ScatterUpdate
from ..elementwise.any_sizes import AnySizes, KernelOfAnySizes
from ..elementwise.kernel_specs import native_dtype, specs_of
from ..llvm.entry import Operand
from ..llvm.tasks import begin_run_function
from .rows import print_position, when_inside

Runner = Callable[..., Any]
_WORDS = {4: "i32", 8: "i64"}  # what elements of so many bytes are moved as
INDICES = {"int32": "i32", "int64": "i64"}


def along_runner(operation: Operation) -> Runner | None:
    """Return a runner of `TakeAlongAxis` along the last of at least two axes."""
    op = op_of(operation, TakeAlongAxis)
    x, indices = (tensor.spec for tensor in operation.inputs)
    if not isinstance(x, TensorSpec) or not isinstance(indices, TensorSpec) or x.rank is None or x.rank < 2:
        return None
    word, index = word_of(x), INDICES.get(indices.dtype.name)
    if word is None or index is None or op.axis % x.rank != x.rank - 1:
        return None
    fill = AnySizes(AlongKernel(x.rank, word, index), x.dtype, indices.dtype, x.dtype)
    dtype = native_dtype(x.dtype)

    def take_along(x: Any, indices: Any) -> Any:
        if x.shape[:-1] != indices.shape[:-1]:
            return op.run(np, x, indices)
        out = np.empty(indices.shape, dtype)
        return out if fill(x, indices, out) else op.run(np, x, indices)

    return take_along


def scatter_runner(operation: Operation) -> Runner | None:
    """Return a runner of `ScatterUpdate` where each index is of one axis: rows are replaced."""
    op = op_of(operation, ScatterUpdate)
    specs = specs_of(operation.inputs)
    if len(specs) < len(operation.inputs):
        return None
    x, indices, updates = specs
    word, index, places = word_of(x), INDICES.get(indices.dtype.name), indices.shape or ()
    if word is None or index is None or not x.rank or places[-1:] != (1,) or updates.dtype != x.dtype:
        return None
    kernel = ScatterKernel(x.rank, len(places), word, index)
    fill = AnySizes(kernel, x.dtype, indices.dtype, x.dtype)

    def over(out: Any, indices: Any, updates: Any) -> Any:
        fits = updates.shape == indices.shape[:-1] + out.shape[1:] and updates.size
        return out if fits and fill(updates, indices, out) else op.run_over(np, out, indices, updates)

    return Updating(over)


class Updating:
    """Runs an update of an array: on a copy, or by `over` in the array's own memory."""

    def __init__(self, over: Runner) -> None:
        self.over = over

    def __call__(self, x: Any, *rest: Any) -> Any:
        return self.over(np.array(x, order="C"), *rest)


def word_of(spec: TensorSpec) -> str | None:
    """Return the LLVM type in which an element is moved, if it is a number of a word or two."""
    return _WORDS.get(spec.dtype.itemsize) if spec.dtype.kind in "fiu" else None


# --- code -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlongKernel(KernelOfAnySizes):
    """A kernel that takes of each row the elements at the positions in a row of another array.

    Attributes:
        rank: of both.
        word: the type of elements.
        index: the type of positions.
    """

    rank: int
    word: str
    index: str

    @property
    def operands(self) -> tuple[Operand, ...]:
        return Operand(self.word, self.rank), Operand(self.index, self.rank), Operand(self.word, self.rank, (), True)

    def print_run(self, name: str) -> str:
        code = begin_run_function(self, name, "sizes")
        last = self.rank - 1
        rows = code.mul(*[code.load("i64", "%sizes", axis) for axis in range(last)])
        size = code.load("i64", "%sizes", last)
        count = code.load("i64", "%sizes", self.first_size(1) + last)
        with code.loop(0, rows) as row:
            source, start = code.at(self.word, "%d0", code.mul(row, size)), code.mul(row, count)
            with code.loop(0, count) as number:
                place = code.add(start, number)
                position = print_position(code, "%d1", self.index, place, size)
                with when_inside(code, position, size, "%sizes", self.failed):
                    code.store(self.word, code.load(self.word, source, position), "%d2", place)
        return code.text()


@dataclass(frozen=True)
class ScatterKernel(KernelOfAnySizes):
    """Rows that replace others, one after the other; those are counted from the front.

    Attributes:
        rank: of the whole.
        depth: the rank of the positions.
        word: the type of elements.
        index: the type of positions.
    """

    rank: int
    depth: int
    word: str
    index: str

    @property
    def operands(self) -> tuple[Operand, ...]:
        updates = Operand(self.word, self.depth - 1 + self.rank - 1)
        return updates, Operand(self.index, self.depth), Operand(self.word, self.rank, (), True)

    def print_run(self, name: str) -> str:
        code = begin_run_function(self, name, "sizes")
        whole = self.first_size(2)
        count = code.mul(*[code.load("i64", "%sizes", self.first_size(1) + axis) for axis in range(self.depth)])
        size = code.load("i64", "%sizes", whole)
        width = code.mul(*[code.load("i64", "%sizes", whole + axis) for axis in range(1, self.rank)])
        with code.loop(0, count) as number:
            position = code.load_integer(self.index, "%d1", number)
            with when_inside(code, position, size, "%sizes", self.failed):
                source = code.at(self.word, "%d0", code.mul(number, width))
                target = code.at(self.word, "%d2", code.mul(position, width))
                with code.loop(0, width) as place:
                    code.store(self.word, code.load(self.word, source, place), target, place)
        return code.text()
