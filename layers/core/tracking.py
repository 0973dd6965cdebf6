"""Find the layers and variables that an object's attributes hold, also inside lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

_Kind = TypeVar("_Kind")


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
        for item in value.values() if isinstance(value, dict) else value:
            yield from held(item, kinds, (*around, id(value)))


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
