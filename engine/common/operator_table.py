"""The functions behind operators and methods of tensors: they are above the graph, and are handed down to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar


class _OperatorTable(dict[str, Callable[..., Any]]):
    """A table that has its entries loaded at the first look-up: who uses a variable need not have used an op before."""

    load: Callable[[str], None]
    loaders: ClassVar[dict[str, Callable[[str], None]]] = {}  # of entries that are defined above the engine

    def __missing__(self, name: str) -> Callable[..., Any]:
        self.loaders.get(name, self.load)(name)
        return dict(self)[name]


# By the names of Python's special methods without underscores, or of methods of tensors and graphs.
operator_functions = _OperatorTable()


def define_operators(table: dict[str, Callable[..., Any]]) -> None:
    """Give tensors, variables and graphs functions for their operators and methods."""
    operator_functions.update(table)


def load_operators_by(load: Callable[[str], None], names: Iterable[str] | None = None) -> None:
    """Give the table the function that loads what defines an entry; it takes the name of the entry.

    Args:
        load: the function.
        names: the entries; by default all that no other function loads.
    """
    if names is None:
        operator_functions.load = load
    else:
        operator_functions.loaders.update(dict.fromkeys(names, load))
