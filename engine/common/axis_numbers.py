"""Axes as users give them."""

from __future__ import annotations

import operator
from typing import Any


def axis_number(axis: Any, what: str = "axis") -> int:
    """Return an axis as an int.

    Raises:
        TypeError: it is no integer.
    """
    try:
        return operator.index(axis)
    except TypeError:
        raise TypeError(f"{what} must be an integer; got {axis!r}.") from None
