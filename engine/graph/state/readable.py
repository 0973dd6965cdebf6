"""`Readable`: what is not a variable, but reads as one."""

from __future__ import annotations

from typing import Any

from ...common.dtypes import DType
from ..spec import Shape
from ..tensor import Operators, Tensor


class Readable(Operators):
    """Base of objects whose value is computed from variables each time that it is read, such as rounded weights.

    It can be used in ops like a variable.
    """

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """Return the shape of the value."""
        raise NotImplementedError(f"{type(self).__name__} must define shape.")

    @property
    def dtype(self) -> DType:
        """Return the dtype of the value."""
        raise NotImplementedError(f"{type(self).__name__} must define dtype.")

    @property
    def value(self) -> Tensor:
        """Compute the value at this place of the program."""
        raise NotImplementedError(f"{type(self).__name__} must define value.")

    @property
    def ndim(self) -> int | None:
        """Return the number of axes of the value."""
        return None if self.shape is None else len(self.shape)

    def product_of(self, x: Any, transposed: bool = False) -> Tensor | None:
        """Compute ``x @ value`` in a way of its own.

        Args:
            x: what `ops.matmul` is given on the left.
            transposed: multiply by the transpose of the value, a matrix.

        Returns:
            The product, or None where the value is to be read and multiplied.
        """
        return None

    def numpy(self) -> Any:
        """Return the value of now as an array."""
        raise NotImplementedError(f"{type(self).__name__} must define numpy().")
