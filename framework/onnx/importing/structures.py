"""Rules for loops, branches, sequences and optional values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine import ops
from ....engine.control_flow import TensorArray, cond, while_loop
from ....engine.graph import Symbol, Tensor
from .node import Node, imports
from .reading import initializer_array
from .values import GrowingSequence, Optional, dtype_of, known, plain, shape_of, sizes_of, tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, TypeProto, ValueInfoProto

    from ....engine.graph.spec import Shape
    from ....engine.ops.base import TensorLike
    from .values import NodeValue

    _State = Tensor | tuple[TensorArray, Tensor]  # as a loop of the graph carries a value

# --- branches and loops ---------------------------------------------------------------------------------------------


@imports("If")
def _if(node: Node, condition: Tensor) -> NodeValue:
    branches = {True: node.get("then_branch"), False: node.get("else_branch")}
    found = known(condition)
    if found is not None:
        return tuple(node.runner.run(branches[bool(found.reshape(()))], []))

    if any(each.type.HasField("sequence_type") for each in branches[True].output):
        pairs = zip(*[node.runner.run(branch, []) for branch in branches.values()], strict=True)
        return tuple([_joined(node, condition, *pair) for pair in pairs])

    def taken(choice: bool) -> tuple[Tensor, ...]:
        return tuple([tensor(plain(each)) for each in node.runner.run(branches[choice], [])])

    return cond(ops.reshape(condition, ()), lambda: taken(True), lambda: taken(False))


def _joined(node: Node, condition: Tensor, one: NodeValue, two: NodeValue) -> GrowingSequence:
    """Return what two branches give: the same sequence, without a tensor if there is one at that position.

    So files write over what may or may not be there.

    Raises:
        NotImplementedError: they give something else.
    """
    if isinstance(one, GrowingSequence) and isinstance(two, GrowingSequence) and one.hole is not None:
        is_same = one.array is two.array and one.length is two.length and two.hole is None
        if is_same and _is_position_of(one, condition):
            return one
    raise NotImplementedError(f"{node.op_type} whose branches give different sequences")


def _is_position_of(sequence: GrowingSequence, condition: Tensor) -> bool:
    """Test whether a condition says that the hole of a sequence is a position in it."""
    if not isinstance(condition, Symbol) or condition.operation.type != "less":
        return False
    place, length = map(_before_casts, condition.operation.inputs)
    return _is_same(place, _before_casts(sequence.hole)) and length is _before_casts(sequence.length)


def _before_casts(value: object) -> object:
    while isinstance(value, Symbol) and value.operation.type == "cast":
        (value,) = value.operation.inputs
    return value


@imports("Loop")
def _loop(node: Node, trips: TensorLike | None, condition: Tensor | None, *carried: NodeValue) -> NodeValue:
    """Run a loop if its number of trips, conditions and values are all known; build others into the graph."""
    body = node.get("body")
    limit, goes_on = None if trips is None else known(trips), True if condition is None else known(condition)
    symbolic = (trips is not None and limit is None) or goes_on is None or any(_is_symbolic(each) for each in carried)
    if not symbolic:
        most = None if limit is None else int(limit.reshape(()))
        found = _run_here(node, body, most, bool(np.asarray(goes_on).reshape(())), list(carried))
        if found is not None:
            return found
    return _run_in_graph(node, body, trips, condition, list(carried))


def _is_symbolic(value: NodeValue) -> bool:
    if isinstance(value, list):
        return any(map(_is_symbolic, value))
    return isinstance(value, GrowingSequence) or isinstance(plain(value), Symbol)


def _run_here(
    node: Node, body: GraphProto, most: int | None, goes_on: bool, carried: list[NodeValue]
) -> tuple[NodeValue, ...] | None:
    """Return the outputs; None where a condition turns out to be known at run time only."""
    rows: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    count = 0
    while goes_on and (most is None or count < most):
        results = node.runner.run(body, [np.array(count), np.array(True), *carried])
        again = known(results[0])
        if again is None or any(_is_symbolic(each) for each in results[1 : 1 + len(carried)]):
            return None
        carried, goes_on = list(results[1 : 1 + len(carried)]), bool(again.reshape(()))
        for row, value in zip(rows, results[1 + len(carried) :], strict=True):
            row.append(tensor(plain(value)))
        count += 1
    stacked = [ops.stack(row) if row else _no_rows(body.output[1 + len(carried) + k]) for k, row in enumerate(rows)]
    return (*carried, *stacked)


def _no_rows(info: ValueInfoProto) -> Tensor:
    """Return a scan output of zero iterations: no rows, and of other sizes those that are declared."""
    kind = info.type.tensor_type
    shape = (0, *[dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim])
    return ops.zeros(shape, dtype=dtype_of(kind.elem_type or 1))


def _run_in_graph(
    node: Node, body: GraphProto, trips: TensorLike | None, condition: Tensor | None, carried: list[NodeValue]
) -> tuple[Tensor | GrowingSequence, ...]:
    """Build a `while_loop`; one that nothing but the number of trips ends carries no condition."""
    scans = len(body.output) - 1 - len(carried)
    start = [_as_state(each, body.input[2 + k]) for k, each in enumerate(carried)]
    limit = None if trips is None else _number_of(trips)
    counted = limit is not None and _never_ends(body) and (condition is None or known(condition) is not None)
    if counted and condition is not None and not bool(known(condition)):
        limit = 0
    shapes: list[Shape] = [None] * scans  # of what is written
    arrays = [_array_for(body.output[1 + len(start) + k], limit if counted else None) for k in range(scans)]
    first = [] if counted else [tensor(True) if condition is None else ops.reshape(tensor(condition), ())]

    def goes_on(i: Tensor, *rest: Tensor) -> Tensor:
        if limit is None:
            return rest[0]
        is_before = ops.less(i, limit)
        return is_before if counted else ops.logical_and(rest[0], is_before)

    def step(i: Tensor, *rest: Any) -> tuple[object, ...]:
        again = [tensor(True)] if counted else [rest[0]]
        values = [_unpacked(each) for each in rest[len(first) : len(first) + len(start)]]
        results = node.runner.run(body, [ops.cast(i, "int64"), *again, *values])
        states = [_packed(each) for each in results[1 : 1 + len(start)]]
        scanned = [tensor(plain(each)) for each in results[1 + len(start) :]]
        written = rest[len(first) + len(start) :]
        shapes[:] = [row.shape for row in scanned]
        rows = [array.write(i, row) for array, row in zip(written, scanned, strict=True)]
        following = [] if counted else [ops.reshape(tensor(plain(results[0])), ())]
        return (ops.add(i, 1), *following, *states, *rows)

    final = while_loop(goes_on, step, (0, *first, *start, *arrays))[1 + len(first) :]
    stacked = [_of_shape(array.stack(), shape) for array, shape in zip(final[len(start) :], shapes, strict=True)]
    return (*map(_unpacked, final[: len(start)]), *stacked)


def _packed(value: NodeValue) -> _State:
    """Return a value as a loop of the graph carries it."""
    if isinstance(value, GrowingSequence) and value.hole is not None:
        raise NotImplementedError("Loop that carries a sequence from which it takes tensors out")
    return (value.array, value.length) if isinstance(value, GrowingSequence) else tensor(plain(value))


def _unpacked(state: _State) -> Tensor | GrowingSequence:
    return GrowingSequence(*state) if isinstance(state, tuple) else state


def _as_state(value: NodeValue, info: ValueInfoProto) -> _State:
    """Return the value with which a loop of the graph begins; a sequence as one that can grow."""
    if not isinstance(value, list):
        return _packed(value)
    kind = info.type.sequence_type.elem_type.tensor_type
    shape = _declared_shape(kind)
    array = TensorArray(dtype_of(kind.elem_type or 1), 0, dynamic_size=True, element_shape=shape, infer_shape=False)
    found = GrowingSequence(array, tensor(np.int32(0)))
    for each in value:
        found = found.with_last(tensor(plain(each)))
    return _packed(found)


def _number_of(trips: TensorLike) -> int | Tensor:
    """Return the number of trips: an int if it is known when the model is called."""
    number = known(trips)
    if number is not None:
        return min(int(number.reshape(())), 2**31 - 1)
    return ops.reshape(ops.cast(tensor(plain(trips)), "int32"), ())


def _of_shape(rows: Tensor, shape: Sequence[int | None] | None) -> Tensor:
    """Return a scan output with the sizes of its rows that are known from the body, and not from the file."""
    if shape is None or rows.shape is None:
        return rows
    if all(size is not None or dim is None for size, dim in zip(rows.shape[1:], shape, strict=True)):
        return rows
    sizes = [size if dim is None else dim for size, dim in zip(sizes_of(rows), (None, *shape), strict=True)]
    return ops.reshape(rows, sizes)


def _never_ends(body: GraphProto) -> bool:
    """Test whether the condition that a body gives is the one that it was given, or a constant."""
    name = body.output[0].name
    for node in reversed(body.node):
        if name in node.output:
            if node.op_type == "Constant":
                value = next((each.t for each in node.attribute if each.name == "value"), None)
                return value is not None and bool(initializer_array(value).reshape(()))
            if node.op_type != "Identity":
                return False
            name = node.input[0]
    return name == body.input[1].name


def _declared_shape(kind: TypeProto.Tensor) -> Shape:
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)


def _array_for(info: ValueInfoProto, size: object) -> TensorArray:
    """Return an array for a scan output, which grows where the number of trips is not known before."""
    kind = info.type.tensor_type
    shape = _declared_shape(kind)
    dtype = dtype_of(kind.elem_type or 1)
    if size is None:
        return TensorArray(dtype, 0, dynamic_size=True, element_shape=shape)
    return TensorArray(dtype, size, element_shape=shape)


@imports("Scan")
def _scan(node: Node, *inputs: Any) -> NodeValue:
    """Return states and rows; in opset 8 with an axis of samples in front, and lengths as the first input."""
    body, count = node.get("body"), node.get("num_scan_inputs")
    if node.version < 9:
        return _scan_of_samples(node, body, count, inputs[1:])
    states, scanned = list(inputs[: len(inputs) - count]), list(inputs[len(inputs) - count :])
    axes = node.get("scan_input_axes") or [0] * count
    back = node.get("scan_input_directions") or [0] * count
    scanned = [ops.moveaxis(each, axis, 0) for each, axis in zip(scanned, axes, strict=True)]
    scanned = [ops.flip(each, 0) if turned else each for each, turned in zip(scanned, back, strict=True)]
    results = _scanned(node, body, states, scanned)
    found, rows = results[: len(states)], results[len(states) :]
    out_axes = node.get("scan_output_axes") or [0] * len(rows)
    out_back = node.get("scan_output_directions") or [0] * len(rows)
    rows = [ops.flip(row, 0) if turned else row for row, turned in zip(rows, out_back, strict=True)]
    return (*found, *[ops.moveaxis(row, 0, axis) for row, axis in zip(rows, out_axes, strict=True)])


def _scanned(node: Node, body: GraphProto, states: list[Tensor], scanned: list[Tensor]) -> list[Tensor]:
    length = shape_of(scanned[0])[0]
    if length is None:
        return _scanned_in_graph(node, body, states, scanned)
    rows: list[list[Tensor]] = [[] for _ in range(len(body.output) - len(states))]
    for place in range(length):
        results = node.runner.run(body, [*states, *[each[place] for each in scanned]])
        states = [tensor(plain(each)) for each in results[: len(states)]]
        for row, value in zip(rows, results[len(states) :], strict=True):
            row.append(tensor(plain(value)))
    stacked = [ops.stack(row) if row else _no_rows(body.output[len(states) + k]) for k, row in enumerate(rows)]
    return [*states, *stacked]


def _scanned_in_graph(node: Node, body: GraphProto, states: list[Tensor], scanned: list[Tensor]) -> list[Tensor]:
    length = ops.shape(scanned[0])[0]
    arrays = [_array_for(body.output[len(states) + k], length) for k in range(len(body.output) - len(states))]
    start = [tensor(each) for each in states]
    shapes: list[Shape] = [None] * len(arrays)  # of what is written

    def step(i: Tensor, *rest: Any) -> tuple[object, ...]:
        values, written = rest[: len(start)], rest[len(start) :]
        results = node.runner.run(body, [*values, *[ops.take(each, i, axis=0) for each in scanned]])
        found = [tensor(plain(each)) for each in results]
        shapes[:] = [row.shape for row in found[len(start) :]]
        rows = [array.write(i, row) for array, row in zip(written, found[len(start) :], strict=True)]
        return (ops.add(i, 1), *found[: len(start)], *rows)

    final = while_loop(lambda i, *_: ops.less(i, length), step, (0, *start, *arrays))
    arrays = final[1 + len(start) :]
    stacked = [_of_shape(array.stack(), shape) for array, shape in zip(arrays, shapes, strict=True)]
    return [*final[1 : 1 + len(start)], *stacked]


def _scan_of_samples(node: Node, body: GraphProto, count: int, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    batch = shape_of(scanned[0])[0]
    if batch is None:
        raise ValueError("the number of samples must be known")
    found = [_scanned(node, body, [each[k] for each in states], [each[k] for each in scanned]) for k in range(batch)]
    return tuple([ops.stack([tensor(each) for each in column]) for column in zip(*found, strict=True)])


# --- sequences ------------------------------------------------------------------------------------------------------


@imports("SequenceConstruct")
def _sequence_construct(node: Node, *inputs: NodeValue) -> NodeValue:
    return list(inputs)


@imports("SequenceEmpty")
def _sequence_empty(node: Node) -> NodeValue:
    return []


def _place(node: Node, position: TensorLike | None, size: int, last: int) -> int:
    place = last if position is None else node.ints(position, "position")[0]
    if not -size <= place <= last:
        raise IndexError(f"position {place} is out of range for a sequence of {size}")
    return place + size if place < 0 else place


def _refused(node: Node) -> NotImplementedError:
    return NotImplementedError(f"{node.op_type} of a sequence whose length is known at run time only")


def _check_whole(node: Node, sequence: GrowingSequence) -> None:
    """Check that no tensor was taken out of a sequence.

    Raises:
        NotImplementedError: one was.
    """
    if sequence.hole is not None:
        raise _refused(node)


def _is_same(one: object, two: object) -> bool:
    return one is two or (known(one) is not None and np.array_equal(known(one), known(two)))


@imports("SequenceInsert")
def _sequence_insert(
    node: Node,
    sequence: Sequence[NodeValue] | GrowingSequence,
    value: Tensor,
    position: TensorLike | None = None,
) -> NodeValue:
    if isinstance(sequence, GrowingSequence):
        if position is None and sequence.hole is None:
            return sequence.with_last(value)
        if position is None or not _is_same(position, sequence.hole):
            raise _refused(node)
        return sequence.with_hole_filled(value)
    place = _place(node, position, len(sequence), len(sequence))
    return [*sequence[:place], value, *sequence[place:]]


@imports("SequenceErase")
def _sequence_erase(node: Node, sequence: Sequence[NodeValue], position: TensorLike | None = None) -> NodeValue:
    if isinstance(sequence, GrowingSequence):
        _check_whole(node, sequence)
        if position is None:
            raise _refused(node)
        return replace(sequence, hole=position)
    place = _place(node, position, len(sequence), len(sequence) - 1)
    return [*sequence[:place], *sequence[place + 1 :]]


@imports("SequenceAt")
def _sequence_at(node: Node, sequence: Sequence[NodeValue] | GrowingSequence, position: Tensor) -> NodeValue:
    if isinstance(sequence, GrowingSequence):
        _check_whole(node, sequence)
        place = ops.reshape(ops.cast(position, "int32"), ())
        return sequence.array.read(ops.where(ops.less(place, 0), ops.add(place, sequence.length), place))
    return sequence[_place(node, position, len(sequence), len(sequence) - 1)]


@imports("SequenceLength")
def _sequence_length(node: Node, sequence: Sequence[object] | GrowingSequence) -> NodeValue:
    if isinstance(sequence, GrowingSequence):
        _check_whole(node, sequence)
        return ops.cast(sequence.length, "int64")
    return np.array(len(sequence), "int64")


@imports("ConcatFromSequence")
def _concat_from_sequence(node: Node, sequence: list[TensorLike] | GrowingSequence) -> NodeValue:
    axis = node.get("axis")
    if isinstance(sequence, GrowingSequence):
        _check_whole(node, sequence)
        if axis:
            raise NotImplementedError(f"ConcatFromSequence along axis {axis} of a sequence that a loop makes")
        return sequence.array.stack() if node.get("new_axis") else sequence.array.concat()
    parts = [tensor(each) for each in sequence]
    return ops.stack(parts, axis) if node.get("new_axis") else ops.concatenate(parts, axis)


@imports("SplitToSequence")
def _split_to_sequence(node: Node, x: Tensor, split: Any = None) -> NodeValue:
    axis = node.get("axis", 0)
    size = node.ints(np.array(shape_of(x)[axis]), "size")[0]
    if split is None:
        parts = [ops.take(x, np.array([k], "int32"), axis=axis) for k in range(size)]
        return parts if node.get("keepdims", 1) else [ops.squeeze(part, axis) for part in parts]
    sizes = node.ints(split, "split")
    if not len(split.shape):
        sizes = [min(sizes[0], size - k) for k in range(0, size, sizes[0])]
    bounds = np.cumsum(sizes)[:-1].tolist()
    return list(ops.split(x, bounds, axis)) if len(sizes) > 1 else [x]


@imports("SequenceMap")
def _sequence_map(node: Node, sequence: list[NodeValue], *others: NodeValue) -> NodeValue:
    if isinstance(sequence, GrowingSequence):
        raise _refused(node)
    body = node.get("body")
    found: list[list[NodeValue]] = [[] for _ in body.output]
    for k, value in enumerate(sequence):
        given = [each[k] if isinstance(each, list) else each for each in others]
        for column, result in zip(found, node.runner.run(body, [value, *given]), strict=True):
            column.append(result)
    return tuple(found)


# --- optional values ------------------------------------------------------------------------------------------------


@imports("Optional")
def _optional(node: Node, value: NodeValue = None) -> NodeValue:
    return Optional(value)


@imports("OptionalGetElement")
def _optional_get_element(node: Node, value: NodeValue) -> NodeValue:
    found = value.value if isinstance(value, Optional) else value
    if found is None:
        raise ValueError("the optional value is empty")
    return found


@imports("OptionalHasElement")
def _optional_has_element(node: Node, value: NodeValue = None) -> NodeValue:
    found = value.value if isinstance(value, Optional) else value
    return np.array(found is not None)
