"""`TensorStore`: tensors found by key, each key written once and read many times, with value semantics."""

from __future__ import annotations

from typing import Any

from ..common.dtypes import DTypeLike, as_dtype, is_integer, is_string, name_of
from ..common.nest import is_sequence
from ..graph.spec import TensorSpec, as_shape, shape_text, shapes_compatible
from ..graph.tensor import Symbol, Tensor
from ..ops.base import apply, convert_to_tensor
from ..ops.containers.tensor_stores import (
    StoreContains,
    StoreGather,
    StoreNew,
    StoreRead,
    StoreSize,
    StoreWrite,
    store_spec,
)


class TensorStore:
    """A store of tensors of one dtype. `write` returns a new store; the old one is as it was.

    Args:
        dtype: the dtype of the elements.
        element_shape: the shape of each element, with None for dimensions that are unknown or vary. Left out, it is
            found from what is written; elements may differ in shape.
        key_dtype: an integer dtype or "string".
        key_shape: the shape of a key: () for a number or string, an int n for a tuple of n of them.
        name: a name for the operations.

    Each key is written once and may be read any number of times. A program is right if it is right in sequential
    order: a read of a key that no operation before wrote is an error at run time, and so is a second write of a key.
    In loops a store is a loop variable. Gradients of any order flow through reads and writes.

    Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3.

    >>> import anabranch as ab
    >>> store = ab.TensorStore("float32", key_shape=2)
    >>> store = store.write((0, 3), [1.0, 2.0]).write((1, 0), 5.0)
    >>> store.read((0, 3)) * store.read((1, 0))
    Tensor([ 5., 10.], dtype=float32)
    >>> bool(ab.Session().run(store.contains((1, 1))))
    False
    >>> sorted(ab.Session().run(store))
    [(0, 3), (1, 0)]
    """

    def __init__(
        self,
        dtype: DTypeLike,
        element_shape: Any = None,
        key_dtype: Any = "int64",
        name: str | None = None,
        *,
        key_shape: Any = (),
        flow: Tensor | None = None,
    ) -> None:
        self._declared = as_shape(element_shape)
        self._name = name or "tensor_store"
        if flow is None:
            element = TensorSpec(self._declared, as_dtype(dtype))
            op = StoreNew(element, _key_spec(key_dtype, key_shape), open_shape=element_shape is None)
            flow = apply(op, name=self._name)
        self.flow = flow

    @classmethod
    def from_flow(cls, flow: Tensor) -> TensorStore:
        """Return the store that `flow` carries."""
        return cls(flow.dtype, flow=flow)

    def with_flow(self, flow: Tensor) -> TensorStore:
        """Return a store with this one's settings and another value."""
        return TensorStore(flow.dtype, self._declared, name=self._name, flow=flow)

    @property
    def dtype(self) -> Any:
        return self.flow.dtype

    @property
    def element_shape(self) -> Any:
        """Return what is known of the elements' shape."""
        return store_spec(self.flow).element_shape

    @property
    def key_dtype(self) -> Any:
        return store_spec(self.flow).key.dtype

    @property
    def key_shape(self) -> Any:
        return store_spec(self.flow).key.shape

    def write(self, key: Any, value: Any, name: str | None = None) -> TensorStore:
        """Return the store with `value` under `key`.

        Args:
            key: of the store's `key_shape` and kind: a number, string or tuple, or a tensor.
            value: of the store's dtype, and of the element shape that was declared.

        Raises:
            ValueError: the value or the key has another shape. At run time: the store has that key already.
            TypeError: the value is of another dtype, or the key of another kind.
        """
        is_number = isinstance(value, (bool, int, float, list, tuple))
        tensor = convert_to_tensor(value, self.dtype if is_number else None)
        if not shapes_compatible(tensor.shape, self._declared):
            raise ValueError(
                f"TensorStore.write: the elements were declared as {shape_text(self._declared)}, "
                f"but the value has shape {shape_text(tensor.shape)}."
            )
        return self.with_flow(apply(StoreWrite(), self.flow, self._key(key), tensor, name=name or "store_write"))

    def read(self, key: Any, name: str | None = None) -> Tensor:
        """Return the element under `key`. At run time, LookupError: no operation before wrote it."""
        return apply(StoreRead(), self.flow, self._key(key), name=name or "store_read")

    def contains(self, key: Any, name: str | None = None) -> Tensor:
        """Test whether the store has `key`; return a bool."""
        return apply(StoreContains(), self.flow, self._key(key), name=name or "store_contains")

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of keys, int32."""
        return apply(StoreSize(), self.flow, name=name or "store_size")

    def gather(self, keys: Any, name: str | None = None) -> Tensor:
        """Return the elements under `keys`, along a new first axis. They must be of one shape.

        Args:
            keys: [n, ...], with a key in each row.

        Raises:
            At run time, LookupError: no operation before wrote one of the keys. ValueError: the shapes differ.
        """
        op = StoreGather(self._element_spec())
        return apply(op, self.flow, self._key(keys), name=name or "store_gather")

    def identity(self) -> TensorStore:
        """Return the same store."""
        return self.with_flow(self.flow)

    def _key(self, key: Any) -> Tensor:
        is_empty = is_sequence(key) and not key  # which gives no dtype
        return convert_to_tensor(key, self.key_dtype if is_empty else None)

    def _element_spec(self) -> TensorSpec:
        spec = store_spec(self.flow)
        declared = self._declared if spec.element_shape is None else spec.element_shape
        return TensorSpec(declared, spec.dtype)

    def __repr__(self) -> str:
        name = f"{self.flow.name} " if isinstance(self.flow, Symbol) else ""
        return f"<TensorStore {name}{self.flow.spec}>"


def _key_spec(dtype: DTypeLike, shape: Any) -> TensorSpec:
    wanted, dims = as_dtype(dtype), as_shape(shape)
    if not (is_integer(wanted) or is_string(wanted)):
        raise TypeError(f"TensorStore: key_dtype must be an integer dtype or 'string', got {name_of(wanted)}.")
    if dims is None or len(dims) > 1 or None in dims:
        raise ValueError(f"TensorStore: key_shape must be () or one known length, got {shape!r}.")
    return TensorSpec(dims, wanted)


__all__ = ["TensorStore"]
