"""`Program`: a compiled step - printed source, its function, and errors that name the user's lines."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ..graph.graph import Graph, Operation
from ..graph.op import is_array
from ..graph.spec import Spec
from ..graph.tensor import Tensor
from ..ops.array_value import ArrayValue
from ..ops.fused import Fused
from ..passes.fuse import FusionRule, all_operations
from ..passes.prepare import prepare
from .errors import annotate
from .printer import Printer
from .storage import is_fresh, plan_buffers

_numbers = itertools.count(1)


class Statistics:
    """What the runs of a program have done.

    Attributes:
        runs: how many there were.
        saved_bytes: bytes of loop and branch state kept for a backward pass, in the latest run.
        total_saved_bytes: the same, summed over all runs.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.saved_bytes = 0
        self.total_saved_bytes = 0

    def start(self) -> None:
        self.runs += 1
        self.saved_bytes = 0

    def note_saved(self, *values: Any) -> None:
        """Count state that was saved: histories (lists) and single values."""
        size = sum(_bytes_of(value) for value in values)
        self.saved_bytes += size
        self.total_saved_bytes += size


def _bytes_of(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, list):
        return sum([_bytes_of(item) for item in value])  # pyright: ignore[reportUnknownVariableType]
    return int(value.nbytes)


class Program:
    """One pruned step as a Python function.

    Args:
        graph: the graph to run.
        targets: tensors whose values are returned, and operations that run for their effects.
        feeds: the tensors whose values are passed in.
        specs: the specs of those values, if more is known than the graph says.
        exact: only rewrites that keep the interpreter's bits: no fused kernels, no sums in another order.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Tensor | Operation],
        feeds: Sequence[Tensor],
        specs: Sequence[Spec] | None = None,
        exact: bool = False,
    ) -> None:
        rule = None if exact else _fusion_rule(graph)
        step = prepare(graph, targets, feeds, specs, rule, reassociate=not exact)
        operations, fetches = step.operations, step.fetches
        printer = _printer(operations, fetches)
        self.statistics = Statistics()
        copied = {tensor for tensor in fetches if not is_fresh(tensor)}
        printer.bindings["copied"] = copied_value
        printer.bindings["stats"] = self.statistics
        self.source = printer.print_step(operations, step.feeds, fetches, copied)
        self.filename = f"<anabranch step {next(_numbers)}>"
        self._origins = printer.origins
        namespace = dict(printer.bindings)
        exec(compile(self.source, self.filename, "exec"), namespace)
        self._step = namespace["step"]
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(True), self.filename)
        weakref.finalize(self, linecache.cache.pop, self.filename, None).atexit = False

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step on checked feeds; returns the fetches in order."""
        self.statistics.start()
        with np.errstate(all="ignore"):
            try:
                return self._step(*values)
            except Exception as error:
                self._annotate(error)
                raise

    def _annotate(self, error: Exception) -> None:
        """Find the operation whose line raised, and note it on the error."""
        innermost: TracebackType | None = None
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                innermost = traceback
            traceback = traceback.tb_next
        if innermost is None or innermost.tb_lineno not in self._origins:
            return
        operation, arguments = self._origins[innermost.tb_lineno]
        scope = {**innermost.tb_frame.f_globals, **innermost.tb_frame.f_locals}
        annotate(error, operation, [scope[name] for name in arguments if name in scope])


def _has_arrays(graph: Graph) -> bool:
    """Whether anything in `graph` could be worth a kernel: programs of scalars do not even load the compiler."""
    return any(tensor.shape != () for operation in graph.operations for tensor in operation.outputs)


def _fusion_rule(graph: Graph) -> FusionRule | None:
    if not _has_arrays(graph):
        return None
    from .kernels.rule import fusion_rule  # llvmlite loads here, on first use

    return fusion_rule()


def _printer(operations: Sequence[Operation], fetches: Sequence[Tensor]) -> Printer:
    """A printer that has kernels for the fused operations."""
    fused = [operation for operation in all_operations(operations) if isinstance(operation.op, Fused)]
    if not fused:
        return Printer()
    from .kernels.rule import bind_kernels

    plan = plan_buffers(operations, fetches)
    return Printer(bind_kernels(fused), plan)


def copied_value(value: Any) -> Any:
    """A value that shares no memory with the program's state."""
    return value.copy() if is_array(value) else value


def as_fetched(value: Any) -> Any:
    """A fetched value as the caller gets it: TensorArrays as lists of their elements."""
    if isinstance(value, ArrayValue):
        return [as_fetched(value.read_or_none(index)) for index in range(value.size)]
    return value
