"""`tf.lookup`: tables of keys and values that do not change."""

from __future__ import annotations

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DType, DTypeLike, as_dtype
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike, as_array, convert_to_tensor


def _array(value: TensorLike, dtype: DTypeLike | None) -> np.ndarray:
    array = np.asarray(as_array(value))
    return array if dtype is None else array.astype(as_dtype(dtype))


class KeyValueTensorInitializer:
    """The keys and values of a table.

    Args:
        keys: strings or whole numbers, a vector.
        values: one for each key.
        key_dtype, value_dtype: their dtypes; by default those that they have.

    Raises:
        ValueError: the vectors differ in length, or a key has two values.
    """

    def __init__(
        self,
        keys: TensorLike,
        values: TensorLike,
        key_dtype: DTypeLike | None = None,
        value_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        found, given = _array(keys, key_dtype), _array(values, value_dtype)
        if found.ndim != 1 or found.shape != given.shape:
            raise ValueError(
                "tf.lookup.KeyValueTensorInitializer: keys and values must be vectors of one length; got shapes "
                f"{found.shape} and {given.shape}."
            )
        order = np.argsort(found, kind="stable")
        self.keys, self.values = found[order], given[order]
        again = (self.keys[1:] == self.keys[:-1]) & (self.values[1:] != self.values[:-1])
        if again.any():
            raise ValueError(
                f"tf.lookup.KeyValueTensorInitializer: key {self.keys[1:][again][0]!r} has several values."
            )

    @property
    def key_dtype(self) -> DType:
        return self.keys.dtype

    @property
    def value_dtype(self) -> DType:
        return self.values.dtype


class StaticHashTable:
    """A table that does not change: it gives the value of each key, and one value for all that are no keys.

    Args:
        initializer: its keys and values.
        default_value: the value of all else.

    >>> from anabranch import tf
    >>> table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [3, 5]), default_value=-1)
    >>> table.lookup(["b", "c"])
    Tensor([ 5, -1], dtype=int32)
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: TensorLike,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        self._initializer = initializer
        self.default_value = _array(default_value, initializer.value_dtype)
        self.name = name or "static_hash_table"

    @property
    def key_dtype(self) -> DType:
        return self._initializer.key_dtype

    @property
    def value_dtype(self) -> DType:
        return self._initializer.value_dtype

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of keys, an int64."""
        return ops.cast(len(self._initializer.keys), "int64")

    def lookup(self, keys: TensorLike, name: str | None = None) -> Tensor:
        """Return the value of each key."""
        known, wanted = self._initializer.keys, convert_to_tensor(keys, self.key_dtype)
        if not len(known):
            return ops.full(ops.shape(wanted), self.default_value, self.value_dtype)
        place = ops.minimum(ops.searchsorted(known, wanted), len(known) - 1)
        values = ops.take(self._initializer.values, place)
        return ops.where(ops.equal(ops.take(known, place), wanted), values, self.default_value)

    def __getitem__(self, keys: TensorLike) -> Tensor:
        return self.lookup(keys)

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Return all keys, sorted, and their values."""
        return convert_to_tensor(self._initializer.keys), convert_to_tensor(self._initializer.values)


__all__ = ["KeyValueTensorInitializer", "StaticHashTable"]
