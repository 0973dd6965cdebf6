"""Python functions that are registered by name: a graph that calls one can be saved, and sent to tasks that have it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..common.nest import is_text

Function = TypeVar("Function", bound=Callable[..., Any])
_functions: dict[str, Callable[..., Any]] = {}


def register_function(name: str) -> Callable[[Function], Function]:
    """Register the function below it by name, for `ops.numpy_function`.

    A graph that calls a registered function can be saved, and run by tasks: they get the name, and call what is
    registered by that name in their own process. So the client and the task import the module that registers it; for
    ``python -m anabranch worker`` it is named with ``--import``. The function may also be a gradient (``grad=``).

    Args:
        name: by which it is found; one function has it.

    Returns:
        A decorator, which returns the function as it is.

    Raises:
        ValueError: another function has that name. One of the same module and qualified name takes its place.
        TypeError: `name` is not a string, or what is registered is not a function.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> @ab.distribute.register_function("rank of an example")
    ... def ranks(values):
    ...     return values.argsort().argsort()
    >>> ab.ops.numpy_function(ranks, [np.array([3.0, 1.0, 2.0])], "int64", shape=(3,))
    Tensor([2, 0, 1], dtype=int64)
    """
    if not is_text(name) or not name:
        raise TypeError(f"register_function takes a name: @register_function('ranks'); got {name!r}.")

    def register(function: Function) -> Function:
        if not callable(function):
            raise TypeError(f"register_function({name!r}) takes a function; got {type(function).__name__}.")
        known = _functions.get(name)
        if known is not None and known is not function and _place(known) != _place(function):
            raise ValueError(
                f"register_function({name!r}): {_place(known)} has that name already, so {_place(function)} needs "
                "another."
            )
        _functions[name] = function
        return function

    return register


def _place(function: Callable[..., Any]) -> str:
    own = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{own}"


class RegisteredFunction:
    """A function that is registered by name, in whatever process it is called.

    Args:
        name: the name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name

    @property
    def is_here(self) -> bool:
        """Test whether this process has it."""
        return self.name in _functions

    def missing(self) -> str:
        """Say that it is not here, and what is."""
        known = ", ".join(map(repr, sorted(_functions))) or "none"
        return f"calls the function {self.name!r}, which is not registered there (registered are: {known})"

    def __call__(self, *arguments: Any) -> Any:
        function = _functions.get(self.name)
        if function is None:
            raise LookupError(f"This process {self.missing()}. Import the module that registers it.")
        try:
            return function(*arguments)
        except Exception:
            raise
        except BaseException as error:  # of `sys.exit`, for instance: in a task it would end the steps of all clients
            if threading.current_thread() is threading.main_thread():
                raise
            raise RuntimeError(
                f"The function {self.name!r} raised {type(error).__name__}({error}), by which it can't end the process "
                "that calls it for others. Raise an error, such as RuntimeError."
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegisteredFunction) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:  # stands in lowered steps, which all tasks have to print alike
        return f"<registered function {self.name!r}>"


def by_name(function: Any) -> Any:
    """Return the function as one that is found by its name, if it is registered."""
    return next((RegisteredFunction(name) for name, known in _functions.items() if known is function), function)


__all__ = ["RegisteredFunction", "by_name", "register_function"]
