"""`NamedResource`: state other than variables that operations hold by reference and that a task keeps under a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from ..device import State, place_state
from ..graph import current_device_scope, get_default_graph
from ..op import Op
from .container import current_container
from .home import Home


class NamedResource(State):
    """State that operations refer to, such as a queue or an accumulator.

    A graph's document describes it by its kind and its definition, without what it holds. Whoever reads the document
    makes an empty one, or finds the one that has the same name.

    Attributes:
        kind: the name of the class in documents; subclasses without one are bases.
        name: the name that messages use.
        path: its name in tasks; "" where that is `name`.
        container: the name of the container in which tasks keep it; "" for none.
        lost: why what it held is gone; "" while it is there.
        home: the place of what it holds, if a task of a cluster holds that.
    """

    kind: ClassVar[str] = ""
    on_host = True
    name: str
    path: str = ""
    container: str = ""
    lost: str = ""
    home: Home | None = None

    def place_here(self) -> None:
        """Take the device and the container that the scopes around ask for."""
        holder = current_container()
        self.container = "" if holder is None else holder.name
        place_state(self, current_device_scope())

    def settle(self, home: Home) -> None:
        """Let a task hold what it holds from now on."""
        self.home = home

    def adding(self, op: Op) -> Callable[..., Any]:
        """Return what builds an operation in the current graph: gives its outputs, or itself if there are none."""

        def build(*tensors: Any) -> Any:
            operation = get_default_graph().add(op, tensors, self.name)
            return operation.outputs or operation

        return build

    def definition(self) -> dict[str, Any]:
        """Describe it as values of JSON, from which `from_definition` makes another one."""
        raise NotImplementedError(f"{type(self).__name__} must define definition().")

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        """Make a new one, which holds nothing yet."""
        raise NotImplementedError(f"{cls.__name__} must define from_definition(name, definition).")

    def give_up(self, reason: str) -> None:
        """Give up what it holds, for good: whoever uses it from now on gets the reason as an error."""
        self.lost = reason

    def task_lost(self, task: str, incarnation: int) -> None:
        """Take note that a task is gone which may have asked for something here."""

    def report(self) -> dict[str, Any] | None:
        """Count what was done with it, as values of JSON, for whoever looks at a task; None for nothing to say."""
        return None

    def __repr__(self) -> str:  # stands in lowered steps, which all tasks have to print alike
        return f"<{type(self).__name__} {self.name!r}>"
