"""Records, the values of cotangents of what was computed in a call: their spec and what they are at run time."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...graph.spec import FrameSpec, Spec
from .array_value import ArrayValue


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
        return sum_of_entries(self, other)

    @property
    def nbytes(self) -> int:
        return sum(int(entry.nbytes) for entry in self.entries.values())


def sum_of_entries(a: Any, b: Any) -> Any:
    """Return the sum of two records, TensorArrays, or arrays."""
    if isinstance(a, Record):
        entries = dict(a.entries)
        for key, value in b.entries.items():
            entries[key] = sum_of_entries(entries[key], value) if key in entries else value
        return Record(entries)
    return a.sum(b) if isinstance(a, ArrayValue) else a + b


__all__ = ["Record", "RecordSpec", "sum_of_entries"]
