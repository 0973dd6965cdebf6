"""Find the layers and variables that an object's attributes hold, also inside lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

_Kind = TypeVar("_Kind")
_Dated = TypeVar("_Dated", bound="Dated")


class TrackedMetric:
    """The base of what `Layer.metrics` looks for. Metrics are above layers, so layers import this base alone."""


def optional_metric(layer: str, argument: str, metric: object) -> Any:
    """Return the metric (or None) that an argument of a layer is.

    Raises:
        TypeError: it is something else.
    """
    if metric is None or isinstance(metric, TrackedMetric):
        return metric
    raise TypeError(
        f'{layer}: {argument} must be a metric, such as ab.metrics.Mean("name"), or None for none; got {metric!r} '
        f"({type(metric).__name__})."
    )


_PLAIN = frozenset({str, int, float, bool, type(None), FunctionType, np.ndarray, np.dtype})
_CONTAINERS = (dict, list, tuple, set, frozenset)


def held(value: object, kinds: tuple[type[_Kind], ...] | type[_Kind], around: tuple[int, ...] = ()) -> Iterator[_Kind]:
    """Yield the instances of `kinds` that `value` is or holds, in order. `around` are the containers that hold it."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, _CONTAINERS) and id(value) not in around:
        for item in _items(value):
            yield from held(item, kinds, (*around, id(value)))


def _items(container: object) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else cast("Iterable[object]", container)


def held_by_attributes(
    owner: object, kinds: tuple[type[_Kind], ...] | type[_Kind], without: frozenset[str]
) -> list[_Kind]:
    """Return the instances of `kinds` in the attributes of `owner`, each once, in the order they were first set."""
    found: dict[int, _Kind] = {}
    for name, value in vars(owner).items():
        if type(value) in _PLAIN or name in without:  # most are: this is asked for in every step of a loop by hand
            continue
        if isinstance(value, kinds):
            found.setdefault(id(value), value)
        elif isinstance(value, _CONTAINERS) and value:
            for item in held(value, kinds):
                found.setdefault(id(item), item)
    return list(found.values())


_numbers = count(1)


class Dated:
    """Numbers what is made, and what its attributes first hold, in one order for the whole process.

    Lists stay Python's own: nothing notes an `append`. What was appended is about as old as it is itself.
    """

    _made_at = 0
    _first_held: Mapping[str, int] = {}  # by attribute: when it first held such an object, or a container

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        instance = super().__new__(cls)
        instance._made_at = next(_numbers)
        return instance

    if not TYPE_CHECKING:  # checkers would take any attribute

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)
            if type(value) not in _PLAIN and isinstance(value, _DATED_OR_CONTAINERS) and name not in self._first_held:
                vars(self).setdefault("_first_held", {})[name] = next(_numbers)

    def _held_by_age(self, kind: type[_Dated], without: frozenset[str]) -> list[_Dated]:
        """Return the instances of `kind` in the attributes, each once, in the order in which they came.

        One that is appended to a list later has the place of when it was made, behind those before it in that list: two
        lists to which layers are appended in turn have the order of the appends, as in Keras.
        """
        ages: dict[int, tuple[int, _Dated]] = {}
        attributes = vars(self)
        for name, first in self._first_held.items():
            if name in without:
                continue
            for age, item in _aged(attributes.get(name), kind, first):
                if id(item) not in ages or age < ages[id(item)][0]:
                    ages[id(item)] = age, item
        return [item for _, item in sorted(ages.values(), key=itemgetter(0))]

    def __setstate__(self, state: Mapping[str, object]) -> None:
        """Take what another process has numbered; what is made from now on gets larger numbers."""
        global _numbers
        vars(self).update(state)
        largest = max([self._made_at, *self._first_held.values()])
        if next(_numbers) <= largest:
            _numbers = count(largest + 1)


_DATED_OR_CONTAINERS = (Dated, *_CONTAINERS)


def _aged(value: object, kind: type[_Dated], age: int, around: tuple[int, ...] = ()) -> Iterator[tuple[int, _Dated]]:
    """Yield what `held` does, each with its age: no less than that of what is before it in its container."""
    if isinstance(value, kind):
        yield max(age, value._made_at), value
    elif isinstance(value, _CONTAINERS) and id(value) not in around:
        latest = age
        for item in _items(value):
            if isinstance(item, kind):
                latest = max(latest, item._made_at)
                yield latest, item
            else:
                yield from _aged(item, kind, age, (*around, id(value)))


def note_held(noted: list[tuple[int, _Kind]], made: Sequence[_Kind], held: Sequence[_Kind]) -> None:
    """Note the variables that attributes hold before the owner makes the next: behind how many of `made` they come."""
    known = {id(variable) for variable in made} | {id(variable) for _, variable in noted}
    noted.extend((len(made), variable) for variable in held if id(variable) not in known)


def in_order_of_creation(
    noted: Sequence[tuple[int, _Kind]], made: Sequence[_Kind], held: Sequence[_Kind]
) -> dict[int, _Kind]:
    """Return variables by their ids, in the order in which their owner got them, as Keras counts them in files.

    Args:
        noted: those that attributes held before others were made: see `note_held`.
        made: those that the owner made, such as by `add_weight`.
        held: those that attributes hold now.
    """
    found = {id(variable): variable for variable in made}
    if noted:
        still = {id(variable) for variable in held}
        places = [(place, 0, variable) for place, variable in noted if id(variable) in still]
        places += [(place, 1, variable) for place, variable in enumerate(made)]
        found = {id(variable): variable for _, _, variable in sorted(places, key=itemgetter(0, 1))}
    for variable in held:
        found.setdefault(id(variable), variable)
    return found
