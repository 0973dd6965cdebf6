"""Facts of printed code: the operation that a line computes, and the names of the record of a loop or branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..graph.graph import Operation
from ..graph.tensor import Symbol


class Origin(NamedTuple):
    """The operation that a line of the program computes.

    Attributes:
        operation: the operation.
        arguments: the names of its inputs.
        loops: the loops around it, innermost first, each with the expression that counts its iterations.
    """

    operation: Operation
    arguments: Sequence[str]
    loops: tuple[tuple[Operation, str], ...]


class Frame:
    """The names of the record of a loop or branch in the printed code.

    Attributes:
        histories: the list in which a loop gathers the values of a tensor.
        saved: the name of a branch's value.
        trips: the name of the number of iterations.
    """

    def __init__(self) -> None:
        self.histories: dict[Symbol, str] = {}
        self.saved: dict[Symbol, str] = {}
        self.trips: str | None = None
        self._takers: dict[Symbol, int] = {}

    def add_history(self, inner: Symbol, name: str) -> None:
        """Add one more operation that takes the history of `inner`; all take it by the last name."""
        self.histories[inner] = name
        self._takers[inner] = self._takers.get(inner, 0) + 1

    def is_last_taker(self, inner: Symbol) -> bool:
        """Count a use of the history of `inner`, and return whether it was the last one."""
        self._takers[inner] -= 1
        return not self._takers[inner]
