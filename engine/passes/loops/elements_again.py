"""Compute elements of large elementwise results in the loop that reads them, in place of all of them before it.

A backward loop reads the cotangent of the outputs one step at a time: ``2 * (outputs - labels) / count`` for all steps
is as large as the outputs, and it is kept until the loop ends. Each of its elements is the same few operations on the
elements of its operands, which are there anyway; the loop's kernel computes it as it goes. So every bit stays. Between
it and the operands may be transposes, as where a layer gives outputs by rows of the batch: operands are read through
the same views.
"""

from __future__ import annotations

from typing import NamedTuple

from ...graph.graph import Operation, Parameter, Placeholder
from ...graph.spec import TensorSpec
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol, symbol_of
from ...ops.arrays.axes import Transpose
from ...ops.arrays.shaping import BroadcastTo, reshape
from ...ops.base import Constant, build
from ...ops.containers.tensor_arrays import ArrayRead, ArrayUnstack
from ...ops.math.reduced import BroadcastReduced
from ..framework.assign import on_one_device
from ..framework.estimates import bytes_of
from ..framework.log import note_change
from ..memory.saved_state import can_run_again
from .view import LoopView, is_static, size_of

_LARGE = 1 << 26  # bytes of a result that is worth leaving out
_MOST_AGAIN = 8  # operations for one result
_BROADCASTS = (BroadcastReduced, BroadcastTo)
_KEPT = (Constant, Parameter, Placeholder, ReadVariable)  # what is there in any case


class _Rows(NamedTuple):
    """A tensor as it is read: its axes in the order `axes`."""

    tensor: Symbol
    axes: tuple[int, ...]

    def origin(self) -> _Rows:
        """Return the same rows of what the tensor is a transpose of, if it is one."""
        tensor, axes = self
        while type(tensor.operation.op) is Transpose and not tensor.operation.control_inputs:
            order = tensor.operation.op.order(len(axes))
            (tensor,), axes = tensor.operation.inputs, tuple([order[axis] for axis in axes])
        return _Rows(tensor, axes)


class _Chain(NamedTuple):
    """The operations that compute a tensor, in order, and the tensors that they take from elsewhere.

    Attributes:
        members: elementwise operations, and broadcasts of single numbers.
        rows: operands with as many elements as the tensor.
        numbers: operands of one element.
    """

    members: list[Operation]
    rows: list[_Rows]
    numbers: list[Symbol]


def compute_elements(loop: LoopView) -> bool:
    """Compute in the body the elements of arrays outside that only this loop reads, once each."""
    changed = False
    for read in loop.needed:
        if isinstance(read.op, ArrayRead) and read.graph is loop.body:
            changed |= _compute_element(loop, read)
    return changed


def _compute_element(loop: LoopView, read: Operation) -> bool:
    parameter, index = read.inputs
    array = loop.outer(parameter)
    form = loop.form(index)
    if array is None or not isinstance(array.operation.op, ArrayUnstack) or read.control_inputs:
        return False
    if form is None or abs(form.steps) != 1 or not loop.is_only_use(parameter):
        return False
    (source,) = array.operation.inputs
    if not _is_only_read_here(loop, array, source):
        return False
    chain = _chain_of(source)
    if chain is None or not on_one_device([*chain.members, read, loop.node]):
        return False
    (element,) = read.outputs
    note_change("fission", read, f"is computed in the loop: {bytes_of(source.spec):,} bytes are not there at once")
    loop.replace(element, _element(loop, read, chain, source))
    return True


def _is_only_read_here(loop: LoopView, array: Symbol, source: Symbol) -> bool:
    """Test whether a tensor is large, and nothing but this loop takes it, by an array of its rows."""
    if not is_static(source) or source.dtype.kind != "f" or bytes_of(source.spec) < _LARGE:
        return False
    if array in loop.users.kept or source in loop.users.kept:
        return False
    takers = loop.takers(array)
    return takers == [loop.node] and loop.takers(source) == [array.operation]


def _chain_of(source: Symbol) -> _Chain | None:
    """Return what computes a tensor of operands that are there while the loop runs; None if that takes more memory."""
    found = _Chain([], [], [])
    orders: dict[Operation, tuple[int, ...]] = {}
    whole = size_of(source)
    pending = [_Rows(source, tuple(range(len(source.shape or ()))))]
    while pending:
        rows = pending.pop().origin()
        operation = rows.tensor.operation
        if size_of(rows.tensor) == 1:
            found.numbers.append(rows.tensor)
        elif size_of(rows.tensor) != whole or len(rows.tensor.shape or ()) != len(rows.axes):
            return None
        elif _runs_by_elements(operation):
            if orders.setdefault(operation, rows.axes) != rows.axes:
                return None
            if operation not in found.members:
                found.members.append(operation)
                pending += [_Rows(tensor, rows.axes) for tensor in _operands(operation)]
        else:
            known = next((other for other in found.rows if other.tensor is rows.tensor), None)
            if known is None:
                found.rows.append(rows)
            elif known.axes != rows.axes:
                return None
        if len(found.members) > _MOST_AGAIN or not is_static(*[each.tensor for each in pending]):
            return None
    held = [rows.tensor for rows in found.rows if not isinstance(rows.tensor.operation.op, _KEPT)]
    if not found.members or sum([bytes_of(tensor.spec) for tensor in held]) > bytes_of(source.spec):
        return None
    found.members.sort(key=lambda operation: operation.index)
    return found


def _runs_by_elements(operation: Operation) -> bool:
    """Test whether an operation makes each element of its result of those at the same place, and may run again."""
    if operation.control_inputs or len(operation.outputs) != 1 or not can_run_again(operation):
        return False
    if isinstance(operation.op, _BROADCASTS):
        return is_static(operation.inputs[0]) and size_of(operation.inputs[0]) == 1
    return operation.op.elementwise


def _operands(operation: Operation) -> tuple[Symbol, ...]:
    """Return what an operation takes, without the shape to which it broadcasts."""
    return operation.inputs[:1] if isinstance(operation.op, _BROADCASTS) else operation.inputs


def _element(loop: LoopView, read: Operation, chain: _Chain, source: Symbol) -> Symbol:
    """Build in the body what computes the element at the place of `read`."""
    element = read.outputs[0].spec
    assert isinstance(element, TensorSpec)
    with loop.outside(read):
        arrays = [build(ArrayUnstack(), _viewed(rows)) for rows in chain.rows]
        numbers = {number: number if number.shape == () else symbol_of(reshape(number, ())) for number in chain.numbers}
    values = {number: loop.capture(outer) for number, outer in numbers.items()}
    captured = [loop.capture(array) for array in arrays]
    with loop.inside(read):
        read_rows = [build(ArrayRead(), array, read.inputs[1]) for array in captured]

        def value(tensor: Symbol) -> Symbol:
            """Return the element of a tensor, which may be a transpose of one that is known."""
            while tensor not in values and type(tensor.operation.op) is Transpose:
                (tensor,) = tensor.operation.inputs
            return values[tensor]

        values |= {rows.tensor: element for rows, element in zip(chain.rows, read_rows, strict=True)}
        for operation in chain.members:
            inputs = [value(tensor) for tensor in _operands(operation)]
            op = BroadcastTo(element.shape or ()) if isinstance(operation.op, _BROADCASTS) else operation.op
            values[operation.outputs[0]] = build(op, *inputs)
        return value(source)


def _viewed(rows: _Rows) -> Symbol:
    is_plain = rows.axes == tuple(range(len(rows.axes)))
    return rows.tensor if is_plain else build(Transpose(rows.axes), rows.tensor)


__all__ = ["compute_elements"]
