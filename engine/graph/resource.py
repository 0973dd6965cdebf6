"""`NamedResource`: state other than variables that operations hold by reference and that a task keeps under a name."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from .device import State, place_state
from .graph import current_device_scope


class NamedResource(State):
    """State that operations refer to, such as a queue or an accumulator.

    A graph's document describes it by its kind and its definition, without what it holds. Whoever reads the document
    makes an empty one, or finds the one that has the same name.

    Attributes:
        kind: the name of the class in documents; subclasses without one are bases.
        name: the name that messages use.
        path: the name by which tasks know it; "" where that is `name`.
        lost: why what it held is gone; "" while it is there.
    """

    kind: ClassVar[str] = ""
    on_host = True
    name: str
    path: str = ""
    lost: str = ""

    def place_here(self) -> None:
        """Take the device that the scopes around ask for."""
        place_state(self, current_device_scope())

    def definition(self) -> dict[str, Any]:
        """Describe it as values of JSON, from which `from_definition` makes another one."""
        raise NotImplementedError(f"{type(self).__name__} must define definition().")

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        """Make a new one, which holds nothing yet."""
        raise NotImplementedError(f"{cls.__name__} must define from_definition(name, definition).")

    def task_lost(self, task: str, incarnation: int) -> None:
        """Take note that a task is gone which may have asked for something here."""

    def report(self) -> dict[str, Any] | None:
        """Count what was done with it, as values of JSON, for whoever looks at a task; None for nothing to say."""
        return None

    def __repr__(self) -> str:  # stands in lowered steps, which all tasks have to print alike
        return f"<{type(self).__name__} {self.name!r}>"
