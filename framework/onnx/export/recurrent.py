"""Loops that are an LSTM, a GRU or a plain recurrent network become ONNX's operators for these.

A loop is recognised by what its body computes, so that cells of users that compute the same become the operator, too,
and changed ones stay loops. The mask of a loop becomes `sequence_lens` if it is True up to the end of each sequence for
all values, which the operations show that make it. Other masks, such as those of values, stay loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....engine.graph.tensor import Symbol
from ....engine.ops.arrays.indexing import SliceItem
from ....engine.ops.base import Constant
from ....engine.passes.loops.loop_sizes import outermost
from ...structures import Array
from .arrays import Dense
from .patterns import ACTIVATIONS, Bindings, is_prefix, match, match_any
from .registry import attribute, axes_of
from .shapes import reversed_along
from .writer import INT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .control_flow import Held, LoopExport

_END = int(np.iinfo(np.int64).max)
_PRODUCTS = ("add", ("matmul", "?x", "?kernel"), ("matmul", "?h", "?recurrent"))
_SUMS = {"with bias": ("add", _PRODUCTS, "?bias"), "without": _PRODUCTS}
_SIMPLE = {
    "bias first": (
        "apply",
        "?f",
        ("add", ("add", ("matmul", "?x", "?kernel"), "?bias"), ("matmul", "?h", "?recurrent")),
    ),
    **{name: ("apply", "?f", inner) for name, inner in _SUMS.items()},
}


def _lstm(inner: object) -> tuple[object, object]:
    """Return the output, and the cell's state."""
    kept = ("multiply", ("apply", "?f", ("part", 1, inner)), "?c")
    new = ("multiply", ("apply", "?f", ("part", 0, inner)), ("apply", "?g", ("part", 2, inner)))
    cell = ("add", kept, new)
    return ("multiply", ("apply", "?f", ("part", 3, inner)), ("apply", "?g", cell)), cell


_X = ("matmul", "?x", "?kernel")
_H = ("matmul", "?h", "?recurrent")


def _gru(x: object, h: object) -> object:
    """Return the pattern of a GRU with the reset gate behind the product; parts z, r, h."""
    z = ("apply", "?f", ("add", ("part", 0, x), ("part", 0, h)))
    r = ("apply", "?f", ("add", ("part", 1, x), ("part", 1, h)))
    candidate = ("apply", "?g", ("add", ("part", 2, x), ("multiply", r, ("part", 2, h))))
    return ("add", ("multiply", z, "?h"), ("multiply", ("subtract", 1, z), candidate))


def _gru_before(x: object) -> object:
    """Return the pattern of a GRU with the reset gate before the product, which takes part of the recurrent kernel."""
    h = ("matmul", "?h", ("columns", "first", "?recurrent"))
    z = ("apply", "?f", ("add", ("part", 0, x), ("part", 0, h)))
    r = ("apply", "?f", ("add", ("part", 1, x), ("part", 1, h)))
    inner = ("matmul", ("multiply", r, "?h"), ("columns", "second", "?recurrent"))
    candidate = ("apply", "?g", ("add", ("part", 2, x), inner))
    return ("add", ("multiply", z, "?h"), ("multiply", ("subtract", 1, z), candidate))


_GRU = {
    "with two biases": _gru(("add", _X, ("item", (0,), "?bias")), ("add", _H, ("item", (1,), "?bias"))),
    "without": _gru(_X, _H),
    "reset before": _gru_before(("add", _X, "?bias")),
    "reset before, without": _gru_before(_X),
}


_MASKED = ("where", ("expand_dims", "?keep"), "?new", "?old")


class _Steps(NamedTuple):
    """The tensor that the iterations read, and in which order."""

    name: str  # the rows (time, batch, features), or a mask (time, batch)
    backward: bool  # from the last to the first
    source: Symbol  # of the name


