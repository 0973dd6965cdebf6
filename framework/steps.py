"""Compiled steps: one engine `Program` for each kind of batch, found again by the shapes and dtypes of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine.graph import Graph, Placeholder, Tensor, TensorSpec, flatten
from ..engine.place.devices import devices_version
from ..engine.session.programs import make_program
from .data import Batch, Layout

Program = Callable[..., tuple[Any, ...]]  # of the arrays of a batch: what it fetches
Build = Callable[[Layout, list[Tensor]], list[Tensor]]

# So many shapes of a layout get programs of their own, which run quicker because every size is known: usually the
# batch and the smaller last one. The next shape gets a program for any size along the axes that have varied.
_STATIC_PROGRAMS = 3


class StepPrograms:
    """The programs of one kind of step (training, testing, predicting).

    Args:
        build: builds a step in the current graph from the layout and the tensors of a batch, and returns what to
            fetch. All effects that it builds (assignments) are part of the step, whether or not a fetch needs them.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._devices = devices_version()
        self._programs: dict[Any, Program] = {}
        self._families: dict[Any, _Family] = {}

    def run(self, batch: Batch) -> tuple[Any, ...]:
        """Run the step on a batch; returns what it fetches."""
        return self.prepare(batch)(*batch.leaves)

    def prepare(self, batch: Batch) -> Program:
        """The program that runs a batch. If there is none yet it is built, and with it what a model makes at first."""
        if self._devices != devices_version():
            self.clear()  # other devices have been declared
        leaves = batch.leaves
        key = (batch.layout.key, *[leaf.shape for leaf in leaves], *[leaf.dtype for leaf in leaves])
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._find(batch)
        return program

    def clear(self) -> None:
        """Forget all programs, because what they were built from has changed."""
        self._devices = devices_version()
        self._programs.clear()
        self._families.clear()

    def count(self) -> int:
        """How many programs were compiled."""
        return len({id(program) for program in self._programs.values()})

    def _find(self, batch: Batch) -> Program:
        specs = [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves]
        family_key = (batch.layout.key, *[(spec.rank, spec.dtype) for spec in specs])
        family = self._families.setdefault(family_key, _Family())
        if family.relaxed is not None and _accepts(family.relaxed_specs, specs):
            return family.relaxed
        if len(family.seen) < _STATIC_PROGRAMS:
            program = compile_step(self._build, batch.layout, specs)
            family.seen.append(specs)
            return program
        return self._relax(family, batch.layout, specs)

    def _relax(self, family: _Family, layout: Layout, specs: list[TensorSpec]) -> Program:
        """A program for every size along the axes in which batches have differed."""
        joined = specs
        for other in family.seen:
            joined = [_join(spec, like) for spec, like in zip(joined, other, strict=True)]
        try:
            program = compile_step(self._build, layout, joined)
        except (TypeError, ValueError):
            return compile_step(self._build, layout, specs)  # the model needs to know its sizes
        family.seen.append(specs)
        family.relaxed, family.relaxed_specs = program, joined
        return program


class _Family:
    """Batches of one layout, with arrays of the same ranks and dtypes."""

    def __init__(self) -> None:
        self.seen: list[list[TensorSpec]] = []
        self.relaxed: Program | None = None
        self.relaxed_specs: list[TensorSpec] = []


def _accepts(patterns: Sequence[TensorSpec], specs: Sequence[TensorSpec]) -> bool:
    return all(pattern.accepts(spec) for pattern, spec in zip(patterns, specs, strict=True))


def _join(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    joined = spec.join(other)
    assert isinstance(joined, TensorSpec)
    return joined


def compile_step(build: Build, layout: Layout, specs: Sequence[TensorSpec]) -> Program:
    """Trace a step for the given specs and compile it, with all its effects."""
    names = _names(layout, len(specs))
    graph = Graph()
    with graph.as_default():
        feeds = [graph.add(Placeholder(spec), (), name).outputs[0] for spec, name in zip(specs, names, strict=True)]
        fetches = build(layout, feeds)
    effects = [operation for operation in graph.operations if operation.writes]
    return make_program(graph, [*fetches, *effects], feeds)


def _names(layout: Layout, count: int) -> list[str]:
    names = ["x"] * count
    for part, name in ((layout.y, "y"), (layout.sample_weight, "sample_weight")):
        for position in flatten(part):
            names[position] = name
    return names
