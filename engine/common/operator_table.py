"""The functions behind operators and methods of tensors: they are above the graph, and are handed down to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _OperatorTable(dict[str, Callable[..., Any]]):
    """A table that has its entries loaded at the first look-up: who uses a variable need not have used an op before."""

    load: Callable[[str], None]

    def __missing__(self, name: str) -> Callable[..., Any]:
        self.load(name)
        return dict(self)[name]


# By the names of Python's special methods without underscores, or of methods of tensors and graphs.
operator_functions = _OperatorTable()


def define_operators(table: dict[str, Callable[..., Any]]) -> None:
    """Give tensors, variables and graphs functions for their operators and methods."""
    operator_functions.update(table)


def load_operators_by(load: Callable[[str], None]) -> None:
    """Give the table the function that loads what defines an entry; it takes the name of the entry."""
    operator_functions.load = load
