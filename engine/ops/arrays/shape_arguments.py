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


def split_shape(shape: ShapeLike) -> tuple[tuple[int | None, ...], list[Tensor]]:
    """Return a shape argument that may hold tensors, as (static dims with None, scalar int32 tensors for the Nones).

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
    """Return a dimension that is known at run time, as a scalar of int32."""
    if dim.shape:  # neither a scalar nor of unknown rank
        raise TypeError(f"Shape {shape!r}: {dim!r} has shape {dim.shape}, where the size of an axis is one integer.")
    if not is_integer_dtype(dim.dtype):
        raise TypeError(f"Shape {shape!r}: {dim!r} is of {name_of(dim.dtype)}, where sizes are integers. Use ops.cast.")
    return convert_to_tensor(dim, "int32")


def fill_shape(static: Sequence[int | None], dynamic: Sequence[Any]) -> tuple[int, ...]:
    """Return the concrete shape at run time: the Nones of `static` replaced in order by `dynamic`."""
    remaining = iter(dynamic)
    return tuple(int(next(remaining)) if dim is None else dim for dim in static)
