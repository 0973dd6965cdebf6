"""Variables in a child process: what another thread of the parent was doing with one, nothing does there."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from .writing_rows import give_back

if TYPE_CHECKING:
    from .variable import Variable

_variables: weakref.WeakSet[Variable] = weakref.WeakSet()


def free_in_children(variable: Variable) -> None:
    """Have a variable be free in processes that are forked from now on, except for what the forking thread holds.

    There, a first value that was being computed is computed again, and rows that were being written are as far written
    as they were.
    """
    _variables.add(variable)


def _free() -> None:
    for variable in list(_variables):
        held = vars(variable).get("_held")
        if held is not None and not held.is_mine:
            give_back(variable, held)
        lock: Any = variable.lock  # with methods that Python's modules use for this, and types leave out
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
