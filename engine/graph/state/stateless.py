"""`StatelessScope`: a block in which variables are values that come and go, and none of them changes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...common.operator_table import operator_functions
from ..device import is_variable
from ..graph import get_default_graph
from ..spec import shape_text, shapes_compatible
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..graph import Graph
    from .variable import Variable


class _Active(threading.local):
    def __init__(self) -> None:
        self.scopes: list[StatelessScope] = []


_active = _Active()


class StatelessScope:
    """Inside the block variables read as given values, and what is assigned to them is kept here, not in them.

    Args:
        state_mapping: pairs of a variable and the value (a tensor, an array, a number) that it reads as.

    What is computed inside is a function of these values: its gradients go to them, and it can be run for many of
    them. A variable that no pair names reads as it is, until something is assigned to it. `get_current_value` gives
    what a variable reads as, inside the block and after it.

    Raises:
        ValueError: a key is not a variable; a value does not fit its variable; something is assigned inside a loop or a
            branch of the block, which its value can't leave.

    >>> import anabranch as ab
    >>> count = ab.Variable(1.0, name="count")
    >>> with ab.Graph().as_default(), ab.StatelessScope([(count, 10.0)]) as scope:
    ...     _ = count.assign_add(5.0)
    ...     value = ab.Session().run(scope.get_current_value(count))
    >>> float(value), float(count)
    (15.0, 1.0)
    """

    def __init__(self, state_mapping: Iterable[tuple[Variable, Any]] | None = None) -> None:
        self._values: dict[Variable, Any] = {}
        self._graph: Graph | None = None
        for variable, value in state_mapping or ():
            self.add_update((variable, value))

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take a value for a variable: a pair of both."""
        variable, value = update
        if not is_variable(update[0]):
            raise ValueError(
                "StatelessScope: expected pairs of a variable and its value; got one whose first part is "
                f"{variable!r}. Pass state_mapping=[(variable, value), ...]."
            )
        tensor = operator_functions["convert"](value, variable.spec.dtype)
        if not shapes_compatible(tensor.shape, variable.spec.shape):
            raise ValueError(
                f"StatelessScope: variable {variable.name!r} has shape {shape_text(variable.spec.shape)}, and can't "
                f"have a value of shape {shape_text(tensor.shape)}."
            )
        if self._graph is not None and not self._graph.sees(tensor):
            raise ValueError(
                f"Variable {variable.name!r} was assigned to inside a loop or a branch of a stateless block, which "
                "the value can't leave. Make it a result of the loop or branch, and assign that behind it."
            )
        self._values[variable] = tensor

    def assign(self, variable: Variable, value: Any) -> None:
        """Take what is assigned to a variable inside the block."""
        self.add_update((variable, value))

    def get_current_value(self, variable: Variable) -> Any:
        """Return the tensor that a variable reads as; None where it has neither been given nor assigned a value."""
        return self._values.get(variable)

    @property
    def variables(self) -> list[Variable]:
        """The variables that were given or assigned a value."""
        return list(self._values)

    def __enter__(self) -> StatelessScope:
        self._graph = get_default_graph()
        _active.scopes.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _active.scopes.remove(self)


def in_stateless_scope() -> bool:
    """Test whether a block of a `StatelessScope` is running."""
    return bool(_active.scopes)


def substitute(variable: Variable) -> Tensor | None:
    """Return what a variable reads as in the blocks around; None for its own value."""
    for scope in reversed(_active.scopes):
        value = scope.get_current_value(variable)
        if value is not None:
            return value
    return None


def keep(variable: Variable, value: Any) -> Tensor | None:
    """Keep what is assigned to a variable in the innermost block around; None where there is no block."""
    if not _active.scopes:
        return None
    _active.scopes[-1].assign(variable, value)
    return substitute(variable)
