"""Products of rows that a body takes from a table: the table itself is multiplied once, before the loop.

``take(table, tokens) @ w`` in a decoder that goes by its own tokens is ``take(table @ w, tokens)``: a product of the
table's rows instead of one of few rows in each iteration. That pays where the loop takes more rows than the table has,
as far as its condition tells how often it runs.
"""

from __future__ import annotations

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import build
from ...ops.gathering import Take
from ...ops.linalg import MatMul
from ..assign import on_one_device
from ..estimates import elements
from ..log import note_change, note_kept
from ..saved_state import known_trips_of
from .view import LoopView, is_static

_LEAST = 1.5  # rows taken for each of the table: how often the loop runs, and on how many rows, is an estimate
_MOST = 1 << 23  # elements of the table's product


def multiply_tables(loop: LoopView) -> bool:
    """Multiply tables before the loop instead of the rows taken from them in it."""
    trips = known_trips_of(loop.node)
    if trips is None:
        return False
    products = [operation for operation in loop.needed if _is_of_rows(loop, operation)]
    chosen = [product for product in products if _pays(loop, product, trips)]
    for product in chosen:
        _multiply_before(loop, product)
    return bool(chosen)


def _is_of_rows(loop: LoopView, product: Operation) -> bool:
    """Whether an operation of the body multiplies rows of a table by a matrix, both from outside."""
    op = product.op
    if not isinstance(op, MatMul) or op.transpose_a or product.control_inputs or product.graph is not loop.body:
        return False
    rows, weight = product.inputs
    take = rows.operation
    if not isinstance(take.op, Take) or take.op.axis or take.control_inputs or take.graph is not loop.body:
        return False
    table, positions = take.inputs
    if len(positions.shape or ()) != 1 or not is_static(table, weight) or loop.outer(positions) is not None:
        return False
    outside = [outer for tensor in (table, weight) if (outer := loop.outer(tensor)) is not None]
    return len(outside) == 2 and on_one_device([product, take, *[tensor.operation for tensor in outside]])


def _pays(loop: LoopView, product: Operation, trips: int) -> bool:
    table, positions = product.inputs[0].operation.inputs
    (count, _), (_, columns) = _sizes(table), _sizes(product.outputs[0])
    taken = elements(positions.spec.shape) * trips
    if taken < _LEAST * count:
        name = _name(loop.outer(table))
        note_kept("fission", product, f"some {taken} rows are taken of the {count} of {name}: too few")
        return False
    return count * columns <= _MOST


def _name(table: Symbol | None) -> str:
    return "" if table is None else repr(table.operation.name)


def _sizes(matrix: Symbol) -> tuple[int, int]:
    assert isinstance(matrix.spec, TensorSpec)
    rows, columns = matrix.spec.shape or (None, None)
    return rows or 0, columns or 0


def _multiply_before(loop: LoopView, product: Operation) -> None:
    take, weight = product.inputs[0].operation, loop.outer(product.inputs[1])
    table = loop.outer(take.inputs[0])
    assert table is not None
    assert weight is not None
    with loop.outside(product):
        whole = build(product.op, table, weight)
    parameter = loop.capture(whole)
    with loop.inside(product):
        rows = build(take.op, parameter, take.inputs[1])
    loop.replace(product.outputs[0], rows)
    note_change("fission", product, f"is made of all of {_name(table)} before the loop, and rows are taken of that")
