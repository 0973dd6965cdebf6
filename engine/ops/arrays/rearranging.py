"""Parts and orders of tensors under NumPy's names: array_split, dsplit, hsplit, vsplit, dstack, fliplr, flipud,
diagflat, get_item, copy; and tensors as what they are: convert_to_numpy, is_tensor, dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.axes import axis_number
from ...common.dtypes import DTypeLike
from ...common.nest import is_integer
from ..base import Tensor, TensorLike, apply, as_array, convert_to_tensor, dtype_of, normalize_axis
from ..math.elementwise import identity
from .axes import atleast_3d, flip
from .creation import Diag, zeros, zeros_like
from .joining import concatenate, split, together
from .shaping import ShapeLike, constant_value, dim, ravel

# --- splitting and stacking -----------------------------------------------------------------------------------------


def array_split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Split `x` into consecutive parts along `axis`, whose sizes may differ by one.

    Args:
        x: a tensor.
        indices_or_sections: the number of parts, of which the first are the larger ones where the axis does not split
            evenly; or the places where to cut, as for `split`.
        axis: the axis to cut.

    Raises:
        ValueError: the number of parts is not positive.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.array_split([1, 2, 3], 2))
    [array([1, 2], dtype=int32), array([3], dtype=int32)]
    """
    tensor = convert_to_tensor(x)
    if not is_integer(indices_or_sections):
        return split(tensor, indices_or_sections, axis)
    count = int(indices_or_sections)
    if count < 1:
        raise ValueError(f"array_split: the number of parts must be positive, got {count}.")
    place = axis if tensor.shape is None else normalize_axis(axis, len(tensor.shape))
    size: Any = dim(tensor, place)
    cuts: list[Any] = []
    for part in range(1, count):
        extra = size % count
        larger = min(part, extra) if isinstance(size, int) else _at_most(extra, part)
        cuts.append(part * (size // count) + larger)
    return split(tensor, cuts, place)


def _at_most(value: TensorLike, limit: int) -> Tensor:
    from ..math.comparison import minimum

    return minimum(value, limit)


def _split_along(name: str, x: TensorLike, indices_or_sections: Any, axis: int) -> list[Tensor]:
    tensor = convert_to_tensor(x)
    if tensor.ndim is not None and tensor.ndim <= axis:
        raise ValueError(f"{name} needs at least {axis + 1} axes; got {tensor!r}.")
    return split(tensor, indices_or_sections, axis)


def vsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Split `x`, of at least two axes, into consecutive parts along axis 0. See `split`."""
    tensor = convert_to_tensor(x)
    if tensor.ndim is not None and tensor.ndim < 2:
        raise ValueError(f"vsplit needs at least 2 axes; got {tensor!r}.")
    return split(tensor, indices_or_sections, 0)


def hsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Split `x` into consecutive parts along axis 1, or along axis 0 if it is a vector. See `split`."""
    tensor = convert_to_tensor(x)
    if tensor.ndim is None:
        raise ValueError(f"hsplit needs an input of known rank; got {tensor!r}. Name the axis with ops.split.")
    return _split_along("hsplit", tensor, indices_or_sections, 0 if tensor.ndim == 1 else 1)


def dsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Split `x`, of at least three axes, into consecutive parts along axis 2. See `split`."""
    return _split_along("dsplit", x, indices_or_sections, 2)


def dstack(xs: Sequence[TensorLike]) -> Tensor:
    """Stack the tensors in depth: along axis 2; matrices and vectors are layers of depth 1.

    >>> import anabranch as ab
    >>> ab.ops.dstack([[1, 2], [3, 4]])
    Tensor([[[1, 3],
             [2, 4]]], dtype=int32)
    """
    return concatenate([atleast_3d(x) for x in together(xs, "dstack")], axis=2)


# --- orders and diagonals -------------------------------------------------------------------------------------------


def _flip(name: str, x: TensorLike, axis: int) -> Tensor:
    tensor = convert_to_tensor(x)
    if tensor.ndim is not None and tensor.ndim <= axis:
        raise ValueError(f"{name} needs at least {axis + 1} axes; got {tensor!r}.")
    return flip(tensor, axis)


def fliplr(x: TensorLike) -> Tensor:
    """Return `x`, of at least two axes, in reverse order along axis 1."""
    return _flip("fliplr", x, 1)


def flipud(x: TensorLike) -> Tensor:
    """Return `x`, of at least one axis, in reverse order along axis 0."""
    return _flip("flipud", x, 0)


def diagflat(x: TensorLike, k: int = 0) -> Tensor:
    """Return a square matrix with all elements of `x` on diagonal `k`, and zeros elsewhere.

    >>> import anabranch as ab
    >>> ab.ops.diagflat([[1], [2]])
    Tensor([[1, 0],
            [0, 2]], dtype=int32)
    """
    return apply(Diag(axis_number(k, "k")), ravel(convert_to_tensor(x)))


def get_item(x: TensorLike, key: Any) -> Tensor:
    """Return ``x[key]``: `key` holds integers, slices, None, Ellipsis, and tensors of integers or bools."""
    return convert_to_tensor(x)[key]


# --- tensors themselves ---------------------------------------------------------------------------------------------


def copy(x: TensorLike) -> Tensor:
    """Return `x` as a tensor of its own. (No operation writes into a value that another one still needs.)"""
    return identity(x)


def empty(shape: ShapeLike, dtype: DTypeLike = None) -> Tensor:
    """Return a tensor of `shape` with undefined values: zeros here. Of float32 unless `dtype` says otherwise."""
    return zeros(shape, dtype)


def empty_like(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return a tensor shaped as `x`, and of its dtype unless another is given, with undefined values: zeros here."""
    return zeros_like(x, dtype)


def is_tensor(x: Any) -> bool:
    """Test whether `x` is a tensor of a graph. Arrays, numbers and variables are none.

    >>> import anabranch as ab
    >>> ab.ops.is_tensor(ab.constant(1.0)), ab.ops.is_tensor(1.0)
    (True, False)
    """
    return isinstance(x, Tensor)


def dtype(x: TensorLike) -> str:
    """Return the name of the dtype of `x`, as Keras has it: ``"float32"``. (``x.dtype`` is NumPy's dtype.)

    >>> import anabranch as ab
    >>> ab.ops.dtype(ab.placeholder((2,), "bfloat16"))
    'bfloat16'
    """
    found = dtype_of(x)
    return as_array(x).dtype.name if isinstance(found, type) else found.name


def convert_to_numpy(x: TensorLike) -> np.ndarray[Any, Any]:
    """Return the value of `x` as a NumPy array: of arrays, numbers, lists, variables, and constant tensors.

    Raises:
        TypeError: `x` is a tensor whose value a run has to compute.

    >>> import anabranch as ab
    >>> ab.ops.convert_to_numpy(ab.Variable([1.0, 2.0]))
    array([1., 2.], dtype=float32)
    """
    known = constant_value(x) if isinstance(x, Tensor) else None
    return np.array(as_array(x) if known is None else known)


__all__ = [
    "array_split",
    "convert_to_numpy",
    "copy",
    "diagflat",
    "dsplit",
    "dstack",
    "dtype",
    "empty",
    "empty_like",
    "fliplr",
    "flipud",
    "get_item",
    "hsplit",
    "is_tensor",
    "vsplit",
]
