"""TensorArrays: tensors with an axis of elements in front, or sequences where elements differ in shape."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

import numpy as np

from ....engine.common.dtypes import DType
from ....engine.common.quick_dataclass import dataclass
from ....engine.graph.graph import Operation
from ....engine.graph.spec import ArraySpec, Spec, TensorSpec
from ....engine.ops.base import ConstantArray
from ....engine.ops.containers.tensor_arrays import ArrayWrite
from .registry import attribute, exports, op_of, spec_of
from .writer import INT, LONG, Writer

if TYPE_CHECKING:
    from .control_flow import Held


@dataclass(frozen=True)
class Fresh:
    """An array into which nothing has been written: its size (an int32 scalar) and the spec of its elements."""

    size: str
    element: Spec


@dataclass(frozen=True)
class Dense:
    """An array as one tensor, whose first axis is that of the elements."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """An array as a sequence of tensors, which may differ in shape."""

    name: str


@dataclass(frozen=True)
class Nested:
    """An array of arrays of any depth, whose elements may differ in length, as ONNX's sequences hold no sequences.

    Attributes:
        items: a sequence of all innermost elements, one array after the other; or of the innermost arrays, each as the
            tensor of its elements.
        lengths: int64 vectors: how many elements each of the arrays at a level has, from the outermost level inwards.
    """

    items: str
    lengths: tuple[str, ...]


@dataclass(frozen=True)
class Repeated:
    """An array whose elements are all the same value, and their number (an int32 scalar)."""

    value: str | Array
    size: str


@dataclass(frozen=True)
class Numbers:
    """An array whose elements are their own positions, the number of them (an int32 scalar), and their dtype."""

    size: str
    dtype: DType


Array = Fresh | Dense | Sequence | Nested | Repeated | Numbers


def is_static(element: Spec) -> bool:
    """Test whether the shape of an array's elements is known."""
    return element.shape is not None and None not in element.shape


def rank_of_element(element: Spec) -> int:
    """Return the rank of an array's elements; that of an element which is an array counts the axis of its elements."""
    if isinstance(element, ArraySpec):
        return 1 + rank_of_element(element.element)
    return 0 if element.shape is None else len(element.shape)


def as_dense(w: Writer, array: Array, element: Spec | None) -> str:
    """Return an array as a tensor.

    Args:
        w: what appends the nodes.
        array: the array.
        element: what is known of its elements, for an array that holds none yet.

    Raises:
        ValueError: nothing was written yet, and the shape of the elements is not known.
    """
    if isinstance(array, Dense):
        return array.name
    if isinstance(array, Sequence):
        return _joined(w, array, element, new_axis=1)
    if isinstance(array, Nested):
        raise ValueError("arrays of arrays of different lengths are not written as one tensor in ONNX")
    if isinstance(array, Numbers):
        zero, one = w.constant(np.zeros((), INT)), w.constant(np.ones((), INT))
        return w.cast(w.add("Range", zero, array.size, one), array.dtype)
    if isinstance(array, Repeated):
        value = array.value if isinstance(array.value, str) else as_dense(w, array.value, element)
        return w.expand(value, w.concat([w.vector(array.size), w.shape(value)], 0))
    known = array.element if is_static(array.element) else element
    if w.known(array.size) == 0 and array.element.shape is not None:  # sizes of no elements are of no account
        return w.zeros(w.ints(0, *[dim or 0 for dim in array.element.shape]), array.element.dtype)
    if known is None or not is_static(known):
        raise ValueError("the shape of a TensorArray's elements is not known before the first is written")
    assert known.shape is not None
    return w.zeros(w.filled((None, *known.shape), [array.size]), known.dtype)


def _joined(w: Writer, array: Sequence, element: Spec | None, new_axis: int) -> str:
    """Join the elements of a sequence along a new axis in front, or along their first; `ConcatFromSequence` takes some.

    Args:
        w: what appends the nodes.
        array: the sequence. One without elements gives zeros of the size 0 where a size is not known.
        element: what is known of the elements.
        new_axis: 1 for a new axis, else 0.
    """
    dtype = w.dtypes[array.name]

    def joined() -> str:
        return w.add("ConcatFromSequence", array.name, axis=0, new_axis=new_axis, dtype=dtype)

    if element is None or element.shape is None:
        return joined()
    sizes = (0, *[dim or 0 for dim in element.shape[1 - new_axis :]])
    length = w.add("SequenceLength", array.name, dtype=LONG)
    empty = w.compare("Less", length, w.constant(np.array(1, LONG)))
    return w.either(
        empty, lambda: w.zeros(w.ints(*sizes), dtype), joined, lambda name: w.info(name, [None] * len(sizes))
    )


