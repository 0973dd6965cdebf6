"""Checks of arguments that layers, losses, metrics and optimizers share: errors that name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, cast

import numpy as np

from ..graph import Tensor, Variable

_NUMBERS = (Real, np.ndarray, Tensor, Variable)  # values that a graph computes serve as numbers, too


def check_numbers(owner: str, /, **arguments: object) -> None:
    """Check that arguments are numbers, or tensors that give them.

    Args:
        owner: whose arguments they are, for the error.
        **arguments: their values by name.

    Raises:
        ValueError: one is something else.

    >>> check_numbers("Adam", beta_1=0.9, beta_2="x")
    Traceback (most recent call last):
    ...
    ValueError: Adam: beta_2 must be a number; got 'x' of type str.
    """
    for name, value in arguments.items():
        if not isinstance(value, _NUMBERS):
            raise refused(owner, name, value, "a number")


def check_optional_numbers(owner: str, /, **arguments: object) -> None:
    """Check that arguments are None, numbers, or tensors that give them; see `check_numbers`."""
    for name, value in arguments.items():
        if value is not None and not isinstance(value, _NUMBERS):
            raise refused(owner, name, value, "a number, or None")


def check_axis(owner: str, axis: object) -> None:
    """Check that `axis` is an int, or several.

    Raises:
        ValueError: it is something else.
    """
    given: object = axis
    several = cast("Sequence[object]", axis) if isinstance(axis, (list, tuple)) else [given]
    for each in several:
        if not isinstance(each, Integral):
            raise refused(owner, "axis", given, "an int, or several")


def refused(owner: str, name: str, value: object, expected: str) -> ValueError:
    """Make the error for an argument of a wrong type."""
    return ValueError(f"{owner}: {name} must be {expected}; got {value!r} of type {type(value).__name__}.")


def listed(owner: str, name: str, values: Any, expected: str) -> list[Any]:
    """Return the elements of an argument that has several.

    Raises:
        ValueError: it is a string, or has no elements.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refused(owner, name, values, expected)
    return list(cast("Iterable[Any]", values))


def floats(owner: str, name: str, values: Any) -> np.ndarray[Any, Any]:
    """Return an argument that is a number, or an array of them, in float64.

    Raises:
        ValueError: something in it is not a number.
    """
    try:
        return np.asarray(values, "float64")
    except (TypeError, ValueError):
        raise refused(owner, name, values, "a number, or an array of numbers") from None


__all__ = ["check_axis", "check_numbers", "check_optional_numbers", "floats", "listed", "refused"]
