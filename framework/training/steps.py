"""Compiled steps: one engine `Program` for each kind of batch, found again by the shapes and dtypes of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...engine import ops
from ...engine.control_flow.while_loop import while_loop
from ...engine.graph import Graph, Placeholder, Symbol, Tensor, TensorSpec, flatten
from ...engine.graph.graph import get_default_graph
from ...engine.ops.base import apply
from ...engine.ops.containers.tensor_arrays import ArrayRead
from ...engine.ops.data_format import image_data_format
from ...engine.ops.immediate import asked_device
from ...engine.place.devices import devices_version
from ...engine.session.inside import fetched_from
from ...engine.session.programs import AS_IT_COMES, Schedule, make_program
from ...engine.session.targets import Remote
from ...engine.summaries.scopes import recording
from ...layers.core.layer_state import replacements
from ...layers.core.shape_programs import STATIC_PROGRAMS, ShapePrograms
from ...optim.optimizer import replaced_rates
from ..data.adapters import Batch, Layout
from .carried_steps import StepGraph, carried_loop

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..structures import Array

Program: TypeAlias = "Callable[..., tuple[Array, ...]]"  # of the arrays of a batch: what it fetches
Build = Callable[[Layout, list[Tensor]], list[Tensor]]


def surroundings() -> tuple[Hashable, ...]:
    """Return what steps depend on besides model and batch.

    These are the devices, the writer of summaries, the weights and schedules of rates that were replaced, and the
    default order of an image's axes.
    """
    return devices_version(), recording(), replacements(), replaced_rates(), image_data_format()


def _name_the_batch(error: MemoryError, batch: Batch) -> None:
    shapes = ", ".join(str(tuple(np.shape(leaf))) for leaf in batch.leaves)
    error.add_note(f"In a step on {batch.size} rows, arrays of shapes {shapes}. Give a smaller batch_size.")


class StepPrograms:
    """The programs of one kind of step (training, testing, predicting).

    Args:
        build: builds a step in the current graph from the layout and the tensors of a batch, and returns what to
            fetch. All effects that it builds (assignments) are part of the step, whether or not a fetch needs them.
        remote: gives what runs the steps elsewhere, if something does.
        is_eager: tests whether Python computes each step, on values, and nothing is compiled.
    """

    def __init__(
        self,
        build: Build,
        remote: Callable[[], Remote | None] = lambda: None,
        is_eager: Callable[[], bool] = lambda: False,
    ) -> None:
        self._build = build
        self._remote = remote
        self._is_eager = is_eager
        self._made_for = surroundings()
        self._programs: dict[Hashable, Program] = {}
        self._families: dict[Hashable, ShapePrograms] = {}
        self._loops: dict[Hashable, tuple[int, Program]] = {}
        self._latest: tuple[Layout, list[TensorSpec]] | None = None  # the kind of batch of the program made last

    def run(self, batch: Batch) -> tuple[Array, ...]:
        """Run the step on a batch; return what it fetches."""
        try:
            if self._is_eager():
                return self._run_at_once(batch)
            return self.prepare(batch)(*batch.leaves)
        except MemoryError as error:
            _name_the_batch(error, batch)
            raise

    def make_state(self, batch: Batch) -> None:
        """Make the variables that only a step makes; if Python computes the steps, by a step that changes them, too."""
        if self._is_eager():
            self._run_at_once(batch)
        else:
            self.prepare(batch)

    def _run_at_once(self, batch: Batch) -> tuple[Array, ...]:
        asked_device("A step of a model")
        found = self._build(batch.layout, [ops.convert_to_tensor(leaf) for leaf in batch.leaves])
        return tuple(np.asarray(value) for value in found)

    def run_together(self, batches: Sequence[Batch]) -> tuple[Array, ...]:
        """Run the step on one batch after the other, those of equal shapes in one loop; return what the last fetches.

        Args:
            batches: at least one.
        """
        found: tuple[Array, ...] = ()
        for key, run in groupby(batches, _key_of):
            alike = list(run)
            program = self._loop_of(key, alike)
            if program is None:
                found = [self.run(batch) for batch in alike][-1]
                continue
            try:
                found = program(*[np.stack(leaves) for leaves in zip(*[b.leaves for b in alike], strict=True)])
            except MemoryError as error:
                _name_the_batch(error, alike[0])
                raise
        return found

    def prepare(self, batch: Batch) -> Program:
        """Return the program that runs a batch. If there is none yet it is built, with the model's first state."""
        self._check_scopes()
        key = _key_of(batch)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._find(batch)
            self._latest = batch.layout, [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves]
            self._made_for = surroundings()  # layers that are built in the step may get adapters there
        return program

    def _check_scopes(self) -> None:
        """Forget the programs if what is around them has changed, see `surroundings`.

        Raises:
            PlacementError, GpuUnavailableError: a device is asked for around that is not there.
        """
        asked_device("A step of a model")
        if self._made_for != surroundings():
            self.clear()

    @property
    def latest(self) -> Program | None:
        """The program that was made last; None if there is none."""
        return next(reversed(self._programs.values()), None)

    def build_anew(self, batch: Batch) -> Program:
        """Return a further program for a batch, which is not kept: for looking at how it comes about."""
        specs = [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves]
        return compile_step(self._build, batch.layout, specs, self._remote())

    def describe_rows(self, batch: Batch | None = None) -> list[str]:
        """Say whether rows of batches can be computed together: of a step for a batch, or like the latest one's."""
        from ...engine.session.explanation import describe_rows

        if batch is not None:
            kind = (batch.layout, [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves])
        elif self._latest is not None:
            kind = self._latest
        else:
            return []
        layout, specs = kind
        if any(not spec.shape for spec in specs):
            return []
        try:
            graph, feeds, fetches = _traced(
                self._build, layout, [TensorSpec((None, *(spec.shape or ())[1:]), spec.dtype) for spec in specs]
            )
        except Exception as error:
            return [f"rows: the step can't be built for batches of any size: {type(error).__name__}: {error}"]
        return describe_rows(graph, fetches, feeds)

    def clear(self) -> None:
        """Forget all programs, because what they were built from has changed."""
        self._made_for = surroundings()
        self._programs.clear()
        self._families.clear()
        self._loops.clear()

    def count(self) -> int:
        """Return the number of programs that were compiled."""
        return len({id(program) for program in (*self._programs.values(), *[loop for _, loop in self._loops.values()])})

    def _loop_of(self, key: object, batches: Sequence[Batch]) -> Program | None:
        """Return the loop over so many batches of one kind; None where the steps had better be run one by one.

        A loop whose length is known runs quicker, so there is one for the length that comes first: other groups, as at
        the end of an epoch, are few.
        """
        if len(batches) == 1 or self._is_eager() or not all(type(leaf) is np.ndarray for leaf in batches[0].leaves):
            return None
        self._check_scopes()
        if key not in self._loops and len(self._loops) < STATIC_PROGRAMS:
            self._loops[key] = len(batches), compile_loop(self._build, batches[0], len(batches), self._remote())
        length, program = self._loops.get(key, (0, None))
        return program if length == len(batches) else None

    def _find(self, batch: Batch) -> Program:
        specs = [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves]
        kind = (batch.layout.key, *[(spec.rank, spec.dtype) for spec in specs])
        family = self._families.get(kind)
        if family is None:
            compiled = partial(partial, compile_step, self._build, batch.layout, remote=self._remote())  # traced later
            family = self._families[kind] = ShapePrograms(compiled, "a step of a model")
        return family.find(specs)


