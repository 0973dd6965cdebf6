"""The graphs that are being built on each thread, and what else is noted of a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import DeviceScope
    from .graph import Graph


class _Context(threading.local):
    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.enters = False  # whether the first of them was entered for the sake of a symbol, and not chosen
        self.around: list[Graph] = []  # those that are being built around a block that runs at once
        self.scope_before: DeviceScope | None = None  # that of the default graph where such a block began
        self.effects = 0  # how often something was changed at once by this thread
        self.tapes: tuple[Any, ...] = ()  # those that record what is computed at once on this thread


graph_context = _Context()


def in_explicit_graph() -> bool:
    """Test whether a graph was chosen with `as_default` (or a function, loop or branch is being traced)."""
    return bool(graph_context.stack)


@contextmanager
def without_tapes() -> Generator[None]:
    """Inside the block no tape of this thread records."""
    before, graph_context.tapes = graph_context.tapes, ()
    try:
        yield
    finally:
        graph_context.tapes = before
