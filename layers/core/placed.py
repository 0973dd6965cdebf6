"""`placed_layers` and `placed_variables`: blocks in which layers, or variables, have devices of their own."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ...engine.graph import Variable
from ...engine.graph.scopes import device


class _Active(threading.local):
    def __init__(self) -> None:
        self.places: Mapping[int, str] = {}


_active = _Active()


@contextmanager
def placed_layers(places: Mapping[int, str]) -> Generator[None]:
    """Build what layers compute on the devices given; the innermost layer that has one counts.

    Args:
        places: names of devices by the `id` of a layer, which lives as long as the block.
    """
    before, _active.places = _active.places, places
    try:
        yield
    finally:
        _active.places = before


def place_of_call(layer: object) -> AbstractContextManager[None]:
    """Return the scope of the device on which a call of a layer is to be built."""
    place = _active.places.get(id(layer)) if _active.places else None
    return nullcontext() if place is None else device(place)


@contextmanager
def placed_variables(places: Iterable[tuple[Variable, str]]) -> Generator[None]:
    """Build what reads or changes variables on the devices given; those that have asked for one keep theirs."""
    placed = [(variable, place) for variable, place in places if not variable.device]
    for variable, place in placed:
        variable.device = place
    try:
        yield
    finally:  # the model may run elsewhere
        for variable, _ in placed:
            variable.device = ""


__all__ = ["place_of_call", "placed_layers", "placed_variables"]
