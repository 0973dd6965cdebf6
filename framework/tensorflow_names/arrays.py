"""TensorFlow's functions of shapes and places, with its arguments: `tf.reshape`, `tf.concat`, `tf.gather`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype, name_of
from ...engine.control_flow.vectorized_map import vectorized_map
from ...engine.graph import Tensor
from ...engine.graph import spec as specs
from ...engine.ops.arrays.shape_arguments import ShapeLike
from ...engine.ops.base import TensorLike
from ...engine.ops.math.elementwise import identity as pass_on
from .sizes import Sizes

newaxis = None


def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """Cast values to another dtype."""
    return ops.cast(x, dtype)


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor:
    """Clip values to limits."""
    return ops.clip(t, clip_value_min, clip_value_max)


def einsum(equation: str, *inputs: TensorLike, **options: object) -> Tensor:
    """Return a sum of products, as the equation says; options are TensorFlow's and do nothing here."""
    return ops.einsum(equation, *inputs)


def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Tensor:
    """Insert an axis of one element into a tensor."""
    return ops.expand_dims(input, axis)


def eye(
    num_rows: int | Tensor,
    num_columns: int | Tensor | None = None,
    batch_shape: Sequence[int | Tensor] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Return the matrix that is one on its diagonal and zero elsewhere, as often as `batch_shape` says."""
    matrix = ops.eye(num_rows, num_columns, dtype=dtype)
    return ops.broadcast_to(matrix, (*batch_shape, *ops.shape(matrix))) if batch_shape else matrix


def linspace(start: TensorLike, stop: TensorLike, num: int, name: str | None = None, axis: int = 0) -> Tensor:
    """Return `num` numbers from `start` to `stop`, both included, at equal distances."""
    return ops.linspace(start, stop, num, axis=axis)


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike = None,
    name: str | None = None,
) -> Tensor:
    """Multiply matrices, with the last two axes of either swapped before, and conjugated where they are adjoint.

    `a_is_sparse` and `b_is_sparse` do nothing here.
    """
    a = adjoint(a) if adjoint_a else ops.swapaxes(a, -1, -2) if transpose_a else a
    b = adjoint(b) if adjoint_b else ops.swapaxes(b, -1, -2) if transpose_b else b
    result = ops.matmul(a, b)
    return result if output_type is None else ops.cast(result, output_type)


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Swap the last two axes and conjugate."""
    return ops.conj(ops.swapaxes(matrix, -1, -2))


def ones(shape: ShapeLike, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """Return a tensor of ones."""
    return ops.ones(shape, dtype)


def ones_like(input: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return ones in the shape of a tensor."""
    return ops.ones_like(input, dtype)


def zeros(shape: ShapeLike, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """Return a tensor of zeros."""
    return ops.zeros(shape, dtype)


def zeros_like(input: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return zeros in the shape of a tensor."""
    return ops.zeros_like(input, dtype)


def range(
    start: TensorLike | None = None,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: DTypeLike = None,
    name: str | None = None,
) -> Tensor:
    """Return numbers from `start` (0, if only one is given) up to `limit`, which is left out, in steps of `delta`."""
    if start is None and limit is None:
        raise TypeError("tf.range needs limit, as in tf.range(5), or start and limit, as in tf.range(2, 5).")
    first, last = (0, start) if limit is None else (0 if start is None else start, limit)
    return ops.arange(first, last, delta, dtype)


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Repeat each element several times."""
    return ops.repeat(input, repeats, axis)


def reshape(tensor: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Reshape a tensor: return the same values in another shape."""
    return ops.reshape(tensor, shape)


def roll(input: TensorLike, shift: object, axis: int | Sequence[int], name: str | None = None) -> Tensor:
    """Move elements on along an axis, or along several by a shift for each; those at the end come first."""
    return ops.roll(input, shift, axis)


def shape(input: TensorLike, out_type: DTypeLike = "int32", name: str | None = None) -> Any:
    """Return the shape: of each axis an int where it is known, and a tensor where it is not. See `Sizes`."""
    sizes = ops.shape(input)
    if isinstance(sizes, Tensor):  # of an input of unknown rank
        return ops.cast(sizes, out_type)
    return Sizes(size if isinstance(size, int) else ops.cast(size, out_type) for size in sizes)


def size(input: TensorLike, out_type: DTypeLike = "int32", name: str | None = None) -> Tensor:
    """Return the number of elements.

    Raises:
        OverflowError: `out_type` can't hold it.
    """
    found = ops.size(input)
    if isinstance(found, int) and found > np.iinfo(as_dtype(out_type)).max:
        raise OverflowError(
            f"tf.size: {found} elements are more than {name_of(as_dtype(out_type))} can hold. Give out_type=tf.int64."
        )
    return ops.convert_to_tensor(found, out_type)


def squeeze(input: TensorLike, axis: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Remove the axes of one element from a tensor, or some of these."""
    return ops.squeeze(input, axis)


def stack(values: Sequence[TensorLike] | Tensor, axis: int = 0, name: str | None = None) -> Tensor:
    """Stack tensors side by side along a new axis."""
    return ops.stack(values, axis)


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the same values, through which no gradient passes."""
    return ops.stop_gradient(input)


def tensordot(
    a: TensorLike, b: TensorLike, axes: int | Sequence[int] | Sequence[Sequence[int]], name: str | None = None
) -> Tensor:
    """Return the sum of products along axes."""
    return ops.tensordot(a, b, axes)


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """Repeat a tensor along each axis, as often as `multiples` says."""
    return ops.tile(input, multiples)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str | None = None) -> list[Tensor]:
    """Unstack a tensor: return its parts along an axis, each without that axis."""
    return ops.unstack(value, num, axis)


def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """Return `x` where the condition holds and `y` elsewhere; the positions where it holds, if neither is given."""
    if x is None and y is None:
        return ops.cast(ops.argwhere(condition), "int64")
    if x is None or y is None:
        raise ValueError("where takes both x and y, or none of them for the positions where the condition holds.")
    return ops.where(condition, x, y)


def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the same values, as the result of an operation of its own, which waits for control dependencies."""
    return pass_on(ops.convert_to_tensor(input))


def split(
    value: TensorLike,
    num_or_size_splits: int | Sequence[int],
    axis: int = 0,
    num: int | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """Split a tensor along an axis into equal parts, or parts of given sizes, of which -1 takes what is left.

    Raises:
        ValueError: the sizes do not add up to that of the tensor.
    """
    if isinstance(num_or_size_splits, (int, np.integer)):
        return ops.split(value, int(num_or_size_splits), axis)
    value, sizes = ops.convert_to_tensor(value), [int(size) for size in num_or_size_splits]
    whole = ops.shape(value)[axis]
    if isinstance(whole, int):
        left = whole - sum(size for size in sizes if size != -1)
        if sizes.count(-1) > 1 or left < 0 or (left and -1 not in sizes):
            raise ValueError(f"tf.split: the sizes {sizes} do not add up to {whole}, the size of axis {axis}.")
        sizes = [left if size == -1 else size for size in sizes]
    elif -1 in sizes[:-1]:
        raise ValueError(f"tf.split: the size of axis {axis} is open, so only the last of the sizes {sizes} may be -1.")
    return ops.split(value, list(accumulate(sizes))[:-1], axis)


def concat(values: Sequence[TensorLike], axis: int, name: str | None = None) -> Tensor:
    """Concatenate tensors one after the other along an axis."""
    return ops.concatenate(values, axis)


def transpose(
    a: TensorLike, perm: Sequence[int] | None = None, conjugate: bool = False, name: str | None = None
) -> Tensor:
    """Transpose a tensor: put its axes in another order; `conjugate` its elements, too."""
    return ops.transpose(ops.conj(a) if conjugate else a, perm)


def fill(dims: ShapeLike, value: TensorLike, name: str | None = None) -> Tensor:
    """Return a tensor of one value."""
    filled_with = ops.convert_to_tensor(value)
    return ops.full(dims, filled_with, filled_with.dtype)


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return parts of a tensor along an axis.

    Args:
        params: the tensor.
        indices: whole numbers.
        axis: by default the one behind the batch's.
        batch_dims: how many first axes both have: row i of `indices` is for row i of `params`. Negative ones count
            from the last axis of `indices`.
        validate_indices: accepted for TensorFlow's sake.

    Raises:
        ValueError: `batch_dims` or `axis` do not fit the shapes.
    """
    source, places = ops.convert_to_tensor(params), ops.convert_to_tensor(indices)
    if batch_dims < 0 and places.shape is not None:
        batch_dims += len(places.shape)
    axis = batch_dims if axis is None else axis
    if axis < 0 and source.shape is not None:
        axis += len(source.shape)
    if not 0 <= batch_dims <= axis or (places.shape is not None and batch_dims > len(places.shape)):
        raise ValueError(
            f"tf.gather: batch_dims must be from 0 to axis, and to the number of axes of indices; got {batch_dims} for "
            f"axis {axis}, params of shape {source.shape} and indices of shape {places.shape}."
        )
    return _gathered(source, places, axis, batch_dims)


def _gathered(source: Tensor, places: Tensor, axis: int, batch_dims: int) -> Tensor:
    if batch_dims == 0:
        return ops.take(source, places, axis)
    return vectorized_map(lambda rows: _gathered(rows[0], rows[1], axis - 1, batch_dims - 1), (source, places))


def one_hot(
    indices: TensorLike,
    depth: int,
    on_value: TensorLike | None = None,
    off_value: TensorLike | None = None,
    axis: int | None = None,
    dtype: DTypeLike = None,
    name: str | None = None,
) -> Tensor:
    """Return whole numbers as rows with `on_value` (1) in the place of the number, and `off_value` (0) elsewhere."""
    axis = -1 if axis is None else axis
    if on_value is None and off_value is None:
        return ops.one_hot(indices, depth, axis=axis, dtype=dtype)
    places = ops.one_hot(indices, depth, axis=axis, dtype="bool")
    result = ops.where(places, 1 if on_value is None else on_value, 0 if off_value is None else off_value)
    return result if dtype is None else ops.cast(result, dtype)


def rank(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the number of axes."""
    return ops.convert_to_tensor(ops.ndim(input))


def slice(input_: TensorLike, begin: Sequence[int | Tensor], size: Sequence[int], name: str | None = None) -> Tensor:
    """Cut `size` elements out of each axis, from `begin` on; a size of -1 takes all that follow."""
    tensor = ops.convert_to_tensor(input_)
    whole = ops.shape(tensor)
    sizes = [whole[axis] - begin[axis] if part == -1 else part for axis, part in enumerate(size)]
    return ops.slice(tensor, list(begin), sizes)


def pad(
    tensor: TensorLike,
    paddings: Sequence[Sequence[int]],
    mode: str = "CONSTANT",
    constant_values: TensorLike = 0,
    name: str | None = None,
) -> Tensor:
    """Add elements before and after each axis.

    Args:
        tensor: a tensor.
        paddings: two numbers for each axis.
        mode: "CONSTANT", "REFLECT" or "SYMMETRIC".
        constant_values: what is added in the first mode.
    """
    mode = mode.lower()
    return ops.pad(tensor, paddings, mode, constant_values if mode == "constant" else None)


def reverse(tensor: TensorLike, axis: int | Sequence[int], name: str | None = None) -> Tensor:
    """Reverse the order of the elements along axes."""
    return ops.reverse(tensor, axis)


def reverse_sequence(
    input: TensorLike, seq_lengths: TensorLike, seq_axis: int, batch_axis: int = 0, name: str | None = None
) -> Tensor:
    """Reverse the first elements of each row, as many as its length says."""
    return ops.reverse_sequence(input, seq_lengths, seq_axis, batch_axis)


def boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Return the parts for which a mask is true."""
    return ops.boolean_mask(tensor, mask, axis)


def gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0, name: str | None = None) -> Tensor:
    """Return the parts at places with several coordinates, the last axis of `indices`."""
    return ops.gather_nd(params, indices, batch_dims)


def scatter_nd(indices: TensorLike, updates: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Add updates to zeros of a shape, at places with several coordinates."""
    return ops.scatter_nd(indices, updates, shape)


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Put updates in the places of elements or parts of a tensor."""
    return ops.tensor_scatter_nd_update(tensor, indices, updates)


def tensor_scatter_nd_add(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Add updates to elements or parts of a tensor."""
    return ops.tensor_scatter_nd_add(tensor, indices, updates)


def tensor_scatter_nd_sub(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Subtract updates from elements or parts of a tensor."""
    return ops.tensor_scatter_nd_sub(tensor, indices, updates)


def tensor_scatter_nd_max(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Put updates in the places of smaller elements."""
    return ops.tensor_scatter_nd_max(tensor, indices, updates)


def tensor_scatter_nd_min(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Put updates in the places of larger elements."""
    return ops.tensor_scatter_nd_min(tensor, indices, updates)


def broadcast_to(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Repeat a tensor along its axes of one element, and along new first ones, until it has a shape."""
    return ops.broadcast_to(input, shape)


def meshgrid(*args: TensorLike, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Return the coordinates of all points of a grid, one tensor for each axis."""
    return ops.meshgrid(*args, indexing=indexing)


def sort(values: TensorLike, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor:
    """Sort along an axis, upwards or ("DESCENDING") downwards."""
    return _in_direction(ops.sort(values, axis), axis, direction)


def argsort(
    values: TensorLike, axis: int = -1, direction: str = "ASCENDING", stable: bool = False, name: str | None = None
) -> Tensor:
    """Return the positions that sort a tensor along an axis; equal values keep their order."""
    if direction == "ASCENDING":
        return ops.argsort(values, axis)
    # Positions in the reversed tensor, reversed: so that equal values keep their order.
    values = ops.convert_to_tensor(values)
    last = ops.shape(values)[axis] - 1
    return _in_direction(last - ops.argsort(ops.flip(values, axis), axis), axis, direction)


def _in_direction(ascending: Tensor, axis: int, direction: str) -> Tensor:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f'The direction of a sort must be "ASCENDING" or "DESCENDING", got {direction!r}.')
    return ascending if direction == "ASCENDING" else ops.flip(ascending, axis)


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: DTypeLike = "int32",
    name: str | None = None,
) -> Tensor:
    """Return the positions at which values keep a sequence sorted.

    Args:
        sorted_sequence: sorted along the last axis. A vector is searched for all values.
        values: along the last axis those that are looked for; its other axes are those of a `sorted_sequence` with
            several.
        side: "left" of elements that are equal, or "right".
        out_type: the dtype of the positions.

    Raises:
        ValueError: the axes before the last one differ, or `side` is neither of the two.
    """
    sequence = ops.convert_to_tensor(sorted_sequence)
    if sequence.ndim is None or sequence.ndim < 2:
        return ops.cast(ops.searchsorted(sequence, values, side), out_type)
    wanted = ops.convert_to_tensor(values)
    rows, others = sequence.shape or (), wanted.shape or ()
    if not specs.shapes_compatible(rows[:-1], others[:-1]):
        raise ValueError(
            "searchsorted: all axes but the last must agree; got a sorted_sequence of shape "
            f"{specs.shape_text(rows)} and values of shape {specs.shape_text(others)}."
        )
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right'; got {side!r}.")
    rows_of, values_of = ops.expand_dims(sequence, -2), ops.expand_dims(wanted, -1)
    is_before = rows_of < values_of if side == "left" else rows_of <= values_of
    return ops.sum(ops.cast(is_before, out_type), -1)


def sequence_mask(
    lengths: TensorLike, maxlen: int | Tensor | None = None, dtype: DTypeLike = "bool", name: str | None = None
) -> Tensor:
    """Return rows that are true up to their length and false behind it."""
    return ops.sequence_mask(lengths, maxlen, dtype)


class Unique(NamedTuple):
    """The different values of a vector, and the number of each element's."""

    y: Tensor
    idx: Tensor


def unique(x: TensorLike, out_idx: DTypeLike = "int32", name: str | None = None) -> Unique:
    """Return the different values of a vector in the order in which they come, and the number of each element's."""
    values, numbers, _ = ops.unique_with_counts(x)
    return Unique(values, ops.cast(numbers, out_idx))


def norm(
    tensor: TensorLike,
    ord: str | float = "euclidean",
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the norm of vectors, or of matrices along two axes; by default of all elements as one vector."""
    tensor = ops.convert_to_tensor(tensor)
    if axis is None:
        norm_of_all = ops.norm(ops.reshape(tensor, (-1,)), None if ord == "euclidean" else ord)
        return ops.reshape(norm_of_all, (1,) * (tensor.ndim or 0)) if keepdims else norm_of_all
    return ops.norm(tensor, None if ord == "euclidean" else ord, axis, keepdims)


__all__ = [
    "adjoint",
    "argsort",
    "boolean_mask",
    "broadcast_to",
    "cast",
    "clip_by_value",
    "concat",
    "einsum",
    "expand_dims",
    "eye",
    "fill",
    "gather",
    "gather_nd",
    "identity",
    "linspace",
    "matmul",
    "meshgrid",
    "newaxis",
    "norm",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "range",
    "rank",
    "repeat",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "scatter_nd",
    "searchsorted",
    "sequence_mask",
    "shape",
    "size",
    "slice",
    "sort",
    "split",
    "squeeze",
    "stack",
    "stop_gradient",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensordot",
    "tile",
    "transpose",
    "unique",
    "unstack",
    "where",
    "zeros",
    "zeros_like",
]
