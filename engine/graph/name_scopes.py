"""Name scopes: a prefix for the names of operations and the paths of variables."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from .graph import get_default_graph

_variable_scope: ContextVar[str] = ContextVar("name scope of variables", default="")


@contextmanager
def name_scope(name: str) -> Generator[str]:
    """Prefix operations' names and the paths of variables that are made inside: ``with ab.name_scope("encoder"):``.

    >>> import anabranch as ab
    >>> with ab.name_scope("encoder"):
    ...     print(ab.Variable(1.0, name="scale").path)
    encoder/scale
    """
    token = _variable_scope.set(f"{_variable_scope.get()}{name}/")
    try:
        with get_default_graph().name_scope(name) as prefix:
            yield prefix
    finally:
        _variable_scope.reset(token)


def scoped_path(name: str) -> str:
    """Return the path of a variable called `name` that is made now."""
    return _variable_scope.get() + name
