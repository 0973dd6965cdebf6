"""What a run-time error tells: the operation, its inputs, and where it was built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.graph import Operation


def describe_value(value: Any) -> str:
    """dtype and shape of a run-time value, in short."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    return f"{dtype}[{','.join(str(dim) for dim in value.shape)}]"


def annotate(error: BaseException, operation: Operation, values: Sequence[Any], where: str = "") -> None:
    """Note on `error`, once, which operation raised it."""
    if getattr(error, "_anabranch_operation", None) is not None:
        return
    inputs = ", ".join(describe_value(value) for value in values) or "none"
    error.add_note(
        f"In operation {operation.name!r} ({operation.type}){where}; inputs: {inputs}; defined at {operation.location}"
    )
    error._anabranch_operation = operation.name  # type: ignore[attr-defined]
