"""`convert_to_tensor` as users call it."""

from __future__ import annotations

import numpy as np

from ..common.dtypes import DTypeLike
from ..graph.tensor import Tensor
from . import base
from .base import TensorLike

__all__ = ["convert_to_tensor"]


def convert_to_tensor(
    x: TensorLike, dtype: DTypeLike = None, sparse: bool | None = None, ragged: bool | None = None
) -> Tensor:
    """Convert `x` to a tensor of the current graph, and cast it to `dtype` if that is given and differs.

    Args:
        x: a Python number, nested lists of them (or of tensors), an array, a Variable, `IndexedSlices`, or a tensor.
        dtype: by default int32 and float32 for Python numbers, and the array's own for arrays.
        sparse, ragged: accepted for Keras's sake: here every tensor is dense.

    Each call makes a tensor of its own, so that gradients can be taken with respect to it (a number in an expression,
    as in ``x + 1``, is a constant that equal numbers share).

    Raises:
        TypeError: `x` holds something else than numbers, bools or strings, or its rows differ in length.

    >>> import anabranch as ab
    >>> ab.ops.convert_to_tensor([1, 2], dtype="float32").dtype
    dtype('float32')
    """
    is_number = isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic)
    return base.convert_to_tensor(x, dtype, "constant" if is_number else None)