def compile_step(build: Build, layout: Layout, specs: Sequence[TensorSpec], remote: Remote | None = None) -> Program:
    """Trace a step for the given specs and compile it, with all its effects; `remote` runs it elsewhere."""
    graph, feeds, fetches = _traced(build, layout, specs)
    effects = [operation for operation in graph.operations if operation.writes]
    schedule = AS_IT_COMES if remote is None else Schedule(remote=remote)
    return make_program(graph, [*fetches, *effects], feeds, schedule=schedule)


def _traced(build: Build, layout: Layout, specs: Sequence[TensorSpec]) -> tuple[Graph, list[Symbol], list[Symbol]]:
    """Return the graph of a step for the given specs, what is fed and what is fetched."""
    names = _names(layout, len(specs))
    graph = Graph()
    graph.is_trace = True
    with graph.as_default():
        feeds = [graph.add(Placeholder(spec), (), name).outputs[0] for spec, name in zip(specs, names, strict=True)]
        fetches = [graph.capture(fetch) for fetch in build(layout, [*feeds])]
    graph.traced = "a step of a model"
    return graph, feeds, fetches


def compile_loop(build: Build, batch: Batch, count: int, remote: Remote | None = None) -> Program:
    """Trace and compile a loop that makes a step for each of several batches.

    Args:
        build: builds one step.
        batch: one such batch.
        count: how many there are.
        remote: what runs it elsewhere.

    Returns:
        A program of the batches' arrays, stacked along a new axis 0; it gives what the last step fetches.
    """
    one = StepGraph(partial(build, batch.layout), [TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves])

    def build_loop(layout: Layout, stacked: list[Tensor]) -> list[Tensor]:
        carries = one.can_be_carried(count)
        make = partial(carried_loop, one) if carries else partial(_assigning_loop, partial(build, layout))
        return [apply(ArrayRead(), history, ops.convert_to_tensor(count - 1)) for history in make(stacked)]

    specs = [TensorSpec((count, *leaf.shape), leaf.dtype) for leaf in batch.leaves]
    return compile_step(build_loop, batch.layout, specs, remote)


def _assigning_loop(build: Callable[[list[Tensor]], list[Tensor]], stacked: list[Tensor]) -> list[Symbol]:
    """Build a loop that makes a step for each batch, assigning to variables in each; see `carried_loop`."""
    fetches: list[Symbol] = []

    def body(number: Tensor) -> tuple[Tensor]:
        graph = get_default_graph()
        fetches[:] = [graph.capture(fetch) for fetch in build([each[number] for each in stacked])]  # of the last trace
        return (number + 1,)

    count = ops.shape(stacked[0])[0]
    while_loop(lambda number: number < count, body, (0,))
    return [fetched_from(get_default_graph(), tensor) for tensor in fetches]


def _key_of(batch: Batch) -> Hashable:
    leaves = batch.leaves
    return (batch.layout.key, *[leaf.shape for leaf in leaves], *[leaf.dtype for leaf in leaves])


def _names(layout: Layout, count: int) -> list[str]:
    names = ["x"] * count
    for part, name in ((layout.y, "y"), (layout.sample_weight, "sample_weight")):
        for position in flatten(part):
            names[position] = name
    return names
