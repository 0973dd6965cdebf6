"""Cotangents of TensorArrays: arrays in which elements may be missing, which count as zero.

As one tensor, missing elements are zeros, and those behind the last one that was written are left out. In a sequence
they are tensors without elements: a real element without elements is zero, too.
"""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.graph.graph import Operation
from ....engine.graph.spec import ArraySpec, Shape, Spec, TensorSpec
from ....engine.ops.containers.tensor_arrays import ArrayEmpty, ArrayReadOrEmpty
from .arrays import Array, Dense, Fresh, Sequence, as_dense, as_sequence, is_static, rank_of_element
from .gathering import scatter_reduced
from .registry import attribute, exports, op_of, spec_of
from .shapes import positions
from .writer import INT, LONG, Writer

if TYPE_CHECKING:
    from onnx import ValueInfoProto


@exports("array_empty")
def _empty(w: Writer, node: Operation) -> Fresh:
    return Fresh(w.constant(np.zeros((), INT)), op_of(node, ArrayEmpty).spec.element)


def _length(w: Writer, array: Dense | Sequence) -> str:
    """Return the number of elements, an int64 scalar."""
    if isinstance(array, Sequence):
        return w.add("SequenceLength", array.name, dtype=LONG)
    return w.squeeze(w.dim(array.name, 0), 0)


def _existing(w: Writer, array: Array, element: Spec, like: str | None = None) -> Dense | Sequence:
    """Return an array as a tensor or sequence; an empty one as a tensor if it is known how its elements look.

    Args:
        w: what appends the nodes.
        array: the array.
        element: what is known of its elements.
        like: an element of the same shape, where there is one.
    """
    if isinstance(array, (Dense, Sequence)):
        return array
    if not isinstance(array, Fresh) or is_static(element) or is_static(array.element):
        return Dense(as_dense(w, array, element))
    if like is None:
        return Sequence(as_sequence(w, array))
    return Dense(w.zeros(w.concat([w.vector(array.size), w.shape(like)], 0), w.dtypes[like]))


def _inside(w: Writer, array: Dense | Sequence, index: str) -> str:
    """Test whether an array is long enough to have an element."""
    return w.compare("Less", w.cast(index, LONG), _length(w, array))


def _is_missing(w: Writer, element: str) -> str:
    return w.compare("Equal", w.add("Size", element, dtype=LONG), w.constant(np.zeros((), LONG)))


def _rank_info(w: Writer, spec: Spec) -> abc.Callable[[str], ValueInfoProto]:
    """Return a function that gives the ValueInfoProto of an element."""
    return lambda name: w.info(name, None if spec.shape is None else [None] * len(spec.shape))


def element_or_zeros(w: Writer, array: Array, index: str, shape: str, spec: Spec) -> str:
    """Return an element of an array, or zeros of a shape, an int64 vector, if it is missing."""
    if isinstance(array, Fresh):
        return w.zeros(shape, spec.dtype)
    info = _rank_info(w, spec)
    held = _existing(w, array, spec)
    inside = _inside(w, held, index)

    def zeros() -> str:
        return w.zeros(shape, spec.dtype)

    if isinstance(held, Dense):
        return w.either(inside, lambda: w.add("Gather", held.name, index, axis=0), zeros, info)

    def found() -> str:
        element = w.add("SequenceAt", held.name, index)
        return w.either(_is_missing(w, element), zeros, lambda: w.add("Identity", element), info)

    return w.either(inside, found, zeros, info)


@exports("array_read_or_zeros")
def _read_or_zeros(w: Writer, node: Operation, array: Array, index: str, shape: str) -> str:
    return element_or_zeros(w, array, index, w.cast(shape, LONG), attribute(node, "spec", TensorSpec))


@exports("array_read_or_empty")
def _read_or_empty(w: Writer, node: Operation, array: Array, index: str) -> Array:
    """Read an element that is an array: the tensor of its elements."""
    spec = op_of(node, ArrayReadOrEmpty).spec
    if isinstance(array, Fresh):
        return Fresh(array.size, spec.element)
    if isinstance(spec.element, ArraySpec):
        raise ValueError(
            "the gradient of a gradient of loops three deep adds to arrays of arrays of arrays, and ONNX's sequences "
            "hold no sequences"
        )
    inner = spec.element.shape
    if inner is None:
        raise ValueError("an array of arrays whose elements are of an unknown rank is not written as ONNX")
    sizes = w.ints(0, *[dim or 0 for dim in inner])
    return Dense(element_or_zeros(w, array, index, sizes, TensorSpec((None, *inner), spec.dtype)))


# --- adding ---------------------------------------------------------------------------------------------------------


