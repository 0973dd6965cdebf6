"""Move values that are the same in every iteration out of loops, and read recorded values at their source.

Both are exact. A condition runs at least once, so that all that is invariant there may leave it. A body may never run:
then only what can't fail leaves it, which each op says itself (`Op.cannot_fail`).
"""

from __future__ import annotations

from typing import Any

from ...common.identity import count_among, is_among
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter
from ...graph.operation import op_of
from ...graph.region import Region
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.base import Constant, convert_to_tensor
from ...ops.containers.tensor_arrays import ArrayClear, ArrayRead, ArrayReadOrZeros, ArrayUnstack
from ...ops.math.elementwise import Identity
from ..framework import changes
from ..framework.assign import on_one_device
from ..framework.log import note_change, note_kept
from .linear import Linear, array_size, inside, recorded
from .view import LoopView, is_static, size_of


def move_invariants(loop: LoopView) -> bool:
    """Compute before the loop what each iteration, or each test, would repeat."""
    changed = [_move(loop, region) for region in loop.op.regions]
    return any(changed)


def _move(loop: LoopView, region: Region) -> bool:
    runs = region is loop.op.condition or _runs_once(loop)
    outside = {parameter: outer for outer, parameter in region.captures}
    changed = False
    operations = [o for o in region.operations if not isinstance(o.op, (Parameter, Constant))]
    for operation in operations:
        if not _is_invariant(operation, outside):
            continue
        if not runs and not _cannot_fail(operation, outside):
            note_kept("invariants", operation, "is the same in each iteration, but may fail, and the loop may not run")
            continue
        moved = _outside(loop, operation, outside)
        for old, new in zip(operation.outputs, moved.outputs, strict=True):
            parameter = changes.capture(region, new)
            outside[parameter] = new
            _replace(loop, region, old, parameter)
        note_change("invariants", operation, "is the same in each iteration: it is computed before the loop")
        changed = True
    return changed


def _runs_once(loop: LoopView) -> bool:
    """Test whether the body runs at least once, and does nothing that has to come before a failure in it."""
    return bool(loop.known_trips) and not loop.node.writes


def _is_invariant(operation: Operation, outside: dict[Symbol, Symbol]) -> bool:
    op, takes_captured = operation.op, False
    for tensor in operation.inputs:
        if tensor in outside:
            takes_captured = True
        elif not isinstance(tensor.operation.op, Constant):
            return False  # as of most
    if not takes_captured or operation.effects or operation.control_inputs:
        return False
    if isinstance(op, (RegionOp, History, Saved, TripCount)):
        return False
    if not all(isinstance(tensor.spec, TensorSpec) for tensor in (*operation.inputs, *operation.outputs)):
        return False
    return on_one_device([operation, *[tensor.operation for tensor in operation.inputs]])


def _cannot_fail(operation: Operation, outside: dict[Symbol, Symbol]) -> bool:
    if not is_static(*operation.inputs, *operation.outputs) or not all(map(size_of, operation.inputs)):
        return False
    return operation.op.cannot_fail(*[outside.get(tensor, tensor) for tensor in operation.inputs])


def _outside(loop: LoopView, operation: Operation, outside: dict[Symbol, Symbol]) -> Operation:
    inputs: list[Symbol] = []
    for tensor in operation.inputs:
        source = tensor.operation
        is_outer = tensor in outside
        copied = None if is_outer else loop.graph.adopt(source.op, (), (tensor.spec,), source)
        inputs.append(outside[tensor] if copied is None else copied.outputs[0])
    return loop.graph.adopt(operation.op, inputs, tuple(t.spec for t in operation.outputs), operation)


def _replace(loop: LoopView, region: Region, old: Symbol, new: Symbol) -> None:
    if region is loop.body:
        loop.replace(old, new)
    else:
        changes.replace_in(region, {old: new})


# --- variables that stay what they are -----------------------------------------------------------------------------


def capture_unchanged(loop: LoopView) -> bool:
    """Take a loop variable that no iteration changes, such as the cotangent of a sum, from outside.

    Only where it is known how many iterations there are: what takes it would be computed for all of them at once, in
    arrays of unknown shapes where it is not, which native code does not handle.
    """
    if loop.known_trips is None:
        return False
    changed = False
    for position in reversed(range(loop.op.carried)):
        changed |= _capture_unchanged(loop, position)
    return changed


def _capture_unchanged(loop: LoopView, position: int) -> bool:
    parameter, final = loop.body.parameters[position], loop.node.outputs[position]
    initial = loop.node.inputs[position]
    if loop.body.results[position] is not parameter or initial.spec != parameter.spec:
        return False
    if not isinstance(initial.spec, TensorSpec) or count_among(parameter, loop.body.results) > 1:
        return False
    if loop.is_tested(position) or not on_one_device([initial.operation, parameter.operation, loop.node]):
        return False  # what never changes may keep a loop from ending, which is not for this rewrite to hide
    loop.remove_variable(position)
    loop.become(final, Identity(), [initial])
    loop.drop(final, initial)
    loop.replace(parameter, loop.capture(initial))
    note_change("invariants", parameter.operation, "is the same in each iteration: it is no variable of the loop")
    return True


