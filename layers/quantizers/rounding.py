"""Rounding of floating-point numbers to integers of few bits, with the scales that lead back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import as_array

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike


Array = np.ndarray
EPSILON = 1e-7


def abs_max_quantize(
    inputs: TensorLike,
    axis: int | Sequence[int],
    value_range: tuple[int, int] = (-127, 127),
    dtype: str = "int8",
    epsilon: float = EPSILON,
    to_numpy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Round to integers by a scale that takes the largest absolute value to the end of a range.

    Args:
        inputs: floating.
        axis: the axes that share a scale.
        value_range: the smallest and the largest integer.
        dtype: of the integers.
        epsilon: is added to the largest value, so that zeros have a finite scale.
        to_numpy: compute on arrays, at once, whatever graph is being built.

    Returns:
        The integers, and the scales by which the inputs were *multiplied*, with axes of size 1.

    Source: ``keras.quantizers.abs_max_quantize``.

    >>> quantized, scale = abs_max_quantize([[1.0, -2.0]], axis=-1)
    >>> quantized.numpy().tolist(), scale.numpy().round(1).tolist()
    ([[64, -127]], [[63.5]])
    """
    axes = axis if isinstance(axis, int) else tuple(axis)
    if to_numpy:
        integers, scale = abs_max_arrays(as_array(inputs), axes, value_range, dtype, epsilon)
        return ops.convert_to_tensor(integers), ops.convert_to_tensor(scale)
    tensor = ops.convert_to_tensor(inputs)
    largest = ops.max(ops.abs(tensor), axis=axes, keepdims=True)
    scale = ops.cast(ops.divide(value_range[1], ops.add(largest, epsilon)), tensor.dtype)
    rounded = ops.clip(ops.round(tensor * scale), value_range[0], value_range[1])
    return ops.cast(rounded, dtype), scale


def abs_max_arrays(
    inputs: Array,
    axis: int | tuple[int, ...],
    value_range: tuple[int, int] = (-127, 127),
    dtype: str = "int8",
    epsilon: float = EPSILON,
) -> tuple[Array, Array]:
    """Return `abs_max_quantize` of arrays."""
    numbers = _computable(inputs)
    scale = value_range[1] / (np.max(np.abs(numbers), axis=axis, keepdims=True) + numbers.dtype.type(epsilon))
    rounded = np.clip(np.round(numbers * scale), *value_range)
    return rounded.astype(dtype), scale.astype(inputs.dtype)


def abs_max_quantize_grouped_with_zero_point(
    inputs: TensorLike,
    block_size: int,
    value_range: tuple[int, int] = (-8, 7),
    dtype: str = "int8",
    epsilon: float = EPSILON,
    to_numpy: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Round a matrix to integers, with a scale and a zero point for each `block_size` rows of a column.

    ``inputs = (integers - zero_point) * scale``: these scales multiply on the way *back*.

    Args:
        inputs: (rows, columns), floating, of known values.
        block_size: rows that share a scale; the last group may have fewer.
        value_range: the smallest and the largest integer.
        dtype: of the integers.
        epsilon: is added to the range of a group.
        to_numpy: accepted as in Keras; the computation is on arrays in either case.

    Returns:
        The integers (rows, columns), the scales (groups, columns), and the zero points (groups, columns), int8.

    Raises:
        ValueError: the inputs are not a matrix.

    Source: ``keras.quantizers.abs_max_quantize_grouped_with_zero_point``.

    >>> found, scale, zero = abs_max_quantize_grouped_with_zero_point([[0.0], [1.5], [-1.0], [3.0]], block_size=2)
    >>> found.numpy().ravel().tolist(), zero.numpy().ravel().tolist()
    ([-8, 7, -8, 7], [-8, -4])
    """
    arrays = grouped_arrays(as_array(inputs), block_size, value_range, dtype, epsilon)
    integers, scale, zero = [ops.convert_to_tensor(array) for array in arrays]
    return integers, scale, zero


def grouped_arrays(
    inputs: Array,
    block_size: int,
    value_range: tuple[int, int] = (-8, 7),
    dtype: str = "int8",
    epsilon: float = EPSILON,
) -> tuple[Array, Array, Array]:
    """Return `abs_max_quantize_grouped_with_zero_point` of arrays."""
    if inputs.ndim != 2:
        raise ValueError(f"Groups of rows are those of a matrix; got inputs of shape {inputs.shape}.")
    numbers = _computable(inputs)
    low, high = value_range
    rows, columns = numbers.shape
    groups = -(-rows // block_size)
    # Rows that fill up the last group are zeros, and count for its range: as in Keras.
    filled = np.zeros((groups * block_size, columns), numbers.dtype)
    filled[:rows] = numbers
    filled = filled.reshape(groups, block_size, columns)
    # Zero is in every range, or groups of one sign would be cut off, as Keras cuts them.
    smallest, largest = filled.min(axis=1, keepdims=True, initial=0), filled.max(axis=1, keepdims=True, initial=0)
    scale = (largest - smallest + numbers.dtype.type(epsilon)) / (high - low)
    zero = np.clip(np.round(-smallest / scale) + low, low, high)
    integers = np.clip(np.round(filled / scale) + zero, low, high).astype(dtype)
    return (
        integers.reshape(groups * block_size, columns)[:rows],
        scale[:, 0].astype(inputs.dtype),
        zero[:, 0].astype("int8"),
    )


def _computable(inputs: Array) -> Array:
    """Return the numbers in a dtype in which NumPy computes."""
    return inputs if inputs.dtype in (np.float32, np.float64) else inputs.astype(np.float32)