def _longer(w: Writer, array: Dense | Sequence, length: str, row: str) -> Dense | Sequence:
    """Return an array with at least so many elements (an int64 scalar), of the shape of `row` (an int64 vector)."""
    more = w.add("Max", w.add("Sub", length, _length(w, array)), w.constant(np.zeros((), LONG)))
    if isinstance(array, Dense):
        whole = w.reshape(array.name, w.concat([w.dim(array.name, 0), row], 0))  # sizes of an empty one may be 0
        missing = w.zeros(w.concat([w.unsqueeze(more, 0), row], 0), w.dtypes[array.name])
        return Dense(w.concat([whole, missing], 0))
    none = w.zeros(w.add("Mul", row, w.ints(0)), w.dtypes[array.name])
    (longer,) = w.repeat(
        more, [array.name], lambda _, names: ([w.add("SequenceInsert", names[0], none)], []), w.sequence_info
    )
    return Sequence(longer)


def _replaced(w: Writer, array: str, index: str, value: str) -> str:
    return w.add("SequenceInsert", w.add("SequenceErase", array, index), value, index)


@exports("array_add_at")
def _add_at(w: Writer, node: Operation, array: Array, index: str, value: Any) -> Array:
    spec = node.inputs[2].spec
    if isinstance(spec, ArraySpec):
        return _add_array_at(w, array, index, value, spec)
    return _added(w, _existing(w, array, spec, value), index, value, spec)


def _added(w: Writer, array: Dense | Sequence, index: str, value: str, spec: Spec) -> Array:
    place = w.cast(index, LONG)
    longer = _longer(w, array, w.add("Add", place, w.constant(np.ones((), LONG))), w.shape(value))
    if isinstance(longer, Dense):
        places, row = w.reshape(place, w.ints(1, 1)), w.unsqueeze(value, 0)
        return Dense(scatter_reduced(w, longer.name, places, row, "add"))
    element = w.add("SequenceAt", longer.name, index)
    total = w.either(
        _is_missing(w, element),
        lambda: w.add("Identity", value),
        lambda: w.add("Add", element, value),
        _rank_info(w, spec),
    )
    return Sequence(_replaced(w, longer.name, index, total))


def _add_array_at(w: Writer, array: Array, index: str, value: Array, spec: ArraySpec) -> Array:
    """Add to an element that is an array."""
    if isinstance(value, Fresh) and not is_static(value.element):
        return array  # nothing is added
    held = Sequence(as_sequence(w, array)) if isinstance(array, Fresh) else _existing(w, array, spec)
    whole = Dense(as_dense(w, value, spec.element))
    place = w.cast(index, LONG)
    longer = _longer(w, held, w.add("Add", place, w.constant(np.ones((), LONG))), w.shape(whole.name))
    if isinstance(longer, Dense):
        raise ValueError("an array of arrays of one length is not added to in ONNX")
    element = w.add("SequenceAt", longer.name, index)
    row = w.slice(w.shape(whole.name), 1, 2**63 - 1, 0)

    def total() -> str:
        return _sum_of_tensors(w, Dense(element), whole, row)

    info = _rank_info(w, TensorSpec((None,) * rank_of_element(spec), spec.dtype))
    new = w.either(_is_missing(w, element), lambda: w.add("Identity", whole.name), total, info)
    return Sequence(_replaced(w, longer.name, index, new))


def _sum_of_tensors(w: Writer, a: Dense, b: Dense, row: str) -> str:
    x, y = _longer(w, a, _length(w, b), row), _longer(w, b, _length(w, a), row)
    return w.add("Add", x.name, y.name)


@exports("array_sum")
def _sum(w: Writer, node: Operation, a: Array, b: Array) -> Array:
    """Add two arrays; elements that one of them lacks are those of the other."""
    if isinstance(a, Fresh):
        return b
    if isinstance(b, Fresh):
        return a
    spec = spec_of(node.outputs[0], ArraySpec)
    if isinstance(spec.element, ArraySpec):
        raise ValueError("the sum of arrays of arrays is not written as ONNX")
    x, y = _existing(w, a, spec.element), _existing(w, b, spec.element)
    if isinstance(x, Dense) and isinstance(y, Dense):
        first = w.compare("Greater", _length(w, x), w.constant(np.zeros((), LONG)))
        shapes = [w.slice(w.shape(each.name), 1, 2**63 - 1, 0) for each in (x, y)]
        return Dense(_sum_of_tensors(w, x, y, w.where(first, *shapes)))
    left, right = as_sequence(w, x), Sequence(as_sequence(w, y))

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        value = w.add("SequenceAt", right.name, iteration)
        added = w.either(
            _is_missing(w, value),
            lambda: w.add("Identity", names[0]),
            lambda: as_sequence(w, _added(w, Sequence(names[0]), iteration, value, spec.element)),
            w.sequence_info,
        )
        return [added], []

    return Sequence(w.repeat(_length(w, right), [left], body, w.sequence_info)[0])


