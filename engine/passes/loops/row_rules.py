"""The rules of `independent_rows`: how the results of each op depend on the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.graph import Operation
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.arrays.creation import Fill
from ...ops.arrays.gathering import Take, TakeAlongAxis
from ...ops.arrays.indexing import GetItem, SliceItem
from ...ops.arrays.joining import Concatenate, Split, Stack
from ...ops.arrays.padding import Pad
from ...ops.arrays.positions import OneHot
from ...ops.arrays.shaping import BroadcastTo, DimOf, ExpandDims, Reshape, Squeeze, constant_value
from ...ops.arrays.sorting import ArgSort, SearchSorted, TopK
from ...ops.containers.tensor_arrays import ArrayRead, ArrayStack, ArrayUnstack, ArrayWrite
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.linalg import BatchMatMul, FlattenRows, MatMul, UnflattenRows
from ...ops.math.reduced import _Reduction  # pyright: ignore[reportPrivateUsage]
from ...ops.math.running import _Running  # pyright: ignore[reportPrivateUsage]
from ...ops.neural.convolution import Conv, ConvInputGrad
from ...ops.neural.pooling import AveragePool, MaxPool
from ...ops.neural.softmax import _Normalised  # pyright: ignore[reportPrivateUsage]
from ...ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ShapeOf, ZerosOfShape


@dataclass(frozen=True)
class Rows:
    """Each element along `axis` depends on one row, in the order of rows.

    Attributes:
        axis: counted from the front.
        exact: the axis has as many elements as there are rows; otherwise equally many for each row, one row's after
            the other's.
    """

    axis: int
    exact: bool = True


@dataclass(frozen=True)
class Count:
    """A scalar that is the number of rows, or (not exact) a multiple of it that does not depend on them otherwise."""

    exact: bool = True


@dataclass(frozen=True)
class Sizes:
    """A vector of sizes, for each entry None or a `Count`."""

    entries: tuple[Count | None, ...]


@dataclass(frozen=True)
class Elements:
    """A TensorArray whose elements are all of one state."""

    state: Rows | None


@dataclass(frozen=True)
class Mixed:
    """A value that depends on several rows, or is not known not to; with the `name` and `type` of its operation."""

    name: str
    type: str


State = Rows | Count | Sizes | Elements | Mixed | None
Rule = Callable[[Operation, Sequence[State]], State]


def rule_of(operation: Operation) -> Rule:
    """Find the rule for an operation some of whose inputs depend on rows, and none of which mixes them."""
    for kind in type(operation.op).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    return _elementwise if operation.op.elementwise or operation.op.by_element else lambda node, given: mixed(node)


def mixed(operation: Operation) -> Mixed:
    """Say that an operation is not known to compute each row for itself."""
    return Mixed(operation.name, operation.type)


def _rank(tensor: Symbol) -> int | None:
    return None if tensor.shape is None else len(tensor.shape)


# --- element by element ---------------------------------------------------------------------------------------------


def _elementwise(node: Operation, given: Sequence[State]) -> State:
    if not any(isinstance(state, Rows) for state in given):
        return _of_sizes(node, given)
    found: set[tuple[int, bool]] = set()
    for state, tensor in zip(given, node.inputs, strict=True):
        rank = _rank(tensor)
        if rank is None or not isinstance(state, Rows | None):
            return mixed(node)
        if state is not None:
            found.add((state.axis - rank, state.exact))
    if len(found) > 1:
        return mixed(node)
    from_end, exact = found.pop()
    for state, tensor in zip(given, node.inputs, strict=True):
        shape = tensor.shape or ()
        if state is None and len(shape) >= -from_end and shape[from_end] != 1:
            return mixed(node)  # elements of a constant, one for each of so many rows
    return Rows(from_end + (_rank(node.outputs[0]) or 0), exact)


def _of_sizes(node: Operation, given: Sequence[State]) -> State:
    """Products and sums of sizes with constants: a multiple of the number of rows stays one."""
    wanted = [state for state in given if state is not None]
    if len(wanted) != 1 or len(given) > 2 or node.type not in ("multiply", "add", "subtract", "maximum", "cast"):
        return mixed(node)
    state, place = wanted[0], given.index(wanted[0])
    counts = state.entries if isinstance(state, Sizes) else (state,)
    others: list[Any] = [None] * len(counts)
    if len(given) == 2 and node.type == "multiply" and isinstance(state, Count):
        other = constant_value(node.inputs[1 - place])
        return Count(state.exact and other is not None and int(other) == 1)
    if len(given) == 2:
        constant = constant_value(node.inputs[1 - place])
        if constant is None or constant.size not in (1, len(counts)):
            return mixed(node)
        others = [int(each) for each in constant.reshape(-1)] * (len(counts) if constant.size == 1 else 1)
    entries: list[Count | None] = []
    for count, other in zip(counts, others, strict=True):
        if not isinstance(count, Count):
            entries.append(None)
        elif other is None or (node.type in ("add", "subtract") and other == 0 and place == 0):
            entries.append(count)
        elif node.type == "multiply" and other > 0:
            entries.append(Count(count.exact and other == 1))
        elif node.type == "maximum" and other <= 1:  # there is at least one row
            entries.append(count)
        else:
            return mixed(node)
    return Sizes(tuple(entries)) if isinstance(state, Sizes) else entries[0]


# --- axes -----------------------------------------------------------------------------------------------------------


def _only_rows(node: Operation, given: Sequence[State], place: int = 0) -> tuple[Rows, int] | None:
    """The state and rank of the input that alone depends on rows; None if another does, or the rank is not known."""
    state, rank = given[place], _rank(node.inputs[place])
    others = [other for position, other in enumerate(given) if position != place]
    if not isinstance(state, Rows) or rank is None or any(other is not None for other in others):
        return None
    return state, rank


def _over_axes(node: Operation, given: Sequence[State]) -> State:
    """Reductions, and what is normalised over axes: not over that of the rows."""
    found = _only_rows(node, given)
    if found is None:
        return mixed(node)
    (state, rank), op = found, node.op
    axes = getattr(op, "axes", None)
    reduced = set(range(rank)) if axes is None else {axis % rank for axis in axes}
    if state.axis in reduced:
        return mixed(node)
    if isinstance(op, _Normalised) or getattr(op, "keepdims", False):
        return state
    return Rows(state.axis - sum(axis < state.axis for axis in reduced), state.exact)


def _along_axis(node: Operation, given: Sequence[State]) -> State:
    """Sorting and its like along one axis: not along that of the rows."""
    found = _only_rows(node, given)
    if found is None or getattr(node.op, "axis", -1) % found[1] == found[0].axis:
        return mixed(node)
    return found[0]


def _taken_along(node: Operation, given: Sequence[State]) -> State:
    """Elements along one axis, which is not that of the rows."""
    rank = _rank(node.inputs[0])
    assert isinstance(node.op, TakeAlongAxis)
    if rank is None or any(isinstance(each, Rows) and each.axis == node.op.axis % rank for each in given):
        return mixed(node)
    return _elementwise(node, given)


def _transposed(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, Transpose)
    if found is None:
        return mixed(node)
    state, rank = found
    order = node.op.axes or tuple(reversed(range(rank)))
    moved = [axis % rank for axis in order].index(state.axis)
    return Rows(moved, state.exact) if state.exact or moved == state.axis else mixed(node)


def _expanded(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, ExpandDims)
    if found is None:
        return mixed(node)
    rank = found[1] + len(node.op.axes)
    added = {axis % rank for axis in node.op.axes}
    return Rows([axis for axis in range(rank) if axis not in added][found[0].axis], found[0].exact)


def _squeezed(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, Squeeze)
    if found is None or node.op.axes is None:
        return mixed(node)
    dropped = {axis % found[1] for axis in node.op.axes}
    if found[0].axis in dropped:
        return mixed(node)
    return Rows(found[0].axis - sum(axis < found[0].axis for axis in dropped), found[0].exact)


def _one_hot(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, OneHot)
    if found is None:
        return mixed(node)
    added = node.op.axis % (found[1] + 1)
    return Rows(found[0].axis + (added <= found[0].axis), found[0].exact)


def _padded(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, Pad)
    if found is None or node.op.widths[found[0].axis] != (0, 0):
        return mixed(node)
    return found[0]


def _item(node: Operation, given: Sequence[State]) -> State:
    """Parts of a tensor: of the rows' axis the whole. An entry of sizes."""
    op, state = node.op, given[0]
    assert isinstance(op, GetItem)
    if isinstance(state, Sizes) and len(op.items) == 1 and isinstance(op.items[0], int):
        return state.entries[op.items[0]]
    found = _only_rows(node, given)
    if found is None:
        return mixed(node)
    axis = place = 0
    for item in op.items:
        if item is Ellipsis:
            return mixed(node)
        if item is None:
            place += 1
            continue
        if axis == found[0].axis:
            return Rows(place, found[0].exact) if item == SliceItem() else mixed(node)
        axis += 1
        place += isinstance(item, SliceItem)
    return Rows(found[0].axis - axis + place, found[0].exact)


