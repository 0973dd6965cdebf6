"""Programs for arrays of many shapes: for a few shapes one each, then one for any size along the axes that vary."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ...engine.common.dtypes import DType
from ...engine.common.logs import INFO, changes_of, is_logged, log
from ...engine.graph import Graph, Operation, Placeholder, Symbol, TensorSpec, Value, flatten, pack_as
from ...engine.ops import convert_to_tensor
from ...engine.ops.base import TensorLike, as_array
from ...engine.ops.data_format import image_data_format
from ...engine.ops.immediate import asked_device
from ...engine.place.devices import devices_version
from ...engine.session.function import as_values
from ...engine.session.programs import make_program
from ...engine.session.staged import Recording, TraceGraph, is_recording

Program = Callable[..., Any]  # a function of arrays, in the structure of what was traced
Specs = list[TensorSpec]
Array = np.ndarray
_Key = tuple[tuple[tuple[int, ...], DType], ...]  # shapes and dtypes of arrays
Compile = Callable[[], Program]
Trace = Callable[[Specs], Compile]  # traces for given specs, and returns what compiles the trace

# So many shapes get programs of their own, which run quicker because every size is known: usually the batch and the
# smaller last one. The next shape gets a program for any size along the axes that have varied.
STATIC_PROGRAMS = 3


class ShapePrograms:
    """The programs of one computation, for arrays whose ranks and dtypes stay the same.

    Args:
        trace: traces the computation for the specs of its arrays; what it returns compiles the trace.
        name: what is computed, for the log.
    """

    def __init__(self, trace: Trace, name: str = "the call of a layer") -> None:
        self._trace, self._name = trace, name
        self._seen: list[Specs] = []
        self._relaxed: Program | None = None
        self._relaxed_specs: Specs = []

    def find(self, specs: Specs) -> Program:
        """Return the program for arrays of these specs, made if there is none that serves them.

        Raises:
            ValueError, TypeError: what is computed does not take arrays of these shapes.
        """
        if self._relaxed is not None and _accepts(self._relaxed_specs, specs):
            return self._relaxed
        exact = self._trace(specs)  # its errors are those of these very shapes
        if len(self._seen) < STATIC_PROGRAMS:
            self._log_miss(specs)
            program = exact()
            self._seen.append(specs)
            return program
        return self._relax(specs, exact)

    def _log_miss(self, specs: Specs) -> None:
        if self._seen and is_logged("trace", INFO):
            before, now = ({f"array {n}": spec for n, spec in enumerate(each)} for each in (self._seen[-1], specs))
            changes = changes_of(before, now)
            log("trace", INFO, "%s is traced again (trace %d): %s", self._name, len(self._seen) + 1, changes)

    def _relax(self, specs: Specs, exact: Compile) -> Program:
        joined = specs
        for other in self._seen:
            joined = [_join(spec, like) for spec, like in zip(joined, other, strict=True)]
        try:
            program = self._trace(joined)()
            text = "%s was traced for %d shapes: it is traced for any size of the axes that vary: %s"
            log("fallback", INFO, text, self._name, len(self._seen), ", ".join(map(str, joined)))
        except (TypeError, ValueError):
            return exact()  # it needs its sizes
        self._seen.append(specs)
        self._relaxed, self._relaxed_specs = program, joined
        return program


def _accepts(patterns: Sequence[TensorSpec], specs: Sequence[TensorSpec]) -> bool:
    return all(pattern.accepts(spec) for pattern, spec in zip(patterns, specs, strict=True))


def _join(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    joined = spec.join(other)
    assert isinstance(joined, TensorSpec)
    return joined


class ArrayFunction:
    """A function of tensors, called on values and arrays: compiled for their shapes (see `ShapePrograms`).

    Args:
        function: builds the computation in the current graph, and returns a structure of tensors. Its effects always
            happen, whether or not its result depends on them.

    Attributes:
        notes: what `function` has noted here, besides its result, when it was traced last.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.notes: list[Any] = []
        self._function = function
        self._made_for = devices_version(), image_data_format()
        self._families: dict[Hashable, ShapePrograms] = {}
        self._found: dict[_Key, Program] = {}
        self._recorded: dict[_Key, tuple[object, Recording]] = {}

    def __call__(self, *given: TensorLike) -> Any:
        """Return the function's result, of values; None where tapes record and its gradient can't be computed later.

        Raises:
            PlacementError, GpuUnavailableError: a device is asked for around that is not there.
        """
        asked_device("The call of a layer")
        made_for = devices_version(), image_data_format()
        if self._made_for != made_for:  # other devices have been declared, or the default order of axes is another
            self._made_for = made_for
            self._families.clear()
            self._found.clear()
            self._recorded.clear()
        values = [as_array(item) for item in given]  # strings in the engine's dtype for them
        key = tuple([(array.shape, array.dtype) for array in values])
        if is_recording():
            return self._recorded_call(key, given, values)
        program = self._found.get(key)
        if program is None:
            specs = [TensorSpec(shape, dtype) for shape, dtype in key]
            kind = tuple([(len(shape), dtype) for shape, dtype in key])
            family = self._families.setdefault(kind, ShapePrograms(self._trace))
            program = self._found[key] = family.find(specs)
        return program(*values)

    def _recorded_call(self, key: _Key, given: Sequence[TensorLike], arrays: Sequence[Array]) -> object:
        known = self._recorded.get(key)
        if known is None:
            graph, feeds, result, fetches, effects = self._traced([TensorSpec(shape, dtype) for shape, dtype in key])
            recording = Recording(graph, feeds, [fetch for fetch in fetches if fetch is not None], effects)
            known = self._recorded[key] = (result, recording)
        result, recording = known
        if not recording.is_possible:
            return None
        values = [item if type(item) is Value else Value(array) for item, array in zip(given, arrays, strict=True)]
        return pack_as(result, recording.on_values(values))

    def count(self) -> int:
        """Return the number of programs that were compiled."""
        return len({id(program) for program in self._found.values()})

    def _traced(self, specs: Specs) -> tuple[TraceGraph, list[Symbol], object, list[Symbol | None], list[Operation]]:
        """Return the graph for arrays of these specs: it, its feeds, the result, what is fetched for it, effects."""
        graph = TraceGraph()
        with graph.as_default():
            feeds = [graph.add(Placeholder(s), (), f"argument_{i}").outputs[0] for i, s in enumerate(specs)]
            result = self._function(*feeds)
            fetches = [None if isinstance(leaf, Operation) else _as_fetch(graph, leaf) for leaf in flatten(result)]
        graph.traced = "the call of a layer"
        return graph, feeds, result, fetches, [operation for operation in graph.operations if operation.writes]

    def _trace(self, specs: Specs) -> Compile:
        graph, feeds, result, fetches, effects = self._traced(specs)
        targets = [*[fetch for fetch in fetches if fetch is not None], *effects]

        def compiled() -> Program:
            program = make_program(graph, targets, feeds)

            def run(*arrays: Array) -> object:
                values = iter(program(*arrays))
                found = [None if fetch is None else as_values(next(values)) for fetch in fetches]
                return pack_as(result, found)

            return run

        return compiled


def _as_fetch(graph: Graph, leaf: TensorLike) -> Symbol:
    return graph.capture(convert_to_tensor(getattr(leaf, "flow", leaf)))