@exports("array_scatter_add")
def _scatter_add(w: Writer, node: Operation, array: Array, indices: str, values: str) -> Array:
    spec = spec_of(node.inputs[2], TensorSpec)
    row = w.slice(w.shape(values), 1, 2**63 - 1, 0)
    places = w.cast(indices, LONG)
    element = TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype)
    if isinstance(array, Fresh):
        none = w.concat([w.vector(array.size), row], 0)
        array = Dense(w.zeros(none, spec.dtype))
    held = _existing(w, array, element)
    if isinstance(held, Dense):
        ends = w.concat([w.add("Add", places, w.ints(1)), w.ints(0)], 0)
        longer = _longer(w, held, w.add("ReduceMax", ends, keepdims=0), row)
        return Dense(scatter_reduced(w, longer.name, w.unsqueeze(places, -1), values, "add"))

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        place, value = w.add("Gather", places, iteration, axis=0), w.add("Gather", values, iteration, axis=0)
        return [as_sequence(w, _added(w, Sequence(names[0]), place, value, element))], []

    return Sequence(w.repeat(w.squeeze(w.dim(places, 0), 0), [held.name], body, w.sequence_info)[0])


# --- clearing -------------------------------------------------------------------------------------------------------


@exports("array_clear")
def _clear(w: Writer, node: Operation, array: Array, index: str) -> Array:
    if isinstance(array, Fresh):
        return array
    spec = spec_of(node.outputs[0], ArraySpec)
    return _cleared(w, _existing(w, array, spec.element), index, spec)


def _cleared(w: Writer, held: Dense | Sequence, index: str, spec: ArraySpec) -> Dense | Sequence:
    """Return an array without an element."""
    if isinstance(held, Dense):
        place = w.unsqueeze(w.vector(index), 0)
        row = w.concat([w.ints(1), w.slice(w.shape(held.name), 1, 2**63 - 1, 0)], 0)

        def cleared() -> str:
            return w.add("ScatterND", held.name, place, w.zeros(row, w.dtypes[held.name]))

        info = _rank_info(w, TensorSpec(_one_more(spec), spec.dtype))
        return Dense(w.either(_inside(w, held, index), cleared, lambda: w.add("Identity", held.name), info))

    def without() -> str:
        none = w.zeros(w.ints(*[0] * max(1, rank_of_element(spec.element))), w.dtypes[held.name])
        return _replaced(w, held.name, index, none)

    name = w.either(_inside(w, held, index), without, lambda: w.add("Identity", held.name), w.sequence_info)
    return Sequence(name)


@exports("array_clear_many")
def _clear_many(w: Writer, node: Operation, array: Array, indices: str) -> Array:
    if isinstance(array, Fresh):
        return array
    spec = spec_of(node.outputs[0], ArraySpec)
    places = w.cast(indices, LONG)
    held = _existing(w, array, spec.element)
    info = w.sequence_info if isinstance(held, Sequence) else _rank_info(w, TensorSpec(_one_more(spec), spec.dtype))

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        place = w.add("Gather", places, iteration, axis=0)
        return [_cleared(w, type(held)(names[0]), place, spec).name], []

    return type(held)(w.repeat(w.squeeze(w.dim(places, 0), 0), [held.name], body, info)[0])


def _one_more(spec: ArraySpec) -> Shape:
    """Return what is known of the shape of an array's elements behind each other."""
    return None if spec.element.shape is None else (None, *spec.element.shape)


# --- all elements ---------------------------------------------------------------------------------------------------


@exports("array_stack_like")
def _stack_like(w: Writer, node: Operation, array: Array, shape: str) -> str:
    spec = spec_of(node.outputs[0], TensorSpec)
    sizes = w.cast(shape, LONG)
    if isinstance(array, Fresh):
        return w.zeros(sizes, spec.dtype)
    element = TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype)
    held = _existing(w, array, element)
    length, row = w.slice(sizes, 0, 1, 0), w.slice(sizes, 1, 2**63 - 1, 0)
    if isinstance(held, Dense):
        longer = _longer(w, held, w.squeeze(length, 0), row)
        return w.reshape(longer.name, sizes)
    places = w.add("Range", w.constant(np.zeros((), LONG)), w.squeeze(length, 0), w.constant(np.ones((), LONG)))
    return _gathered(w, held, places, sizes, element)


