"""Shapes as arguments: integers, tensors that are known at run time, or a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from ...common.dtypes import is_integer as is_integer_dtype
from ...common.dtypes import name_of
from ...common.nest import is_integer
from ...graph import Tensor, Variable
from ..base import convert_to_tensor

SizeLike: TypeAlias = SupportsIndex | Tensor | Variable
ShapeLike: TypeAlias = SizeLike | np.ndarray[Any, Any] | Sequence[SizeLike | None]
"""Sizes, some of which may be tensors, in a sequence or a vector; a size alone stands for one axis."""
LARGEST_SIZE = 2**31 - 1  # that is not known before a step runs; `ops.shape` gives int32


def split_shape(shape: ShapeLike) -> tuple[tuple[int | None, ...], list[Tensor]]:
    """Return a shape argument that may hold tensors, as (static dims with None, scalar tensors for the Nones).

    The tensors are of int32, or of int64 where they were wider: a cast to int32 would cut large sizes off.

    Ops that take shapes keep the static part as an attribute and the tensors as further inputs. -1 is kept as it is.

    Raises:
        TypeError: an entry is neither an integer nor a scalar tensor of an integer type.
    """
    if isinstance(shape, Tensor) and shape.ndim == 1:
        shape = list(shape)
    sizes: Any = (shape,) if isinstance(shape, (int, float, np.generic, Tensor, Variable)) else shape
    static: list[int | None] = []
    dynamic: list[Tensor] = []
    for dim in sizes:
        if isinstance(dim, (Tensor, Variable)):
            static.append(None)
            dynamic.append(_size(dim, shape))
        elif is_integer(dim):
            static.append(int(dim))
        else:
            raise TypeError(
                f"Shape {shape!r}: {dim!r} is neither an integer nor a tensor (unknown sizes come from ops.shape)."
            )
    return tuple(static), dynamic


def _size(dim: Any, shape: ShapeLike) -> Tensor:
    """Return a dimension that is known at run time, as a scalar of int32 or int64."""
    if dim.shape:  # neither a scalar nor of unknown rank
        raise TypeError(f"Shape {shape!r}: {dim!r} has shape {dim.shape}, where the size of an axis is one integer.")
    if not is_integer_dtype(dim.dtype):
        raise TypeError(f"Shape {shape!r}: {dim!r} is of {name_of(dim.dtype)}, where sizes are integers. Use ops.cast.")
    is_wide = dim.dtype.itemsize > 4 or (dim.dtype.kind == "u" and dim.dtype.itemsize == 4)
    return convert_to_tensor(dim, "int64" if is_wide else "int32")


def fill_shape(static: Sequence[int | None], dynamic: Sequence[Any], least: int | None = 0) -> tuple[int, ...]:
    """Return the concrete shape at run time: the Nones of `static` replaced in order by `dynamic`.

    Args:
        least: the lowest size: -1 where that stands for what is left, None where the caller checks it.

    Raises:
        ValueError: a size is below that, or above `LARGEST_SIZE`.
    """
    remaining = iter(dynamic)
    filled = tuple([int(next(remaining)) if dim is None else dim for dim in static])
    if dynamic:
        check_sizes(static, filled, least)
    return filled


def check_sizes(static: Sequence[int | None], shape: Sequence[int | None], least: int | None = None) -> None:
    """Check the sizes of a shape that come from tensors.

    Args:
        static: the shape without them.
        shape: all of it, as far as it is known.
        least: the lowest size; None for any, which is checked elsewhere.

    Raises:
        ValueError: one is lower, or above `LARGEST_SIZE`.
    """
    for known, size in zip(static, shape, strict=True):
        if known is None and size is not None and (size > LARGEST_SIZE or (least is not None and size < least)):
            wrong = "negative" if size < 0 else "too large"
            text = ", ".join(["?" if each is None else str(each) for each in shape])
            raise ValueError(
                f"Shape ({text}): the size {size} is {wrong}; sizes are from 0 to {LARGEST_SIZE}. Check the tensor "
                "that it comes from."
            )
