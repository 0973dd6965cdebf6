"""Descriptions of run-time values in messages."""

from __future__ import annotations

from typing import Any

from .dtypes import name_of


def describe_value(value: Any) -> str:
    """Describe a run-time value in short: its dtype and shape."""
    try:
        dtype = getattr(value, "dtype", None)
    except RuntimeError:  # what stands for the value of a variable that has none
        return "no value"
    if dtype is None:
        return type(value).__name__
    return f"{name_of(dtype)}[{','.join(str(dim) for dim in value.shape)}]"
