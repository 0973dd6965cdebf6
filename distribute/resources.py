"""The state of a task: variables, generators, queues and their like under (container, name).

It outlives those who asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ..engine.graph.device import DeviceName
from ..engine.graph.graph import Graph
from ..engine.graph.resource import NamedResource
from ..engine.graph.spec import TensorSpec
from ..engine.graph.variable import Variable
from ..engine.ops.keys import SeedGenerator
from ..engine.queues.errors import StateLostError
from ..engine.saving import made_resource

Key = tuple[str, str]


class Resources:
    """What one task holds.

    Args:
        task: its name.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self._held: dict[Key, Any] = {}

    def __len__(self) -> int:
        return len(self._held)

    def made(self, description: Any, array: Callable[[int], Any]) -> Any:
        """Find or make what a graph's document describes; what lies in another task is made without its value.

        Its name is the path by which tasks know it: clients may name it differently, but all tasks have to lower their
        steps to the same program, in which that name stands.

        Raises:
            ValueError: something else lies under that path.
        """
        description = {**description, "name": description["path"]}
        if str(DeviceName.parse(description["device"]).of_task()) != self.task:
            return _elsewhere(description)
        key = (description["container"], description["path"])
        held = self._held.get(key)
        if held is None:
            lost = description.get("lost")
            held = self._held[key] = _lost(description, self.task) if lost else made_resource(description, array)
            if not lost and isinstance(held, Variable):
                held.read_value()  # what is to be drawn is drawn now, while no step waits
            return held
        _check_same(held, description, self.task)
        return held

    def hold(self, container: str, path: str, resource: Any) -> None:
        """Hold an object of this process, so that steps and the process share its state."""
        self._held[container, path] = resource

    def task_lost(self, task: str, incarnation: int) -> None:
        """Have what lies here take note that a task is gone."""
        for held in list(self._held.values()):
            if isinstance(held, NamedResource):
                held.task_lost(task, incarnation)

    def reports(self) -> list[dict[str, Any]]:
        """What resources have to say of themselves, with their containers and names."""
        found: list[dict[str, Any]] = []
        for (container, name), held in list(self._held.items()):
            report = held.report() if isinstance(held, NamedResource) else None
            if report is not None:
                found.append({"container": container, "name": name, **report})
        return found

    def clear(self, container: str) -> int:
        """Forget what a container holds; gives how many that were."""
        keys = [key for key in self._held if key[0] == container]
        for key in keys:
            del self._held[key]
        return len(keys)


def _elsewhere(description: Any) -> Any:
    """What stands for state of another task: its spec counts, and nothing reads it here."""
    if description["kind"] != "variable":
        return made_resource(description, lambda number: None)
    shape = description["shape"] or ()
    value = np.broadcast_to(np.zeros((), description["dtype"]), [dimension or 0 for dimension in shape])
    made = Variable(np.zeros([0] * len(shape), value.dtype), [None] * len(shape), value.dtype, name=description["name"])
    return _as_described(made, description)


def _as_described(variable: Variable, description: Any) -> Variable:
    shape = description["shape"]
    variable.spec = TensorSpec(None if shape is None else tuple(shape), variable.spec.dtype)
    variable.trainable = description["trainable"]
    variable.device = description["device"]
    return variable


def _check_same(held: Any, description: Any, task: str) -> None:
    name, kind = description["path"], description["kind"]
    if kind != _kind_of(held):
        raise ValueError(
            f"{name!r} on {task} is a {kind} for this client and a {_kind_of(held)} for another. Rename one."
        )
    if isinstance(held, NamedResource):
        if held.definition() != description["definition"]:
            raise ValueError(
                f"The {kind} {name!r} on {task} was made by another client as {held.definition()}; this one expects "
                f"{description['definition']}. Give yours another name, or a container of its own (ab.container)."
            )
        return
    if kind == "generator":
        return
    shape = None if description["shape"] is None else tuple(description["shape"])
    if held.shape != shape or held.dtype.name != description["dtype"]:
        raise ValueError(
            f"Variable {name!r} on {task} is {held.spec}, made by another client; this one expects "
            f"{description['dtype']}{list(shape or ())}. Give yours another name, or a container of its own "
            "(ab.container)."
        )


def _kind_of(held: Any) -> str:
    if isinstance(held, NamedResource):
        return held.kind
    return "generator" if isinstance(held, SeedGenerator) else "variable"


# --- lost state -----------------------------------------------------------------------------------------------------


class _Lost:
    """Stands for the value of a variable whose task was started anew: whatever is done with it is an error."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        raise StateLostError(self._message)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StateLostError(self._message)


def _lost(description: Any, task: str) -> Any:
    made = _elsewhere(description)
    name = description["path"]
    if isinstance(made, Variable):
        made.write_value(
            _Lost(
                f"Variable {name!r} has no value: {task}, which held it, has been started anew. Assign it a value, or "
                "restore one."
            )
        )
    elif isinstance(made, NamedResource):
        made.lost = f"What {name!r} held is gone: {task}, where it lay, has been started anew. Begin with a new one."
    return made


# --- graphs ---------------------------------------------------------------------------------------------------------


def place_state(graph: Graph, resources: list[Any], devices: list[str]) -> None:
    """Ask for the device of state wherever an operation touches it, the insides of loops and branches included."""
    places = {id(resource): device for resource, device in zip(resources, devices, strict=True)}
    waiting: list[Graph] = [graph]
    seen: set[Graph] = set()
    while waiting:
        block = waiting.pop()
        if block in seen:  # a recursive body
            continue
        seen.add(block)
        for operation in block.operations:
            waiting.extend(operation.op.regions)
            touched = [places[id(effect.resource)] for effect in operation.effects if id(effect.resource) in places]
            if touched and not operation.op.regions:
                operation.device = touched[0]
