"""Properties whose names users' classes may want for attributes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, overload

_Value = TypeVar("_Value")


class replaceable_property(Generic[_Value]):  # noqa: N801 (used as a decorator)
    """A property that an attribute of the same name takes the place of.

    >>> class Model:
    ...     @replaceable_property
    ...     def inputs(self):
    ...         return None
    >>> model = Model()
    >>> model.inputs is None
    True
    >>> model.inputs = [1, 2]
    >>> model.inputs
    [1, 2]
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> replaceable_property[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else self._function(instance)


class reserved_property(Generic[_Value]):  # noqa: N801 (used as a decorator)
    """A property whose error on assignment says to choose another name.

    >>> class Model:
    ...     @reserved_property
    ...     def layers(self):
    ...         return []
    >>> Model().layers = [1]
    Traceback (most recent call last):
    ...
    AttributeError: Model: 'layers' is computed and can't be assigned. Choose another name, such as 'my_layers'.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> reserved_property[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else self._function(instance)

    def __set__(self, instance: object, value: object) -> NoReturn:
        name = self._function.__name__
        raise AttributeError(
            f"{type(instance).__name__}: {name!r} is computed and can't be assigned. Choose another name, such as "
            f"'my_{name}'.",
            name=name,
            obj=instance,
        )


__all__ = ["replaceable_property", "reserved_property"]
