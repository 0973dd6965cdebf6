"""`Tape`: a record of what was computed at once, and its derivatives.

A tape notes the ops of its thread while it is entered, those only whose inputs depend on something watched. The sweep
back calls the `grad` of each op on values; as rules are written over public ops, tapes around record it in turn, which
gives derivatives of any order.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from ..common.dtypes import is_differentiable
from ..graph.context import graph_context
from ..graph.op import Op
from ..graph.slices import IndexedSlices
from ..graph.spec import TensorSpec, shapes_compatible
from ..graph.state.variable import Variable
from ..graph.tensor import Tensor
from ..graph.value import Value
from ..ops.base import convert_to_tensor
from ..ops.containers.cotangent import accumulate, resolved
from ..ops.math.complex_numbers import conjugated
from ..ops.run_time_shapes import broadcast_like, zeros_of


class Recorded:
    """An op that ran at once, as its `grad` sees it.

    Attributes:
        op, inputs, outputs, name: as those of an `Operation`.
        needed: for each input, whether its cotangent is used. Each sweep has nodes of its own, as threads may sweep at
            the same time, and what a rule calls may sweep in the middle.
        location: None; the traceback of an error leads to the user's line.
    """

    __slots__ = ("inputs", "needed", "op", "outputs")
    location: None = None
    device = ""

    def __init__(
        self, op: Op, inputs: Sequence[Tensor], outputs: Sequence[Tensor], needed: Sequence[bool] = ()
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.outputs = outputs
        self.needed = needed

    @property
    def name(self) -> str:
        return self.op.type_name

    @property
    def type(self) -> str:
        return self.op.type_name

    def needs(self, position: int) -> bool:
        """Test whether the cotangent of an input is used: what `Op.grad` computes for nobody would be run in vain."""
        return self.needed[position]

    def __repr__(self) -> str:
        return f"<{self.op.type_name} that ran at once>"


class _Asked(threading.local):
    def __init__(self) -> None:
        self.tapes: tuple[Tape, ...] = ()


_asked = _Asked()


class Tape:
    """A record of the ops on values that depend on what is watched.

    Args:
        watches_reads: whether trainable variables are watched when they are read.
    """

    def __init__(self, watches_reads: bool = True) -> None:
        self._watches_reads = watches_reads
        self._records: list[Recorded] = []
        self._live: dict[int, Any] = {}  # what depends on something watched, by identity; kept, so that no other has it
        self._watched: dict[Variable, None] = {}
        self._reads: dict[Variable, list[Value]] = {}

    # --- recording ------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Record what this thread computes from now on."""
        graph_context.tapes = (*graph_context.tapes, self)

    def leave(self) -> None:
        """Record no more."""
        graph_context.tapes = tuple([tape for tape in graph_context.tapes if tape is not self])

    @contextmanager
    def watching(self, sources: Iterable[Any]) -> Generator[None]:
        """Record, inside the block, what is computed from `sources`."""
        for source in sources:
            self.watch(source)
        with self.recording():
            yield

    @contextmanager
    def recording(self) -> Generator[None]:
        """Record inside of the block, also where this tape has been left."""
        if self in graph_context.tapes:
            yield
            return
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Record nothing inside of the block."""
        before = graph_context.tapes
        self.leave()
        try:
            yield
        finally:
            graph_context.tapes = before

    @contextmanager
    def asked(self) -> Generator[None]:
        """Read `gradients` of values from this tape inside of the block, before the tapes that record."""
        before = _asked.tapes
        _asked.tapes = (*before, self)
        try:
            yield
        finally:
            _asked.tapes = before

    def watch(self, source: Any) -> None:
        """Record what is computed from a value, or from a variable, from now on."""
        if isinstance(source, Variable):
            self._watched[source] = None
        elif isinstance(source, Value):
            self._live[id(source)] = source

    def record(self, op: Op, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Note an op that was run, if it depends on something watched."""
        live = self._live
        for tensor in inputs:
            if id(tensor) in live:
                break
        else:
            return
        if op.type_name == "stop_gradient":
            return
        is_part = False
        for output in outputs:
            if is_differentiable(output.dtype):
                live[id(output)] = output
                is_part = True
        if is_part:
            self._records.append(Recorded(op, inputs, outputs))

    def record_read(self, variable: Variable, value: Value) -> None:
        """Note that a variable was read."""
        if (self._watches_reads and variable.trainable) or variable in self._watched:
            self._live[id(value)] = value
            self._reads.setdefault(variable, []).append(value)

    def reset(self) -> None:
        """Forget everything."""
        self.release()
        self._watched.clear()

    def release(self) -> None:
        """Let go of the values that were recorded; which variables were watched stays known."""
        self._watched = dict.fromkeys(self.variables())
        self._records.clear()
        self._live.clear()
        self._reads.clear()

    def variables(self) -> list[Variable]:
        """Return the variables that are watched: those asked for, then those that were read."""
        return list(dict.fromkeys([*self._watched, *self._reads]))

    def read_for(self, results: Iterable[Tensor]) -> list[Variable]:
        """Return the variables that were read on the way to `results`, in the order of their reads."""
        needed = {id(result) for result in results}
        for node in reversed(self._records):
            if any(id(output) in needed for output in node.outputs):
                needed.update([id(tensor) for tensor in node.inputs])
        return [v for v, values in self._reads.items() if any(id(value) in needed for value in values)]

    def has(self, tensor: Tensor) -> bool:
        """Test whether a value depends on something watched."""
        return id(tensor) in self._live

    # --- derivatives ----------------------------------------------------------------------------------------

    def gradient(
        self, targets: Iterable[Tensor], sources: Sequence[Any], seeds: Sequence[Any], stops: Iterable[Any] = ()
    ) -> list[Any]:
        """Return the derivatives of the sum of `targets` by each of `sources`; None if no record is between them.

        Args:
            targets: values of differentiable dtypes.
            sources: values and variables.
            seeds: cotangents of the targets; None stands for ones.
            stops: values and variables that count as constants.

        Returns:
            Values; for variables of which only rows were used, `IndexedSlices`.
        """
        records = self._records[:]  # what the sweep itself computes comes behind
        blocked = {id(value) for stop in stops for value in self._values_of(stop)}
        values = [self._values_of(source) for source in sources]
        wanted = {id(value) for each in values for value in each if is_differentiable(value.dtype)}
        through, way = _dependent(records, wanted, blocked)
        cotangents: dict[int, Any] = {}
        for target, seed in zip(targets, seeds, strict=True):
            given = _seed(target, seed)
            cotangents[id(target)] = accumulate(cotangents.get(id(target)), given)
        for node in reversed(way):
            _sweep(node, cotangents)
        found: list[Any] = []
        for source, each in zip(sources, values, strict=True):
            total: Any = None
            for value in each:
                part = cotangents.get(id(value)) if id(value) in through else None
                total = part if total is None else total if part is None else accumulate(total, part)
            found.append(_finished(total, isinstance(source, Variable)))
        return found

    def _values_of(self, source: Any) -> Sequence[Any]:
        """Return the values that stand for a value or variable: it itself, or what was read."""
        values = self._reads.get(source, ()) if isinstance(source, Variable) else (source,)
        return [value for value in values if id(value) in self._live]