def _gathered(w: Writer, array: Dense | Sequence, places: str, sizes: str, element: TensorSpec) -> str:
    """Return elements at places, a vector of int64, as a tensor of a shape; zeros for what is missing."""
    row = w.slice(sizes, 1, 2**63 - 1, 0)
    rank = len(element.shape or ())

    def body(iteration: str, _: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        place = w.add("Gather", places, iteration, axis=0)
        return [], [element_or_zeros(w, array, place, row, element)]

    trips = w.squeeze(w.dim(places, 0), 0)
    return w.reshape(w.repeat(trips, [], body, w.sequence_info, [rank])[0], sizes)


@exports("array_gather_like")
def _gather_like(w: Writer, node: Operation, array: Array, indices: str, shape: str) -> str:
    spec = spec_of(node.outputs[0], TensorSpec)
    sizes = w.cast(shape, LONG)
    if isinstance(array, Fresh):
        return w.zeros(sizes, spec.dtype)
    element = TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype)
    return _gathered(w, _existing(w, array, element), w.cast(indices, LONG), sizes, element)


@exports("array_scatter_grad")
def _scatter_grad(w: Writer, node: Operation, array: Array, indices: str, shape: str) -> str:
    """Gather elements; of an index that comes twice its last occurrence alone gets the element."""
    found = _gather_like(w, node, array, indices, shape)
    places = w.cast(indices, LONG)
    numbers = positions(w, w.dim(places, 0))
    ends = w.concat([w.add("Add", places, w.ints(1)), w.ints(0)], 0)
    none = w.expand(w.constant(np.array(-1, LONG)), w.add("ReduceMax", ends, keepdims=1))
    winners = w.add("ScatterElements", none, places, numbers, axis=0, reduction="max")
    is_last = w.compare("Equal", w.add("Gather", winners, places, axis=0), numbers)
    rank = len(node.outputs[0].shape or (None,))
    return w.where(w.unsqueeze(is_last, *range(1, rank)), found, w.like(0, found))


@exports("array_lengths")
def _lengths(w: Writer, node: Operation, array: Array) -> str:
    """Return the sizes of the elements' first axes."""
    spec = spec_of(node.inputs[0], ArraySpec)
    dtype = node.outputs[0].dtype
    if isinstance(array, Sequence):

        def body(iteration: str, _: abc.Sequence[str]) -> tuple[list[str], list[str]]:
            return [], [w.squeeze(w.dim(w.add("SequenceAt", array.name, iteration), 0), 0)]

        return w.cast(w.repeat(_length(w, array), [], body, w.sequence_info, [0])[0], dtype)
    whole = as_dense(w, array, spec.element)
    return w.cast(w.expand(w.dim(whole, 1), w.dim(whole, 0)), dtype)


@exports("array_split")
def _split(w: Writer, node: Operation, value: str, lengths: str) -> Sequence:
    """Cut a tensor into pieces, one after the other."""
    sizes = w.cast(lengths, LONG)
    ends = w.add("CumSum", sizes, w.constant(np.zeros((), LONG)))

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        end = w.unsqueeze(w.add("Gather", ends, iteration, axis=0), 0)
        start = w.add("Sub", end, w.unsqueeze(w.add("Gather", sizes, iteration, axis=0), 0))
        return [w.add("SequenceInsert", names[0], w.slice(value, start, end, 0))], []

    none = w.empty_sequence(w.dtypes[value])
    return Sequence(w.repeat(w.squeeze(w.dim(sizes, 0), 0), [none], body, w.sequence_info)[0])


@exports("array_concat_like")
def _concat_like(w: Writer, node: Operation, array: Array, shape: str, lengths: str) -> str:
    """Join elements end to end; missing ones are zeros of their lengths."""
    spec = spec_of(node.outputs[0], TensorSpec)
    sizes, counts = w.cast(shape, LONG), w.cast(lengths, LONG)
    if isinstance(array, Fresh):
        return w.zeros(sizes, spec.dtype)
    element = TensorSpec(None if spec.shape is None else (None, *spec.shape[1:]), spec.dtype)
    held = _existing(w, array, element)
    row = w.slice(sizes, 1, 2**63 - 1, 0)
    info = _rank_info(w, spec)

    def body(iteration: str, names: abc.Sequence[str]) -> tuple[list[str], list[str]]:
        count = w.unsqueeze(w.add("Gather", counts, iteration, axis=0), 0)
        piece = element_or_zeros(w, held, iteration, w.concat([count, row], 0), element)
        return [w.concat([names[0], piece], 0)], []

    none = w.zeros(w.concat([w.ints(0), row], 0), spec.dtype)
    return w.reshape(w.repeat(w.squeeze(w.dim(counts, 0), 0), [none], body, info)[0], sizes)