def _joined(node: Operation, given: Sequence[State]) -> State:
    assert isinstance(node.op, Concatenate)
    if not any(isinstance(state, Rows) for state in given):
        return _sizes_of_parts(node, given)
    states, rank = set(given), _rank(node.inputs[0])
    state = states.pop()
    if states or not isinstance(state, Rows) or rank is None or node.op.axis % rank == state.axis:
        return mixed(node)
    return state


def _sizes_of_parts(node: Operation, given: Sequence[State]) -> State:
    entries: list[Count | None] = []
    for state, tensor in zip(given, node.inputs, strict=True):
        shape = tensor.shape
        if isinstance(state, Sizes):
            entries += state.entries
        elif state is None and shape is not None and len(shape) == 1 and shape[0] is not None:
            entries += [None] * shape[0]
        else:
            return mixed(node)
    return Sizes(tuple(entries))


def _stacked(node: Operation, given: Sequence[State]) -> State:
    assert isinstance(node.op, Stack)
    if all(state is None or isinstance(state, Count) for state in given):
        return Sizes(tuple(state if isinstance(state, Count) else None for state in given))
    states, rank = set(given), _rank(node.inputs[0])
    state = states.pop()
    if states or not isinstance(state, Rows) or rank is None:
        return mixed(node)
    return Rows(state.axis + (node.op.axis % (rank + 1) <= state.axis), state.exact)