# --- records of other loops -----------------------------------------------------------------------------------------


def resolve_records(loop: LoopView) -> bool:
    """Do without records of what another loop, whose values this one reads, can give for every iteration.

    That is a number that counts, a value that is the same in each iteration, and the element of an array.
    """
    changed = False
    for operation in loop.needed:
        if isinstance(operation.op, ArrayRead) and operation.graph is loop.body:
            changed |= _resolve(loop, operation)
    return changed


def _resolve(loop: LoopView, read: Operation) -> bool:
    outer = loop.outer(read.inputs[0])
    if outer is None or read.control_inputs:
        return False
    record = recorded(outer.operation)  # of a loop inside of the other one, in one of its iterations
    history = outer if record is None else record
    if not isinstance(history.operation.op, History):
        return False
    inner, other = history.operation.op.inner, history.operation.inputs[0].operation
    if not isinstance(other.op, While) or inner.operation.graph is not other.op.body:
        return False
    (element,), index = read.outputs, read.inputs[1]
    form = inside(other, inner)
    if record is not None and (form is None or form.terms):
        return False  # what the other loop computes in each iteration is not there
    if form is not None and form.steps:
        found = _number(loop, form, index, read)
        if found is None:
            return False
        loop.replace(element, found)
        return True
    return _resolve_value(loop, read, inner, other)


def _resolve_value(loop: LoopView, read: Operation, inner: Symbol, other: Operation) -> bool:
    (element,), index = read.outputs, read.inputs[1]
    body = op_of(other, While).body
    outer = body.outer_of(inner)
    if outer is not None:
        loop.replace(element, loop.capture(outer))
        return True
    source = inner.operation
    if not isinstance(source.op, ArrayRead) or not on_one_device([source, source.inputs[0].operation, read]):
        return False
    array, place = body.outer_of(source.inputs[0]), inside(other, source.inputs[1])
    if array is None or place is None or not place.steps:
        return False
    found = _number(loop, place, index, read)
    if found is None:
        return False
    loop.read(element, array, found)
    note_change("invariants", read, "is read where it came from: the other loop need not record it")
    return True


def _number(loop: LoopView, form: Linear, index: Symbol, like: Operation) -> Symbol | None:
    """Return the number in this loop that has `form` in another one, in its iteration `index`."""
    if any(not isinstance(tensor.spec, TensorSpec) for tensor, _ in form.terms) or len(form.terms) > 1:
        return None
    if form == Linear(1):
        return index
    with loop.inside(like):
        start: Any = form.constant
        for tensor, factor in form.terms:
            start = start + tensor * factor if factor != 1 else tensor + start
        total = start + index if form.steps == 1 else start - index if form.steps == -1 else start + index * form.steps
        return symbol_of(convert_to_tensor(total, "int32") if total.dtype.name != "int32" else total)


# --- cotangents of arrays that are read once ------------------------------------------------------------------------


def drop_clearing(loop: LoopView) -> bool:
    """Take an array from outside where the loop only reads each of its elements before it clears it."""
    changed = False
    for position in reversed(range(loop.op.carried)):
        changed |= _drop_clearing(loop, position)
    return changed


def _drop_clearing(loop: LoopView, position: int) -> bool:
    parameter, result = loop.body.parameters[position], loop.body.results[position]
    clear = result.operation
    if not isinstance(clear.op, ArrayClear) or clear.inputs[0] is not parameter or loop.uses.get(result) != 1:
        return False
    index, final = clear.inputs[1], loop.node.outputs[position]
    form = loop.form(index)
    if form is None or abs(form.steps) != 1 or loop.is_tested(position) or parameter in loop.histories:
        return False
    readers = [
        operation for operation in loop.needed if is_among(parameter, operation.inputs) and operation is not clear
    ]
    if not all(isinstance(o.op, ArrayReadOrZeros) and loop.form(o.inputs[1]) == form for o in readers):
        return False
    if loop.is_used(final) or is_among(parameter, loop.body.results):
        return False
    initial = loop.node.inputs[position]
    if not on_one_device([initial.operation, parameter.operation, clear, *readers]):
        return False
    loop.remove_variable(position)
    array = loop.capture(initial)
    loop.replace(parameter, array)
    if isinstance(initial.operation.op, ArrayUnstack) and loop.covers(form, array_size(initial)):
        for reader in readers:  # everything was written
            loop.become(reader.outputs[0], ArrayRead(), [array, reader.inputs[1]]).device = reader.device
    return True


__all__ = ["capture_unchanged", "drop_clearing", "move_invariants", "resolve_records"]
