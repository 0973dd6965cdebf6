"""Containers: named places in which variables live as long as the process, until the container is cleared.

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), 4.7.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .variable import Variable


class Container(Mapping[str, "Variable"]):
    """The variables made inside ``with container:``, by name. Get one with `container`.

    It holds its variables for as long as the process lives: a later graph, session or function finds the state by
    ``ab.container("experiment")["w"]``. `clear` gives it up. Variables made in no container live as long as something
    refers to them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._variables: dict[str, Variable] = {}

    def hold(self, variable: Variable) -> str:
        """Take in a new variable; return its name here, which differs from its own where that is taken."""
        name, count = variable.name, 0
        while name in self._variables:
            count += 1
            name = f"{variable.name}_{count}"
        self._variables[name] = variable
        return name

    def clear(self) -> None:
        """Forget the variables and free their values; whoever still uses one gets an error that names the container.

        Variables that tasks of a cluster hold keep their values: `Session.reset` clears containers of tasks.
        """
        for name, variable in self._variables.items():
            variable.home = None
            variable.write_value(_Cleared(name, self.name))
        self._variables.clear()

    def __getitem__(self, name: str) -> Variable:
        try:
            return self._variables[name]
        except KeyError:
            listed = ", ".join(map(repr, self._variables)) or "nothing"
            raise KeyError(f"Container {self.name!r} holds no variable {name!r}; it holds {listed}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __enter__(self) -> Container:
        _entered.stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _entered.stack.pop()

    def __repr__(self) -> str:
        return f"<Container {self.name!r} with {len(self)} variables>"


class _Cleared:
    """The rest of the value of a variable whose container was cleared: every use of it is an error."""

    def __init__(self, name: str, container: str) -> None:
        self._message = (
            f"Variable {name!r} has no value: its container {container!r} was cleared. Assign it a value first, or "
            "make a new variable."
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(self._message)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(self._message)

    def __float__(self) -> NoReturn:
        raise RuntimeError(self._message)

    def __int__(self) -> NoReturn:
        raise RuntimeError(self._message)

    def __len__(self) -> NoReturn:
        raise RuntimeError(self._message)

    def __getitem__(self, key: Any) -> NoReturn:
        raise RuntimeError(self._message)

    def __add__(self, other: Any) -> NoReturn:
        raise RuntimeError(self._message)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __add__
    __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __add__
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __add__


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[Container] = []


_entered = _Entered()
_containers: dict[str, Container] = {}


def container(name: str) -> Container:
    """Return the process's container called `name`, which is made when it is first asked for.

    >>> import anabranch as ab
    >>> with ab.container("example") as kept:
    ...     w = ab.Variable([1.0, 2.0], name="w")
    >>> kept["w"] is w, list(ab.container("example"))
    (True, ['w'])
    >>> kept.clear()
    >>> w.numpy()
    Traceback (most recent call last):
    RuntimeError: Variable 'w' has no value: its container 'example' was cleared. Assign it a value first, or make ...
    """
    return _containers.setdefault(name, Container(name))


def name_of_container(resource: object) -> str:
    """Return the name of the container that holds a variable, a queue or the like; "" for none."""
    own = getattr(resource, "container", "")
    if own:
        return own
    for name, each in _containers.items():
        if any(held is resource for held in each.values()):
            return name
    return ""


def clear_containers(names: Iterable[str] | None = None) -> None:
    """Clear some containers of this process, or all."""
    for name, each in list(_containers.items()):
        if names is None or name in names:
            each.clear()


def current_container() -> Container | None:
    """Return the container in whose block variables are made now."""
    return _entered.stack[-1] if _entered.stack else None