def _split(node: Operation, given: Sequence[State]) -> State:
    return _along_axis(node, given)


def _taken(node: Operation, given: Sequence[State]) -> State:
    assert isinstance(node.op, Take)
    rank, indices = _rank(node.inputs[0]), _rank(node.inputs[1])
    if rank is None or indices is None:
        return mixed(node)
    axis, (x, places) = node.op.axis % rank, given
    if x is None and isinstance(places, Rows):
        return Rows(axis + places.axis, places.exact)
    if places is None and isinstance(x, Rows) and x.axis != axis:
        return Rows(x.axis + (indices - 1 if x.axis > axis else 0), x.exact)
    return mixed(node)


# --- products, windows ----------------------------------------------------------------------------------------------


def _product(node: Operation, given: Sequence[State]) -> State:
    op, (a, b) = node.op, given
    assert isinstance(op, (MatMul, BatchMatMul))
    ranks = [_rank(tensor) for tensor in node.inputs]
    if None in ranks or _rank(node.outputs[0]) is None:
        return mixed(node)
    out = _rank(node.outputs[0]) or 0
    places: set[tuple[int, bool]] = set()
    for state, rank, flipped, is_first in ((a, ranks[0], op.transpose_a, True), (b, ranks[1], op.transpose_b, False)):
        if state is None:
            continue
        if not isinstance(state, Rows):
            return mixed(node)
        from_end = state.axis - (rank or 0)
        if from_end >= -2:  # an axis of the matrices: rows of the first, or columns of the second
            kept = (-1 if flipped else -2) if is_first else (-2 if flipped else -1)
            if from_end != kept:
                return mixed(node)
            from_end = -2 if is_first else -1
        places.add((from_end + out, state.exact))
    return Rows(*places.pop()) if len(places) == 1 and not _meets_constant(node, given) else mixed(node)


