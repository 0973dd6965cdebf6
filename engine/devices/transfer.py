"""Takes values apart into the arrays that are to be copied, and puts them together again from the copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..common.nest import is_sequence
from ..ops.containers.array_value import ArrayValue


class Parts:
    """A value as its arrays, and the shape in which they were.

    Args:
        value: any value of the runtime.
        kind: the type of the arrays.

    Attributes:
        arrays: those that were found.

    >>> import numpy as np
    >>> parts = Parts((np.arange(3), None, 2), np.ndarray)
    >>> parts.rebuilt([array * 10 for array in parts.arrays])
    (array([ 0, 10, 20]), None, 2)
    """

    def __init__(self, value: Any, kind: type[Any]) -> None:
        self._kind = kind
        self.arrays: list[Any] = []
        self._shape = self._take_apart(value)

    def _take_apart(self, value: Any) -> Any:
        if isinstance(value, self._kind):
            array: Any = value
            self.arrays.append(array)
            return _Array
        if isinstance(value, ArrayValue):
            return self._take_elements(value)
        if is_sequence(value):
            return [self._take_apart(item) for item in value]
        return _Other(value)

    def _take_elements(self, value: ArrayValue) -> Any:
        if value.size and value.is_dense:
            self.arrays.append(value.stack(None, None))
            return _Rows
        written = [index for index in range(value.size) if value.has(index)]
        return _Elements(value.size, [(index, self._take_apart(value.read(index))) for index in written])

    def rebuilt(self, arrays: list[Any]) -> Any:
        """Return the value with `arrays` in place of its own."""
        return _rebuilt(self._shape, iter(arrays))


class _Array:
    """Stands for an array."""


class _Rows:
    """Stands for a TensorArray whose elements are the rows of an array."""


class _Other:
    """A value that is not copied."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Elements:
    """Stands for a TensorArray, element by element."""

    def __init__(self, size: int, written: list[tuple[int, Any]]) -> None:
        self.size = size
        self.written = written


def _rebuilt(shape: Any, arrays: Iterator[Any]) -> Any:
    if shape is _Array:
        return next(arrays)
    if shape is _Rows:
        return ArrayValue.from_stacked(next(arrays))
    if isinstance(shape, _Other):
        return shape.value
    if isinstance(shape, _Elements):
        return _with_elements(shape, arrays)
    return tuple([_rebuilt(part, arrays) for part in shape])


def _with_elements(shape: _Elements, arrays: Iterator[Any]) -> ArrayValue:
    """Put the elements in as they are: what is copied may not be there yet."""
    return ArrayValue.from_written(shape.size, {index: _rebuilt(part, arrays) for index, part in shape.written})
