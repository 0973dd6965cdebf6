"""Results of fused kernels that a later kernel computes again, in less time than memory takes to keep them.

The gradient of ``x * sigmoid(x)`` takes the sigmoid again, and that of an approximate GELU four values as large as its
argument. Each costs a write, a read and its memory. The kernel of the gradient reads the argument anyway, and computes
them from it in a few operations a number: the same operations run on the same values.

Source: T. Chen et al., "Training deep nets with sublinear memory cost" (2016), section 3; here of single values.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.identity import is_among
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.operation import op_of
from ...graph.tensor import Symbol
from ...ops.internal.fused import Fused
from ...ops.math.comparison import Greater, Less, Maximum, Minimum, Where
from ...ops.math.elementwise import Absolute, Add, Multiply, Negative, Subtract
from ..framework import changes
from ..framework.estimates import is_static, size_of
from ..framework.log import note_change
from ..framework.prune import Kept, users_of
from .fusible import FusionRule
from .iteration_spaces import Layout

_LEAST_ELEMENTS = 1 << 17  # of a value: fewer stay in the second cache until they are read
_LEAST_ALONG = 16  # of a row that a kernel goes along: vectors of fewer are mostly empty, and functions take as long
_MOST_WORK = 12  # operations for one value
_FUNCTION = 6  # such a one counts as so many: exp, tanh and the like
_SIMPLE = (Absolute, Add, Greater, Less, Maximum, Minimum, Multiply, Negative, Subtract, Where)


def rematerialise(operations: Sequence[Operation], kept: Kept, rule: FusionRule) -> bool:
    """Leave out results of fused operations that other ones compute again; returns whether there were any.

    Args:
        operations: of a block, in program order.
        kept: tensors whose values are wanted from outside of it.
        rule: what kernels can compute.
    """
    users = users_of(operations)
    is_changed = False
    for producer in operations:
        if not isinstance(producer.op, Fused) or producer.control_inputs:
            continue
        taken: dict[Operation, list[Symbol]] = {}
        for tensor in producer.outputs:
            readers = users.get(tensor, [])
            if len(readers) == 1 and tensor not in kept and _is_reader(readers[0], tensor):
                taken.setdefault(readers[0], []).append(tensor)
        for reader, tensors in taken.items():
            is_changed = _move(producer, reader, tensors, rule) or is_changed
    return is_changed


def _is_reader(operation: Operation, tensor: Symbol) -> bool:
    """Test whether a fused operation of known sizes takes a value once that is worth less than its memory."""
    if not isinstance(operation.op, Fused) or not is_static(tensor, *operation.inputs):
        return False
    if tensor.dtype.kind != "f" or size_of(tensor) < _LEAST_ELEMENTS or _is_narrow(operation.op):
        return False
    return sum(each is tensor for each in operation.inputs) == 1


def _is_narrow(op: Fused) -> bool:
    """Test whether a kernel goes along few elements at a time, such as the channels of one group of several."""
    lasts = [layout[-1] for layout in op.layouts if layout]
    return any(last is not None and last[1] // last[0] < _LEAST_ALONG for last in lasts)


@dataclass(frozen=True)
class _Again:
    """Values of a producer that its reader computes.

    Attributes:
        dropped: what the producer gives no more, with the number of each there.
        steps: the numbers of the producer's steps that run again, in order.
        leaves: the numbers of the producer's values that they are computed from, with the tensors.
    """

    dropped: dict[Symbol, int]
    steps: tuple[int, ...]
    leaves: dict[int, Symbol]


def _move(producer: Operation, reader: Operation, tensors: Sequence[Symbol], rule: FusionRule) -> bool:
    """Let a reader compute what it can of `tensors`, results of a producer, if there is a kernel for that."""
    again = _found(producer, reader, tensors)
    if again is None:
        return False
    fused = op_of(producer, Fused)
    old = [(operation.op, operation.inputs, operation.outputs) for operation in (producer, reader)]
    inputs, op = _with_steps(producer, reader, again)
    changes.set_op(reader, op, inputs)
    rest = [tensor for tensor in producer.outputs if tensor not in again.dropped]
    inputs, op = _with_results(producer, rest)
    changes.set_op(producer, op, inputs)
    changes.set_outputs(producer, rest)
    if rule.has_kernel(producer) and rule.has_kernel(reader):
        dropped = [fused.steps[k - fused.input_count][0].type_name for k in again.dropped.values()]
        note_change("rematerialise", reader, f"computes again what {producer.name!r} has: {', '.join(dropped)}")
        return True
    for operation, (op, inputs, outputs) in zip((producer, reader), old, strict=True):
        changes.set_op(operation, op, inputs)
        changes.set_outputs(operation, outputs)
    return False


def _found(producer: Operation, reader: Operation, tensors: Sequence[Symbol]) -> _Again | None:
    """Choose what to drop, the results that come first before those that are computed from them."""
    op = op_of(producer, Fused)
    number_of = dict(zip(producer.outputs, op.results, strict=True))
    held = {number_of[tensor]: tensor for tensor in producer.outputs if is_among(tensor, reader.inputs)}
    for number, tensor in enumerate(producer.inputs):
        if tensor.shape == () or is_among(tensor, reader.inputs):
            held[number] = tensor
    pinned: set[int] = set()
    dropped: dict[Symbol, int] = {}
    steps: set[int] = set()
    leaves: dict[int, Symbol] = {}
    layouts: set[Layout] = set()
    for tensor in sorted(tensors, key=number_of.__getitem__):
        number = number_of[tensor]
        if number in pinned or number < op.input_count or len(dropped) + 1 == len(producer.outputs):
            continue
        layout = _layout_of(reader, tensor)
        if layouts and layout not in layouts:
            continue
        found = _chain(op, number, {k: each for k, each in held.items() if k != number}, tensor, reader, steps)
        if found is None:
            continue
        dropped[tensor] = number
        layouts.add(layout)
        del held[number]
        steps |= found[0]
        pinned |= found[1]
        leaves |= {k: held[k] for k in found[1]}
    return _Again(dropped, tuple(sorted(steps)), leaves) if dropped else None


def _chain(
    op: Fused, number: int, held: dict[int, Symbol], like: Symbol, reader: Operation, known: set[int]
) -> tuple[set[int], set[int]] | None:
    """Return the steps that compute a value, and what of `held` they take; None if it can't be, or costs too much.

    Args:
        op: that gives the value.
        number: of the value.
        held: the values that the reader may take.
        like: the tensor of the value, the shape of which all have that are no scalars.
        reader: which takes it.
        known: steps that run again already.
    """
    steps: set[int] = set()
    leaves: set[int] = set()
    pending = [number]
    work = 0
    while pending:
        value = pending.pop()
        if value in steps:
            continue
        leaf = held.get(value)
        if leaf is not None:
            if leaf.shape != () and not _has_layout_of(reader, leaf, like):
                return None
            leaves.add(value)
            continue
        if value < op.input_count:
            return None
        step, arguments = op.steps[value - op.input_count]
        work += 0 if value in known else 1 if isinstance(step, _SIMPLE) else _FUNCTION
        if not step.elementwise or work > _MOST_WORK:
            return None
        steps.add(value)
        pending.extend(arguments)
    full = {leaf for leaf in leaves if held[leaf].shape != ()}
    for value in sorted(steps):
        if full.isdisjoint(op.steps[value - op.input_count][1]):
            return None  # a scalar, which has another layout
        full.add(value)
    return steps, leaves


def _has_layout_of(reader: Operation, leaf: Symbol, like: Symbol) -> bool:
    """Test whether a reader takes a tensor once, element by element with another one."""
    if leaf.spec != like.spec or sum(each is leaf for each in reader.inputs) != 1:
        return False
    return _layout_of(reader, leaf) == _layout_of(reader, like)


def _layout_of(reader: Operation, tensor: Symbol) -> Layout:
    layouts = op_of(reader, Fused).layouts
    return next((layout for layout, each in zip(layouts, reader.inputs, strict=False) if each is tensor), ())


def _with_steps(producer: Operation, reader: Operation, again: _Again) -> tuple[list[Symbol], Fused]:
    """Return the inputs and the op of a reader that computes values again, before all else."""
    op, made = op_of(reader, Fused), op_of(producer, Fused)
    stays = [k for k, tensor in enumerate(reader.inputs) if tensor not in again.dropped]
    inputs = [reader.inputs[k] for k in stays]
    layouts = [op.layouts[k] for k in stays] if op.layouts else []
    for tensor in again.leaves.values():
        if not is_among(tensor, inputs):
            inputs.append(tensor)
            layouts.extend([()] if op.layouts else [])
    place_of = {id(tensor): k for k, tensor in enumerate(inputs)}
    number_of = {number: place_of[id(tensor)] for number, tensor in again.leaves.items()}
    steps: list[tuple[Op, tuple[int, ...]]] = []
    full = [layout for layout, tensor in zip(op.layouts, reader.inputs, strict=False) if tensor in again.dropped]
    for number in again.steps:
        step, arguments = made.steps[number - made.input_count]
        number_of[number] = len(inputs) + len(steps)
        steps.append((step, tuple(number_of[k] for k in arguments)))
        layouts.extend(full[:1])
    renamed = {k: place for place, k in enumerate(stays)}
    renamed |= {
        k: number_of[again.dropped[tensor]] for k, tensor in enumerate(reader.inputs) if tensor in again.dropped
    }
    for k, (step, arguments) in enumerate(op.steps):
        renamed[op.input_count + k] = len(inputs) + len(steps)
        steps.append((step, tuple(renamed[each] for each in arguments)))
    layouts.extend(op.layouts[op.input_count :])
    results = tuple(renamed[k] for k in op.results)
    return inputs, Fused(len(inputs), tuple(steps), results, tuple(layouts), op.parts, op.size)


def _with_results(producer: Operation, rest: Sequence[Symbol]) -> tuple[list[Symbol], Fused]:
    """Return the inputs and the op of a producer that gives some of its results, and computes nothing else."""
    op = op_of(producer, Fused)
    number_of = dict(zip(producer.outputs, op.results, strict=True))
    taken, op = op.giving(tuple([number_of[tensor] for tensor in rest]))
    return [producer.inputs[k] for k in taken], op


__all__ = ["rematerialise"]
