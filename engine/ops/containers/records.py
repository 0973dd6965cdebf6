"""Records: values by key. The frame of a call is one, and so is its cotangent.

A call of a recursive function keeps what a gradient needs of that invocation, the frames of the calls inside among
it. So its cotangent has the same form: the cotangents of some of these values, each under the tensor it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import ArraySpec, Spec, TensorSpec
from ...graph.tensor import Tensor
from ..base import apply
from ..run_time_shapes import runtime_shape
from .record_value import Record, RecordSpec, sum_of_entries
from .store_value import empty_value
from .tensor_arrays import array_spec


class _RecordOp(Op):
    no_samples: ClassVar[str] = "works on the records of calls: test_recursion"
    view = True


@dataclass(frozen=True)
class RecordOf(_RecordOp):
    """A record with one entry, the input."""

    key: Tensor

    def infer(self, *inputs: Any) -> Spec:
        return RecordSpec()

    def run(self, xp: Any, *inputs: Any) -> Any:
        return Record({self.key: inputs[0]})

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (record,) = cotangents
        assert record is not None
        return (read_record(record, self.key, node.inputs[0]),)


@dataclass(frozen=True)
class RecordSum(_RecordOp):
    """Two records as one: what both have is added."""

    def infer(self, *inputs: Any) -> Spec:
        return RecordSpec()

    def run(self, xp: Any, *inputs: Any) -> Any:
        return sum_of_entries(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents[0], cotangents[0]


@dataclass(frozen=True)
class RecordEmpty(_RecordOp):
    """The record without entries."""

    def infer(self, *inputs: Any) -> Spec:
        return RecordSpec()

    def run(self, xp: Any, *inputs: Any) -> Any:
        return Record({})

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()


@dataclass(frozen=True)
class RecordRead(_RecordOp):
    """One entry of a record; if there is none, zeros of a shape (second input), an empty array or an empty record."""

    key: Tensor
    spec: Spec
    host_only: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return self.spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        found = inputs[0].entries.get(self.key)
        if found is not None:
            return found
        if isinstance(self.spec, RecordSpec):
            return Record({})
        if isinstance(self.spec, ArraySpec):
            return empty_value(self.spec)
        zeros = np.zeros(tuple([int(dim) for dim in inputs[1]]), self.spec.dtype)
        return zeros if zeros.ndim else zeros[()]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (record_of(self.key, dy), *[None for _ in node.inputs[1:]])


def record_of(key: Tensor, value: Tensor) -> Tensor:
    """Return a record that holds `value` under `key`."""
    return apply(RecordOf(key), value)


def record_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two records."""
    return apply(RecordSum(), a, b)


def empty_record() -> Tensor:
    """Return a record that is zero throughout."""
    return apply(RecordEmpty())


def read_record(record: Tensor, key: Tensor, like: Tensor) -> Tensor:
    """Return the cotangent under `key`, which belongs to a value of the kind and shape of `like`."""
    if isinstance(like.spec, RecordSpec):
        return apply(RecordRead(key, RecordSpec()), record)
    if isinstance(like.spec, ArraySpec):
        return apply(RecordRead(key, array_spec(like)), record)
    return apply(RecordRead(key, TensorSpec(like.shape, like.dtype)), record, runtime_shape(like))


__all__ = [
    "RecordEmpty",
    "RecordOf",
    "RecordRead",
    "RecordSum",
    "empty_record",
    "read_record",
    "record_of",
    "record_sum",
]
