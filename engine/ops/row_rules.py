"""The row states of ops that make or take sizes, or arrays of elements, or put a row's elements into another shape.

Each is the `Op.row_state` of some ops. Most others have axis maps, which say it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph.graph import Operation
from ..graph.row_states import Count, Elements, Rows, Sizes, State, mixed, state_by_axes
from ..graph.tensor import Symbol
from .base import known_array


def _rank(tensor: Symbol) -> int | None:
    return None if tensor.shape is None else len(tensor.shape)


def _only_rows(node: Operation, given: Sequence[State]) -> tuple[Rows, int] | None:
    """Return the state and rank of the first input if it alone depends on rows; None if not, or without a rank."""
    state, rank = given[0], _rank(node.inputs[0])
    if not isinstance(state, Rows) or rank is None or any(other is not None for other in given[1:]):
        return None
    return state, rank


# --- sizes and constants ----------------------------------------------------------------------------------------------


def multiplied(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of a multiple of the number of rows, which stays one."""
    found = _sizes_among(given)
    if found is not None and isinstance(found[1], Count) and node.outputs[0].ndim == 0:
        factor = known_array(node.inputs[1 - found[0]])
        return Count(found[1].exact and factor is not None and int(factor) == 1)
    return _with_numbers(node, given, lambda count, by: Count(count.exact and by == 1) if by > 0 else None)


