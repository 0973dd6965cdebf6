"""Draws by row: replicas that have some rows of a batch each draw the numbers that one process would draw for these.

Random numbers are functions of a key and a position, so that a replica can draw its rows of the whole alone. Which axis
of a draw has the rows is found once: in a trace for batches of an unknown size it is the first axis whose size is not
known. Traces for known sizes make the same draws in the same order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ..arrays.creation import zeros_like
from ..arrays.joining import stack
from ..arrays.shape_arguments import fill_shape
from ..base import Op, Operation, Tensor, TensorSpec, apply, cast, convert_to_tensor
from ..math.bits import RandomOp

Axes = list[int | None]  # for each draw, in turn, the axis that has rows of the batch


class Window(NamedTuple):
    """The rows that a replica has, as scalar tensors.

    Attributes:
        first: the number of the first one.
        count: how many there are.
        total: how many rows the batch has.
    """

    first: Any
    count: Any
    total: Any


class _State(threading.local):
    def __init__(self) -> None:
        self.found: Axes | None = None  # while axes are found
        self.window: Window | None = None
        self.left: list[int | None] = []
        self.goes_by_row = False


_state = _State()


@contextlib.contextmanager
def finding_axes() -> Generator[Axes]:
    """Make a block that traces a step for batches of an unknown size; yield the axes of its draws."""
    before, _state.found = _state.found, []
    try:
        yield _state.found
    finally:
        _state.found = before


@contextlib.contextmanager
def drawing_rows(axes: Axes, window: Window) -> Generator[None]:
    """Make a block that traces a step whose draws are those of some rows of a batch.

    Args:
        axes: what `finding_axes` gave.
        window: the rows.
    """
    before = _state.window, _state.left, _state.goes_by_row
    _state.window, _state.left, _state.goes_by_row = window, [*axes], bool(axes)
    try:
        yield
    finally:
        _state.window, _state.left, _state.goes_by_row = before


def draw(op: RandomOp, key: Any, *inputs: Any) -> Tensor:
    """Apply an op that draws: of some rows, where such a step is being traced.

    Args:
        op: the op.
        key: the random key.
        inputs: what fills the Nones of its shape.
    """
    if _state.found is not None:
        _state.found.append(next((axis for axis, size in enumerate(op.shape) if size is None), None))
    if _state.window is None or not _state.left or (axis := _state.left.pop(0)) is None or axis >= len(op.shape):
        return apply(op, key, *inputs)
    return apply(RandomRows.of(op, axis), key, *_state.window, *inputs)


def own_key(key: Tensor) -> Tensor:
    """Return a key of the replica's own, for draws that do not go by row.

    In a step whose draws go by row all replicas have the same keys: without this they would draw the same numbers for
    different rows. The replica of the first row keeps the key.
    """
    if _state.window is None or not _state.goes_by_row:
        return key
    first = cast(convert_to_tensor(_state.window.first), dtypes.int64)
    return key + stack([first * _SPREAD, zeros_like(first)])


_SPREAD = 0x9E3779B1  # odd, so that rows give different keys; below 2**32, so that no product overflows

_Kind = TypeVar("_Kind", bound=RandomOp)
_KINDS: dict[str, type[RandomOp]] = {}


def drawn_by_row(kind: type[_Kind]) -> type[_Kind]:
    """Register a class of ops that draw, so that `RandomRows` finds it by its name."""
    _KINDS[kind.__name__] = kind
    return kind


@dataclass(frozen=True)
class RandomRows(Op):
    """Some rows of a draw. Inputs: a key; the first row, their number and that of all; what fills Nones of the shape.

    An axis may have several entries for each row, as where steps and rows are one axis.
    """

    kind: str  # the name of the class whose draw it is: files hold no ops within ops
    shape: tuple[int | None, ...]
    dtype: DType
    numbers: tuple[Any, ...]  # its other arguments
    axis: int

    no_samples: ClassVar[str] = "is no op of users: test_random_rows"

    @classmethod
    def of(cls, op: RandomOp, axis: int) -> RandomRows:
        """Make the op that draws rows of what another one draws."""
        _, _, *names = [each.name for each in dataclasses.fields(op)]
        return cls(type(op).__name__, op.shape, op.dtype, tuple([getattr(op, name) for name in names]), axis)

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        key, first, count, total, *dynamic = inputs
        op: Any = _KINDS[self.kind]
        draws = op(self.shape, self.dtype, *self.numbers)
        shape = fill_shape(self.shape, dynamic)
        first, count, total = int(first), int(count), int(total)
        size = shape[self.axis]
        each = size // count if count else 0
        if each * count != size:  # rows of something else, as those that a mask has left
            own = np.asarray(key) + np.array([first * _SPREAD, 0], "int64")
            return xp.asarray(draws.draw(own, shape))[()]
        whole = (*shape[: self.axis], each * total, *shape[self.axis + 1 :])
        if self.axis == 0:
            width = int(np.prod(shape[1:], dtype="int64"))
            return xp.asarray(draws.draw_part(key, shape, (first * each * width, total * each * width)))[()]
        rows = slice(first * each, first * each + size)
        found = draws.draw(key, whole)[(slice(None),) * self.axis + (rows,)]
        return xp.asarray(np.ascontiguousarray(found))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,) * len(node.inputs)


__all__ = ["Axes", "RandomRows", "Window", "draw", "drawing_rows", "finding_axes", "own_key"]
