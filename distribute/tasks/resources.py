"""The state of a task: variables, generators, queues and their like under (container, name).

It outlives those who asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from ...engine.common.dtypes import as_dtype, name_of
from ...engine.graph.device import DeviceName
from ...engine.graph.graph import Graph, Operation
from ...engine.graph.spec import TensorSpec
from ...engine.graph.state.resource import NamedResource
from ...engine.graph.state.variable import Variable
from ...engine.ops.random.keys import SeedGenerator
from ...engine.place.constraints import PlacementError
from ...engine.queues.errors import StateLostError
from ...engine.saving import made_resource

Key = tuple[str, str]


class Resources:
    """The resources that one task holds.

    Args:
        task: its name.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self._held: dict[Key, Any] = {}
        self._reset: set[Key] = set()  # lost by a reset, and asked for since by a client that is unaware of it
        self._initial: dict[Variable, str] = {}  # those that nobody has assigned yet, and their names
        self._given_up: WeakValueDictionary[Key, Any] = WeakValueDictionary()  # which programs may refer to

    def __len__(self) -> int:
        return len(self._held)

    def made(self, description: Any, array: Callable[[int], Any]) -> Any:
        """Find or make what a graph's document describes; what is in another task is made without its value.

        Its name is its path in tasks: clients may name it differently, but all tasks have to lower their
        steps to the same program, in which that name stands.

        Raises:
            ValueError: something else is under that path.
        """
        description = {**description, "name": description["path"]}
        if str(DeviceName.parse(description["device"]).of_task()) != self.task:
            return _elsewhere(description)
        key = (description["container"], description["path"])
        held = self._held.get(key)
        if description.get("lost") and isinstance(held, NamedResource) and not held.lost:
            # Another client has begun a new one. For one that has lost the old one it is another queue.
            return _lost(description, self._why_lost(description))
        # A lost variable stays lost until it is assigned. A queue is begun again: by a client that asks for a new one.
        if held is None or (_is_lost(held) and (key in self._reset or not isinstance(held, Variable))):
            why = self._why_lost(description)
            if held is not None and why:
                return held
            self._keep_for_programs(key, held)
            held = _lost(description, why) if why else made_resource(description, array)
            held = self._held[key] = self._in_place_of_old(key, held, description)
            if why and not description.get("lost"):
                self._reset.add(key)
            else:
                self._reset.discard(key)
            if not why and isinstance(held, Variable):
                held.stored_value()  # what is to be drawn is drawn now, while no step waits
                self._initial[held] = description["path"]
            return held
        _check_same(held, description, self.task)
        return held

    def _why_lost(self, description: Any) -> str:
        """Say why what is described has no value here; nothing if it has its first one."""
        if description.get("lost"):
            return f"{self.task}, which held it, has been restarted"
        has_value = description["kind"] != "variable" or "value" in description or "first" in description
        if description.get("made") or not has_value:
            return self._why_reset(description["container"])
        return ""

    def _why_reset(self, container: str) -> str:
        return f"its container {container!r} on {self.task} has been reset"

    def check_assigned(self, variable: Variable) -> None:
        """Check that a variable has been assigned since it was made, for a client that lost an earlier value of it.

        Raises:
            StateLostError: it has the initial value of another client, or what steps have made of that.
        """
        name = self._initial.get(variable)
        if name is not None:
            why = f"{self.task}, which held it, has been restarted, and another client has begun with its initial value"
            raise StateLostError(_text(name, why))

    def note_assigned(self, variables: Iterable[Variable]) -> None:
        """Note that variables have been assigned: they have the same value for all clients."""
        for variable in variables:
            self._initial.pop(variable, None)

    def _keep_for_programs(self, key: Key, held: Any) -> None:
        """Remember what was given up, as long as something refers to it."""
        if isinstance(held, Variable):
            self._given_up[key] = held

    def _in_place_of_old(self, key: Key, made: Any, description: Any) -> Any:
        """Return a new variable, or the one given up under its name, with the new value: older programs refer to it.

        Both would be written and read at once otherwise, by different clients.
        """
        old = self._given_up.pop(key, None)
        if not isinstance(old, Variable) or not isinstance(made, Variable) or old.spec != made.spec:
            return made
        old.write_value(made.stored_value())
        return old

    def hold(self, container: str, path: str, resource: Any) -> None:
        """Hold an object of this process, so that steps and the process share its state."""
        self._held[container, path] = resource

    def task_lost(self, task: str, incarnation: int) -> None:
        """Notify what is held here that a task is gone."""
        for held in list(self._held.values()):
            if isinstance(held, NamedResource):
                held.task_lost(task, incarnation)

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of resources on themselves, with their containers and names."""
        found: list[dict[str, Any]] = []
        for (container, name), held in list(self._held.items()):
            report = held.report() if isinstance(held, NamedResource) else None
            if report is not None:
                found.append({"container": container, "name": name, **report})
        return found

    def clear(self, containers: Collection[str] | None = None) -> int:
        """Give up what some containers hold, or all; return how many things that were.

        Programs that refer to it find it lost. Who asks for it by name from now on makes it again.
        """
        keys = [key for key in self._held if containers is None or key[0] in containers]
        for container, path in keys:
            held = self._held.pop((container, path))
            text = _text(path, self._why_reset(container), isinstance(held, Variable))
            self._keep_for_programs((container, path), held)
            if isinstance(held, Variable):
                self._initial.pop(held, None)
                held.write_value(_Lost(text))
            elif isinstance(held, NamedResource):
                held.give_up(text)
        return len(keys)


def _elsewhere(description: Any) -> Any:
    """Make what stands for state of another task: its spec counts, and nothing reads it here."""
    if description["kind"] != "variable":
        return made_resource(description, lambda number: None)
    shape = description["shape"] or ()
    value = np.broadcast_to(np.zeros((), as_dtype(description["dtype"])), [dimension or 0 for dimension in shape])
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
                f"{description['definition']}. If both are one job, start the same script with one cluster; otherwise "
                "give yours another name, or a container of its own (ab.container)."
            )
        return
    if kind == "generator":
        return
    shape = None if description["shape"] is None else tuple(description["shape"])
    if held.shape != shape or name_of(held.dtype) != description["dtype"]:
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
    """Stands for the value of a variable whose task was started again: whatever is done with it is an error."""

    shape = ()  # of what has open dimensions, where bytes are counted

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        raise StateLostError(self._message)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StateLostError(self._message)


def _lost(description: Any, why: str) -> Any:
    made = _elsewhere(description)
    if isinstance(made, Variable):
        made.write_value(_Lost(_text(description["path"], why)))
    elif isinstance(made, NamedResource):
        made.lost = _text(description["path"], why, is_variable=False)
    return made


def _is_lost(held: Any) -> bool:
    """Test whether a variable or another resource has no value, since it was lost."""
    if isinstance(held, Variable):
        return isinstance(vars(held).get("_value"), _Lost)
    return isinstance(held, NamedResource) and bool(held.lost)


def _text(name: str, why: str, is_variable: bool = True) -> str:
    if is_variable:
        return f"Variable {name!r} has no value: {why}. Assign it a value, or restore one."
    return (
        f"What {name!r} held is gone: {why}. Open a new session: it begins with an empty one, or finds that of others."
    )


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
            known = [effect.resource for effect in operation.effects if id(effect.resource) in places]
            if known and not operation.op.regions:
                operation.device = _together(operation, {repr(each): places[id(each)] for each in known})


def _together(operation: Operation, devices: dict[str, str]) -> str:
    """Return the device of an operation that touches several states, by what these are called.

    Raises:
        PlacementError: they are in several tasks.
    """
    tasks = {name: str(DeviceName.parse(device).of_task()) for name, device in devices.items()}
    if len(set(tasks.values())) > 1:
        placed = " and ".join([f"{name}, which is on {task}" for name, task in tasks.items()])
        raise PlacementError(
            f"Operation {operation.name!r}, defined at {operation.location}, uses {placed}. Make all of them inside "
            "one ab.device."
        )
    return next(iter(devices.values()))
