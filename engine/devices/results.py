"""Results of kernels, one value for each output."""

from __future__ import annotations

from typing import Any

from ..common.nest import is_sequence


def as_results(result: Any, outputs: int, label: str) -> tuple[Any, ...]:
    """Return the results of a kernel, one for each output.

    Raises:
        ValueError: it gave another number of values.
    """
    if outputs == 1:
        return (result,)
    results: tuple[Any, ...] = () if result is None else tuple(result) if is_sequence(result) else (result,)
    if len(results) != outputs:
        raise ValueError(
            f"Kernel {label!r} gave {len(results)} values; expected {outputs}, as it was launched with "
            f"outputs={outputs}."
        )
    return results
