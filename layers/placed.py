"""`placed_layers`: a block in which calls of layers are built on devices of their own."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..engine.graph.scopes import device


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


def place_of_call(layer: Any) -> AbstractContextManager[None]:
    """The scope of the device on which a call of a layer is to be built."""
    place = _active.places.get(id(layer)) if _active.places else None
    return nullcontext() if place is None else device(place)


__all__ = ["place_of_call", "placed_layers"]
