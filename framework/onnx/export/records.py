"""Records of loops and branches: the values inside that gradients take, as further outputs of `Loop` and `If`.

A loop's record has the values of a tensor of all iterations: a scan output where they have one shape, else a sequence.
A branch's record has the value of a tensor of the branch that was taken; of other branches it is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.common.quick_dataclass import dataclass
from ....engine.control_flow.frames import History, Saved
from ....engine.graph.graph import Operation
from ....engine.graph.spec import ArraySpec, FrameSpec, Spec, StoreSpec
from ....engine.graph.tensor import Symbol
from ....engine.ops.containers.tensor_arrays import ArrayRead
from ....engine.passes.loops.loop_sizes import outermost
from .arrays import Dense, Nested, Numbers, Repeated, Sequence, as_dense, as_nested
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

    Values that are the same in all iterations, and the count, take no memory. Others of one shape are scan outputs.
    Values that may differ in shape are appended to a sequence: an array as the tensor of its elements, or, if these
    differ in shape, too, its items, and to vectors the lengths of the arrays.
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
        self.scanned = [s for s in rest if w.sizes.is_even(s, loop.body)]
        self.appended = [s for s in rest if not w.sizes.is_even(s, loop.body)]
        self.levels = [levels_of(w, s) for s in self.appended]

    def first(self) -> list[str]:
        """Return the initial values of what the loop carries for its record."""
        w = self.w
        empty = [w.empty_sequence(s.dtype) for s in self.appended]
        empty += [w.constant(np.zeros(0, LONG)) for _ in range(sum(self.levels))]
        return [*empty, *([w.constant(np.zeros((), LONG))] if self.counts else [])]

    def infos(self, names: list[str]) -> list[ValueInfoProto]:
        """Return the ValueInfoProtos of what the loop carries for its record."""
        w, sequences, vectors = self.w, len(self.appended), len(self.appended) + sum(self.levels)
        found = [w.sequence_info(name) for name in names[:sequences]]
        found += [w.info(name, (None,)) for name in names[sequences:vectors]]
        return [*found, *[w.info(name, ()) for name in names[vectors:]]]

    def following(self, names: list[str], iteration: str) -> tuple[list[str], list[str]]:
        """Append an iteration's values; return what is carried on, and what scan outputs take."""
        w = self.w
        sequences, vectors = names[: len(self.appended)], names[len(self.appended) :]
        carried: list[str] = []
        counts: list[str] = []
        for name, symbol, levels in zip(sequences, self.appended, self.levels, strict=True):
            value = w.values[symbol]
            if not levels:
                carried.append(w.add("SequenceInsert", name, _as_element(w, value, symbol)))
                continue
            inner = as_nested(w, value, levels - 1)
            carried.append(_extended(w, name, inner.items))
            own = [_count_of(w, inner), *inner.lengths]
            counts += [w.concat([vectors[len(counts) + k], each], 0) for k, each in enumerate(own)]
        carried += counts
        if self.counts:
            carried.append(w.add("Add", iteration, w.constant(np.ones((), LONG))))
        return carried, [_as_element(w, w.values[s], s) for s in self.scanned]

    def result(self, carried: list[str], scans: list[str]) -> Record:
        """Return the record, of what the loop gives."""
        w, loop = self.w, self.loop
        values: dict[Symbol, Held] = {}
        vectors = iter(carried[len(self.appended) :])
        for symbol, name, levels in zip(self.appended, carried, self.levels, strict=False):
            values[symbol] = Nested(name, tuple(islice(vectors, levels))) if levels else Sequence(name)
        values |= {s: Dense(name) for s, name in zip(self.scanned, scans, strict=True)}
        trips = ""
        if self.counts:
            trips = w.cast(carried[-1], INT)
        elif self.has_trips:
            trips = w.add("Max", w.cast(loop.limit_value(), INT), w.constant(np.zeros((), INT)))
        values |= {s: Repeated(value, trips) for s, value in self.constant.items()}
        values |= {s: Numbers(trips, s.dtype) for s in self.numbers}
        return Record(values, trips)


def levels_of(w: GraphExporter, symbol: Symbol) -> int:
    """Return how many vectors of lengths there are for the values of a tensor or array in a record."""
    if not isinstance(symbol.spec, ArraySpec):
        return 0
    return _depth(symbol.spec) - (1 if _has_even_items(w, symbol) else 0)


def _depth(spec: Spec) -> int:
    return 1 + _depth(spec.element) if isinstance(spec, ArraySpec) else 0


def _has_even_items(w: GraphExporter, symbol: Symbol) -> bool:
    """Test whether each of the innermost arrays has elements of one shape, so that it is kept as one tensor."""
    symbol = outermost(symbol)
    operation, depth = symbol.operation, _depth(symbol.spec)
    if isinstance(operation.op, History) and depth > 1:
        return _has_even_items(w, operation.op.inner)
    if isinstance(operation.op, ArrayRead):
        return _has_even_items(w, operation.inputs[0])
    sizes = w.sizes.array(symbol)
    return depth > 1 or (sizes is not None and None not in sizes[1:])


def _count_of(w: Writer, array: Nested) -> str:
    """Return the number of an array's elements, an int64 vector of one element."""
    if array.lengths:
        return w.dim(array.lengths[0], 0)
    return w.unsqueeze(w.add("SequenceLength", array.items, dtype=LONG), 0)


def _extended(w: Writer, sequence: str, items: str) -> str:
    """Return a sequence with the elements of another at its end."""

    def body(iteration: str, names: Sequences[str]) -> tuple[list[str], list[str]]:
        return [w.add("SequenceInsert", names[0], w.add("SequenceAt", items, iteration))], []

    return w.repeat(w.add("SequenceLength", items, dtype=LONG), [sequence], body, w.sequence_info)[0]


def _as_element(w: Writer, value: Any, symbol: Symbol) -> str:
    """Return a value as an element of a sequence: an array as the tensor of its elements."""
    return as_dense(w, value, symbol.spec.element) if isinstance(symbol.spec, ArraySpec) else value
