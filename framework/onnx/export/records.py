"""Records of loops and branches: the values inside that gradients take, as further outputs of `Loop` and `If`.

A loop's record has the values of a tensor of all iterations: a scan output where they have one shape, else a sequence.
A branch's record has the value of a tensor of the branch that was taken; of other branches it is zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.common.quick_dataclass import dataclass
from ....engine.control_flow.frames import History, Saved
from ....engine.graph.graph import Operation
from ....engine.graph.spec import ArraySpec, FrameSpec, StoreSpec, TensorSpec
from ....engine.graph.tensor import Symbol
from .arrays import Dense, Numbers, Repeated, Sequence, as_dense, is_static
from .registry import exports, op_of
from .writer import INT, LONG, Writer

if TYPE_CHECKING:
    from onnx import ValueInfoProto

    from .control_flow import GraphExporter, Held, LoopExport


@dataclass(frozen=True)
class Record:
    """The record of a loop or branch: values of tensors inside, and the number of iterations."""

    values: dict[Symbol, Any]
    trips: str = ""


@exports("history", "saved")
def _recorded(w: GraphExporter, node: Operation, record: Record) -> Held:
    return record.values[op_of(node, (History, Saved)).inner]


@exports("trip_count")
def _trip_count(w: GraphExporter, node: Operation, record: Record) -> str:
    return record.trips


def asked_of(w: GraphExporter, node: Operation) -> tuple[list[Symbol], bool]:
    """Return the tensors inside of a loop or branch that its record has to hold, and whether its trips are counted."""
    frame = node.outputs[-1]
    users = [each for each in node.graph.operations if each in w.needed and each.inputs and each.inputs[0] is frame]
    inner = [each.op.inner for each in users if isinstance(each.op, (History, Saved))]
    if any(isinstance(symbol.spec, (FrameSpec, StoreSpec)) for symbol in inner):
        raise ValueError("records of recursions and TensorStores have no counterpart in ONNX")
    return list(dict.fromkeys(inner)), any(each.type == "trip_count" for each in users)


class LoopRecord:
    """Writes the record of one loop.

    Values that are the same in all iterations, and the count, take no memory. Others of a known shape are scan outputs.
    Values that may differ in shape are appended to a sequence, an array as the tensor of its elements.
    """

    def __init__(self, w: GraphExporter, loop: LoopExport) -> None:
        self.w, self.loop = w, loop
        self.inner, self.has_trips = asked_of(w, loop.node)
        parameters = loop.body.parameters
        initial = {parameters[k]: loop.inits[k] for k in loop.same}
        self.constant = {symbol: initial[symbol] for symbol in self.inner if symbol in initial}
        counter = parameters[loop.counter] if loop.counter is not None and loop.limit is not None else None
        self.numbers = [s for s in self.inner if s is counter]
        self.has_trips = self.has_trips or bool(self.constant or self.numbers)
        self.counts = self.has_trips and loop.limit is None
        rest = [s for s in self.inner if s not in {*self.constant, *self.numbers}]
        self.scanned = [s for s in rest if _is_even(s)]
        self.appended = [s for s in rest if not _is_even(s)]

    def first(self) -> list[str]:
        """Return the initial values of what the loop carries for its record."""
        w = self.w
        empty = [w.empty_sequence(s.dtype) for s in self.appended]
        return [*empty, *([w.constant(np.zeros((), LONG))] if self.counts else [])]

    def infos(self, names: list[str]) -> list[ValueInfoProto]:
        """Return the ValueInfoProtos of what the loop carries for its record."""
        kinds = [self.w.sequence_info] * len(self.appended)
        return [kind(n) for kind, n in zip([*kinds, lambda n: self.w.info(n, ())], names, strict=False)]

    def following(self, names: list[str], iteration: str) -> tuple[list[str], list[str]]:
        """Append an iteration's values; return what is carried on, and what scan outputs take."""
        w = self.w
        carried = [
            w.add("SequenceInsert", name, _as_element(w, w.values[s], s))
            for name, s in zip(names, self.appended, strict=False)
        ]
        if self.counts:
            carried.append(w.add("Add", iteration, w.constant(np.ones((), LONG))))
        return carried, [w.values[s] for s in self.scanned]

    def result(self, carried: list[str], scans: list[str]) -> Record:
        """Return the record, of what the loop gives."""
        w, loop = self.w, self.loop
        values: dict[Symbol, Any] = {s: Sequence(n) for s, n in zip(self.appended, carried, strict=False)}
        values |= {s: Dense(name) for s, name in zip(self.scanned, scans, strict=True)}
        trips = ""
        if self.counts:
            trips = w.cast(carried[-1], INT)
        elif self.has_trips:
            trips = w.add("Max", w.cast(loop.limit_value(), INT), w.constant(np.zeros((), INT)))
        values |= {s: Repeated(value, trips) for s, value in self.constant.items()}
        values |= {s: Numbers(trips, s.dtype) for s in self.numbers}
        return Record(values, trips)


def _is_even(symbol: Symbol) -> bool:
    """Test whether a value has the same shape in all iterations."""
    return isinstance(symbol.spec, TensorSpec) and is_static(symbol.spec)


def _as_element(w: Writer, value: Any, symbol: Symbol) -> str:
    """Return a value as an element of a sequence: an array as the tensor of its elements."""
    spec = symbol.spec
    if isinstance(spec, ArraySpec) and isinstance(spec.element, ArraySpec):
        raise ValueError(
            "the gradient of a loop in a loop in a loop keeps arrays of arrays of arrays, and ONNX's sequences hold no "
            "sequences"
        )
    return as_dense(w, value, spec.element) if isinstance(spec, ArraySpec) else value
