"""Graphs and programs of simulated tasks, prepared once for all simulations: preparing is no part of the protocol.

A task that is started again, in the same simulation or another one, gets the graph and programs of the one before under
its name, with its own first values in their variables. The one before never runs again, so that nobody else uses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from anabranch.distribute.tasks import preparing
from anabranch.distribute.tasks import worker as worker_module
from anabranch.distribute.tasks.graphs import Graphs
from anabranch.distribute.transport.values import decode_value
from anabranch.engine.graph.state.variable import Variable
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.kernels import all_operations


@contextlib.contextmanager
def placed_once() -> Generator[None]:
    """Search for the placement of a step once, by costs that no seed changes: a search takes half of a simulation."""
    known: dict[tuple[str, ...], list[Any]] = {}
    place = preparing.place_by_cost

    def placed(operations: Any, feeds: Any, *, costs: Any) -> Any:
        every = list(all_operations(list(operations)))
        names = tuple([operation.name for operation in every])
        if names not in known:
            found = place(operations, feeds)
            known[names] = [found[operation] for operation in every]
        return dict(zip(every, known[names], strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "place_by_cost", placed)
        yield


@contextlib.contextmanager
def prepared_once() -> Generator[None]:
    """Prepare each graph and program once, as long as the context lasts. All clients have to send the same graph."""
    graphs: dict[str, tuple[Any, list[Any]]] = {}  # by task: the graph, and its resources
    programs: dict[Any, tuple[PartProgram, Any, list[Any]]] = {}  # with their graphs, and what was placed
    rebuild = Graphs.rebuild

    def rebuilt(self: Graphs, key: tuple[int, int], document: Any, arrays: Any) -> None:
        resources = self._resources
        known = graphs.get(resources.task)
        found: list[Any] = []
        make = resources.made

        def made(description: Any, array: Any) -> Any:
            place = (description["container"], description["path"])
            old = None if known is None else known[1][len(found)]
            if isinstance(old, Variable) and place not in resources._held:
                resources._given_up.setdefault(place, old)
            found.append(make(description, array))
            return found[-1]

        if known is None:
            resources.made = made  # type: ignore[method-assign]
            rebuild(self, key, document, arrays)
            del resources.made
            if not isinstance(self._graphs[key], Exception):
                graphs[resources.task] = (self._graphs[key], found)
            return
        described = document["arrays"]
        try:
            for description in document["graph"]["resources"]:
                made(description, lambda number: np.asarray(decode_value(described[number], arrays)))
        except Exception as error:
            self._graphs[key], self._lost[key] = error, frozenset()
            return
        held = {id(each) for each in resources._held.values()}
        assert all(one is known[1][k] for k, one in enumerate(found) if id(one) in held)
        pairs = zip(document["graph"]["resources"], found, strict=True)
        lost = [one for description, one in pairs if description["lost"] and isinstance(one, Variable)]
        self._graphs[key], self._lost[key] = known[0], frozenset(lost)

    def prepared(graph: Any, targets: Any, feeds: Any, specs: Any, *, assign: Any, clock: Any, **more: Any) -> Any:
        asked = (id(graph), *map(id, targets), *map(id, feeds), repr(specs), repr(more))
        known = programs.get(asked)
        if known is not None:
            program, _, placed = known
            assign(*placed)
            for each in (program, program._traced):
                if each is not None:
                    each.clock = clock  # type: ignore[attr-defined]
            return program
        placed = []

        def assigned(*given: Any) -> Any:
            placed.extend(given)
            return assign(*given)

        program = PartProgram(graph, targets, feeds, specs, assign=assigned, clock=clock, **more)
        programs[asked] = (program, graph, placed)
        return program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphs, "rebuild", rebuilt)
        patch.setattr(worker_module, "PartProgram", prepared)
        yield
