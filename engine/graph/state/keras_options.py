"""Options of variables that scripts for Keras set."""

from __future__ import annotations

from typing import Any

_AGGREGATIONS = ("none", "sum", "mean", "only_first_replica")


def set_options(variable: Any, aggregation: str | None, constraint: Any) -> None:
    """Give a new variable its options, of which most have none.

    Args:
        variable: the variable.
        aggregation: how replicas are to agree on a value; "none" is None.
        constraint: a function of its value.

    Raises:
        ValueError: there is no such way, or `constraint` is no function.
    """
    if aggregation not in (None, *_AGGREGATIONS):
        raise ValueError(
            f"Variable {variable.name!r}: aggregation must be one of {_AGGREGATIONS}, got {aggregation!r}."
        )
    if aggregation not in (None, "none"):
        variable.aggregation = aggregation
    if constraint is not None:
        variable.constraint = constraint


def checked_name(name: object) -> str:
    """Check the name that a variable is given; gives "variable" for None.

    Raises:
        TypeError: it is not text.
    """
    if name is None:
        return "variable"
    if not isinstance(name, str):
        raise TypeError(f"Variable: name must be a str or None, got {name!r}.")
    return name or "variable"


class _FunctionOrNone:
    """An attribute of variables that may be a function of their values."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._key = name, f"_{name}"

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        return self if variable is None else variable.__dict__.get(self._key)

    def __set__(self, variable: Any, value: Any) -> None:
        if value is not None and not callable(value):
            raise ValueError(
                f"Variable {variable.name!r}: {self._name} must be a function of its value, or None; got {value!r}. "
                f"ab.{self._name}s.get makes one of a name."
            )
        variable.__dict__[self._key] = value


class KerasOptions:
    """The options that are attributes."""

    aggregation: str | None = None
    # A layer's weights have their own of these.
    regularizer: Any = _FunctionOrNone()
    constraint: Any = _FunctionOrNone()

    @property
    def overwrite_with_gradient(self) -> bool:
        """False: no optimizer assigns a gradient to its variable.

        Raises:
            NotImplementedError: it is set to True.
        """
        return False

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if value:
            raise NotImplementedError(
                "overwrite_with_gradient=True is not supported: an optimizer would make a step of what is to be the "
                "new value. Compute gradients with ab.GradientTape, assign this one by variable.assign(gradient), and "
                "give optimizer.apply the others."
            )
