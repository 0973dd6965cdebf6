"""Records: values by key. The frame of a call is one, and so is its cotangent.

A call of a recursive function keeps what a gradient needs of that invocation, the frames of the calls inside among
it. So its cotangent has the same form: the cotangents of some of these values, each under the tensor it belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import ArraySpec, FrameSpec, Spec, TensorSpec
from ...graph.tensor import Tensor
from ..base import apply
from ..run_time_shapes import runtime_shape
from .array_value import ArrayValue
from .store_value import empty_value
from .tensor_arrays import ElementContribution, array_spec


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSpec(FrameSpec):
    """A record that is a value like others: it may be passed on, saved, and captured by loops and branches."""

    def accepts(self, other: Spec) -> bool:
        return isinstance(other, RecordSpec)

    def __str__(self) -> str:
        return "record"


class Record:
    """The run-time value of a cotangent: what is missing is zero."""

    __slots__ = ("entries",)

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries

    def __add__(self, other: Record) -> Record:
        return _sum(self, other)

    @property
    def nbytes(self) -> int:
        return sum(int(entry.nbytes) for entry in self.entries.values())


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, Record):
        entries = dict(a.entries)
        for key, value in b.entries.items():
            entries[key] = _sum(entries[key], value) if key in entries else value
        return Record(entries)
    return a.sum(b) if isinstance(a, ArrayValue) else a + b


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
        return _sum(*inputs)

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


@dataclass(frozen=True)
class ArrayReadOrEmptyRecord(_RecordOp):
    """Inputs: array of records, index. The element, or an empty record if it was never written."""

    def infer(self, *inputs: Any) -> Spec:
        return RecordSpec()

    def run(self, xp: Any, *inputs: Any) -> Any:
        element = inputs[0].read_or_none(inputs[1])
        return Record({}) if element is None else element

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, index = node.inputs
        assert dy is not None
        return ElementContribution(array, index, dy), None


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
    "ArrayReadOrEmptyRecord",
    "Record",
    "RecordEmpty",
    "RecordOf",
    "RecordRead",
    "RecordSpec",
    "RecordSum",
    "empty_record",
    "read_record",
    "record_of",
    "record_sum",
]
