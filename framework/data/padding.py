"""Padding of the elements of a dataset to the shape of their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...engine.common.dtypes import DType
from ...engine.common.nest import flatten, is_mapping, is_nested, is_sequence, map_structure, sorted_keys
from ..structures import Array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...engine.common.nest import Nest
    from ...engine.ops.base import TensorLike
    from ..structures import ShapeLike


def padded_rows(
    rows: Sequence[object],
    shapes: Nest[ShapeLike] | None,
    values: Nest[TensorLike | None] | None,
    longest: int | None = None,
) -> object:
    """Stack elements whose axes are padded at their end.

    Args:
        rows: elements: arrays, or structures of them.
        shapes: the sizes after padding, a shape for each array; None for an axis, or for all: as large as need be.
        values: what to pad with, one for all arrays or one for each; by default 0 and "".
        longest: the size of axes that `shapes` leaves open.

    Raises:
        ValueError: an array does not fit into its shape, or there are not as many shapes or values as arrays.
        TypeError: an array can't hold the value that it would be padded with.
    """
    leaves: list[list[object]] = [flatten(row) for row in rows]
    count = len(leaves[0])
    wanted = [None] * count if shapes is None else _shapes(shapes, count)
    fillers = _values(values, count)
    stacked = iter(
        [
            _padded([np.asarray(row[leaf]) for row in leaves], wanted[leaf], fillers[leaf], longest)
            for leaf in range(count)
        ]
    )
    return map_structure(lambda _: next(stacked), rows[0])


def _shapes(shapes: object, count: int) -> list[object]:
    found = list(_each_shape(shapes))
    if len(found) != count:
        raise ValueError(
            f"padded_shapes must have a shape for each of the {count} arrays of an element, got {shapes!r}."
        )
    return found


def _each_shape(shapes: object) -> Iterator[object]:
    """Yield the shapes of a structure; a list or tuple of sizes is one."""
    if is_mapping(shapes):
        for key in sorted_keys(shapes):  # as `flatten` opens elements
            yield from _each_shape(shapes[key])
    elif isinstance(shapes, (list, tuple)) and any(isinstance(part, (list, tuple, dict)) for part in cast(Any, shapes)):
        for part in cast(Sequence[Any], shapes):
            yield from _each_shape(part)
    else:
        yield shapes


def _values(values: object, count: int) -> list[object]:
    found = list(_each_value(values))
    if not is_nested(values):
        return found * count
    if len(found) != count:
        raise ValueError(f"padding_values must be one, or one for each of {count} arrays; got {len(found)}.")
    return found


def _each_value(values: object) -> Iterator[object]:
    """Yield the values of a structure; None is one."""
    if is_mapping(values):
        for key in sorted_keys(values):
            yield from _each_value(values[key])
    elif is_sequence(values):
        for part in values:
            yield from _each_value(part)
    else:
        yield values


def _padded(arrays: list[Array], wanted: Any, value: object, longest: int | None) -> Array:
    rank = arrays[0].ndim
    sizes = [longest] * rank if wanted is None else [longest if size in (None, -1) else int(size) for size in wanted]
    if len(sizes) != rank or any(array.ndim != rank for array in arrays):
        shapes = sorted({array.shape for array in arrays})
        raise ValueError(f"padded_batch: elements of shapes {shapes} have not {len(sizes)} axes, as {wanted} has.")
    largest = np.max([array.shape for array in arrays], axis=0).tolist() if rank else []
    sizes = [most if size is None else size for size, most in zip(sizes, largest, strict=True)]
    if any(most > size for size, most in zip(sizes, largest, strict=True)):
        raise ValueError(f"padded_batch: an element of shape {tuple(largest)} does not fit into {tuple(sizes)}.")
    dtype = np.result_type(*arrays)
    result = np.full((len(arrays), *sizes), _filler(value, dtype), dtype)
    for row, array in enumerate(arrays):
        result[(row, *(slice(size) for size in array.shape))] = array
    result.setflags(write=False)
    return result


def _filler(value: object, dtype: DType) -> object:
    """Return what an array of a dtype is padded with.

    Raises:
        TypeError: the array would hold another value: a fraction would be cut off, for example.
    """
    is_text = dtype.kind in "OUTS"
    if value is None:
        return "" if is_text else 0
    found = np.asarray(value)
    if is_text == (found.dtype.kind in "OUTS") and (dtype.kind not in "biu" or _is_kept(found, dtype)):
        return value
    name = "string" if is_text else dtype
    raise TypeError(
        f"padded_batch: padding_values has {value!r} for an array of {name}, which can't hold it. "
        "Pad with another value, or cast the elements before."
    )


def _is_kept(number: Array, dtype: DType) -> bool:
    """Test whether a number keeps its value as an integer or truth value of a dtype."""
    with np.errstate(invalid="ignore"):  # of NaN and infinity
        return bool(number.astype(dtype) == number)
