"""The rules of `independent_rows`: how the results of each op depend on the rows of a batch.

Most ops have axis maps, which say it. Those with a rule of their own make or take sizes, or arrays of elements, or put
the elements of a row into another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.axis_maps import axis_map_of
from ...graph.graph import Operation
from ...graph.tensor import Symbol
from ...ops.arrays.creation import Fill
from ...ops.arrays.indexing import GetItem
from ...ops.arrays.joining import Concatenate, Stack
from ...ops.arrays.shaping import BroadcastTo, DimOf, Reshape, constant_value
from ...ops.containers.tensor_arrays import ArrayRead, ArrayStack, ArrayUnstack, ArrayWrite
from ...ops.linear_algebra.linalg import FlattenRows, UnflattenRows
from ...ops.neural.convolution import ConvInputGrad
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
    return _by_axes


def mixed(operation: Operation) -> Mixed:
    """Say that an operation is not known to compute each row for itself."""
    return Mixed(operation.name, operation.type)


def _rank(tensor: Symbol) -> int | None:
    return None if tensor.shape is None else len(tensor.shape)


# --- by the axes of inputs that those of the result follow ------------------------------------------------------------


def _by_axes(node: Operation, given: Sequence[State]) -> State:
    """Ops with an axis map, along whose rows' axis all goes index by index."""
    if not any(isinstance(state, Rows) for state in given):
        return _of_sizes(node, given)
    axes = axis_map_of(node.op, [tensor.spec for tensor in node.inputs])
    if axes is None or not all(isinstance(state, Rows | None) for state in given):
        return mixed(node)
    rows = {(position, state.axis) for position, state in enumerate(given) if isinstance(state, Rows)}
    exact = {state.exact for state in given if isinstance(state, Rows)}
    found = [axis for axis, own in enumerate(axes) if any((each.input, each.axis) in rows for each in own)]
    if len(found) != 1 or len(exact) != 1:
        return mixed(node)
    followed = axes[found[0]]
    if not rows <= {(each.input, each.axis) for each in followed if each.by_index}:
        return mixed(node)
    for each in followed:
        if given[each.input] is None and (node.inputs[each.input].shape or ())[each.axis] != 1:
            return mixed(node)  # elements of a constant, one for each of so many rows
    return Rows(found[0], exact.pop())


def _only_rows(node: Operation, given: Sequence[State]) -> tuple[Rows, int] | None:
    """Return the state and rank of the first input if it alone depends on rows; None if not, or without a rank."""
    state, rank = given[0], _rank(node.inputs[0])
    if not isinstance(state, Rows) or rank is None or any(other is not None for other in given[1:]):
        return None
    return state, rank


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


def _item(node: Operation, given: Sequence[State]) -> State:
    """Parts of a tensor: of the rows' axis the whole. An entry of sizes."""
    op, state = node.op, given[0]
    assert isinstance(op, GetItem)
    if isinstance(state, Sizes) and len(op.items) == 1 and isinstance(op.items[0], int):
        return state.entries[op.items[0]]
    return _by_axes(node, given)


def _joined(node: Operation, given: Sequence[State]) -> State:
    assert isinstance(node.op, Concatenate)
    if not any(isinstance(state, Rows) for state in given):
        return _sizes_of_parts(node, given)
    return _by_axes(node, given)


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
    return _by_axes(node, given)


# --- products, windows ----------------------------------------------------------------------------------------------


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
    ArrayRead: _element,
    ArrayStack: _stack_of_elements,
    ArrayUnstack: _array_of_rows,
    ArrayWrite: _with_element,
    BroadcastTo: _spread,
    BroadcastToShape: _spread,
    Concatenate: _joined,
    ConvInputGrad: _transposed_windows,
    DimOf: _dim,
    Fill: _spread,
    FlattenRows: _flattened,
    GetItem: _item,
    Reshape: _reshaped,
    ReshapeToShape: _reshaped,
    ShapeOf: _shape,
    Stack: _stacked,
    UnflattenRows: _unflattened,
    ZerosOfShape: _spread,
}


__all__ = ["Count", "Elements", "Mixed", "Rows", "Sizes", "State", "mixed", "rule_of"]