def _dependent(records: Iterable[Recorded], sources: set[int], blocked: set[int]) -> tuple[set[int], list[Recorded]]:
    """Return what depends on the sources, otherwise than through what is blocked.

    Returns:
        The identities of the sources and of what was computed from them, and the ops that did it, which need the
        cotangents of the inputs that depend on the sources.
    """
    through = sources - blocked
    way: list[Recorded] = []
    for node in records:
        needed = [id(tensor) in through for tensor in node.inputs]
        if True in needed:
            way.append(Recorded(node.op, node.inputs, node.outputs, needed))
            for output in node.outputs:
                if id(output) not in blocked and is_differentiable(output.dtype):
                    through.add(id(output))
    return through, way


def _sweep(node: Recorded, cotangents: dict[int, Any]) -> None:
    """Add what the cotangents of an op's outputs contribute to those of its inputs."""
    given = [cotangents.get(id(output)) for output in node.outputs]
    if not [cotangent for cotangent in given if cotangent is not None]:
        return
    given = [None if cotangent is None else resolved(cotangent, node.op.takes_slices) for cotangent in given]
    node_for: Any = node
    for tensor, cotangent, is_needed in zip(node.inputs, node.op.grad(node_for, *given), node.needed, strict=True):
        if cotangent is not None and is_needed:
            cotangents[id(tensor)] = accumulate(cotangents.get(id(tensor)), cotangent)


def _seed(target: Tensor, seed: Any) -> Tensor:
    if not target.spec.differentiable:
        raise TypeError(
            f"gradient: {target!r} is of dtype {target.dtype}, which has no derivative. Cast it to float32."
        )
    if seed is None:
        return broadcast_like(convert_to_tensor(1.0, target.dtype), target)
    given = convert_to_tensor(getattr(seed, "flow", seed), target.dtype)
    if isinstance(target.spec, TensorSpec) and not shapes_compatible(given.shape, target.shape):
        raise ValueError(f"gradient: a cotangent of shape {given.shape} was given for {target!r}.")
    return conjugated(given)


def _finished(total: Any, sparse: bool) -> Any:
    total = resolved(total, sparse)
    if isinstance(total, IndexedSlices):
        return total.map_values(conjugated)
    return conjugated(total) if isinstance(total, Tensor) else total


def recording(targets: Sequence[Tensor]) -> Tape | None:
    """Return the innermost tape of this thread that has recorded how one of `targets` was computed."""
    if _asked.tapes:
        return _asked.tapes[-1]
    for tape in reversed(graph_context.tapes):
        if isinstance(tape, Tape) and any(tape.has(target) for target in targets):
            return tape
    return None


def gradients_of_values(
    targets: Sequence[Tensor], sources: Sequence[Any], seeds: Sequence[Any], stops: Sequence[Any], zero: bool
) -> list[Any]:
    """Return `gradients` where all of `targets` are values: from the tape that has recorded them.

    Raises:
        ValueError: none has.
    """
    tape = recording(targets)
    if tape is None:
        raise ValueError(
            "gradients: the ys are values, and no tape has recorded how they were computed from something watched. "
            "Compute them inside of `with ab.GradientTape() as tape:` (tape.watch(x) for what is no variable) and ask "
            "there or tape.gradient(y, x); or inside of a function under @ab.function; or inside of "
            "`with ab.Graph().as_default():`, to be run by a Session."
        )
    found = tape.gradient(targets, sources, seeds, stops)
    return [
        zeros_of(convert_to_tensor(source)) if gradient is None and zero else gradient
        for source, gradient in zip(sources, found, strict=True)
    ]


__all__ = ["Recorded", "Tape", "gradients_of_values", "recording"]
