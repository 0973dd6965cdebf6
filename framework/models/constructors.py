"""Note which models are made as those of the package are: of inputs and outputs, or of a list of layers."""

from __future__ import annotations

_constructors: list[object] = []


def note_constructor(cls: type) -> None:
    """Note that models of a class are made as those of the package are."""
    _constructors.append(cls.__init__)


def has_own_constructor(cls: type) -> bool:
    """Test whether a subclass has a constructor of its own, so that it can't be made as models of its base are."""
    return cls.__init__ not in _constructors
