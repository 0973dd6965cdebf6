"""Tensors of values that are known now."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.dtypes import DTypeLike
from ...graph.spec import as_shape
from ...graph.tensor import Tensor
from ..base import as_array, convert_to_tensor, holds_symbols, make_constant
from .shaping import broadcast_to, elements, reshape


def constant(value: Any, dtype: DTypeLike = None, shape: Any = None, name: str | None = None) -> Tensor:
    """Return a tensor with a value that is known now: a value, or a constant of the graph that is being built.

    Args:
        value: a Python number, nested lists of them, or a NumPy array (which is copied). Variables and tensors among
            them are read when the graph runs, as in `convert_to_tensor`.
        dtype: by default int32 and float32 for Python numbers, and the array's own for arrays.
        shape: broadcast or reshape a value to this shape.

    >>> import anabranch as ab
    >>> ab.constant(2, shape=(2,))
    Tensor([2, 2], dtype=int32)
    """
    if holds_symbols(value):
        return _filled(convert_to_tensor(value, dtype), shape)
    array = as_array(value, dtype)
    if shape is not None:
        wanted = tuple(dim or 0 for dim in as_shape(shape) or ())
        array = array.reshape(wanted) if array.size == int(np.prod(wanted)) else np.broadcast_to(array, wanted)
    return make_constant(array, name)


def _filled(x: Tensor, shape: Any) -> Tensor:
    """Reshape `x` if that keeps the number of elements, else broadcast it."""
    if shape is None:
        return x
    wanted = tuple(dim or 0 for dim in as_shape(shape) or ())
    same = x.shape is not None and None not in x.shape and elements(d or 0 for d in x.shape) == elements(wanted)
    return reshape(x, wanted) if same else broadcast_to(x, wanted)


__all__ = ["constant"]