def as_sequence(w: Writer, array: Array) -> str:
    """Return an array as a sequence; elements that were not written are empty."""
    if isinstance(array, Sequence):
        return array.name
    if isinstance(array, Fresh):
        if w.known(array.size) == 0:
            return w.empty_sequence(array.element.dtype)
        rank = rank_of_element(array.element)
        size = w.vector(array.size)
        none = w.add("Sub", size, size)  # computed: shape inference takes a known value for all elements
        whole = w.zeros(w.concat([size, *[none] * rank], 0), array.element.dtype)
    else:
        whole = as_dense(w, array, None)
    return w.add("SplitToSequence", whole, axis=0, keepdims=0)


@exports("array_new")
def _new(w: Writer, node: Operation, size: str) -> Fresh:
    return Fresh(size, attribute(node, "element", TensorSpec))


@exports("constant_array")
def _constant_array(w: Writer, node: Operation) -> Dense:
    op = op_of(node, ConstantArray)
    return Dense(w.constant(op.value.stack(op.spec.element.shape, op.spec.element.dtype)))


@exports("array_unstack")
def _unstack(w: Writer, node: Operation, x: str) -> Dense:
    return Dense(x)


@exports("array_stack")
def _stack(w: Writer, node: Operation, array: Array) -> str:
    element = attribute(node, "element", TensorSpec)
    if isinstance(array, Fresh) and element.shape is not None:  # all of its elements are missing: it must be empty
        return w.zeros(w.filled((None, *[dim or 0 for dim in element.shape]), [array.size]), element.dtype)
    return as_dense(w, array, element)


@exports("array_size")
def _size(w: Writer, node: Operation, array: Array) -> str:
    if isinstance(array, (Fresh, Numbers, Repeated)):
        return array.size
    if isinstance(array, Sequence):
        return w.cast(w.add("SequenceLength", array.name, dtype=LONG), INT)
    vector = w.dim(array.lengths[0] if isinstance(array, Nested) else array.name, 0)
    scalar = w.cast(w.squeeze(vector, 0), INT)
    w.note_vector(scalar, vector)
    return scalar


@exports("array_read")
def _read(w: Writer, node: Operation, array: Array, index: str) -> Held:
    if isinstance(array, Repeated):
        return array.value
    if isinstance(array, Numbers):
        return w.cast(index, array.dtype)
    if isinstance(array, Nested):
        return element_of(w, array, index)
    spec = node.outputs[0].spec
    if isinstance(array, Sequence):
        element = w.add("SequenceAt", array.name, index)
    else:
        element = w.add("Gather", as_dense(w, array, spec), index, axis=0)
    return Dense(element) if isinstance(spec, ArraySpec) else element


def element_of(w: Writer, array: Nested, index: str) -> Nested | Sequence:
    """Return an element of an array of arrays: the part of its items and lengths that belong to it."""
    start = w.vector(index)
    count = w.ints(1)
    inner: list[str] = []
    for lengths in array.lengths:
        own = w.slice(lengths, start, w.add("Add", start, count), 0)
        inner.append(own)
        start = w.add("ReduceSum", w.slice(lengths, 0, start, 0), w.ints(0), keepdims=1)
        count = w.add("ReduceSum", own, w.ints(0), keepdims=1)
    first = w.squeeze(start, 0)

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        item = w.add("SequenceAt", array.items, w.add("Add", first, iteration))
        return [w.add("SequenceInsert", names[0], item)], []

    none = w.empty_sequence(w.dtypes[array.items])
    (items,) = w.repeat(w.squeeze(count, 0), [none], body, w.sequence_info)
    return Nested(items, tuple(inner[1:])) if len(inner) > 1 else Sequence(items)


def as_nested(w: Writer, array: Array, levels: int) -> Nested:
    """Return an array of arrays as its items and the lengths of its elements, which are so many vectors."""
    if isinstance(array, Nested):
        return array
    if levels == 0 and isinstance(array, Sequence):
        return Nested(array.name, ())
    whole = as_dense(w, array, None)
    sizes = [w.dim(whole, axis) for axis in range(levels + 1)]
    counts, rows = w.ints(1), whole
    lengths: list[str] = []
    for axis in range(levels):
        counts = w.add("Mul", counts, sizes[axis])
        lengths.append(w.expand(sizes[axis + 1], counts))
    if levels:
        total = w.add("Mul", counts, sizes[levels])
        rows = w.reshape(whole, w.concat([total, w.slice(w.shape(whole), levels + 1, 2**63 - 1, 0)], 0))
    return Nested(w.add("SplitToSequence", rows, axis=0, keepdims=0), tuple(lengths))


