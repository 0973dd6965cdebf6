"""Products of rows that a body takes from a table: the table itself is multiplied once, before the loop.

``take(table, tokens) @ w`` in a decoder that goes by its own tokens is ``take(table @ w, tokens)``: a product of the
table's rows instead of one of few rows in each iteration. That pays where the loop takes more rows than the table has,
as far as its condition says how often it runs.
"""

from __future__ import annotations

from typing import NamedTuple

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import Take
from ...ops.base import build
from ...ops.linear_algebra.products import MatMul
from ..framework.assign import on_one_device
from ..framework.estimates import elements
from ..framework.log import note_change, note_kept
from ..framework.patterns import op, tensor
from .linear import most_trips
from .view import LoopView, is_static

_MOST = 1 << 23  # elements of the table's product


def _is_by_rows(take: Operation) -> bool:
    return isinstance(take.op, Take) and not take.op.axis


def _takes_rows(product: Operation) -> bool:
    return isinstance(product.op, MatMul) and not product.op.transpose_a


_rows = op(Take, of=[tensor("table"), tensor("positions")], name="take", where=_is_by_rows)
_PRODUCT = op(MatMul, of=[_rows, tensor("weight")], name="product", where=_takes_rows)


class _Found(NamedTuple):
    """A product that could be one of the whole table, by its operations and tensors of the body.

    Attributes:
        table, weight: what stands in the graph around the loop for these.
    """

    product: Operation
    take: Operation
    positions: Symbol
    table: Symbol
    weight: Symbol


def multiply_tables(loop: LoopView) -> bool:
    """Multiply tables before the loop instead of the rows taken from them in it."""
    trips = most_trips(loop.node)
    if trips is None:
        return False
    found = [_found(loop, operation) for operation in loop.needed if operation.graph is loop.body]
    chosen = [each for each in found if each is not None and _pays(each, trips)]
    for each in chosen:
        _multiply_before(loop, each)
    return bool(chosen)


def _found(loop: LoopView, operation: Operation) -> _Found | None:
    """Return a product of rows of a table by a matrix, both from outside; None for any other operation."""
    match = _PRODUCT.match(operation)
    if match is None:
        return None
    positions, table, weight = match["positions"], loop.outer(match["table"]), loop.outer(match["weight"])
    if table is None or weight is None or not is_static(match["table"], match["weight"]):
        return None
    if len(positions.shape or ()) != 1 or loop.outer(positions) is not None:
        return None
    if not on_one_device([match["product"], match["take"], table.operation, weight.operation]):
        return None
    return _Found(match["product"], match["take"], positions, table, weight)


def _pays(found: _Found, trips: int) -> bool:
    (count, _), (_, columns) = _sizes(found.table), _sizes(found.product.outputs[0])
    taken = elements(found.positions.spec.shape) * trips
    if taken < machine_profile().table_share * count:
        name = found.table.operation.name
        note_kept("fission", found.product, f"some {taken} rows are taken of the {count} of {name!r}: too few")
        return False
    return count * columns <= _MOST


def _sizes(matrix: Symbol) -> tuple[int, int]:
    assert isinstance(matrix.spec, TensorSpec)
    rows, columns = matrix.spec.shape or (None, None)
    return rows or 0, columns or 0


def _multiply_before(loop: LoopView, found: _Found) -> None:
    with loop.outside(found.product):
        whole = build(found.product.op, found.table, found.weight)
    parameter = loop.capture(whole)
    with loop.inside(found.product):
        rows = build(found.take.op, parameter, found.positions)
    loop.replace(found.product.outputs[0], rows)
    name = found.table.operation.name
    note_change("fission", found.product, f"is made of all of {name!r} before the loop, and rows are taken of that")