def as_operator(loop: LoopExport) -> list[Held] | None:
    """Return the results of a loop that is a recurrent network, or None if it is something else."""
    if loop.limit is None or loop.counter is None:
        return None
    if any(loop.kinds_of(k) is not None for k in loop.carried):
        return None
    latest = [k for k in loop.carried if _is_state_or_zero(loop.body.results[k])]
    states = [k for k in loop.carried if k not in latest]
    keep, following = _without_mask(loop, states)
    found = _recognised(loop, states, following)
    if found is None:
        return None
    op_type, bound, order = found
    zeroed = _zeroed(loop, order[0], following, keep, latest)
    rows = _read(loop, bound["?x"], rank=3)
    names = {key: _outer(loop, bound.get(key)) for key in ("?kernel", "?recurrent", "?bias")}
    if zeroed is None or rows is None or any(name is None for key, name in names.items() if key in bound):
        return None
    mask = None
    if keep is not None:
        mask = _read(loop, keep, rank=2)
        if mask is None or mask.backward != rows.backward or not is_prefix(mask.source, -2):
            return None
    is_whole = _is_length(loop.limit, rows.source)
    if not is_whole and not _is_part(loop.limit, rows.source):
        return None
    arrays = {key: loop.w.known(name) for key, name in names.items() if name is not None}
    if any(array is None or array.dtype != np.float32 for array in arrays.values()):
        return None  # the operators are float32's, and gates are put into order now
    width = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type] * arrays["?recurrent"].shape[0]
    if arrays["?kernel"].shape[1] != width or ("?bias" in arrays and arrays["?bias"].shape[-1] != width):
        return None
    writer = _Operator(loop, op_type, bound, order, rows, names, arrays)
    if not is_whole:
        writer.shorten()
    if mask is not None:
        writer.mask(mask.name, zeroed, latest)
    return writer.write()


def _without_mask(loop: LoopExport, states: list[int]) -> tuple[Symbol | None, dict[int, Symbol]]:
    """Return what a step reads of the mask, None if there is none, and the new states before the mask's choice."""
    parameters, results = loop.body.parameters, loop.body.results
    keeps: set[Symbol] = set()
    following: dict[int, Symbol] = {}
    for k in states:
        bound = _chosen(results[k])
        if bound is None or bound["?old"] is not parameters[k]:
            return None, {k: results[k] for k in states}
        keeps.add(bound["?keep"])
        following[k] = bound["?new"]
    if len(keeps) != 1:
        return None, {k: results[k] for k in states}
    return keeps.pop(), following


def _chosen(symbol: Symbol) -> Bindings | None:
    """Return the parts of a choice by row, of bools (batch,) or None."""
    bound = match(symbol, _MASKED, {})
    if bound is None or bound["?keep"].shape is None or len(bound["?keep"].shape) != 1:
        return None
    axes = attribute(symbol.operation.inputs[0].operation, "axes", tuple)
    return bound if axes in ((1,), (-1,)) else None


def _is_state_or_zero(symbol: Symbol) -> bool:
    bound = _chosen(symbol)
    return bound is not None and _is_zero(bound["?old"])


def _zeroed(
    loop: LoopExport, h: int, following: Mapping[int, Symbol], keep: Symbol | None, latest: list[int]
) -> set[int] | None:
    """Return the arrays of outputs that are 0 where a step is masked; None if they have other outputs than the state.

    The operators give all first states, and nothing else of each step. The `latest` outputs are 0 there, too.
    """
    found: set[int] = set()
    for k in [*loop.scanned, *latest]:
        output = loop.body.results[k]
        output = output if k in latest else output.operation.inputs[2]
        if output is loop.body.results[h]:
            continue
        bound = None if keep is None else _chosen(output)
        if bound is None or bound["?keep"] is not keep or bound["?new"] is not following[h]:
            return None
        if not _is_zero(bound["?old"]):
            return None
        found.add(k)
    return found