def _meets_constant(node: Operation, given: Sequence[State]) -> bool:
    """Test whether a stack of matrices of the rows is multiplied with one of a fixed number of others."""
    for state, tensor, other in zip(given, node.inputs, reversed(node.inputs), strict=True):
        if isinstance(state, Rows):
            from_end = state.axis - (_rank(tensor) or 0)
            shape = other.shape or ()
            is_other_free = given[0 if other is node.inputs[0] else 1] is None
            if is_other_free and from_end < -2 and len(shape) >= -from_end and shape[from_end] != 1:
                return True
    return False


def _contracted(node: Operation, given: Sequence[State]) -> State:
    op = node.op
    assert isinstance(op, Contraction)
    labels: set[tuple[str, bool]] = set()
    for state, names in zip(given, (op.a, op.b), strict=True):
        if state is not None:
            if not isinstance(state, Rows):
                return mixed(node)
            labels.add((names[state.axis], state.exact))
    if len(labels) != 1:
        return mixed(node)
    label, exact = labels.pop()
    for state, names, tensor in zip(given, (op.a, op.b), node.inputs, strict=True):
        if state is None and label in names and (tensor.shape or (None,) * len(names))[names.index(label)] != 1:
            return mixed(node)
    return Rows(op.out.index(label), exact) if label in op.out else mixed(node)


def _windows(node: Operation, given: Sequence[State]) -> State:
    """Convolutions and pooling: images are computed one by one."""
    found = _only_rows(node, given)
    return found[0] if found is not None and found[0].axis == 0 else mixed(node)


def _transposed_windows(node: Operation, given: Sequence[State]) -> State:
    image, kernel, shape = given
    is_by_image = isinstance(image, Rows) and image.axis == 0 and kernel is None
    is_shape_alike = isinstance(shape, Sizes) and shape.entries[0] is not None and not any(shape.entries[1:])
    return image if is_by_image and is_shape_alike else mixed(node)


# --- shapes ---------------------------------------------------------------------------------------------------------