def moved(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of a sum or difference of sizes and zeros, the sizes first."""
    is_first = given[1] is None
    return _with_numbers(node, given, lambda count, by: count if by == 0 and is_first else None)


def at_least(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of the larger one of sizes and of numbers up to 1: there is at least one row."""
    return _with_numbers(node, given, lambda count, least: count if least <= 1 else None)


def _sizes_among(given: Sequence[State]) -> tuple[int, Count | Sizes] | None:
    """Return the place and the state of sizes among two inputs of which the other depends on no rows."""
    found = [(place, state) for place, state in enumerate(given) if isinstance(state, Count | Sizes)]
    return found[0] if len(found) == 1 and given[1 - found[0][0]] is None else None


def _with_numbers(node: Operation, given: Sequence[State], change: Callable[[Count, int], Count | None]) -> State:
    """Change each size by a constant; `change` returns None where the result is none."""
    found = _sizes_among(given)
    if found is None:
        return state_by_axes(node, given)
    place, state = found
    constant = known_array(node.inputs[1 - place])
    counts = state.entries if isinstance(state, Sizes) else (state,)
    if constant is None or constant.size not in (1, len(counts)):
        return mixed(node)
    numbers = [int(each) for each in constant.reshape(-1)] * (len(counts) if constant.size == 1 else 1)
    entries: list[Count | None] = []
    for count, number in zip(counts, numbers, strict=True):
        entries.append(None if count is None else change(count, number))
        if count is not None and entries[-1] is None:
            return mixed(node)
    return Sizes(tuple(entries)) if isinstance(state, Sizes) else entries[0]


# --- axes -----------------------------------------------------------------------------------------------------------


def item(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of parts of a tensor: of the rows' axis the whole; or of an entry of sizes."""
    state, items = given[0], tuple[Any, ...](self.items)
    if isinstance(state, Sizes) and len(items) == 1 and isinstance(items[0], int):
        return state.entries[items[0]]
    return state_by_axes(node, given)


def joined(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of parts one after the other: rows along another axis, or sizes."""
    if any(isinstance(state, Rows) for state in given):
        return state_by_axes(node, given)
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


def stacked(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of tensors along a new axis: rows, or single sizes."""
    if all(state is None or isinstance(state, Count) for state in given):
        return Sizes(tuple(state if isinstance(state, Count) else None for state in given))
    return state_by_axes(node, given)


def transposed_windows(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of the transpose of a convolution of images, one a row."""
    image, kernel, shape = given
    is_by_image = isinstance(image, Rows) and image.axis == 0 and kernel is None
    is_shape_alike = isinstance(shape, Sizes) and shape.entries[0] is not None and not any(shape.entries[1:])
    return image if is_by_image and is_shape_alike else mixed(node)


# --- shapes ---------------------------------------------------------------------------------------------------------


def dim(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of the size of one axis."""
    found = _only_rows(node, given)
    if found is None:
        return mixed(node)
    return Count(found[0].exact) if self.axis % found[1] == found[0].axis else None


def shape(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of the sizes of all axes."""
    found = _only_rows(node, given)
    if found is None:
        return mixed(node)
    return Sizes(tuple(Count(found[0].exact) if axis == found[0].axis else None for axis in range(found[1])))


def _wanted(op: Any, node: Operation, given: Sequence[State]) -> Sequence[State] | None:
    """Return, for each size of the shape that an op makes, None or a Count."""
    place: int | None = op.shape_input
    if place is None:  # further inputs fill the Nones of its shape
        dynamic = iter(given[1:])
        return [next(dynamic) if size is None else None for size in op.shape]
    sizes = given[place]
    if isinstance(sizes, Sizes):
        return list(sizes.entries)
    rank = _rank(node.outputs[0])
    return [None] * rank if sizes is None and rank is not None else None


def reshaped(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of a reshape: elements of a row stay together if the rows' axis is first before and after."""
    state, wanted = given[0], _wanted(self, node, given)
    if not isinstance(state, Rows) or not wanted:
        return mixed(node)
    if state.axis > 0:
        return state if _stays(node, state, wanted) else mixed(node)
    if any(wanted[1:]):
        return mixed(node)
    if isinstance(wanted[0], Count):
        return Rows(0, wanted[0].exact)
    before = node.inputs[0].shape
    if self.shape_input is not None or self.shape[0] != -1 or before is None:
        return mixed(node)
    here, there = _product_of(before[1:]), _product_of(self.shape[1:])
    if None in self.shape[1:] or there[0] == 0 or here[0] % there[0]:
        return mixed(node)
    return Rows(0, state.exact and here[1] and here[0] == there[0])


def _stays(node: Operation, state: Rows, wanted: Sequence[State]) -> bool:
    """Test whether a reshape leaves the axis of the rows where it is: as long as before, with as much behind it."""
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if before is None or after is None or len(before) != len(after) or wanted[state.axis] != Count() or not state.exact:
        return False
    behind = before[state.axis + 1 :]
    counts = [axis for axis, size in enumerate(wanted) if isinstance(size, Count)]
    return None not in behind and behind == after[state.axis + 1 :] and counts == [state.axis]


def _product_of(sizes: Sequence[int | None]) -> tuple[int, bool]:
    """Return the product of the known sizes, and whether all are known."""
    product = 1
    for size in sizes:
        product *= 1 if size is None else size
    return product, None not in sizes


def flattened(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of rows with all axes but the last as one."""
    found = _only_rows(node, given)
    if found is None or found[0].axis != 0 or found[1] < 2:
        return mixed(node)
    return Rows(0, found[0].exact and found[1] == 2)


def unflattened(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of rows with the leading axes of a shape instead of one."""
    state, sizes = given
    if not isinstance(state, Rows) or state.axis != 0 or not isinstance(sizes, Sizes):
        return mixed(node)
    first, *others = sizes.entries[:-1] or (None,)
    return Rows(0, first.exact) if first is not None and not any(others) else mixed(node)


def spread(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of broadcasts and fills: along the axis as long as there are rows, and along no other."""
    wanted = _wanted(self, node, given)
    if wanted is None:
        return mixed(node)
    counted = [axis for axis, size in enumerate(wanted) if isinstance(size, Count)]
    value = None if self.shape_input == 0 else given[0]
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


def array_of_rows(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of an array whose elements are the parts along the first axis."""
    state = given[0]
    if not isinstance(state, Rows) or state.axis == 0:
        return mixed(node)
    return Elements(Rows(state.axis - 1, state.exact))


def element(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of one element, by an index that is the same for all rows."""
    array, index = given
    return array.state if isinstance(array, Elements) and index is None else mixed(node)


def with_element(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of an array with one more element, of the state of the others."""
    array, index, value = given
    if not isinstance(array, Elements) or index is not None or not isinstance(value, Rows | None):
        return mixed(node)
    if array.state not in (None, value):
        return mixed(node)
    return Elements(value)


def stack_of_elements(self: Any, node: Operation, given: Sequence[State]) -> State:
    """Return the state of all elements along a new first axis."""
    array = given[0]
    if not isinstance(array, Elements):
        return mixed(node)
    return None if array.state is None else Rows(array.state.axis + 1, array.state.exact)


__all__ = [
    "array_of_rows",
    "at_least",
    "dim",
    "element",
    "flattened",
    "item",
    "joined",
    "moved",
    "multiplied",
    "reshaped",
    "shape",
    "spread",
    "stack_of_elements",
    "stacked",
    "transposed_windows",
    "unflattened",
    "with_element",
]
