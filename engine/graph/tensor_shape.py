"""`TensorShape`: a shape with the methods of TensorFlow's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .spec import Dim, as_shape, shapes_compatible


class TensorShape(tuple[Dim, ...]):
    """A shape: a tuple of sizes, None for one that is not known, with the methods of TensorFlow's class of this name.

    Args:
        dims: the sizes. For None, a shape of unknown rank, the result is None.

    >>> from anabranch import tf
    >>> shape = tf.TensorShape((None, 3))
    >>> shape, shape.as_list(), shape.rank, shape == [None, 3]
    (TensorShape([None, 3]), [None, 3], 2, True)
    """

    __slots__ = ()

    def __new__(cls, dims: Any) -> Any:
        sizes = as_shape(dims)
        return None if sizes is None else super().__new__(cls, sizes)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    @property
    def ndims(self) -> int:
        """The number of axes."""
        return len(self)

    @property
    def dims(self) -> list[Dim]:
        """The sizes."""
        return list(self)

    def as_list(self) -> list[Dim]:
        """Return the sizes as a list."""
        return list(self)

    def num_elements(self) -> int | None:
        """Return the number of elements; None if a size is not known."""
        known = [size for size in self if size is not None]
        return math.prod(known) if len(known) == len(self) else None

    def is_fully_defined(self) -> bool:
        """Test whether all sizes are known."""
        return None not in self

    def is_compatible_with(self, other: Sequence[Dim] | int | None) -> bool:
        """Test whether a tensor may have both shapes."""
        return shapes_compatible(self, as_shape(other))

    def assert_is_compatible_with(self, other: Sequence[Dim] | int | None) -> None:
        """Check that a tensor may have both shapes.

        Raises:
            ValueError: it can't.
        """
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {other} are incompatible: sizes that are known differ.")

    def assert_has_rank(self, rank: int) -> None:
        """Check the number of axes.

        Raises:
            ValueError: it is another one.
        """
        if len(self) != rank:
            raise ValueError(f"Shape {self} must have rank {rank}, but has {len(self)}.")

    def concatenate(self, other: Sequence[Dim] | int) -> TensorShape:
        """Return the sizes of both."""
        return TensorShape((*self, *(as_shape(other) or ())))

    def merge_with(self, other: Sequence[Dim] | int | None) -> TensorShape:
        """Return what is known of a tensor that has both shapes.

        Raises:
            ValueError: there is none.
        """
        self.assert_is_compatible_with(other)
        sizes = as_shape(other)
        if sizes is None:
            return self
        return TensorShape([size if own is None else own for own, size in zip(self, sizes, strict=True)])

    def __getitem__(self, key: Any) -> Any:
        found: Any = super().__getitem__(key)
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Any, /) -> Any:
        return TensorShape((*self, *other))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return f"TensorShape({list(self)})"

    def __str__(self) -> str:
        return str(tuple(self))


__all__ = ["TensorShape"]