def _is_zero(symbol: Symbol) -> bool:
    op = symbol.operation.op
    return symbol.operation.type == "zeros_of_shape" or (isinstance(op, Constant) and not np.any(op.value))


def _recognised(
    loop: LoopExport, states: list[int], following: Mapping[int, Symbol]
) -> tuple[str, Bindings, list[int]] | None:
    """Return the operator, the variables of its pattern, and which loop variables are h and c."""
    parameters = loop.body.parameters
    for h in states:
        start = {"?h": parameters[h]}
        if len(states) == 1:
            simple = match_any(following[h], _SIMPLE, start)
            gated = match_any(following[h], _GRU, start)
            if simple is not None:
                return "RNN", simple[1], [h]
            if gated is not None and _is_whole(gated[1]):
                return "GRU", gated[1], [h]
        elif len(states) == 2:
            c = states[0] if states[1] == h else states[1]
            for inner in _SUMS.values():
                output, cell = _lstm(inner)
                bound = match(following[h], output, {**start, "?c": parameters[c]})
                bound = None if bound is None else match(following[c], cell, bound)
                if bound is not None:
                    return "LSTM", bound, [h, c]
    return None


def _is_whole(bound: Bindings) -> bool:
    """Test whether the parts of a recurrent kernel, if there are such, are its gates z and r, and h."""
    if "first" not in bound:
        return True
    width = bound["?recurrent"].shape[1]
    whole = SliceItem()
    two, three = 2 * width // 3, width
    return bound["first"] == (whole, SliceItem(None, two)) and bound["second"] in (
        (whole, SliceItem(two)),
        (whole, SliceItem(two, three)),
    )


def _outer(loop: LoopExport, symbol: Symbol | None) -> str | None:
    """Return the value outside of the loop that a captured one is, or one of which rows are captured."""
    outer = symbol if symbol is None or symbol.graph is not loop.body else loop.body.outer_of(symbol)
    if outer is None:
        return None
    value = loop.w.values[outer]
    return value if isinstance(value, str) else None


def _read(loop: Any, x: Symbol, rank: int) -> _Steps | None:
    """Return the tensor (time, batch, ...) of which each iteration takes its own row, first or last to begin with."""
    read = x.operation
    captured = {parameter: outer for outer, parameter in loop.body.captures}
    if read.type != "array_read":
        return None
    counter = loop.body.parameters[loop.counter]
    backward = match(read.inputs[1], ("subtract", ("subtract", "?limit", 1), "?counter"), {"?counter": counter})
    if backward is not None and captured.get(backward["?limit"], backward["?limit"]) is not loop.limit:
        return None
    if backward is None and read.inputs[1] is not counter:
        return None
    array = captured.get(read.inputs[0])
    if array is None or array.operation.type != "array_unstack":
        return None
    rows = array.operation.inputs[0]
    value = loop.w.values[array]
    if rows.shape is None or len(rows.shape) != rank or not isinstance(value, Dense):
        return None
    return _Steps(value.name, backward is not None, rows)


def _is_part(limit: Symbol, rows: Symbol) -> bool:
    """Test whether a loop's bound is at most the number of rows, as the longest of given lengths."""
    step = outermost(limit).operation
    return step.type == "minimum" and any(_is_length(each, rows) for each in step.inputs)


def _is_length(limit: Symbol, rows: Symbol) -> bool:
    """Test whether a loop's bound is the number of rows: the size of the axis of time, wherever it was asked."""
    limit, rows = outermost(limit), outermost(rows)
    known = getattr(limit.operation.op, "value", None)
    if known is not None:
        return rows.shape is not None and rows.shape[0] == int(known)
    if limit.operation.type != "dim_of":
        return False
    axis, source = attribute(limit.operation, "axis", int), outermost(limit.operation.inputs[0])
    place = 0
    while rows is not source:
        step = rows.operation
        axes = axes_of(step) if step.type == "transpose" else None
        if axes is not None:
            place = axes[place]
        elif step.type not in ("flip", "identity"):
            return False
        rows = outermost(step.inputs[0])
    return place == axis


