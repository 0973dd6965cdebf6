"""`DType`: a dtype's name, with the attributes that TensorFlow's dtypes have."""

from __future__ import annotations

import numpy as np

from ...engine.common import dtypes


class DType(str):
    """The name of a dtype, with what scripts ask TensorFlow's dtypes for.

    >>> from anabranch import tf
    >>> tf.int8.max, tf.float16.min, tf.int32.size, tf.float32.is_floating
    (127, -65504.0, 4, True)
    >>> tf.float32 == "float32"
    True
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)

    @property
    def as_numpy_dtype(self) -> type:
        """Return the type of NumPy's scalars: `object` for texts."""
        return object if self == "string" else dtypes.as_dtype(self).type

    @property
    def size(self) -> int:
        """Return the number of bytes of an element; 0 where it is not the same for all."""
        return 0 if self == "string" else np.dtype(self.as_numpy_dtype).itemsize

    @property
    def max(self) -> int | float:
        """Return the largest number, infinity apart.

        Raises:
            TypeError: the dtype holds bools, complex numbers or texts.
        """
        return self._limits()[1]

    @property
    def min(self) -> int | float:
        """Return the lowest number, infinity apart.

        Raises:
            TypeError: the dtype holds bools, complex numbers or texts.
        """
        return self._limits()[0]

    @property
    def is_floating(self) -> bool:
        return self._kind == "f"

    @property
    def is_integer(self) -> bool:
        return self._kind in "iu"

    @property
    def is_unsigned(self) -> bool:
        return self._kind == "u"

    @property
    def is_complex(self) -> bool:
        return self._kind == "c"

    @property
    def is_bool(self) -> bool:
        return self._kind == "b"

    @property
    def _kind(self) -> str:
        if self == "string":
            return "T"
        dtype = dtypes.as_dtype(self)
        return "f" if dtypes.is_floating(dtype) else dtype.kind

    def _limits(self) -> tuple[int | float, int | float]:
        if self.is_floating:
            largest = dtypes.largest(dtypes.as_dtype(self))
            return -largest, largest
        if not self.is_integer:
            raise TypeError(f"tf.{self}: there is no lowest and no largest number of it.")
        limits = np.iinfo(dtypes.as_dtype(self))
        return int(limits.min), int(limits.max)


__all__ = ["DType"]
