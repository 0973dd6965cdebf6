"""The sizes that `tf.shape` gives: known ones as ints, that compute as TensorFlow's vector does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DType, as_dtype
from ...engine.graph import Tensor
from ..structures import Array


class Sizes(tuple[Any, ...]):
    """Hold the sizes of axes: of each an int where it is known, and a tensor where it is not.

    Arithmetic goes by element, as that of tensors, where other tuples would be joined or repeated; known sizes stay
    ints, so that shapes which are computed of them are known too.

    >>> import anabranch as ab
    >>> Sizes((2, 3)) * 2, Sizes((2, 3)) + [1, 0], Sizes((2, 3))[1:] // 2
    ((4, 6), (3, 3), (1,))
    """

    __slots__ = ()
    __array_priority__ = 1000.0  # arrays leave arithmetic with these to these

    @property
    def dtype(self) -> DType:
        return next((size.dtype for size in self if isinstance(size, Tensor)), as_dtype("int32"))

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def numpy(self) -> Array:
        """Return the sizes as an array.

        Raises:
            TypeError: one is known only when the graph runs.
        """
        return np.asarray(self._tensor())

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Sizes(found) if isinstance(key, slice) else found

    def __add__(self, other: object, /) -> Sizes | Tensor:  # pyrefly: ignore[bad-override] - unlike tuples
        return self._with(operator.add, other)

    def __radd__(self, other: object, /) -> Sizes | Tensor:
        return self._with(operator.add, other)

    def __sub__(self, other: object, /) -> Sizes | Tensor:
        return self._with(operator.sub, other)

    def __rsub__(self, other: object, /) -> Sizes | Tensor:
        return self._with(lambda own, theirs: theirs - own, other)

    def __mul__(self, other: object, /) -> Sizes | Tensor:  # pyrefly: ignore[bad-override] - unlike tuples
        return self._with(operator.mul, other)

    def __rmul__(self, other: object, /) -> Sizes | Tensor:  # pyrefly: ignore[bad-override] - unlike tuples
        return self._with(operator.mul, other)

    def __floordiv__(self, other: object, /) -> Sizes | Tensor:
        return self._with(operator.floordiv, other)

    def __mod__(self, other: object, /) -> Sizes | Tensor:
        return self._with(operator.mod, other)

    def __truediv__(self, other: object, /) -> Tensor:
        return self._tensor() / other

    def _tensor(self) -> Tensor:
        return ops.convert_to_tensor(list(self), self.dtype)

    def _with(self, compute: Callable[[Any, Any], Any], other: Any) -> Sizes | Tensor:
        if isinstance(other, np.ndarray):
            other = other.tolist()
        if isinstance(other, (int, np.integer)) or (isinstance(other, Tensor) and other.shape == ()):
            return Sizes(compute(size, other) for size in self)
        if isinstance(other, (tuple, list)) and len(other) == len(self):
            return Sizes(map(compute, self, other))
        return compute(self._tensor(), ops.convert_to_tensor(other))
