"""Ops over TensorStore values: keys written once and read many times.

They are pure: a write takes a store and gives another one, and what is legal is what is legal in sequential order. The
cotangent of a store is a store, whose missing keys are zero. It is accumulated by the ops for cotangents of arrays
(`ArrayAddAt`, `ArrayReadOrZeros`, `ArrayClear`...), in which a key stands for an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import is_integer, name_of
from ...common.quick_dataclass import dataclass
from ...graph.spec import Shape, Spec, StoreSpec, TensorSpec, shape_text, shapes_compatible
from ..base import Op, Operation, Tensor, apply
from .store_value import StoreValue
from .tensor_arrays import ArrayClear, ArrayEmpty, ArrayScatterAdd, ElementContribution, array_spec, read_or_zeros


def store_spec(tensor: Tensor) -> StoreSpec:
    """Return the spec of a tensor that holds a TensorStore."""
    assert isinstance(tensor.spec, StoreSpec), f"{tensor!r} is no TensorStore"
    return tensor.spec


class StoreOp(Op):
    """Base: ops that take or give TensorStores.

    Attributes:
        look_kind: the kind of node that does the same on a machine where writes of other keys are still to come.
    """

    look_kind: ClassVar[str] = ""
    no_samples: ClassVar[str] = "takes TensorStores: test_tensor_stores"


@dataclass(frozen=True)
class StoreNew(StoreOp):
    """A store that holds nothing yet."""

    element: TensorSpec
    key: TensorSpec
    open_shape: bool

    def infer(self, *inputs: Any) -> Spec:
        return StoreSpec(self.element, None, self.open_shape, self.key)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return StoreValue.empty()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()


@dataclass(frozen=True)
class StoreWrite(StoreOp):
    """Inputs: store, key, value. A new store with the value under the key."""

    def infer(self, *inputs: Any) -> Spec:
        store, key, value = inputs
        _check_key("write", store, key, store.key.shape)
        if store.dtype != value.dtype:
            raise TypeError(
                f"TensorStore of {name_of(store.dtype)} elements: a {name_of(value.dtype)} value was written. "
                "Cast it first."
            )
        return store.with_elements(value if store.empty else store.element.join(value))

    def run(self, xp: Any, *inputs: Any) -> Any:
        store, key, value = inputs
        return store.write(key, value)

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.write({arguments[1]}, {arguments[2]})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        _, key, value = node.inputs
        assert dy is not None
        return apply(ArrayClear(), dy, key), None, read_or_zeros(dy, key, value)


@dataclass(frozen=True)
class StoreRead(StoreOp):
    """Inputs: store, key. The element under the key."""

    look_kind: ClassVar[str] = "store_read"
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        store, key = inputs
        _check_key("read", store, key, store.key.shape)
        return store.element

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].read(inputs[1])

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.read({arguments[1]})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        store, key = node.inputs
        assert dy is not None
        return ElementContribution(store, key, dy), None


@dataclass(frozen=True)
class StoreContains(StoreOp):
    """Inputs: store, key. Whether the store has the key."""

    look_kind: ClassVar[str] = "store_contains"
    kept_on_host: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        store, key = inputs
        _check_key("contains", store, key, store.key.shape)
        return TensorSpec((), dtypes.bool_)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.bool_(inputs[0].has(inputs[1]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None


@dataclass(frozen=True)
class StoreSize(StoreOp):
    """The number of keys, int32."""

    look_kind: ClassVar[str] = "store_size"
    kept_on_host: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.int32(inputs[0].size)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class StoreGather(StoreOp):
    """Inputs: store, keys along the first axis. The elements under the keys, stacked."""

    element: TensorSpec
    look_kind: ClassVar[str] = "store_gather"

    def infer(self, *inputs: Any) -> Spec:
        store, keys = inputs
        _check_key("gather", store, keys, (None, *store.key.shape))
        shape = self.element.shape
        if shape is None or keys.shape is None:
            return TensorSpec(None, self.element.dtype)
        return TensorSpec((keys.shape[0], *shape), self.element.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        store, keys = inputs
        return store.gather(keys, self.element.shape, self.element.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        store, keys = node.inputs
        assert dy is not None
        return apply(ArrayScatterAdd(), apply(ArrayEmpty(array_spec(store))), keys, dy), None


def _check_key(method: str, store: StoreSpec, key: Any, shape: Shape) -> None:
    expected = "keys were expected in rows" if method == "gather" else "a key was expected"
    if key.dtype != store.key.dtype and not (is_integer(key.dtype) and is_integer(store.key.dtype)):
        raise TypeError(
            f"TensorStore.{method}: {expected} of dtype {name_of(store.key.dtype)}, got {name_of(key.dtype)}. "
            "Cast it, or declare another key_dtype."
        )
    if not shapes_compatible(key.shape, shape):
        raise ValueError(
            f"TensorStore.{method}: {expected} of shape {shape_text(shape)}, got {shape_text(key.shape)}. "
            "The key_shape of the store says what shape a single key has."
        )
