"""Constants that stand for values in a graph, and the warning of gradients that end at them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .context import graph_context
from .provenance import user_stacklevel

if TYPE_CHECKING:
    from .graph import Graph
    from .tensor import Symbol
    from .value import Value


class CapturedValues:
    """The constants of a graph by the values that they stand for. Values are compared by identity and not kept alive.

    Args:
        keeps: whether the constants are kept alive.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._found: dict[int, tuple[weakref.ref[Value], Callable[[], Symbol | None]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, value: Value) -> Symbol | None:
        known = self._found.get(id(value))
        return known[1]() if known is not None and known[0]() is value else None

    def __setitem__(self, value: Value, symbol: Symbol) -> None:
        self._found[id(value)] = weakref.ref(value), (lambda: symbol) if self._keeps else weakref.ref(symbol)

    def forget(self, value: Value) -> None:
        """Leave the value to be captured again."""
        self._found.pop(id(value), None)

    def forget_gone(self) -> None:
        """Let go of what is noted about values and constants that are gone."""
        self._found = {place: known for place, known in self._found.items() if None not in (known[0](), known[1]())}


def warn_of_lost_gradient(value: Value, graph: Graph) -> None:
    """Warn that a value of trainable variables becomes a constant of `graph`; note it only while a loop is tried."""
    if graph_context.lost_gradients is not None:
        graph_context.lost_gradients.append((value, graph))
        return
    warnings.warn(
        "A value that was computed from trainable variables is captured by a graph, in which it is a constant: no "
        "gradient goes back to these variables. Compute it inside of the graph (of the function, of call()), or "
        "make it a constant by ops.stop_gradient(value).",
        stacklevel=user_stacklevel(),
    )


@contextmanager
def losing_no_gradients() -> Generator[None]:
    """Warn of no value that is captured inside of the block, by a graph of which the types alone are used."""
    before, graph_context.lost_gradients = graph_context.lost_gradients, []
    try:
        yield
    finally:
        graph_context.lost_gradients = before
