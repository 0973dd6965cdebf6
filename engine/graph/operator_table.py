"""The functions behind Python's operators: ops are above the graph, and hand them down."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


# What Python's operators mean for tensors. Ops are above the graph, so they hand their functions down, once, through
# `define_operators`; the names are those of the special methods without underscores.
class _OperatorTable(dict[str, Callable[..., Any]]):
    """Loads what fills it at the first look-up: who uses a variable need not have used an op before."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        importlib.import_module("..objects.initializers" if name == "initializer" else "..ops", __package__)
        return dict(self)[name]


operator_functions: dict[str, Callable[..., Any]] = _OperatorTable()


def define_operators(table: dict[str, Callable[..., Any]]) -> None:
    """Give tensors (and variables) their arithmetic, comparison, logical and indexing operators."""
    operator_functions.update(table)