@exports("array_write")
def _write(w: Writer, node: Operation, array: Array, index: str, value: str) -> Array:
    op = op_of(node, ArrayWrite)
    spec = spec_of(node.outputs[0], ArraySpec)
    if isinstance(array, Fresh) and op.dynamic_size and not is_static(spec.element):
        array = Sequence(as_sequence(w, array))
    if isinstance(array, Sequence):
        shorter = _without(w, array, index) if op.dynamic_size else w.add("SequenceErase", array.name, index)
        return Sequence(w.add("SequenceInsert", shorter, value, index))
    element = node.inputs[2].spec if not is_static(spec.element) else spec.element
    if isinstance(array, Fresh) and not is_static(element):
        if node.inputs[2].spec.shape is None:
            return Sequence(w.add("SequenceInsert", as_sequence(w, array), value, index))
        # The first element says what all look like; a ragged array is a sequence from its loop on.
        shape = w.concat([w.vector(array.size), w.shape(value)], 0)
        array = Dense(w.zeros(shape, w.dtypes[value]))
    whole = as_dense(w, array, element)
    row = w.unsqueeze(value, 0)
    if op.dynamic_size:
        place = w.vector(index)
        behind = w.slice(whole, w.add("Add", place, w.ints(1)), 2**63 - 1, 0)
        return Dense(w.concat([w.slice(whole, 0, place, 0), row, behind], 0))
    places = w.unsqueeze(w.vector(index), 0)
    return Dense(w.add("ScatterND", whole, places, row))


def _without(w: Writer, array: Sequence, index: str) -> str:
    """Return a sequence without an element, if it has so many: it may be about to grow by that one."""
    length = w.add("SequenceLength", array.name, dtype=LONG)
    inside = w.compare("Less", w.cast(index, LONG), length)
    return w.either(
        inside,
        lambda: w.add("SequenceErase", array.name, index),
        lambda: w.add("Identity", array.name),
        w.sequence_info,
    )


@exports("array_gather")
def _gather(w: Writer, node: Operation, array: Array, indices: str) -> str:
    element = attribute(node, "element", TensorSpec)
    return w.add("Gather", as_dense(w, array, element), w.cast(indices, LONG), axis=0)


@exports("array_scatter")
def _scatter(w: Writer, node: Operation, array: Array, indices: str, values: str) -> Dense:
    if attribute(node, "dynamic_size", bool):
        raise ValueError("a TensorArray that grows by scatter is not written as ONNX")
    spec = spec_of(node.outputs[0], ArraySpec)
    if isinstance(array, Fresh) and not is_static(spec.element):
        shape = w.concat([w.vector(array.size), w.slice(w.shape(values), 1, 2**63 - 1, 0)], 0)
        array = Dense(w.zeros(shape, w.dtypes[values]))
    whole = as_dense(w, array, spec.element)
    return Dense(w.add("ScatterND", whole, w.unsqueeze(w.cast(indices, LONG), -1), values))


@exports("array_concat")
def _concat(w: Writer, node: Operation, array: Array) -> str:
    """Join elements end to end: of one tensor the first two axes become one."""
    element = attribute(node, "element", TensorSpec)
    if isinstance(array, Sequence):
        return _joined(w, array, element, new_axis=0)
    whole = as_dense(w, array, element)
    shape = w.shape(whole)
    rows = w.add("Mul", w.dim(whole, 0), w.dim(whole, 1))
    return w.reshape(whole, w.concat([rows, w.slice(shape, 2, 2**63 - 1, 0)], 0))


@exports("array_window")
def _window(w: Writer, node: Operation, array: Array, start: str, count: str) -> str:
    first = w.vector(start)
    whole = as_dense(w, array, attribute(node, "element", TensorSpec))
    return w.slice(whole, first, w.add("Add", first, w.vector(count)), 0)


@exports("array_of")
def _of(w: Writer, node: Operation, *elements: str) -> Dense:
    return Dense(w.concat([w.unsqueeze(each, 0) for each in elements], 0))
