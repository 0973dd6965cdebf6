"""The graphs of clients in a task: rebuilt over the state that it holds, and how their steps use that state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...engine.graph.graph import Graph, Operation
from ...engine.graph.state.variable import Variable
from ...engine.saving import rebuild
from ..transport.values import decode_value
from .resources import Resources, place_state

Key = tuple[int, int]  # the incarnation of the master, and its number of the graph


class Graphs:
    """The graphs that masters have sent to a task; for the thread that compiles.

    Args:
        resources: the state of the task.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._graphs: dict[Key, Any] = {}  # or why there is none
        self._lost: dict[Key, frozenset[Variable]] = {}  # those whose values in an earlier start the client has used

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._graphs)

    def rebuild(self, key: Key, document: Any, arrays: Sequence[Any]) -> None:
        """Take a graph that a master has sent."""
        described = document["arrays"]
        found: list[Any] = []
        lost: list[Variable] = []

        def made(description: Any, array: Callable[[int], Any]) -> Any:
            resource = self._resources.made(description, array)
            found.append(resource)
            if description.get("lost") and isinstance(resource, Variable):
                lost.append(resource)
            return resource

        def array(number: int) -> Any:
            return np.asarray(decode_value(described[number], arrays))

        try:
            graph: Any = rebuild(document["graph"], array, "The graph of a client", made)
            place_state(graph, found, [each["device"] for each in document["graph"]["resources"]])
        except Exception as error:
            graph = error
        self._graphs[key], self._lost[key] = graph, frozenset(lost)

    def graph(self, key: Key) -> Graph:
        """Return a graph.

        Raises:
            Exception: why there is none.
        """
        graph = self._graphs[key]
        if isinstance(graph, Exception):
            raise graph
        return graph

    def use(self, key: Key, operations: Iterable[Operation]) -> StateUse:
        """Return how a step uses the state of the task.

        Args:
            key: of its graph.
            operations: those that it needs, in program order.
        """
        return StateUse(self._resources, operations, self._lost[key])

    def forget(self, key: Key) -> None:
        """Give a graph up."""
        self._graphs.pop(key, None)
        self._lost.pop(key, None)

    def forget_all_of(self, master: int) -> None:
        """Give up all graphs of a master."""
        for key in [key for key in self._graphs if key[0] == master]:
            self.forget(key)


class StateUse:
    """The variables of a task that a step reads before it writes them, or sets whatever they were.

    A step that reads a variable and then writes it, as `assign_add` and optimizers do, goes on from its value. So it is
    no assignment after a loss.

    Args:
        resources: the state of the task.
        operations: those of the step, in program order.
        lost: the variables whose earlier values the client has used, and which were lost.
    """

    def __init__(self, resources: Resources, operations: Iterable[Operation], lost: frozenset[Variable]) -> None:
        self._resources = resources
        self._set: dict[Variable, None] = {}
        self._read: dict[Variable, None] = {}
        self._seen: set[object] = set()
        self._note(operations, is_certain=True)
        self._lost = [variable for variable in self._read if variable in lost]

    def _note(self, operations: Iterable[Operation], is_certain: bool) -> None:
        """Note what operations do with variables first; those that may not run set nothing."""
        for operation in operations:
            for region in operation.op.regions:
                if region not in self._seen:  # a recursive body
                    self._seen.add(region)
                    self._note(region.operations, is_certain=False)
            if operation.op.regions:
                continue
            for effect in operation.effects:
                resource = effect.resource
                if not isinstance(resource, Variable) or resource in self._set or resource in self._read:
                    continue
                if not effect.writes:
                    self._read[resource] = None
                elif is_certain:
                    self._set[resource] = None

    def check(self) -> None:
        """Check that the step reads no variable that its client has lost, and that has its initial value since.

        Raises:
            StateLostError: it does.
        """
        for variable in self._lost:
            self._resources.check_assigned(variable)

    def note_assigned(self) -> None:
        """Note, when the step has run, that the variables which it sets have been assigned."""
        if self._set:
            self._resources.note_assigned(self._set)


__all__ = ["Graphs", "StateUse"]