class _Operator:
    """Writes the node: weights in the operator's order of gates, and empty batches and lengths made safe."""

    def __init__(
        self,
        loop: Any,
        op_type: str,
        bound: Bindings,
        order: list[int],
        rows: _Steps,
        names: Mapping[str, object],
        arrays: Mapping[str, Array],
    ) -> None:
        self.loop, self.w, self.op_type = loop, loop.w, op_type
        self.bound, self.order = bound, order
        self.rows, self.backward = rows.name, rows.backward
        self.names, self.arrays = names, arrays
        self.units: int = arrays["?recurrent"].shape[0]
        self.live = self.lengths = ""  # which rows take a step, (time, batch), and how many steps each takes
        self.zeroed: set[int] = set()
        self.latest: list[int] = []
        # Where the gates of the operator are among ours: i, o, f, c of i, f, c, o; z, r, h as they are.
        self.gates = {"LSTM": [0, 3, 1, 2], "GRU": [0, 1, 2], "RNN": [0]}[op_type]

    def shorten(self) -> None:
        """Leave out the rows behind those that the loop reads."""
        w = self.w
        self.rows = w.slice(self.rows, 0, w.add("Max", w.vector(self.loop.limit_value()), w.ints(0)), 0)

    def mask(self, mask: str, zeroed: set[int], latest: list[int]) -> None:
        """Take lengths from a mask that is True up to the end of each row.

        Args:
            mask: bools (time, batch).
            zeroed: the outputs that are 0 behind the end, and not the last state.
            latest: the loop variables that are the output of the loop's last iteration.
        """
        w = self.w
        self.zeroed, self.latest = zeroed, latest
        self.live = w.slice(mask, 0, w.dim(self.rows, 0), 0)
        counts = w.add("ReduceSum", w.cast(self.live, INT), w.ints(0), keepdims=0)
        self.lengths = w.expand(counts, w.dim(self.rows, 1))

    def write(self) -> list[Held]:
        """Append the nodes and return the results of the loop."""
        w, loop = self.w, self.loop
        batch = loop.body.parameters[self.order[0]].spec.shape[0]
        steps = self._time()
        x, lengths, starts, count = self._padded(batch, steps)
        inputs = [x, self._kernel("?kernel"), self._kernel("?recurrent"), self._bias(), lengths, *starts]
        functions = [ACTIVATIONS[self.bound["?f"]], ACTIVATIONS.get(self.bound.get("?g", ""), "")]
        if self.op_type == "LSTM":
            functions.append(functions[1])
        last = 2 if self.op_type == "LSTM" else 1
        y, *finals = w.add_many(
            self.op_type,
            *inputs,
            dtypes=[None] * (1 + last),
            hidden_size=self.units,
            activations=[each for each in functions if each],
            direction="reverse" if self.backward else None,
            linear_before_reset=int("first" not in self.bound) if self.op_type == "GRU" else None,
        )
        sequence = w.squeeze(y, 1)
        finals = [w.squeeze(each, 0) for each in finals]
        if count is not None:
            sequence = w.slice(sequence, 0, count, 1)
            finals = [w.slice(each, 0, count, 0) for each in finals]
        if self.op_type == "GRU" and loop.scanned and steps is None:
            sequence = w.slice(sequence, 0, w.dim(self.rows, 0), 0)
        return self._results(sequence, self._last(finals, steps))

    def _last(self, finals: list[str], steps: int | None) -> list[str]:
        """Return the last states: after no steps these are the first ones, where onnxruntime has zeros."""
        w, inits = self.w, self.loop.inits
        if self.lengths:
            none = w.unsqueeze(w.compare("Equal", self.lengths, w.constant(np.array(0, INT))), 1)
        elif steps:
            return finals
        else:
            none = w.compare("Equal", w.dim(self.rows, 0), w.ints(0))
        return [w.where(none, inits[k], final) for k, final in zip(self.order, finals, strict=True)]

    def _time(self) -> int | None:
        """Return the number of steps, if it is known."""
        known = getattr(outermost(self.loop.limit).operation.op, "value", None)
        return None if known is None else int(known)

    def _padded(self, batch: int | None, steps: int | None) -> tuple[str, str, list[str], str | None]:
        """Return rows, lengths and first states with a sample more where there is none; for a GRU also a step.

        onnxruntime ends the process for no samples, and in a GRU for no steps.
        """
        w = self.w
        starts = [w.unsqueeze(self.loop.inits[k], 0) for k in self.order]
        time = self._missing(0) if self.op_type == "GRU" and not steps else None
        count = None if batch else w.dim(self.rows, 1)
        more = None if batch else self._missing(1)
        rows, lengths = self.rows, self.lengths
        if time is not None or more is not None:
            zero = w.ints(0)
            rows = w.add("Pad", rows, w.concat([w.ints(0, 0, 0), time or zero, more or zero, zero], 0))
        if more is not None:
            widths = w.concat([w.ints(0, 0, 0, 0), more, w.ints(0)], 0)
            starts = [w.add("Pad", start, widths) for start in starts]
            if lengths:
                lengths = w.add("Pad", lengths, w.concat([w.ints(0), more], 0))
        return rows, lengths, starts, count

    def _missing(self, axis: int) -> str:
        """Write 1 where an axis of the rows is empty, else 0."""
        w = self.w
        return w.add("Max", w.add("Sub", w.ints(1), w.dim(self.rows, axis)), w.ints(0))

    def _kernel(self, key: str) -> str:
        """Return a kernel (inputs, gates * units) as (1, gates * units, inputs)."""
        parts = np.split(self.arrays[key], len(self.gates), axis=1)
        turned = np.concatenate([parts[gate] for gate in self.gates], axis=1).T[None]
        return self.w.weight_of(self.names[key], np.ascontiguousarray(turned))

    def _bias(self) -> str:
        if "?bias" not in self.bound:
            return ""
        bias = self.arrays["?bias"]
        own = self._gated(bias[0] if bias.ndim == 2 else bias)
        other = self._gated(bias[1]) if bias.ndim == 2 else np.zeros_like(own)
        return self.w.weight_of(self.names["?bias"], np.concatenate([own, other])[None])

    def _gated(self, bias: Array) -> Array:
        parts = np.split(bias.reshape(-1), len(self.gates))
        return np.concatenate([parts[gate] for gate in self.gates])

    def _results(self, sequence: str, finals: list[str]) -> list[Held]:
        """Return results by loop variable."""
        w, loop = self.w, self.loop
        found: list[Held] = list(loop.inits)
        for k, final in zip(self.order, finals, strict=True):
            found[k] = final
        for k in loop.scanned:
            outputs = sequence
            if self.live and k not in self.zeroed:  # a row behind its end has the state that it ended in, or begins in
                ended = loop.inits[self.order[0]] if self.backward else finals[0]
                outputs = w.where(w.unsqueeze(self.live, 2), sequence, w.unsqueeze(ended, 0))
            if self.backward:  # the loop writes in its own order
                outputs = reversed_along(w, outputs, [0])
            found[k] = Dense(outputs)
        for k in self.latest:  # of no steps the first value
            ends = [w.unsqueeze(loop.inits[k], 0), w.slice(sequence, 0, 1, 0)]
            if not self.backward:
                ends[1] = w.slice(sequence, -1, _END, 0)
            found[k] = w.squeeze(w.slice(w.concat(ends, 0), -1, _END, 0), 0)
        found[loop.counter] = w.add("Max", loop.limit_value(), loop.inits[loop.counter])
        return found
