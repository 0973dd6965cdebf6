"""Launches of a fused operation on a GPU: the source of its functions, and the sizes of each call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ..elementwise.kernel_specs import kernel_spec, loop_extents
from ..elementwise.row_builder import row_kernel_of
from ..elementwise.row_kernel import RowSpec
from ..expression.expression import HALVES, UnsupportedError
from .elementwise import THREADS, print_cuda
from .rows import (
    BLOCK,
    ITEMSIZES,
    PIECE,
    WARP,
    Gathering,
    RowForm,
    gatherings,
    has_row_reductions,
    has_rows,
    print_rows,
    row_values,
)

_MOST_BLOCKS = 1 << 16
_MOST_SPLITS = 1024  # blocks that share the terms of sums
_TERMS = 8  # that a thread takes before sums are split among blocks
_ALIGNED = 256  # bytes, as memory is allocated
_SHORT = 8  # elements of a row that a thread computes by itself
_WARP_ROW = 1024  # elements of a row that a warp computes
_LONG_ROW = 1 << 16  # elements of a row that one block computes as fast as many would, where there are few
_FEW_ROWS = 8


@dataclass(frozen=True)
class Launch:
    """A call of one function.

    Attributes:
        function: its name.
        grid: the number of blocks, in two dimensions.
        block: threads of each.
        numbers: what it gets behind the numbers that all functions get.
    """

    function: str
    grid: tuple[int, int]
    block: int
    numbers: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Launches:
    """The functions that run for a fused operation over operands of certain shapes.

    Each function gets the inputs, the outputs, scratch memory if there is any, and numbers.

    Attributes:
        source: CUDA C++.
        calls: what is launched, in order.
        numbers: NumPy scalars, which all functions get.
        scratch: bytes of scratch memory; None if functions take no pointer to it.
        halves: the operands that are passed by value as the bits of a half type.
    """

    source: str
    calls: tuple[Launch, ...]
    numbers: tuple[Any, ...]
    scratch: int | None
    halves: tuple[int, ...]


def launches_of(
    op: Fused, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], by_value: Sequence[int] = ()
) -> Launches:
    """Print a fused operation, and decide how work is divided.

    Args:
        op: what is computed.
        inputs: what it reads, of known shapes.
        outputs: what it writes.
        by_value: positions of inputs of rank 0 that are passed as numbers.

    Raises:
        UnsupportedError: there is no kernel for it.
    """
    if op.layouts:
        return _of_rows(op, inputs, outputs, by_value)
    spec = kernel_spec(op, inputs, outputs)
    extents = loop_extents(inputs, outputs)
    count = math.prod(extents)
    blocks = min(-(-count // THREADS), _MOST_BLOCKS)
    index = _index_of(count + blocks * THREADS)
    source = print_cuda(spec, "fused", by_value, "int" if index is np.int32 else "long long")
    numbers = tuple([index(size) for size in (count, *extents[1:], *spec.strides_of(extents))])
    calls = (Launch("fused", (blocks, 1), THREADS),) if count else ()
    return Launches(source, calls, numbers, None, _halves(spec.inputs, by_value))


def _index_of(most: int) -> Any:
    """Return the type of indices, for loops that run so often."""
    return np.int32 if most < 1 << 31 else np.int64


def _halves(operands: Sequence[Any], by_value: Sequence[int]) -> tuple[int, ...]:
    return tuple(k for k in by_value if operands[k].type in HALVES.values())


def _of_rows(
    op: Fused, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], by_value: Sequence[int]
) -> Launches:
    spec, extents, strides = row_kernel_of(op, tuple(inputs), tuple(outputs))
    rows, length = math.prod(extents[:-1]), extents[-1]
    if has_row_reductions(spec) and rows < _FEW_ROWS and length > _LONG_ROW:
        raise UnsupportedError("few rows that are long")
    size = rows * length
    sums = gatherings(spec)
    widths = [_width(spec, gathering, extents) for gathering in sums]
    index = _index_of(size + _MOST_BLOCKS * BLOCK)
    name = "int" if index is np.int32 else "long long"
    form = RowForm(tuple(by_value), name, _team(rows, length), tuple(widths))
    places, scratch = _places(spec, rows)
    calls: list[Launch] = [_main(spec, form, rows, size)] if has_rows(spec) else []
    pieces = 0
    for number, (gathering, width) in enumerate(zip(sums, widths, strict=True)):
        count, terms = _extent(gathering.kept, extents), _extent(gathering.reduced, extents)
        tiles = -(-count // width)
        splits = min(-(-terms // (BLOCK // width * _TERMS)), max(1, _MOST_SPLITS // tiles))
        share = max(1, -(-terms // max(1, splits)))
        splits = max(1, -(-terms // share))
        at = np.int64(scratch)
        calls.append(Launch(f"gather{number}", (tiles, splits), BLOCK, (index(share), at)))
        if splits > 1:
            blocks = -(-count // BLOCK)
            calls.append(Launch(f"finish{number}", (blocks, 1), BLOCK, (index(splits), at)))
            pieces = max(pieces, len(gathering.sums) * splits * count * PIECE)
    numbers = (*[np.int64(place) for place in places], *[index(each) for each in (*extents, *strides)])
    return Launches(print_rows(spec, form), tuple(calls), numbers, scratch + pieces, _halves(spec.inputs, by_value))


def _team(rows: int, length: int) -> int:
    """Return the number of threads that compute a row."""
    if length <= _SHORT:
        return 1
    return WARP if length <= _WARP_ROW and rows >= _FEW_ROWS else BLOCK


def _main(spec: RowSpec, form: RowForm, rows: int, size: int) -> Launch:
    """Return the launch of what is not gathered."""
    if not has_row_reductions(spec):
        return Launch("elements", (min(-(-size // THREADS), _MOST_BLOCKS), 1), THREADS)
    threads = max(form.team, BLOCK)
    return Launch("rows", (min(-(-rows * form.team // threads), _MOST_BLOCKS), 1), threads)


def _places(spec: RowSpec, rows: int) -> tuple[list[int], int]:
    """Return where in scratch memory the values of rows are, and where these end."""
    places: list[int] = []
    end = 0
    for node in row_values(spec):
        places.append(end)
        end += -(-rows * ITEMSIZES[spec.nodes[node].type] // _ALIGNED) * _ALIGNED
    return places, end


def _extent(loops: Sequence[int], extents: Sequence[int]) -> int:
    return math.prod(extents[loop] for loop in loops)


def _width(spec: RowSpec, gathering: Gathering, extents: Sequence[int]) -> int:
    """Return the number of sums beside each other that a block computes: as many as let all its threads find terms.

    Along memory at least a warp's, so that neighbours read from one place.
    """
    count, terms = _extent(gathering.kept, extents), _extent(gathering.reduced, extents)
    beside = min(WARP, _power(count)) if spec.loops - 1 in gathering.kept else 1
    return min(BLOCK, max(beside, min(BLOCK // min(BLOCK, _power(terms)), _power(count))))


def _power(number: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()
