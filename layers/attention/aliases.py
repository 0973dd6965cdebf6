"""Names of attributes by which subclasses of Keras's attention layers read their settings."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Alias(Generic[T]):
    """Stand for another attribute of the same object, for reading and setting.

    Args:
        name: that attribute.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, holder: object, owner: type | None = None) -> T:
        return cast("T", self if holder is None else getattr(holder, self.name))

    def __set__(self, holder: object, value: T) -> None:
        setattr(holder, self.name, value)
