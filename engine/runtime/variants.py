"""`Variants`: the programs of one step, compiled for the shapes that are fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..common.logs import INFO, changes_of, is_logged, log
from ..graph.graph import Graph, Operation
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..place.devices import declaration
from .program import Program

_MOST_VARIANTS = 8
Make = Callable[..., Any]  # of a graph, targets, feeds and specs: a `Program`, or what is like one


class Variants:
    """Compiles a step for each combination of fed shapes, and, when there are many, once for all shapes.

    Where other devices have been declared since, it is compiled again.

    Args:
        graph: the graph to run.
        targets: what is fetched, and operations to run.
        feeds: the tensors that are fed.
        make: makes the programs.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        make: Make = Program,
    ) -> None:
        self.graph = graph
        self.targets = targets
        self.feeds = feeds
        self._make = make
        self._version = declaration.version
        self._programs: dict[Any, Any] = {}
        self._general: Any = None
        self._is_static = all(isinstance(t.spec, TensorSpec) and t.spec.is_static for t in feeds)

    def get(self, values: Sequence[Any]) -> Any:
        """Return the program for feeds of the shapes of `values`."""
        if declaration.version != self._version:
            self._forget()
        if self._is_static:
            return self._general or self.general()
        key = tuple([value.shape for value in values])
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _MOST_VARIANTS:
                if self._general is None:
                    text = "a step was fed more than %d combinations of shapes: one program for all runs slower"
                    log("fallback", INFO, text, _MOST_VARIANTS)
                return self.general()
            self._log_miss(key)
            specs = [TensorSpec(value.shape, tensor.dtype) for tensor, value in zip(self.feeds, values, strict=True)]
            program = self._programs[key] = self._make(self.graph, self.targets, self.feeds, specs)
        return program

    def _log_miss(self, key: Sequence[Any]) -> None:
        if not self._programs or not is_logged("cache", INFO):
            return
        names, before = [feed.operation.name for feed in self.feeds], next(reversed(self._programs))
        changes = changes_of(dict(zip(names, before, strict=True)), dict(zip(names, key, strict=True)))
        text = "a step has no program for shapes that are fed now, beside %d others: %s"
        log("cache", INFO, text, len(self._programs), changes)

    def general(self) -> Any:
        """Return the program for every shape that the graph allows."""
        if declaration.version != self._version:
            self._forget()
        if self._general is None:
            self._general = self._make(self.graph, self.targets, self.feeds)
        return self._general

    def _forget(self) -> None:
        """Forget the programs, as other devices have been declared."""
        self._programs.clear()
        self._general = None
        self._version = declaration.version