def _dim(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    assert isinstance(node.op, DimOf)
    if found is None:
        return mixed(node)
    return Count(found[0].exact) if node.op.axis % found[1] == found[0].axis else None


def _shape(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    if found is None:
        return mixed(node)
    return Sizes(tuple(Count(found[0].exact) if axis == found[0].axis else None for axis in range(found[1])))


def _wanted(node: Operation, given: Sequence[State]) -> Sequence[State] | None:
    """For each size of the shape that an op makes: None, or a Count."""
    op = node.op
    if isinstance(op, (Reshape, BroadcastTo, Fill)):
        dynamic = iter(given[1:])
        return [next(dynamic) if size is None else None for size in op.shape]
    sizes = given[-1]
    if isinstance(sizes, Sizes):
        return list(sizes.entries)
    rank = _rank(node.outputs[0])
    return [None] * rank if sizes is None and rank is not None else None


def _reshaped(node: Operation, given: Sequence[State]) -> State:
    """The elements of a row stay together where the rows' axis comes first, before and after."""
    state, wanted = given[0], _wanted(node, given)
    if not isinstance(state, Rows) or not wanted:
        return mixed(node)
    if state.axis > 0:
        return state if _stays(node, state, wanted) else mixed(node)
    if any(wanted[1:]):
        return mixed(node)
    if isinstance(wanted[0], Count):
        return Rows(0, wanted[0].exact)
    op, shape = node.op, node.inputs[0].shape
    if not isinstance(op, Reshape) or op.shape[0] != -1 or shape is None:
        return mixed(node)
    here, there = _product_of(shape[1:]), _product_of(op.shape[1:])
    if None in op.shape[1:] or there[0] == 0 or here[0] % there[0]:
        return mixed(node)
    return Rows(0, state.exact and here[1] and here[0] == there[0])


def _stays(node: Operation, state: Rows, wanted: Sequence[State]) -> bool:
    """Test whether a reshape leaves the axis of the rows where it is: as long as before, with as much behind it."""
    shape, after = node.inputs[0].shape, node.outputs[0].shape
    if shape is None or after is None or len(shape) != len(after) or wanted[state.axis] != Count() or not state.exact:
        return False
    behind = shape[state.axis + 1 :]
    counts = [axis for axis, size in enumerate(wanted) if isinstance(size, Count)]
    return None not in behind and behind == after[state.axis + 1 :] and counts == [state.axis]


def _product_of(sizes: Sequence[int | None]) -> tuple[int, bool]:
    """The product of those sizes that are known; whether all are."""
    product = 1
    for size in sizes:
        product *= 1 if size is None else size
    return product, None not in sizes


def _flattened(node: Operation, given: Sequence[State]) -> State:
    found = _only_rows(node, given)
    if found is None or found[0].axis != 0 or found[1] < 2:
        return mixed(node)
    return Rows(0, found[0].exact and found[1] == 2)


def _unflattened(node: Operation, given: Sequence[State]) -> State:
    state, sizes = given
    if not isinstance(state, Rows) or state.axis != 0 or not isinstance(sizes, Sizes):
        return mixed(node)
    first, *others = sizes.entries[:-1] or (None,)
    return Rows(0, first.exact) if first is not None and not any(others) else mixed(node)


def _spread(node: Operation, given: Sequence[State]) -> State:
    """Broadcasts and fills: along the axis as long as there are rows, and along no other."""
    wanted = _wanted(node, given)
    if wanted is None:
        return mixed(node)
    counted = [axis for axis, size in enumerate(wanted) if isinstance(size, Count)]
    value = None if isinstance(node.op, ZerosOfShape) else given[0]
    if len(counted) > 1 or isinstance(value, (Count, Sizes, Elements)):
        return mixed(node)
    if isinstance(value, Rows):
        axis = value.axis + len(wanted) - (_rank(node.inputs[0]) or 0)
        return Rows(axis, value.exact) if counted in ([], [axis]) else mixed(node)
    if not counted:
        return None
    size = wanted[counted[0]]
    assert isinstance(size, Count)
    return Rows(counted[0], size.exact)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _array_of_rows(node: Operation, given: Sequence[State]) -> State:
    state = given[0]
    if not isinstance(state, Rows) or state.axis == 0:
        return mixed(node)
    return Elements(Rows(state.axis - 1, state.exact))


def _element(node: Operation, given: Sequence[State]) -> State:
    array, index = given
    return array.state if isinstance(array, Elements) and index is None else mixed(node)


def _with_element(node: Operation, given: Sequence[State]) -> State:
    array, index, value = given
    if not isinstance(array, Elements) or index is not None or not isinstance(value, Rows | None):
        return mixed(node)
    if array.state not in (None, value):
        return mixed(node)
    return Elements(value)


def _stack_of_elements(node: Operation, given: Sequence[State]) -> State:
    array = given[0]
    if not isinstance(array, Elements):
        return mixed(node)
    return None if array.state is None else Rows(array.state.axis + 1, array.state.exact)


_RULES: dict[type, Rule] = {
    ArgSort: _along_axis,
    ArrayRead: _element,
    ArrayStack: _stack_of_elements,
    ArrayUnstack: _array_of_rows,
    ArrayWrite: _with_element,
    AveragePool: _windows,
    BatchMatMul: _product,
    BroadcastTo: _spread,
    BroadcastToShape: _spread,
    Concatenate: _joined,
    Contraction: _contracted,
    Conv: _windows,
    ConvInputGrad: _transposed_windows,
    DimOf: _dim,
    ExpandDims: _expanded,
    Fill: _spread,
    FlattenRows: _flattened,
    GetItem: _item,
    MatMul: _product,
    MaxPool: _windows,
    OneHot: _one_hot,
    Pad: _padded,
    Reshape: _reshaped,
    ReshapeToShape: _reshaped,
    SearchSorted: lambda node, given: given[1] if given[0] is None and isinstance(given[1], Rows) else mixed(node),
    ShapeOf: _shape,
    Split: _split,
    Squeeze: _squeezed,
    Stack: _stacked,
    Take: _taken,
    TakeAlongAxis: _taken_along,
    TopK: _along_axis,
    Transpose: _transposed,
    UnflattenRows: _unflattened,
    ZerosOfShape: _spread,
    _Running: _along_axis,
    _Normalised: _over_axes,
    _Reduction: _over_axes,
}


__all__ = ["Count", "Elements", "Mixed", "Rows", "Sizes", "State", "mixed", "rule_of"]
