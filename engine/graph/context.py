"""The graphs that are being built on each thread, and what else is noted of a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..common.forks import fork_safe_lock
from .device import DeviceScope

if TYPE_CHECKING:
    from .graph import Graph, Operation
    from .value import Value


class Scopes:
    """Hold what the scopes around ask for operations that are added to a graph.

    Attributes:
        name: the prefix of their names.
        device: where they are to run.
        controls: what they wait for, of each block.
    """

    def __init__(self) -> None:
        self.name = ""
        self.device = DeviceScope()
        self.controls: list[tuple[Operation, ...]] = []


class ScopesOfThread(Scopes, threading.local):
    """Hold the scopes of each thread, of a graph in which several build at the same time."""


class _Context(threading.local):
    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.enters = False  # whether the first of them was entered for the sake of a symbol, and not chosen
        self.around: list[Graph] = []  # those that are being built around a block that runs at once
        self.scope_before: DeviceScope | None = None  # that of the default graph where such a block began
        self.device = ""  # what is asked for outside of graphs, where each op runs at once
        self.effects = 0  # how often something was changed at once by this thread
        # What `warn_of_lost_gradient` does not warn of yet: captured values while a loop is tried on values, else None.
        self.lost_gradients: list[tuple[Value, Graph]] | None = None
        self.tapes: tuple[Any, ...] = ()  # those that record what is computed at once on this thread


graph_context = _Context()


class _DevicesAtOnce:
    """Count the blocks of `device` outside of graphs that threads are in; what each asks for takes longer to read."""

    def __init__(self) -> None:
        self.open = 0
        self.lock = fork_safe_lock()


devices_at_once = _DevicesAtOnce()


def in_explicit_graph() -> bool:
    """Test whether a graph was chosen with `as_default` (or a function, loop or branch is being traced)."""
    return bool(graph_context.stack)


def refuse_in_trace(name: str) -> None:
    """Refuse to read a variable as numbers while a function or a model's step is traced.

    Raises:
        TypeError: one is.
    """
    if graph_context.stack and graph_context.stack[-1].root.is_trace:
        raise TypeError(
            f"Variable {name!r} is read as an array or a number while a function is traced, which would make its value "
            "of now a constant in all later calls. Use ab.ops in place of Python's and NumPy's functions, or "
            "variable.numpy() if that is meant."
        )


@contextmanager
def without_tapes() -> Generator[None]:
    """Keep the tapes of this thread from recording inside of the block."""
    before, graph_context.tapes = graph_context.tapes, ()
    try:
        yield
    finally:
        graph_context.tapes = before
