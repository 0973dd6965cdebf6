"""`Variants`: the programs of one step, compiled for the shapes that are fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.graph import Graph, Operation
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from .program import Program

_MOST_VARIANTS = 8


class Variants:
    """Compiles a step for each combination of fed shapes, and, when there are many, once for all shapes.

    Args:
        graph: the graph to run.
        targets: what is fetched, and operations to run.
        feeds: the tensors that are fed.
    """

    def __init__(self, graph: Graph, targets: Sequence[Tensor | Operation], feeds: Sequence[Tensor]) -> None:
        self.graph = graph
        self.targets = targets
        self.feeds = feeds
        self._programs: dict[Any, Program] = {}
        self._general: Program | None = None
        self._is_static = all(isinstance(t.spec, TensorSpec) and t.spec.is_static for t in feeds)

    def get(self, values: Sequence[Any]) -> Program:
        """The program for feeds of the shapes of `values`."""
        if self._is_static:
            return self._general or self.general()
        key = tuple([value.shape for value in values])
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _MOST_VARIANTS:
                return self._general or self.general()
            specs = [TensorSpec(value.shape, tensor.dtype) for tensor, value in zip(self.feeds, values, strict=True)]
            program = self._programs[key] = Program(self.graph, self.targets, self.feeds, specs)
        return program

    def general(self) -> Program:
        """The program for every shape that the graph allows."""
        if self._general is None:
            self._general = Program(self.graph, self.targets, self.feeds)
        return self._general
